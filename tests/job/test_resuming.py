"""What a person is told to type."""

import shlex
import sys
from pathlib import Path

import pytest

from lsgd.config import load_recipe
from lsgd.job import resuming
from lsgd.job.launcher import Launch

PYTHON = "/venv/bin/python"


@pytest.mark.parametrize(
    ("typed", "command", "resume"),
    [
        (
            [PYTHON, "-m", "lsgd.train", "+recipe=digits", "seed=1"],
            "train",
            f"resume with: {PYTHON} -m lsgd.train +recipe=digits seed=1 run_dir=runs/a",
        ),
        (
            [PYTHON, "-u", "-m", "lsgd", "train", "+recipe=digits", "run_dir=runs/a"],
            "train",
            f"resume with: {PYTHON} -m lsgd train +recipe=digits run_dir=runs/a",
        ),
        (
            [PYTHON, "/venv/bin/lsgd", "train", "+recipe=digits", "data.root=/my data"],
            "train",
            "resume with: /venv/bin/lsgd train +recipe=digits 'data.root=/my data' run_dir=runs/a",
        ),
        ([PYTHON, "-m", "lsgd.demo"], "demo", "rerun the same command to resume"),
        ([PYTHON, "-m", "pytest", "lsgd.train"], None, "rerun it with run_dir=runs/a to resume"),
        ([PYTHON, "mine.py", "-m", "lsgd.train"], None, "rerun it with run_dir=runs/a to resume"),
        ([PYTHON], None, "rerun it with run_dir=runs/a to resume"),
    ],
)
def test_the_command_as_it_was_typed(
    typed: list[str], command: str | None, resume: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "orig_argv", typed)
    assert resuming.own_command() == command
    assert resuming.resume_command(Path("runs/a")) == resume


def test_a_script_in_path_is_named_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """README's command for pip names it by its path, without which no shell finds it."""
    (tmp_path / "lsgd").touch(0o755)
    monkeypatch.setattr(
        sys, "orig_argv", [PYTHON, str(tmp_path / "lsgd"), "train", "recipe=digits"]
    )
    for path, named in ((str(tmp_path), "lsgd"), ("", str(tmp_path / "lsgd"))):
        monkeypatch.setenv("PATH", path)
        resume = f"resume with: {named} train recipe=digits run_dir=runs/a"
        assert resuming.resume_command(Path("runs/a")) == resume


def test_a_folder_that_hydra_and_the_shell_would_read_more_into(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "orig_argv", [PYTHON, "-m", "lsgd.train", "+recipe=digits"])
    said = resuming.resume_command(Path("my runs/a,b"))
    words = shlex.split(said.partition("resume with: ")[2])[3:]
    assert load_recipe(words).run_dir == "my runs/a,b"


def test_under_a_launcher_its_own_command_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", [PYTHON, "-m", "lsgd.train", "+recipe=digits"])
    monkeypatch.setattr(resuming, "detect_launch", lambda: Launch("torchrun", 0, 2))
    assert resuming.resume_command(Path("a")) == "rerun it with run_dir=a to resume"
