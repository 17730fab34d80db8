"""What the figures of a benchmark depend on, and how its report says so."""

from datetime import date
from typing import Any

import torch

from lsgd.bench.machine import machine, versions
from lsgd.recipe import Recipe

Found = dict[str, Any]
"""What a benchmark has found, as JSON can hold it."""


def setting(device: torch.device) -> Found:
    """Of any measurement on this machine."""
    return {
        "date": date.today().isoformat(),
        "device": device.type,
        "machine": machine(device),
        "versions": versions(),
    }


def setting_of(recipe: Recipe, device: torch.device) -> Found:
    """Of a measurement of training steps."""
    return setting(device) | {
        "recipe": recipe.name,
        "model": recipe.model.name,
        "image_size": recipe.data.image_size,
        "workers": recipe.workers,
        "worker_batch": recipe.worker_batch,
        "workers_per_pass": recipe.pass_workers,
        "precision": recipe.precision,
        "channels_last": recipe.channels_last,
        "compile": recipe.compile,
    }


def said(found: Found) -> list[str]:
    """The machine and the versions, a line each."""
    here = found["machine"]
    return [
        f"{here['gpu'] or 'no GPU'}; {here['cpu']}, {here['cores']} cores, threads: "
        f"{here['threads_of_torch']}, load average {here['load_average']:.1f} before",
        ", ".join(f"{name} {version}" for name, version in found["versions"].items())
        + f"; {found['date']}",
    ]


def said_of(found: Found) -> list[str]:
    """The recipe too."""
    batch = found["workers"] * found["worker_batch"]
    layout = "channels_last" if found["channels_last"] else "channels first"
    return [
        f"{found['recipe']}: {found['model']} on images of {found['image_size']}, batch {batch} = "
        f"{found['workers']} workers x {found['worker_batch']}, workers_per_pass "
        f"{found['workers_per_pass']}, {found['precision']}, {layout}"
        f"{', compiled' if found['compile'] else ''}, device {found['device']}",
        *said(found),
    ]
