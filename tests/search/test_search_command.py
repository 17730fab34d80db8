"""Searches, as a user asks for them; their trials train nothing."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from helpers.postgresql import postgresql
from helpers.soak import FaultSeries
from helpers.studies import TRIALS, StudyFolder, wait_until
from helpers.usage_errors import usage_error

from lsgd import definitions, paths
from lsgd.installation import install_command
from lsgd.job import members
from lsgd.run.rows import read_rows
from lsgd.search.__main__ import main
from lsgd.search.folder import open_folder
from lsgd.search.optuna_study import OptunaStudy
from lsgd.search.record import load_record
from lsgd.search.space import SearchSpace

SEARCH = ("+search=small", "--launch", "mpirun", "--np", "2")
FOLDER = Path("runs/searches/small")


def search(place: StudyFolder, *words: str, **plan: str) -> tuple[int, str]:
    return place.run(*SEARCH, *words, command="search", **plan)


def points(place: StudyFolder, name: str = "small") -> list[tuple[str, dict]]:
    record = load_record(place.folder / "runs/searches" / name)
    return [(point.state, dict(point.values)) for point in record.points]


@pytest.mark.distributed
def test_it_ends_with_a_page_and_goes_on_with_more_points(place: StudyFolder) -> None:
    """One diverges; the same words train nothing; two searches at once share what is left."""
    code, said = search(place, "trials=3", "holdout_seeds=[5]", **{"lr>0.3": "3"})
    assert code == 0, said
    assert "runs/searches/small: 3 trials, 0 of them done" in said
    assert re.search(r"trial 2 of 3 \(reference_lr \S+, momentum 0.\d\): top-1 error \S+ %, ", said)
    assert (
        "trial 1 of 3 (reference_lr 0.417, momentum 0.9): failed: diverged in epoch 2 of 4" in said
    )
    assert "the best trial, seed 5: top-1 error" in said
    assert "the unchanged recipe, seed 5: top-1 error 15.00 %" in said
    assert re.search(
        r"best: top-1 error \S+ % with schedule.reference_lr=\S+ optim.momentum=", said
    )
    page = (place.folder / FOLDER / "README.md").read_text()
    assert "3 trials of 3: 2 finished, 1 failed." in page
    assert "diverged in epoch 2 of 4" in page
    starts = place.starts()
    code, said = search(place, "trials=3", "holdout_seeds=[5]")
    assert (code, place.starts()) == (0, starts)
    # More points, by two searches, each with two jobs; both end when all is done.
    words = (*SEARCH, "trials=5", "--jobs", "2")
    both = [place.start_fork(*words, command="search") for _ in range(2)]
    said = [job.communicate(timeout=600)[0] for job in both]
    assert [job.returncode for job in both] == [0, 0], said
    found = points(place)
    assert len({json.dumps(values) for _, values in found}) == len(found) == 5
    assert [state for state, _ in found].count("finished") == 4
    assert not list((place.folder / TRIALS).glob("*/twice"))


@pytest.mark.distributed
def test_told_to_stop_its_trials_save_and_the_same_command_goes_on(place: StudyFolder) -> None:
    job = place.start(*SEARCH, "epochs=400", "trials=1", command="search", **{"lr>0": "slow"})
    wait_until(lambda: any(len(each) > 2 for each in place.epochs_of_all()))
    job.send_signal(signal.SIGTERM)
    said, _ = job.communicate(timeout=600)
    assert job.returncode == 75, said
    assert "stopped; rerun the same command to resume it" in said
    [folder] = (place.folder / TRIALS).glob("*[0-9a-f]/")
    assert members.job_pids(folder) == []
    code, said = search(place, "epochs=400", "trials=1")
    assert code == 0, said
    assert "resumes after epoch" in said
    assert place.epochs(folder) == list(range(1, 401))


def kill(place: StudyFolder, job: int, how: str) -> None:
    """Kill the search, what it has started, or both."""
    started = [
        pid
        for folder in (place.folder / TRIALS).glob("*[0-9a-f]/")
        for pid in members.job_pids(folder)
    ]
    for pid in ([job] if how != "children" else []) + (started if how != "search" else []):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def undisturbed_after_kills(
    place: StudyFolder, tmp_path: Path, moments: int, seed: int, trials: int, *,
    storage: Callable[[str], list[str]] = lambda name: [],
) -> int:  # fmt: skip
    """Kill a search and what it has started at so many moments and compare what it comes to with
    one that was left alone; returns how many kills have met a search that was not over."""
    words = ["epochs=25", f"trials={trials}", "prune={rule: median, after_trials: 2}"]
    whole = StudyFolder(tmp_path / "whole", place.installation)
    whole.folder.mkdir()
    code, said = search(whole, *words, *storage("whole"))
    assert code == 0, said
    [record] = (whole.folder / "runs/searches").iterdir()
    draw, met = random.Random(seed), 0
    words += storage("disturbed")
    for moment in range(moments):
        job = place.start(*SEARCH, *words, command="search")
        with suppress(subprocess.TimeoutExpired):
            job.wait(draw.uniform(1.5, 5))
        met += job.poll() is None
        kill(place, job.pid, ["search", "children", "both"][moment % 3])
        if moment % 3 == 1:
            time.sleep(draw.uniform(0, 2))
            job.kill()
        job.communicate(timeout=600)
    code, said = search(place, *words)
    assert code == 0, said
    undisturbed = points(whole, record.name)
    assert points(place, record.name) == undisturbed
    assert len({json.dumps(values) for _, values in undisturbed}) == len(undisturbed) == trials
    for folder in (place.folder / TRIALS).glob("*[0-9a-f]/"):
        assert not (folder / "twice").exists()
        epochs = [row["epoch"] for row in read_rows(folder / "metrics.jsonl") if "epoch" in row]
        assert epochs == list(range(1, len(epochs) + 1)), "none is trained twice"
        assert members.job_pids(folder) == []
    return met


@pytest.mark.distributed
@pytest.mark.slow
def test_killed_at_random_moments_it_ends_as_if_it_had_not_been(
    place: StudyFolder, tmp_path: Path
) -> None:
    """The search, its children, or all of it; the same points in the same order, each once."""
    undisturbed_after_kills(place, tmp_path, moments=3, seed=0, trials=3)


@pytest.mark.distributed
@pytest.mark.soak
@pytest.mark.parametrize(
    "storage", ["journal", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)]
)
def test_killed_at_thirty_random_moments(
    place: StudyFolder, tmp_path: Path, storage: str, soak: FaultSeries
) -> None:
    with postgresql() if storage == "postgresql" else nullcontext() as database:

        def words(name: str) -> list[str]:
            if storage == "journal":
                return []
            return ["--storage", database(name) if database else f"sqlite:///{tmp_path}/{name}.db"]

        met = undisturbed_after_kills(
            place, tmp_path, moments=30, seed=soak.seed, trials=120, storage=words
        )
    soak.note(f"- a search in {storage}: {met} of 30 kills met it at work, and the points are same")
    assert met > 20


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "no search is given; write for example search=digits; --searches lists them"),
        ("+search=smal", "search=smal does not exist; did you mean small?"),
        ("+search=small seed=1", "write seeds=[0] for the seeds of every point"),
        ("+search=small space.a=1", "is a field of a search file; write your own file"),
        ("+search=small trials=0", "trials=0 is not possible; write 1 or more"),
        ("+search=small trials=1e3", "trials=1e3 is not a whole number; write for example trials="),
        (
            "+search=small prune=median",
            "prune=median is not a rule of pruning; write prune.rule=me",
        ),
        ("+search=small prune.ruel=median", "pruning has no ruel; did you mean rule?"),
        ("+search=small seeds=[]", "seeds=[] must be a number of seeds or a list of distinct seed"),
        ("+search=small holdout_seeds=2", "write distinct numbers that are not among seeds=[0]"),
        ("+search=small sampler=cma", "sampler=cma is unknown; write one of grid, random, tpe, gp"),
        ("+search=small epoch=1", "there is no key 'epoch'; did you mean epochs?"),
        ("+search=small optim.momentum=0.3", "a search that varies optim.momentum; leave it out"),
        ("+search=small schedule.reference_batch=0", "schedule.reference_batch=0 is not possible"),
        ("+search=small --jobs 0", "0 is not a whole number of 1 or more"),
        (
            "+search=small --launch k8s --kind mpijob --image a --claim c",
            "a search cannot follow jobs on Kubernetes",
        ),
        ("+search=small --report a --out b", "--report FOLDER … takes only --out FOLDER"),
        ("--report a", "takes only --out FOLDER, the folder of the page"),
        ("--report a --out b --jobs 2", "takes only --out FOLDER, the folder of the page"),
        ("--report a --out b --storage sqlite:///a.db", "takes only --out FOLDER, the folder of"),
        ("--report a --out b --status", "--status: not allowed with argument --report"),
        ("--report a --out b --retry-failed", "--retry-failed: not allowed with argument --report"),
        ("+search=small --print --status", "--status: not allowed with argument --print"),
        ("+search=small --status --report-only", "--report-only: not allowed with argument --st"),
        ("+search=small --print --retry-failed", "--retry-failed: not allowed with argument --pr"),
        ("+search=small --report-only --retry-failed", "not allowed with argument --report-only"),
        ("--report a --out b", "a has no points.json of a search; write the folder of a search"),
        ("+search=small --out b", "--out is for --report"),
        ("+search=small --report-only", "runs/searches/small has no trial to report on"),
        ("+search=small --launch slurm --array 0-2", "and --jobs N for the number of"),
        ("+search=small --launch slurm --gpus 0", "--np N is for processes without GPUs"),
    ],
)
def test_what_makes_no_sense_is_said_in_a_sentence(
    words: str, sentence: str, inside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in usage_error(main, capsys, *words.split())
    assert not list(inside.iterdir())


@pytest.mark.slow
def test_a_search_that_was_changed_since_is_told_from_the_old(
    installation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    shutil.copytree(installation / "recipes", tmp_path / "recipes")
    monkeypatch.setattr(paths, "recipes_dir", lambda: tmp_path / "recipes")
    monkeypatch.chdir(tmp_path)
    open_folder(SearchSpace(definitions.load_search("small"), []))
    file = tmp_path / "recipes/search/small.yaml"
    file.write_text(file.read_text().replace("1e-4", "1e-3"))
    assert main(["+search=small", "--print"]) == 2
    assert "belongs to a search with a different space: its file small.yaml has changed" in (
        capsys.readouterr().err
    )


@pytest.mark.slow
def test_what_is_printed_leaves_nothing(
    inside: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a folder where there is none, nor a line in the journal of a search that is there."""
    monkeypatch.setattr(SearchSpace, "check", lambda _: None)  # which takes seconds
    assert main(["+search=small", "--print"]) == 0
    assert capsys.readouterr().out == "# runs/searches/small: 6 trials, 0 of them started\n"
    assert not [*inside.iterdir()]

    FOLDER.mkdir(parents=True)
    engine = OptunaStudy(definitions.load_search("small"), FOLDER)
    engine.values(engine.ask())
    before = {path: path.read_bytes() for path in FOLDER.rglob("*") if path.is_file()}
    assert main(["+search=small", "--print"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("# runs/searches/small: 6 trials, 1 of them started\n# 1: reference_lr ")
    assert " run_dir=runs/trials/digits-seed0-" in said
    assert {path: path.read_bytes() for path in FOLDER.rglob("*") if path.is_file()} == before


def test_without_optuna_it_says_what_to_type(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "lsgd.search.optuna_study", None)
    monkeypatch.delitem(sys.modules, "lsgd.search.optuna_study")
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(["+search=digits", "--print"]) == 2
    assert (
        capsys.readouterr().err == f"lsgd: a search needs Optuna; run {install_command('search')}\n"
    )
