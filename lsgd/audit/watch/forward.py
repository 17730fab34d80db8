"""The watch of forward passes: their images, modes and number formats, and BN's statistics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import swa_utils

from .gradient import asks_parameters
from .record import Pass, Record, is_call_of_library, is_compiled, place, tensors_of

FORMAT_UPDATES = 2
"""The updates in which the number formats of layers are observed."""


class ForwardWatch:
    """The watch of forward passes, of whole networks and of BN layers."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.losses: list[int] = []
        """The losses that were seen before each of the modules that are being called."""
        self.has_parameters: dict[int, bool] = {}
        self.norms: dict[tuple[Any, ...], int] = {}
        self.formats: set[str] = set()
        self.evaluation: dict[tuple[bool, bool, Any], list[Any]] = {}
        """The number of passes without updates in each mode, and the line of the first."""
        self.unsized: Pass | None = None
        """The current pass, if no tensor among its arguments has shown how many images it has."""
        self.entered: Pass | None = None
        """The current pass, if it keeps gradients, until its output is known."""
        self.sets_statistics = False
        """Whether the passes only compute BN's statistics anew, by torch's update_bn."""
        self.kinds: set[type[nn.Module]] = set()
        """The classes of networks whose calls are observed."""

    def install(self) -> None:
        """Register torch's global forward hooks, and observe backward passes."""
        record = self.record
        record.add_costly_hook(self._register_before)
        record.add_costly_hook(
            lambda: modules.register_module_forward_hook(self.after, always_call=True)
        )
        self._see = record.guard(self._see)  # type: ignore[method-assign]
        self._see_scalar = record.guard(self._see_scalar)  # type: ignore[method-assign]
        self._note_output = record.guard(self._note_output)  # type: ignore[method-assign]
        record.wrap(torch.autograd, "backward", before=self._begin_backward)
        record.wrap(torch.autograd, "grad", before=self._begin_grad)
        record.observe_calls = self._observe
        record.wrap(
            swa_utils, "update_bn", before=self._begin_statistics, after=self._end_statistics
        )
        record.wrap(torch, "compile", before=self._note_compilation)
        record.wrap(nn.Module, "compile", before=lambda each, *_, **__: self._observe(type(each)))

    def _register_before(self) -> Any:
        self.losses.clear()
        return modules.register_module_forward_pre_hook(self.before)

    def _note_compilation(self, model: Any = None, **_: Any) -> None:
        # Libraries compile functions of their own, in which there is no network.
        if isinstance(model, nn.Module) or not is_call_of_library():
            self.record.is_compiled = True
            self.record.keep_hooks()

    def _observe(self, kind: type[nn.Module]) -> None:
        """Observe calls of networks of a class that no hook sees.

        The hooks of all modules are removed, or the network is compiled in place.
        """
        if kind in self.kinds:
            return
        self.kinds.add(kind)
        record, own = self.record, kind.__dict__.get("__call__")
        see, leave = record.guard(self._see_call), record.guard(self._note_output)

        def observed(module: nn.Module, *arguments: Any, **settings: Any) -> Any:
            is_unseen = module is record.model and not record.handles
            is_seen_here = is_unseen or module._compiled_call_impl is not None
            if is_seen_here:
                see(module, (*arguments, *settings.values()))
            if own is not None:
                output = own(module, *arguments, **settings)
            else:
                output = super(kind, module).__call__(*arguments, **settings)  # type: ignore[misc]
            if is_seen_here:
                leave(output)
            return output

        kind.__call__ = observed  # type: ignore[method-assign]

    def _begin_statistics(self, *_: Any, **__: Any) -> None:
        self.sets_statistics = True

    def _end_statistics(self, *_: Any, **__: Any) -> None:
        self.sets_statistics = False

    def _see_call(self, module: nn.Module, inputs: Any) -> None:
        if not (self.losses or self.record.in_backward or is_compiled()):
            self._see_pass(module, inputs)

    def before(self, module: nn.Module, inputs: Any) -> None:
        """Observe a module that is about to be called."""
        if is_compiled():
            return
        self.losses.append(self.record.losses)
        self._see(module, inputs)

    def after(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """Leave a module that has been called."""
        if is_compiled() or not self.losses:
            return
        is_new = self.losses.pop() == self.record.losses
        if is_new and isinstance(output, torch.Tensor) and not output.dim():
            self._see_scalar(module, inputs, output)
        if not self.losses:
            self._note_output(output)

    def _note_output(self, output: Any) -> None:
        if self.entered is not None and not self.record.in_backward:
            self.entered.note_output(output)
            self.entered = None

    def _see_scalar(self, module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        if not self.record.in_backward and not self._is_network(module):
            self.record.note_loss(module, inputs, output)

    def _see(self, module: nn.Module, inputs: Any) -> None:
        record = self.record
        # Activation checkpointing computes a part again in the backward pass.
        if record.in_backward or self.sets_statistics:
            return
        if not record.updates:
            record.called.add(id(module))
        if isinstance(module, _BatchNorm):
            self._see_norm(module, inputs)
        elif isinstance(module, (nn.Linear, _ConvNd)) and record.updates < FORMAT_UPDATES:
            self._see_format(module.weight)
        if len(self.losses) == 1:
            if self._is_network(module):
                self._see_pass(module, inputs)
        elif self.unsized is not None and (images := count_images(inputs, record.loader)):
            self.unsized.images, self.unsized = images, None

    def _is_network(self, module: nn.Module) -> bool:
        found = self.has_parameters.get(id(module))
        if found is None:
            found = any(True for _ in module.parameters())
            self.has_parameters[id(module)] = found
        return found

    def _see_norm(self, module: _BatchNorm, inputs: Any) -> None:
        key = (
            int(inputs[0].size(0)),
            module.training,
            isinstance(module, nn.SyncBatchNorm),
            module.momentum,
            torch.is_grad_enabled(),
            getattr(module, "_audit_place", ""),
        )
        self.norms[key] = self.norms.get(key, 0) + 1

    def _see_format(self, weight: torch.Tensor) -> None:
        device = weight.device.type
        formats = {weight.dtype}
        if torch.is_autocast_enabled(device):
            formats.add(torch.get_autocast_dtype(device))
        self.formats |= {str(each).replace("torch.", "") for each in formats}

    def _see_pass(self, module: nn.Module, inputs: Any) -> None:
        record = self.record
        grad = torch.is_grad_enabled()
        train = is_in_training(module, trains_weights=grad)
        if train and grad:
            record.leave_evaluation()
        images = count_images(inputs, record.loader) or (record.loader.last if record.loader else 0)
        where = place() if record.handles or not (train and grad) else ""
        seen = Pass(module, images, record.loader, where, train=train, grad=grad)
        record.note_batches_of(seen)
        seen.is_after_update = record.updated_by == (record.loader, seen.batch)
        # A hook sees no arguments by name, but those of the layers inside.
        self.unsized = None if images else seen
        if hasattr(module, "_orig_mod"):
            record.is_compiled = True
        self.entered = seen if grad else None
        if seen.grad:
            record.pending.append(seen)
        else:
            self._note_evaluation(seen)

    def _note_evaluation(self, seen: Pass) -> None:
        key = (seen.train, seen.grad, seen.loader)
        self.evaluation.setdefault(key, [0, seen.place])[0] += 1
        if seen.loader is not None:
            seen.loader.evaluated += 1
            if not seen.loader.place:
                seen.loader.place = seen.place

    def _begin_grad(self, outputs: Any, inputs: Any, *_: Any, **__: Any) -> None:
        if asks_parameters(inputs):
            self._begin_backward()

    def _begin_backward(self, *_: Any, **__: Any) -> None:
        record = self.record
        if record.in_backward:  # activation checkpointing has backward passes inside
            return
        if record.begin_after_other is not None:
            record.begin_after_other()
        record.forget_replaced()
        record.backwards += 1
        record.is_given_used = True
        batch = record.loader.given if record.loader else 0
        # With an evaluation that keeps gradients, passes of other loaders wait here too, and those
        # of an accuracy that a batch had after its update.
        for each in record.pending:
            is_old = each.is_after_update and each.batch != batch
            each.backward = record.backwards
            if each.loader is record.loader and not is_old:
                record.passes.append(each)
                if record.model is None and is_trainable(each.model):
                    record.model = each.model
                    self._observe(type(each.model))
                if each.loader is not None:
                    each.loader.trained += 1
            else:
                self._note_evaluation(each)
        record.pending.clear()

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the calls of BN layers, the number formats and the passes of evaluations."""
        for each in self.record.pending:
            # Passes of the training loader may have been cut off before their backward pass.
            if each.loader is None or not each.loader.trained:
                self._note_evaluation(each)
        for key, calls in self.norms.items():
            rows, train, is_synchronised, momentum, grad, where = key
            yield {
                "kind": "batchnorm", "rows": rows, "train": train, "sync": is_synchronised,
                "momentum": momentum, "grad": grad, "place": where, "calls": calls,
            }  # fmt: skip
        yield {"kind": "formats", "names": sorted(self.formats)}
        for (train, grad, loader), (calls, where) in self.evaluation.items():
            # A training step may call a teacher, a momentum encoder or a generator.
            is_evaluated = loader is not None and not loader.trained
            yield {
                "kind": "evaluation", "train": train, "grad": grad, "calls": calls,
                "place": where, "is_of_evaluation": is_evaluated,
            }  # fmt: skip
        yield {"kind": "compiled", "is_compiled": self.record.is_compiled}


def is_trainable(module: nn.Module) -> bool:
    """Return whether a network has a parameter that is trained, unlike a frozen teacher."""
    return any(each.requires_grad for each in module.parameters())


def is_in_training(network: nn.Module, *, trains_weights: bool) -> bool:
    """Return whether a network's BN or dropout is in training mode, whatever wrappers it has.

    A fine-tuned network whose BN is frozen is in training mode too if its other layers are. An
    evaluation by Monte Carlo dropout, which is on while all other layers are not, is none.
    """
    layers = [each for each in network.modules() if not each._modules]
    norms = [each.training for each in layers if isinstance(each, _NormBase)]
    dropouts = [each.training for each in layers if isinstance(each, _DropoutNd)]
    others = [
        each.training for each in layers if each._parameters and not isinstance(each, _NormBase)
    ]
    modes = norms + dropouts if any(others) else norms
    if trains_weights or not modes:
        modes = norms + dropouts * trains_weights + others
    return any(modes) if modes else network.training


def count_images(inputs: Any, loader: Any) -> int:
    """Return the images in the arguments of a network, or 0 without a tensor.

    They are the first dimension of the first tensor, or a list of as many as its loader has given.
    """
    lengths = [len(each) for each in inputs if isinstance(each, (list, tuple))]
    if loader is not None and loader.last > 1 and loader.last in lengths:
        return int(loader.last)
    sizes = (int(each.shape[0]) for each in tensors_of(inputs) if each.dim())
    return next((each for each in sizes if each), 0)
