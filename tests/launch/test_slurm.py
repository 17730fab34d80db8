"""The batch script of Slurm."""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lsgd.launch.__main__ import main

Printed = Callable[..., str]


LOGS = 'for w; do [[ $w == --output=* ]] && w=${w#*=} && echo >> "${w/\\%t/0}"; done\n'
"""What an srun does that starts process 0, which writes into its log."""


def run(script: str, folder: Path, srun: str) -> "subprocess.CompletedProcess[str]":
    """Run the batch script in a folder, with these lines for srun."""
    (folder / "srun").write_text(f"#!/bin/bash\n{srun}\n")
    (folder / "srun").chmod(0o755)
    return subprocess.run(
        ["bash", "-c", script],
        cwd=folder, env={"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "1"},
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip


def test_a_job_that_completes_has_trained(printed: Printed, tmp_path: Path) -> None:
    """Else it says that nothing has, also where an earlier start has left a log."""
    script = printed("slurm", "digits", "--np", "1")
    for _ in range(2):
        silent = run(script, tmp_path, "exit 0")
        assert silent.returncode == 1
        assert "runs/digits/slurm-1/logs/rank0.log: nothing has trained" in silent.stdout
        assert run(script, tmp_path, LOGS + "exit 0").returncode == 0
        assert run(script, tmp_path, LOGS + "exit 3").returncode == 3


def test_a_folder_whose_name_is_no_mount_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a,b").mkdir()
    monkeypatch.chdir(tmp_path / "a,b")
    assert main(["slurm", "digits", "--np", "1", "--container", "i", "--print"]) == 2
    assert "a,b' has a comma or a colon" in capsys.readouterr().err


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
    done = run(script, tmp_path, LOGS + "printf '%s\\n' \"$@\"")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "läuf 2/a/logs").is_dir()
    lines = done.stdout.splitlines()
    assert "--output=läuf 2/a/logs/rank%t.log" in lines
    assert lines[-1] == word


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["run_dir=runs/%j"], "run_dir='runs/%j' has %"),
        (["run_dir='a\n#SBATCH --wrap=id'"], "run_dir='a\\n#SBATCH --wrap=id' has %, a backslash"),
        (["run_dir=runs/a\\\\b"], "run_dir='runs/a\\\\b' has %"),
        (["--time", "1:00 --wrap=id"], "--time is 1:00 --wrap=id, but must be"),
        (["--time", "1:00\n#SBATCH --wrap=id"], "--time is '1:00\\n#SBATCH"),
        (["--container", "i", "data.root=/a,/etc"], "data.root='/a,/etc' has a comma or a colon"),
    ],
)
def test_no_value_is_more_than_one_option(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor a pattern of Slurm's, as a run folder would be whose log cannot be opened then."""
    assert main(["slurm", "digits", "--np", "1", *words, "--print"]) == 2
    assert capsys.readouterr().err.startswith(f"lsgd: {named}")


def test_a_recipe_of_an_image_is_one_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slurm", "a\n#SBATCH -D /", "--container", "i", "--print"]) == 2
    assert capsys.readouterr().err.startswith("lsgd: recipe='a\\n#SBATCH -D /' has %")
