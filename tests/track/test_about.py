"""What a tracker is told of a run beside its numbers."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from helpers.run_folders import write_run
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lsgd.errors import UsageError
from lsgd.run.read import read_run
from lsgd.track.run_info import run_outcome, tracked_run_info

WORDS = ("+recipe=digits", "epochs=2", "schedule.milestones=[]", "schedule.warmup=none")


def test_the_id_stays_with_the_folder(tmp_path: Path) -> None:
    """Or a resumed run would be another one at the tracker."""
    run = read_run(write_run(tmp_path / "a", *WORDS))
    first = tracked_run_info(run, "mlflow")
    assert tracked_run_info(run, "mlflow").id == first.id
    assert tracked_run_info(run, "wandb").id != first.id
    assert json.loads((tmp_path / "a/tracker-mlflow.json").read_text()) == {"id": first.id}
    assert tracked_run_info(read_run(write_run(tmp_path / "b", *WORDS)), "mlflow").id != first.id


def test_configuration_and_tags(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a", *WORDS, seed=3))
    told = tracked_run_info(run, "mlflow")
    assert told.name == "a"
    assert told.config["optim.momentum"] == 0.9
    assert told.config["schedule.milestones"] == []
    assert "data.window" not in told.config  # which only texts have
    assert told.tags["fingerprint"] == run.recipe.fingerprint
    assert told.tags["checkpoint"] == str(tmp_path / "a/checkpoint.pt")
    assert (told.tags["seed"], told.tags["host"]) == ("3", "h")
    assert "seed" in tracked_run_info(replace(run, rows=[]), "mlflow").tags


def test_what_became_of_a_run(tmp_path: Path) -> None:
    over = run_outcome(read_run(write_run(tmp_path / "a", *WORDS, errors=[9.0, 8.0])))
    assert (over.finished, over.diverged) == (True, False)
    assert over.text.startswith("top-1 error 8.50 %")
    broken = run_outcome(read_run(write_run(tmp_path / "b", *WORDS, errors=[9.0], diverged=True)))
    assert (broken.finished, broken.diverged, broken.text) == (False, True, "loss is nan")
    left = run_outcome(read_run(write_run(tmp_path / "c", *WORDS, errors=[9.0])))
    assert (left.finished, left.diverged, left.text) == (False, False, "1 of 2 epochs done")


@pytest.mark.parametrize("content", ["{}", "[1]", "{", '{"id": "a\' or \'b"}', '{"id": "a/b"}'])
def test_an_id_of_others_is_a_word(content: str, tmp_path: Path) -> None:
    """And neither a condition of a search nor a traceback."""
    run = read_run(write_run(tmp_path / "a", *WORDS))
    (tmp_path / "a/tracker-mlflow.json").write_text(content)
    with pytest.raises(UsageError, match=r"tracker-mlflow.json contains no id; remove it"):
        tracked_run_info(run, "mlflow")


@pytest.mark.mlflow
@settings(max_examples=100)
@given(
    st.text(max_size=8) | st.text(st.sampled_from("./a:(="), max_size=6).map("deviations.".__add__)
)
@example("..")
@example(".")
@example("x" * 300)
def test_mlflow_takes_every_name(key: str) -> None:
    """Or it would take none of the run, whose deviations may have any name."""
    from mlflow.utils import validation

    from lsgd.track.mlflow import mlflow_name

    validation._validate_param(mlflow_name(key), "value")
    validation._validate_metric_name(mlflow_name(key))
    assert mlflow_name("deviations.worker_batch") == "deviations.worker_batch"
    assert mlflow_name("train/loss") == "train/loss"


@pytest.mark.mlflow
def test_of_an_extended_run_mlflow_has_the_current_epochs_as_a_tag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parameters cannot change."""
    import mlflow

    from lsgd.track import mlflow as tracker

    client = MagicMock()
    known: dict[str, str] = {}
    found = SimpleNamespace(info=SimpleNamespace(run_id="7"), data=SimpleNamespace(params=known))
    client.search_runs.return_value = [found]
    monkeypatch.setattr(mlflow, "get_experiment_by_name", lambda name: None)
    monkeypatch.setattr(mlflow, "set_experiment", lambda name: SimpleNamespace(experiment_id="1"))
    monkeypatch.setattr(tracker, "MlflowClient", lambda: client)

    def logged(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
        """Return the parameters and tags of a start of this run."""
        client.log_batch.reset_mock()
        tracker.MlflowRun(tracked_run_info(read_run(folder), "mlflow"))
        calls = [call.kwargs for call in client.log_batch.mock_calls]
        params, tags = (
            {each.key: each.value for call in calls for each in call[kind]}
            for kind in ("params", "tags")
        )
        return params, {key: value for key, value in tags.items() if key.startswith("changed.")}

    two, four = (write_run(tmp_path / n, *WORDS, f"epochs={n}", "run_dir=a") for n in "24")
    params, changed = logged(two)
    assert (params["epochs"], changed) == ("2", {})
    known |= params
    assert logged(two) == ({}, {})
    assert logged(four) == ({}, {"changed.epochs": "4"})


@pytest.mark.mlflow
def test_an_experiment_that_was_deleted_says_how_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow keeps its name, and no other can have it."""
    import mlflow

    from lsgd.track.mlflow import MlflowRun

    deleted = SimpleNamespace(lifecycle_stage="deleted", experiment_id="7")
    monkeypatch.setattr(mlflow, "get_experiment_by_name", lambda name: deleted)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    run = tracked_run_info(read_run(write_run(tmp_path / "a", *WORDS)), "mlflow")
    with pytest.raises(
        UsageError, match=r"=mine is deleted .*restore --experiment-id 7`, or set it"
    ):
        MlflowRun(run)
