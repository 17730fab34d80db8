"""Where two runs part, by value, in rows that are made up; and in rows that runs have written."""

import json
import math
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
from helpers.run_folders import write_run

from lsgd.compare import FirstMismatch, compare_metrics, main
from lsgd.errors import UsageError
from lsgd.run.read import Run, read_run

Row = dict[str, Any]


def train(step: int, **values: Any) -> Row:
    return {
        "kind": "train", "step": step, "epoch": step / 10, "lr": 0.1, "gradient_norm": 2.0,
        "loss": 1.5, "top1_error": 50.0, "images_per_second": 900.0, "data_wait": 0.1,
        "wire_bytes": 0,
    } | values  # fmt: skip


def epoch(number: int, **values: Any) -> Row:
    rates = {"train_loss": 1.0, "val_top1_error": 40.0, "images_per_second": 800.0}
    return {"kind": "epoch", "step": 10 * number, "epoch": number, "lr": 0.1} | rates | values


def start(step: int) -> Row:
    return {"kind": "start", "step": step, "machine": "m", "host": "h", "time": "2026-01-01"}


def run(folder: Path, *rows: Row, seed: int = 0) -> Run:
    write_run(folder, "+recipe=digits", seed=seed)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_run(folder)


class ReadRow(dict[str, Any]):
    """A row that can be counted while it is in memory."""

    __hash__ = object.__hash__


ROWS = [start(0), train(5), train(10, lr=0.2), epoch(1), train(15), train(20), epoch(2)]


@pytest.fixture
def first(tmp_path: Path) -> Run:
    return run(tmp_path / "first", *ROWS)


def test_runs_that_do_not_part(first: Run, tmp_path: Path) -> None:
    """Speed, host, start, and the bytes between servers and others are of the hardware."""
    faster = [
        row
        | {key: 3.0 for key in ("images_per_second", "data_wait", "wire_bytes") if key in row}
        | {"peak_memory_mb": 5.0, "mfu": 0.4}
        for row in ROWS[1:]
    ]
    second = run(tmp_path / "second", start(0) | {"host": "other", "time": "2026-01-02"}, *faster)
    metrics = compare_metrics((first, second), 0.0)
    assert (metrics.rows, metrics.last_step, metrics.max_difference) == (6, 20, 0.0)
    assert metrics.first_mismatch is None


def test_keys_that_one_run_has_are_named(
    first: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = [row | {"test_loss": 1.0} if row["kind"] == "epoch" else row for row in ROWS]
    changed[1] = {key: value for key, value in changed[1].items() if key != "loss"}
    second = run(tmp_path / "second", *changed)
    assert compare_metrics((first, second), 0.0).lone_keys == (("loss",), ("test_loss",))
    assert main([str(first.path), str(second.path)]) == 0
    output = capsys.readouterr().out
    assert f"Only {first.path} has loss: not compared.\n" in output
    assert f"Only {second.path} has test_loss: not compared.\n" in output


def test_the_first_row_that_differs_is_named(first: Run, tmp_path: Path) -> None:
    rows = [*ROWS[:3], epoch(1, train_loss=1.25), train(15, loss=9.0), *ROWS[5:]]
    metrics = compare_metrics((first, run(tmp_path / "second", *rows)), 0.0)
    assert metrics.first_mismatch == FirstMismatch("epoch", 10, "train_loss", (1.0, 1.25))
    assert (metrics.rows, metrics.last_step) == (2, 10)


def test_a_difference_within_the_tolerance_is_kept_and_the_largest_told(
    first: Run, tmp_path: Path
) -> None:
    rows = [*ROWS]
    rows[1], rows[2] = train(5, loss=1.5 * (1 - 2**-20)), train(10, lr=0.2 * (1 + 2**-30))
    rows[4] = train(15, gradient_norm=2.5)
    second = run(tmp_path / "second", *rows)
    assert compare_metrics((first, second), 0.0).first_mismatch == FirstMismatch(
        "train", 5, "loss", (1.5, 1.5 * (1 - 2**-20))
    )
    metrics = compare_metrics((first, second), 1e-3)
    assert metrics.first_mismatch == FirstMismatch("train", 15, "gradient_norm", (2.0, 2.5))
    assert (metrics.rows, metrics.max_difference) == (3, 2**-20)
    assert compare_metrics((first, second), 0.2).first_mismatch is None
    assert compare_metrics((first, second), 0.2).max_difference == 0.2


def test_the_last_bit_counts(first: Run, tmp_path: Path) -> None:
    rows = [*ROWS[:-1], epoch(2, val_top1_error=math.nextafter(40.0, 50.0))]
    parting = compare_metrics((first, run(tmp_path / "second", *rows)), 0.0).first_mismatch
    assert parting == FirstMismatch(
        "epoch", 20, "val_top1_error", (40.0, math.nextafter(40.0, 50.0))
    )


def test_speed_is_of_the_hardware_whatever_it_counts(tmp_path: Path) -> None:
    """A run of words counts tokens."""
    pair = [
        run(tmp_path / name, start(0), train(5, tokens_per_second=speed, data_wait=wait))
        for name, speed, wait in (("a", 5000.0, 0.1), ("b", 900.0, 0.4))
    ]
    assert compare_metrics((pair[0], pair[1]), 0.0).first_mismatch is None


def test_null_equals_null_alone(tmp_path: Path) -> None:
    """It stands for what was not finite."""
    lost = [start(0), train(5, loss=None)]
    pair = run(tmp_path / "a", *lost), run(tmp_path / "b", *lost)
    assert compare_metrics(pair, 0.0).first_mismatch is None
    pair = run(tmp_path / "c", *lost), run(tmp_path / "d", start(0), train(5))
    assert compare_metrics(pair, 1e9).first_mismatch == FirstMismatch(
        "train", 5, "loss", (None, 1.5)
    )


def test_a_shorter_run_is_compared_as_far_as_it_goes(
    first: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = run(tmp_path / "second", *ROWS[:5])
    assert compare_metrics((first, second), 0.0).rows == 4
    assert main([str(second.path), str(first.path)]) == 0
    assert capsys.readouterr().out == (
        "The recipes are the same.\n\nThe runs do not differ: equal to the bit in the 4 rows that "
        f"both have up to step 15. {second.path} ends at step 15, {first.path} at step 20.\n"
    )


def test_means_over_other_steps_are_not_compared(first: Run, tmp_path: Path) -> None:
    """A resume after step 13 and, in another run, log_steps=10: lr and epochs are compared."""
    resumed = [*ROWS[:4], start(13), train(15, loss=8.0, top1_error=9.0), *ROWS[5:]]
    rare = [start(0), train(10, lr=0.2, loss=7.0), epoch(1), train(20, loss=6.0), epoch(2)]
    for name, rows, common in (("resumed", resumed, 6), ("rare", rare, 4)):
        pair = first, run(tmp_path / name, *rows)
        metrics = compare_metrics(pair, 0.0)
        assert (metrics.first_mismatch, metrics.rows) == (None, common)
    # The row behind the first after the resume has a mean over the same steps again.
    resumed[6] = train(20, loss=8.0)
    pair = first, run(tmp_path / "again", *resumed)
    assert compare_metrics(pair, 0.0).first_mismatch == FirstMismatch(
        "train", 20, "loss", (1.5, 8.0)
    )
    rare[3] = train(20, lr=0.3)
    pair = run(tmp_path / "other", *rare), first
    assert compare_metrics(pair, 0.0).first_mismatch == FirstMismatch("train", 20, "lr", (0.3, 0.1))


def test_a_run_that_has_diverged_parts_from_one_that_goes_on(first: Run, tmp_path: Path) -> None:
    nan = {"kind": "diverged", "step": 15, "text": "loss is nan"}
    second = run(tmp_path / "second", *ROWS[:5], nan)
    metrics = compare_metrics((first, second), 0.0)
    assert metrics.first_mismatch == FirstMismatch(
        "diverged", 15, "text", ("continues", "loss is nan")
    )
    assert metrics.rows == 4
    other = run(tmp_path / "other", *ROWS[:5], nan | {"text": "a gradient is inf"})
    texts = ("loss is nan", "a gradient is inf")
    assert compare_metrics((second, other), 0.0).first_mismatch == FirstMismatch(
        "diverged", 15, "text", texts
    )
    # One that has not come so far may diverge yet.
    third = run(tmp_path / "third", *ROWS[:5])
    assert compare_metrics((second, third), 0.0).first_mismatch is None


@pytest.mark.parametrize(("last", "step"), [(60, None), (80, 72)])
def test_a_divergence_is_at_the_step_of_its_message(
    tmp_path: Path, last: int, step: int | None
) -> None:
    """A run that ended before that step has not continued there."""
    text = "the loss or a gradient of step 71 is not finite; …"
    rows = start(0), train(50)
    ended = run(tmp_path / "a", *rows, {"kind": "diverged", "step": 50, "text": text})
    other = run(tmp_path / "b", *rows, start(last))
    mismatch = compare_metrics((ended, other), 0).first_mismatch
    assert mismatch == (step and FirstMismatch("diverged", 72, "text", (text, "continues")))


def test_without_a_common_row_only_the_recipes_are_compared(
    first: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = run(tmp_path / "second", start(0), train(7), seed=1)
    with pytest.raises(UsageError, match="have no row of the same kind and step"):
        compare_metrics((first, second), 0.0)
    assert main([str(first.path), str(second.path)]) == 2
    said = capsys.readouterr()
    assert said.out.startswith("The recipes differ in 1 field, first in seed:\n")
    assert "have no row of the same kind and step" in said.err


def test_rows_are_read_in_pairs_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two long runs a few rows are in memory at a time."""
    alive: WeakSet[ReadRow] = WeakSet()
    most = 0

    def parse(line: bytes) -> ReadRow:
        nonlocal most
        row = ReadRow(json.loads(line))
        alive.add(row)
        most = max(most, len(alive))
        return row

    for name in ("a", "b"):
        run(tmp_path / name, start(0), *map(train, range(1, 301)))
    monkeypatch.setattr("lsgd.run.rows.parse_json", parse)
    assert main([str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert most <= 12


def test_rows_out_of_order_are_refused(
    first: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Read side by side, rows of the same step would be passed over."""
    for name, last in (("back", train(5)), ("twice", train(15)), ("epoch", epoch(1))):
        second = run(tmp_path / name, *ROWS[:5], last, *ROWS[5:])
        for pair in ((first, second), (second, first)):
            assert main([str(each.path) for each in pair]) == 2
            assert f"metrics.jsonl of {second.path} has a" in capsys.readouterr().err


def test_exit_codes_and_sentences(
    first: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = run(tmp_path / "second", start(0), train(5, loss=3.0), seed=1)
    pair = [str(first.path), str(second.path)]
    assert main(pair) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("The recipes differ in 1 field, first in seed:\n\n| field |")
    assert printed.endswith(
        "The runs first differ at step 5, in loss of the train row: 1.5 and 3.0, a relative "
        "difference of 0.5. It is the first row that both have.\n"
    )
    assert main([*pair, "--tolerance", "0.5"]) == 0
    assert "equal within a relative difference of 0.5 in the row" in capsys.readouterr().out
    for words, says in (
        ([pair[0], str(tmp_path)], f"{tmp_path} is not a run folder: it has no config.yaml; give"),
        (pair[:1], "required: OTHER_RUN;"),
        ([*pair, "--tolerance", "nan"], "nan is not a number of 0 or more"),
    ):
        assert main(words) == 2
        assert says in capsys.readouterr().err
