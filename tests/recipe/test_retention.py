"""The checkpoints that a run keeps: a few, spread over the run, and all that a resume needs."""

from dataclasses import replace

import pytest
from helpers.base_recipe import BASE
from helpers.composed import compose_recipe
from hypothesis import given
from hypothesis import strategies as st

from lsgd.errors import UsageError
from lsgd.recipe.retention import OF_PART, PARTS, newest_steps, spread_steps


@st.composite
def saves(draw: st.DrawFn) -> tuple[list[int], int]:
    """The steps that a run of this many steps has saved, at a fixed interval or by the clock."""
    total = draw(st.integers(1, 1000))
    regular = st.integers(1, total).map(lambda every: [*range(every, total + 1, every), total])
    by_clock = st.lists(st.integers(1, total), min_size=1, max_size=60).map(sorted)
    return draw(regular | by_clock), total


@given(saves())
def test_a_spread_is_small_has_the_newest_and_lies_over_the_whole_run(
    saved_and_total: tuple[list[int], int],
) -> None:
    saved, total = saved_and_total
    kept = spread_steps(saved, total)
    assert kept <= set(saved)
    assert len(kept) <= 12
    assert newest_steps(saved) <= kept
    # Every save has a kept one before it in its part of the run.
    assert all(any(0 <= step - each < total / PARTS + 1 for each in kept) for step in saved)


@given(saves(), st.data())
def test_a_spread_does_not_depend_on_when_the_rule_is_applied(
    saved_and_total: tuple[list[int], int], data: st.DataObject
) -> None:
    """After each save, after some of them, or, as another rule held before a resume, at the end."""
    saved, total = saved_and_total
    present: set[int] = set()
    for step in saved:
        present.add(step)
        if data.draw(st.booleans()):
            present = spread_steps(present, total)
    assert spread_steps(present, total) == spread_steps(saved, total)


@given(saves())
def test_saves_of_a_spread_come_in_pairs_that_follow_each_other(
    saved_and_total: tuple[list[int], int],
) -> None:
    """The second of a pair is the save after the first, which verification computes again."""
    saved, total = saved_and_total
    ordered, kept = sorted(set(saved)), spread_steps(saved, total)
    for part in range(PARTS):
        within = [step for step in ordered if (step - 1) * PARTS // total == part]
        assert set(within[:OF_PART]) <= kept


def test_the_field_chooses_the_rule_and_nothing_that_is_computed() -> None:
    saved = range(1, 1001)
    newest = replace(BASE, keep_checkpoints=3)
    assert newest.kept_checkpoints(saved) == {998, 999, 1000}
    spread = replace(BASE, keep_checkpoints="verify")
    assert spread.kept_checkpoints(saved) == spread_steps(saved, BASE.total_steps)
    assert newest.fingerprint == spread.fingerprint == BASE.fingerprint


def test_the_command_line_takes_a_number_or_the_word() -> None:
    assert compose_recipe("+recipe=digits", "keep_checkpoints=verify").keep_checkpoints == "verify"
    assert compose_recipe("+recipe=digits", "keep_checkpoints=4").keep_checkpoints == 4
    with pytest.raises(UsageError, match=r"keep_checkpoints=0 .* write 1 or more, or verify"):
        compose_recipe("+recipe=digits", "keep_checkpoints=0")
    with pytest.raises(UsageError, match=r"keep_checkpoints=all .* write 1 or more, or verify"):
        compose_recipe("+recipe=digits", "keep_checkpoints=all")
