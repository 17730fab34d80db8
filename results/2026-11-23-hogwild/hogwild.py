"""Hogwild beside asynchronous servers on the same two processes: LeNet-5 on Fashion-MNIST.

    LSGD_DATA=… python results/2026-11-23-hogwild/hogwild.py RUNS

trains what is not yet in folders below RUNS, writes runs.json beside this file and prints the
tables of the README. The arms take turns, seed by seed. Each job is started again when it is done:
the CPU seconds of that, in which nothing is trained, are those of the start.
"""

import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from lsgd.run.rows import read_rows
from lsgd.tables import markdown_table

HERE = Path(__file__).parent
WORDS = [
    "+recipe=fashion_lenet5", "worker_batch=64", "data.root=${oc.env:LSGD_DATA}/fashion-mnist",
    "epochs=3", "schedule.milestones=[]", "schedule.warmup=none", "schedule.reference_lr=0.1",
    "optim.momentum=0", "optim.nesterov=false", "workers_per_pass=1", "device=cpu",
    "log_steps=100", "checkpoint_minutes=0",
]  # fmt: skip
LIVE = ["strategy=async", "strategy.order=live", "strategy.topology=colocated", "workers=2"]
ARMS: dict[str, tuple[int, list[str]]] = {
    "hogwild": (2, ["strategy=hogwild", "workers=2"]),
    "async, order=live": (2, LIVE),
    "async, order=virtual": (2, ["strategy=async", "workers=2"]),
    "one worker": (1, ["strategy=allreduce", "workers=1"]),
}
"""The processes and words of each."""
SEEDS = (0, 1, 2)


def timed(processes: int, words: list[str]) -> tuple[float, float]:
    """Start a job; the seconds that it takes, and those of all cores that its processes use."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launcher, "--nproc-per-node", str(processes), "-m", "lsgd.train", *words]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(
        command, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True, capture_output=True
    )
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measured(runs: Path, arm: str, seed: int) -> dict[str, Any]:
    """What a run comes to, with the rows of its epochs; it is made if it was not."""
    folder = runs / f"{arm.replace(', ', '-').replace('=', '_').replace(' ', '_')}-seed{seed}"
    kept = folder / "measured.json"
    if not kept.exists():
        processes, words = ARMS[arm]
        words = [*WORDS, *words, f"seed={seed}", f"run_dir={folder}"]
        load = os.getloadavg()[0]
        _, cpu = timed(processes, words)
        _, start_cpu = timed(processes, words)
        updates = rows_of(folder)[-1]["step"]
        result = {"cpu_ms_per_batch": 1e3 * (cpu - start_cpu) / updates, "load": load}
        kept.write_text(json.dumps(result))
    rows = rows_of(folder)
    # All but the first epoch, which fills caches.
    speeds = [row["images_per_second"] / 64 for row in rows[1:]]
    return json.loads(kept.read_text()) | {
        "error": rows[-1]["val_top1_error"],
        "train_loss": rows[-1]["train_loss"],
        "batches_per_second": mean(speeds),
        "rows": rows,
    }


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The rows of the epochs of a run."""
    return [row for row in read_rows(folder / "metrics.jsonl") if row["kind"] == "epoch"]


def spread(values: list[float], digits: int) -> str:
    """Their mean and standard deviation, in words."""
    return f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f}"


def main(runs: Path) -> None:
    """Make all runs, and report them."""
    results: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    for seed in SEEDS:
        for arm, of_seeds in results.items():
            of_seeds.append(measured(runs, arm, seed))
    (HERE / "runs.json").write_text(json.dumps(results, indent=1) + "\n")
    loads = [each["load"] for of_seeds in results.values() for each in of_seeds]
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    print(f"{versions}, {os.cpu_count()} cores, load {min(loads):.1f} to {max(loads):.1f}\n")
    table = [
        [
            arm,
            str(ARMS[arm][0]),
            *(
                spread([each[key] for each in of_seeds], digits)
                for key, digits in (
                    ("batches_per_second", 0), ("cpu_ms_per_batch", 2), ("error", 2),
                    ("train_loss", 3),
                )
            ),
        ]
        for arm, of_seeds in results.items()
    ]  # fmt: skip
    head = ["run", "processes", "batches/s", "CPU ms a batch", "error, %", "training loss"]
    print(markdown_table(head, table))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
