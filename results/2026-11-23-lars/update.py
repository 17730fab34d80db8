"""CPU seconds of ResNet-50's update by LARS and by SGD, beside those of a whole training step.

    OMP_NUM_THREADS=1 python results/2026-11-23-lars/update.py

writes update.json beside this file and prints the table of the README. CPU seconds and not those of
a clock, since they are disturbed less by what else runs.
"""

import json
import os
import platform
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch

from lsgd import config
from lsgd.bench.loaders import micro_batches_of_step
from lsgd.comm.single import SingleComm
from lsgd.inputs.synthetic import SyntheticInputs
from lsgd.learner import Learner
from lsgd.rules import optim
from lsgd.step import train_step
from lsgd.strategy import StepTask
from lsgd.tables import markdown_table

UPDATES, STEPS = 30, 5
CPU = torch.device("cpu")
FORMS = {
    "SGD, equation (9)": {"name": "sgd", "equation": 9},
    "SGD, equation (10)": {"name": "sgd"},
    "LARS, equation (9)": {"equation": 9},
    "LARS, equation (10)": {},
}


def seconds_of(work) -> float:
    """The CPU seconds of a call."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def main() -> None:
    """Measure all forms by turns, then whole steps with SGD."""
    torch.set_num_threads(1)
    words = ["+recipe=bs256", "optim=lars", "workers=1", "workers_per_pass=1", "device=cpu"]
    base = config.load_recipe(words)
    learners = {
        name: Learner(replace(base, optim=replace(base.optim, **form)), SingleComm(), CPU)
        for name, form in FORMS.items()
    }
    found = {name: [] for name in learners}
    for turn in range(UPDATES):
        for name, learner in learners.items():
            optim.set_lr(learner.strategy.optimizer, 0.1)
            if turn % 5 == 0:  # or LARS would scale them down to nothing
                for parameter in learner.model.parameters():
                    parameter.grad.normal_()
            found[name].append(seconds_of(learner.strategy.optimizer.step))
    learner = learners["SGD, equation (9)"]
    task = StepTask(0, base.batch_size, 1, micro_batches_of_step(base, 0))
    batches = list(SyntheticInputs(base.data, seed=0, device=CPU).train(task.micro_batches))
    steps = [seconds_of(lambda: train_step(learner, task, iter(batches))) for _ in range(STEPS)]
    Path(__file__).with_name("update.json").write_text(
        json.dumps({"updates": found, "steps": steps})
    )
    update = {name: statistics.median(values) for name, values in found.items()}
    step, sgd = statistics.median(steps), update["SGD, equation (9)"]
    print(f"{platform.python_version()}, torch {torch.__version__}, load {os.getloadavg()[0]:.1f}")
    print(f"a step of {base.batch_size} images at {base.data.image_size} px: {step:.2f} CPU s\n")
    rows = [
        [name, f"{1000 * value:.0f}", f"{value / sgd:.2f}", f"{(step - sgd + value) / step:.4f}"]
        for name, value in update.items()
    ]
    print(markdown_table(["update", "CPU ms", "times SGD's", "times a step with SGD"], rows))


if __name__ == "__main__":
    main()
