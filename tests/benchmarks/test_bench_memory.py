"""benchmarks.memory measures a separate process, and sees what a step holds on to."""

import json
import os
from pathlib import Path

import pytest
from helpers.launching import WITHOUT_COMPILER

from benchmarks import memory
from benchmarks.memory import main, peak
from benchmarks.step_memory import resident_peak

WORDS = ["+recipe=digits", "device=cpu", "worker_batch=64", "data.image_size=24"]


@pytest.mark.distributed
@pytest.mark.slow
def test_a_pass_is_seen_and_more_of_them_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass four times as large needs more; four passes do not, and this process counts not."""
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "1048576")  # no holes between freed tensors
    monkeypatch.setenv("PYTHONPATH", WITHOUT_COMPILER, prepend=os.pathsep)
    held = b"x" * 400_000_000  # a fork would begin at the peak that this makes
    one, four, larger = (
        peak([*WORDS, f"workers_per_pass={size}"], passes, limit=120)
        for size, passes in ((4, 1), (4, 4), (16, 1))
    )
    assert 100_000_000 < one < resident_peak() - len(held) / 4
    assert larger > 1.2 * one
    assert four < 1.05 * one


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
