"""The time to the first step alone, of lsgd as it comes and torchvision's script, in more rounds
than `python -m benchmarks.peers` has: `python measure.py VISION FOLDER ROUNDS OUT`."""

import os
import re
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.outside import Training, _cpu_seconds, _started, _step_lines, _usage_of_each
from benchmarks.peers import OURS, SCRIPTS, ours, recipe_words
from lsgd.bench import results
from lsgd.bench.setting import machine_lines, setting
from lsgd.bench.timing import estimate, order, ratio
from lsgd.config import load_recipe
from lsgd.tables import markdown

WHAT = {"seconds": "first step after, s", "cpu_seconds": "CPU s with loaders until then"}


def first_step(training: Training) -> tuple[float, float]:
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
        results.recording("start", "measure", sys.argv[1:], Path(out)) as record,
        TemporaryDirectory(prefix="lsgd-peers-") as index,
    ):
        words = recipe_words(Path(folder), Path(index), 64, 1)
        script = SCRIPTS["torchvision"]
        starts = {
            OURS: ours(words)[OURS],
            "torchvision": script.start(Path(vision), load_recipe(words)),
        }
        samples: dict[str, dict[str, list[float]]] = {
            what: {name: [] for name in starts} for what in WHAT
        }
        result = setting(torch.device("cpu")) | {
            "rounds": int(rounds),
            "script": script.described(Path(vision)),
            "samples": samples,
        }
        for number in range(int(rounds) + 1):
            for name in order(list(starts), number):
                with TemporaryDirectory(prefix="lsgd-peers-") as own:
                    measured = first_step(starts[name](Path(own)))
                for what, value in zip(WHAT, measured, strict=True) if number else ():
                    samples[what][name].append(value)
            record.keep(result)
        rows = [
            [name, *(estimate(samples[what][name]).shown(".2f") for what in WHAT)]
            for name in starts
        ]
        times = [ratio(samples[what], OURS, "torchvision").shown(".3f") for what in WHAT]
        rows.append(["lsgd, times torchvision", *times])
        lines = [*machine_lines(result), result["script"], f"{rounds} rounds"]
        table = markdown(["a training", *WHAT.values()], rows)
        record.end(result, "\n".join([*lines, "", table]))


if __name__ == "__main__":
    main(*sys.argv[1:])
