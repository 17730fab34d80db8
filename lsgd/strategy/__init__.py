"""Training strategies: how the gradients of all workers become updates of one model.

A further strategy is a file in this package that implements `Strategy`, and a case in
`open_strategy`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from lsgd.recipe import Recipe
from lsgd.rules.sampler import MicroBatch

if TYPE_CHECKING:
    # For types only: modules that compute the order of updates do not import torch.
    from pathlib import Path

    from torch import Tensor, nn

    from lsgd.comm import Comm
    from lsgd.metric_sums import MetricSums, MetricSumsState
    from lsgd.workloads import CarriedState, Workload


@dataclass(frozen=True)
class StepTask:
    """Micro-batches that one process computes for one update of the model, with their divisor."""

    step: int
    """Step of the run, from 0, whose update this task is for."""
    divisor: int
    """Divisor of the whole update's gradient: its examples' sum of Workload.example_weights.

    The examples are those of all processes.
    """
    active_workers: int
    """Number of workers, over all processes, that have examples in this update."""
    micro_batches: list[MicroBatch]
    """Micro-batches of this process; the list may be empty."""


class Strategy(Protocol):
    """Training strategy: it turns the gradients of all workers into updates of one model.

    It owns the gradients, the optimizer state and the carried states of the model. A training step
    calls `begin`, then `backward` for each micro-batch, then `step`. All processes make the same
    steps.
    """

    hosted: range
    """Workers of this process.

    Where the batch grows during the run, it has the workers of the first stage. Process 0 hosts at
    least one worker; a process with servers only hosts none.
    """
    carried_states: "tuple[CarriedState, ...]"
    """Carried states of the hosted workers, such as BN statistics."""
    next_step: int
    """Number of updates that the model has had, which is the next step of the run."""

    def tasks(self, epoch: int, steps: list[int]) -> Iterator[StepTask]:
        """Yield this process's tasks (micro-batches) for these training steps of one epoch.

        Loaders request several tasks before the first one is computed, so no task waits for the
        result of another.
        """

    def begin(self, task: StepTask, *, stop_requested: bool) -> None:
        """Load the parameter values that this task computes with, and clear the gradients.

        `stop_requested` signals to all processes that this one received a stop request.
        """

    def backward(self, loss: "Tensor") -> None:
        """Run the backward pass of a micro-batch's loss, which is summed over its examples."""

    def step(self, task: StepTask) -> None:
        """Finish a training step: update model and carried states, or send a share of the update.

        Raises DivergedError if the loss or a gradient of an earlier step was not finite, and
        PeerLostError.
        """

    def poll(self) -> bool:
        """Return whether a timed checkpoint is due, with the same answer on all processes.

        It is due `checkpoint_minutes` after the last one. Raises PreemptedError, after the same
        step on all processes, if any process received a stop request.
        """

    def synchronize(self) -> bool:
        """Complete the model and its carried states on every process, to evaluate or save them.

        All processes call it before an evaluation or a checkpoint. Gradients that workers have not
        pushed yet stay with the workers. Returns whether the checkpoint must be saved before the
        evaluation, since processes may be lost at any time. Raises DivergedError.
        """

    def state(self) -> dict[str, Any]:
        """Return the optimizer state and the other state of the strategy, to save in a checkpoint.

        The other state is all else that decides the next steps. All processes call it, after
        `synchronize`. The state is complete on process 0, and has the same form for all strategies
        of one fingerprint.
        """

    def restore(self, state: dict[str, Any], step: int) -> None:
        """Load the strategy's state from a checkpoint, to continue the run at this step.

        The state may be of any strategy with the same fingerprint.
        """

    def epoch_sums(self) -> "MetricSumsState":
        """Return the sums of the training metrics (loss, counts) of all workers in this epoch.

        All processes call it. After `synchronize` the result is complete on every process; before,
        it has as much as process 0 needs.
        """

    def save_artifacts(self, folder: "Path") -> dict[str, str]:
        """Write the strategy's own files, such as orders of pushes, into the run folder.

        Process 0 calls it. Returns columns that the strategy adds to the epoch's row.
        """

    def step_metrics(self) -> dict[str, float | list[int]]:
        """Return the metrics of the last training step by name, such as its gradient norm.

        A list has the counts of the values 0, 1, 2, …, which TensorBoard shows as a histogram.
        """

    def phases(self) -> list[tuple[str, object, str]]:
        """Return the phases of a training step to time, each as (phase, object, method name).

        They are in the order of a step. A phase begins when its method is called, and the last one
        ends with the step. The list leaves out `data wait` and `forward`, which begin when a batch
        is requested and when it arrives. When `communication` begins, the backward passes of all
        micro-batches of the task are done. By default local steps count as `backward`, and `step`
        waits for pushes or servers.
        """
        return [
            ("optimizer", self, "begin"),
            ("backward", self, "backward"),
            ("communication", self, "step"),
        ]


def open_strategy(
    recipe: Recipe, workload: "Workload", model: "nn.Module", comm: "Comm", tally: "MetricSums"
) -> Strategy:
    """Create a recipe's strategy for a model on its device; `tally` has this process's sums."""
    if recipe.strategy.has_live_order:
        from lsgd.strategy.live import LiveStrategy

        return LiveStrategy(recipe, workload, model, comm, tally)
    match recipe.strategy.name:
        case "allreduce" if recipe.noise_scale:
            from lsgd.strategy.allreduce import NoiseScaleAllReduce

            return NoiseScaleAllReduce(recipe, workload, model, comm, tally)
        case "allreduce":
            from lsgd.strategy.allreduce import AllReduce

            return AllReduce(recipe, workload, model, comm, tally)
        case "backup" | "bounded" | "async":
            from lsgd.strategy.replay import ReplayStrategy

            return ReplayStrategy(recipe, workload, model, comm, tally)
        case "hogwild":
            from lsgd.strategy.hogwild import Hogwild

            return Hogwild(recipe, workload, model, comm, tally)
        case "local":
            from lsgd.strategy.local import LocalSGD

            return LocalSGD(recipe, workload, model, comm, tally)
        case "sync":
            from lsgd.strategy.servers import SyncServers

            return SyncServers(recipe, workload, model, comm, tally)
    raise ValueError(recipe.strategy.name)
