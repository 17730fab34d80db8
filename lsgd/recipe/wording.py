"""The description of a run in words: its summary and its result."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from lsgd.recipe.settings import TARGET_DATA, Target
from lsgd.rules.early_stopping import EarlyStop
from lsgd.rules.metric import Metric, format_decimal, named_metric

if TYPE_CHECKING:
    from lsgd.recipe import Recipe


class WorkloadUnits(NamedTuple):
    """The plural nouns for what a minibatch and a dataset of a workload consist of."""

    examples: str
    """The examples of a worker's minibatch."""
    dataset: str
    """The items that `data.train_examples` counts."""


UNITS = {
    "images": WorkloadUnits("images", "images"),
    "language": WorkloadUnits("streams", "tokens"),
    "tagging": WorkloadUnits("sentences", "sentences"),
    "trees": WorkloadUnits("trees", "trees"),
}
"""The units of each workload of lsgd's own."""
OWN_UNITS = WorkloadUnits("examples", "examples")
"""The units of a workload of the user's own."""
NO_REPLAY = (
    "strategy=hogwild cannot be replayed: two runs of it differ; strategy=async with "
    "strategy.order=live records its order"
)


def summarize(recipe: "Recipe") -> str:
    """Describe a run in a few lines of text: network, dataset, steps, batch size and lr."""
    first, last = recipe.lr(0), recipe.scaled_lr
    ramp = f"lr {first:g}" if first == last else f"lr {first:g} to {last:g}"
    updating = f"{recipe.update_workers}"
    if recipe.update_workers < recipe.workers:
        updating += f" of {recipe.workers}"
    skipped = len(recipe.data.skip)
    local_steps = recipe.strategy.batches_per_push
    lines = [
        f"{recipe.name}: {recipe.model.name} on {recipe.data.name}, {recipe.epochs} epochs of "
        f"{', then '.join(str(stage.steps_per_epoch) for stage in recipe.stages)} steps, seed "
        f"{recipe.seed}",
        f"batch_size {recipe.batch_size} = {updating} workers x {recipe.worker_batch} "
        f"{UNITS.get(recipe.data.workload, OWN_UNITS).examples}"
        + f" x {local_steps} local steps" * (local_steps > 1)
        + f", {ramp}",
        *filter(None, [_describe_settings(recipe)]),
        *(
            f"batch_size {stage.batch_size} = {stage.workers} workers"
            + f" x {stage.worker_batch}" * bool(recipe.batch_schedule)
            + f" from epoch {stage.epoch} on"
            for stage in recipe.stages[1:]
        ),
        *([_describe_sizes(recipe)] if recipe.changes_image_sizes else []),
        *([NO_REPLAY] if recipe.strategy.name == "hogwild" else []),
        *([f"images skipped (data.skip): {skipped}"] if skipped else []),
        *recipe.replaced,
    ]
    return "\n".join(lines)


def _describe_settings(recipe: "Recipe") -> str:
    """Describe the number format, the balance and the lr of the head; empty if all are usual."""
    data, optim = recipe.data, recipe.optim
    settings = {
        f"precision={recipe.precision}": recipe.precision != "float32",
        f"data.balance={data.balance}": data.balance != "none",
        f"data.channels={data.channels}": data.name in ("folder", "imagenet")
        and data.channels == 1,
        f"optim.head_lr={optim.head_lr}": optim.head_lr is not None,
    }
    return ", ".join(text for text, is_unusual in settings.items() if is_unusual)


def _describe_sizes(recipe: "Recipe") -> str:
    """Describe the sizes of training images by epoch, and those of evaluated images."""
    trained = [(epoch, str(size)) for epoch, size in recipe.size_changes]
    evaluated = [
        (epoch, f"{images.side}{' in rectangles' * images.in_rectangles}")
        for epoch, images in recipe.evaluated_changes
    ]
    return (
        f"training images of {_by_epoch(trained)} pixels; evaluated ones of {_by_epoch(evaluated)}"
    )


def _by_epoch(changes: Sequence[tuple[int, str]]) -> str:
    """Join texts, each with the epoch from which it holds unless that is the first one."""
    return ", ".join(f"{text} from epoch {epoch} on" if epoch else text for epoch, text in changes)


def format_result(
    recipe: "Recipe", metric: Metric, metrics: Mapping[int, Mapping[str, Any]]
) -> str:
    """Format a run's final metric as a sentence that compares it with the published number.

    It is computed from the metrics of each epoch, by its number from 1. The published number is
    added if it is of the same metric and dataset. A dry run reports no number, since its metric
    means nothing.
    """
    if recipe.rehearse:
        return "dry run done: steps, evaluations and checkpoints all worked"
    number = metric.final_metric(metrics)
    evaluated = [epoch for epoch, row in metrics.items() if metric.key in row]
    outcome = metric.format_labelled(number)
    outcome += f" ({metric.aggregation(evaluated)})" * math.isfinite(number)
    on_its_data = recipe.data.name in TARGET_DATA and recipe.inputs.loader != "synthetic"
    if recipe.target and recipe.target.metric == metric and on_its_data:
        return f"{outcome}; {describe_difference(recipe.target, number)}"
    return outcome


def describe_evaluations(recipe: "Recipe") -> str:
    """Describe the cost of evaluations within epochs and of further sets; empty without these."""
    rule, data = recipe.evaluation, recipe.data
    if not rule.is_within_epochs and len(rule.sets) == 1:
        return ""
    _, evaluations = recipe.work_left(0)
    passes = evaluations * (2 if rule.mirror else 1)
    work = passes * data.val_examples / (3 * recipe.examples(recipe.total_steps))
    if data.workload == "images":
        # The work of a convolutional network is in proportion to the pixels.
        epochs = range(recipe.epochs)
        work *= sum(recipe.evaluated_images(epoch).side ** 2 for epoch in epochs)
        work /= sum(recipe.training_size(epoch) ** 2 for epoch in epochs)
    times = f"{evaluations} evaluation{'s' * (evaluations > 1)}"
    of_sets = f" of {len(rule.sets)} sets" * (len(rule.sets) > 1)
    others = ", and those of the other sets in proportion" * (len(rule.sets) > 1)
    return (
        f"evaluation.every={rule.every} makes {times}{of_sets}; the "
        f"{data.val_examples:,} {UNITS.get(data.workload, OWN_UNITS).examples} of val add about "
        f"{100 * work:.1f} % to the training{others}{_describe_bn_cost(recipe, evaluations)}, with "
        "a forward pass as a third of a step"
    )


def _describe_bn_cost(recipe: "Recipe", evaluations: int) -> str:
    """Describe the cost of measuring BN for evaluations, once for all sets; empty if it is not."""
    if not recipe.measures_bn:
        return ""
    images = min(recipe.bn_steps * recipe.batch_size, recipe.train_examples)
    share = evaluations * images / (3 * recipe.examples(recipe.total_steps))
    return (
        f", and {images:,} training images, by which a network's BN is measured, about "
        f"{100 * share:.1f} %"
    )


def describe_noise_gaps(recipe: "Recipe", world_size: int) -> str:
    """Describe the epochs in which no noise scale is measured; empty if there are none.

    Their steps are single micro-batches on this number of processes.
    """
    ends = [*(stage.epoch for stage in recipe.stages[1:]), recipe.epochs]
    gaps = [
        f"{stage.epoch + 1}" + f" to {end}" * (end > stage.epoch + 1)
        for stage, end in zip(recipe.stages, ends, strict=True)
        if recipe.makes_one_micro_batch(stage, world_size)
    ]
    if not recipe.noise_scale or not gaps:
        return ""
    fewest = min(stage.workers for stage in recipe.stages)
    remedy = f"; write workers_per_pass={fewest // 2} for more" * (fewest > 1)
    return f"epoch {', '.join(gaps)}: no noise scale, since a step is one micro-batch{remedy}"


def describe_early_stop(recipe: "Recipe", stop: EarlyStop) -> str:
    """Describe where and why a run stopped early."""
    metric = named_metric(recipe.stop.metric)
    since = f"since epoch {stop.best_epoch}" if stop.best_epoch else "at all"
    return (
        f"early stopped after epoch {stop.epoch} of {recipe.epochs}, no lower "
        f"{metric.label_on('validation')} {since}"
    )


def describe_difference(target: Target, number: float) -> str:
    """Describe how far a run's final metric is above or below the published number, or equal to it.

    lsgd.report.verdict decides over several seeds whether a result is the published one.
    """
    decimals = target.metric.decimals(target.value)
    above = round(number - target.value, decimals)
    size = format_decimal(abs(above), decimals)
    distance = f"{size} {'above' if above > 0 else 'below'}" if above else "equal to"
    source = f" ({target.source})" if target.source else ""
    published = target.metric.format_value(target.value, target.std)
    return f"{distance} the published {published}{source}"
