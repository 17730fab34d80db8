"""What a step changes: the model, the strategy's momentum and parts, the counts of the epoch."""

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn, set_num_threads

from lsgd.comm import Comm, sum_
from lsgd.errors import Diverged, Refused
from lsgd.job import preemption
from lsgd.job.device import choose_kernels
from lsgd.job.launcher import cores, detect
from lsgd.job.threads import choose_threads
from lsgd.recipe import Recipe
from lsgd.rules.metric import Metric
from lsgd.run.checkpoint import Checkpoint, order_hash
from lsgd.strategy import open_strategy
from lsgd.strategy.guard import LOWER_LR
from lsgd.tally import Scores, State, Tally
from lsgd.workloads import open_workload, scores


class Learner:
    """This process's part in a run: its hosted workers, and everything that a step changes.

    It starts alike on every process, since only the recipe decides how.
    """

    def __init__(self, recipe: Recipe, comm: Comm, device: torch.device) -> None:
        self.recipe, self.comm, self.device = recipe, comm, device
        choose_kernels(device, tf32=recipe.precision == "tf32", repeats=recipe.deterministic)
        preemption.compile_unheard()
        self.workload = open_workload(recipe, device)
        self.model = self.workload.network().to(device)
        if recipe.compile:
            compile_parts(self.model, graphs=recipe.cuda_graphs)
        self.tally = Tally(len(self.workload.counts), device)
        self.strategy = open_strategy(recipe, self.workload, self.model, comm, self.tally)
        if device.type == "cpu":
            numbers = recipe.numbers_per_pass(len(self.strategy.hosted))
            set_num_threads(choose_threads(numbers, cores(detect())))
        bfloat16 = recipe.precision == "bfloat16"
        self.autocast = torch.autocast(device.type, torch.bfloat16, enabled=bfloat16)
        """The context of a forward pass in training."""
        self.rates: dict[int, dict[str, float]] = {}
        """What each epoch that has ended came to, by its number from 1, as in Checkpoint.rates."""

    @property
    def next_step(self) -> int:
        """The next step of the run."""
        return self.strategy.next_step

    @property
    def passes_per_step(self) -> int:
        """The number of passes that this process makes in a full step of the first epoch."""
        return max(1, -(-len(self.strategy.hosted) // self.recipe.pass_workers))

    def epochs_left(self) -> Iterator[tuple[int, list[int]]]:
        """The epochs that have not ended, each with the steps that are still to be made.

        There may be none, if the run had to leave in an evaluation, and there are no more once it
        has what it was to stop at.
        """
        for epoch, steps in self.recipe.epochs_from(0):
            if self.recipe.is_over(self.rates):
                return
            if epoch + 1 not in self.rates:
                yield epoch, [step for step in steps if step >= self.next_step]

    def now(self) -> dict[str, float | list[int]]:
        """Where the last step was, and what the strategy says of it."""
        return {
            "epoch": self.recipe.epoch(self.next_step),
            "lr": self.recipe.lr(self.next_step - 1),
            **self.strategy.now(),
        }

    def counted(self) -> State:
        """What all processes together have counted in this epoch; all of them call it."""
        return self.strategy.counted()

    def keep(self, folder: Path) -> dict[str, str]:
        """Write down in the run folder what the strategy has recorded; return it for the row."""
        return self.strategy.keep(folder)

    def scores(self, counted: State) -> Scores:
        """What some counts of training come to."""
        return scores(self.workload, counted)

    def end_epoch(self, epoch: int, rates: dict[str, float]) -> None:
        """Note what this epoch, counted from 0, came to, and start to count anew."""
        self.rates[epoch + 1] = rates
        self.tally.clear()

    def sets_after(self, epoch: int) -> tuple[str, ...]:
        """The sets that are evaluated at the end of this epoch, counted from 0."""
        return self.workload.sets if self.recipe.evaluates_after(epoch) else ()

    @property
    def metric(self) -> Metric:
        """What the number of the run is."""
        return self.recipe.number_metric(self.workload.metric)

    def number(self) -> float:
        """The number of the run: for images the median of the last 5 top-1 errors, in percent
        (Goyal et al. 2017, section 5.1), unless the recipe names another."""
        return self.metric.number(self.rates)

    def checkpoint(self) -> Checkpoint:
        """Everything there is to save, whole on process 0; all of them call it.

        Raises Diverged on all of them rather than save what is not finite.
        """
        self.strategy.settle()
        step = self.next_step
        epoch, _ = self.recipe.place(step)
        parts = {part.name: part.state(partial(sum_, self.comm)) for part in self.strategy.parts}
        saved = Checkpoint(
            recipe=asdict(self.recipe),
            fingerprint=self.recipe.fingerprint,
            step=step,
            epoch=epoch,
            order=order_hash(self.workload.order(epoch)),
            lr=self.recipe.lr(step - 1) if step else 0.0,
            model=self.model.state_dict(),
            optimizer=self.strategy.state(),
            parts=parts,
            tally=self.counted(),
            rates=dict(self.rates),
        )
        # The flag of a step is about its loss and gradient; this is about what they led to.
        if not _finite([saved.model, saved.optimizer, saved.parts]):
            raise Diverged(
                "a parameter, a momentum or something that the workers carry along, such as BN "
                f"statistics, is not finite before step {step} and was not saved; {LOWER_LR}"
            )
        return saved

    def restore(self, saved: Checkpoint) -> None:
        """Take up the run where the checkpoint left it.

        Raises Refused if this installation would go through the epoch in another order.
        """
        if saved.order != order_hash(self.workload.order(saved.epoch)):
            raise Refused(
                f"the checkpoint goes through epoch {saved.epoch} in an order that this version of "
                "lsgd does not make; resume with the version that wrote it"
            )
        self.model.load_state_dict(saved.model)
        self.strategy.restore(saved.optimizer, saved.step)
        for part in self.strategy.parts:
            part.restore(saved.parts[part.name])
        # The counts are of all processes: one goes on from them, the others from nothing.
        if self.comm.rank == 0:
            self.tally.restore(saved.tally)
        self.rates = dict(saved.rates)


def _finite(states: list[Any]) -> bool:
    """Whether all tensors in these nested values are finite."""
    # An infinity is the minimum or the maximum, and NaN makes both NaN: 20 times as fast as to
    # look at every number. One answer for all tensors, since each waits for the device.
    bounds = [torch.isfinite(torch.stack(tensor.aminmax())).all() for tensor in _tensors(states)]
    return bool(torch.stack(bounds).all())


def _tensors(value: Any) -> Iterator[Tensor]:
    match value:
        case Tensor():
            yield value
        case dict():
            for entry in value.values():
                yield from _tensors(entry)
        case list():
            for entry in value:
                yield from _tensors(entry)


def _has_code_of_its_own(module: nn.Module) -> bool:
    kind = type(module)
    return not kind.__module__.startswith("torch.") and kind.forward is not nn.Module.forward


def compile_parts(model: nn.Module, *, graphs: bool = False) -> None:
    """Compile each part of the model in place, and within a stage each residual block.

    A model compiled as a whole has one backward function, which gives all gradients at its end,
    too late for their sums to overlap with it. One that has no part but torch's own layers, which
    torch leaves as they are, is compiled as a whole all the same. With `graphs` a GPU replays the
    kernels of a part, forward and backward, as CUDA graphs of each shape.
    """
    mode = "reduce-overhead" if graphs else None
    own = [part for part in model.modules() if part is not model and _has_code_of_its_own(part)]
    if not own:
        model.compile(dynamic=True, mode=mode)  # its sentences are of any length
        return
    # All blocks share their code, and torch compiles one piece of code 8 times before it runs it
    # eagerly: ResNet-50 has 8 kinds of blocks, and a step up to 4 kinds of passes. Not dynamic, as
    # torch would take shapes that differ from block to block for unknown ones.
    torch.compiler.config.recompile_limit = 64
    for part in model.children():
        if any(True for _ in part.parameters()):
            part.compile(dynamic=False, mode=mode)
