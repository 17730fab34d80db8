"""Virtual workers in any PyTorch training loop: what a step of lsgd does, without a recipe.

    >>> import torch
    >>> from lsgd.virtual import virtual, virtual_sampler
    >>> data = torch.utils.data.TensorDataset(torch.randn(64, 6), torch.arange(64) % 3)
    >>> model = torch.nn.Sequential(torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    >>> sampler = virtual_sampler(data, workers=4, worker_batch=4, seed=0)
    >>> step = virtual(model, optimizer, workers=4, worker_batch=4, workers_per_pass=2)
    >>> for images, labels in torch.utils.data.DataLoader(data, batch_sampler=sampler):
    ...     loss = step(images, labels)
    >>> step.synchronize()
    >>> step.steps, model.eval()(torch.randn(2, 6)).shape
    (4, torch.Size([2, 3]))

A step has `workers` virtual workers of `worker_batch` images each. Every process of the program's
own process group hosts some of them, and the trajectory is the same on any number of processes, up
to the rounding of sums. Every mistake raises UsageError, with one sentence.
"""

import sys
import zlib
from collections.abc import Iterator, Sized
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lsgd.comm import all_reduce_, comm_over
from lsgd.errors import UsageError
from lsgd.metric_sums import MetricSums
from lsgd.recipe import CommSettings
from lsgd.rules import sampler
from lsgd.rules.batchnorm import worker_batch_norms
from lsgd.rules.counter_dropout import dropout_rate, replace_dropout, replace_layers
from lsgd.rules.optim import trained_parameters
from lsgd.rules.sampler import MicroBatch
from lsgd.strategy import StepTask
from lsgd.strategy.allreduce import AllReduceUpdate
from lsgd.strategy.guard import NonFiniteGuard
from lsgd.strategy.reducer import Reducer
from lsgd.virtual.changes import GradientRecord, ModelRecord
from lsgd.virtual.dependence import check_dependence
from lsgd.virtual.model import (
    Loss,
    broadcast_model,
    check_buffers,
    check_loss,
    check_mean,
    check_micro_batches,
    check_model,
    check_optimizer,
    common_momentum,
    convert_batch_norms,
    do_nothing,
    restore_batch_norms,
    unwrapped,
)
from lsgd.virtual.rows import RowCounter
from lsgd.virtual.sampling import VirtualSampler, hosted_workers, whole_number
from lsgd.workloads import CarriedState, worker_states

__all__ = ["VirtualSampler", "VirtualStep", "virtual", "virtual_sampler"]


DIVERGED = "load an earlier checkpoint, and lower the learning rate or lengthen its warmup"


def virtual(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Loss = F.cross_entropy,
    *,
    workers: int,
    worker_batch: int,
    workers_per_pass: int = 1,
    group: object = None,
    seed: int = 0,
) -> "VirtualStep":
    """Give a model the training step of virtual workers; returns the step, which is called.

    `loss` takes the model's output and the targets of some images; it returns their mean loss, or
    one number for each image. `workers_per_pass` workers go through the model at once: it changes
    speed and memory, and not the trajectory. `group` is a process group of torch.distributed; by
    default all processes take part, over torch.distributed or Horovod, whichever is initialised.
    `seed` determines the masks of dropout layers.

    The model is changed in place: its batch norm layers normalise each worker's images separately,
    dropout draws masks that do not depend on the process, and process 0 broadcasts its weights.
    `VirtualStep.close` undoes that. All processes call it.
    """
    return VirtualStep(
        model,
        optimizer,
        loss,
        workers=workers,
        worker_batch=worker_batch,
        workers_per_pass=workers_per_pass,
        group=group,
        seed=seed,
    )


def virtual_sampler(
    dataset: Sized, *, workers: int, worker_batch: int, seed: int = 0, group: object = None
) -> "VirtualSampler":
    """Return a batch sampler with this process's share of each step, for a DataLoader.

    The order of the examples in an epoch depends on the seed and the epoch alone, as that of a
    recipe of lsgd with the same seed. Examples that do not fill a step are left out in that epoch.
    """
    return VirtualSampler(
        dataset, workers=workers, worker_batch=worker_batch, seed=seed, group=group
    )


class VirtualStep:
    """The training step of virtual workers for a model and its optimizer, as `virtual` makes it.

    Called with this process's images and targets, ordered by worker, it makes a whole step. A loop
    of one's own makes a step of its parts instead:

        for images, labels in step.micro_batches(images, labels):
            step.backward(loss(model(images), labels))
        step.update()

    Gradients are averaged over all images of the step, on all processes, before the optimizer uses
    them. `zero_grad` is not needed, and does no harm between two steps. A loss or gradient that is
    not finite raises DivergedError one step later, on every process; a fused optimizer skips its
    update.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Loss,
        *,
        workers: int,
        worker_batch: int,
        workers_per_pass: int,
        group: object,
        seed: int,
    ) -> None:
        self.model, self.loss = model, loss
        self.comm = comm_over(group)
        self.workers = workers = whole_number("workers", workers, 1)
        self.worker_batch = worker_batch = whole_number("worker_batch", worker_batch, 1)
        self.hosted = hosted_workers(self.comm, workers)
        workers_per_pass = whole_number("workers_per_pass", workers_per_pass, 1)
        self.seed = whole_number("seed", seed)
        check_model(model)
        if workers > 1:
            check_micro_batches(model)
        check_optimizer(model, optimizer)
        check_loss(loss)
        momentum = common_momentum(model)
        self._check_same_everywhere()
        broadcast_model(model, self.comm)
        self._convert_model()
        device = trained_parameters(model)[0].device
        self._core = self._update(optimizer, self._carried_states(momentum, device))
        self._sums = MetricSums(1, device)
        self._losses: list[tuple[Tensor, Tensor]] = []
        """The summed losses and the counts of images of this step's micro-batches so far."""
        # Examples are numbered by their place in the step.
        self._micro_batches = sampler.step_micro_batches(
            np.arange(workers * worker_batch),
            epoch=0,
            step=0,
            workers=workers,
            worker_batch=worker_batch,
            hosted=self.hosted,
            workers_per_pass=workers_per_pass,
        )
        self._counts = {
            len(each.workers): torch.tensor([len(each.examples)], device=device)
            for each in self._micro_batches
        }
        self._current: MicroBatch | None = None
        self._left: int | None = None
        """The backward passes that are missing in this step; None between two steps."""
        self._counts_rows = bool(self._layers) and (workers_per_pass > 1 or worker_batch == 1)
        self._checks_forward, self._is_closed = True, False
        self._checks_mean = workers_per_pass > 1
        self._synchronized = self.steps
        """The number of steps at the last synchronization, the same on every process."""
        self._rows = RowCounter(model, self._layers, worker_batch)
        self._counted_shapes: list[torch.Size] = []
        """The shapes of an image and its targets for which the layers' rows were counted last."""

    def _convert_model(self) -> None:
        """Replace the model's BN and dropout layers by those of workers, and note what it had."""
        self._plain_types = convert_batch_norms(self.model)
        self._dropout = replace_dropout(self.model, seed=self.seed, may_change=True)
        for theirs, ours in self._dropout.items():
            ours.is_frozen = self.model.training and not theirs.training
        self._layers = worker_batch_norms(self.model)
        self._freshness = [layer.freshness for layer in self._layers if layer.freshness]
        self._record = ModelRecord(self.model, self._layers)

    def _update(
        self, optimizer: torch.optim.Optimizer, parts: list[CarriedState]
    ) -> AllReduceUpdate:
        """Return the update of a step, from the gradients of all processes."""
        parameters = trained_parameters(self.model)
        reducer = Reducer(
            parameters,
            self.comm,
            bucket_mb=CommSettings().bucket_mb,
            compression="none",
            keep_autograd_grads=self.comm.world_size == 1,
        )
        self._gradients = GradientRecord(parameters, reducer)
        # By this hook a second step finds that the gradients have an owner; the reducer of a single
        # process has none.
        self._hooks.append(parameters[0].register_post_accumulate_grad_hook(do_nothing))
        self._stepped = unwrapped(optimizer)
        if getattr(self._stepped, "_step_supports_amp_scaling", False):
            self._stepped.found_inf = reducer.found_inf  # type: ignore[attr-defined]
        guard = NonFiniteGuard(reducer.flags, timeout=inf, advice=DIVERGED)
        return AllReduceUpdate(reducer, optimizer, parts, self.comm, guard)

    def _carried_states(self, momentum: float, device: torch.device) -> list[CarriedState]:
        """Return what steps change besides the parameters: BN statistics and dropout's draws."""
        self._hooks: list[Any] = []
        self._statistics, draws = worker_states(
            self.model, self.hosted, self.workers, self.comm, device, momentum=momentum
        )
        if self._statistics:
            for number, freshness in enumerate(self._freshness):
                freshness.take_loaded = partial(self._statistics.read_from_layer, number)
        return [state for state in (self._statistics, draws) if state]

    @property
    def steps(self) -> int:
        """The number of steps made so far, including those before a resume."""
        return self._core.next_step

    @property
    def images_per_step(self) -> int:
        """The number of images of this process in each step."""
        return len(self.hosted) * self.worker_batch

    @property
    def gradient_norm(self) -> Tensor:
        """The norm of the whole averaged gradient of the last step, a tensor on the device."""
        return self._core.reducer.gradient_norm

    def __call__(self, images: Tensor, *targets: Any) -> Tensor:
        """Make a step of this process's images; return its mean loss over them, detached.

        The first argument goes through the model, and the others to the loss with its output.
        """
        total = torch.zeros((), device=self._sums.loss.device)
        for some, *of_some in self.micro_batches(images, *targets):
            output = self.model(some)
            loss = self.loss(output, *of_some)
            if self._checks_mean and self._current:
                check_mean(self.loss, loss, (output, *of_some), self._current)
                self._checks_mean = False
            total = total + self.backward(loss)
        self.update()
        return total / self.images_per_step

    def micro_batches(self, images: Tensor, *targets: Any) -> Iterator[tuple[Any, ...]]:
        """Start a step; yield its micro-batches: images, with each further tensor's values.

        A micro-batch must go through `backward` before the next one. If each has one worker, the
        targets may be lists or arrays.
        """
        self._check_open()
        for number, values in enumerate((images, *targets)):
            self._check_batch(values, is_image=not number)
        self._record.check()
        if not torch.is_grad_enabled():
            raise UsageError("a step needs gradients; call it outside of torch.no_grad()")
        if self._left == 0:
            raise UsageError("the step before has all its gradients; call update() after its loop")
        return self._start(images, *targets)

    def _check_batch(self, values: Any, *, is_image: bool) -> None:
        """Raise UsageError unless a batch has a row for each image of this process's workers."""
        needs_tensor = is_image or self._counts_rows or max(self._counts) > 1
        is_tensor = isinstance(values, Tensor) and values.dim() > 0
        if not is_tensor and (needs_tensor or not _is_sequence(values)):
            raise UsageError(
                f"a step got a batch of type {type(values).__name__}, and reads tensors of an "
                "image or target in each row; pass such tensors"
            )
        if len(values) != self.images_per_step:
            raise UsageError(
                f"a step got a batch of {len(values)}, and the {len(self.hosted)} workers of "
                f"process {self.comm.rank} have worker_batch={self.worker_batch} each, so "
                f"pass {self.images_per_step}, ordered by worker, as virtual_sampler yields"
            )

    def _start(self, *tensors: Any) -> Iterator[tuple[Any, ...]]:
        self._core.reducer.reclaim_gradients()
        self._set_stale(True)
        if self._statistics:
            self._statistics.discard()  # those of a step before that an error has ended
        self._left, self._losses = len(self._micro_batches), []
        self._core.reducer.start(self.workers * self.worker_batch, self._left)
        self._gradients.update(is_last=False)
        shapes = [tensor.shape[1:] for tensor in tensors] if self._counts_rows else []
        for number, each in enumerate(self._micro_batches):
            self._current = replace(each, epoch=self.steps) if self._dropout else each
            for part in self._core.carried_states:
                part.start_micro_batch(self._current)
            workers, begin = len(each.workers), each.workers.start - self.hosted.start
            of_pass = slice(begin * self.worker_batch, (begin + workers) * self.worker_batch)
            with nullcontext() if number else self._check_forward(each, shapes):
                yield tuple(_interleave(tensor[of_pass], workers) for tensor in tensors)
            if self._left != len(self._micro_batches) - number - 1:
                raise UsageError(
                    "each micro-batch needs one backward pass; call step.backward(loss) once in "
                    "the loop over step.micro_batches(…)"
                )

    @contextmanager
    def _check_forward(self, first: MicroBatch, shapes: list[torch.Size]) -> Iterator[None]:
        """Check that the forward pass in this context changes no buffer and mixes no workers.

        It is that of the first micro-batch of a step. The buffers and the images of several workers
        are checked once, and the rows of batch norm once for each shape of the images.
        """
        with ExitStack() as checks:
            if self._checks_forward:
                if len(first.workers) > 1:
                    checks.enter_context(check_dependence(self.model, len(first.examples)))
                checks.enter_context(check_buffers(self.model))
            if shapes != self._counted_shapes:
                count = self._rows.count(len(first.examples), len(first.workers))
                checks.enter_context(count)
            yield
        self._checks_forward, self._counted_shapes = False, shapes

    def backward(self, loss: Tensor) -> Tensor:
        """Run the backward pass of the current micro-batch's loss; return its detached sum.

        `loss` is the mean over the micro-batch's images, or one number for each image.
        """
        if self._current is None or not self._left:
            raise UsageError(
                "backward(loss) belongs into the loop over step.micro_batches(…), once for each"
            )
        count = len(self._current.examples)
        if not isinstance(loss, Tensor) or not loss.requires_grad:
            what = "has no gradient" if isinstance(loss, Tensor) else f"is {loss!r:.60}"
            raise UsageError(
                f"the loss of {count} images {what}; return a tensor that depends on the model's "
                "parameters, their mean or one number for each"
            )
        if loss.dim() > 1 or (loss.dim() == 1 and len(loss) != count):
            raise UsageError(
                f"the loss of {count} images has the shape {tuple(loss.shape)}; return their "
                "mean, or one number for each"
            )
        summed = loss.sum() if loss.dim() else loss * count
        self._losses.append((summed.detach(), self._counts[len(self._current.workers)]))
        self._gradients.check(is_last=False)
        self._core.backward(summed)
        self._left -= 1
        self._gradients.update(is_last=not self._left)
        self._current = None
        return summed.detach()

    def update(self) -> None:
        """End a step: wait for the averaged gradients, call the optimizer, update BN statistics."""
        self._check_open()
        if self._left != 0:
            raise UsageError(
                f"update() ends a step whose {len(self._micro_batches)} micro-batches all had "
                "their backward pass; loop over step.micro_batches(…) first"
            )
        self._gradients.check(is_last=True)
        self._gradients.clear()
        self._left = None
        self._core.step(
            StepTask(
                step=self.steps,
                divisor=self.workers * self.worker_batch,
                active_workers=self.workers,
                micro_batches=self._micro_batches,
            )
        )
        for summed, count in self._losses:
            self._sums.add(summed, count)
        # An autocast around the loop would compute further steps with its copies of these weights.
        torch.clear_autocast_cache()

    def synchronize(self) -> None:
        """Write the running BN statistics into the model; all processes call it.

        An evaluation and a checkpoint of the model need it, and raise UsageError without it. Raises
        DivergedError if the last step was not finite.
        """
        self._check_open()
        self._core.synchronize()
        self._set_stale(False)
        self._synchronized = self.steps

    def mean_loss(self) -> float:
        """Return the mean loss over all images, of all processes, since the last call.

        All processes call it after a step; raises UsageError if there was none.
        """
        state = self._sums.state(self._sum)
        if not state["counts"][0]:
            raise UsageError("there was no step since the last mean_loss(); call it after one")
        self._sums.clear()
        return float(state["loss"] / state["counts"][0])

    def state_dict(self) -> dict[str, Any]:
        """Return what a resume needs beside the states of model and optimizer.

        All processes call it, before they take those; it includes `synchronize`. The result is the
        same on every process, and may be loaded on any number of processes.
        """
        self.synchronize()
        return {
            "steps": self.steps,
            "workers": self.workers,
            "worker_batch": self.worker_batch,
            "seed": self.seed,
            "sums": self._sums.state(self._sum),
            "batchnorm": self._statistics.state(self._sum) if self._statistics else {},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned, after model and optimizer have."""
        self._check_open()
        if missing := {"steps", "workers", "worker_batch", "sums", "batchnorm"} - state.keys():
            raise UsageError(
                f"the state has no {', '.join(sorted(missing))}; load what step.state_dict() "
                "has returned"
            )
        for name in ("workers", "worker_batch", "seed"):
            if name in state and state[name] != getattr(self, name):  # older states have no seed
                raise UsageError(
                    f"the state was saved with {name}={state[name]}, and this step has "
                    f"{name}={getattr(self, name)}; use the same, or leave the state out"
                )
        shares = state["batchnorm"].get("shares", torch.empty(1, 0))
        size = len(self._statistics.share) if self._statistics else 0
        if shares.shape[-1] != size:
            raise UsageError(
                f"the state has {shares.shape[-1]} running BN statistics, and the model {size}; "
                "load the state of the same model"
            )
        # An error may have ended a step before its update, whose sums are under way.
        if self._left == 0:
            self._core.reducer.finish()
        self._left = self._current = None
        self._core.next_step = state["steps"]
        # A training that has diverged goes on from an earlier state.
        self._core.reducer.flags.zero_()
        self._core.guard.seen.zero_()
        self._sums.clear()
        if self.comm.rank == 0:  # the sums are those of all processes
            self._sums.restore(state["sums"])
        if self._statistics:
            self._statistics.restore(state["batchnorm"])

    def close(self) -> None:
        """Undo what `virtual` has changed in the model: hooks, batch norm and dropout layers.

        Raises UsageError if `synchronize` has not written the BN statistics of the last step, which
        would be lost, unless the training has diverged or another exception is on its way.
        """
        is_over = self._is_closed or sys.exception() is not None
        if not is_over and not self._core.guard.seen[0]:
            for freshness in self._freshness:
                freshness.check("close()")
        self._undo()

    def _undo(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._core.reducer.close()
        vars(self._stepped).pop("found_inf", None)
        for hook in self._hooks:
            hook.remove()
        restore_batch_norms(self._plain_types)
        for theirs, ours in self._dropout.items():
            theirs.train(ours.training)
            if ours.rate != dropout_rate(theirs):
                setattr(theirs, "drop_prob" if hasattr(theirs, "drop_prob") else "p", ours.rate)
        replace_layers(self.model, {ours: theirs for theirs, ours in self._dropout.items()})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        """Synchronize and close; after an error close only, since other processes may not."""
        try:
            # The others may have left since they have synchronized, and their group may be gone.
            if kind is None and not self._is_closed and self._synchronized != self.steps:
                self.synchronize()
        finally:
            self._undo()

    def _check_open(self) -> None:
        if self._is_closed:
            raise UsageError("this step was closed; make another one by virtual(…)")

    def _set_stale(self, is_stale: bool) -> None:
        """Note on each batch norm layer whether steps have changed statistics that it lacks."""
        for freshness in self._freshness:
            freshness.is_stale = is_stale

    def _sum(self, tensor: Tensor) -> None:
        all_reduce_(self.comm, tensor)

    def _check_same_everywhere(self) -> None:
        """Raise UsageError on all processes if two of them differ in model or settings."""
        shapes = repr([(name, each.shape) for name, each in self.model.named_parameters()])
        mine = (self.workers, self.worker_batch, self.seed, zlib.crc32(shapes.encode()))
        theirs = self.comm.gather_objects(mine)
        names = ("workers", "worker_batch", "seed", "parameters of the model")
        for name, *values in zip(names, *theirs, strict=True):
            if len(set(values)) > 1:
                raise UsageError(
                    f"the {name} differ between processes; pass the same to virtual(…) on each"
                )


def _is_sequence(values: Any) -> bool:
    """Return whether values have a length and slices, as lists and arrays do."""
    try:
        len(values), values[:0]
    except Exception:
        return False
    return True


def _interleave(values: Tensor, workers: int) -> Tensor:
    """Reorder values (workers x n, …) from worker by worker to the first of each worker first.

    That is the order of MicroBatch.examples. The memory format stays the same.
    """
    if workers == 1:
        return values
    turned = torch.empty_like(values)
    turned.unflatten(0, (-1, workers)).copy_(values.unflatten(0, (workers, -1)).transpose(0, 1))
    return turned
