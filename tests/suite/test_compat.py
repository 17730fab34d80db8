import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import compat
import pytest

from lsgd.errors import UsageError


def test_the_oldest_and_the_newest_are_the_ends_of_the_range_in_pyproject() -> None:
    project = tomllib.loads((compat.ROOT / "pyproject.toml").read_text())["project"]
    (torch,) = [each for each in project["dependencies"] if each.startswith("torch>")]
    oldest, newest = compat.ends(compat.admitted()[0])
    assert torch.startswith(oldest.replace("==", ">="))
    assert newest == torch


def test_torch_alone_is_not_what_constraints_have() -> None:
    """What depends on torch is what fits it, each name is there once, and what tests need too."""
    torch, *beside = compat.requirements("2.11.0+cpu")
    assert torch == "torch==2.11.0+cpu"
    pins = (compat.ROOT / "constraints.txt").read_text().splitlines()
    others = ["setuptools>=78.1.1", "torchvision>=0.26", compat.FROM_SOURCE]
    assert [each for each in beside if each not in pins] == others
    names = [each.partition("==")[0] for each in beside]
    assert len({*names}) == len(names)
    assert {"numpy", "hydra-core", "pytest", "pytest-xdist", "matplotlib", "optuna"} <= {*names}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes a file of tests; the environments of all torches are that of this Python."""
    monkeypatch.setattr(compat, "version", lambda asked: asked.partition("==")[2] or "newest")
    monkeypatch.setattr(compat, "ensure_environment", lambda *_, **__: Path(sys.executable))

    def make(text: str) -> Path:
        (file := tmp_path / "test_made.py").write_text(text)
        return file

    return make


def cells(table: str) -> list[list[str]]:
    """The rows below the head, without the versions and the seconds."""
    lines = [line for line in table.splitlines() if re.match(r"\| \d", line)]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return [[*row[2:5], row[6]] for row in rows]


@pytest.mark.slow
def test_what_failed_is_told_and_ends_with_1(
    made: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fixture that fails counts too."""
    monkeypatch.setattr(compat, "ends", lambda torch: [torch])
    file = made(
        "import pytest\n"
        "@pytest.fixture\ndef broken():\n    raise OSError\n"
        "def test_bad(broken):\n    pass\n"
        "def test_good():\n    pass\n"
        "@pytest.mark.skip\ndef test_skipped():\n    pass\n"
    )
    assert compat.main([str(file)]) == 1
    row = ["1", "1", "1", "failed: pytest ended with 1"]
    assert cells(capsys.readouterr().out) == [row]


@pytest.mark.slow
def test_one_torch_that_fails_is_enough(
    made: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also the first of them, and also where it cannot be had."""

    def version(asked: str) -> str:
        if "==" in asked:
            raise UsageError("pip finds none")
        return "newest"

    monkeypatch.setattr(compat, "version", version)
    assert compat.main([str(made("def test_good():\n    pass\n"))]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("pip finds none\n")
    assert "failed: not installed" in printed
    assert cells(printed) == [["1", "0", "0", "passed"]]
