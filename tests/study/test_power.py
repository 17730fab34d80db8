"""What seeds can decide: against published tables, against simulation."""

from dataclasses import replace

import numpy as np
import pytest

from lsgd.planned.launch import RunLauncher
from lsgd.recipe.study import Claim, Entry, Study
from lsgd.report.claims import HOLDS, claim_outcome
from lsgd.report.findings import compute_findings
from lsgd.report.looks import Looks
from lsgd.report.welch import sample_stats, welch_difference
from lsgd.study import cost
from lsgd.study.planned_runs import planned_runs
from lsgd.study.power import detectable_difference, equivalence_margin, power_lines

STUDY = Study(
    name="one", title="One", question="Is it?", source="nobody", baseline="digits",
    seeds=[0, 1, 2], entries=[Entry("digits", "a"), Entry("digits_unscaled", "b")],
    claims=[Claim("it is", "digits", "as_good_as", "digits_unscaled", 0.5)],
)  # fmt: skip


@pytest.mark.parametrize(("seeds", "effect"), [(17, 1.0), (26, 0.8), (64, 0.5)])
def test_the_difference_found_is_that_of_cohens_table(seeds: int, effect: float) -> None:
    """Cohen 1988, table 2.4.1: n of each for 80 %, two-sided 5 %, rounded up to whole runs."""
    assert detectable_difference(seeds) <= effect < detectable_difference(seeds - 1)


def test_the_margin_shown_is_shown_in_four_of_five_studies() -> None:
    draw = np.random.default_rng(3)
    margin = equivalence_margin(5)
    pairs = draw.standard_normal((1000, 2, 5))
    said = [
        claim_outcome(
            "as_good_as", welch_difference(sample_stats([*a]), sample_stats([*b]), 0.90), margin
        )
        for a, b in pairs
    ]
    assert said.count(HOLDS) / 1000 == pytest.approx(0.8, abs=0.04)


def test_the_lines_say_what_the_seeds_resolve_and_by_which_spread() -> None:
    groups = compute_findings([], [], STUDY).groups
    [line] = power_lines(STUDY, groups, Looks(3, 3))
    assert "standard deviations over seeds" in line, "no spread is known"
    expected = replace(STUDY, spread=0.2)
    first, last = power_lines(expected, groups, Looks(3, 10))
    assert "3 seeds" in first
    assert "10 seeds" in last
    assert "0.20 points, as the study expects" in last
    assert power_lines(replace(STUDY, claims=[]), groups, Looks(3, 3)) == []
    assert "write seeds=3" in power_lines(STUDY, groups, Looks(1, 1))[0]


def test_arms_that_differ_in_nothing_that_takes_time_are_timed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of a table are one network with other lrs; the reference has smaller passes."""
    timed = []
    monkeypatch.setattr(cost, "_timed", lambda trial, processes: timed.append(trial) or 100.0)
    names = ["digits_reference", "digits", "digits_unscaled", "digits_no_warmup"]
    study = replace(STUDY, entries=[Entry(name, name) for name in names], claims=[])
    launcher = RunLauncher("local", {"--np": "1"})
    [line] = cost.cost_lines(
        launcher, planned_runs(study, []), compute_findings([], [], study).groups, 1
    )
    assert [trial.recipe.name for trial in timed] == ["digits_reference", "digits"]
    assert line.startswith("cost: 12 trials to train, ")
