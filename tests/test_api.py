"""What a Python program imports is there, says what it does, and hears what a run writes."""

from pathlib import Path
from typing import Any

import pytest

from lsgd import api, config, train
from lsgd.run.rows import read_rows

SHORT = ["epochs=2", "schedule.milestones=[1]", "schedule.warmup_epochs=0.5", "log_steps=2"]


def recipe(folder: Path, *words: str) -> api.Recipe:
    return api.load_recipe("+recipe=digits", *SHORT, f"run_dir={folder}", *words)


def test_what_there_is() -> None:
    """These names stay, and each says for itself what it is."""
    assert api.__all__ == [
        "Diverged", "EndsEarly", "Preempted", "Recipe", "Refused", "Run", "evaluate",
        "load_recipe", "read_runs", "train",
    ]  # fmt: skip
    for name in api.__all__:
        assert getattr(api, name).__doc__, name


def test_a_recipe_is_that_of_the_command_line(tmp_path: Path) -> None:
    words = ["+recipe=digits", "seed=3"]
    assert api.load_recipe(*words) == config.load_recipe(words)


def test_every_row_is_heard_once_as_it_is_written(tmp_path: Path) -> None:
    file, heard = tmp_path / "run" / "metrics.jsonl", []

    def on_row(row: dict[str, Any]) -> None:
        assert read_rows(file)[-1] == row
        heard.append(row)

    error = api.train(recipe(tmp_path / "run"), on_row=on_row)
    assert heard == read_rows(file)
    assert heard[-1]["val_top1_error"] == api.read_runs(tmp_path)[0].epochs[2]["val_top1_error"]
    assert error == api.read_runs(tmp_path)[0].number


def test_nobody_hears_the_next_run(tmp_path: Path) -> None:
    heard: list[dict[str, Any]] = []
    api.train(recipe(tmp_path / "one"), on_row=heard.append)
    count = len(heard)
    train.train(recipe(tmp_path / "other"))
    assert len(heard) == count


def test_a_listener_may_end_a_run_which_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    def stop(row: dict[str, Any]) -> None:
        if row["kind"] == "epoch":
            raise Enough

    with pytest.raises(Enough):
        api.train(recipe(tmp_path / "run"), on_row=stop)
    again: list[dict[str, Any]] = []
    error = api.train(recipe(tmp_path / "run"), on_row=again.append)
    assert error == api.train(recipe(tmp_path / "whole"))
    [run] = api.read_runs(tmp_path / "run")
    assert (run.state, len(run.epochs)) == ("finished", 2)
    assert again[0]["kind"] == "start"


def test_how_a_run_ends_is_raised(tmp_path: Path) -> None:
    with pytest.raises(api.Refused, match="there is no key 'worker'"):
        api.load_recipe("+recipe=digits", "worker=3")
    api.train(recipe(tmp_path / "run"))
    with pytest.raises(
        api.Refused, match=r"holds another run .* with seed=0, this .* with seed=1\); write"
    ):
        api.train(recipe(tmp_path / "run", "seed=1"))
    with pytest.raises(api.Refused, match="no folder"):
        api.read_runs(tmp_path / "nowhere")
    heard: list[dict[str, Any]] = []
    with pytest.raises(api.Diverged):
        api.train(
            recipe(tmp_path / "wild", "schedule.reference_lr=1e9", "schedule.warmup=none"),
            on_row=heard.append,
        )
    assert heard[-1]["kind"] == "diverged"


def test_an_evaluation_is_that_of_the_command(tmp_path: Path) -> None:
    api.train(recipe(tmp_path / "run"))
    [run] = api.read_runs(str(tmp_path))
    for checkpoint in (str(run.path / "checkpoint.pt"), run.path):
        scores = api.evaluate(checkpoint, "val_batch=50")
        assert scores["val"].rates["top1_error"] == run.epochs[2]["val_top1_error"]
    with pytest.raises(api.Refused, match="would make another run"):
        api.evaluate(run.path / "checkpoint.pt", "seed=1")
