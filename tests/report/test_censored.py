"""Runs that never had the rate they were to reach: late for claims, and never on time."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.run_folders import write_run
from matplotlib.axes import Axes

from lsgd.recipe.study import Claim, Entry, Study
from lsgd.report.batch_size_sweep import find_sweeps
from lsgd.report.claims import FAILS, HOLDS, OPEN, decide
from lsgd.report.content import compose
from lsgd.report.figures import _against_minibatch, _log_ticks
from lsgd.report.findings import Findings, compute_findings
from lsgd.report.formatting import format_group
from lsgd.report.markdown import render
from lsgd.report.results import results_table
from lsgd.report.run_folders import find_runs
from lsgd.report.summary import summarise
from lsgd.rules.metric import named_metric

UNTIL = "metric.epochs_to={top1_error: 9.5}"
SIZES = ("fashion_bs64", "fashion_bs256", "fashion_bs1k")
NEVER = [30.0] * 9


def judged(folder: Path, relation: str, ours: list[int], other: list[int]) -> str:
    """The outcome of a claim about runs that reach the target in these epochs; 0: never."""
    for name, epochs in (("fashion_bs1k", ours), ("fashion_bs64", other)):
        for seed, epoch in enumerate(epochs):
            errors = [30.0] * (epoch - 1) + [9.0] * (10 - epoch) if epoch else NEVER
            write_run(folder / f"{name}-{seed}", f"+recipe={name}", UNTIL, seed=seed, errors=errors)
    return (
        found(folder, Claim("", "fashion_bs1k", relation, "fashion_bs64", 2)).decisions[0].outcome
    )


def found(
    folder: Path, *claims: Claim, repeats: str = "first", words: Sequence[str] = ()
) -> Findings:
    runs, left_out = find_runs([folder])
    study = Study(
        name="s", title="S", question="Q", source="tests", baseline="fashion_bs64",
        seeds=[0, 1, 2], entries=[Entry(name, name) for name in SIZES], claims=list(claims),
        repeats=repeats,
    )  # fmt: skip
    return compute_findings(runs, left_out, study, [UNTIL, *words])


@pytest.mark.parametrize(
    ("relation", "ours", "other", "outcome"),
    [
        ("no_worse_than", [0, 0, 0], [8, 9, 9], OPEN),
        ("no_worse_than", [0, 0, 0], [2, 2, 3], FAILS),
        ("no_worse_than", [5, 5, 6], [0, 0, 0], HOLDS),
        ("worse_than", [0, 0, 9], [2, 2, 3], HOLDS),
        ("worse_than", [9, 9, 8], [0, 0, 0], FAILS),
        ("worse_than", [9, 9, 8], [9, 9, 0], FAILS),
        ("as_good_as", [0, 9, 9], [9, 9, 8], OPEN),
        ("as_good_as", [9, 9, 8], [9, 9, 8], HOLDS),
        ("no_worse_than", [0, 0, 0], [0, 0, 0], OPEN),
    ],
)
def test_never_supports_worse_and_not_as_good(
    tmp_path: Path, relation: str, ours: list[int], other: list[int], outcome: str
) -> None:
    assert judged(tmp_path, relation, ours, other) == outcome


def test_a_run_that_its_patience_ends_counts_with_the_epochs_that_it_had(tmp_path: Path) -> None:
    """It may have reached the target an epoch later: nothing shows that it is worse."""
    patient = ["stop.metric=top1_error", "stop.patience=2"]
    ours = [[30.0] * 3, [30.0, 20.0, 20.0, 20.0], NEVER[:3]]
    for seed, errors in enumerate(ours):
        other = [30.0, 20.0, 9.0, 9.0, 9.0] if seed else [30.0, 9.0, 9.0, 9.0]
        for name, each in (("fashion_bs1k", errors), ("fashion_bs64", other)):
            words = (f"+recipe={name}", UNTIL, *patient)
            write_run(tmp_path / f"{name}-{seed}", *words, seed=seed, errors=each)
    claim = Claim("", "fashion_bs1k", "worse_than", "fashion_bs64", 2)
    findings = found(tmp_path, claim, words=patient)
    assert findings.decisions[0].outcome == OPEN
    page = render(compose(findings, [], "command", "version"))
    assert "counts with all epochs of its run, 3 to 4, which is too few" in page


@pytest.mark.slow
def test_the_elbow_is_none_of_those_that_never_arrive(tmp_path: Path) -> None:
    """Even where the reference takes as long as they last; and three states have three words."""
    for name in SIZES:
        for seed in range(3):
            late = [*[30.0] * (6 + seed), *[9.0] * (3 - seed)]
            errors = late if name == "fashion_bs64" else NEVER
            write_run(
                tmp_path / f"{name}{seed}", f"+recipe={name}", UNTIL, seed=seed, errors=errors
            )
    write_run(tmp_path / "d", "+recipe=fashion_bs1k", UNTIL, seed=3, errors=[9.9], diverged=True)
    findings = found(tmp_path)
    [ladder] = findings.sweeps
    assert ladder.elbow.recipe.name == "fashion_bs64"
    page = render(compose(findings, [], "command", "version"))
    assert "3 of 3 never" in page
    assert "1 of 4 diverged, 3 of 4 never" in page
    assert "or more (at least" in page
    # Each is drawn with all epochs of its run.
    svg = _against_minibatch("figure1", ladder, findings).svg
    assert "runs diverged or never at the target" in svg
    recipes = {row["recipe"]: row for row in summarise(findings, "command", "version")["recipes"]}
    assert (recipes["fashion_bs1k"]["never"], recipes["fashion_bs1k"]["diverged"]) == (3, 1)


def test_figure_1_is_drawn_where_no_run_reaches_the_target(tmp_path: Path) -> None:
    for name in SIZES:
        write_run(tmp_path / name, f"+recipe={name}", UNTIL, errors=NEVER)
    findings = found(tmp_path)
    [ladder] = findings.sweeps
    svg = _against_minibatch("figure1", ladder, findings).svg
    assert "runs never at the target" in svg


def test_a_diverged_run_of_a_metric_without_a_chance_level_is_left_out(tmp_path: Path) -> None:
    """Of a metric of the user's own it is not known: neither text nor axis has an infinite one."""
    for name, error in zip(SIZES, (8.0, 8.1, 30.0), strict=True):
        for seed in range(3):
            ends = name == "fashion_bs1k" and seed == 0
            errors = [error + 0.1 * seed] * (1 if ends else 9)
            write_run(
                tmp_path / f"{name}-{seed}", f"+recipe={name}", seed=seed, errors=errors,
                diverged=ends,
            )  # fmt: skip
    own = named_metric("mean_distance")
    claim = Claim("it is", "fashion_bs1k", "worse_than", "fashion_bs64")
    runs, _ = find_runs([tmp_path])
    study = Study(
        name="s", title="S", question="Q", source="tests", baseline="fashion_bs64",
        seeds=[0, 1, 2], entries=[Entry(name, name) for name in SIZES], claims=[claim],
    )  # fmt: skip
    of_errors = compute_findings(runs, [], study)
    groups = [replace(group, metric=own) for group in of_errors.groups]
    looks = of_errors.looks
    by_name = {group.recipe.name: group for group in groups}
    sweeps = find_sweeps(groups, study, looks)
    decision = decide(claim, by_name, looks)
    findings = replace(of_errors, metric=own, groups=groups, sweeps=sweeps, decisions=[decision])
    assert decision.outcome == HOLDS
    page = render(compose(findings, [], "command", "version"))
    assert "a run that diverged has no value: its recipe may be shown to be worse" in page
    assert "each run that diverged being left out" in page
    assert "guessing" not in page
    assert "inf" not in page
    limits: list[float] = []
    with pytest.MonkeyPatch.context() as patched:
        ticks = Axes.set_yticks
        patched.setattr(
            Axes, "set_yticks",
            lambda self, ticked, *a, **k: (limits.extend(ticked), ticks(self, ticked, *a, **k)),
        )  # fmt: skip
        _against_minibatch("figure1", sweeps[0], findings)
    assert max(limits) == 30


@pytest.mark.parametrize(
    ("name", "low", "high", "ticks"),
    [
        ("top1_error", 0.035, 0.65, [0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5]),
        ("top1_error", 5.5, 117.0, [7, 10, 15, 20, 30, 40, 50, 70, 90]),
        ("perplexity", 60.0, 600.0, [70, 100, 200, 300, 500]),
        ("mean_distance", 2e-5, 2e-4, [3e-5, 4e-5, 5e-5, 7e-5, 1e-4]),
    ],
)
def test_a_logarithmic_axis_has_ticks_at_any_scale(
    name: str, low: float, high: float, ticks: list[float]
) -> None:
    assert _log_ticks(named_metric(name), low, high) == pytest.approx(ticks)


def test_figure_1_is_drawn_with_an_error_of_0(tmp_path: Path) -> None:
    """A logarithmic axis has no 0."""
    for name, error in zip(SIZES, (0.0, 3.0, 9.0), strict=True):
        for seed in range(2):
            errors = [error] * 9
            write_run(tmp_path / f"{name}-{seed}", f"+recipe={name}", seed=seed, errors=errors)
    findings = compute_findings(*find_runs([tmp_path]), None)
    [ladder] = findings.sweeps
    logarithmic = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Axes, "set_yscale", lambda _, scale: logarithmic.append(scale))
        _against_minibatch("figure1", ladder, findings)
    assert logarithmic == []


@pytest.mark.parametrize(
    ("repeats", "number"),
    [("mean", "2 of 4 diverged, 2 of 4 never"), ("first", "1 of 2 diverged, 1 of 2 never")],
)
def test_the_table_of_results_counts_repeats_and_says_what_became_of_them(
    repeats: str, number: str, tmp_path: Path
) -> None:
    """As the report does: of all runs, where each repeat counts."""
    for place, errors in enumerate((NEVER, NEVER, [9.9], [9.9])):
        write_run(
            tmp_path / f"{place}", "+recipe=fashion_bs64", UNTIL,
            seed=place // 2, errors=errors, diverged=place > 1,
        )  # fmt: skip
    findings = found(tmp_path, repeats=repeats)
    assert format_group(findings.groups[0]) == number
    folder = tmp_path / "results" / "a"
    folder.mkdir(parents=True)
    summary = summarise(findings, "command", "version")
    (folder / "summary.json").write_text(json.dumps(summary))
    [row] = [line for line in results_table(folder.parent).splitlines() if "_bs64" in line]
    _, _, _, told, seeds, *_ = (cell.strip() for cell in row.split("|"))
    assert (told, seeds) == (number, "2; 2 repeats, 1 diverged, 1 never")
