"""`bench memory` measures a process of its own, and sees what a step holds on to."""

import os
import signal
import time
from collections.abc import Callable
from multiprocessing import active_children

import pytest

from lsgd import config
from lsgd.bench import memory
from lsgd.bench.fresh import in_fresh_process
from lsgd.bench.memory import peak, resident_peak
from lsgd.bench.timing import check_rounds
from lsgd.errors import Refused
from lsgd.recipe import Recipe

WORDS = ["+recipe=digits", "device=cpu", "worker_batch=64", "data.image_size=24"]


def recipe(*words: str) -> Recipe:
    return config.load_recipe([*WORDS, *words])


@pytest.mark.slow
def test_the_peak_stays_when_what_made_it_has_gone() -> None:
    before = resident_peak()
    held = b"x" * (before + 50_000_000)
    grown = resident_peak() - before
    del held
    assert grown > 45_000_000
    assert resident_peak() - before > grown - 5_000_000


@pytest.mark.slow
def test_a_pass_is_seen_and_more_of_them_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass four times as large needs more; four passes do not, and this process counts not."""
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "1048576")  # no holes between freed tensors
    held = b"x" * 400_000_000  # a fork would begin at the peak that this makes
    one, four, larger = (
        peak(recipe(f"workers_per_pass={size}"), passes, limit=120)
        for size, passes in ((4, 1), (4, 4), (16, 1))
    )
    assert 100_000_000 < one < resident_peak() - len(held) / 4
    assert larger > 1.2 * one
    assert four < 1.05 * one


def test_what_a_pass_adds() -> None:
    """31 passes more that each keep half a MiB."""
    peaks = {"1": [700.0 * 2**20] * 6, "32": [715.5 * 2**20] * 6}
    assert memory.added(peaks, "1", "32").median == 0.5


@pytest.mark.parametrize(
    ("function", "argument", "why"),
    [
        (os._exit, 7, r"died \(exit code 7, .*\); mend that first"),
        (signal.raise_signal, signal.SIGKILL, r"died \(exit code -9, "),
        (time.sleep, 600, "did not end in 5 s; mend that first"),
        (check_rounds, 2, "--rounds 2 is too few"),
    ],
)
def test_a_process_that_fails_is_said_in_a_sentence(
    function: Callable[..., object], argument: object, why: str
) -> None:
    begin = time.monotonic()
    with pytest.raises(Refused, match=why):
        in_fresh_process(5, function, argument)
    assert time.monotonic() - begin < 60
    assert active_children() == []


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
