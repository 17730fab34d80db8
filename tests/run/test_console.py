"""What a run shows of its rows, word by word."""

import io
import sys
from typing import Any

import pytest

from lsgd.rules.metric import METRICS, TOP1
from lsgd.run import console as console_module
from lsgd.run.console import QUIET, Console

TRAIN = {"epoch": 0.5, "lr": 0.1, "gradient_norm": 2.0, "loss": 1.25}
IMAGES = {
    "epoch": 3, "lr": 0.1, "train_loss": 0.2, "train_top1_error": 6.0, "train_top5_error": 0.4,
    "val_loss": 0.3, "val_top1_error": 7.3, "val_top5_error": 0.5, "images_per_second": 1999.6,
    "data_wait": 0.1,
}  # fmt: skip
WORDS = {
    "epoch": 3, "lr": 1.0, "train_loss": 4.7, "train_perplexity": 110.0, "val_loss": 4.8,
    "val_perplexity": 120.1, "test_loss": 4.8, "test_perplexity": 118.2,
    "tokens_per_second": 5000.0, "data_wait": 0.0,
}  # fmt: skip


def without(row: dict[str, Any], *beginnings: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if not key.startswith(beginnings)}


@pytest.mark.parametrize(
    ("metric", "row", "line"),
    [
        (
            "top1_error",
            IMAGES,
            "epoch 3: top-1 error 7.30 % (train 6.00 %), top-5 error 0.50 %, 2000 images/s, "
            "data wait 10 %",
        ),
        (
            "top1_error",
            IMAGES | dict.fromkeys(("train_top1_error", "images_per_second")),
            "epoch 3: top-1 error 7.30 % (train nan %), top-5 error 0.50 %, no step timed",
        ),
        (
            "perplexity",
            WORDS,
            "epoch 3: perplexity 120.10 (train 110.00), test perplexity 118.20, 5000 tokens/s, "
            "data wait 0 %",
        ),
        (
            "perplexity",
            without(WORDS, "val", "test"),
            "epoch 3: not evaluated (train 110.00), 5000 tokens/s, data wait 0 %",
        ),
    ],
)
def test_an_epoch_in_a_line(
    metric: str, row: dict[str, Any], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Console(0, 20, METRICS[metric]).show("epoch", 3, {"kind": "epoch", "step": 3} | row)
    assert capsys.readouterr().out == f"{line}\n"


def test_an_evaluation_within_an_epoch_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"kind": "evaluation", "step": 3, "epoch": 1 / 3, "val_loss": 1, "val_top1_error": 7.5}
    Console(0, 20, TOP1).show("evaluation", 3, row | {"val_top5_error": None})
    assert capsys.readouterr().out == "epoch 0.3333: top-1 error 7.50 %, top-5 error nan %\n"


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ({"images_per_second": 100.4}, "lr 0.1  loss 1.250  100 images/s"),
        ({"tokens_per_second": 5000.0}, "lr 0.1  loss 1.250  5000 tokens/s"),
        (
            {"images_per_second": 9.0, "data_wait": 0.018, "communication_wait": 0.3},
            "lr 0.1  loss 1.250  9 images/s  data wait 2 %  communication wait 30 %",
        ),
        ({"loss": None, "images_per_second": None}, "lr 0.1  loss nan  no step timed"),
    ],
)
def test_a_step_in_a_line(
    row: dict[str, Any], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Console(0, 20, TOP1).show("train", 10, {"kind": "train", "step": 10} | TRAIN | row)
    assert capsys.readouterr().out == f"step 10/20  epoch 0.50  {line}\n"


def test_a_notebook_has_a_bar_though_it_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What stands for stderr there is of ipykernel; a file has lines, as before."""

    class OutStream(io.StringIO):
        pass

    row = TRAIN | {"images_per_second": 10.0}
    for module, drawn in (("ipykernel.iostream", True), ("_io", False)):
        monkeypatch.setattr(OutStream, "__module__", module)
        monkeypatch.setattr(sys, "stderr", stream := OutStream())
        console = Console(0, 20, METRICS["top1_error"])
        console.show("train", 10, row)
        console.print_text("a line")
        console.close()
        assert ("| 10/20 [" in stream.getvalue()) is drawn
        *steps, line = capsys.readouterr().out.splitlines()
        assert (len(steps), line) == (0 if drawn else 1, "a line")


def test_a_program_may_have_no_stderr_or_one_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (closed := io.StringIO()).close()
    for stream in (None, object(), closed):
        monkeypatch.setattr(sys, "stderr", stream)
        console = Console(0, 20, TOP1)
        console.show("train", 10, TRAIN | {"images_per_second": 10.0})
        console.print_text("a line")
        console.close()
        assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_finished_run_leaves_a_full_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the evaluation that came before its last line."""
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", terminal)
    console = Console(0, 20, TOP1)
    console.show_evaluation("val", 0, 1, None)
    console.show("epoch", 20, IMAGES)
    console.close()
    last = terminal.getvalue().rstrip("\r\n").rpartition("\r")[2]
    assert last.startswith("100%|")
    assert "| 20/20 [" in last
    assert "evaluating" not in last


def test_lines_of_progress_where_nothing_else_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a long epoch, step or evaluation, and none beside the rows of short steps."""
    clock = [0.0]
    monkeypatch.setattr(console_module.time, "monotonic", lambda: clock[0])

    def after(seconds: float) -> str:
        """The line that was printed before this, and so many seconds more."""
        clock[0] += seconds
        return capsys.readouterr().out

    first = Console(7, 900, TOP1)
    assert after(QUIET) == ""
    first.show_training(7.25, 0.2)
    assert after(0) == "step 7/900  epoch 0.20  and 25 % of the next\n"
    console = Console(0, 900, TOP1)
    assert after(QUIET / 2) == ""
    console.show_training(3.5, 0.1)
    assert after(QUIET / 2) == ""
    console.show_training(3.5, 0.1)
    assert after(QUIET) == "step 3/900  epoch 0.10\n"
    console.set_time_left(42.4, 10_000, at_most=True)
    console.show_training(3.75, 0.11)
    left = "42 s left of the epoch, at most 2 h 47 min left of the run"
    assert after(1) == f"step 3/900  epoch 0.11  and 75 % of the next  {left}\n"
    console.show("train", 4, TRAIN | {"images_per_second": 10.0})
    assert after(QUIET / 2) == f"step 4/900  epoch 0.50  lr 0.1  loss 1.250  10 images/s  {left}\n"
    console.set_time_left(3.0, 9.0, at_most=False)
    console.show_training(5.0, 0.6)
    assert after(QUIET / 2) == ""
    console.show_evaluation("val", 3, 40, 300.0)
    assert after(QUIET) == "evaluating val: batch 3/40  5 min left\n"
    console.show_evaluation("val", 4, 40, None)
    assert after(QUIET) == "evaluating val: batch 4/40\n"
    console.show_training(6.0, 0.7)
    assert after(0) == "step 6/900  epoch 0.70\n"
