"""The setting that the figures of a benchmark depend on, and its lines in a report."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from typing import Any

import torch

from lsgd.bench.machine import machine, versions
from lsgd.errors import Refused
from lsgd.job.launcher import detect
from lsgd.recipe import Recipe
from lsgd.recipe.checks import check_known

Result = dict[str, Any]
"""The measurements of a benchmark and the setting they depend on, as JSON can hold them."""


def check_measurable(recipe: Recipe) -> None:
    """Raise Refused for a recipe that no benchmark measures: images are made up or read, and each
    of several processes makes whole updates."""
    remedy = "a short run of it with profile=true shows where its time goes"
    check_known(recipe, "this benchmark", remedy, workloads=("images",), strategies=("allreduce",))


def setting(device: torch.device, *peers: str) -> Result:
    """The date, the machine and the versions, those of the packages `peers` among them."""
    return {
        "date": date.today().isoformat(),
        "device": device.type,
        "machine": machine(device),
        "versions": versions(*peers),
    }


def setting_of(recipe: Recipe, device: torch.device, *peers: str) -> Result:
    """The entries of setting(), and the fields of the recipe that decide how long a step takes.

    Raises Refused as check_measurable does.
    """
    check_measurable(recipe)
    return setting(device, *peers) | {
        "recipe": recipe.name,
        "model": recipe.model.name,
        "image_size": recipe.data.image_size,
        "workers": recipe.workers,
        "worker_batch": recipe.worker_batch,
        "workers_per_pass": recipe.pass_workers,
        "precision": recipe.precision,
        "channels_last": recipe.channels_last,
        "compile": recipe.compile,
        "cuda_graphs": recipe.cuda_graphs,
    }


def machine_lines(result: Result) -> list[str]:
    """The lines of a report on what setting() has noted: the machine, and the versions."""
    hardware = result["machine"]
    return [
        f"{hardware['gpu'] or 'no GPU'}; {hardware['cpu']}, {hardware['cores']} cores, threads: "
        f"{hardware['threads_of_torch']}, load average {hardware['load_average']:.1f} before",
        ", ".join(f"{name} {version}" for name, version in result["versions"].items())
        + f"; {result['date']}",
    ]


def recipe_lines(result: Result) -> list[str]:
    """The lines of a report on what setting_of() has noted: the recipe, and machine_lines."""
    batch = result["workers"] * result["worker_batch"]
    layout = "channels_last" if result["channels_last"] else "channels first"
    return [
        f"{result['recipe']}: {result['model']} on images of {result['image_size']}, batch {batch} "
        f"= {result['workers']} workers x {result['worker_batch']}, workers_per_pass "
        f"{result['workers_per_pass']}, {result['precision']}, {layout}"
        f"{', compiled' if result['compile'] else ''}, device {result['device']}",
        *machine_lines(result),
    ]


def check_not_launched(what: str) -> None:
    """Raise Refused if a launcher has started several processes; `what` says what is measured."""
    if (launch := detect()).world_size > 1:
        raise Refused(
            f"{launch.launcher} started {launch.world_size} processes, and {what}; start it without"
        )


@contextmanager
def noted(result: Result, what: str) -> Iterator[None]:
    """Note a refusal inside as missing from the result, so that the rest is still measured."""
    try:
        yield
    except Refused as refusal:
        result["missing"][what] = str(refusal)
