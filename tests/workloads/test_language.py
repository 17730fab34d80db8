"""The streams of a text: which tokens a worker reads, and that each is guessed once."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.base_recipe import with_fields
from helpers.capabilities import skip_or_fail
from helpers.composed import compose_recipe
from helpers.reference_run import newest_checkpoint
from hypothesis import given
from hypothesis import strategies as st

from lsgd.errors import UsageError
from lsgd.models.lstm import LSTMLanguageModel, check_autocast
from lsgd.recipe import Recipe
from lsgd.rules import sampler
from lsgd.rules.sampler import MicroBatch
from lsgd.text.ptb import TextCorpus
from lsgd.train import train
from lsgd.workloads.language import IGNORED_TARGET, LanguageModeling, TextInputs

CPU = torch.device("cpu")
PTB = compose_recipe("+recipe=ptb_small", "inputs=synthetic")


def recipe(tokens: int, workers: int, worker_batch: int, window: int, streams: int = 1) -> Recipe:
    return with_fields(
        PTB,
        data__train_examples=tokens,
        data__val_examples=tokens,
        data__window=window,
        data__eval_streams=streams,
        workers=workers,
        worker_batch=worker_batch,
        workers_per_pass=1,
    )


def counted(made: Recipe) -> TextInputs:
    """Texts whose tokens are their places."""
    tokens = np.arange(made.data.val_examples, dtype=np.int32)
    return TextInputs(made, TextCorpus({"train": tokens, "val": tokens}, []), "counted")


@given(st.integers(2, 200), st.integers(1, 3), st.integers(1, 3), st.integers(1, 9))
def test_a_worker_reads_its_streams_window_after_window(
    tokens: int, workers: int, worker_batch: int, window: int
) -> None:
    made = recipe(tokens, workers, worker_batch, window)
    if not made.train_examples:
        return
    streams, length = workers * worker_batch, tokens // (workers * worker_batch)
    order = LanguageModeling(made, CPU).example_order(0)
    for worker in range(workers):
        passes = [
            each
            for step in range(made.steps_per_epoch)
            for each in sampler.step_micro_batches(
                order,
                epoch=0,
                step=step,
                workers=workers,
                worker_batch=worker_batch,
                hosted=range(worker, worker + 1),
                workers_per_pass=1,
            )
        ]
        read = torch.cat([batch[:-1] for batch in counted(made).train(passes)]).t()
        behind = [batch[-1] for batch in counted(made).train(passes)]
        own = np.arange(worker * worker_batch, (worker + 1) * worker_batch)
        expected = own[:, None] * length + np.arange(window * made.steps_per_epoch)
        assert np.array_equal(read.numpy(), expected)
        # The token behind a window is the first of the next one, and in the stream.
        assert np.array_equal(behind[-1].numpy(), expected[:, -1] + 1)
        assert (behind[-1].numpy() < (own + 1) * length).all()
    assert (length - 1) // window == made.steps_per_epoch
    assert made.train_examples == made.steps_per_epoch * streams


@pytest.mark.slow
@given(st.integers(1, 60), st.integers(1, 8), st.integers(1, 9), st.integers(1, 5))
def test_every_token_behind_another_is_guessed_once(
    tokens: int, streams: int, window: int, processes: int
) -> None:
    made = recipe(tokens, 1, 1, window, streams)
    workload, guessed = LanguageModeling(made, CPU), []
    most = len(workload.evaluation_micro_batches("val", 0, processes))
    for rank in range(processes):
        passes = workload.evaluation_micro_batches("val", rank, processes)
        assert len(passes) <= most
        for batch in counted(made).evaluation(passes):
            before, after = batch[:-1], batch[1:]
            real = after != IGNORED_TARGET
            assert torch.equal(after[real], before[real] + 1)
            guessed += after[real].tolist()
    assert sorted(guessed) == list(range(1, tokens))


def test_the_two_means() -> None:
    """The gradient is of the sum over a window, its mean over streams; the loss is per token."""
    made = recipe(90, 2, 2, 3)
    workload = LanguageModeling(made, CPU)
    model = workload.network()
    workload.carried_states(model, range(2), comm=None)  # type: ignore[arg-type]
    assert workload.example_weights is None
    loss, counts = workload.loss(model, torch.arange(16).view(4, 4), MicroBatch(0, np.arange(4)))
    assert counts.tolist() == [12]
    assert workload.metrics((loss / 12).item(), [12])["perplexity"] == pytest.approx(1e4, rel=0.1)
    highest = workload.metrics(1e9, [12])["perplexity"]
    assert 1e300 < highest < float("inf")
    assert workload.metrics(float("nan"), [12])["perplexity"] == highest


def test_a_state_of_autocast_is_carried_in_full(tmp_path: Path) -> None:
    try:
        with torch.autocast("cpu", torch.bfloat16):
            torch.nn.LSTM(4, 4)(torch.zeros(2, 1, 4))
    except RuntimeError:
        skip_or_fail("bfloat16", "this processor has no LSTM in bfloat16", "a newer one has")
    words = ["precision=bfloat16", "epochs=1", "schedule.milestones=[]", "device=cpu"]
    small = ["data.train_examples=90", "data.val_examples=9", "data.test_examples=0"]
    made = compose_recipe("+recipe=ptb_small", "inputs=synthetic", *words, *small, "data.window=2")
    train(replace(made, run_dir=str(tmp_path / "run")))
    assert newest_checkpoint(tmp_path / "run").parts["hidden"]["values"].dtype == torch.float32


def test_a_processor_without_an_lstm_in_bfloat16_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("could not create a primitive descriptor\nfor a forward propagation")

    model = LanguageModeling(PTB, CPU).network()
    monkeypatch.setattr(torch.nn.LSTM, "forward", fails)
    said = (
        r"precision=bfloat16 is not supported by the LSTM .* cpu \(could not create a .*\); write"
    )
    with pytest.raises(UsageError, match=said):
        check_autocast(model, CPU, torch.bfloat16)
    check_autocast(model.output, CPU, torch.bfloat16)


def test_the_network_of_the_paper() -> None:
    model = LanguageModeling(PTB, CPU).network()
    assert isinstance(model, LSTMLanguageModel)
    assert sum(parameter.numel() for parameter in model.parameters()) == 4_653_200
    for parameter in model.parameters():
        assert parameter.abs().max() <= 0.1
        assert parameter.std().item() == pytest.approx(0.1 / 3**0.5, rel=0.1)
    again = LanguageModeling(PTB, CPU).network()
    other = LanguageModeling(with_fields(PTB, seed=1), CPU).network()
    for one, two, three in zip(*(m.parameters() for m in (model, again, other)), strict=True):
        assert torch.equal(one, two)
        assert not torch.equal(one, three)
