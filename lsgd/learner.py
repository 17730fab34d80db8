"""The state that a training step changes: model, optimizer state, carried state and counts."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn, set_num_threads
from torch.utils._pytree import tree_leaves

from lsgd.comm import Comm, all_reduce_
from lsgd.errors import DivergedError, UsageError
from lsgd.inputs.consistency import Digests, check_same_data
from lsgd.job import preemption
from lsgd.job.device import choose_kernels
from lsgd.job.launcher import cores, detect_launch
from lsgd.job.threads import choose_threads
from lsgd.metric_sums import MetricSums, MetricSumsState
from lsgd.models import AUTOCAST_DTYPES
from lsgd.models.lstm import check_autocast
from lsgd.recipe import Recipe
from lsgd.rules.metric import Metric
from lsgd.run.checkpoint import Checkpoint, order_hash
from lsgd.scores import Scores
from lsgd.strategy import open_strategy
from lsgd.strategy.guard import LOWER_LR
from lsgd.strategy.reducer import dense_stride
from lsgd.workloads import compute_metrics, open_workload


class Learner:
    """The training state of this process: its model, strategy, carried state and metric sums.

    Its initial state is the same on every process, since only the recipe determines it, and the
    weights that the recipe starts from.
    """

    def __init__(
        self,
        recipe: Recipe,
        comm: Comm,
        device: torch.device,
        data: Digests | None = None,
        start: Mapping[str, Tensor] = MappingProxyType({}),
        optimizer: Mapping[int | str, Any] | None = None,
    ) -> None:
        """Create the model and strategy of a run before step 0.

        `data` has dataset digests. The tensors of `start` replace initial weights of the same name,
        and `optimizer` the initial state of the optimizer, if it is given.
        """
        self.recipe, self.comm, self.device, self.data = recipe, comm, device, data or {}
        choose_kernels(device, precision=recipe.precision, deterministic=recipe.deterministic)
        preemption.block_stop_signals_in_compilers()
        self.workload = open_workload(recipe, device)
        self.model = self.workload.network().to(device)
        _remove_gaps(self.model)
        self.model.load_state_dict(start, strict=False)
        if recipe.compile is True:
            shapes = len(recipe.training_sizes) * len(recipe.stages)
            compile_children(self.model, graphs=recipe.cuda_graphs, shapes=shapes)
        self.metric_sums = MetricSums(len(self.workload.count_names), device)
        self.strategy = open_strategy(recipe, self.workload, self.model, comm, self.metric_sums)
        if optimizer is not None:
            # The settings of its parameter groups stay the recipe's own.
            state = self.strategy.state() | {"state": dict(optimizer)}
            name = f"model.start={recipe.model.start}"
            self._restore_strategy(state, 0, name, "leave model.start_optimizer out")
        if device.type == "cpu":
            set_num_threads(cpu_threads(recipe, len(self.strategy.hosted)))
        lower = AUTOCAST_DTYPES.get(recipe.precision)
        if lower:
            check_autocast(self.model, device, lower)
        # The cached copy of a weight adds up the gradients of all its uses in the lower precision,
        # which is inaccurate where each example uses the weights many times.
        each_alone = recipe.batching == "recursive" or recipe.padding == "per_sentence"
        self.autocast = torch.autocast(
            device.type,
            lower or torch.bfloat16,
            enabled=lower is not None,
            cache_enabled=not each_alone,
        )
        """The autocast context of a forward pass in training."""
        self.epoch_metrics: dict[int, dict[str, float]] = {}
        """The metrics of each finished epoch, by its number from 1, as in a Checkpoint."""
        self.evaluations: dict[int, dict[str, float]] = {}
        """The metrics of each evaluation within an epoch, by the number of steps made before it."""

    @property
    def next_step(self) -> int:
        """The number, from 0, of the next training step of the run."""
        return self.strategy.next_step

    @property
    def epoch(self) -> int:
        """The epoch, from 0, of the last training step, or of the first before it."""
        return self.recipe.epoch_before(self.next_step)

    @property
    def hosted_workers(self) -> int:
        """The number of workers that this process hosts."""
        return len(self.strategy.hosted)

    @property
    def micro_batches_per_step(self) -> int:
        """The number of micro-batches of this process in a full step of the first epoch."""
        return max(1, -(-self.hosted_workers // self.recipe.micro_batch_workers))

    def remaining_epochs(self) -> Iterator[tuple[int, list[int]]]:
        """Yield the number of each unfinished epoch, with a list of its remaining steps.

        There may be none, if the run was preempted in its last evaluation. They end when the
        recipe's stop goal is reached, or by its patience.
        """
        for epoch, steps in self.recipe.epochs_from(0):
            if self.recipe.has_stopped(self.epoch_metrics):
                return
            if epoch + 1 not in self.epoch_metrics:
                yield epoch, [step for step in steps if step >= self.next_step]

    def split_at_evaluations(self, epoch: int, steps: list[int]) -> list[list[int]]:
        """Split an epoch's remaining steps into those before, between and after its evaluations.

        These are the evaluations within the epoch that remain. The first list may be empty, if the
        run was preempted or killed in such an evaluation.
        """
        reached = {self.next_step, *(step + 1 for step in steps)}  # a dry run leaves out steps
        places = [
            place
            for place in self.recipe.evaluation_places(epoch)
            if place in reached and place not in self.evaluations
        ]
        bounds = [-1, *places, self.recipe.first_step(epoch + 1)]
        return [[step for step in steps if first <= step < end] for first, end in pairwise(bounds)]

    def step_metrics(self) -> dict[str, float | list[int]]:
        """Return the epoch, the learning rate and the strategy's metrics of the last step."""
        return {
            "epoch": self.recipe.epoch(self.next_step),
            "lr": self.recipe.lr(self.next_step - 1),
            **self.strategy.step_metrics(),
        }

    def summed_counts(self) -> MetricSumsState:
        """Return this epoch's loss and count sums over all processes; a collective call."""
        return self.strategy.epoch_sums()

    def save_artifacts(self, folder: Path) -> dict[str, str]:
        """Save the strategy's files, such as push orders; return entries for the epoch's row."""
        return self.strategy.save_artifacts(folder)

    def scores(self, counted: MetricSumsState) -> Scores:
        """Convert summed training losses and counts into the mean loss and metrics."""
        return compute_metrics(self.workload, counted)

    def end_epoch(self, epoch: int, metrics: dict[str, float]) -> None:
        """Record the metrics of a finished epoch, counted from 0, and reset the metric sums."""
        self.epoch_metrics[epoch + 1] = metrics
        self.metric_sums.clear()

    def end_evaluation(self, metrics: dict[str, float]) -> None:
        """Record the metrics of an evaluation within an epoch, which was made at this step."""
        self.evaluations[self.next_step] = metrics

    def evaluation_sets_after(self, epoch: int) -> tuple[str, ...]:
        """Return the names of the evaluation sets due after an epoch, counted from 0."""
        return self.workload.evaluation_sets if self.recipe.evaluates_after(epoch) else ()

    @property
    def metric(self) -> Metric:
        """The metric that defines how the final metric of the run is computed."""
        return self.recipe.final_metric(self.workload.metric)

    def final_metric(self) -> float:
        """Compute the number by which the run is judged from the metrics of its epochs.

        For images it is the median of the last 5 top-1 errors, in percent (Goyal et al. 2017,
        section 5.1), unless the recipe names another.
        """
        return self.metric.final_metric(self.epoch_metrics)

    def checkpoint(self) -> Checkpoint:
        """Collect a checkpoint of the run, which is complete on process 0; a collective call.

        Raises DivergedError on all processes if the state is not finite.
        """
        self.strategy.synchronize()
        step = self.next_step
        epoch, _ = self.recipe.locate_step(step)
        parts = {
            part.name: part.state(partial(all_reduce_, self.comm))
            for part in self.strategy.carried_states
        }
        saved = Checkpoint(
            recipe=asdict(self.recipe),
            fingerprint=self.recipe.fingerprint,
            step=step,
            epoch=epoch,
            order=order_hash(self.workload.example_order(epoch)),
            lr=self.recipe.lr(step - 1) if step else 0.0,
            model=self.model.state_dict(),
            optimizer=self.strategy.state(),
            parts=parts,
            tally=self.summed_counts(),
            rates=dict(self.epoch_metrics),
            data=self.data,
            evaluations=dict(self.evaluations),
        )
        # A step checks its loss and gradient; the state that they led to is checked here.
        if not _finite([saved.model, saved.optimizer, saved.parts]):
            raise DivergedError(
                "a parameter, a momentum or something that the workers carry along, such as BN "
                f"statistics, is not finite before step {step} and was not saved; {LOWER_LR}"
            )
        return saved

    def restore(self, saved: Checkpoint) -> None:
        """Load a checkpoint into the model, the optimizer, the carried state and the metric sums.

        Raises UsageError if this version has another order of the epoch's examples or trains other
        parameters, or if the run was trained on other data.
        """
        check_same_data(saved.data, self.data)
        if saved.order != order_hash(self.workload.example_order(saved.epoch)):
            raise UsageError(
                f"the checkpoint goes through epoch {saved.epoch} in an order that this version of "
                "lsgd does not make; resume with the version that wrote it"
            )
        self.model.load_state_dict(saved.model)
        remedy = "resume with the version that wrote it, or write run_dir=PATH for a new run"
        self._restore_strategy(saved.optimizer, saved.step, "the checkpoint", remedy)
        for part in self.strategy.carried_states:
            part.restore(saved.parts[part.name])
        # The saved sums are those of all processes, so that only one may add to them.
        if self.comm.rank == 0:
            self.metric_sums.restore(saved.tally)
        self.epoch_metrics, self.evaluations = dict(saved.rates), dict(saved.evaluations)

    def _restore_strategy(self, state: dict[str, Any], step: int, name: str, remedy: str) -> None:
        """Restore the strategy; raise UsageError if its optimizer has other parameters."""
        try:
            self.strategy.restore(state, step)
        except ValueError as error:  # of groups of other sizes, or of tensors of other shapes
            if "parameter group" not in str(error):
                raise
            raise UsageError(
                f"the optimizer of {name} has other parameters than this version of lsgd trains in "
                "the network, as one shared by layers, twice, or of a frozen batch norm; "
                f"{remedy}"
            ) from None


def without_tf32(recipe: Recipe) -> Recipe:
    """Return a recipe with float32 in place of tf32, which a CPU lacks; the sizes are the same."""
    return replace(recipe, precision="float32") if recipe.precision == "tf32" else recipe


def _remove_gaps(model: nn.Module) -> None:
    """Copy parameters with gaps in memory, such as columns of a tensor, into memory without.

    Strategies take the elements of a parameter, its gradient and its momentum in memory order.
    """
    for parameter in model.parameters():
        if parameter.stride() != dense_stride(parameter):
            parameter.data = parameter.data.clone()


def cpu_threads(recipe: Recipe, hosted: int) -> int:
    """Return the number of CPU threads of a process that hosts this number of workers."""
    if isinstance(recipe.threads, int):
        return recipe.threads
    return choose_threads(recipe.values_per_micro_batch(hosted), cores(detect_launch()))


def _finite(states: list[Any]) -> bool:
    """Return whether all tensors in nested dicts and lists have only finite elements."""
    # An infinity is the minimum or the maximum, and NaN makes both NaN; aminmax is 20 times as fast
    # as isfinite of every number. One result per device, since reading each one synchronizes;
    # carried state may be on the host.
    bounds: defaultdict[torch.device, list[Tensor]] = defaultdict(list)
    for tensor in tree_leaves(states):
        if not isinstance(tensor, Tensor) or not tensor.numel():
            continue
        if tensor.is_complex():  # such as the factors of rotary embeddings, a buffer
            tensor = torch.view_as_real(tensor)
        elif not tensor.is_floating_point():
            continue
        bounds[tensor.device].append(torch.isfinite(torch.stack(tensor.aminmax())).all())
    return all(bool(torch.stack(each).all()) for each in bounds.values())


def _has_code_of_its_own(module: nn.Module) -> bool:
    kind = type(module)
    return not kind.__module__.startswith("torch.") and kind.forward is not nn.Module.forward


def compile_children(model: nn.Module, *, graphs: bool = False, shapes: int = 1) -> None:
    """Compile each child module of a model in place, and within a stage each residual block.

    The backward pass of a model that is compiled as a whole gives all gradients at its end, too
    late to overlap their all-reduce with it. A model without modules but torch's own, which torch
    does not compile, is compiled as a whole. With `graphs` a GPU replays the kernels of each child,
    forward and backward, as CUDA graphs, one per shape. `shapes` is the number of image and
    minibatch sizes of the run, each of which is compiled once.
    """
    mode = "reduce-overhead" if graphs else None
    own = [part for part in model.modules() if part is not model and _has_code_of_its_own(part)]
    if not own:
        model.compile(dynamic=True, mode=mode)  # sentences differ in length
        return
    # All blocks share their code, which torch by default compiles 8 times before it runs it
    # eagerly: ResNet-50 has 8 kinds of blocks, and a step up to 4 micro-batch sizes. Not dynamic,
    # since torch would treat shapes that differ from block to block as unknown.
    torch.compiler.config.recompile_limit = 64 * shapes
    torch.compiler.config.accumulated_recompile_limit = 256 * shapes
    for part in model.children():
        if any(True for _ in part.parameters()):
            part.compile(dynamic=False, mode=mode)
