"""A batch that grows, in training: who has which examples, and what a grown step does."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.checkpoints import CPU, WORDS, make_steps
from helpers.composed import compose_recipe
from helpers.halted import train_until
from helpers.reference_run import assert_equal
from helpers.threaded import ThreadComm, run_on_threads

from lsgd.comm.single import SingleComm
from lsgd.learner import Learner
from lsgd.recipe import Recipe
from lsgd.step import train_step
from lsgd.train import train

EXACT = {"rtol": 0, "atol": 1e-12}
SMALL = (
    "epochs=4", "schedule.milestones=[3]", "schedule.warmup=none", "log_steps=1", "tail=keep",
    "inputs=synthetic", "data.train_examples=182", "data.val_examples=50",
    "precision=float64", "workers_per_pass=2",
)  # fmt: skip
GROWS = ("batch_growth.milestones=[1,2]", "batch_growth.factor=3")
"""2 workers of 8 images, then 6, then 18: epochs of 12, 4, 2 and 2 steps."""


def recipe(*words: str) -> Recipe:
    return compose_recipe(*WORDS, *SMALL, *words)


def test_each_example_is_seen_once_by_some_process() -> None:
    made = recipe(*GROWS)

    def process(comm: ThreadComm) -> list[list[int]]:
        strategy = Learner(made, comm, CPU).strategy
        return [
            [
                i
                for task in strategy.tasks(epoch, steps)
                for each in task.micro_batches
                for i in each.examples.tolist()
            ]
            for epoch, steps in made.epochs_from(0)
        ]

    for epoch in zip(*run_on_threads(2, process), strict=True):
        assert sorted(i for part in epoch for i in part) == list(range(182))


def test_a_grown_step_is_that_of_a_run_of_its_size() -> None:
    """One step from the first weights, at the lr of the recipe, by the same examples."""
    grown = Learner(recipe(*GROWS), SingleComm(), CPU)
    step = grown.recipe.first_step(1)
    [task] = grown.strategy.tasks(1, [step])
    assert (task.divisor, task.active_workers) == (48, 6)
    large = recipe("workers=6", f"schedule.reference_lr={grown.recipe.lr(step)!r}")
    other = Learner(
        replace(large, schedule=replace(large.schedule, scaling="none")), SingleComm(), CPU
    )
    [its] = other.strategy.tasks(1, [other.recipe.first_step(1)])
    for learner, each in ((grown, task), (other, its)):
        train_step(learner, each, learner.workload.inputs().train(iter(each.micro_batches)))
    for one, two in zip(task.micro_batches, its.micro_batches, strict=True):
        np.testing.assert_array_equal(one.examples, two.examples)
    torch.testing.assert_close(grown.model.state_dict(), other.model.state_dict(), **EXACT)


def test_the_ends_of_grown_epochs_are_averaged() -> None:
    made = recipe(*GROWS, "averaging=last", "averaging.epochs=2")
    assert [stage.steps_per_epoch for stage in made.stages] == [12, 4, 2]
    learner, ends = Learner(made, SingleComm(), CPU), []
    for update in range(1, 21):
        # The steps of the first epoch, again and again: what they are does not matter here.
        make_steps(learner, 0, 1)
        if update in (12, 16, 18, 20):
            ends.append([each.detach().clone() for each in learner.model.parameters()])
    expected = [torch.stack(each).mean(0) for each in zip(*ends[-2:], strict=True)]
    with (
        torch.inference_mode(),
        learner.workload.evaluation_mode(learner.model, learner.workload.inputs()),
    ):
        torch.testing.assert_close(list(map(torch.clone, learner.model.parameters())), expected)


@pytest.mark.slow
def test_a_run_goes_on_on_either_side_of_a_growth(tmp_path: Path) -> None:
    straight = recipe(*GROWS, "checkpoint_steps=1", f"run_dir={tmp_path / 'a'}")
    train(straight)
    for step in (12, 17):
        made = replace(straight, run_dir=str(tmp_path / str(step)))
        train_until(made, step)
        train(made)
        assert_equal(tmp_path / str(step), tmp_path / "a", within=0)
