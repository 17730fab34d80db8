"""Checks that raise UsageError for recipe fields beyond their limits or in contradiction."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import Field, fields, is_dataclass
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any

from lsgd.errors import UsageError
from lsgd.recipe import Recipe
from lsgd.recipe.fields import (
    AUTO,
    WORKLOAD,
    FieldLimit,
    all_fields,
    applies_to,
    as_override,
    default,
    limits,
    relevances,
)
from lsgd.recipe.model_checks import check_model, check_weights
from lsgd.recipe.schedule_checks import check_schedule, check_sizes
from lsgd.recipe.strategy_checks import check_strategy
from lsgd.rules.metric import OWN_NAME, named_metric

MOST_SKIPPED = 50_000
"""The most images that data.skip may list: with more, a recipe has too many values to be read."""


def check_recipe(recipe: Recipe) -> None:
    """Raise UsageError if a recipe's fields are invalid or contradictory, with the fix to make."""
    check_model(recipe)
    _check_limits(recipe, recipe.data.workload)
    _check_relevance(recipe)
    _check_target(recipe)
    _check_goal(recipe)
    check_weights(recipe)
    _check_workload(recipe)
    check_schedule(recipe)
    check_strategy(recipe)
    check_sizes(recipe)
    _check_stage(recipe)
    if recipe.workers_per_pass == AUTO and recipe.compile is True:
        raise UsageError(
            "workers_per_pass=auto times a model that is not compiled, and compile=true is faster "
            "with another number; write one, such as workers_per_pass=8"
        )
    if recipe.channels_last == AUTO and recipe.compile is True:
        raise UsageError(
            "channels_last=auto times a model that is not compiled, and compile=true may be faster "
            "in the other format; write channels_last=true or false"
        )


def _check_limits(group: Any, workload: str, above: str = "") -> None:
    """Raise UsageError for a field beyond its limits, or set though the workload lacks it."""
    kind: type = type(group)
    for entry, applies, its_limits in _fields_with_limits(kind, workload):
        key, value = above + entry.name, getattr(group, entry.name)
        if not applies:
            entry.metadata[f"only_for {WORKLOAD}"].enforce(key, value, default(entry), workload)
            continue
        for limit in its_limits:
            limit.enforce(key, value)
        if is_dataclass(value):
            _check_limits(value, workload, f"{key}.")


@lru_cache(maxsize=256)
def _fields_with_limits(
    kind: type, workload: str
) -> list[tuple[Field[Any], bool, list[FieldLimit]]]:
    """Return the fields of a group, whether they exist for the workload, and their limits."""
    return [(entry, applies_to(entry, workload), limits(entry)) for entry in fields(kind)]


def _check_relevance(recipe: Recipe) -> None:
    """Raise UsageError for a field that is set though other fields leave it unused."""
    for key, entry in _fields_with_relevance():
        for rule in relevances(entry):
            value, chosen = attrgetter(key)(recipe), attrgetter(rule.key)(recipe)
            rule.enforce(key, value, default(entry), chosen)


@cache
def _fields_with_relevance() -> list[tuple[str, Field[Any]]]:
    return [(key, entry) for key, entry in all_fields(Recipe) if relevances(entry)]


WORKLOAD_METRICS = {
    "images": ("loss", "top1_error", "top5_error"),
    "language": ("loss", "perplexity"),
    "tagging": ("loss", "f1_error", "token_error"),
    "trees": ("loss", "fine_error", "binary_error", "node_error"),
}
"""The metrics of lsgd.rules.metric that an evaluation of each workload computes."""


def _check_goal(recipe: Recipe) -> None:
    rule, goal, rates = recipe.evaluation, recipe.metric, _metric_names(recipe)
    if rule.offset >= rule.epochs and rule.offset:
        if rule.is_within_epochs:
            raise UsageError(
                f"evaluation.offset={rule.offset} has no effect with evaluation.every={rule.every},"
                " which includes the end of each epoch; leave it out"
            )
        raise UsageError(
            f"evaluation.offset={rule.offset} is the first of every {rule.every} epochs that is "
            f"followed by an evaluation; write less than evaluation.every={rule.every}"
        )
    given = {"epochs_to": goal.epochs_to, "steps_to": goal.steps_to}
    targets = {f"metric.{key}.{name}": x for key, each in given.items() for name, x in each.items()}
    if len(targets) > 1:
        raise UsageError(
            f"{' and '.join(targets)} are {len(targets)} final metrics of a run; write one"
        )
    for key, target in targets.items():
        if (name := key.rpartition(".")[2]) not in rates:
            raise UsageError(
                f"{key} is not a metric of these runs; write one of {', '.join(rates)}"
            )
        highest = named_metric(name).upper_bound
        if not 0 <= target <= (math.inf if highest is None else highest):
            raise UsageError(
                f"{key}={target:g} can never be reached, or always is; write a number of 0 or more"
                + ("" if highest is None else f", and at most {highest:g}")
            )
    for key, metric in (("keep_best", recipe.keep_best), ("stop.metric", recipe.stop.metric)):
        if metric is not None and metric not in rates:
            of_rows = metric.removeprefix("val_") in rates
            raise UsageError(
                f"{key}={metric} is not a metric of these runs; write one of {', '.join(rates)}"
                + ", which are of the validation set" * of_rows
            )
    if recipe.stop.metric != "loss" and recipe.stop.patience is None:
        raise UsageError(
            f"stop.metric={recipe.stop.metric} has no effect without a patience; write one, such "
            "as stop.patience=5, or leave it out"
        )
    if goal.stop and not targets:
        raise UsageError(
            "metric.stop=true has no target to stop at; write one, such as "
            f"metric.epochs_to={{{rates[min(1, len(rates) - 1)]}: 24.1}}"
        )


def _metric_names(recipe: Recipe) -> tuple[str, ...]:
    """Return the names of the metrics that each evaluation of a recipe computes.

    Those of a workload of the user's own are what it was asked for, since
    lsgd.recipe.part_sources checks them once the workload is imported.
    """
    if not recipe.data.is_own_workload:
        own = recipe.metric.own_name
        return WORKLOAD_METRICS[recipe.data.workload] + ((own,) if own else ())
    goal = recipe.metric
    named = {*goal.epochs_to, *goal.steps_to, recipe.stop.metric, recipe.keep_best or "loss"}
    return ("loss", *(name for name in sorted(named - {"loss"}) if OWN_NAME.fullmatch(name)))


def _check_target(recipe: Recipe) -> None:
    rates = {"images": "top1_error", "language": "perplexity"}
    if recipe.target:
        given = [name for name in rates.values() if getattr(recipe.target, name) is not None]
        rate = rates.get(recipe.data.workload)
        if given != [rate]:
            raise UsageError(
                f"target has {' and '.join(given) or 'no number'}, and the final metric of this "
                "run is "
                + (f"a {rate}; write target.{rate}" if rate else "none of these; leave it out")
            )


def _check_workload(recipe: Recipe) -> None:
    workload = recipe.data.workload
    match workload:
        case "images":
            _check_images(recipe)
        case "language":
            _check_language(recipe)
        case "trees" if recipe.compile is True:
            raise UsageError(
                "compile=true is for one forward pass, and the number of calls of a tree differs "
                "in every pass; leave it out"
            )
    if recipe.data.is_own_workload:
        if recipe.inputs.loader != AUTO:
            raise UsageError(
                f"inputs={recipe.inputs.loader} has no effect with data.workload={workload}, which "
                "opens its examples itself; leave it out"
            )
        return
    if workload != "images" and recipe.inputs.loader not in (AUTO, "memory", "synthetic"):
        raise UsageError(
            f"inputs={recipe.inputs.loader} is for images; write inputs=memory, or "
            "inputs=synthetic for made-up examples"
        )


def _check_language(recipe: Recipe) -> None:
    data, streams = recipe.data, recipe.batch_size
    if recipe.strategy.is_asynchronous:
        raise UsageError(
            f"strategy={recipe.strategy.name} gives a worker any next batch, but in a text each "
            "window needs the state of the one before; write strategy=allreduce, sync or local"
        )
    for name in ("val_examples", "test_examples"):
        if getattr(data, name) == 1:
            raise UsageError(
                f"data.{name}=1 is a text of one token, which has none to guess; write 2 or more"
                + ", or 0 without a test text" * (name == "test_examples")
            )
    if recipe.keeps_tail:
        raise UsageError(
            "tail=keep has no effect with data.workload=language, whose streams are of equal "
            "length; leave it out"
        )
    if not recipe.train_examples:
        raise UsageError(
            f"batch_size {streams} is more streams than {data.train_examples} tokens have windows "
            f"of data.window={data.window} for; write fewer workers or a shorter window"
        )


def _check_images(recipe: Recipe) -> None:
    data, model = recipe.data, recipe.model.name
    if recipe.worker_batch < 2:
        raise UsageError(f"worker_batch={recipe.worker_batch} is not possible; write 2 or more")
    if len(data.skip) > MOST_SKIPPED:
        raise UsageError(
            f"data.skip has {len(data.skip)} images, and a saved recipe lists {MOST_SKIPPED} at "
            "most; make a folder with links to the images to train on, and index that"
        )
    for image, count in Counter(data.skip).items():
        # The folder of an evaluation set other than val is named like train and val.
        if not re.match("[A-Za-z0-9][A-Za-z0-9.-]*/.", image) or count > 1:
            raise UsageError(
                f"data.skip has {image!r}; name each image once, by its path below the root, such "
                "as train/n01440764/n01440764_10026.JPEG"
            )
    if data.balance != "none" and recipe.inputs.is_own:
        raise UsageError(
            f"data.balance={data.balance} needs the labels of all training images, which lsgd does "
            f"not have with inputs={recipe.inputs.loader}; leave it out"
        )
    for key, most in (("crop_area", 1.0), ("crop_aspect", math.inf)):
        ends = getattr(data, key)
        if len(ends) != 2 or not ends[0] <= ends[1] <= most:
            raise UsageError(
                f"data.{key}={as_override(ends)} has to be the least and the largest value; write "
                "[least,largest]" + ", both at most 1" * (key == "crop_area")
            )
    if not len(data.mean) == len(data.std) == data.channels:
        grey = (
            "; write data.mean=[0.449] data.std=[0.226], ImageNet's in grey, or those of the data"
        )
        raise UsageError(
            f"data.mean and data.std need {data.channels} numbers each, one per channel, and have "
            f"{len(data.mean)} and {len(data.std)}{grey * (data.channels == 1)}"
        )
    if model in ("resnet50", "resnet50_v2", "resnet101") and data.channels not in (1, 3):
        raise UsageError(
            f"model={model} takes images of 3 channels or 1 and {data.name} has {data.channels}; "
            "write model=small_resnet or model=resnet20"
        )
    if model == "lenet5" and data.image_size != 28:
        raise UsageError(
            f"model=lenet5 takes images of 28 x 28 and data.image_size={data.image_size}; write "
            "data=fashion_mnist or another model, such as model=small_resnet"
        )


def _check_stage(recipe: Recipe) -> None:
    """Raise UsageError if data.stage is set for data that are not in files of data.root."""
    data = recipe.data
    if data.stage is None:
        return
    if data.name == "digits" and data.workload == "images" and not recipe.inputs.is_own:
        raise UsageError(
            f"data.stage={data.stage} copies the files of data.root, and the digits are part of "
            "lsgd; leave it out"
        )
    if (recipe.inputs.is_own or data.is_own_workload) and not data.root:
        raise UsageError(
            f"data.stage={data.stage} copies the files of data.root, which your own parts may read "
            "or not; write data.root=FOLDER, or leave data.stage out"
        )


def check_world_size(recipe: Recipe, world_size: int) -> None:
    """Raise UsageError if this number of processes does not fit the recipe's workers and servers.

    More processes than workers and separate servers would leave one idle. With a live order each
    worker and each server needs a process. A noise scale needs steps of more than one micro-batch.
    """
    if world_size > recipe.most_processes:
        servers = recipe.strategy.server_processes
        shared = f"workers={recipe.fewest_workers}" + (
            f" and strategy.servers={servers}" * (servers > 0)
        )
        most = recipe.most_processes
        raise UsageError(
            f"{world_size} processes cannot share {shared}; start {most}" + " or fewer" * (most > 1)
        )
    if recipe.noise_scale and all(
        recipe.makes_one_micro_batch(stage, world_size) for stage in recipe.stages
    ):
        most_workers = max(stage.workers for stage in recipe.stages)
        how = "leave it out" if most_workers == 1 else f"write workers_per_pass={most_workers // 2}"
        raise UsageError(
            f"noise_scale=true compares the gradients of a step's micro-batches, and workers="
            f"{most_workers} with workers_per_pass={recipe.workers_per_pass} on {world_size} "
            f"process{'es' * (world_size > 1)} make one micro-batch per step; {how}"
        )
    if recipe.strategy.name == "hogwild" and world_size < recipe.workers:
        raise UsageError(
            f"workers={recipe.workers} on {world_size} processes cannot all compute at once, as "
            f"strategy=hogwild has it; start {recipe.workers} processes on one machine, or write "
            f"workers={world_size}"
        )
    if recipe.strategy.has_live_order and world_size < recipe.most_processes:
        raise UsageError(
            f"workers={recipe.workers} on {world_size} processes have no order of their own, as "
            f"strategy.order=live needs; start {recipe.most_processes} processes, or write "
            "strategy.order=virtual"
        )


def check_supported(
    recipe: Recipe,
    command: str,
    remedy: str,
    *,
    workloads: Sequence[str] | None = None,
    strategies: Sequence[str] | None = None,
) -> None:
    """Raise UsageError if a command does not support the recipe's workload or strategy.

    None for `workloads` or `strategies` allows any. `remedy` ends the error message: it has what to
    do instead.
    """
    for key, value, known in (
        ("data.workload", recipe.data.workload, workloads),
        ("strategy.name", recipe.strategy.name, strategies),
    ):
        if known is not None and value not in known:
            raise UsageError(
                f"{command} supports only {key}={' or '.join(known)}, and {recipe.name} has "
                f"{key}={value}; {remedy}"
            )


def check_constant_batch(recipe: Recipe, command: str) -> None:
    """Raise UsageError if a recipe's batch size changes, for commands that allow one size only."""
    if recipe.batch_schedule:
        raise UsageError(
            f"{command} supports steps of one size, and batch_schedule="
            f"{as_override(recipe.batch_schedule)} makes others; write batch_schedule=[] and the "
            "workers= and worker_batch= of a phase"
        )
    if recipe.batch_growth.milestones:
        raise UsageError(
            f"{command} supports steps of one size, and batch_growth.milestones="
            f"{as_override(recipe.batch_growth.milestones)} makes others; write "
            f"batch_growth.milestones=[] workers={recipe.workers}, and for what follows "
            f"workers={recipe.stages[-1].workers}"
        )
