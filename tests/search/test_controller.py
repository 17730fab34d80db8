"""The search at work, with trials that are written instead of trained."""

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lsgd import config
from lsgd.errors import Refused
from lsgd.recipe.search import Pruning, Search
from lsgd.search import controller as module
from lsgd.search.controller import Controller
from lsgd.search.engine import Engine
from lsgd.search.folder import lock
from lsgd.search.point import FAILED, FINISHED, PRUNED, RUNNING
from lsgd.search.space import Space
from lsgd.search.stop import Stop
from lsgd.supervise.logbook import Taken
from lsgd.supervise.verdict import Ending
from lsgd.trials.trial import Trial

LR = "schedule.reference_lr"
WORDS = ["epochs=4", "schedule.warmup_epochs=1", "schedule.milestones=[3]"]
DONE = Ending(0, "done")


def search(**changed: object) -> Search:
    space = {LR: {"from": 0.001, "to": 1.0, "scale": "log", "steps": 6}}
    fields = {"trials": 4, "sampler": "random", "words": WORDS} | changed
    return Search("one", "One", "digits", space, **fields)  # type: ignore[arg-type]


def write(trial: Trial, *errors: float, diverges: bool = False) -> None:
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

    def __init__(self, train: Callable[[Trial, Stop], Ending | None]) -> None:
        self._train = train
        self.trained: list[str] = []
        self.at_a_time = self.most = 0
        self.lock = threading.Lock()

    def train(self, trial: Trial, stop: Stop, say: Callable[[str], None]) -> Ending | None:
        trial.log.parent.mkdir(parents=True, exist_ok=True)
        trial.log.touch()
        with self.lock:
            self.trained.append(trial.folder.name)
            self.at_a_time += 1
            self.most = max(self.most, self.at_a_time)
        try:
            return self._train(trial, stop)
        finally:
            with self.lock:
                self.at_a_time -= 1


def done(trial: Trial) -> int:
    """The epochs that it has rows of."""
    return (trial.folder / "metrics.jsonl").read_text().count('"epoch": ')


def well(trial: Trial, stop: Stop) -> Ending:
    write(trial, *[10.0 + trial.recipe.schedule.reference_lr] * 4)
    return DONE


class Work:
    """A search in a folder of its own, and what came of it."""

    def __init__(self, what: Search, words: list[str] | None = None) -> None:
        self.space = Space(what, words or [])
        self.folder = Path("runs/searches/one")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.engine = Engine(what, self.folder)
        self.signals: list[int] = []

    def run(self, train: Callable[[Trial, Stop], Ending | None], jobs: int = 1) -> Written:
        place = Written(train)
        Controller(self.space, self.engine, place, self.folder, self.signals).search(jobs)
        return place

    @property
    def states(self) -> list[str]:
        return [point.state for point in self.engine.points()]


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "POLL", 0.01)
    monkeypatch.setattr(module, "OTHERS", 0.01)


def test_as_many_points_as_asked_for_each_with_every_seed() -> None:
    work = Work(search(seeds=[3, 4], trials=3))

    def train(trial: Trial, stop: Stop) -> Ending:
        write(trial, *[10.0 + trial.recipe.seed] * 4)
        return DONE

    place = work.run(train)
    assert work.states == [FINISHED] * 3
    assert len(set(place.trained)) == len(place.trained) == 6
    assert {point.value for point in work.engine.points()} == {13.5}
    assert place.most == 1
    # The same again trains nothing; more points go on.
    assert work.run(train).trained == []
    more = Work(search(seeds=[3, 4], trials=5))
    assert len(more.run(train).trained) == 4


def test_one_ends_and_one_begins() -> None:
    """A slow point delays nobody: with two jobs all others are done beside it."""
    work = Work(search())
    others = threading.Event()

    def train(trial: Trial, stop: Stop) -> Ending:
        first = len(place.trained) == 1
        if first:
            assert others.wait(30)
        write(trial, *[10.0] * 4)
        if len(place.trained) == 4:
            others.set()
        return DONE

    place = Written(train)
    Controller(work.space, work.engine, place, work.folder, []).search(2)
    assert work.states == [FINISHED] * 4
    assert place.most == 2


def test_a_run_that_is_there_is_told_and_not_trained() -> None:
    """A grid is met again by another search: of other trials, with the same runs."""
    first = Work(search(sampler="grid"))
    assert len(first.run(well).trained) == 4
    again = Work(search(sampler="grid"))
    again.folder = Path("runs/searches/two")
    again.folder.mkdir()
    again.engine = Engine(search(sampler="grid"), again.folder)
    assert again.run(well).trained == []
    assert [p.value for p in again.engine.points()] == [p.value for p in first.engine.points()]


def test_one_that_diverges_has_failed_and_is_not_repeated() -> None:
    work = Work(search())

    def train(trial: Trial, stop: Stop) -> Ending:
        if trial.recipe.schedule.reference_lr < 0.1:
            return well(trial, stop)
        write(trial, 90.0, diverges=True)
        return Ending(3, "diverged")

    place = work.run(train)
    failed = [point for point in work.engine.points() if point.state == FAILED]
    assert 0 < len(failed) < 4
    assert {point.why for point in failed} == {"diverged in epoch 2 of 4"}
    assert [work.engine.study.trials[point.number].value for point in failed] == [90.0] * len(
        failed
    )
    assert len(set(place.trained)) == len(place.trained) == 4


def test_a_crash_is_started_once_more_and_the_second_has_failed() -> None:
    work, crashes = Work(search()), dict[str, int]()

    def train(trial: Trial, stop: Stop) -> Ending:
        crashes[trial.folder.name] = crashes.get(trial.folder.name, 0) + 1
        always = len(crashes) == 2
        if always or (len(crashes) == 4 and crashes[trial.folder.name] == 1):
            trial.log.write_text("Segmentation fault\n")
            return Ending(1, "was killed", lost=True)
        return well(trial, stop)

    place = work.run(train)
    assert work.states == [FINISHED, FAILED, FINISHED, FINISHED]
    assert len(place.trained) == 6
    assert "was killed" in work.engine.points()[1].why
    assert "ends: Segmentation fault" in work.engine.points()[1].why


def test_one_that_somebody_told_to_leave_goes_on() -> None:
    work = Work(search(trials=1))

    def train(trial: Trial, stop: Stop) -> Ending:
        write(trial, 10.0)
        return DONE if trial.run.finished else Ending(75, "was preempted")

    assert len(work.run(train).trained) == 4
    assert work.states == [FINISHED]


@pytest.mark.parametrize("code", [2, 6])
def test_what_would_befall_all_of_them_ends_the_search(code: int) -> None:
    """Its point stays open, and the same command goes on with it."""
    work = Work(search())

    def train(trial: Trial, stop: Stop) -> Ending:
        if len(place.trained) < 3:
            return well(trial, stop)
        trial.log.write_text("lsgd: there is no data\n")
        return Ending(code, "was refused")

    place = Written(train)
    with pytest.raises(Refused, match="there is no data"):
        Controller(work.space, work.engine, place, work.folder, []).search(1)
    assert work.states == [FINISHED, FINISHED, RUNNING]
    assert work.run(well).trained[0] == place.trained[2]
    assert work.states == [FINISHED] * 4


def test_who_is_trained_beside_one_that_is_refused_saves_and_leaves() -> None:
    work, left = Work(search()), threading.Event()

    def train(trial: Trial, stop: Stop) -> Ending:
        if len(place.trained) == 1:
            deadline = time.monotonic() + 30
            while not stop and time.monotonic() < deadline:
                time.sleep(0.005)
            left.set()
            return Ending(75, "was preempted and has saved")
        trial.log.write_text("lsgd: there is no data\n")
        return Ending(2, "was refused")

    place = Written(train)
    with pytest.raises(Refused, match="there is no data"):
        Controller(work.space, work.engine, place, work.folder, []).search(2)
    assert left.is_set()
    assert work.states == [RUNNING, RUNNING]


def test_a_point_that_the_recipe_refuses_ends_the_search_with_its_sentence() -> None:
    """In the midst of a space whose corners it takes."""
    work = Work(search())
    recipe = work.space.recipe

    def odd(values: dict) -> object:
        if values and len(work.engine.points()) == 3:
            raise Refused("the recipe refuses the point")
        return recipe(values)

    work.space.recipe = odd  # type: ignore[method-assign,assignment]
    with pytest.raises(Refused, match="the recipe refuses the point"):
        work.run(well)
    assert work.states == [FINISHED, FINISHED, FAILED]


def test_who_is_given_up_is_told_so_and_leaves() -> None:
    """By the first epoch at which it is due, and with nobody else asked to leave."""
    prune = Pruning("median", after_trials=3, after_epochs=1)
    work, told = Work(search(prune=prune, trials=5)), list[str]()

    def train(trial: Trial, stop: Stop) -> Ending:
        if len(place.trained) < 4:
            write(trial, *[10.0 + len(place.trained)] * 4)
            return DONE
        if len(place.trained) == 5:
            write(trial, *[9.0] * 4)
            return DONE
        write(trial, 50.0)
        deadline = time.monotonic() + 30
        while not stop and time.monotonic() < deadline:
            time.sleep(0.005)
        told.append(work.states[3])
        return Ending(75, "was preempted and has saved")

    place = Written(train)
    Controller(work.space, work.engine, place, work.folder, []).search(1)
    assert work.states == [FINISHED] * 3 + [PRUNED, FINISHED]
    assert told == [PRUNED]
    assert work.engine.points()[3].reported == {1: 50.0}


def test_a_run_that_was_faster_than_the_search_is_given_up_all_the_same() -> None:
    """What is told depends on the rows alone, not on when they were read."""
    prune = Pruning("median", after_trials=3, after_epochs=2)
    work = Work(search(prune=prune, trials=5))

    def train(trial: Trial, stop: Stop) -> Ending:
        count = len(place.trained)
        write(trial, *([10.0] * 4 if count != 4 else [50.0, 50.0, 1.0, 1.0]))
        return DONE

    place = Written(train)
    Controller(work.space, work.engine, place, work.folder, []).search(1)
    assert work.states == [FINISHED] * 3 + [PRUNED, FINISHED]
    assert work.engine.points()[3].reported == {1: 50.0, 2: 50.0}


def test_nobody_is_given_up_at_the_end() -> None:
    """There is nothing to be saved then, and a value to be known."""
    prune = Pruning("median", after_trials=3, after_epochs=4)
    work = Work(search(prune=prune))

    def train(trial: Trial, stop: Stop) -> Ending:
        write(trial, *[10.0 if len(place.trained) < 4 else 50.0] * 4)
        return DONE

    place = Written(train)
    Controller(work.space, work.engine, place, work.folder, []).search(1)
    assert work.states == [FINISHED] * 4


def test_a_search_that_was_killed_gives_up_whom_it_would_have_given_up() -> None:
    """It had read the row, and was killed before it asked what follows."""
    prune = Pruning("median", after_trials=3, after_epochs=1)
    work = Work(search(prune=prune, trials=3))
    work.run(well)
    number = work.engine.ask()
    values = work.engine.values(number)
    work.engine.report(number, 1, 50.0)
    more = Work(search(prune=prune, trials=4))
    place = more.run(well)
    assert place.trained == []
    assert more.states == [FINISHED] * 3 + [PRUNED]
    assert more.engine.points()[3].values == values


def test_told_to_stop_it_keeps_its_points_for_the_next() -> None:
    work = Work(search())

    def train(trial: Trial, stop: Stop) -> Ending:
        if len(place.trained) == 3:
            work.signals.append(15)
            write(trial, 10.0)
            return Ending(75, "was preempted and has saved")
        return well(trial, stop)

    place = Written(train)
    Controller(work.space, work.engine, place, work.folder, work.signals).search(1)
    assert work.states == [FINISHED, FINISHED, RUNNING]
    work.signals.clear()
    place_of_rest = work.run(lambda trial, _: write(trial, *[10.0] * (4 - rest(trial))) or DONE)
    assert work.states == [FINISHED] * 4
    assert place_of_rest.trained[0] == place.trained[2]


def rest(trial: Trial) -> int:
    return trial.run.epoch if trial.run else 0


def test_who_is_trained_by_another_process_is_waited_for() -> None:
    work = Work(search(trials=1))

    def train(trial: Trial, stop: Stop) -> Ending:
        if len(place.trained) < 3:
            raise Taken("another is at work")
        return well(trial, stop)

    place = Written(train)
    Controller(work.space, work.engine, place, work.folder, []).search(1)
    assert work.states == [FINISHED]


def test_several_searches_in_one_folder_share_the_points() -> None:
    """Together they try as many as were asked for, each by one of them."""
    both = [Work(search(trials=8)) for _ in range(2)]
    ran: list[Written] = []

    def slowly(trial: Trial, stop: Stop) -> Ending:
        time.sleep(0.02)
        return well(trial, stop)

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(work.run, slowly, 2) for work in both]:
            ran.append(future.result())
    assert both[0].states == [FINISHED] * 8
    trained = ran[0].trained + ran[1].trained
    assert len(set(trained)) == len(trained) == 8
    assert all(place.trained for place in ran)


def test_a_point_that_another_search_has_is_left_to_it_until_that_is_gone() -> None:
    """That one is killed while the last point of this one is trained."""
    work = Work(search(trials=2))
    number = work.engine.ask()
    theirs = work.space.trials(work.engine.values(number), [0])[0].folder.name
    held = lock(work.folder, str(number), wait=False)
    assert held

    def train(trial: Trial, stop: Stop) -> Ending:
        if len(place.trained) == 1:
            threading.Timer(0.3, held.close).start()
        return well(trial, stop)

    place = Written(train)
    Controller(work.space, work.engine, place, work.folder, []).search(1)
    assert work.states == [FINISHED] * 2
    assert len(place.trained) == 2
    assert place.trained[1] == theirs


def test_a_run_that_cannot_be_read_is_no_endless_loop() -> None:
    """A launcher that ends well and has trained nothing."""
    work = Work(search(trials=1))
    place = work.run(lambda trial, stop: DONE)
    assert len(place.trained) == 2
    assert work.states == [FAILED]
