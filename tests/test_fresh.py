"""How tests/fresh judges commands, and what its cases see; the cases themselves take hours."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from fresh.cases import CASES, Case
from fresh.judge import AS_EXPECTED, Outcome, watch
from fresh.root import passed_environment

ROOT = Path(__file__).parent.parent
WITHOUT_A_CASE = {"dev", "docs", "horovod", "imagenet"}


@pytest.mark.parametrize(
    ("code", "text", "verdict"),
    [
        (0, "epoch 1\r\n\x1b[32mtop-1 error\x1b[0m 3.38 %\r\n", AS_EXPECTED),
        (0, "epoch 1\n", "no 'top-1 error 3.38 %' in its output: epoch 1"),
        (2, "no room\r\nmake: *** [x] Error 1\r\n\n", "exit code 2, not 0: no room"),
        (None, "10 %\r20 %", "not finished after 60 s: 20 %"),
        (1, " \n", "exit code 1, not 0, and nothing printed"),
        (
            0,
            "Traceback (most recent call last):\nKeyError\ntop-1 error 3.38 %",
            "a traceback in its output: top-1 error 3.38 %",
        ),
    ],
)
def test_verdict_says_what_differs_and_the_last_line(
    code: int | None, text: str, verdict: str
) -> None:
    assert Outcome(code, text, 60).verdict("top-1 error 3.38 %") == verdict


def test_a_refusal_can_be_what_is_expected() -> None:
    assert Outcome(2, "pip install optuna", 1).verdict("pip install", 2) == AS_EXPECTED


def test_downloads_are_counted_and_files_that_pip_has_kept_are_not() -> None:
    text = (
        "Collecting torch==2.13.0\r\n  Downloading torch-2.13.0-cp313.whl (846.5 MB)\r\n"
        "\x1b[2K   ━━━━ 846.5/846.5 MB 80.1 MB/s eta 0:00:00\r\n"
        "  Using cached numpy-2.4.6-cp313.whl (16.6 MB)\n  Downloading six-1.17.0.whl (11 kB)\n"
    )
    assert Outcome(0, text, 1).downloaded == pytest.approx(846.511e6)


@pytest.mark.parametrize(
    ("moments", "first", "silence"),
    [((), 9, 9), ((4, 5), 4, 4), ((1, 2, 8), 1, 6), ((1, 2, 3), 1, 6)],
)
def test_silence_is_the_longest_of_the_start_the_middle_and_the_end(
    moments: tuple[float, ...], first: float, silence: float
) -> None:
    outcome = Outcome(0, "", 9, moments)
    assert (outcome.first, outcome.silence) == (first, silence)


def test_a_command_is_watched_on_a_terminal(tmp_path: Path) -> None:
    """Programs print otherwise into a pipe: pip no progress, Python nothing for a long time."""
    script = "test -t 0 && test -t 1 && echo begins; echo ends >&2; exit 3"
    outcome = watch(["bash", "-c", script], log := tmp_path / "log", limit=60)
    assert (outcome.code, outcome.text) == (3, "begins\r\nends\r\n")
    assert outcome.text == log.read_bytes().decode()
    assert 0 < outcome.first <= outcome.seconds


def test_a_command_dies_with_the_program_that_watches_it(tmp_path: Path) -> None:
    """Or a case of hours would go on, on a machine that somebody else uses by now."""
    os.mkfifo(fifo := tmp_path / "fifo")
    script = f"exec 3>{fifo}; echo begins >&3; sleep 20; echo outlives >&3"
    program = (
        "from pathlib import Path; from fresh.judge import watch;"
        f"watch(['sh', '-c', {script!r}], Path({str(tmp_path / 'log')!r}), 60)"
    )
    with (
        subprocess.Popen([sys.executable, "-c", program], cwd=ROOT / "tests") as process,
        fifo.open() as said,
    ):
        assert said.readline() == "begins\n"
        process.kill()
        assert said.read() == ""


def test_a_command_is_ended_at_its_limit(tmp_path: Path) -> None:
    outcome = watch(["bash", "-c", "echo begins; exec sleep 600"], tmp_path / "log", limit=0.5)
    assert (outcome.code, outcome.text.strip()) == (None, "begins")


def test_nothing_of_pips_configuration_reaches_a_case() -> None:
    """With it the case would install from where no stranger does."""
    outside = {"PIP_FIND_LINKS": "/wheels", "PIP_CERT": "/ca", "PYTHONPATH": "/here", "HOME": "/me"}
    outside |= {"SSL_CERT_FILE": "/ca", "https_proxy": "http://proxy:1", "LANG": "de_DE.UTF-8"}
    seen = passed_environment(outside, Case("bare", (), (), environment={"LANG": "C"}))
    assert seen.items() >= {"SSL_CERT_FILE": "/ca", "https_proxy": "http://proxy:1"}.items()
    assert seen.items() >= {"HOME": "/home/stranger", "LANG": "C"}.items()
    assert not [name for name in seen if name.startswith(("PIP", "PYTHON"))]


def test_cases_have_a_name_each_and_targets_that_make_knows() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    lines = [command.line for case in CASES for command in case.commands]
    targets = {line.split()[1] for line in lines if line.startswith("make ")}
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert targets <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


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
