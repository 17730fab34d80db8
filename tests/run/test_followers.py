"""The processes that a run starts for its trackers, and what becomes of them."""

import os
import sys
from pathlib import Path

import pytest

from lsgd.errors import UsageError
from lsgd.run import trackers
from lsgd.run.trackers import TrackerProcesses, check_installed, log_of

FOLLOWER = """#!/bin/sh
echo "$@"
env
ps -o sid= -p $$
cat > /dev/null
echo released
exit {code}
"""


@pytest.fixture
def said() -> list[str]:
    return []


def followers(
    folder: Path, said: list[str], monkeypatch: pytest.MonkeyPatch, code: int = 0
) -> TrackerProcesses:
    """Those whose program only says how it was started, and ends with its input."""
    program = folder / "python"
    program.write_text(FOLLOWER.format(code=code))
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return TrackerProcesses(folder, said.append)


def test_a_follower_is_no_process_of_the_job(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by the variables of its launcher nor by its session; its words are in the folder."""
    for name in ("RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker")
    made = followers(tmp_path, said, monkeypatch)
    made.start("mlflow")
    assert made.processes["mlflow"].poll() is None
    made.end(200)
    lines = log_of(tmp_path, "mlflow").read_text().splitlines()
    assert lines[0] == f"-m lsgd.track {tmp_path} --to mlflow --follow"
    assert "MLFLOW_TRACKING_URI=http://tracker" in lines
    assert not [line for line in lines if line.startswith(("RANK=", "WORLD", "OMPI", "SLURM"))]
    assert str(os.getsid(0)) not in [line.strip() for line in lines]
    assert lines[-1] == "released"
    assert said == [f"sent to mlflow by a separate process: {tmp_path}/tracker-mlflow.log"]


def test_what_is_not_sent_at_the_end_is_said_once(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = followers(tmp_path, said, monkeypatch, code=1)
    made.start("mlflow")
    made.end(200)
    assert "mlflow does not have everything: " in said[-1]
    assert f"`lsgd track {tmp_path} --to mlflow` sends the rest later" in said[-1]
    assert len(said) == 2


def test_what_is_still_on_its_way_is_not_said_to_be_missing(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short run ends while its tracker's library is still imported."""
    made = followers(tmp_path, said, monkeypatch)
    (tmp_path / "python").write_text("#!/bin/sh\nexec 0</dev/null\nread line < go\n")
    os.mkfifo(tmp_path / "go")
    monkeypatch.chdir(tmp_path)
    made.start("mlflow")
    made.end(0.1)
    (tmp_path / "go").write_text("\n")
    assert made.processes["mlflow"].wait(200) == 0
    assert "the process that sends the run to mlflow continues with the rest: " in said[-1]
    assert f"`lsgd track {tmp_path} --to mlflow` sends the rest later" in said[-1]


def test_a_run_that_leaves_does_not_wait(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = followers(tmp_path, said, monkeypatch, code=1)
    made.start("mlflow")
    made.end(0)
    assert len(said) == 1
    made.processes["mlflow"].wait(200)


def test_a_process_that_cannot_be_started_ends_no_run(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    made = TrackerProcesses(tmp_path, said.append)
    made.start("wandb")
    made.end(200)
    assert len(said) == 1
    assert said[0].startswith("not sent to wandb (No such file or directory); `lsgd track ")


def test_a_package_that_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_installed([])
    monkeypatch.setattr(trackers, "is_installed", lambda name: False)
    with pytest.raises(UsageError, match=r"install .*\[wandb\]'"):
        check_installed(["wandb"])
