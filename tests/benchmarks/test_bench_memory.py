"""benchmarks.memory measures a process of its own, and sees what a step holds on to."""

import json
from pathlib import Path

import pytest

from benchmarks import memory
from benchmarks.memory import main, peak
from benchmarks.step_memory import resident_peak

WORDS = ["+recipe=digits", "device=cpu", "worker_batch=64", "data.image_size=24"]


@pytest.mark.slow
def test_the_peak_stays_when_what_made_it_has_gone() -> None:
    before = resident_peak()
    held = b"x" * (before + 50_000_000)
    grown = resident_peak() - before
    del held
    assert grown > 45_000_000
    assert resident_peak() - before > grown - 5_000_000


@pytest.mark.distributed
@pytest.mark.slow
def test_a_pass_is_seen_and_more_of_them_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass four times as large needs more; four passes do not, and this process counts not."""
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "1048576")  # no holes between freed tensors
    held = b"x" * 400_000_000  # a fork would begin at the peak that this makes
    one, four, larger = (
        peak([*WORDS, f"workers_per_pass={size}"], passes, limit=120)
        for size, passes in ((4, 1), (4, 4), (16, 1))
    )
    assert 100_000_000 < one < resident_peak() - len(held) / 4
    assert larger > 1.2 * one
    assert four < 1.05 * one


def test_what_a_pass_adds() -> None:
    """31 passes more that each keep half a MiB."""
    peaks = {"1": [700.0 * 2**20] * 6, "32": [715.5 * 2**20] * 6}
    assert memory.added(peaks, "1", "32").median == 0.5


def test_the_whole_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With made-up peaks, of the words and the passes that a process is to have."""
    words = ["+recipe=digits", "device=cpu", "worker_batch=2"]

    def made_up(given: list[str], passes: int, limit: float) -> int:
        assert (given, limit) == (words, 9)
        return 2**20 * (100 + passes)

    monkeypatch.setattr(memory, "peak", made_up)
    options = ["--rounds", "6", "--passes", "3", "--limit", "9", "--out", str(tmp_path / "out")]
    assert main([*words, *options]) == 0
    found = json.loads((tmp_path / "out" / "memory.json").read_text())
    assert found["peak_bytes"] == {"1": [101 * 2**20] * 6, "3": [103 * 2**20] * 6}
    assert found["image_bytes"] == 8 * 8 * 4
    said = capsys.readouterr().out
    assert "- 3 passes, at most 1.02 times a single one: yes, 1.0198 (" in said
    assert "each more than the first adds 1.00 (1.00 to 1.00) MiB, and its images are of" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--passes", "1"], "--passes 1 leaves nothing to compare"),
        (["--limit", "0"], "--limit 0 is not possible"),
        (["--rounds", "5"], "--rounds 5 is too few"),
    ],
)
def test_what_makes_no_sense_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["+recipe=digits", *words]) == 2
    assert message in capsys.readouterr().err


def test_growth_is_judged() -> None:
    found = {
        "recipe": "r", "model": "m", "image_size": 8, "workers": 4, "worker_batch": 2,
        "workers_per_pass": 1, "precision": "float32", "channels_last": False, "compile": False,
        "device": "cpu",
        "date": "today", "rounds": 6, "versions": {"torch": "2", "lsgd": "0"},
        "machine": {"gpu": None, "cpu": "c", "cores": 1, "threads_of_torch": 1, "load_average": 0},
        "image_bytes": 2**19,
        "peak_bytes": {"1": [100] * 6, "2": [101] * 6, "4": [103] * 6, "8": [101, 104] * 3},
    }  # fmt: skip
    said = memory.report(found)
    assert "- 2 passes, at most 1.02 times a single one: yes, 1.0100" in said
    assert "- 4 passes, at most 1.02 times a single one: no" in said
    assert (
        "each more than the first adds 0.00 (0.00 to 0.00) MiB, and its images are of 1.00" in said
    )
    assert "- 8 passes, at most 1.02 times a single one: not resolved" in said
