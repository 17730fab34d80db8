"""What every process of a distributed test runs; one launch has all cases, as starting costs most.

    LAUNCHER python program.py OUT LIBRARY

Process 0 writes what came out to OUT/results.pt. The same functions, called in the test process
over SingleComm, give what it has to be equal to.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from lsgd import config
from lsgd.comm import Comm, joined
from lsgd.errors import Diverged
from lsgd.evaluation import TrainedModel, evaluate
from lsgd.inputs import open_inputs
from lsgd.learner import Learner
from lsgd.recipe import CommSettings, Recipe
from lsgd.rules import sampler
from lsgd.run import checkpoint
from lsgd.step import train_step
from lsgd.strategy.reducer import Reducer
from lsgd.workloads import open_workload

CPU = torch.device("cpu")

# 1442 digits in steps of 8 x 8: 23 steps an epoch, the last of 34 = 8 + 8 + 8 + 8 + 2 + 0 + 0 + 0.
# The steps made cross the end of the warmup, that tail, the epoch's end and a drop of the lr.
FIRST, LAST = 10, 30
STOPS = (13, 22, 23)
WORDS = [
    "+recipe=digits", "workers=8", "worker_batch=8", "precision=float64", "tail=keep", "epochs=3",
    "schedule.reference_batch=16", "schedule.reference_lr=0.0125", "schedule.warmup_epochs=0.8",
    "schedule.milestones=[1]", "comm.bucket_mb=0.05", "model.last_gamma=1.0",
]  # fmt: skip

LARS = [
    "optim=lars", "optim.weight_decay=1e-3", "label_smoothing=0.1", "schedule.scaling=none",
    "schedule.reference_lr=8", "schedule.warmup_start=0", "schedule.milestones=[]",
    "schedule.decay=polynomial", "schedule.end_lr=1e-4", "schedule.decay_steps=40",
]  # fmt: skip
"""The same by LARS, from lr 0 and down by a polynomial, with smoothed labels."""
GROWTH = [
    "batch_growth.milestones=[1]", "batch_growth.factor=4", "averaging=ema",
    "averaging.half_life=5", "bn_statistics.examples=200",
]  # fmt: skip
"""32 workers from step 23 on, whose epochs are of 6 steps; averages are evaluated, with precise BN
statistics."""
VARIANTS = {"lars": (LARS, STOPS[1:2]), "growth": (GROWTH, (22, 25))}
"""The words, and where such a run is stopped."""


def stops(processes: int) -> tuple[int, ...]:
    """Where so many processes are stopped: everywhere, or before the tail if they are slow."""
    return STOPS if processes < 4 else STOPS[1:2]


def recipe(*words: str) -> Recipe:
    """The recipe that the cases train, changed by these words."""
    return config.load_recipe([*WORDS, *words])


def run_steps(learner: Learner, first: int, last: int) -> list[int]:
    """Make these steps of the run; returns the example ids that this process went through."""
    inputs = open_inputs(learner.recipe, CPU)
    ids = []
    for epoch, steps in learner.recipe.epochs_from(first):
        steps = [step for step in steps if step < last]
        tasks = list(learner.strategy.tasks(epoch, steps))
        batches = inputs.train(each for task in tasks for each in task.passes)
        for task in tasks:
            ids += [i for each in task.passes for i in each.by_worker.ravel().tolist()]
            train_step(learner, task, batches)
    return ids


def state_of(learner: Learner) -> dict[str, Any]:
    """Parameters, combined BN statistics and momentum, what an evaluation has for a model, and the
    counts, as tensors of their own."""
    saved = learner.checkpoint()
    momentum = saved.optimizer["state"]
    tensors = {f"model {k}": v.clone() for k, v in saved.model.items()}
    inputs = open_inputs(learner.recipe, CPU)
    with torch.inference_mode(), learner.workload.evaluated(learner.model, inputs):
        tensors |= {f"evaluated {k}": v.clone() for k, v in learner.model.state_dict().items()}
    tensors |= {f"momentum {k}": next(iter(v.values())).clone() for k, v in momentum.items()}
    return tensors | {f"tally {k}": v.clone() for k, v in saved.tally.items()} | {"lr": saved.lr}


def trained(comm: Comm, first: int, last: int, *words: str) -> dict[str, Any]:
    """The state after these steps from a new start."""
    learner = Learner(recipe(*words), comm, CPU)
    ids = run_steps(learner, first, last)
    return state_of(learner) | {"ids": [i for part in comm.gather_objects(ids) for i in part]}


def stopped(comm: Comm, out: Path, steps: Sequence[int], *words: str) -> None:
    """A checkpoint at each of these steps of one run, in folders of their own."""
    learner = Learner(recipe("workers_per_pass=2", *words), comm, CPU)
    for first, last in pairwise((FIRST, *steps)):
        run_steps(learner, first, last)
        folder = out / f"stop{last}"
        folder.mkdir(parents=True, exist_ok=True)
        made = learner.checkpoint()
        if comm.rank == 0:
            checkpoint.write(made, folder)
    # The others wait until they are there.
    comm.gather_objects(None)


def resumed(comm: Comm, folder: Path, *words: str) -> dict[str, Any]:
    """The state at the last step, from the checkpoint in this folder."""
    learner = Learner(recipe(*words), comm, CPU)
    path = folder / checkpoint.FILE
    learner.restore(checkpoint.load(checkpoint.read(path), str(path)))
    run_steps(learner, learner.next_step, LAST)
    return state_of(learner)


def evaluated(comm: Comm) -> tuple[int, float, float]:
    """53 images in batches of 4: how many were counted, and the errors."""
    learner = Learner(recipe(), comm, CPU)
    run_steps(learner, FIRST, FIRST + 2)
    learner.strategy.settle()
    few = replace(learner.recipe, val_batch=4, data=replace(learner.recipe.data, val_examples=53))
    model = TrainedModel(open_workload(few, CPU), learner.model, comm, CPU)
    scores = evaluate(model, open_inputs(learner.recipe, CPU))["val"]
    return scores.counts["images"], scores.rates["top1_error"], scores.rates["top5_error"]


def compressed(comm: Comm, value: float) -> float:
    """What a mean gradient of `value` on every process is after reduction in fp16."""
    parameter = torch.nn.Parameter(torch.zeros(3))
    reducer = Reducer([parameter], comm, bucket_mb=25, compression="fp16")
    reducer.start(8 * comm.world_size, passes=1)
    reducer.backward((parameter * 8 * value).sum())
    reducer.finish()
    assert not reducer.found_inf
    return float(parameter.grad.max())


def diverged(comm: Comm) -> dict[str, Any]:
    """What every process does when the images of the last one are not numbers in the third step."""
    learner = Learner(recipe(), comm, CPU)
    run_steps(learner, FIRST, FIRST + 2)
    before = [p.detach().clone() for p in learner.model.parameters()]
    poisoned = comm.rank == comm.world_size - 1
    message = ""
    try:
        for task in learner.strategy.tasks(0, [FIRST + 2, FIRST + 3]):
            inputs = open_inputs(learner.recipe, CPU)
            batches = (
                (images * (float("nan") if poisoned else 1), labels)
                for images, labels in inputs.train(task.passes)
            )
            train_step(learner, task, batches)
    except Diverged as error:
        message = str(error)
    kept = all(map(torch.equal, before, learner.model.parameters()))
    try:
        learner.checkpoint()
        saves = True
    except Diverged:
        saves = False
    return {"message": message, "parameters kept": kept, "saves": saves}


def cases(comm: Comm, out: Path) -> dict[str, Any]:
    """All that one launch shows."""
    most = max(len(sampler.share(8, comm.world_size, rank)) for rank in range(comm.world_size))
    # More workers per pass than a process has are all that it has: with 8 processes 8 are 1.
    carried = {w: min(w, most) for w in (1, 2, 8)}
    made = {w: trained(comm, FIRST, LAST, f"workers_per_pass={w}") for w in {*carried.values()}}
    results: dict[str, Any] = {f"float64 {w}": made[carried[w]] for w in carried}
    results["float32"] = trained(comm, FIRST, FIRST + 5, "precision=float32", "workers_per_pass=2")
    stopped(comm, out, stops(comm.world_size))
    for step in stops(comm.world_size):
        # Bit by bit the uninterrupted run of as many processes.
        results[f"resumed {step}"] = resumed(comm, out / f"stop{step}", "workers_per_pass=2")
        if (alone := out.parent / "alone" / f"stop{step}").exists():
            results[f"taken over {step}"] = resumed(comm, alone)
    for variant, (words, at) in VARIANTS.items():
        for w in {*carried.values()}:
            state = trained(comm, FIRST, LAST, *words, f"workers_per_pass={w}")
            results[f"{variant} {w}"] = state
        stopped(comm, out / variant, at, *words)
        for name, folder in (("resumed", out), ("taken over", out.parent / "alone")):
            for step in at:
                stop = folder / variant / f"stop{step}"
                state = resumed(comm, stop, *words, "workers_per_pass=2")
                results[f"{variant} {name} {step}"] = state
    results["evaluated"] = evaluated(comm)
    results["compressed"] = {value: compressed(comm, value) for value in (40000.0, 1.0, 5e-9)}
    results["diverged"] = comm.gather_objects(diverged(comm))
    return results


def main(out: Path, library: str) -> None:
    """All cases over this library."""
    with joined(CommSettings(library=library, timeout=60), CPU) as comm:
        results = cases(comm, out)
        if comm.rank == 0:
            torch.save(
                results | {"world_size": comm.world_size, "library": comm.library},
                out / "results.pt",
            )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), *sys.argv[2:])
