"""How many threads a run computes with."""

import os
from pathlib import Path

import pytest
import torch
from helpers.composed import compose_recipe

import lsgd.learner
from lsgd.comm import describe
from lsgd.comm.single import SingleComm
from lsgd.job import system
from lsgd.job import threads as threads_module
from lsgd.job.launcher import Launch
from lsgd.job.threads import CHOSEN_BY_USER, choose_threads, count_wanted_cores, limit_spinning
from lsgd.learner import Learner

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("numbers", "cores", "limit", "threads"),
    [
        (0, 8, None, 1),
        (16_000, 8, None, 2),
        (10**9, 8, None, 8),
        (None, 8, None, 8),
        (10**9, 8, "3", 3),  # that of a launcher which divides a machine, or of a user
        (None, 8, "3", 3),
        (None, 8, "2,1", 2),  # OpenMP's list for nested regions
        *((None, 8, limit, 8) for limit in ("all", "0", "2,", "-1")),  # which OpenMP ignores
    ],
)
def test_by_the_work_of_a_pass_and_never_more_than_there_are_cores(
    numbers: int | None,
    cores: int,
    limit: str | None,
    threads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if limit:
        monkeypatch.setenv("OMP_NUM_THREADS", limit)
    assert choose_threads(numbers, cores) == threads


@pytest.mark.parametrize(
    ("words", "threads"),
    [
        ("+recipe=digits", 2),
        ("+recipe=digits_reference", 1),
        ("+recipe=fashion_bs64 inputs=synthetic", 6),
        ("+recipe=fashion_bs64 inputs=synthetic threads=3", 3),
    ],
)
def test_a_run_sets_them_and_its_log_says_so(
    words: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And why they are few, unless the recipe has them, or hardware=auto has chosen them."""
    chosen: list[int] = []
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(lsgd.learner, "set_num_threads", chosen.append)
    monkeypatch.setattr(lsgd.learner, "cores", lambda launch: 8)
    recipe = compose_recipe(*words.split())
    Learner(recipe, SingleComm(), CPU)
    assert chosen == [threads]
    monkeypatch.setattr(lsgd.comm, "detect_launch", lambda: Launch("none"))
    monkeypatch.setattr(lsgd.comm, "cores", lambda launch: 8)
    monkeypatch.setattr(lsgd.comm, "get_num_threads", lambda: threads)
    said = describe(SingleComm(), CPU, threads=recipe.threads)
    assert f"threads per process: {threads}" in said
    assert (" (micro-batches this small" in said) is (recipe.threads is None)


@pytest.mark.parametrize(
    ("wanted", "processes", "limit", "spins"),
    [
        (0, 1, None, "20000"),
        (1, 1, None, "2000"),  # with 8 threads of its own there are 9 for 8 cores
        (8, 1, "1", "2000"),
        (4, 4, "1", "20000"),
        (0, 4, None, "20000"),
    ],
)
def test_threads_sleep_sooner_where_others_want_the_cores(
    wanted: int, processes: int, limit: str | None, spins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*CHOSEN_BY_USER, "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    if limit:
        monkeypatch.setenv("OMP_NUM_THREADS", limit)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(
        threads_module, "detect_launch", lambda: Launch("none", local_size=processes)
    )
    limit_spinning(wanted)
    assert os.environ.pop("GOMP_SPINCOUNT") == spins
    del os.environ["KMP_BLOCKTIME"]


def test_those_that_want_a_core_are_counted_without_this_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(system, "LOAD", tmp_path / "loadavg")
    monkeypatch.setattr(threads_module, "detect_launch", lambda: Launch("none", local_size=2))
    assert count_wanted_cores() == 0  # no such file, as outside of Linux
    for runnable, others in ((1, 0), (2, 0), (9, 7)):
        (tmp_path / "loadavg").write_text(f"0.61 0.45 0.20 {runnable}/432 9999\n")
        assert count_wanted_cores() == others
