"""The plan to a target: which minibatch, on how many GPUs, arrives first or costs least."""

import math
from collections.abc import Sequence

from lsgd import config
from lsgd.errors import Refused
from lsgd.plan.arrival import Arrival, arrivals, cheapest, first
from lsgd.plan.step import Machine
from lsgd.plan.table import constants, duration, run_time
from lsgd.recipe import Recipe
from lsgd.recipe.points import PublishedPoints
from lsgd.tables import markdown


def find_points(accuracy: float, recipe: Recipe) -> PublishedPoints:
    """The published points to this top-1 accuracy in percent; raises Refused if there are none, or
    if they are of another network or of other images."""
    ladders = [points for points in config.all_points() if points.rate == "top1_error"]
    for points in ladders:
        if math.isclose(points.target, 100 - accuracy, abs_tol=1e-9):
            return _checked(points, accuracy, recipe)
    there = ", ".join(f"{100 - each.target:g} ({_network(each)})" for each in ladders)
    raise Refused(
        f"no ladder of convergence points goes to {accuracy:g} % top-1 accuracy; write --to with "
        f"one of {there}"
    )


def _checked(points: PublishedPoints, accuracy: float, recipe: Recipe) -> PublishedPoints:
    size = config.load_data(points.data).image_size
    if (recipe.model.name, recipe.data.name, recipe.data.image_size) != (
        points.model,
        points.data,
        size,
    ):
        raise Refused(
            f"the points to {accuracy:g} % are of {_network(points)} at {size} pixels, and "
            f"{recipe.name} is of {recipe.model.name} on {recipe.data.name} at "
            f"{recipe.data.image_size}; write a recipe of these, such as +recipe=bs8k"
        )
    return points


def _network(points: PublishedPoints) -> str:
    return f"{points.model} on {points.data}"


def find_arrivals(
    machine: Machine, recipe: Recipe, points: PublishedPoints, gpus: int
) -> list[Arrival]:
    """All that can be chosen on at most so many GPUs; raises Refused if that is nothing."""
    found = arrivals(machine, recipe, points.pruned, gpus)
    if not found:
        low, high = points.pruned[0].batch_size, points.pruned[-1].batch_size
        raise Refused(
            f"no minibatch from {low} to {high} gives workers of "
            f"worker_batch={recipe.worker_batch} to {machine.gpus_per_server} GPUs; "
            "write a smaller worker_batch= or gpus="
        )
    return found


def arrival_report(
    machine: Machine,
    recipe: Recipe,
    points: PublishedPoints,
    found: Sequence[Arrival],
    *,
    nodes: int,
    price: float | None,
    save: bool,
) -> str:
    """The whole text of a plan to a target; with `save` its answer is the cheapest."""
    accuracy = 100 - points.target
    word, best = ("Cheapest", cheapest(found)) if save else ("First", first(found))
    return "\n\n".join(
        [
            f"To {accuracy:g} % top-1 accuracy: {_network(points)}, {recipe.worker_batch} images "
            f"for each worker, at most {nodes} servers x {machine.gpus_per_server} GPUs",
            f"**{word}: minibatch {best.reference.batch_size} on {best.step.gpus} GPUs, "
            f"{run_time(best.hours)} for {best.steps:,.0f} steps of "
            f"{duration(best.step.seconds)} (modelled); {_paid(best, price)}.**",
            "What arrives first on each number of GPUs; ~ is interpolated:",
            _by_gpus(found, price),
            "Each minibatch, on the GPUs on which it arrives first and on those on which it costs "
            "least:",
            _by_minibatch(found),
            _sources(points, recipe),
            "Times are modelled: the steps of others, times a step of the model below. Evaluations "
            "and checkpoints come on top, and GPU hours are those of the steps.",
            constants(machine),
        ]
    )


def _paid(arrival: Arrival, price: float | None) -> str:
    hours = f"{arrival.gpu_hours:,.1f} GPU hours"
    return f"{hours}, {price * arrival.gpu_hours:,.2f} at {price:g} each" if price else hours


def _by_gpus(found: Sequence[Arrival], price: float | None) -> str:
    rows = []
    for gpus in sorted({each.step.gpus for each in found}):
        best = first([each for each in found if each.step.gpus == gpus])
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
    return markdown([*head, *(["cost"] if price else [])], rows)


def _by_minibatch(found: Sequence[Arrival]) -> str:
    rows = []
    for size in sorted({each.reference.batch_size for each in found}):
        some = [each for each in found if each.reference.batch_size == size]
        soon, cheap = first(some), cheapest(some)
        cells = [str(size), _epochs(soon), f"{soon.steps:,.0f}"]
        cells += [str(soon.step.gpus), run_time(soon.hours), f"{soon.gpu_hours:,.1f}"]
        rows += [[*cells, str(cheap.step.gpus), run_time(cheap.hours), f"{cheap.gpu_hours:,.1f}"]]
    head = ["minibatch", "epochs", "steps", "first on", "time", "GPU hours"]
    return markdown([*head, "cheapest on", "time", "GPU hours"], rows)


def _epochs(arrival: Arrival) -> str:
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
            f"Left out, as slower than a line between others: {', '.join(map(str, slow))}. "
            * bool(slow)
        )
        + "Between two points epochs are interpolated in a straight line, and nothing is said "
        "below the smallest or above the largest. The optimizer and schedule are those of the "
        f"points, not of {recipe.name}.{norm}"
        + (f", here it is over {recipe.worker_batch}." if norm else "")
    )
