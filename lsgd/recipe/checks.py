"""Checks that raise UsageError for recipe fields beyond their limits or in contradiction."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import Field, fields, is_dataclass
from functools import cache, lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any

from lsgd.errors import UsageError
from lsgd.own_parts import FORM, KINDS, is_import_path
from lsgd.recipe import BatchGrowth, Optim, Recipe, Schedule
from lsgd.recipe.fields import (
    AUTO,
    WORKLOAD,
    FieldLimit,
    all_fields,
    applies_to,
    as_override,
    default,
    limits,
    one_of,
    relevances,
)
from lsgd.recipe.settings import MEAN_SQUARE, MODELS, OWN_NETWORK
from lsgd.recipe.strategies import StrategySettings
from lsgd.rules import rectangles
from lsgd.rules.metric import OWN_NAME, named_metric

MOST_WORKERS = 2**14
"""The largest number of workers whose events fit into the 16-bit codes of lsgd.strategy.order."""
MOST_SKIPPED = 50_000
"""The most images that data.skip may list: with more, a recipe has too many values to be read."""


def check_recipe(recipe: Recipe) -> None:
    """Raise UsageError if a recipe's fields are invalid or contradictory, with the fix to make."""
    _check_model(recipe)
    _check_limits(recipe, recipe.data.workload)
    _check_relevance(recipe)
    _check_target(recipe)
    _check_goal(recipe)
    _check_bn_statistics(recipe)
    _check_start(recipe)
    _check_optim(recipe.optim)
    _check_decoupled(recipe)
    _check_own_network(recipe)
    _check_own_parts(recipe)
    _check_fused(recipe)
    _check_float16(recipe)
    _check_workload(recipe)
    _check_schedule(recipe)
    _check_strategy(recipe)
    _check_tail(recipe)
    _check_growth(recipe)
    _check_batch_schedule(recipe)
    _check_image_sizes(recipe)
    _check_evaluated_sizes(recipe)
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


def _check_model(recipe: Recipe) -> None:
    """Raise UsageError if the network or its options do not fit the workload.

    This check runs first, since the messages of all others would assume the wrong workload.
    """
    workload, model = recipe.data.workload, recipe.model.name
    one_of(*MODELS, own=True)["one_of"].enforce("data.workload", workload)
    if recipe.data.is_own_workload != (model == OWN_NETWORK):
        raise UsageError(
            f"data.workload={workload} makes its network itself, and this is model.name={model}; "
            f"write model: {{name: {OWN_NETWORK}}}, and `override /model: null` in `defaults`"
            if recipe.data.is_own_workload
            else f"model.name={OWN_NETWORK} is the network of a workload of your own, and this is "
            f"data.workload={workload}; write model={' or '.join(MODELS[workload])}"
        )
    for other, models in MODELS.items():
        if model in models and other != workload:
            raise UsageError(
                f"model={model} does not support data.workload={workload}; write "
                f"model={' or '.join(MODELS[workload])}"
            )
    if recipe.model.is_from_library and workload != "images":
        raise UsageError(
            f"model={model} is for images, and data.workload={workload}; write "
            f"model={' or '.join(MODELS[workload])}"
        )
    if workload == "images" and recipe.model.options and not recipe.model.is_from_library:
        raise UsageError(
            f"model.options={dict(recipe.model.options)} is for the maker of a library's network, "
            f"and this is model={model}; leave it out, or write model=torchvision/NAME"
        )
    for key, option in recipe.model.options.items():
        if not isinstance(option, bool | int | float | str) and not recipe.model.is_own:
            raise UsageError(
                f"model.options.{key}={option} is neither a number nor a text, which is all that "
                "a configuration keeps; write one, or leave it out"
            )


def _check_start(recipe: Recipe) -> None:
    model = recipe.model
    if model.start_sha256 and not re.fullmatch("[0-9a-f]{64}", model.start_sha256):
        raise UsageError(
            f"model.start_sha256={model.start_sha256} is not a SHA-256 of 64 hexadecimal digits; "
            "leave it out, and it is computed from model.start"
        )
    if model.starts_pretrained and model.start:
        raise UsageError(
            f"model.options.pretrained=true has no effect with model.start={model.start}, which "
            "gives the weights; leave one of them out"
        )
    if model.new_head and not model.start_sha256 and not model.starts_pretrained:
        raise UsageError(
            "model.new_head=true has no effect without model.start, as all layers start from the "
            "seed then; leave it out, or write model.start=PATH"
        )

    if model.start_optimizer and not model.start_sha256:
        raise UsageError(
            "model.start_optimizer=true has no effect without model.start; leave it out, or write "
            "model.start=RUN"
        )
    if model.start_optimizer and model.new_head:
        raise UsageError(
            "model.start_optimizer=true has no state for the new layer of model.new_head=true; "
            "leave one of them out"
        )
    if model.start_optimizer and not recipe.strategy.is_synchronous:
        raise UsageError(
            "model.start_optimizer=true needs one optimizer for all workers, which "
            f"strategy={recipe.strategy.name} does not have; leave it out, or write "
            "strategy=allreduce"
        )


def _check_optim(optim: Optim) -> None:
    name = optim.name
    if optim.nesterov and not optim.momentum:
        raise UsageError(
            "optim.nesterov=true looks ahead along the momentum, and optim.momentum=0 leaves none; "
            "write optim.nesterov=false"
        )
    if name == "rmsprop_warmup" and not optim.momentum:
        raise UsageError(
            "optim.momentum=0 leaves no momentum that has both parts of the update of "
            "optim.name=rmsprop_warmup; write optim.momentum=0.9"
        )
    if name in MEAN_SQUARE and not optim.momentum:
        raise UsageError(
            f"optim.momentum=0 is beta1 of optim.name={name}, and keeps no mean of gradients; "
            "write optim.momentum=0.9"
        )
    if name != "lars" and not optim.eps:
        raise UsageError(
            f"optim.eps=0 may divide by 0 with optim.name={name}; write a number above 0, such as "
            "optim.eps=1e-8"
        )
    if optim.clip_norm is not None and optim.equation == 10:
        raise UsageError(
            f"optim.clip_norm={optim.clip_norm:g} is not for optim.equation=10, which is compared "
            "with the paper's updates; write optim.equation=9, or leave optim.clip_norm out"
        )


def _check_decoupled(recipe: Recipe) -> None:
    """Raise UsageError for a decoupled decay of SGD where no process updates whole models."""
    if recipe.optim.decay == "decoupled" and recipe.strategy.name != "allreduce":
        raise UsageError(
            "optim.decay=decoupled shrinks the weights of one model before each update, and "
            f"strategy={recipe.strategy.name} has parts of it, or several; write "
            "strategy=allreduce, or optim.decay=gradient"
        )


def _check_own_network(recipe: Recipe) -> None:
    """Raise UsageError for changes of lsgd's networks with the network of a library."""
    model = recipe.model
    if not model.is_from_library:
        return
    for key, usual in (("gamma", "ones"), ("blurpool", "none"), ("last_bias", 0.0)):
        if (value := getattr(model, key)) != usual:
            raise UsageError(
                f"model.{key}={as_override(value)} is for the networks of lsgd, and this is "
                f"model={model.name}; leave it out, or write model=resnet50"
            )


def _check_own_parts(recipe: Recipe) -> None:
    """Raise UsageError for the options or the source of a part where lsgd's own is chosen."""
    for kind in KINDS:
        if is_import_path(name := kind.named(recipe)):
            continue
        # _check_model checks the options of a library's network.
        options = kind.options_of(recipe) if kind.key != "model.name" else {}
        for end, value in (("options", options), ("source", kind.source_of(recipe))):
            if value:
                raise UsageError(
                    f"{kind.group}.{kind.prefix}{end} is for a part of your own, and this is "
                    f"{kind.choice}={name}; leave it out, or write {kind.choice}={FORM}"
                )
    if recipe.optim.is_own and recipe.strategy.name != "allreduce":
        raise UsageError(
            f"optim={recipe.optim.name} updates whole tensors of one model, and with strategy="
            f"{recipe.strategy.name} there are parts of them, or several models; write "
            "strategy=allreduce"
        )


def _check_fused(recipe: Recipe) -> None:
    """Raise UsageError if a recipe selects apex's fused optimizer, which cannot train it."""
    optim = recipe.optim
    if optim.fused == "torch":
        return
    for key, value, possible in (
        ("optim.name", optim.name, ("sgd", "lars")),
        ("optim.equation", optim.equation, (9,)),
        ("optim.decay", optim.decay, ("gradient",)),
        ("precision", recipe.precision, ("float32", "tf32", "bfloat16", "float16")),
        ("device", recipe.device, ("auto", "cuda")),
        ("strategy.name", recipe.strategy.name, ("allreduce", "local")),
    ):
        if value not in possible:
            raise UsageError(
                "optim.fused=apex updates whole models in float32 on a GPU, by equation 9, and is "
                f"not for {key}={value}; write {key}={' or '.join(map(str, possible))}, or "
                "optim.fused=torch"
            )
    if not optim.momentum:
        raise UsageError(
            "optim.fused=apex keeps a momentum though optim.momentum=0 leaves none, and a "
            "checkpoint would have it; write optim.fused=torch"
        )


def _check_float16(recipe: Recipe) -> None:
    """Raise UsageError if a float16 recipe has no common updates, or measures scaled gradients."""
    if recipe.precision != "float16":
        return
    if recipe.strategy.name != "allreduce":
        raise UsageError(
            "precision=float16 skips a step on all processes where the sum of all gradients "
            f"overflows, and strategy={recipe.strategy.name} computes no such sum before it "
            "updates parameters; write precision=bfloat16, or strategy=allreduce"
        )
    if recipe.optim.is_own:
        raise UsageError(
            "precision=float16 skips the updates whose gradient overflows, which "
            f"optim={recipe.optim.name}, code outside of lsgd, does not do; write "
            "precision=bfloat16, or an optimizer of lsgd"
        )
    if recipe.noise_scale:
        raise UsageError(
            "noise_scale=true measures the gradients of micro-batches, in which precision=float16 "
            "still has its loss scale; write precision=bfloat16, or leave it out"
        )


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


def _check_averaging(recipe: Recipe) -> None:
    averaging, strategy = recipe.averaging, recipe.strategy.name
    if averaging.name == "none":
        return
    if strategy != "allreduce":
        raise UsageError(
            f"averaging={averaging.name} needs the model on each process after each update, "
            f"unlike strategy={strategy}; write averaging=none, or strategy=allreduce"
        )
    if recipe.bn_statistics.name == "last":
        raise UsageError(
            f"bn_statistics=last belongs to the last weights, and averaging={averaging.name} "
            "evaluates other weights with their own statistics; leave it out"
        )
    if averaging.every > recipe.total_steps:
        raise UsageError(
            f"averaging.every={averaging.every} is more than the {recipe.total_steps} steps of the "
            "run, whose evaluations would all be of the initial weights; write "
            f"averaging.every={recipe.total_steps} or less"
        )


def _check_bn_statistics(recipe: Recipe) -> None:
    _check_averaging(recipe)
    name = recipe.bn_statistics.name
    if name == "moving":
        return
    if recipe.model.name == "lenet5":
        raise UsageError(
            f"bn_statistics={name} has no effect with model=lenet5, which has no BN; leave it out"
        )
    if not recipe.strategy.is_synchronous:
        raise UsageError(
            f"bn_statistics={name} needs whole steps, which strategy={recipe.strategy.name} does "
            "not make; write bn_statistics=moving, or strategy=allreduce"
        )


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


def _check_schedule(recipe: Recipe) -> None:
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


def _check_strategy(recipe: Recipe) -> None:
    strategy, name = recipe.strategy, recipe.strategy.name
    if strategy.backup >= recipe.workers:
        raise UsageError(
            f"strategy.backup={strategy.backup} of workers={recipe.workers} leaves an update none "
            f"to wait for; write at most {recipe.workers - 1}"
        )
    if strategy.topology == "colocated" and strategy.servers > recipe.workers:
        raise UsageError(
            f"strategy.servers={strategy.servers} cannot be on the machines of workers="
            f"{recipe.workers}; write strategy.servers={recipe.workers} or fewer, or "
            "strategy.topology=central"
        )
    if strategy.sparse_rows:
        _check_sparse_rows(recipe.optim)
    if recipe.optim.name in ("lars", "lamb") and name not in ("allreduce", "local"):
        raise UsageError(
            f"optim.name={recipe.optim.name} needs the norm of each whole tensor, and with "
            f"strategy={name} no process has more than a part; write strategy=allreduce or local"
        )
    if recipe.optim.name == "rmsprop_warmup" and name not in ("allreduce", "local"):
        raise UsageError(
            "optim.name=rmsprop_warmup changes its rule with the epoch of an update, and with "
            f"strategy={name} a server updates by the lr alone; write strategy=allreduce or local"
        )
    if recipe.noise_scale and name != "allreduce":
        raise UsageError(
            "noise_scale=true needs steps whose micro-batches share one model, unlike "
            f"strategy={name}; write strategy=allreduce, or leave it out"
        )
    speeds = recipe.cluster.speeds
    if speeds and len(speeds) != recipe.workers:
        raise UsageError(
            f"cluster.speeds={as_override(speeds)} has to be {recipe.workers} numbers above 0, one "
            "for each worker, or [] for 1 each"
        )
    _check_order(recipe)
    if name == "local" or strategy.is_push_based:
        _check_outer(strategy, recipe.workers)
    if name == "hogwild":
        _check_hogwild(recipe)
    if not strategy.is_synchronous:
        _check_own_updates(recipe)


def _check_sparse_rows(optim: Optim) -> None:
    """Raise UsageError unless the optimizer leaves embedding rows without gradient unchanged."""
    for key, plain in {"name": "sgd", "momentum": 0, "weight_decay": 0, "equation": 9}.items():
        if (value := getattr(optim, key)) != plain:
            raise UsageError(
                "strategy.sparse_rows=true is for plain SGD, which leaves a row without "
                f"gradient unchanged, and does not support optim.{key}={value}; write "
                f"optim.{key}={plain}, or strategy.sparse_rows=false"
            )


def _check_order(recipe: Recipe) -> None:
    strategy = recipe.strategy
    if strategy.order not in ("virtual", "live") and not Path(strategy.order).is_file():
        raise UsageError(
            f"strategy.order={strategy.order} is neither virtual nor live, and no file; give the "
            "orders.npz of a run with strategy.order=live"
        )
    if not strategy.has_live_order:
        return
    _refuse_halts(recipe, "strategy.order=live")
    if strategy.name == "backup" and recipe.optim.clip_norm is not None and strategy.servers > 1:
        raise UsageError(
            f"optim.clip_norm={recipe.optim.clip_norm:g} is for the norm of a whole update, "
            "which no server has with strategy.order=live and "
            f"strategy.servers={strategy.servers}; write strategy.servers=1"
        )


def _refuse_halts(recipe: Recipe, strategy: str) -> None:
    """Raise UsageError for settings that need all processes after the same step of an epoch."""
    minutes = recipe.checkpoint_minutes
    for key, value, is_set in (
        ("checkpoint_steps", recipe.checkpoint_steps, recipe.checkpoint_steps > 0),
        # The default is no request: these strategies do without.
        ("checkpoint_minutes", minutes, minutes not in (0, Recipe.checkpoint_minutes)),
        ("evaluation.every", recipe.evaluation.every, recipe.evaluation.is_within_epochs),
    ):
        if is_set:
            raise UsageError(
                f"{key}={value} would halt all workers of {strategy}, which saves and evaluates "
                "at each epoch's end; leave it out"
            )
    if recipe.profile:
        raise UsageError(
            "profile=true compares the times of the same steps on all processes, and with "
            f"{strategy} each makes a number of steps of its own; leave it out"
        )


def _check_hogwild(recipe: Recipe) -> None:
    """Raise UsageError if a hogwild recipe's optimizer has state, or it saves within an epoch."""
    optim = recipe.optim
    if optim.name != "sgd" or optim.momentum:
        raise UsageError(
            "strategy=hogwild is plain SGD, which shares only the model, and does not support "
            f"optim.name={optim.name} with optim.momentum={optim.momentum:g}; write optim=sgd "
            "optim.momentum=0 optim.nesterov=false, or strategy=async"
        )
    _refuse_halts(recipe, "strategy=hogwild")


def _check_outer(strategy: StrategySettings, workers: int) -> None:
    outer, rate = strategy.outer, strategy.moving_rate
    if outer == "elastic" and strategy.is_push_based:
        raise UsageError(
            "strategy.outer=elastic moves the copies of all workers towards the model at one "
            f"time, but with strategy={strategy.name} each pushes for itself; write "
            "strategy=local, or strategy.outer=mean, sgd or nesterov"
        )
    if outer == "nesterov" and not strategy.outer_momentum:
        raise UsageError(
            "strategy.outer=nesterov looks ahead along the outer momentum, and "
            "strategy.outer_momentum=0 leaves none; write strategy.outer=sgd"
        )
    if outer == "elastic" and not rate:
        raise UsageError(
            "strategy.moving_rate=0 moves no worker towards the model; write at most 1 / "
            f"{workers}, such as strategy.moving_rate={0.9 / workers:.2g}"
        )
    if rate * workers > 1:
        raise UsageError(
            f"strategy.moving_rate={rate:g} of workers={workers} moves the model past the mean of "
            f"their copies; write at most 1 / {workers}, such as strategy.moving_rate="
            f"{0.9 / workers:.2g}"
        )


def _check_own_updates(recipe: Recipe) -> None:
    """Raise UsageError for settings that a strategy without synchronous updates cannot have."""
    name = recipe.strategy.name
    if recipe.strategy.is_push_based and recipe.workers > MOST_WORKERS:
        raise UsageError(
            f"workers={recipe.workers} are too many for strategy={name}, whose order has numbers "
            f"of 16 bits; write at most {MOST_WORKERS}"
        )
    if recipe.optim.equation != 9:
        raise UsageError(
            f"optim.equation={recipe.optim.equation} is compared with synchronous updates, and "
            f"strategy={name} makes others; write optim.equation=9"
        )
    if recipe.gradient_compression != "none":
        raise UsageError(
            f"gradient_compression={recipe.gradient_compression} is for the all-reduce of an "
            f"update's gradients, and strategy={name} has none; write gradient_compression=none"
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
    most_workers = max(stage.workers for stage in recipe.stages)
    per_pass = recipe.workers_per_pass
    one_pass = not isinstance(per_pass, str) and per_pass >= most_workers
    if recipe.noise_scale and (most_workers == 1 or (world_size == 1 and one_pass)):
        how = "leave it out" if most_workers == 1 else f"write workers_per_pass={most_workers // 2}"
        raise UsageError(
            f"noise_scale=true compares the gradients of a step's micro-batches, and workers="
            f"{most_workers} with workers_per_pass={per_pass} on {world_size} "
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
