"""Sums gradients over the processes in flat buckets, while the last backward pass still runs.

One reducer over any Comm. Gradients of all examples are added up by autograd, over passes, and
here, over processes; each process divides its part once by the number of examples of the whole
step, before any cast (Goyal et al. 2017, remark 3: normalise by kn, not by n).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from weakref import ref

import torch
from torch import Tensor, nn

from lsgd.comm import Comm


def _nothing() -> None:
    """There is no sum to wait for."""


@dataclass
class _Bucket:
    name: str
    flat: Tensor
    """The gradients of some parameters, and in the last bucket the two flags behind them."""
    gradients: Tensor
    views: list[tuple[ref[nn.Parameter], Tensor]]
    """Its parameters, and where in it their gradients are. Weak, as the hooks of a parameter know
    its bucket, and Python cannot free a circle that goes through a tensor's hooks."""
    ready: int = 0
    on_wire: Tensor | None = None
    wait: Callable[[], None] = _nothing

    def parameters(self) -> Iterator[nn.Parameter]:
        """Those whose gradients it has; raises ReferenceError once the model has gone."""
        for reference, _ in self.views:
            parameter = reference()
            if parameter is None:
                raise ReferenceError("the model of this reducer is no longer there")
            yield parameter


class Reducer:
    """Owns the gradients of a model: after every step each `.grad` is a view of the same bucket.

    `found_inf` is 1 on every process, for good, once any loss or gradient of any of them was not
    finite; it stays on the device. `gradient_norm` is that of the last reduced gradient. A float32
    gradient beyond 1e19 counts as not finite, since the square of its norm is not. `flags` is
    found_inf and, of the last step, whether any process was told to leave.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], comm: Comm, *, bucket_mb: float, compression: str
    ) -> None:
        self.comm = comm
        self.compresses = compression == "fp16"
        # Backward order, so that the first bucket is complete early.
        groups = _group(list(parameters)[::-1], bucket_mb * 2**20)
        self.buckets = [
            _make_bucket(f"gradients {i}", group, flags=2 * (group is groups[-1]))
            for i, group in enumerate(groups)
        ]
        for bucket in self.buckets:
            for parameter, (_, view) in zip(bucket.parameters(), bucket.views, strict=True):
                parameter.register_post_accumulate_grad_hook(self._ready_hook(bucket, view))
        self.flag, self.note = self.buckets[-1].flat[-2:]
        self.flags = torch.zeros(2, device=self.flag.device)
        self.found_inf = self.flags[0]
        self.gradient_norm = torch.zeros((), device=self.flag.device)
        self._examples, self._passes, self._launched = 1, 0, 0

    def start(self, examples: int, passes: int, *, leave: bool = False) -> None:
        """Forget the last step; this one has so many examples, over all processes, and this
        process makes so many backward passes. During the last of them buckets go as they fill.
        `leave` tells all processes that this one was told to.
        """
        self._examples, self._passes, self._launched = examples, passes, 0
        for bucket in self.buckets:
            bucket.ready = 0
            for parameter in bucket.parameters():
                parameter.grad = None
        self.flag.zero_()
        self.note.fill_(leave)

    def watch(self, loss: Tensor) -> None:
        """Raise the flag of this step if the loss of a pass is not finite; before its backward."""
        self.flag += ~torch.isfinite(loss.detach())

    def finish(self) -> None:
        """Wait until `.grad` of every parameter is that of the whole step, on every process.

        Also called by a process which had no examples and made no backward pass.
        """
        self._launch_up_to(len(self.buckets))
        norms = []
        for bucket in self.buckets:
            bucket.wait()
            # A handle that is kept would keep its library's threads beyond the end of the job.
            bucket.wait = _nothing
            if bucket.on_wire is not None:
                bucket.flat.copy_(bucket.on_wire)
                bucket.on_wire = None
            # While the sums of the next ones are still under way.
            norms.append(torch.linalg.vector_norm(bucket.gradients))
        self.gradient_norm = torch.linalg.vector_norm(torch.stack(norms))
        bad = (self.flag != 0) | ~torch.isfinite(self.gradient_norm)
        self.found_inf.copy_(torch.maximum(self.found_inf, bad.to(self.found_inf)))
        self.flags[1] = self.note

    def _ready_hook(self, bucket: _Bucket, view: Tensor) -> Callable[[Tensor], None]:
        def ready(parameter: Tensor) -> None:
            if parameter.grad is not view:
                # The first pass found no gradient to add to, which saves it from reading zeros.
                # Where no other pass will add to this, it is divided on the way.
                assert parameter.grad is not None
                torch.div(parameter.grad, self._examples if self._passes == 1 else 1, out=view)
                parameter.grad = view
            bucket.ready += 1
            # All processes start their sums in the same order, whatever the order of completion.
            upto = self._launched
            while upto < len(self.buckets) and self._is_full(self.buckets[upto]):
                upto += 1
            self._launch_up_to(upto)

        return ready

    def _is_full(self, bucket: _Bucket) -> bool:
        return bucket.ready == len(bucket.views) * self._passes

    def _launch_up_to(self, upto: int) -> None:
        for bucket in self.buckets[self._launched : upto]:
            for parameter, (_, view) in zip(bucket.parameters(), bucket.views, strict=True):
                if parameter.grad is not view:  # no pass had one
                    parameter.grad = view.zero_()
            if self._passes > 1:
                bucket.gradients.div_(self._examples)
            if self.compresses:
                bucket.on_wire = bucket.flat.half()
            wire = bucket.flat if bucket.on_wire is None else bucket.on_wire
            bucket.wait = self.comm.start_sum_(wire, bucket.name)
        self._launched = max(self._launched, upto)


def _group(parameters: list[nn.Parameter], limit: float) -> list[list[nn.Parameter]]:
    groups: list[list[nn.Parameter]] = []
    filled = limit
    for parameter in parameters:
        size = parameter.numel() * parameter.element_size()
        if filled + size > limit:
            groups.append([])
            filled = 0
        groups[-1].append(parameter)
        filled += size
    return groups


def _make_bucket(name: str, parameters: list[nn.Parameter], *, flags: int) -> _Bucket:
    count = sum(parameter.numel() for parameter in parameters)
    flat = torch.zeros(count + flags, dtype=parameters[0].dtype, device=parameters[0].device)
    views = []
    offset = 0
    for parameter in parameters:
        # Strided like the parameter, so that channels_last costs no copy.
        view = flat.as_strided(parameter.size(), parameter.stride(), offset)
        parameter.grad = view
        views.append((ref(parameter), view))
        offset += parameter.numel()
    return _Bucket(name, flat, flat[:count], views)
