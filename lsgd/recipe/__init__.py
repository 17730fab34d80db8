"""The recipe of a training run: its settings, its timeline, its fingerprint and comparison.

lsgd.recipe.settings declares the settings, lsgd.recipe.wording describes a run in words, and
lsgd.recipe.checks refuses recipes that make no sense.
"""

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from lsgd.errors import UsageError
from lsgd.own_parts import KINDS, SCHEDULE, imported_part, is_import_path
from lsgd.recipe import wording
from lsgd.recipe.fields import AUTO, flatten, trajectory
from lsgd.recipe.retention import newest_steps, spread_steps
from lsgd.recipe.settings import BatchGrowth as BatchGrowth
from lsgd.recipe.settings import CommSettings as CommSettings
from lsgd.recipe.settings import Data as Data
from lsgd.recipe.settings import Evaluation as Evaluation
from lsgd.recipe.settings import ImageSizes as ImageSizes
from lsgd.recipe.settings import InputsSettings as InputsSettings
from lsgd.recipe.settings import Model as Model
from lsgd.recipe.settings import Optim as Optim
from lsgd.recipe.settings import RunSettings
from lsgd.recipe.settings import Schedule as Schedule
from lsgd.recipe.settings import Target as Target
from lsgd.recipe.strategies import StrategySettings as StrategySettings
from lsgd.rules import evaluation_interval, sampler, schedule
from lsgd.rules.early_stopping import EarlyStop, early_stop
from lsgd.rules.metric import METRICS, OWN_NAME, TOP1, Metric, named_metric

MIN_TIMED_STEPS, MIN_TIMED_VALUES = 200, 1e8
"""The fewest steps of a run, and the fewest pixel values in them, for hardware=auto to time steps.

On two cores a small ResNet trains 1e8 pixel values in 15 seconds.
"""


class EvaluatedImages(NamedTuple):
    """The size and shape of evaluated images after an epoch."""

    side: int
    """The side of a square in pixels, or the shorter one of a rectangle."""
    crop_ratio: float
    """The ratio of the side to the resized short side of the image."""
    in_rectangles: bool
    """Whether images are evaluated in rectangles near their aspect ratio."""


@dataclass(frozen=True)
class Stage:
    """A range of a run's epochs with a constant number of workers and of examples per worker.

    `steps_before` and `examples_before` are those of all earlier epochs.
    """

    epoch: int
    """The first epoch of the stage, counted from 0."""
    workers: int
    worker_batch: int
    """The number of examples of a worker in a step."""
    batch_size: int
    """The number of examples of an update."""
    steps_per_epoch: int
    """The number of steps of an epoch."""
    examples_per_epoch: int
    """The number of training examples used by the steps of an epoch."""
    steps_before: int
    examples_before: int

    def steps_until(self, epoch: float) -> float:
        """Return the number of steps of the run before a (fractional) epoch of this stage."""
        return self.steps_before + (epoch - self.epoch) * self.steps_per_epoch

    def examples_until(self, epoch: int) -> int:
        """Return the number of training examples used by the run before an epoch of this stage."""
        return self.examples_before + (epoch - self.epoch) * self.examples_per_epoch


@dataclass(frozen=True)
class Recipe(RunSettings):
    """The configuration of a training run; batch size, steps and lr are derived from it."""

    @property
    def measures_bn(self) -> bool:
        """Whether BN statistics are measured on training images before each evaluation.

        Averaged weights need it, since they were never used in a training step.
        """
        return self.bn_statistics.name == "precise" or self.averaging.name != "none"

    @property
    def bn_steps(self) -> int:
        """The number of steps whose images are used to measure precise BN statistics."""
        return min(-(-self.bn_statistics.examples // self.batch_size), self.steps_per_epoch)

    @cached_property
    def update_workers(self) -> int:
        """The number of workers whose gradients make one update of the model, by strategy."""
        return self.strategy.update_workers(self.workers)

    @property
    def most_processes(self) -> int:
        """The largest number of processes of a run: one per worker and per separate server."""
        return self.fewest_workers + self.strategy.server_processes

    @property
    def fewest_workers(self) -> int:
        """The smallest number of workers of any step of the run."""
        return min([self.workers, *(workers for _, workers, _ in self.batch_schedule)])

    @property
    def batch_size(self) -> int:
        """The number of training examples of one update of the model.

        It is kn with synchronous SGD, and Hn where a worker makes H local steps before it pushes.
        """
        return self.update_workers * self.worker_batch * self.strategy.batches_per_push

    @property
    def lr_batch(self) -> int:
        """The minibatch size by which the learning rate is scaled.

        Where workers make local steps before they push, it is the size of a local step.
        """
        return self.update_workers * self.worker_batch

    @property
    def server_optim(self) -> Optim:
        """The optimizer settings of the parameter servers, for gradients or pseudo-gradients.

        They are those of the outer rule if workers push pseudo-gradients.
        """
        if not self.strategy.pushes_deltas:
            return self.optim
        return Optim(
            momentum=self.strategy.outer_momentum,
            nesterov=self.strategy.outer == "nesterov",
            weight_decay=0.0,
        )

    @property
    def tickets(self) -> int:
        """The number of tickets of an epoch; a ticket is the examples of one worker's push.

        A ticket has n examples for each local step before a push; the last one may have fewer.
        """
        return -(-self.examples(self.steps_per_epoch) // self._ticket_size)

    def gradients_per_ticket(self, ticket: int) -> int:
        """Return the number of gradients that a worker computes for a ticket (for one push)."""
        first = ticket * self._ticket_size
        left = min(self.examples(self.steps_per_epoch) - first, self._ticket_size)
        return -(-left // self.worker_batch)

    @property
    def _ticket_size(self) -> int:
        return self.worker_batch * self.strategy.batches_per_push

    @property
    def micro_batch_workers(self) -> int:
        """The number of workers in one micro-batch; raises UsageError if the field is auto."""
        if isinstance(self.workers_per_pass, str):
            raise UsageError(
                "workers_per_pass=auto is found where training starts; here write a number, such "
                "as workers_per_pass=8"
            )
        return self.workers_per_pass

    def makes_one_micro_batch(self, stage: Stage, world_size: int) -> bool:
        """Return whether a step of a stage is a single micro-batch on this number of processes."""
        per_pass = 1 if isinstance(self.workers_per_pass, str) else self.workers_per_pass
        return world_size == 1 and per_pass >= stage.workers

    def values_per_micro_batch(self, hosted: int) -> int | None:
        """Return the number of pixel values in a full micro-batch, or None without images.

        `hosted` is the number of workers on the process.
        """
        if self.data.workload != "images":
            return None
        # While auto is undecided, assume one micro-batch with all hosted workers.
        workers = hosted if self.workers_per_pass == AUTO else min(self.micro_batch_workers, hosted)
        images = workers * self.worker_batch
        return images * self.data.channels * self.data.image_size**2

    def training_size(self, epoch: int) -> int:
        """Return the side of the training images of an epoch, in pixels."""
        sizes = self.image_sizes
        if not sizes.points:
            return self.data.image_size
        return schedule.size_by_points(epoch, sizes.points, sizes.multiple)

    @cached_property
    def size_changes(self) -> tuple[tuple[int, int], ...]:
        """The sides of training images in pixels, each after the first epoch that has it."""
        points = self.image_sizes.points  # from the last one on the size stays
        epochs = min(self.epochs, math.ceil(points[-1][0]) + 1) if points else 1
        sides = [self.training_size(epoch) for epoch in range(epochs)]
        return tuple((e, side) for e, side in enumerate(sides) if sides[e - 1 : e] != [side])

    @property
    def training_sizes(self) -> tuple[int, ...]:
        """The distinct sides of training images over the run, in the order of their epochs."""
        return tuple(dict.fromkeys(side for _, side in self.size_changes))

    def evaluated_images(self, epoch: int) -> EvaluatedImages:
        """Return the size and shape of evaluated images after an epoch."""
        rule, size = self.evaluation, [self.data.image_size, self.data.crop_ratio]
        for row in [row for row in rule.image_sizes if row[0] <= epoch][-1:]:
            size = [*row[1:], self.data.crop_ratio][:2]
        in_rectangles = bool(rule.rectangle_batch) and epoch >= rule.rectangle_epoch
        return EvaluatedImages(int(size[0]), size[1], in_rectangles)

    @property
    def evaluated_changes(self) -> tuple[tuple[int, EvaluatedImages], ...]:
        """The sizes and shapes of evaluated images, each after the first epoch that has it."""
        rule = self.evaluation
        epochs = sorted({0, rule.rectangle_epoch, *(int(row[0]) for row in rule.image_sizes)})
        found = [self.evaluated_images(epoch) for epoch in epochs]
        changes = zip(epochs, found, [None, *found], strict=False)
        return tuple((epoch, images) for epoch, images, before in changes if images != before)

    @property
    def changes_image_sizes(self) -> bool:
        """Whether the size or shape of images differs between epochs or micro-batches."""
        rule = self.evaluation
        return bool(self.image_sizes.points or rule.image_sizes or rule.rectangle_batch)

    @property
    def has_phases(self) -> bool:
        """Whether the minibatch changes, or training images have another size than evaluated."""
        return len(self.stages) > 1 or self.training_sizes != (self.data.image_size,)

    @property
    def is_short(self) -> bool:
        """Whether the run is too short for hardware=auto to time any steps before it."""
        images = self.data.workload == "images"
        values = self.data.channels * self.data.image_size**2 if images else math.inf
        examples = self.examples(self.total_steps)
        is_small = examples * values < MIN_TIMED_VALUES
        return self.rehearse or self.total_steps < MIN_TIMED_STEPS or is_small

    @property
    def keeps_tail(self) -> bool:
        """Whether the last N mod kn examples of an epoch are kept as a smaller step."""
        return self.tail == "keep"

    @cached_property
    def train_examples(self) -> int:
        """N, the number of training examples of an epoch.

        They are images, sentences or trees; in a text they are the windows of its kn streams.
        """
        if self.data.workload == "language":
            windows = sampler.windows_per_stream(
                self.data.train_examples, self.batch_size, self.data.window
            )
            return windows * self.batch_size
        return self.data.train_examples

    @property
    def text_sets(self) -> tuple[str, ...]:
        """The names of the evaluation sets of a text dataset: val, and test if it exists."""
        return ("val", "test") if self.data.test_examples else ("val",)

    @cached_property
    def steps_per_epoch(self) -> int:
        """The number S of training steps per epoch (of the first epoch, if the batch changes)."""
        return self.stages[0].steps_per_epoch

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of the run: ranges of epochs of one batch size, several if it changes."""
        stages: list[Stage] = []
        growth, k, n = self.batch_growth, self.workers, self.worker_batch
        grown = [[epoch, k * growth.factor_in(epoch), n] for epoch in growth.milestones]
        for epoch, workers, worker_batch in [[0, k, n], *grown, *self.batch_schedule]:
            before, examples = stages[-1:], self.train_examples
            size = workers * worker_batch if epoch else self.batch_size
            steps = sampler.steps_per_epoch(examples, size, keeps_tail=self.keeps_tail)
            stages.append(
                Stage(
                    epoch=epoch,
                    workers=workers,
                    worker_batch=worker_batch,
                    batch_size=size,
                    steps_per_epoch=steps,
                    examples_per_epoch=examples if self.keeps_tail else steps * size,
                    steps_before=sum(int(stage.steps_until(epoch)) for stage in before),
                    examples_before=sum(stage.examples_until(epoch) for stage in before),
                )
            )
        return tuple(stages)

    def stage(self, epoch: float) -> Stage:
        """Return the stage (a range of epochs of one batch size) of a (fractional) epoch.

        The last stage includes later epochs.
        """
        return [stage for stage in self.stages if stage.epoch <= epoch][-1]

    def first_step(self, epoch: int) -> int:
        """Return the number of the first step of an epoch; both are counted from 0."""
        return int(self.stage(epoch).steps_until(epoch))

    def locate_step(self, step: int) -> tuple[int, int]:
        """Convert the number of a step of the run to its epoch and its index within that epoch."""
        [*_, stage] = (stage for stage in self.stages if stage.steps_before <= step)
        epochs, of_epoch = divmod(step - stage.steps_before, stage.steps_per_epoch)
        return stage.epoch + epochs, of_epoch

    def epoch_before(self, step: int) -> int:
        """Return the epoch, from 0, of the last step before `step`, or of the first step."""
        return self.locate_step(max(0, step - 1))[0]

    @property
    def total_steps(self) -> int:
        """The number of training steps of the whole run."""
        return self.first_step(self.epochs)

    def examples(self, steps: int) -> int:
        """Return the number of training examples in the first `steps` steps of the run."""
        epoch, rest = self.locate_step(steps)
        stage = self.stage(epoch)
        return stage.examples_until(epoch) + rest * stage.batch_size

    def epoch(self, step: float) -> float:
        """Convert a (fractional) step of the run to the (fractional) epoch e + t/S."""
        stage = self.stages[0]  # a loop rather than a call, since every step evaluates this
        for later_stage in self.stages[1:]:
            if later_stage.steps_before <= step:
                stage = later_stage
        whole, part = divmod(step - stage.steps_before, stage.steps_per_epoch)
        return stage.epoch + whole + part / stage.steps_per_epoch

    def lr(self, step: float) -> float:
        """Return the learning rate that the schedule has at a (fractional) step of the run.

        A local step is at a fraction of a step.
        """
        if self.schedule.per == "epoch":
            step = self.first_step(int(self.epoch(step)))
        left = 1.0 if self.schedule.decay in ("steps", "points") else self._decay_left(step)
        epoch = self.epoch(step)
        if self.batch_schedule:
            size = self.stage(epoch).batch_size
            return self._scheduled_lr(epoch, remaining_decay=left, batch_size=size)
        return self._scheduled_lr(epoch, remaining_decay=left)

    @property
    def scaled_lr(self) -> float:
        """The full learning rate, scaled for the minibatch: after the warmup, before any decay.

        Of an lr by points it is the highest.
        """
        if self.schedule.points:
            return max(lr for _, lr in self.schedule.points)
        return schedule.scaled_lr(
            self.lr_batch,
            reference_lr=self.schedule.reference_lr,
            reference_batch=self.schedule.reference_batch,
            scaling=self.schedule.scaling,
        )

    @cached_property
    def _scheduled_lr(self) -> Callable[..., float]:
        rule = vars(self.schedule) | {"batch_size": self.lr_batch}
        # lr() passes the remaining share of the decay.
        options, source = rule.pop("options"), rule.pop("source")
        del rule["decay_steps"]
        if is_import_path(self.schedule.decay):
            rule["own_decay"] = imported_part(SCHEDULE, self.schedule.decay, source)(options).share
        # A partial is faster than passing all fields of the schedule at each step.
        return partial(schedule.learning_rate, **rule)

    @property
    def warms_up(self) -> bool:
        """Whether the learning-rate schedule has a warmup for this recipe's batch sizes."""
        rule = self.schedule
        early = [row for row in self.batch_schedule if row[0] < rule.warmup_epochs]
        return schedule.has_warmup(
            max([self.lr_batch, *(workers * n for _, workers, n in early)]),
            reference_batch=rule.reference_batch,
            warmup=rule.warmup,
            warmup_start=rule.warmup_start,
        )

    @cached_property
    def _warmup_steps(self) -> float:
        epochs = self.schedule.warmup_epochs if self.warms_up else 0.0
        return self.stage(epochs).steps_until(epochs)

    @cached_property
    def _decay_steps(self) -> int:
        return self.schedule.decay_steps or self.total_steps

    def _decay_left(self, step: float) -> float:
        return schedule.remaining_decay(
            step, warmup_steps=self._warmup_steps, decay_steps=self._decay_steps
        )

    def epochs_from(self, step: int) -> Iterator[tuple[int, list[int]]]:
        """Yield each remaining epoch of the run with its remaining steps; `step` is the first.

        A dry run makes a few steps of the whole run: the first two, one in the middle of the
        warmup, the one at its end, and one on each side of the first drop, of each point of the lr
        and of each other minibatch.
        """
        run = range(step, self.total_steps)
        if self.rehearse:
            warmup = self.schedule.warmup_epochs
            changes = [(self.schedule.milestones or [self.epochs])[0]]
            changes += [epoch for epoch, _ in self.schedule.points]
            changes += [stage.epoch for stage in self.stages[1:]]
            sides = [self._first_step(epoch) - back for epoch in changes for back in (1, 0)]
            at = {0, 1, self._first_step(warmup / 2), self._first_step(warmup), *sides}
            steps = sorted(s for s in at if s in run)
            for epoch in sorted({self.locate_step(s)[0] for s in steps}):
                yield epoch, [s for s in steps if self.locate_step(s)[0] == epoch]
            return
        for epoch in range(self.locate_step(step)[0], self.epochs):
            yield epoch, list(range(max(step, self.first_step(epoch)), self.first_step(epoch + 1)))

    def work_left(self, step: int) -> tuple[int, int]:
        """Return how many steps and evaluations of the run remain when `step` is the next step."""
        if self.rehearse:
            made = dict(self.epochs_from(step))
            return sum(map(len, made.values())), sum(map(self.evaluates_after, made))
        epochs = range(self.locate_step(step)[0], self.epochs)
        evaluations = sum(map(self.evaluates_after, epochs))
        if self.evaluation.is_within_epochs:
            evaluations += sum(
                place > step for epoch in epochs for place in self.evaluation_places(epoch)
            )
        return self.total_steps - step, evaluations

    def evaluates_after(self, epoch: int) -> bool:
        """Return whether the run is evaluated at the end of this epoch, counted from 0."""
        rule, done = self.evaluation, epoch + 1
        return done == self.epochs or done % rule.epochs == rule.offset

    def evaluation_places(self, epoch: int) -> list[int]:
        """Return the numbers of steps made at which the run is evaluated within an epoch."""
        first, end = self.first_step(epoch), self.first_step(epoch + 1)
        return evaluation_interval.places_within(self.evaluation.every, first, end)

    def best_first(
        self,
        epochs: Mapping[int, Mapping[str, float]],
        evaluations: Mapping[int, Mapping[str, float]],
    ) -> list[int]:
        """Return the steps of a run's evaluations from the best to the worst, by keep_best.

        The metrics are given by epoch, counted from 1, and by step within epochs. There are none
        without keep_best.
        """
        if self.keep_best is None:
            return []
        by_step = {self._end(epoch - 1): metrics for epoch, metrics in epochs.items()}
        return named_metric(self.keep_best).best_first(by_step | dict(evaluations))

    def _end(self, epoch: int) -> int:
        """Return the number of steps of the run at the end of an epoch, counted from 0."""
        if self.rehearse:
            return dict(self.epochs_from(0))[epoch][-1] + 1
        return self.first_step(epoch + 1)

    def knows_metric(self, name: str) -> bool:
        """Return whether a metric of this name may be in the rows of the run."""
        is_own = self.data.is_own_workload and OWN_NAME.fullmatch(name) is not None
        return name in METRICS or name == self.metric.own_name or is_own

    def final_metric(self, rate: Metric) -> Metric:
        """Return the definition of the run's final metric, given its workload's default metric."""
        return self.metric.final_metric(rate, self.first_step)

    def has_stopped(self, rates: Mapping[int, Mapping[str, Any]]) -> bool:
        """Return whether the run must stop: by its metrics by epoch, or by its patience."""
        reached = self.metric.stop and math.isfinite(self.final_metric(TOP1).final_metric(rates))
        return reached or self.early_stop(rates) is not None

    @property
    def may_stop_early(self) -> bool:
        """Whether the run may end before its last epoch: at its target, or by its patience."""
        return self.metric.stop or self.stop.patience is not None

    def early_stop(self, rates: Mapping[int, Mapping[str, Any]]) -> EarlyStop | None:
        """Return where the run was stopped early by its patience, by its metrics by epoch."""
        if self.stop.patience is None:
            return None
        stop = early_stop(rates, named_metric(self.stop.metric).key, self.stop.patience)
        return stop if stop and stop.epoch < self.epochs else None

    def describe_early_stop(self, rates: Mapping[int, Mapping[str, Any]]) -> str:
        """Describe in a few words where and why the run stopped early; empty if it did not."""
        return wording.describe_early_stop(self, stop) if (stop := self.early_stop(rates)) else ""

    def drops_in(self, epoch: int) -> bool:
        """Return whether the lr drops or jumps within this epoch, or at its end.

        Epochs are counted from 0.
        """
        rule = self.schedule
        changes = (*rule.milestones, *schedule.jumps(rule.points))
        return any(epoch < change <= epoch + 1 for change in changes)

    def kept_checkpoints(self, saved: Collection[int]) -> set[int]:
        """Return those steps whose checkpoints the run keeps, of all that it has saved."""
        if isinstance(self.keep_checkpoints, int):
            return newest_steps(saved, self.keep_checkpoints)
        return spread_steps(saved, self.total_steps)

    def _first_step(self, epoch: float) -> int:
        """Return the first step of the run that starts at or after this (fractional) epoch."""
        # Rounded, since the product may miss an integer in its last bit or lie between two.
        near = round(self.stage(epoch).steps_until(epoch))
        return near if schedule.is_reached(self.epoch(near), epoch) else near + 1

    def trajectory(self) -> dict[str, Any]:
        """Return the fields that decide what a run computes (trajectory) as a nested dictionary."""
        # Evaluations within epochs change neither the parameters nor the final metric.
        hashed = replace(self.evaluation, every=self.evaluation.epochs)
        fields = trajectory(replace(self, evaluation=hashed), self.data.workload)
        # The loader is execution, but these examples are not the dataset's.
        fields["data"]["synthetic"] = self.inputs.loader == "synthetic"
        # Servers that wait for all workers compute the same sums as an all-reduce.
        if self.strategy.is_synchronous:
            fields.pop("strategy", None)
        if not self.strategy.is_push_based or self.strategy.order != "virtual":
            fields.pop("cluster", None)
        if self.inputs.is_own:
            given = self.inputs
            fields["data"]["loader"] = {
                "name": given.loader, "options": given.options, "source": given.source
            }  # fmt: skip
        if self.order_digest:
            # The content of the file identifies it, not its path.
            fields["strategy"]["order"] = self.order_digest
        return fields

    @property
    def part_sources(self) -> dict[str, str]:
        """The hash of the source of each part of the user's own, by its override."""
        return {
            f"{kind.choice}={kind.named(self)}": kind.source_of(self)
            for kind in KINDS
            if is_import_path(kind.named(self))
        }

    @cached_property
    def order_digest(self) -> str | None:
        """The SHA-256 of the file with the order of pushes to replay, or None without such a file.

        It is computed once: a run whose order file is still being written keeps its first
        fingerprint.
        """
        if self.strategy.is_push_based and (order := Path(self.strategy.order)).is_file():
            return hashlib.sha256(order.read_bytes()).hexdigest()
        return None

    @property
    def fingerprint(self) -> str:
        """The hash of the fields that decide a run's result; equal hashes train the same run."""
        fields = self.trajectory()
        if self.model.uses_parameter_roles:
            fields["model"]["uses_parameter_roles"] = True
        return _hash(fields)

    @property
    def earlier_fingerprint(self) -> str:
        """The fingerprint of this recipe by the rule before parameter roles were introduced.

        It lacks the `uses_parameter_roles` mark of some timm and torchvision networks. For every
        other recipe it equals `fingerprint`.
        """
        return _hash(self.trajectory())

    @property
    def without_paths(self) -> "Recipe":
        """The recipe without the file paths of the machine that trained it, for publication."""
        data = replace(self.data, root=None, index=None, stage=None, skip_list=None)
        return replace(self, data=data, model=replace(self.model, start=None), run_dir=None)

    summary = wording.summarize
    describe_evaluations = wording.describe_evaluations
    describe_noise_gaps = wording.describe_noise_gaps
    format_result = wording.format_result


def _hash(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class DifferingField:
    """A field whose values differ between two recipes; None is the value where one lacks it."""

    key: str
    values: tuple[Any, Any]
    trajectory: bool
    """Whether it is a trajectory field, which decides what a run computes."""


def differing_fields(recipes: tuple[Recipe, Recipe]) -> list[DifferingField]:
    """Return the fields that differ between two recipes, trajectory fields first.

    Within each kind they are in the recipe's order. The run folder is left out, since it always
    differs.
    """
    trajectories = [dict(flatten(recipe.trajectory())) for recipe in recipes]
    # A trajectory may have more keys than the recipe has fields, such as data.synthetic.
    first, second = (
        dict(flatten(asdict(recipe))) | trajectory
        for recipe, trajectory in zip(recipes, trajectories, strict=True)
    )
    decisive = trajectories[0].keys() | trajectories[1].keys()
    fields = [
        DifferingField(key, (first.get(key), second.get(key)), key in decisive)
        for key in first | second
        if key != "run_dir" and first.get(key) != second.get(key)
    ]
    return sorted(fields, key=lambda field: not field.trajectory)
