"""Searches, as a user asks for them; their trials train nothing."""

import json
import os
import random
import re
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from helpers.studies import TRIALS, Place, until

from lsgd import config, paths
from lsgd.installation import install
from lsgd.job import members
from lsgd.run.rows import read_rows
from lsgd.search.__main__ import main
from lsgd.search.engine import Engine
from lsgd.search.folder import open_folder
from lsgd.search.record import load
from lsgd.search.space import Space

SEARCH = ("+search=small", "--launch", "mpirun", "--np", "2")
FOLDER = Path("runs/searches/small")


def search(place: Place, *words: str, **plan: str) -> tuple[int, str]:
    return place.run(*SEARCH, *words, command="search", **plan)


def points(place: Place, name: str = "small") -> list[tuple[str, dict]]:
    record = load(place.folder / "runs/searches" / name)
    return [(point.state, dict(point.values)) for point in record.points]


@pytest.mark.distributed
def test_it_ends_with_a_page_and_goes_on_with_more_points(place: Place) -> None:
    """One diverges; the same words train nothing; two searches at once share what is left."""
    code, said = search(place, "trials=3", "compared_seeds=[5]", **{"lr>0.3": "3"})
    assert code == 0, said
    assert "runs/searches/small: 3 points, 0 of them tried" in said
    assert re.search(r"point 2 of 3 \(reference_lr \S+, momentum 0.\d\): top-1 error \S+ %, ", said)
    assert (
        "point 1 of 3 (reference_lr 0.417, momentum 0.9): failed: diverged in epoch 2 of 4" in said
    )
    assert "the best point, seed 5: top-1 error" in said
    assert "the recipe as it is, seed 5: top-1 error 15.00 %" in said
    assert re.search(
        r"best: top-1 error \S+ % with schedule.reference_lr=\S+ optim.momentum=", said
    )
    page = (place.folder / FOLDER / "README.md").read_text()
    assert "3 points of 3: 2 finished, 1 failed." in page
    assert "diverged in epoch 2 of 4" in page
    starts = place.starts()
    code, said = search(place, "trials=3", "compared_seeds=[5]")
    assert (code, place.starts()) == (0, starts)
    code, said = search(place, "trials=3", "--print")
    assert (code, place.starts()) == (0, starts)
    assert said.startswith(
        "# runs/searches/small: 3 points, 3 of them begun\n# 1: reference_lr 0.4"
    )
    # More points, by two searches, each with two jobs; both end when all is done.
    both = [place.start(*SEARCH, "trials=7", "--jobs", "2", command="search") for _ in range(2)]
    said = [job.communicate(timeout=200)[0] for job in both]
    assert [job.returncode for job in both] == [0, 0], said
    found = points(place)
    assert len({json.dumps(values) for _, values in found}) == len(found) == 7
    assert [state for state, _ in found].count("finished") == 6
    assert not list((place.folder / TRIALS).glob("*/twice"))


@pytest.mark.distributed
def test_told_to_stop_its_trials_save_and_the_same_command_goes_on(place: Place) -> None:
    job = place.start(*SEARCH, "epochs=400", "trials=1", command="search")
    until(lambda: any(len(each) > 2 for each in place.epochs_of_all()))
    job.send_signal(signal.SIGTERM)
    said, _ = job.communicate(timeout=100)
    assert job.returncode == 75, said
    assert "stopped; the same command goes on with it" in said
    [folder] = (place.folder / TRIALS).glob("*[0-9a-f]/")
    assert members.running(folder) == []
    code, said = search(place, "epochs=400", "trials=1")
    assert code == 0, said
    assert "goes on after epoch" in said
    assert place.epochs(folder) == list(range(1, 401))


def kill(place: Place, job: int, how: str) -> None:
    """Kill the search, what it has started, or both."""
    started = [
        pid
        for folder in (place.folder / TRIALS).glob("*[0-9a-f]/")
        for pid in members.running(folder)
    ]
    for pid in ([job] if how != "children" else []) + (started if how != "search" else []):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def undisturbed_after_kills(
    place: Place, tmp_path: Path, moments: int, seed: int, trials: int
) -> None:
    words = ["epochs=25", f"trials={trials}", "prune={rule: median, after_trials: 2}"]
    whole = Place(tmp_path / "whole", place.installation)
    whole.folder.mkdir()
    code, said = search(whole, *words)
    assert code == 0, said
    [record] = (whole.folder / "runs/searches").iterdir()
    draw = random.Random(seed)
    for moment in range(moments):
        job = place.start(*SEARCH, *words, command="search")
        time.sleep(draw.uniform(1.5, 5))
        kill(place, job.pid, ["search", "children", "both"][moment % 3])
        if moment % 3 == 1:
            time.sleep(draw.uniform(0, 2))
            job.kill()
        job.communicate(timeout=60)
    code, said = search(place, *words)
    assert code == 0, said
    undisturbed = points(whole, record.name)
    assert points(place, record.name) == undisturbed
    assert len({json.dumps(values) for _, values in undisturbed}) == len(undisturbed) == trials
    for folder in (place.folder / TRIALS).glob("*[0-9a-f]/"):
        assert not (folder / "twice").exists()
        epochs = [row["epoch"] for row in read_rows(folder / "metrics.jsonl") if "epoch" in row]
        assert epochs == list(range(1, len(epochs) + 1)), "none is trained twice"
        assert members.running(folder) == []


@pytest.mark.distributed
@pytest.mark.slow
def test_killed_at_random_moments_it_ends_as_if_it_had_not_been(
    place: Place, tmp_path: Path
) -> None:
    """The search, its children, or all of it; the same points in the same order, each once."""
    undisturbed_after_kills(place, tmp_path, moments=3, seed=0, trials=4)


@pytest.mark.distributed
@pytest.mark.soak
def test_killed_at_ten_random_moments(place: Place, tmp_path: Path) -> None:
    undisturbed_after_kills(
        place, tmp_path, moments=10, seed=int(os.environ.get("LSGD_SEED", 0)), trials=10
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "which search? Write one, for example +search=digits; --help lists them all"),
        ("small", "'small' is not of the form key=value; write +search=small"),
        ("search=small", "'search=small' needs a plus sign; write +search=small"),
        ("+search=smal", "+search=smal does not exist; did you mean small?"),
        ("+search=small +search=digits", "which search? Write one"),
        ("+search=small seed=1", "write seeds=[0] for the seeds of every point"),
        ("+search=small space.a=1", "is a field of a search's file; write a file of your own"),
        ("+search=small trials=0", "search small: trials is too small; write 1"),
        ("+search=small trials=x", "search small: Value 'x' of type 'str' could not be converted"),
        ("+search=small sampler=cma", "sampler=cma is unknown; write one of grid, random, tpe, gp"),
        ("+search=small seeds=[0", "a value in seeds=[0 cannot be read; close its brackets"),
        ("+search=small epoch=1", "there is no key 'epoch'; did you mean epochs?"),
        ("+search=small optim.momentum=0.3", "a search that tries optim.momentum; leave it out"),
        ("+search=small schedule.reference_batch=0", "schedule.reference_batch=0 is not possible"),
        ("+search=small --jobs 0", "0 is not a whole number of 1 or more"),
        ("+search=small --launch sbatch", "write one of horovodrun, k8s, local, mpirun"),
        (
            "+search=small --launch k8s --kind mpijob --image a --claim c",
            "a search does not see what becomes of jobs on Kubernetes",
        ),
        ("+search=small --report a --out b", "--report FOLDER … takes --out FOLDER"),
        ("--report a", "takes --out FOLDER, where the page goes"),
        ("--report a --out b", "a has no points.json of a search; write the folder of one"),
        ("+search=small --out b", "--out is for --report"),
    ],
)
def test_what_makes_no_sense_is_said_in_a_sentence(
    words: str, sentence: str, installation: Path, place: Place,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(place.folder)
    monkeypatch.setattr(paths, "_PACKAGE", installation / "lsgd")
    assert main(words.split()) == 2
    said = capsys.readouterr().err
    assert said.startswith("lsgd: ")
    assert sentence in said
    assert said.count("\n") == 1
    assert not (place.folder / "runs").exists()


def test_help_lists_the_searches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    assert "  +search=fashion_lenet5\n" in said
    assert "40 points of fashion_lenet5 by tpe. Hardware: 2 CPU cores" in said


def test_a_search_that_was_changed_since_is_told_from_the_old(
    installation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    shutil.copytree(installation / "recipes", tmp_path / "recipes")
    monkeypatch.setattr(paths, "recipes_dir", lambda: tmp_path / "recipes")
    monkeypatch.chdir(tmp_path)
    open_folder(Space(config.load_search("small"), []))
    file = tmp_path / "recipes/search/small.yaml"
    file.write_text(file.read_text().replace("1e-4", "1e-3"))
    assert main(["+search=small", "--print"]) == 2
    assert "is of a search with another space: its file small.yaml has changed" in (
        capsys.readouterr().err
    )


def test_what_is_printed_leaves_nothing(
    installation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Neither a folder where there is none, nor a line in the journal of a search that is there."""
    monkeypatch.setattr(Space, "check", lambda _: None)  # which takes seconds
    monkeypatch.setattr(paths, "_PACKAGE", installation / "lsgd")
    monkeypatch.chdir(tmp_path)
    assert main(["+search=small", "--print"]) == 0
    assert capsys.readouterr().out == "# runs/searches/small: 6 points, 0 of them begun\n"
    assert not [*tmp_path.iterdir()]

    FOLDER.mkdir(parents=True)
    engine = Engine(config.load_search("small"), FOLDER)
    engine.values(engine.ask())
    before = {path: path.read_bytes() for path in FOLDER.rglob("*") if path.is_file()}
    assert main(["+search=small", "--print"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("# runs/searches/small: 6 points, 1 of them begun\n# 1: reference_lr ")
    assert " run_dir=runs/trials/digits-seed0-" in said
    assert {path: path.read_bytes() for path in FOLDER.rglob("*") if path.is_file()} == before


def test_without_optuna_it_says_what_to_type(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "lsgd.search.engine", None)
    monkeypatch.delitem(sys.modules, "lsgd.search.engine")
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(["+search=digits", "--print"]) == 2
    assert capsys.readouterr().err == f"lsgd: a search needs Optuna; type {install('search')}\n"
