"""Estimates of the cost of planned runs, from earlier runs, a timed step, a plan or a limit."""

import contextlib
import statistics
import time
from collections.abc import Mapping, Sequence
from heapq import heapreplace

from lsgd.errors import UsageError
from lsgd.job.launcher import cores, detect_launch, omp_num_threads
from lsgd.launch.options import LAUNCHERS
from lsgd.launch.processes import gpus_per_machine
from lsgd.launch.sbatch_options import time_limit
from lsgd.override_syntax import format_override
from lsgd.planned import PlannedRun, RunLauncher, runs_here
from lsgd.recipe import Recipe
from lsgd.report.groups import RecipeRuns
from lsgd.report.speed import examples_per_second
from lsgd.run.remaining import duration
from lsgd.tables import format_count

LIMIT = 300.0
"""The time limit for timing a step, in seconds."""


def cost_lines(
    launcher: RunLauncher,
    pending_runs: Sequence[PlannedRun],
    possible_runs: Sequence[PlannedRun],
    groups: Sequence[RecipeRuns],
    jobs: int,
    images_per_second: float | None = None,
) -> list[str]:
    """Return sentences that estimate the training time of these planned runs, with the sources.

    `images_per_second` is the speed of one process, by which recipes without runs are estimated. As
    that of a timed step, it is of images of data.image_size; others take time in proportion to the
    network's multiply-adds.

    `possible_runs` are those that are trained too if no claim is decided before the most seeds.
    The speed of a recipe is that of its existing runs, on GPUs if it gets some. Without runs it is
    that of a timed step on this machine or, where a run gets GPUs of a cluster, of lsgd.plan.
    Raises nothing.
    """
    if not pending_runs and not possible_runs:
        return []
    gpus = gpus_per_machine(launcher.name, launcher.options) is not None
    sharing = jobs if runs_here(launcher) else 1
    run_as = {group.recipe.name: group for group in groups}
    speeds: dict[str, tuple[float | None, str]] = {}
    timed: dict[str, tuple[float | None, str]] = {}
    for trial in [*pending_runs, *possible_runs]:
        name = trial.recipe.name
        if name in speeds:
            continue
        processes, _ = launcher.fit(trial.recipe)
        if run_as[name].runs or images_per_second is not None:
            speeds[name] = speed(launcher, trial, run_as[name], images_per_second, jobs=sharing)
            continue
        # Recipes that differ in no field that affects the speed are timed once.
        alike = _per_example(trial.recipe, processes)
        if alike not in timed:
            timed[alike] = speed(launcher, trial, run_as[name], jobs=sharing)
        speeds[name] = timed[alike]
    sources: dict[str, list[str]] = {}
    for name, (rate, source) in speeds.items():
        if rate is not None:
            sources.setdefault(source, []).append(name)
    unknown = [name for name, (rate, _) in speeds.items() if rate is None]
    if not sources:
        return [f"cost: how fast {', '.join(unknown)} would be trained is unknown"]
    how = "; ".join(f"{', '.join(names)} by {source}" for source, names in sources.items())
    aside = f", without {', '.join(unknown)}, whose speed is unknown" if unknown else ""
    known = {name: rate for name, (rate, _) in speeds.items() if rate is not None}
    lines = [f"cost: {_cost(launcher, pending_runs, known, jobs, gpus=gpus)}{aside} ({how})"]
    if possible_runs:
        every = [*pending_runs, *possible_runs]
        lines.append(f"cost at most: {_cost(launcher, every, known, jobs, gpus=gpus)}{aside}")
    return lines


def _cost(
    launcher: RunLauncher,
    runs: Sequence[PlannedRun],
    speeds: Mapping[str, float],
    jobs: int,
    *,
    gpus: bool,
) -> str:
    """Return how long these runs take at the speeds of their recipes, of which each has one."""
    sharing = jobs if runs_here(launcher) else 1
    seconds, hours = [], 0.0
    for trial in runs:
        if trial.recipe.name in speeds:
            taken = _full_size_examples_left(trial) / speeds[trial.recipe.name]
            processes, _ = launcher.fit(trial.recipe)
            seconds.append(taken)
            hours += taken * processes * (1 if gpus else threads(processes, sharing)) / 3600
    at_once = min(jobs, len(seconds))
    return (
        f"{format_count(len(runs), 'run')} to train, {hours:,.1f} {'GPU' if gpus else 'CPU'} "
        f"hours, {duration(time_together(seconds, jobs))} "
        f"{f'together, {at_once} at a time' if at_once > 1 else 'one after another'}"
    )


def time_together(seconds: Sequence[float], jobs: int) -> float:
    """Return the time of runs that take these seconds and start in order, `jobs` at a time.

    >>> time_together([7, 7], 8), time_together([1, 2, 30], 3), time_together([3, 1, 1, 4], 2)
    (7.0, 30.0, 6.0)
    """
    ends = [0.0] * max(1, min(jobs, len(seconds)))
    for taken in seconds:
        heapreplace(ends, ends[0] + taken)
    return max(ends)


def _full_size_examples_left(trial: PlannedRun) -> float:
    """Return the images of data.image_size that take as long as the examples that a run has left.

    Where images have one size, it is the number of these examples.
    """
    recipe, left = trial.recipe, trial.examples_left
    if not recipe.image_sizes.points or not left:
        return left
    done = trial.epochs_done
    return (recipe.epochs - done) * recipe.train_examples * mean_work(recipe, done)


def mean_work(recipe: Recipe, epoch: int = 0) -> float:
    """Return the mean work of an example from an epoch on, relative to one of data.image_size."""
    if not recipe.image_sizes.points or epoch >= recipe.epochs:
        return 1.0
    work, epochs = _work_by_size(recipe), range(epoch, recipe.epochs)
    return statistics.fmean(work[recipe.training_size(each)] for each in epochs)


def _work_by_size(recipe: Recipe) -> Mapping[int, float]:
    """Return the work of a training image of each size, relative to one of data.image_size."""
    if recipe.image_sizes.points:
        # A slow import, as it imports torch.
        from lsgd.plan.phases import relative_work

        # A library's network may not be installed, or takes images of one size.
        with contextlib.suppress(Exception):
            return relative_work(recipe)
    return dict.fromkeys(recipe.training_sizes, 1.0)


def threads(processes: int, jobs: int) -> int:
    """Return the CPU threads of each process of a run, of `jobs` on a machine like this one."""
    return omp_num_threads() or max(1, cores(detect_launch()) // (processes * jobs))


def _per_example(recipe: Recipe, processes: int) -> str:
    """Return a string that is equal for recipes of the same training time per example.

    The minibatch size is not among them, since a step consists of micro-batches of fixed size.
    """
    in_pass = recipe.workers_per_pass
    if isinstance(in_pass, int):
        in_pass = min(in_pass, -(-recipe.workers // processes))
    kinds = recipe.model, recipe.data, recipe.optim, recipe.strategy, recipe.precision
    return repr((*kinds, recipe.worker_batch, in_pass, processes))


def speed(
    launcher: RunLauncher,
    trial: PlannedRun,
    group: RecipeRuns,
    images_per_second: float | None = None,
    *,
    jobs: int = 1,
) -> tuple[float | None, str]:
    """Estimate a run's examples/s with this launcher, or None; return it with its source.

    It is that of images of data.image_size. `group` has the existing runs of the recipe, and
    `images_per_second` is the speed of one process of a recipe without runs. As many runs as `jobs`
    share the cores of a machine.
    """
    processes, _ = launcher.fit(trial.recipe)
    gpus = gpus_per_machine(launcher.name, launcher.options) is not None
    kind = _on_gpus(launcher, trial.recipe)
    threads_each = threads(processes, jobs)
    # Only where there are runs, since a network is built for the work.
    work = _work_by_size(trial.recipe) if group.runs or group.repeats else {}
    measured = examples_per_second(group, processes, work, on_gpus=kind, threads=threads_each)
    if measured is not None:
        return measured, "existing runs"
    if images_per_second is not None:
        return processes * images_per_second, "--images-per-second"
    if gpus:
        return _planned(trial, processes), "lsgd.plan, on P100s"
    return _timed(trial, processes, threads_each), "a step timed now"


def _on_gpus(launcher: RunLauncher, recipe: Recipe) -> bool | None:
    """Return whether a planned run is on GPUs; None if it takes those that its machines have."""
    if gpus_per_machine(launcher.name, launcher.options) is not None:
        return True
    asks = any(option.startswith(("--gpu", "--gres")) for option in launcher.options)
    is_without = LAUNCHERS[launcher.name].submits and not asks
    return False if is_without or recipe.device == "cpu" else None


def limit_line(launcher: RunLauncher, runs: Sequence[PlannedRun]) -> str:
    """Return a sentence with the GPU hours that these runs take at most by --time; '' without it.

    A run that saves at the limit and is requeued takes more.
    """
    limit = time_limit(launcher.options.get("--time", ""))
    if limit is None or "--np" in launcher.options or not runs:
        return ""
    gpus = sum(launcher.fit(run.recipe)[0] for run in runs)
    return (
        f"cost by --time {launcher.options['--time']}: at most {gpus * limit / 3600:,.1f} GPU "
        f"hours, if no run is requeued"
    )


def _timed(trial: PlannedRun, processes: int, threads: int) -> float | None:
    """Time two training steps on synthetic examples in new processes; return examples/s or None.

    Each process has this number of threads.
    """
    from lsgd.bench.job import open_job

    overrides = [format_override("recipe", trial.recipe_argument), *trial.overrides]
    library = "single" if processes == 1 else "torch"
    try:
        with open_job(
            "lsgd.bench.scaled_steps",
            library,
            processes,
            overrides,
            limit=LIMIT,
            environment={"OMP_NUM_THREADS": str(threads)},
        ) as job:
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
