"""The help of every command, and what a shell completes of it."""

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from lsgd.__main__ import command_names, format_overview
from lsgd.completion import OPTIONS, SHELLS, script
from lsgd.errors import UsageError

PARTS = [
    *(["plan", part] for part in ("memory", "bound", "strategy")),
    *(["bench", part] for part in ("inputs", "scaling")),
    *(["prepare", part] for part in ("folder", "imagenet", "tiny-imagenet", "cifar10", "ptb")),
    ["launch", "slurm"],
]


def help_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, *part: str
) -> str:
    """Return the help of a command, or of a part of it, in a terminal of 100 columns."""
    monkeypatch.setenv("COLUMNS", "100")
    found = find_spec(f"lsgd.{name}")
    is_package = found is not None and found.submodule_search_locations
    module = importlib.import_module(f"lsgd.{name}.__main__" if is_package else f"lsgd.{name}")
    try:
        code = module.main([*part, "--help"])
    except SystemExit as end:
        code = end.code
    assert not code
    return capsys.readouterr().out


@pytest.mark.parametrize("words", [*([name] for name in command_names()), *PARTS], ids=" ".join)
def test_it_fits_a_screen(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = help_of(capsys, monkeypatch, *words).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100


def test_the_overview_fits_a_screen() -> None:
    lines = format_overview().splitlines()
    assert (len(lines) <= 24, max(map(len, lines)) <= 100) == (True, True)


@pytest.mark.parametrize("name", command_names())
def test_all_its_options_are_completed(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = re.findall(r"^  (-.*)$", help_of(capsys, monkeypatch, name), re.M)
    options = {each for line in listed for each in re.findall(r"(?:^|, )(--[a-z-]+)", line)}
    assert {*OPTIONS.get(name, ())} == options - {"--help"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("lsgd tra", "train track"),
        ("lsgd train --recipes", "--recipes "),
        ("lsgd train recipe=bs8k_s", "bs8k_sqrt_lr "),
        ("lsgd train optim=adam", "adam adamw"),
        ("lsgd train averaging.half", "averaging.half_life="),
        ("lsgd study study=fashion_table2_g", "fashion_table2_gamma "),
        ("lsgd plan --net", "--network-gbits "),
    ],
)
def test_bash_completes(line: str, completed: str, tmp_path: Path) -> None:
    (tmp_path / "lsgd").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m lsgd "$@"\n')
    (tmp_path / "lsgd").chmod(0o755)
    program = (
        'eval "$CODE"; COMP_WORDS=($COMP_LINE); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); '
        'COMP_POINT=${#COMP_LINE}; _python_argcomplete lsgd "${COMP_WORDS[COMP_CWORD]}"; '
        'printf %s "${COMPREPLY[*]}"'
    )
    variables = {"CODE": script("bash"), "COMP_LINE": line, "COMP_TYPE": "9"}
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [shutil.which("bash") or "bash", "-c", program],
        env=os.environ | variables | {"PATH": path}, capture_output=True, text=True, check=True,
        timeout=900,
    )  # fmt: skip
    assert done.stdout == completed


def test_other_shells() -> None:
    assert all("lsgd" in script(shell) for shell in SHELLS)
    with pytest.raises(UsageError, match="write one of bash, zsh, fish"):
        script("tcsh")
