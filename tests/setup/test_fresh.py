"""How tests/fresh judges commands, and what its cases see; the cases themselves take hours."""

import os
import re
import select
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

from fresh.cases import CASES, Case
from fresh.judge import run_on_terminal
from fresh.root import passed_environment

ROOT = Path(__file__).parents[2]
WITHOUT_A_CASE = {"dev", "docs", "horovod", "imagenet"}


def test_a_command_dies_with_the_program_that_watches_it(tmp_path: Path) -> None:
    """Or a case of hours would go on, on a machine that somebody else uses by now."""
    os.mkfifo(fifo := tmp_path / "fifo")
    script = f"exec 3>{fifo}; echo begins >&3; sleep 600; echo outlives >&3"
    program = (
        "from pathlib import Path; from fresh.judge import run_on_terminal;"
        f"run_on_terminal(['sh', '-c', {script!r}], Path({str(tmp_path / 'log')!r}), 6000)"
    )
    # Opened at once, without waiting for a writer that a failed program would never be.
    said = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT / "tests") as process:
        try:
            # Until the fifo has a first writer it is not readable.
            assert select.select([said], [], [], 900)[0]
            assert os.read(said, 100) == b"begins\n"
        finally:
            process.kill()
    os.set_blocking(said, True)
    assert os.read(said, 100) == b""
    os.close(said)


def test_a_command_is_ended_at_its_limit(tmp_path: Path) -> None:
    outcome = run_on_terminal(["sleep", "600"], tmp_path / "log", limit=0.5)
    assert outcome.code is None


def test_nothing_of_pips_configuration_reaches_a_case() -> None:
    """With it the case would install from where no stranger does."""
    outside = {"PIP_FIND_LINKS": "/wheels", "PIP_CERT": "/ca", "PYTHONPATH": "/here", "HOME": "/me"}
    outside |= {"SSL_CERT_FILE": "/ca", "https_proxy": "http://proxy:1", "LANG": "de_DE.UTF-8"}
    seen = passed_environment(outside, Case("bare", (), (), environment={"LANG": "C"}))
    assert seen.items() >= {"SSL_CERT_FILE": "/ca", "https_proxy": "http://proxy:1"}.items()
    assert seen.items() >= {"HOME": "/home/stranger", "LANG": "C"}.items()
    assert not [name for name in seen if name.startswith(("PIP", "PYTHON"))]


def test_each_extra_is_tried_alone() -> None:
    project: Mapping = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = "\n".join(command.line for case in CASES for command in case.commands)
    tried = set(re.findall(r"\[([a-z]+)\]", lines))
    assert tried | WITHOUT_A_CASE == set(project["optional-dependencies"])


def test_cases_are_listed_by_a_python_without_any_package() -> None:
    """As that of a machine which has Debian's base alone, with which make fresh runs it."""
    command = [sys.executable, "-S", "tests/fresh", "--list", "-k", "pip"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "    . .venv/bin/activate && lsgd demo\n" in listed.stdout
