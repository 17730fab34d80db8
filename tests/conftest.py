"""Settings, hooks and fixtures of all tests; what they need of a machine: helpers.capabilities."""

import os
import platform
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers import capabilities
from helpers import undisturbed as undisturbed_run
from helpers.budget import pytest_runtest_makereport, pytest_runtest_protocol  # noqa: F401
from helpers.soak import Soak
from hypothesis import settings

from lsgd import config
from lsgd.train import train

# Threads that wait for each other on busy cores are slower than one, by far; so in child processes.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What a shell starts in the background ignores Ctrl-C, and hands that on to children.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Nothing fails by how long it takes; tests/helpers/budget.py says what is too much.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(capabilities)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The long fault series run only where the marker is asked for: make soak.

    But for those of their cases that are marked soak(everywhere=True).
    """
    if "soak" not in (config.option.markexpr or ""):
        marks = {item: item.get_closest_marker("soak") for item in items}
        long = {item for item, mark in marks.items() if mark and not mark.kwargs.get("everywhere")}
        config.hook.pytest_deselected(items=list(long))
        items[:] = [item for item in items if item not in long]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts = {key: len(terminalreporter.getreports(key)) for key in ("passed", "failed", "skipped")}
    outcome = ", ".join(f"{count} {key}" for key, count in counts.items())
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    Soak().note(f"\nseed {Soak().seed}, {os.cpu_count()} cores, {versions}: tests {outcome}\n")


@pytest.fixture(scope="session")
def soak() -> Soak:
    """The seed and the record of the fault tests."""
    return Soak()


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder with real datasets; tests that use it are marked `data`."""
    return capabilities.TEST_DATA


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder that every disturbed run of its words has to be equal to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    train(config.load_recipe([*undisturbed_run.WORDS, f"run_dir={folder}"]))
    return folder


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of lsgd with small studies and a search; the trials of its mpirun train nothing."""
    folder = tmp_path_factory.mktemp("installation")
    for name in ("lsgd", "conf", "recipes", "data/digits"):
        shutil.copytree(capabilities.REPOSITORY / name, folder / name)
    for name, recipes, seeds in (
        ("small", ["digits", "digits_unscaled"], [0, 1]),
        ("single", ["digits"], [0]),
    ):
        entries = "".join(f"  - {{recipe: {each}, label: {each}}}\n" for each in recipes)
        (folder / f"recipes/study/{name}.yaml").write_text(
            f"# Hardware: any.\ntitle: {name}\nquestion: Does it work?\nsource: tests\n"
            f"baseline: digits\nseeds: {seeds}\nentries:\n{entries}"
        )
    (folder / "recipes/search/small.yaml").write_text(
        "# Hardware: any.\ntitle: small\nrecipe: digits\n"
        "words: [epochs=4, schedule.warmup_epochs=1, 'schedule.milestones=[3]']\n"
        "space:\n  schedule.reference_lr: {from: 1e-4, to: 1, scale: log, steps: 3}\n"
        "  optim.momentum: {choices: [0.5, 0.9]}\ntrials: 6\nsampler: random\n"
    )
    trial = Path(__file__).parent / "helpers/small_trial.py"
    mpirun = folder / "bin/mpirun"
    mpirun.parent.mkdir()
    mpirun.write_text(f'#!/bin/sh\nexec "$PYTHON" "{trial}" "$@"\n')
    mpirun.chmod(0o755)
    return folder


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MiB; mounting needs the rights of root."""
    folder = tmp_path / "small"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", "size=4m", "lsgd-test", str(folder)]
    if subprocess.run(["mount", *options], capture_output=True).returncode:
        capabilities.missing("mount", "no right to mount a small disk", "tests as root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
