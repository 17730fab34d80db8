"""What a tracker is told of a run beside its numbers, and the id by which it finds the run."""

import json
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lsgd.files import whole
from lsgd.recipe import Recipe
from lsgd.recipe.fields import all_fields, concerns, flat
from lsgd.run.read import Run
from lsgd.run.rows import moment


@dataclass(frozen=True)
class About:
    """A run as it stands in a tracker's list."""

    id: str
    """Of this run folder and tracker alone; the folder keeps it."""
    name: str
    """That of its folder, by which people know it."""
    folder: Path
    began: float
    """When it was first started, in seconds since 1970."""
    config: dict[str, Any]
    """The recipe's fields by their dotted keys, without those of other workloads."""
    tags: dict[str, str]
    """What is searched for: recipe, fingerprint, seed, versions, host, and where its files are."""


@dataclass(frozen=True)
class Conclusion:
    """How far a run had come when the last of it was sent."""

    finished: bool
    diverged: bool
    written: float
    """When its last row was written, in seconds since 1970."""
    text: str
    """Its outcome in a sentence."""


def about(run: Run, tracker: str) -> About:
    """What this tracker is told of the run; OSError if its folder cannot be written."""
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
        "checkpoint": str(folder / "checkpoint.pt"),
    }
    return About(
        _kept_id(folder / f"tracker-{tracker}.json"),
        folder.name,
        folder,
        min(map(moment, run.of_kind("start")), default=0.0),
        _config(recipe),
        tags | started,
    )


def conclusion(run: Run) -> Conclusion:
    """What there is to say of the run as it is now."""
    text = run.diverged or run.state
    if run.finished:
        text = run.recipe.outcome(run.metric, run.number)
    written = (run.path / "metrics.jsonl").stat().st_mtime
    return Conclusion(run.finished, run.diverged is not None, written, text)


def _config(recipe: Recipe) -> dict[str, Any]:
    workload = recipe.data.workload
    others = {key for key, entry in all_fields(Recipe) if not concerns(entry, workload)}
    return {key: value for key, value in flat(asdict(recipe)) if key not in others}


def _kept_id(path: Path) -> str:
    """The id in this file, which is made before the tracker has heard of it: no kill loses it."""
    if not path.exists():
        with whole(path) as file:
            file.write(json.dumps({"id": uuid.uuid4().hex}).encode())
    return str(json.loads(path.read_bytes())["id"])
