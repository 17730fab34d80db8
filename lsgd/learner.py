"""What a step changes: model, momentum, BN's running statistics and the counts of the epoch."""

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lsgd.comm import Comm, sum_
from lsgd.comm.guard import LOWER_LR, Guard
from lsgd.comm.reducer import Reducer
from lsgd.errors import Diverged, Refused
from lsgd.models import DTYPES, layout, make_network
from lsgd.recipe import Recipe
from lsgd.rules import optim, sampler
from lsgd.rules.batchnorm import RunningStatistics
from lsgd.rules.metric import TOP1
from lsgd.rules.sampler import Pass
from lsgd.run.checkpoint import Checkpoint, order_hash
from lsgd.tally import Tally


class Learner:
    """This process's part in a run: its hosted workers, and everything that a step changes.

    It starts alike on every process, since only the recipe decides how.
    """

    def __init__(self, recipe: Recipe, comm: Comm, device: torch.device) -> None:
        self.recipe, self.comm, self.device = recipe, comm, device
        # float32 means float32 on every GPU, not products rounded to 10 bits: precision=bfloat16 is
        # for speed. And the same run twice is bit by bit the same, as is promised, which cuDNN's
        # atomic sums would break.
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.deterministic = True
        self.dtype = DTYPES[recipe.precision]
        self.layout = layout(recipe)
        self.model = make_network(recipe).to(device)
        if recipe.compile:
            compile_parts(self.model)
        self.hosted = sampler.share(recipe.workers, comm.world_size, comm.rank)
        self.running = RunningStatistics(
            self.model, hosted=len(self.hosted), workers=recipe.workers, world_size=comm.world_size
        )
        self.reducer = Reducer(
            self.model.parameters(),
            comm,
            bucket_mb=recipe.comm.bucket_mb,
            compression=recipe.gradient_compression,
        )
        self.optimizer = optim.make_optimizer(self.model, **asdict(recipe.optim))
        self.optimizer.found_inf = self.reducer.found_inf  # type: ignore[attr-defined]
        self.guard = Guard(self.reducer.flags)
        self.tally = Tally(device)
        self.rates: dict[int, dict[str, float]] = {}
        """What each epoch that has ended came to, by its number from 1, as in Checkpoint.rates."""
        self.next_step = 0
        self._order: tuple[int, NDArray[np.int64]] | None = None

    def epochs_left(self) -> Iterator[tuple[int, list[int]]]:
        """The epochs that have not ended, each with the steps that are still to be made.

        There may be none, if the run had to leave in an evaluation.
        """
        for epoch, steps in self.recipe.epochs_from(0):
            if epoch + 1 not in self.rates:
                yield epoch, [step for step in steps if step >= self.next_step]

    def order(self, epoch: int) -> NDArray[np.int64]:
        """The order of examples in an epoch."""
        # Kept, since every checkpoint asks for it and ImageNet's takes a fifth of a second.
        if self._order is None or self._order[0] != epoch:
            count, seed = self.recipe.data.train_examples, self.recipe.seed
            self._order = epoch, sampler.epoch_order(count, seed=seed, epoch=epoch)
        return self._order[1]

    def passes(self, epoch: int, steps: list[int]) -> list[list[Pass]]:
        """The passes of this process in each of these steps of the run, all of one epoch."""
        recipe, order = self.recipe, self.order(epoch)
        return [
            sampler.step_passes(
                order,
                epoch=epoch,
                step=step % recipe.steps_per_epoch,
                workers=recipe.workers,
                worker_batch=recipe.worker_batch,
                hosted=self.hosted,
                workers_per_pass=recipe.pass_workers,
            )
            for step in steps
        ]

    def autocast(self) -> torch.autocast:
        """The context of a forward pass: bfloat16 where the recipe says so."""
        enabled = self.recipe.precision == "bfloat16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=enabled)

    def timed(self) -> list[tuple[str, object, str]]:
        """The phases of a step in their order, each as (phase, object, name of its method).

        A phase begins with the call of that method, and the step ends with the last call. The wait
        for data is the loader's, and not in here.
        """
        return [
            ("optimizer", self.reducer, "start"),  # which clears the gradients
            ("forward", self.running, "start_pass"),  # called before each forward pass
            ("backward", self.reducer, "backward"),
            ("communication", self.reducer, "finish"),
            ("optimizer", self.running, "end_step"),
            ("optimizer", self.guard, "watch"),
        ]

    def now(self) -> dict[str, float]:
        """Where the last step was; reading the norm of its gradient waits for the device."""
        return {
            "epoch": self.recipe.epoch(self.next_step),
            "lr": self.recipe.lr(self.next_step - 1),
            "gradient_norm": self.reducer.gradient_norm.item(),
        }

    def counted(self) -> dict[str, Tensor]:
        """What all processes together have got right in this epoch; all of them call it."""
        return self.tally.state(partial(sum_, self.comm))

    def end_epoch(self, epoch: int, rates: dict[str, float]) -> None:
        """Note what this epoch, counted from 0, came to, and start to count anew."""
        self.rates[epoch + 1] = rates
        self.tally.clear()

    def error(self) -> float:
        """The paper's metric: the median of the last 5 top-1 errors, in percent (section 5.1)."""
        return TOP1.number(self.rates)

    def combine_statistics(self) -> None:
        """Write BN's running statistics of all processes into the model, to evaluate or save it."""
        self.running.combine(partial(sum_, self.comm))

    def checkpoint(self) -> Checkpoint:
        """Everything there is to save, the same on every process; all of them call it.

        Raises Diverged rather than save what is not finite.
        """
        self.guard.check()
        self.combine_statistics()
        self._check_finite()
        step = self.next_step
        epoch = step // self.recipe.steps_per_epoch
        return Checkpoint(
            recipe=asdict(self.recipe),
            fingerprint=self.recipe.fingerprint,
            step=step,
            epoch=epoch,
            order=order_hash(self.order(epoch)),
            lr=self.recipe.lr(step - 1) if step else 0.0,
            model=self.model.state_dict(),
            optimizer=self.optimizer.state_dict(),
            parts={"batchnorm": {"shares": self._shares()}},
            tally=self.counted(),
            rates=dict(self.rates),
        )

    def _shares(self) -> Tensor:
        return self.running.all_shares(partial(sum_, self.comm), rank=self.comm.rank)

    def _check_finite(self) -> None:
        # The flag of a step is about its loss and gradient; this is about what they led to.
        momentum = (value for state in self.optimizer.state.values() for value in state.values())
        tensors = (*self.model.state_dict().values(), *momentum)
        # An infinity is the minimum or the maximum, and NaN makes both NaN: 20 times as fast as to
        # look at every number. One answer for all tensors, since each waits for the device.
        bounds = [torch.isfinite(torch.stack(tensor.aminmax())).all() for tensor in tensors]
        if not torch.stack(bounds).all():
            raise Diverged(
                f"a parameter, BN statistic or momentum is not finite before step "
                f"{self.next_step} and was not saved; {LOWER_LR}"
            )

    def restore(self, saved: Checkpoint) -> None:
        """Take up the run where the checkpoint left it.

        Raises Refused if this installation would go through the epoch in another order.
        """
        if saved.order != order_hash(self.order(saved.epoch)):
            raise Refused(
                f"the checkpoint goes through epoch {saved.epoch} in an order that this version of "
                "lsgd does not make; resume with the version that wrote it"
            )
        self.model.load_state_dict(saved.model)
        self.optimizer.load_state_dict(saved.optimizer)
        for parameter, state in self.optimizer.state.items():
            for name, value in state.items():
                # A fused update walks memory, so momentum has to lie as the parameter does now,
                # even if the run was saved with the other channels_last.
                state[name] = torch.empty_like(parameter).copy_(value)
        self.running.restore(saved.parts["batchnorm"]["shares"], rank=self.comm.rank)
        # The counts are of all processes: one goes on from them, the others from nothing.
        if self.comm.rank == 0:
            self.tally.restore(saved.tally)
        self.rates = dict(saved.rates)
        self.next_step = saved.step


def compile_parts(model: nn.Module) -> None:
    """Compile each part of the model in place, and within a stage each residual block.

    A model compiled as a whole has one backward function, which gives all gradients at its end,
    too late for their sums to overlap with it.
    """
    # All blocks share their code, and torch compiles one piece of code 8 times before it runs it
    # eagerly: ResNet-50 has 8 kinds of blocks, and a step up to 4 kinds of passes. Not dynamic, as
    # torch would take shapes that differ from block to block for unknown ones.
    torch.compiler.config.recompile_limit = 64
    for part in model.children():
        if any(True for _ in part.parameters()):
            part.compile(dynamic=False)
