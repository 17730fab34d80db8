"""Workloads of one's own: the base class with the rules of virtual workers, and their opening."""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import lru_cache, partial
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lsgd.comm import Comm
from lsgd.comm.single import SingleComm
from lsgd.errors import UsageError
from lsgd.inputs import Inputs
from lsgd.models import DTYPES, converted
from lsgd.models.forward_checks import find_changed_buffer, record_buffers
from lsgd.models.randomness_guard import RandomnessGuard, seeded_generators, without_global_draws
from lsgd.own_parts import WORKLOAD, imported_part, refusing_errors
from lsgd.recipe import Recipe
from lsgd.recipe.schedule_checks import refuse_single_examples
from lsgd.rules import sampler
from lsgd.rules.batchnorm import keeps_images_apart, worker_batch_norm_type, worker_batch_norms
from lsgd.rules.counter_dropout import counter_dropout_layers, replace_dropout
from lsgd.rules.metric import MAIN_SET, Metric, named_metric
from lsgd.rules.sampler import MicroBatch
from lsgd.workloads import CarriedState, round_robin_micro_batches, worker_states


class OwnWorkload(ABC):
    """The base class of workloads: what is learned, from which examples, and how it is judged.

    A subclass names its metrics and counts, and has the four abstract methods. Its `__init__` takes
    `recipe` and `device`, passes them on, and may take options. The network's batch norm layers
    normalise each virtual worker's examples separately, and its `nn.Dropout` layers draw by (seed,
    epoch, example); each gets one row for each example. Others that draw random numbers are
    rejected.
    """

    metric_names: ClassVar[tuple[str, ...]]
    """The names of the metrics, lower is better; the first judges a run.

    A name that ends in error is that of a percentage.
    """
    count_names: tuple[str, ...]
    """The names of the counts of `loss`; the first is the unit of the mean loss and the speed."""
    evaluation_sets: tuple[str, ...] = ("val",)
    """The names of the evaluation sets: first val, that of the final metric; none has a `_`."""
    example_weights: NDArray[np.int64] | None = None
    """The weight of each training example in the divisor of the gradient; None for 1 each."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.dtype = DTYPES[recipe.precision]
        # Cached, since every checkpoint asks for it.
        self._order = lru_cache(maxsize=2)(
            partial(sampler.epoch_order, recipe.train_examples, seed=recipe.seed)
        )

    @abstractmethod
    def make_network(self) -> nn.Module:
        """Build the network on the CPU, with the global generators at the recipe's seed."""

    @abstractmethod
    def open_inputs(self) -> Inputs:
        """Open the loader of the examples; raises UsageError if they are missing."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any, each: MicroBatch) -> tuple[Tensor, Tensor]:
        """Return a micro-batch's summed loss, shape (), and its counts, int64 of shape (counts,).

        The sum is over the unit that the first count counts. `each.split` is train in training.
        """

    @abstractmethod
    def metrics(self, loss: float, counts: list[int]) -> dict[str, float]:
        """Convert a mean loss and summed counts into the values of `metric_names`, by name."""

    def evaluation_examples(self, split: str) -> int:
        """Return the number of examples of an evaluation set; override it if there is one but val.

        Raises UsageError for other sets than val, whose sizes the recipe does not have.
        """
        if split != MAIN_SET:
            raise UsageError(
                f"{self.metrics_part} has the evaluation set {split} and no size of it; override "
                f"evaluation_examples(split) for {split}, or leave it out of evaluation_sets"
            )
        return self.recipe.data.val_examples

    def example_order(self, epoch: int) -> NDArray[np.int64]:
        """Return the training examples of an epoch in their order, by (seed, epoch)."""
        return self._order(epoch=epoch)

    def evaluation_micro_batches(self, split: str, rank: int, world_size: int) -> list[MicroBatch]:
        """Return a process's micro-batches of an evaluation set, of `val_batch` examples each."""
        ids = np.arange(self.evaluation_examples(split))
        return round_robin_micro_batches(ids, self.recipe.val_batch, split, rank, world_size)

    def evaluation_mode(self, model: nn.Module, inputs: Inputs) -> AbstractContextManager[None]:
        """Return an empty context: an evaluation is of the weights as they are trained."""
        return nullcontext()

    def carried_states(
        self, model: nn.Module, hosted: range, comm: Comm
    ) -> tuple[CarriedState, ...]:
        """Create the running BN statistics and the draws of dropout, each if the network has it."""
        states = worker_states(model, hosted, self.recipe.workers, comm, self.device)
        return tuple(state for state in states if state)

    @property
    def metric(self) -> Metric:
        """The metric that judges a run, the first of `metric_names`."""
        return named_metric(self.metric_names[0])

    @property
    def metrics_part(self) -> str:
        """The override that names this workload, for errors of its metrics."""
        return f"data.workload={self.recipe.data.workload}"

    def network(self) -> nn.Module:
        """Build the network in the recipe's precision, with the layers of virtual workers."""
        where = f"data.workload={self.recipe.data.workload} fails in make_network"
        seed = self.recipe.seed
        with torch.random.fork_rng(devices=[]), seeded_generators(seed), refusing_errors(where):
            torch.manual_seed(seed)
            model = self.make_network()
        replace_dropout(model, seed=self.recipe.seed)
        for path, module in model.named_modules():
            if isinstance(module, nn.modules.batchnorm._NormBase):
                _normalise_per_worker(module, path, self.recipe.data.workload)
        return converted(model, self.recipe)

    def inputs(self) -> Inputs:
        """Open the loader, and try the loss on the first validation examples.

        Raises UsageError if it fails, or is no sum over the examples.
        """
        inputs = self.open_inputs()
        _check_examples(self)
        _try_out(self, inputs)
        if not getattr(inputs, "name", None):
            inputs.name = type(inputs).__name__
        return inputs


def _normalise_per_worker(norm: nn.Module, path: str, workload: str) -> None:
    """Make a batch norm layer normalise per virtual worker, in place; raises UsageError."""
    if keeps_images_apart(norm):
        return
    kind = worker_batch_norm_type(norm)
    if kind is None or not (norm.affine and norm.track_running_stats):
        raise UsageError(
            f"data.workload={workload} normalises by {type(norm).__name__} in {path}, which may "
            "mix the examples of several workers, or lacks gamma, beta or running statistics; use "
            "BatchNorm1d or BatchNorm2d with these, or a norm of single examples"
        )
    norm.__class__ = kind


def open_own_workload(recipe: Recipe, device: torch.device) -> OwnWorkload:
    """Make the workload of a recipe's user; raises UsageError for what cannot judge a run."""
    data = recipe.data
    part = imported_part(WORKLOAD, data.workload, data.workload_source)
    made: OwnWorkload = part(data.workload_options, recipe=recipe, device=device)
    names = getattr(made, "count_names", None)
    if not isinstance(names, tuple) or not names:
        raise UsageError(
            f"{part.override} has count_names={names!r}; write a tuple of the names of its counts, "
            "such as ('examples',)"
        )
    sets: Any = made.evaluation_sets
    is_named = isinstance(sets, tuple) and all(isinstance(each, str) for each in sets)
    is_apart = is_named and "train" not in sets and len(set(sets)) == len(sets)
    if not is_apart or sets[:1] != (MAIN_SET,) or "_" in "".join(sets):
        raise UsageError(
            f"{part.override} has evaluation_sets={sets!r}; write a tuple of different names "
            f"without _, none of them train and the first {MAIN_SET!r}, such as ('val', 'test')"
        )
    return made


def _check_examples(workload: OwnWorkload) -> None:
    """Raise UsageError for an empty evaluation set, or for weights of other examples."""
    override = f"data.workload={workload.recipe.data.workload}"
    with refusing_errors(f"{override} fails in evaluation_examples"):
        sizes = {split: workload.evaluation_examples(split) for split in workload.evaluation_sets}
    for split, size in sizes.items():
        if size < 1:
            raise UsageError(
                f"{override} has {size} examples in its evaluation set {split}, of which there is "
                "no mean loss; return the number of examples from evaluation_examples, or leave "
                f"{split} out of evaluation_sets"
            )
    weights, examples = workload.example_weights, workload.recipe.train_examples
    if weights is None:
        return
    shape, dtype = getattr(weights, "shape", None), getattr(weights, "dtype", type(weights))
    if shape != (examples,) or not np.issubdtype(dtype, np.integer) or weights.min() < 0:
        raise UsageError(
            f"{override} has example_weights of shape {shape} and {dtype}; write an int64 array of "
            f"shape ({examples},), the weight of each training example, 0 or more"
        )
    _check_divisors(workload, weights)


def _check_divisors(workload: OwnWorkload, weights: NDArray[np.int64]) -> None:
    """Raise UsageError if all examples of an update have the weight 0, which would divide by 0."""
    recipe, zeros = workload.recipe, int((weights == 0).sum())
    for epoch in range(recipe.epochs):
        stage = recipe.stage(epoch)
        # Other strategies divide the gradient of each worker.
        is_whole = recipe.strategy.name in ("allreduce", "sync")
        size = stage.batch_size if is_whole else stage.worker_batch
        if zeros < min(size, len(weights) % size or size):
            continue
        order = workload.example_order(epoch)
        if not recipe.keeps_tail:
            order = order[: len(order) // stage.batch_size * stage.batch_size]
        sums = np.add.reduceat(weights[order], np.arange(0, len(order), size))
        if not sums.all():
            raise UsageError(
                f"{workload.metrics_part} has example_weights of 0 for all examples of an update "
                f"in epoch {epoch}, whose gradient is divided by their sum; give each example a "
                "weight above 0, or leave out those without one"
            )


def _try_out(workload: OwnWorkload, inputs: Inputs) -> None:
    """Check a workload of one's own by the loss of a few examples; raises UsageError."""
    # A copy, since carried_states keeps states of this throwaway model for the loss.
    workload = copy.copy(workload)
    model = workload.network().to(workload.device)
    hosted = range(min(2, workload.recipe.workers))
    states = workload.carried_states(model, hosted, SingleComm())
    _try_evaluation(workload, model, inputs)
    _try_training(workload, model, inputs, states)


@torch.inference_mode()
def _try_evaluation(workload: OwnWorkload, model: nn.Module, inputs: Inputs) -> None:
    """Check that two validation examples have the loss and counts of each, added; or UsageError."""
    override, kinds = workload.metrics_part, len(workload.count_names)
    model.eval()
    ids = np.arange(min(2, workload.evaluation_examples(MAIN_SET)))
    shares = [ids, *(ids[[place]] for place in ids)]
    passes = [MicroBatch(None, share, range(0), 0, MAIN_SET) for share in shares]
    where = f"{override} fails on the first {len(ids)} validation examples"
    with refusing_errors(where):
        batches = zip(passes, inputs.evaluation(passes), strict=True)
        (loss, counts), *alone = (workload.loss(model, batch, each) for each, batch in batches)
        shapes = tuple(loss.shape), tuple(counts.shape)
    if shapes != ((), (kinds,)) or counts.dtype != torch.int64:
        raise UsageError(
            f"{override} returns a loss of shape {shapes[0]} and counts of shape {shapes[1]} of "
            f"{counts.dtype}; return a loss of shape () and int64 counts of shape ({kinds},), one "
            "for each of count_names"
        )
    each_loss = [float(each) for each, _ in alone]
    for example, value in zip(ids, each_loss, strict=True):
        if math.isnan(value):
            raise UsageError(
                f"{override} has a loss of nan for validation example {example}; correct the "
                "example, or return a number"
            )
    _check_sum(override, "two examples", (loss, counts), alone)
    with refusing_errors(where):
        metrics = workload.metrics(float(loss) / max(1, int(counts[0])), counts.tolist())
    if set(metrics) != set(workload.metric_names):
        raise UsageError(
            f"{override} returns the metrics {', '.join(metrics) or 'none'}, and has "
            f"metric_names={workload.metric_names}; return these"
        )


def _check_sum(
    override: str,
    examples: str,
    together: tuple[Tensor, Tensor],
    alone: list[tuple[Tensor, Tensor]],
    tolerance: float = 1e-3,
) -> None:
    """Raise UsageError unless the loss and counts of examples are the sums of those of each."""
    (loss, counts), each_loss = together, [float(each) for each, _ in alone]
    # The least scale is for losses that begin at 0, such as a distance from the start.
    losses, tolerance = sum(each_loss), tolerance * max(sum(map(abs, each_loss)), 1e-3)
    counted = torch.stack([each for _, each in alone]).sum(0)
    if not (counts.equal(counted) and math.isclose(loss, losses, rel_tol=0, abs_tol=tolerance)):
        raise UsageError(
            f"{override} has a loss of {float(loss):.7g} and counts {counts.tolist()} for "
            f"{examples}, which alone have {losses:.7g} and {counted.tolist()} in sum; return sums "
            "over the examples, and let no example depend on another, or on earlier draws"
        )


def _try_training(
    workload: OwnWorkload, model: nn.Module, inputs: Inputs, states: tuple[CarriedState, ...]
) -> None:
    """Check that the loss of two training examples draws nothing and is the sum of that of each.

    Raises UsageError if it fails, draws from torch's generator or changes a buffer, or if a batch
    norm or dropout layer does not get one row for each example. The sum is not compared if the
    workload has carried states of its own, which the loss may change.
    """
    override, n = workload.metrics_part, workload.recipe.worker_batch
    model.train()
    ids = workload.example_order(0)[: min(2, workload.recipe.batch_size)]
    alone = (MicroBatch(0, ids[[at]], range(at // n, at // n + 1)) for at in range(len(ids)))
    passes = [MicroBatch(0, ids, range(-(-len(ids) // n))), *alone]
    norms, drops = worker_batch_norms(model), counter_dropout_layers(model)
    layers = {
        path: layer
        for path, layer in model.named_modules()
        if layer in {*norms, *drops} and layer.training
    }
    for norm in norms:
        if norm.training:
            norm.register_forward_pre_hook(partial(_refuse_single_values, workload.recipe))
        norm.eval()  # a single example may have no variance
    fix = "set their rate to 0 and use nn.Dropout, or numbers of lsgd.parts.uniforms"
    # Such as one that is seeded by epoch and example.
    guard = RandomnessGuard(override, fix, model, set(), allows_generators=True)
    buffers, found = record_buffers(model), []
    with refusing_errors(f"{override} fails on the first {len(ids)} training examples"):
        for each, batch in zip(passes, inputs.train(passes), strict=True):
            for state in states:
                state.start_micro_batch(each)

            def loss(batch: Any = batch, each: MicroBatch = each) -> tuple[Tensor, Tensor]:
                with guard:
                    return workload.loss(model, batch, each)

            with _checking_rows(override, layers, len(each.examples)), guard.modules():
                value, counts = without_global_draws(override, fix, loss)
            found.append((value.detach(), counts))
        if path := find_changed_buffer(model, buffers):
            raise UsageError(
                f"{override} changes the buffer {path} of the network in every forward pass, so "
                "that the result would depend on the number of processes and micro-batches; leave "
                "it as it is in training"
            )
        is_plain = type(workload).carried_states is OwnWorkload.carried_states
        if is_plain and all(value.isfinite().all() for value, _ in found):
            # A network begins with small outputs, of which a loss shows small differences only. A
            # GPU may multiply matrices in a lower precision.
            dtypes = found[0][0].dtype, workload.dtype
            tolerance = max(torch.finfo(dtype).eps for dtype in dtypes) ** 0.6
            tolerance = tolerance if workload.device.type == "cpu" else max(tolerance, 1e-3)
            _check_sum(override, f"{len(ids)} training examples", found[0], found[1:], tolerance)


def _refuse_single_values(recipe: Recipe, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Raise UsageError if a batch norm layer would normalise over one value of each channel."""
    if math.prod(inputs[0].shape[2:]) == 1:
        for stage in recipe.stages:
            refuse_single_examples(recipe, stage.batch_size, stage.worker_batch)


@contextmanager
def _checking_rows(override: str, layers: dict[str, nn.Module], examples: int) -> Iterator[None]:
    """Raise UsageError if a layer gets another number of rows than that of the examples."""

    def check(path: str, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if len(inputs[0]) != examples:
            raise UsageError(
                f"{override} passes {len(inputs[0])} rows for {examples} "
                f"example{'s' * (examples > 1)} to {type(layer).__name__} in {path}, which cannot "
                "tell whose they are; give it one row for each example, along the first dimension"
            )

    with ExitStack() as hooks:
        for path, layer in layers.items():
            hooks.enter_context(layer.register_forward_pre_hook(partial(check, path)))
        yield
