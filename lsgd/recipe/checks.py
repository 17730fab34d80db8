"""Checks of a recipe, which refuse a value beyond its limits and what contradicts the rest."""

import math
import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from lsgd.errors import Refused
from lsgd.recipe import MODELS, Averaging, BatchGrowth, Model, Optim, Recipe, Schedule
from lsgd.recipe.fields import AUTO, concerns, default, limits, one_of
from lsgd.recipe.strategies import StrategySettings
from lsgd.rules import schedule
from lsgd.rules.metric import METRICS

ONLY_FOR = {
    "backup": ("backup",),
    "slack": ("bounded",),
    "staleness_aware": ("bounded", "async"),
    "servers": ("sync", "backup", "bounded", "async"),
    "topology": ("sync", "backup", "bounded", "async"),
    "placement": ("sync", "backup", "bounded", "async"),
    "sparse_rows": ("sync",),
    "order": ("backup", "bounded", "async"),
    "local_steps": ("local", "bounded", "async"),
    "outer": ("local", "bounded", "async"),
    "outer_lr": ("local", "bounded", "async"),
    "outer_momentum": ("local", "bounded", "async"),
    "moving_rate": ("local",),
}
"""The strategies for which each of their settings says something."""
OF_OUTER = {
    "outer_lr": ("sgd", "nesterov"),
    "outer_momentum": ("sgd", "nesterov"),
    "moving_rate": ("elastic",),
}
"""The outer rules for which a setting of local steps says something."""
OF_OPTIMIZER: dict[str, tuple[tuple[str, ...], Any]] = {
    "nesterov": (("sgd", "lars"), False),
    "equation": (("sgd", "lars"), 9),
    "momentum_correction": (("sgd", "lars"), False),
    "momentum": (("sgd", "lars", "adam"), 0.0),
    "beta2": (("adam",), Optim.beta2),
    "eps": (("lars", "adam", "adagrad"), Optim.eps),
    "trust": (("lars",), Optim.trust),
    "adapts": (("lars",), Optim.adapts),
}
"""The optimizers for which a setting says something, and what it has to be with the others."""
OF_DECAY = {
    "power": ("polynomial",),
    "end_lr": schedule.DECAYS[1:],
    "decay_steps": schedule.DECAYS[1:],
}
"""The decays for which a setting of the schedule says something."""
MOST_WORKERS = 2**14
"""The number of workers whose pushes, ends and returns lsgd.strategy.order can tell apart."""


def check(recipe: Recipe) -> None:
    """Raise Refused for a recipe that makes no sense; the message says what to write instead."""
    _check_model(recipe)
    _check_limits(recipe, recipe.data.workload)
    _check_target(recipe)
    _check_goal(recipe)
    _check_bn_statistics(recipe)
    _check_optim(recipe.optim)
    _check_fused(recipe)
    _check_workload(recipe)
    _check_schedule(recipe)
    _check_strategy(recipe)
    _check_tail(recipe)
    _check_growth(recipe)
    if recipe.workers_per_pass == AUTO and recipe.compile:
        raise Refused(
            "workers_per_pass=auto times a model that is not compiled, and compile=true is faster "
            "with another number; write one, such as workers_per_pass=8"
        )
    if recipe.cuda_graphs and not recipe.compile:
        raise Refused(
            "cuda_graphs=true replays what compile=true has compiled; write compile=true too, or "
            "leave it out"
        )
    if not re.fullmatch(r"\w[\w.+-]*", recipe.name):
        raise Refused(
            f"name={recipe.name} does not make a folder's name; write letters, digits, -, _ and ."
        )
    if recipe.run_dir == "":
        raise Refused("run_dir= is empty; write run_dir=PATH, or leave it out for a new folder")


def _check_limits(group: Any, workload: str, above: str = "") -> None:
    for entry in fields(group):
        key, value = above + entry.name, getattr(group, entry.name)
        if not concerns(entry, workload):
            if value != default(entry):
                raise Refused(
                    f"{key}={value} says nothing with data.workload={workload}; leave it out"
                )
            continue
        for limit in limits(entry):
            limit.refuse(key, value)
        if is_dataclass(value):
            _check_limits(value, workload, f"{key}.")


def _check_model(recipe: Recipe) -> None:
    """First of all, since every other message would be of a workload that was not meant."""
    workload, model = recipe.data.workload, recipe.model.name
    one_of(*MODELS)["one_of"].refuse("data.workload", workload)
    for other, models in MODELS.items():
        if model in models and other != workload:
            raise Refused(
                f"model={model} does not learn data.workload={workload}; write "
                f"model={' or '.join(MODELS[workload])}"
            )
    if recipe.model.of_library and workload != "images":
        raise Refused(
            f"model={model} learns images, and data.workload={workload}; write "
            f"model={' or '.join(MODELS[workload])}"
        )
    if workload == "images" and recipe.model.options and not recipe.model.of_library:
        raise Refused(
            f"model.options={dict(recipe.model.options)} is for the maker of a library's network, "
            f"and this is model={model}; leave it out, or write model=torchvision/NAME"
        )
    for key, option in recipe.model.options.items():
        if not isinstance(option, bool | int | float | str):
            raise Refused(
                f"model.options.{key}={option} is neither a number nor a text, which is all that "
                "a configuration keeps; write one, or leave it out"
            )
    if workload == "images" and model != "lenet5" and recipe.model.hidden != Model.hidden:
        raise Refused(
            f"model.hidden={recipe.model.hidden} is of model=lenet5, and this is model={model}; "
            "leave it out"
        )


def _check_optim(optim: Optim) -> None:
    name = optim.name
    by_momentum = name in ("sgd", "lars")
    if by_momentum and optim.nesterov and not optim.momentum:
        raise Refused(
            "optim.nesterov=true looks ahead along the momentum, and optim.momentum=0 leaves none; "
            "write optim.nesterov=false"
        )
    if by_momentum and optim.momentum_correction and optim.equation == 9:
        raise Refused(
            "optim.momentum_correction=true has no meaning for optim.equation=9, which keeps the "
            "lr out of the momentum; leave it false or write optim.equation=10"
        )
    if name == "adam" and not optim.momentum:
        raise Refused(
            "optim.momentum=0 leaves Adam, whose beta1 it is, without a mean of gradients; write "
            "optim.momentum=0.9"
        )
    if name in ("adam", "adagrad") and not optim.eps:
        raise Refused(
            f"optim.eps=0 may divide by 0 with optim.name={name}; write a number above 0, such as "
            "optim.eps=1e-8"
        )
    for key, (optimizers, none) in OF_OPTIMIZER.items():
        value = getattr(optim, key)
        if name not in optimizers and value != none:
            shown = str(value).lower() if isinstance(value, bool) else value
            raise Refused(
                f"optim.{key}={shown} says nothing with optim.name={name}; write optim.{key}="
                f"{str(none).lower()}, as optim={name} does, or leave it out"
            )
    if optim.clip_norm is not None and optim.equation == 10:
        raise Refused(
            f"optim.clip_norm={optim.clip_norm:g} is not for optim.equation=10, which is compared "
            "with the paper's updates; write optim.equation=9, or leave optim.clip_norm out"
        )


def _check_fused(recipe: Recipe) -> None:
    """Refuse what apex's FusedSGD does not compute, or where it would do nothing."""
    optim = recipe.optim
    if optim.fused == "torch":
        return
    for key, value, possible in (
        ("optim.name", optim.name, ("sgd", "lars")),
        ("optim.equation", optim.equation, (9,)),
        ("precision", recipe.precision, ("float32", "tf32", "bfloat16")),
        ("device", recipe.device, ("auto", "cuda")),
        ("strategy.name", recipe.strategy.name, ("allreduce", "local")),
    ):
        if value not in possible:
            raise Refused(
                "optim.fused=apex updates whole models in float32 on a GPU, by equation 9, and is "
                f"not for {key}={value}; write {key}={' or '.join(map(str, possible))}, or "
                "optim.fused=torch"
            )
    if not optim.momentum:
        raise Refused(
            "optim.fused=apex keeps a momentum though optim.momentum=0 leaves none, and a "
            "checkpoint would have it; write optim.fused=torch"
        )


RATES = {
    "images": ("loss", "top1_error", "top5_error"),
    "language": ("loss", "perplexity"),
    "tagging": ("loss", "f1_error", "token_error"),
    "trees": ("loss", "fine_error", "binary_error", "node_error"),
}
"""The rates of lsgd.rules.metric that an evaluation of each workload gives."""


def _check_goal(recipe: Recipe) -> None:
    rule, goal, rates = recipe.evaluation, recipe.metric, RATES[recipe.data.workload]
    if rule.offset >= rule.every and rule.offset:
        raise Refused(
            f"evaluation.offset={rule.offset} is the first of every {rule.every} epochs that is "
            f"followed by an evaluation; write less than evaluation.every={rule.every}"
        )
    given = {"epochs_to": goal.epochs_to, "steps_to": goal.steps_to}
    targets = {f"metric.{key}.{name}": x for key, each in given.items() for name, x in each.items()}
    if len(targets) > 1:
        raise Refused(f"{' and '.join(targets)} are {len(targets)} numbers of a run; write one")
    for key, target in targets.items():
        if (name := key.rpartition(".")[2]) not in rates:
            raise Refused(f"{key} is no rate of these runs; write one of {', '.join(rates)}")
        highest = METRICS[name].highest
        if not 0 <= target <= (math.inf if highest is None else highest):
            raise Refused(
                f"{key}={target:g} can never be reached, or always is; write a number of 0 or more"
                + ("" if highest is None else f", and at most {highest:g}")
            )
    if goal.stop and not targets:
        raise Refused(
            "metric.stop=true has no target to stop at; write one, such as "
            f"metric.epochs_to={{{rates[1]}: 24.1}}"
        )


def _check_averaging(recipe: Recipe) -> None:
    averaging, strategy = recipe.averaging, recipe.strategy.name
    for key, name in {"half_life": "ema", "epochs": "last"}.items():
        if (value := getattr(averaging, key)) != getattr(Averaging, key) and averaging.name != name:
            raise Refused(
                f"averaging.{key}={value:g} says nothing with averaging={averaging.name}; leave it "
                f"out, or write averaging={name}"
            )
    if averaging.name == "none":
        return
    if strategy != "allreduce":
        raise Refused(
            f"averaging={averaging.name} is of a model that each process has after each update, "
            f"and not of strategy={strategy}; write averaging=none, or strategy=allreduce"
        )
    if recipe.bn_statistics.name == "last":
        raise Refused(
            f"bn_statistics=last is of the weights, and averaging={averaging.name} evaluates "
            "others, by statistics of their own; leave it out"
        )


def _check_bn_statistics(recipe: Recipe) -> None:
    _check_averaging(recipe)
    name = recipe.bn_statistics.name
    if name == "moving":
        return
    if recipe.model.name == "lenet5":
        raise Refused(
            f"bn_statistics={name} says nothing of model=lenet5, which has no BN; leave it out"
        )
    if not recipe.strategy.synchronous:
        raise Refused(
            f"bn_statistics={name} is of whole steps, which strategy={recipe.strategy.name} does "
            "not make; write bn_statistics=moving, or strategy=allreduce"
        )


def _check_target(recipe: Recipe) -> None:
    rates = {"images": "top1_error", "language": "perplexity"}
    if recipe.target:
        given = [name for name in rates.values() if getattr(recipe.target, name) is not None]
        rate = rates.get(recipe.data.workload)
        if given != [rate]:
            raise Refused(
                f"target has {' and '.join(given) or 'no number'}, and the number of this run is "
                + (f"a {rate}; write target.{rate}" if rate else "none of these; leave it out")
            )


def _check_workload(recipe: Recipe) -> None:
    workload = recipe.data.workload
    match workload:
        case "images":
            _check_images(recipe)
        case "language":
            _check_language(recipe)
        case "trees" if recipe.compile:
            raise Refused(
                "compile=true is for one forward pass, and a tree is made of calls of another "
                "number for each pass; leave it out"
            )
    if workload != "images" and recipe.inputs.loader not in (AUTO, "memory", "synthetic"):
        raise Refused(
            f"inputs={recipe.inputs.loader} is for images; write inputs=memory, or "
            "inputs=synthetic for made-up examples"
        )


def _check_language(recipe: Recipe) -> None:
    data, streams = recipe.data, recipe.batch_size
    if recipe.strategy.asynchronous:
        raise Refused(
            f"strategy={recipe.strategy.name} gives a worker any next batch, and in a text each "
            "window goes on with the state of the one before; write strategy=allreduce, sync or "
            "local"
        )
    for name in ("val_examples", "test_examples"):
        if getattr(data, name) == 1:
            raise Refused(
                f"data.{name}=1 is a text of one token, which has none to guess; write 2 or more"
                + ", or 0 without a test text" * (name == "test_examples")
            )
    if recipe.keeps_tail:
        raise Refused(
            "tail=keep says nothing with data.workload=language, whose streams are of equal "
            "length; leave it out"
        )
    if not recipe.train_examples:
        raise Refused(
            f"batch_size {streams} is more streams than {data.train_examples} tokens have windows "
            f"of data.window={data.window} for; write fewer workers or a shorter window"
        )


def _check_images(recipe: Recipe) -> None:
    data, model = recipe.data, recipe.model.name
    if recipe.worker_batch < 2:
        raise Refused(f"worker_batch={recipe.worker_batch} is not possible; write 2 or more")
    for image in data.skip:
        if not image.startswith(("train/", "val/")) or data.skip.count(image) > 1:
            raise Refused(
                f"data.skip has {image!r}; name each image once, by its path below the root, such "
                "as train/n01440764/n01440764_10026.JPEG"
            )
    if not len(data.mean) == len(data.std) == data.channels:
        raise Refused(
            f"data.mean and data.std need {data.channels} numbers each, one per channel, and have "
            f"{len(data.mean)} and {len(data.std)}"
        )
    if not all(std > 0 for std in data.std):
        raise Refused(f"data.std={_numbers(data.std)} divides the pixels; write numbers above 0")
    if model in ("resnet50", "resnet101") and data.channels != 3:
        raise Refused(
            f"model={model} takes images of 3 channels and {data.name} has {data.channels}; write "
            "model=small_resnet or model=resnet20"
        )
    if model == "lenet5" and data.image_size != 28:
        raise Refused(
            f"model=lenet5 takes images of 28 x 28 and data.image_size={data.image_size}; write "
            "data=fashion_mnist or another model, such as model=small_resnet"
        )


def _check_schedule(recipe: Recipe) -> None:
    rule, epochs = recipe.schedule, recipe.epochs
    milestones = rule.milestones
    for milestone in milestones:
        if not 0 < milestone < epochs:
            raise Refused(
                f"schedule.milestones={_numbers(milestones)} has {milestone:g}, which is outside a "
                f"run of {epochs} epochs; write schedule.milestones=[…] between 0 and {epochs}, or "
                "write more epochs"
            )
    if sorted(set(milestones)) != list(milestones):
        raise Refused(
            f"schedule.milestones={_numbers(milestones)} does not rise; write each once, in order"
        )
    _check_decay(rule)
    first, why = min([*milestones, epochs]), "the lr drops or the run ends"
    if rule.decay_steps is not None and rule.decay_steps < first * recipe.steps_per_epoch:
        first, why = rule.decay_steps / recipe.steps_per_epoch, "schedule.decay_steps ends"
    if recipe.warms_up and not 0 < rule.warmup_epochs <= first:
        raise Refused(
            f"schedule.warmup_epochs={rule.warmup_epochs:g} does not end by epoch "
            f"{first:g}, where {why}; write a number above 0 and up to "
            f"{first:g}, or schedule.warmup=none"
        )


def _check_decay(rule: Schedule) -> None:
    """Refuse what says nothing about how this lr falls."""
    if rule.warmup_start is not None and rule.warmup == "none":
        raise Refused(
            f"schedule.warmup_start={rule.warmup_start:g} says nothing with schedule.warmup=none; "
            "leave it out, or write schedule.warmup=gradual"
        )
    if rule.warmup_start == 0 and rule.warmup == "constant":
        raise Refused(
            "schedule.warmup=constant with schedule.warmup_start=0 learns nothing until the warmup "
            "ends; write schedule.warmup=gradual"
        )
    if rule.factors and len(rule.factors) != len(rule.milestones):
        raise Refused(
            f"schedule.factors={_numbers(rule.factors)} has to have a number for each of "
            f"schedule.milestones={_numbers(rule.milestones)}; write as many, or [] for powers of "
            "schedule.gamma"
        )
    if not all(factor > 0 for factor in rule.factors):
        raise Refused(
            f"schedule.factors={_numbers(rule.factors)} are shares of the full lr; write numbers "
            "above 0"
        )
    smooth = rule.decay != "steps"
    if smooth and rule.milestones:
        raise Refused(
            f"schedule.milestones={_numbers(rule.milestones)} are for drops of the lr, and "
            f"schedule.decay={rule.decay} has none; write schedule.milestones=[], or schedule="
            f"{rule.decay} for all of it"
        )
    for key, decays in OF_DECAY.items():
        value = getattr(rule, key)
        if value != getattr(Schedule, key) and rule.decay not in decays:
            raise Refused(
                f"schedule.{key}={value:g} says nothing with schedule.decay={rule.decay}; leave it "
                f"out, or write schedule={' or '.join(decays)}"
            )


def _check_growth(recipe: Recipe) -> None:
    growth, epochs, strategy = recipe.batch_growth, recipe.epochs, recipe.strategy.name
    milestones = growth.milestones
    if not milestones:
        if growth.factor != BatchGrowth.factor:
            raise Refused(
                f"batch_growth.factor={growth.factor} says nothing without batch_growth.milestones;"
                " write the epochs at which the batch grows, such as batch_growth.milestones=[30]"
            )
        return
    for milestone in milestones:
        if not 0 < milestone < epochs:
            raise Refused(
                f"batch_growth.milestones={_numbers(milestones)} has {milestone}, which is outside "
                f"a run of {epochs} epochs; write whole numbers between 0 and {epochs}"
            )
    if sorted(set(milestones)) != milestones:
        raise Refused(
            f"batch_growth.milestones={_numbers(milestones)} does not rise; write each once, in "
            "order"
        )
    if strategy != "allreduce":
        raise Refused(
            f"batch_growth.milestones={_numbers(milestones)} gives a run more workers, and those "
            f"of strategy={strategy} stay the same; write strategy=allreduce, or leave it out"
        )
    largest = recipe.workers * growth.factor_in(epochs) * recipe.worker_batch
    if largest > recipe.train_examples:
        raise Refused(
            f"batch_growth grows to a batch_size of {largest} ({recipe.workers} workers x "
            f"worker_batch={recipe.worker_batch} x {growth.factor}^{len(milestones)}), which is "
            f"more than the {recipe.train_examples} training examples; write fewer milestones or a "
            "smaller factor"
        )


def _check_tail(recipe: Recipe) -> None:
    examples, batch_size = recipe.train_examples, recipe.batch_size
    if examples < batch_size:
        fewer, local_steps = examples // recipe.worker_batch, recipe.strategy.push_steps
        key = "strategy.local_steps" if local_steps > 1 else "workers"
        if fewer:
            words = f"{key}={fewer + recipe.strategy.backup} or fewer"
        else:  # not one worker has so many: all that multiplies a worker's examples has to go
            words = f"workers={1 + recipe.strategy.backup} " * (recipe.update_workers > 1)
            words += "strategy.local_steps=1 " * (local_steps > 1) + f"worker_batch={examples}"
        raise Refused(
            f"batch_size {batch_size} ({recipe.update_workers} workers x worker_batch="
            f"{recipe.worker_batch}"
            + f" x strategy.local_steps={local_steps}" * (local_steps > 1)
            + f") is more than the {examples} training examples; write {words}"
        )
    left = examples % batch_size % recipe.worker_batch
    if recipe.keeps_tail and left == 1 and recipe.data.workload == "images":
        raise Refused(
            f"tail=keep leaves one worker of the last step with a single image ({examples} = "
            f"{examples // batch_size} x {batch_size} + {examples % batch_size}), and BN needs "
            "two; write tail=drop or another worker_batch"
        )


def _check_strategy(recipe: Recipe) -> None:
    strategy, name = recipe.strategy, recipe.strategy.name
    for key, strategies in ONLY_FOR.items():
        if getattr(strategy, key) != getattr(StrategySettings(), key) and name not in strategies:
            raise Refused(
                f"strategy.{key}={getattr(strategy, key)} says nothing with strategy={name}; leave "
                f"it out, or write strategy={' or '.join(strategies)}"
            )
    if strategy.backup >= recipe.workers:
        raise Refused(
            f"strategy.backup={strategy.backup} of workers={recipe.workers} leaves an update none "
            f"to wait for; write at most {recipe.workers - 1}"
        )
    if strategy.topology == "colocated" and strategy.servers > recipe.workers:
        raise Refused(
            f"strategy.servers={strategy.servers} cannot be on the machines of workers="
            f"{recipe.workers}; write strategy.servers={recipe.workers} or fewer, or "
            "strategy.topology=central"
        )
    if strategy.sparse_rows:
        _check_sparse_rows(recipe.optim)
    if recipe.optim.name == "lars" and name not in ("allreduce", "local"):
        raise Refused(
            f"optim.name=lars needs the norm of each whole tensor, of which with strategy={name} "
            "nobody has more than a part; write strategy=allreduce or local"
        )
    if recipe.noise_scale and name != "allreduce":
        raise Refused(
            f"noise_scale=true is measured in steps whose passes are at one model, and not with "
            f"strategy={name}; write strategy=allreduce, or leave it out"
        )
    speeds = recipe.cluster.speeds
    if speeds and (len(speeds) != recipe.workers or not all(speed > 0 for speed in speeds)):
        raise Refused(
            f"cluster.speeds={_numbers(speeds)} has to be {recipe.workers} numbers above 0, one "
            "for each worker, or [] for 1 each"
        )
    _check_order(recipe)
    if name == "local" or strategy.pushes:
        _check_outer(strategy, recipe.workers)
    if name == "hogwild":
        _check_hogwild(recipe)
    if not strategy.synchronous:
        _check_own_updates(recipe)


def _check_sparse_rows(optim: Optim) -> None:
    """Refuse an optimizer that changes a row whose gradient is 0, or has more to keep of it."""
    for key, plain in {"name": "sgd", "momentum": 0, "weight_decay": 0, "equation": 9}.items():
        if (value := getattr(optim, key)) != plain:
            raise Refused(
                "strategy.sparse_rows=true is for plain SGD, by which a row without gradient "
                f"stands still, and not for optim.{key}={value}; write optim.{key}={plain}, or "
                "strategy.sparse_rows=false"
            )


def _check_order(recipe: Recipe) -> None:
    strategy = recipe.strategy
    if strategy.order not in ("virtual", "live") and not Path(strategy.order).is_file():
        raise Refused(
            f"strategy.order={strategy.order} is neither virtual nor live, and no file; give the "
            "orders.npz of a run that was made with strategy.order=live"
        )
    if not strategy.live:
        return
    if recipe.checkpoint_steps:
        raise Refused(
            f"checkpoint_steps={recipe.checkpoint_steps} would halt all workers of strategy.order="
            "live, which saves at each epoch's end; leave it out"
        )
    if strategy.name == "backup" and recipe.optim.clip_norm is not None and strategy.servers > 1:
        raise Refused(
            f"optim.clip_norm={recipe.optim.clip_norm:g} is for the norm of a whole update, and of "
            f"strategy.order=live with strategy.servers={strategy.servers} no server knows that; "
            "write strategy.servers=1"
        )


def _check_hogwild(recipe: Recipe) -> None:
    """Refuse an optimizer that keeps more than the parameters, and what would halt all workers."""
    optim = recipe.optim
    if optim.name != "sgd" or optim.momentum:
        raise Refused(
            "strategy=hogwild is plain SGD, of which nothing but the model is shared, and not for "
            f"optim.name={optim.name} with optim.momentum={optim.momentum:g}; write optim=sgd "
            "optim.momentum=0 optim.nesterov=false, or strategy=async"
        )
    if recipe.checkpoint_steps:
        raise Refused(
            f"checkpoint_steps={recipe.checkpoint_steps} would halt all workers of strategy="
            "hogwild, which saves at each epoch's end; leave it out"
        )


def _check_outer(strategy: StrategySettings, workers: int) -> None:
    outer, rate = strategy.outer, strategy.moving_rate
    for key, rules in OF_OUTER.items():
        if getattr(strategy, key) != getattr(StrategySettings(), key) and outer not in rules:
            raise Refused(
                f"strategy.{key}={getattr(strategy, key):g} says nothing with strategy.outer="
                f"{outer}; leave it out, or write strategy.outer={' or '.join(rules)}"
            )
    if outer == "elastic" and strategy.pushes:
        raise Refused(
            "strategy.outer=elastic draws the copies of all workers to the model at one time, and "
            f"with strategy={strategy.name} each pushes for itself; write strategy=local, or "
            "strategy.outer=mean, sgd or nesterov"
        )
    if outer == "nesterov" and not strategy.outer_momentum:
        raise Refused(
            "strategy.outer=nesterov looks ahead along the outer momentum, and "
            "strategy.outer_momentum=0 leaves none; write strategy.outer=sgd"
        )
    if outer == "elastic" and not rate:
        raise Refused(
            f"strategy.moving_rate=0 draws no worker to the model; write at most 1 / {workers}, "
            f"such as strategy.moving_rate={0.9 / workers:.2g}"
        )
    if rate * workers > 1:
        raise Refused(
            f"strategy.moving_rate={rate:g} of workers={workers} moves the model past the mean of "
            f"their copies; write at most 1 / {workers}, such as strategy.moving_rate="
            f"{0.9 / workers:.2g}"
        )


def _check_own_updates(recipe: Recipe) -> None:
    """Refuse what is not for updates by the gradients of single workers."""
    name = recipe.strategy.name
    if recipe.strategy.pushes and recipe.workers > MOST_WORKERS:
        raise Refused(
            f"workers={recipe.workers} are too many for strategy={name}, whose order has numbers "
            f"of 16 bits; write at most {MOST_WORKERS}"
        )
    if recipe.optim.equation != 9:
        raise Refused(
            f"optim.equation={recipe.optim.equation} is compared with synchronous updates, and "
            f"strategy={name} makes others; write optim.equation=9"
        )
    if recipe.gradient_compression != "none":
        raise Refused(
            f"gradient_compression={recipe.gradient_compression} is for sums over processes of the "
            f"gradients of an update, and with strategy={name} there are none; write "
            "gradient_compression=none"
        )


def check_world_size(recipe: Recipe, world_size: int) -> None:
    """Raise Refused for more processes than workers, and servers where these are on their own.

    A process without either would have nothing to do. Where the order of pushes is that in which
    they come, each worker and each server is a process.
    """
    if world_size > recipe.most_processes:
        servers = recipe.strategy.server_processes
        shared = f"workers={recipe.workers}" + (f" and strategy.servers={servers}" * (servers > 0))
        most = recipe.most_processes
        raise Refused(
            f"{world_size} processes cannot share {shared}; start {most}" + " or fewer" * (most > 1)
        )
    if recipe.strategy.name == "hogwild" and world_size < recipe.workers:
        raise Refused(
            f"workers={recipe.workers} on {world_size} processes cannot all compute at once, as "
            f"strategy=hogwild has it; start {recipe.workers} processes on one machine, or write "
            f"workers={world_size}"
        )
    if recipe.strategy.live and world_size < recipe.most_processes:
        raise Refused(
            f"workers={recipe.workers} on {world_size} processes have no order of their own, as "
            f"strategy.order=live needs; start {recipe.most_processes} processes, or write "
            "strategy.order=virtual"
        )


def check_known(
    recipe: Recipe,
    command: str,
    remedy: str,
    *,
    workloads: Sequence[str] | None = None,
    strategies: Sequence[str] | None = None,
) -> None:
    """Raise Refused for a workload or strategy that a command does not know; None means any.

    The remedy says what to do instead, as the end of the sentence.
    """
    for key, value, known in (
        ("data.workload", recipe.data.workload, workloads),
        ("strategy.name", recipe.strategy.name, strategies),
    ):
        if known is not None and value not in known:
            raise Refused(
                f"{command} knows only {key}={' or '.join(known)}, and {recipe.name} has "
                f"{key}={value}; {remedy}"
            )


def check_one_batch(recipe: Recipe, command: str) -> None:
    """Raise Refused for a batch that grows, for a command that plans steps of one size."""
    if recipe.batch_growth.milestones:
        raise Refused(
            f"{command} knows steps of one size, and batch_growth.milestones="
            f"{_numbers(recipe.batch_growth.milestones)} makes others; write "
            f"batch_growth.milestones=[] workers={recipe.workers}, and for what follows "
            f"workers={recipe.stages[-1].workers}"
        )


def _numbers(values: Sequence[float]) -> str:
    return "[" + ",".join(f"{v:g}" for v in values) + "]"
