"""What seeds can decide: against published tables, against simulation."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.composed import compose_recipe
from helpers.run_folders import write_finished_run, write_run

from lsgd import cost
from lsgd.config import load_recipe
from lsgd.definitions import load_study
from lsgd.planned import PlannedRun, RunLauncher, has_ended
from lsgd.recipe.study import Claim, Entry, Study
from lsgd.report.claims import HOLDS, claim_outcome
from lsgd.report.findings import compute_findings
from lsgd.report.groups import RecipeRuns
from lsgd.report.look_record import read_looks
from lsgd.report.looks import Looks
from lsgd.report.run_folders import find_runs
from lsgd.report.welch import sample_stats, welch_difference
from lsgd.run.read import Run
from lsgd.study.__main__ import all_runs, planned_looks
from lsgd.study.planned_runs import planned_runs
from lsgd.study.power import claim_spread, detectable_difference, equivalence_margin, power_lines
from lsgd.study.reporting import study_findings, write_report
from lsgd.study.request import read_request
from lsgd.study.seeds import next_seeds, seed_order

pytestmark = pytest.mark.usefixtures("composed_once")
STUDY = Study(
    name="one", title="One", question="Is it?", source="nobody", baseline="digits",
    seeds=[0, 1, 2], entries=[Entry("digits", "a"), Entry("digits_unscaled", "b")],
    claims=[Claim("it is", "digits", "as_good_as", "digits_unscaled", 0.5)],
)  # fmt: skip


@pytest.mark.parametrize(("seeds", "effect"), [(17, 1.0), (26, 0.8), (64, 0.5)])
def test_the_difference_found_is_that_of_cohens_table(seeds: int, effect: float) -> None:
    """Cohen 1988, table 2.4.1: n of each for 80 %, two-sided 5 %, rounded up to whole runs."""
    assert detectable_difference(seeds) <= effect < detectable_difference(seeds - 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "looks", "share"),
    [(2, Looks(2, 2), 0.5), (3, Looks(3, 3), 0.5), (3, Looks(3, 10), 0.5), (3, Looks(3, 3), 0.9),
     (5, Looks(5, 5), 0.5)],
)  # fmt: skip
def test_what_is_resolved_is_resolved_in_four_of_five_studies(
    seeds: int, looks: Looks, share: float
) -> None:
    """Of few seeds the estimated degrees of freedom are often smaller than those of the truth."""
    draw = np.random.default_rng(3)
    stds = np.sqrt([[2 * share], [2 * (1 - share)]])
    pairs = draw.standard_normal((1000, 2, seeds)) * stds
    found = detectable_difference(seeds, looks.level(0.95), share)
    margin = equivalence_margin(seeds, looks.level(0.90), share)
    detected = shown = 0
    for a, b in pairs:
        samples = sample_stats([*a]), sample_stats([*b])
        detected += welch_difference(*samples, looks.level(0.95)).low + found > 0
        gap = welch_difference(*samples, looks.level(0.90))
        shown += claim_outcome("as_good_as", gap, margin) == HOLDS
    assert detected / 1000 == pytest.approx(0.8, abs=0.04)
    assert shown / 1000 == pytest.approx(0.8, abs=0.04)


def test_the_lines_say_what_the_seeds_resolve_and_by_which_spread() -> None:
    groups = compute_findings([], [], STUDY).groups
    [line] = power_lines(STUDY, groups, Looks(3, 3))
    assert "standard deviations over seeds" in line, "no spread is known"
    expected = replace(STUDY, spread=0.2)
    first, last, margin = power_lines(expected, groups, Looks(3, 10))
    assert "3 seeds" in first
    assert "10 seeds" in last
    assert "0.20 points, as the study expects" in last
    assert "a margin of 0.50 points to either side takes 6 seeds" in margin
    assert power_lines(replace(STUDY, claims=[]), groups, Looks(3, 3)) == []
    assert "write seeds=3" in power_lines(STUDY, groups, Looks(1, 1))[0]


@pytest.mark.slow
def test_the_planned_looks_are_of_the_seeds_asked_for_and_of_those_that_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The study names four seeds; one that a recipe lacks is tested with the runs of the others."""
    monkeypatch.chdir(tmp_path)

    def looks(*arguments: str) -> Looks:
        request = read_request("", ["study=digits", "--np", "1", *arguments])
        return planned_looks(request, all_runs(request))

    assert looks("seeds=2") == looks("seeds=[7,9]") == Looks(2, 2)
    assert looks("seeds=6") == Looks(6, 6)
    for trial in planned_runs(replace(load_study("digits"), seeds=[0, 1, 7]), []):
        if (trial.recipe.name, trial.recipe.seed) != ("digits", 1):
            words = [f"+recipe={trial.recipe.name}"]
            write_run(trial.folder, *words, seed=trial.recipe.seed, errors=[2.0] * 30)
    assert looks("seeds=[0,3]") == Looks(4, 4)
    assert looks("seeds=4", "--until-decided", "--max-seeds", "6") == Looks(4, 6)


@pytest.mark.slow
def test_seeds_that_are_added_by_hand_are_further_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are requested alone, the command names fewer of them than are tested."""
    monkeypatch.chdir(tmp_path)
    noted: list[Looks | None] = []
    monkeypatch.setattr(
        "lsgd.study.reporting.report", lambda *arguments: noted.append(arguments[-1])
    )

    def train(*seeds: int) -> None:
        for trial in planned_runs(replace(load_study("digits"), seeds=[*seeds]), []):
            words = f"+recipe={trial.recipe.name}"
            write_run(trial.folder, words, seed=trial.recipe.seed, errors=[2.0] * 30)

    for asked, seeds in (
        (["seeds=1"], [0]),
        (["seeds=3"], [1, 2]),  # a part of the study's seeds, with which no claim is tested
        ([], [3]),
        (["seeds=[4]"], [4]),
        (["seeds=5"], []),
    ):
        train(*seeds)
        request = read_request("", ["study=digits", "--np", "1", *asked])
        write_report(request.study, [], all_runs(request))
    assert noted == [None, None, Looks(4, 4), Looks(4, 5), Looks(4, 5)]
    train(7)
    findings = study_findings(request.study, [], all_runs(request))
    assert (findings.looks, read_looks(Path("runs/studies/digits"))) == (Looks(4, 6), Looks(4, 5))


def trained(name: str, *seeds: int) -> None:
    """Runs of a recipe of the study of digits, in the working folder."""
    for trial in planned_runs(replace(load_study("digits"), seeds=[*seeds]), []):
        if trial.recipe.name == name and not trial.folder.is_dir():
            seed = trial.recipe.seed
            write_run(trial.folder, f"+recipe={name}", seed=seed, errors=[2.0 + 0.1 * seed] * 30)


@pytest.mark.slow
def test_claims_are_tested_with_other_seeds_as_many_as_the_studys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The study names four; which four they are makes no difference to a test."""
    monkeypatch.chdir(tmp_path)
    names = [entry.recipe for entry in load_study("digits").entries]
    request = read_request("", ["study=digits", "seeds=[4,5,6,7]", "--np", "1"])
    for seeds, tested in ([4, 5, 6], []), ([7], [4]):
        for name in names:
            trained(name, *seeds)
        findings = study_findings(request.study, [], all_runs(request))
        assert findings.tested_seeds == tested
        assert {decision.difference is not None for decision in findings.decisions} == {
            bool(tested)
        }
    more = read_request(
        "", ["study=digits", "seeds=[4..7]", "--np", "1", "--until-decided", "--max-seeds", "6"]
    )
    assert seed_order(more.study, 6) == [4, 5, 6, 7, 0, 1]
    findings = study_findings(more.study, [], all_runs(more))
    assert {*next_seeds(findings, seed_order(more.study, 6), {}).values()} <= {0}


def test_a_part_of_the_seeds_is_said_to_test_no_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the power of it, which no test has, is not stated."""
    monkeypatch.chdir(tmp_path)
    for asked, number in ("seeds=2", "2 seeds"), ("seeds=[5]", "1 seed"):
        request = read_request("", ["study=digits", asked, "--np", "1"])
        groups = study_findings(request.study, [], all_runs(request)).groups
        assert power_lines(request.study, groups, planned_looks(request, all_runs(request))) == [
            f"power: no claim is tested with {number}, as the study has 4; write seeds=4 or more"
        ]


@pytest.mark.slow
def test_a_look_has_the_seeds_of_the_recipe_with_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The baseline has six seeds of another study: claims are tested with four, then with six."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lsgd.study.reporting.report", lambda *_: None)
    names = [entry.recipe for entry in load_study("digits").entries]
    request = read_request("", ["study=digits", "seeds=6", "--np", "1"])
    trained("digits_reference", *range(6))
    for count, looks in (3, None), (4, Looks(4, 4)), (6, Looks(4, 6)):
        for name in names:
            trained(name, *range(count))
        write_report(request.study, [], all_runs(request))
        assert read_looks(Path("runs/studies/digits")) == looks


def test_arms_that_differ_in_nothing_that_takes_time_are_timed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of a table are one network with other lrs; the reference has smaller passes."""
    timed = []
    monkeypatch.setattr(cost, "_timed", lambda trial, *_: timed.append(trial) or 100.0)
    names = ["digits_reference", "digits", "digits_unscaled", "digits_no_warmup"]
    study = replace(STUDY, entries=[Entry(name, name) for name in names], claims=[])
    launcher = RunLauncher("local", {"--np": "1"})
    runs = planned_runs(study, [])
    first, most = cost.cost_lines(
        launcher, runs[:8], runs[8:], compute_findings([], [], study).groups, 1
    )
    assert [trial.recipe.name for trial in timed] == ["digits_reference", "digits"]
    assert first.startswith("cost: 8 runs to train, ")
    assert most.startswith("cost at most: 12 runs to train, ")


def test_hours_are_those_of_all_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each thread of each process, by the speed at which the examples are trained."""
    runs = planned_runs(STUDY, [])
    monkeypatch.setattr(cost, "_timed", lambda trial, *_: trial.examples_left / 3600)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    groups = compute_findings([], [], STUDY).groups
    [line] = cost.cost_lines(RunLauncher("local", {"--np": "2"}), runs, [], groups, 1)
    assert "6 runs to train, 36.0 CPU hours, 6 h 0 min one after another" in line
    for jobs, told in (4, "2 h 0 min together, 4 at a time"), (8, "1 h 0 min together, 6 at a"):
        [line] = cost.cost_lines(RunLauncher("local", {"--np": "2"}), runs, [], groups, jobs)
        assert f"6 runs to train, 36.0 CPU hours, {told}" in line


@pytest.mark.parametrize("recipe", ["conll_bilstm", "sst_treelstm", "ptb_small", "digits"])
def test_hours_by_existing_runs_are_those_of_their_steps(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever their speeds count: the tokens of a sentence, the nodes of a tree, or images."""
    monkeypatch.chdir(tmp_path)
    trial = PlannedRun(compose_recipe(f"+recipe={recipe}"), [])
    made, seconds = trial.recipe, 10.0
    per_second = 14 * made.batch_size / seconds
    start = {"kind": "start", "step": 0, "device": "CPU", "inputs": "in memory", "processes": 1}
    rows = [start] + [
        {"kind": "epoch", "step": epoch * made.steps_per_epoch, "epoch": epoch}
        | {"step_seconds": seconds, "tokens_per_second": per_second}
        for epoch in range(1, made.epochs + 1)
    ]
    group = RecipeRuns(recipe, made, None, None, [Run(tmp_path, made, rows)])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    launcher = RunLauncher("local", {"--np": "1"})
    rate, source = cost.speed(launcher, trial, group)
    assert source == "existing runs"
    assert rate is not None
    assert trial.examples_left / rate == pytest.approx(made.total_steps * seconds)
    on_gpus = RunLauncher("slurm", {"--gpus": "1", "--nodes": "1"})
    assert cost.speed(on_gpus, trial, group, 7.0) == (7.0, "--images-per-second")
    start["device"] = "Xeon, 4 cores, threads per process: 4"
    assert cost.speed(launcher, trial, group) == (pytest.approx(rate / 4), "existing runs")
    start["device"] = "NVIDIA H200"
    assert cost.speed(on_gpus, trial, group, 7.0) == (pytest.approx(rate), "existing runs")


@pytest.mark.parametrize(
    ("device", "ran", "launcher", "processes", "threads", "ratio"),
    [
        ("NVIDIA H200", 8, ("slurm", "--gpus"), 1, 1, 1 / 8),
        ("NVIDIA H200", 1, ("slurm", "--gpus"), 8, 1, 8),
        ("NVIDIA H200", 4, ("local", "--np"), 2, 1, 1 / 2),
        ("NVIDIA H200", 1, ("slurm", "--np"), 1, 1, None),
        ("Xeon, 8 cores, threads per process: 8", 1, ("local", "--np"), 8, 1, 1),
        ("Xeon, 8 cores, threads per process: 1", 8, ("local", "--np"), 1, 8, 1),
        ("Xeon, 8 cores, threads per process: 1", 8, ("slurm", "--np"), 1, 1, 1 / 8),
        ("Xeon, 2 cores, threads per process: 1", 2, ("local", "--np"), 8, 4, 1),
        ("Xeon, 2 cores, threads per process: 1", 2, ("slurm", "--gpus"), 2, 1, None),
    ],
)
def test_a_speed_by_existing_runs_is_in_proportion_to_gpus_or_threads(
    device: str,
    ran: int,
    launcher: tuple[str, str],
    processes: int,
    threads: int,
    ratio: float | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No further cores than a run had are counted, and no run on the other kind of hardware."""
    trial = PlannedRun(compose_recipe("+recipe=digits", "workers=8", "workers_per_pass=1"), [])
    made = trial.recipe
    start = {"kind": "start", "step": 0, "device": device, "processes": ran}
    row = {"kind": "epoch", "step": made.steps_per_epoch, "epoch": 1, "step_seconds": 2.0}
    group = RecipeRuns("digits", made, None, None, [Run(tmp_path, made, [start, row])])
    monkeypatch.setattr(cost, "threads", lambda *_: threads)
    monkeypatch.setattr(cost, "_timed", lambda *_: None)
    monkeypatch.setattr(cost, "_planned", lambda *_: None)
    name, option = launcher
    measured, _ = cost.speed(RunLauncher(name, {option: str(processes)}), trial, group)
    rate = made.train_examples / (2.0 * made.steps_per_epoch)
    assert measured == (ratio and pytest.approx(ratio * rate))


def test_epochs_of_smaller_images_take_less_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In proportion to the multiply-adds: a quarter for half of the side.

    The epochs that are left are the larger ones. The speed of each epoch of earlier runs is
    converted by its own size: most have the smaller one.
    """
    sizes = ["data.image_size=64", "image_sizes.points=[[1,32],[2,64]]", "image_sizes.multiple=32"]
    words = [*sizes, "epochs=4", "schedule.milestones=[3]", "schedule.warmup_epochs=1"]
    recipe = load_recipe(["recipe=digits", "inputs=synthetic", *words])
    assert [recipe.training_size(epoch) for epoch in range(4)] == [32, 32, 64, 64]
    trial = PlannedRun(recipe, words)
    epoch = recipe.data.train_examples
    assert cost._full_size_examples_left(trial) == pytest.approx(2.5 * epoch, rel=1e-3)
    monkeypatch.setattr(PlannedRun, "epochs_done", 2)
    assert cost._full_size_examples_left(trial) == 2 * epoch
    rows = [{"kind": "start", "step": 0, "device": "CPU", "inputs": "", "processes": 1}] + [
        {"kind": "epoch", "step": number * recipe.steps_per_epoch, "epoch": number}
        | {"step_seconds": seconds / recipe.steps_per_epoch}
        for number, seconds in enumerate([2.5, 2.5, 10.0], 1)
    ]
    group = RecipeRuns("", recipe, None, None, [Run(tmp_path, recipe, rows)])
    rate, _ = cost.speed(RunLauncher("local", {"--np": "1"}), trial, group)
    assert rate == pytest.approx(epoch / 10, rel=1e-3)


@pytest.mark.parametrize("ends", ["stop.patience=2", "diverges", "image_sizes"])
def test_a_run_that_has_ended_early_has_no_example_left(
    ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remaining time and the cost of a study count the epochs that are to be trained."""
    monkeypatch.chdir(tmp_path)
    stops = ["stop.patience=2", "stop.metric=top1_error"] if ends != "diverges" else []
    if ends == "image_sizes":
        stops += ["data.image_size=64", "image_sizes.points=[[1,32],[2,64]]", "inputs=synthetic"]
    words = ["+recipe=digits", *stops]
    trial = PlannedRun(compose_recipe(*words), words)
    assert trial.examples_left == 30 * 1442
    write_run(trial.folder, *words, errors=[9.0, 9.0, 9.0], diverged=ends == "diverges")
    assert has_ended(trial.saved_run)
    assert trial.examples_left == cost._full_size_examples_left(trial) == 0


def test_a_claims_power_is_of_the_spread_of_its_own_recipes(tmp_path: Path) -> None:
    """One recipe that fails in another way with each seed hides no difference of two others."""
    names = {"fashion_bs64": [8.0, 8.4, 8.2], "fashion_bs128": [8.1, 8.3, 8.2],
             "fashion_bs2k": [20.0, 60.0, 90.0], "fashion_bs1k": [1e180, 3e180, 2e180]}  # fmt: skip
    for name, errors in names.items():
        for seed, error in enumerate(errors):
            write_finished_run(tmp_path, name, seed, error)
    runs, _ = find_runs([tmp_path])
    claims = [
        Claim("it is", "fashion_bs64", "as_good_as", "fashion_bs128", 0.5),
        Claim("it fails", "fashion_bs2k", "worse_than", "fashion_bs64"),
        Claim("it explodes", "fashion_bs1k", "worse_than", "fashion_bs64"),
    ]
    entries = [Entry(name, name) for name in names]
    study = replace(STUDY, baseline="fashion_bs64", entries=entries, claims=claims)
    groups = compute_findings(runs, [], study).groups
    equal, other, huge = (claim_spread(claim, groups, study) for claim in study.claims)
    assert equal.std == pytest.approx(0.158, abs=0.001), "of variances 0.04 and 0.01"
    assert equal.share == pytest.approx(0.8)
    assert equal.source == "that of 6 runs"
    assert other.std > 20
    assert huge.std == pytest.approx(1e180 / 2**0.5), "its square is beyond floats"
    lines = power_lines(study, groups, Looks(3, 3))
    assert [line for line in lines if line.endswith("(it is)")]
    assert [line for line in lines if line.endswith("(it fails)")]
