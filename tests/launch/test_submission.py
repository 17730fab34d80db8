"""What sbatch answers is kept for the user, unless it refuses the script."""

import os
from pathlib import Path

import pytest

from lsgd.errors import UsageError
from lsgd.launch.submission import ARRAYS, is_active, new_answer_file, planned_job, sbatch


@pytest.mark.parametrize(
    ("says", "message", "is_kept"),
    [
        ("echo no account >&2; exit 1", "sbatch refuses .*: no account", False),
        ("echo later", r"named no job; .*a-1\.job has its answer", True),
        ('echo "Submitted batch job 7 after $1"', None, True),
    ],
)
def test_the_answer(
    says: str, message: str | None, is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sbatch").write_text(f"#!/bin/sh\n{says}\n")
    (tmp_path / "sbatch").chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    answer = new_answer_file(tmp_path / "jobs", "a")
    if message is None:
        assert sbatch("script", answer, after=["3", "4"]) == "7"
        assert "--dependency=afterany:3:4" in answer.read_text()
    else:
        with pytest.raises(UsageError, match=message):
            sbatch("script", answer)
    assert answer.exists() is is_kept


def test_a_job_on_another_cluster_is_asked_for_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is waited for; whatever the user's own settings for squeue leave out."""
    programs = {
        "sbatch": 'echo "$@" > asked; echo Submitted batch job 71 on cluster c2',
        # squeue names a cluster also with --noheader.
        "squeue": """
            [ "$SQUEUE_STATES$SLURM_CLUSTERS$SQUEUE_FEDERATION" = 1 ] || exit 0
            case "$*" in
                "--clusters c2 "*" 71") echo CLUSTER: c2; echo PENDING ;;
                "--clusters c2 "*) echo CLUSTER: c2 ;;
                *" 5") echo RUNNING ;;
                *) echo Invalid job id specified >&2; exit 1
            esac""",
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SQUEUE_STATES", "FAILED")
    monkeypatch.setenv("SLURM_CLUSTERS", "c3")
    monkeypatch.setenv("SQUEUE_FEDERATION", "1")
    monkeypatch.chdir(tmp_path)
    answer = new_answer_file(tmp_path / ARRAYS, "a")
    assert sbatch("script", answer, after=["70;c2", "69;c2"]) == "71;c2"
    assert (tmp_path / "asked").read_text().startswith("--dependency=afterany:70:69 --clusters c2 ")
    (tmp_path / "run.job").write_text(f"job 3 of {answer.name}\n")
    assert planned_job(tmp_path / "run") == "71_3;c2"
    assert [is_active(job) for job in ("71;c2", "70;c2", "71", "5")] == [True, False, False, True]
