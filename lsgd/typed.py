"""Plain values, of JSON, YAML or overrides, by the types of dataclasses and annotations."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

T = TypeVar("T")
NO_VALUE = "???"
"""The text in place of a value that leaves it to the default or the command line, as in Hydra."""
BOOLEANS = {
    **dict.fromkeys(("1", "yes", "y", "on", "true"), True),
    **dict.fromkeys(("0", "no", "n", "off", "false"), False),
}
"""The boolean that each text stands for, in lower case."""


class FieldError(ValueError):
    """The error for a value that does not fit its field, by its dotted key."""

    def __init__(self, key: str, value: Any, why: str) -> None:
        super().__init__(why)
        self.key, self.value = key, value


class UnknownKeyError(FieldError):
    """The error for a key that is no field."""


class WrongTypeError(FieldError):
    """The error for a value of another type than its field's."""


class MissingValueError(FieldError):
    """The error for fields without a value; its value is the list of their keys."""


def make_typed(kind: type[T], values: Any) -> T:
    """Make a dataclass, with those inside it, of values converted to the types of its fields.

    A text is converted to the number or boolean that it is, and a number or boolean to a text,
    unless the field may have other types as well. Raises FieldError.
    """
    made: T = _Reader(is_strict=False).read(kind, values, "")
    return made


def convert_json(kind: Any, value: Any, *, at: str = "it") -> Any:
    """Convert a value parsed from JSON to a type, such as a dataclass; raises FieldError.

    The keys in errors begin with `at`.

    Only an integer is converted, to a float, and a text to a datetime. An instance of a requested
    dataclass is returned unchanged.
    """
    return _Reader(is_strict=True).read(kind, value, at)


def fits(value: Any, kind: Any) -> bool:
    """Return whether a value parsed from JSON is of an annotated type."""
    with suppress(FieldError):
        _Reader(is_strict=True).convert(kind, value, "")
        return True
    return False


class _Reader:
    """The conversion of values to types, which keeps the keys of fields without a value."""

    def __init__(self, *, is_strict: bool) -> None:
        """Create a reader; a strict one converts no text to a number, or the reverse."""
        self.is_strict = is_strict
        self.missing: list[str] = []

    def read(self, kind: Any, value: Any, at: str) -> Any:
        """Convert a whole value; raises FieldError."""
        made = self.convert(kind, value, at)
        if self.missing:
            keys = ", ".join(self.missing)
            raise MissingValueError(self.missing[0], self.missing, f"missing values: {keys}")
        return made

    def convert(self, kind: Any, value: Any, key: str) -> Any:
        """Convert a value to the type of a field, an element or an argument; raises FieldError."""
        origin = get_origin(kind) or kind
        if kind is Any or (
            isinstance(kind, type) and is_dataclass(kind) and isinstance(value, kind)
        ):
            return value
        if origin in (Union, UnionType):
            return self._one_of(kind, value, key)
        if is_dataclass(kind) and isinstance(value, Mapping):
            return self._fields(kind, value, f"{key}." if key else "")
        if origin in (list, tuple, Sequence) and isinstance(value, list | tuple):
            return self._elements(kind, value, key)
        if origin in (dict, Mapping) and isinstance(value, dict):
            return self._items(kind, value, key)
        if origin is Literal and value in get_args(kind):
            return value
        with suppress(ValueError, KeyError, OverflowError):
            return _as_it_is(kind, value) if self.is_strict else _scalar(kind, value)
        raise _wrong(kind, value, key)

    def _one_of(self, kind: Any, value: Any, key: str) -> Any:
        """Return a value of one of several types: of its own, or of another that is possible."""
        if type(value) in get_args(kind) and (self.is_strict or not isinstance(value, str)):
            return value
        kinds = [each for each in get_args(kind) if each is not NoneType]
        if len(kinds) == 1:
            return self.convert(kinds[0], value, key)
        for each in kinds:
            with suppress(WrongTypeError):
                if each is not str:
                    return self.convert(each, value, key)
        if str in kinds and isinstance(value, str):
            return value
        raise _wrong(kind, value, key)

    def _fields(self, kind: Any, values: Mapping[str, Any], above: str) -> Any:
        """Make a dataclass, or None if fields are missing, whose keys are kept."""
        entries = {entry.name: entry for entry in fields(kind)}
        for name, value in values.items():
            if name not in entries:
                raise UnknownKeyError(f"{above}{name}", value, f"there is no key '{above}{name}'")
        made = {}
        for name, entry in entries.items():
            if name in values and (self.is_strict or values[name] != NO_VALUE):
                made[name] = self.convert(entry.type, values[name], f"{above}{name}")
            elif entry.default is entry.default_factory is MISSING:
                self.missing.append(f"{above}{name}")
        return None if self.missing else kind(**made)

    def _elements(self, kind: Any, values: Sequence[Any], key: str) -> Any:
        """Convert a list of elements of one type, or of one type each."""
        kinds = [each for each in get_args(kind) if each is not ...] or [Any]
        kinds = kinds if len(kinds) > 1 else kinds * len(values)
        if len(kinds) != len(values):
            raise _wrong(kind, values, key)
        try:
            made = [
                self.convert(of, each, f"{key}[{place}]")
                for place, (of, each) in enumerate(zip(kinds, values, strict=True))
            ]
        except WrongTypeError as error:
            if isinstance(error.value, list | dict):  # shown with all around it
                raise _wrong(kind, values, key) from None
            raise
        return tuple(made) if get_origin(kind) is tuple else made

    def _items(self, kind: Any, values: dict[Any, Any], key: str) -> dict[Any, Any]:
        """Convert the items of a dictionary, whose keys may be texts, as in JSON."""
        of_names, of = get_args(kind)
        made = {}
        for name, value in values.items():
            if of is str and not isinstance(value, str):  # such as a reason, which is no number
                raise _wrong(of, value, f"{key}.{name}")
            try:
                known = _scalar(of_names, name)
            except (ValueError, KeyError, OverflowError):
                raise _wrong(kind, values, key) from None
            made[known] = self.convert(of, value, f"{key}.{name}")
        return made


def _as_it_is(kind: Any, value: Any) -> Any:
    """Return a value of a plain type, or of one that JSON lacks; raises ValueError."""
    if kind is datetime and isinstance(value, str):
        return datetime.fromisoformat(value)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ValueError
    return value


def _scalar(kind: Any, value: Any) -> bool | int | float | str:
    """Convert a text, number or boolean; raises ValueError, KeyError and OverflowError."""
    given = type(value)
    if kind is bool and given in (bool, int, str):
        return BOOLEANS[str(value).lower()]
    if kind is int and given in (int, str):
        return int(value)
    if kind is float and given in (int, float, str):
        return float(value)
    if kind is str and given in (bool, int, float, str):
        return str(value)
    raise ValueError


def _wrong(kind: Any, value: Any, key: str) -> WrongTypeError:
    return WrongTypeError(key, value, f"{key}={value!s:.80} is not {describe(kind)}")


def describe(kind: Any) -> str:
    """Describe a type in a few words, such as `a number`."""
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        known = [describe(each) for each in get_args(kind) if each is not NoneType]
        return " or ".join(dict.fromkeys(known))
    if origin is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if (origin or kind) in (list, tuple, Sequence):
        inside = [each for each in get_args(kind) if each is not ...]
        many = {int: "whole numbers", float: "numbers", str: "texts"}.get(
            next(iter(inside), object), "values"
        )
        count = f"{len(inside)} " * (len(inside) > 1)
        return f"a list of {count}{many}"
    if (origin or kind) in (dict, Mapping):
        return "keys with values, such as {KEY: VALUE}"
    return words.get(kind, "any value" if kind is Any else f"a {getattr(kind, '__name__', kind)}")


def merge(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested dictionaries with changes, which replace all values but dictionaries.

    >>> merge({"seed": 0, "data": {"root": None, "skip": []}}, {"data": {"root": "a"}})
    {'seed': 0, 'data': {'root': 'a', 'skip': []}}
    """
    merged = dict(values)
    for key, value in changes.items():
        below = merged.get(key)
        both = isinstance(below, dict) and isinstance(value, dict)
        merged[key] = merge(below, value) if both else value  # type: ignore[arg-type]
    return merged


def nest(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a nested dictionary of values by dotted key.

    >>> nest({"seed": 0, "optim": {}, "optim.momentum": 0.9})
    {'seed': 0, 'optim': {'momentum': 0.9}}
    """
    nested: dict[str, Any] = {}
    for key, value in values.items():
        for name in reversed(key.split(".")):
            value = {name: value}
        nested = merge(nested, value)
    return nested


def select(values: Any, key: str) -> Any:
    """Return the value of a dotted key in nested dictionaries; None without it."""
    for name in key.split("."):
        values = values.get(name) if isinstance(values, dict) else None
    return values
