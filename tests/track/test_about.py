"""What a tracker is told of a run beside its numbers."""

import json
from dataclasses import replace
from pathlib import Path

from helpers.run_folders import write_run

from lsgd.run.read import read_run
from lsgd.track.about import about, conclusion

WORDS = ("+recipe=digits", "epochs=2", "schedule.milestones=[]", "schedule.warmup=none")


def test_the_id_stays_with_the_folder(tmp_path: Path) -> None:
    """Or a resumed run would be another one at the tracker."""
    run = read_run(write_run(tmp_path / "a", *WORDS))
    first = about(run, "mlflow")
    assert about(run, "mlflow").id == first.id
    assert about(run, "wandb").id != first.id
    assert json.loads((tmp_path / "a/tracker-mlflow.json").read_text()) == {"id": first.id}
    assert about(read_run(write_run(tmp_path / "b", *WORDS)), "mlflow").id != first.id


def test_configuration_and_tags(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a", *WORDS, seed=3))
    told = about(run, "mlflow")
    assert told.name == "a"
    assert told.config["optim.momentum"] == 0.9
    assert told.config["schedule.milestones"] == []
    assert "data.window" not in told.config  # which only texts have
    assert told.tags["fingerprint"] == run.recipe.fingerprint
    assert told.tags["checkpoint"] == str(tmp_path / "a/checkpoint.pt")
    assert (told.tags["seed"], told.tags["host"]) == ("3", "h")
    assert "seed" in about(replace(run, rows=[]), "mlflow").tags


def test_what_became_of_a_run(tmp_path: Path) -> None:
    over = conclusion(read_run(write_run(tmp_path / "a", *WORDS, errors=[9.0, 8.0])))
    assert (over.finished, over.diverged) == (True, False)
    assert over.text.startswith("top-1 error 8.50 %")
    broken = conclusion(read_run(write_run(tmp_path / "b", *WORDS, errors=[9.0], diverged=True)))
    assert (broken.finished, broken.diverged, broken.text) == (False, True, "loss is nan")
    left = conclusion(read_run(write_run(tmp_path / "c", *WORDS, errors=[9.0])))
    assert (left.finished, left.diverged, left.text) == (False, False, "1 of 2 epochs done")
