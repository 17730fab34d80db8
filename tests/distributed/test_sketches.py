"""Another workload, other strategies and parts than the paper's, through the page as it is.

tests/sketches has them; in float64 every run has to be that of one process to 1e-10.
"""

import json
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from helpers.launching import launch
from helpers.undisturbed import rows, saved
from sketches import jobs
from sketches.averages import AveragedImages
from torch import Tensor, nn
from torch.nn import functional as F

from lsgd.comm.single import SingleComm
from lsgd.evaluate import evaluate_checkpoint
from lsgd.evaluation import evaluate
from lsgd.learner import Learner
from lsgd.recipe import Recipe
from lsgd.run.checkpoint import FILE, Checkpoint, load, read
from lsgd.workloads.language import Language

pytestmark = pytest.mark.side_by_side
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def alone(folder: Path):
    """The folder of a run that one process makes, when it is first asked for."""

    @cache
    def made(name: str) -> Path:
        kind, how = jobs.RUNS[name]
        jobs.run(SingleComm(), folder / "alone" / name, kind, **how)
        return folder / "alone" / name

    return made


@pytest.fixture(scope="module")
def together(folder: Path, alone):
    """The folder of all runs of so many processes."""

    @cache
    def made(processes: int) -> Path:
        for _, left in jobs.TAKEN_OVER.values():
            alone(left)
        (out := folder / str(processes)).mkdir()
        done = launch("forked", processes, jobs.__file__, str(out))
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return out

    return made


def tensors(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors in nested values, by where they are."""
    match value:
        case Tensor():
            yield name, value
        case dict():
            for key, entry in value.items():
                yield from tensors(entry, f"{name}.{key}")
        case list():
            for key, entry in enumerate(value):
                yield from tensors(entry, f"{name}.{key}")


def state(run: Path) -> dict[str, Tensor]:
    """All tensors of the newest checkpoint; of the parts of BN's statistics their sum."""
    kept = saved(run)
    parts = {name: dict(part) for name, part in kept.parts.items()}
    if "batchnorm" in parts:
        parts["batchnorm"]["shares"] = parts["batchnorm"]["shares"].sum(0)
    return dict(tensors([kept.model, kept.optimizer, parts, kept.tally]))


def distance(one: Path, other: Path) -> float:
    """The largest difference of any number in the newest checkpoints of two runs, and of rates."""
    ours, theirs = state(one), state(other)
    assert ours.keys() == theirs.keys()
    differences = [(ours[key].double() - theirs[key].double()).abs().max() for key in ours]
    ours, theirs = saved(one), saved(other)
    assert (ours.step, ours.order, ours.lr) == (theirs.step, theirs.order, theirs.lr)
    assert ours.rates.keys() == theirs.rates.keys()
    for epoch, rates in ours.rates.items():
        assert rates.keys() == theirs.rates[epoch].keys()
        differences += [abs(rates[key] - theirs.rates[epoch][key]) for key in rates]
    return float(max(differences))


def checkpoint(path: Path) -> Checkpoint:
    return load(read(path), str(path))


def end(out: Path, name: str) -> str:
    """How a run of a job ended, on all of its processes alike."""
    (message,) = {ends[name] for ends in json.loads((out / "ends.json").read_text())}
    return message


def go_on(run: Path, kind: str, folder: Path) -> Path:
    """What one process makes of a run that has been left."""
    assert jobs.run(SingleComm(), folder / "gone-on", kind, begin_with=run) == ""
    return folder / "gone-on"


WHOLE = {
    "language-1": "language-8",
    "language-3": "language-8",
    "language-8": "language-8",
    "averages-1": "averages-4",
    "averages-4": "averages-4",
    "normless": "normless",
}
"""The runs that are not disturbed, with that of one process to which each is equal."""
LEFT = {
    "language": "language-8",
    "averages": "averages-4",
    "normless": "normless",
}
"""The kinds of runs that are left after a signal, with what each comes to."""


@pytest.mark.parametrize("name", [name for name, same in WHOLE.items() if name != same])
def test_the_workers_per_pass_change_nothing(alone, name: str) -> None:
    assert distance(alone(name), alone(WHOLE[name])) < 1e-10


@pytest.mark.parametrize("kind", LEFT)
def test_one_process_goes_on_bit_by_bit(alone, kind: str, tmp_path: Path) -> None:
    run = go_on(alone(f"{kind}-left"), kind, tmp_path)
    assert distance(run, alone(LEFT[kind])) == 0


@pytest.mark.distributed
@pytest.mark.parametrize("processes", [2, 3])
class TestTogether:
    """Every test reads other runs of the same launch."""

    @pytest.mark.parametrize("name", WHOLE)
    def test_undisturbed(self, alone, together, processes, name) -> None:
        assert distance(together(processes) / name, alone(WHOLE[name])) < 1e-10

    @pytest.mark.parametrize("kind", LEFT)
    def test_all_leave_within_the_epoch_and_one_goes_on(
        self, alone, together, processes, kind, tmp_path
    ) -> None:
        left = together(processes) / f"{kind}-left"
        said = end(left.parent, left.name)
        assert said.startswith("Preempted: told to leave by a signal: saved after step ")
        assert jobs.TOLD < saved(left).step < 10
        run = go_on(left, kind, tmp_path)
        assert distance(run, alone(LEFT[kind])) < 1e-10

    @pytest.mark.parametrize("kind", LEFT)
    def test_what_one_process_has_left_is_taken_over(
        self, alone, together, processes, kind
    ) -> None:
        assert distance(together(processes) / f"{kind}-taken-over", alone(LEFT[kind])) < 1e-10


def by_hand(workload: Language, made: Recipe) -> tuple[nn.Module, list[Tensor]]:
    """The model that a few lines of torch train on all streams at once, and the state it ends with.

    The loss is summed over a window and its mean is over the streams; the gradient is clipped.
    """
    model = workload.network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    text, window = workload.inputs().texts["train"].long(), made.data.window
    columns = text[: len(text) // 16 * 16].view(16, -1).t()
    for epoch in range(made.epochs):
        state = None
        for step in range(5):
            inputs, targets = (columns[step * window + i :][:window] for i in (0, 1))
            seen, state = model.lstm(model.embedding(inputs), state)
            state = [value.detach() for value in state]
            logits = model.output(seen).flatten(0, 1)
            optimizer.zero_grad()
            (F.cross_entropy(logits, targets.flatten(), reduction="sum") / 16).backward()
            norm = (
                torch.stack([each.grad.square().sum() for each in model.parameters()]).sum() ** 0.5
            )
            for parameter in model.parameters():
                parameter.grad *= min(1, 1 / norm)
            optimizer.param_groups[0]["lr"] = made.lr(epoch * 5 + step)
            optimizer.step()
    return model, state


def test_a_language_model_is_that_of_a_plain_loop(alone) -> None:
    """Weights, hidden state and both perplexities, of every token of a set but its first."""
    made = jobs.recipe("language")
    workload = Language(made, CPU)
    model, state = by_hand(workload, made)
    kept = saved(alone("language-8"))
    for name, value in model.state_dict().items():
        torch.testing.assert_close(kept.model[name], value, rtol=0, atol=1e-10)
    hidden = torch.stack(state)
    torch.testing.assert_close(kept.parts["hidden"]["values"], hidden, rtol=0, atol=1e-10)
    texts = workload.inputs().texts
    for split, cuts in (("val", (0, 19, 38, 56)), ("test", (0, 17, 33, 49))):
        text, lost = texts[split].long(), torch.zeros((), dtype=torch.float64)
        for begin, end in pairwise(cuts):
            seen, _ = model.lstm(model.embedding(text[begin:end]))
            targets = text[begin + 1 : end + 1]
            lost += F.cross_entropy(model.output(seen), targets, reduction="sum")
        perplexity = (lost / (len(text) - 1)).exp().item()
        assert kept.rates[4][f"{split}_perplexity"] == pytest.approx(perplexity, rel=1e-10)
    (row, *_) = rows(alone("language-8"), "train")
    assert {"perplexity", "tokens_per_second"} <= row.keys()
    assert row["gradient_norm"] > 1, "or clipping would not have been tried"


def test_a_checkpoint_of_a_language_model_is_evaluated(alone) -> None:
    path = alone("language-8") / FILE
    evaluated = evaluate_checkpoint(path, ["device=cpu"])
    for split, tokens in (("val", 56), ("test", 49)):
        assert evaluated[split].counts["tokens"] == tokens
        rate = checkpoint(path).rates[4][f"{split}_perplexity"]
        assert evaluated[split].rates["perplexity"] == rate


def test_the_mean_of_the_weights_moves_once_per_update(tmp_path: Path) -> None:
    """It is the mean of those in the checkpoints after each step."""
    run = tmp_path / "run"
    words = ["workers_per_pass=1", "checkpoint_steps=1", "keep_checkpoints=99", "epochs=1"]
    assert jobs.run(SingleComm(), run, "averages", *words, "schedule.milestones=[]") == ""
    models = [checkpoint(path).model for path in run.glob("checkpoint-*.pt")]
    part = saved(run).parts["mean_of_weights"]
    assert part["updates"] == len(models) == 5
    for name in part.keys() - {"updates"}:
        mean = torch.stack([model[name] for model in models]).mean(0)
        torch.testing.assert_close(part[name], mean, rtol=0, atol=1e-12)


def test_an_evaluation_is_of_what_is_saved(alone) -> None:
    """With BN's statistics, and with the mean of the weights."""
    kept = saved(alone("averages-4"))
    with patch("lsgd.workloads.images.Images", AveragedImages):
        learner = Learner(jobs.recipe("averages"), SingleComm(), CPU)
    learner.restore(kept)
    inputs = learner.workload.inputs()
    for split, scores in evaluate(learner, inputs).items():
        for name, rate in scores.named(split).items():
            assert kept.rates[3][name] == rate
    assert kept.rates[3]["val_loss"] != kept.rates[3]["averaged_loss"]


def test_a_network_without_norms_carries_nothing(alone) -> None:
    assert saved(alone("normless")).parts == {}
