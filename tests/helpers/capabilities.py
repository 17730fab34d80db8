"""A pytest plugin that skips tests whose capability the machine lacks, and lists the reasons.

A test whose marker is a name in CAPABILITIES is skipped if that capability is missing. If the
environment variable LSGD_REQUIRE names it, the test fails instead, and TensorFlow and TorchFold are
downloaded. LSGD_REQUIRE may also name a key of SELF_CHECKED, which tests check themselves. A table
at the end lists each reason of skipped tests, with its fix.
"""

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Generator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import NamedTuple, NoReturn

import pytest
from _pytest.doctest import DoctestModule

from helpers.postgresql import programs

REPOSITORY = Path(__file__).resolve().parent.parent.parent
TEST_DATA = Path(os.environ.get("LSGD_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
REQUIRED = os.environ.get("LSGD_REQUIRE", "").split(",")


class Capability(NamedTuple):
    is_available: Callable[[], bool]
    reason: str
    fix: str


def _modules(*names: str) -> Callable[[], bool]:
    """Return a function that returns whether all these modules are installed.

    The parent package of a submodule must be listed before it.
    """
    return lambda: all(map(find_spec, names))


def _programs(*names: str) -> Callable[[], bool]:
    return lambda: all(map(shutil.which, names))


def _programs_as_root(*names: str) -> Callable[[], bool]:
    return lambda: os.getuid() == 0 and all(map(shutil.which, names))


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _is_kept(place: Callable[[], Path]) -> bool:
    """Return whether a path in the user's cache exists; False for a user without a home folder."""
    from lsgd.errors import UsageError

    try:
        return place().exists()
    except UsageError:
        return False


# TensorFlow takes 1.6 GB. If it is required, the test installs it, or fails.
def _has_tensorflow() -> bool:
    from benchmarks.environment import environment_folder
    from benchmarks.tensorflow_job import NAME, REQUIREMENTS

    return "tensorflow" in REQUIRED or _is_kept(lambda: environment_folder(NAME, REQUIREMENTS))


def _has_torchfold() -> bool:
    from benchmarks import torchfold

    return "torchfold" in REQUIRED or _is_kept(torchfold.wheel_path)


def _pip(requirements: str) -> str:
    """Return the pip command that installs requirements into the environment of the tests."""
    python = Path(sys.executable)
    if python.is_relative_to(REPOSITORY):
        python = python.relative_to(REPOSITORY)
    return f"{quote(str(python))} -m pip install {requirements}"


CAPABILITIES = {
    "gpu": Capability(_has_gpu, "torch finds no GPU", "an NVIDIA GPU and a CUDA build of torch"),
    "dali": Capability(
        _modules("nvidia", "nvidia.dali"), "DALI is not installed", _pip("-e '.[dali]'")
    ),
    "horovod": Capability(_modules("horovod"), "Horovod is not installed", "make setup"),
    "mpi": Capability(
        _programs("mpirun"),
        "mpirun is not installed",
        "sudo apt install openmpi-bin libopenmpi-dev, then make setup",
    ),
    "slurm": Capability(
        _programs_as_root("munged", "slurmctld", "slurmd", "sbatch"),
        "Slurm is not installed, or you are not root",
        "sudo apt install slurm-wlm munge, and tests as root",
    ),
    "netns": Capability(
        _programs_as_root("ip"),
        "ip is not installed, or you are not root",
        "sudo apt install iproute2, and tests as root",
    ),
    "postgresql": Capability(
        lambda: bool(programs() and find_spec("psycopg")),
        "PostgreSQL or its driver is not installed",
        "sudo apt install postgresql, and " + _pip("'psycopg[binary]'"),
    ),
    "ps": Capability(_programs("ps"), "ps is not installed", "sudo apt install procps"),
    "git": Capability(_programs("git"), "git is not installed", "sudo apt install git"),
    "clone": Capability(
        lambda: (REPOSITORY / ".git").exists() and bool(shutil.which("git")),
        "this is no clone, or git is not installed",
        "sudo apt install git, and git clone",
    ),
    "compiler": Capability(_programs("g++"), "g++ is not installed", "sudo apt install g++"),
    "kubeflow": Capability(
        _modules("kubeflow"), "Kubeflow's models are not installed", _pip("kubeflow-training")
    ),
    "onnx": Capability(
        _modules("onnx", "onnxscript", "onnxruntime"),
        "ONNX is not installed",
        _pip("-e '.[dev,export]'"),
    ),
    "export": Capability(
        _modules("huggingface_hub", "safetensors"),
        "the Hub's libraries are not installed",
        _pip("-e '.[export]'"),
    ),
    "parquet": Capability(
        _modules("pyarrow"), "pyarrow is not installed", _pip("-e '.[imagenet]'")
    ),
    "timm": Capability(_modules("timm"), "timm is not installed", _pip("-e '.[timm]'")),
    "trainers": Capability(
        _modules("accelerate", "lightning", "transformers"),
        "Lightning, Accelerate or Transformers is not installed",
        _pip("lightning accelerate transformers"),
    ),
    "docs": Capability(
        _modules("ipykernel", "mkdocs", "nbclient", "nbformat"),
        "MkDocs or Jupyter is not installed",
        _pip("-e '.[docs]'"),
    ),
    "ray": Capability(_modules("ray"), "Ray is not installed", _pip("-e '.[ray]'")),
    "spark": Capability(_modules("pyspark"), "Spark is not installed", _pip("-e '.[spark]'")),
    "java": Capability(
        _programs("java"), "Java is not installed", "sudo apt install default-jre-headless"
    ),
    "mlflow": Capability(_modules("mlflow"), "MLflow is not installed", _pip("-e '.[mlflow]'")),
    "wandb": Capability(
        _modules("wandb"), "Weights & Biases is not installed", _pip("-e '.[wandb]'")
    ),
    "tensorflow": Capability(
        _has_tensorflow,
        "TensorFlow's environment is not made",
        "LSGD_REQUIRE=tensorflow, which makes it (1.6 GB)",
    ),
    "torchfold": Capability(
        _has_torchfold,
        "TorchFold is not in the user's cache",
        "LSGD_REQUIRE=torchfold, which fetches it",
    ),
    # The package apex on PyPI is another one, without amp_C.
    "apex": Capability(_modules("amp_C"), "NVIDIA's apex is not installed", "setup/apex.sh"),
    "data": Capability(
        TEST_DATA.is_dir,
        "the real datasets are not there",
        f"LSGD_TEST_DATA=FOLDER, without which it is {os.path.relpath(TEST_DATA, REPOSITORY)}",
    ),
}
SELF_CHECKED = {
    "mount": "the right to mount a small disk",
    "uts": "the right to a hostname of one's own",
    "calls": "the versions for which the calls of a step are known",
}


def skip_or_fail(name: str, reason: str, fix: str) -> NoReturn:
    """Skip the running test, or fail it if LSGD_REQUIRE names the capability that it needs."""
    if name in REQUIRED:
        pytest.fail(f"LSGD_REQUIRE names {name}, but {reason}: {fix}", pytrace=False)
    pytest.skip(f"{reason}: {fix}")


@cache
def _is_there(name: str) -> bool:
    return CAPABILITIES[name].is_available()


def require_capability(name: str) -> None:
    """Skip or fail the running test if a capability is missing, as its marker does."""
    if not _is_there(name):
        skip_or_fail(name, CAPABILITIES[name].reason, CAPABILITIES[name].fix)


def pytest_configure(config: pytest.Config) -> None:
    for name, capability in CAPABILITIES.items():
        config.addinivalue_line("markers", f"{name}: is skipped where {capability.reason}")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Collect doctests only from modules that contain some.

    Any other module that fails to import without an optional library would count as a skipped test.
    """
    collectors = yield
    return [
        each
        for each in collectors
        if not isinstance(each, DoctestModule) or ">>> " in each.path.read_text("utf-8")
    ]


def pytest_runtest_setup(item: pytest.Item) -> None:
    for name in CAPABILITIES:
        if item.get_closest_marker(name):
            require_capability(name)


def _reason(report: pytest.TestReport) -> tuple[str, str]:
    """Return the reason of a skipped test and its fix, '' if unknown."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    text = text.removeprefix("Skipped: ")
    reason, _, fix = text.partition(": ")
    return reason, fix


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print each reason of skipped tests once, with the number of tests and the fix."""
    counts = Counter(map(_reason, terminalreporter.getreports("skipped")))
    if not counts:
        return
    width = max(len(reason) for reason, _ in counts)
    terminalreporter.write_sep("=", "skipped tests, and what would run them")
    for (reason, fix), count in sorted(counts.items(), key=lambda each: (-each[1], each[0])):
        terminalreporter.write_line(f"{count:5}  {reason:{width}}  {fix}".rstrip())
