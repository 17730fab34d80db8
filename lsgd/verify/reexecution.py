"""Execution of some steps of a run again, from its start and from its checkpoints."""

import inspect
import random
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from itertools import tee
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lsgd.compare import (
    LAST_STEP_KEYS,
    common_rows,
    compared_rows,
    is_not_compared,
    relative_difference,
)
from lsgd.errors import DivergedError
from lsgd.evaluation import evaluate
from lsgd.inputs import Inputs, evaluation_set_size
from lsgd.learner import Learner
from lsgd.recipe import Recipe
from lsgd.rules.loss_scale import LossScale
from lsgd.rules.metric import METRICS, named_metric
from lsgd.rules.optim import GROUP_KEYS, set_lr, trained_parameters
from lsgd.run.checkpoint import Checkpoint
from lsgd.run.metrics import Meter, TimedBatches, to_writable
from lsgd.run.read import Run, steps_until_divergence
from lsgd.run.rows import Row
from lsgd.scores import named_by_set
from lsgd.step import train_step
from lsgd.strategy.allreduce import AllReduce
from lsgd.verify.checkpoints import load, note_deleted
from lsgd.verify.evidence import SMALL, Evidence
from lsgd.verify.progress import Progress

PERTURBATIONS = {
    "float64": 2.0**-48,
    "float32": 2.0**-19,
    "tf32": 2.0**-9,
    "float16": 2.0**-9,
    "bfloat16": 2.0**-7,
}
"""The relative change of each parameter of a perturbed copy, by precision: a few last bits.

It is a multiple of what another order of sums changes, so that a ReLU's input that this takes
across 0 is taken across it by one of two opposite perturbations.
"""
FLOAT16 = torch.finfo(torch.float16)
NORM_MARGIN = 4.0
"""The factor by which a gradient norm's rounding error may exceed the one measured in a sample."""
HARDWARE_SETTINGS = {"fused", "foreach", "capturable", "differentiable"}
"""The settings of torch's optimizers that choose kernels; the others decide what is computed."""
LAST_LR = "last_lr"
"""The key of a group of VelocitySGD that each step changes: the lr of that step."""


def draw_places(checkpoint_steps: Collection[int], count: int, seed: int) -> list[int]:
    """Draw the steps after which a run is executed again: 0, the last checkpoint, and others.

    If there are more than `count` in all, the seed decides which of the others are left out.

    >>> draw_places([40, 20, 60], 9, seed=0)
    [0, 20, 40, 60]
    """
    known = sorted(checkpoint_steps)
    always, others = [0, *known[-1:]], known[:-1]
    drawn = random.Random(seed).sample(others, min(len(others), max(0, count - len(always))))
    return sorted([*always, *drawn])


def restore(learner: Learner, saved: Checkpoint, name: str, evidence: Evidence | None) -> None:
    """Restore a new learner from a checkpoint, whose optimizer settings must be the recipe's.

    They are compared if `evidence` is given, as once for a checkpoint that is restored twice.

    The optimizer takes its settings from a checkpoint, so that a forged weight decay would hold for
    the steps that are executed again. Raises an exception of any type for a forged file.
    """
    if evidence:
        written, own = (
            [_settings(group, learner) for group in groups]
            for groups in (saved.optimizer["param_groups"], _groups_after(learner, saved.step))
        )
        evidence.tensors("optimizer settings", name, written, own, [own])
    learner.restore(saved)


def _groups_after(learner: Learner, step: int) -> list[dict[str, Any]]:
    """Return the parameter groups of a new learner's optimizer, with the lr of the step before."""
    strategy = learner.strategy
    assert isinstance(strategy, AllReduce)
    set_lr(strategy.optimizer, learner.recipe.lr(step - 1))
    groups: list[dict[str, Any]] = strategy.state()["param_groups"]
    return [group | {LAST_LR: group["lr"]} if LAST_LR in group else group for group in groups]


def _settings(group: dict[str, Any], learner: Learner) -> dict[str, Any]:
    """Return the values of a parameter group that no step changes, and that choose no kernels.

    An optimizer of the user's own may have others, such as the d of Prodigy: those that its
    constructor does not take. As the rest of its state, they are compared in the next checkpoint.
    """
    found = _without(group, {*HARDWARE_SETTINGS, "lr"})
    if not learner.recipe.optim.is_own:
        return found
    strategy = learner.strategy
    assert isinstance(strategy, AllReduce)
    makers = [kind.__init__ for kind in type(strategy.optimizer).__mro__]  # type: ignore[misc]
    taken = {key for make in makers for key in inspect.signature(make).parameters}
    kept = {*taken, *GROUP_KEYS, *learner.recipe.optim.options}
    return {key: value for key, value in found.items() if key in kept}


def norm_rounding(network: nn.Module, precision: str) -> float:
    """Measure the relative effect of rounding on the gradient norm of a network.

    One sum over all gradients, as several processes computed it on a CPU in older versions of lsgd,
    loses more digits than the sums of single tensors: 1e-4 of 5 million in float32. The numbers
    measured are normal, on one thread.
    """
    dtype = torch.float64 if precision == "float64" else torch.float32
    size = sum(parameter.numel() for parameter in network.parameters())
    numbers = torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=dtype)
    exact = torch.linalg.vector_norm(
        torch.stack(torch._foreach_norm(numbers.split(2**14))).double()
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rounded = torch.linalg.vector_norm(numbers)
    finally:
        torch.set_num_threads(threads)
    return NORM_MARGIN * abs(float(rounded / exact) - 1)


@torch.no_grad()
def perturb(learner: Learner, norm_rounding: float, direction: int) -> None:
    """Change each trained parameter in its last bits, by signs that are always the same.

    `direction` is 1, or -1 for the opposite change. The difference that this makes later is that of
    rounding: of another order of sums. Much of it is not in proportion: where rounding takes a
    ReLU's input across 0, a gradient appears or vanishes, and later steps amplify this. Only one of
    two opposite changes takes an input that is near 0 across it. Gradients that are clipped by
    their norm are changed as its rounding changes them, and those that processes send in float16
    as each process rounds its own.
    """
    if learner.recipe.optim.clip_norm is not None:
        assert isinstance(learner.strategy, AllReduce)
        learner.strategy.optimizer.register_step_pre_hook(
            partial(_scale_gradients, 1 + direction * norm_rounding)
        )
    size = direction * PERTURBATIONS[learner.recipe.precision]
    signs = torch.Generator().manual_seed(0)
    changes: list[tuple[nn.Parameter, Tensor]] = []
    for parameter in trained_parameters(learner.model):
        sign = torch.randint(2, parameter.shape, generator=signs).mul_(2).sub_(1)
        sign = sign.to(parameter.device, parameter.dtype)
        parameter.mul_(1 + size * sign)
        changes.append((parameter, direction * sign))
    if learner.recipe.gradient_compression == "fp16":
        assert isinstance(learner.strategy, AllReduce)
        learner.strategy.optimizer.register_step_pre_hook(
            partial(_change_as_float16, changes, learner.strategy.loss_scale)
        )


def _change_as_float16(
    changes: Sequence[tuple[nn.Parameter, Tensor]], loss_scale: LossScale | None, *_: Any
) -> None:
    """Change each gradient, by these signs, by as much as rounding to float16 changes one at most.

    That is a share of it, or of the smallest normal number, which a loss scale lowers. An exact 0
    stays one.
    """
    least = FLOAT16.smallest_normal * (loss_scale.inverse() if loss_scale else 1.0)
    for parameter, sign in changes:
        if parameter.grad is not None:
            size = parameter.grad.abs().clamp_(min=least) * (FLOAT16.eps / 2)
            parameter.grad.addcmul_(size.mul_(parameter.grad != 0), sign)


def _scale_gradients(factor: float, optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad.mul_(factor)


@dataclass
class ExecutedSteps:
    """The results of steps that were executed again: rows, and states at the run's saves."""

    first: int
    """The step of the place: the number of steps that the run had made there."""
    last: int
    """The number of steps that the run has made after these steps."""
    rows: list[Row]
    states: list[Checkpoint] = field(default_factory=list)
    """The states after those steps of which the run has a checkpoint."""
    gradient_norms: dict[int, float] = field(default_factory=dict)
    """The gradient norm of each executed step, by the number of steps made."""
    diverged_by_step: int | None = None
    """The number of steps by which the execution diverged, which ended it; None if it did not."""


def _row(kind: str, step: int, **values: Any) -> Row:
    # The gradient norm of a step that float16 skips is not finite.
    return {"kind": kind, "step": step} | {key: to_writable(each) for key, each in values.items()}


class Execution:
    """An execution of the steps of a run, from the learner's next step to before step `last`.

    Rows are made after the steps in `logged`, and states are kept after those in `kept`.
    """

    def __init__(
        self,
        learner: Learner,
        inputs: Inputs,
        last: int,
        logged: Collection[int],
        kept: Collection[int],
        progress: Progress,
    ) -> None:
        self.learner, self.inputs, self.progress = learner, inputs, progress
        self.last, self.logged, self.kept = last, logged, kept
        first = learner.next_step
        self.done = ExecutedSteps(first, first, [_row("start", first)])

    def run(self) -> ExecutedSteps:
        """Execute the steps and return their results; all processes of a job call it together.

        A restored model is evaluated first where the run was, as after the executed steps.
        """
        learner, done = self.learner, self.done
        try:
            self.evaluate_restored()
            for epoch, steps in learner.remaining_epochs():
                if steps and steps[0] >= self.last:
                    break
                self.execute_epoch(epoch, steps)
        except DivergedError as error:
            done.diverged_by_step = steps_until_divergence(str(error))
            assert done.diverged_by_step is not None
        done.last = learner.next_step
        return done

    def evaluate_restored(self) -> None:
        """Evaluate a restored model where the run was evaluated after the same step."""
        learner, first = self.learner, self.done.first
        epoch = max(learner.epoch_metrics, default=0)
        if first and learner.recipe.first_step(epoch) == first:
            learner.strategy.synchronize()
            metrics = self._evaluated(learner.evaluation_sets_after(epoch - 1))
            self._add_row("epoch", first, epoch=epoch, **metrics)
        if first in learner.evaluations:
            self._evaluate_within_epoch()

    def execute_epoch(self, epoch: int, steps: list[int]) -> None:
        """Execute the steps of one epoch before step `last`, and evaluate if they end the epoch."""
        learner, meter = self.learner, None
        chosen = [step for step in steps if step < self.last]
        *parts, after = learner.split_at_evaluations(epoch, chosen)
        for part in parts:
            meter = self._execute_steps(epoch, part, meter)
            self._evaluate_within_epoch()
        self._execute_steps(epoch, after, meter)
        learner.strategy.synchronize()
        if len(chosen) < len(steps):
            return
        step = learner.next_step
        self._keep_state(step)  # the run may have been preempted in the evaluation, and saved this
        metrics = learner.scores(learner.summed_counts()).with_prefix("train")
        metrics |= self._evaluated(learner.evaluation_sets_after(epoch))
        learner.end_epoch(epoch, metrics)
        self._add_row("epoch", step, epoch=epoch + 1, **metrics)
        self._keep_state(step)

    def _execute_steps(self, epoch: int, steps: list[int], before: Meter | None) -> Meter:
        """Execute steps of an epoch up to an evaluation; return their meter, as in lsgd.train."""
        learner = self.learner
        tasks, ahead = tee(learner.strategy.tasks(epoch, steps))
        loaded = self.inputs.train(each for task in ahead for each in task.micro_batches)
        batches = TimedBatches(self.progress.watch_batches(loaded))
        meter = Meter(learner, learner.summed_counts(), batches, before)
        end = learner.recipe.first_step(epoch + 1)
        for task in tasks:
            train_step(learner, task, batches)
            learner.strategy.poll()
            self.progress.end_step()
            step, values = learner.next_step, learner.step_metrics()
            norm = values["gradient_norm"]
            assert isinstance(norm, float)
            self.done.gradient_norms[step] = norm
            if step in self.logged:
                self._add_row("train", step, **values, **meter.read(learner.summed_counts()))
            if step < end:
                self._keep_state(step)
        return meter

    def _evaluate_within_epoch(self) -> None:
        learner = self.learner
        learner.strategy.synchronize()
        metrics = self._evaluated(learner.workload.evaluation_sets)
        learner.end_evaluation(metrics)
        self._add_row("evaluation", learner.next_step, **metrics)

    def _evaluated(self, sets: Sequence[str]) -> dict[str, float]:
        """Evaluate a model on these evaluation sets, if any; return the metrics for a row."""
        if not sets:
            return {}
        scores = evaluate(self.learner, self.inputs, sets, self.progress.watch_evaluation)
        self.progress.end_evaluation()
        return named_by_set(scores)

    def _add_row(self, kind: str, step: int, **values: Any) -> None:
        self.done.rows.append(_row(kind, step, **values))

    def _keep_state(self, step: int) -> None:
        if step in self.kept:
            self.done.states.append(deepcopy(self.learner.checkpoint()))


def compare_steps(
    run: Run,
    recipe: Recipe,
    saved_at: Mapping[int, Sequence[Path]],
    ours: ExecutedSteps,
    perturbed: Sequence[ExecutedSteps],
    evidence: Evidence,
) -> None:
    """Compare executed steps with the rows and the checkpoints of the run.

    `saved_at` has the run's checkpoint files by step. The perturbed copies have made the same
    steps, which shows what rounding alone changes. Where one of all diverged, the steps before are
    compared.
    """
    _compare_divergence(run, ours, perturbed, evidence)
    copied_rows = [{_place(row): row for row in copy.rows} for copy in perturbed]
    made_by_all = [row for row in ours.rows if all(_place(row) in rows for rows in copied_rows)]
    effects = rounding_effects(ours, perturbed)
    for their, our in common_rows(
        compared_rows(run.rows, run.path), compared_rows(made_by_all, run.path)
    ):
        keys = [key for key in our.row if not is_not_compared(key)]
        if lacking := [key for key in keys if key not in their.row]:
            evidence.note(f"rows of the run lack {', '.join(lacking)}, not compared")
        keys = [key for key in keys if key in their.row]
        # A mean covers the same steps only if both began there.
        if their.begin != our.begin:
            keys = [key for key in keys if key in LAST_STEP_KEYS]
        copies, effect = [rows[_place(our.row)] for rows in copied_rows], effects[our.row["step"]]
        for key in keys:
            changes = [relative_difference(our.row[key], copy[key], SMALL) for copy in copies]
            rounding = max(effect, *changes)
            if key == "gradient_norm":
                rounding = max(rounding, evidence.norm_rounding)
            _compare_value(recipe, key, their.row, our.row, our.begin, rounding, evidence)
    is_compared = any(state.step in saved_at for state in ours.states) or len(ours.rows) > 1
    if not is_compared and ours.diverged_by_step is None:
        evidence.note(
            f"the run has no row and no checkpoint of the {ours.last - ours.first} steps after "
            f"step {ours.first}; write --steps N to reach its next row"
        )
    # One of all has fewer if it diverged earlier. Of its divergence a run has no file.
    for state, *copied in zip(ours.states, *(copy.states for copy in perturbed), strict=False):
        for path in saved_at.get(state.step, ()):
            theirs = load(path)
            if theirs is None:
                note_deleted(path, evidence)
                continue
            # Saved before or after the evaluation of the epoch that ends there.
            if theirs.rates.keys() == state.rates.keys():
                try:
                    _compare_state(path.name, theirs, state, copied, evidence)
                except Exception as error:  # any type, since the file may have anything
                    why = (str(error) or repr(error)).splitlines()[0]
                    evidence.differ(f"{path.name}: it cannot be compared ({why:.200})")


def rounding_effects(ours: ExecutedSteps, perturbed: Sequence[ExecutedSteps]) -> dict[int, float]:
    """Return the relative effect of rounding on the gradient norm, by the number of steps made.

    It is the largest up to that step, since two trajectories may cross.
    """
    effect = 0.0
    effects = {ours.first: effect}
    for step, norm in ours.gradient_norms.items():
        if not all(step in copy.gradient_norms for copy in perturbed):
            break
        norms = [copy.gradient_norms[step] for copy in perturbed]
        effect = max(effect, *(relative_difference(norm, each, SMALL) for each in norms))
        effects[step] = effect
    return effects


def _place(row: Row) -> tuple[str, int]:
    return row["kind"], row["step"]


def _compare_divergence(
    run: Run, ours: ExecutedSteps, perturbed: Sequence[ExecutedSteps], evidence: Evidence
) -> None:
    """Compare whether, and by which step, executed steps diverge with what the run states.

    Where only some of the executions diverge, rounding alone decides, and nothing is compared.
    """
    own, copied = ours.diverged_by_step, {copy.diverged_by_step for copy in perturbed}
    theirs = steps_until_divergence(run.diverged)
    is_reached = theirs is not None and ours.first < theirs <= (own or ours.last)
    if {own} | copied == {None} and not is_reached:
        return
    if own is not None and own == theirs:
        evidence.equal("divergence", "the last row", theirs, own)
        evidence.recomputed += 1
    elif own is not None and run.diverged is not None and theirs is None:
        evidence.note(
            f"the message of the divergence names no step, and is not compared with {own}"
        )
    elif {own} != copied:
        evidence.note(
            f"whether the steps after step {ours.first} diverge, and when, is not compared, as a "
            "change of the last bits alone decides"
        )
    elif own is None:
        evidence.differ(
            f"the steps after step {ours.first}: the run says that it diverged by step {theirs}; "
            "executed again it does not"
        )
    else:
        rest = "did not" if theirs is None else f"by step {theirs}"
        evidence.differ(
            f"the steps after step {ours.first}: executed again they diverge by step {own}, and "
            f"the run {rest}"
        )


def _compare_value(
    recipe: Recipe,
    key: str,
    their: Row,
    our: Row,
    begin: int | None,
    rounding: float,
    evidence: Evidence,
) -> None:
    if key in ("kind", "step", "epoch", "lr"):
        return  # compared for every row of the run, in lsgd.verify.records
    where = f"{our['kind']} row of step {our['step']}"
    split, _, name = ("", "", key) if our["kind"] == "train" else key.partition("_")
    if named_metric(name).unit != "%":
        evidence.close(key, where, their[key], our[key], rounding)
        return
    sizes = {"val": recipe.data.val_examples, "test": recipe.data.test_examples}
    if split in recipe.evaluation.sets and split not in sizes:
        sizes[split] = evaluation_set_size(recipe, split)
    if not (examples := sizes.get(split)):
        first = begin if begin is not None else recipe.first_step(our["epoch"] - 1)
        examples = recipe.examples(our["step"]) - recipe.examples(first)
    is_own = name not in METRICS
    evidence.counted(key, where, their[key], our[key], rounding, examples, is_own=is_own)


def _compare_state(
    name: str,
    theirs: Checkpoint,
    ours: Checkpoint,
    copies: Sequence[Checkpoint],
    evidence: Evidence,
) -> None:
    """Compare a checkpoint with the state of the executed steps, and with the perturbed copies'."""
    for kind, part in (
        ("model", lambda each: each.model),
        ("carried state", _summed_parts),
        ("optimizer state", _computed_state),
    ):
        evidence.tensors(kind, name, part(theirs), part(ours), [*map(part, copies)])


def _summed_parts(state: Checkpoint) -> dict[str, dict[str, Any]]:
    """Return the carried state of a checkpoint, with the sum of BN's shares over the processes.

    How the moving average is divided into shares depends on the number of processes.
    """
    return {
        name: {key: value.sum(0) if key == "shares" else value for key, value in part.items()}
        for name, part in state.parts.items()
    }


def _computed_state(state: Checkpoint) -> dict[str, Any]:
    """Return the optimizer's state of a checkpoint without settings that only choose kernels."""
    groups = [_without(group, HARDWARE_SETTINGS) for group in state.optimizer["param_groups"]]
    return state.optimizer | {"param_groups": groups}


def _without(values: dict[str, Any], keys: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}
