"""Run folders are read without torch, and whatever is wrong with one is said in a sentence."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.composed import compose_recipe
from helpers.run_folders import write_finished_run, write_perplexity_run, write_run

from lsgd.report.run_folders import find_runs
from lsgd.rules.metric import METRICS, TOP1
from lsgd.run.read import NotARunError, Run, planned_run_folder, read_run, without_side_files

WORDS = "+recipe=fashion_bs64"


def test_a_finished_run(tmp_path: Path) -> None:
    run = read_run(write_finished_run(tmp_path, "fashion_bs64", 3, 8.0))
    assert run.finished
    assert run.state == "finished"
    assert run.final_metric == 8.0  # of 11, 7.5, 8, 8.5 and 7, not of all nine
    assert run.recipe.seed == 3
    assert run.start["torch"] == "2.13.0"


def test_a_run_that_is_under_way_has_the_error_so_far(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a", "+recipe=fashion_bs64", errors=[30.0, 20.0]))
    assert not run.finished
    assert run.state == "2 of 9 epochs done"
    assert run.final_metric == 25.0


def test_a_run_without_an_epoch_has_no_final_metric(tmp_path: Path) -> None:
    assert math.isnan(read_run(write_run(tmp_path / "a", "+recipe=fashion_bs64")).final_metric)


def test_a_value_that_is_not_finite_reaches_no_target(tmp_path: Path) -> None:
    """It is null in the file."""
    words = [WORDS, "metric.epochs_to={loss: 0.5}", "stop.metric=loss", "stop.patience=8"]
    folder = write_run(tmp_path / "a", *words, errors=[5.0] * 9)
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows[1:]:
        row["val_loss"] = None if row["epoch"] <= 2 else 0.4
    path.write_text("\n".join(map(json.dumps, rows)))
    run = read_run(folder)
    assert (run.finished, run.final_metric) == (True, 3.0)
    del rows[-1]["val_loss"]
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(NotARunError, match="no number for val_loss of epoch 9"):
        read_run(folder)


def test_a_null_counts_only_where_the_final_metric_is_computed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", WORDS, errors=[9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0])
    path = folder / "metrics.jsonl"
    text = path.read_text()
    path.write_text(text.replace('"val_top1_error": 6.0', '"val_top1_error": null'))
    assert read_run(folder).final_metric == 3.0
    path.write_text(text.replace('"val_top1_error": 5.0', '"val_top1_error": null'))
    with pytest.raises(NotARunError, match="no number for val_top1_error of epoch 5"):
        read_run(folder)


def test_a_run_of_a_language_model_has_its_perplexity_for_a_number(tmp_path: Path) -> None:
    """That of the last epoch on the first set; the start says so, not the rows."""
    values = [300.0, 200.0, 150.0, 140.0, 130.0, 126.0, 124.0, 122.0, 120.0]
    run = read_run(write_perplexity_run(tmp_path / "a", WORDS, perplexities=values))
    assert run.metric is METRICS["perplexity"]
    assert (run.finished, run.final_metric) == (True, 120.0)
    assert (run.sets, run.number_on("test"), run.number_on("dev")) == (["val", "test"], 118.0, None)
    assert run.things == "tokens"


def test_a_run_that_was_resumed_without_a_set_has_no_number_on_it(tmp_path: Path) -> None:
    folder = write_perplexity_run(tmp_path / "a", WORDS, perplexities=[120.0] * 9)
    *rows, last = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    del last["test_perplexity"]
    write(folder, [*rows, last])
    run = read_run(folder)
    assert (run.final_metric, run.sets, run.number_on("test")) == (120.0, ["val", "test"], None)


def test_another_metric_whose_name_ends_as_that_of_the_run_makes_no_set() -> None:
    """No set has a `_` in its name."""
    values = {"val_error": 3.0, "val_position_error": 4.0, "train_position_error": 2.0}
    start = {"kind": "start", "step": 0, "metric": "error"}
    row = {"kind": "epoch", "step": 1, "epoch": 1, "test_error": 5.0, "train_error": 1.0} | values
    run = Run(Path("a"), compose_recipe(WORDS), [start, row])
    assert run.sets == ["val", "test"]


def test_a_run_that_names_no_metric_is_of_the_top_1_error(tmp_path: Path) -> None:
    """As all of 0.2.0 and before."""
    run = read_run(write_finished_run(tmp_path, "fashion_bs64", 0, 8.0))
    assert (run.metric, run.sets, run.things) == (TOP1, ["val"], "images")
    named = write_perplexity_run(tmp_path / "a", WORDS, metric="top1_error")
    assert read_run(named).metric is TOP1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"metric": "bleu"},
            "has the metric bleu, and this lsgd supports loss, top1_error, top5_err",
        ),
        ({"test_perplexity": None}, "metrics.jsonl has no number for test_perplexity of epoch 9"),
    ],
)
def test_a_run_whose_number_cannot_be_told_says_why(
    tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    folder = write_perplexity_run(tmp_path / "a", WORDS, perplexities=[120.0] * 9)
    first, *rows, last = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    write(folder, [first | change, *rows, last | change])
    with pytest.raises(NotARunError) as caught:
        read_run(folder)
    assert reason in str(caught.value)


def test_a_run_need_not_be_evaluated_after_every_epoch(tmp_path: Path) -> None:
    """The last five evaluations make its error, and its last epoch ends it."""
    folder = write_run(tmp_path / "a", "+recipe=fashion_bs64")
    rows = [{"kind": "epoch", "step": 937 * e, "epoch": e, "train_loss": 1.0} for e in range(1, 10)]
    for row, error in zip(rows[::2], (9.0, 20.0, 30.0, 40.0, 50.0), strict=True):
        row["val_top1_error"] = error
    write(folder, rows[:6])
    run = read_run(folder)
    assert (run.state, run.finished, run.final_metric) == ("6 of 9 epochs done", False, 20.0)
    write(folder, rows)
    run = read_run(folder)
    assert (run.state, run.finished, run.final_metric) == ("finished", True, 30.0)


def test_a_run_whose_rows_are_lost_is_not_finished(tmp_path: Path) -> None:
    """Behind a damaged line they are dropped, and its error would be the median of what is left."""
    folder = write_run(tmp_path / "a", "+recipe=fashion_bs64", errors=[9.0] * 9)
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join([*lines[:5], lines[-1]]))
    run = read_run(folder)
    assert (run.epoch, run.finished, run.state) == (9, False, "5 of 9 epochs done")


def write(folder: Path, rows: list[dict[str, object]]) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(text)


def test_a_diverged_run_that_goes_on_has_not_diverged(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", "+recipe=fashion_bs64", errors=[30.0], diverged=True)
    assert read_run(folder).diverged == "loss is nan"
    assert read_run(folder).state == "diverged in epoch 2 of 9"
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "start", "step": 0}\n')
    assert read_run(folder).diverged is None


def test_nothing_is_shown_of_what_a_configuration_points_to(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", "+recipe=fashion_bs64", errors=[30.0])
    (tmp_path / "token").write_text("a-secret: 1")
    (folder / "config.yaml").unlink()
    (folder / "config.yaml").symlink_to(tmp_path / "token")
    with pytest.raises(NotARunError, match=r"config\.yaml cannot be read") as refused:
        read_run(folder)
    assert "a-secret" not in str(refused.value)


def test_starts_are_those_that_have_finished_an_epoch(tmp_path: Path) -> None:
    """And the latest one alone if none has."""
    folder = write_run(tmp_path / "a", "+recipe=fashion_bs64", errors=[30.0, 20.0])
    start, one, two = read_run(folder).rows
    first, second, third = (start | {"host": host} for host in "abc")
    for rows, starts in (
        ([first, one, second, third, two], [first, third]),
        ([first, second, one, two, third], [second]),
        ([first, second], [second]),
    ):
        write(folder, rows)
        assert read_run(folder).starts == starts


def test_a_rehearsal_is_never_finished(tmp_path: Path) -> None:
    words = ("+recipe=fashion_bs64", "rehearse=true")
    run = read_run(write_run(tmp_path / "a", *words, errors=[30.0] * 9))
    assert not run.finished
    assert run.state == "a dry run"


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("config.yaml", "- a\n- b\n", "config.yaml is not a mapping of keys to values"),
        ("config.yaml", "name: [", "config.yaml cannot be read"),
        ("config.yaml", "\udcff\udcfe\0", "config.yaml cannot be read"),
        ("config.yaml", "data: [1]\n", "config.yaml is not of a run of this lsgd"),
        (
            "config.yaml",
            "data: {workload: speech, window: 35}\n",
            "not of a run of this lsgd: data.workload=speech is unknown to this version of lsgd",
        ),
        ("config.yaml", "trainer: {max_epochs: 3}\n", "there is no key 'trainer'"),
        ("config.yaml", "name: ${oc.env:HOME}\n", "'${oc.env:HOME}' in it, which refers to"),
        ("config.yaml", "data: {skip_list: /etc/passwd}\n", "in data.skip, not in a file"),
        (
            "config.yaml",
            "a: &a [1]\nb: [*a, *a]\n",
            "config.yaml cannot be read (it has the anchor &a: leave it out)",
        ),
        ("config.yaml", "a: " + "[" * 1000 + "]" * 1000, "more than 20 levels"),
        (
            "config.yaml",
            "a: [" + "1," * 100_000 + "]",
            "it has more than 20 levels or 51000 values: make it shorter)",
        ),
        ("config.yaml", "a: " + "a" * 2**23, "it has more than 4194304 bytes"),
        (
            "metrics.jsonl",
            '{"kind": "start", "step": 0, "time": "now"}\n',
            "metrics.jsonl has rows that lsgd did not write",
        ),
        ("metrics.jsonl", '{"kind": [], "step": 0}\n', "has rows that lsgd did not write"),
        ("metrics.jsonl", '{"kind": "train", "step": "0"}\n', "rows that lsgd did not write"),
        ("metrics.jsonl", '{"loss": 1}\n', "metrics.jsonl has rows that lsgd did not write"),
        ("metrics.jsonl", '{"step"\n{"step": 2}\n{}\n', "line 1 of metrics.jsonl is damaged"),
        (
            "metrics.jsonl",
            '{"kind": "epoch", "step": 1, "epoch": 1, "val_top1_error": null}\n',
            "metrics.jsonl has no number for val_top1_error of epoch 1",
        ),
        (
            "metrics.jsonl",
            '{"kind": "epoch", "step": 1, "epoch": 9, "train_top1_error": 9.0}\n',
            "metrics.jsonl has no number for val_top1_error of epoch 9",
        ),
        (
            "metrics.jsonl",
            '{"kind": "epoch", "step": 1, "epoch": 10, "val_top1_error": 9.0}\n',
            "metrics.jsonl has epoch 10 and the recipe 9",
        ),
    ],
)
def test_what_is_no_run_says_why(tmp_path: Path, name: str, text: str, reason: str) -> None:
    folder = write_run(tmp_path / "a", "+recipe=fashion_bs64")
    (folder / name).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(NotARunError) as caught:
        read_run(folder)
    assert reason in str(caught.value)


def test_folders_in_the_place_of_files_are_no_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", "+recipe=fashion_bs64")
    (folder / "metrics.jsonl").unlink()
    (folder / "metrics.jsonl").mkdir()
    with pytest.raises(NotARunError, match=r"metrics\.jsonl cannot be read"):
        read_run(folder)
    for missing in (tmp_path / "none", tmp_path):
        with pytest.raises(NotARunError):
            read_run(missing)


def test_settings_of_other_versions_do_not_matter(tmp_path: Path) -> None:
    folder = write_finished_run(tmp_path, "fashion_bs64", 0, 8.0)
    text = (folder / "config.yaml").read_text().replace("  prefetch: 2", "  processes: 4")
    assert "processes: 4" in text
    (folder / "config.yaml").write_text(text)
    assert read_run(folder).finished


def test_the_folder_of_a_trial_is_that_of_its_recipe_and_seed(tmp_path: Path) -> None:
    recipe = read_run(write_finished_run(tmp_path, "fashion_bs64", 2, 8.0)).recipe
    folder = planned_run_folder(recipe)
    assert folder.parts[:2] == ("runs", "trials")
    assert folder.name.startswith("fashion_bs64-seed2-")
    assert planned_run_folder(replace(recipe, run_dir="elsewhere")) == folder
    assert planned_run_folder(replace(recipe, epochs=10)) != folder


@pytest.mark.slow
def test_without_train_rows_all_is_said_that_is_said_with_them(tmp_path: Path) -> None:
    """Wherever the run ends, and of rows in any number only a few are kept."""
    folder = write_run(tmp_path / "a", "+recipe=digits", errors=[30.0, 20.0])
    start, *epochs = read_run(folder).rows
    nan = {"kind": "diverged", "step": 9, "text": "loss is nan"}
    trains = [{"kind": "train", "step": step, "loss": 1.0} for step in range(1, 6)]
    trains += [row | {"images_per_second": 5.0} for row in trains]
    rows = [start, *trains, epochs[0], start | {"step": 3}, *trains, nan, *trains, epochs[1], nan]
    for end in range(len(rows) + 1):
        path = folder / "metrics.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows[:end]))
        full, thin = read_run(folder), read_run(folder, train_rows=False)
        for name in ("epochs", "start", "starts", "finished", "diverged", "begun", "state", "sets"):
            assert getattr(thin, name) == getattr(full, name), name
        assert (thin.things, thin.metric) == (full.things, full.metric)
        assert thin.rows[-1:] == full.rows[-1:]
        kinds = [row["kind"] for row in thin.rows]
        assert kinds.count("train") <= 3
        for kind in ("start", "epoch", "diverged"):
            assert thin.of_kind(kind) == full.of_kind(kind)
    path.write_text(json.dumps(start) + "\n" + json.dumps(trains[0] | {"step": 1.5}) + "\n")
    with pytest.raises(NotARunError, match="has rows that lsgd did not write"):
        read_run(folder, train_rows=False)
    path.write_text(path.read_text() + "no JSON\n" + json.dumps(trains[0]) + "\n")
    with pytest.raises(NotARunError, match=r"line 3 of metrics\.jsonl is damaged"):
        read_run(folder, train_rows=False)


def test_files_beside_a_run_folder_are_not_runs(tmp_path: Path) -> None:
    """A shell's pattern matches them too; other files, which may be typing errors, are kept."""
    run = write_run(tmp_path / "a-seed0", "+recipe=digits", errors=[30.0])
    names = ["a-seed0.log", "a-seed0.verification.json", "a-seed1.log", "a-seed0-old", "b.txt"]
    files = [tmp_path / name for name in names]
    for path in files:
        path.write_text("")
    assert without_side_files([run, *files]) == [run, *files[2:]]
    assert without_side_files(files) == files
    runs, left_out = find_runs([run, *files[:2]])
    assert ([each.path for each in runs], left_out) == ([run], [])
