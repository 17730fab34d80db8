"""Training steps that differ in one thing: who sums the gradients over the processes, and when.

All have the same model, images, passes, per-worker BN, loss and optimizer, and so come to the same
parameters; but for the one that sums nothing. `python -m benchmarks.reductions` is a process of a
job that makes such steps, a member of it (lsgd.bench.member).
"""

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from lsgd.bench.member import main
from lsgd.comm import Comm
from lsgd.inputs import Batch
from lsgd.inputs.synthetic import SyntheticInputs
from lsgd.models import DTYPES, layout, make_network
from lsgd.recipe import Recipe
from lsgd.rules import optim
from lsgd.rules.batchnorm import RunningStatistics
from lsgd.rules.sampler import Pass
from lsgd.strategy.reducer import Reducer

OURS, DDP, HOROVOD = "ours", "DistributedDataParallel", "hvd.DistributedOptimizer"
BARE, ALONE = "without any sum", "the sums alone"
DDP_BUCKET_MB = 25
"""The default size of a bucket of DistributedDataParallel, in MiB."""
COMPARED_AFTER = 3
"""Steps after which the candidates must agree; they also make everything warm."""


class Reductions:
    """An Assignment whose setting is how many passes a process accumulates in a step."""

    def __init__(self, recipe: Recipe, comm: Comm, device: torch.device) -> None:
        self.recipe, self.comm, self.device = recipe, comm, device
        self.candidates: Mapping[str, Callable[[int], None]] = {}

    def prepare(self, setting: int) -> dict[str, Any]:
        """Make the candidates that the library of this job allows."""
        self.candidates = {}  # the former ones leave the memory first
        workers = self.comm.world_size * setting * self.recipe.pass_workers
        recipe = replace(self.recipe, workers=workers)
        batches = _batches(recipe, setting, self.comm.rank, self.device)
        kinds, missing = self._kinds()
        candidates = {
            name: kind(recipe, self.comm, self.device, batches) for name, kind in kinds.items()
        }
        for candidate in candidates.values():
            candidate.steps(COMPARED_AFTER)
        ours = candidates[OURS]
        assert isinstance(ours, Ours)
        flats = [torch.zeros_like(bucket.flat) for bucket in ours.reducer.buckets]
        self.candidates = {name: candidate.steps for name, candidate in candidates.items()}
        self.candidates |= {ALONE: lambda number: _sums(flats, self.comm, number)}
        return {
            "over": self.comm.library,
            "threads": torch.get_num_threads(),
            "images": recipe.batch_size,
            "buckets": [len(flat) for flat in flats],
            "apart": {
                name: _apart(candidate.model, ours.model)
                for name, candidate in candidates.items()
                if name not in (OURS, BARE)
            },
            "names": [*candidates],
            "missing": missing,
        }

    def _kinds(self) -> tuple[dict[str, type["Candidate"]], dict[str, str]]:
        kinds: dict[str, type[Candidate]] = {OURS: Ours, BARE: Bare}
        if "Horovod" not in self.comm.library:
            return kinds | {DDP: TorchDDP}, {}
        if self.recipe.channels_last:
            refuses = "it refuses channels_last gradients; write channels_last=false"
            return kinds, {HOROVOD: refuses}
        return kinds | {HOROVOD: HorovodOptimizer}, {}


class Candidate:
    """A model that is trained on these batches, one pass each, again and again."""

    def __init__(
        self, recipe: Recipe, comm: Comm, device: torch.device, batches: list[Batch]
    ) -> None:
        self.comm, self.device, self.batches = comm, device, batches
        self.dtype = DTYPES[recipe.precision]
        self.bfloat16 = recipe.precision == "bfloat16"
        self.workers, self.examples = recipe.workers, recipe.batch_size
        images = np.arange(recipe.pass_workers * recipe.worker_batch)
        self.carried = Pass(0, images, range(recipe.pass_workers))
        self.model = make_network(recipe).to(device)
        self.running = RunningStatistics(
            self.model,
            hosted=recipe.workers // comm.world_size,
            workers=recipe.workers,
            rank=comm.rank,
            world_size=comm.world_size,
        )
        self.forward: nn.Module = self.model
        self.optimizer = optim.make_optimizer(self.model, **asdict(recipe.optim))
        self.prepare(recipe)
        optim.set_lr(self.optimizer, recipe.lr(0))

    def steps(self, number: int) -> None:
        """Make this number of steps."""
        for _ in range(number):
            self.start()
            for images, labels in self.batches:
                with self.one_of_several(last=images is self.batches[-1][0]):
                    self.running.start_pass(self.carried)
                    with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16):
                        logits = self.forward(images)
                    loss = F.cross_entropy(logits.to(self.dtype), labels, reduction="sum")
                    self.backward(loss)
            self.finish()
            self.running.end_step(active_workers=self.workers)
            self.optimizer.step()

    def prepare(self, recipe: Recipe) -> None:
        """Set up the sum of the gradients over processes: here none."""

    def start(self) -> None:
        """Begin a step, before its passes."""
        self.optimizer.zero_grad()

    def one_of_several(self, *, last: bool) -> AbstractContextManager[None]:
        """Return the context in which a pass is made."""
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of the loss summed over a pass; the others average over processes."""
        (loss * (self.comm.world_size / self.examples)).backward()

    def finish(self) -> None:
        """End the passes of a step, before the update."""


class Bare(Candidate):
    """Gradients are not summed: every process trains by itself."""


class Ours(Candidate):
    """Gradients are summed by lsgd's Reducer, as lsgd.train does, with its flags and its norm."""

    def prepare(self, recipe: Recipe) -> None:
        """Make the Reducer, whose flags stop the optimizer."""
        self.reducer = Reducer(
            self.model.parameters(),
            self.comm,
            bucket_mb=recipe.comm.bucket_mb,
            compression=recipe.gradient_compression,
        )
        self.optimizer.found_inf = self.reducer.found_inf  # type: ignore[attr-defined]

    def start(self) -> None:
        """Begin a step of the Reducer, instead of clearing the gradients."""
        self.reducer.start(self.examples, len(self.batches))

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a pass, and start the sums that are complete."""
        self.reducer.backward(loss)

    def finish(self) -> None:
        """Wait for the sums of the step."""
        self.reducer.finish()


class TorchDDP(Candidate):
    """torch's wrapper, with all that speeds it up: gradients are views, passes but the last silent.

    Buffers are not broadcast, since nothing of lsgd needs it.
    """

    def prepare(self, recipe: Recipe) -> None:
        """Wrap the model."""
        # If it is named, DDP has no small first bucket, which otherwise starts the sums early.
        size = recipe.comm.bucket_mb
        self.forward = self.wrapper = DistributedDataParallel(
            self.model,
            bucket_cap_mb=None if size == DDP_BUCKET_MB else size,
            gradient_as_bucket_view=True,
            broadcast_buffers=False,
        )

    def one_of_several(self, *, last: bool) -> AbstractContextManager[None]:
        """Return the context in which all passes but the last sum nothing."""
        return nullcontext() if last else self.wrapper.no_sync()


class HorovodOptimizer(Candidate):
    """Horovod's wrapper of the optimizer, which sums the passes and averages over the processes."""

    def prepare(self, recipe: Recipe) -> None:
        """Wrap the optimizer."""
        from benchmarks.horovod_optimizer import distributed_optimizer

        self.optimizer = distributed_optimizer(self.optimizer, self.model, len(self.batches))


def _batches(recipe: Recipe, passes: int, rank: int, device: torch.device) -> list[Batch]:
    """The images of every pass of this process, made up, on the device already."""
    images = recipe.pass_workers * recipe.worker_batch
    begins = [(rank * passes + number) * images for number in range(passes)]
    inputs = SyntheticInputs(recipe.data, seed=recipe.seed, device=device)
    dtype = DTYPES[recipe.precision]
    return [
        (pixels.to(dtype=dtype, memory_format=layout(recipe)), labels.to(device))
        for pixels, labels in inputs.train(Pass(0, begin + np.arange(images)) for begin in begins)
    ]


def _sums(flats: list[Tensor], comm: Comm, number: int) -> None:
    for _ in range(number):
        waits = [comm.start_sum_(flat, f"alone {i}") for i, flat in enumerate(flats)]
        for wait in waits:
            wait()


def _apart(one: nn.Module, other: nn.Module) -> float:
    """The largest difference of any two parameters."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max((a.detach() - b.detach()).abs().max().item() for a, b in pairs)


if __name__ == "__main__":
    raise SystemExit(main(Reductions, sys.argv[1:]))
