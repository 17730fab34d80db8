"""The plan to a target accuracy: the fastest or cheapest minibatch and number of GPUs."""

import math
from collections.abc import Sequence

from lsgd import config, definitions
from lsgd.errors import UsageError
from lsgd.plan.step import ModelledCluster
from lsgd.plan.table import constants, duration, run_time
from lsgd.plan.time_to_target import TargetPlan, cheapest, fastest
from lsgd.recipe import Recipe
from lsgd.recipe.fields import as_override
from lsgd.recipe.published_points import PublishedPoints, points_of_paper
from lsgd.tables import markdown_table


def find_points(accuracy: float, recipe: Recipe) -> PublishedPoints:
    """Return the published convergence points to a top-1 accuracy in percent.

    Raises UsageError if there are none, or if they belong to another network, dataset or image
    size.
    """
    known = points_of_paper(definitions.load_all_points(), recipe.paper)
    ladders = [points for points in known if points.rate == "top1_error"]
    for points in ladders:
        if math.isclose(points.target, 100 - accuracy, abs_tol=1e-9):
            return _checked(points.for_recipe(recipe.name), accuracy, recipe)
    there = ", ".join(f"{100 - each.target:g} ({_network(each)})" for each in ladders)
    raise UsageError(
        f"no convergence points are known for {accuracy:g} % top-1 accuracy; write --to with "
        f"one of {there}"
    )


def _checked(points: PublishedPoints, accuracy: float, recipe: Recipe) -> PublishedPoints:
    size = config.load_data(points.data).image_size
    if (recipe.model.name, recipe.data.name, recipe.data.image_size) != (
        points.model,
        points.data,
        size,
    ):
        raise UsageError(
            f"the points to {accuracy:g} % are for {_network(points)} at {size} pixels, and "
            f"{recipe.name} trains {recipe.model.name} on {recipe.data.name} at "
            f"{recipe.data.image_size}; write a recipe for these, such as recipe=bs8k"
        )
    if recipe.training_sizes != (size,):
        raise UsageError(
            f"image_sizes.points={as_override(recipe.image_sizes.points)} trains on other "
            f"sizes of images, and the points to {accuracy:g} % are for {size} pixels in all "
            "epochs; write image_sizes.points=[]"
        )
    return points


def _network(points: PublishedPoints) -> str:
    return f"{points.model} on {points.data}"


def target_report(
    machine: ModelledCluster,
    recipe: Recipe,
    points: PublishedPoints,
    found: Sequence[TargetPlan],
    *,
    nodes: int,
    price: float | None,
    save: bool,
) -> str:
    """Format the fastest or cheapest ways to a target accuracy as a Markdown report.

    With `save` it recommends the cheapest one, else the fastest.
    """
    accuracy = 100 - points.target
    word, best = ("Cheapest", cheapest(found)) if save else ("First", fastest(found))
    return "\n\n".join(
        [
            f"To {accuracy:g} % top-1 accuracy: {_network(points)}, {recipe.worker_batch} images "
            f"for each worker, at most {nodes} servers x {machine.gpus_per_server} GPUs",
            f"**{word}: minibatch {best.reference.batch_size} on {best.step.gpus} GPUs, "
            f"{run_time(best.hours)} for {best.steps:,.0f} steps of "
            f"{duration(best.step.seconds)} (modelled); {_paid(best, price)}.**",
            "The fastest minibatch on each number of GPUs; ~ is interpolated:",
            _by_gpus(found, price),
            "Each minibatch, on the number of GPUs where it is fastest and where it is cheapest:",
            _by_minibatch(found),
            _sources(points, recipe),
            "Times are modelled: the steps of others, times a step of the model below. "
            "Evaluations and checkpoints are not included; GPU hours are those of the steps.",
            constants(machine),
        ]
    )


def _paid(arrival: TargetPlan, price: float | None) -> str:
    hours = f"{arrival.gpu_hours:,.1f} GPU hours"
    return f"{hours}, {price * arrival.gpu_hours:,.2f} at {price:g} each" if price else hours


def _by_gpus(found: Sequence[TargetPlan], price: float | None) -> str:
    rows = []
    for gpus in sorted({each.step.gpus for each in found}):
        best = fastest([each for each in found if each.step.gpus == gpus])
        cells = [
            str(gpus),
            f"{best.reference.batch_size}",
            _epochs(best),
            f"{best.steps:,.0f}",
            duration(best.step.seconds),
            run_time(best.hours),
            f"{best.gpu_hours:,.1f}",
        ]
        rows += [[*cells, *([f"{price * best.gpu_hours:,.2f}"] if price else [])]]
    head = ["GPUs", "minibatch", "epochs", "steps", "step", "time", "GPU hours"]
    return markdown_table([*head, *(["cost"] if price else [])], rows)


def _by_minibatch(found: Sequence[TargetPlan]) -> str:
    rows = []
    for size in sorted({each.reference.batch_size for each in found}):
        some = [each for each in found if each.reference.batch_size == size]
        soon, cheap = fastest(some), cheapest(some)
        cells = [str(size), _epochs(soon), f"{soon.steps:,.0f}"]
        cells += [str(soon.step.gpus), run_time(soon.hours), f"{soon.gpu_hours:,.1f}"]
        rows += [[*cells, str(cheap.step.gpus), run_time(cheap.hours), f"{cheap.gpu_hours:,.1f}"]]
    head = ["minibatch", "epochs", "steps", "first on", "time", "GPU hours"]
    return markdown_table([*head, "cheapest on", "time", "GPU hours"], rows)


def _epochs(arrival: TargetPlan) -> str:
    return f"{arrival.reference.mean:.2f}{' ~' if arrival.reference.between else ''}"


def _sources(points: PublishedPoints, recipe: Recipe) -> str:
    kept = [reference.batch_size for reference in points.pruned]
    slow = [point.batch_size for point in points.judged if point.batch_size not in kept]
    spans = [point.bn_span for point in points.points if point.bn_span]
    norm = f" Their batch norm was over {min(spans)} to {max(spans)} images" if spans else ""
    return (
        f"Steps are epochs x {recipe.data.train_examples:,} / minibatch, and the epochs those of "
        f"{points.title}, at {', '.join(map(str, kept))}, each the mean of several runs without "
        f"the best and the worst ({points.source}). "
        + (
            f"Skipped, as slower than a line between others: {', '.join(map(str, slow))}. "
            * bool(slow)
        )
        + (
            "Between two points epochs are interpolated in a straight line, with no answer "
            "below the smallest or above the largest. The optimizer and schedule are those of "
            f"the points, not of {recipe.name}.{norm}"
        )
        + (f", here it is over {recipe.worker_batch}." if norm else "")
    )
