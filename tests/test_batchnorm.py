import copy
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lsgd import sampler
from lsgd.batchnorm import RunningStatistics, WorkerBatchNorm2d

CHANNELS = 3
IMAGES = 4
"""Per worker and step."""
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def bn_pair() -> tuple[WorkerBatchNorm2d, nn.BatchNorm2d]:
    """Ours and PyTorch's in float64, with the same random parameters and statistics."""
    plain = nn.BatchNorm2d(CHANNELS).double()
    for tensor in (plain.weight.data, plain.bias.data, plain.running_mean, plain.running_var):
        tensor.uniform_(0.5, 1.5)
    ours = WorkerBatchNorm2d(CHANNELS).double()
    ours.load_state_dict(plain.state_dict(), strict=True)
    return ours, plain


@pytest.mark.parametrize("sizes", [(4,), (4, 4), (4, 4, 3), (2, 7, 5, 2)])
def test_a_pass_of_several_workers_normalises_each_by_itself(sizes: tuple[int, ...]) -> None:
    """Output and gradients are those of one nn.BatchNorm2d applied to the workers one by one."""
    torch.manual_seed(0)
    ours, plain = bn_pair()
    RunningStatistics(ours, hosted=8, workers=8, world_size=1).start_pass(sizes)
    images = torch.randn(sum(sizes), CHANNELS, 5, 4, dtype=torch.float64) * 3 + 1
    upstream = torch.randn_like(images)
    mine, theirs = (images.clone().requires_grad_() for _ in range(2))
    output = ours(mine)
    output.backward(upstream)
    expected = torch.cat([plain(group) for group in theirs.split(sizes)])
    expected.backward(upstream)
    torch.testing.assert_close(output, expected, **CLOSE)
    torch.testing.assert_close(mine.grad, theirs.grad, **CLOSE)
    torch.testing.assert_close(ours.weight.grad, plain.weight.grad, **CLOSE)
    torch.testing.assert_close(ours.bias.grad, plain.bias.grad, **CLOSE)


def test_evaluation_is_that_of_pytorch() -> None:
    """Whatever the sizes of the last training pass were, and without moving anything."""
    ours, plain = bn_pair()
    running = RunningStatistics(ours, hosted=2, workers=2, world_size=1)
    running.start_pass((2, 3))
    images = torch.randn(7, CHANNELS, 4, 4, dtype=torch.float64)
    assert torch.equal(ours.eval()(images), plain.eval()(images))
    assert not running.seen.any()


@dataclass
class Process:
    """A process of a job with one BN layer, which sees its workers' images step by step."""

    hosted: range
    workers_per_pass: int
    layer: WorkerBatchNorm2d
    running: RunningStatistics = field(init=False)
    workers: int
    world_size: int

    def __post_init__(self) -> None:
        self.running = RunningStatistics(
            self.layer, hosted=len(self.hosted), workers=self.workers, world_size=self.world_size
        )

    def step(self, images: Tensor) -> None:
        """The step with these images, of all workers in order."""
        groups = images.split(IMAGES)
        mine = [groups[w] for w in self.hosted if w < len(groups)]
        for i in range(0, len(mine), self.workers_per_pass):
            carried = mine[i : i + self.workers_per_pass]
            self.running.start_pass(tuple(len(group) for group in carried))
            self.layer(torch.cat(carried))
        self.running.end_step(len(groups))


def job(
    layer: WorkerBatchNorm2d, workers: int, world_size: int, workers_per_pass: int
) -> list[Process]:
    """The processes of a job, all starting with a copy of the layer."""
    return [
        Process(
            sampler.share(workers, world_size, rank),
            workers_per_pass,
            copy.deepcopy(layer),
            workers,
            world_size,
        )
        for rank in range(world_size)
    ]


def summed(tensors: list[Tensor]) -> Callable[[Tensor], None]:
    """What adds up a tensor over the processes that have these."""

    def sum_(tensor: Tensor) -> None:
        tensor.copy_(torch.stack(tensors).sum(0))

    return sum_


def shares(processes: list[Process]) -> Tensor:
    """What all_shares gives on every process of the job."""
    rows = []
    for rank, process in enumerate(processes):
        process.running.all_shares(rows.append, rank=rank)
    return torch.stack(rows).sum(0)


def combined(processes: list[Process]) -> nn.BatchNorm2d:
    """The layer of the first process with the job's statistics in it."""
    processes[0].running.combine(summed([p.running.share for p in processes]))
    return processes[0].layer


def assert_statistics(layer: nn.BatchNorm2d, mean: Tensor, var: Tensor) -> None:
    torch.testing.assert_close(layer.running_mean, mean, **CLOSE)
    torch.testing.assert_close(layer.running_var, var, **CLOSE)


class Reference:
    """The rule as it reads: after a step, the mean of what each active worker would have."""

    def __init__(self, plain: nn.BatchNorm2d) -> None:
        self.mean, self.var = plain.running_mean.clone(), plain.running_var.clone()

    def step(self, images: Tensor) -> None:
        moved = []
        for group in images.split(IMAGES):
            worker = nn.BatchNorm2d(CHANNELS, momentum=0.1).double()
            worker.running_mean.copy_(self.mean)
            worker.running_var.copy_(self.var)
            worker(group)
            moved.append((worker.running_mean, worker.running_var))
        self.mean = torch.stack([mean for mean, _ in moved]).mean(0)
        self.var = torch.stack([var for _, var in moved]).mean(0)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[int, int, int]:
    """Workers, processes and workers per pass."""
    workers = draw(st.integers(1, 7))
    return workers, draw(st.integers(1, workers)), draw(st.integers(1, workers))


@settings(deadline=None)
@given(jobs(), st.data())
def test_statistics_move_once_per_step_by_the_mean_over_workers(
    layout: tuple[int, int, int], data: st.DataObject
) -> None:
    """However workers fall to processes and passes, a short step with idle processes included.

    Half way the run is saved and goes on with another number of processes.
    """
    workers = layout[0]
    torch.manual_seed(0)
    ours, plain = bn_pair()
    reference = Reference(plain)
    images = st.integers(2, workers * IMAGES).filter(lambda n: n % IMAGES != 1)
    processes = job(ours, *layout)
    for stop in (False, True):
        for count in [*data.draw(st.lists(images, min_size=1, max_size=3)), workers * IMAGES]:
            step = torch.randn(count, CHANNELS, 3, 3, dtype=torch.float64) * 2 + 1
            reference.step(step)
            for process in processes:
                process.step(step)
        assert_statistics(combined(processes), reference.mean, reference.var)
        if not stop:
            saved, layer = shares(processes), processes[0].layer
            processes = job(layer, workers, data.draw(st.integers(1, workers)), layout[2])
            for rank, process in enumerate(processes):
                process.running.restore(saved, rank=rank)


def test_a_resume_on_as_many_processes_is_bit_equal() -> None:
    torch.manual_seed(0)
    processes = job(bn_pair()[0], 5, 3, 2)
    for process in processes:
        process.step(torch.randn(5 * IMAGES, CHANNELS, 3, 3, dtype=torch.float64))
    saved = shares(processes)
    assert saved.shape == (3, 2 * CHANNELS)
    resumed = job(combined(processes), 5, 3, 2)
    for rank, process in enumerate(resumed):
        process.running.restore(saved, rank=rank)
        assert torch.equal(process.running.share, processes[rank].running.share)


def test_a_step_counts_once_whatever_its_passes() -> None:
    """num_batches_tracked is what plain PyTorch reads if momentum is None."""
    (process,) = job(bn_pair()[0], 4, 1, 1)
    process.step(torch.randn(4 * IMAGES, CHANNELS, 3, 3, dtype=torch.float64))
    assert process.layer.num_batches_tracked == 1


def test_every_layer_of_a_model_has_statistics_of_its_own() -> None:
    """The shares of layers of unlike width lie in one tensor without overlap."""
    torch.manual_seed(0)
    model = nn.Sequential(WorkerBatchNorm2d(2), nn.Conv2d(2, 5, 1), WorkerBatchNorm2d(5)).double()
    plain = nn.Sequential(nn.BatchNorm2d(2), nn.Conv2d(2, 5, 1), nn.BatchNorm2d(5)).double()
    plain.load_state_dict(model.state_dict())
    running = RunningStatistics(model, hosted=1, workers=1, world_size=1)
    for _ in range(3):
        images = torch.randn(6, 2, 3, 3, dtype=torch.float64)
        running.start_pass((6,))
        model(images)
        running.end_step(1)
        plain(images)
    running.combine(lambda _: None)
    for (name, ours), theirs in zip(
        model.state_dict().items(), plain.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(ours, theirs, **CLOSE, msg=name)
