"""Observations of the images of a step and an evaluation, and of the final metric."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lsgd.check.observation import Observation
from lsgd.check.step import miniature
from lsgd.comm.single import SingleComm
from lsgd.evaluation import TrainedModel, evaluate
from lsgd.inputs import Batch, ExampleColumns
from lsgd.learner import Learner
from lsgd.recipe import Recipe
from lsgd.rules import augmentation, sampler
from lsgd.rules.metric import TOP1
from lsgd.rules.sampler import MicroBatch
from lsgd.workloads import open_workload

CPU = torch.device("cpu")
ERRORS = [90.0, 9.0, 1.0, 30.0, 4.0, 2.0]
"""Errors of six epochs whose last-five median differs from their last, best, mean and median."""


def observe(learner: Learner) -> list[Observation]:
    """Return observations of how a run samples images, uses its seed, evaluates and is judged."""
    recipe = learner.recipe
    tasks = learner.strategy.tasks(0, list(range(recipe.steps_per_epoch)))
    steps = [task.micro_batches for task in tasks]
    return [
        _worker_batch(steps),
        _tail(recipe, steps),
        _shuffling(learner, steps),
        _seed(recipe),
        _evaluation(recipe),
        _evaluation_epochs(recipe),
        _averaging(recipe),
        _growth(recipe),
        _metric(recipe),
    ]


def _worker_batch(steps: list[list[MicroBatch]]) -> Observation:
    """Observe the number of images per worker in an epoch's first step (the last may be short)."""
    sizes = {each.by_worker.shape[1] for each in steps[0]}
    n = " or ".join(map(str, sorted(sizes)))
    return Observation(
        "worker_batch",
        f"n = {n} in each of k = {sum(len(each.workers) for each in steps[0])} workers",
        sizes,
    )


def _tail(recipe: Recipe, steps: list[list[MicroBatch]]) -> Observation:
    counts = {sum(len(each.examples) for each in passes) for passes in steps}
    left = recipe.data.train_examples - sum(len(e.examples) for passes in steps for e in passes)
    return Observation(
        "tail",
        f"steps of {' and '.join(map(str, sorted(counts)))}; {left} images are left for another "
        "epoch",
        counts == {recipe.batch_size} and 0 <= left < recipe.batch_size,
    )


def _shuffling(learner: Learner, steps: list[list[MicroBatch]]) -> Observation:
    count, seed = learner.recipe.data.train_examples, learner.recipe.seed
    first, second = learner.workload.example_order(0), learner.workload.example_order(1)
    whole = all((np.bincount(each, minlength=count) == 1).all() for each in (first, second))
    taken = np.concatenate([each.by_worker.ravel() for passes in steps for each in passes])
    faults = {
        "an epoch does not have every image once": not whole,
        "images are not in random order": _in_runs(first),
        "every epoch has the same order": np.array_equal(first, second),
        "a repeated epoch has another order": not np.array_equal(
            sampler.epoch_order(count, seed=seed, epoch=0), first
        ),
        "steps do not follow the permutation": not np.array_equal(taken, first[: len(taken)]),
    }
    present = [fault for fault, occurs in faults.items() if occurs]
    return Observation(
        "shuffling",
        "; ".join(present) or "a permutation by (seed, epoch), kn of it per step",
        not present,
    )


def _in_runs(order: NDArray[np.int64]) -> bool:
    """Return whether image ids follow each other in an order much more often than by chance.

    By chance it happens about once.
    """
    return int((np.diff(order) == 1).sum()) > 20


def _seed(recipe: Recipe) -> Observation:
    """Observe whether another random seed changes initial weights, image order and crops.

    Otherwise the standard deviation over seeds would mean nothing.
    """
    seeds = recipe.seed, recipe.seed + 1 if recipe.seed < 2**64 - 1 else 0
    ids, sizes = np.arange(64), np.full((64, 2), 500)
    one, other = (
        {
            "weights": miniature(replace(recipe, seed=seed))
            .model.state_dict()["fc.weight"]
            .tolist(),
            "order": sampler.epoch_order(64, seed=seed, epoch=0).tolist(),
            "crops": augmentation.crop_windows(sizes, ids, seed=seed, epoch=0).tolist(),
        }
        for seed in seeds
    )
    alike = [what for what in one if one[what] == other[what]]
    return Observation(
        "seed",
        f"all seeds have the same {' and '.join(alike)}"
        if alike
        else f"seed {recipe.seed}; another has other weights, order and crops",
        not alike,
    )


class _RecordingInputs:
    """A fake data loader that records the ids of the images that an evaluation requests."""

    name = "a list"

    def __init__(self) -> None:
        self.ids: list[int] = []

    def columns(self) -> ExampleColumns:
        """Return no columns of examples, since this fake data loader has no examples."""
        return {}

    def train(self, passes: Iterable[MicroBatch]) -> Iterator[Batch]:
        """Yield no training batch, since this fake data loader records evaluations only."""
        return iter(())

    def evaluation(self, passes: Iterable[MicroBatch]) -> Iterator[Batch]:
        """Record the image ids of each micro-batch, and yield zeros as logits and labels."""
        for each in passes:
            self.ids += each.examples.tolist()
            count = len(each.examples)
            yield torch.zeros(count, 2), torch.zeros(count, dtype=torch.int64)


def _evaluation(recipe: Recipe) -> Observation:
    """Observe how many images a job of one process, and one of three, evaluates in total."""
    examples, twice, counted = recipe.data.val_examples, 0, []
    workload = open_workload(recipe, CPU)
    for world_size in (1, 3):
        inputs, count = _RecordingInputs(), 0
        for rank in range(world_size):
            comm = SingleComm()
            comm.rank, comm.world_size = rank, world_size
            candidate = TrainedModel(workload, nn.Identity(), comm, CPU)
            count += evaluate(candidate, inputs)["val"].counts["images"]
        if sorted(inputs.ids) != list(range(examples)):
            twice += 1
        counted.append(count)
    same = not twice and set(counted) == {examples}
    numbers = " and ".join(f"{count:,}" for count in dict.fromkeys(counted))
    return Observation(
        "evaluation",
        f"each of {examples:,} once, on 1 process and on 3"
        if same
        else f"{numbers} images counted of {examples:,}, on 1 process and on 3",
        same,
    )


def _evaluation_epochs(recipe: Recipe) -> Observation:
    """Observe the numbers of epochs between evaluations, without the final evaluation."""
    after = [epoch for epoch in range(recipe.epochs - 1) if recipe.evaluates_after(epoch)]
    gaps = set(np.diff(after).tolist()) or {recipe.evaluation.every}
    every = " or ".join(map(str, sorted(gaps)))
    run = "every epoch" if gaps == {1} else f"every {every} epochs, and the last one"
    return Observation("evaluation_epochs", f"after {run}", gaps)


def _averaging(recipe: Recipe) -> Observation:
    name = recipe.averaging.name
    run = "none" if name == "none" else f"averaging={name}: evaluations are of averages"
    return Observation("averaging", run, name)


def _growth(recipe: Recipe) -> Observation:
    sizes = [stage.batch_size for stage in recipe.stages]
    grown = [f", {stage.batch_size} from epoch {stage.epoch}" for stage in recipe.stages[1:]]
    return Observation("batch_growth", f"{sizes[0]} images in a step" + "".join(grown), sizes)


def _metric(recipe: Recipe) -> Observation:
    learner = miniature(recipe)
    learner.epoch_metrics = {
        epoch: {TOP1.key: error} for epoch, error in enumerate(ERRORS, start=1)
    }
    named = {
        4.0: "median top-1 error of the last 5 epochs",
        2.0: "top-1 error of the last epoch",
        1.0: "least top-1 error",
    }
    run = named.get(learner.final_metric(), "something else than the median of the last 5 errors")
    if learner.metric != TOP1:
        run = learner.metric.definition
    return Observation("metric", run, run)
