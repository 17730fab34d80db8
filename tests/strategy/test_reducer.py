import copy
import weakref
from collections.abc import Callable
from functools import partial, partialmethod
from itertools import pairwise

import pytest
import torch
from helpers.composed import compose_recipe
from helpers.micro_batches import training_micro_batch
from helpers.threaded import ThreadComm, run_on_threads, seeded
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lsgd.comm import Comm
from lsgd.comm.single import SingleComm
from lsgd.errors import UsageError
from lsgd.learner import Learner, _remove_gaps
from lsgd.strategy.reducer import Reducer

KB = 1 / 1024
"""In MiB, the unit of bucket_mb."""


class Backwards(nn.Module):
    """Layers used in another order than registered, so that gradients come out of order."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for i in (2, 0, 3, 1):
            x = torch.tanh(self.layers[i](x))
        return x


@pytest.fixture
def all_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small gradients be handed over too."""
    monkeypatch.setattr("lsgd.strategy.reducer.LARGE", 0)


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    model = Backwards()
    generator = seeded(0)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator).to(dtype)
    return model.to(dtype)


def reducer_of(
    model: nn.Module,
    comm: ThreadComm | SingleComm,
    bucket_mb: float = 0.34 * KB,
    compression: str = "none",
) -> Reducer:
    return Reducer(model.parameters(), comm, bucket_mb=bucket_mb, compression=compression)


def step(model: nn.Module, reducer: Reducer, passes: list[Tensor], examples: int) -> None:
    """Forward and backward of these passes, with a loss summed over examples."""
    reducer.start(examples, len(passes))
    for images in passes:
        reducer.backward(model(images).pow(2).sum())
    reducer.finish()


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.integers(1, 5), max_size=3), min_size=1, max_size=4).filter(any),
    st.booleans(),
)
def test_the_gradient_is_the_mean_over_the_examples_of_all_passes_and_processes(
    layout: list[list[int]], large: bool
) -> None:
    """`layout` has the pass sizes of each process; one may have no examples at all. `large` ones
    of a single pass are handed over."""
    examples = sum(map(sum, layout))
    images = torch.randn(2, examples, 6, generator=seeded(1), dtype=torch.float64)
    sizes = [size for process in layout for size in process]

    def process(comm: ThreadComm) -> list[Tensor]:
        model = network()
        reducer = reducer_of(model, comm)
        for bucket in reducer.buckets:
            bucket.is_of_large_tensors = large
        first = sum(map(len, layout[: comm.rank]))
        mine = slice(first, first + len(layout[comm.rank]))
        # Twice, since the second step must not remember the first.
        for of_step in images:
            step(model, reducer, list(of_step.split(sizes)[mine]), examples)
        return [p.grad for p in model.parameters()] + [reducer.gradient_norm, reducer.found_inf]

    model = network()
    (model(images[1]).pow(2).sum() / examples).backward()
    expected = [p.grad for p in model.parameters()]
    norm = torch.linalg.vector_norm(torch.cat([gradient.flatten() for gradient in expected]))
    for *gradients, gradient_norm, found_inf in run_on_threads(len(layout), process):
        torch.testing.assert_close(gradients, expected, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(gradient_norm, norm, rtol=1e-12, atol=0)
        assert found_inf == 0


@pytest.mark.usefixtures("all_large")
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("hands_over", [False, True])
def test_gradients_are_views_of_the_buckets_or_as_autograd_made_them(
    layout: torch.memory_format, hands_over: bool
) -> None:
    """Strided like their parameters, which the fused optimizer takes for granted. Those of a single
    pass that are handed over are in no bucket; whatever the step before was, the numbers are the
    same to the bit."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3), nn.Flatten(), nn.Linear(5, 2))
    model = model.to(memory_format=layout)
    made = {"bucket_mb": 0.5 * KB, "compression": "none", "keep_autograd_grads": hands_over}
    reducer = Reducer(model.parameters(), SingleComm(), **made)
    assert len(reducer.buckets) > 1
    places = [p.grad.data_ptr() for p in model.parameters()]
    flats = [b.flat.untyped_storage().data_ptr() for b in reducer.buckets]
    images = torch.randn(4, 3, 5, 5).to(memory_format=layout)
    for count in (1, 2, 1, 1, 0, 2):
        passes = [*images.split(1)][:count]
        step(model, reducer, passes, examples=2)
        handed = hands_over and count == 1
        expected = torch.autograd.grad(
            sum(
                (model(image).pow(2).sum() / 2 for image in passes),
                torch.zeros((), requires_grad=True),
            ),
            list(model.parameters()),
            allow_unused=True,
        )
        for parameter, place, gradient in zip(model.parameters(), places, expected, strict=True):
            assert (parameter.grad.data_ptr() == place) is not handed
            assert (parameter.grad.untyped_storage().data_ptr() in flats) is not handed
            assert parameter.grad.stride() == parameter.stride()
            torch.testing.assert_close(
                parameter.grad, torch.zeros_like(parameter) if gradient is None else gradient
            )
        total = torch.cat([p.grad.flatten() for p in model.parameters()])
        torch.testing.assert_close(reducer.gradient_norm, torch.linalg.vector_norm(total))


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("cut", ["[:, :8]", ".t()", "[::2]", "[:1]"])
def test_a_parameter_with_gaps_gets_its_own_gradient(cut: str, processes: int, large: bool) -> None:
    """In one micro-batch, whose large gradients are handed over, and in two."""
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)).double()
    for number, layer in enumerate(model):
        layer.weight.data.normal_(generator=seeded(number))
    weight = model[1].weight.detach().clone()
    images = torch.randn(2, 4, 16, generator=seeded(1)).double()

    def process(comm: ThreadComm) -> list[Tensor]:
        own = copy.deepcopy(model)
        part = own[1].weight = nn.Parameter(eval(f"weight{cut}", {"weight": weight.clone()}))
        reducer = reducer_of(own, comm)
        for bucket in reducer.buckets:
            bucket.is_of_large_tensors = large
        found = []
        for passes in (1, 2):
            shares = images.flatten(0, 1).chunk(processes * passes)
            reducer.start(8, passes)
            for share in shares[comm.rank :: processes]:
                reducer.backward(output(own, share, part).pow(2).sum())
            reducer.finish()
            found += [parameter.grad.clone() for parameter in own.parameters()]
        return found

    def output(own: nn.Module, share: Tensor, part: Tensor) -> Tensor:
        hidden = own[0](share)[:, : part.shape[1]] @ part.t()
        return own[2](F.pad(hidden, (0, 16 - part.shape[0])))

    own = copy.deepcopy(model)
    part = own[1].weight = nn.Parameter(eval(f"weight{cut}", {"weight": weight}))
    (output(own, images.flatten(0, 1), part).pow(2).sum() / 8).backward()
    expected = [torch.zeros_like(p) if p.grad is None else p.grad for p in own.parameters()]
    for found in run_on_threads(processes, process):
        torch.testing.assert_close(found, expected * 2, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("passes", [1, 2])
def test_the_norm_of_millions_of_numbers_is_exact(passes: int) -> None:
    """A CPU's own float32 norm of them misses in the fourth digit, another way for each bucket."""
    model = nn.Linear(2000, 2000, bias=False)
    reducer = Reducer(
        model.parameters(), SingleComm(), bucket_mb=64, compression="none", keep_autograd_grads=True
    )
    step(model, reducer, [torch.randn(2, 2000) for _ in range(passes)], examples=2)
    expected = torch.linalg.vector_norm(model.weight.grad.double())
    torch.testing.assert_close(reducer.gradient_norm.double(), expected, rtol=2e-6, atol=0)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of torch: inputs without gradients
def test_two_gradients_in_one_backward_pass_are_refused() -> None:
    """The sum over processes would start with the first one; another checkpoint adds them up."""

    def process(comm: Comm, reentrant: bool) -> list[Tensor]:
        model = nn.Linear(3, 3).double()
        nn.init.eye_(model.weight)
        reducer = reducer_of(model, comm)
        images = torch.ones(2, 3, dtype=torch.float64).requires_grad_()
        for _ in range(2):
            reducer.start(4, 1)
            hidden = checkpoint(model, images, use_reentrant=reentrant)
            reducer.backward(checkpoint(model, hidden, use_reentrant=reentrant).sum())
            reducer.finish()
        return [model.weight.grad]

    for [gradient] in run_on_threads(2, partial(process, reentrant=False)):
        assert gradient.sum() > 0
    with pytest.raises(UsageError, match=r"shape \(3,\) got two gradients.* use_reentrant=False"):
        run_on_threads(2, partial(process, reentrant=True))
    process(SingleComm(), reentrant=True)


def test_a_run_has_parameters_without_gaps() -> None:
    """With the values of the network, whose other parameters stay where they are."""
    model, weight = nn.Linear(4, 4), torch.randn(4, 8)
    model.weight = nn.Parameter(weight[:, ::2])
    place = model.bias.data_ptr()
    _remove_gaps(model)
    assert model.weight.stride() == (4, 1)
    assert torch.equal(model.weight, weight[:, ::2])
    assert model.bias.data_ptr() == place


@pytest.mark.usefixtures("all_large")
@pytest.mark.parametrize("hands_over", [False, True])
def test_a_parameter_that_no_pass_comes_to_has_a_gradient_of_0(hands_over: bool) -> None:
    """Not none, nor that of the step before: it decays, and its momentum goes on."""
    used, unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))
    made = {"bucket_mb": 1.0, "compression": "none", "keep_autograd_grads": hands_over}
    reducer = Reducer([used, unused], SingleComm(), **made)
    reducer.buckets[0].flat.fill_(7)  # as of steps before
    for parameters in ((used, unused), (used,)):
        reducer.start(1, passes=1)
        reducer.backward(sum(parameter.sum() for parameter in parameters))
        reducer.finish()
    assert (used.grad.tolist(), unused.grad.tolist()) == ([1, 1, 1], [0, 0])


def test_a_gradient_that_someone_else_has_set_is_not_lost_silently() -> None:
    """The habit of every training loop would take the views away, and the sums would be zeros."""
    model = network()
    reducer = reducer_of(model, SingleComm())
    torch.optim.SGD(model.parameters(), lr=0.1).zero_grad()
    with pytest.raises(UsageError, match=r"other code, .*by optimizer.register_step_pre_hook"):
        step(model, reducer, 2 * [torch.randn(4, 6, dtype=torch.float64)], examples=4)


@pytest.mark.slow
@given(st.lists(st.integers(1, 300), min_size=1, max_size=12), st.integers(1, 200))
def test_buckets_hold_every_gradient_once_and_no_more_than_they_may(
    sizes: list[int], limit: int
) -> None:
    """`limit` in float32 numbers; a larger parameter has a bucket of its own."""
    parameters = [nn.Parameter(torch.zeros(size)) for size in sizes]
    reducer = Reducer(parameters, SingleComm(), bucket_mb=limit * 4 / 2**20, compression="none")
    for i, parameter in enumerate(parameters):
        parameter.grad.fill_(i + 1)
    gradients = [bucket.gradients for bucket in reducer.buckets]
    # In the order of the backward pass.
    expected = [i + 1 for i in reversed(range(len(sizes))) for _ in range(sizes[i])]
    assert torch.cat(gradients).tolist() == expected
    for bucket, following in pairwise([*gradients, torch.full((10**6,), -1.0)]):
        assert len(bucket) <= limit or len(bucket.unique()) == 1
        assert len(bucket) + (following == following[0]).sum() > limit
    assert reducer.flag == 0


def test_sums_start_in_order_and_before_the_backward_pass_ends() -> None:
    """Whatever order the gradients come in; those of passes before the last start nothing."""
    model = network()
    events = []

    class Watched(SingleComm):
        world_size = 2

        def start_all_reduce_(self, tensor: Tensor, name: str) -> Callable[[], None]:
            events.append(name)
            return super().start_all_reduce_(tensor, name)

    # Layer 2 is the first one used, so it gets its gradient last of all, but is the second bucket.
    model.layers[2].weight.register_post_accumulate_grad_hook(lambda _: events.append("layer 2"))
    reducer = reducer_of(model, Watched())
    images = torch.randn(4, 6, generator=seeded(1), dtype=torch.float64)
    reducer.start(divisor=8, passes=2)
    for _ in range(2):
        reducer.backward(model(images).pow(2).sum())
    sums = [f"gradients {i}" for i in range(4)]
    assert events == ["layer 2", sums[0], "layer 2", *sums[1:]]
    reducer.finish()
    assert events == ["layer 2", sums[0], "layer 2", *sums[1:]]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, while it compiles
def test_sums_start_before_the_backward_pass_of_a_compiled_model_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its parts are compiled in place: its names stay, and each gives its gradients by itself."""
    # Cuts the graphs as every compiler does, and generates no code, which takes long.
    monkeypatch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend="aot_eager"))
    plain, compiled = (
        Learner(
            compose_recipe("+recipe=digits", "comm.bucket_mb=0.02", f"compile={word}"),
            SingleComm(),
            torch.device("cpu"),
        )
        for word in ("false", "true")
    )
    assert [*compiled.model.state_dict()] == [*plain.model.state_dict()]
    events = []
    images = torch.randn(8, 1, 8, 8, generator=seeded(1))

    class Watched(SingleComm):
        world_size = 2

        def start_all_reduce_(self, tensor: Tensor, name: str) -> Callable[[], None]:
            events.append(name)
            return super().start_all_reduce_(tensor, name)

    compiled.strategy.reducer = reducer_of(compiled.model, Watched(), bucket_mb=0.02)
    stem = compiled.model.get_parameter("conv1.weight")
    stem.register_post_accumulate_grad_hook(lambda _: events.append("stem"))
    for learner in (plain, compiled):
        strategy = learner.strategy
        for part in strategy.carried_states:
            part.start_micro_batch(training_micro_batch(2))
        strategy.reducer.start(divisor=8, passes=1)
        strategy.reducer.backward(learner.model(images).pow(2).sum())
    assert len(compiled.strategy.reducer.buckets) > 2
    assert events.index("stem") > 1
    compiled.strategy.reducer.finish()
    plain.strategy.reducer.finish()
    for ours, theirs in zip(compiled.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("processes", [2, 8])
def test_large_gradients_survive_fp16(processes: int) -> None:
    """Their sum over processes would not if it were divided afterwards: 8 x 40,000 is inf."""

    def process(comm: ThreadComm) -> tuple[Tensor, Tensor]:
        weight = nn.Parameter(torch.ones(3))
        reducer = Reducer([weight], comm, bucket_mb=1, compression="fp16")
        reducer.start(divisor=4 * processes, passes=1)
        reducer.backward((4 * weight * torch.tensor([40_000.0, 1.0, 1e-3])).sum())
        reducer.finish()
        return weight.grad, reducer.found_inf

    for gradient, found_inf in run_on_threads(processes, process):
        torch.testing.assert_close(gradient, torch.tensor([40_000.0, 1.0, 1e-3]), rtol=1e-3, atol=0)
        assert gradient.dtype == torch.float32
        assert found_inf == 0


def single_gradient(values: list[float], compression: str) -> tuple[list[float], float]:
    """What a gradient becomes, and found_inf."""
    weight = nn.Parameter(torch.ones(len(values)))
    reducer = Reducer([weight], SingleComm(), bucket_mb=1, compression=compression)
    reducer.start(divisor=1, passes=1)
    reducer.backward((weight * torch.tensor(values)).sum())
    reducer.finish()
    return weight.grad.tolist(), reducer.found_inf.item()


def test_fp16_loses_what_it_is_documented_to_lose() -> None:
    """And float32 does not."""
    assert single_gradient([2.0, 2e-8], "fp16") == ([2.0, 0.0], 0)
    assert single_gradient([2.0, 2e-8], "none") == ([2.0, pytest.approx(2e-8)], 0)
    assert single_gradient([70_000.0], "fp16")[1] == 1
    assert single_gradient([70_000.0], "none") == ([70_000.0], 0)


@pytest.mark.parametrize("compression", ["none", "fp16"])
@pytest.mark.parametrize("bad", ["loss", "gradient", "infinite gradient"])
def test_one_bad_process_stops_all_for_good(bad: str, compression: str) -> None:
    """found_inf goes up on every process in the step, and not down in the good one after it."""

    def process(comm: ThreadComm) -> list[float]:
        model = network(torch.float32)
        reducer = reducer_of(model, comm, compression=compression)
        images = torch.randn(3, 2, 6, generator=seeded(comm.rank))
        step(model, reducer, [images[0]], examples=6)
        seen = [reducer.found_inf.item()]
        guilty = comm.rank == 1
        reducer.start(6, passes=1)
        loss = model(images[1]).pow(2).sum()
        if guilty and bad != "loss":
            loss.register_hook(lambda g: g * float("inf" if "inf" in bad else "nan"))
        # The gradient of a sum with NaN is finite: only the loss itself tells.
        reducer.backward(loss + float("nan") if guilty and bad == "loss" else loss)
        reducer.finish()
        seen.append(reducer.found_inf.item())
        step(model, reducer, [images[2]], examples=6)
        return [*seen, reducer.found_inf.item()]

    assert run_on_threads(3, process) == [[0, 1, 1]] * 3


@pytest.mark.parametrize("compression", ["none", "fp16"])
def test_all_learn_that_one_was_told_to_leave(compression: str) -> None:
    """In the step in which it says so, and beside gradients that are not finite."""

    def process(comm: ThreadComm) -> list[list[float]]:
        weight = nn.Parameter(torch.ones(3))
        reducer = Reducer([weight], comm, bucket_mb=25, compression=compression)
        seen = []
        for leave, value in ((False, 1.0), (comm.rank == 2, 1.0), (False, 1.0), (True, torch.inf)):
            reducer.start(3, passes=1, note=float(leave))
            reducer.backward((weight * value).sum())
            reducer.finish()
            seen.append(reducer.flags.bool().tolist())
        return seen

    expected = [[False, False], [False, True], [False, False], [True, True]]
    assert run_on_threads(3, process) == [expected] * 3


def test_a_model_that_is_no_longer_used_is_freed_with_its_reducer() -> None:
    """A circle through the hooks of a tensor would keep every model that a process has trained."""
    model = network()
    reducer = reducer_of(model, SingleComm())
    step(model, reducer, [torch.randn(4, 6, dtype=torch.float64)], examples=4)
    alive = weakref.ref(reducer), weakref.ref(next(model.parameters()))
    del model, reducer
    assert [each() for each in alive] == [None, None]
