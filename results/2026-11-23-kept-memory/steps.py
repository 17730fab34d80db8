"""Steps of ResNet-50 with freed memory kept, and as glibc has it: page faults, peak, CPU time.

python steps.py            both, in turns, each in fresh processes; prints a table
"""

import resource
import subprocess
import sys
from statistics import median

ROUNDS = 2
STEPS = {64: 12, 224: 4}
"""The steps that are made of images of this size; the second half is counted."""


def child(how: str, size: int) -> None:
    """Page faults and CPU seconds, user's and the system's, of a step; the peak in MiB."""
    import torch

    from lsgd import config
    from lsgd.comm.single import SingleComm
    from lsgd.job.device import pick_device
    from lsgd.learner import Learner
    from lsgd.step import train_step

    torch.set_num_threads(1)
    device = pick_device("cpu") if how == "kept" else torch.device("cpu")
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


def main() -> None:
    """All of them, in turns."""
    print("| pixels | memory | page faults per step | CPU s per step: user, system | peak, MiB |")
    print("|--:|---|--:|--:|--:|")
    for size in STEPS:
        found: dict[str, list[list[float]]] = {"as glibc has it": [], "kept": []}
        for _ in range(ROUNDS):
            for how, rows in found.items():
                words = [sys.executable, __file__, how, str(size)]
                done = subprocess.run(words, check=True, capture_output=True, text=True)
                rows.append([float(word) for word in done.stdout.split()])
        for how, rows in found.items():
            faults, user, system, peak = zip(*rows, strict=True)
            spread = f"{median(faults):,.0f} ({min(faults):,.0f} to {max(faults):,.0f})"
            seconds = f"{median(user):.3f}, {median(system):.3f}"
            print(f"| {size} | {how} | {spread} | {seconds} | {median(peak):,.0f} |")


if __name__ == "__main__":
    child(sys.argv[1], int(sys.argv[2])) if len(sys.argv) > 1 else main()
