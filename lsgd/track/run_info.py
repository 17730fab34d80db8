"""The data that a tracker receives of a run beside its metrics: id, configuration and outcome."""

import json
import re
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lsgd.errors import UsageError
from lsgd.files import atomic_write
from lsgd.paths import CHECKPOINT
from lsgd.recipe import Recipe
from lsgd.recipe.fields import all_fields, applies_to, flatten
from lsgd.run.read import Run
from lsgd.run.rows import start_time
from lsgd.untrusted_files import parse_json, read_bounded


@dataclass(frozen=True)
class TrackedRunInfo:
    """The identity and configuration of a training run, as sent to an experiment tracker."""

    id: str
    """The unique id of the run at this tracker, saved in the run folder."""
    name: str
    """The display name: that of the run folder."""
    folder: Path
    began: float
    """The time of the first start, in seconds since 1970."""
    config: dict[str, Any]
    """The recipe's fields by their dotted keys, without those of other workloads."""
    tags: dict[str, str]
    """The searchable tags: recipe, fingerprint, seed, versions, host, and paths."""


@dataclass(frozen=True)
class RunOutcome:
    """The outcome of a training run so far, as sent to an experiment tracker."""

    finished: bool
    diverged: bool
    written: float
    """The time at which the last row was written, in seconds since 1970."""
    text: str
    """The outcome as a sentence."""


def tracked_run_info(run: Run, tracker: str) -> TrackedRunInfo:
    """Return a training run's id, configuration and tags for a tracker; create the id if needed.

    Raises OSError if the run folder cannot be written.
    """
    folder, recipe = run.path.resolve(), run.recipe
    started = {
        key: str(value)
        for key, value in run.start.items()
        if key not in ("kind", "step") and value is not None
    }
    tags = {
        "recipe": recipe.name,
        "fingerprint": recipe.fingerprint,
        "seed": str(recipe.seed),
        "run_folder": str(folder),
        "checkpoint": str(folder / CHECKPOINT),
    }
    return TrackedRunInfo(
        _tracker_id(folder / f"tracker-{tracker}.json"),
        folder.name,
        folder,
        min(map(start_time, run.of_kind("start")), default=0.0),
        _config(recipe),
        tags | started,
    )


def run_outcome(run: Run) -> RunOutcome:
    """Return whether a training run has finished or diverged so far, with its outcome as text."""
    text = run.diverged or run.state
    if run.finished:
        text = run.recipe.format_result(run.metric, run.epochs)
    written = (run.path / "metrics.jsonl").stat().st_mtime
    return RunOutcome(run.finished, run.diverged is not None, written, text)


def _config(recipe: Recipe) -> dict[str, Any]:
    workload = recipe.data.workload
    others = {key for key, entry in all_fields(Recipe) if not applies_to(entry, workload)}
    return {key: value for key, value in flatten(asdict(recipe)) if key not in others}


def _tracker_id(path: Path) -> str:
    """Return a run's id at a tracker from this file; create file and id if there are none.

    The id is saved before the tracker receives it, so a kill at any time does not lose it.
    """
    if not path.exists():
        with atomic_write(path) as file:
            file.write(json.dumps({"id": uuid.uuid4().hex}).encode())
    try:
        found = str(parse_json(read_bounded(path))["id"])
    except (ValueError, KeyError, TypeError):
        found = ""
    # The id becomes part of queries in the tracker's search language, and of addresses.
    if not re.fullmatch(r"[\w-]{1,64}", found, re.ASCII):
        raise UsageError(f"{path} contains no id; remove it to send the run as a new one")
    return found
