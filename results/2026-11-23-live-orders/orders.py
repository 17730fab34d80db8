"""Runs of real processes on Fashion-MNIST, each made again by its order: are the bits the same?

    LSGD_DATA=… OMP_NUM_THREADS=1 python orders.py FOLDER

Prints a row for each, and writes them to orders.json beside this file as they come.
"""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import torch

from lsgd.run import checkpoint
from lsgd.run.rows import read_rows
from lsgd.strategy.recorded import load_orders

WORDS = [
    "+recipe=fashion_lenet5", "worker_batch=32", "epochs=3", "schedule.milestones=[]",
    "schedule.warmup_epochs=1", "schedule.reference_batch=32", "log_steps=100", "device=cpu",
]  # fmt: skip
KINDS = {
    "async": ["strategy=async"],
    "bounded": ["strategy=bounded", "strategy.slack=2"],
    "backup": ["strategy=backup", "strategy.backup=1"],
    "local steps": [
        "strategy=async", "strategy.local_steps=4", "strategy.outer=nesterov",
        "strategy.outer_lr=0.7", "strategy.outer_momentum=0.3",
    ],
}  # fmt: skip
CELLS = [
    ("async", 2, 1), ("async", 3, 2), ("bounded", 3, 1), ("bounded", 4, 2), ("backup", 4, 1),
    ("backup", 3, 2), ("local steps", 2, 1), ("local steps", 4, 2),
]  # fmt: skip
"""Kind, workers and servers; each is a process."""


def digest(folder: Path) -> str:
    """The SHA-256 of model and optimizer in the last checkpoint."""
    saved = checkpoint.load(checkpoint.read(folder / "checkpoint.pt"), str(folder))
    tensors = [*saved.model.values()]
    tensors += [
        value for state in saved.optimizer["state"].values() for value in state.values()
        if isinstance(value, torch.Tensor)
    ]  # fmt: skip
    return hashlib.sha256(b"".join(each.numpy().tobytes() for each in tensors)).hexdigest()


def main(folder: Path) -> None:
    """All cells, one after the other."""
    path, rows = Path(__file__).with_name("orders.json"), []
    for kind, workers, servers in CELLS:
        words = [*WORDS, *KINDS[kind], f"workers={workers}", f"strategy.servers={servers}"]
        live, again = (folder / f"{kind}-{workers}-{servers}-{how}" for how in ("live", "again"))
        train = [sys.executable, "-m", "lsgd.train", *words]
        launch = [sys.executable, "-m", "lsgd.supervise.singly", str(workers + servers), "--"]
        subprocess.run([*launch, *train, "strategy.order=live", f"run_dir={live}"], check=True)
        order = f"strategy.order={live / 'orders.npz'}"
        subprocess.run([*train, order, f"run_dir={again}"], check=True)
        orders = load_orders(live / "orders.npz")
        pushes = sum(len(row) for each in orders.epochs.values() for one in each for row in one)
        last = [row for row in read_rows(live / "metrics.jsonl") if row["kind"] == "epoch"][-1]
        rows.append(
            {
                "kind": kind,
                "workers": workers,
                "servers": servers,
                "pids": last["pids"],
                "error": last["val_top1_error"],
                "events": pushes,
                "bytes": (live / "orders.npz").stat().st_size,
                "live": digest(live),
                "again": digest(again),
            }
        )
        path.write_text(json.dumps(rows, indent=1) + "\n")
        print(rows[-1]["live"] == rows[-1]["again"], rows[-1], flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
