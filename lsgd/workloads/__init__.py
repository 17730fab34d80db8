"""The interface of a workload: the model, data, loss and metrics that a run trains.

The training loop (lsgd/train.py) and the step work with any workload. A new workload is a module
here that implements `Workload`, and a case in `open_workload`; one of the user's own derives from
OwnWorkload in lsgd.workloads.own.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lsgd.comm import Comm
from lsgd.errors import UsageError
from lsgd.inputs import Inputs, try_own_training
from lsgd.inputs.staging import with_staged_data
from lsgd.job.device import arrays_to_device
from lsgd.metric_sums import MetricSumsState
from lsgd.models.micro_batch_checks import check_micro_batches, sums_micro_batches
from lsgd.own_parts import refusing_errors
from lsgd.recipe import Recipe
from lsgd.rules import noise_scale
from lsgd.rules.batchnorm import RunningStatistics, worker_batch_norms
from lsgd.rules.counter_dropout import CounterBasedDraws, counter_dropout_layers
from lsgd.rules.metric import Metric
from lsgd.rules.sampler import MicroBatch
from lsgd.scores import Scores

WORST = 1e300
"""The value of a metric of the user's own where neither it nor the loss is finite."""
Sum = Callable[[Tensor], None]
"""A function that all-reduces a tensor in place with a sum."""


class CarriedState(Protocol):
    """The interface of state that workers or steps carry along, beside parameters and momentum.

    Examples are BN's running statistics, a recurrent state and averaged weights. It belongs to
    virtual workers or to the model, never to a process.
    """

    name: str
    """The key of this state in a checkpoint."""

    @property
    def pending_update(self) -> Tensor:
        """The sum over this process's micro-batches that the next update applies to this state.

        It is empty if the update needs none. Strategies that push it take it from here and write it
        back.
        """

    def start_micro_batch(self, each: MicroBatch) -> None:
        """Prepare the carried state for a training micro-batch that starts on this process."""

    def end_step(self, active_workers: int) -> None:
        """Update the carried state at the end of a step in which `active_workers` had examples.

        It is called once per update of the model, for any number of micro-batches, also on a
        process without examples.
        """

    def write_to_model(self, sum_: Sum) -> None:
        """Write the carried values to evaluate and save into the model; a collective call."""

    def state(self, sum_: Sum) -> dict[str, Tensor]:
        """Return the carried state of all workers, equal on every process; a collective call.

        A run is not saved while this state is not finite.
        """

    def restore(self, state: dict[str, Tensor]) -> None:
        """Load this process's share of a carried state that any number of processes saved."""


class Workload(Protocol):
    """The interface of a learning task: its network, data, example order, loss and metrics."""

    @property
    def metric(self) -> Metric:
        """The metric on the first evaluation set that gives a run's final metric."""

    @property
    def count_names(self) -> tuple[str, ...]:
        """The names of the counts that the workload's loss function returns, such as images.

        The first one is the unit of the mean loss and of the training speed, such as images or
        tokens.
        """

    @property
    def example_weights(self) -> NDArray[np.int64] | None:
        """The weight of each training example in the divisor of the gradient, shape (examples,).

        None means 1 each. Every process knows all weights before any backward pass.
        """

    @property
    def metrics_part(self) -> str:
        """The override that names the user's own metric or workload; empty for lsgd's own."""

    @property
    def evaluation_sets(self) -> tuple[str, ...]:
        """The names of the evaluation sets, none with `_`; the final metric is on the first."""

    def network(self) -> nn.Module:
        """Build the task's network on the CPU, with weights that depend on the seed alone."""

    def carried_states(
        self, model: nn.Module, hosted: range, comm: Comm
    ) -> tuple[CarriedState, ...]:
        """Create the carried states, possibly none, of the workers that this process hosts.

        `loss` may use it, so the workload keeps the last one created.
        """

    def inputs(self) -> Inputs:
        """Open the loader of the training and evaluation examples.

        Raises UsageError if the examples are missing or not the recipe's.
        """

    def example_order(self, epoch: int) -> NDArray[np.int64]:
        """Return the order of the training examples in an epoch, a function of (seed, epoch)."""

    def evaluation_micro_batches(self, split: str, rank: int, world_size: int) -> list[MicroBatch]:
        """Return, in order, the micro-batches of a process's share of an evaluation set.

        Every example is in one micro-batch of one process. Process 0 has at least as many
        micro-batches as any other.
        """

    def evaluation_mode(self, model: nn.Module, inputs: Inputs) -> AbstractContextManager[None]:
        """Return a context in which the model has its evaluation state, such as averaged weights.

        `carried_states` has been called with this model before. All processes enter the context,
        without gradients.
        """

    def loss(self, model: nn.Module, batch: Any, each: MicroBatch) -> tuple[Tensor, Tensor]:
        """Return a micro-batch's summed loss, shape (), and its counts, shape (kinds,).

        The sum is over the examples' unit, the first of `count_names`. In training the step calls
        it within autocast if the recipe asks for it.
        """

    def metrics(self, loss: float, counts: list[int]) -> dict[str, float]:
        """Convert a mean loss and summed counts into metrics by the names in lsgd.rules.metric."""


def open_training_inputs(recipe: Recipe, device: torch.device) -> Inputs:
    """Open the data loader of a run that trains the recipe.

    Raises UsageError for data that are not the recipe's, and for a new run that would be judged by
    a metric of the user's own whose highest value is the best.
    """
    workload = open_workload(recipe, device)
    if workload.metrics_part:
        from lsgd.workloads.own_metric import check_direction

        check_direction(recipe, workload.metric, workload.metrics_part)
    inputs = workload.inputs()
    if recipe.inputs.is_own:
        try_own_training(inputs, recipe)
    if (recipe.model.is_own or recipe.data.is_own_workload) and sums_micro_batches(recipe):
        check_micro_batches(workload.network(), recipe)
    return inputs


def open_workload(recipe: Recipe, device: torch.device) -> Workload:
    """Create the workload of a recipe, which moves its batches to this device.

    It reads the data from the copy on this machine, if data.stage asks for one.
    """
    recipe = with_staged_data(recipe)
    if recipe.data.is_own_workload:
        from lsgd.workloads.own import open_own_workload

        return open_own_workload(recipe, device)
    match recipe.data.workload:
        case "images":
            from lsgd.workloads.images import ImageClassification

            return ImageClassification(recipe, device)
        case "language":
            from lsgd.workloads.language import LanguageModeling

            return LanguageModeling(recipe, device)
        case "tagging":
            from lsgd.workloads.tagging import SequenceTagging

            return SequenceTagging(recipe, device)
        case "trees":
            from lsgd.workloads.trees import TreeClassification

            return TreeClassification(recipe, device)
    raise ValueError(recipe.data.workload)


def worker_states(
    model: nn.Module,
    hosted: range,
    workers: int,
    comm: Comm,
    device: torch.device,
    *,
    momentum: float = 0.1,
) -> tuple[RunningStatistics | None, CounterBasedDraws | None]:
    """Create the running BN statistics and the draws of dropout, each if the model has the layers.

    They are those of the `hosted` ones of all workers; `momentum` is that of the statistics.
    """
    statistics = draws = None
    if worker_batch_norms(model):
        statistics = RunningStatistics(
            model,
            hosted=len(hosted),
            workers=workers,
            rank=comm.rank,
            world_size=comm.world_size,
            momentum=momentum,
        )
    if layers := counter_dropout_layers(model):
        draws = CounterBasedDraws(layers, partial(arrays_to_device, device=device))
    return statistics, draws


def round_robin_micro_batches(
    ids: NDArray[np.int64], size: int, split: str, rank: int, world_size: int
) -> list[MicroBatch]:
    """Return one process's evaluation micro-batches: `size` examples each, assigned round-robin.

    A micro-batch is the same on any process, and so are its results, to the last bit.
    """
    begins = range(0, len(ids), size)[rank::world_size]
    return [
        MicroBatch(None, ids[begin : begin + size], range(0), step, split)
        for step, begin in enumerate(begins)
    ]


def is_finite_output(outputs: Tensor) -> Tensor:
    """Return whether each row of network outputs, shape (rows, classes), is finite.

    torch treats some non-finite values, such as NaN, as the largest of a row. Such a row is no
    prediction, and a workload counts it as wrong in an evaluation. A training step with such a row
    ends the run before its counts are used, so it skips this check.
    """
    return outputs.isfinite().all(1)


def compute_metrics(workload: Workload, state: MetricSumsState, split: str = "train") -> Scores:
    """Convert the summed loss and counts of an evaluation or epoch into metrics by name.

    A non-finite metric of an evaluation set would make the run folder unreadable: with a loss that
    is not finite either, one of the user's own has a value that is worse than any other. Raises
    UsageError, on all processes, for one with a finite loss, if a part of the user's own fails, or
    if the first count, which divides the loss, is 0.
    """
    counts = state["counts"].tolist()
    if counts[0] == 0:
        raise UsageError(
            f"the loss counts 0 {workload.count_names[0]} in all examples of an epoch or an "
            "evaluation set, and has no mean; give it examples with some"
        )
    loss = state["loss"].item() / counts[0]
    named = dict(zip(workload.count_names, counts, strict=True))
    metrics = _finite_metrics(workload, loss, counts, split)
    return Scores(named, {"loss": loss} | metrics | noise_scale.noise_metrics(state))


def _finite_metrics(
    workload: Workload, loss: float, counts: list[int], split: str
) -> dict[str, float]:
    """Return a workload's metrics; raise UsageError if a part of the user's own is at fault."""
    part = workload.metrics_part
    if not part:
        return workload.metrics(loss, counts)
    where = f"with the counts {counts} of the set {split}"
    with refusing_errors(f"{part} fails {where}"):
        # Also of numpy's numbers, which neither a row nor a checkpoint can hold.
        metrics = {name: float(value) for name, value in workload.metrics(loss, counts).items()}
    wrong = [name for name, value in metrics.items() if not math.isfinite(value)]
    if split == "train" or not wrong:
        return metrics
    if math.isfinite(loss):
        raise UsageError(
            f"{part} has {wrong[0]}={metrics[wrong[0]]} {where}; return a finite number, such as "
            "the worst one where nothing is counted"
        )
    return metrics | {name: _worst(name) for name in wrong}


def _worst(name: str) -> float:
    """Return a finite value of a metric of the user's own that is worse than any measured one."""
    return 100.0 if name.endswith("error") else WORST
