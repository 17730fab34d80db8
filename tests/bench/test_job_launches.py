import json
import os
import re
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from lsgd.bench import comm, scaling
from lsgd.bench.__main__ import main
from lsgd.bench.job import open_job
from lsgd.bench.reductions import ALONE, BARE, DDP, HOROVOD, OURS
from lsgd.errors import Refused

pytestmark = pytest.mark.distributed
TINY = ["+recipe=digits", "workers_per_pass=2", "worker_batch=3", "comm.bucket_mb=0.03"]


@pytest.fixture
def left_running(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], list[str]]:
    """Which of the processes that the test has started are still there."""
    monkeypatch.setenv("STARTED_BY", str(tmp_path))

    def find() -> list[str]:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if f"STARTED_BY={tmp_path}".encode() in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_text())
        return found

    return find


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "other"),
    [("torch", DDP), pytest.param("horovod", HOROVOD, marks=pytest.mark.horovod)],
)
def test_the_candidates_train_the_same_model(library: str, other: str) -> None:
    """In float64, after 3 steps of 3 processes with 4 passes of 2 workers of 3 images each."""
    words = [*TINY, "precision=float64", "model.last_gamma=1"]
    with open_job("reductions", library, 3, words, limit=150) as job:
        for accumulation in (4, 1):
            facts = job.ask("open", accumulation)
            assert facts["images"] == 3 * accumulation * 6
            assert len(facts["buckets"]) > 2
            assert facts["names"] == [OURS, BARE, other]
            assert facts["apart"][other] < 1e-12
            assert [*facts["apart"]] == [other]
            for name in (*facts["names"], ALONE):
                assert job.ask(name, 2) == 2


@pytest.mark.slow
def test_the_whole_command(tmp_path: Path, left_running: Callable[[], list[str]]) -> None:
    out = tmp_path / "out"
    options = ["--np", "2", "--accumulation", "1,2", "--over", "torch", "--rounds", "6"]
    command = [sys.executable, "-m", "lsgd.bench", "comm", *TINY, *options, "--passes", "2"]
    done = subprocess.run(
        [*command, "--out", str(out)], capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((out / "comm.json").read_text())
    assert [each["accumulation"] for each in found["measured"]] == [1, 2]
    assert [each["steps_per_round"] for each in found["measured"]] == [2, 1]
    for each in found["measured"]:
        assert {*each["per_second"]} == {OURS, DDP, BARE, ALONE}
        assert all(len(speeds) == 6 for speeds in each["per_second"].values())
    assert found["missing"] == {}
    readme = (out / "README.md").read_text()
    assert readme.strip() in done.stdout
    verdict = (
        r"- 2 processes, torch.distributed \(gloo\), accumulation 2: a step of ours takes at most"
    )
    assert re.search(rf"{verdict} 1.03 times that of {DDP}: (yes|no|not resolved), ", readme)
    assert left_running() == []


def faulty(tmp_path: Path, program: str) -> dict[str, str]:
    """An environment in which every Python runs this first."""
    (tmp_path / "sitecustomize.py").write_text(program)
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("time.sleep(600)", r"it did not end in 4 s.*; --limit allows more"),
        ("os.kill(os.getpid(), 11)", "a process crashed with SIGSEGV"),
    ],
)
def test_a_job_that_hangs_or_dies_is_said_and_ended(
    fault: str,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    left_running: Callable[[], list[str]],
) -> None:
    """In process 1, before it meets the other."""
    program = f"import os, time\nif os.environ.get('RANK') == '1': {fault}\n"
    for name, value in faulty(tmp_path, program).items():
        monkeypatch.setenv(name, value)
    found: dict = {"measured": [], "missing": {}}
    options = Namespace(rounds=6, passes=1, limit=4 if "sleep" in fault else 150, words=TINY)
    begin = time.monotonic()
    comm._bench_job(found, "torch", 2, [1, 8], options)
    assert time.monotonic() - begin < 150
    assert found["measured"] == []
    assert [*found["missing"]] == [f"2 processes over torch, accumulation {n}" for n in (1, 8)]
    for said in found["missing"].values():
        assert re.fullmatch(rf"2 processes over torch: {why}", said)
    assert left_running() == []


def test_a_folder_for_temporary_files_that_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_running: Callable[[], list[str]]
) -> None:
    """The address of a socket has at most 107 characters; nothing is started then."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    started: list[object] = []
    monkeypatch.setattr("lsgd.bench.job.started", lambda *_, **__: started.append(1))
    with (
        pytest.raises(Refused, match=r"is no place for a socket .*; write TMPDIR=/tmp"),
        open_job("steps", "torch", 1, TINY, limit=150),
    ):
        pass
    assert not started
    assert list(long.iterdir()) == []


def test_what_the_processes_refuse_is_passed_on() -> None:
    """Before they meet, and after."""
    with (
        pytest.raises(Refused, match="1 process over torch: 'nonsense' is not of the form"),
        open_job("steps", "torch", 1, ["nonsense"], limit=150),
    ):
        pass
    with (
        open_job("steps", "torch", 2, ["+recipe=digits", "workers=1"], limit=150) as job,
        pytest.raises(Refused, match="2 processes cannot share workers=1"),
    ):
        job.ask("open", scaling.STRONG)


@pytest.mark.slow
def test_scaling(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, left_running: Callable[[], list[str]]
) -> None:
    """Strong shares the workers of one process out, weak gives each as many; and a job that cannot
    be stops no other."""
    words = ["+recipe=digits", "workers=2", "worker_batch=4", "workers_per_pass=4"]
    options = ["--np", "2,3", "--rounds", "6", "--steps", "1", "--out", str(tmp_path / "out")]
    assert main(["scaling", *words, *options]) == 0
    found = json.loads((tmp_path / "out" / "scaling.json").read_text())
    images = {
        kind: {number: facts["images"] for number, facts in jobs.items()}
        for kind, jobs in found["jobs"].items()
    }
    assert images == {"strong": {"1": 8, "2": 8}, "weak": {"1": 8, "2": 16, "3": 24}}
    assert [*found["missing"]] == ["strong scaling on 3 processes"]
    assert [each["workers_per_pass"] for each in found["jobs"]["strong"].values()] == [2, 1]
    for speeds in found["speeds"].values():
        assert all(len(values) == 6 and min(values) > 0 for values in speeds.values())
    said = capsys.readouterr().out
    assert "| strong scaling: processes | cores each |" in said
    assert "| 1, torch.distributed (gloo) |" in said
    assert "3 processes is not measured: 3 processes cannot share workers=2" in said
    assert left_running() == []
