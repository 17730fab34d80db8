"""Steps of ResNet-50 by what glibc does with freed memory: `python choices.py ROUNDS`.

Each choice in turns, each time in a fresh process; prints a table.
"""

import ctypes
import os
import resource
import subprocess
import sys
from statistics import median

MOST = 2**31 - 1
CACHES_OFF = (
    f"glibc.malloc.trim_threshold={MOST}:glibc.malloc.mmap_threshold={MOST}"
    ":glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0"
)
CHOICES = {
    "all kept": MOST,
    "blocks from 64 MiB on given back": 64 * 2**20,
    "blocks from 32 MiB on given back": 32 * 2**20,
    "as glibc has it": "",
    "all kept, caches off from the start": CACHES_OFF,
}
"""A threshold that the process sets once it runs, or GLIBC_TUNABLES that it is started with."""
STEPS = {64: 12, 224: 4}
"""The steps that are made of images of this size; the second half is counted."""


def child(threshold: int, size: int) -> None:
    """Page faults and CPU seconds, user's and the system's, of a step; the peak in MiB."""
    import torch

    from lsgd import config
    from lsgd.comm.single import SingleComm
    from lsgd.job.device import pick_device
    from lsgd.job.memory import MMAP_THRESHOLD
    from lsgd.learner import Learner
    from lsgd.step import train_step

    torch.set_num_threads(1)
    device = pick_device("cpu")
    if threshold:
        ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, threshold)
    recipe = config.load_recipe(
        ["+recipe=bs64", "workers=1", "inputs=synthetic", f"data.image_size={size}", "device=cpu"]
    )
    learner, steps = Learner(recipe, SingleComm(), device), STEPS[size]
    tasks = list(learner.strategy.tasks(0, list(range(steps))))
    batches = learner.workload.inputs().train(each for task in tasks for each in task.micro_batches)
    for number, task in enumerate(tasks):
        if number == steps // 2:
            before = resource.getrusage(resource.RUSAGE_SELF)
        train_step(learner, task, batches)
    now, counted = resource.getrusage(resource.RUSAGE_SELF), steps - steps // 2
    print(
        (now.ru_minflt - before.ru_minflt) / counted,
        (now.ru_utime - before.ru_utime) / counted,
        (now.ru_stime - before.ru_stime) / counted,
        now.ru_maxrss / 1024,
    )


def main(rounds: int) -> None:
    """All of them, in turns."""
    print("| pixels | freed memory | page faults per step | CPU s: user, system | peak, MiB |")
    print("|--:|---|--:|--:|--:|")
    for size in STEPS:
        found: dict[str, list[list[float]]] = {name: [] for name in CHOICES}
        for _ in range(rounds):
            for name, choice in CHOICES.items():
                environment = dict(os.environ)
                if isinstance(choice, str):
                    environment["GLIBC_TUNABLES"] = choice
                threshold = choice if isinstance(choice, int) else 0
                words = [sys.executable, __file__, str(threshold), str(size)]
                done = subprocess.run(
                    words, check=True, capture_output=True, text=True, env=environment
                )
                found[name].append([float(word) for word in done.stdout.split()])
        for name, rows in found.items():
            faults, user, system, peak = zip(*rows, strict=True)
            seconds = f"{median(user):.3f}, {median(system):.3f}"
            spread = f"{median(peak):,.0f} ({min(peak):,.0f} to {max(peak):,.0f})"
            print(f"| {size} | {name} | {median(faults):,.0f} | {seconds} | {spread} |", flush=True)


if __name__ == "__main__":
    child(*map(int, sys.argv[1:])) if len(sys.argv) > 2 else main(int(sys.argv[1]))
