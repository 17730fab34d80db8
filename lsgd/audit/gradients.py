"""Observations of the gradients and losses of a training script."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from lsgd.audit.job import AuditedJob, images_of
from lsgd.audit.processes import Line
from lsgd.check.observation import Observation
from lsgd.check.step import observe_smoothing
from lsgd.tables import format_count

TOLERANCE = 1e-2
"""The relative difference up to which two sampled gradients count as equal."""


def observe_gradient(job: AuditedJob) -> Iterator[Observation]:
    """Observe whether gradients are the mean over all images of an update, in all processes."""
    found = [each for i in range(job.updates) if (each := _gradient_of(job, i))]
    if not found:
        return
    faults = [each for each in found if each[0]]
    run, place = faults[0] if faults else found[0]
    sizes = [{images_of(each.updates[i]) for each in job.processes} for i in range(job.updates)]
    uneven = next((each for each in sizes if len(each) > 1), None)
    if not faults and uneven:
        counts = " and ".join(map(str, sorted(uneven)))
        run = f"the means of {counts} images are averaged as if of equally many"
    elif not faults:
        run = f"the mean over all images of an update, in {format_count(len(found), 'update')}"
    yield Observation("gradient", run, not (faults or uneven), place)


def _gradient_of(job: AuditedJob, index: int) -> tuple[str, str] | None:
    """Return what is wrong with the gradient of an update, empty if nothing, and the line.

    Returns None if the gradient was not sampled or cannot be judged.
    """
    updates = [each.updates[index] for each in job.processes]
    first = updates[0]
    if not all(each["used"] and each["local"] for each in updates):
        return None
    locals_, used = (np.array([each[key] for each in updates]) for key in ("local", "used"))
    factor = first["factor"] / first["scale"]
    if not np.isfinite(locals_).all() or not locals_.any() or not factor or math.isnan(factor):
        return None
    mean, count = locals_.mean(axis=0), len(updates)
    ratio = _ratio(used[0], factor * mean)
    if count > 1 and _spread(locals_) > TOLERANCE:
        # By chance the processes' gradients may be so nearly equal that both fit.
        fits_mean = all(_is_equal(one, factor * mean) for one in used)
        fits_own = all(map(_is_equal, used, factor * locals_))
        if fits_own and not fits_mean:
            return (
                f"not exchanged: each of {count} processes uses its own gradient",
                first["backward_place"],
            )
    if ratio is None:
        sums = [each["sum"] for each in updates]
        holds_earlier = all(sums) and _ratio(used[0], factor * np.mean(sums, axis=0)) is not None
        return _changed_gradient(first, index, count, holds_earlier=bool(index) and holds_earlier)
    if count > 1 and abs(ratio - 1) > TOLERANCE:
        summed = abs(ratio / count - 1) < TOLERANCE
        return (
            f"{ratio:.3g} times the mean over {count} processes"
            + (": summed, not averaged" if summed else ""),
            first["backward_place"],
        )
    weights = [_loss_weight(each) for each in updates]
    if any(weight is None for weight in weights):
        return "", first["backward_place"]
    scale = ratio * float(np.mean([weight for weight in weights if weight is not None]))
    if abs(scale - 1) > TOLERANCE:
        passes = len(first["passes"])
        why = ""
        if passes > 1 and abs(scale / passes - 1) < TOLERANCE:
            why = f": the losses of {passes} micro-batches are summed, not averaged"
        elif abs(scale * passes / (images_of(first) or passes) - 1) < TOLERANCE:
            why = ": the loss is a sum over images, not a mean"
        elif count > 1 and abs(scale * count - 1) < TOLERANCE:
            why = f": divided by the number of processes, {count}, and then averaged over them"
        elif count > 1 and abs(scale / count - 1) < TOLERANCE:
            why = f": multiplied by the number of processes, {count}, whose mean is taken already"
        is_of_loss = not why or "a sum" in why or "multiplied" in why
        place = first["losses"][0]["place"] if is_of_loss else first["backward_place"]
        return f"{scale:.3g} times the mean over all images{why}", place
    return "", first["losses"][0]["place"] if first["losses"] else first["backward_place"]


def _changed_gradient(
    update: Line, index: int, processes: int, *, holds_earlier: bool
) -> tuple[str, str] | None:
    """Return why a gradient is no multiple of that of its backward passes, and the line.

    `holds_earlier` says that it is one of the sum since the first update. Returns None if it cannot
    be judged.
    """
    if clip := update["value_clip"]:
        return f"cut off at {clip['most']:g} in each element", clip["place"]
    place = update["backward_place"]
    if holds_earlier:
        return "also that of earlier updates: it is not set to zero between updates", place
    if index:
        return None  # accumulated over updates of unequal factors, for instance
    if processes > 1:
        return "not a multiple of the mean over all processes", place
    return "not the sum over its backward passes, as it is changed or cleared between", place


def _ratio(vector: Any, base: Any) -> float | None:
    """Return the factor between two parallel vectors; None if they are not parallel."""
    square = float(base @ base)
    if not square or not np.isfinite(vector).all():
        return None
    ratio = float(vector @ base) / square
    rest = np.abs(vector - ratio * base).max()
    return ratio if rest <= TOLERANCE * np.abs(ratio * base).max() else None


def _is_equal(vector: Any, other: Any) -> bool:
    ratio = _ratio(vector, other)
    return ratio is not None and abs(ratio - 1) < TOLERANCE


def _spread(rows: Any) -> float:
    return float(np.abs(rows - rows[0]).max() / max(np.abs(rows).max(), 1e-300))


def _loss_weight(update: Line) -> float | None:
    """Return the factor between an update's gradient and that of the mean loss of its images.

    Returns None if there is not one known loss for each forward pass, or a term beside it.
    """
    losses = update["losses"]
    if len(losses) != len(update["passes"]) or not losses:
        return None
    if any(each["has_others"] for each in losses):
        return None  # these are not all terms of the loss
    total = sum(
        each["weight"] * (each["examples"] if each["reduction"] == "sum" else 1) for each in losses
    )
    return float(total / update["scale"])


def observe_clipping(job: AuditedJob) -> Iterator[Observation]:
    """Observe whether gradients are clipped before the loss scale is taken out."""
    clips = [each["clip"] for each in job.first.updates if each["clip"]]
    if clips and job.first.first("gradient").get("scaler") is not None:
        scaled = [each for each in clips if each["is_scaled"]]
        run = f"{len(clips)} updates are clipped to norm {clips[0]['max_norm']:g}"
        if scaled:
            run += f", {len(scaled)} of them while the loss scale is still in the gradients"
        yield Observation("clipping", run, not scaled, (scaled or clips)[0]["place"])


def observe_label_smoothing(job: AuditedJob) -> Iterator[Observation]:
    """Observe the share of a label that is spread over all classes, if it is one."""
    shares = job.smoothing_shares
    if len(shares) == 1:
        place = next(each["losses"][0]["place"] for each in job.first.updates if each["losses"])
        yield observe_smoothing(shares.pop(), place)
