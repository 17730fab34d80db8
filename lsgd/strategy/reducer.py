"""Sums gradients over the processes in flat buckets, while the last backward pass still runs.

One reducer over any Comm. Gradients of all examples are added up by autograd, over passes, and
here, over processes; the loss of each example is divided once by the number of examples of the
whole step, before any cast (Goyal et al. 2017, remark 3: normalise by kn, not by n). The loss and
not the gradient, since that is a number and not as many as the model has.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn

from lsgd.comm import Comm

LARGE = 2**13
"""The numbers of a gradient, on average over a bucket, from which on it costs less to take each by
itself than to pass over all of them once more."""


def _nothing() -> None:
    """Return at once, since there is no sum to wait for."""


@dataclass
class _Bucket:
    name: str
    flat: Tensor
    """The gradients of some parameters, and in the last bucket the two flags behind them."""
    gradients: Tensor
    owners: list[ReferenceType[nn.Parameter]]
    """The parameters. The bucket does not hold them: their hooks hold it, and Python cannot free a
    reference cycle that goes through a tensor's hooks."""
    views: list[Tensor]
    """The place of each parameter's gradient."""
    attached: bool = True
    """Whether each `.grad` is its view."""
    is_of_large_tensors: bool = field(init=False)
    left: int = 0
    """The number of gradients that are still to come, over all passes of this step."""
    on_wire: Tensor | None = None
    wait: Callable[[], None] = _nothing

    def __post_init__(self) -> None:
        self.is_of_large_tensors = self.flat.numel() >= LARGE * len(self.owners)

    def parameters(self) -> list[nn.Parameter]:
        """The parameters, which whoever asks keeps alive."""
        return [parameter for owner in self.owners if (parameter := owner()) is not None]

    def detach(self) -> None:
        """Let no parameter have a gradient: autograd hands over what it makes as it is."""
        for parameter in self.parameters():
            parameter.grad = None
        self.attached = False

    def attach(self) -> None:
        """Let each `.grad` be its view again, with the same numbers; 0 if there was none."""
        handed, places = [], []
        for parameter, view in zip(self.parameters(), self.views, strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                handed.append(parameter.grad)
                places.append(view)
            parameter.grad = view
        if handed:
            torch._foreach_copy_(places, handed)
        self.attached = True

    def norms(self) -> Sequence[Tensor]:
        """The norm of each gradient that was handed over; one that no pass has made becomes 0."""
        gradients = []
        for parameter, view in zip(self.parameters(), self.views, strict=True):
            if parameter.grad is None:
                parameter.grad = view.zero_()
            gradients.append(parameter.grad)
        return torch._foreach_norm(gradients)


class Reducer:
    """Owns the gradients of a model. Those of several passes are added up in flat buckets, of which
    each `.grad` is a view. Large ones of a single pass autograd hands over as they are, without
    zeros to add them to; a bucket takes them in once they are all there. With `hands_over`, which
    is for one who is alone and asks for nothing but `.grad`, it leaves them where they are.

    `found_inf` is 1 on every process, for good, once any loss or gradient of any of them was not
    finite; it stays on the device. `gradient_norm` is that of the last reduced gradient. A float32
    gradient beyond 1e19 counts as not finite, since the square of its norm is not. `flags` is
    found_inf and, of the last step, the sum of the notes of all processes, which Guard reads.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        comm: Comm,
        *,
        bucket_mb: float,
        compression: str,
        hands_over: bool = False,
    ) -> None:
        self.comm, self.hands_over = comm, hands_over
        self.compresses = compression == "fp16"
        # Backward order, so that the first bucket is complete early.
        groups = _group(list(parameters)[::-1], bucket_mb * 2**20)
        self.buckets = [
            self._make_bucket(f"gradients {i}", group, flags=2 * (group is groups[-1]))
            for i, group in enumerate(groups)
        ]
        # Behind the gradients of the last bucket.
        self.flags_of_step = self.buckets[-1].flat[-2:].zero_()
        self.flag, self.note = self.flags_of_step
        self.flags = torch.zeros(2, device=self.flag.device)
        self.found_inf = self.flags[0]
        self.gradient_norm = torch.zeros((), device=self.flag.device)
        self._divisor, self._launched = 1, 0

    def start(self, divisor: int, passes: int, *, note: float = 0.0) -> None:
        """Begin a step with `passes` backward passes of this process, whose gradient is divided by
        `divisor`: the number of examples of all processes, or what they weigh together.

        During the last pass the sum of a bucket starts once the bucket is full. `note` is added
        to the notes of the other processes.
        """
        self._divisor, self._launched = divisor, 0
        for bucket in self.buckets:
            bucket.left = len(bucket.views) * passes
            if passes == 1 and bucket.is_of_large_tensors:
                bucket.detach()
                continue
            if not bucket.attached:
                bucket.attach()
            bucket.flat.zero_()
        if not self.buckets[-1].attached:
            self.flags_of_step.zero_()
        if note:
            self.note.fill_(note)

    def backward(self, loss: Tensor) -> None:
        """The backward pass of a loss summed over its examples, which starts the sums if it is the
        last; if the loss is not finite, it raises the flag of this step.
        """
        # Before the pass, and not the sum after it: so half precision on the wire holds a mean.
        part = loss / self._divisor
        self.flag += 0 * part.detach()  # which is NaN, if the loss is infinite or NaN
        part.backward()

    def finish(self) -> None:
        """Wait until `.grad` of every parameter is that of the whole step, on every process.

        Also called by a process which had no examples and made no backward pass.
        """
        # Those that no pass has filled: all of them, if this process had no examples.
        for bucket in self.buckets[self._launched :]:
            self._launch(bucket)
        norms: list[Tensor] = []
        for bucket in self.buckets:
            bucket.wait()
            # A handle that is kept would keep its library's threads beyond the end of the job.
            bucket.wait = _nothing
            if bucket.on_wire is not None:
                bucket.flat.copy_(bucket.on_wire)
                bucket.on_wire = None
            # Computed while the sums of later buckets are still under way.
            if bucket.attached:
                norms.append(torch.linalg.vector_norm(bucket.gradients))
            else:
                norms += bucket.norms()
        self.gradient_norm = torch.linalg.vector_norm(torch.stack(norms))
        # The norm too, since finite gradients of several processes may have an infinite sum.
        doubt = 0 * (self.flag + self.gradient_norm)  # 0 or NaN
        self.found_inf.logical_or_(doubt.isnan())
        self.flags[1] = self.note

    def _make_bucket(self, name: str, parameters: list[nn.Parameter], *, flags: int) -> _Bucket:
        size = sum(parameter.numel() for parameter in parameters)
        first = parameters[0]
        # Each step writes before it reads; who hands gradients over may never come to it, and no
        # memory is taken up before.
        flat = torch.empty(size + flags, dtype=first.dtype, device=first.device)
        views: list[Tensor] = []
        bucket = _Bucket(name, flat, flat[:size], [ref(each) for each in parameters], views)
        offset = 0
        for parameter in parameters:
            # Strided like the parameter, so that channels_last costs no copy.
            view = flat.as_strided(parameter.size(), parameter.stride(), offset)
            views.append(view)
            parameter.grad = view
            parameter.register_post_accumulate_grad_hook(self._ready_hook(bucket, view))
            offset += parameter.numel()
        return bucket

    def _ready_hook(self, bucket: _Bucket, view: Tensor) -> Callable[[Tensor], None]:
        def ready(parameter: Tensor) -> None:
            whose = parameter.grad is view or not bucket.attached
            assert whose, "someone else has set the gradient of a parameter"
            bucket.left -= 1
            # All processes start their sums in the same order, whatever the order of completion.
            while self._launched < len(self.buckets) and not self.buckets[self._launched].left:
                self._launch(self.buckets[self._launched])

        return ready

    def _launch(self, bucket: _Bucket) -> None:
        """Begin the sum of the bucket whose turn it is."""
        if not bucket.attached and not self.hands_over:
            bucket.attach()
        if self.compresses:
            bucket.on_wire = bucket.flat.half()
        wire = bucket.flat if bucket.on_wire is None else bucket.on_wire
        bucket.wait = self.comm.start_sum_(wire, bucket.name)
        self._launched += 1


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
