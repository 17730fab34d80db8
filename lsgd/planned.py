"""The planned runs of a study or a search, one recipe and seed each, and the one way to run them.

A planned run is started or resumed by a launcher and waited for (attempt_run). The run folder says
what is left of it, whoever trained it.
"""

import argparse
import os
import re
import shlex
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

from lsgd.errors import NotSavedError, UsageError, converting_disk_full
from lsgd.job.command import Parser, integer_from, positive_number
from lsgd.job.launcher import FIRST_GPU, cores, detect_launch, omp_num_threads
from lsgd.launch.k8s import check_options, longest_name
from lsgd.launch.options import LAUNCHERS, Request, option_words, read_options
from lsgd.launch.processes import count_processes, gpus_per_machine, python
from lsgd.launch.sbatch_options import with_gres_gpus
from lsgd.launch.status import QueuedRun, job_table, last_line
from lsgd.launch.submission import is_active, job_path, planned_job
from lsgd.override_syntax import expand_override_home, format_override
from lsgd.paths import checkpoint_steps
from lsgd.recipe import Recipe
from lsgd.run.read import NotARunError, Run, planned_run_folder, read_run
from lsgd.suggestions import did_you_mean
from lsgd.supervise.logbook import open_logbook
from lsgd.supervise.start import run_job
from lsgd.supervise.verdict import ExitSummary

FORBIDDEN_KEYS = {
    "name": "a run has the name of its recipe; leave it out",
    "run_dir": "the folder of a run is named by recipe, seed and fingerprint; leave it out",
    "rehearse": "a dry run has no result; write python -m lsgd.train recipe=NAME dry_run=true",
}
"""The keys that no override of planned runs may set, with the reason and the fix."""
VALUES_PER_GPU = 32 * 3 * 224 * 224
"""The input values of a step for which one more GPU pays off: the paper's 32 images per GPU.

Runs of small images in a queue get one GPU each, of which more would be idle.
"""
_taken_slots: set[int] = set()
"""The numbers of the runs that this process trains at the moment."""
_slots_lock = Lock()


@dataclass(frozen=True)
class PlannedRun:
    """A run that a study or a search plans to train: one recipe with one seed."""

    recipe: Recipe
    overrides: list[str]
    """The overrides of the recipe, without `run_dir`."""
    recipe_file: str | None = None
    """The file of a user's own recipe."""

    @property
    def recipe_argument(self) -> str:
        """The name of the recipe or the path of its file, as a launcher takes it."""
        return self.recipe_file or self.recipe.name

    def __str__(self) -> str:
        return f"{self.recipe.name}, seed {self.recipe.seed}"

    @property
    def folder(self) -> Path:
        """The path of the run folder; all studies that contain the same run share it."""
        return planned_run_folder(self.recipe)

    @property
    def log_path(self) -> Path:
        """The path of the log with the output of all attempts, of launcher and processes."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def job_path(self) -> Path:
        """The path of the file with the launcher's output of the last submission to a queue."""
        return job_path(self.folder)

    @property
    def saved_run(self) -> Run | None:
        """The run read from its run folder, or None if there is none of this fingerprint."""
        try:
            run = read_run(self.folder, train_rows=False)
        except NotARunError:
            return None
        model, theirs = self.recipe.model, run.recipe.model
        if model.starts_pretrained and theirs.start_sha256:
            # The run has recorded the file of these weights in place of the option.
            model = replace(model.started_from(theirs.start), start_sha256=theirs.start_sha256)
        planned = replace(self.recipe, model=model)
        return run if run.recipe.fingerprint == planned.fingerprint else None

    @property
    def epochs_done(self) -> int:
        """The number of epochs that are finished."""
        run = self.saved_run
        return run.epoch if run else 0

    @property
    def examples_left(self) -> int:
        """The number of examples still to train on, in the epochs that are not finished.

        A run that has stopped early or diverged has none left.
        """
        if has_ended(self.saved_run):
            return 0
        return (self.recipe.epochs - self.epochs_done) * self.recipe.train_examples

    @property
    def job_id(self) -> str | None:
        """The id of the Slurm job that was last submitted for this run, or None."""
        return planned_job(self.folder)

    @property
    def active_job(self) -> str | None:
        """The Slurm job of this run, as `job ID`, if it is pending or running; else None.

        Raises UsageError if squeue cannot answer, since the run might then be trained twice.
        """
        job = self.job_id
        if job is None:
            return None
        try:
            return f"job {job}" if is_active(job) else None
        except UsageError as error:
            problem = str(error)
        raise UsageError(
            f"it is unknown whether job {job} still trains {self} ({problem}); check where "
            f"squeue works, or remove {self.job_path} if the job has ended"
        )


def print_jobs(
    runs: Mapping[str, PlannedRun],
    submitted: Mapping[str, str] | None = None,
    *,
    runs_left: bool = False,
    settled: Container[str] = (),
) -> int:
    """Print the progress and the Slurm job of planned runs, by their name; return the exit code.

    `submitted` are jobs that choose their run as they start, with the name of what they train, and
    `runs_left` is whether they have runs to choose. The exit code is 1 if a run has not ended, is
    not one of those that are `settled`, and has no job that is queued or running, else 0.
    """
    entries = []
    for name, planned in runs.items():
        run = planned.saved_run
        state = run.state if run else "has not begun"
        is_over = name in settled or has_ended(run)
        entries.append(QueuedRun(name, planned.folder, state, is_over, planned.job_id))
    table, is_abandoned = job_table(entries, submitted or {}, runs_left=runs_left)
    print(table)
    return int(is_abandoned)


def has_ended(run: Run | None) -> bool:
    """Return whether there is nothing left to train in a run, since it has finished or diverged.

    A diverged run would diverge again. A run whose checkpoints lack the last epoch was killed while
    it saved that, and can resume. A folder without checkpoints, as published ones are, has what its
    rows say.
    """
    if run is None or not run.finished:
        return run is not None and run.diverged is not None
    # The last epoch may be saved as a milestone, and of a run that is over these may be all that is
    # kept.
    if not checkpoint_steps(run.path, milestones=False):
        return True
    return max(checkpoint_steps(run.path).values()) >= run.recipe.first_step(run.epoch)


@dataclass(frozen=True)
class RunLauncher:
    """A launcher of planned runs, such as slurm or local, with its command-line options."""

    name: str
    """The name of a launcher of lsgd.launch, or `spark`, whose executors start each process."""
    options: dict[str, str]

    def command(self, trial: PlannedRun) -> list[str]:
        """Return the command that starts or resumes a planned run; on Spark, of each process.

        Raises UsageError without an option that the launcher needs.
        """
        folder, (_, options) = trial.folder, self.fit(trial.recipe)
        if self.name == "spark":
            recipe = format_override("+recipe", trial.recipe_argument)
            run_dir = format_override("run_dir", folder)
            return [python(), "-m", "lsgd.train", recipe, *trial.overrides, run_dir]
        if self.name == "k8s":
            check_options(self.options)
            # The volume claim is mounted at /lsgd. Kubernetes accepts each job name only once.
            folder = Path("/lsgd") / folder
            options = options | {"--name": _name_on_kubernetes(trial.folder.name, options)}
        words = [trial.recipe_argument, *trial.overrides, format_override("run_dir", folder)]
        launch = [sys.executable, "-m", "lsgd.launch", self.name]
        return [*launch, *words, *option_words(options)]

    def fit(self, recipe: Recipe) -> tuple[int, dict[str, str]]:
        """Limit a launch to the processes that a recipe can use; return number and options.

        Each process hosts a worker at least. A Slurm job gets no more GPUs than its steps fill,
        unless the options give their number.
        """
        most = recipe.most_processes
        is_free = self.name == "slurm" and not self.options.keys() & {"--gpus", "--np"}
        if is_free and recipe.strategy.name == "allreduce":
            values = recipe.batch_size * recipe.data.channels * recipe.data.image_size**2
            most = min(most, max(1, values // VALUES_PER_GPU))
        return self.fit_processes(most)

    def request(self, trial: PlannedRun) -> Request:
        """Return the request to this launcher that starts or resumes a planned run."""
        _, options = self.fit(trial.recipe)
        overrides = [
            expand_override_home(word)
            for word in (*trial.overrides, format_override("run_dir", trial.folder))
        ]
        return Request(trial.recipe_argument, overrides, options)

    def fit_processes(self, max_processes: int) -> tuple[int, dict[str, str]]:
        """Limit a launch to `max_processes` processes; return their number and launcher options.

        The number of processes does not change what the run computes.
        """
        processes = count_processes(self.name, self.options)
        if processes <= max_processes:
            return processes, self.options
        if gpus := gpus_per_machine(self.name, self.options):
            gpus = min(gpus, max_processes)
            nodes = max_processes // gpus
            fewer = {"--nodes": str(nodes), "--gpus": str(gpus)}
            return nodes * gpus, with_gres_gpus(self.options, gpus) | fewer
        fewer = {"--np": str(max_processes)}
        if "--nodes" in self.options:
            fewer["--nodes"] = str(min(int(self.options["--nodes"]), max_processes))
        return max_processes, self.options | fewer


def _name_on_kubernetes(folder: str, options: Mapping[str, str]) -> str:
    """Return a valid Kubernetes job name made of the end of a run folder's name.

    The end holds the fingerprint, which is unique.
    """
    most = longest_name(options)
    name = re.sub("[^a-z0-9]+", "-", folder.lower())
    begin = "" if name[-most:][0].isalpha() else "t"
    return f"{begin}{name[len(begin) - most :]}"


def runs_here(launcher: RunLauncher) -> bool:
    """Return whether a launcher starts all processes of a run on this machine, and at once."""
    is_elsewhere = launcher.options.keys() & {"--hosts", "--nodes"}
    return not (is_elsewhere or launcher.name == "spark" or LAUNCHERS[launcher.name].submits)


def limit_threads(launcher: RunLauncher, jobs: int) -> None:
    """Set OMP_NUM_THREADS so that `jobs` concurrent runs share the cores of this machine.

    Otherwise each run would use one thread per core. A value set by the caller stays. Spark sets
    the number of each task, and runs on other machines keep the default: sbatch would pass on a
    number that is made of the cores of this one.
    """
    if not omp_num_threads(os.environ) and runs_here(launcher):
        processes = count_processes(launcher.name, launcher.options)
        threads = max(1, cores(detect_launch()) // (jobs * processes))
        os.environ["OMP_NUM_THREADS"] = str(threads)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The overrides and options that studies and searches have in common."""

    overrides: list[str]
    """The `key=value` overrides for every run, without the one that names study or search."""
    launcher: RunLauncher
    jobs: int | None
    """The number of runs or trials trained at a time; None for one, or on Slurm all that fit."""
    print_only: bool
    """Whether to print the state and command of each run, and start none."""
    report_only: bool
    """Whether to write the report on the existing runs, and train none."""
    cost_only: bool
    """Whether to print what the runs cost, and start none."""
    images_per_second: float | None
    """The speed of one GPU or process, by which their cost is estimated."""
    status_only: bool
    """Whether to print the state of each run and its Slurm job, and start none."""


def add_options(
    parser: Parser, *, trained: str, timed: str, more_launchers: str = ""
) -> argparse._MutuallyExclusiveGroup:
    """Add options of RunOptions, all but --cost; `trained` and `timed` name what they are about.

    Returns the group of options of which a command line may have one, to which others may be added.
    """
    parser.add_argument(
        "--launch",
        metavar="LAUNCHER",
        default="local",
        help=f"start runs by this launcher{more_launchers}, with its options (local)",
    )
    parser.add_argument(
        "--jobs",
        type=integer_from(1),
        metavar="N",
        help="train N runs at a time, with N times fewer threads (1)",
    )
    exclusive = parser.add_mutually_exclusive_group()
    exclusive.add_argument(
        "--print",
        dest="print_only",
        action="store_true",
        help="print finished runs and the commands of the others, and start nothing",
    )
    exclusive.add_argument(
        "--status",
        dest="status_only",
        action="store_true",
        help="print the progress of each run and its Slurm job, with its nodes and log",
    )
    exclusive.add_argument(
        "--report-only",
        action="store_true",
        help=f"write the report on the {trained} so far, and train none",
    )
    parser.add_argument(
        "--images-per-second",
        type=positive_number,
        metavar="X",
        help=f"the speed of one GPU, for the cost of {timed} without runs",
    )
    return exclusive


def given_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of add_options that a parser has read, as RunOptions takes them."""
    names = ("jobs", "print_only", "report_only", "cost_only", "images_per_second", "status_only")
    return {name: getattr(options, name) for name in names}


def read_launcher(
    parser: Parser, options: argparse.Namespace, rest: Sequence[str]
) -> tuple[list[str], RunLauncher]:
    """Split remaining command-line arguments into overrides and a launcher with its options.

    The launcher comes with its options. `parser` has parsed `options`. Raises UsageError.
    """
    # launch/slurm.sh means slurm.
    launcher = Path(options.launch).stem
    if launcher not in LAUNCHERS:
        hint = did_you_mean(launcher, sorted(LAUNCHERS))
        raise UsageError(f"--launch {launcher} does not exist; {hint}")
    overrides, launcher_options, _ = read_options(launcher, rest, parser)
    if "--array" in launcher_options:
        raise UsageError(
            "--array gives seeds of one recipe to launch; write seeds=[0..4] for them, and "
            "--jobs N for the number of runs at a time"
        )
    return overrides, RunLauncher(launcher, launcher_options)


def attempt_run(
    launcher: RunLauncher,
    trial: PlannedRun,
    received_signals: Sequence[int],
    log_line: Callable[[str], None],
) -> ExitSummary | None:
    """Start or resume a planned run; return how its job exited, or None if it had ended already.

    A signal handler appends stop signals to `received_signals`. The output goes to the run's log.
    Raises SupervisorLockedError if another process trains the run now, UsageError and OSError if it
    cannot be started, and NotSavedError if a disk is full, which does not mean that the run has
    failed.
    """
    with converting_disk_full(trial.log_path):
        trial.log_path.parent.mkdir(parents=True, exist_ok=True)
        ending = _attempt(launcher, trial, received_signals, log_line)
    if ending and ending.code == NotSavedError.exit_code:
        raise NotSavedError(
            f"{trial}: {failure_reason(trial, ending)}; rerun the same command to resume"
        )
    return ending


def _attempt(
    launcher: RunLauncher, trial: PlannedRun, signals: Sequence[int], say: Callable[[str], None]
) -> ExitSummary | None:
    with (
        trial.log_path.open("a", encoding="utf-8") as output,
        open_logbook(trial.folder, screen=output, patience=0) as logbook,
    ):
        run = trial.saved_run
        if run and has_ended(run):
            say(f"another process has trained it: {run.state}")
            return None
        if job := trial.active_job:
            raise UsageError(f"{job} is to train it; wait for that or cancel it")
        command = launcher.command(trial)
        begins = f"resumes after epoch {run.epoch}" if run and run.epoch else "starts"
        processes, _ = launcher.fit(trial.recipe)
        say(f"{begins}, processes: {processes}")
        logbook.log_event("start", shlex.join(command), command=command)
        with _free_slot() as slot:
            environment = gpus_of_slot(launcher, slot)
            ending = run_job(command, logbook, signals, output=output, environment=environment)
        logbook.log_event("end", ending.cause, code=ending.code)
        return ending


@contextmanager
def _free_slot() -> Iterator[int]:
    """Take the lowest number that no other run of this process has, until this one has ended."""
    with _slots_lock:
        slot = next(number for number in count() if number not in _taken_slots)
        _taken_slots.add(slot)
    try:
        yield slot
    finally:
        _taken_slots.discard(slot)


def gpus_of_slot(launcher: RunLauncher, slot: int) -> dict[str, str]:
    """Return the environment in which the run of a slot takes other GPUs than those before it.

    Concurrent runs take the GPUs of this machine in turn, one for each process, and share them once
    all are taken. It is empty for the first slot, whose GPUs begin with the first one, and where a
    queue or several machines decide.
    """
    if not slot or not runs_here(launcher):
        return {}
    return {FIRST_GPU: str(slot * count_processes(launcher.name, launcher.options))}


def failure_reason(trial: PlannedRun, ending: ExitSummary) -> str:
    """Return why a job exited before its run was finished: exit code, cause and last log line."""
    why = f"exit code {ending.code}, {ending.cause}"
    # The supervisor's own line repeats the exit code and the cause.
    line = last_line(trial.log_path, but=" supervise: ")
    if not line:
        return f"{why}; nothing is in {trial.log_path}"
    if line.removeprefix("lsgd: ") in ending.cause:
        return f"{why}; see {trial.log_path}"
    return f"{why}; {trial.log_path} ends with: {line}"
