"""Optuna as a search uses it: what is drawn follows from the seed, the number and the past."""

import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lsgd.errors import Refused
from lsgd.recipe.search import Pruning, Search
from lsgd.search.engine import Engine
from lsgd.search.point import FAILED, FINISHED, PRUNED, RUNNING, best_of

SPACE = {
    "lr": {"from": 1e-4, "to": 1.0, "scale": "log", "steps": 4},
    "width": {"choices": [30, 60, 120]},
    "workers": {"from": 1, "to": 64, "scale": "log", "steps": 2},
}
SEARCH = Search("one", "One", "digits", SPACE, trials=16)


def value(values: dict) -> float:
    return abs(values["lr"] - 0.1) + values["width"] / 100 + values["workers"] / 1000


def drawn(search: Search, folder: Path, *, interrupted: Sequence[int] = ()) -> list[dict]:
    """All points of a search by one job; interrupted by a kill in the midst of those named."""
    folder.mkdir()
    engine = Engine(search, folder)
    for _ in range(search.trials):
        number = engine.ask()
        if number in interrupted:
            if number % 2:  # after its first field
                engine._trial(number).suggest_float("lr", 1e-4, 1.0, log=True)
            engine = Engine(search, folder)
        values = engine.values(number)
        if number in interrupted:
            engine = Engine(search, folder)
            assert engine.values(number) == values
        if number == 5:
            engine.tell(number, FAILED, why="diverged")
            continue
        engine.report(number, 1, 2 * value(values))
        if number == 6:
            engine.tell(number, PRUNED)
            continue
        engine.tell(number, FINISHED, value=value(values))
    return [dict(point.values) for point in engine.points()]


@pytest.mark.parametrize(
    "sampler", ["grid", "random", "tpe", pytest.param("gp", marks=pytest.mark.slow)]
)
def test_an_interrupted_search_draws_what_it_would_have_drawn(sampler: str, tmp_path: Path) -> None:
    """Also where it was killed between the number of a point and its last field."""
    search = replace(SEARCH, sampler=sampler)
    whole = drawn(search, tmp_path / "whole")
    assert drawn(search, tmp_path / "again") == whole
    assert drawn(search, tmp_path / "killed", interrupted=[0, 1, 4, 7, 12, 13, 15]) == whole
    assert len({json.dumps(values) for values in whole}) == 16
    assert drawn(replace(search, sampler_seed=1), tmp_path / "other") != whole


def test_a_grid_has_every_point_once(tmp_path: Path) -> None:
    points = drawn(replace(SEARCH, sampler="grid", trials=24), tmp_path / "grid")
    assert len({json.dumps(values, sort_keys=True) for values in points}) == 4 * 3 * 2
    assert {values["workers"] for values in points} == {1, 64}


@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_a_sampler_looks_at_what_came_of_the_points(sampler: str, tmp_path: Path) -> None:
    """With the same draws at the beginning, other values lead elsewhere."""
    folders = tmp_path / "near", tmp_path / "far"
    found = []
    for sign, folder in zip((1, -1), folders, strict=True):
        folder.mkdir()
        engine = Engine(replace(SEARCH, sampler=sampler), folder)
        for _ in range(14):
            number = engine.ask()
            engine.tell(number, FINISHED, value=sign * value(engine.values(number)))
        found.append([dict(point.values) for point in engine.points()])
    near, far = found
    assert near[:10] == far[:10]
    assert near[10:] != far[10:]


def test_several_processes_see_the_same_points(tmp_path: Path) -> None:
    first, second = Engine(SEARCH, tmp_path), Engine(SEARCH, tmp_path)
    numbers = [engine.ask() for engine in (first, second, first)]
    assert numbers == [0, 1, 2]
    values = first.values(0)
    second.tell(0, FINISHED, value=3.0)
    assert [point.state for point in first.points()] == [FINISHED, RUNNING, RUNNING]
    assert best_of(first.points()).values == values


@pytest.mark.parametrize(
    ("prune", "given_up"),
    [
        (None, []),
        (Pruning("median", after_trials=3, after_epochs=1), [1, 2, 3]),
        (Pruning("median", after_trials=3, after_epochs=2), [2, 3]),
        (Pruning("median", after_trials=4, after_epochs=1), []),
        (Pruning("successive_halving", after_epochs=1), [1]),
        (Pruning("successive_halving", after_epochs=2), [2]),
    ],
)
def test_who_is_worse_than_half_of_the_others_is_given_up(
    prune: Pruning | None, given_up: list[int], tmp_path: Path
) -> None:
    engine = Engine(replace(SEARCH, prune=prune), tmp_path)
    for error in (1.0, 2.0, 3.0):
        number = engine.ask()
        engine.values(number)
        for epoch in (1, 2, 3):
            engine.report(number, epoch, error)
            if prune and prune.rule == "successive_halving":
                engine.gives_up(number)
        engine.tell(number, FINISHED, value=error)
    number = engine.ask()
    engine.values(number)
    said = []
    for epoch in (1, 2, 3):
        engine.report(number, epoch, 2.5)
        if engine.gives_up(number):
            said.append(epoch)
    assert said == given_up


def test_why_a_point_has_failed_is_kept(tmp_path: Path) -> None:
    engine = Engine(SEARCH, tmp_path)
    engine.tell(engine.ask(), FAILED, value=90.0, why="diverged in epoch 1 of 2")
    (point,) = Engine(SEARCH, tmp_path).points()
    assert (point.state, point.why, point.value) == (FAILED, "diverged in epoch 1 of 2", None)


def test_the_journal_is_optunas_own(tmp_path: Path) -> None:
    """So that optuna-dashboard and other programs open it."""
    drawn(SEARCH, tmp_path / "one")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import optuna

        file = optuna.storages.journal.JournalFileBackend(str(tmp_path / "one/journal.log"))
        study = optuna.load_study(study_name="one", storage=optuna.storages.JournalStorage(file))
    assert len(study.trials) == 16
    assert study.best_value == min(value(trial.params) for trial in study.get_trials(
        states=[optuna.trial.TrialState.COMPLETE]))  # fmt: skip


def test_a_database_keeps_the_points_instead(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/points.db"
    engine = Engine(SEARCH, tmp_path, url)
    engine.tell(engine.ask(), FAILED)
    assert len(Engine(SEARCH, tmp_path, url).points()) == 1
    assert not (tmp_path / "journal.log").exists()
    with pytest.raises(Refused, match=r"--storage nosql://a cannot be used \(.*write a URL such"):
        Engine(SEARCH, tmp_path, "nosql://a")


def test_a_point_that_failed_with_a_value_is_not_chosen_again_and_again(tmp_path: Path) -> None:
    """Of points without one a Gaussian process knows nothing, and takes them for promising."""
    engine = Engine(replace(SEARCH, sampler="gp"), tmp_path)
    for _ in range(24):
        number = engine.ask()
        values = engine.values(number)
        if values["lr"] > 0.02:
            engine.tell(number, FAILED, value=90.0, why="diverged in epoch 1 of 2")
        else:
            engine.tell(number, FINISHED, value=20 - 1000 * values["lr"] / 2)
    points = engine.points()
    assert all(point.value is None for point in points if point.state == FAILED)
    assert [point.state for point in points[12:]].count(FAILED) < 6
