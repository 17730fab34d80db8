"""A fake accelerator that computes on the CPU, is as strict as CUDA, and counts what costs time.

    with accelerator.available() as device:   # device=auto selects it through torch.accelerator
        x = torch.ones(2).to(device)          # results are bit-equal to those of the CPU
        with accelerator.count_operations() as counts:
            (x + 1).sum().item()
    counts.waits                              # Counter({"item": 1})

It uses torch's device for backends in Python (PrivateUse1). Each tensor wraps a CPU tensor, and
each operator calls the CPU's. Operators on tensors of both devices raise where CUDA raises. A
non-blocking copy is delayed: its target on the host holds NaN until the host has waited for a later
event or for the device, and its source must not change before. Tensors on the host are pinned if
`pin_memory` created them.
"""

import functools
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from threading import RLock
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from weakref import ref

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C import DispatchKey, DispatchKeySet
from torch.utils import backend_registration

from lsgd.job import device as job_device

NAME = "standin"
DEVICE: Any = None
"""The torch.device of the fake accelerator, after the first call of `available`."""
aten = torch.ops.aten
_make_wrapper_subclass = torch.Tensor._make_wrapper_subclass  # type: ignore[attr-defined]


@dataclass
class Counts:
    """The counts of operators, waits and copies on the fake accelerator."""

    operators: Counter[str] = field(default_factory=Counter)
    """The number of kernels that a GPU would launch, by operator; none for views and `empty`."""
    waits: Counter[str] = field(default_factory=Counter)
    """The number of times the host waited for the device, by cause."""
    to_device: int = 0
    """The number of copies from the host."""
    from_device: int = 0
    """The number of copies to the host."""

    def summary(self) -> dict[str, Any]:
        """Return the counts that a budget limits, as a dict for JSON."""
        return {
            "operators": self.operators.total(),
            "to device": self.to_device,
            "from device": self.from_device,
            "waits": dict(sorted(self.waits.items())),
        }


class _State:
    """The state of the fake accelerator, one per process."""

    def __init__(self) -> None:
        self.present = False
        self.libraries: list[torch.library.Library] = []
        """The registered libraries; torch drops a registration when its object is deleted."""
        self.counts = Counts()
        self.lock = RLock()
        self.unsupported: frozenset[torch.dtype] = frozenset()
        self.shares_memory = False
        """Whether it shares the memory of the host, like a Mac's GPU."""
        self.total = 0
        self.waited = 0
        """The number of times the host has waited for all work of the device."""
        self.late: deque[Callable[[], Any]] = deque()
        """The functions that end the pending non-blocking copies, in order."""
        self.begun = self.ended = 0
        """The numbers of non-blocking copies that have begun and that have ended."""
        self.pinned: dict[int, ref[Any]] = {}
        """The pinned buffers, by address."""
        self.allocated = self.peak = 0
        self.casts: dict[int, tuple[Tensor, Tensor]] = {}
        """The weights that autocast has cast in this context, by id, with their casts."""


_state = _State()


class _Block:
    """An allocation on the device, freed when no tensor refers to it."""

    __slots__ = ("nbytes",)

    def __init__(self, nbytes: int) -> None:
        self.nbytes = 0
        if _state.total and _state.allocated + nbytes > _state.total:
            raise torch.OutOfMemoryError(f"{NAME} out of memory: {nbytes} bytes were asked for")
        self.nbytes = nbytes
        _state.allocated += nbytes
        if _state.allocated > _state.peak:
            _state.peak = _state.allocated

    def __del__(self) -> None:
        _state.allocated -= self.nbytes


class DeviceTensor(torch.Tensor):
    """A tensor on the fake accelerator, which wraps a CPU tensor."""

    numbers: Tensor
    """The CPU tensor with the values."""
    block: _Block

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, numbers: Tensor, block: _Block | None = None) -> "DeviceTensor":
        if numbers.dtype in _state.unsupported:
            raise TypeError(f"{NAME} has no {numbers.dtype}")
        made: DeviceTensor = _make_wrapper_subclass(
            cls,
            numbers.size(),
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=DEVICE,
        )
        made.numbers = numbers
        made.block = block or _Block(numbers.nbytes)
        return made

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        return f"{self.numbers!r} on {NAME}"

    def tolist(self) -> Any:
        _wait("tolist")
        return self.numbers.tolist()

    def numpy(self, **_: object) -> Any:  # type: ignore[override]
        raise TypeError(f"can't convert {NAME} device type tensor to numpy")

    def __array__(self, *_: object) -> Any:  # type: ignore[override]
        return self.numpy()


# --- Operators -----------------------------------------------------------------------------------

CPU = torch.device("cpu")
LAUNCH_NOTHING = ("empty", "new_empty")
"""The prefixes of operators that only allocate memory and launch no kernel."""
WAITS = {
    "_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "unique_dim",
    "_unique", "_unique2", "unique_consecutive", "unique_dim_consecutive", "bincount",
    "repeat_interleave.Tensor", "histc",
}  # fmt: skip
"""The operators that make the host wait for their result, for example for its size."""
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}


@dataclass(frozen=True)
class _Facts:
    """The properties of an operator that decide how the fake accelerator runs it."""

    name: str
    is_view: bool
    launches: bool
    waits: bool
    is_composite: bool
    """Whether the operator decomposes into others; autograd decomposes it, inference does not."""
    takes_numbers: bool
    """Whether a CPU tensor of zero dimensions is allowed as an argument."""


@functools.cache
def _facts(func: Any) -> _Facts:
    namespace, _, name = func._schema.name.partition("::")
    returns = func._schema.returns
    view = any(each.alias_info and not each.alias_info.is_write for each in returns)
    view |= name in ("_reshape_alias", "_unsafe_view", "lift", "lift_fresh")
    changes = torch.Tag.inplace_view in func.tags and name not in KERNELS
    assert not changes, f"{name} changes the shape of a tensor in place"
    return _Facts(
        name,
        view,
        launches=namespace == "aten" and not view and not name.startswith(LAUNCH_NOTHING),
        waits=bool({name, f"{name}.{func._overloadname}"} & WAITS),
        is_composite=func._can_decompose(),
        takes_numbers=torch.Tag.pointwise in func.tags or name == "fill_",
    )


def _run(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run an operator of the device on the CPU, and count it."""
    facts = _facts(func)
    kernel = KERNELS.get(facts.name)
    if facts.is_composite and not kernel:
        return func.decompose(*args, **kwargs)
    if facts.launches:
        _state.counts.operators[facts.name] += 1
    if kernel:
        return kernel(func, args, kwargs)
    owners: dict[int, DeviceTensor] = {}
    on_host: list[Tensor] = []
    args_ = [_unwrap(each, owners, on_host) for each in args]
    kwargs_ = {name: _unwrap(each, owners, on_host) for name, each in kwargs.items()}
    if on_host and owners:
        _check_mixture(facts, args, on_host)
    if facts.waits or (facts.name in INDEXING and _has_mask(args_[1])):
        _wait(facts.name)
    assert not kwargs_.pop("pin_memory", None), "only memory of the host is pinned"
    result = func(*args_, **kwargs_)
    asked = kwargs.get("device")
    if asked is not None and torch.device(asked).type != NAME:
        return result  # such as empty_like(x, device="cpu")
    if not (facts.is_view and owners):
        return _wrap(result, owners, None)
    (owner,) = owners.values()
    if owner.is_inference() == torch.is_inference_mode_enabled():
        return _wrap(result, owners, owner.block)
    # A view is an inference tensor if its base is one, whatever the current mode.
    with torch.inference_mode(owner.is_inference()):
        return _wrap(result, owners, owner.block)


def _unwrap(value: Any, owners: dict[int, DeviceTensor], on_host: list[Tensor]) -> Any:
    """Return an operator's argument with device tensors replaced by their CPU tensors.

    Adds the device tensors to `owners`, by the id of their CPU tensor, and others to `on_host`.
    """
    kind = type(value)
    if kind is DeviceTensor:
        numbers = value.numbers
        owners[id(numbers)] = value
        return numbers
    if kind is list or kind is tuple:
        return [_unwrap(each, owners, on_host) for each in value]
    if kind is torch.device:
        return CPU if value.type == NAME else value
    if isinstance(value, Tensor):
        on_host.append(value)
    return value


def _wrap(value: Any, owners: dict[int, DeviceTensor], block: _Block | None) -> Any:
    """Return a CPU operator's result as device tensors; a returned argument keeps its identity."""
    if isinstance(value, Tensor):
        owner = owners.get(id(value))
        if owner is None:
            return DeviceTensor(value, block)
        assert owner.shape == value.shape, "an operator changes the shape of a tensor"
        return owner
    if isinstance(value, (list, tuple)):
        return type(value)([_wrap(each, owners, block) for each in value])
    return value


def _check_mixture(facts: _Facts, args: Sequence[Any], on_host: Sequence[Tensor]) -> None:
    """Raise the RuntimeError that CUDA raises for an operator on tensors of two devices."""
    if facts.name in INDEXING:
        indices = {id(each) for each in args[1] if isinstance(each, Tensor)}
        for _ in {id(each) for each in on_host} & indices:
            _state.counts.to_device += 1  # torch copies index tensors to the device
            _wait("index on the CPU")
        on_host = [each for each in on_host if id(each) not in indices]
    numbers = facts.takes_numbers or facts.name in INDEXING
    if any(each.dim() or not numbers for each in on_host):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, "
            f"{NAME}:0 and cpu! (when checking arguments of {facts.name})"
        )


def _has_mask(indices: Any) -> bool:
    return any(isinstance(each, Tensor) and each.dtype is torch.bool for each in indices)


# --- Copies and waits ----------------------------------------------------------------------------


def _wait(why: str) -> None:
    """Wait on the host until the device has finished all its work, and count the wait."""
    _state.counts.waits[why] += 1
    _state.waited += 1
    _end_late_copies(_state.begun)


def _end_late_copies(until: int) -> None:
    """End the pending non-blocking copies up to this number."""
    with _state.lock:
        while _state.ended < until:
            _state.ended += 1
            _state.late.popleft()()


def _begin_late_copy(end: Callable[[], Any]) -> None:
    with _state.lock:
        _state.begun += 1
        _state.late.append(end)


def _copy(target: Tensor, source: Tensor, *, non_blocking: bool) -> None:
    """Copy a tensor between host and device or within the device, and count the copy."""
    match target, source:
        case DeviceTensor(), DeviceTensor():
            target.numbers.copy_(source.numbers)
        case DeviceTensor(), _:
            _state.counts.to_device += 1
            target.numbers.copy_(source)
            unsafe = _state.shares_memory and non_blocking and not source.is_pinned()
            assert not unsafe, "an asynchronous copy to the device reads host memory later"
            if not (non_blocking and source.is_pinned()):
                _wait("copy to the device")
                return
            before = source.clone()

            def check() -> None:
                same = before.equal(source) or bool((before != before).any())
                assert same, "pinned memory was changed before it had been copied to the device"

            _begin_late_copy(check)
        case _, DeviceTensor():
            _state.counts.from_device += 1
            if not (non_blocking and target.is_pinned()):
                _wait("copy to the host")
                target.copy_(source.numbers)
                return
            content = source.numbers.clone()
            target.fill_(GARBAGE if target.is_floating_point() else 1)
            _begin_late_copy(lambda: target.copy_(content))


GARBAGE = float("nan")
"""The content of pinned memory while a copy to it is pending."""


def _copy_(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    target, source, *rest = args
    _copy(target, source, non_blocking=bool(rest[0] if rest else kwargs.get("non_blocking")))
    return target


def _foreach_copy_(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    for target, source in zip(args[0], args[1], strict=True):
        _copy(target, source, non_blocking=bool(len(args) > 2 and args[2]))


def _to_copy(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return a copy of a tensor on the target device, with the target dtype."""
    (source,), kwargs = args, dict(kwargs)
    device = torch.device(kwargs.pop("device", None) or source.device)
    non_blocking = bool(kwargs.pop("non_blocking", False))
    kwargs.pop("pin_memory", None)
    if not isinstance(source, DeviceTensor):
        target = DeviceTensor(torch.empty_like(aten._to_copy(source, **kwargs)))
        _copy(target, source, non_blocking=non_blocking)
        return target
    made = aten._to_copy(source.numbers, **kwargs)
    if device.type == NAME:
        return DeviceTensor(made)
    # torch also allocates pinned memory for the target of a non-blocking copy.
    target = _pinned_like(made) if non_blocking else torch.empty_like(made)
    _copy(target, DeviceTensor(made), non_blocking=non_blocking)
    return target


def _scalar(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    _wait("item")
    return func(args[0].numbers)


def _pinned_like(tensor: Tensor) -> Tensor:
    """Return an empty pinned CPU tensor with the shape, strides and dtype of this tensor."""
    array = np.empty(max(tensor.nbytes, 1), np.uint8)
    flat = torch.from_numpy(array)
    address = flat.data_ptr()
    _state.pinned[address] = ref(array, lambda _: _state.pinned.pop(address, None))
    like = torch.empty_like(tensor, device="meta")
    return flat[: tensor.nbytes].view(tensor.dtype).as_strided(like.size(), like.stride())


def _pin_memory(tensor: Tensor, device: object = None) -> Tensor:
    if not _state.present:
        raise RuntimeError("Cannot access accelerator device when none is available.")
    return _pinned_like(tensor).copy_(tensor)


def _is_pinned(tensor: Tensor, device: object = None) -> bool:
    return tensor.untyped_storage().data_ptr() in _state.pinned


class Event:
    """An event like torch.cuda.Event whose first query always returns False."""

    def __init__(self, *, enable_timing: bool = False) -> None:
        self.timed, self.asked, self.happened = enable_timing, True, True
        self.waited = -1

    def record(self) -> None:
        """Record the event after all work that the device has received so far."""
        self.copies, self.waited, self.time = _state.begun, _state.waited, time.perf_counter()
        self.happened = self.asked = False

    def query(self) -> bool:
        """Return whether the event has happened: False at the first call after `record`."""
        if self.asked:
            self.synchronize()
        self.asked = True
        return self.happened

    def synchronize(self) -> None:
        """Wait on the host until the event has happened, and count the wait."""
        if not self.happened and _state.waited == self.waited:
            _state.counts.waits["event"] += 1
            _end_late_copies(self.copies)
        self.happened = True

    def elapsed_time(self, end: "Event") -> float:
        """Return the milliseconds between this event and a later one."""
        assert self.timed, "enable_timing=True"
        assert end.happened or _state.waited > end.waited, "the event has not happened"
        return 1000 * (end.time - self.time)


# --- Kernels that a device has of its own --------------------------------------------------------


def _lstm_cell(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    products, before, biases = args[:2], args[2].numbers, args[3:]
    gates = sum(each.numbers for each in (*products, *biases) if each is not None)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cell = f * before + i * g
    made = o * cell.tanh(), cell, torch.cat((i, f, g, o), 1)
    return tuple(map(DeviceTensor, made))


def _lstm_cell_backward(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    zero = torch.zeros_like(args[3].numbers)
    of_hidden, of_cell = (zero if each is None else each.numbers for each in args[:2])
    before, cell, activated = (each.numbers for each in args[2:5])
    i, f, g, o = activated.chunk(4, 1)
    tanh = cell.tanh()
    total = of_cell + of_hidden * o * (1 - tanh * tanh)
    of_gates = (
        total * g * i * (1 - i),
        total * before * f * (1 - f),
        total * i * (1 - g * g),
        of_hidden * tanh * o * (1 - o),
    )
    gates = torch.cat(of_gates, 1)
    bias = DeviceTensor(gates.sum(0, keepdim=False)) if args[5] else None
    return DeviceTensor(gates), DeviceTensor(total * f), bias


class _Lstm(torch.autograd.Function):
    """An autograd function that runs the CPU's LSTM, all layers and steps, as one operator."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], *tensors: DeviceTensor) -> Any:
        lower = torch.is_autocast_enabled(NAME)
        inner = [t.numbers.detach().requires_grad_(t.requires_grad) for t in tensors]
        with torch.enable_grad(), torch.autocast("cpu", torch.bfloat16, enabled=lower):
            outputs = function(*inner)
        ctx.numbers, ctx.outputs = inner, outputs
        return tuple(DeviceTensor(each.detach()) for each in outputs)

    @staticmethod
    def backward(ctx: Any, *upstream: DeviceTensor) -> Any:
        asked = [each for each in ctx.numbers if each.requires_grad]
        made = iter(
            torch.autograd.grad(
                ctx.outputs, asked, [each.numbers for each in upstream], allow_unused=True
            )
        )
        gradients = [next(made) if each.requires_grad else None for each in ctx.numbers]
        return None, *(None if each is None else DeviceTensor(each) for each in gradients)


def _lstm(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run an LSTM on a padded batch (overload `input`) or on packed sentences (overload `data`).

    The sizes of packed sentences are on the CPU.
    """
    _state.counts.operators["lstm"] += 1
    is_packed = func is aten.lstm.data
    data, *sizes = args[: 1 + is_packed]
    states, weights, *settings = args[1 + is_packed :]

    def compute(data: Tensor, h: Tensor, c: Tensor, *weights: Tensor) -> Any:
        return func(data, *sizes, [h, c], list(weights), *settings)

    for each in (data, *states, *weights):
        assert isinstance(each, DeviceTensor), "all tensors of an LSTM are on its device"
    return _Lstm.apply(compute, data, *states, *weights)


def _restride(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return the tensor unchanged for as_strided_, and assert that its shape does not change.

    In channels_last adaptive_avg_pool2d changes the strides of dimensions of size 1.
    """
    target, size, *_ = args
    assert list(target.shape) == list(size), "as_strided_ changes the shape of a tensor"
    return target


KERNELS: dict[str, Callable[[Any, Sequence[Any], dict[str, Any]], Any]] = {
    "_to_copy": _to_copy,
    "copy_": _copy_,
    "_foreach_copy_": _foreach_copy_,
    "_local_scalar_dense": _scalar,
    "_thnn_fused_lstm_cell": _lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
    "lstm": _lstm,
    "as_strided_": _restride,
}
"""The operators with an implementation here, by name; the CPU's operators run for all others."""


# --- Autocast ------------------------------------------------------------------------------------

LOWERED = (
    "conv1d", "conv1d.padding", "conv2d", "conv2d.padding", "conv3d", "conv3d.padding", "conv_tbc",
    "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "bmm", "mm",
    "linalg_vecdot", "baddbmm", "addmm", "_addmm_activation", "addbmm", "linear", "matmul",
    "_convolution.deprecated", "scaled_dot_product_attention", "prelu",
)  # fmt: skip
"""The operators that autocast runs in bfloat16 on the CPU."""
WIDEST = ("stack", "cat", "index_copy")
"""The operators that autocast runs in the widest dtype of their arguments; others use float32."""


def _register_autocast(library: torch.library.Library) -> None:
    """Register autocast rules for the device that equal the CPU's, so that results are equal."""
    excluded = DispatchKeySet(DispatchKey.AutocastPrivateUse1)

    def under(name: str) -> Callable[..., Any]:
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(aten, packet), overload or "default")

        def kernel(*args: Any, **kwargs: Any) -> Any:
            to = torch.float32
            if name in LOWERED:
                to = torch.get_autocast_dtype(NAME)
            elif name in WIDEST:
                to = _widest(args)
            with torch._C._ExcludeDispatchKeyGuard(excluded):
                return operator(
                    *(_cast(each, to) for each in args),
                    **{key: _cast(each, to) for key, each in kwargs.items()},
                )

        return kernel

    for name in torch._C._dispatch_get_all_op_names():
        has_rule = torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCPU")
        # torchvision's CUDA build has rules too, for operators that lsgd does not use.
        if has_rule and name.startswith("aten::"):
            name = name.removeprefix("aten::")
            library.impl(name, under(name), "AutocastPrivateUse1")


def _widest(value: Any) -> torch.dtype:
    tensors = [each for each in value[0] if isinstance(each, Tensor)] if value else []
    wide = any(each.dtype is torch.float32 for each in tensors)
    return torch.float32 if wide else torch.get_autocast_dtype(NAME)


def _cast(value: Any, to: torch.dtype) -> Any:
    match value:
        case DeviceTensor():
            fits = value.is_floating_point() and value.dtype not in (torch.float64, to)
            return _cached_cast(value, to) if fits else value
        case list() | tuple():
            return [_cast(each, to) for each in value]
    return value


def _cached_cast(tensor: DeviceTensor, to: torch.dtype) -> Tensor:
    """Return the tensor cast to a dtype; casts of weights are cached per autocast context."""
    if not (tensor.is_leaf and tensor.requires_grad and to is not torch.float32):
        return tensor.to(to)
    if id(tensor) not in _state.casts:
        _state.casts[id(tensor)] = tensor, tensor.to(to)
    return _state.casts[id(tensor)][1]


# --- The device in torch -------------------------------------------------------------------------


class Module:
    """The device module of the fake accelerator, the counterpart of torch.cuda."""

    Event = Event

    def is_available(self) -> bool:
        return _state.present

    def is_initialized(self) -> bool:
        return _state.present

    def device_count(self) -> int:
        return int(_state.present)

    def current_device(self) -> int:
        return 0

    def set_device(self, device: object) -> None:
        pass

    def get_device_name(self, device: object = None) -> str:
        return "Stand-in"

    def get_device_properties(self, device: object = None) -> Any:
        return SimpleNamespace(name=self.get_device_name(), total_memory=_state.total)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def synchronize(self, device: object = None) -> None:
        _wait("synchronize")

    def empty_cache(self) -> None:
        pass

    def memory_allocated(self, device: object = None) -> int:
        return _state.allocated

    def max_memory_allocated(self, device: object = None) -> int:
        return _state.peak

    max_memory_reserved = max_memory_allocated

    def reset_peak_memory_stats(self, device: object = None) -> None:
        _state.peak = _state.allocated

    def manual_seed_all(self, seed: int) -> None:
        pass

    def _is_in_bad_fork(self) -> bool:
        return False

    def _lazy_init(self) -> None:
        pass


class _Hooks(torch._C._acc.PrivateUse1Hooks):  # type: ignore[name-defined]
    def is_available(self) -> bool:
        return _state.present

    def has_primary_context(self, device: int) -> bool:
        return _state.present

    def is_built(self) -> bool:
        return True


@functools.cache
def _register() -> None:
    """Register the device with torch, for the rest of the process."""
    global DEVICE
    backend_registration._setup_privateuseone_for_python_backend(NAME, Module(), _Hooks())
    DEVICE = torch.device(NAME, 0)

    def library(namespace: str) -> torch.library.Library:
        _state.libraries.append(made := torch.library.Library(namespace, "IMPL"))
        return made

    library("_").fallback(lambda op, *a, **k: _run(op, a, k), "PrivateUse1")
    library("_").fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    own = library("aten")

    def implement(name: str) -> None:
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(aten, packet), overload or "default")
        own.impl(name, lambda *a, **k: _run(operator, a, k), "PrivateUse1")

    # These operators have kernels for any device, which the fallback does not replace.
    for name in (
        "_to_copy", "empty.memory_format", "empty_strided", "copy_", "zero_",
        "fill_.Scalar", "detach", "alias", "lift", "lift_fresh", "arange", "arange.start",
        "arange.start_step",
    ):  # fmt: skip
        implement(name)
    for overload in ("input", "data"):
        operator = getattr(aten.lstm, overload)
        kernel = functools.partial(_lstm, operator)
        own.impl(f"lstm.{overload}", lambda *a, k=kernel, **kw: k(a, kw), "AutogradPrivateUse1")
    own.impl("_pin_memory", _pin_memory, "CPU")
    own.impl("is_pinned", _is_pinned, "CPU")
    _register_autocast(own)


def _pinning(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap a tensor factory so that pin_memory=True pins with the fake accelerator."""

    def made(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Tensor:
        tensor = make(*args, **kwargs)
        return tensor.pin_memory() if pin_memory else tensor

    return made


def _swapping(apply: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Wrap Module._apply so that moving a module keeps its parameter objects, as with CUDA."""

    def applied(*args: Any, **kwargs: Any) -> nn.Module:
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return apply(*args, **kwargs)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)

    return applied


@contextmanager
def available(
    *,
    memory: int = 0,
    unsupported: frozenset[torch.dtype] = frozenset(),
    shares_memory: bool = False,
) -> Iterator[torch.device]:
    """Make the fake accelerator available within this context.

    `memory` is its size in bytes (0: no limit); dtypes in `unsupported` raise. With `shares_memory`
    it shares the memory of the host, like a Mac's GPU: an asynchronous copy of pageable memory to
    it raises AssertionError, since it would read the memory when it may hold other values.
    """
    _register()
    # torch notes once which functions a device context changes: not those that are patched here.
    with torch.device("cpu"):
        torch.empty(0)
    clear = torch.clear_autocast_cache

    def clear_casts() -> None:
        _state.casts.clear()
        clear()

    with ExitStack() as stack:
        for name in ("empty", "empty_like", "zeros"):
            stack.enter_context(patch.object(torch, name, _pinning(getattr(torch, name))))
        stack.enter_context(patch.object(torch, "clear_autocast_cache", clear_casts))
        backends = dist.Backend.default_device_backend_map
        stack.enter_context(patch.dict(backends, {NAME: "gloo"}))
        # torch creates autograd threads in the first backward pass, only for the devices of then.
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(patch.object(nn.Module, "_apply", _swapping(nn.Module._apply)))
        if shares_memory:
            stack.enter_context(patch.object(job_device, "SHARING_HOST_MEMORY", ("cpu", NAME)))
        _state.present, _state.total, _state.unsupported = True, memory, unsupported
        _state.shares_memory = shares_memory
        try:
            yield DEVICE
        finally:
            _state.present, _state.total, _state.unsupported = False, 0, frozenset()
            _state.shares_memory = False
            _end_late_copies(_state.begun)


def count_into(counts: Counts) -> Counts:
    """Count operators, waits and copies into `counts` from now on; return the previous counts."""
    before, _state.counts = _state.counts, counts
    return before


@contextmanager
def count_operations() -> Iterator[Counts]:
    """Count the operators, waits and copies of the device within this context."""
    before = count_into(counts := Counts())
    try:
        yield counts
    finally:
        count_into(before)
