"""Verify anybody's run by executing parts of it again: `python -m lsgd.verify RUN`.

examples:
  python -m lsgd.verify runs/a
  python -m lsgd.verify runs/a data.root=/data/imagenet --steps 100 --places 8
  torchrun --nproc-per-node 8 -m lsgd.verify runs/a --seed 7 --out a.json

RUN is a run folder, finished or not, of any machine. Nothing in it is executed or changed. First
the files are compared with each other: the fingerprint with the recipe, the lr of every row, and
each checkpoint's check sum, step, order of examples, data and metrics. Then up to --steps steps are
executed again after each place: the start of the run, the last checkpoint, and other checkpoints
that the seed draws. Loss, error and gradient norm are compared with the rows, parameters, momentum
and BN statistics with the next checkpoint, if it is among these steps, and a checkpoint at the end
of an epoch is evaluated. The tolerance, and the steps and evaluations in all, are printed before
the first step, and then the time left.

Only what is compared is confirmed. A run without checkpoints is confirmed from its start alone.
Train with keep_checkpoints=verify to keep at most 12, spread over the run.
The result is written beside the folder, to RUN.verification.json, which lsgd.report shows. Fields
that do not change the result, such as data.root, device or comm.library, can be overridden.

exit codes: 0 confirmed, 1 a difference, 2 refused, as the data are others or missing
"""

import platform
import secrets
import sys
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import lsgd
from lsgd import config
from lsgd.autotune import kept_values, resolve_auto_fields
from lsgd.comm import Comm, broadcast_from_rank0, describe, joined
from lsgd.errors import UsageError
from lsgd.inputs import Inputs, has_evaluation_set, is_dali_installed
from lsgd.inputs.consistency import (
    Digests,
    check_same_data,
    further_sets,
    open_consistent_inputs,
)
from lsgd.inputs.staging import stage_data
from lsgd.job.command import Parser, integer_from, number_type, run_command
from lsgd.job.device import device_name, pick_device
from lsgd.job.launcher import detect_launch
from lsgd.learner import Learner
from lsgd.override_syntax import key_and_value
from lsgd.recipe import Recipe, StrategySettings
from lsgd.recipe.checks import check_world_size
from lsgd.recipe.fields import AUTO
from lsgd.run import provenance
from lsgd.run.checkpoint import checkpoint_files, order_hash
from lsgd.run.read import NotARunError, Run, read_run
from lsgd.run.rows import MEASURED, Row
from lsgd.run.verification import (
    RunVerification,
    check_new,
    rows_digest,
    verification_path,
    write_verification,
)
from lsgd.start_weights import read_start_weights
from lsgd.tables import markdown_table
from lsgd.trained_model import for_this_machine
from lsgd.verify import records
from lsgd.verify.checkpoints import is_newer_than_rows, load, note_deleted, read_checkpoints
from lsgd.verify.evidence import (
    COUNTED_LEAST,
    COUNTED_SHARE,
    ROUNDING_FACTOR,
    UNRESOLVED,
    Evidence,
    tolerance_of,
)
from lsgd.verify.progress import DIRECTIONS, EXECUTIONS, Progress, Work, work_of_place
from lsgd.verify.reexecution import (
    ExecutedSteps,
    Execution,
    compare_steps,
    draw_places,
    norm_rounding,
    perturb,
    restore,
)
from lsgd.workloads import Workload, open_workload


def verify(
    run: Run,
    overrides: Sequence[str],
    *,
    steps: int,
    places: int,
    seed: int | None,
    tolerance: float | None,
) -> RunVerification | None:
    """Verify a run and return the verdict; None on all processes of the job but process 0.

    The run may still train. Raises UsageError if it cannot be verified here, as its data are
    missing.
    """
    recipe = recipe_here(run, overrides)
    if not run.begun:
        raise UsageError(
            f"{run.path} has no row of a step in metrics.jsonl, so that nothing can be compared; "
            "give the folder of a run that has made some"
        )
    allowed = tolerance_of(recipe) if tolerance is None else tolerance
    evidence = Evidence(allowed)
    device = pick_device(recipe.device, numa=recipe.numa)
    with joined(recipe.comm, device) as comm:
        check_world_size(recipe, comm.world_size)
        run, listed, rows_sha256, drawn_seed = _agree(comm, run, seed)
        stage_data(recipe, comm)
        workload = open_workload(recipe, device)
        inputs, data = open_consistent_inputs(comm, workload.inputs)
        is_of_this_commit = records.is_of_this_commit(run)
        evidence.other_keys_differ = is_of_this_commit and run.recipe.strategy.name == "allreduce"
        if not is_of_this_commit:
            evidence.norm_rounding = norm_rounding(workload.network(), recipe.precision)
        here = {"device": device_name(device)}
        here |= {module.__name__: module.__version__ for module in (lsgd, torch, np)}
        records.check_loader(run, inputs.name, evidence)
        start = read_start_weights(recipe, comm)
        checked = _CheckedRun(run, evidence, steps)
        checked.check_files(listed, recipe, workload, data, here)
        checked.keep_common(comm)
        recipe, _ = resolve_auto_fields(recipe, checked.timed, comm, device)
        checked.draw_places(places, drawn_seed)
        new = partial(Learner, recipe, comm, device, data, start.tensors, start.optimizer)
        executed, rows = checked.execute_all(recipe, new, inputs, comm, drawn_seed)
        records.check_keys(run, rows, workload.evaluation_sets, evidence, checked.sets)
        checked.note_distances()
        checked.require_confirmation()
        if comm.rank:
            return None
        machine = f"{describe(comm, device, threads=recipe.threads)}; {inputs.name}"
        return checked.verdict(rows_sha256, drawn_seed, len(executed), machine)


def _agree(comm: Comm, run: Run, seed: int | None) -> tuple[Run, list[Path], str, int]:
    """Return the run, its checkpoints, the digest of its rows and the seed, as of process 0.

    All processes must restore the same checkpoints and make the same rows of a run that may train.
    The seed is drawn if it is None.
    """
    return broadcast_from_rank0(
        comm,
        lambda: (
            run,
            checkpoint_files(run.path),
            rows_digest(run.path, len(run.rows)),
            secrets.randbelow(10**6) if seed is None else seed,
        ),
    )


def recipe_here(run: Run, overrides: Sequence[str]) -> Recipe:
    """Adapt a run's recipe to this machine; raise UsageError if that would change the trajectory.

    Settings of the machine that trained it do not hold here, but images are read by the same loader
    if it is installed, and with its settings that decide pixels, as another one rounds pixels
    differently. Parameter servers that wait for all workers are replaced by an all-reduce, which
    computes the same sums.
    """
    records.require_supported(run.recipe)
    values = for_this_machine(asdict(run.recipe)) | {
        "strategy": asdict(StrategySettings()),
        "trackers": [],
        "run_dir": None,
    }
    loader = records.loader_of(run)
    if values["inputs"]["loader"] == AUTO and (loader != "dali" or is_dali_installed()):
        values["inputs"]["loader"] = loader
        chosen = dict(map(key_and_value, overrides))
        if {chosen.get(key, loader) for key in ("inputs", "inputs.loader")} == {loader}:
            values["inputs"] |= records.settings_of_dali(run, loader)
    recipe = config.from_saved(values, *overrides)
    if all(key_and_value(override)[0] != "evaluation.sets" for override in overrides):
        # A resume may have added sets, and config.yaml has those of the first start.
        others = [name for name in records.sets_in_rows(run) if has_evaluation_set(recipe, name)]
        sets = [*dict.fromkeys([*recipe.evaluation.sets, *others])]
        recipe = replace(recipe, evaluation=replace(recipe.evaluation, sets=sets))
    if recipe.fingerprint != run.recipe.fingerprint:
        raise UsageError(
            f"{' '.join(overrides)} would change the run of {run.path}; it is verified as it was "
            "trained, and only fields that decide how fast and where may differ, such as "
            "data.root, device, comm.library"
        )
    return recipe


@dataclass
class _CheckedRun:
    """A run whose files were compared with each other, and whose steps are executed again."""

    run: Run
    evidence: Evidence
    steps: int
    """The largest number of steps that are executed again at each place."""
    are_rows_in_order: bool = False
    """Whether the rows are in the order of the run's steps."""
    names: list[str] = field(default_factory=list)
    """The names of the checkpoints that can be read."""
    saved_at: defaultdict[int, list[Path]] = field(default_factory=lambda: defaultdict(list))
    """The checkpoints that belong to the run, by step."""
    sets: set[str] = field(default_factory=set)
    """The evaluation sets beside val of whose images a checkpoint has digests."""
    timed: dict[str, Any] = field(default_factory=dict)
    """The values that lsgd.autotune had chosen, by the last of these checkpoints."""
    made_steps: int = 0
    """The number of steps that the run has made, by its rows and checkpoints."""
    diverged_by_step: int | None = None
    """The number of steps by which the run states that it diverged; None if it does not."""
    last_steps: dict[int, int] = field(default_factory=dict)
    """The step before which execution ends, by the place after which it begins."""

    def check_files(
        self,
        listed: Sequence[Path],
        recipe: Recipe,
        workload: Workload,
        data: Digests,
        here: dict[str, str],
    ) -> None:
        """Compare the run's files with its recipe and each other, without executing a step.

        Raises UsageError if a checkpoint was trained on other data.
        """
        run, evidence = self.run, self.evidence
        records.check_fingerprint(run, evidence)
        records.check_versions(run, here, evidence)
        records.check_metric(run, workload.metric.name, evidence)
        self.are_rows_in_order = records.check_rows(recipe, run.rows, evidence)
        order_of = cache(lambda epoch: order_hash(workload.example_order(epoch)))
        for path, saved in read_checkpoints(listed, evidence):
            if is_newer_than_rows(saved, run):
                evidence.note(f"{path.name} is newer than the rows that were read, and is left out")
                continue
            if not all(isinstance(each, str) for item in saved.data.items() for each in item):
                evidence.differ(f"{path.name}: its digests of the data are not texts")
                continue
            check_same_data(saved.data, data)
            self.names.append(path.name)
            self.sets |= further_sets(saved.data)
            if records.check_checkpoint(path, saved, run, order_of, evidence):
                self.saved_at[saved.step].append(path)
                self.timed = kept_values(saved.recipe)
        self.diverged_by_step = records.check_divergence(run, self.saved_at, evidence)
        steps = [row["step"] for row in run.rows]
        self.made_steps = max([0, *steps, *self.saved_at, self.diverged_by_step or 0])
        if not self.names:
            evidence.note("no checkpoint is there, so that only the start is executed again")

    def keep_common(self, comm: Comm) -> None:
        """Drop the checkpoints that another process has not read, as the run has deleted them."""
        common = set.intersection(*map(set, comm.gather_objects([*self.saved_at])))
        for step in self.saved_at.keys() - common:
            del self.saved_at[step]

    def draw_places(self, count: int, seed: int) -> None:
        """Draw the places after which steps are executed again; none if the rows have no order.

        Raises UsageError if no executed step would reach a row, an evaluation or a checkpoint.
        """
        places = draw_places(self.saved_at, count, seed) if self.are_rows_in_order else []
        self.last_steps = {place: min(place + self.steps, self.made_steps) for place in places}
        if not self.evidence.mismatches:
            self._require_comparison()

    def _require_comparison(self) -> None:
        """Raise UsageError if no executed step would reach a row, an evaluation or a checkpoint."""
        run, last_steps = self.run, self.last_steps
        rows = [row for row in run.rows if row["kind"] in MEASURED]
        ends = {self.diverged_by_step or 0} - {0}
        known = sorted({row["step"] for row in rows} | self.saved_at.keys() | ends)
        newest = max(known, default=0)
        following = {place: known[bisect(known, place)] for place in last_steps if place < newest}
        is_reached = any(step <= last_steps[place] for place, step in following.items())
        is_evaluated = any(
            row["kind"] in ("epoch", "evaluation") and row["step"] in last_steps for row in rows
        )
        if following and not is_reached and not is_evaluated:
            needed = min(step - place for place, step in following.items())
            raise UsageError(
                f"{run.path} has no row and no checkpoint of the steps that would be executed "
                f"again; write --steps {needed} to reach its next one"
            )

    def plan(self, recipe: Recipe, seed: int, work: Work) -> str:
        """Return the lines that state, before any step, what is executed and what is allowed."""
        run, evidence = self.run, self.evidence
        head = f"{run.path}: {recipe.name}, fingerprint {recipe.fingerprint[:12]}, {run.state}\n"
        if not self.last_steps:
            return f"{head}no step is executed again, as the rows are not in the order of steps"
        after = ", ".join(
            "the start" if place == 0 else f"step {place}" for place in self.last_steps
        )
        sent = ", gradients sent in float16" * (recipe.gradient_compression == "fp16")
        text = (
            f"{head}up to {self.steps} steps are executed again after {after} (seed {seed}), each "
            f"{EXECUTIONS} times: {work.steps} steps and {work.evaluations} evaluations\n"
            f"allowed: a relative difference of {evidence.tolerance:g} ({recipe.precision}{sent}) "
            f"in losses, norms and tensors, and {100 * COUNTED_SHARE:g} % of the counted examples "
            f"or {COUNTED_LEAST}; in addition {ROUNDING_FACTOR:g} times what rounding changes, "
            f"measured by {len(DIRECTIONS)} more executions whose parameters differ in their "
            "last bits"
        )
        if evidence.norm_rounding:
            text += (
                f", and, in gradient norms, {ROUNDING_FACTOR * evidence.norm_rounding:.1g} for the "
                "rounding of their sum in older versions"
            )
        return text

    def execute_all(
        self,
        recipe: Recipe,
        new_learner: Callable[[], Learner],
        inputs: Inputs,
        comm: Comm,
        seed: int,
    ) -> tuple[set[int], list[Row]]:
        """Execute the steps after all places again; return their numbers and the rows they make.

        Process 0 prints what is executed, before the first step, and the progress.
        """
        progress = Progress(
            {place: work_of_place(recipe, place, last) for place, last in self.last_steps.items()},
            partial(print, flush=True) if comm.rank == 0 else None,
        )
        if comm.rank == 0:
            print(self.plan(recipe, seed, progress.all), flush=True)
        steps, rows = set[int](), list[Row]()
        for place in self.last_steps:
            if ours := self.execute(new_learner, inputs, place, progress):
                steps |= set(range(ours.first, ours.last))
                rows += ours.rows
        return steps, rows

    def execute(
        self, new_learner: Callable[[], Learner], inputs: Inputs, place: int, progress: Progress
    ) -> ExecutedSteps | None:
        """Execute the steps of the run after a place again, and compare them.

        Returns None if the checkpoint of the place cannot be restored.
        """
        run, evidence, saved_at = self.run, self.evidence, self.saved_at
        last = self.last_steps[place]
        # A run that diverged as it saved is found to only by a save.
        kept = {*saved_at, self.diverged_by_step or 0}
        logged = {row["step"] for row in run.rows if row["kind"] == "train"}
        executed: list[ExecutedSteps] = []
        for number, direction in enumerate((*DIRECTIONS, None)):
            learner = new_learner()
            if place:
                path = saved_at[place][0]
                saved = load(path)
                if not all(learner.comm.gather_objects(saved is not None)) or saved is None:
                    note_deleted(path, evidence)
                    return None
                try:
                    restore(learner, saved, path.name, None if direction else evidence)
                except UsageError:
                    raise
                except Exception as error:  # any type, since the file may have anything
                    why = (str(error) or repr(error)).splitlines()[0]
                    evidence.differ(f"{path.name}: it cannot be restored ({why:.200})")
                    return None
            if direction:
                perturb(learner, evidence.norm_rounding, direction)
            progress.start_execution(place, number)
            executed.append(Execution(learner, inputs, last, logged, kept, progress).run())
        *perturbed, ours = executed
        compare_steps(run, learner.recipe, saved_at, ours, perturbed, evidence)
        return ours

    def note_distances(self) -> None:
        """Note the checkpoints and the divergence that no executed step reached.

        The tensors of these checkpoints are not confirmed.
        """
        last_steps, steps = self.last_steps, self.steps
        far = [
            step
            for step in sorted(self.saved_at)
            if not any(place < step <= place + steps for place in last_steps)
        ]
        if far:
            self.evidence.note(
                f"the tensors of the checkpoints of steps {', '.join(map(str, far[:9]))} were not "
                f"computed again, as no place is within {steps} steps before; write --steps N"
            )
        end = self.diverged_by_step
        if end is not None and last_steps and end not in last_steps.values():
            self.evidence.note(
                f"the divergence by step {end} was not executed again; write --steps "
                f"{end - max(last_steps, default=0)}"
            )

    def require_confirmation(self) -> None:
        """Raise UsageError if no value was computed again, and none differs."""
        if not self.evidence.recomputed and not self.evidence.mismatches:
            raise UsageError(
                f"no value of {self.run.path} could be compared with one that was computed again, "
                "so nothing is confirmed; write --steps N to reach its next row or checkpoint"
            )

    def verdict(self, rows_sha256: str, seed: int, executed: int, machine: str) -> RunVerification:
        """Return the verdict on the run, by the evidence of its files and of the executed steps."""
        evidence = self.evidence
        return RunVerification(
            fingerprint=self.run.recipe.fingerprint,
            rows_sha256=rows_sha256,
            checkpoints=self.names,
            seed=seed,
            steps=self.steps,
            places=[*self.last_steps],
            tolerance=evidence.tolerance,
            executed_steps=executed,
            made_steps=self.made_steps,
            compared=dict(evidence.compared),
            unresolved=dict(evidence.unresolved),
            largest_difference=evidence.largest_difference,
            mismatches=evidence.mismatches,
            notes=evidence.notes,
            machine=machine,
            host=platform.node(),
            time=datetime.now().astimezone().isoformat(timespec="seconds"),
            lsgd=provenance.version(),
        )


def report(verification: RunVerification) -> str:
    """Format a verification as text: what was confirmed, how much of the run, and what differs."""
    rows = [[kind, str(count)] for kind, count in sorted(verification.compared.items())]
    lines = [markdown_table(["equal", "values"], rows)] if rows else []
    if unresolved := sum(verification.unresolved.values()):
        lines.append(
            f"not resolved: {unresolved} values, which rounding alone may change by more than "
            f"{UNRESOLVED:g} of them"
        )
    lines += [f"note: {note}" for note in verification.notes]
    lines += [f"differs: {mismatch}" for mismatch in verification.mismatches]
    made = verification.made_steps
    share = 100 * verification.executed_steps / made if made else 0.0
    much = (
        f"{verification.executed_steps} of {made} steps ({share:.3g} %) were executed again, and "
        f"the largest confirmed difference of a loss, norm or tensor is "
        f"{verification.largest_difference:.2g}"
    )
    verdict = "Confirmed" if verification.is_confirmed else "NOT confirmed"
    return "\n".join([*lines, f"{verdict}: {much}."])


def main(argv: Sequence[str]) -> int:
    """Run the `lsgd verify` command line and return its exit code."""
    parser = Parser("lsgd.verify", __doc__ or "", keys=config.override_keys)
    parser.add_path("run", "RUN", "a run folder")
    parser.add_argument(
        "words", nargs="*", default=[], metavar="key=value", help="such as data.root=/data/imagenet"
    )
    parser.add_argument(
        "--steps", type=integer_from(1), default=20, metavar="N",
        help="the most steps to execute again after each place (default 20)",
    )  # fmt: skip
    parser.add_argument(
        "--places", type=integer_from(1), default=5, metavar="N",
        help="the most places, of start and checkpoints (default 5; at least 2 are taken)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=integer_from(0), metavar="N", help="draws the places (default: by chance)"
    )
    parser.add_argument(
        "--tolerance",
        type=number_type(lambda value: 0 <= value < 1, "a number of 0 or more and below 1"),
        metavar="X", help="the relative difference allowed",
    )  # fmt: skip
    parser.add_path("--out", "FILE", "where the result is written (default: RUN.verification.json)")
    code = 0

    def command() -> None:
        nonlocal code
        options = parser.parse_intermixed_args(argv)
        if detect_launch().rank == 0:
            print(f"reading {options.run}", flush=True)
        try:
            run = read_run(options.run)
        except NotARunError as reason:
            is_override = "=" in options.run.name
            remedy = "write RUN before overrides" if is_override else "give one that lsgd wrote"
            raise UsageError(f"{options.run} is not a run folder: {reason}; {remedy}") from None
        out = options.out or verification_path(options.run)
        check_new(out, options.run)
        verification = verify(
            run,
            options.words,
            steps=options.steps,
            places=options.places,
            seed=options.seed,
            tolerance=options.tolerance,
        )
        if verification is not None:
            # Before the file: a folder that cannot be written to must not cost the work.
            print(f"\n{report(verification)}", flush=True)
            write_verification(verification, out)
            print(f"written to {out}")
            code = int(not verification.is_confirmed)

    return run_command(command) or code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
