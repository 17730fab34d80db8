"""The plan of a run whose image size or minibatch changes: the time of each of its phases."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch

from lsgd.models import make_network
from lsgd.plan.gradients import multiply_adds
from lsgd.plan.processes import planned_workers
from lsgd.plan.step import ModelledCluster, StepTime
from lsgd.plan.table import constants, duration, run_time
from lsgd.recipe import BatchGrowth, ImageSizes, Recipe
from lsgd.tables import markdown_table


@dataclass(frozen=True)
class Phase:
    """Epochs of a run with one minibatch and one size of training images."""

    epochs: range
    recipe: Recipe
    """The recipe of a whole run with this minibatch, and images of this size."""
    steps: int
    """The number of steps of these epochs."""


@dataclass(frozen=True)
class PlannedPhase:
    """A phase of a run with the modelled time of one of its steps."""

    phase: Phase
    step: StepTime

    @property
    def seconds(self) -> float:
        """The modelled seconds of the phase's steps."""
        return self.phase.steps * self.step.seconds


def split_into_phases(recipe: Recipe) -> list[Phase]:
    """Split a run into phases of one minibatch and one size of training images."""
    found: list[Phase] = []
    plain = replace(recipe, batch_schedule=[], batch_growth=BatchGrowth(), image_sizes=ImageSizes())
    begins = sorted({*(stage.epoch for stage in recipe.stages), *dict(recipe.size_changes)})
    for begin, end in pairwise([*begins, recipe.epochs]):
        stage = recipe.stage(begin)
        sized = replace(
            plain,
            workers=stage.workers,
            worker_batch=stage.worker_batch,
            data=replace(recipe.data, image_size=recipe.training_size(begin)),
        )
        steps = recipe.first_step(end) - recipe.first_step(begin)
        found.append(Phase(range(begin, end), sized, steps))
    return found


def plan_phases(machine: ModelledCluster, recipe: Recipe, gpus: int) -> list[PlannedPhase]:
    """Estimate the steps of each phase of a run on `gpus` GPUs.

    The measured step is of images of data.image_size; that of others takes time in proportion to
    the network's multiply-adds.
    """
    measured, work = machine.measured, relative_work(recipe)
    planned = []
    for phase in split_into_phases(recipe):
        seconds = measured.seconds * work[phase.recipe.data.image_size]
        sized = replace(machine, measured=replace(measured, seconds=seconds))
        planned.append(PlannedPhase(phase, sized.step(phase.recipe, gpus)))
    return planned


def relative_work(recipe: Recipe) -> dict[int, float]:
    """Return the multiply-adds of the network for a training image, by each size of the run.

    They are relative to those for an image of data.image_size, and in proportion to the pixels of a
    network without a layer whose multiply-adds are counted.
    """
    with torch.device("meta"):
        model = make_network(recipe)

    def work(side: int) -> int:
        return sum(multiply_adds(model, recipe.data.channels, side).values()) or side**2

    whole = work(recipe.data.image_size)
    return {side: work(side) / whole for side in recipe.training_sizes}


def largest_phase(recipe: Recipe, gpus: int) -> Recipe:
    """Return the recipe of the phase of a run whose micro-batches on GPU 0 have the most pixels."""

    def pixels(phase: Recipe) -> int:
        images = planned_workers(phase, gpus) * phase.worker_batch
        return images * phase.data.image_size**2

    return max((each.recipe for each in split_into_phases(recipe)), key=pixels)


def phase_report(
    machine: ModelledCluster,
    recipe: Recipe,
    nodes: int,
    planned: Sequence[PlannedPhase],
    *,
    memory: str,
) -> str:
    """Format the planned phases of a run as a Markdown report; `memory` is of the largest one."""
    gpus = nodes * machine.gpus_per_server
    seconds = sum(each.seconds for each in planned)
    images = sum(each.phase.steps * each.step.images for each in planned)
    rows = [
        [
            f"{each.phase.epochs.start} to {each.phase.epochs.stop}",
            str(each.phase.recipe.data.image_size),
            str(each.step.images),
            f"{each.phase.steps:,}",
            duration(each.step.seconds),
            each.step.bottleneck,
            run_time(each.seconds / 3600),
        ]
        for each in planned
    ]
    head = ["epochs", "pixels", "minibatch", "steps", "step", "bounds", "time"]
    return "\n\n".join(
        [
            f"{recipe.summary()}\n{nodes} servers x {machine.gpus_per_server} GPUs, "
            f"{machine.hardware.name}",
            f"**{run_time(seconds / 3600)} for {recipe.epochs} epochs of {recipe.total_steps:,} "
            f"steps; {images / seconds:,.0f} images/s on average on {gpus} GPUs.**",
            markdown_table(head, rows),
            memory,
            *filter(None, [recipe.describe_evaluations()]),
            "The time is that of the training steps, without evaluations and checkpoints. The "
            f"measured step is of images of {recipe.data.image_size} pixels (data.image_size); a "
            "step of others takes time in proportion to the multiply-adds of the network "
            "(assumed).",
            constants(machine),
        ]
    )
