"""The metadata of a recipe's fields: trajectory or execution, since when, and within what limits.

    val_batch: int = field(default=250, metadata=EXECUTION | at_least(1))

A field without EXECUTION is a trajectory field: it is hashed into the fingerprint.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Any, get_args

from lsgd.errors import Refused

AUTO = "auto"
MOST = 10**9
"""The largest number of a recipe, unless its field says otherwise: no run comes near, and larger
ones overflow where they are used."""

Words = dict[str, Any]
"""Metadata of a field; `|` joins several of them."""


@dataclass(frozen=True)
class Limit:
    """What a field may be: in a few words, and as a function of its dotted key and value, which
    raises Refused if the value is outside."""

    words: str
    refuse: Callable[[str, Any], None]


EXECUTION: Words = {"execution": True}
"""Metadata of a field or group that changes speed, place or description, and no result."""


def later(as_before: Any) -> Words:
    """Metadata of a trajectory field that was added after runs had been published.

    `as_before` is the value that means "as before": a run with it keeps the fingerprint that it had
    without the field, and a file from before the field is read as if it had this value, whatever
    the default for new runs. A group may be added later too: then `as_before` has the trajectory
    fields that came with it, by name. Execution fields need no such metadata, since their default
    means "as before".
    """
    return {"as_before": as_before}


def of(*workloads: str) -> Words:
    """Metadata of a field that says something to these workloads only.

    With any other workload the field is neither hashed nor printed, and has to keep its default.
    """
    return {"workloads": workloads}


def one_of(*choices: Any, within: tuple[str, ...] = ()) -> Words:
    """Metadata of a field that names one of these choices, or something `within` one of others,
    such as timm/NAME."""
    known = [*map(str, choices), *(f"{library}/NAME" for library in within)]

    def limit(key: str, value: Any) -> None:
        if value not in choices and not is_within(value, within):
            raise Refused(f"{key}={value} is unknown; write one of {', '.join(known)}")

    return {"one_of": Limit(", ".join(known), limit)}


def is_within(value: str, libraries: tuple[str, ...]) -> bool:
    """Whether a value is the name of something in one of these, such as timm/resnet18."""
    library, _, name = str(value).partition("/")
    return library in libraries and bool(name)


def some_of(*choices: str) -> Words:
    """Metadata of a list that names some of these choices, each once."""

    def limit(key: str, value: Any) -> None:
        for name in value:
            if name not in choices:
                raise Refused(
                    f"{key} has {name}, which is unknown; write some of {', '.join(choices)}"
                )
            if value.count(name) > 1:
                raise Refused(f"{key} has {name} twice; write it once")

    return {"some_of": Limit(f"some of {', '.join(choices)}", limit)}


def at_least(least: int, most: float = MOST) -> Words:
    """Metadata of a number that is at least this and at most `most`, or None."""

    def limit(key: str, value: Any) -> None:
        if value is not None and not least <= value < math.inf:
            raise Refused(f"{key}={value} is not possible; write {least} or more")
        if value is not None and value > most:
            raise Refused(f"{key}={_short(value)} is not possible; write {most} or less")

    return {
        "at_least": Limit(f"{least} or more" if most >= MOST else f"{least} to {most:g}", limit)
    }


def at_least_or_auto(least: int) -> Words:
    """Metadata of a whole number that is at least this and at most MOST, or AUTO."""

    def limit(key: str, value: Any) -> None:
        if value != AUTO and (isinstance(value, str) or value < least):
            raise Refused(f"{key}={value} is not possible; write {least} or more, or {AUTO}")
        if value != AUTO and value > MOST:
            raise Refused(f"{key}={value} is not possible; write {MOST} or less, or {AUTO}")

    return {"at_least_or_auto": Limit(f"{least} or more, or {AUTO}", limit)}


def above_0() -> Words:
    """Metadata of a number that is above 0 and at most MOST, or None."""

    def limit(key: str, value: Any) -> None:
        if value is None:
            return
        if not 0 < value < math.inf:
            raise Refused(f"{key}={value:g} is not possible; write a number above 0")
        if value > MOST:
            raise Refused(f"{key}={value:g} is not possible; write {MOST} or less")

    return {"above_0": Limit("above 0", limit)}


def finite() -> Words:
    """Metadata of a number that is finite, or of a list of such numbers."""

    def limit(key: str, value: Any) -> None:
        for number in value if isinstance(value, list) else [value]:
            if not abs(number) <= MOST:
                raise Refused(
                    f"{key} has {number:g}, which is not possible; write a number from {-MOST} "
                    f"to {MOST}"
                )

    return {"finite": Limit("finite", limit)}


def below(bound: int, refusal: str) -> Words:
    """Metadata of a number that is less than this; the refusal says why, and what to write."""

    def limit(key: str, value: Any) -> None:
        if value >= bound:
            raise Refused(f"{key}={_short(value)} {refusal}")

    return {"below": Limit(f"below {bound}", limit)}


def at_most(most: int, refusal: str) -> Words:
    """Metadata of a number that is at most this, or None; the refusal says why, and what to do."""

    def limit(key: str, value: Any) -> None:
        if value is not None and value > most:
            raise Refused(f"{key}={_short(value)} {refusal}")

    return {"at_most": Limit(f"at most {most}", limit)}


def _short(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def group_of(kind: Any) -> Any:
    """The dataclass that a field's type is, or may be, or None."""
    return next((each for each in (kind, *get_args(kind)) if is_dataclass(each)), None)


def all_fields(kind: type, above: str = "") -> Iterator[tuple[str, Field[Any]]]:
    """Every field of a dataclass with its dotted key: a group first, then the fields in it."""
    for entry in fields(kind):
        key = above + entry.name
        yield key, entry
        if group := group_of(entry.type):
            yield from all_fields(group, f"{key}.")


def flat(values: dict[str, Any], group: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested ones with its dotted key.

    >>> dict(flat({"seed": 0, "optim": {"momentum": 0.9}, "deviations": {}}))
    {'seed': 0, 'optim.momentum': 0.9, 'deviations': {}}
    """
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{group}{key}.")
        else:
            yield group + key, value


def concerns(entry: Field[Any], workload: str) -> bool:
    """Whether a field says something to this workload."""
    return workload in entry.metadata.get("workloads", (workload,))


def default(entry: Field[Any]) -> Any:
    """The default of a field that has one, or MISSING."""
    return entry.default if entry.default_factory is MISSING else entry.default_factory()


def trajectory(group: Any, workload: str) -> dict[str, Any]:
    """The values that decide what is computed, by field, of a recipe or one of its groups.

    A field that was added later is left out where it means "as before", and so is a group whose
    remaining fields all mean that; what is of other workloads is left out.
    """
    values = {}
    for entry in fields(group):
        if not concerns(entry, workload):
            continue
        value = getattr(group, entry.name)
        if is_dataclass(value):
            value = trajectory(value, workload)
        came_later = "as_before" in entry.metadata
        if "execution" in entry.metadata or (came_later and value == entry.metadata["as_before"]):
            continue
        values[entry.name] = value
    return values


def values_before(kind: type) -> dict[str, Any]:
    """The value that means "as before" of each field that was added later, by its dotted key."""
    return {
        key: entry.metadata["as_before"]
        for key, entry in all_fields(kind)
        if "as_before" in entry.metadata
    }


def limits(entry: Field[Any]) -> list[Limit]:
    """The limits in the metadata of a field."""
    return [word for word in entry.metadata.values() if isinstance(word, Limit)]
