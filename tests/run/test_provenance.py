import subprocess
from pathlib import Path

import pytest

from lsgd.run import provenance


def git(folder: Path, *words: str) -> str:
    named = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(["git", *named, *words], cwd=folder, capture_output=True, check=True)
    return done.stdout.decode().strip()


@pytest.mark.git
def test_the_commit_is_that_of_the_checkout_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "lsgd"
    package.mkdir()
    (package / "a.py").write_text("a = 1\n")
    monkeypatch.setattr(provenance, "_PACKAGE", package)
    assert provenance.commit() is None  # in no checkout
    git(tmp_path, "init")
    assert provenance.commit() is None  # git refuses, as there is no commit
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "a")
    assert provenance.commit() == git(tmp_path, "rev-parse", "--short", "HEAD")
    (package / "a.py").write_text("a = 2\n")
    assert provenance.commit() == git(tmp_path, "rev-parse", "--short", "HEAD") + "-dirty"
    installed = tmp_path / "venv" / "lsgd"
    installed.mkdir(parents=True)
    monkeypatch.setattr(provenance, "_PACKAGE", installed)
    assert provenance.commit() is None  # in somebody else's checkout
    monkeypatch.setattr(provenance, "_PACKAGE", package)
    monkeypatch.setenv("PATH", "")
    assert provenance.commit() is None  # no git


def test_a_package_says_which_commit_it_is_built_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "_PACKAGE", tmp_path)
    assert provenance.version().endswith(", commit unknown")
    (tmp_path / "commit.txt").write_text("1a2b3c4-dirty\n")
    assert provenance.commit() == "1a2b3c4-dirty"
