"""Capabilities that tests ask for by marker, and the real data they read.

A test marked `dali`, `horovod`, `mpi`, `slurm`, `netns`, `kubeflow`, `onnx`, `ray`, `spark`,
`java`, `mlflow`, `wandb`, `tensorflow`, `torchfold`, `apex`, `gpu` or `data` is skipped where that
is missing, unless the environment variable LSGD_REQUIRE names it: then it fails, so that nothing
passes by skipping, and what can be fetched is: TensorFlow and TorchFold. It may also name `mount`,
the right to mount a small disk, and `calls`, the versions for which the calls of a step are known.
"""

import os
import platform
import shutil
import signal
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from helpers import undisturbed as undisturbed_run
from helpers.budget import pytest_runtest_makereport, pytest_runtest_protocol  # noqa: F401
from helpers.soak import Soak
from hypothesis import settings

from lsgd import config
from lsgd.bench import torchfold
from lsgd.bench.environment import place
from lsgd.bench.tensorflow_job import NAME, REQUIREMENTS
from lsgd.train import train

# Threads that wait for each other on busy cores are slower than one, by far; so in child processes.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What a shell starts in the background ignores Ctrl-C, and hands that on to children.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Nothing fails by how long it takes; tests/helpers/budget.py says what is too much.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

REPOSITORY = Path(__file__).resolve().parent.parent
TEST_DATA = Path(os.environ.get("LSGD_TEST_DATA", REPOSITORY.parent / "shared" / "data"))

REQUIRED = os.environ.get("LSGD_REQUIRE", "").split(",")
MISSING = {
    "gpu": (not torch.cuda.is_available(), "torch finds no GPU"),
    "dali": (
        not (find_spec("nvidia") and find_spec("nvidia.dali")),
        "DALI is not installed: pip install 'lsgd[dali]'",
    ),
    "horovod": (find_spec("horovod") is None, "Horovod is not installed: setup/horovod.sh"),
    "mpi": (shutil.which("mpirun") is None, "mpirun is not installed: apt install openmpi-bin"),
    "slurm": (
        not all(map(shutil.which, ("munged", "slurmctld", "slurmd", "sbatch"))) or os.getuid() != 0,
        "Slurm is not installed, or you are not root: apt install slurm-wlm munge",
    ),
    "netns": (
        shutil.which("ip") is None or os.getuid() != 0,
        "ip is not installed, or you are not root: apt install iproute2",
    ),
    "kubeflow": (
        find_spec("kubeflow") is None,
        "the models of Kubeflow's jobs are not installed: pip install kubeflow-training",
    ),
    "onnx": (
        not all(map(find_spec, ("onnx", "onnxscript", "onnxruntime"))),
        "ONNX is not installed: pip install 'lsgd[export]' onnxruntime",
    ),
    "ray": (find_spec("ray") is None, "Ray is not installed: pip install 'lsgd[ray]'"),
    "spark": (find_spec("pyspark") is None, "Spark is not installed: pip install 'lsgd[spark]'"),
    "java": (
        shutil.which("java") is None,
        "Java is not installed: apt install openjdk-17-jre-headless",
    ),
    "mlflow": (
        find_spec("mlflow") is None,
        "MLflow is not installed: pip install 'lsgd[mlflow]'",
    ),
    "wandb": (
        find_spec("wandb") is None,
        "Weights & Biases is not installed: pip install 'lsgd[wandb]'",
    ),
    # Of 1.6 GB: where it is required a test makes it, and fails if it cannot.
    "tensorflow": (
        not place(NAME, REQUIREMENTS).is_dir() and "tensorflow" not in REQUIRED,
        "TensorFlow's environment is not made: LSGD_REQUIRE=tensorflow makes it",
    ),
    "torchfold": (
        not torchfold.place().is_file() and "torchfold" not in REQUIRED,
        "TorchFold is not in the user's cache: LSGD_REQUIRE=torchfold fetches it",
    ),
    # PyPI's apex, another package, has no amp_C.
    "apex": (find_spec("amp_C") is None, "NVIDIA's apex is not installed: setup/apex.sh"),
    "data": (not TEST_DATA.is_dir(), f"no test data at {TEST_DATA}: set LSGD_TEST_DATA"),
}


def pytest_runtest_setup(item: pytest.Item) -> None:
    for name, (missing, reason) in MISSING.items():
        if missing and item.get_closest_marker(name):
            if name in REQUIRED:
                pytest.fail(f"LSGD_REQUIRE names {name}, but {reason}", pytrace=False)
            pytest.skip(reason)


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
    return TEST_DATA


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
        shutil.copytree(REPOSITORY / name, folder / name)
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
        if "mount" in REQUIRED:
            pytest.fail("LSGD_REQUIRE names mount, but this user may not", pytrace=False)
        pytest.skip("no right to mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
