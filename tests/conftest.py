"""Capabilities that tests ask for by marker, and the real data they read.

A test marked `dali`, `horovod`, `mpi`, `slurm`, `netns`, `kubeflow`, `gpu` or `data` is skipped
where that is missing, unless the environment variable LSGD_REQUIRE names it: then it fails, so that
nothing passes by skipping.
"""

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

# Threads that wait for each other on busy cores are slower than one, by far; so in child processes.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")

REPOSITORY = Path(__file__).resolve().parent.parent
TEST_DATA = Path(os.environ.get("LSGD_TEST_DATA", REPOSITORY.parent / "shared" / "data"))

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
    "data": (not TEST_DATA.is_dir(), f"no test data at {TEST_DATA}: set LSGD_TEST_DATA"),
}


def pytest_runtest_setup(item: pytest.Item) -> None:
    required = os.environ.get("LSGD_REQUIRE", "").split(",")
    for name, (missing, reason) in MISSING.items():
        if missing and item.get_closest_marker(name):
            if name in required:
                pytest.fail(f"LSGD_REQUIRE names {name}, but {reason}", pytrace=False)
            pytest.skip(reason)


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder with real datasets; tests that use it are marked `data`."""
    return TEST_DATA
