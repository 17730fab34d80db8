"""What a word beside a field means: a limit, a side of the fingerprint, a past."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from lsgd.errors import UsageError
from lsgd.recipe import Recipe
from lsgd.recipe.fields import (
    EXECUTION,
    FieldMetadata,
    above_0,
    added_later,
    all_fields,
    as_before_values,
    at_least,
    at_least_or,
    at_most,
    below,
    finite,
    folder_name,
    not_empty,
    one_of,
    only_for,
    relevances,
    some_of,
    trajectory,
)


@dataclass(frozen=True)
class Averaging:
    """A group that came later, and a field of it that came later still."""

    kind: str = "none"
    log: bool = field(default=False, metadata=EXECUTION)
    decay: float = field(default=0.99, metadata=added_later(0.9))


@dataclass(frozen=True)
class Run:
    """A recipe with a field of every kind."""

    epochs: int
    device: str = field(default="cpu", metadata=EXECUTION)
    clip: float | None = field(default=5.0, metadata=added_later(None))
    averaging: Averaging | None = field(
        default_factory=Averaging, metadata=added_later({"kind": "none"})
    )


@pytest.mark.parametrize(
    ("words", "values", "wrong", "sentence"),
    [
        (one_of("a", "b"), ["a", "b"], "c", "key=c is unknown; write one of a, b"),
        (one_of(9, 10), [9, 10], 8, "key=8 is unknown; write one of 9, 10"),
        (at_least(1), [1, 2.5, None], 0, "key=0 is not possible; write 1 or more"),
        (at_least(0), [0.0], -1.0, "key=-1.0 is not possible; write 0 or more"),
        (at_least(0), [], float("nan"), "key=nan is not possible; write 0 or more"),
        (at_least(0), [], float("inf"), "key=inf is not possible; write 0 or more"),
        (
            at_least_or(1, "auto"), [1, 9, "auto"], 0,
            "key=0 is not possible; write 1 or more, or auto",
        ),
        (at_least_or(1, "auto"), [], "8x", "key=8x is not possible; write 1 or more, or auto"),
        (above_0(), [1, 1e-9], 0.0, "key=0 is not possible; write a number above 0"),
        (above_0(), [], float("inf"), "key=inf is not possible; write a number above 0"),
        (at_least(1), [10**9], 10**10, "key=10000000000 is not possible; write 1000000000 or less"),
        (at_least(0, 5), [5], 6, "key=6 is not possible; write 5 or less"),
        (
            at_least_or(1, "auto"), [10**9], 10**10,
            "key=10000000000 is not possible; write 1000000000 or less, or auto",
        ),
        (above_0(), [1e9], 1e300, "key=1e+300 is not possible; write 1000000000 or less"),
        (
            finite(), [0, -1e9, [1, -2.5], []], float("nan"),
            "key has nan, which is not possible; write a number from -1000000000 to 1000000000",
        ),
        (
            finite(), [], [0.5, float("-inf")],
            "key has -inf, which is not possible; write a number from -1000000000 to 1000000000",
        ),
        (
            above_0(), [[], [1, 0.5]], [1.0, 0.0],
            "key has 0, which is not possible; write a number above 0",
        ),
        (
            folder_name(), ["a.b-c_1+"], "a b",
            "key=a b does not make a folder's name; write letters, digits, -, _ and .",
        ),
        (not_empty("write key=A"), ["a", None], "", "key= is empty; write key=A"),
        (below(1, "grows; write less"), [0.999, -3], 1.0, "key=1 grows; write less"),
        (below(2**64, "is long"), [2**64 - 1], 2**64, f"key={2**64} is long"),
        (at_most(1, "is more"), [1.0], 1.5, "key=1.5 is more"),
    ],
)  # fmt: skip
def test_a_limit(words: FieldMetadata, values: list[Any], wrong: Any, sentence: str) -> None:
    (limit,) = words.values()
    for value in values:
        limit.enforce("key", value)
    with pytest.raises(UsageError) as refused:
        limit.enforce("key", wrong)
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    ("words", "few"),
    [
        (one_of("a", "b", within=("lib",)), "a, b, lib/NAME"),
        (some_of("a", "b"), "some of a, b"),
        (at_least(1), "1 or more"),
        (at_least(0, 5), "0 to 5"),
        (at_least_or(1, "auto"), "1 or more, or auto"),
        (above_0(), "above 0"),
        (finite(), "finite"),
        (folder_name(), "letters, digits, -, _ and ."),
        (below(1, "grows"), "below 1"),
        (at_most(1, "is more"), "at most 1"),
    ],
)
def test_a_limit_in_a_few_words(words: FieldMetadata, few: str) -> None:
    (limit,) = words.values()
    assert limit.description == few


@pytest.mark.parametrize(
    ("words", "value", "chosen", "sentence"),
    [
        (only_for("optim.name", "sgd", "lars"), 0.5, "adam",
         "key=0.5 has no effect with optim=adam; leave it out, or write optim=sgd or lars"),
        (only_for("optim.name", "sgd", required=False), True, "adam",
         "key=true has no effect with optim=adam; write key=false, as optim=adam does, or leave it "
         "out"),
        (only_for("schedule.decay", "linear", override="schedule"), [1.0], "steps",
         "key=[1] has no effect with schedule.decay=steps; leave it out, or write schedule=linear"),
        (only_for("compile", True), 1, False,
         "key=1 has no effect with compile=false; leave it out, or write compile=true"),
        (only_for("data.workload", "images"), 3, "trees",
         "key=3 has no effect with data.workload=trees; leave it out"),
    ],
)  # fmt: skip
def test_a_field_is_for_some_choices_of_another(
    words: FieldMetadata, value: Any, chosen: Any, sentence: str
) -> None:
    """With any other it has its default, or the value that is required in its place."""
    (rule,) = words.values()
    rule.enforce("key", value, 0, rule.choices[0])
    rule.enforce("key", 0, 0, chosen)
    with pytest.raises(UsageError) as refused:
        rule.enforce("key", value, 0, chosen)
    assert str(refused.value) == sentence


def test_the_choices_that_a_field_is_for_are_choices() -> None:
    """A name that no other field may have would refuse the field for good."""
    entries = dict(all_fields(Recipe))
    rules = [rule for entry in entries.values() for rule in relevances(entry)]
    assert len(rules) > 100
    for rule in rules:
        other = entries[rule.key]
        if other.type is not bool:
            for choice in rule.choices:
                other.metadata["one_of"].enforce(rule.key, choice)


def test_words_join() -> None:
    assert {*(EXECUTION | at_least(0) | below(1, "") | added_later(None))} == {
        "execution", "at_least", "below", "as_before",
    }  # fmt: skip


def test_all_fields_by_dotted_key() -> None:
    """A group that may be None has its fields too."""
    keys = [key for key, _ in all_fields(Run)]
    averaging = ["averaging", "averaging.kind", "averaging.log", "averaging.decay"]
    assert keys == ["epochs", "device", "clip", *averaging]


def test_what_decides_the_trajectory() -> None:
    new = {"epochs": 1, "clip": 5.0, "averaging": {"kind": "none", "decay": 0.99}}
    assert trajectory(Run(1, device="cuda"), "images") == new
    before = Run(1, clip=None, averaging=Averaging(log=True, decay=0.9))
    assert trajectory(before, "images") == {"epochs": 1}
    assert trajectory(Run(1, clip=None, averaging=Averaging("ema", decay=0.9)), "images") == {
        "epochs": 1,
        "averaging": {"kind": "ema"},
    }


def test_what_a_file_from_before_means() -> None:
    """A group first, whose own value would else replace what is in it."""
    expected = {"clip": None, "averaging": {"kind": "none"}, "averaging.decay": 0.9}
    assert list(as_before_values(Run).items()) == list(expected.items())
