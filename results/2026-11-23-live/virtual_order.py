"""Asynchronous training in virtual order on one process and on two: the same bits, how much faster?

    python results/2026-11-23-live/virtual_order.py

prints the table of the README beside it and keeps all seconds in virtual_order.json. It trains
strategy=async with 2, 4 and 8 workers on one process and on two by turns, for two epochs of made-up
images, of which the second counts. The computation of a batch is that of the network, or that of a
small batch behind a sleep of 20 ms: where the cores of a machine are two threads of one, or are
shared, only the second shows what the engine allows. As root the processes have real-time priority.
"""

import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch

from lsgd import config, train
from lsgd.bench.job import open_job
from lsgd.bench.job_process import main as member
from lsgd.comm import Comm
from lsgd.recipe import Recipe
from lsgd.tables import markdown_table
from lsgd.workloads.images import ImageClassification

HERE = Path(__file__).parent
ROUNDS, WORKERS, BATCHES, SLEEP = 5, (2, 4, 8), 64, 0.02
WORDS = [
    "+recipe=digits", "inputs=synthetic", "device=cpu", "strategy=async", "tail=drop", "epochs=2",
    "schedule.milestones=[]", "schedule.warmup=none", "schedule.reference_lr=0.001",
    "data.val_examples=4", "workers_per_pass=1", "model.last_gamma=1.0", "log_steps=64",
]  # fmt: skip
KINDS = {"network": 256, "sleep": 2}
"""The images of a batch."""


class Sleeping(ImageClassification):
    """The workload, of which a batch of training takes longer."""

    def loss(self, model: Any, batch: Any, each: Any) -> Any:
        """The loss, after a sleep."""
        if each.epoch is not None:
            time.sleep(SLEEP)
        return super().loss(model, batch, each)


class Runs:
    """An Assignment whose candidates are runs, by kind and workers, and whose setting is None."""

    def __init__(self, recipe: Recipe, comm: Comm, device: torch.device) -> None:
        self.comm = comm
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        self.candidates: Mapping[str, Callable[[int], Any]] = {
            f"{kind}, {workers} workers": partial(self.run, kind, workers)
            for kind in KINDS
            for workers in WORKERS
        }

    def prepare(self, setting: None) -> None:
        """Nothing is prepared."""

    def run(self, kind: str, workers: int, number: int) -> tuple[float, str]:
        """Train; the seconds of the last epoch without its evaluation, and the hash of model and
        optimizer.
        """
        n = KINDS[kind]
        begins, ends = [], []
        train_epoch, evaluate = train.train_epoch, train.evaluate

        def timed_epoch(*given: Any) -> None:
            self.comm.gather_objects(None)
            begins.append(time.perf_counter())
            train_epoch(*given)

        def timed_evaluate(*given: Any, **named: Any) -> Any:
            self.comm.gather_objects(None)
            ends.append(time.perf_counter())
            return evaluate(*given, **named)

        with ExitStack() as stack:
            own = stack.enter_context(tempfile.TemporaryDirectory())
            folder = self.comm.broadcast_object(own)
            words = [
                *WORDS, f"workers={workers}", f"worker_batch={n}", f"run_dir={folder}/run",
                f"data.train_examples={n * BATCHES}",
            ]  # fmt: skip
            put: dict[str, Any] = {
                "lsgd.train.joined": lambda *_: nullcontext(self.comm),
                "lsgd.train.train_epoch": timed_epoch,
                "lsgd.train.evaluate": timed_evaluate,
            }
            if kind == "sleep":
                put["lsgd.workloads.images.Images"] = Sleeping
            for name, value in put.items():
                stack.enter_context(patch(name, value))
            train.train(config.load_recipe(words))
            digest = hashlib.sha256()
            if self.comm.rank == 0:
                state = torch.load(Path(folder, "run", "checkpoint.pt"), weights_only=False)
                hash_tensors({name: state[name] for name in ("model", "optimizer")}, digest)
            self.comm.gather_objects(None)
            return ends[1] - begins[1], digest.hexdigest()


def hash_tensors(value: Any, digest: Any) -> None:
    """Add all tensors in a state to a hash, in their order."""
    if isinstance(value, torch.Tensor):
        digest.update(value.contiguous().numpy().tobytes())
    elif isinstance(value, dict):
        for key in value:
            hash_tensors(value[key], digest)
    elif isinstance(value, list | tuple):
        for each in value:
            hash_tensors(each, digest)


def main() -> None:
    """Train all by turns, and report."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    kept: dict[str, Any] = {}
    with ExitStack() as running:
        jobs = {}
        for processes in (1, 2):
            job = open_job(
                Path(__file__).stem, "torch", processes, WORDS,
                limit=300, environment={"OMP_NUM_THREADS": "1"},
            )  # fmt: skip
            jobs[processes] = running.enter_context(job)
            jobs[processes].prepare(None)
        for number in range(ROUNDS):
            for kind in KINDS:
                for workers in WORKERS:
                    name = f"{kind}, {workers} workers"
                    of = kept.setdefault(name, {"1": [], "2": [], "hash": []})
                    for processes in (1, 2) if number % 2 else (2, 1):
                        seconds, digest = jobs[processes].run(name, number)
                        of[str(processes)].append(seconds)
                        of["hash"].append(digest)
                    print(number, name, of["1"][-1], of["2"][-1], file=sys.stderr, flush=True)
            (HERE / "virtual_order.json").write_text(json.dumps(kept) + "\n")
    rows = []
    for name, of in kept.items():
        ratios = [one / two for one, two in zip(of["1"], of["2"], strict=True)]
        rows.append(
            [
                name.split(",")[0],
                name.split()[1],
                f"{1e3 * median(of['1']) / BATCHES:.1f}",
                f"{1e3 * median(of['2']) / BATCHES:.1f}",
                f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
                "yes" if len(set(of["hash"])) == 1 else "no",
            ]
        )
    head = [
        "compute",
        "workers",
        "1 process, ms per batch",
        "2 processes",
        "times as fast",
        "same bits",
    ]
    print(f"load {os.getloadavg()[0]:.1f} after\n\n{markdown_table(head, rows)}")


if __name__ == "__main__":
    if sys.argv[1:]:
        raise SystemExit(member(Runs, sys.argv[1:]))
    main()
