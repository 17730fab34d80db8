"""Checks of what changes within a run: its lr, minibatch and image sizes, and its last step."""

import math
from collections.abc import Sequence

from lsgd.errors import UsageError
from lsgd.recipe import BatchGrowth, Recipe, Schedule
from lsgd.recipe.fields import AUTO, as_override
from lsgd.rules import rectangles


def check_schedule(recipe: Recipe) -> None:
    """Raise UsageError for an lr whose milestones, points or warmup do not fit the run."""
    rule = recipe.schedule
    _check_milestones("schedule.milestones", rule.milestones, recipe.epochs)
    _check_within_run("schedule.points", rule.points, recipe.epochs)
    _check_lr_by_points(recipe)
    _check_decay(rule)
    first, why = min([*rule.milestones, recipe.epochs]), "the lr drops or the run ends"
    if rule.decay_steps is not None and rule.decay_steps < first * recipe.steps_per_epoch:
        first, why = rule.decay_steps / recipe.steps_per_epoch, "schedule.decay_steps ends"
    if recipe.warms_up and not 0 < rule.warmup_epochs <= first:
        raise UsageError(
            f"schedule.warmup_epochs={rule.warmup_epochs:g} does not end by epoch "
            f"{first:g}, where {why}; write a number above 0 and up to "
            f"{first:g}, or schedule.warmup=none"
        )
    if recipe.optim.name == "rmsprop_warmup" and recipe.warms_up and rule.warmup_start == 0:
        raise UsageError(
            "schedule.warmup_start=0 is an lr by which optim.name=rmsprop_warmup would divide; "
            "write a number above 0, or leave it out"
        )


def check_sizes(recipe: Recipe) -> None:
    """Raise UsageError for minibatches and image sizes that do not fit the run or its data."""
    _check_tail(recipe)
    _check_growth(recipe)
    _check_batch_schedule(recipe)
    _check_image_sizes(recipe)
    _check_evaluated_sizes(recipe)


def _check_milestones(key: str, milestones: Sequence[float], epochs: int, shown: str = "") -> None:
    """Raise UsageError for milestones outside of the run, or not in ascending order.

    `shown` is the override in messages, by default the milestones.
    """
    shown = shown or f"{key}={as_override(list(milestones))}"
    for milestone in milestones:
        if not 0 < milestone < epochs:
            raise UsageError(
                f"{shown} has {milestone:g}, which is outside a run of {epochs} epochs; "
                f"write {key}=[…] between 0 and {epochs}, or write more epochs"
            )
    if sorted(set(milestones)) != list(milestones):
        raise UsageError(f"{shown} does not rise; write each once, in order")


def _check_within_run(key: str, points: Sequence[Sequence[float]], epochs: int) -> None:
    """Raise UsageError for points whose epoch is beyond the end of the run."""
    if points and points[-1][0] > epochs:
        raise UsageError(
            f"{key}={as_override(points)} has epoch {points[-1][0]:g}, which is outside a run of "
            f"{epochs} epochs; write epochs up to {epochs}, or write more epochs"
        )


def _check_lr_by_points(recipe: Recipe) -> None:
    """Raise UsageError for an lr by points that lacks them, or settings that it does not use."""
    rule, optim = recipe.schedule, recipe.optim
    if rule.decay != "points":
        return
    if not any(lr for _, lr in rule.points):
        raise UsageError(
            f"schedule.points={as_override(rule.points)} has no lr above 0; write pairs of epoch "
            "and lr, such as schedule.points=[[0,0.1],[5,3.2],[90,0]]"
        )
    for key, value, unused in (
        ("schedule.scaling", rule.scaling, "none"),
        ("schedule.warmup", rule.warmup, "none"),
        ("optim.head_lr", optim.head_lr, None),
    ):
        if value != unused:
            raise UsageError(
                f"{key}={as_override(value)} has no effect with schedule=points, whose pairs are "
                f"the lr itself; write {key}={as_override(unused)}"
            )


def _check_decay(rule: Schedule) -> None:
    """Raise UsageError for a warmup that learns nothing, or factors that fit no milestones."""
    if rule.warmup_start == 0 and rule.warmup == "constant":
        raise UsageError(
            "schedule.warmup=constant with schedule.warmup_start=0 learns nothing until the warmup "
            "ends; write schedule.warmup=gradual"
        )
    if rule.factors and len(rule.factors) != len(rule.milestones):
        raise UsageError(
            f"schedule.factors={as_override(rule.factors)} has to have a number for each of "
            f"schedule.milestones={as_override(rule.milestones)}; write as many, or [] for powers "
            "of schedule.gamma"
        )


def _check_batch_schedule(recipe: Recipe) -> None:
    phases, strategy = recipe.batch_schedule, recipe.strategy.name
    if not phases:
        return
    shown = f"batch_schedule={as_override(phases)}"
    _check_milestones("batch_schedule", [phase[0] for phase in phases], recipe.epochs, shown)
    if recipe.batch_growth.milestones:
        raise UsageError(
            f"{shown} and batch_growth.milestones="
            f"{as_override(recipe.batch_growth.milestones)} both change the minibatch; write one"
        )
    if strategy != "allreduce":
        raise UsageError(
            f"{shown} gives a run other workers, and those of strategy={strategy} stay the same; "
            "write strategy=allreduce, or leave it out"
        )
    examples = recipe.train_examples
    for epoch, workers, n in phases:
        if workers * n > examples:
            raise UsageError(
                f"{shown} has a batch_size of {workers * n} from epoch {epoch} on ({workers} "
                f"workers x {n}), which is more than the {examples} training examples; write fewer "
                "workers"
            )
        if recipe.keeps_tail and examples % (workers * n) % n == 1:
            raise UsageError(
                f"tail=keep with {shown} leaves one worker of the last step with a single image "
                f"from epoch {epoch} on, and BN needs two; write tail=drop or another worker_batch"
            )
    _refuse_timing(recipe, f"{shown} changes the micro-batches within the run")


def _check_growth(recipe: Recipe) -> None:
    growth, epochs, strategy = recipe.batch_growth, recipe.epochs, recipe.strategy.name
    milestones = growth.milestones
    if not milestones:
        if growth.factor != BatchGrowth.factor:
            raise UsageError(
                f"batch_growth.factor={growth.factor} has no effect without "
                "batch_growth.milestones; write the epochs at which the batch grows, such as "
                "batch_growth.milestones=[30]"
            )
        return
    _check_milestones("batch_growth.milestones", milestones, epochs)
    if strategy != "allreduce":
        raise UsageError(
            f"batch_growth.milestones={as_override(milestones)} gives a run more workers, and "
            f"those of strategy={strategy} stay the same; write strategy=allreduce, or leave it out"
        )
    largest = recipe.workers * growth.factor_in(epochs) * recipe.worker_batch
    if largest > recipe.train_examples:
        raise UsageError(
            f"batch_growth grows to a batch_size of {largest} ({recipe.workers} workers x "
            f"worker_batch={recipe.worker_batch} x {growth.factor}^{len(milestones)}), which is "
            f"more than the {recipe.train_examples} training examples; write fewer milestones or a "
            "smaller factor"
        )


def _check_image_sizes(recipe: Recipe) -> None:
    sizes = recipe.image_sizes
    if not sizes.points:
        if sizes.multiple != 1:
            raise UsageError(
                f"image_sizes.multiple={sizes.multiple} has no effect without image_sizes.points; "
                "write pairs of epoch and size, such as image_sizes.points=[[11,160],[13,192]]"
            )
        return
    shown = f"image_sizes.points={as_override(sizes.points)}"
    _check_within_run("image_sizes.points", sizes.points, recipe.epochs)
    if not all(recipe.training_sizes):
        raise UsageError(
            f"{shown} with image_sizes.multiple={sizes.multiple} rounds a size to 0; write a "
            "smaller multiple"
        )
    _refuse_one_size(recipe, shown)
    _refuse_timing(recipe, f"{shown} changes the size of images within the run")


def _refuse_one_size(recipe: Recipe, shown: str) -> None:
    """Raise UsageError for a network or a loader whose images have one size."""
    if recipe.model.name == "lenet5":
        raise UsageError(
            f"{shown} is for networks that take images of any size, and model=lenet5 takes 28 x "
            "28; write another model, such as model=small_resnet"
        )
    if recipe.inputs.is_own:
        raise UsageError(
            f"{shown} needs a loader of lsgd, and inputs={recipe.inputs.loader} has images of one "
            "size; leave it out"
        )


def _check_evaluated_sizes(recipe: Recipe) -> None:
    rule, data = recipe.evaluation, recipe.data
    if rule.rectangle_epoch and not rule.rectangle_batch:
        raise UsageError(
            f"evaluation.rectangle_epoch={rule.rectangle_epoch} has no effect without "
            "evaluation.rectangle_batch; write the number of images of a rectangle, such as "
            "evaluation.rectangle_batch=128"
        )
    shown = f"evaluation.image_sizes={as_override(rule.image_sizes)}"
    firsts = {shown: [int(row[0]) for row in rule.image_sizes]}
    firsts[f"evaluation.rectangle_epoch={rule.rectangle_epoch}"] = [rule.rectangle_epoch]
    for setting, epochs in firsts.items():
        if max(epochs, default=0) >= recipe.epochs:
            raise UsageError(
                f"{setting} begins at epoch {max(epochs)} of a run of {recipe.epochs}, counted "
                "from 0; write an earlier one"
            )
    last = recipe.evaluated_images(recipe.epochs)
    # A ratio such as 288 / 328 is rarely typed with all of its digits.
    is_same_ratio = math.isclose(last.crop_ratio, data.crop_ratio, rel_tol=1e-6)
    if last.side != data.image_size or not is_same_ratio:
        raise UsageError(
            f"{shown} ends with {last.side} pixels and a crop_ratio of {last.crop_ratio:g}, and a "
            f"trained network predicts with data.image_size={data.image_size} and "
            f"data.crop_ratio={data.crop_ratio:g}; write the same"
        )
    used = [shown] * bool(rule.image_sizes)
    used += [f"evaluation.rectangle_batch={rule.rectangle_batch}"] * bool(rule.rectangle_batch)
    for setting in used:
        _refuse_one_size(recipe, setting)
    for _, images in recipe.evaluated_changes:
        if images.in_rectangles and images.side % rectangles.MULTIPLE:
            raise UsageError(
                f"evaluation.rectangle_batch={rule.rectangle_batch} is for sizes that are "
                f"multiples of {rectangles.MULTIPLE}, as the longer sides of rectangles are, and "
                f"{images.side} is not; write another size"
            )


def _refuse_timing(recipe: Recipe, change: str) -> None:
    """Raise UsageError if workers_per_pass is timed when training starts, for a run that changes.

    The micro-batches of later epochs may not fit the memory. For channels_last the first one stands
    for all.
    """
    if recipe.workers_per_pass == AUTO:
        raise UsageError(
            f"workers_per_pass=auto is timed with one micro-batch, and {change}; write a value, "
            "such as workers_per_pass=8"
        )


def _check_tail(recipe: Recipe) -> None:
    examples, batch_size = recipe.train_examples, recipe.batch_size
    if examples < batch_size:
        fewer, local_steps = examples // recipe.worker_batch, recipe.strategy.batches_per_push
        key = "strategy.local_steps" if local_steps > 1 else "workers"
        if fewer:
            fix = f"{key}={fewer + recipe.strategy.backup} or fewer"
        else:  # fewer examples than worker_batch: suggest one worker and one local step
            fix = f"workers={1 + recipe.strategy.backup} " * (recipe.update_workers > 1)
            fix += "strategy.local_steps=1 " * (local_steps > 1) + f"worker_batch={examples}"
        raise UsageError(
            f"batch_size {batch_size} ({recipe.update_workers} workers x worker_batch="
            f"{recipe.worker_batch}"
            + f" x strategy.local_steps={local_steps}" * (local_steps > 1)
            + f") is more than the {examples} training examples; write {fix}"
        )
    if recipe.data.workload == "images":
        refuse_single_examples(recipe, batch_size, recipe.worker_batch)


def refuse_single_examples(recipe: Recipe, batch_size: int, worker_batch: int) -> None:
    """Raise UsageError if a worker of steps of this size has one example alone, for batch norm."""
    if worker_batch == 1:
        raise UsageError(
            "worker_batch=1 gives a worker a single example, and BN needs two; write 2"
        )
    steps, left = divmod(recipe.train_examples, batch_size)
    if recipe.keeps_tail and left % worker_batch == 1:
        raise UsageError(
            "tail=keep leaves one worker of the last step with a single example "
            f"({recipe.train_examples} = {steps} x {batch_size} + {left}), and BN needs two; write "
            "tail=drop or another worker_batch"
        )
