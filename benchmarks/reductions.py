"""Training steps that differ only in the library and the time of the sums of gradients.

All have the same model, images, micro-batches, per-worker BN, loss and optimizer, and so arrive at
the same parameters, except the one without sums. `python -m benchmarks.reductions` is a process of
a job that makes such steps, run by lsgd.bench.job_process.
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

from lsgd.bench.job_process import main
from lsgd.comm import Comm
from lsgd.inputs import Batch
from lsgd.inputs.synthetic import SyntheticInputs
from lsgd.models import DTYPES, make_network, memory_format
from lsgd.recipe import Recipe
from lsgd.rules import optim
from lsgd.rules.batchnorm import RunningStatistics
from lsgd.rules.sampler import MicroBatch
from lsgd.strategy.reducer import Reducer

OURS, DDP, HOROVOD = "ours", "DistributedDataParallel", "hvd.DistributedOptimizer"
BARE, SUMS_ONLY = "without any sum", "the sums alone"
DDP_BUCKET_MB = 25
"""The default size of a bucket of DistributedDataParallel, in MiB."""
COMPARED_AFTER = 3
"""The steps after which all candidates' parameters are compared; they also serve as warm-up."""


class Reductions:
    """An Assignment whose setting is the number of micro-batches that a process accumulates."""

    def __init__(self, recipe: Recipe, comm: Comm, device: torch.device) -> None:
        self.recipe, self.comm, self.device = recipe, comm, device
        self.candidates: Mapping[str, Callable[[int], None]] = {}

    def prepare(self, setting: int) -> dict[str, Any]:
        """Build the candidates that this job's library supports, and return facts about them."""
        self.candidates = {}  # This frees the memory of the former ones before new ones are built.
        workers = self.comm.world_size * setting * self.recipe.micro_batch_workers
        recipe = replace(self.recipe, workers=workers)
        batches = _batches(recipe, setting, self.comm.rank, self.device)
        kinds, missing = self._kinds()
        candidates = {
            name: kind(recipe, self.comm, self.device, batches) for name, kind in kinds.items()
        }
        for candidate in candidates.values():
            candidate.steps(COMPARED_AFTER)
        ours = candidates[OURS]
        assert isinstance(ours, ReducerCandidate)
        flats = [torch.zeros_like(bucket.flat) for bucket in ours.reducer.buckets]
        self.candidates = {name: candidate.steps for name, candidate in candidates.items()}
        self.candidates |= {SUMS_ONLY: lambda number: _sums(flats, self.comm, number)}
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
        kinds: dict[str, type[Candidate]] = {OURS: ReducerCandidate, BARE: UnsummedCandidate}
        if "Horovod" not in self.comm.library:
            return kinds | {DDP: TorchDDP}, {}
        if self.recipe.channels_last:
            refuses = "it refuses channels_last gradients; write channels_last=false"
            return kinds, {HOROVOD: refuses}
        return kinds | {HOROVOD: HorovodOptimizer}, {}


class Candidate:
    """A model that is trained on the same micro-batches in every step."""

    def __init__(
        self, recipe: Recipe, comm: Comm, device: torch.device, batches: list[Batch]
    ) -> None:
        self.comm, self.device, self.batches = comm, device, batches
        self.dtype = DTYPES[recipe.precision]
        self.bfloat16 = recipe.precision == "bfloat16"
        self.workers, self.examples = recipe.workers, recipe.batch_size
        images = np.arange(recipe.micro_batch_workers * recipe.worker_batch)
        self.micro_batch = MicroBatch(0, images, range(recipe.micro_batch_workers))
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
        """Make this number of training steps."""
        for _ in range(number):
            self.start()
            for images, labels in self.batches:
                with self.micro_batch_context(last=images is self.batches[-1][0]):
                    self.running.start_micro_batch(self.micro_batch)
                    with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16):
                        logits = self.forward(images)
                    loss = F.cross_entropy(logits.to(self.dtype), labels, reduction="sum")
                    self.backward(loss)
            self.finish()
            self.running.end_step(active_workers=self.workers)
            self.optimizer.step()

    def prepare(self, recipe: Recipe) -> None:
        """Set up the sum of the gradients over processes; the base class has none."""

    def start(self) -> None:
        """Prepare the gradients for a step, before its micro-batches."""
        self.optimizer.zero_grad()

    def micro_batch_context(self, *, last: bool) -> AbstractContextManager[None]:
        """Return the context in which a micro-batch is computed."""
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of a micro-batch's summed loss.

        The loss is scaled so that a mean over processes gives the gradient of the step's mean loss.
        """
        (loss * (self.comm.world_size / self.examples)).backward()

    def finish(self) -> None:
        """Complete the gradients after the last micro-batch; nothing to do in the base class."""


class UnsummedCandidate(Candidate):
    """Training without any sum of gradients over processes."""


class ReducerCandidate(Candidate):
    """Training with lsgd's Reducer, its non-finite flags and gradient norm, as in lsgd.train."""

    def prepare(self, recipe: Recipe) -> None:
        """Build the Reducer, and let its non-finite flag skip the optimizer's updates."""
        self.reducer = Reducer(
            self.model.parameters(),
            self.comm,
            bucket_mb=recipe.comm.bucket_mb,
            compression=recipe.gradient_compression,
        )
        self.optimizer.found_inf = self.reducer.found_inf  # type: ignore[attr-defined]

    def start(self) -> None:
        """Begin a step of the Reducer, in place of clearing the gradients."""
        self.reducer.start(self.examples, len(self.batches))

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of a micro-batch, and start the sums of complete buckets."""
        self.reducer.backward(loss)

    def finish(self) -> None:
        """Wait for the gradient sums of the step."""
        self.reducer.finish()


class TorchDDP(Candidate):
    """Training with DistributedDataParallel and all its options for speed.

    Gradients are views of buckets, only the last micro-batch sums, and buffers are not broadcast,
    since no model of lsgd needs it.
    """

    def prepare(self, recipe: Recipe) -> None:
        """Wrap the model in DistributedDataParallel."""
        # With an explicit size DDP has no small first bucket, which by default starts the sums
        # early.
        size = recipe.comm.bucket_mb
        self.forward = self.wrapper = DistributedDataParallel(
            self.model,
            bucket_cap_mb=None if size == DDP_BUCKET_MB else size,
            gradient_as_bucket_view=True,
            broadcast_buffers=False,
        )

    def micro_batch_context(self, *, last: bool) -> AbstractContextManager[None]:
        """Return the context of a micro-batch, in which only the last one sums gradients."""
        return nullcontext() if last else self.wrapper.no_sync()


class HorovodOptimizer(Candidate):
    """Training with Horovod's optimizer, which adds micro-batches and averages over processes."""

    def prepare(self, recipe: Recipe) -> None:
        """Wrap the optimizer in Horovod's DistributedOptimizer."""
        from benchmarks.horovod_optimizer import distributed_optimizer

        self.optimizer = distributed_optimizer(self.optimizer, self.model, len(self.batches))


def _batches(recipe: Recipe, passes: int, rank: int, device: torch.device) -> list[Batch]:
    """Return made-up images for every micro-batch of this process, already on the device."""
    images = recipe.micro_batch_workers * recipe.worker_batch
    begins = [(rank * passes + number) * images for number in range(passes)]
    inputs = SyntheticInputs(recipe.data, seed=recipe.seed, device=device)
    dtype = DTYPES[recipe.precision]
    return [
        (pixels.to(dtype=dtype, memory_format=memory_format(recipe)), labels.to(device))
        for pixels, labels in inputs.train(
            MicroBatch(0, begin + np.arange(images)) for begin in begins
        )
    ]


def _sums(flats: list[Tensor], comm: Comm, number: int) -> None:
    for _ in range(number):
        waits = [comm.start_all_reduce_(flat, f"alone {i}") for i, flat in enumerate(flats)]
        for wait in waits:
            wait()


def _apart(one: nn.Module, other: nn.Module) -> float:
    """Return the largest absolute difference between two models' parameters."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max((a.detach() - b.detach()).abs().max().item() for a, b in pairs)


if __name__ == "__main__":
    raise SystemExit(main(Reductions, sys.argv[1:]))
