"""Values by the types of fields: of settings, which convert texts, and of JSON, which does not."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

import pytest

from lsgd.typed import (
    FieldError,
    MissingValueError,
    UnknownKeyError,
    WrongTypeError,
    convert_json,
    fits,
    make_typed,
)


@dataclass(frozen=True)
class Group:
    """Settings inside of others."""

    size: int = 0
    pairs: list[list[float]] = field(default_factory=list)


@dataclass(frozen=True)
class Settings:
    """Settings with one field of each kind."""

    name: str
    rate: float = 0.5
    on: bool = False
    threads: int | str | None = None
    layout: bool | str = False
    reasons: dict[str, str] = field(default_factory=dict)
    curve: dict[int, float] = field(default_factory=dict)
    group: Group | None = None


@pytest.mark.parametrize(
    ("key", "given", "made"),
    [
        ("name", 1, "1"),
        ("rate", 1, 1.0),
        ("rate", "1e-3", 0.001),
        ("rate", "???", 0.5),
        ("on", "yes", True),
        ("on", 0, False),
        ("threads", "2", 2),
        ("threads", "auto", "auto"),
        ("threads", None, None),
        ("layout", "off", False),
        ("layout", 1, True),
        ("curve", {"1": 2}, {1: 2.0}),
        ("group", {"pairs": [[0, 1]]}, Group(pairs=[[0.0, 1.0]])),
        ("group", None, None),
    ],
)
def test_a_setting_is_converted_to_the_type_of_its_field(key: str, given: Any, made: Any) -> None:
    found = getattr(make_typed(Settings, {"name": "a", key: given}), key)
    assert (found, type(found)) == (made, type(made))


@pytest.mark.parametrize(
    ("values", "error", "key"),
    [
        ({"rate": 1}, MissingValueError, "name"),
        ({"name": "???"}, MissingValueError, "name"),
        ({"name": None}, WrongTypeError, "name"),
        ({"name": "a", "group": {"sise": 1}}, UnknownKeyError, "group.sise"),
        ({"name": "a", "group": 5}, WrongTypeError, "group"),
        ({"name": "a", "group": {"pairs": [[0, "x"]]}}, WrongTypeError, "group.pairs[0][1]"),
        ({"name": "a", "group": {"pairs": [[0, [1]]]}}, WrongTypeError, "group.pairs"),
        ({"name": "a", "on": 2}, WrongTypeError, "on"),
        ({"name": "a", "threads": 1.5}, WrongTypeError, "threads"),
        ({"name": "a", "reasons": {"b": 5}}, WrongTypeError, "reasons.b"),
        ({"name": "a", "rate": 10**400}, WrongTypeError, "rate"),
        ({"name": "a", "curve": {"b": 1}}, WrongTypeError, "curve"),
        ({"name": "a", "reasons": {None: "b"}}, WrongTypeError, "reasons"),
    ],
)
def test_a_wrong_setting_is_refused_by_its_key(
    values: dict[str, Any], error: type[FieldError], key: str
) -> None:
    with pytest.raises(error) as caught:
        make_typed(Settings, values)
    assert caught.value.key == key


def test_a_value_that_is_made_already_is_taken() -> None:
    """Also one of a subclass, as a record's own metric."""

    class Special(Group):
        pass

    assert convert_json(Group, Special(3)) == Special(3)


def test_json_is_taken_as_it_is() -> None:
    """But for integers of floats and the texts of dates, which it has no types for."""
    assert convert_json(Settings, {"name": "???", "rate": 2}) == Settings("???", 2.0)
    assert convert_json(list[tuple[int, str]], [[1, "a"]]) == [(1, "a")]
    assert convert_json(datetime | None, "2026-11-28") == datetime(2026, 11, 28)
    for values in ({"name": 1}, {"name": "a", "threads": 1.0}, {"name": "a", "on": 1}, []):
        with pytest.raises(ValueError, match="it"):
            convert_json(Settings, values)


@pytest.mark.parametrize(
    ("value", "kind", "does_fit"),
    [
        (1, float, True),
        (True, float, False),
        ([1, 2], tuple[int, ...], True),
        ([1, 2], tuple[int, int, int], False),
        ([0.5], Sequence[float], True),
        ("a", Literal["a", "b"], True),
        ("c", Literal["a", "b"], False),
        (None, int | None, True),
        ("1", int | None, False),
    ],
)
def test_a_value_fits_its_annotation(value: Any, kind: Any, does_fit: bool) -> None:
    assert fits(value, kind) is does_fit
