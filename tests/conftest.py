"""Settings, hooks and fixtures of all tests; helpers.capabilities checks what the machine has."""

import gc
import os
import platform
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers import capabilities, composed
from helpers import reference_run as undisturbed_run
from helpers.budget import CpuTimeReport
from helpers.composed import compose_or_explain, compose_recipe
from helpers.launching import SERVERS
from helpers.soak import FaultSeries
from helpers.studies import StudyFolder, study_folder
from hypothesis import settings

from lsgd import config, paths
from lsgd.train import train

# On busy cores, threads that wait for each other are far slower than a single one. This holds in
# child processes too.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell's background processes ignore Ctrl-C, and their children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# No test fails by its duration; tests/helpers/budget.py has the limits on processor time.
# The same examples in each run: what a change breaks fails at once, and nothing fails by chance.
# --hypothesis-profile=random looks further.
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("random", deadline=None)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--budget", default="", help="the suite of tests/budgets.toml that this is")
    parser.addoption("--cpu-record", help="file that this run adds its processor seconds to")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(capabilities)
    config.pluginmanager.register(CpuTimeReport(config))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Exempt what was imported and collected from garbage collection, for which all is too much.

    Otherwise each full collection during a test would visit a million objects, in 0.1 s.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the long fault series unless the marker `soak` is requested, as by make soak.

    Cases marked soak(everywhere=True) stay.
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
    FaultSeries().note(
        f"\nseed {FaultSeries().seed}, {os.cpu_count()} cores, {versions}: tests {outcome}\n"
    )


@pytest.fixture(scope="session")
def soak() -> FaultSeries:
    """Return the seed and the record of the fault tests."""
    return FaultSeries()


@pytest.fixture(scope="session", autouse=True)
def servers() -> Iterator[None]:
    """Stop the servers of forked launches after the tests."""
    with SERVERS:
        yield


@pytest.fixture(scope="session", autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let a pytest that a test starts have its folders in this run's.

    Otherwise it would delete those of earlier runs in its end, which takes minutes on a slow disk.
    """
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session", autouse=True)
def shared_configurations(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> None:
    """Let the workers of pytest-xdist share what they compose, each recipe once in this run."""
    folder = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        folder = folder.parent
    (folder / "composed").mkdir(exist_ok=True)
    os.environ[composed.SHARED] = str(folder / "composed")


@pytest.fixture
def composed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands that run in a test compose recipes by helpers.composed, in a third of the time.

    What a command line composes is tested in tests/recipe, tests/basics and tests/commands.
    """
    monkeypatch.setattr(config, "load_recipe", compose_or_explain)


@pytest.fixture(scope="session")
def test_data() -> Path:
    """Return the folder with real datasets; tests that use it are marked `data`."""
    return capabilities.TEST_DATA


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run folder to which every disturbed run of the same overrides must be equal."""
    folder = tmp_path_factory.mktemp("undisturbed")
    train(compose_recipe(*undisturbed_run.WORDS, f"run_dir={folder}"))
    return folder


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of lsgd with small studies and a search, whose mpirun trains nothing.

    Its reports have empty figures: tests/report draws them, which takes longer than a small study.
    """
    folder = tmp_path_factory.mktemp("installation")
    for name in ("lsgd", "conf", "recipes", "data/digits"):
        shutil.copytree(capabilities.REPOSITORY / name, folder / name)
    with (folder / "lsgd/report/drawing.py").open("a") as file:
        file.write("\n\ndef draw_figure(name, title, alt, *_, **__):\n")
        file.write("    return Figure(name, title, alt, '<svg></svg>', b'')\n")
    for name, recipes, seeds in (
        ("small", ["digits", "digits_unscaled"], [0, 1]),
        ("single", ["digits"], [0]),
    ):
        entries = "".join(f"  - {{recipe: {each}, label: {each}}}\n" for each in recipes)
        (folder / f"recipes/study/{name}.yaml").write_text(
            f"# Hardware: any.\ntitle: {name}\nquestion: Does it work?\nsource: tests\n"
            f"baseline: digits\nseeds: {seeds}\nentries:\n{entries}"
        )
    (folder / "recipes/study/claimed.yaml").write_text(
        "# Hardware: any.\ntitle: claimed\nquestion: Is it decided?\nsource: tests\n"
        "baseline: digits\nseeds: [0, 1, 2]\nspread: 1.0\nentries:\n"
        "  - {recipe: digits, label: a}\n  - {recipe: digits_unscaled, label: b}\n"
        "  - {recipe: digits_no_warmup, label: c}\nclaims:\n"
        "  - {says: b is as good as c, recipe: digits_unscaled, relation: as_good_as,"
        " other: digits_no_warmup, within: 9}\n"
        "  - {says: a is worse than b, recipe: digits, relation: worse_than,"
        " other: digits_unscaled}\n"
    )
    (folder / "recipes/study/paired.yaml").write_text(
        "# Hardware: any.\ntitle: paired\nquestion: Is it decided?\nsource: tests\n"
        "baseline: digits\nseeds: [0, 1, 2]\nentries:\n"
        "  - {recipe: digits, label: a}\n  - {recipe: digits_unscaled, label: b}\nclaims:\n"
        "  - {says: b is worse than a, recipe: digits_unscaled, relation: worse_than,"
        " other: digits}\n"
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
def place(tmp_path: Path, installation: Path) -> Iterator[StudyFolder]:
    """Return a place for studies and searches of the copy, which leaves nothing running."""
    with study_folder(tmp_path, installation) as made:
        yield made


@pytest.fixture
def inside(tmp_path: Path, installation: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter an empty folder, in which this process has the copy's studies and searches."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(paths, "_PACKAGE", installation / "lsgd")
    return tmp_path


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a mounted disk of 4 MiB; mounting needs the rights of root."""
    folder = tmp_path / "small"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", "size=4m", "lsgd-test", str(folder)]
    if subprocess.run(["mount", *options], capture_output=True).returncode:
        capabilities.skip_or_fail("mount", "no right to mount a small disk", "tests as root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
