"""Checks that all processes of a run, and all its restarts, read the same examples.

Each process may read its own copy of the data, with equal counts and different files. The checks
compare names, labels and sizes, which a loader has already, so no image is opened.
"""

import hashlib
import platform
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsgd.comm import Comm, all_or_raise
from lsgd.errors import UsageError
from lsgd.inputs import ExampleColumns, Inputs
from lsgd.inputs.index import FURTHER_SET
from lsgd.recipe import Recipe
from lsgd.recipe.agreement import Fields, describe_difference, differing_keys, digest, shared_fields

Digests = dict[str, str]
"""SHA-256 digests of a dataset's columns by column name; empty if they are unknown."""

CHUNK = 1 << 16
"""The number of rows copied at once from a column that is not contiguous in its file."""
COUNTED = ("data.train_examples", "data.val_examples", "data.classes", "data.skip")
"""The fields of a recipe that may have been read from the files of its dataset."""
REMEDY = "use the same files in data.root"


def open_consistent_inputs(
    comm: Comm, open_: Callable[[], Inputs], recipe: Recipe | None = None
) -> tuple[Inputs, Digests]:
    """Open a data loader on all ranks; return it with digests of the data, which all ranks share.

    Raises UsageError on all processes if one does, or if two processes read different data. With a
    `recipe` to train it is also raised if two processes have different sources of a part of the
    user's own, or differ in a field that must be equal on all.
    """
    inputs = all_or_raise(comm, open_)
    columns = inputs.columns()
    own = {name: _digest(column) for name, column in columns.items()}
    sources, fields = (recipe.part_sources, shared_fields(recipe)) if recipe else ({}, {})
    # A recipe may have a long list of skipped images, so only its digest is sent.
    (first_sources, first_recipe, first), *others = comm.gather_objects(
        (sources, digest(fields), own)
    )
    for rank, (their_sources, their_recipe, digests) in enumerate(others, 1):
        if changed := _differing(first_sources, their_sources):
            raise UsageError(
                f"process {rank} has another source of {changed[0]} than process 0; install the "
                "same version of its package on all machines"
            )
        differing = _differing(first, digests)
        if their_recipe != first_recipe:
            # Where the files differ, so do the numbers of examples, and the row says more.
            _refuse_other_recipe(comm, rank, fields, but=COUNTED if differing else ())
        if differing:
            raise UsageError(_first_difference(comm, rank, differing[0], columns))
    return inputs, own


def _refuse_other_recipe(comm: Comm, rank: int, fields: Fields, but: Collection[str]) -> None:
    """Raise UsageError for the first field, `but` these, that a rank has otherwise than rank 0.

    All processes call it, each with its own fields.
    """
    told = comm.gather_objects((platform.node(), fields if comm.rank in (0, rank) else {}))
    (host, ours), (other_host, theirs) = told[0], told[rank]
    if keys := [key for key in differing_keys(ours, theirs) if key not in but]:
        who, reference = f"process {rank} on {other_host}", f"process 0 on {host}"
        raise UsageError(describe_difference(keys[0], theirs, ours, who, reference))


def check_same_data(saved: Digests, own: Digests) -> None:
    """Raise UsageError if the data digests saved by a run differ from those of the data read now.

    Empty digests mean unknown data, which matches any. Further evaluation sets that only one of
    them has are not compared, since a run may be evaluated on others.
    """
    if not (saved and own):
        return
    differing = [
        name
        for name in _differing(saved, own)
        if not name.startswith(FURTHER_SET) or (name in saved and name in own)
    ]
    if differing:
        raise UsageError(
            "the data in data.root are not those that the run was trained on: "
            f"{', '.join(differing)} differ; {REMEDY} as in the training, or start another run "
            "in another run_dir"
        )


def further_sets(digests: Digests) -> set[str]:
    """Return the names of the evaluation sets beside val of which there are digests.

    >>> further_sets({"val path": "5e88", "evaluation.v2 path": "89e1"})
    {'v2'}
    """
    columns = (name for name in digests if name.startswith(FURTHER_SET))
    return {name.removeprefix(FURTHER_SET).partition(" ")[0] for name in columns}


def _differing(one: Digests, other: Digests) -> list[str]:
    """Return the names of the columns whose digests differ or that one dataset copy lacks."""
    names = dict.fromkeys([*one, *other])
    return [name for name in names if one.get(name) != other.get(name)]


def _digest(column: NDArray[Any]) -> str:
    digest = hashlib.sha256()
    for begin in range(0, len(column), CHUNK):
        digest.update(column[begin : begin + CHUNK].tobytes())
    return digest.hexdigest()


def _first_difference(comm: Comm, rank: int, name: str, columns: ExampleColumns) -> str:
    """Return a message on the first row where a rank's data column differs from that of rank 0.

    All processes call it. They find the row by bisection, so that none sends its column to another.
    """
    column = columns.get(name, np.empty(0))
    lengths = comm.gather_objects(len(column))
    low, high = 0, min(lengths[0], lengths[rank])
    while low < high:
        middle = (low + high) // 2
        digests = comm.gather_objects(_digest(column[low : middle + 1]))
        low, high = (middle + 1, high) if digests[0] == digests[rank] else (low, middle)
    said = comm.gather_objects((platform.node(), _row(name, low, columns)))
    (host, ours), (other_host, theirs) = said[0], said[rank]
    return (
        f"process {rank} on {other_host} reads other data than process 0 on {host}, from row {low} "
        f"of {name} on ({theirs}; process 0: {ours}); {REMEDY} on all machines"
    )


def _row(name: str, row: int, columns: ExampleColumns) -> str:
    """Return the metadata of one example, such as path and label, as text, or `missing`."""
    column = columns.get(name, np.empty(0))
    if row >= len(column):
        return "missing"
    part = name.partition(" ")[0]
    beside = {
        key.partition(" ")[2]: values[row]
        for key, values in columns.items()
        if key.partition(" ")[0] == part and len(values) == len(column) and values.ndim == 1
    }
    return ", ".join(f"{key} {_shown(value)}" for key, value in beside.items())


def _shown(value: Any) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
