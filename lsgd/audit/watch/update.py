"""The watch of updates: optimizers and their settings, the lr of each update, and what they do."""

from __future__ import annotations

import functools
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from .gradient import GradientWatch, sample
from .initialisation import InitialisationWatch, is_average
from .record import Record, class_of, micro_batches, place

SETTINGS = (
    "lr", "initial_lr", "max_lr", "momentum", "dampening", "nesterov", "weight_decay",
    "decoupled_weight_decay",
)  # fmt: skip
CHANGING = "lr", "momentum", "weight_decay"
"""The settings that an update's record has of each parameter group, as schedules change them."""
COPIED = *CHANGING, "passes", "place", "epoch", "scale", "evaluations", "in_backward", "has_others"
"""The observations of an update that its record has as they are."""
LEAST_PRECISION = 1e-4
"""The relative rounding error of weights up to which each update moves them."""
STEP = Optimizer.profile_hook_step(lambda: None).__code__
"""The code of what torch puts around the step of each optimizer."""
LOSS_KEYS = "reduction", "examples", "elements", "smoothing", "output", "place"
"""The observations of a loss that its update's record has as they are."""


class UpdateWatch:
    """The watch of optimizer steps; it ends the process once enough of them have been seen."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.updates: list[dict[str, Any]] = []
        self.places: dict[int, str] = {}
        self.scheduler_place = ""
        self.step_place = ""
        self.optimizer: Any = None
        self.groups: list[dict[str, Any]] = []
        self.optimizers: list[Any] = []
        """The optimizers with these groups, of which the first is that whose updates count."""
        self.begun: dict[str, Any] | None = None
        self.is_counted = False
        """Whether the begun update was counted already, by an optimizer of fewer parameters."""
        self.started_with_state = False
        self.untouched: dict[str, nn.Parameter] = {}
        """The parameters of the network that were in no group or frozen at the first update."""
        self.has_flat_copies = False
        """Whether the optimizer updates flat copies of the parameters, as ZeRO's does."""
        self.held: set[int] = set()
        """The ids of the parameters that the network's optimizers have."""
        self.others: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
        """Whether each other optimizer that was met has parameters of the network."""
        self.later_updates = self.updates_between = 0
        """The updates of other networks since the last one of this network, and the most of them
        between two of it."""
        self.updated: dict[int, bool] = {}
        """Whether each network that was called has some of these parameters, by its id."""

    def install(self) -> None:
        """Register torch's global hooks of optimizer steps."""
        record = self.record
        record.wrap(Optimizer, "__init__", before=self._note_optimizer)
        scheduler = torch.optim.lr_scheduler.LRScheduler
        record.wrap(scheduler, "__init__", before=self._note_scheduler)
        register_optimizer_step_pre_hook(record.guard(self._before))
        register_optimizer_step_post_hook(self._after)
        self._begin_update = record.guard(self._begin_update)  # type: ignore[method-assign]
        self._finish = record.guard(self._finish)  # type: ignore[method-assign]

    def _note_optimizer(self, optimizer: Any, *_: Any, **__: Any) -> None:
        self.places[id(optimizer)] = place()
        self.record.watch_imported()  # such as DeepSpeed, which makes optimizers itself

    def _note_scheduler(self, *_: Any, **__: Any) -> None:
        self.scheduler_place = place()

    @functools.cached_property
    def _gradients(self) -> GradientWatch:
        return next(each for each in self.record.watches if isinstance(each, GradientWatch))

    def _before(self, optimizer: Any, arguments: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        """Observe an update right before it, or else the closure that computes its gradients.

        Returns the arguments of the step with such a closure observed, for torch to use instead.
        """
        self.record.has_stepped = True
        is_named = "closure" in settings
        closure = settings["closure"] if is_named else (*arguments[1:2], None)[0]
        if not callable(closure):
            self._begin_update(optimizer)
            return None
        observed = self._observed(closure, optimizer)
        if is_named:
            return arguments, settings | {"closure": observed}
        return (arguments[0], observed, *arguments[2:]), settings

    def _observed(self, closure: Callable[[], Any], optimizer: Any) -> Callable[[], Any]:
        @functools.wraps(closure)
        def observed() -> Any:
            loss = closure()
            self._begin_update(optimizer)
            return loss

        return observed

    def _begin_update(self, optimizer: Any) -> None:
        """Observe an update once its gradients are there; of nested steps the innermost counts."""
        record = self.record
        self.is_counted = False
        if optimizer is not self.optimizer:
            is_known = optimizer in self.others
            if self.optimizer is None or (
                not is_known and self._count(optimizer) > self._count(self.optimizer)
            ):
                self._begin(optimizer)
                self.is_counted = bool(self.updates) and not (record.passes or record.pending)
            if not _same_parameters(optimizer, self.optimizer):
                self._meet_other(optimizer)
                return
        if record.is_sampled and _is_skipped(optimizer):
            self._gradients.forget_update()
            return
        parameter = self._gradients.parameter
        groups = [group for each in self.optimizers for group in each.param_groups]
        if len(groups) != len(self.groups):  # the script has unfrozen layers by add_param_group
            self.held.clear()
            self.groups = [own for each in self.optimizers for own in self._describe_groups(each)]
        update: dict[str, Any] = {
            key: [_as_written(group.get(key)) for group in groups] for key in CHANGING
        }
        update["in_backward"] = record.in_backward
        update["has_others"] = any(
            each.grad is not None for group in groups for each in group["params"]
        )
        if record.is_sampled and parameter is not None:
            update["before"] = sample(parameter)
            update["eps"] = torch.finfo(parameter.dtype).eps
            if parameter.grad is not None:
                # Some optimizers change gradients in place; fused ones take out the loss scale.
                scale = getattr(optimizer, "grad_scale", None)
                used = sample(parameter.grad)
                update["used"] = used if scale is None else used / scale
        self.begun = update

    def _begin(self, optimizer: Any) -> None:
        record = self.record
        if not record.updates:
            record.note_job()
            self._choose_network(optimizer)
            if record.model is None:
                return
            for watch in record.watches:
                if isinstance(watch, InitialisationWatch):
                    watch.begin()
            self.started_with_state = bool(optimizer.state)
        self.optimizer, self.held = optimizer, set[int]()
        self.optimizers, self.groups = [optimizer], self._describe_groups(optimizer)
        for update in self.updates:  # these were of another optimizer's groups
            update |= {key: [] for key in CHANGING}

    def _choose_network(self, optimizer: Any) -> None:
        """Take the network that the first optimizer updates, of several with training passes.

        A generator may be called before the critic that is updated first.
        """
        record, held = self.record, _ids(optimizer)
        for each in record.passes:
            if record.model is not None and not held.isdisjoint(_ids_of(record.model)):
                return
            if not held.isdisjoint(_ids_of(each.model)):
                record.model = each.model
                record.observe_calls(type(each.model))
                self._gradients.begin()

    def _count(self, optimizer: Any) -> tuple[int, int]:
        """Count the parameters of an optimizer: those of the audited network, and all of them."""
        held = _ids(optimizer)
        own = _ids_of(self.record.model) if self.record.model is not None else set[int]()
        return len(held & own), len(held)

    def _meet_other(self, optimizer: Any) -> None:
        """Observe the update of an optimizer besides that with the most of the network.

        It has other parameters of the network, or those of another one, such as a generator.
        """
        if self.record.model is None or self.has_flat_copies:
            return
        if optimizer not in self.others:
            self.others[optimizer] = bool(self._count(optimizer)[0])
            if self.others[optimizer] and self.held.isdisjoint(_ids(optimizer)):
                self.groups += self._describe_groups(optimizer)
                self.optimizers.append(optimizer)
        if not self.others[optimizer] and self.begun is None:
            self.later_updates += 1
            self._gradients.note_other_update()

    def _describe_groups(self, optimizer: Any) -> list[dict[str, Any]]:
        model = self.record.model
        kinds = {}
        for module in model.modules():
            is_norm = issubclass(class_of(module), _BatchNorm)
            if is_average(module, self.record):
                continue
            for parameter in module.parameters(recurse=False):
                shape = getattr(parameter, "ds_shape", parameter.shape)  # of the whole, in ZeRO
                kinds[id(parameter)] = (
                    "norms" if is_norm else "weights" if len(shape) > 1 else "biases"
                )
        groups, seen, self.updated = [], self.held, {}
        for group in optimizer.param_groups:
            settings = {key: _as_written(group[key]) for key in SETTINGS if key in group}
            counts: dict[str, int] = {}
            for parameter in group["params"]:
                kind = kinds.get(id(parameter), "others")
                counts[kind] = counts.get(kind, 0) + 1
                seen.add(id(parameter))
            groups.append({"settings": settings, "counts": counts})
        self.has_flat_copies = seen.isdisjoint(kinds)  # in all groups met so far
        if self.has_flat_copies:
            seen |= kinds.keys()
            # It is not known which parameters a group has, unless it has all.
            for group in groups:
                group["counts"] = dict(Counter(kinds.values())) if len(groups) == 1 else {}
        self.untouched = {
            name: each
            for name, each in model.named_parameters()
            if id(each) in kinds and (id(each) not in seen or not each.requires_grad)
        }
        return groups

    def _after(self, optimizer: Any, *_: Any) -> None:
        # The outer step, as of ZeroRedundancyOptimizer, sends the weights next.
        if _steps_now() > 1:
            return
        self._finish(optimizer)
        if self.record.is_over() and not self.record.is_written:
            self.record.end_process()

    def _finish(self, optimizer: Any) -> None:
        """Observe an update right after it."""
        if self.begun is None:
            return
        record, update = self.record, self.begun
        self.begun = None
        self.updates_between = max(self.updates_between, self.later_updates)
        self.later_updates = 0
        if self.is_counted:
            # The sampled weight is of the other optimizer, or else was not updated then.
            settings = {key: update[key] for key in CHANGING}
            self.updates[-1] |= settings | {"group": None}
            return
        gradients = self._gradients.observe_update()
        update |= gradients
        passes = [each for each in record.passes if self._is_updated(each.model)]
        # Of a loss that was left out, such as one that is not finite, no gradient was computed.
        used = [each for each in passes if each.is_used or not each.output_hooks]
        update["passes"] = micro_batches(used or passes)
        models = {id(each.model) for each in passes}
        if models != {id(record.model)}:
            record.keep_hooks()  # calls of other networks must be counted
        parameter = self._gradients.parameter
        if "before" in update and parameter is not None:
            update["after"] = sample(parameter)
            for number, group in enumerate(optimizer.param_groups):
                if any(each is parameter for each in group["params"]):
                    update["group"] = number
        update["place"] = self.step_place = place() if record.is_sampled else self.step_place
        record.passes = []
        if record.loader is not None:
            record.updated_by = record.loader, record.loader.given
        record.end_update()
        update["epoch"] = record.trained_epochs
        self.updates.append(update)

    def _is_updated(self, model: Any) -> bool:
        """Return whether a network has parameters that are updated, unlike a frozen teacher."""
        if self.has_flat_copies:
            return True
        found = self.updated.get(id(model))
        if found is None:
            found = self.updated[id(model)] = not self.held.isdisjoint(_ids_of(model))
        return found

    def _is_replaced(self) -> bool:
        """Return whether the optimizer has none of the network's parameters, nor copies of them.

        The script has replaced the network after the optimizer was made. By flat copies its weights
        would move, unless 16 bits are too few for that.
        """
        sampled = [each for each in self.updates if "before" in each]
        if not self.has_flat_copies or len(sampled) < 2 or sampled[0]["eps"] > LEAST_PRECISION:
            return False
        is_updated = any(lr for each in self.updates[:-1] for lr in each["lr"])
        first = sampled[0]["before"]
        return is_updated and all(torch.equal(each["before"], first) for each in sampled)

    def _untrained(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters without an update; those that a script unfreezes later have some."""
        for name, each in self.untouched.items():
            if id(each) not in self.held or not each.requires_grad:
                yield name, each

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the optimizer, then each update with its lr, gradients and losses."""
        optimizer = self.optimizer
        # A generator is updated once more after its critic, but not a second network of a script.
        later = self.later_updates if self.later_updates > self.updates_between else 0
        is_replaced = self._is_replaced()
        names = self.record.model.named_parameters() if is_replaced else self._untrained()
        untrained = sorted(name for name, _ in names)
        if is_replaced:
            self.has_flat_copies = False
            for group in self.groups:
                group["counts"] = {"others": sum(group["counts"].values()) or 1}
            for update in self.updates:  # nothing sets the gradients of the network to zero
                update.pop("used", None)
        if optimizer is not None:
            yield {
                "kind": "optimizer", "name": type(optimizer).__name__, "groups": self.groups,
                "untouched": {"count": len(untrained), "names": untrained[:5]},
                "place": self.places.get(id(optimizer), ""),
                "scheduler_place": self.scheduler_place,
                "started_with_state": self.started_with_state,
                "has_flat_copies": self.has_flat_copies, "later_updates": later,
            }  # fmt: skip
        for update in self.updates:
            losses = [
                {key: each[key] for key in LOSS_KEYS}
                | {key: _number(each[key]) for key in ("weight", "targets")}
                | {key: bool(each[key]) for key in ("has_others", "is_uneven")}
                for each in update["losses"]
                if each["weight"] is not None
            ]
            clip = update["clip"]
            yield {
                "kind": "update",
                **{key: update[key] for key in COPIED},
                "group": update.get("group"),
                "eps": update.get("eps"),
                "backward_place": update["backward_place"],
                "losses": losses,
                "clip": {**clip, "norm": _number(clip["norm"])} if clip else None,
                # This is torch's coefficient.
                "factor": math.prod(
                    min(1.0, most / (_number(norm) + 1e-6)) for most, norm in update["factors"]
                ),
                "value_clip": update["value_clip"] or None,
                **{
                    key: _list(update.get(key))
                    for key in ("local", "used", "sum", "before", "after")
                },
            }


def _steps_now() -> int:
    """Return how many steps of optimizers are being made, each of them by the one before."""
    frame, count = sys._getframe(1), 0
    while frame is not None:
        count += frame.f_code is STEP
        frame = frame.f_back  # type: ignore[assignment]
    return count


def _number(value: Any) -> float:
    return float(value.item() if isinstance(value, torch.Tensor) else value)


def _as_written(value: Any) -> Any:
    """Return a setting as the script has it: 0.1 for a tensor or a float32 of numpy of 0.1."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return value
    number = float(value)
    return float(f"{number:.7g}") if dtype.itemsize <= 4 else number


def _list(values: Any) -> list[float] | None:
    return None if values is None else [float(each) for each in values.tolist()]


def _ids(optimizer: Any) -> set[int]:
    return {id(each) for group in optimizer.param_groups for each in group["params"]}


def _ids_of(model: Any) -> set[int]:
    return {id(each) for each in model.parameters()}


def _is_skipped(optimizer: Any) -> bool:
    """Return whether a fused optimizer is about to skip its update, as gradients are not finite."""
    found: torch.Tensor | None = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found.detach().cpu().any())


def _same_parameters(optimizer: Any, other: Any) -> bool:
    if other is None:
        return False
    first, second = (each.param_groups[0]["params"][:1] for each in (optimizer, other))
    return optimizer is other or (bool(first) and bool(second) and first[0] is second[0])
