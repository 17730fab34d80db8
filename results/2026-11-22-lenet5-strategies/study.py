"""LeNet-5 on Fashion-MNIST by every strategy: each arm's lr searched on one grid, then three seeds.

    python study.py RUNS [--jobs 2]      trains what is left, in folders below RUNS
    python report.py RUNS                writes tables and figures of it here

The grid has two values per decade. An arm begins at its three middle values, with seed 100, and
goes on to the next while the best is at an edge. Then seeds 0, 1 and 2 train at the best.
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

EVERY = [
    "+recipe=fashion_lenet5", "worker_batch=64", "data.root=${oc.env:LSGD_DATA}/fashion-mnist",
    "cluster=stragglers", "cluster.step=0.007", "cluster.slow_by=0.035", "device=cpu",
    # Every batch is above this reference, so that all arms warm up over 2 epochs.
    "schedule.reference_batch=8", "log_steps=50", "keep_checkpoints=1", "checkpoint_minutes=0",
]  # fmt: skip
PLAIN = ["optim.momentum=0", "optim.nesterov=false"]
AWARE = ["strategy.staleness_aware=true"]
SYNC = ["strategy=sync", "workers=8", "workers_per_pass=8"]
BACKUP = ["strategy=backup", "strategy.backup=2", "workers=10", "workers_per_pass=1"]
BOUNDED = ["strategy=bounded", "strategy.slack=3", "workers=8", "workers_per_pass=1"]
ASYNC8 = ["strategy=async", "workers=8", "workers_per_pass=1"]
ASYNC32 = ["strategy=async", "workers=32", "workers_per_pass=1"]
ARMS: dict[str, tuple[list[str], int, int]] = {
    "sync 8": (SYNC, 512, -2),
    "async 8": (ASYNC8, 64, -5),
    "async 8, staleness-aware": ([*ASYNC8, *AWARE], 64, -4),
    "async 32": (ASYNC32, 64, -6),
    "async 32, staleness-aware": ([*ASYNC32, *AWARE], 64, -4),
    "backup 8 of 10": (BACKUP, 512, -2),
    "bounded 3": (BOUNDED, 64, -5),
    "sync 8, no momentum": ([*SYNC, *PLAIN], 512, 0),
    "async 8, no momentum": ([*ASYNC8, *PLAIN], 64, -3),
    "async 8, staleness-aware, no momentum": ([*ASYNC8, *AWARE, *PLAIN], 64, -2),
    "async 32, no momentum": ([*ASYNC32, *PLAIN], 64, -4),
    "async 32, staleness-aware, no momentum": ([*ASYNC32, *AWARE, *PLAIN], 64, -2),
    "backup 8 of 10, no momentum": ([*BACKUP, *PLAIN], 512, 0),
    "bounded 3, no momentum": ([*BOUNDED, *PLAIN], 64, -3),
}
"""Words, the images of an update, and where the search begins: the lr is 10^(i/2)."""
SEARCH, SEEDS = 100, (0, 1, 2)


def folder(runs: Path, arm: str, at: int, seed: int) -> Path:
    """The folder of a run at the lr 10^(at/2)."""
    name = arm.replace(", ", "-").replace(" ", "_")
    return runs / name / f"lr{at:+d}-seed{seed}"


def command(run: Path, arm: str, at: int, seed: int) -> list[str]:
    """The words of a run."""
    words, batch, _ = ARMS[arm]
    lr = f"schedule.reference_lr={10 ** (at / 2) * 8 / batch:.6g}"
    words = [*EVERY, *words, lr, f"seed={seed}", f"run_dir={run}"]
    return [sys.executable, "-m", "lsgd.train", *words]


def rows(run: Path) -> list[dict[str, float]]:
    """What a run has written."""
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def error(run: Path) -> float | None:
    """The median of the last 5 errors, 90 for a run that has diverged, None for one not done."""
    if (run / "diverged").exists():
        return 90.0
    epochs = [row["val_top1_error"] for row in rows(run) if row["kind"] == "epoch"]
    return sorted(epochs[-5:])[2] if len(epochs) == 10 else None


def train(runs: Path, arm: str, at: int, seed: int) -> float:
    """The error of a run, trained if it is not there."""
    run = folder(runs, arm, at, seed)
    if (value := error(run)) is None:
        run.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{run}.log", "ab") as log:
            code = subprocess.run(command(run, arm, at, seed), stdout=log, stderr=log).returncode
        if code == 3:
            (run / "diverged").touch()
        value = error(run)
        assert value is not None, f"{run}.log says why"
        print(f"{arm}, lr {10 ** (at / 2):.3g}, seed {seed}: {value:.2f} %", flush=True)
    return value


def search(runs: Path, arm: str) -> int:
    """Where on the grid the arm is best, with the seed of the search."""
    begin = ARMS[arm][2]
    errors = {at: train(runs, arm, at, SEARCH) for at in range(begin - 1, begin + 2)}
    while (best := min(errors, key=lambda at: (errors[at], at))) in (min(errors), max(errors)):
        further = best - 1 if best == min(errors) else best + 1
        errors[further] = train(runs, arm, further, SEARCH)
    return best


def study(runs: Path, arm: str) -> None:
    """All of an arm."""
    best = search(runs, arm)
    for seed in SEEDS:
        train(runs, arm, best, seed)


if __name__ == "__main__":
    line = argparse.ArgumentParser()
    line.add_argument("runs", type=Path)
    line.add_argument("--jobs", type=int, default=2)
    options = line.parse_args()
    with ThreadPoolExecutor(options.jobs) as pool:
        for future in [pool.submit(study, options.runs, arm) for arm in ARMS]:
            future.result()
