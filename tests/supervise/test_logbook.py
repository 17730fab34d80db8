"""A run folder has one supervisor at a time, which keeps its logbook there."""

import errno
import fcntl
import io
import os
from pathlib import Path
from typing import IO
from unittest.mock import Mock

import pytest

from lsgd.errors import NotSavedError, UsageError
from lsgd.job import members
from lsgd.run import checkpoint
from lsgd.run.read import SUPERVISOR_LOG, has_failed
from lsgd.run.rows import read_rows
from lsgd.supervise import folder
from lsgd.supervise.logbook import Logbook, open_logbook


def test_one_supervisor_per_run(tmp_path: Path) -> None:
    said = pytest.raises(UsageError, match="has a supervisor already")
    with open_logbook(tmp_path), said, open_logbook(tmp_path, patience=0.1):
        pass
    with open_logbook(tmp_path):
        pass


def test_on_a_drive_without_locks_none_is_active(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two would stop each other's processes."""
    none = Mock(side_effect=OSError(errno.ENOLCK, "No locks available"))
    monkeypatch.setattr(fcntl, "flock", none)
    said = pytest.raises(UsageError, match=r"run the command without lsgd\.supervise")
    with said, open_logbook(tmp_path):
        pass


def test_its_lock_is_not_its_log(tmp_path: Path) -> None:
    """Which somebody may remove while a job runs."""
    with open_logbook(tmp_path):
        (tmp_path / SUPERVISOR_LOG).unlink()
        said = pytest.raises(UsageError, match="has a supervisor already")
        with said, open_logbook(tmp_path, patience=0.1):
            pass


def test_a_line_that_a_kill_has_cut_short_costs_none_after_it(tmp_path: Path) -> None:
    (tmp_path / SUPERVISOR_LOG).write_text('{"event": "start"}\n{"event": "en')
    with open_logbook(tmp_path) as logbook:
        logbook.log_event("end", "it ends", code=1)
    assert [row["event"] for row in read_rows(tmp_path / SUPERVISOR_LOG)] == ["start", "end"]


def test_a_start_has_failed_if_its_end_is_an_error(tmp_path: Path) -> None:
    """Neither the end of training nor a preemption is one, and a job that runs has no end yet."""
    assert not has_failed(tmp_path)
    with open_logbook(tmp_path) as logbook:
        for code, failed in ((1, True), (0, False), (75, False), (6, True)):
            logbook.log_event("start", "it starts")
            assert not has_failed(tmp_path)
            logbook.log_event("end", "it ends", code=code)
            assert has_failed(tmp_path) is failed


@pytest.mark.parametrize("name", [folder.METRICS, folder.CHECKPOINT])
def test_what_a_run_writes_shows_whatever_the_time_of_its_files(name: str, tmp_path: Path) -> None:
    """The clock of a file server may stand."""
    seen = [folder.progress_marker(tmp_path)]
    for row in ("one", "two", "two"):
        files = tmp_path / ".part"
        files.write_text(((tmp_path / name).read_text() if row == "two" else "") + row)
        files.replace(tmp_path / name)
        os.utime(tmp_path / name, (0, 0))
        seen.append(folder.progress_marker(tmp_path))
    assert all(seen.count(each) == 1 for each in seen)
    assert folder.progress_marker(tmp_path) == seen[-1]


def test_a_row_that_is_none_of_a_run_says_nothing_of_its_steps(tmp_path: Path) -> None:
    """Nor does it end the supervisor that looks how far the run has come."""
    rows = ['{"step": 3}', "[1]", "7", '{"step": "9"}', "{}", "[" * 9999, '{"st']
    (tmp_path / folder.METRICS).write_text("\n".join(rows))
    assert folder.last_step(tmp_path) == 3


def test_the_run_is_where_the_supervisor_looks_for_it() -> None:
    """It does not import lsgd.run.checkpoint, which imports torch."""
    assert checkpoint.FILE == folder.CHECKPOINT


def test_what_it_says_is_harmless(tmp_path: Path) -> None:
    command, screen = ["train", "http://me:secret@host/", "a\x1b[2J"], io.StringIO()
    with open_logbook(tmp_path, screen=screen) as logbook:
        logbook.log_event("start", f"starts {' '.join(command)}", command=command)
    said = screen.getvalue()
    assert said.endswith(" supervise: starts train http://me:***@host/ a\\x1b[2J\n")
    [row] = read_rows(tmp_path / SUPERVISOR_LOG)
    assert row["command"][1] == "http://me:***@host/"


class Full(io.StringIO):
    """The log of a trial, on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


class FullFile:
    """The file of a logbook, on a full disk or one whose server fails."""

    def __init__(self, file: IO[bytes], number: int) -> None:
        self.close, self.number = file.close, number

    def write(self, content: bytes) -> int:
        raise OSError(self.number, os.strerror(self.number))


def fill(logbook: Logbook, disk: pytest.MonkeyPatch, number: int = errno.ENOSPC) -> None:
    disk.setattr(logbook.file, "file", FullFile(logbook.file.file, number))


def test_on_a_full_disk_the_job_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be written has its space later."""
    with open_logbook(tmp_path, screen=Full()) as logbook:
        with monkeypatch.context() as disk:
            fill(logbook, disk)
            logbook.log_event("start", "it starts")
        logbook.log_event("end", "it ends", code=0)
    assert [row["event"] for row in read_rows(tmp_path / SUPERVISOR_LOG)] == ["start", "end"]


def test_an_error_of_the_file_server_does_not_end_who_only_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its look has no answer, or its row waits for a later one; in the end it says what lacks."""
    stale = Mock(side_effect=OSError(errno.ESTALE, "Stale file handle"))
    with open_logbook(tmp_path, screen=(screen := io.StringIO())) as logbook:
        (tmp_path / folder.METRICS).touch()
        (tmp_path / members.FOLDER).mkdir()
        known = folder.progress_marker(tmp_path)
        with monkeypatch.context() as server:
            fill(logbook, server, errno.EIO)
            server.setattr(os, "stat", stale)
            server.setattr(os, "scandir", stale)
            logbook.log_event("start", "it starts")
            assert folder.progress_marker(tmp_path) not in ([], known)
            assert folder.newest_checkpoint(tmp_path) == folder.UNKNOWN
            assert members.process_records(tmp_path) == []
        logbook.log_event("end", "it ends", code=0)
    assert [row["event"] for row in read_rows(tmp_path / SUPERVISOR_LOG)] == ["start", "end"]
    with open_logbook(tmp_path, screen=screen) as logbook:
        fill(logbook, monkeypatch, errno.EIO)
        logbook.log_event("start", "it starts")
    assert screen.getvalue().endswith("supervise.log lacks its last rows (Input/output error)\n")


def test_what_never_has_its_space_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = pytest.raises(NotSavedError, match=r"supervise\.log could not be written completely")
    with said, open_logbook(tmp_path, screen=io.StringIO()) as logbook:
        fill(logbook, monkeypatch)
        logbook.log_event("start", "it starts")
