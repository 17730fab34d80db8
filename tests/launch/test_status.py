"""The table of Slurm's jobs for a study or a search, and the status of one of their runs."""

import json
from pathlib import Path

import pytest

from lsgd.errors import UsageError
from lsgd.launch.slurm import JOB_FILE, write_job_record
from lsgd.launch.status import QueuedRun, job_table, print_status

JOBS = """\
JobId=3 ArrayJobId=1 ArrayTaskId=0 JobState=RUNNING Reason=None NodeList=n[1-2] StdOut={0}/a/s-1_0.log
JobId=1 ArrayJobId=1 ArrayTaskId=2-3,5%1 JobState=PENDING Reason=Resources NodeList= StdOut={0}/a/s-1_4294967294.log
JobId=8 JobState=PENDING Reason=Priority NodeList= StdOut={0}/./a/../b//c.log
JobId=7 JobState=PENDING Reason=Dependency NodeList=(null) StdOut={0}/a/report-7.log
"""  # noqa: E501


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a scontrol that knows an array of which two jobs wait, and one that reports."""
    program = tmp_path / "bin/scontrol"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n/bin/cat <<END\n{JOBS.format(tmp_path)}END\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[2:]]


def test_each_run_has_the_job_that_was_submitted_for_it(here: Path) -> None:
    runs = [QueuedRun(f"run {n}", here / f"r{n}", "", False, f"1_{n}") for n in (0, 3, 4)]
    text, is_abandoned = job_table(runs, {}, runs_left=False)
    assert rows(text) == [
        ["run 0", "", "1_0", "RUNNING", "n[1-2]", "a/s-1_0.log"],
        ["run 3", "", "1_3", "PENDING, waits for Resources", "", "a/s-1_3.log"],
        ["run 4", "", "1_4", "unknown to Slurm by now", "", ""],
    ]
    assert is_abandoned
    assert not job_table(runs[:2], {}, runs_left=False)[1]


def test_a_job_that_chooses_its_run_writes_its_name_there(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that have chosen none have rows of their own, and the job of the report trains none."""
    for name, value in (("JOB_ID", "3"), ("ARRAY_JOB_ID", "1"), ("ARRAY_TASK_ID", "0")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    write_job_record(here / "r", here / "r.log")
    chosen = QueuedRun("trial 1", here / "r", "1 of 3 epochs done", False, None)
    text, is_abandoned = job_table([chosen], {"1": "trial", "7": "report"}, runs_left=True)
    assert rows(text) == [
        ["trial 1", "1 of 3 epochs done", "1_0", "RUNNING", "n[1-2]", "r.log"],
        ["trial", "", "1_[2-3,5%1]", "PENDING, waits for Resources", "", "a/s-1_*.log"],
        ["report", "", "7", "PENDING, waits for Dependency", "", "a/report-7.log"],
    ]
    assert not is_abandoned
    assert job_table([chosen], {"7": "report"}, runs_left=True)[1]


def test_a_run_that_waits_for_its_job_of_an_array(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file beside its folder names the array, whose number is in sbatch's answer."""
    arrays = here / "runs/arrays"
    arrays.mkdir(parents=True)
    (arrays / "s-1.job").write_text("Submitted batch job 1\n")
    (here / "digits.job").write_text("job 5 of s-1.job\n")
    assert print_status(["digits"]) == 0
    said = capsys.readouterr().out
    assert "job    1_[2-3,5%1] PENDING, waits for Resources" in said


def test_a_waiting_job_of_an_array_has_the_log_of_its_task(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slurm shows one log for all jobs of an array that have not begun."""
    assert print_status(["a/s-1_5"]) == 0
    said = capsys.readouterr().out
    assert "job    1_[2-3,5%1] PENDING, waits for Resources" in said
    with pytest.raises(UsageError, match="has no run and no Slurm job"):
        print_status(["a/s-1_4"])


@pytest.mark.parametrize("folder", ["b/c", "b/c/", "./b/c", "a/../b/c", "."])
def test_a_folder_has_its_job_however_its_path_is_written(
    folder: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "b/c").mkdir(parents=True)
    if folder == ".":
        monkeypatch.chdir("b/c")
    assert print_status([folder]) == 0
    assert "job    8 PENDING, waits for Priority" in capsys.readouterr().out


def test_jobs_on_another_cluster_are_asked_for_there(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the cluster in sbatch's answer, or in the file that the job has left in its folder."""
    script = (here / "bin/scontrol").read_text()
    others = script.replace("JobState=RUNNING", "JobState=COMPLETED").replace("n[1-2]", "m1")
    asks = '#!/bin/sh\n[ "$1 $2" = "--clusters c2" ] && exec bin/c2\n'
    for name, text in (("c2", others), ("scontrol", asks + script)):
        (here / "bin" / name).write_text(text)
        (here / "bin" / name).chmod(0o755)
    runs = [QueuedRun(job, here / "r", "", False, job) for job in ("1_0", "1_0;c2")]
    text, _ = job_table(runs, {"7;c2": "report"}, runs_left=False)
    assert [row[2:5] for row in rows(text)] == [
        ["1_0", "RUNNING", "n[1-2]"],
        ["1_0;c2", "COMPLETED", "m1"],
        ["7;c2", "PENDING, waits for Dependency", ""],
    ]
    record = {"job": "1_0;c2", "nodes": "", "start": 1, "began": "", "log": "", "process_logs": ""}
    (here / "r" / JOB_FILE).parent.mkdir(parents=True)
    (here / "r" / JOB_FILE).write_text(json.dumps(record))
    assert print_status(["r"]) == 1
    assert "job    1_0;c2 COMPLETED on m1" in capsys.readouterr().out


def test_a_study_is_no_folder(here: Path) -> None:
    with pytest.raises(UsageError, match="or lsgd study study=NAME --status for all runs"):
        print_status(["study=digits"])


@pytest.mark.parametrize(("beside", "named"), [("link", "link"), ("run", "run"), ("", "link")])
def test_a_log_is_beside_the_path_that_its_run_was_started_with(
    beside: str, named: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """That is a link, or there is another one to it."""
    record = {"job": "9", "nodes": "", "start": 1, "began": "", "process_logs": ""}
    (here / "there/run" / JOB_FILE).parent.mkdir(parents=True)
    (here / "link").symlink_to("there/run")
    (here / "link" / JOB_FILE).write_text(json.dumps(record | {"log": f"../{named}.log"}))
    paths = {"link": here / "link.log", "run": here / "there/run.log"}
    if beside:
        paths[beside].touch()
    print_status(["link"])
    assert f"logs   {paths[named]}\n" in capsys.readouterr().out


def test_a_step_of_a_search_has_one_log(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = {"job": "9", "nodes": "n1", "start": 1, "began": "now", "log": "../r.log"}
    (here / "r" / JOB_FILE).parent.mkdir(parents=True)
    (here / "r" / JOB_FILE).write_text(json.dumps(record | {"process_logs": ""}))
    (here / "r.log").write_text("epoch 3\n")
    assert print_status(["r"]) == 1
    said = capsys.readouterr().out
    assert f"logs   {here / 'r.log'}\n       it ends with: epoch 3\n" in said
    assert "one of each process" not in said
