"""launch/*.sh: each starts lsgd.launch with its words, by the right Python."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lsgd.launch.options import LAUNCHERS

SCRIPTS = Path(__file__).parent.parent.parent / "launch"
SAYS = '#!/bin/sh\n[ "$1" = -c ] && exit ${FAILS:-0}\nprintf \'<%s>\' "$0" "$PYTHON" "$@"\n'


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The scripts of a checkout that has been set up, and a python3 beside it."""
    shutil.copytree(SCRIPTS, tmp_path / "checkout/launch")
    for python in (tmp_path / "checkout/.venv/bin/python", tmp_path / "bin/python3"):
        python.parent.mkdir(parents=True)
        python.write_text(SAYS)
        python.chmod(0o755)
    return tmp_path / "checkout"


def called(checkout: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHON"}
    path = f"{checkout.parent}/bin:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", f"checkout/launch/{words[0]}.sh", *words[1:]],
        cwd=checkout.parent, env=kept | {"PATH": path} | env, capture_output=True, text=True,
        timeout=900,
    )  # fmt: skip


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_launcher_has_its_script(launcher: str, checkout: Path) -> None:
    done = called(checkout, launcher, "a b", "--np", "$2")
    python = checkout / ".venv/bin/python"
    assert done.stdout == f"<{python}><{python}><-m><lsgd.launch><{launcher}><a b><--np><$2>"
    assert os.access(SCRIPTS / f"{launcher}.sh", os.X_OK)


def test_no_script_is_left_over() -> None:
    assert {path.stem for path in SCRIPTS.glob("*.sh")} == {*LAUNCHERS, "python"}


def test_which_python(checkout: Path) -> None:
    """That of PYTHON, else the checkout's, else python3."""
    other = checkout / "other"
    other.write_text(SAYS)
    other.chmod(0o755)
    assert called(checkout, "mpirun", PYTHON=str(other)).stdout.startswith(f"<{other}><{other}>")
    shutil.rmtree(checkout / ".venv")
    python3 = checkout.parent / "bin/python3"
    assert called(checkout, "mpirun").stdout.startswith(f"<{python3}><python3>")


def test_a_python_that_will_not_do(checkout: Path) -> None:
    done = called(checkout, "mpirun", PYTHON="/no/python")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "lsgd: there is no Python at /no/python; run 'make setup', or set PYTHON\n"
    )
    done = called(checkout, "mpirun", FAILS="1")
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot import lsgd; run 'make setup', or set PYTHON\n" in done.stderr
    done = called(checkout, "mpirun", FAILS="3")
    assert (done.returncode, done.stdout) == (1, "")
    assert "is older than Python 3.11; run 'make setup', or set PYTHON\n" in done.stderr


def test_a_link_to_a_script_is_that_script(checkout: Path) -> None:
    """By the checkout's Python; without the checkout nothing is started."""
    elsewhere = checkout.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mpirun.sh").symlink_to("../checkout/launch/mpirun.sh")
    command = ["bash", elsewhere / "mpirun.sh", "digits"]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHON"}
    done = subprocess.run(command, env=kept, capture_output=True, text=True, timeout=900)
    assert f"<{checkout}/.venv/bin/python><-m><lsgd.launch><mpirun><digits>" in done.stdout
    (checkout / "launch/python.sh").unlink()
    done = subprocess.run(command, env=kept, capture_output=True, text=True, timeout=900)
    assert (done.returncode, done.stdout) == (1, "")
