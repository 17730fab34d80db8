"""The words of `lsgd.supervise`: refused before a folder is made or a job is started."""

from pathlib import Path

import pytest
from helpers.refusals import refusal

from lsgd.supervise.__main__ import main, read


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--processes 0 true {np}", "--processes: 0 is not a whole number of 1 or more"),
        ("--processes -1 true {np}", "--processes: -1 is not a whole number of 1 or more"),
        ("--processes two true {np}", "--processes: two is not a whole number of 1 or more"),
        ("--restarts -1 true", "--restarts: -1 is not a whole number of 0 or more"),
        ("--min-processes 0 true", "--min-processes: 0 is not a whole number of 1 or more"),
        ("--silence nan true", "--silence: nan is not a number of seconds above 0"),
        ("--silence 0 true", "--silence: 0 is not a number of seconds above 0"),
        ("--silence 1e300 true", "--silence: 1e300 is not a number of seconds above 0"),
        ("--grace inf true", "--grace: inf is not a number of seconds above 0"),
        ("--hosts a:0,b:1 true {hosts}{np}", "a:0,b:1 is not of the form HOST:N,HOST:N"),
        (
            "--processes 2 --min-processes 4 true {np}",
            "--min-processes 4 is more than the 2 to begin with; write 2 or less",
        ),
        (
            "--hosts a:1,b:1 --min-processes 3 true {hosts}{np}",
            "--min-processes 3 is more than the 2 to begin with; write 2 or less",
        ),
    ],
)
def test_numbers_that_make_no_sense_are_refused(
    words: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = f"run_dir={tmp_path / 'run'}"
    assert sentence in refusal(main, capsys, *words.split(), run)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command",
    [
        "launch/slurm.sh digits",
        "/opt/lsgd/launch/k8s.sh digits",
        "python3.11 -m lsgd.launch slurm digits",
        "lsgd launch slurm digits",
        "lsgd-launch k8s digits",
        "sbatch job.sh",
    ],
)
def test_what_only_submits_is_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its end is not that of the job: the supervisor would say that all is done."""
    run = f"run_dir={tmp_path / 'run'}"
    assert "only submits a job" in refusal(main, capsys, *command.split(), run)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command", ["launch/local.sh slurm.sh", "lsgd launch torchrun slurm", "srun sbatch"]
)
def test_what_runs_a_job_is_not(command: str) -> None:
    assert read([*command.split(), "run_dir=a"]).command
