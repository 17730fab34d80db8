"""The words of `lsgd.supervise`: refused before a folder is made or a job is started."""

from pathlib import Path

import pytest
from helpers.usage_errors import usage_error

from lsgd.supervise.__main__ import main, read


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--processes 0 true {np}", "--processes: 0 is not a whole number of 1 or more"),
        ("--restarts -1 true", "--restarts: -1 is not a whole number of 0 or more"),
        ("--silence nan true", "--silence: nan is not a number of seconds from 1e-9 to 1e9"),
        ("--grace inf true", "--grace: inf is not a number of seconds from 1e-9 to 1e9"),
        ("--hosts a:0,b:1 true {hosts}{np}", "a:0,b:1 is not of the form HOST:N,HOST:N"),
        (
            "--hosts a:4,b:2,a:4 true {hosts}{np}",
            "a:4,b:2,a:4 names a twice; write a:8",
        ),
        (
            "--processes 2 --min-processes 4 true {np}",
            "--min-processes 4 is more than the 2 at the start; write 2 or less",
        ),
        (
            "--hosts a:1,b:1 --min-processes 3 true {hosts}{np}",
            "--min-processes 3 is more than the 2 at the start; write 2 or less",
        ),
    ],
)
def test_numbers_that_make_no_sense_are_refused(
    words: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = f"run_dir={tmp_path / 'run'}"
    assert sentence in usage_error(main, capsys, *words.split(), run)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("true", "has no run_dir"),
        ("--processes 2 true run_dir=run", "and the other way round"),
        ("true run_dir=run {np}", "and the other way round"),
        ("--min-processes 4 true run_dir=run", "--min-processes 4 needs {np} in the command"),
        ("--hosts a:8 true run_dir=run {np}", "{hosts} in the command needs --hosts"),
        ("--hosts a true run_dir=run {np}", "a is not of the form HOST:N,HOST:N; see --help"),
        ("no-such-program run_dir=run", "no-such-program cannot be started"),
        ("--processes 2 true run_dir=run{np}", "would change with the number of processes"),
        ("true run_dir=.", "holds files that are not of a run"),
    ],
)
def test_what_makes_no_sense_leaves_nothing(
    words: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "thesis.tex").touch()
    assert sentence in usage_error(main, capsys, *words.split())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


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
    assert "only submits a job" in usage_error(main, capsys, *command.split(), run)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command", ["launch/local.sh slurm.sh", "lsgd launch torchrun slurm", "srun sbatch"]
)
def test_what_runs_a_job_is_not(command: str) -> None:
    assert read([*command.split(), "run_dir=a"]).command
