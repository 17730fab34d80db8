"""The fields of a recipe that must be equal on all processes of a job, and their comparison."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from lsgd.recipe import Recipe
from lsgd.recipe.fields import AUTO, TIMED, all_fields, flatten

Fields = Mapping[str, Any]
"""Values of recipe fields by dotted key."""
LONGEST = 60
"""The most characters of a value in an error message."""
_METADATA = {key: entry.metadata for key, entry in all_fields(Recipe)}


def shared_fields(recipe: Recipe) -> dict[str, Any]:
    """Return the fields of a recipe that must be equal on all processes of a job.

    They are the trajectory, the fields and groups marked SHARED, and whether any field is auto, in
    which case the processes choose values together.
    """
    every = dict(flatten(asdict(recipe)))
    is_timed = any(every[key] == AUTO for key in TIMED)
    together = {"hardware": AUTO if is_timed else "none"}
    # The trajectory has the content of a file with an order of pushes, and not its path.
    trajectory = dict(flatten(recipe.trajectory()))
    return {key: each for key, each in every.items() if _is_shared(key)} | trajectory | together


def _is_shared(key: str) -> bool:
    """Return whether a field, or an entry of a dictionary in one, must be equal by its metadata."""
    while key:
        metadata: Mapping[str, Any] = _METADATA.get(key, {})
        if "shared" in metadata or "execution" in metadata:
            return "shared" in metadata
        key = key.rpartition(".")[0]
    return True


def digest(fields: Fields) -> str:
    """Return the SHA-256 of the fields of one process, for the comparison with those of others."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def differing_keys(one: Fields, other: Fields) -> list[str]:
    """Return the keys of the fields that differ between two processes, in the recipe's order."""
    return [key for key in {**one, **other} if one.get(key) != other.get(key)]


def describe_difference(key: str, theirs: Fields, ours: Fields, who: str, reference: str) -> str:
    """Return the error message for a field that differs between two processes, by their names."""
    their_value, our_value = (_shown(fields.get(key)) for fields in (theirs, ours))
    return (
        f"{who} has {key}={their_value} and {reference} has {key}={our_value}; start all processes "
        "of the job with the same command line and the same files"
    )


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
