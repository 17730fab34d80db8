import json
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from lsgd.bench.__main__ import main
from lsgd.bench.job import open_job
from lsgd.bench.scaled_steps import STRONG
from lsgd.errors import Refused

pytestmark = pytest.mark.distributed
TINY = ["+recipe=digits", "workers_per_pass=2", "worker_batch=3"]
STEPS = "lsgd.bench.scaled_steps"


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


def faulty(tmp_path: Path, program: str) -> dict[str, str]:
    """An environment in which every Python runs this first."""
    (tmp_path / "sitecustomize.py").write_text(program)
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}


@pytest.mark.parametrize(
    ("library", "processes", "fault", "why"),
    [
        ("torch", 2, "time.sleep(600)", r"it did not end in 4 s.*; --limit, .* allows more"),
        ("torch", 2, "os.kill(os.getpid(), 11)", "a process crashed with SIGSEGV"),
        ("single", 1, "time.sleep(600)", r"it did not end in 4 s; --limit, .* allows more"),
        ("single", 1, "os.kill(os.getpid(), 9)", "it crashed with SIGKILL, .* lack of memory"),
        ("single", 1, "os._exit(7)", "it ended with exit code 7 and said nothing"),
    ],
)
def test_a_job_that_hangs_or_dies_is_said_and_ended(
    library: str,
    processes: int,
    fault: str,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    left_running: Callable[[], list[str]],
) -> None:
    """In the last process, before it meets the others."""
    last = "'1'" if processes == 2 else "None"
    program = f"import os, time\nif os.environ.get('RANK') == {last}: {fault}\n"
    for name, value in faulty(tmp_path, program).items():
        monkeypatch.setenv(name, value)
    begin = time.monotonic()
    name = f"{processes} processes over {library}" if processes > 1 else "a process of its own"
    with (
        pytest.raises(Refused, match=f"^{name}: {why}$"),
        open_job(STEPS, library, processes, TINY, limit=4 if "sleep" in fault else 150),
    ):
        pass
    assert time.monotonic() - begin < 150
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
        open_job(STEPS, "torch", 1, TINY, limit=150),
    ):
        pass
    assert not started
    assert list(long.iterdir()) == []


def test_what_the_processes_refuse_is_passed_on() -> None:
    """Before they meet, and after."""
    with (
        pytest.raises(Refused, match="1 process over torch: 'nonsense' is not of the form"),
        open_job(STEPS, "torch", 1, ["nonsense"], limit=150),
    ):
        pass
    with (
        open_job(STEPS, "torch", 2, ["+recipe=digits", "workers=1"], limit=150) as job,
        pytest.raises(Refused, match="2 processes cannot share workers=1"),
    ):
        job.prepare(STRONG)


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
    assert re.search(r"^\| strong scaling: processes +\| +cores each +\|", said, re.MULTILINE)
    assert "| 1, torch.distributed (gloo) " in said
    assert "3 processes is not measured: 3 processes cannot share workers=2" in said
    assert left_running() == []
