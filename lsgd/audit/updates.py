"""Observations of the updates of a training script: weight decay, momentum and lr."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lsgd.audit.job import AuditedJob
from lsgd.audit.processes import Line
from lsgd.check.learning_rate import LrCurve, Warmup, warmup_in_words
from lsgd.check.observation import Observation
from lsgd.check.step import Momentum, WeightDecayGroups
from lsgd.tables import format_count

REFERENCE = 256
"""The minibatch of the papers' reference learning rate."""
TOLERANCE = 1e-2
"""The relative difference up to which a sampled weight is that of an equation."""
LEAST_PRECISION = 1e-4
"""The relative rounding error of weights up to which an update shows its equation."""
MAX_CURVE = 1_000_000
"""The updates up to which a warmup is continued that was seen in part."""


def observe_weight_decay(job: AuditedJob) -> Iterator[Observation]:
    """Observe the weight decay of weights and biases, and that of BN."""
    optimizer = job.first.first("optimizer")
    place = optimizer["place"]
    decays: defaultdict[str, Counter[float]] = defaultdict(Counter)
    for i, group in enumerate(optimizer["groups"]):
        for kind, count in group["counts"].items():
            for decay in {float(each or 0.0) for each in job.setting("weight_decay", i)}:
                decays[kind][decay] += count
    if not decays:
        return
    untouched = optimizer["untouched"]
    left = untouched["count"]
    # The AdamW of torch before 2.7 has no such setting.
    is_decoupled = "adamw" in optimizer["name"].lower() or any(
        group["settings"].get("decoupled_weight_decay") for group in optimizer["groups"]
    )
    parts = [_by_value(decays[each], each) for each in ("weights", "biases")]
    run = "; ".join(filter(None, parts)) + ", decoupled from the gradient" * is_decoupled
    if left:
        run += "; " * bool(run) + f"{left} are not trained, such as {untouched['names'][0]}"
    yield Observation(
        "weight_decay",
        run,
        WeightDecayGroups(
            frozenset(decays["weights"]), frozenset(decays["biases"]), left, is_decoupled
        ),
        place,
    )
    if norms := decays["norms"]:
        yield Observation(
            "batchnorm_decay", _by_value(norms, "gammas and betas"), frozenset(norms), place
        )


def _by_value(decays: Counter[float], kind: str) -> str:
    return ", ".join(f"{decay:g} on {kind} ({decays[decay]})" for decay in sorted(decays)[::-1])


def observe_momentum(job: AuditedJob) -> Iterator[Observation]:
    """Observe the equation of the updates and the momentum, or that they are of another kind."""
    optimizer = job.first.first("optimizer")
    name, place = optimizer["name"], optimizer["place"]
    is_lars = "lars" in name.lower()
    if not is_lars:
        yield Observation("lars", f"{name}, not LARS", None, place)
    # The momentum of a resumed run is unknown.
    sampled = [] if optimizer["started_with_state"] else _sampled_updates(job)
    group = sampled[0]["group"] if sampled else job.groups[0]
    settings = optimizer["groups"][group]["settings"]
    if "momentum" not in settings or is_lars:
        yield Observation("momentum", f"{name}, not momentum SGD", None, place)
        return
    if sampled:
        form, nesterov = _equation(sampled, is_nesterov=bool(settings.get("nesterov")))
    else:
        form = 0 if settings.get("dampening") else 9
        nesterov = bool(settings.get("nesterov"))
    clips = {each["clip"]["max_norm"] for each in job.first.updates if each["clip"]}
    run = f"{name} as equation ({form})" if form else f"{name}, neither equation (9) nor (10)"
    run += f", {'Nesterov' if nesterov else 'not Nesterov'}, "
    momenta = [float(each) for each in job.setting("momentum", group)]
    m = momenta[0]
    last = max(momenta, key=lambda each: abs(each - m))
    run += f"m = {m:g}" if last == m else f"momentum changes from {m:g} to {last:g}"
    if settings.get("dampening"):
        run += f", dampening {settings['dampening']:g}"
    if others := _other_momenta(job, group):
        run += f"; other groups: {', '.join(others)}"
    if clips:
        run += f", of gradients shortened to norm {max(clips):g}"
    # No rule has a momentum that is not one number.
    m = math.nan if others or last != m else m
    yield Observation("momentum", run, Momentum(form, nesterov, m, max(clips, default=None)), place)


def _other_momenta(job: AuditedJob, group: int) -> list[str]:
    """Describe the momenta of parameter groups whose settings differ from those of one of them."""
    groups = job.first.first("optimizer")["groups"]
    found: list[str] = []
    for i in job.groups:
        settings, first = groups[i]["settings"], groups[group]["settings"]
        is_nesterov = bool(settings.get("nesterov"))
        momenta = job.setting("momentum", i)
        if "momentum" not in settings:
            found.append("not momentum SGD")
        elif is_nesterov != bool(first.get("nesterov")):
            found.append(f"{'Nesterov' if is_nesterov else 'not Nesterov'}, m = {momenta[0]:g}")
        elif momenta != job.setting("momentum", group):
            found.append(f"m = {momenta[0]:g}")
    return [*dict.fromkeys(found)]


def _sampled_updates(job: AuditedJob) -> list[Line]:
    """Return the first records of a sampled weight in which each update follows the one before.

    A weight of 16 bits loses too much of each update to tell the equation.
    """
    updates = [*takewhile(_is_sampled, job.first.updates)]
    if not updates or updates[0]["eps"] > LEAST_PRECISION:
        return []  # what the momentum was before is unknown
    # The script may change its weights itself, as by loading a checkpoint.
    follows = takewhile(lambda pair: pair[0]["after"] == pair[1]["before"], pairwise(updates))
    return [updates[0], *(later for _, later in follows)]


def _equation(updates: Sequence[Line], *, is_nesterov: bool) -> tuple[int, bool]:
    """Return the equation of momentum SGD that explains a sampled weight after updates.

    The equation is 0 if neither explains it. Of two that do, the one with or without Nesterov is
    returned as the optimizer has it.
    """
    w, after = (torch.tensor(each, dtype=torch.float64) for each in (
        updates[0]["before"], updates[-1]["after"]
    ))  # fmt: skip
    gradients = [torch.tensor(each["used"], dtype=torch.float64) for each in updates]
    settings = [
        {key: float(each[key][each["group"]] or 0.0) for key in ("lr", "momentum", "weight_decay")}
        for each in updates
    ]
    moved = (after - w).abs().max()
    # Weights lose the last bits of each update.
    allowed = TOLERANCE * moved + len(updates) * updates[0]["eps"] * w.abs().max()
    for form in (9, 10):
        for nesterov in (is_nesterov, not is_nesterov):
            expected = _weights_by_hand(w, gradients, settings, form, nesterov=nesterov)
            if bool(((expected - after).abs() <= allowed).all()):
                return form, nesterov
    return 0, False


def _weights_by_hand(
    w: Tensor,
    gradients: Sequence[Tensor],
    settings: Sequence[Mapping[str, float]],
    form: int,
    *,
    nesterov: bool,
) -> Tensor:
    """Compute the weights after updates of SGD by equation (9) or (10), without an optimizer.

    `settings` has the lr, the momentum and the weight decay of each update.
    """
    buffer = torch.zeros_like(w)
    for gradient, own in zip(gradients, settings, strict=True):
        lr, m = own["lr"], own["momentum"]
        g = gradient + own["weight_decay"] * w
        if form == 9:
            buffer = m * buffer + g
            w = w - lr * (g + m * buffer if nesterov else buffer)
        else:
            buffer = m * buffer + lr * g
            w = w - (lr * g + m * buffer if nesterov else buffer)
    return w


def _is_sampled(update: Line) -> bool:
    has_group = update["group"] is not None  # else another optimizer updates the sampled weight
    is_counted = has_group and update["lr"]  # else it was made by another optimizer alone
    return bool(is_counted and update["used"] and update["before"] and update["after"])


def observe_learning_rate(job: AuditedJob) -> Iterator[Observation]:
    """Observe the lr by linear scaling, its peak and its warmup."""
    if not job.minibatch:
        return  # no argument of the network has shown how many images it has
    optimizer = job.first.first("optimizer")
    main = job.groups[0]
    settings = optimizer["groups"][main]["settings"]
    curve = np.array(job.setting("lr", main), float)
    place, lr_place = optimizer["place"], optimizer["scheduler_place"] or optimizer["place"]
    highest = float(curve.max())
    computed = _computed_peak(job, float(settings.get("initial_lr") or 0.0))
    known = computed or settings.get("max_lr") or settings.get("initial_lr") or 0.0
    if curve[-1] < highest and not optimizer["started_with_state"]:
        known = 0.0  # the curve has its peak behind it
    peak = max(float(known), highest)  # a scheduler may raise the lr above that given
    is_rising = len(curve) > 1 and curve[-1] > curve[0] and curve[-1] == highest
    steps = job.steps_per_epoch
    # The peak of a warmup by hand is not known before it is reached.
    is_known = not (is_rising and peak <= highest) or math.isclose(computed, highest)
    others = _other_factors(job, curve)
    if is_known or others:
        linear = peak * REFERENCE / job.minibatch
        run = f"lr {peak:.4g} for {format_count(job.minibatch, 'image')}"
        if job.minibatch != REFERENCE:
            run += f", by linear scaling {linear:.4g} for {REFERENCE} images"
        beside = ", ".join(f"{peak * each:.4g}" for each in others[:3]) + ", …" * (len(others) > 3)
        beside = f"; other groups: lr {beside}" if others else ""
        nine = float(f"{linear:.10g}")  # without the rounding of the script's own arithmetic
        value = nine, REFERENCE, *(linear * each for each in others)
        yield Observation("reference_lr", run + beside, value, place)
        run = f"lr {peak:.5g} at most{beside}"
        yield Observation("peak_lr", run, math.nan if others else peak, place)
    if not is_known:
        peak = max(float(curve[-1]), 0.1 * job.minibatch / REFERENCE)
    if not steps:
        return
    whole = _continued(curve, peak)
    ramp = LrCurve(whole, np.arange(len(whole)) / steps)
    reference = peak * REFERENCE / job.minibatch
    is_small = job.minibatch <= REFERENCE
    starts = bool(curve[0] == peak) if is_small else True
    run = warmup_in_words(ramp)
    run += (
        f"; {format_count(len(np.unique(curve)), 'value')} in {format_count(len(curve), 'update')}"
    )
    yield Observation(
        "warmup", run, Warmup(ramp, ramp, peak if is_small else reference, starts), lr_place
    )


def _computed_peak(job: AuditedJob, initial_lr: float) -> float:
    """Return the highest lr of a LambdaLR for a group with an initial lr; 0 if unknown."""
    factors = {
        factor
        for each in job.first.of_kind("schedule")
        for lr, factor in zip(each["initial_lrs"], each["highest_factors"], strict=True)
        if math.isclose(lr, initial_lr, rel_tol=1e-6)
    }
    return initial_lr * (factors.pop() or 0.0) if len(factors) == 1 else 0.0


def _other_factors(job: AuditedJob, curve: Any) -> list[float]:
    """Return the factors other than 1 between the lr of other groups and a curve of the first."""
    factors = set()
    for group in job.groups[1:]:
        own = np.array(job.setting("lr", group), float)
        factors |= {float(f"{each:.6g}") for each in (own[curve > 0] / curve[curve > 0])}
    return sorted(factors - {1.0})


def _continued(curve: Any, peak: float) -> Any:
    """Return a curve of lr that rises in a straight line, continued up to its peak."""
    slopes = np.diff(curve)
    if not len(slopes) or curve[-1] >= peak or slopes[-1] <= 0:
        return curve
    if not np.allclose(slopes, slopes[0], rtol=1e-3, atol=1e-12):
        return curve
    slope = (curve[-1] - curve[0]) / len(slopes)
    count = math.ceil((peak - curve[0]) / slope - 1e-6)
    return np.minimum(curve[0] + slope * np.arange(min(count, MAX_CURVE) + 1), peak)
