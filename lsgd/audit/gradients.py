"""Observations of the gradients and losses of a training script."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from lsgd.audit.job import AuditedJob, images_of
from lsgd.audit.processes import Line
from lsgd.check.observation import Observation
from lsgd.check.step import observe_smoothing
from lsgd.tables import format_count

TOLERANCE = 1e-2
"""The relative difference up to which two sampled gradients count as equal."""


class _Gradient(NamedTuple):
    """The judgement of the gradient of an update."""

    fault: str
    """The fault as a sentence, empty if it has none."""
    place: str
    """The line of the script."""
    unknown: str = ""
    """Why the factor of the loss is not known, empty if it is."""


def observe_gradient(job: AuditedJob) -> Iterator[Observation]:
    """Observe whether gradients are the mean over all images of an update, in all processes."""
    found = _gradients(job)
    if not found:
        return
    faults = [each for each in found if each.fault]
    known = [each for each in found if not each.unknown]
    if not known:
        run = "not known; the gradient is the sum over all micro-batches of an update"
        if len(job.processes) > 1:
            run += f", averaged over {len(job.processes)} processes"
        yield Observation("loss_factor", run, None, found[0].place)
        return
    run, place, _ = (faults or known)[0]
    sizes = [{images_of(each.updates[i]) for each in job.processes} for i in range(job.updates)]
    uneven = next((each for each in sizes if len(each) > 1), None)
    if not faults and uneven:
        counts = " and ".join(map(str, sorted(uneven)))
        run = f"the means of {counts} images are averaged as if of equally many"
    elif not faults:
        run = f"the mean over all images of an update, in {format_count(len(known), 'update')}"
    yield Observation("gradient", run, not (faults or uneven), place)


def unknown_factor(job: AuditedJob) -> tuple[str, str] | None:
    """Return why the factor of the loss is known in no update, and the line; None if it is."""
    found = _gradients(job)
    if found and all(each.unknown for each in found):
        return found[0].unknown, found[0].place
    return None


def is_in_backward(job: AuditedJob) -> bool:
    """Return whether no gradient is known, as the steps are made inside of backward passes."""
    return job.first.updates[0]["in_backward"] and not _gradients(job)


def _gradients(job: AuditedJob) -> list[_Gradient]:
    return [each for i in range(job.updates) if (each := _gradient_of(job, i))]


def _gradient_of(job: AuditedJob, index: int) -> _Gradient | None:
    """Return what is known of the gradient of an update.

    Returns None if the gradient was not sampled or cannot be judged.
    """
    updates = [each.updates[index] for each in job.processes]
    first = updates[0]
    if any(map(_is_cleared, updates)):
        run = "the optimizer has no gradient: it is cleared between backward and step"
        return _Gradient(run, first["place"])
    if not all(each["used"] and each["local"] for each in updates):
        return None
    locals_, used = (np.array([each[key] for each in updates]) for key in ("local", "used"))
    factor = first["factor"] / first["scale"]
    if not np.isfinite(locals_).all() or not locals_.any() or not factor or math.isnan(factor):
        return None
    mean, count, where = locals_.mean(axis=0), len(updates), first["backward_place"]
    ratio = _ratio(used[0], factor * mean)
    if count > 1 and _spread(locals_) > TOLERANCE:
        # By chance the processes' gradients may be so nearly equal that both fit.
        fits_mean = all(_is_equal(one, factor * mean) for one in used)
        fits_own = all(map(_is_equal, used, factor * locals_))
        if fits_own and not fits_mean:
            run = f"not exchanged: each of {count} processes uses its own gradient"
            return _Gradient(run, where)
    if ratio is None:
        sums = [each["sum"] for each in updates]
        holds_earlier = all(sums) and _ratio(used[0], factor * np.mean(sums, axis=0)) is not None
        return _changed_gradient(first, index, count, holds_earlier=bool(index) and holds_earlier)
    if count > 1 and abs(ratio - 1) > TOLERANCE:
        run = f"{ratio:.3g} times the mean over {count} processes"
        run += ": summed, not averaged" * (abs(ratio / count - 1) < TOLERANCE)
        return _Gradient(run, where)
    return _loss_scale(updates, ratio)


def _is_cleared(update: Line) -> bool:
    """Return whether the sampled weight has no gradient at its optimizer's step, but had one."""
    if any(update["used"] or ()) or not any(update["local"] or ()):
        return False
    # A script may leave out a single layer, as DINO does the last one in its first epoch.
    if update["used"] is None and update["has_others"]:
        return False
    # A step inside of the backward pass may be that of other weights, which have one already.
    return update["group"] is not None and bool(update["factor"]) and not update["in_backward"]


def _loss_scale(updates: list[Line], ratio: float) -> _Gradient:
    """Return what is known of the factor between a gradient and that of the mean over all images.

    `ratio` is that between the gradient and the mean of the backward passes over all processes.
    """
    first, count = updates[0], len(updates)
    losses, passes, place = first["losses"], len(first["passes"]), first["backward_place"]
    if not all(each["losses"] for each in updates):
        return _Gradient("", place, "the script computes the loss itself")
    scales = ratio * np.mean([_factors(each) for each in updates], axis=0)
    is_mean = bool((abs(scales - 1) <= TOLERANCE).any())
    unknown = next(filter(None, map(_unknown_terms, updates)), "")
    has_others = any(loss["has_others"] for each in updates for loss in each["losses"])
    if is_mean and not (has_others and passes > 1):
        return _Gradient("", losses[0]["place"])
    if unknown:
        return _Gradient("", losses[0]["place"], unknown)
    reasons = [(scale, _reason(first, scale, count)) for scale in map(float, scales)]
    scale, why = next((each for each in reasons if each[1]), reasons[0])
    is_of_loss = not why or "a sum" in why or "multiplied" in why
    run = f"{scale:.3g} times the mean over all images{why}"
    return _Gradient(run, losses[0]["place"] if is_of_loss else place)


def _factors(update: Line) -> Any:
    """Return how many times the gradient of each mean that the losses may be an update has.

    The means are over counted targets, over all elements, over the rows of the losses' inputs, and
    over images. Scripts divide a sum by any of these; for one label for each image all are equal.
    """
    total = np.zeros(4)
    outputs = list(dict.fromkeys(each["output"] for each in update["losses"]))
    is_of_passes = len(outputs) == len(update["passes"])
    for each in update["losses"]:
        rows, elements = each["examples"], each["elements"]
        images = update["passes"][outputs.index(each["output"])]["images"] if is_of_passes else rows
        units = np.array([each["targets"], elements, rows, images or rows], float)
        of = {"sum": units, "none": units / max(1, elements)}
        total += each["weight"] * of.get(each["reduction"], np.ones(4))
    return total / update["scale"]


def _unknown_terms(update: Line) -> str:
    """Return why the losses of an update do not show its factor, empty if they do."""
    losses = update["losses"]
    if any(each["has_others"] for each in losses):
        return "the loss has terms beside those of torch.nn.functional"
    if any(each["is_uneven"] for each in losses):
        return "the elements of the loss have weights of their own"
    of_outputs: dict[int, list[float]] = {}
    for each in losses:
        of_outputs.setdefault(each["output"], []).append(each["weight"] / update["scale"])
    # The weights of mixup's two losses have the sum 1.
    own = (each for each in of_outputs.values() if len(each) > 1)
    if len(of_outputs) != len(update["passes"]) or any(abs(sum(e) - 1) > TOLERANCE for e in own):
        return "a micro-batch has several losses"
    return ""


def _reason(update: Line, scale: float, count: int) -> str:
    """Return the usual cause of a factor, empty without one."""
    passes = len(update["passes"])
    if passes > 1 and abs(scale / passes - 1) < TOLERANCE:
        return f": the losses of {passes} micro-batches are summed, not averaged"
    if abs(scale * passes / (images_of(update) or passes) - 1) < TOLERANCE:
        return ": the loss is a sum over images, not a mean"
    if count > 1 and abs(scale * count - 1) < TOLERANCE:
        return f": divided by the number of processes, {count}, and then averaged over them"
    if count > 1 and abs(scale / count - 1) < TOLERANCE:
        return f": multiplied by the number of processes, {count}, whose mean is taken already"
    return ""


def _changed_gradient(
    update: Line, index: int, processes: int, *, holds_earlier: bool
) -> _Gradient | None:
    """Return why a gradient is no multiple of that of its backward passes, and the line.

    `holds_earlier` says that it is one of the sum since the first update. Returns None if it cannot
    be judged.
    """
    if clip := update["value_clip"]:
        return _Gradient(f"cut off at {clip['most']:g} in each element", clip["place"])
    place = update["backward_place"]
    if holds_earlier:
        run = "also that of earlier updates: it is not set to zero between updates"
        return _Gradient(run, place)
    if index:
        return None  # accumulated over updates of unequal factors, for instance
    if processes > 1:
        return _Gradient("not a multiple of the mean over all processes", place)
    run = "not the sum over its backward passes, as it is changed or cleared between"
    return _Gradient(run, place)


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
