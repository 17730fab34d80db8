"""Every line of shell and program of Python in the README and docs runs as it stands there."""

import compileall
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from helpers.launching import TRAINING, WITHOUT_COMPILER, fork_server, write_program
from helpers.pages import PAGES, REPOSITORY, PageCommand, first_missing_line, lines

pytestmark = [pytest.mark.distributed, pytest.mark.side_by_side, pytest.mark.slow]
PATIENCE = 3600
"""Seconds after which a page hangs; it takes a minute or two where nothing else runs."""
RUN = {
    page: there
    for page in PAGES
    if (
        there := [
            each
            for each in lines(page)
            if not (each.needs or each.tested_elsewhere or each.is_shown_elsewhere)
        ]
    )
}
"""The lines that are run, by their pages."""
MARK = "\x01"
"""Begins what a line has printed; the number of the line follows, and later its exit code."""
# What the tests are told is none of a reader's, and mpirun would carry it to other machines.
ENVIRONMENT = {name: text for name, text in os.environ.items() if not name.startswith("LSGD_")}
ENVIRONMENT |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
ENVIRONMENT["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


LIBRARIES = ("matplotlib.pyplot", "scipy.stats")
"""What several pages import beside torch, each in half a CPU second."""
DIGITS = 660
"""How many of the 1,797 digits a page has: 256 images a step then make 2 steps an epoch, not 5.

More than 512 of them are for training, to which a page lets its minibatch grow.
"""


@pytest.fixture(scope="module")
def torch_server() -> Iterator[list[str]]:
    """The prefix of command lines in forks of a process with libraries imported, but no lsgd."""
    with fork_server(*LIBRARIES, environment=ENVIRONMENT) as words:
        yield words


@contextmanager
def programs(server: list[str], checkout: Path, *modules: str) -> Iterator[Path]:
    """What is `python` to a page, and $PYTHON to its launchers: half of what most lines take is to
    import torch and lsgd.

    Beside it is the horovodrun that local.sh takes, which imports torch too.
    """
    folder = checkout.parent / ("bin" if modules else "bin-without-lsgd")
    folder.mkdir()
    with fork_server(*modules, environment=ENVIRONMENT, python=server, folder=checkout) as words:
        write_program(folder / "python", *words)
        if real := shutil.which("horovodrun", path=ENVIRONMENT["PATH"]):
            write_program(folder / "horovodrun", *words, real)
        yield folder / "python"


def run(page: list[PageCommand], folder: Path, python: Path) -> dict[int, tuple[int, str]]:
    """The exit code and output of each line, one after the other in one shell, up to a failure."""
    torchrun = f"PYTHON_EXEC={python} {python} -m torch.distributed.run"
    script = ["exec 2>&1", f'python() {{ {python} "$@"; }}', f'torchrun() {{ {torchrun} "$@"; }}']
    for index, line in enumerate(page):
        command = line.command
        if line.language == "python":
            command = f"python - <<'END OF PROGRAM'\n{line.text}\nEND OF PROGRAM"
        elif line.text.endswith("&") or "ulimit" in line.text:
            # Signals and limits are for the process itself, and a client would keep them.
            real = f"PYTHONPATH={WITHOUT_COMPILER} {sys.executable} "
            command = command.replace("python ", real, 1)
        # The server has imported plugins of pytest already, which pytest then cannot rewrite.
        quiet = "-W ignore::pytest.PytestAssertRewriteWarning"
        command = command.replace("-m pytest", f"-m pytest {quiet}")
        # What stands on a page is also printed there, and jobs that are killed are real ones.
        shown = line.language == "console" and "--print" in line.text
        served = line.language != "python" and not shown and not line.text.endswith("&")
        script.append(f"export PYTHON={python}" if served else "unset PYTHON")
        script.append(f"printf '{MARK}{index}\\n'")
        # In fewer micro-batches: a dry run of 256 workers has one for each worker otherwise.
        script.append(command.replace("dry_run=true", "dry_run=true workers_per_pass=32"))
        script.append(f"code=$?; printf '{MARK}code {index} %s\\n' $code")
        if line.language != "console":
            script.append("[ $code = 0 ] || exit")
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=folder, env=ENVIRONMENT, text=True, stdin=subprocess.DEVNULL,
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


def keep_few_digits(folder: Path) -> None:
    """Remove most digits from a copy of the repository, and put their counts into its recipes."""
    path, recipe = folder / "data/digits/digits.npz", folder / "conf/data/digits.yaml"
    with np.load(path) as shipped:
        kept = {name: array[:DIGITS] for name, array in shipped.items()}
    np.savez_compressed(path, **kept)
    held_out = sum(count // 5 for count in np.bincount(kept["labels"]).tolist())
    text = recipe.read_text()
    for name, number in (("train", DIGITS - held_out), ("val", held_out)):
        text = re.sub(rf"(?<={name}_examples: )\d+", str(number), text)
    recipe.write_text(text)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository as it is, compiled, with the environment of this one."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=REPOSITORY, check=True, stdout=subprocess.PIPE, text=True)
    folder = tmp_path_factory.mktemp("repository") / "lsgd"
    for name in filter(None, names.stdout.split("\0")):
        if (REPOSITORY / name).exists() and not name.startswith(("tests/fixtures", "tests/faults")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, folder / name)
    with (folder / "lsgd/cost.py").open("a") as file:
        # Else each printed plan times a step in new processes, as it does in tests/study.
        file.write("\n\ndef _timed(*_):\n    return 100.0\n")
    with (folder / "lsgd/plan/memory.py").open("a") as file:
        # No page shows this line, whose two seconds are spent in tests/plan/test_plan.py too.
        file.write('\n\ndef memory_line(*_):\n    return ""\n')
    keep_few_digits(folder)
    for path in filter(Path.is_file, folder.rglob("*")):
        # Older than the environment, into which make would install the copy otherwise.
        os.utime(path, (0, 0))
    compileall.compile_dir(folder / "lsgd", quiet=1)
    (folder / ".venv").symlink_to(Path(sys.executable).parents[1])
    return folder


@pytest.fixture(scope="module")
def checkout(repository: Path) -> Path:
    """Where every page runs: always the same folder, of which a server has imported lsgd."""
    folder = repository.parent / "checkout/lsgd"
    folder.parent.mkdir()
    return folder


def copy_anew(repository: Path, checkout: Path) -> None:
    """Let the checkout be the repository, without what an earlier page has left there."""
    shutil.rmtree(checkout, ignore_errors=True)
    subprocess.run(["cp", "-a", repository, checkout], check=True)


@pytest.fixture(scope="module")
def lsgd_python(repository: Path, checkout: Path, torch_server: list[str]) -> Iterator[Path]:
    """The `python` of the pages that do not change lsgd, which it has imported."""
    copy_anew(repository, checkout)
    with programs(torch_server, checkout, *TRAINING) as python:
        yield python


@pytest.mark.clone
@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_line_runs(
    page: Path, repository: Path, checkout: Path, torch_server: list[str], lsgd_python: Path
) -> None:
    there = RUN[page]
    copy_anew(repository, checkout)
    if any("git apply" in line.text for line in there):
        with programs(torch_server, checkout) as python:
            outcome = run(there, checkout, python)
    else:
        outcome = run(there, checkout, lsgd_python)
    for index, line in enumerate(there):
        where = f"{page.name}:{line.number}: {line.text.strip()}"
        assert index in outcome, f"{where}\nwas not come to"
        code, text = outcome[index]
        if line.language == "console":
            assert (lost := first_missing_line(line.shown, text)) is None, (
                f"{where}\n{text}\nlacks {lost!r}"
            )
        else:
            assert code == 0, f"{where}\n{text}"
