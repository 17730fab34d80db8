import copy
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial, partialmethod
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.passes import carrying
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.fx import GraphModule

from lsgd.learner import compile_parts
from lsgd.models import make_model
from lsgd.rules import sampler
from lsgd.rules.batchnorm import (
    NormaliseWorkers,
    RunningStatistics,
    WorkerBatchNorm2d,
    _backward,
    _compiled,
    _forward,
    by_call,
    by_expression,
    no_compiler,
    normalisation,
)

CHANNELS = 3
IMAGES = 4
"""Per worker and step."""
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """The expression as it reads; compiling takes seconds, and test_train.py compiles models."""
    monkeypatch.setattr("lsgd.rules.batchnorm._compiled", lambda function: function)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bn_pair() -> tuple[WorkerBatchNorm2d, nn.BatchNorm2d]:
    """Ours and PyTorch's in float64, with the same random parameters and statistics."""
    plain = nn.BatchNorm2d(CHANNELS).double()
    for tensor in (plain.weight.data, plain.bias.data, plain.running_mean, plain.running_var):
        tensor.uniform_(0.5, 1.5)
    ours = WorkerBatchNorm2d(CHANNELS).double()
    ours.load_state_dict(plain.state_dict(), strict=True)
    return ours, plain


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("workers", "size"), [(1, 4), (2, 4), (5, 3)])
@pytest.mark.parametrize("normalise", [by_call, by_expression])
def test_a_pass_of_several_workers_normalises_each_by_itself(
    normalise: NormaliseWorkers,
    workers: int,
    size: int,
    layout: torch.memory_format,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Output, gradients and statistics are those of one nn.BatchNorm2d, worker by worker."""
    torch.manual_seed(0)
    ours, plain = bn_pair()
    running = RunningStatistics(ours, hosted=8, workers=8, rank=0, world_size=1)
    running.start_pass(carrying(workers))
    monkeypatch.setattr("lsgd.rules.batchnorm.normalisation", lambda images, workers: normalise)
    images = torch.randn(size * workers, CHANNELS, 5, 4, dtype=torch.float64) * 3 + 1
    images = images.contiguous(memory_format=layout)
    upstream = torch.randn_like(images)
    mine, theirs = (images.clone().requires_grad_() for _ in range(2))
    output = ours(mine)
    output.backward(upstream)
    expected = torch.empty_like(output)
    for worker in range(workers):
        expected[worker::workers] = plain(theirs[worker::workers])
    expected.backward(upstream)
    torch.testing.assert_close(output, expected, **CLOSE)
    copied = normalise is by_call and workers > 1
    assert copied or output.is_contiguous(memory_format=layout)
    # What is behind a view is copied by a ReLU in place; compiled kernels return none.
    assert normalise is by_expression or not output._is_view()
    torch.testing.assert_close(mine.grad, theirs.grad, **CLOSE)
    torch.testing.assert_close(ours.weight.grad, plain.weight.grad, **CLOSE)
    torch.testing.assert_close(ours.bias.grad, plain.bias.grad, **CLOSE)
    pixels = [
        group.transpose(0, 1).flatten(1) for group in (images[w::workers] for w in range(workers))
    ]
    seen = [torch.stack([each.mean(1), each.var(1)]) for each in pixels]
    torch.testing.assert_close(running.seen.view(2, -1), sum(seen), **CLOSE)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("normalise", [by_call, by_expression])
def test_bfloat16_images_keep_float32_statistics(normalise: NormaliseWorkers) -> None:
    """As under autocast: what is seen is that of the rounded images, not rounded once more."""
    images = (torch.randn(8, CHANNELS, 16, 16, generator=seeded(0)) + 5).bfloat16()
    weight, bias = torch.ones(CHANNELS), torch.zeros(CHANNELS)
    output, seen = normalise(images, weight, bias, 2, 1e-5)
    exact, expected = by_call(images.double(), weight.double(), bias.double(), 2, 1e-5)
    assert (output.dtype, seen.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(seen.double(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(output.double(), exact, rtol=2**-8, atol=1e-3)


def test_without_a_compiler_the_library_normalises(monkeypatch: pytest.MonkeyPatch) -> None:
    """And once says why, and what to install."""
    no_compiler.cache_clear()
    words = {"is_cuda": True, "is_contiguous": lambda: False, "dim": lambda: 4}
    images = SimpleNamespace(device=torch.device("cpu"), **words)
    monkeypatch.setattr(torch, "compile", lambda function: lambda tensor: 1 / 0)
    with pytest.warns(UserWarning, match=r"no kernels for cpu here \(division.*install gcc"):
        assert normalisation(images, 4) is by_call
    assert normalisation(images, 4) is by_call
    assert no_compiler(images.device) == "division by zero"
    no_compiler.cache_clear()
    monkeypatch.setattr(torch, "compile", lambda function: function)
    assert normalisation(images, 4) is by_expression
    assert normalisation(images, 1) is by_call
    no_compiler.cache_clear()


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "close"), [(torch.float64, 1e-10), (torch.float32, 1e-4), (torch.bfloat16, 2e-2)]
)
@pytest.mark.parametrize("workers", [2, 5])
def test_on_a_gpu_the_compiled_expression_agrees_with_the_call(
    workers: int, dtype: torch.dtype, close: float
) -> None:
    """Output, statistics and all gradients, on several shapes of images."""
    torch._dynamo.reset()  # each case compiles anew, and after eight it would give up
    kept = torch.promote_types(dtype, torch.float32)
    for channels, side in ((16, 28), (32, 7), (64, 1)):
        shape = (8 * workers, channels, side, side)
        images, upstream = (torch.randn(shape, device="cuda", dtype=dtype) for _ in range(2))
        images = images.contiguous(memory_format=torch.channels_last)
        # Of one pixel each they are contiguous too.
        assert normalisation(images, workers) is (by_expression if side > 1 else by_call)
        found = []
        for normalise in (by_expression, by_call):
            leaves = [images.clone(), *(torch.ones(channels, device="cuda", dtype=kept),) * 2]
            leaves = [leaf.clone().requires_grad_() for leaf in leaves]
            output, seen = normalise(*leaves, workers, 1e-5)
            output.backward(upstream)
            found.append([output.detach(), seen, *(leaf.grad for leaf in leaves)])
        for ours, theirs in zip(*found, strict=True):
            scale = theirs.abs().max().item()
            torch.testing.assert_close(ours, theirs, rtol=0, atol=close * max(1.0, scale))


def resnet50_shapes() -> set[tuple[int, ...]]:
    """Channels, height and width of what its BN layers normalise."""
    model = make_model("resnet50", classes=1000, channels=3, last_gamma=0.0, seed=0).to("meta")
    shapes = set()
    for layer in model.modules():
        if isinstance(layer, WorkerBatchNorm2d):
            layer.register_forward_hook(lambda _, args, __: shapes.add(tuple(args[0].shape[1:])))
    model.eval()(torch.empty(2, 3, 224, 224, device="meta"))
    return shapes


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, while it compiles
@pytest.mark.slow
def test_the_expression_is_compiled_for_each_shape_of_resnet50(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a full, a short and a ragged pass, forward and backward: torch gives a function up after
    8 compilations unless it is told otherwise, and goes on without."""
    torch._dynamo.reset()
    shapes = resnet50_shapes()
    assert len(shapes) == 12
    compiler = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=compiler))
    with torch.compiler.config.patch(recompile_limit=8, fail_on_recompile_limit_hit=True):
        forward, backward = (_compiled.__wrapped__(each) for each in (_forward, _backward))
        for workers, size in ((8, 32), (7, 32), (8, 31)):
            for channels, *sides in shapes:
                images = torch.empty(workers * size, channels, *sides, device="meta")
                images = images.contiguous(memory_format=torch.channels_last)
                weight = torch.ones(channels, device="meta")
                output, _, *statistics = forward(images, weight, weight, workers, 1e-5)
                assert output.is_contiguous(memory_format=torch.channels_last)
                dx, *_ = backward(output, images, weight, *statistics)
                assert dx.is_contiguous(memory_format=torch.channels_last)
    assert compiler.frame_count == 2 * 3 * 12


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, while it compiles
@pytest.mark.slow
def test_a_compiled_model_stays_within_the_recompilations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks share their code, and compile it anew for each kind of block and of pass."""
    torch._dynamo.reset()
    compiler = CompileCounter()
    monkeypatch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend=compiler))
    monkeypatch.setattr(torch.compiler.config, "recompile_limit", 8)  # put back afterwards
    model = make_model("small_resnet", classes=10, channels=1, last_gamma=0.0, seed=0)
    running = RunningStatistics(model, hosted=4, workers=4, rank=0, world_size=1)
    compile_parts(model)
    with torch.compiler.config.patch(fail_on_recompile_limit_hit=True):
        for workers, size in ((4, 4), (2, 4), (1, 3), (4, 4)):
            running.start_pass(carrying(workers))
            model(torch.randn(workers * size, 1, 8, 8)).sum().backward()
    assert compiler.frame_count > 8


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, while it compiles
@pytest.mark.slow
def test_what_a_graph_changes_in_place_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch is asked for CUDA graphs, and would make none of kernels that change what may lie
    elsewhere in the next pass."""
    torch._dynamo.reset()
    changed: dict[str, bool] = {}

    def look(module: GraphModule, _: object) -> Callable[..., object]:
        for node in module.graph.nodes:
            if node.target is operator.iadd and node.args[0].op == "placeholder":
                held = node.args[0].meta["tensor_dict"]
                changed[node.args[0].name] = "_dynamo_static_input_type" in held
        return module.forward

    modes = set()

    def compile_here(part: nn.Module, *, dynamic: bool, mode: str | None) -> None:
        modes.add((dynamic, mode))
        torch_compile(part, dynamic=dynamic, backend=look)

    torch_compile = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", compile_here)
    model = make_model("small_resnet", classes=10, channels=1, last_gamma=0.0, seed=0)
    running = RunningStatistics(model, hosted=4, workers=4, rank=0, world_size=1)
    compile_parts(model, graphs=True)
    running.start_pass(carrying(4))
    model(torch.randn(16, 1, 8, 8)).sum().backward()
    assert modes == {(False, "reduce-overhead")}
    assert changed
    assert all(changed.values())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, while it compiles
@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, True])
def test_compiled_kernels_are_the_call(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's expression, compiled by itself and within a model, on a CPU: it returns no view,
    which the ReLU in place would not be allowed to change, and gives the same gradients."""
    torch._dynamo.reset()
    found = []
    for normalise in (by_call, by_expression):
        monkeypatch.setattr("lsgd.rules.batchnorm.normalisation", lambda *_, which=normalise: which)
        model = make_model("small_resnet", classes=10, channels=1, last_gamma=1.0, seed=0)
        model = model.to(memory_format=torch.channels_last)
        running = RunningStatistics(model, hosted=4, workers=4, rank=0, world_size=1)
        if whole and normalise is by_expression:
            compile_parts(model)
        running.start_pass(carrying(4))
        images = torch.randn(16, 1, 8, 8, generator=seeded(2))
        loss = model(images.contiguous(memory_format=torch.channels_last)).square().sum()
        loss.backward()
        found.append([loss.detach(), running.seen, *(p.grad for p in model.parameters())])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("whole", [False, True])
def test_on_a_gpu_resnet50_stays_within_the_recompilations(whole: bool) -> None:
    """With only its BN compiled, and with all of it, for full, short and ragged passes."""
    torch._dynamo.reset()
    model = make_model("resnet50", classes=10, channels=3, last_gamma=0.0, seed=0)
    model = model.to("cuda", memory_format=torch.channels_last)
    running = RunningStatistics(model, hosted=4, workers=4, rank=0, world_size=1)
    with torch.compiler.config.patch(fail_on_recompile_limit_hit=True):
        if whole:
            compile_parts(model)
        for workers, size in ((4, 8), (2, 8), (1, 3), (4, 8)):
            running.start_pass(carrying(workers))
            images = torch.randn(workers * size, 3, 64, 64, device="cuda")
            with torch.autocast("cuda", torch.bfloat16):
                model(images.contiguous(memory_format=torch.channels_last)).sum().backward()


def test_evaluation_is_that_of_pytorch() -> None:
    """Whatever the last training pass carried, and without moving anything."""
    ours, plain = bn_pair()
    running = RunningStatistics(ours, hosted=2, workers=2, rank=0, world_size=1)
    running.start_pass(carrying(2))
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
    rank: int
    world_size: int

    def __post_init__(self) -> None:
        self.running = RunningStatistics(
            self.layer,
            hosted=len(self.hosted),
            workers=self.workers,
            rank=self.rank,
            world_size=self.world_size,
        )

    def step(self, images: Tensor) -> None:
        """The step with these images, of all workers in order."""
        for each in sampler.step_passes(
            np.arange(len(images)),
            epoch=0,
            step=0,
            workers=self.workers,
            worker_batch=IMAGES,
            hosted=self.hosted,
            workers_per_pass=self.workers_per_pass,
        ):
            self.running.start_pass(each)
            self.layer(images[each.examples])
        self.running.end_step(-(-len(images) // IMAGES))


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
            rank,
            world_size,
        )
        for rank in range(world_size)
    ]


def summed(tensors: list[Tensor]) -> Callable[[Tensor], None]:
    """What adds up a tensor over the processes that have these."""

    def sum_(tensor: Tensor) -> None:
        tensor.copy_(torch.stack(tensors).sum(0))

    return sum_


def state(processes: list[Process]) -> dict[str, Tensor]:
    """The state that every process of the job gives."""
    rows: list[Tensor] = []
    for process in processes:
        process.running.state(rows.append)
    return {"shares": torch.stack(rows).sum(0)}


def combined(processes: list[Process]) -> nn.BatchNorm2d:
    """The layer of the first process with the job's statistics in it."""
    processes[0].running.settle(summed([p.running.share for p in processes]))
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
            saved, layer = state(processes), processes[0].layer
            processes = job(layer, workers, data.draw(st.integers(1, workers)), layout[2])
            for process in processes:
                process.running.restore(saved)


def test_a_resume_on_as_many_processes_is_bit_equal() -> None:
    torch.manual_seed(0)
    processes = job(bn_pair()[0], 5, 3, 2)
    for process in processes:
        process.step(torch.randn(5 * IMAGES, CHANNELS, 3, 3, dtype=torch.float64))
    saved = state(processes)
    assert saved["shares"].shape == (3, 2 * CHANNELS)
    resumed = job(combined(processes), 5, 3, 2)
    for rank, process in enumerate(resumed):
        process.running.restore(saved)
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
    running = RunningStatistics(model, hosted=1, workers=1, rank=0, world_size=1)
    for _ in range(3):
        images = torch.randn(6, 2, 3, 3, dtype=torch.float64)
        running.start_pass(carrying(1))
        model(images)
        running.end_step(1)
        plain(images)
    running.settle(lambda _: None)
    for (name, ours), theirs in zip(
        model.state_dict().items(), plain.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(ours, theirs, **CLOSE, msg=name)
