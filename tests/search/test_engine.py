"""Optuna as a search uses it: what is drawn follows from the seed, the number and the past."""

import errno
import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import optuna
import pytest

from lsgd.errors import NotSavedError, PreemptedError, UsageError
from lsgd.recipe.search import Pruning, Search
from lsgd.search.optuna_study import JOURNAL, WHY, OptunaStudy, load_trials
from lsgd.search.trial import FAILED, FINISHED, PRUNED, RUNNING

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
    engine = OptunaStudy(search, folder)
    for _ in range(search.trials):
        number = engine.ask()
        if number in interrupted:
            if number % 2:  # after its first field
                engine._trial(number).suggest_float("lr", 1e-4, 1.0, log=True)
            engine = OptunaStudy(search, folder)
        values = engine.values(number)
        if number in interrupted:
            engine = OptunaStudy(search, folder)
            assert engine.values(number) == values
        if number == 5:
            engine.tell(number, FAILED, why="diverged")
            continue
        engine.report(number, 1, 2 * value(values))
        if number == 6:
            engine.tell(number, PRUNED)
            continue
        engine.tell(number, FINISHED, value=value(values))
    return [dict(point.values) for point in engine.all_trials()]


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


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_a_sampler_looks_at_what_came_of_the_points(sampler: str, tmp_path: Path) -> None:
    """With the same draws at the beginning, other values lead elsewhere."""
    folders = tmp_path / "near", tmp_path / "far"
    found = []
    for sign, folder in zip((1, -1), folders, strict=True):
        folder.mkdir()
        engine = OptunaStudy(replace(SEARCH, sampler=sampler), folder)
        for _ in range(14):
            number = engine.ask()
            engine.tell(number, FINISHED, value=sign * value(engine.values(number)))
        found.append([dict(point.values) for point in engine.all_trials()])
    near, far = found
    assert near[:10] == far[:10]
    assert near[10:] != far[10:]


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
    engine = OptunaStudy(replace(SEARCH, prune=prune), tmp_path)
    for error in (1.0, 2.0, 3.0):
        number = engine.ask()
        engine.values(number)
        for epoch in (1, 2, 3):
            engine.report(number, epoch, error)
            if prune and prune.rule == "successive_halving":
                engine.should_prune(number)
        engine.tell(number, FINISHED, value=error)
    number = engine.ask()
    engine.values(number)
    said = []
    for epoch in (1, 2, 3):
        engine.report(number, epoch, 2.5)
        if engine.should_prune(number):
            said.append(epoch)
    assert said == given_up


def test_failed_trials_with_a_value_are_no_finished_ones_to_the_median(tmp_path: Path) -> None:
    """They count neither for `after_trials` nor in the median, whatever they had reported."""
    prune = Pruning("median", after_trials=2, after_epochs=1)
    engine = OptunaStudy(replace(SEARCH, prune=prune), tmp_path)

    def trial(error: float) -> int:
        number = engine.ask()
        engine.values(number)
        engine.report(number, 1, error)
        return number

    for _ in range(3):
        engine.tell(trial(1.0), FAILED, value=90.0, why="diverged in epoch 2 of 3")
    engine.tell(trial(10.0), FINISHED, value=10.0)
    assert not engine.should_prune(trial(10.5))
    engine.tell(trial(11.0), FINISHED, value=11.0)
    assert not engine.should_prune(trial(10.4))
    assert engine.should_prune(trial(10.6))


def test_who_was_better_once_is_given_up_all_the_same(tmp_path: Path) -> None:
    engine = OptunaStudy(replace(SEARCH, prune=Pruning("median", after_trials=3)), tmp_path)
    for error in (10.0, 12.0, 14.0):
        number = engine.ask()
        engine.values(number)
        for epoch in (1, 2):
            engine.report(number, epoch, error)
        engine.tell(number, FINISHED, value=error)
    number = engine.ask()
    engine.values(number)
    engine.report(number, 1, 5.0)
    assert not engine.should_prune(number)
    engine.report(number, 2, 12.5)
    assert engine.should_prune(number)


@pytest.mark.slow
def test_a_database_keeps_the_points_instead(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/points.db"
    engine = OptunaStudy(SEARCH, tmp_path, url)
    engine.tell(engine.ask(), FAILED)
    assert len(OptunaStudy(SEARCH, tmp_path, url).all_trials()) == 1
    assert not (tmp_path / "journal.log").exists()
    with pytest.raises(
        UsageError, match=r"--storage nosql://a cannot be used \(.*write a URL such"
    ):
        OptunaStudy(SEARCH, tmp_path, "nosql://a")


@pytest.mark.parametrize("url", ["nosql://me:secret@a", "sqlite://me:secret@host/points.db"])
def test_no_sentence_has_the_password_of_a_database(url: str, tmp_path: Path) -> None:
    """Nor the library's own, which stands in it."""
    with pytest.raises(UsageError, match=r"--storage \w+://me:\*\*\*@") as refused:
        OptunaStudy(SEARCH, tmp_path, url)
    assert "secret" not in str(refused.value)
    with pytest.raises(UsageError) as refused:
        load_trials(SEARCH, tmp_path, url)
    assert "secret" not in str(refused.value)


def test_a_full_disk_is_no_word_about_a_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = OptunaStudy(SEARCH, tmp_path)
    number = engine.ask()
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(engine.study, "tell", full)
    with pytest.raises(NotSavedError, match=r"journal\.log could not be written \(No space left"):
        engine.tell(number, FAILED)
    assert [point.state for point in OptunaStudy(SEARCH, tmp_path).all_trials()] == [RUNNING]


@pytest.mark.slow
def test_a_point_that_failed_with_a_value_is_not_chosen_again_and_again(tmp_path: Path) -> None:
    """Of points without one a Gaussian process knows nothing, and takes them for promising."""
    engine = OptunaStudy(replace(SEARCH, sampler="gp"), tmp_path)
    for _ in range(24):
        number = engine.ask()
        values = engine.values(number)
        if values["lr"] > 0.02:
            engine.tell(number, FAILED, value=90.0, why="diverged in epoch 1 of 2")
        else:
            engine.tell(number, FINISHED, value=20 - 1000 * values["lr"] / 2)
    points = engine.all_trials()
    assert all(point.value is None for point in points if point.state == FAILED)
    assert [point.state for point in points[12:]].count(FAILED) < 6


def test_a_kill_between_why_a_point_failed_and_that_it_has_leaves_it_open(tmp_path: Path) -> None:
    engine = OptunaStudy(SEARCH, tmp_path)
    number = engine.ask()
    engine._trial(number).set_user_attr(WHY, "diverged in epoch 1 of 2")
    again = OptunaStudy(SEARCH, tmp_path)
    assert [point.state for point in again.all_trials()] == [RUNNING]
    again.tell(number, FAILED, value=90.0, why="diverged in epoch 1 of 2")
    assert [point.state for point in again.all_trials()] == [FAILED]


def test_a_trial_that_finishes_after_a_kill_at_its_failure_is_finished(tmp_path: Path) -> None:
    """Such as after a crash that the rerun does not meet."""
    engine = OptunaStudy(SEARCH, tmp_path)
    number = engine.ask()
    engine._trial(number).set_user_attr(WHY, "exit code 1, was killed")
    OptunaStudy(SEARCH, tmp_path).tell(number, FINISHED, value=1.0)
    [point] = engine.all_trials()
    assert (point.state, point.value, point.why) == (FINISHED, 1.0, "")


def test_a_kill_in_the_journal_stops_nobody_and_costs_no_line_but_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it leaves: a lock of an earlier version, dangling, and half of a line."""
    monkeypatch.chdir(tmp_path)
    folder = Path("searches/one")
    folder.mkdir(parents=True)
    number = OptunaStudy(SEARCH, folder).ask()
    (folder / f"{JOURNAL}.lock").symlink_to(folder / JOURNAL)
    with (folder / JOURNAL).open("a") as journal:
        journal.write('{"op_code": 4, "wor')
    engine = OptunaStudy(SEARCH, folder)
    engine.tell(number, FINISHED, value=1.0)
    engine.ask()
    assert [point.state for point in load_trials(SEARCH, folder)] == [FINISHED, RUNNING]


def test_a_database_has_one_definition_of_a_search(tmp_path: Path) -> None:
    """Its name alone would hand a search over momentum the points of one over the lr."""
    url = f"sqlite:///{tmp_path}/points.db"
    OptunaStudy(SEARCH, tmp_path, url, definition="a").ask()
    OptunaStudy(SEARCH, tmp_path, url, definition="a")
    other = pytest.raises(UsageError, match=r"points\.db has a search .* with another definition")
    with other:
        OptunaStudy(SEARCH, tmp_path, url, definition="b")
    with other:
        load_trials(SEARCH, tmp_path, url, definition="b")


@pytest.mark.slow
@pytest.mark.parametrize(("key", "refused"), [("lr", False), ("optim.momentum", True)])
def test_of_points_from_before_there_was_a_hash_the_fields_are_compared(
    key: str, refused: bool, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/points.db"
    study = optuna.create_study(study_name=tmp_path.name, storage=url)
    between = {key: optuna.distributions.FloatDistribution(0.0, 1.0)}
    study.add_trial(optuna.trial.create_trial(value=1, params={key: 0.1}, distributions=between))
    said = pytest.raises(UsageError, match="with another definition")
    with said if refused else nullcontext():
        assert len(OptunaStudy(SEARCH, tmp_path, url, definition="a").all_trials()) == 1


def test_points_are_of_the_folder_that_has_begun_them(tmp_path: Path) -> None:
    """Local locks say nothing of another machine's."""
    url = f"sqlite:///{tmp_path}/points.db"
    mine, theirs = (
        OptunaStudy(SEARCH, tmp_path, url, folder_id=place) for place in ("mine", "theirs")
    )
    assert [mine.ask(), theirs.ask(), mine.ask()] == [0, 1, 2]
    assert (mine.trial_numbers_here(), theirs.trial_numbers_here()) == ({0, 2}, {1})
    assert len(mine.all_trials()) == 3


def test_a_failed_point_that_is_tried_again_stands_in_its_place(tmp_path: Path) -> None:
    engine = OptunaStudy(SEARCH, tmp_path)
    number = engine.ask()
    values = engine.values(number)
    engine.tell(number, FAILED, why="no space in HOME")
    again = engine.ask(engine.all_trials()[0])
    assert engine.values(again) == values
    engine.tell(again, FINISHED, value=1.0)
    assert [(point.number, point.state) for point in engine.all_trials()] == [(again, FINISHED)]


def test_a_journal_that_cannot_be_written_ends_the_search_with_a_sentence(tmp_path: Path) -> None:
    engine = OptunaStudy(SEARCH, tmp_path)
    number = engine.ask()
    (tmp_path / JOURNAL).rename(tmp_path / "away")
    (tmp_path / JOURNAL).mkdir()
    with pytest.raises(
        PreemptedError, match=r"journal\.log cannot be read or written .* to resume"
    ):
        engine.tell(number, FAILED)
