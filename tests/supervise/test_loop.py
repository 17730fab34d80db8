"""The loop of `lsgd.supervise` around small real jobs; tests/distributed has those that train."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lsgd.job import members

JOB = str(Path(__file__).parent.parent / "helpers/small_job.py")


def words(folder: Path, *plan: str, size: str = "3") -> list[str]:
    return [sys.executable, JOB, f"run_dir={folder}", f"np={size}", *plan]


@pytest.fixture
def start() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Starts supervisors, which the end of a test takes with their jobs."""
    begun = []

    def start(*arguments: str) -> "subprocess.Popen[str]":
        words = [sys.executable, "-m", "lsgd.supervise", *arguments]
        begun.append(
            subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
        return begun[-1]

    yield start
    for job in begun:
        job.kill()
        job.communicate()


@pytest.fixture
def supervised(start) -> Callable[..., tuple[int, str]]:
    """Runs a supervisor to its end: its exit code and what it said."""

    def supervised(*arguments: str) -> tuple[int, str]:
        job = start(*arguments)
        said, _ = job.communicate(timeout=60)
        return job.returncode, said

    return supervised


def starts(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "starts").read_text().splitlines()]


def until(condition, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("plan", "code", "made", "says"),
    [
        (["0"], 0, 1, "done"),
        (["2"], 2, 1, "was refused: so it was planned, after step 0"),
        (["2-early"], 2, 1, "was refused"),
        (["3"], 3, 1, "process 1 on {host} (pid "),
        (["killed", "0"], 0, 2, "was killed, most likely by signal 9"),
        (["segfault", "0"], 0, 2, "crashed: Fatal Python error: Segmentation fault"),
        (["raises", "0"], 0, 2, "crashed: RuntimeError: out of luck"),
        (["launcher-killed", "0"], 0, 2, "was killed by signal 9"),
        (["4", "0"], 0, 2, "had an input that failed"),
        (["4", "4"], 4, 2, "an input failed twice at the same place"),
        (["4", "save-4", "4"], 4, 3, "an input failed twice"),
        (["6"], 6, 1, "look after the disk"),
        (["130"], 130, 1, "somebody has ended it"),
        (["75", "75", "75", "75", "0"], 0, 5, "was preempted and has saved"),
        (["killed", "5", "raises"], 1, 3, "3 deaths in a row without a new checkpoint"),
        (
            ["raises", "save-raises", "5", "raises", "raises"],
            1,
            5,
            "3 deaths in a row without a new checkpoint",
        ),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else "",
)
def test_what_follows_an_ending(
    tmp_path: Path, plan: list[str], code: int, made: int, says: str, supervised
) -> None:
    got, said = supervised("--", *words(tmp_path / "run", *plan))
    assert got == code, said
    assert starts(tmp_path / "run") == [3] * made
    assert says.format(host=os.uname().nodename) in said, said
    assert members.running(tmp_path / "run") == []


@pytest.mark.distributed
def test_each_process_that_dies_takes_one_away(tmp_path: Path, supervised) -> None:
    plan = ["killed", "75", "save-raises", "launcher-killed", "killed", "0"]
    options = ["--processes", "4", "--min-processes", "2"]
    code, said = supervised(*options, *words(tmp_path / "run", *plan, size="{np}"))
    assert code == 0, said
    assert starts(tmp_path / "run") == [4, 3, 3, 2, 2, 2]


@pytest.mark.distributed
def test_restarts_can_be_limited(tmp_path: Path, supervised) -> None:
    plan = ["save-raises", "save-raises", "save-raises"]
    code, said = supervised("--restarts", "1", *words(tmp_path / "run", *plan))
    assert code == 1
    assert "--restarts 1 are used up" in said
    assert starts(tmp_path / "run") == [3, 3]


@pytest.mark.distributed
def test_where_the_launcher_waits_the_supervisor_stops_the_rest(tmp_path: Path, supervised) -> None:
    begin = time.monotonic()
    code, said = supervised("--", *words(tmp_path / "run", "alone-killed", "0"))
    assert code == 0, said
    assert starts(tmp_path / "run") == [3, 3]
    assert time.monotonic() - begin < 15


@pytest.mark.distributed
def test_the_log_tells_it_all(tmp_path: Path, supervised) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").touch()
    (folder / "metrics.jsonl").write_text('{"kind": "train", "step": 7}\n{"kind": "tr')
    assert supervised("--", *words(folder, "killed", "3"))[0] == 3
    rows = [json.loads(line) for line in (folder / "supervise.log").read_text().splitlines()]
    assert [row["event"] for row in rows] == ["start", "end", "start", "end", "given up"]
    assert [row["code"] for row in rows if row["event"] == "end"] == [1, 3]
    assert rows[1]["step"] == 7
    assert "after step 7" in rows[1]["text"]
    assert rows[0]["command"] == words(folder, "killed", "3")


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("plan", "number", "code"),
    [
        ("saves-when-asked", signal.SIGTERM, 75),
        ("saves-when-asked", signal.SIGUSR1, 75),
        ("hangs", signal.SIGINT, 130),
        ("hangs", signal.SIGTERM, 143),
    ],
)
def test_a_signal_is_passed_on_and_nothing_starts_again(
    tmp_path: Path, plan: str, number: signal.Signals, code: int, start
) -> None:
    folder = tmp_path / "run"
    job = start("--", *words(folder, plan))
    until(lambda: len(members.members(folder)) == 3)
    time.sleep(0.3)
    job.send_signal(number)
    said, _ = job.communicate(timeout=20)
    assert job.returncode == code, said
    assert starts(folder) == [3]
    assert members.running(folder) == []


@pytest.mark.distributed
def test_who_does_not_leave_in_time_is_stopped(tmp_path: Path, start) -> None:
    folder = tmp_path / "run"
    job = start("--grace", "0.5", "--", *words(folder, "stubborn"))
    until(lambda: len(members.members(folder)) == 3)
    job.terminate()
    job.communicate(timeout=20)
    assert job.returncode == 143
    assert members.running(folder) == []


@pytest.mark.distributed
def test_silence_is_the_end_of_a_start(tmp_path: Path, supervised) -> None:
    folder = tmp_path / "run"
    code, said = supervised("--silence", "1.5", "--", *words(folder, "hangs", "0"))
    assert code == 0
    assert "nothing was written for 1.5 s, after step 0" in said
    assert starts(folder) == [3, 3]


@pytest.mark.distributed
def test_a_killed_supervisor_takes_its_job_along(tmp_path: Path, start, supervised) -> None:
    folder = tmp_path / "run"
    arguments = ["--", *words(folder, "stubborn", "0")]
    job = start(*arguments)
    until(lambda: len(members.members(folder)) == 3)
    job.kill()
    # The second comes at once: it waits until nothing of the first is left.
    code, said = supervised(*arguments)
    job.communicate(timeout=10)
    assert code == 0, said
    assert "of an earlier start" not in said
    assert starts(folder) == [3, 3]
    assert members.running(folder) == []


@pytest.mark.distributed
def test_what_two_killed_helpers_leave_is_stopped_by_the_next(
    tmp_path: Path, start, supervised
) -> None:
    folder = tmp_path / "run"
    arguments = ["--", *words(folder, "hangs", "0")]
    job = start(*arguments)
    until(lambda: len(members.members(folder)) == 3)
    helpers = subprocess.run(
        ["pgrep", "-f", f"lsgd.job.members {folder}"], capture_output=True, text=True, check=True
    )
    os.kill(int(helpers.stdout), signal.SIGKILL)
    job.kill()
    time.sleep(0.5)
    assert len(members.running(folder)) == 4
    code, said = supervised(*arguments)
    job.communicate(timeout=10)
    assert code == 0
    assert "stopped 4 processes of an earlier start" in said


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["true"], "names no run folder"),
        (["--processes", "2", "true", "run_dir=run"], "belong together"),
        (["true", "run_dir=run", "{np}"], "belong together"),
        (["--hosts", "a:8", "true", "run_dir=run", "{np}"], "{hosts} in the command and --hosts"),
        (
            ["--hosts", "a", "true", "run_dir=run", "{np}"],
            "lsgd: argument --hosts: a is not of the form HOST:N,HOST:N; --help",
        ),
        (["no-such-program", "run_dir=run"], "no-such-program cannot be started"),
        (["true", "run_dir=full"], "holds files of something else"),
    ],
)
def test_what_makes_no_sense_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str, supervised
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    code, said = supervised(*arguments)
    assert code == 2
    assert says in said
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.tex"]
