import copy
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.micro_batches import training_micro_batch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend
from torch.fx import GraphModule
from torch.utils.checkpoint import checkpoint

from lsgd.errors import UsageError
from lsgd.learner import compile_children
from lsgd.models import make_model
from lsgd.rules import sampler
from lsgd.rules.batchnorm import (
    NormaliseWorkers,
    RunningStatistics,
    WorkerBatchNorm1d,
    WorkerBatchNorm2d,
    _compiled,
    _forward,
    choose_normalisation,
    compiler_problem,
    normalise_by_library,
    normalise_compiled,
    normalise_in_turn,
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
@pytest.mark.parametrize("normalise", [normalise_by_library, normalise_in_turn, normalise_compiled])
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
    running.start_micro_batch(training_micro_batch(workers))
    monkeypatch.setattr(
        "lsgd.rules.batchnorm.choose_normalisation", lambda images, workers: normalise
    )
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
    copied = normalise is normalise_by_library and workers > 1
    kept = torch.channels_last if normalise is normalise_in_turn else layout
    assert copied or output.is_contiguous(memory_format=kept)
    # What is behind a view is copied by a ReLU in place; compiled kernels return none.
    assert normalise is normalise_compiled or not output._is_view()
    torch.testing.assert_close(mine.grad, theirs.grad, **CLOSE)
    torch.testing.assert_close(ours.weight.grad, plain.weight.grad, **CLOSE)
    torch.testing.assert_close(ours.bias.grad, plain.bias.grad, **CLOSE)
    pixels = [
        group.transpose(0, 1).flatten(1) for group in (images[w::workers] for w in range(workers))
    ]
    seen = [torch.stack([each.mean(1), each.var(1)]) for each in pixels]
    torch.testing.assert_close(running.pending_update.view(2, -1), sum(seen), **CLOSE)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("normalise", [normalise_by_library, normalise_in_turn, normalise_compiled])
def test_second_derivatives_are_right_or_refused(normalise: NormaliseWorkers) -> None:
    """Autograd takes what a gradient in closed form has saved for constants."""
    images = torch.randn(6, CHANNELS, 3, 2, generator=seeded(0), dtype=torch.float64)
    images = images.contiguous(memory_format=torch.channels_last).requires_grad_()
    weight, bias = torch.ones(CHANNELS).double(), torch.zeros(CHANNELS).double()

    def normalised(images: Tensor) -> Tensor:
        return normalise(images, weight, bias, 2, 1e-5)[0].pow(3)

    if normalise is normalise_by_library:
        assert torch.autograd.gradgradcheck(normalised, images)
        return
    assert torch.autograd.gradcheck(normalised, images)
    with pytest.raises(UsageError, match=r"no second derivative.*use workers_per_pass=1"):
        torch.autograd.grad(normalised(images).sum(), images, create_graph=True)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("normalise", [normalise_by_library, normalise_in_turn, normalise_compiled])
def test_bfloat16_images_keep_float32_statistics(normalise: NormaliseWorkers) -> None:
    """As under autocast: what is seen is that of the rounded images, not rounded once more."""
    images = (torch.randn(8, CHANNELS, 16, 16, generator=seeded(0)) + 5).bfloat16()
    weight, bias = torch.ones(CHANNELS), torch.zeros(CHANNELS)
    output, seen = normalise(images, weight, bias, 2, 1e-5)
    exact, expected = normalise_by_library(images.double(), weight.double(), bias.double(), 2, 1e-5)
    assert (output.dtype, seen.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(seen.double(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(output.double(), exact, rtol=2**-8, atol=1e-3)


def test_without_a_compiler_the_library_normalises(monkeypatch: pytest.MonkeyPatch) -> None:
    """And once says why, and what to install."""
    compiler_problem.cache_clear()
    words = {"is_contiguous": lambda: False, "dim": lambda: 4}
    images = SimpleNamespace(device=torch.device("meta"), **words)
    monkeypatch.setattr("lsgd.rules.batchnorm.TRITON", ("meta",))
    monkeypatch.setattr(torch, "compile", lambda function: lambda tensor: 1 / 0)
    with pytest.warns(UserWarning, match=r"no kernels for meta here \(division.*install gcc"):
        assert choose_normalisation(images, 4) is normalise_by_library
    assert choose_normalisation(images, 4) is normalise_by_library
    assert compiler_problem(images.device) == "division by zero"
    compiler_problem.cache_clear()
    monkeypatch.setattr(torch, "compile", lambda function: function)
    assert choose_normalisation(images, 4) is normalise_compiled
    assert choose_normalisation(images, 1) is normalise_by_library
    compiler_problem.cache_clear()


def test_a_cpu_copies_no_images_into_another_layout() -> None:
    """With several workers a call for all would, there and back."""
    images = torch.ones(8, CHANNELS, 4, 4)
    assert choose_normalisation(images, 4) is normalise_by_library
    images = images.contiguous(memory_format=torch.channels_last)
    assert choose_normalisation(images, 4) is normalise_in_turn
    assert choose_normalisation(images, 1) is normalise_by_library
    assert choose_normalisation(images.flatten(2), 4) is normalise_by_library


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
        assert choose_normalisation(images, workers) is (
            normalise_compiled if side > 1 else normalise_by_library
        )
        found = []
        for normalise in (normalise_compiled, normalise_by_library):
            leaves = [images.clone(), *(torch.ones(channels, device="cuda", dtype=kept),) * 2]
            leaves = [leaf.clone().requires_grad_() for leaf in leaves]
            output, seen = normalise(*leaves, workers, 1e-5)
            output.backward(upstream)
            found.append([output.detach(), seen, *(leaf.grad for leaf in leaves)])
        for ours, theirs in zip(*found, strict=True):
            scale = theirs.abs().max().item()
            torch.testing.assert_close(ours, theirs, rtol=0, atol=close * max(1.0, scale))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, while it compiles
@pytest.mark.slow
def test_the_expression_is_compiled_for_each_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """ResNet-50 has 12 of them in each of 3 kinds of passes: torch gives a function up after 8
    compilations unless it is told otherwise, and goes on without."""
    torch._dynamo.reset()
    compiler = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=compiler))
    with torch.compiler.config.patch(recompile_limit=8, fail_on_recompile_limit_hit=True):
        forward = _compiled.__wrapped__(_forward)
        for channels in range(1, 11):
            images = torch.empty(8, channels, 3, 3, device="meta")
            images = images.contiguous(memory_format=torch.channels_last)
            weight = torch.ones(channels, device="meta")
            output, *_ = forward(images, weight, weight, 4, 1e-5)
            assert channels == 1 or output.is_contiguous(memory_format=torch.channels_last)
        assert torch.compiler.config.recompile_limit >= 36
    assert compiler.frame_count == 10


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, while it compiles
@pytest.mark.slow
def test_what_a_graph_changes_in_place_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch is asked for CUDA graphs, and would make none of kernels that change what may lie
    elsewhere in the next pass. The blocks share their code, which is compiled anew for each kind of
    block and of pass, and not given up after 8 times."""
    torch._dynamo.reset()
    graphs: list[bool] = []
    modes = set()

    def look(module: GraphModule, _: object) -> Callable[..., object]:
        changed = [
            node.args[0].meta["tensor_dict"]
            for node in module.graph.nodes
            if node.target == "add_" and node.args[0].op == "placeholder"
        ]
        assert all("_dynamo_static_input_type" in held for held in changed)
        graphs.append(bool(changed))
        return module.forward

    def compile_here(part: nn.Module, *, dynamic: bool, mode: str | None) -> None:
        modes.add((dynamic, mode))
        torch_compile(part, dynamic=dynamic, backend=look)

    torch_compile = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", compile_here)
    monkeypatch.setattr(torch.compiler.config, "recompile_limit", 8)  # put back afterwards
    model = make_model("small_resnet", classes=10, channels=1, last_gamma=0.0, seed=0)
    running = RunningStatistics(model, hosted=4, workers=4, rank=0, world_size=1)
    compile_children(model, graphs=True)
    with torch.compiler.config.patch(fail_on_recompile_limit_hit=True):
        for workers, size in ((4, 4), (2, 4), (1, 3), (4, 4)):
            running.start_micro_batch(training_micro_batch(workers))
            model(torch.randn(workers * size, 1, 8, 8)).sum().backward()
    assert modes == {(False, "reduce-overhead")}
    assert len(graphs) > 8
    assert any(graphs)


class Block(nn.Module):
    """With code of its own, which torch compiles; a Sequential it leaves as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(1, 4, 3, bias=False), WorkerBatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        return self.relu(self.bn(self.conv(images)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, while it compiles
@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, True])
def test_compiled_kernels_are_the_call(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's expression, compiled by itself and within a model, on a CPU: it returns no view,
    which the ReLU in place would not be allowed to change, and gives the same gradients."""
    torch._dynamo.reset()
    found = []
    for normalise in (normalise_by_library, normalise_compiled):
        monkeypatch.setattr(
            "lsgd.rules.batchnorm.choose_normalisation", lambda *_, which=normalise: which
        )
        torch.manual_seed(0)
        model = nn.Sequential(Block()).to(memory_format=torch.channels_last)
        running = RunningStatistics(model, hosted=4, workers=4, rank=0, world_size=1)
        if whole and normalise is normalise_compiled:
            compile_children(model)
        running.start_micro_batch(training_micro_batch(4))
        images = torch.randn(16, 1, 8, 8, generator=seeded(2))
        loss = model(images.contiguous(memory_format=torch.channels_last)).square().sum()
        loss.backward()
        found.append([loss.detach(), running.pending_update, *(p.grad for p in model.parameters())])
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
            compile_children(model)
        for workers, size in ((4, 8), (2, 8), (1, 3), (4, 8)):
            running.start_micro_batch(training_micro_batch(workers))
            images = torch.randn(workers * size, 3, 64, 64, device="cuda")
            with torch.autocast("cuda", torch.bfloat16):
                model(images.contiguous(memory_format=torch.channels_last)).sum().backward()


def test_evaluation_is_that_of_pytorch() -> None:
    """Whatever the last training pass carried, and without moving anything."""
    ours, plain = bn_pair()
    running = RunningStatistics(ours, hosted=2, workers=2, rank=0, world_size=1)
    running.start_micro_batch(training_micro_batch(2))
    images = torch.randn(7, CHANNELS, 4, 4, dtype=torch.float64)
    assert torch.equal(ours.eval()(images), plain.eval()(images))
    assert not running.pending_update.any()


class Process:
    """A process of a job with one BN layer, which sees its workers' images step by step."""

    def __init__(
        self, layer: nn.BatchNorm2d, workers: int, world_size: int, workers_per_pass: int, rank: int
    ) -> None:
        self.layer, hosted = (
            copy.deepcopy(layer),
            sampler.contiguous_share(workers, world_size, rank),
        )
        self.running = RunningStatistics(
            self.layer, hosted=len(hosted), workers=workers, rank=rank, world_size=world_size
        )
        self.layout = {"workers": workers, "hosted": hosted, "workers_per_pass": workers_per_pass}

    def step(self, images: Tensor) -> None:
        """The step with these images, of all workers in order."""
        order = np.arange(len(images))
        for each in sampler.step_micro_batches(
            order, epoch=0, step=0, worker_batch=IMAGES, **self.layout
        ):
            self.running.start_micro_batch(each)
            self.layer(images[each.examples])
        self.running.end_step(-(-len(images) // IMAGES))


def job(
    layer: nn.BatchNorm2d, workers: int, world_size: int, workers_per_pass: int
) -> list[Process]:
    """The processes of a job, all starting with a copy of the layer."""
    layout = workers, world_size, workers_per_pass
    return [Process(layer, *layout, rank) for rank in range(world_size)]


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
    processes[0].running.write_to_model(summed([p.running.share for p in processes]))
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


@settings(max_examples=40)
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
        running.start_micro_batch(training_micro_batch(1))
        model(images)
        running.end_step(1)
        plain(images)
    running.write_to_model(lambda _: None)
    for (name, ours), theirs in zip(
        model.state_dict().items(), plain.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(ours, theirs, **CLOSE, msg=name)


class Called(nn.Module):
    """A network that calls its BN layer as often as it is told, from a checkpoint or not."""

    def __init__(self) -> None:
        super().__init__()
        self.bn, self.calls, self.reentrant = WorkerBatchNorm2d(CHANNELS).double(), 1, None

    def forward(self, images: Tensor) -> Tensor:
        for call in range(self.calls):
            each = images + call
            if self.reentrant is None:
                images = images + self.bn(each)
            else:
                images = images + checkpoint(self.bn, each, use_reentrant=self.reentrant)
        return images


def called_step(model: Called, running: RunningStatistics, calls: list[int]) -> list[Tensor]:
    """The inputs of all calls of a step with a micro-batch of two workers for each number."""
    inputs: list[Tensor] = []
    hook = model.bn.register_forward_pre_hook(lambda _, given: inputs.append(given[0].detach()))
    for number, model.calls in enumerate(calls):
        running.start_micro_batch(training_micro_batch(2))
        images = torch.randn(2 * IMAGES, CHANNELS, 3, 3, generator=seeded(number)).double()
        called = len(inputs)
        output = model(images.requires_grad_())
        called += model.calls
        output.sum().backward()
        del inputs[called:]
    hook.remove()
    running.end_step(2 * len(calls))
    running.write_to_model(lambda _: None)
    return inputs


@pytest.mark.filterwarnings("ignore::UserWarning")  # of torch: no gradient in reentrant checkpoints
@pytest.mark.parametrize("reentrant", [None, False, True])
@pytest.mark.parametrize("calls", [[1], [2], [1, 3], [0, 2], [1, 1, 0]])
def test_each_call_of_a_step_counts_once(calls: list[int], reentrant: bool | None) -> None:
    """Also when a checkpoint makes it again in the backward pass; a worker's are averaged."""
    model = Called()
    model.reentrant = reentrant
    running = RunningStatistics(model, hosted=6, workers=6, rank=0, world_size=1)
    for _ in range(2):
        running.read_from_layer(0)
        mean, var = model.bn.running_mean.clone(), model.bn.running_var.clone()
        inputs = called_step(model, running, calls)
        workers = [each[worker::2] for each in inputs for worker in range(2)]
        seen = sum(each.mean((0, 2, 3)) for each in workers) / len(workers)
        spread = sum(each.transpose(0, 1).flatten(1).var(1) for each in workers) / len(workers)
        assert_statistics(model.bn, 0.9 * mean + 0.1 * seen, 0.9 * var + 0.1 * spread)


@pytest.mark.parametrize("calls", [[1, 3], [0, 2], [1, 1, 0], [2, 2], [0, 0], [1, 1]])
def test_workers_of_several_processes_call_a_layer_equally_often(calls: list[int]) -> None:
    """How many of all workers called it is known to no process, which divides its sum by them."""
    model = Called()
    running = RunningStatistics(model, hosted=6, workers=12, rank=0, world_size=2)
    with (
        nullcontext()
        if len({*calls}) == 1
        else pytest.raises(
            UsageError, match="layer of 3 channels was called by some workers of a step more often"
        ) as refusal
    ):
        called_step(model, running, calls)
    assert not refusal or refusal.value.is_local  # so that this process prints it


def test_one_worker_may_call_a_layer_more_often_in_some_of_its_steps() -> None:
    """Before its push to a server, in a job of several processes too."""
    bn = WorkerBatchNorm2d(CHANNELS).double()
    running = RunningStatistics(bn, hosted=1, workers=2, rank=0, world_size=2)
    inputs = torch.randn(3, IMAGES, CHANNELS, 3, 3, generator=seeded(0)).double()
    for calls in (inputs[:1], inputs[1:]):
        running.start_micro_batch(training_micro_batch(1))
        for images in calls:
            bn(images)
    running.check_all_called()
    mean = inputs.mean((0, 1, 3, 4))
    torch.testing.assert_close(running.pending_update[:CHANNELS], 2 * mean, rtol=0, atol=1e-12)


def test_a_layer_without_calls_keeps_its_statistics() -> None:
    """Exactly, in steps and in a measurement, on a process without examples too."""
    model = Called()
    model.other = WorkerBatchNorm2d(2).double()
    before = model.bn.running_var.fill_(1 / 3).clone()
    running = RunningStatistics(model, hosted=2, workers=2, rank=0, world_size=1)
    for _ in range(5):
        called_step(model, running, [0])
        running.end_step(2)
    running.write_to_model(lambda _: None)
    assert torch.equal(model.bn.running_var, before)
    running.start_micro_batch(training_micro_batch(2))
    model.other(torch.randn(2 * IMAGES, 2, 3, 3).double())
    running.measure(2, lambda _: None)
    assert torch.equal(model.bn.running_var, before)
    assert not torch.equal(model.other.running_var, torch.ones(2).double())
    with pytest.raises(UsageError, match="layer of 3 channels was not called"):
        running.check_all_called()
    called_step(model, running, [1])
    assert not torch.equal(model.bn.running_var, before)


def test_a_call_between_two_steps_does_not_count() -> None:
    model = Called()
    running = RunningStatistics(model, hosted=2, workers=2, rank=0, world_size=1)
    model.bn(torch.full((4, CHANNELS, 3, 3), 1e9).double())
    [inputs] = called_step(model, running, [1])
    seen = sum(inputs[worker::2].mean((0, 2, 3)) for worker in range(2)) / 2
    torch.testing.assert_close(model.bn.running_mean, 0.1 * seen, **CLOSE)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, while it compiles
@pytest.mark.slow
@pytest.mark.parametrize("reentrant", [None, False, True])
def test_compiled_calls_count_once(reentrant: bool | None) -> None:
    """Compiled once, although the calls of a micro-batch are counted."""
    found = []
    for is_compiled in (False, True):
        torch._dynamo.reset()
        model, counter = Called(), CompileCounterWithBackend("aot_eager")
        model.reentrant = reentrant
        running = RunningStatistics(model, hosted=4, workers=4, rank=0, world_size=1)
        if is_compiled:
            model.compile(dynamic=False, backend=counter)
        frames = []
        for _ in range(3):
            called_step(model, running, [2, 2])
            frames.append(counter.frame_count)
        assert frames[0] == frames[-1]
        found.append([model.bn.running_mean, model.bn.running_var])
    for eager, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, eager, **CLOSE)


@pytest.mark.parametrize("size", [(), (2, 5)])
def test_rows_of_an_image_are_its_worker_s(size: tuple[int, ...]) -> None:
    """Outputs and what was seen of two workers of two images, each of which has three rows."""
    rows = torch.randn(12, CHANNELS, *size, generator=seeded(5), dtype=torch.float64)
    kind = WorkerBatchNorm2d if size else WorkerBatchNorm1d
    layer = kind(CHANNELS).double()
    layer.rows_per_image = 3
    found = {}
    for name, some, workers in (
        ("both", slice(None), 2),
        ("first", [0, 1, 2, 6, 7, 8], 1),
        ("second", [3, 4, 5, 9, 10, 11], 1),
    ):
        layer.seen = rows.new_zeros(2, CHANNELS)
        layer.workers = workers
        found[name] = layer(rows[some]), layer.seen
    apart = torch.empty_like(rows)
    apart[[0, 1, 2, 6, 7, 8]], apart[[3, 4, 5, 9, 10, 11]] = found["first"][0], found["second"][0]
    torch.testing.assert_close(found["both"][0], apart, **CLOSE)
    torch.testing.assert_close(found["both"][1], found["first"][1] + found["second"][1], **CLOSE)


def test_images_of_another_size_have_other_rows() -> None:
    """Three of each image, in a network that has five at its own size, of two workers or one."""
    rows = torch.randn(12, CHANNELS, generator=seeded(5), dtype=torch.float64)
    layer = WorkerBatchNorm1d(CHANNELS).double()
    layer.rows_per_image = 5
    running = RunningStatistics(layer, hosted=2, workers=2, rank=0, world_size=1)
    images = rows.unflatten(0, (4, 3))
    running.start_micro_batch(sampler.MicroBatch(0, np.arange(4), range(2)))
    both = layer(rows).unflatten(0, (4, 3))
    for worker in range(2):
        own = sampler.MicroBatch(0, np.arange(4)[worker::2], range(worker, worker + 1))
        running.start_micro_batch(own)
        alone = layer(images[worker::2].flatten(0, 1))
        torch.testing.assert_close(both[worker::2].flatten(0, 1), alone, **CLOSE)
