"""The batch script of Slurm."""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Printed = Callable[..., str]


def mounts(script: str) -> list[str]:
    """What the container of the script sees of the machine."""
    found = re.search(r"--container-mounts=(\S+)", script.replace("\\ ", "\0"))
    assert found
    pairs = found[1].replace("\0", " ").split("\\,")
    assert all(pair.partition(":")[0] == pair.partition(":")[2] for pair in pairs)
    return [pair.partition(":")[0] for pair in pairs]


def test_a_container_sees_all_that_the_run_reads_and_writes(
    printed: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    monkeypatch.setenv("LSGD_DATA", "/sets")
    words = [
        "data.root=/data/imagenet", "data.index=/index/a", "data.skip_list='/lists/my skips.txt'",
        "run_dir=../runs/a",
    ]  # fmt: skip
    script = printed("slurm", "bs8k", *words, "--container", "image")
    expected = [
        str(tmp_path), "/data/imagenet", "/index/a", "/lists/my skips.txt",
        str(tmp_path.parent / "runs/a"), "/sets",
    ]  # fmt: skip
    assert mounts(script) == expected
    # It is there before the container is started.
    assert script.index("mkdir -p") < script.index("srun --cpu-bind")
    inside = printed("slurm", "bs8k", f"run_dir={tmp_path}/runs/a", "--container", "image")
    assert mounts(inside) == [str(tmp_path), "/sets"]


def test_memory(printed: Printed) -> None:
    """All of a whole machine, what the queue gives of a shared one, or what is asked for."""
    assert "#SBATCH --mem=0\n" in printed("slurm", "bs8k")
    assert "--mem" not in printed("slurm", "digits", "--np", "2", "--cpus", "4")
    for more in ([], ["--cpus", "4"]):
        assert "#SBATCH --mem=64G\n" in printed(
            "slurm", "digits", "--np", "2", "--mem", "64G", *more
        )


@pytest.mark.parametrize(
    "word", ["run_dir='läuf 2/a'", "run_dir=läuf\\ 2/a"], ids=["quotes", "backslash"]
)
def test_a_folder_that_needs_quotes(word: str, printed: Printed, tmp_path: Path) -> None:
    """Its logs lie where the run is, whose word stays as it is."""
    script = printed("slurm", "digits", word, "--np", "1")
    assert '#SBATCH --output="läuf 2/a.log"\n' in script
    said = tmp_path / "srun"
    said.write_text("#!/bin/bash\nprintf '%s\\n' \"$@\"\n")
    said.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path, env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "1"},
        capture_output=True, text=True, timeout=20,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "läuf 2/a/logs").is_dir()
    lines = done.stdout.splitlines()
    assert "--output=läuf 2/a/logs/rank%t.log" in lines
    assert lines[-1] == word
