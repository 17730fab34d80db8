"""How what the workers compute becomes updates of one model: a seam.

A second strategy is a file here that has what `Strategy` asks for, and a case in `open_strategy`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from lsgd.recipe import Recipe
from lsgd.rules.sampler import Pass

if TYPE_CHECKING:
    # For types only: the order of updates is known without torch.
    from pathlib import Path

    from torch import Tensor, nn

    from lsgd.comm import Comm
    from lsgd.tally import State, Tally
    from lsgd.workloads import Part, Workload


@dataclass(frozen=True)
class Task:
    """What a process computes between reading the model and giving what it has computed."""

    step: int
    """The step of the run, from 0, whose update this is for."""
    divisor: int
    """What the gradient of the whole update is divided by: the weights of its examples, on all
    processes, as Workload.weights has them."""
    active_workers: int
    """How many workers of all processes have examples in this update."""
    passes: list[Pass]
    """The passes of this process; there may be none."""


class Strategy(Protocol):
    """Owner of gradients, momentum and parts. A step reads the model, makes the backward pass of
    each of its passes, and gives; all processes make the same steps.
    """

    hosted: range
    """The workers of this process, and of a batch that grows the first ones. Process 0 hosts one at
    least; a process of servers may not."""
    parts: "tuple[Part, ...]"
    """What these workers carry along."""
    next_step: int
    """The next step of the run: the number of updates that the model has had."""

    def tasks(self, epoch: int, steps: list[int]) -> Iterator[Task]:
        """The tasks of this process in these steps of the run, all of one epoch.

        Loaders take some of them before the first is given, so none waits for one to be given.
        """

    def read(self, task: Task, *, leave: bool) -> None:
        """Begin a task: the model holds what it is to be computed with, the gradients are clear.

        With `leave` all processes learn that this one has been told to leave.
        """

    def backward(self, loss: "Tensor") -> None:
        """Make the backward pass of a loss that is summed over its examples."""

    def give(self, task: Task) -> None:
        """End a task: its update, after which the parts move, or its part of one.

        Raises Diverged if the loss or a gradient of a step before was not finite, and PeerLost.
        """

    def check(self) -> bool:
        """Raise Preempted, after the same step on all processes, if any was told to leave; return,
        after the same step on all, whether `checkpoint_minutes` have passed.
        """

    def settle(self) -> None:
        """Make model, momentum and parts whole on every process, to evaluate or save them.

        All processes call it. What workers have read and not yet given stays with them. Raises
        Diverged.
        """

    def state(self) -> dict[str, Any]:
        """The momentum, and whatever else decides the next steps, for a checkpoint.

        All processes call it, settled. It is whole on process 0, and alike for all strategies of
        one fingerprint.
        """

    def restore(self, state: dict[str, Any], step: int) -> None:
        """Go on at this step of the run, from a state that any such strategy has made."""

    def counted(self) -> "State":
        """What the workers of all processes have counted in this epoch, as far as process 0 has to
        know; settled, all processes know all of it. All processes call it."""

    def keep(self, folder: "Path") -> dict[str, str]:
        """Write into the run folder, on process 0, what the strategy has recorded of the run beside
        its rows; return what the row of an epoch says of it."""

    def now(self) -> dict[str, float | list[int]]:
        """What a row of metrics has about the last step, such as the norm of its gradient; a list
        has the counts of 0, 1, 2, …, which TensorBoard shows as a histogram."""

    def timed(self) -> list[tuple[str, object, str]]:
        """The phases of a step in their order, each as (phase, object, name of its method).

        A phase begins with the call of that method, and the step ends with the last one. They are
        all but `data wait` and `forward`, which begin when a batch is requested and when it comes.
        When `communication` begins, all passes of the task have made their gradients.
        """


def open_strategy(
    recipe: Recipe, workload: "Workload", model: "nn.Module", comm: "Comm", tally: "Tally"
) -> Strategy:
    """The strategy of a recipe for this model, which is on its device; the tally has what this
    process counts."""
    if recipe.strategy.live:
        from lsgd.strategy.live import Live

        return Live(recipe, workload, model, comm, tally)
    match recipe.strategy.name:
        case "allreduce" if recipe.noise_scale:
            from lsgd.strategy.noisy import NoisyAllReduce

            return NoisyAllReduce(recipe, workload, model, comm, tally)
        case "allreduce":
            from lsgd.strategy.allreduce import AllReduce

            return AllReduce(recipe, workload, model, comm, tally)
        case "backup" | "bounded" | "async":
            from lsgd.strategy.replay import Replay

            return Replay(recipe, workload, model, comm, tally)
        case "hogwild":
            from lsgd.strategy.hogwild import Hogwild

            return Hogwild(recipe, workload, model, comm, tally)
        case "local":
            from lsgd.strategy.local import Local

            return Local(recipe, workload, model, comm, tally)
        case "sync":
            from lsgd.strategy.servers import SyncServers

            return SyncServers(recipe, workload, model, comm, tally)
    raise ValueError(recipe.strategy.name)
