"""The loop of `lsgd.supervise` around small real jobs; tests/distributed has those that train."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.launching import fork_command
from helpers.waiting import wait_until

from lsgd.job import members

SUPERVISE = [sys.executable, "-m", "lsgd.supervise"]
JOB = str(Path(__file__).parent.parent / "helpers/small_job.py")


def words(folder: Path, *plan: str, size: str = "3") -> list[str]:
    return [sys.executable, JOB, f"run_dir={folder}", f"np={size}", *plan]


@pytest.fixture
def supervised(start) -> Callable[..., tuple[int, str]]:
    """Runs a supervisor to its end, as a fork: its exit code and what it said."""

    def supervised(*arguments: str) -> tuple[int, str]:
        job = start(*fork_command(), "-m", "lsgd.supervise", *arguments)
        said, _ = job.communicate(timeout=900)
        return job.returncode, said

    return supervised


def starts(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "starts").read_text().splitlines()]


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("plan", "code", "made", "says"),
    [
        (["0"], 0, 1, "done"),
        (["2"], 2, 1, "reported a usage error: so it was planned, after step 0"),
        (["2-early"], 2, 1, "reported a usage error"),
        (["3"], 3, 1, "process 1 on {host} (pid "),
        (["killed", "0"], 0, 2, "was killed, most likely by signal 9"),
        (["segfault", "0"], 0, 2, "crashed: Fatal Python error: Segmentation fault"),
        (["launcher-killed", "0"], 0, 2, "was killed by signal 9"),
        (["4", "save-4", "4"], 4, 3, "an input failed twice at the same step"),
        (["6"], 6, 1, "check the disk"),
        (["130"], 130, 1, "it was interrupted by the user"),
        (["75", "75", "75", "0"], 0, 4, "was preempted and has saved"),
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
    assert members.job_pids(tmp_path / "run") == []


@pytest.mark.distributed
def test_a_host_that_makes_the_others_wait_is_logged(tmp_path: Path, supervised) -> None:
    """From the rows of the run, as its last start ends."""
    (tmp_path / "logs").mkdir()
    rows = [{"kind": "epoch", "step": i, "epoch": i, "straggler": "node7"} for i in range(3)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    code, said = supervised("--", *words(tmp_path, "0"))
    assert code == 0
    assert "node7 made the others wait in 3 of the last 3 epochs" in said
    events = [json.loads(line) for line in (tmp_path / "supervise.log").read_text().splitlines()]
    assert [each["event"] for each in events] == ["start", "end", "straggler"]


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
    assert "--restarts 1 is reached" in said
    assert starts(tmp_path / "run") == [3, 3]


@pytest.mark.distributed
def test_where_the_launcher_waits_the_supervisor_stops_the_rest(tmp_path: Path, supervised) -> None:
    code, said = supervised("--", *words(tmp_path / "run", "alone-killed", "0"))
    assert code == 0, said
    assert starts(tmp_path / "run") == [3, 3]


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
        ("hangs", signal.SIGINT, 130),
    ],
)
def test_a_signal_is_passed_on_and_nothing_starts_again(
    tmp_path: Path, plan: str, number: signal.Signals, code: int, start
) -> None:
    folder = tmp_path / "run"
    job = start(*SUPERVISE, "--", *words(folder, plan))
    wait_until(lambda: len(members.process_records(folder)) == 3)
    job.send_signal(number)
    said, _ = job.communicate(timeout=900)
    assert job.returncode == code, said
    assert starts(folder) == [3]
    assert members.job_pids(folder) == []


@pytest.mark.distributed
def test_who_does_not_leave_in_time_is_stopped(tmp_path: Path, start) -> None:
    folder = tmp_path / "run"
    job = start(*SUPERVISE, "--grace", "0.5", "--", *words(folder, "stubborn"))
    wait_until(lambda: len(members.process_records(folder)) == 3)
    job.terminate()
    job.communicate(timeout=900)
    assert job.returncode == 143
    assert members.job_pids(folder) == []


@pytest.mark.distributed
def test_silence_is_the_end_of_a_start(tmp_path: Path, supervised) -> None:
    folder = tmp_path / "run"
    code, said = supervised("--silence", "20", "--", *words(folder, "hangs", "0"))
    assert code == 0
    assert "nothing was written for 20 s, after step 0" in said
    assert starts(folder) == [3, 3]


@pytest.mark.distributed
def test_a_killed_supervisor_takes_its_job_along(tmp_path: Path, start, supervised) -> None:
    folder = tmp_path / "run"
    arguments = ["--", *words(folder, "stubborn", "0")]
    job = start(*SUPERVISE, *arguments)
    wait_until(lambda: len(members.process_records(folder)) == 3)
    job.kill()
    # The second comes at once: it waits until nothing of the first is left.
    code, said = supervised(*arguments)
    job.communicate(timeout=900)
    assert code == 0, said
    assert "of an earlier start" not in said
    assert starts(folder) == [3, 3]
    assert members.job_pids(folder) == []


@pytest.mark.distributed
def test_what_two_killed_helpers_leave_is_stopped_by_the_next(
    tmp_path: Path, start, supervised
) -> None:
    folder = tmp_path / "run"
    arguments = ["--", *words(folder, "hangs", "0")]
    job = start(*SUPERVISE, *arguments)
    wait_until(lambda: len(members.process_records(folder)) == 3)
    helpers = subprocess.run(
        ["pgrep", "-f", f"lsgd.job.ending LSGD_SUPERVISED {folder}"],
        capture_output=True,
        text=True,
        check=True,
    )
    os.kill(int(helpers.stdout), signal.SIGKILL)
    job.kill()
    assert len(members.job_pids(folder)) == 4
    code, said = supervised(*arguments)
    job.communicate(timeout=900)
    assert code == 0
    assert "stopped 4 processes of an earlier start" in said


@pytest.mark.distributed
def test_a_command_that_ends_well_has_trained(supervised, tmp_path: Path) -> None:
    """Where it has not, its exit code is no news of the run."""
    code, said = supervised("true", f"run_dir={tmp_path / 'run'}")
    assert code == 1
    assert f"no run was trained in {tmp_path / 'run'}" in said
