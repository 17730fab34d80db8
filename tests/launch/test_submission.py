"""What sbatch answers is kept for the user, unless it refuses the script."""

import os
from pathlib import Path

import pytest

from lsgd.errors import UsageError
from lsgd.launch.submission import new_answer_file, sbatch


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
