"""What the scaling over jobs computes; test_job_launches.py starts them."""

import socket
import sys
from pathlib import Path

import pytest
import torch
from helpers.composed import compose_recipe

from lsgd.bench import scaling
from lsgd.bench.job import Job, open_stream
from lsgd.bench.scaled_steps import STRONG, ScaledSteps
from lsgd.comm.single import SingleComm
from lsgd.errors import UsageError
from lsgd.job.children import running_child


def test_efficiency_is_speed_by_processes() -> None:
    """3 times the speed on 4 processes is 75 %."""
    speeds = {"1": [100.0] * 6, "4": [300.0] * 6}
    job = {"over": "x", "threads": 1, "images": 8, "workers_per_pass": 2}
    jobs = dict.fromkeys(speeds, job)
    [_, _, one, four] = scaling.table("weak", speeds, jobs, cores=4).splitlines()
    cells = [cell.strip() for cell in four.split("|")[1:-1]]
    assert one.split("|")[-2].strip() == "100 %"
    assert cells == ["4, x", "1, threads: 1", "8", "2", "300 (300 to 300)", "75 % (75 to 75)"]


@pytest.mark.slow
def test_steps_with_balanced_classes_need_no_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LSGD_DATA", str(tmp_path))
    monkeypatch.setattr("lsgd.bench.scaled_steps.train_step", lambda *_: None)
    words = ["+recipe=bs256", "model=small_resnet", "data.image_size=32", "worker_batch=2"]
    recipe = compose_recipe(*words, "workers_per_pass=8", "data.balance=sampler")
    steps = ScaledSteps(recipe, SingleComm(), torch.device("cpu"))
    assert steps.prepare(STRONG)["images"] == 16


@pytest.mark.parametrize(
    ("program", "limit", "why"),
    [
        ("raise SystemExit('lsgd: out of luck')", 200, "out of luck"),
        ("import time; time.sleep(600)", 0.1, "it did not end in 0.1 s.*"),
    ],
    ids=["dies", "hangs"],
)
def test_a_lost_job_gives_every_request_its_first_failure(
    program: str, limit: float, why: str
) -> None:
    """The stream is left alone then, and closes although it may still hold a request."""
    here, peer = socket.socketpair()
    with (
        here,
        peer,
        running_child([sys.executable, "-c", program]) as child,
        open_stream(here) as stream,
    ):
        here.settimeout(limit)
        if limit > 1:
            peer.close()
        job = Job("2 processes over torch", child, stream, limit)
        for kind in ("strong", "weak"):
            with pytest.raises(UsageError, match=f"^2 processes over torch: {why}$"):
                job.prepare(kind)
    assert stream.closed
