"""Metadata of recipe fields: kind (trajectory or execution), limits, relevance, value as before.

    val_batch: int = setting(250, EXECUTION, at_least(1))
    trust: float = setting(0.001, only_for("optim.name", "lars"), ADDED_LATER, above_0())

A field without EXECUTION is a trajectory field: it is hashed into the fingerprint.
lsgd.recipe.checks enforces limits and relevance; lsgd.recipe.reference describes them in help and
docs.
"""

import math
import re
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache, lru_cache
from typing import Any, get_args

from lsgd.errors import UsageError
from lsgd.own_parts import FORM, is_import_path
from lsgd.rules import augmentation, evaluation_interval

AUTO = "auto"
TIMED = ("channels_last", "workers_per_pass", "threads", "compile")
"""The execution fields whose `auto` lsgd.autotune replaces by the fastest value."""
MOST = 10**9
"""The default upper limit of a number in a recipe; larger ones overflow where they are used."""

FieldMetadata = dict[str, Any]
"""The type of a field's metadata; `|` joins several of them."""


@dataclass(frozen=True)
class FieldLimit:
    """A limit on a recipe field's value: its description and the function that enforces it.

    `enforce` takes the dotted key and the value, and raises UsageError for a value outside the
    limit.
    """

    description: str
    enforce: Callable[[str, Any], None]


EXECUTION: FieldMetadata = {"execution": True}
"""Metadata of a field or group that changes speed, place or description, but no result."""
SHARED: FieldMetadata = {"shared": True}
"""Metadata of a field or group that must be equal on all processes, as the trajectory must.

Their sums and messages depend on it. Any other execution field may differ between processes.
"""


def added_later(as_before: Any) -> FieldMetadata:
    """Return metadata of a trajectory field that was added after runs had been published.

    `as_before` is the value that means "as before": a run with it keeps the fingerprint that it had
    without the field, and a file from before the field is read as if it had this value, whatever
    the default for new runs. A group may be added later too: then `as_before` has the trajectory
    fields that came with it, by name. Execution fields need no such metadata, since their default
    means "as before".
    """
    return {"as_before": as_before}


ADDED_LATER = added_later(MISSING)
"""Metadata, for `setting`, of a field that was added later and whose default means "as before"."""


def setting(default: Any, *metadata: FieldMetadata) -> Any:
    """Declare a field of a recipe by its default, which may be a list or dict, and its metadata."""
    joined = {key: value for each in metadata for key, value in each.items()}
    if joined.get("as_before") is MISSING:
        joined["as_before"] = default
    if isinstance(default, list | dict):
        return field(default_factory=lambda: copy(default), metadata=joined)
    return field(default=default, metadata=joined)


WORKLOAD = "data.workload"
"""The field that decides which other fields a recipe has at all."""


@dataclass(frozen=True)
class Relevance:
    """The choices of another field with which a recipe field is used; see only_for."""

    key: str
    choices: tuple[Any, ...]
    required: Any
    override: str

    @property
    def description(self) -> str:
        """The choices in a few words, such as optim=sgd or lars; of workloads the names alone."""
        if self.key == WORKLOAD:
            return ", ".join(self.choices)
        return f"{_choice(self.key)}={_either(self.choices)}"

    def enforce(self, key: str, value: Any, default: Any, chosen: Any) -> None:
        """Raise UsageError if a field is set although it is not used with the `chosen` value."""
        required = default if self.required is MISSING else self.required
        # For a field of TIMED, auto asks for the fastest value; if unused it has only one.
        is_open = key in TIMED and value == AUTO
        if _is_among(chosen, self.choices) or value == required or is_open:
            return
        other = f"{_choice(self.key)}={as_override(chosen)}"
        if self.key == WORKLOAD:
            other, remedy = f"{WORKLOAD}={chosen}", "leave it out"
        elif self.required is MISSING:
            remedy = f"leave it out, or write {self.override}={_either(self.choices)}"
        else:
            remedy = f"write {key}={as_override(required)}, as {other} does, or leave it out"
        raise UsageError(f"{key}={as_override(value)} has no effect with {other}; {remedy}")


def only_for(
    key: str, *choices: Any, required: Any = MISSING, override: str | None = None
) -> FieldMetadata:
    """Return metadata of a recipe field that is used with these choices of another field only.

    `key` is the dotted key of the other field. With any other choice the field must have its
    default, or the value `required`. If the other field is data.workload, the field is then neither
    hashed nor printed. `override` is what the error message says to write instead of `key`. A field
    may depend on several other fields.
    """
    return {f"only_for {key}": Relevance(key, choices, required, override or _choice(key))}


@dataclass(frozen=True)
class PartRelevance(Relevance):
    """The augmentation parts with any of which a recipe field is used; see only_with_part."""

    @property
    def description(self) -> str:
        """The parts in a few words, such as augmentation with crop."""
        return f"augmentation with {self._parts}"

    @property
    def _parts(self) -> str:
        names = [part for choice in self.choices for part in augmentation.parts_of(choice)]
        return "any part" if len(names) == len(augmentation.PARTS) else " or ".join(names)

    def enforce(self, key: str, value: Any, default: Any, chosen: Any) -> None:
        """Raise UsageError if a field is set although the `chosen` augmentation lacks the parts."""
        used = {f"[{part}]" for part in augmentation.parts_of(chosen)}
        if value == default or used & {*self.choices}:
            return
        raise UsageError(
            f"{key}={as_override(value)} has no effect with {self.key}={chosen}; leave it out, or "
            f"write an augmentation with {self._parts}"
        )


def only_with_part(*parts: str) -> FieldMetadata:
    """Return metadata of a recipe field that is used with any of these parts of an augmentation."""
    key, choices = "data.augmentation", tuple(f"[{part}]" for part in parts)
    return {f"only_for {key}": PartRelevance(key, choices, MISSING, key)}


def _choice(key: str) -> str:
    return key.removesuffix(".name")


def _either(choices: tuple[Any, ...]) -> str:
    return " or ".join(map(as_override, choices))


def as_override(value: Any) -> str:
    """Format a field's value as the command line writes it.

    >>> list(map(as_override, [True, 0.5, 1e-8, [30.0, 60.0], None, "sgd"]))
    ['true', '0.5', '1e-08', '[30,60]', 'null', 'sgd']
    """
    match value:
        case None | True | False:
            return {None: "null", True: "true", False: "false"}[value]
        case float():
            return f"{value:g}"
        case list():
            return f"[{','.join(map(as_override, value))}]"
    return str(value)


def one_of(*choices: Any, within: tuple[str, ...] = (), own: bool = False) -> FieldMetadata:
    """Return metadata that limits a recipe field to these choices or to names within libraries.

    Such a name is timm/NAME with "timm" in `within`. With `own` it may also be the import path of a
    part of the user's own, package.module:Name.
    """
    known = [*map(as_override, choices), *(f"{library}/NAME" for library in within)]
    known += [FORM] * own

    def limit(key: str, value: Any) -> None:
        is_own = own and is_import_path(value)
        if value not in choices and not is_within(value, within) and not is_own:
            raise UsageError(f"{key}={value} is unknown; write one of {', '.join(known)}")

    return {"one_of": FieldLimit(", ".join(known), limit)}


def augmentation_parts() -> FieldMetadata:
    """Return metadata that limits a recipe field to an augmentation: a name, or a list of parts.

    It may also be the import path of one of the user's own.
    """
    names, parts = augmentation.NAMED, augmentation.PARTS
    known = f"{', '.join(names)}, {FORM}, or parts of [{','.join(parts)}]"

    def limit(key: str, value: Any) -> None:
        if value in names or is_import_path(value):
            return
        if not (value.startswith("[") and value.endswith("]")):
            raise UsageError(f"{key}={value} is unknown; write one of {known}")
        given = augmentation.parts_of(value)
        if [*given] != [part for part in parts if part in given] or not given:
            raise UsageError(
                f"{key}={value} is not possible; write some of [{','.join(parts)}] in this order, "
                "in which they are applied"
            )
        if len({*given} & {*augmentation.POLICIES}) > 1:
            raise UsageError(
                f"{key}={value} has two policies; write {' or '.join(augmentation.POLICIES)}"
            )

    return {"one_of": FieldLimit(f"{', '.join(names)}, {FORM}, list of parts", limit)}


def is_within(value: str, libraries: tuple[str, ...]) -> bool:
    """Return whether a value has the form LIBRARY/NAME for one of these libraries."""
    library, _, name = str(value).partition("/")
    return library in libraries and bool(name)


def some_of(*choices: str) -> FieldMetadata:
    """Return metadata that limits a recipe field to a list of distinct items of these choices."""

    def limit(key: str, value: Any) -> None:
        for name in value:
            if name not in choices:
                raise UsageError(
                    f"{key} has {name}, which is unknown; write some of {', '.join(choices)}"
                )
            if value.count(name) > 1:
                raise UsageError(f"{key} has {name} twice; write it once")

    return {"some_of": FieldLimit(f"some of {', '.join(choices)}", limit)}


def is_set_name(name: str) -> bool:
    """Return whether this is the name of an evaluation set: without an underscore, and not train.

    >>> [is_set_name(name) for name in ("v2", "train", "my_set", "../v2")]
    [True, False, False, False]
    """
    return name != "train" and bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*", name))


def set_names() -> FieldMetadata:
    """Return metadata that limits a recipe field to names of evaluation sets, val first.

    A name has no underscore, which separates it from a metric in the rows.
    """

    def limit(key: str, value: Any) -> None:
        for name in value:
            if not is_set_name(name):
                raise UsageError(
                    f"{key} has {name!r}, which is not a name of an evaluation set; write the name "
                    "of its folder, of letters, digits, - and ."
                )
            if value.count(name) > 1:
                raise UsageError(f"{key} has {name} twice; write it once")
        if value[:1] != ["val"]:
            others = ",".join(["val", *(name for name in value if name != "val")])
            raise UsageError(
                f"{key}={as_override(value)} does not begin with val, by which a run is judged; "
                f"write {key}=[{others}]"
            )

    return {"set_names": FieldLimit("val, then others", limit)}


def at_least(least: int, most: float = MOST) -> FieldMetadata:
    """Return metadata that limits a recipe field to None or a number from `least` to `most`."""

    def limit(key: str, value: Any) -> None:
        if value is not None and not least <= value < math.inf:
            raise UsageError(f"{key}={value} is not possible; write {least} or more")
        if value is not None and value > most:
            raise UsageError(f"{key}={_short(value)} is not possible; write {most} or less")

    return {
        "at_least": FieldLimit(
            f"{least} or more" if most >= MOST else f"{least} to {most:g}", limit
        )
    }


def at_least_or(least: int, word: str) -> FieldMetadata:
    """Return metadata that limits a recipe field to a word or a whole number from `least` on.

    The largest number is MOST. None is a value of its own.
    """

    def limit(key: str, value: Any) -> None:
        if value is None:
            return
        if value != word and (isinstance(value, str) or value < least):
            raise UsageError(f"{key}={value} is not possible; write {least} or more, or {word}")
        if value != word and value > MOST:
            raise UsageError(f"{key}={value} is not possible; write {MOST} or less, or {word}")

    return {"at_least_or": FieldLimit(f"{least} or more, or {word}", limit)}


def evaluation_places() -> FieldMetadata:
    """Return metadata that limits a recipe field to an interval between evaluations."""

    def limit(key: str, value: Any) -> None:
        if not evaluation_interval.is_interval(value) or (isinstance(value, int) and value > MOST):
            raise UsageError(
                f"{key}={value} is not possible; write a whole number of epochs, a fraction below "
                "1 such as 0.5, or a number of steps such as '500 steps'"
            )

    return {"evaluation_places": FieldLimit("whole epochs, a fraction of one, or 'N steps'", limit)}


def above_0() -> FieldMetadata:
    """Return metadata that limits a recipe field to None or a number above 0, or a list of these.

    The largest number is MOST.
    """

    def limit(key: str, value: Any) -> None:
        numbers, joint = (
            (value, " has {:g}, which") if isinstance(value, list) else ([value], "={:g}")
        )
        for number in numbers:
            if number is not None and not 0 < number <= MOST:
                remedy = f"{MOST} or less" if MOST < number < math.inf else "a number above 0"
                raise UsageError(f"{key}{joint.format(number)} is not possible; write {remedy}")

    return {"above_0": FieldLimit("above 0", limit)}


def finite() -> FieldMetadata:
    """Return metadata that limits a recipe field's number, or list of numbers, to ±10^9."""

    def limit(key: str, value: Any) -> None:
        for number in value if isinstance(value, list) else [value]:
            if not abs(number) <= MOST:
                raise UsageError(
                    f"{key} has {number:g}, which is not possible; write a number from {-MOST} "
                    f"to {MOST}"
                )

    return {"finite": FieldLimit("finite", limit)}


def points_by_epoch(least: float) -> FieldMetadata:
    """Return metadata that limits a recipe field to pairs of epoch and value in order of epochs.

    Epochs are 0 or more, values at least `least`, and at most two pairs have the same epoch. That
    the epochs are within the run is another check.
    """

    def limit(key: str, value: Any) -> None:
        shown = f"{key}={as_override(value)}"
        for pair in value:
            if len(pair) != 2 or not (0 <= pair[0] <= MOST and least <= pair[1] <= MOST):
                raise UsageError(
                    f"{shown} has {as_override(pair)}, which is not a pair of an epoch and a "
                    f"number from {least:g} on; write [[EPOCH,NUMBER],…]"
                )
        epochs = [pair[0] for pair in value]
        if sorted(epochs) != epochs:
            raise UsageError(f"{shown} is not in the order of its epochs; write it in order")
        for one, two, three in zip(value, value[1:], value[2:], strict=False):
            if one[0] == three[0]:
                raise UsageError(
                    f"{shown} has three pairs of epoch {one[0]:g}, of which {as_override(two)} "
                    "has no effect; write at most two, the numbers before and after the jump"
                )

    return {"points_by_epoch": FieldLimit(f"[epoch, {least:g} or more] in order", limit)}


def evaluated_sizes() -> FieldMetadata:
    """Return metadata that limits a recipe field to rows [epoch, pixels, crop_ratio].

    Their epochs ascend from 0 on; the crop_ratio may be left out. That the last one is within the
    run is another check.
    """

    def limit(key: str, value: Any) -> None:
        shown = f"{key}={as_override(value)}"
        for row in value:
            epoch, side, ratio = [*row, 1][:3] if len(row) in (2, 3) else (-1, 0, 0)
            are_whole = float(epoch).is_integer() and float(side).is_integer()
            if not (are_whole and 0 <= epoch <= MOST and 1 <= side <= MOST and 0 < ratio <= 1):
                raise UsageError(
                    f"{shown} has {as_override(row)}, which is not an epoch, a number of pixels "
                    "from 1 on and, if at all, a crop_ratio above 0 and up to 1; write "
                    "[[0,PIXELS,CROP_RATIO],[EPOCH,PIXELS,CROP_RATIO],…]"
                )
        epochs = [row[0] for row in value]
        if epochs and (epochs[0] != 0 or sorted(set(epochs)) != epochs):
            raise UsageError(
                f"{shown} does not begin at epoch 0 and ascend from there; write each epoch once, "
                "in order"
            )

    return {"evaluated_sizes": FieldLimit("[epoch, pixels, crop_ratio] in order", limit)}


def phases_by_epoch() -> FieldMetadata:
    """Return metadata that limits a recipe field to phases [epoch, workers, worker_batch].

    Their epochs ascend from 1 on. That the last one is within the run is another check.
    """

    def limit(key: str, value: Any) -> None:
        shown = f"{key}={as_override(value)}"
        for row in value:
            if len(row) != 3 or row[0] < 1 or row[1] < 1 or row[2] < 2 or max(row) > MOST:
                raise UsageError(
                    f"{shown} has {as_override(row)}, which is not an epoch from 1 on, workers "
                    "from 1 on and a worker_batch from 2 on; write [[EPOCH,WORKERS,WORKER_BATCH],…]"
                )
        epochs = [row[0] for row in value]
        if sorted(set(epochs)) != epochs:
            raise UsageError(
                f"{shown} is not in the order of its epochs; write each once, in order"
            )

    return {"phases_by_epoch": FieldLimit("[epoch, workers, worker_batch] in order", limit)}


def folder_name() -> FieldMetadata:
    """Return metadata that limits a recipe field to text that is a folder's name everywhere."""

    def limit(key: str, value: Any) -> None:
        if not re.fullmatch(r"\w[\w.+-]*", value):
            raise UsageError(
                f"{key}={value} does not make a folder's name; write letters, digits, -, _ and ."
            )

    return {"folder_name": FieldLimit("letters, digits, -, _ and .", limit)}


def not_empty(remedy: str) -> FieldMetadata:
    """Return metadata that limits a recipe field to None or a text that is not empty.

    `remedy` ends the error message: it has what to write instead.
    """

    def limit(key: str, value: Any) -> None:
        if value == "":
            raise UsageError(f"{key}= is empty; {remedy}")

    return {"not_empty": FieldLimit("", limit)}


def below(bound: int, refusal: str) -> FieldMetadata:
    """Return metadata that limits a recipe field to numbers less than `bound`.

    `refusal` ends the error message: it gives the reason and what to write instead.
    """

    def limit(key: str, value: Any) -> None:
        if value >= bound:
            raise UsageError(f"{key}={_short(value)} {refusal}")

    return {"below": FieldLimit(f"below {bound}", limit)}


def at_most(most: int, refusal: str) -> FieldMetadata:
    """Return metadata that limits a recipe field to None or a number up to `most`.

    `refusal` ends the error message: it gives the reason and what to write instead.
    """

    def limit(key: str, value: Any) -> None:
        if value is not None and value > most:
            raise UsageError(f"{key}={_short(value)} {refusal}")

    return {"at_most": FieldLimit(f"at most {most}", limit)}


def _short(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def group_of(kind: Any) -> Any:
    """Return the dataclass that a field's type is or may be, or None for a plain type."""
    return next((each for each in (kind, *get_args(kind)) if is_dataclass(each)), None)


@cache
def all_fields(kind: type, above: str = "") -> list[tuple[str, Field[Any]]]:
    """Return the dotted key and the field of all fields of a dataclass, nested ones included.

    A group of fields comes before its own fields.
    """
    found = []
    for entry in fields(kind):
        key = above + entry.name
        found.append((key, entry))
        if group := group_of(entry.type):
            found += all_fields(group, f"{key}.")
    return found


def flatten(values: dict[str, Any], group: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of every leaf of a nested dictionary.

    >>> dict(flatten({"seed": 0, "optim": {"momentum": 0.9}, "deviations": {}}))
    {'seed': 0, 'optim.momentum': 0.9, 'deviations': {}}
    """
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from flatten(value, f"{group}{key}.")
        else:
            yield group + key, value


def applies_to(entry: Field[Any], workload: str) -> bool:
    """Return whether a recipe field exists for this workload."""
    relevance = entry.metadata.get(f"only_for {WORKLOAD}")
    return relevance is None or _is_among(workload, relevance.choices)


def _is_among(chosen: Any, choices: tuple[Any, ...]) -> bool:
    """Return whether a choice is one of several, among which FORM means any of the user's own."""
    return chosen in choices or (FORM in choices and is_import_path(chosen))


def default(entry: Field[Any]) -> Any:
    """Return the default value of a dataclass field, or MISSING if it has none."""
    return entry.default if entry.default_factory is MISSING else entry.default_factory()


def trajectory(group: Any, workload: str) -> dict[str, Any]:
    """Return the trajectory fields of a recipe or one of its groups, as a nested dictionary.

    A field that was added later is left out where its value means "as before", and so is a group
    whose remaining fields all mean that. Fields of other workloads are left out.
    """
    values = {}
    kind: type = type(group)
    for name, as_before in _trajectory_fields(kind, workload):
        value = getattr(group, name)
        if is_dataclass(value):
            value = trajectory(value, workload)
        if as_before is MISSING or value != as_before:
            values[name] = value
    return values


@lru_cache(maxsize=256)
def _trajectory_fields(kind: type, workload: str) -> list[tuple[str, Any]]:
    """Return the names of a group's trajectory fields, with what means "as before", or MISSING."""
    return [
        (entry.name, entry.metadata.get("as_before", MISSING))
        for entry in fields(kind)
        if applies_to(entry, workload) and "execution" not in entry.metadata
    ]


def as_before_values(kind: type) -> dict[str, Any]:
    """Return the value that older recipes imply for each field added later, by dotted key."""
    return {
        key: entry.metadata["as_before"]
        for key, entry in all_fields(kind)
        if "as_before" in entry.metadata
    }


def limits(entry: Field[Any]) -> list[FieldLimit]:
    """Return the limits on a recipe field's value, which its metadata has."""
    return [word for word in entry.metadata.values() if isinstance(word, FieldLimit)]


def check_limits(settings: Any, above: str = "") -> None:
    """Raise UsageError for a field beyond its limits, in a dataclass or in those inside it."""
    for entry in fields(settings):
        key, value = f"{above}{entry.name}", getattr(settings, entry.name)
        for limit in limits(entry):
            limit.enforce(key, value)
        for each in value if isinstance(value, list) else [value]:
            if is_dataclass(each):
                check_limits(each, f"{key}.")


def relevances(entry: Field[Any]) -> list[Relevance]:
    """Return the conditions on other fields under which a recipe field is used."""
    return [rule for rule in entry.metadata.values() if isinstance(rule, Relevance)]
