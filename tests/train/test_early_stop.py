"""A run that stops by its patience, and is killed and resumed before."""

from pathlib import Path
from typing import Any

import pytest
from helpers.composed import compose_recipe
from helpers.reference_run import WORDS, newest_checkpoint, rows

from lsgd import train as training
from lsgd.learner import Learner
from lsgd.run.checkpoint import Checkpoint
from lsgd.run.read import read_run
from lsgd.run.saver import CheckpointSaver
from lsgd.scores import Scores
from lsgd.train import train

LOSSES = {5: 3.0, 10: 2.0, 15: 2.5, 20: 1.0}
"""The validation loss after each of the four epochs; the third is the first without progress."""


class Killed(BaseException):
    """Ends a run where it is raised, as a kill does."""


@pytest.fixture(autouse=True)
def _planned_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(learner: Learner, *_: Any) -> dict[str, Scores]:
        loss = LOSSES[learner.next_step]
        return {"val": Scores({}, {"loss": loss, "top1_error": 10 * loss, "top5_error": 0.0})}

    monkeypatch.setattr(training, "evaluate", evaluate)


@pytest.mark.slow
def test_it_stops_and_says_so_wherever_it_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches a patience that counts from a resume on, and a report of a run as unfinished."""
    recipe = compose_recipe(*WORDS, "stop.patience=1", "checkpoint_steps=1", f"run_dir={tmp_path}")
    save = CheckpointSaver.save

    def kill(self: CheckpointSaver, made: Checkpoint, **rest: Any) -> None:
        if made.step == 11:
            raise Killed
        save(self, made, **rest)

    monkeypatch.setattr(CheckpointSaver, "save", kill)
    with pytest.raises(Killed):
        train(recipe)
    monkeypatch.setattr(CheckpointSaver, "save", save)
    assert read_run(tmp_path).state == "2 of 4 epochs done"
    why = "early stopped after epoch 3 of 4, no lower validation loss since epoch 2"
    for _ in range(2):  # the second time nothing is left to train
        assert train(recipe) == 25.0
        assert f"(median of the last 3 epochs); {why}, run folder" in capsys.readouterr().out
        assert [row["step"] for row in rows(tmp_path, "train")] == list(range(1, 16))
    assert list(newest_checkpoint(tmp_path).rates) == [1, 2, 3]
    run = read_run(tmp_path)
    assert (run.finished, run.state, run.final_metric) == (True, why, 25.0)


@pytest.mark.slow
@pytest.mark.parametrize(("epochs", "trained"), [(2, [3]), (3, [])])
def test_a_run_that_goes_on_to_more_epochs_stops_as_a_longer_one(
    epochs: int, trained: list[int], tmp_path: Path
) -> None:
    """Also if the last of its epochs was already one too many."""
    words = [*WORDS, "stop.patience=1", f"run_dir={tmp_path}"]
    train(compose_recipe(*words, f"epochs={epochs}", "schedule.milestones=[]"))
    assert read_run(tmp_path).state == "finished"
    train(compose_recipe(*words))
    assert list(newest_checkpoint(tmp_path).rates) == [*range(1, epochs + 1), *trained]
    run = read_run(tmp_path)
    assert run.state.startswith("early stopped after epoch 3 of 4, ")
    assert (run.finished, run.final_metric) == (True, 25.0)


def test_patience_is_a_field_of_the_trajectory_once_it_is_set(tmp_path: Path) -> None:
    plain = compose_recipe(*WORDS)
    assert compose_recipe(*WORDS, "stop.patience=null").fingerprint == plain.fingerprint
    assert compose_recipe(*WORDS, "stop.patience=1").fingerprint != plain.fingerprint
    assert not compose_recipe(*WORDS, "stop.patience=1", "dry_run=true").may_stop_early
