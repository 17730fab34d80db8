"""The setting on which a benchmark's measurements depend, and its lines in a report."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from typing import Any

import torch

from lsgd.errors import UsageError
from lsgd.job.device import cpu, device_name
from lsgd.job.launcher import cores, detect_launch
from lsgd.recipe import Recipe
from lsgd.recipe.checks import check_supported
from lsgd.recipe.fields import AUTO
from lsgd.run.versions import library_versions

Result = dict[str, Any]
"""The measurements of a benchmark and their setting, as JSON values."""


def check_measurable(recipe: Recipe) -> None:
    """Raise UsageError for a recipe that benchmarks do not support.

    They support image recipes whose processes make synchronous updates by all-reduce.
    """
    remedy = "a short run of it with profile=true shows where its time goes"
    check_supported(
        recipe, "this benchmark", remedy, workloads=("images",), strategies=("allreduce",)
    )
    if recipe.channels_last == AUTO:
        raise UsageError(
            "channels_last=auto is decided where training starts; here write channels_last=true or "
            "false"
        )


def machine(device: torch.device) -> dict[str, Any]:
    """Return facts about this machine by name: CPU, cores, GPU if used, load and system."""
    return {
        "cpu": cpu(),
        "cores": cores(detect_launch()),
        "gpu": None if device.type == "cpu" else device_name(device),
        "load_average": os.getloadavg()[0],
        "threads_of_torch": torch.get_num_threads(),
        "system": platform.platform(),
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(("MALLOC_", "OMP_", "MKL_"))
        },
    }


def environment_facts(device: torch.device, *peers: str) -> Result:
    """Return the date, device, machine and installed versions for a benchmark's result."""
    return {
        "date": date.today().isoformat(),
        "device": device.type,
        "machine": machine(device),
        "versions": library_versions(*peers),
    }


def recipe_facts(recipe: Recipe, device: torch.device, *peers: str) -> Result:
    """Return facts by name: the environment, and recipe fields that decide a step's duration.

    Raises UsageError as check_measurable does.
    """
    check_measurable(recipe)
    return environment_facts(device, *peers) | {
        "recipe": recipe.name,
        "model": recipe.model.name,
        "image_size": recipe.data.image_size,
        "workers": recipe.workers,
        "worker_batch": recipe.worker_batch,
        "workers_per_pass": recipe.micro_batch_workers,
        "precision": recipe.precision,
        "channels_last": recipe.channels_last,
        "compile": recipe.compile,
        "cuda_graphs": recipe.cuda_graphs,
    }


def machine_lines(result: Result) -> list[str]:
    """Format the machine and installed versions of a benchmark as lines of its report."""
    hardware = result["machine"]
    return [
        f"{hardware['gpu'] or 'no GPU'}; {hardware['cpu']}, {hardware['cores']} cores, threads: "
        f"{hardware['threads_of_torch']}, load average {hardware['load_average']:.1f} before",
        ", ".join(f"{name} {version}" for name, version in result["versions"].items())
        + f"; {result['date']}",
    ]


def recipe_lines(result: Result) -> list[str]:
    """Format the recipe, machine and versions of a benchmark as lines of its report."""
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
    """Raise UsageError if a launcher started several processes; `what` is what is measured."""
    if (launch := detect_launch()).world_size > 1:
        raise UsageError(
            f"{launch.launcher} started {launch.world_size} processes, and {what}; start it without"
        )


@contextmanager
def record_refusal(result: Result, what: str) -> Iterator[None]:
    """Catch a UsageError of a part of a benchmark and record it in the result's `missing`."""
    try:
        yield
    except UsageError as refusal:
        result["missing"][what] = str(refusal)
