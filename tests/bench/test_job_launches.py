import json
import os
import re
from pathlib import Path

import pytest
from helpers.launching import serve_python

from lsgd.bench.__main__ import main
from lsgd.bench.job import open_job
from lsgd.bench.scaled_steps import STRONG
from lsgd.errors import UsageError
from lsgd.job.children import OURS
from lsgd.job.system import tagged_pids

pytestmark = pytest.mark.distributed
TINY = ["+recipe=digits", "workers_per_pass=2", "worker_batch=3"]
STEPS = "lsgd.bench.scaled_steps"


@pytest.mark.parametrize(
    ("library", "processes", "fault", "why"),
    [
        (
            "torch",
            2,
            "time.sleep(600)",
            r"it did not end in 4 s.*; raise --limit if the command has it",
        ),
        ("torch", 2, "os.kill(os.getpid(), 11)", "a process crashed with SIGSEGV"),
        ("single", 1, "os.kill(os.getpid(), 9)", "it crashed with SIGKILL, .* out of memory"),
        ("single", 1, "os._exit(7)", "it exited with code 7 without a message"),
    ],
)
def test_a_job_that_hangs_or_dies_is_said_and_ended(
    library: str,
    processes: int,
    fault: str,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the last process, before it meets the others."""
    last = "'1'" if processes == 2 else "None"
    program = f"import os, time\nif os.environ.get('RANK') == {last}: {fault}\n"
    (tmp_path / "sitecustomize.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    name = f"{processes} processes over {library}" if processes > 1 else "a separate process"
    with (
        pytest.raises(UsageError, match=f"^{name}: {why}$"),
        open_job(STEPS, library, processes, TINY, limit=4 if "sleep" in fault else 200),
    ):
        pass
    assert not tagged_pids(OURS)


def test_a_folder_for_temporary_files_that_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address of a socket has at most 107 characters; nothing is started then."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    started: list[object] = []
    monkeypatch.setattr("lsgd.bench.job.running_child", lambda *_, **__: started.append(1))
    with (
        pytest.raises(UsageError, match=r"cannot hold a socket .*; write TMPDIR=/tmp"),
        open_job(STEPS, "torch", 1, TINY, limit=200),
    ):
        pass
    assert not started
    assert list(long.iterdir()) == []


def test_what_the_processes_refuse_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before they meet, and after."""
    serve_python(tmp_path, monkeypatch)
    with (
        pytest.raises(UsageError, match="'nonsense' is not of the form"),
        open_job(STEPS, "single", 1, ["nonsense"], limit=200),
    ):
        pass
    with (
        open_job(STEPS, "torch", 2, ["+recipe=digits", "workers=1"], limit=200) as job,
        pytest.raises(UsageError, match="2 processes cannot share workers=1"),
    ):
        job.prepare(STRONG)


@pytest.mark.slow
def test_scaling(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strong shares the workers of one process out, weak gives each as many."""
    serve_python(tmp_path, monkeypatch)
    words = ["+recipe=digits", "workers=2", "worker_batch=4", "workers_per_pass=4"]
    options = ["--np", "2", "--rounds", "6", "--steps", "1", "--out", str(tmp_path / "out")]
    assert main(["scaling", *words, *options]) == 0
    found = json.loads((tmp_path / "out" / "scaling.json").read_text())
    images = {
        kind: {number: facts["images"] for number, facts in jobs.items()}
        for kind, jobs in found["jobs"].items()
    }
    assert images == {"strong": {"1": 8, "2": 8}, "weak": {"1": 8, "2": 16}}
    assert found["missing"] == {}
    assert [each["workers_per_pass"] for each in found["jobs"]["strong"].values()] == [2, 1]
    for speeds in found["speeds"].values():
        assert all(len(values) == 6 and min(values) > 0 for values in speeds.values())
    said = capsys.readouterr().out
    assert re.search(r"^\| strong scaling: processes +\| +cores each +\|", said, re.MULTILINE)
    assert "| 1, torch.distributed (gloo) " in said
    assert not tagged_pids(OURS)
