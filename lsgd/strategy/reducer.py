"""Reducer of gradients: it sums them over processes in buckets during the last backward pass.

The reducer works with any Comm. Autograd accumulates gradients over micro-batches, and the reducer
sums them over processes. The loss of each example is divided once by the number of examples of the
whole step, before any cast (Goyal et al. 2017, remark 3: normalise by kn, not by n). Dividing the
loss, a scalar, is cheaper than dividing the gradient.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import is_
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lsgd.comm import Comm
from lsgd.errors import UsageError
from lsgd.rules.exact_norm import PIECE, norm_pieces
from lsgd.rules.loss_scale import LossScale

LARGE = 2**13
"""Mean size of a bucket's gradients, in elements, from which on separate tensors are cheaper.

For smaller gradients one more pass over the whole bucket costs less than one operation for each.
"""


CHANGED_GRADIENT = (
    "other code, such as clip_grad_norm_, zero_grad or another backward pass, has changed a "
    "parameter's .grad during a step, before the average over processes; change the averaged "
    "gradient by optimizer.register_step_pre_hook(…)"
)


def _nothing() -> None:
    """Return at once in place of a wait for an all-reduce, since none is pending."""


@dataclass
class _Bucket:
    """Bucket of gradients that are summed by one all-reduce."""

    name: str
    flat: Tensor
    """Gradients of some parameters, followed by the two flags in the last bucket."""
    gradients: Tensor
    owners: list[ReferenceType[nn.Parameter]]
    """Weak references to the parameters.

    The parameters' hooks refer to the bucket, and Python cannot free a reference cycle that goes
    through a tensor's hooks.
    """
    views: list[Tensor]
    """View of each parameter's gradient in `flat`."""
    made: tuple[object, ...] = ()
    """The layout of the parameters when the bucket was made."""
    attached: bool = True
    """Whether the `.grad` of each parameter is its view of `flat`."""
    is_of_large_tensors: bool = field(init=False)
    is_split: bool = field(init=False)
    """Whether norms are computed by pieces."""
    left: int = 0
    """Number of gradients still to come in this step, over all micro-batches."""
    on_wire: Tensor | None = None
    wait: Callable[[], None] = _nothing

    def __post_init__(self) -> None:
        self.is_of_large_tensors = self.flat.numel() >= LARGE * len(self.owners)
        self.is_split = self.flat.device.type == "cpu" and self.flat.numel() > PIECE

    def parameters(self) -> list[nn.Parameter]:
        """Return strong references to the parameters of this bucket."""
        return [parameter for owner in self.owners if (parameter := owner()) is not None]

    def layout(self, parameters: list[nn.Parameter]) -> tuple[object, ...]:
        """Return the strides, types and devices of parameters, which differ once they are moved."""
        return (
            [parameter.stride() for parameter in parameters],
            {parameter.dtype for parameter in parameters},
            {parameter.device for parameter in parameters},
        )

    def has_views(self) -> bool:
        """Return whether the views are still views of `flat`, and not of other memory."""
        memory = self.flat.untyped_storage().data_ptr()
        return all(view.untyped_storage().data_ptr() == memory for view in self.views)

    def detach(self) -> None:
        """Set `.grad` of the bucket's parameters to None, so that autograd copies no gradients."""
        for parameter in self.parameters():
            parameter.grad = None
        self.attached = False

    def attach(self) -> None:
        """Make each `.grad` a view of the bucket with its values, or zeros where it was None."""
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

    def norms(self, inverse_scale: Tensor | None) -> Sequence[Tensor]:
        """Return the norms of parts of the bucket; set gradients that autograd left out to zeros.

        The parts are the gradients that autograd assigned, or the whole of a flat bucket; they are
        multiplied by the inverse of the loss scale first, if there is one. On a CPU large parts are
        split, as its sum of millions of squares misses in the fourth digit.
        """
        parts = [self.gradients] if self.attached else []
        if not self.attached:
            for parameter, view in zip(self.parameters(), self.views, strict=True):
                if parameter.grad is None:
                    parameter.grad = view.zero_()
                parts.append(parameter.grad)
        if inverse_scale is not None:
            torch._foreach_mul_(parts, inverse_scale)
        if self.is_split:
            parts = [piece for part in parts for piece in norm_pieces(part)]
        return torch._foreach_norm(parts)


class Reducer:
    """Owner of a model's gradients, which sums them over micro-batches and processes in buckets.

    Each `.grad` is a view of a flat bucket, in which several micro-batches accumulate. In a step
    with a single micro-batch autograd assigns large gradients uncopied, without zeros to add them
    to; a bucket copies them in once all of them are there. With `keep_autograd_grads` it leaves
    them where they are, for a single process that needs nothing but `.grad`.

    `found_inf` becomes 1 on every process, for good, once any loss or gradient of any process was
    not finite; it stays on the device. `gradient_norm` is the norm of the last reduced gradient. A
    float32 gradient beyond 1e19 counts as not finite, since the square of its norm is not. `flags`
    has found_inf and the sum of all processes' notes of the last step, which NonFiniteGuard reads.

    With `scales_loss` the backward passes are of the loss times a dynamic LossScale, which is taken
    out of the gradients after the all-reduce, before their norm. A gradient that is not finite then
    sets `loss_scale.found_inf` for one step, and `found_inf` only if the scale is 1 or less. A loss
    that is not finite sets `found_inf` at any scale, on which a forward pass does not depend.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        comm: Comm,
        *,
        bucket_mb: float,
        compression: str,
        keep_autograd_grads: bool = False,
        scales_loss: bool = False,
    ) -> None:
        self.comm, self.keep_autograd_grads = comm, keep_autograd_grads
        self.compresses = compression == "fp16"
        self._hooks: list[RemovableHandle] = []
        # Backward order, so that the first bucket is complete early.
        groups = _group(list(parameters)[::-1], bucket_mb * 2**20)
        self.buckets = [
            self._make_bucket(f"gradients {i}", group, flags=2 * (group is groups[-1]))
            for i, group in enumerate(groups)
        ]
        self.flags_of_step = self.buckets[-1].flat[-2:].zero_()
        self.flag, self.note = self.flags_of_step
        self.flags = torch.zeros(2, device=self.flag.device)
        self.found_inf = self.flags[0]
        self.gradient_norm = torch.zeros((), device=self.flag.device)
        self.loss_scale = LossScale(self.flag.device) if scales_loss else None
        self._divisor, self._launched, self._passes = 1, 0, 0
        self._is_in_pass = False
        """Whether a backward pass of a step is under way, and not one of another loss."""

    def reclaim_gradients(self) -> None:
        """Make each `.grad` the view of its bucket again, after `zero_grad` has replaced it.

        Called before `start` where an optimizer's owner may call `zero_grad` between two steps.
        Raises UsageError if the owner has moved or converted the model, by which torch gives each
        parameter and each `.grad` other memory.
        """
        for bucket in self.buckets:
            parameters = bucket.parameters()
            if bucket.layout(parameters) != bucket.made or not bucket.has_views():
                raise UsageError(
                    "the model was moved or converted since virtual(…), as by model.to(…) or "
                    "model.double(), and its gradients are no longer those that are averaged; do "
                    "that before virtual(…)"
                )
            if bucket.attached:
                for parameter, view in zip(parameters, bucket.views, strict=True):
                    parameter.grad = view

    def close(self) -> None:
        """Give the gradients back: remove the hooks, and set each `.grad` to None."""
        for hook in self._hooks:
            hook.remove()
        for bucket in self.buckets:
            bucket.detach()

    def start(self, divisor: int, passes: int, *, note: float = 0.0) -> None:
        """Start a training step with this number of backward passes: reset buckets and flags.

        The gradient of the step is divided by `divisor`. `divisor` is the number of examples of all
        processes, or the sum of their weights. During the last micro-batch the all-reduce of a
        bucket starts once the bucket is full. `note` is added to the notes of the other processes.
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
        """Run the backward pass of a micro-batch's loss, which is summed over its examples.

        The last pass of a step starts the all-reduce. A loss that is not finite sets the flag of
        this step.
        """
        # Divided before the backward pass, so that half precision on the wire holds a mean.
        part = loss / self._divisor
        self.flag += 0 * part.detach()  # NaN if the loss is infinite or NaN
        if self.loss_scale:
            part = part * self.loss_scale.scale
        self._passes += 1
        self._is_in_pass = True
        try:
            part.backward()
        finally:
            self._is_in_pass = False

    def start_sums(self) -> None:
        """Start the all-reduce of the buckets for which no backward pass has started it.

        These are all buckets of a single process, or of one that had no examples. Each bucket has
        its gradients then.
        """
        for bucket in self.buckets[self._launched :]:
            self._launch(bucket)

    def finish(self) -> None:
        """Wait for the summed gradient of the whole step, also on processes without examples."""
        self.start_sums()
        norms: list[Tensor] = []
        inverse = self.loss_scale.inverse() if self.loss_scale else None
        for bucket in self.buckets:
            bucket.wait()
            # A kept handle keeps its library's threads after the job.
            bucket.wait = _nothing
            if bucket.on_wire is not None:
                bucket.flat.copy_(bucket.on_wire)
                bucket.on_wire = None
            # Computed while the sums of later buckets are still under way.
            if bucket.attached and not bucket.is_split:
                if inverse is not None:
                    bucket.gradients.mul_(inverse)
                norms.append(torch.linalg.vector_norm(bucket.gradients))
            else:
                norms += bucket.norms(inverse)
        self.gradient_norm = torch.linalg.vector_norm(torch.stack(norms))
        # The norm too, since finite gradients of several processes may have an infinite sum.
        doubt = 0 * (self.flag if self.loss_scale else self.flag + self.gradient_norm)  # 0 or NaN
        self.found_inf.logical_or_(doubt.isnan())
        if self.loss_scale:
            self.loss_scale.end_step(self.gradient_norm, diverged=self.found_inf)
        self.flags[1] = self.note

    def _make_bucket(self, name: str, parameters: list[nn.Parameter], *, flags: int) -> _Bucket:
        size = sum(parameter.numel() for parameter in parameters)
        first = parameters[0]
        # Not zeros: each step writes before it reads, and untouched memory costs nothing where
        # autograd's gradients are used uncopied.
        flat = torch.empty(size + flags, dtype=first.dtype, device=first.device)
        views: list[Tensor] = []
        bucket = _Bucket(name, flat, flat[:size], [ref(each) for each in parameters], views)
        offset = 0
        for parameter in parameters:
            # Strided like the parameter, so that channels_last costs no copy.
            view = flat.as_strided(parameter.size(), dense_stride(parameter), offset)
            views.append(view)
            parameter.grad = view
            if self.comm.world_size > 1:  # a single process has no sum to start early
                hook = self._ready_hook(bucket)
                self._hooks.append(parameter.register_post_accumulate_grad_hook(hook))
            offset += parameter.numel()
        bucket.made = bucket.layout(parameters)
        return bucket

    def _ready_hook(self, bucket: _Bucket) -> Callable[[Tensor], None]:
        last_pass = 0

        def ready(parameter: Tensor) -> None:
            nonlocal last_pass
            if not self._is_in_pass:  # of another loss; a step clears the gradient when it starts
                return
            if last_pass == self._passes:
                raise UsageError(
                    f"a parameter of shape {tuple(parameter.shape)} got two gradients in one "
                    "backward pass, as from two checkpoints that share it, and the first may have "
                    "been sent; pass use_reentrant=False to torch.utils.checkpoint"
                )
            last_pass = self._passes
            bucket.left -= 1
            # All processes start their sums in the same order, whatever the order of completion.
            while self._launched < len(self.buckets) and not self.buckets[self._launched].left:
                self._launch(self.buckets[self._launched])

        return ready

    def _launch(self, bucket: _Bucket) -> None:
        """Start the all-reduce of the next bucket of gradients."""
        if bucket.attached:
            gradients = [parameter.grad for parameter in bucket.parameters()]
            if not all(map(is_, gradients, bucket.views)):
                raise UsageError(CHANGED_GRADIENT)
        elif not self.keep_autograd_grads:
            bucket.attach()
        if self.compresses:
            bucket.on_wire = bucket.flat.half()
        wire = bucket.flat if bucket.on_wire is None else bucket.on_wire
        bucket.wait = self.comm.start_all_reduce_(wire, bucket.name)
        self._launched += 1


def dense_stride(tensor: Tensor) -> tuple[int, ...]:
    """Return a tensor's stride if it has no gaps in memory, else that of a copy without gaps."""
    return torch.empty_like(tensor, device="meta").stride()


def _group(parameters: list[nn.Parameter], limit: float) -> list[list[nn.Parameter]]:
    """Split parameters into groups of consecutive ones, each of at most `limit` bytes."""
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
