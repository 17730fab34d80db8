"""Methods at minibatches of several sizes, each at the best of its lrs, by three seeds.

    LSGD_DATA=… OMP_NUM_THREADS=1 python arms.py RUNS METHOD…     trains what is left, in RUNS

An arm is a method at one minibatch. It begins at the lrs of its search, with seed 0, and goes on
by factors of two while the best is at an edge; then seeds 1 and 2 train at the best. A run that is
in results/ already is read there. Each run is kept beside this file as it ends.
"""

import math
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lsgd.config import load_recipe
from lsgd.report.run_archive import FILE, unpack
from lsgd.run.read import NotARunError, Run, planned_run_folder, read_run

HERE = Path(__file__).parent
SEARCH, SEEDS = 0, (1, 2)


@dataclass(frozen=True)
class Method:
    """How the arms of a method are trained."""

    recipe: str
    words: tuple[str, ...]
    workers: tuple[int, ...]
    """Of 32 images each: the minibatches, from the smallest."""
    lrs: tuple[float, ...]
    """Of 64 images; with more it grows by the root."""
    never: float = 90.0
    """What a run that diverged counts as; in percent that is guessing."""


ELBOW, ROOT = (2, 16, 32, 64, 128), "schedule.scaling=sqrt"
METHODS = {
    "drops": Method("fashion_lenet5", (ROOT,), ELBOW, (0.01, 0.02, 0.04, 0.08)),
    "polynomial": Method("fashion_lenet5_poly", (), ELBOW, (0.01, 0.02, 0.04, 0.08)),
    "LARS": Method("fashion_lenet5_lars", (), ELBOW, (0.25, 0.5, 1.0, 2.0)),
    "steps to 10 %": Method(
        "fashion_lenet5",
        (
            "epochs=40", "schedule.warmup=none", "schedule.milestones=[]", ROOT,
            "metric.steps_to={top1_error:10}", "metric.stop=true",
        ),
        (1, 4, 16, 64),
        (0.005, 0.01, 0.02, 0.04),
        never=math.inf,
    ),
}  # fmt: skip


def words(method: str, workers: int, lr: float, seed: int) -> list[str]:
    """Those of a run, as the searches write them."""
    arm = METHODS[method]
    return [
        f"+recipe={arm.recipe}", f"seed={seed}", *arm.words, f"workers={workers}",
        f"schedule.reference_lr={lr}",
    ]  # fmt: skip


@cache
def kept() -> dict[str, Path]:
    """The folders of results/ whose runs are through, by their fingerprints."""
    found = {}
    loose = HERE.parent.glob("*fashion*/**/fashion_lenet5*/config.yaml")
    archives = sorted(HERE.parent.glob(f"*fashion*/{FILE}"))
    packed = [file for each in archives for file in unpack(each).rglob("config.yaml")]
    for file in [*sorted(packed), *sorted(loose)]:
        if not file.parent.name.startswith("fashion_lenet5"):
            continue
        run = read_run(file.parent)
        if run.finished or run.diverged:
            found[run.recipe.fingerprint] = file.parent
    return found


def through(folder: Path) -> Run | None:
    """The run in a folder, if it has ended."""
    try:
        run = read_run(folder)
    except NotARunError:
        return None
    return run if run.finished or run.diverged else None


def number(method: str, run: Run) -> float:
    """What the run came to: the error in percent, or the steps."""
    return METHODS[method].never if run.diverged else run.final_metric


def find(method: str, workers: int, lr: float, seed: int) -> Run | None:
    """The run, if it has been trained and kept."""
    recipe = load_recipe(words(method, workers, lr, seed))
    folder = kept().get(recipe.fingerprint, HERE / "seeds" / planned_run_folder(recipe).name)
    return through(folder)


def train(runs: Path, method: str, workers: int, lr: float, seed: int) -> float:
    """What a run comes to, trained if it has not been."""
    if run := find(method, workers, lr, seed):
        return number(method, run)
    recipe = load_recipe(words(method, workers, lr, seed))
    folder = runs / planned_run_folder(recipe).name
    if not through(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "lsgd.train", *words(method, workers, lr, seed)]
        with open(f"{folder}.log", "ab") as log:
            subprocess.run([*command, f"run_dir={folder}"], stdout=log, stderr=log, check=False)
    run = through(folder)
    assert run, f"{folder}.log says why"
    to = HERE / "seeds" / folder.name
    to.mkdir(parents=True, exist_ok=True)
    for name in ("config.yaml", "metrics.jsonl"):
        shutil.copy2(folder / name, to / name)
    value = number(method, run)
    print(f"{method}, {32 * workers}, lr {lr}, seed {seed}: {value:.2f}", flush=True)
    return value


def grid(method: str, workers: int) -> dict[float, float]:
    """What the search of an arm has come to so far, by lr."""
    low, high = min(METHODS[method].lrs), max(METHODS[method].lrs)
    lrs = [low / 8, low / 4, low / 2, *METHODS[method].lrs, high * 2, high * 4, high * 8]
    found = {lr: find(method, workers, lr, SEARCH) for lr in lrs}
    return {lr: number(method, run) for lr, run in found.items() if run}


def best(errors: dict[float, float]) -> float | None:
    """The lr with the least error; None as long as that is at an edge of what was tried."""
    lr = min(errors, key=lambda each: (errors[each], each), default=None)
    return lr if lr is not None and min(errors) < lr < max(errors) else None


def study(runs: Path, method: str, workers: int) -> None:
    """All of an arm."""
    for lr in METHODS[method].lrs:
        train(runs, method, workers, lr, SEARCH)
    if not math.isfinite(min(grid(method, workers).values())):
        return  # where no lr comes to the target another seed says nothing
    while (lr := best(errors := grid(method, workers))) is None:
        low, high = min(errors), max(errors)
        train(runs, method, workers, low / 2 if errors[low] <= errors[high] else high * 2, SEARCH)
    for seed in SEEDS:
        train(runs, method, workers, lr, seed)


if __name__ == "__main__":
    for each in sys.argv[2:]:
        for size in METHODS[each].workers:
            study(Path(sys.argv[1]), each, size)
