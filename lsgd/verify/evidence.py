"""The values of a run that were confirmed, and those that differ from what they must be."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lsgd.compare import relative_difference
from lsgd.recipe import Recipe

EXACT = 1e-12
"""The relative difference allowed for the lr and the epoch, which are computed equally anywhere."""
TOLERANCES = {"float64": 1e-10, "float32": 1e-5, "tf32": 1e-3, "float16": 1e-3, "bfloat16": 1e-2}
"""The relative difference of a loss, norm or tensor that is always allowed, by precision."""
ROUNDING_FACTOR = 8.0
"""The multiple of the measured effect of rounding that is allowed in addition.

It is small, as the perturbations that measure the effect are larger than the rounding.
"""
UNRESOLVED = 0.2
"""The allowed relative difference above which a comparison confirms nothing."""
SMALL = 1e-3
"""The loss or norm below which a difference is relative to this number."""
COUNTED_SHARE = 1e-3
"""The share of the counted examples whose prediction rounding may change."""
COUNTED_LEAST = 2
"""The number of examples whose prediction rounding may change in any case."""
MOST_SHOWN = 20
"""The number of differing values that are kept as sentences."""


def tolerance_of(recipe: Recipe) -> float:
    """Return the relative difference from a recomputed value that rounding may make in a run.

    Gradients that are sent in float16 are rounded by each process, so that another number of
    processes rounds them differently.
    """
    precisions = {recipe.precision, *(["float16"] if recipe.gradient_compression == "fp16" else [])}
    return max(TOLERANCES[precision] for precision in precisions)


class Evidence:
    """The comparisons of one verification: equal values counted by kind, and the differing ones."""

    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance
        self.norm_rounding = 0.0
        """The relative effect of rounding on the sum in a gradient norm."""
        self.other_keys_differ = True
        """Whether rows have no keys but those that are computed here, as of the same version."""
        self.compared: Counter[str] = Counter()
        self.unresolved: Counter[str] = Counter()
        """The number of values by kind that rounding alone could change by UNRESOLVED or more."""
        self.recomputed = 0
        """The number of values that executed steps have computed again and found equal."""
        self.largest_difference = 0.0
        self.differing_values = 0
        """The number of values that differ, of which `mismatches` has the first MOST_SHOWN."""
        self.mismatches: list[str] = []
        self._differing: set[tuple[str, str]] = set()
        """The pairs of kind and checkpoint of which a differing tensor is recorded already."""
        self.notes: list[str] = []

    def differ(self, sentence: str) -> None:
        """Record that a value differs, as a sentence; the first MOST_SHOWN are kept once each."""
        self.differing_values += 1
        if len(self.mismatches) < MOST_SHOWN and sentence not in self.mismatches:
            self.mismatches.append(sentence)

    def note(self, sentence: str) -> None:
        """Record once what could not be compared, as a sentence."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def other_key(self, where: str, key: str) -> None:
        """Record that a row has a key that is not computed here, which another version may have."""
        if self.other_keys_differ:
            self.differ(f"{where}: {key} is not computed by the recipe")
        else:
            self.note(f"{key} of rows is not compared, as this version does not compute it")

    def equal(self, kind: str, where: str, written: object, expected: object) -> None:
        """Compare a value that does not depend on rounding, such as a step or a hash."""
        if written == expected:
            self.compared[kind] += 1
        else:
            self.differ(f"{where}: {kind} is {_short(written)}, and must be {_short(expected)}")

    def exact(self, kind: str, where: str, written: object, expected: float) -> None:
        """Compare a number that is a function of the recipe and the step, such as the lr."""
        if relative_difference(written, expected) <= EXACT:
            self.compared[kind] += 1
        else:
            self.differ(f"{where}: {kind} is {_short(written)}, and must be {expected!r}")

    def close(
        self, kind: str, where: str, written: object, computed: object, rounding: float
    ) -> None:
        """Compare a number of a row with its recomputed value.

        `rounding` is the relative effect of rounding on it. A value that was not finite is None.
        """
        if written is None and computed is None:
            self._confirm(kind)
            return
        found = f"{kind} is {_short(written)}, computed again {_short(computed)}"
        difference = relative_difference(written, computed, SMALL)
        self._judge(kind, f"{where}: {found}", difference, self._allowed(rounding))

    def counted(
        self,
        kind: str,
        where: str,
        written: object,
        computed: object,
        rounding: float,
        examples: int,
        *,
        is_own: bool = False,
    ) -> None:
        """Compare a percentage of `examples` that was counted again, as `close` does.

        `rounding` is relative to the computed percentage, or to that of the examples which are
        allowed to differ in any case if this is larger, as an error of 0 has no relative one. A
        metric of the user's own may be a percentage by its name only: where much of its value would
        be allowed, one that is not close is not resolved.
        """
        if written is None and computed is None:
            self._confirm(kind)
            return
        relative = ROUNDING_FACTOR * rounding
        points = 100 * max(COUNTED_LEAST, COUNTED_SHARE * examples) / examples
        size = float(computed) if isinstance(computed, int | float) else 0.0
        allowed = points + relative * max(size, points)
        if not _points(written, computed) <= allowed:
            self.differ(
                f"{where}: {kind} is {_short(written)}, computed again {_short(computed)}, and "
                f"{allowed:.2g} points are allowed"
            )
        elif relative > UNRESOLVED or (
            is_own
            and points > UNRESOLVED * size
            and relative_difference(written, computed, SMALL) > self._allowed(rounding)
        ):
            self.unresolved[kind] += 1
        else:
            self._confirm(kind)

    def tensors(
        self,
        kind: str,
        where: str,
        written: Any,
        computed: Any,
        copies: Sequence[Any],
        key: str = "",
    ) -> None:
        """Record where a checkpoint's state differs from the recomputed one by more than rounding.

        `written` and `computed` are nested dicts, lists and tuples of tensors and numbers, and
        `copies` the states recomputed with perturbed weights, which show what rounding changes. A
        number that is the same in all of them, such as a setting, does not depend on rounding.

        The difference of two tensors is relative to the larger norm.
        """
        match written, computed:
            case Tensor(), Tensor() if written.shape == computed.shape:
                difference = _tensor_difference(written, computed)
                allowed = self._allowed(max(_tensor_difference(computed, copy) for copy in copies))
                found = f"{where}: {kind} {key} is not that of the steps before"
                if (kind, where) not in self._differing:
                    self._judge(kind, found, difference, allowed)
                if not difference <= allowed:
                    self._differing.add((kind, where))
            case dict(), dict() if written.keys() == computed.keys():
                for name, value in written.items():
                    inner = f"{key}.{name}".lstrip(".")
                    inner_copies = [copy[name] for copy in copies]
                    self.tensors(kind, where, value, computed[name], inner_copies, inner)
            case ((list() | tuple()), (list() | tuple())) if len(written) == len(computed):
                for number, value in enumerate(written):
                    inner = f"{key}.{number}".lstrip(".")
                    inner_copies = [copy[number] for copy in copies]
                    self.tensors(kind, where, value, computed[number], inner_copies, inner)
            case float(), float():
                rounding = max(relative_difference(computed, copy) for copy in copies)
                if rounding <= EXACT:
                    self.exact(kind, f"{where} {key}", written, computed)
                    return
                found = f"{where} {key}: {kind} is {written!r}, computed again {computed!r}"
                difference = relative_difference(written, computed)
                self._judge(kind, found, difference, self._allowed(rounding))
            case _ if type(written) is type(computed) and not isinstance(
                written, Tensor | dict | list | tuple
            ):
                self.equal(kind, f"{where} {key}", written, computed)
            case _:
                self.differ(f"{where}: {kind} {key} is of another form")

    def _confirm(self, kind: str) -> None:
        self.compared[kind] += 1
        self.recomputed += 1

    def _allowed(self, rounding: float) -> float:
        return self.tolerance + ROUNDING_FACTOR * rounding

    def _judge(self, kind: str, found: str, difference: float, allowed: float) -> None:
        # Written so that a difference of NaN is above any tolerance.
        if not difference <= allowed:
            self.differ(
                f"{found}, a relative difference of {difference:.2g}, and {allowed:.2g} is allowed"
            )
        elif allowed > UNRESOLVED:
            self.unresolved[kind] += 1
        else:
            self._confirm(kind)
            self.largest_difference = max(self.largest_difference, difference)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _points(one: object, other: object) -> float:
    """Return the difference of two percentages; infinite unless both are numbers."""
    if not (_is_number(one) and _is_number(other)):
        return math.inf
    assert isinstance(one, int | float)
    assert isinstance(other, int | float)
    try:
        return abs(float(one) - float(other))
    except OverflowError:
        return math.inf


def _tensor_difference(one: Tensor, other: Tensor) -> float:
    """Return the norm of the difference of two tensors, relative to the larger of their norms."""
    first, second = (
        (torch.view_as_real(each.resolve_conj()) if each.is_complex() else each).cpu().double()
        for each in (one.detach(), other.detach())
    )
    size = max(first.norm().item(), second.norm().item())
    apart: float = (first - second).norm().item()
    return apart / size if size else apart


def _short(value: object) -> str:
    text = repr(value) if not isinstance(value, str) else value
    return text if len(text) <= 40 else f"{text[:39]}…"
