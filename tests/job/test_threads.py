"""How many threads a run computes with."""

import pytest
import torch

import lsgd.learner
from lsgd.comm import describe
from lsgd.comm.single import SingleComm
from lsgd.config import load_recipe
from lsgd.job.launcher import Launch
from lsgd.job.threads import choose_threads
from lsgd.learner import Learner

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("numbers", "cores", "limit", "threads"),
    [
        (0, 8, None, 1),
        (19_999, 8, None, 1),
        (20_000, 8, None, 2),
        (10**9, 8, None, 8),
        (None, 8, None, 8),
        (10**9, 8, "3", 3),  # that of a launcher which divides a machine, or of a user
        (19_999, 8, "3", 1),
        (None, 8, "3", 3),
        (None, 8, "2,1", 8),  # OpenMP's list for nested regions
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
        ("+recipe=digits", 1),
        ("+recipe=bs8k rehearse=true", 1),
        ("+recipe=fashion_bs64 inputs=synthetic", 5),
        ("+recipe=fashion_bs1k inputs=synthetic workers_per_pass=8", 8),
    ],
)
def test_a_run_sets_them_and_its_log_says_so(
    words: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[int] = []
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(lsgd.learner, "set_num_threads", chosen.append)
    monkeypatch.setattr(lsgd.learner, "cores", lambda launch: 8)
    Learner(load_recipe(words.split()), SingleComm(), CPU)
    assert chosen == [threads]
    monkeypatch.setattr(lsgd.comm, "detect", lambda: Launch("none"))
    monkeypatch.setattr(lsgd.comm, "cores", lambda launch: 8)
    monkeypatch.setattr(lsgd.comm, "get_num_threads", lambda: threads)
    said = f"threads per process: {threads}{' (passes this small' * (threads < 8)}"
    assert said in describe(SingleComm(), CPU)
