"""Estimates of a study's training time, from earlier runs, a timed step or a plan."""

import statistics
import time
from collections.abc import Sequence

from lsgd.errors import UsageError
from lsgd.launch.processes import gpus_per_machine
from lsgd.planned.launch import RunLauncher
from lsgd.planned.planned_run import PlannedRun
from lsgd.recipe import Recipe
from lsgd.report.groups import RecipeRuns
from lsgd.report.speed import measure_speeds
from lsgd.run.remaining import duration

LIMIT = 300.0
"""The time limit for timing a step, in seconds."""


def cost_lines(
    launcher: RunLauncher,
    pending_runs: Sequence[PlannedRun],
    groups: Sequence[RecipeRuns],
    jobs: int,
) -> list[str]:
    """Return sentences that estimate the training time of these planned runs, with the sources.

    The speed of a recipe is that of its existing runs. Without runs it is that of a timed step on
    this machine or, where a run gets GPUs of a cluster, of lsgd.plan. Raises nothing.
    """
    if not pending_runs:
        return []
    gpus = gpus_per_machine(launcher.name, launcher.options) is not None
    run_as = {group.recipe.name: group for group in groups}
    seconds, hours, known, unknown = 0.0, 0.0, dict[str, list[str]](), list[str]()
    speeds: dict[object, tuple[float | None, str]] = {}
    names = list(dict.fromkeys(trial.recipe.name for trial in pending_runs))
    for name in names:
        trials = [trial for trial in pending_runs if trial.recipe.name == name]
        recipe = trials[0].recipe
        processes, _ = launcher.fit_processes(recipe.most_processes)
        # Recipes that differ in no field that affects the speed are timed once.
        alike = None if run_as[name].runs else _per_example(recipe, processes)
        speed, source = speeds.get(alike) or _speed(
            trials[0], run_as[name], processes, on_gpus=gpus
        )
        if alike:
            speeds[alike] = speed, source
        if speed is None:
            unknown.append(name)
            continue
        known.setdefault(source, []).append(name)
        taken = sum(trial.examples_left for trial in trials) / speed
        seconds += taken
        hours += taken * processes / 3600
    unit = "GPU hours" if gpus else "hours of a process"
    if not known:
        return [f"cost: how fast {', '.join(unknown)} would be trained is unknown"]
    sources = "; ".join(f"{', '.join(names)} by {source}" for source, names in known.items())
    aside = f", without {', '.join(unknown)}, whose speed is unknown" if unknown else ""
    at_once = f", {jobs} at a time" if jobs > 1 else ""
    return [
        f"cost: {len(pending_runs)} trials to train, {hours:,.1f} {unit}, "
        f"{duration(seconds / jobs)} "
        f"{'one after another' if jobs == 1 else 'together'}{at_once}{aside} ({sources})"
    ]


def _per_example(recipe: Recipe, processes: int) -> str:
    """Return a string that is equal for recipes of the same training time per example.

    The minibatch size is not among them, since a step consists of micro-batches of fixed size.
    """
    in_pass = recipe.workers_per_pass
    if isinstance(in_pass, int):
        in_pass = min(in_pass, -(-recipe.workers // processes))
    kinds = recipe.model, recipe.data, recipe.optim, recipe.strategy, recipe.precision
    return repr((*kinds, recipe.worker_batch, in_pass, processes))


def _speed(
    trial: PlannedRun, group: RecipeRuns, processes: int, *, on_gpus: bool
) -> tuple[float | None, str]:
    """Estimate a run's examples/s on `processes` processes, or None; return it and its source."""
    if (speed := _of_runs(group, processes)) is not None:
        return speed, "existing runs"
    if on_gpus:
        return _planned(trial, processes), "lsgd.plan, on P100s"
    return _timed(trial, processes), "a step timed now"


def _of_runs(group: RecipeRuns, processes: int) -> float | None:
    """Return the median examples/s of a recipe's existing runs, or None if it has none.

    Only the runs on `processes` processes count, if there are any.
    """
    speeds = measure_speeds([group])
    alike = [speed for speed in speeds if speed.processes == processes] or speeds
    return statistics.median(speed.per_second for speed in alike) if alike else None


def _timed(trial: PlannedRun, processes: int) -> float | None:
    """Time two training steps on synthetic examples in new processes; return examples/s or None."""
    from lsgd.bench.job import open_job

    overrides = [f"+recipe={trial.recipe.name}", *trial.overrides]
    library = "single" if processes == 1 else "torch"
    try:
        with open_job("lsgd.bench.scaled_steps", library, processes, overrides, limit=LIMIT) as job:
            images = job.prepare("strong")["images"]
            taken = []
            for _ in range(2):
                began = time.monotonic()
                job.run("strong", 1)
                taken.append(time.monotonic() - began)
            return float(images / min(taken))
    except UsageError:
        return None


def _planned(trial: PlannedRun, gpus: int) -> float | None:
    """Predict the examples/s on `gpus` P100s of the paper's cluster; None for another network."""
    from lsgd.plan import paper
    from lsgd.plan.gradients import gradient_buckets
    from lsgd.plan.hardware import PAPER
    from lsgd.plan.step import ModelledCluster

    if not paper.is_paper_model(trial.recipe):
        return None
    machine = ModelledCluster(
        PAPER, 8, gradient_buckets(trial.recipe, fused=PAPER.fused), paper.paper_step()
    )
    return machine.step(trial.recipe, gpus).images_per_second
