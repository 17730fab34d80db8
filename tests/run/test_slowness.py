"""What is said of a slow run: once, and only where the machine shows the reason."""

from pathlib import Path

import pytest

from lsgd.job import system
from lsgd.run import slowness
from lsgd.run.slowness import PATIENCE, SlownessCheck


@pytest.mark.parametrize(
    ("data", "core", "left", "device", "fix"),
    [
        (0.8, 0.0, 3600, "cuda", "inputs.decoders"),
        (0.8, 0.6, 3600, "cpu", "OMP_NUM_THREADS=1"),  # a loader without cores is late, too
        (0.2, 0.1, 1e7, "cpu", "dry_run=true"),
        (0.2, 0.1, 1e7, "cuda", ""),
        (0.2, 0.1, 3600, "cpu", ""),
    ],
)
def test_the_reason_and_what_helps(
    data: float, core: float, left: float, device: str, fix: str
) -> None:
    said = slowness.slowness(data, core, left, device)
    assert fix in said
    assert bool(said) is bool(fix)


def test_it_is_said_once_and_not_of_a_short_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = [0.0]
    monkeypatch.setattr(slowness.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(system, "SCHEDULE", tmp_path / "schedstat")
    checks, unknown = [SlownessCheck(), SlownessCheck()], SlownessCheck()
    for now, waiting in ((0, 5), (PATIENCE / 2, 20), (PATIENCE + 1, 29), (90, 60)):
        clock[0] = now
        (tmp_path / "schedstat").write_text(f"7 {waiting * 10**9} 3\n")
        long, short = (
            check.reason(0.0, left, "cpu") for check, left in zip(checks, (1e4, 60), strict=True)
        )
        assert short == ""
        # Where the time left is known late, the check waits for it.
        known = unknown.reason(0.0, 1e4 if now == 90 else None, "cpu")
        assert known.startswith("slow: for 61 % of the time no core") is (now == 90)
        assert long.startswith("slow: for 77 % of the time no core") is (now == PATIENCE + 1)


def test_the_wait_of_each_epoch_counts_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(slowness.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(slowness, "core_wait", lambda: 0.0)
    check, said = SlownessCheck(), []
    for now, waited in ((1, 1.0), (10, 9.0), (12, 1.0), (20, 8.0), (28, 7.5), (41, 20.0)):
        clock[0] = now
        said.append(check.reason(waited, 1e4, "cuda"))
    assert said[:-1] == [""] * 5
    assert said[-1].startswith("slow: 90 % of the time is data wait")
