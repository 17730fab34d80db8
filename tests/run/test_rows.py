import json
import os
from pathlib import Path

import pytest

from lsgd.run.rows import LONGEST, RowReader, finite_number, read_last_rows, read_rows, speed_unit


@pytest.mark.parametrize(
    ("text", "rows", "damaged"),
    [
        ("", 0, None),
        ('{"step": 1}\n{"step": 2}\n', 2, None),
        ('{"step": 1}\n{"ste', 1, None),  # cut short by a kill, or being written
        ('{"step": 1}\n{"ste\n', 1, None),
        ('{"step": 1}\n\x00\x00\n{"step": 3}\n', 1, 2),
        ('{"step": 1}\n{"ste{"step": 3}\n{"step": 4}\n', 1, 2),
        ('{"step": 1}\n' + "[" * 100_000 + '\n{"step": 3}\n', 1, 2),
        ('{"step": 1}\n{"step": ' + "1" * 5000 + '}\n{"step": 3}\n', 1, 2),
        ('{"step": 1}\n"' + "a" * 3 * LONGEST, 1, 2),
    ],
)
def test_rows_end_at_the_first_damaged_line(
    tmp_path: Path, text: str, rows: int, damaged: int | None
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(text)
    reader = RowReader(path)
    assert len(list(reader)) == reader.count == rows
    assert reader.damaged_line == damaged
    assert len(read_rows(path)) == rows


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(OSError, match="it is not a regular file"):
        read_rows(tmp_path / "metrics.jsonl")


def test_no_file_has_no_rows(tmp_path: Path) -> None:
    assert read_rows(tmp_path / "metrics.jsonl") == []
    assert read_last_rows(tmp_path / "metrics.jsonl") == []


def test_of_a_long_file_the_last_rows_are_read_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole lines, wherever the bytes that are read begin; up to a line that is damaged."""
    path = tmp_path / "metrics.jsonl"
    rows = [{"step": step, "text": "x" * (step % 7)} for step in range(50)]
    lines = [json.dumps(row).encode() + b"\n" for row in rows]
    path.write_bytes(b"".join(lines))
    parsed: list[bytes] = []
    monkeypatch.setattr(
        "lsgd.run.rows.parse_json", lambda line: parsed.append(line) or json.loads(line)
    )
    for most in range(40, 400):
        monkeypatch.setattr("lsgd.run.rows.LONGEST", most)
        parsed.clear()
        whole = next(n for n in range(50) if len(b"".join(lines[n:])) <= most)
        assert read_last_rows(path) == rows[whole:]
        assert sum(map(len, parsed)) <= most
    for ending, left in ((b'{"step": 5', rows[45:]), (b"\0\0\n" + lines[0], rows[45:])):
        path.write_bytes(b"".join(lines) + ending)
        assert read_last_rows(path)[-5:] == left
    path.write_bytes(b"a" * 500)
    assert read_last_rows(path) == []
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError, match="it is not a regular file"):
        read_last_rows(path)


def test_what_a_speed_counts_is_in_its_key() -> None:
    assert (
        speed_unit({"kind": "train", "step": 3, "tokens_per_second": None, "loss": 1.0}) == "tokens"
    )
    assert speed_unit({"kind": "start", "step": 0, "metric": "perplexity"}) == ""


def test_a_number_is_finite_and_no_truth_value() -> None:
    row = {"a": 3, "b": 2.5, "c": None, "d": float("nan"), "e": True, "f": "4", "g": 10**400}
    numbers = [finite_number(row, key) for key in "abcdefgh"]
    assert numbers == [3.0, 2.5, *[None] * 6]
