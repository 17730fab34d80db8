"""The time to the first step alone, of lsgd as it comes and torchvision's script, in more rounds
than `python -m benchmarks.peers` has: `python measure.py VISION FOLDER ROUNDS OUT`.
"""

import os
import re
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.peers import OURS, SCRIPTS, lsgd_trainings, recipe_overrides
from benchmarks.process_measurement import (
    TrainingCommand,
    _cpu_seconds,
    _started,
    _step_lines,
    _usage_of_each,
)
from lsgd.bench import results
from lsgd.bench.setting import environment_facts, machine_lines
from lsgd.bench.timing import estimate, order, speed_ratio
from lsgd.config import load_recipe
from lsgd.tables import markdown_table

WHAT = {"seconds": "first step after, s", "cpu_seconds": "CPU s with loaders until then"}


def first_step(training: TrainingCommand) -> tuple[float, float]:
    """Seconds until the first step is done, and the CPU seconds of all processes in them."""
    begin = time.monotonic()
    with _started(training) as process:
        next(_step_lines(process, re.compile(training.step), 600))
        return time.monotonic() - begin, sum(map(_cpu_seconds, _usage_of_each().values()))


def main(vision: str, folder: str, rounds: str, out: str) -> None:
    """Measure, print the report and keep it in the folder `out`; the first round does not count."""
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    with (
        results.open_record("start", "measure", sys.argv[1:], Path(out)) as record,
        TemporaryDirectory(prefix="lsgd-peers-") as index,
    ):
        words = recipe_overrides(Path(folder), Path(index), 64, 1)
        script = SCRIPTS["torchvision"]
        starts = {
            OURS: lsgd_trainings(words)[OURS],
            "torchvision": script.training_factory(Path(vision), load_recipe(words)),
        }
        samples: dict[str, dict[str, list[float]]] = {
            what: {name: [] for name in starts} for what in WHAT
        }
        result = environment_facts(torch.device("cpu")) | {
            "rounds": int(rounds),
            "script": script.description(Path(vision)),
            "samples": samples,
        }
        for number in range(int(rounds) + 1):
            for name in order(list(starts), number):
                with TemporaryDirectory(prefix="lsgd-peers-") as own:
                    measured = first_step(starts[name](Path(own)))
                for what, value in zip(WHAT, measured, strict=True) if number else ():
                    samples[what][name].append(value)
            record.write_result(result)
        rows = [
            [name, *(estimate(samples[what][name]).shown(".2f") for what in WHAT)]
            for name in starts
        ]
        times = [speed_ratio(samples[what], OURS, "torchvision").shown(".3f") for what in WHAT]
        rows.append(["lsgd, times torchvision", *times])
        lines = [*machine_lines(result), result["script"], f"{rounds} rounds"]
        table = markdown_table(["a training", *WHAT.values()], rows)
        record.write_report(result, "\n".join([*lines, "", table]))


if __name__ == "__main__":
    main(*sys.argv[1:])
