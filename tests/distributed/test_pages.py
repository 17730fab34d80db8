"""Every line of shell and program of Python in the README and docs runs as it stands there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.pages import PAGES, REPOSITORY, Line, lines, missing

pytestmark = [pytest.mark.distributed, pytest.mark.side_by_side, pytest.mark.slow]
PATIENCE = 600
"""Seconds that a page may take."""
MARK = "\x01"
"""Begins what a line has printed; the number of the line follows, and later its exit code."""


def run(page: list[Line], folder: Path) -> dict[int, tuple[int, str]]:
    """The exit code and output of each line, one after the other in one shell, up to a failure."""
    script = ["exec 2>&1"]
    for index, line in enumerate(page):
        command = f"python - <<'END OF PROGRAM'\n{line.text}\nEND OF PROGRAM"
        script.append(f"printf '{MARK}{index}\\n'")
        script.append(command if line.language == "python" else line.command)
        script.append(f"code=$?; printf '{MARK}code {index} %s\\n' $code")
        if line.language != "console":
            script.append("[ $code = 0 ] || exit")
    # What the tests are told is none of a reader's, and mpirun would carry it to other machines.
    own = {name: text for name, text in os.environ.items() if not name.startswith("LSGD_")}
    environment = own | {"OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=folder, env=environment, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, timeout=PATIENCE,
    )  # fmt: skip
    outcome = {}
    for part in done.stdout.split(MARK)[1:]:
        head, _, text = part.partition("\n")
        if head.startswith("code "):
            _, index, code = head.split()
            outcome[int(index)] = (int(code), outcome[int(index)][1])
        else:
            outcome[int(head)] = (-1, text)
    return outcome


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the repository as it is, with the environment of this one."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=REPOSITORY, check=True, stdout=subprocess.PIPE, text=True)
    folder = tmp_path / "lsgd"
    for name in filter(None, names.stdout.split("\0")):
        if (REPOSITORY / name).exists() and not name.startswith(("tests/fixtures", "tests/faults")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, folder / name)
            # Older than the environment, into which make would install the copy otherwise.
            os.utime(folder / name, (0, 0))
    (folder / ".venv").symlink_to(Path(sys.executable).parents[1])
    return folder


@pytest.mark.clone
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_line_runs(page: Path, checkout: Path) -> None:
    there = [line for line in lines(page) if not line.needs]
    if not there:
        return
    outcome = run(there, checkout)
    for index, line in enumerate(there):
        where = f"{page.name}:{line.number}: {line.text.strip()}"
        assert index in outcome, f"{where}\nwas not come to"
        code, text = outcome[index]
        if line.language == "console":
            assert (lost := missing(line.shown, text)) is None, f"{where}\n{text}\nlacks {lost!r}"
        else:
            assert code == 0, f"{where}\n{text}"
