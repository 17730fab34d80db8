"""Numbers, verdicts and claims of made-up runs, each worked out by hand."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.composed import compose_recipe
from helpers.run_folders import write_finished_run, write_perplexity_run, write_run

from lsgd.errors import UsageError
from lsgd.recipe import Recipe
from lsgd.recipe.study import Claim, Entry, Study
from lsgd.report import markdown
from lsgd.report.batch_size_sweep import BatchSizeSweep
from lsgd.report.content import compose
from lsgd.report.findings import Findings, compute_findings
from lsgd.report.groups import RecipeRuns, _labels, trajectory
from lsgd.report.run_folders import find_runs
from lsgd.report.summary import summarise
from lsgd.report.verdict import Verdict, judge_against_published
from lsgd.rules.metric import METRICS, TOP1
from lsgd.run.read import Run


def study(*claims: Claim, recipes: tuple[str, ...] = ("fashion_bs64", "fashion_bs2k")) -> Study:
    return Study(
        name="made_up",
        title="Made up",
        question="Does it?",
        source="nothing",
        baseline=recipes[0],
        seeds=[0, 1, 2],
        entries=[Entry(recipe, f"the {recipe}") for recipe in recipes],
        claims=list(claims),
    )


def found(folder: Path, of: Study | None = None) -> Findings:
    return compute_findings(*find_runs([folder]), of)


def group(findings: Findings, name: str) -> RecipeRuns:
    return next(group for group in findings.groups if group.recipe.name == name)


def runs(folder: Path, recipe: str, *errors: float) -> None:
    for seed, error in enumerate(errors):
        write_finished_run(folder, recipe, seed, error)


def test_runs_are_grouped_by_recipe_and_their_errors_are_the_papers(tmp_path: Path) -> None:
    runs(tmp_path, "fashion_bs64", 8.0, 9.0, 13.0)
    runs(tmp_path, "fashion_bs2k", 16.0)
    findings = found(tmp_path)
    reference = group(findings, "fashion_bs64").sample
    assert reference
    assert (reference.n, reference.mean) == (3, 10.0)
    assert reference.std == pytest.approx(7**0.5)
    other = group(findings, "fashion_bs2k").sample
    assert other
    assert (other.n, other.mean) == (1, 16.0)
    assert findings.baseline is group(findings, "fashion_bs64")


def test_a_recipe_changed_by_a_word_is_another_recipe(tmp_path: Path) -> None:
    write_finished_run(tmp_path, "fashion_bs64", 0, 8.0)
    write_finished_run(tmp_path / "b", "fashion_bs64", 1, 12.0, "optim.weight_decay=0.001")
    write_finished_run(tmp_path / "c", "fashion_bs64", 1, 9.0, "channels_last=true", "data.root=/x")
    findings = found(tmp_path)
    labels = {each.label: [run.recipe.seed for run in each.runs] for each in findings.groups}
    assert labels == {
        "fashion_bs64, optim.weight_decay=0.0001": [0, 1],
        "fashion_bs64, optim.weight_decay=0.001": [1],
    }


def test_labels_have_the_settings_that_differ_among_recipes_of_a_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each recipe is flattened once, since a search leaves thousands of one name."""
    base = compose_recipe("+recipe=digits")
    flattened: list[Recipe] = []
    monkeypatch.setattr(
        "lsgd.report.groups.trajectory",
        lambda recipe: flattened.append(recipe) or trajectory(recipe),
    )
    recipes = [
        base,
        replace(base, workers=3),
        replace(base, workers=3, tail="keep"),
        compose_recipe("+recipe=fashion_bs64"),
    ]
    assert _labels(recipes) == [
        "digits, workers=16, tail=drop",
        "digits, workers=3, tail=drop",
        "digits, workers=3, tail=keep",
        "fashion_bs64",
    ]
    assert flattened == recipes


def test_of_the_same_seed_twice_the_first_that_ended_counts(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "+recipe=fashion_bs64", errors=[50.0])  # still running
    write_run(tmp_path / "b", "+recipe=fashion_bs64", errors=[50.0], diverged=True)
    write_finished_run(tmp_path / "c", "fashion_bs64", 0, 8.0)
    write_finished_run(tmp_path / "d", "fashion_bs64", 1, 9.0)
    write_finished_run(tmp_path / "e", "fashion_bs64", 1, 16.0)
    findings = found(tmp_path)
    only = findings.groups[0]
    assert [run.path.relative_to(tmp_path).parts[0] for run in only.runs] == ["b", "d"]
    assert [run.final_metric for run in only.repeats] == [8.0, 16.0]
    assert (findings.counted, only.diverged) == (2, 1)


def test_a_diverged_run_counts_as_chance_in_claims_and_not_in_the_mean(tmp_path: Path) -> None:
    runs(tmp_path, "fashion_bs64", 8.0, 8.1, 8.2)
    runs(tmp_path, "fashion_bs2k", 8.1, 8.2)
    write_run(tmp_path / "d", "+recipe=fashion_bs2k", seed=2, errors=[9.0, 9.0], diverged=True)
    findings = found(tmp_path, study(NO_WORSE))
    other = group(findings, "fashion_bs2k")
    assert other.sample
    assert (other.sample.n, other.sample.mean) == (2, pytest.approx(8.15))
    [decision] = findings.decisions
    assert decision.difference
    assert decision.difference.mean == pytest.approx((8.1 + 8.2 + 90.0) / 3 - 8.1)  # ten classes
    assert decision.outcome == "not resolved"


def test_a_perplexity_is_held_against_that_of_guessing_and_no_published_error(
    tmp_path: Path,
) -> None:
    for seed in range(3):
        for recipe, value in (("bs256", 120.0 + seed), ("bs512", 130.0)):
            write_perplexity_run(
                tmp_path / f"{recipe}-{seed}",
                f"+recipe={recipe}",
                seed=seed,
                perplexities=[value] * (90 if (recipe, seed) != ("bs512", 2) else 1),
                diverged=(recipe, seed) == ("bs512", 2),
            )
    claim = Claim("worse", "bs512", "worse_than", "bs256")
    findings = found(tmp_path, study(claim, recipes=("bs256", "bs512")))
    assert findings.metric is METRICS["perplexity"]
    assert (findings.other_evaluation_sets, findings.example_unit, findings.batch_unit) == (
        ["test"],
        "tokens",
        "examples",
    )
    [decision] = findings.decisions
    assert decision.difference
    assert decision.difference.mean == pytest.approx((2 * 130 + 1000) / 3 - 121)  # 1000 classes
    assert {verdict.outcome for verdict in findings.verdicts} == {"none published"}


def test_runs_of_two_metrics_are_refused_where_both_count(tmp_path: Path) -> None:
    """In a study too; one that is still under way is left out anyway."""
    write_finished_run(tmp_path, "fashion_bs64", 0, 8.0)
    words = "+recipe=fashion_bs2k"
    other = write_perplexity_run(tmp_path / "p", words, perplexities=[120.0])
    assert found(tmp_path).metric is TOP1
    with (other / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "diverged", "step": 30, "text": "loss is nan"}\n')
    for of in (None, study()):
        with pytest.raises(UsageError) as caught:
            found(tmp_path, of)
        assert str(caught.value) == (
            f"{tmp_path}/fashion_bs64-seed0 is a run of top-1 error and {other} one of perplexity, "
            "which cannot be compared; give runs of one of them"
        )


def test_what_is_left_out_of_a_study_says_why(tmp_path: Path) -> None:
    write_finished_run(tmp_path, "fashion_bs64", 0, 8.0)
    write_finished_run(tmp_path, "fashion_bs64", 7, 8.0)
    write_finished_run(tmp_path, "fashion_bs512", 0, 8.0)
    write_finished_run(tmp_path / "x", "fashion_bs2k", 0, 9.0, "optim.momentum=0.8")
    write_run(tmp_path / "running", "+recipe=fashion_bs2k", seed=1, errors=[30.0, 20.0])
    findings = found(tmp_path, study())
    assert {each.path.name: each.reason for each in findings.skipped_folders} == {
        "fashion_bs512-seed0": "fashion_bs512 is not in this study",
        "fashion_bs2k-seed0": "it differs from recipe=fashion_bs2k: optim.momentum=0.8, not 0.9",
        "running": "2 of 9 epochs done: it is running, or was stopped",
    }
    assert findings.is_partial
    assert (findings.counted, findings.planned) == (2, 7), "of other seeds too"
    assert group(findings, "fashion_bs64").missing == [1, 2]
    assert group(findings, "fashion_bs2k").missing == [0, 1, 2]


def test_a_study_changed_by_words_has_the_runs_that_were_trained_with_them(tmp_path: Path) -> None:
    write_finished_run(tmp_path / "a", "fashion_bs64", 0, 8.0)
    write_finished_run(tmp_path / "b", "fashion_bs64", 0, 9.0, "optim.momentum=0.8")
    findings = compute_findings(*find_runs([tmp_path]), study(), ["optim.momentum=0.8"])
    assert [run.final_metric for run in group(findings, "fashion_bs64").runs] == [9.0]
    assert [each.path.parent.name for each in findings.skipped_folders] == ["a"]


NO_WORSE = Claim("as good", "fashion_bs2k", "no_worse_than", "fashion_bs64", within=0.5)
WORSE = Claim("worse", "fashion_bs2k", "worse_than", "fashion_bs64")


@pytest.mark.parametrize(
    ("errors", "no_worse", "worse"),
    [
        # Against 8.0, 8.1, 8.2. With 0.1 of spread each, an interval is +-0.23 wide.
        ((8.1, 8.2, 8.3), "holds", "not resolved"),  # +0.10: -0.13 to 0.33
        ((8.4, 8.5, 8.6), "not resolved", "holds"),  # +0.40: 0.17 to 0.63
        ((9.0, 9.1, 9.2), "does not hold", "holds"),  # +1.00: 0.77 to 1.23
        ((7.0, 7.1, 7.2), "holds", "does not hold"),  # -1.00: -1.23 to -0.77
        ((6.0, 8.0, 12.0), "not resolved", "not resolved"),
        ((9.0, 9.1), "not resolved", "not resolved"),  # a seed of the study is missing
        ((20.0,), "not resolved", "not resolved"),
        ((), "not resolved", "not resolved"),
    ],
)
def test_claims_hold_fail_or_stay_open(
    tmp_path: Path, errors: tuple[float, ...], no_worse: str, worse: str
) -> None:
    runs(tmp_path, "fashion_bs64", 8.0, 8.1, 8.2)
    runs(tmp_path, "fashion_bs2k", *errors)
    decisions = found(tmp_path, study(NO_WORSE, WORSE)).decisions
    assert [decision.outcome for decision in decisions] == [no_worse, worse]
    if len(errors) < 3:
        assert decisions[0].lacks == (f"“the fashion_bs2k” has {len(errors)} of 3 seeds",)
        assert decisions[0].difference is None


def judged(name: str, *words: str, like: str | None = None, errors: list[float]) -> Verdict:
    """The verdict on a recipe whose runs are made up."""
    recipe = compose_recipe(f"+recipe={name}", *words)
    published = compose_recipe(f"+recipe={like or name}")
    made = [Run(Path("x"), replace(recipe, seed=s, epochs=1), []) for s in range(len(errors))]
    for run, error in zip(made, errors, strict=True):
        run.rows.append({"kind": "epoch", "step": 1, "epoch": 1, "val_top1_error": error})
    return judge_against_published(RecipeRuns(name, recipe, None, published, made))


def test_five_runs_of_the_papers_recipe_are_inside_or_outside() -> None:
    assert judged("bs256", errors=[23.5, 23.6, 23.7, 23.6, 23.5]).outcome == "inside"
    outside = judged("bs256", errors=[24.5, 24.6, 24.7, 24.6, 24.5])
    assert outside.outcome == "outside"
    assert outside.difference
    assert outside.difference.mean == pytest.approx(24.58 - 23.60)
    assert outside.difference.low > 0.8
    # A row of an ablation is held against its own number, not against the paper's recipe.
    assert judged("bs8k_no_warmup", errors=[24.8, 25.2, 24.5, 25.0, 24.6]).outcome == "inside"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["data.image_size=128"], "128 pixels, not 224"),
        (["epochs=50", "schedule.milestones=[20]"], "50 epochs, not 90"),
        (["model.name=resnet101"], "resnet101, not resnet50"),
        (["optim.nesterov=false"], "optim.nesterov=False, not True"),
        (["+deviations.crop=other"], "declared deviations: crop"),
        (["inputs=synthetic"], "data.synthetic=True, not False"),
    ],
)
def test_another_run_than_the_papers_is_not_comparable(words: list[str], reason: str) -> None:
    verdict = judged("bs256", *words, errors=[23.6] * 5)
    assert verdict.outcome == "not comparable"
    assert reason in verdict.reasons


def test_fewer_seeds_than_the_paper_are_not_comparable() -> None:
    assert judged("bs256", errors=[23.5, 23.6, 23.7, 23.6]).reasons == ("4 seeds, not 5",)
    assert judged("bs256", errors=[]).reasons == ("no finished run",)


@pytest.mark.parametrize("name", ["dle_bs4k", "fujitsu_bs86016"])
def test_a_mean_of_unknown_runs_or_of_another_definition_is_not_comparable(name: str) -> None:
    """One source prints no number of runs, the other the errors of the last epoch."""
    verdict = judged(name, errors=[22.0, 22.1, 22.2, 22.0, 22.1])
    assert verdict.outcome == "not comparable"
    assert [reason for reason in verdict.reasons if "known number of runs" in reason]


def test_the_interval_is_that_of_the_published_number_of_runs() -> None:
    """A mean of two runs with this spread is known to about 1 point, one of 100 to 0.1."""
    ours = judged("bs256", errors=[23.9, 24.0, 24.1, 24.0, 24.1])
    assert ours.outcome == "outside"
    recipe = compose_recipe("+recipe=bs256")
    assert recipe.target
    few = replace(recipe, target=replace(recipe.target, runs=2))
    made = [Run(Path("x"), replace(recipe, seed=s, epochs=1), []) for s in range(5)]
    for run, error in zip(made, [23.9, 24.0, 24.1, 24.0, 24.1], strict=True):
        run.rows.append({"kind": "epoch", "step": 1, "epoch": 1, "val_top1_error": error})
    assert judge_against_published(RecipeRuns("bs256", few, None, few, made)).outcome == "inside"


def test_another_dataset_is_not_comparable_and_its_scale_is_no_reason() -> None:
    verdict = judged("fashion_bs2k", like="bs8k", errors=[16.0] * 5)
    assert verdict.outcome == "not comparable"
    assert verdict.reasons[:2] == ("fashion-mnist data, not imagenet", "28 pixels, not 224")
    assert not any("=" in reason for reason in verdict.reasons)


def test_without_a_published_number_there_is_no_verdict() -> None:
    assert judged("fashion_bs64", errors=[8.0] * 5).outcome == "none published"


@pytest.mark.parametrize(("like", "count"), [("bs8k", 5), ("cloudtpu_bs1k", None)])
def test_a_report_states_the_number_of_published_runs(
    tmp_path: Path, like: str, count: int | None
) -> None:
    """It decides the verdict, and is absent where it is not known."""
    runs(tmp_path, "fashion_bs64", 8.0)
    of = replace(study(), entries=[Entry("fashion_bs64", "a", like=like)])
    findings = found(tmp_path, of)
    [recipe] = summarise(findings, "command", "version")["recipes"]
    assert recipe["published"].get("runs", "absent") == (count or "absent")
    page = markdown.render(compose(findings, [], "command", "version"))
    assert f"less that of the {f'{count} ' if count else ''}published runs has 0 in it" in page


LADDER = ("fashion_bs64", "fashion_bs128", "fashion_bs256", "fashion_bs512", "fashion_bs1k")


def ladder(folder: Path, *means: float, of: Study | None = None) -> BatchSizeSweep:
    for recipe, mean in zip(LADDER, means, strict=True):
        runs(folder, recipe, mean - 0.1, mean, mean + 0.1)
    [only] = found(folder, of).sweeps
    return only


def names(groups: list[RecipeRuns]) -> list[str]:
    return [each.recipe.name for each in groups]


@pytest.mark.slow
def test_the_elbow_is_the_largest_minibatch_shown_to_be_no_worse(tmp_path: Path) -> None:
    # Intervals are +-0.23: 8.4 against 8.0 is open, 9 is worse, 8.1 is no worse.
    up = ladder(tmp_path, 8.0, 8.4, 8.1, 9.0, 10.0)
    assert up.baseline.recipe.name == "fashion_bs64"
    assert up.elbow.recipe.name == "fashion_bs256"
    assert names(up.as_good) == ["fashion_bs256"]
    assert names(up.worse) == ["fashion_bs512", "fashion_bs1k"]


def test_the_elbow_goes_by_the_studys_margin(tmp_path: Path) -> None:
    claim = replace(NO_WORSE, recipe="fashion_bs512", within=1.5)
    up = ladder(tmp_path, 8.0, 8.4, 8.1, 9.0, 10.0, of=study(claim, recipes=LADDER))
    assert up.margin == 1.5
    assert up.elbow.recipe.name == "fashion_bs512"


def test_the_elbow_is_as_good_by_the_test_of_the_studys_claims(tmp_path: Path) -> None:
    """Where a claim holds that a minibatch is as good, the elbow may not lie below it."""
    claim = replace(NO_WORSE, recipe="fashion_bs512", relation="as_good_as", within=0.5)
    of = study(claim, recipes=LADDER)
    up = ladder(tmp_path, 8.0, 8.1, 8.1, 8.3, 10.0, of=of)  # +-0.23 at 95 %, and +-0.17 at 90 %
    assert found(tmp_path, of).decisions[0].outcome == "holds"
    assert up.elbow.recipe.name == "fashion_bs512"
    assert names(up.worse) == ["fashion_bs1k"]


def test_the_elbow_is_no_recipe_that_lacks_seeds_of_the_study(tmp_path: Path) -> None:
    of = study(recipes=LADDER)
    assert ladder(tmp_path, 8.0, 8.1, 8.1, 8.1, 9.0, of=of).elbow.recipe.name == "fashion_bs512"
    [sweep] = found(tmp_path, replace(of, seeds=[0, 1, 2, 3])).sweeps
    assert sweep.elbow is sweep.baseline
    assert sweep.worse == []


def test_an_elbow_that_is_not_tested_is_not_published(tmp_path: Path) -> None:
    """As long as seeds are missing there is no result, and so none that no minibatch is as good."""

    def published() -> tuple[str, list[object]]:
        findings = found(tmp_path, replace(study(recipes=LADDER), seeds=[0, 1, 2, 3]))
        page = markdown.render(compose(findings, [], "command", "version"))
        [line] = [each for each in page.splitlines() if "Elbow: " in each]
        return line, summarise(findings, "command", "version")["elbows"]

    ladder(tmp_path, 8.0, 8.1, 8.1, 8.1, 9.0)
    line, elbows = published()
    assert "it is tested once 64 and a larger minibatch have 4 seeds each." in line
    assert "is shown" not in line
    assert elbows == []
    for recipe in LADDER[:2]:
        write_finished_run(tmp_path, recipe, 3, 8.1)
    line, elbows = published()
    assert "128 images (468 steps per epoch) is the largest minibatch that is shown" in line
    assert "Not tested yet, with too few seeds: 256, 512, 1k." in line
    assert len(elbows) == 1


def test_an_elbow_needs_two_seeds_of_the_baseline(tmp_path: Path) -> None:
    """One has no interval, so that no minibatch would be shown to be as good."""
    for recipe in LADDER[:3]:
        write_finished_run(tmp_path, recipe, 0, 8.0)
    [sweep] = found(tmp_path).sweeps
    assert not sweep.is_tested
    for recipe in LADDER[:2]:
        write_finished_run(tmp_path, recipe, 1, 8.1)
    [sweep] = found(tmp_path).sweeps
    assert sweep.is_tested
    assert [group.recipe.name for group in sweep.untested] == [LADDER[2]]


def test_recipes_that_differ_in_more_than_the_minibatch_are_no_ladder(tmp_path: Path) -> None:
    for recipe in ("fashion_bs64", "fashion_bs2k", "fashion_bs4k"):
        write_finished_run(tmp_path, recipe, 0, 8.0)
    assert len(found(tmp_path).sweeps) == 1
    again = tmp_path / "again"
    for recipe in ("fashion_bs64", "fashion_bs2k_no_warmup", "fashion_bs2k"):
        write_finished_run(again, recipe, 0, 8.0)
    assert found(again).sweeps == []


def test_efficiency_is_against_the_fewest_processes_on_the_same_hardware(tmp_path: Path) -> None:
    two = "2 processes by torchrun over torch.distributed (gloo), CPU, threads per process: 1"
    one, words = "1 process, CPU, threads per process: 1", "+recipe=fashion_bs64"
    for name, machine, speed, more in (
        ("a", one, 1000.0, "channels_last=false"),
        ("b", two, 1500.0, "channels_last=false"),
        ("c", two, 4000.0, "channels_last=true"),
        ("d", two, 5000.0, "channels_last=auto"),
    ):
        errors = [9.0] * 9
        write_run(tmp_path / name, words, more, errors=errors, machine=machine, speed=speed)
    speeds = found(tmp_path).speeds
    assert [(each.processes, each.per_second, each.efficiency) for each in speeds] == [
        (1, 1000.0, None),
        (2, 1500.0, 0.75),
        (2, 4000.0, None),  # another layout, and nothing to compare it with
        (2, 5000.0, None),
    ]


def test_epochs_after_a_restart_belong_to_the_hardware_they_ran_on(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", "+recipe=fashion_bs64", errors=[9.0] * 4, speed=1000.0)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(
            '{"kind": "start", "step": 1, "machine": "9 processes, one that trained none"}\n'
        )
    later = write_run(
        tmp_path / "b",
        "+recipe=fashion_bs64",
        errors=[9.0] * 9,
        speed=1800.0,
        machine="2 processes, CPU, threads per process: 1; in memory",
    )
    start, *epochs = (later / "metrics.jsonl").read_text().splitlines(keepends=True)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("".join([start, *epochs[4:]]))
    (later / "metrics.jsonl").unlink()
    [run] = found(tmp_path).runs
    assert [start["machine"][:10] for start in run.starts] == ["1 process,", "2 processe"]
    speeds = found(tmp_path).speeds
    assert [(each.processes, each.efficiency) for each in speeds] == [(1, None), (2, 0.9)]


def test_hardware_is_what_a_run_says_of_its_device_and_not_what_it_timed(tmp_path: Path) -> None:
    for seed, (processes, speed) in enumerate([(1, 1000.0), (1, 1200.0), (2, 1650.0)]):
        folder = tmp_path / str(seed)
        write_run(folder, "+recipe=fashion_bs64", seed=seed, errors=[9.0] * 9, speed=speed)
        start, *rows = (folder / "metrics.jsonl").read_text().splitlines()
        parts = {"device": "H200", "processes": processes, "inputs": "in memory"}
        parts |= {"machine": f"{processes} process, CPU; {speed} images/s with 4 workers per pass"}
        lines = [json.dumps(json.loads(start) | parts), *rows]
        (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    speeds = found(tmp_path).speeds
    assert [(each.processes, each.per_second) for each in speeds] == [(1, 1100), (2, 1650)]
    assert speeds[1].efficiency == pytest.approx(0.75)
    assert {each.hardware.partition("; workers")[0] for each in speeds} == {"H200; in memory"}


def test_a_study_may_count_all_runs_of_a_seed_by_their_mean(tmp_path: Path) -> None:
    """They are no independent samples: n stays the number of seeds, whatever their order."""
    runs(tmp_path / "a", "fashion_bs64", 8.0, 9.0, 10.0)
    runs(tmp_path / "a", "fashion_bs2k", 8.0, 9.0, 10.0)
    runs(tmp_path / "b", "fashion_bs64", 9.0)
    write_run(tmp_path / "b/diverged", "+recipe=fashion_bs64", seed=1, errors=[9.0], diverged=True)
    asked = study(Claim("it is", "fashion_bs2k", "no_worse_than", "fashion_bs64", 0.5))
    for folders in (["a", "b"], ["b", "a"]):
        given = find_runs([tmp_path / folder for folder in folders])
        of_all = group(compute_findings(*given, replace(asked, repeats="mean")), "fashion_bs64")
        assert of_all.sample is not None
        assert of_all.sample.mean == pytest.approx((8.5 + 9.0 + 10.0) / 3)
        assert of_all.claim_sample is not None
        assert of_all.claim_sample.n == 3
        assert of_all.claim_sample.mean == pytest.approx((8.5 + (9.0 + 90.0) / 2 + 10.0) / 3)
        assert of_all.diverged == 1
    first = group(compute_findings(*find_runs([tmp_path / "a", tmp_path / "b"]), asked),
                  "fashion_bs64")  # fmt: skip
    assert first.claim_sample is not None
    assert first.claim_sample.mean == 9.0
