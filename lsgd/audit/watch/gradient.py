"""The watch of gradients: what a process computes, what its optimizer receives, and their scale."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from .record import FULL_UPDATES, Record, place

SAMPLE = 64
"""The elements of a gradient that are compared over processes."""
CLASS_LOSSES = "cross_entropy", "nll_loss"
ELEMENT_LOSSES = (
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
)  # fmt: skip


class GradientWatch:
    """The watch of sampled gradients before and after their exchange, and of the loss's scale."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.parameter: nn.Parameter | None = None
        self.local: torch.Tensor | None = None
        self.sum: torch.Tensor | None = None
        self.losses: list[dict[str, Any]] = []
        self.scaler: Any = None
        self.is_unscaled = True
        self.clip: dict[str, Any] = {}
        self.before_clip: torch.Tensor | None = None
        """The sampled gradient before the current clip."""
        self.factors: list[tuple[float, Any]] = []
        """The largest norm and the norm of each clip that has changed the sampled gradient."""
        self.clip_place = ""
        self.value_clip: dict[str, Any] = {}
        self.root: torch.Tensor | None = None
        """The number that the current backward pass begins from."""
        self.losses_of_other = 0
        """The number of losses whose backward passes came before the update of another network."""
        self.backward_place = ""
        self.averages: list[str] = []
        self.exchange_place = ""
        self.updates_when_scaled = 0
        self.evaluations = 1
        """The number of evaluations of the gradient for the current update."""
        self.is_reevaluated = False
        """Whether an update was seen whose gradient was evaluated again at other weights."""
        self.weights: tuple[int, torch.Tensor | None] = 0, None
        """The version of the sampled parameter at the last backward pass, and a sample of it."""

    def install(self) -> None:
        """Observe losses, backward passes, clipping and the scaler of mixed precision."""
        record = self.record
        for name in CLASS_LOSSES:
            record.wrap(F, name, after=self._note_loss, is_counted=False)
        for name in ELEMENT_LOSSES:
            record.wrap(F, name, after=self._note_element_loss, is_counted=False)
        record.note_loss = self._note_criterion
        record.forget_replaced = self._forget_replaced
        record.awaited["deepspeed.runtime.engine"] = record.guard(self._watch_deepspeed)
        record.wrap(
            torch.autograd, "backward", before=self._note_backward, after=self._note_other_terms,
            is_counted=False,
        )  # fmt: skip
        record.wrap(
            torch.autograd, "grad", before=self._note_grad, after=self._note_other_terms_of_grad,
            is_counted=False,
        )  # fmt: skip
        # nn.utils has the name twice, and scripts import it from either.
        from torch.nn.utils import clip_grad

        for owner in (clip_grad, nn.utils):
            record.wrap(owner, "clip_grad_norm_", before=self._begin_clip, after=self._note_clip)
            record.wrap(owner, "clip_grad_value_", after=self._note_value_clip)
        if hasattr(nn.utils, "clip_grads_with_norm_"):  # since torch 2.6
            record.wrap(
                nn.utils, "clip_grads_with_norm_", before=self._begin_clip,
                after=self._note_clip_with_norm,
            )  # fmt: skip
        scaler = torch.amp.GradScaler
        record.wrap(scaler, "scale", before=self._note_scale)
        record.wrap(scaler, "unscale_", after=self._note_unscale)
        record.wrap(scaler, "update", before=self._forget_skipped_update)
        from torch.optim import swa_utils

        record.wrap(swa_utils.AveragedModel, "update_parameters", before=self._note_average)
        if torch.distributed.is_available():
            record.wrap(
                torch.distributed, "all_reduce", before=self._note_exchange, is_counted=False
            )

    def _watch_deepspeed(self, module: Any) -> None:
        self.record.wrap(module, "clip_grad_norm_", before=self._begin_clip, after=self._note_clip)

    def begin(self) -> None:
        """Choose the parameter whose gradient is sampled: the last weight of the network.

        Called again, it takes that of another network.
        """
        self.parameter = None
        if is_sharded(self.record.model):
            return
        weights = [
            each
            for each in self.record.model.parameters()
            if each.requires_grad and each.dim() > 1 and not hasattr(each, "to_local")
        ]
        if not weights:
            return
        parameter = weights[-1]
        self.parameter, self.local, self.sum = parameter, None, None
        self._note_weights(parameter)
        add = self.record.guard(functools.partial(self._add_local, parameter))
        self.record.add_costly_hook(lambda: parameter.register_hook(add))

    def _add_local(self, parameter: nn.Parameter, gradient: torch.Tensor) -> None:
        if self.record.is_sampled and parameter is self.parameter:
            part = sample(gradient)
            self.local = part if self.local is None else self.local + part

    def _note_loss(self, loss: Any, *arguments: Any, **settings: Any) -> None:
        """Note a loss of classes, whose mean is over the targets that are not ignored."""
        if _calls_again(arguments, settings):
            return
        first = arguments[0] if arguments else settings.get("input", loss)
        target: Any = arguments[1] if len(arguments) > 1 else settings.get("target")
        share = float(settings.get("label_smoothing", 0.0))
        # Of class probabilities it is not known what the script has made them of.
        is_soft = isinstance(target, torch.Tensor) and target.is_floating_point()
        reduction = _reduction(arguments, settings)
        is_hard = isinstance(target, torch.Tensor) and not is_soft
        classes = int(first.shape[1]) if first.dim() > 1 else 1
        elements = target.numel() if is_hard else first.numel() // max(1, classes)
        targets = elements
        if reduction != "mean" and is_hard:
            targets = (target != settings.get("ignore_index", -100)).sum()  # without a wait
        self._add_loss(
            loss, first, reduction=reduction, targets=targets, elements=elements,
            smoothing=None if is_soft and not share else share,
        )  # fmt: skip

    def _note_element_loss(self, loss: torch.Tensor, *arguments: Any, **settings: Any) -> None:
        """Note a loss whose mean is over all elements of its input."""
        if _calls_again(arguments, settings):
            return
        first = arguments[0] if arguments else settings.get("input", loss)
        count = first.numel()
        self._add_loss(
            loss, first, reduction=_reduction(arguments, settings), targets=count, elements=count,
            smoothing=None,
        )  # fmt: skip

    def _note_criterion(self, module: nn.Module, inputs: Any, loss: torch.Tensor) -> None:
        """Note the loss of a module without parameters, such as timm's LabelSmoothingCrossEntropy.

        It counts as a mean over the images, unless the module says otherwise.
        """
        tensors = [each for each in inputs if isinstance(each, torch.Tensor)]
        first, target = (tensors or [loss])[0], (tensors or [loss])[-1]
        smoothing = getattr(module, "smoothing", None)
        self._add_loss(
            loss, first, reduction=str(getattr(module, "reduction", "mean")),
            targets=target.numel(), elements=target.numel(),
            smoothing=smoothing if isinstance(smoothing, float) else None,
        )  # fmt: skip

    def _add_loss(self, loss: Any, first: torch.Tensor, **settings: Any) -> None:
        record = self.record
        if record.in_backward or not record.is_sampled:
            return
        if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
            return
        if torch._C._functorch.maybe_current_level() is not None:
            return  # of vmap or grad, whose tensors must not leave them
        record.losses += 1
        # Mixup adds two losses of one output, whose factors are those of one loss together.
        output = next((each["output"] for each in self.losses if each["of"]() is first), None)
        seen = settings | {
            "examples": int(first.shape[0]) if first.dim() else 1, "of": weakref.ref(first),
            "output": record.losses if output is None else output, "place": place(),
            "weight": None, "has_others": None, "is_uneven": False,
        }  # fmt: skip
        value = loss.detach()

        def note_weight(gradient: torch.Tensor) -> None:
            seen["weight"] = gradient.sum().detach()
            seen["part"] = (gradient * value).sum().detach()
            if gradient.dim() and gradient.numel():
                seen["is_uneven"] = (gradient * (gradient - gradient.max())).any().detach()

        loss.register_hook(record.guard(note_weight))
        self.losses.append(seen)

    def _note_backward(self, tensors: Any, gradients: Any = None, *_: Any, **__: Any) -> None:
        record = self.record
        if record.in_backward:
            return
        self.backward_place = place()
        if record.model is not None and self.parameter is None and not record.updates:
            self.begin()
        is_number = isinstance(tensors, torch.Tensor) and gradients is None
        self.root = tensors.detach() if is_number else None

    def _note_grad(
        self, outputs: Any, inputs: Any, grad_outputs: Any = None, *_: Any, **__: Any
    ) -> None:
        if asks_parameters(inputs):
            self._note_backward(outputs, grad_outputs)

    def _note_other_terms_of_grad(
        self, _: Any, outputs: Any, inputs: Any, *__: Any, **___: Any
    ) -> None:
        if asks_parameters(inputs):
            self._note_other_terms()

    def _note_other_terms(self, *_: Any, **__: Any) -> None:
        """Note whether the losses that were seen are all terms of what is differentiated.

        Distillation and penalties have others, so that the gradient is not that of the losses seen.
        """
        if self.record.in_backward:
            return
        losses = [each for each in self.losses if "part" in each and each["has_others"] is None]
        seen, root, self.root = sum(each["part"] for each in losses), self.root, None
        if root is not None and losses:
            # A loss beside others that are this small has nearly the same gradient.
            rounding = max(1e-5, 4 * torch.finfo(root.dtype).eps)
            rest = ((root - seen) / root).abs() > rounding
            for each in losses:
                each["has_others"] = rest

    def _begin_clip(self, *_: Any, **__: Any) -> None:
        self.before_clip = self._sampled_gradient()

    def _sampled_gradient(self) -> torch.Tensor | None:
        if not self.record.is_sampled or self.parameter is None or self.parameter.grad is None:
            return None
        return sample(self.parameter.grad)

    def _note_clip_with_norm(
        self, _: Any, parameters: Any, max_norm: float, total_norm: Any, *__: Any, **___: Any
    ) -> None:
        self._note_clip(total_norm, parameters, max_norm)

    def _note_clip(self, norm: Any, parameters: Any, max_norm: float, *_: Any, **__: Any) -> None:
        if math.isinf(float(max_norm)):
            return  # a usual way to measure the norm
        if self.record.is_sampled or not self.clip_place:
            self.clip_place = place()
        clip: dict[str, Any] = {
            "max_norm": float(max_norm),
            "norm": norm.detach() if isinstance(norm, torch.Tensor) else norm,
            "is_scaled": not self.is_unscaled,
            "place": self.clip_place,
        }
        # The parameters may be a generator that the call has exhausted.
        before, after = self.before_clip, self._sampled_gradient()
        if before is not None and after is not None and not torch.equal(before, after):
            self.factors.append((clip["max_norm"], clip["norm"]))
        # Of several clips of parts of the network the strictest stands for the update.
        if not self.clip or clip["max_norm"] < self.clip["max_norm"]:
            self.clip = clip

    def _note_value_clip(self, _: Any, parameters: Any, clip_value: float, *__: Any) -> None:
        self.value_clip = {"most": float(clip_value), "place": place()}

    def _note_scale(self, scaler: Any, *_: Any, **__: Any) -> None:
        if scaler.is_enabled():
            self.scaler, self.is_unscaled = scaler, False

    def _note_unscale(self, *_: Any, **__: Any) -> None:
        self.is_unscaled = True

    def _note_exchange(self, tensor: Any, *_: Any, **__: Any) -> None:
        # Losses and accuracies are summed over processes too.
        model = self.record.model
        if self.exchange_place:
            return
        if model is not None and any(tensor is each.grad for each in model.parameters()):
            self.exchange_place = place()

    def _forget_skipped_update(self, *_: Any, **__: Any) -> None:
        """Forget the passes of an update that the scaler has left out, as it overflowed."""
        if self.record.updates == self.updates_when_scaled:
            self.forget_update()
        self.updates_when_scaled = self.record.updates

    def forget_update(self, losses: int | None = None) -> None:
        """Forget the forward passes since the last update, and the first `losses` losses seen."""
        # None stands for all losses.
        kept = [] if losses is None else self.losses[losses:]
        self._clear()
        self.losses, self.record.passes = kept, []

    def note_other_update(self) -> None:
        """Note that another network was updated alone, unless this one's update comes next."""
        self.losses_of_other = len(self.losses)
        self.record.begin_after_other = self._forget_other

    def _forget_other(self) -> None:
        self.forget_update(self.losses_of_other)

    def _forget_replaced(self) -> None:
        """Forget the passes of an evaluation of the gradient that another one is about to replace.

        SAM and L-BFGS evaluate the gradient at several weights for an update, each time from none
        or 0. If only the gradient is cleared between two passes, that is a mistake of the script.
        """
        parameter = self.parameter
        if parameter is None:
            return
        (version, before), gradient = self.weights, parameter.grad
        self._note_weights(parameter)
        if not self.record.passes:
            return
        now = self.weights[1]
        is_moved, is_empty = version != parameter._version, gradient is None
        if before is not None and now is not None:
            is_moved = is_moved or not torch.equal(before, now)
            is_empty = gradient is None or not bool(sample(gradient).any())
        if is_moved and is_empty:
            # A loss may have been computed already whose backward pass is yet to come.
            kept = [each for each in self.losses if each["weight"] is None]
            evaluations, self.is_reevaluated = self.evaluations + 1, True
            self.forget_update()
            self.losses, self.evaluations = kept, evaluations

    def _note_weights(self, parameter: nn.Parameter) -> None:
        # Values show what neither the version nor a missing gradient does, but wait for a GPU.
        shows_values = self.record.is_sampled or self.is_reevaluated
        self.weights = parameter._version, sample(parameter) if shows_values else None

    def _clear(self) -> None:
        self.local, self.losses, self.clip, self.value_clip = None, [], {}, {}
        self.factors = []
        self.evaluations = 1
        self.record.begin_after_other = None

    def _note_average(self, *_: Any, **__: Any) -> None:
        where = place()
        if where not in self.averages:
            self.averages.append(where)

    def observe_update(self) -> dict[str, Any]:
        """Return the scale of an update's losses, and keep samples of its gradients."""
        found = {
            "losses": self.losses, "scale": 1.0, "clip": self.clip, "factors": self.factors,
            "value_clip": self.value_clip, "evaluations": self.evaluations,
            "backward_place": self.exchange_place or self.backward_place,
        }  # fmt: skip
        if self.record.is_sampled:
            if self.scaler is not None:
                found["scale"] = self.scaler.get_scale()
            found["local"] = self.local
            if self.local is not None and self.record.updates < FULL_UPDATES:
                self.sum = self.local if self.sum is None else self.sum + self.local
                found["sum"] = self.sum
        self._clear()
        return found

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the averages of the weights, whether they are sharded, and the loss scale."""
        yield {
            "kind": "gradient", "averages": self.averages,
            "is_sharded": self.record.model is not None and is_sharded(self.record.model),
            "scaler": None if self.scaler is None else float(self.scaler.get_scale()),
        }  # fmt: skip


def _reduction(arguments: tuple[Any, ...], settings: dict[str, Any]) -> str:
    """Return the reduction of a loss, which the call may give by torch's older arguments."""
    if settings.get("reduce") is False:
        return "none"
    if settings.get("size_average") is False:
        return "sum"
    texts = (each for each in arguments[2:] if isinstance(each, str))
    return next(texts, str(settings.get("reduction", "mean")))


def _calls_again(arguments: tuple[Any, ...], settings: dict[str, Any]) -> bool:
    """Return whether a loss of tensor subclasses calls itself for the tensors that they hold."""
    tensors = [e for e in (*arguments, *settings.values()) if isinstance(e, torch.Tensor)]
    return bool(torch.overrides.has_torch_function(tensors))


def asks_parameters(inputs: Any) -> bool:
    """Return whether torch.autograd.grad computes gradients of parameters, not of images."""
    if isinstance(inputs, Iterator):
        return True  # as of module.parameters(), which may be read only once
    first = inputs if isinstance(inputs, torch.Tensor) else next(iter(inputs), None)
    return isinstance(first, nn.Parameter)


def is_sharded(model: nn.Module) -> bool:
    """Return whether FSDP, or ZeRO of stage 3, has sharded the parameters of a network."""
    return any(
        hasattr(each, "unshard") or type(each).__name__ == "FullyShardedDataParallel"
        for each in model.modules()
    ) or any(hasattr(each, "ds_id") for each in model.parameters())


def sample(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of up to SAMPLE elements of a tensor, evenly spread, on its device."""
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // SAMPLE)][:SAMPLE].clone()
