"""Studies, as a user asks for them."""

import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.composed import compose_recipe
from helpers.run_folders import write_run
from helpers.usage_errors import usage_error

from lsgd import definitions, paths
from lsgd.errors import UsageError
from lsgd.planned import PlannedRun, RunLauncher
from lsgd.recipe.study import Entry, Study
from lsgd.report.groups import group_study
from lsgd.report.look_record import note_look, read_looks
from lsgd.report.looks import Looks
from lsgd.run.read import read_run
from lsgd.study import reporting
from lsgd.study.__main__ import main
from lsgd.study.planned_runs import check_sources, planned_runs, trained_seeds
from lsgd.study.reporting import make_folders, report_folder
from lsgd.study.run_queue import RunQueue
from lsgd.train import train


def test_print_starts_nothing(
    inside: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setattr("lsgd.study.__main__.cost_lines", lambda *_: [])  # which times a step
    assert main(["+study=small", "epochs=31", "seeds=[1]", "--np", "1", "--print"]) == 0
    said = capsys.readouterr().out
    assert not list(inside.iterdir())
    lines = said.splitlines()
    assert lines[::2] == ["# digits, seed 1: not started", "# digits_unscaled, seed 1: not started"]
    python = re.escape(shlex.quote(sys.executable))
    for line, recipe in zip(lines[1::2], ("digits", "digits_unscaled"), strict=True):
        assert re.fullmatch(
            f"{python} -m lsgd.launch local {recipe} seed=1 epochs=31 "
            f"run_dir=runs/trials/{recipe}-seed1-[0-9a-f]{{8}} --np 1",
            line,
        )


def test_a_report_without_any_run_is_refused(
    inside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["+study=small", "--np", "1", "--report-only"]) == 2
    assert "finds no run of small in runs/trials; leave it out" in capsys.readouterr().err
    assert not list(inside.iterdir())


@pytest.mark.parametrize("place", ["runs/trials", "runs/studies/small"])
def test_a_folder_that_cannot_be_written_is_refused_before_the_first_run(
    place: str, inside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (inside / place).parent.mkdir(parents=True)
    (inside / place).touch()
    assert main(["+study=small", "--np", "1"]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"lsgd: {place} cannot be written (")
    assert "start the study in a folder that you can write to" in said.err
    assert said.out == ""


@pytest.mark.slow
def test_a_run_that_diverged_in_another_process_has_failed(inside: Path) -> None:
    """It was in the queue of this one, which would else report that all runs are finished."""
    diverged, finished = planned_runs(replace(definitions.load_study("digits"), seeds=[0]), [])[:2]
    queue = RunQueue(RunLauncher("local", {"--np": "1"}), [diverged, finished], [])
    for run, ends in ((diverged, True), (finished, False)):
        errors = [50.0] * (1 if ends else 30)
        words = [f"+recipe={run.recipe.name}"]
        write_run(run.folder, *words, seed=0, errors=errors, diverged=ends)
    failed = queue.train(1)
    assert [*failed] == [str(diverged)]
    assert "diverged" in failed[str(diverged)]


@pytest.mark.slow
def test_a_recipe_starts_from_the_run_of_another_with_the_same_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of it from the seed's weights does not count, nor one that is not finished."""
    monkeypatch.chdir(tmp_path)
    small = ["inputs=synthetic", "device=cpu", "data.train_examples=40", "data.val_examples=4"]
    small += ["workers=1", "worker_batch=8", "epochs=1", "schedule.milestones=[]"]
    entries = [
        Entry(name, "by another", start="digits_no_warmup")
        for name in ("digits", "digits_unscaled")
    ]
    study = Study("small", "", "", "", "digits", [0, 1], entries)
    found = {
        seed: PlannedRun(compose_recipe("+recipe=digits_no_warmup", *small, f"seed={seed}"), [])
        for seed in (0, 1)
    }
    monkeypatch.setattr("lsgd.study.planned_runs._source", lambda _, seed: found[seed])
    before = planned_runs(study, small)
    starts = [f"model.start={found[seed].folder}" for seed in (0, 1)]
    assert [each.overrides[-2:] for each in before] == 2 * [
        [s, "model.new_head=true"] for s in starts
    ]
    with pytest.raises(
        UsageError, match="starts digits from the run of digits_no_warmup with seed 0"
    ):
        check_sources(study, [0])
    for source in found.values():
        train(replace(source.recipe, run_dir=str(source.folder)))
    check_sources(study, [0, 1])
    after = planned_runs(study, small)
    hashes = [each.recipe.model.start_sha256 for each in after]
    assert hashes[:2] == hashes[2:]
    assert len({*hashes, ""}) == 3
    assert all(each.recipe.model.new_head for each in after)
    for number, planned in enumerate([*after[:3], before[0]]):
        train(replace(planned.recipe, run_dir=f"runs/trials/{number}"))
    runs = [read_run(Path(f"runs/trials/{number}")) for number in range(4)]
    groups, left_out = group_study(study, runs, small, [])
    assert [[run.recipe.seed for run in group.runs] for group in groups] == [[0, 1], [0]]
    assert [skipped.path for skipped in left_out] == [Path("runs/trials/3")]
    assert report_folder(study, after) == report_folder(study, before)


@pytest.mark.slow
def test_a_study_that_cannot_be_read_stops_no_other(
    installation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """It is passed over, and named where all are listed."""
    shutil.copytree(installation / "recipes", tmp_path / "recipes")
    (tmp_path / "recipes/study/bad.yaml").write_text("title: [")
    monkeypatch.setattr(paths, "recipes_dir", lambda: tmp_path / "recipes")
    monkeypatch.chdir(tmp_path)
    assert main(["+study=small", "--np", "1", "--print"]) == 0
    with pytest.raises(SystemExit) as end:
        main(["--studies"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    assert "skipped: bad.yaml cannot be read" in said
    assert "\nstudy=small\n" in f"\n{said}"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "no study is given; write for example study=digits; --studies lists them"),
        ("small", "'small' is not of the form key=value; write study=small"),
        ("+study=smal", "study=smal does not exist; did you mean small?"),
        ("+study=small +study=digits", "no study is given; write"),
        ("+study=small name=a", "'name=a' cannot be overridden in a study"),
        ("+study=small seed=1", "write seeds=[0,1] for some of them"),
        ("+study=small ++run_dir=a", "the folder of a run is named by recipe, seed"),
        ("+study=small +recipe=digits", "a study has its recipes"),
        ("+study=small rehearse=true", "a dry run has no result"),
        (
            "+study=small seeds=[0,0]",
            "seeds=[0,0] must be a number of seeds or a list of",
        ),
        (
            "+study=small --max-seeds 5",
            "--max-seeds 5 needs --until-decided; add that, or",
        ),
        ("+study=small --until-decided", "study small has no claim to decide; leave out"),
        (
            "+study=claimed --until-decided --max-seeds 3",
            "must be more than the 3",
        ),
        ("+study=claimed --until-decided seeds=2", "write seeds=3"),
        (
            "+study=fashion_table2_gamma model.last_gamma=0",
            "model.last_gamma=0 makes fashion_bs64 and fashion_bs64_gamma0 the same run",
        ),
        ("+study=small --launch k8s --kind mpijob --image a --claim c", "write --print for the"),
        ("+study=small --launch k8s --print", "--kind is missing, but must be mpijob (Horovod)"),
        ("+study=small seeds=x", "seeds=x must be a number of seeds or a list of distinct seeds"),
        ("+study=small epoch=1", "there is no key 'epoch'; did you mean epochs?"),
        ("+study=small --launch sbatch", "write one of horovodrun, k8s, local, mpirun"),
        ("+study=small --nodes 2", "--nodes is an option of torchrun,"),
        ("+study=small --launch mpirun --np 2 --gpus 2", "write one of them"),
        ("+study=small --jobs 0", "0 is not a whole number of 1 or more"),
        ("+study=small --launch slurm --array 0-2", "--array gives seeds of one recipe to launch"),
    ],
)
def test_what_makes_no_sense_is_said_in_a_sentence(
    words: str, sentence: str, inside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in usage_error(main, capsys, *words.split())
    assert not list(inside.iterdir())


def test_a_queue_that_does_not_answer_is_no_reason_to_train_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = PlannedRun(compose_recipe("+recipe=digits"), [])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    assert trial.active_job is None
    trial.job_path.parent.mkdir(parents=True)
    trial.job_path.write_text("Submitted batch job 12\n")
    with pytest.raises(
        UsageError, match=r"it is unknown whether job 12 .* \(squeue is not installed"
    ):
        assert trial.active_job


@pytest.mark.slow
def test_words_that_change_the_run_have_a_report_of_their_own() -> None:
    digits = definitions.load_study("digits")

    def folder(*words: str) -> Path:
        return report_folder(digits, planned_runs(digits, words))

    assert folder() == folder("device=cpu") == Path("runs/studies/digits")
    assert re.fullmatch(r"digits-[0-9a-f]{8}", folder("epochs=29").name)


def test_two_files_of_one_name_share_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor the record of tests; a file that was changed, moved or reached by a link is the same."""
    monkeypatch.chdir(tmp_path)
    text = "{title: a, question: b, source: c, baseline: digits, seeds: [0], entries: [%s]}"
    entry = "{recipe: digits, label: d}"

    def folder(file: str, entries: str = entry) -> Path:
        Path(file).parent.mkdir(exist_ok=True)
        Path(file).write_text(text % entries)
        study = definitions.load_study(file)
        runs = planned_runs(study, [])
        make_folders(study, runs)
        return report_folder(study, runs)

    note_look(Path("runs/studies/lr"), 5)  # by an earlier version, which recorded no file
    assert read_looks(folder("a/lr.yaml")) == Looks(5, 5)
    another = f"{entry}, {{recipe: bs256, label: e}}"
    assert folder("a/lr.yaml", another) == folder("./a/lr.yaml")
    Path("link").symlink_to("a")
    assert folder("link/lr.yaml").name == "lr"
    with pytest.raises(UsageError, match=r"studies/lr has the .* in link/lr\.yaml, .* rename b/lr"):
        folder("b/lr.yaml", another)
    assert folder("copy/lr.yaml").name == "lr"
    Path("copy/lr.yaml").unlink()
    assert folder("b/lr.yaml", another).name == "lr"
    with pytest.raises(UsageError, match=r"in b/lr\.yaml"):
        folder("a/lr.yaml")


def test_a_project_that_was_copied_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its file is outside of the working folder, has changed since, and its images moved."""
    (tmp_path / "one/work").mkdir(parents=True)
    text = "{title: a, question: b, source: c, baseline: digits, seeds: [0], entries: [%s]}"
    entry = "{recipe: digits, label: d}"
    (tmp_path / "one/lr.yaml").write_text(text % entry)
    monkeypatch.chdir(tmp_path / "one/work")
    study = definitions.load_study("../lr.yaml")
    make_folders(study, planned_runs(study, []))
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    monkeypatch.chdir(tmp_path / "two/work")
    (tmp_path / "two/lr.yaml").write_text(text % f"{entry}, {{recipe: bs256, label: e}}")
    copied = definitions.load_study("../lr.yaml")
    assert report_folder(copied, planned_runs(copied, [])).name == "lr"

    def incomplete(asked: Study, overrides: Sequence[str]) -> list[PlannedRun]:
        if not overrides:
            raise UsageError("its images are gone")
        return planned_runs(asked, overrides)

    monkeypatch.setattr(reporting, "planned_runs", incomplete)
    same, other = (planned_runs(study, [word]) for word in ("device=cpu", "epochs=29"))
    assert report_folder(study, same).name == "lr"
    assert report_folder(study, other).name != "lr"


def test_trials_of_a_recipe_with_any_name_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that has a point, a dash or a plus sign, or ends as folders of trials do."""
    monkeypatch.chdir(tmp_path)
    study = definitions.load_study("digits")
    names = ["own-lr0.1+b", "digits", "a-seed1-b"]
    entries = [replace(study.entries[0], recipe=name) for name in names]
    for seed, name in enumerate(names):
        (tmp_path / f"runs/trials/{name}-seed{seed}-0a1b2c3d").mkdir(parents=True)
    (tmp_path / "runs/trials/other-seed9-0a1b2c3d").mkdir()
    assert trained_seeds(replace(study, entries=entries)) == [0, 1, 2]
