"""LeNet-5 on a third of Fashion-MNIST by local steps: each arm tuned on one grid, then two seeds.

    LSGD_DATA=… OMP_NUM_THREADS=1 python study.py RUNS      trains what is left, below RUNS
    python report.py RUNS                                   writes table and figure of it here

The grid has two values per decade. Every arm begins at the same three, with seed 0, and goes on to
the next while the best is at an edge. Then seeds 1 and 2 train at the best.
"""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

EPOCHS, EXAMPLES = 3, 20000
EVERY = [
    "+recipe=fashion_lenet5", "workers=4", "worker_batch=16", f"epochs={EPOCHS}", "device=cpu",
    f"data.train_examples={EXAMPLES}",
    # The lr of a run is that of all 64 images, to which it warms up from a quarter.
    "schedule.reference_batch=16", "schedule.warmup_epochs=0.5", "schedule.milestones=[2]",
    "log_steps=156", "keep_checkpoints=1", "checkpoint_minutes=0",
]  # fmt: skip
RULES = {
    "local SGD": ["strategy=local"],
    "DiLoCo": ["strategy=diloco"],
}
"""The mean of the copies; Nesterov's momentum of 0.9 on the mean way, with an outer lr of 0.7."""
ROUNDS = (1, 16, 64, 4, 2, 8, 32)
"""H, in the order in which they are trained."""
BEGIN, SEARCH, SEEDS = (-4, -3, -2), 0, (1, 2)
"""The lr are 10^(i/2)."""
DIVERGED = 90.0
"""The error, in percent, that a run which has diverged counts as: that of guessing."""


def folder(runs: Path, rule: str, steps: int, at: int, seed: int) -> Path:
    """The folder of a run of H steps a round at the lr 10^(at/2)."""
    return runs / f"{rule.replace(' ', '_')}-{steps}" / f"lr{at:+d}-seed{seed}"


def cut(data: Path, to: Path) -> None:
    """Make a dataset of the first EXAMPLES images for training, and all others."""
    to.mkdir(parents=True, exist_ok=True)
    for path in data.glob("*-ubyte.gz"):
        content = gzip.decompress(path.read_bytes())
        if path.name.startswith("train"):
            header, size = (16, 784) if "images" in path.name else (8, 1)
            # The second word of an idx file's header is its length.
            count = EXAMPLES.to_bytes(4, "big")
            content = content[:4] + count + content[8 : header + EXAMPLES * size]
        (to / path.name).write_bytes(gzip.compress(content, 1))


def command(runs: Path, rule: str, steps: int, at: int, seed: int) -> list[str]:
    """The words of a run."""
    words = [
        *EVERY, *RULES[rule], f"strategy.local_steps={steps}",
        f"schedule.reference_lr={10 ** (at / 2) / 4:.6g}", f"seed={seed}",
        f"data.root={runs / 'data'}", f"run_dir={folder(runs, rule, steps, at, seed)}",
    ]  # fmt: skip
    return [sys.executable, "-m", "lsgd.train", *words]


def rows(run: Path) -> list[dict[str, float]]:
    """What a run has written."""
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def error(run: Path) -> float | None:
    """The error after the last epoch, in percent; None for a run that is not done."""
    if (run / "diverged").exists():
        return DIVERGED
    epochs = [row["val_top1_error"] for row in rows(run) if row["kind"] == "epoch"]
    return epochs[-1] if len(epochs) == EPOCHS else None


def train(runs: Path, rule: str, steps: int, at: int, seed: int) -> float:
    """The error of a run, trained if it is not there."""
    run = folder(runs, rule, steps, at, seed)
    if (value := error(run)) is None:
        run.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{run}.log", "ab") as log:
            done = subprocess.run(
                command(runs, rule, steps, at, seed), stdout=log, stderr=log, check=False
            )
        if done.returncode == 3:
            (run / "diverged").touch()
        value = error(run)
        assert value is not None, f"{run}.log says why"
        print(f"{rule}, H {steps}, lr {10 ** (at / 2):.3g}, seed {seed}: {value:.2f} %", flush=True)
    return value


def grid(runs: Path, rule: str, steps: int) -> dict[int, float]:
    """The errors of the search so far, by the place on the grid."""
    places = range(min(BEGIN) - 8, max(BEGIN) + 9)
    found = {at: error(folder(runs, rule, steps, at, SEARCH)) for at in places}
    return {at: value for at, value in found.items() if value is not None}


def best(errors: dict[int, float]) -> int | None:
    """Where the error is least; None as long as that is at an edge of what was tried."""
    at = min(errors, key=lambda each: (errors[each], each), default=None)
    return at if at is not None and min(errors) < at < max(errors) else None


def study(runs: Path, rule: str, steps: int) -> None:
    """All of an arm."""
    for at in BEGIN:
        train(runs, rule, steps, at, SEARCH)
    while (at := best(errors := grid(runs, rule, steps))) is None:
        low, high = min(errors), max(errors)
        further = low - 1 if errors[low] <= errors[high] else high + 1
        train(runs, rule, steps, further, SEARCH)
    for seed in SEEDS:
        train(runs, rule, steps, at, seed)


if __name__ == "__main__":
    folder_of_all = Path(sys.argv[1])
    cut(Path(os.environ["LSGD_DATA"]) / "fashion-mnist", folder_of_all / "data")
    for each in ROUNDS:
        for name in RULES:
            study(folder_of_all, name, each)
