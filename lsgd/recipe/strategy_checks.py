"""Checks of a recipe's strategy, and of what no strategy of its kind can do."""

from pathlib import Path

from lsgd.errors import UsageError
from lsgd.recipe import Optim, Recipe
from lsgd.recipe.fields import as_override
from lsgd.recipe.strategies import StrategySettings

MOST_WORKERS = 2**14
"""The largest number of workers whose events fit into the 16-bit codes of lsgd.strategy.order."""


def check_strategy(recipe: Recipe) -> None:
    """Raise UsageError for a strategy that does not fit its settings or the rest of the recipe."""
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
    """Raise UsageError for settings that need all processes to stop after the same step."""
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
