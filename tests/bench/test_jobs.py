"""What the scaling over jobs computes; test_job_launches.py starts them."""

import socket
import sys

import pytest

from lsgd.bench import scaling
from lsgd.bench.job import Job, open_stream
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
