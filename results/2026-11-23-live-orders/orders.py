"""Runs of real processes on Fashion-MNIST, each made again by its order: are the bits the same?

    LSGD_DATA=… OMP_NUM_THREADS=1 python orders.py FOLDER

Every kind on 3 to 6 processes, 1 or 2 of them servers. The runs that orders.json beside this file
lacks are made, one after the other, and what comes of each is put there and into the table of
README.md at once, so that the same command goes on after a stop.
"""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

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
    "backup": ["strategy=backup"],
    "local steps": [
        "strategy=async", "strategy.local_steps=4", "strategy.outer=nesterov",
        "strategy.outer_lr=0.7", "strategy.outer_momentum=0.3",
    ],
}  # fmt: skip
CELLS = [
    (kind, processes - servers, servers)
    for kind in KINDS
    for processes in (3, 4, 5, 6)
    for servers in (1, 2)
]
"""Kind, workers and servers; each is a process."""

JSON = Path(__file__).with_name("orders.json")
README = Path(__file__).with_name("README.md")


def digest(folder: Path) -> str:
    """The SHA-256 of model and optimizer in the last checkpoint."""
    saved = checkpoint.decode_checkpoint(checkpoint.read(folder / "checkpoint.pt"), str(folder))
    tensors = [*saved.model.values()]
    tensors += [
        value for state in saved.optimizer["state"].values() for value in state.values()
        if isinstance(value, torch.Tensor)
    ]  # fmt: skip
    return hashlib.sha256(b"".join(each.numpy().tobytes() for each in tensors)).hexdigest()


def named(kind: str, workers: int) -> str:
    """The kind in the words of the table."""
    match kind:
        case "bounded":
            return "bounded, slack 2"
        case "backup":
            return f"backup, {workers - _spare(workers)} of {workers}"
        case "local steps":
            return "4 local steps, Nesterov"
    return kind


def _spare(workers: int) -> int:
    """The backup workers: one, where there is another to wait for."""
    return min(1, workers - 1)


def measure(folder: Path, kind: str, workers: int, servers: int) -> dict[str, Any]:
    """Make the run live and again; what came of it."""
    words = [*WORDS, *KINDS[kind], f"workers={workers}", f"strategy.servers={servers}"]
    if kind == "backup":
        words.append(f"strategy.backup={_spare(workers)}")
    live, again = (folder / f"{kind}-{workers}-{servers}-{how}" for how in ("live", "again"))
    train = [sys.executable, "-m", "lsgd.train", *words]
    launch = [sys.executable, "-m", "lsgd.supervise.singly", str(workers + servers), "--"]
    subprocess.run([*launch, *train, "strategy.order=live", f"run_dir={live}"], check=True)
    order = f"strategy.order={live / 'orders.npz'}"
    subprocess.run([*train, order, f"run_dir={again}"], check=True)
    orders = load_orders(live / "orders.npz")
    last = [row for row in read_rows(live / "metrics.jsonl") if row["kind"] == "epoch"][-1]
    return {
        "kind": kind,
        "workers": workers,
        "servers": servers,
        "pids": last["pids"],
        "error": last["val_top1_error"],
        "events": sum(len(row) for each in orders.epochs.values() for one in each for row in one),
        "bytes": (live / "orders.npz").stat().st_size,
        "live": digest(live),
        "again": digest(again),
    }


def line(row: dict[str, Any]) -> str:
    """A run in the table."""
    cells = [
        named(row["kind"], row["workers"]),
        *(row["workers"], row["servers"], row["workers"] + row["servers"]),
        *(f"{row['error']:.2f}", f"{row['events']:,}", f"{row['bytes']:,}"),
        f"{row['bytes'] / row['events']:.2f}",
        f"{row['live'][:16]}…",
        "the same" if row["live"] == row["again"] else f"{row['again'][:16]}…",
    ]
    return f"| {' | '.join(map(str, cells))} |"


def write(rows: list[dict[str, Any]]) -> None:
    """All rows into orders.json, and below the head of the table in README.md."""
    rows.sort(key=lambda row: CELLS.index((row["kind"], row["workers"], row["servers"])))
    JSON.write_text(json.dumps(rows, indent=1) + "\n")
    text = README.read_text().splitlines()
    head = next(index for index, each in enumerate(text) if each.startswith("|---")) + 1
    after = next(index for index, each in enumerate(text) if index >= head and each[:1] != "|")
    README.write_text("\n".join([*text[:head], *map(line, rows), *text[after:]]) + "\n")


def main(folder: Path) -> None:
    """All cells that are left."""
    rows = json.loads(JSON.read_text()) if JSON.exists() else []
    made = [(row["kind"], row["workers"], row["servers"]) for row in rows]
    for cell in CELLS:
        if cell not in made:
            row = measure(folder, *cell)
            print(row["live"] == row["again"], row, flush=True)
            write([*rows, row])
            rows = json.loads(JSON.read_text())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
