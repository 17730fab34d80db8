"""Averages of the weights, evaluated in their place: by hand, on processes, saved, and refused."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.checkpoints import CPU, WORDS, learner_after, make_steps
from helpers.composed import compose_recipe
from helpers.halted import train_until
from helpers.reference_run import assert_equal
from helpers.reference_run import newest_checkpoint as newest
from helpers.threaded import ThreadComm, run_on_threads

from lsgd.comm.single import SingleComm
from lsgd.errors import UsageError
from lsgd.evaluate import evaluate_path
from lsgd.evaluation import evaluate
from lsgd.learner import Learner
from lsgd.recipe import Recipe
from lsgd.recipe.checks import check_recipe
from lsgd.scores import Scores
from lsgd.train import train

EXACT = {"rtol": 0, "atol": 1e-12}
EMA = ("averaging=ema", "averaging.half_life=2")
LAST = ("averaging=last", "averaging.epochs=2")
SMALL = (
    "epochs=4", "schedule.milestones=[2]", "schedule.warmup=none", "log_steps=1", "tail=keep",
    "inputs=synthetic", "data.train_examples=110", "data.val_examples=50",
    "bn_statistics.examples=40",
)  # fmt: skip


def recipe(*words: str) -> Recipe:
    return compose_recipe(*WORDS, "workers=5", "precision=float64", "workers_per_pass=2", *words)


def weights(learner: Learner) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in learner.model.parameters()]


def evaluated(learner: Learner) -> list[torch.Tensor]:
    """The weights that an evaluation sees."""
    with (
        torch.inference_mode(),
        learner.workload.evaluation_mode(learner.model, learner.workload.inputs()),
    ):
        return weights(learner)


def scores(learner: Learner) -> Scores:
    return evaluate(learner, learner.workload.inputs())["val"]


@pytest.mark.slow
def test_an_ema_may_move_every_few_updates() -> None:
    """After each second update by the share of two: the half-life of two makes that a half."""
    learner = Learner(recipe(*EMA, "averaging.every=2"), SingleComm(), CPU)
    expected = weights(learner)
    for update in range(1, 6):
        make_steps(learner, 0, 1)
        if update % 2 == 0:
            expected = [0.5 * (e + w) for e, w in zip(expected, weights(learner), strict=True)]
        torch.testing.assert_close(evaluated(learner), expected, **EXACT)


@pytest.mark.slow
def test_ema_by_hand() -> None:
    """It begins at the first weights; after two updates, here, one counts half of what it did."""
    learner = Learner(recipe(*EMA), SingleComm(), CPU)
    share, expected = 1 - 0.5**0.5, weights(learner)
    torch.testing.assert_close(evaluated(learner), expected, rtol=0, atol=0)
    for step in range(4):
        make_steps(learner, step, step + 1)
        new = weights(learner)
        expected = [old + share * (w - old) for old, w in zip(expected, new, strict=True)]
        torch.testing.assert_close(evaluated(learner), expected, **EXACT)
        torch.testing.assert_close(weights(learner), new, rtol=0, atol=0)


def test_the_last_epochs_by_hand() -> None:
    """Of 2 epochs, once there are so many; and what is in mid-epoch counts for nothing."""
    learner = Learner(recipe(*LAST, *SMALL), SingleComm(), CPU)
    steps, ends = learner.recipe.steps_per_epoch, []
    torch.testing.assert_close(evaluated(learner), weights(learner), rtol=0, atol=0)
    for update in range(1, 3 * steps + 2):
        # The steps of the first epoch, again and again: what they are does not matter here.
        make_steps(learner, 0, 1)
        if update % steps == 0:
            ends.append(weights(learner))
        if ends:
            expected = [torch.stack(each).mean(0) for each in zip(*ends[-2:], strict=True)]
            torch.testing.assert_close(evaluated(learner), expected, **EXACT)


@pytest.mark.parametrize("words", [EMA, LAST])
def test_the_statistics_are_those_of_the_averaged_weights(words: tuple[str, ...]) -> None:
    """As of a run that has these weights for its own, by precise statistics."""
    learner = learner_after(recipe(*words, *SMALL), 0, 3)
    other = Learner(recipe("bn_statistics=precise", *SMALL), SingleComm(), CPU)
    with torch.no_grad():
        for parameter, value in zip(other.model.parameters(), evaluated(learner), strict=True):
            parameter.copy_(value)
    assert scores(learner) == scores(other)


@pytest.mark.parametrize("words", [EMA, LAST])
def test_no_step_is_another_for_it(words: tuple[str, ...]) -> None:
    one, other = learner_after(recipe(*words, *SMALL), 0, 2), learner_after(recipe(*SMALL), 0, 2)
    scores(one)
    for learner in (one, other):
        make_steps(learner, 2, 3)
    ours, theirs = one.checkpoint(), other.checkpoint()
    torch.testing.assert_close(ours.model, theirs.model, rtol=0, atol=0)
    torch.testing.assert_close(ours.optimizer["state"], theirs.optimizer["state"], rtol=0, atol=0)


def test_processes_and_passes_do_not_matter() -> None:
    made = recipe(*EMA, *SMALL)
    expected = scores(learner_after(made, 0, 3)).metrics["loss"]

    def process(comm: ThreadComm) -> float:
        learner = Learner(replace(made, workers_per_pass=1), comm, CPU)
        make_steps(learner, 0, 3)
        return scores(learner).metrics["loss"]

    for loss in run_on_threads(3, process):
        assert loss == pytest.approx(expected, rel=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("words", [EMA, LAST])
def test_a_run_goes_on_and_is_evaluated_to_what_it_said(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    """From within an epoch, with the averages there were."""
    straight = recipe(*words, *SMALL, "checkpoint_steps=1", f"run_dir={tmp_path / 'a'}")
    train(straight)
    made = replace(straight, run_dir=str(tmp_path / "b"))
    train_until(made, 8)
    train(made)
    assert_equal(tmp_path / "b", tmp_path / "a", within=1e-12)
    one, other = (newest(tmp_path / name).parts["averaging"] for name in "ab")
    torch.testing.assert_close(one, other, **EXACT)
    found = evaluate_path(tmp_path / "a/checkpoint.pt")["val"].metrics
    rates = newest(tmp_path / "a").rates[4]
    assert found["loss"] == pytest.approx(rates["val_loss"], rel=1e-12)


def test_a_network_without_bn_may_be_averaged() -> None:
    made = compose_recipe(
        "+recipe=fashion_lenet5", "workers=2", "worker_batch=4", "inputs=synthetic", *EMA,
        "data.train_examples=80", "data.val_examples=20",
    )  # fmt: skip
    learner = learner_after(made, 0, 3)
    own = copy.deepcopy(learner.model.state_dict())
    scores(learner)
    torch.testing.assert_close(dict(learner.model.state_dict()), dict(own), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("averaging=ema", "strategy=local"), "unlike strategy=local; write averaging=none, or"),
        (
            ("averaging=ema", "bn_statistics=last"),
            "bn_statistics=last belongs to the last weights, and",
        ),
        (("averaging.half_life=5",), "half_life=5 has no effect with averaging=none; leave it"),
        (("averaging=ema", "averaging.epochs=5"), "epochs=5 has no effect with averaging=ema"),
        (("averaging=ema", "averaging.half_life=0"), "averaging.half_life=0"),
        (
            ("averaging=ema", "averaging.every=151"),
            "averaging.every=151 is more than the 150 steps .* write averaging.every=150 or less",
        ),
    ],
)
def test_averages_of_nothing_are_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_recipe(compose_recipe("+recipe=digits", *words))


def test_an_average_is_another_run() -> None:
    prints = {recipe(*words).fingerprint for words in ((), EMA, LAST, ("averaging=none",))}
    assert len(prints) == 3
