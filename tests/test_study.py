"""Studies, as a user starts them; most of them with trials that train nothing."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lsgd.job import members
from lsgd.run.rows import read_rows
from lsgd.trials import Trial

TRIALS = Path("runs/trials")


class Place:
    """A folder to run studies in."""

    def __init__(self, folder: Path, installation: Path) -> None:
        self.folder, self.installation = folder, installation
        self.path = os.environ["PATH"]
        self.begun: list[subprocess.Popen[str]] = []

    def start(self, *words: str, **plan: str) -> "subprocess.Popen[str]":
        """Start a study; the plan says what happens to trials."""
        environment = {
            "PYTHON": sys.executable, "PYTHONPATH": str(self.installation),
            "SMALL_TRIALS": json.dumps(plan), "OMP_NUM_THREADS": "1", "PATH": self.path,
        }  # fmt: skip
        self.begun.append(
            subprocess.Popen(
                [sys.executable, "-m", "lsgd.study", *words],
                cwd=self.folder,
                env=os.environ | environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        return self.begun[-1]

    def run(self, *words: str, **plan: str) -> tuple[int, str]:
        """A study run to its end: its exit code and what it said."""
        job = self.start(*words, **plan)
        said, _ = job.communicate(timeout=200)
        return job.returncode, said

    def trial(self, name: str, seed: int = 0) -> Path:
        """The folder of the trial."""
        [found] = [
            each
            for each in (self.folder / TRIALS).glob(f"{name}-seed{seed}-*")
            if re.fullmatch(r".*-[0-9a-f]{8}", each.name)
        ]
        return found

    def starts(self) -> dict[str, int]:
        """How often each trial was started."""
        folders = [each for each in (self.folder / TRIALS).iterdir() if each.is_dir()]
        rows = {each.name: read_rows(each / "metrics.jsonl") for each in folders}
        return {
            name.rpartition("-")[0]: sum(row["kind"] == "start" for row in found)
            for name, found in rows.items()
        }

    def epochs(self, folder: Path) -> list[int]:
        return [r["epoch"] for r in read_rows(folder / "metrics.jsonl") if r["kind"] == "epoch"]


@pytest.fixture
def place(tmp_path: Path, installation: Path) -> Iterator[Place]:
    made = Place(tmp_path, installation)
    yield made
    for job in made.begun:
        job.kill()
        job.communicate()
    for folder in (tmp_path / TRIALS).glob("*"):
        members.stop(folder)


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


QUICK = ("+study=small", "--launch", "quick")
ALL = {"digits-seed0": 1, "digits-seed1": 1, "digits_unscaled-seed0": 1, "digits_unscaled-seed1": 1}


@pytest.mark.distributed
def test_a_failure_costs_no_other(place: Place) -> None:
    """One has an input that fails, one a file where its folder should be, and one diverges."""
    _, said = place.run(*QUICK, "--print")
    in_the_way = place.folder / re.search(r"run_dir=(\S+digits_unscaled-seed0\S+)", said)[1]
    in_the_way.parent.mkdir(parents=True)
    in_the_way.write_text("mine")
    code, said = place.run(*QUICK, **{"digits-seed0": "4", "digits_unscaled-seed1": "3"})
    assert code == 1
    assert place.starts() == {name: 1 for name in ALL if name != "digits_unscaled-seed0"}
    assert "1 of 4  digits, seed 0: starts, processes: 2" in said
    assert re.search(r"2 of 4  digits, seed 1: top-1 error 11\.00 %, .*; about \d+ s left", said)
    assert re.search(r"failed: digits, seed 0: exit code 4, .* had an input that failed", said)
    assert "digits-seed0-" in said
    assert ".log ends: small: so it was planned" in said
    assert re.search(r"failed: digits_unscaled, seed 0: .* cannot be written \(Not a dir", said)
    assert "failed: digits_unscaled, seed 1: exit code 3, " in said
    assert in_the_way.read_text() == "mine"
    # Again, now that nothing stands in the way: only these two are trained, from where they were.
    in_the_way.unlink()
    code, said = place.run(*QUICK)
    assert code == 1
    assert "small: 4 trials, 2 to train" in said
    assert "1 of 2  digits, seed 0: goes on after epoch 1" in said
    assert place.starts() == ALL | {"digits-seed0": 2}
    assert place.epochs(place.trial("digits")) == list(range(1, 31))
    # The same words would diverge again.
    assert "failed: digits_unscaled, seed 1: diverged in epoch 2 of 30" in said


@pytest.mark.distributed
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_told_to_stop(place: Place, number: signal.Signals) -> None:
    """The trials that are under way save and leave, and no other begins."""
    job = place.start(*QUICK, "epochs=1000", "--jobs", "2")
    until(lambda: sum(bool(each) for each in place_epochs(place)) == 2)
    job.send_signal(number)
    said, _ = job.communicate(timeout=100)
    assert job.returncode == 75, said
    assert "stopped; the same command goes on" in said
    assert place.starts() == {"digits-seed0": 1, "digits-seed1": 1}
    for seed in (0, 1):
        folder = place.trial("digits", seed)
        assert members.running(folder) == []
        [end] = [
            json.loads(row) for row in (folder / "supervise.log").read_text().splitlines()
            if '"end"' in row
        ]  # fmt: skip
        assert end["code"] == 75


def place_epochs(place: Place) -> list[list[int]]:
    return [place.epochs(each) for each in (place.folder / TRIALS).glob("*[0-9a-f]/")]


def test_trials_side_by_side_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 2 jobs of 2 processes has a quarter of them; what the user has set stays."""
    from lsgd.study import Launch, share_cores

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    for options, given, expected in (
        (["--np", "2"], None, "4"),
        (["--np", "64"], None, "1"),
        (["--np", "2"], "3", "3"),
        (["--hosts", "a:2,b:2"], None, None),
    ):
        monkeypatch.setattr(os, "environ", {"OMP_NUM_THREADS": given} if given else {})
        share_cores(Launch("local", options), jobs=2)
        assert os.environ.get("OMP_NUM_THREADS") == expected


@pytest.mark.distributed
def test_two_studies_share_the_work(place: Place) -> None:
    """Neither trains what the other does, and both end with all of it done."""
    both = [place.start(*QUICK) for _ in range(2)]
    said = [job.communicate(timeout=200)[0] for job in both]
    assert [job.returncode for job in both] == [0, 0], said
    assert place.starts() == ALL
    assert not list((place.folder / TRIALS).glob("*/twice"))
    assert "is being trained by another process; comes later" in said[0] + said[1]


@pytest.mark.distributed
def test_killed_it_takes_its_trials_along(place: Place) -> None:
    """A second study that begins at once waits for them to leave, and goes on with them."""
    job = place.start(*QUICK, "epochs=150", "seeds=[0]")
    until(lambda: any(len(each) > 2 for each in place_epochs(place)))
    job.kill()
    code, said = place.run(*QUICK, "epochs=150", "seeds=[0]")
    assert code == 0, said
    assert place.starts() == {"digits-seed0": 2, "digits_unscaled-seed0": 1}
    assert place.epochs(place.trial("digits")) == list(range(1, 151))
    assert not list((place.folder / TRIALS).glob("*/twice"))


def test_print_starts_nothing(place: Place) -> None:
    code, said = place.run("+study=small", "epochs=31", "seeds=[1]", "--np", "1", "--print")
    assert code == 0
    assert not (place.folder / "runs").exists()
    lines = said.splitlines()
    assert lines[::2] == ["# digits, seed 1: not started", "# digits_unscaled, seed 1: not started"]
    for line, recipe in zip(lines[1::2], ("digits", "digits_unscaled"), strict=True):
        script = place.installation / "launch/local.sh"
        assert re.fullmatch(
            f"bash {script} {recipe} seed=1 epochs=31 "
            f"run_dir=runs/trials/{recipe}-seed1-[0-9a-f]{{8}} --np 1",
            line,
        )


def test_each_has_a_name_of_its_own_on_kubernetes(place: Place) -> None:
    options = ["--kind", "mpijob", "--image", "a/b:1", "--claim", "c"]
    _, said = place.run("+study=small", "seeds=[0,1]", "--launch", "k8s", *options, "--print")
    commands = [line.split() for line in said.splitlines() if line[0] != "#"]
    assert len({command[-1] for command in commands}) == 4
    for command in commands:
        [folder] = [word for word in command if word.startswith("run_dir=")]
        assert folder.startswith("run_dir=/lsgd/runs/trials/digits")
        assert command[-2] == "--name"
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", command[-1])
        assert len(command[-1]) <= 63


@pytest.mark.parametrize(
    ("script", "options", "workers", "expected"),
    [
        ("slurm", "--nodes 32", 8, (8, "--nodes 1 --gpus 8")),
        ("slurm", "--nodes 32", 256, (256, "--nodes 32")),
        ("slurm", "--nodes=4", 16, (16, "--nodes 2 --gpus 8")),
        ("slurm", "", 2, (2, "--nodes 1 --gpus 2")),
        ("slurm", "--np 12 --nodes 3 --cpus 4", 2, (2, "--np 2 --nodes 2 --cpus 4")),
        ("k8s", "--nodes 2 --gpus 4", 6, (4, "--nodes 1 --gpus 4")),
        ("mpirun", "--gpus 8", 4, (4, "--gpus 4 --nodes 1")),
        ("mpirun", "--hosts a:8,b:8", 4, (4, "--hosts a:8,b:8 --np 4")),
        ("horovodrun", "--hosts a:8,b:8", 16, (16, "--hosts a:8,b:8")),
        ("local", "--np 3", 2, (2, "--np 2")),
        ("local", "", 1, (1, "--np 1")),
    ],
)
def test_no_trial_has_more_processes_than_workers(
    script: str, options: str, workers: int, expected: tuple[int, str]
) -> None:
    from lsgd.study import Launch

    processes, fitted = Launch(script, options.split()).fitted(workers)
    assert (processes, " ".join(fitted)) == expected


def test_every_job_of_the_paper_has_work_for_its_processes(place: Place) -> None:
    """What slurm.sh makes of the options, for each trial of table 1 on 32 nodes."""
    launch = ["--launch", "slurm", "--nodes", "32", "--print"]
    code, said = place.run("+study=table1_warmup", "seeds=[0]", *launch)
    assert code == 0, said
    commands = [line for line in said.splitlines() if line[0] != "#"]
    sizes = []
    for command in commands:
        batch = subprocess.run(
            f"{command} --print", shell=True, capture_output=True, text=True, check=True
        ).stdout
        nodes, gpus = (re.search(rf"--{each}=(\d+)", batch) for each in ("nodes", "gpus-per-node"))
        sizes.append((int(nodes[1]), int(gpus[1])))
    assert sizes == [(1, 8), (32, 8), (32, 8), (32, 8)]


@pytest.mark.distributed
def test_a_row_of_somebody_else_costs_no_other(place: Place) -> None:
    _, said = place.run(*QUICK, "--print")
    odd = place.folder / re.search(r"run_dir=(\S+digits-seed0\S+)", said)[1]
    odd.mkdir(parents=True)
    (odd / "metrics.jsonl").write_text('["not ours"]\n')
    _, said = place.run(*QUICK)
    assert "small: 4 trials, 4 to train" in said
    assert "Traceback" not in said
    assert len(re.findall(r"digits_unscaled, seed \d: top-1 error", said)) == 2


def test_a_queue_that_does_not_answer_for_one_costs_no_other(place: Place) -> None:
    """The first is queued where nobody can be asked; the others are still submitted."""
    programs = place.folder / "bin"
    programs.mkdir()
    for name, text in (("sbatch", "echo Submitted batch job 7"), ("squeue", "echo no >&2; exit 1")):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    submit = ["+study=small", "seeds=[0]", "--launch", "slurm", "--np", "1"]
    _, said = place.run(*submit, "--print")
    first = place.folder / re.search(r"run_dir=(\S+digits-seed0\S+)", said)[1]
    first.parent.mkdir(parents=True)
    first.with_name(f"{first.name}.job").write_text("Submitted batch job 6\n")
    place.path = f"{programs}:{os.environ['PATH']}"
    code, said = place.run(*submit)
    assert code == 75
    assert "failed: digits, seed 0: whether job 6 still trains" in said
    assert "2 of 2  digits_unscaled, seed 0: Submitted batch job 7, processes: 1" in said


def test_a_study_that_cannot_be_read_stops_no_other(
    installation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lsgd import paths, study

    shutil.copytree(installation / "recipes", tmp_path / "recipes")
    (tmp_path / "recipes/study/bad.yaml").write_text("title: [")
    monkeypatch.setattr(paths, "recipes_dir", lambda: tmp_path / "recipes")
    monkeypatch.chdir(tmp_path)
    assert study.main(["+study=small", "--np", "1", "--print"]) == 0
    assert study.main(["--help"]) == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "which study? Write one, for example +study=digits; --help lists them all"),
        ("small", "'small' is not of the form key=value; write +study=small"),
        ("study=small", "'study=small' needs a plus sign; write +study=small"),
        ("+study=smal", "+study=smal does not exist; did you mean small?"),
        ("+study=small +study=digits", "which study? Write one"),
        ("+study=small name=a", "'name=a' cannot be said to a study"),
        ("+study=small seed=1", "write seeds=[0,1] for some of them"),
        ("+study=small ++run_dir=a", "the folder of a trial is named by recipe, seed"),
        ("+study=small +recipe=digits", "a study has its recipes"),
        ("+study=small rehearse=true", "a rehearsal has no result"),
        ("+study=small seeds=[0,5]", "seeds=[0,5] has 5, and the study has the seeds 0, 1; write"),
        (
            "+study=fashion_table2_gamma model.last_gamma=0",
            "model.last_gamma=0 makes fashion_bs64 and fashion_bs64_gamma0 the same run",
        ),
        ("+study=small --launch k8s --kind mpijob --image a --claim c", "write --print for the"),
        ("+study=small seeds=1", "seeds=1 is not a list of numbers; write seeds=[0,1]"),
        ("+study=small epoch=1", "there is no key 'epoch'; did you mean epochs?"),
        ("+study=small --launch sbatch", "write one of horovodrun, k8s, local, mpirun"),
        ("+study=small --launch job", "--launch job does not exist"),
        ("+study=small --nodes 2", "local.sh: option --nodes is not known"),
        ("+study=small --np x", "--np is x, but must be a number"),
        ("+study=small --jobs 0", "--jobs=0 is not a number of trials; write 1 or more"),
        ("+study=small --jobs", "expected one argument"),
        ("+study=small --launch slurm --jobs 2", "leave out --jobs"),
    ],
)
def test_what_makes_no_sense_is_said_in_a_sentence(
    words: str, sentence: str, installation: Path, place: Place,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from lsgd import paths, study

    monkeypatch.chdir(place.folder)
    monkeypatch.setattr(paths, "_PACKAGE", installation / "lsgd")
    assert study.main(words.split()) == 2
    said = capsys.readouterr().err
    assert said.startswith("lsgd: ")
    assert sentence in said
    assert said.count("\n") == 1
    assert not (place.folder / "runs").exists()


@pytest.mark.slow
def test_words_that_change_the_run_have_a_report_of_their_own() -> None:
    from lsgd import config, study
    from lsgd.trials import trials

    digits = config.load_study("digits")

    def folder(*words: str) -> Path:
        return study.report_folder(digits, trials(digits, words))

    assert folder() == folder("device=cpu") == Path("runs/studies/digits")
    assert re.fullmatch(r"digits-[0-9a-f]{8}", folder("epochs=29").name)


@pytest.mark.distributed
@pytest.mark.slow
def test_a_real_trial_through_a_launch_script(place: Place) -> None:
    """Killed in the middle, with the study; then the rest of it, and a report."""
    words = ["+study=single", "--np", "1"]
    job = place.start(*words)
    until(lambda: any(len(each) > 2 for each in place_epochs(place)), seconds=150)
    job.kill()
    code, said = place.run(*words)
    assert code == 0, said
    folder = place.trial("digits")
    assert place.epochs(folder) == list(range(1, 31))
    assert place.starts() == {"digits-seed0": 2}
    assert re.search(r"1 of 1  digits, seed 0: goes on after epoch \d+, processes: 1\n", said)
    assert re.search(r"1 of 1  digits, seed 0: top-1 error \d\.\d\d %", said)
    assert "top-1 error" in folder.with_name(f"{folder.name}.log").read_text()
    assert members.running(folder) == []
    assert "report: runs/studies/single" in said
    assert (place.folder / "runs/studies/single/index.html").exists()


def test_a_queue_that_does_not_answer_is_no_reason_to_train_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lsgd import config
    from lsgd.errors import Refused

    trial = Trial(config.load_recipe(["+recipe=digits"]), [])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    assert trial.queued is None
    trial.job.parent.mkdir(parents=True)
    trial.job.write_text("Submitted batch job 12\n")
    with pytest.raises(Refused, match=r"whether job 12 .* is not known \(squeue is not installed"):
        assert trial.queued
