"""Searches whose trials are trained by the executors of a real Spark on this machine."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import chdir, contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from helpers.launching import write_program
from helpers.reference_run import assert_equal, rows
from helpers.started import HANG_TIMEOUT
from helpers.studies import TRIALS, StudyFolder, study_folder, wait_until

import lsgd.train
from lsgd import config
from lsgd.job import members
from lsgd.job.system import has_ended
from lsgd.planned import PlannedRun, RunLauncher
from lsgd.search.record import load_record
from lsgd.search.spark import SparkBackend
from lsgd.search.spark_task import ROWS
from lsgd.search.trial import StopRequest
from lsgd.supervise.verdict import ExitSummary

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.spark, pytest.mark.java]
TWO_EXECUTORS = "local-cluster[2,1,1024]"
SMALL_TRIAL = Path(__file__).parents[1] / "helpers/small_trial.py"
SHORT = ["epochs=2", "schedule.milestones=[]", "schedule.warmup_epochs=0.5", "log_steps=1"]
ENDLESS = ["epochs=10000"]


@pytest.fixture
def small(
    tmp_path: Path, installation: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StudyFolder]:
    """A place for searches whose trials train nothing."""
    python = write_program(tmp_path / "python", sys.executable, SMALL_TRIAL)
    with study_folder(tmp_path, installation) as place:
        planned = place.environment
        monkeypatch.setattr(
            place, "environment", lambda **plan: planned(**plan) | {"PYTHON": python}
        )
        yield place


def search(place: StudyFolder, master: str, *words: str, **plan: str) -> tuple[int, str]:
    words = ("+search=small", "--launch", "spark", "--master", master, *words)
    job = place.start(*words, command="search", **plan)
    said, _ = job.communicate(timeout=HANG_TIMEOUT)
    return job.returncode, said


def started(place: StudyFolder) -> set[int]:
    """The pids of all that has ever been a process of a trial."""
    folders = (place.folder / TRIALS).glob("*/supervised/*.jsonl")
    return {int(path.stem.rpartition("-")[2]) for path in folders}


def test_one_fails_one_is_given_up_and_nothing_is_left(small: StudyFolder) -> None:
    """On two executors, two at a time; nothing of what Spark says by itself is on the screen."""
    # The lr of the six: 1, 1, 0.01, 1e-4, 1e-4, 0.01.
    words = ["epochs=100", "sampler=grid", "--jobs", "2"]
    plan = {"lr>0": "slow", "lr>0.001": "", "lr>0.5": "3"}
    prune = "prune={rule: median, after_trials: 1}"
    code, said = search(small, TWO_EXECUTORS, *words, prune, **plan)
    assert code == 0, said
    assert re.match(r"Spark is ready after \d+ s\n", said)
    assert "WARN" not in said
    [folder] = (small.folder / "runs/searches").iterdir()
    assert "WARN" in (folder / "spark.log").read_text()
    states = [point.state for point in load_record(folder).points]
    # The first trial to end has failed; the other of lr 1 may be given up before it fails.
    assert sorted(states[:2]) in (["failed", "failed"], ["failed", "pruned"]), said
    assert states[2:] == ["finished", "pruned", "pruned", "finished"], said
    logs = [path.read_text() for path in (small.folder / TRIALS).glob("*.log")]
    assert len(logs) == 6
    assert sum("stopping the job" in log for log in logs) == states.count("pruned")
    assert len(pids := started(small)) == 6
    assert all(map(has_ended, pids))
    assert not [*(small.folder / "runs").glob("spark-*")]


def test_executors_that_do_not_see_the_folder_prune_nothing(
    small: StudyFolder, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another disk is mounted for them where the search runs, as the rights to mount are there."""
    hide = 'mount -t tmpfs lsgd-test "$0" && exec "$@"'
    python = write_program(
        small.folder / "hidden",
        *["unshare", "--mount", "sh", "-c", hide, small.folder, sys.executable],
    )
    monkeypatch.setenv("PYSPARK_PYTHON", python)
    code, said = search(small, "local[1]", "prune={rule: median}")
    assert code == 2
    assert f"lsgd: the executors of Spark cannot see {small.folder}, so no trial" in said
    assert "start in a shared folder, or write prune=null" in said
    assert not (small.folder / TRIALS).exists()


def test_at_ctrl_c_the_trial_saves_and_the_search_leaves(small: StudyFolder) -> None:
    """As a terminal sends it: to all processes of the group."""
    words = ["+search=small", "--launch", "spark", "--master", "local[1]", "epochs=100000"]
    job = subprocess.Popen(
        [sys.executable, "-m", "lsgd.search", *words],
        cwd=small.folder,
        env=small.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    small.begun.append(job)
    wait_until(lambda: any(small.epochs_of_all()), seconds=HANG_TIMEOUT)
    os.killpg(job.pid, signal.SIGINT)
    said, _ = job.communicate(timeout=HANG_TIMEOUT)
    assert job.returncode == 75, said
    assert "stopped; rerun the same command to resume it" in said
    [log] = (small.folder / TRIALS).glob("*.log")
    assert "was preempted and has saved" in log.read_text()
    assert all(map(has_ended, started(small)))


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkBackend]:
    """Two executors for trials of two processes, in a folder of their own."""
    handler = signal.getsignal(signal.SIGINT)
    with chdir(tmp_path_factory.mktemp("spark")):
        place = SparkBackend(RunLauncher("spark", {"--np": "2", "--master": TWO_EXECUTORS}))
        folder = Path("runs/searches/one")
        folder.mkdir(parents=True)
        with place.open(folder, 1, prunes=True):
            yield place
    signal.signal(signal.SIGINT, handler)


@pytest.fixture(scope="module")
def one(spark: SparkBackend) -> SparkBackend:
    """The same, for trials of one process."""
    place = SparkBackend(RunLauncher("spark", {"--np": "1"}))
    place._opened = spark._opened
    return place


def trial_of(seed: int, *words: str) -> PlannedRun:
    words = (*SHORT, *words, f"seed={seed}")
    return PlannedRun(config.load_recipe(["+recipe=digits", *words]), list(words))


def train(spark: SparkBackend, trial: PlannedRun) -> ExitSummary | None:
    return spark.train(trial, StopRequest([]), lambda what: None)


@contextmanager
def under_way(
    spark: SparkBackend, trial: PlannedRun
) -> "Iterator[tuple[Future[ExitSummary | None], StopRequest]]":
    """The training of a trial, and how it is told to leave: as it is at the end in any case."""
    stop = StopRequest([])
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(spark.train, trial, stop, lambda what: None)
        try:
            yield job, stop
        finally:
            stop.prune()


def processes(trial: PlannedRun, count: int) -> list[psutil.Process]:
    """Those of a trial that is under way, by rank, once they are so many."""
    folder = trial.folder.absolute()

    def running() -> list[int]:
        there = {*members.job_pids(folder)}
        return [each.pid for each in members.process_records(folder) if each.pid in there]

    wait_until(lambda: len(running()) == count, seconds=HANG_TIMEOUT)
    return [psutil.Process(pid) for pid in running()]


def test_two_processes_train_what_one_does(spark: SparkBackend, tmp_path: Path) -> None:
    """In float64 to 1e-10, each on an executor of its own."""
    trial = trial_of(0, "precision=float64")
    ending = train(spark, trial)
    assert ending == ExitSummary(0, "done"), trial.log_path.read_text()
    lsgd.train.train(
        config.load_recipe(["+recipe=digits", *trial.overrides, f"run_dir={tmp_path}"])
    )
    assert_equal(trial.folder, tmp_path)
    assert rows(trial.folder, "start")[0]["processes"] == 2


def executor(process: psutil.Process) -> psutil.Process:
    """The process of Java that the process belongs to."""
    return next(each for each in process.parents() if "java" in each.name())


@pytest.mark.parametrize(("victim", "seed"), [("worker", 2), ("executor", 3)])
def test_what_is_killed_leaves_nothing(one: SparkBackend, victim: str, seed: int) -> None:
    """The trial counts as crashed, and the search may start it once more."""
    trial = trial_of(seed, *ENDLESS)
    with under_way(one, trial) as (job, _):
        [process] = processes(trial, 1)
        (process.parents()[0] if victim == "worker" else executor(process)).kill()
        ending = job.result(timeout=HANG_TIMEOUT)
    assert ending
    assert (ending.code, ending.lost) == (1, True), ending
    assert ending.cause.startswith("Spark lost it: ")
    try:
        wait_until(lambda: not process.is_running(), seconds=HANG_TIMEOUT)
    finally:
        members.stop_job(trial.folder.absolute())


def test_the_second_process_of_a_trial_is_killed(spark: SparkBackend) -> None:
    """The first cannot go on either, and nothing stays."""
    trial = trial_of(4, *ENDLESS)
    with under_way(spark, trial) as (job, _):
        both = processes(trial, 2)
        assert len({executor(each) for each in both}) == 2
        both[1].kill()
        ending = job.result(timeout=HANG_TIMEOUT)
    assert ending
    assert ending.code in (1, 5), ending
    wait_until(lambda: not any(each.is_running() for each in both), seconds=HANG_TIMEOUT)


def test_a_trial_that_is_told_to_leave_has_saved(one: SparkBackend) -> None:
    trial = trial_of(5, *ENDLESS)
    with under_way(one, trial) as (job, stop):
        wait_until(
            lambda: rows(trial.folder, "train") if trial.saved_run else [], seconds=HANG_TIMEOUT
        )
        stop.prune()
        ending = job.result(timeout=HANG_TIMEOUT)
    assert ending
    assert ending.code == 75, ending
    assert (trial.folder / "checkpoint.pt").exists()
    assert not [*trial.folder.parent.glob("*.leave-*")]


def test_executors_that_see_no_folder_send_the_rows(spark: SparkBackend) -> None:
    trial, place = trial_of(7), SparkBackend(RunLauncher("spark", {"--np": "2"}))
    assert spark._opened
    place._opened = replace(spark._opened, folder=None)
    assert train(place, trial) == ExitSummary(0, "done"), trial.log_path.read_text()
    run = trial.saved_run
    assert run
    assert run.finished
    assert {path.name for path in trial.folder.iterdir()} == {
        *ROWS,
        "supervise.lock",
        "supervise.log",
    }
    assert "run folder " in trial.log_path.read_text()
