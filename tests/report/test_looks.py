"""Intervals that are looked at again and again: against published constants, and by simulation."""

from collections import Counter
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

from lsgd.errors import UsageError
from lsgd.recipe.study import Claim
from lsgd.report.claims import FAILS, HOLDS, OPEN, claim_outcome
from lsgd.report.look_record import looks_file, note_look, plan_looks, read_looks
from lsgd.report.looks import Looks, crossing_probability, pocock_level
from lsgd.report.welch import sample_stats, welch_difference

WITHIN = 0.5


@pytest.mark.parametrize(("looks", "critical"), [(2, 2.178), (3, 2.289), (5, 2.413), (10, 2.555)])
def test_the_boundary_is_pococks(looks: int, critical: float) -> None:
    """Jennison and Turnbull 2000, table 2.1: equal groups, an error of 5 % in all."""
    assert crossing_probability(critical, 1, looks) == pytest.approx(0.05, abs=3e-4)
    level = pocock_level(1, looks, 0.95)
    assert NormalDist().inv_cdf((1 + level) / 2) == pytest.approx(critical, abs=2e-3)


def share_decided(relation: str, gap: float, level: float, *, spread: float = 0.2) -> Counter[str]:
    """What 400 studies say that add a seed from 3 to 10 until the claim is decided."""
    draw = np.random.default_rng(7)
    said: Counter[str] = Counter()
    for _ in range(400):
        ours, other = gap + 0.2 * draw.standard_normal(10), spread * draw.standard_normal(10)
        for n in range(3, 11):
            found = welch_difference(sample_stats([*ours[:n]]), sample_stats([*other[:n]]), level)
            verdict = claim_outcome(relation, found, WITHIN)
            if verdict != OPEN:
                break
        said[verdict] += 1
    return said


@pytest.mark.slow
@pytest.mark.parametrize("relation", ["no_worse_than", "as_good_as"])
@pytest.mark.parametrize("spread", [0.2, 0.6])
def test_added_seeds_decide_wrongly_no_more_often_than_5_percent(
    relation: str, spread: float
) -> None:
    """At the margin, where it is most easily wrong; the limit has three standard errors of 400."""
    level = Looks(3, 10).level(Claim("", "a", relation, "b", WITHIN).confidence)
    said = share_decided(relation, WITHIN, level, spread=spread)
    assert max(said[HOLDS], said[FAILS]) <= 400 * (0.05 + 3 * 0.011)


@pytest.mark.slow
def test_the_same_level_at_every_look_decides_wrongly_far_more_often() -> None:
    assert share_decided("as_good_as", WITHIN, 0.90)[HOLDS] > 400 * 0.083


def test_equal_recipes_are_shown_to_be_as_good() -> None:
    level = Looks(3, 10).level(0.90)
    assert share_decided("as_good_as", 0.0, level)[HOLDS] > 400 * 0.95


def test_looks_are_remembered_beside_the_report(tmp_path: Path) -> None:
    report = tmp_path / "studies/one"
    assert read_looks(report) is None
    assert note_look(report, 3) == Looks(3, 3)
    assert note_look(report, 5) == read_looks(report) == Looks(3, 5), "seeds added after a look"
    plan_looks(report, 5, 8)
    assert note_look(report, 6) == Looks(3, 8)
    assert note_look(report, 2, 9) == Looks(2, 9), "claims on recipes with other numbers of seeds"


def test_a_recorded_test_with_one_seed_is_none(tmp_path: Path) -> None:
    """Earlier versions recorded it, as after `--quick`; one seed has no interval to decide by."""
    report = tmp_path / "one"
    looks_file(report).write_text('{"first": 1, "last": 1, "planned": 0}')
    assert read_looks(report) is None
    assert note_look(report, 5) == Looks(5, 5)
    looks_file(report).write_text('{"first": 1, "last": 5, "planned": 0}')
    assert read_looks(report) == Looks(2, 5)


def test_a_plan_is_not_changed_after_a_look(tmp_path: Path) -> None:
    report = tmp_path / "one"
    plan_looks(report, 3, 8)
    plan_looks(report, 3, 8)
    for most in (7, 9):
        with pytest.raises(
            UsageError, match=f"--max-seeds {most} is not the 8 .* write --max-seeds 8"
        ):
            plan_looks(report, 3, most)
    note_look(report, 10)
    plan_looks(report, 3, 8)
    assert read_looks(report) == Looks(3, 10), "the same command resumes the study"
    with pytest.raises(UsageError, match=r"below the 10 seeds .* write --max-seeds 11 or more"):
        plan_looks(report, 3, 9)
    plan_looks(report, 3, 11)
    assert read_looks(report) == Looks(3, 11), "seeds that were added by hand end a plan"
    looks_file(report).write_text("[]")
    with pytest.raises(UsageError, match=r"one\.looks\.json .* cannot be read"):
        read_looks(report)
