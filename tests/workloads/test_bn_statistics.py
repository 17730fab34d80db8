"""What BN normalises by in an evaluation: statistics that move, of the last step, or precise."""

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.checkpoints import CPU, WORDS, learner_after, make_steps
from helpers.composed import compose_recipe
from helpers.halted import train_until
from helpers.reference_run import assert_equal
from helpers.reference_run import newest_checkpoint as newest
from helpers.threaded import ThreadComm, run_on_threads
from numpy.typing import NDArray
from torch import nn

from lsgd.comm.single import SingleComm
from lsgd.errors import UsageError
from lsgd.evaluate import evaluate_path
from lsgd.evaluation import evaluate
from lsgd.learner import Learner
from lsgd.recipe import Recipe
from lsgd.recipe.checks import check_recipe
from lsgd.rules import sampler
from lsgd.rules.batchnorm import worker_batch_norms
from lsgd.rules.sampler import MicroBatch
from lsgd.train import train

EXACT = {"rtol": 0, "atol": 1e-12}


def recipe(*words: str) -> Recipe:
    return compose_recipe(*WORDS, "workers=5", "precision=float64", "workers_per_pass=2", *words)


def buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.named_buffers() if "running" in name}


def measured(learner: Learner) -> dict[str, torch.Tensor]:
    """The statistics that an evaluation of this learner leaves in its model."""
    evaluate(learner, learner.workload.inputs())
    return buffers(learner.model)


def plain(learner: Learner, workers: int) -> dict[str, torch.Tensor]:
    """The same by PyTorch alone: plain BN over one worker's images at a time, averaged."""
    made = learner.recipe
    model = copy.deepcopy(learner.model)
    for layer in worker_batch_norms(model):
        layer.momentum, layer.workers = 1.0, 1
        layer.forward = nn.BatchNorm2d.forward.__get__(layer)
    ids = learner.workload.example_order(0)
    shares = [ids[begin : begin + made.worker_batch] for begin in range(0, len(ids), 8)][:workers]
    found = []
    with torch.no_grad():
        for share in shares:
            [(images, _)] = learner.workload.inputs().train([MicroBatch(0, np.asarray(share))])
            model.train()(images.to(learner.workload.dtype))
            found.append(buffers(model))
    return {name: torch.stack([each[name] for each in found]).mean(0) for name in found[0]}


@pytest.mark.parametrize(("examples", "steps"), [(1, 1), (80, 2), (81, 3)])
def test_precise_ones_are_the_mean_over_the_workers_of_whole_steps(
    examples: int, steps: int
) -> None:
    learner = learner_after(
        recipe("bn_statistics=precise", f"bn_statistics.examples={examples}"), 0, 4
    )
    torch.testing.assert_close(measured(learner), plain(learner, 5 * steps), **EXACT)


def test_precise_ones_are_of_the_type_that_is_evaluated_in() -> None:
    made = recipe("bn_statistics=precise", "bn_statistics.examples=1", "precision=float32")
    lower = replace(made, evaluation=replace(made.evaluation, bfloat16=True))
    in_float32, found = (measured(learner_after(each, 0, 2)) for each in (made, lower))
    learner = learner_after(lower, 0, 2)
    with torch.autocast("cpu", torch.bfloat16):
        in_bfloat16 = plain(learner, 5)
    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(found, in_bfloat16, **close)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(in_float32, in_bfloat16, **close)


def test_a_tail_counts_as_the_workers_it_has() -> None:
    """110 images are 2 steps of 40 and one of 30, whose last worker has 6: that is all."""
    made = recipe(
        "tail=keep", "bn_statistics=precise", "inputs=synthetic", "data.train_examples=110"
    )
    learner = learner_after(made, 0, 2)
    assert made.bn_steps == 3
    torch.testing.assert_close(measured(learner), plain(learner, 14), **EXACT)


@pytest.mark.slow
def test_they_follow_from_the_weights_alone_and_change_no_step() -> None:
    """Neither the epoch nor what was evaluated before."""
    precise, moving = recipe("bn_statistics=precise"), recipe()
    one, other = learner_after(precise, 0, 3), learner_after(moving, 0, 3)
    first = measured(one)
    torch.testing.assert_close(measured(one), first, rtol=0, atol=0)
    for learner in (one, other):
        make_steps(learner, 3, 5)
    ours, theirs = one.checkpoint(), other.checkpoint()
    torch.testing.assert_close(ours.optimizer["state"], theirs.optimizer["state"], rtol=0, atol=0)
    torch.testing.assert_close(ours.model, theirs.model, rtol=0, atol=0)
    assert not any(layer.seen.any() for layer in worker_batch_norms(one.model))


@pytest.mark.parametrize(("workers_per_pass", "processes"), [(1, 2), (5, 3)])
def test_processes_and_passes_do_not_matter(processes: int, workers_per_pass: int) -> None:
    made = recipe("bn_statistics=precise", "bn_statistics.examples=100")
    expected = measured(Learner(made, SingleComm(), CPU))

    def process(comm: ThreadComm) -> dict[str, torch.Tensor]:
        other = replace(made, workers_per_pass=workers_per_pass)
        return measured(Learner(other, comm, CPU))

    for found in run_on_threads(processes, process):
        torch.testing.assert_close(found, expected, **EXACT)


def test_the_last_steps_are_the_mean_over_its_workers() -> None:
    learner = learner_after(recipe("bn_statistics=last"), 0, 3)
    learner.strategy.synchronize()
    kept, before = buffers(learner.model), learner_after(recipe(), 0, 2)
    names = {layer: name for name, layer in before.model.named_modules()}
    statistics, seen = before.workload.statistics, {}
    end_step = statistics.end_step

    def looked(active_workers: int) -> None:
        seen.update(
            {names[layer]: layer.seen.clone() for layer in worker_batch_norms(before.model)}
        )
        end_step(active_workers)

    statistics.end_step = looked
    make_steps(before, 2, 3)
    for name, (means, variances) in seen.items():
        torch.testing.assert_close(kept[f"{name}.running_mean"], means / 5, **EXACT)
        torch.testing.assert_close(kept[f"{name}.running_var"], variances / 5, **EXACT)


RUN = (
    "epochs=3", "schedule.milestones=[2]", "schedule.warmup=none", "log_steps=1", "tail=keep",
    "inputs=synthetic", "data.train_examples=110", "data.val_examples=50",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("word", ["precise", "last"])
def test_a_run_goes_on_and_says_what_its_checkpoint_is_evaluated_to(
    word: str, tmp_path: Path
) -> None:
    """By `lsgd.evaluate`, which measures anew."""
    straight = recipe(
        *RUN, f"bn_statistics={word}", "checkpoint_steps=1", f"run_dir={tmp_path / 'a'}"
    )
    train(straight)
    last = newest(tmp_path / "a").rates[3]
    found = evaluate_path(tmp_path / "a" / "checkpoint.pt")["val"].metrics
    assert found["loss"] == pytest.approx(last["val_loss"], rel=1e-12)
    left = replace(straight, run_dir=str(tmp_path / "b"))
    train_until(left, 5)
    train(left)
    assert_equal(tmp_path / "b", tmp_path / "a", within=1e-12)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("+recipe=fashion_lenet5", "bn_statistics=precise"), "model=lenet5, which has no BN"),
        (
            ("+recipe=digits", "bn_statistics=last", "strategy=async"),
            "strategy=async does not make; write bn_statistics=moving",
        ),
        (("+recipe=digits", "bn_statistics.examples=0"), "bn_statistics.examples=0"),
        (
            ("+recipe=ptb_small", "bn_statistics=precise"),
            "bn_statistics.name=precise has no effect with data.workload=language",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_recipe(compose_recipe(*words))


def test_they_are_another_run_and_moving_is_the_one_there_was() -> None:
    base = recipe()
    assert replace(base, bn_statistics=recipe("bn_statistics=moving").bn_statistics) == base
    prints = {recipe(f"bn_statistics={name}").fingerprint for name in ("moving", "precise", "last")}
    assert len(prints) == 3
    assert base.fingerprint in prints


def test_an_epoch_is_put_in_order_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though each evaluation asks for the first one's order in between: for ImageNet, 0.2 s."""
    asked: list[int] = []
    order = sampler.epoch_order

    def counted(*args: int, **words: int) -> NDArray[np.int64]:
        asked.append(words["epoch"])
        return order(*args, **words)

    monkeypatch.setattr(sampler, "epoch_order", counted)
    learner = Learner(recipe("bn_statistics=precise", "inputs=synthetic"), SingleComm(), CPU)
    for epoch in (1, 0, 1, 0, 1):
        learner.workload.example_order(epoch)
    assert asked == [1, 0]
