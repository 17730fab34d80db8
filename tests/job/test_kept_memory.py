"""Freed memory is kept from step to step, counted in page faults of processes of their own."""

import os
import subprocess
import sys

import pytest
from helpers.launching import WITHOUT_COMPILER

STEPS = """
import resource, sys
import torch
from lsgd import config
from lsgd.comm.single import SingleComm
from lsgd.job.device import pick_device
from lsgd.learner import Learner
from lsgd.step import train_step

torch.set_num_threads(1)
device = pick_device("cpu") if sys.argv[1] == "picked" else torch.device("cpu")
recipe = config.load_recipe(
    ["+recipe=fashion_resnet20", "workers=1", "worker_batch=32", "inputs=synthetic", "device=cpu"]
)
learner = Learner(recipe, SingleComm(), device)
before_counting = int(sys.argv[2])
tasks = list(learner.strategy.tasks(0, list(range(before_counting + 6))))
batches = learner.workload.inputs().train(each for task in tasks for each in task.micro_batches)
for number, task in enumerate(tasks):
    if number == before_counting:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    train_step(learner, task, batches)
of_steps = resource.getrusage(resource.RUSAGE_SELF)
print(of_steps.ru_minflt - before, of_steps.ru_maxrss)
def faults(mebibytes):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(mebibytes * 2**18)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
large = min(faults(128) for _ in range(4))  # first, while no gap has room for it
# The fewest of some: gaps between blocks are not always large enough.
print(large, min(faults(48) for _ in range(12)))
"""


def faults_and_peak(how: str, environment: dict[str, str], *, after: int = 8) -> list[int]:
    """The page faults of six steps, and the peak in KiB, of a process of its own; and the page
    faults of a block of 128 MiB, and of one of 48. A heap with the room for a step takes some
    steps to come about, which come first."""
    words = [sys.executable, "-c", STEPS, how, str(after)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """The environment, but for what would decide for itself."""
    own = ("MALLOC_", "GLIBC_TUNABLES")
    path = os.pathsep.join(filter(None, (WITHOUT_COMPILER, os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": path}
    return {name: value for name, value in environment.items() if not name.startswith(own)}


@pytest.mark.slow
def test_a_step_gets_its_memory_from_the_step_before(environment: dict[str, str]) -> None:
    """A tenth of the faults at most, and no more memory; a block of 64 MiB or more is the system's
    own, as without."""
    left, left_peak, left_large, left_block = faults_and_peak("left", environment)
    kept, kept_peak, kept_large, kept_block = faults_and_peak("picked", environment)
    assert left > 1000
    assert kept < left / 10
    assert kept_peak < 1.05 * left_peak
    assert kept_block < left_block / 10
    assert kept_large > left_large / 2


@pytest.mark.slow
def test_the_environment_goes_first(environment: dict[str, str]) -> None:
    said = environment | {"MALLOC_TRIM_THRESHOLD_": "131072"}
    assert faults_and_peak("picked", said, after=1)[0] > 6000
