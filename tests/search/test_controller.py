"""The search at work, with trials that are written instead of trained."""

import errno
import json
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import optuna.cli
import pytest
from helpers.waiting import wait_until

from lsgd import config
from lsgd.errors import ExitError, NotSavedError, UsageError
from lsgd.planned import PlannedRun
from lsgd.recipe.search import Pruning, Search
from lsgd.run.tuned import DEFINITION
from lsgd.search import __main__ as main_module
from lsgd.search import controller as module
from lsgd.search.__main__ import final_code, run_search
from lsgd.search.controller import Controller, comparison_runs
from lsgd.search.folder import acquire_lock, check_folder, folder_id, hold_lock, open_folder
from lsgd.search.optuna_study import OptunaStudy
from lsgd.search.record import make_record
from lsgd.search.space import SearchSpace, crashed_trials
from lsgd.search.trial import FAILED, FINISHED, PRUNED, RUNNING, StopRequest
from lsgd.supervise.logbook import SupervisorLockedError
from lsgd.supervise.verdict import ExitSummary

LR = "schedule.reference_lr"
WORDS = ["epochs=4", "schedule.warmup_epochs=1", "schedule.milestones=[3]"]
DONE = ExitSummary(0, "done")


def search(**changed: object) -> Search:
    space = {LR: {"from": 0.001, "to": 1.0, "scale": "log", "steps": 6}}
    fields = {"space": space, "trials": 4, "sampler": "random", "words": WORDS} | changed
    return Search("one", "One", "digits", **fields)  # type: ignore[arg-type]


def write(trial: PlannedRun, *errors: float, diverges: bool = False) -> None:
    """The rows of so many more epochs."""
    trial.folder.mkdir(parents=True, exist_ok=True)
    (trial.folder / "config.yaml").write_text(config.to_yaml(trial.recipe))
    with (trial.folder / "metrics.jsonl").open("a") as file:
        for epoch, error in enumerate(errors, 1 + done(trial)):
            row = {"kind": "epoch", "step": epoch, "epoch": epoch, "val_top1_error": error}
            print(json.dumps(row), file=file)
        if diverges:
            print(json.dumps({"kind": "diverged", "step": 9, "text": "no number"}), file=file)


class Written:
    """A place whose trials are what a function makes of them."""

    def __init__(self, train: Callable[[PlannedRun, StopRequest], ExitSummary | None]) -> None:
        self._train = train
        self.trained: list[str] = []
        self.at_a_time = self.most = 0
        self.lock = threading.Lock()

    def train(
        self, trial: PlannedRun, stop: StopRequest, say: Callable[[str], None]
    ) -> ExitSummary | None:
        trial.log_path.parent.mkdir(parents=True, exist_ok=True)
        trial.log_path.touch()
        with self.lock:
            self.trained.append(trial.folder.name)
            self.at_a_time += 1
            self.most = max(self.most, self.at_a_time)
        try:
            return self._train(trial, stop)
        finally:
            with self.lock:
                self.at_a_time -= 1


def done(trial: PlannedRun) -> int:
    """The epochs that it has rows of."""
    return (trial.folder / "metrics.jsonl").read_text().count('"epoch": ')


def well(trial: PlannedRun, stop: StopRequest) -> ExitSummary:
    write(trial, *[10.0 + trial.recipe.schedule.reference_lr] * 4)
    return DONE


class Work:
    """A search in a folder of its own, and what came of it."""

    def __init__(self, what: Search, words: list[str] | None = None) -> None:
        self.space = SearchSpace(what, words or [])
        self.folder = Path("runs/searches/one")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.engine = OptunaStudy(what, self.folder)
        self.retries = False
        self.trained: list[str] = []
        """The trials that the search at work has trained, or the last one has."""
        self.signals: list[int] = []
        """The stop signals of the search at work, or of the last one."""

    def run(
        self,
        train: Callable[[PlannedRun, StopRequest], ExitSummary | None],
        jobs: int = 1,
        *,
        most_trials: int | None = None,
    ) -> Written:
        place = Written(train)
        self.trained = place.trained
        self.signals = []
        self.controller = Controller(
            self.space, self.engine, place, self.folder, self.signals, most_trials=most_trials
        )
        if self.retries:
            self.controller.retry_failed()
        self.controller.search(jobs)
        return place

    @property
    def states(self) -> list[str]:
        return [point.state for point in self.engine.all_trials()]


@pytest.fixture(autouse=True)
def quick(composed_once: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "POLL", 0.01)
    monkeypatch.setattr(module, "OTHERS", 0.01)


@pytest.mark.slow
def test_as_many_points_as_asked_for_each_with_every_seed() -> None:
    work = Work(search(seeds=[3, 4], trials=3))

    def train(trial: PlannedRun, stop: StopRequest) -> ExitSummary:
        write(trial, *[10.0 + trial.recipe.seed] * 4)
        return DONE

    place = work.run(train)
    assert work.states == [FINISHED] * 3
    assert len(set(place.trained)) == len(place.trained) == 6
    assert {point.value for point in work.engine.all_trials()} == {13.5}
    assert place.most == 1
    # The same again trains nothing; more points go on.
    assert work.run(train).trained == []
    more = Work(search(seeds=[3, 4], trials=5))
    assert len(more.run(train).trained) == 4


@pytest.mark.slow
def test_one_ends_and_one_begins() -> None:
    """A slow point delays nobody: with two jobs all others are done beside it."""
    work = Work(search())
    others = threading.Event()

    def train(trial: PlannedRun, stop: StopRequest) -> ExitSummary:
        first = len(work.trained) == 1
        if first:
            assert others.wait(200)
        write(trial, *[10.0] * 4)
        if len(work.trained) == 4:
            others.set()
        return DONE

    assert work.run(train, jobs=2).most == 2
    assert work.states == [FINISHED] * 4


def test_a_run_that_is_there_is_told_and_not_trained() -> None:
    """A grid is met again by another search: of other trials, with the same runs."""
    first = Work(search(sampler="grid"))
    assert len(first.run(well).trained) == 4
    again = Work(search(sampler="grid"))
    again.folder = Path("runs/searches/two")
    again.folder.mkdir()
    again.engine = OptunaStudy(search(sampler="grid"), again.folder)
    assert again.run(well).trained == []
    assert [p.value for p in again.engine.all_trials()] == [
        p.value for p in first.engine.all_trials()
    ]


def test_one_that_diverges_has_failed_and_is_not_repeated() -> None:
    work = Work(search())

    def train(trial: PlannedRun, stop: StopRequest) -> ExitSummary:
        if trial.recipe.schedule.reference_lr < 0.1:
            return well(trial, stop)
        write(trial, 90.0, diverges=True)
        return ExitSummary(3, "diverged")

    work.run(train)
    failed = [point for point in work.engine.all_trials() if point.state == FAILED]
    assert 0 < len(failed) < 4
    assert {point.why for point in failed} == {"diverged in epoch 2 of 4"}
    assert [work.engine.study.trials[point.number].value for point in failed] == [90.0] * len(
        failed
    )
    assert len(set(work.trained)) == len(work.trained) == 4


def test_a_crash_is_started_once_more_and_the_second_has_failed() -> None:
    work, crashes = Work(search()), dict[str, int]()

    def train(trial: PlannedRun, stop: StopRequest) -> ExitSummary:
        crashes[trial.folder.name] = crashes.get(trial.folder.name, 0) + 1
        always = len(crashes) == 2
        if always or (len(crashes) == 4 and crashes[trial.folder.name] == 1):
            trial.log_path.write_text("Segmentation fault\n")
            return ExitSummary(1, "was killed", lost=True)
        return well(trial, stop)

    work.run(train)
    assert work.states == [FINISHED, FAILED, FINISHED, FINISHED]
    assert len(work.trained) == 6
    assert "was killed" in work.engine.all_trials()[1].why
    assert "ends with: Segmentation fault" in work.engine.all_trials()[1].why


def test_one_that_somebody_told_to_leave_goes_on() -> None:
    work = Work(search(trials=1))

    def train(trial: PlannedRun, stop: StopRequest) -> ExitSummary:
        write(trial, 10.0)
        return DONE if trial.saved_run.finished else ExitSummary(75, "was preempted")

    assert len(work.run(train).trained) == 4
    assert work.states == [FINISHED]


def test_a_stop_while_a_run_restarts_is_no_crash() -> None:
    """SIGTERM kills a process that still imports; the trial stays open, and a rerun resumes it."""
    work = Work(search(trials=1))

    def train(trial: PlannedRun, stop: StopRequest) -> ExitSummary:
        trial.log_path.write_text("Segmentation fault\n")
        if len(work.trained) == 1:
            return ExitSummary(1, "was killed", lost=True)
        work.signals.append(signal.SIGTERM)
        return ExitSummary(1, "mpirun was killed by signal 15")

    assert len(work.run(train).trained) == 2
    assert work.states == [RUNNING]
    assert len(work.run(well).trained) == 1
    assert work.states == [FINISHED]


@pytest.mark.parametrize("ends", [UsageError, NotSavedError])
def test_what_would_befall_all_of_them_ends_the_search(ends: type[ExitError]) -> None:
    """Its point stays open, and the same command goes on with it."""
    work = Work(search())

    def train(trial: PlannedRun, stop: StopRequest) -> ExitSummary:
        if len(work.trained) < 3:
            return well(trial, stop)
        trial.log_path.write_text("lsgd: there is no data\n")
        return ExitSummary(ends.exit_code, "was refused")

    with pytest.raises(ends, match="there is no data"):
        work.run(train)
    assert work.states == [FINISHED, FINISHED, RUNNING]
    left = work.trained[2]
    assert work.run(well).trained[0] == left
    assert work.states == [FINISHED] * 4


@pytest.mark.parametrize("content", ["[1]", "{", "7", "[" * 9999])
def test_a_folder_of_something_else_is_refused(content: str) -> None:
    work = Work(search())
    (work.folder / DEFINITION).write_text(content)
    with pytest.raises(UsageError, match=r"not define a search .*; move the folder away"):
        folder_id(work.folder)
    with pytest.raises(UsageError, match=r"not define a search .*; move the folder away"):
        check_folder(work.folder, work.space)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    what = search(line=["recipe=digits", "workers=[1,2]"])
    (tmp_path / "runs").write_text("")
    with pytest.raises(UsageError, match=r"runs/searches/one-\w+ cannot be written \(Not a dir.*;"):
        open_folder(SearchSpace(what, []))
    (tmp_path / "runs").unlink()
    folder = open_folder(SearchSpace(what, []))
    shutil.rmtree(folder / "locks")
    (folder / "locks").write_text("")
    with pytest.raises(UsageError, match=r"cannot be written \(File exists\); start the search in"):
        acquire_lock(folder, "ask", wait=True)


def test_a_drive_without_locks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which a search needs, unlike a run, whose lock file is touched while it is held."""
    no_locks = Mock(side_effect=OSError(errno.ENOLCK, "No locks available"))
    monkeypatch.setattr("fcntl.flock", no_locks)
    sentence = r"locks/\w+ is on a drive without file locks \(No locks .*; start the search"
    with pytest.raises(UsageError, match=sentence):
        open_folder(SearchSpace(search(line=["recipe=digits", "workers=[1,2]"]), []))


def test_who_is_trained_beside_those_that_are_refused_saves_and_leaves() -> None:
    """Asked once: a second signal would kill it while it saves."""
    work, refused, stops = Work(search()), list[PlannedRun](), list[StopRequest]()

    def train(trial: PlannedRun, stop: StopRequest) -> ExitSummary:
        if len(work.trained) == 1:
            wait_until(lambda: len(refused) == 2 and stop)
            stops.append(stop)
            return ExitSummary(75, "was preempted and has saved")
        wait_until(lambda: len(work.trained) == 3)
        refused.append(trial)
        trial.log_path.write_text("lsgd: there is no data\n")
        return ExitSummary(2, "was refused")

    with pytest.raises(UsageError, match="there is no data"):
        work.run(train, jobs=3)
    assert list(stops[0]) == [signal.SIGTERM]
    assert work.states == [RUNNING, RUNNING, RUNNING]


def test_who_is_given_up_is_told_so_and_leaves() -> None:
    """By the first epoch at which it is due, and with nobody else asked to leave."""
    prune = Pruning("median", after_trials=3, after_epochs=1)
    work, told = Work(search(prune=prune, trials=5)), list[str]()

    def train(trial: PlannedRun, stop: StopRequest) -> ExitSummary:
        if len(work.trained) < 4:
            write(trial, *[10.0 + len(work.trained)] * 4)
            return DONE
        if len(work.trained) == 5:
            write(trial, *[9.0] * 4)
            return DONE
        write(trial, 50.0)
        wait_until(lambda: stop)
        told.append(work.states[3])
        return ExitSummary(75, "was preempted and has saved")

    work.run(train)
    assert work.states == [FINISHED] * 3 + [PRUNED, FINISHED]
    assert told == [PRUNED]
    assert work.engine.all_trials()[3].reported == {1: 50.0}


def test_a_good_first_seed_does_not_keep_a_bad_second_one() -> None:
    """The errors of a run fall, so that a second seed begins above the end of the first."""
    prune = Pruning("median", after_trials=3, after_epochs=1)
    work = Work(search(prune=prune, trials=4, seeds=[0, 1]))

    def train(trial: PlannedRun, stop: StopRequest) -> ExitSummary:
        errors = [40.0, 30.0, 20.0, 10.0]
        if len(work.trained) == 8:
            errors = [50.0] * 4
        write(trial, *errors)
        return DONE

    work.run(train)
    assert work.states == [FINISHED] * 3 + [PRUNED]
    assert max(work.engine.all_trials()[3].reported) == 5


@pytest.mark.parametrize(("second", "state"), [(35.0, FINISHED), (45.0, PRUNED)])
def test_trials_of_other_lengths_are_compared_by_epoch_and_seed(
    second: float, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second seed of a short trial begins where a long one is in the midst of its first."""
    prune, words = Pruning("median", after_trials=1), ["schedule.milestones=[]", *WORDS[1:2]]
    space = {"epochs": {"choices": [2, 4]}}
    work = Work(search(prune=prune, words=words, space=space, sampler="grid", seeds=[0, 1]))

    def train(trial: PlannedRun, stop: StopRequest) -> ExitSummary:
        short = [[35.0, second][trial.recipe.seed], 25.0]
        write(trial, *([40.0, 30.0, 20.0, 10.0] if trial.recipe.epochs == 4 else short))
        return DONE

    work.run(train)
    assert [point.values["epochs"] for point in work.engine.all_trials()] == [4, 2]
    assert work.states == [FINISHED, state]
    steps = [1, 2, 5, 6] if state == FINISHED else [1, 2, 5]
    assert [*work.engine.all_trials()[1].reported] == steps
    assert ("pruned after 3 of 4 epochs" in capsys.readouterr().out) == (state == PRUNED)
    record = make_record(work.space, work.engine.all_trials(), "one", "")
    assert record.saved_share == ((4 - 3) / (8 + 4) if state == PRUNED else 0)


def test_a_run_that_was_faster_than_the_search_is_given_up_all_the_same() -> None:
    """What is told depends on the rows alone, not on when they were read."""
    prune = Pruning("median", after_trials=3, after_epochs=2)
    work = Work(search(prune=prune, trials=5))

    def train(trial: PlannedRun, stop: StopRequest) -> ExitSummary:
        count = len(work.trained)
        write(trial, *([10.0] * 4 if count != 4 else [50.0, 50.0, 1.0, 1.0]))
        return DONE

    work.run(train)
    assert work.states == [FINISHED] * 3 + [PRUNED, FINISHED]
    assert work.engine.all_trials()[3].reported == {1: 50.0, 2: 50.0}


def test_nobody_is_given_up_at_the_end() -> None:
    """There is nothing to be saved then, and a value to be known."""
    prune = Pruning("median", after_trials=3, after_epochs=4)
    work = Work(search(prune=prune))

    def train(trial: PlannedRun, stop: StopRequest) -> ExitSummary:
        write(trial, *[10.0 if len(work.trained) < 4 else 50.0] * 4)
        return DONE

    work.run(train)
    assert work.states == [FINISHED] * 4


@pytest.mark.parametrize(("last", "state"), [([9.0, 50.0], FINISHED), ([50.0, 60.0], PRUNED)])
def test_a_trial_whose_patience_has_ended_is_not_given_up(last: list[float], state: str) -> None:
    """But by an earlier epoch, even if its run was faster than the search."""
    prune = Pruning("median", after_trials=3, after_epochs=1)
    work = Work(search(prune=prune), ["stop.patience=1", "stop.metric=top1_error"])

    def train(trial: PlannedRun, stop: StopRequest) -> ExitSummary:
        write(trial, *([10.0, 9.0, 8.0, 7.0] if len(work.trained) < 4 else last))
        return DONE

    work.run(train)
    assert work.states == [FINISHED] * 3 + [state]


def test_a_search_that_was_killed_gives_up_whom_it_would_have_given_up() -> None:
    """It had read the row, and was killed before it asked what follows."""
    prune = Pruning("median", after_trials=3, after_epochs=1)
    work = Work(search(prune=prune, trials=3))
    work.run(well)
    number = work.engine.ask()
    values = work.engine.values(number)
    work.engine.report(number, 1, 50.0)
    more = Work(search(prune=prune, trials=4))
    assert more.run(well).trained == []
    assert more.states == [FINISHED] * 3 + [PRUNED]
    assert more.engine.all_trials()[3].values == values


def test_who_is_trained_by_another_process_is_waited_for() -> None:
    work = Work(search(trials=1))

    def train(trial: PlannedRun, stop: StopRequest) -> ExitSummary:
        if len(work.trained) < 3:
            raise SupervisorLockedError("another is at work")
        return well(trial, stop)

    work.run(train)
    assert work.states == [FINISHED]


def test_a_point_that_another_search_has_is_left_to_it_until_that_is_gone() -> None:
    """That one is killed while the last point of this one is trained."""
    work = Work(search(trials=2))
    number = work.engine.ask()
    theirs = work.space.planned_runs(work.engine.values(number), [0])[0].folder.name
    held = acquire_lock(work.folder, str(number), wait=False)
    assert held

    def train(trial: PlannedRun, stop: StopRequest) -> ExitSummary:
        if len(work.trained) == 1:
            threading.Timer(0.3, held.close).start()
        return well(trial, stop)

    work.run(train)
    assert work.states == [FINISHED] * 2
    assert len(work.trained) == 2
    assert work.trained[1] == theirs


def test_a_run_that_cannot_be_read_is_no_endless_loop() -> None:
    """A launcher that ends well and has trained nothing."""
    work = Work(search(trials=1))
    work.run(lambda trial, stop: DONE)
    assert len(work.trained) == 2
    assert work.states == [RUNNING]  # for no point of this search has made a step


def crashes(trial: PlannedRun, stop: StopRequest) -> ExitSummary:
    trial.log_path.write_text("HOME cannot be written\n")
    return ExitSummary(1, "has crashed")


def test_points_that_all_end_before_their_first_step_have_not_failed() -> None:
    """It is the machine's fault: once that is mended, the same command tries them."""
    work = Work(search())
    assert work.run(crashes).trained == [work.trained[0]] * 2 + [work.trained[2]] * 2
    assert work.states == [RUNNING, RUNNING]
    assert work.run(well).trained[0] == work.trained[0]
    assert work.states == [FINISHED] * 4


def test_a_point_that_ends_before_its_first_step_where_others_do_not_has_failed() -> None:
    """Such as one whose batch does not fit into memory."""
    work = Work(search(trials=3))
    work.run(lambda trial, stop: (crashes if len(work.trained) < 3 else well)(trial, stop))
    assert work.states == [FAILED, FINISHED, FINISHED]
    again = Work(search(trials=3))
    again.retries = True
    again.run(well)
    assert [point.number for point in again.engine.all_trials()] == [1, 2, 3]
    assert again.states == [FINISHED] * 3


def test_a_last_trial_that_ends_before_its_first_step_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    work = Work(search(trials=2))
    work.run(lambda trial, stop: (well if len(work.trained) == 1 else crashes)(trial, stop))
    assert work.states == [FINISHED, FAILED]
    assert final_code(work.space, work.engine.all_trials()) == 0
    assert make_record(work.space, work.engine.all_trials(), "one", "").crashed == 1
    assert "1 trial crashed, the last because: exit code 1" in (said := capsys.readouterr().out)
    assert "retry with --retry-failed" in said
    work.retries = True
    work.run(crashes)
    assert work.states == [FINISHED, FAILED]
    assert make_record(work.space, work.engine.all_trials(), "one", "").crashed == 0


@pytest.mark.slow
def test_a_trial_of_a_folder_that_is_gone_can_be_retried_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the commands that the search names; before, it would wait for the trial for good."""
    work, url = Work(search(trials=1)), "sqlite:///s.db"
    gone = OptunaStudy(work.space.search, work.folder, url, folder_id="gone")
    gone.values(gone.ask())
    work.engine = OptunaStudy(work.space.search, work.folder, url, folder_id="here")
    monkeypatch.setattr(main_module, "write_results", lambda *_: None)
    monkeypatch.setattr(main_module, "catch_stop_signals", list)
    request: Any = SimpleNamespace(space=work.space, retries=False)
    code = run_search(request, work.engine, Written(well), work.folder, 1)
    said = re.search(r"with --retry-failed after optuna (.*) N for N=0$", capsys.readouterr().out)
    assert code == 75
    assert said
    monkeypatch.setattr(sys, "argv", ["optuna", *said[1].split(), "0"])
    assert optuna.cli.main() == 0
    work.retries = True
    work.run(well)
    assert work.states == [FINISHED]


def begins(trial: PlannedRun) -> None:
    """The rows of a run that has made steps in an epoch that has not ended."""
    write(trial)
    with (trial.folder / "metrics.jsonl").open("a") as file:
        print(json.dumps({"kind": "train", "step": 1, "loss": 1.0}), file=file)


@contextmanager
def theirs(work: Work) -> Iterator[PlannedRun]:
    """The run of a trial that another process trains within this context."""
    number = work.engine.ask()
    [run] = work.space.planned_runs(work.engine.values(number), [0])
    with hold_lock(work.folder, str(number)):
        yield run


def test_a_trial_that_ends_before_its_first_step_beside_one_that_has_begun_has_failed() -> None:
    """The other has made steps, and no epoch."""
    work = Work(search(trials=2))
    with theirs(work) as run:
        begins(run)
        work.run(crashes, most_trials=1)
    assert work.states == [RUNNING, FAILED]


def test_a_trial_that_ends_before_any_step_fails_once_another_has_begun() -> None:
    """By the jobs of the comparison, which are after all jobs that train trials."""
    work = Work(search(trials=2))
    with theirs(work) as run:
        work.run(crashes, most_trials=1)
    work.controller.fail_unstarted()
    assert work.states == [RUNNING, RUNNING]
    begins(run)
    with hold_lock(work.folder, "1"):
        work.controller.fail_unstarted()
    assert work.states == [RUNNING, RUNNING]
    work.controller.fail_unstarted()
    assert work.states == [RUNNING, FAILED]
    assert "has crashed" in work.engine.all_trials()[1].why
    assert crashed_trials(work.space, work.engine.all_trials())


def test_a_trial_that_is_resumed_after_an_end_before_its_first_step_is_open() -> None:
    work = Work(search(trials=1))
    work.run(crashes)

    def stopped(trial: PlannedRun, stop: StopRequest) -> ExitSummary:
        begins(trial)
        work.signals.append(signal.SIGTERM)
        return ExitSummary(75, "was preempted")

    work.run(stopped)
    work.controller.fail_unstarted()
    assert work.states == [RUNNING]


def test_a_comparison_run_that_has_failed_is_exit_code_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The report lacks the comparison then."""
    work = Work(search(trials=1, holdout_seeds=[5, 6]))
    work.run(well)
    trials = work.engine.all_trials()
    runs = [run for each in comparison_runs(work.space, trials).values() for run in each]
    for number, run in enumerate(runs):
        assert final_code(work.space, trials) == 1
        assert f"as {4 - number} of its 4 runs have failed" in capsys.readouterr().out
        well(run, StopRequest([]))
    assert final_code(work.space, trials) == 0
    assert final_code(Work(search(trials=1)).space, trials) == 0


def with_invalid_inside() -> Search:
    """A grid in which 64 workers with 32 examples each exceed the examples of digits."""
    choices = {"worker_batch": [16, 32], "workers": [1, 64]}
    space = {key: {"choices": values} for key, values in choices.items()}
    fields = {"trials": 4, "sampler": "grid", "words": WORDS}
    return Search("one", "One", "digits", space, **fields)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_trial_that_the_recipe_refuses_fails_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """The others are trained, and the command goes on to retry and to print their state."""
    work = Work(with_invalid_inside())
    work.run(well)
    trials = work.engine.all_trials()
    assert len(trials) == 4
    for trial in trials:
        is_invalid = trial.values["worker_batch"] == 32 and trial.values["workers"] == 64
        assert trial.state == (FAILED if is_invalid else FINISHED)
        assert ("refuses the trial worker_batch=32 workers=64" in trial.why) == is_invalid
    assert capsys.readouterr().out.count("failed: the recipe refuses the trial") == 1
    assert crashed_trials(work.space, trials) == []
    again = Work(with_invalid_inside())
    again.retries = True
    assert again.run(well).trained == []


def test_a_recipe_that_is_invalid_for_all_trials_ends_the_search() -> None:
    """Its point stays open, as the file that has gone meanwhile may come back."""
    work = Work(search(words=[*WORDS, "workers=64", "worker_batch=32"]))
    with pytest.raises(UsageError, match="write workers=45 or fewer"):
        work.run(well)
    assert work.states == [RUNNING]


def test_a_sampler_does_not_choose_a_refused_point_again_and_again() -> None:
    """A refused point has the worst value so far in Optuna, and none in lsgd."""
    work = Work(with_invalid_inside())
    work.run(well)
    told = [t.value for t in work.engine.study.get_trials() if t.user_attrs.get("why")]
    assert 10.0 < max(filter(None, told)) < 11.0
    assert all(t.value is None for t in work.engine.all_trials() if t.state == FAILED)
