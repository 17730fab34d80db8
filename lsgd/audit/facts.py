"""Observations of a training script, from the records of its processes, for papers' rules."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lsgd import config
from lsgd.audit.processes import Line, LoaderRecord, ScriptProcess
from lsgd.check.learning_rate import LrCurve, Warmup, warmup_in_words
from lsgd.check.network import InitialWeights, observe_weights
from lsgd.check.observation import Observation
from lsgd.check.step import Momentum, WeightDecayGroups, observe_smoothing
from lsgd.recipe import Recipe
from lsgd.tables import format_count

REFERENCE = 256
"""The minibatch of the papers' reference learning rate."""
TOLERANCE = 1e-2
"""The relative difference up to which two sampled gradients count as equal."""
LEAST_PRECISION = 1e-4
"""The relative rounding error of weights up to which an update shows its equation."""
MAX_CURVE = 1_000_000
"""The updates up to which a warmup is continued that was seen in part."""


@dataclass(frozen=True)
class AuditedJob:
    """The processes of an audited script, with what follows from their first updates."""

    processes: list[ScriptProcess]

    @property
    def first(self) -> ScriptProcess:
        """The process of rank 0, or else of the lowest rank."""
        return self.processes[0]

    @property
    def updates(self) -> int:
        """The number of updates that were seen of every process."""
        return min(len(each.updates) for each in self.processes)

    @property
    def micro_batches(self) -> int:
        """The forward and backward passes of a process in an update."""
        return max(1, round(median(_passes(each) for each in self.first.updates)))

    @property
    def minibatch_sizes(self) -> list[int]:
        """The images of each update, over all processes."""
        return [
            sum(_images(each.updates[i]) for each in self.processes) for i in range(self.updates)
        ]

    @property
    def minibatch(self) -> int:
        """The most frequent number of images in an update, over all processes."""
        return Counter(self.minibatch_sizes).most_common(1)[0][0]

    @property
    def worker_batch(self) -> int:
        """The most frequent number of images in a forward pass."""
        sizes = [each["images"] for update in self.first.updates for each in update["passes"]]
        return Counter(sizes).most_common(1)[0][0] if sizes else 0

    @property
    def steps_per_epoch(self) -> int:
        """The updates of an epoch; 0 if unknown."""
        training = self.first.training
        if not training:
            return 0
        # A group of micro-batches at the end of an epoch may be smaller, and is an update too.
        counted = training[1].updates - training[0].updates if len(training) > 1 else 0
        return max(counted, (training[0].batches or 0) // self.micro_batches)

    @property
    def groups(self) -> list[int]:
        """The numbers of the parameter groups with weights, biases or norms of the network.

        The first is that with the most weights.
        """
        optimizer = self.first.first("optimizer")
        counts = [each["counts"] for each in optimizer["groups"]]
        own = [i for i, each in enumerate(counts) if each.keys() & {"weights", "biases", "norms"}]
        # Of flat copies of the parameters it is not known which of them are weights.
        return sorted(own or range(len(counts)), key=lambda i: -counts[i].get("weights", 0))

    def setting(self, name: str, group: int) -> list[Any]:
        """Return a setting of a parameter group in each update, None where it has none.

        An optimizer beside the first may be met after the first update. Updates that were made by
        another optimizer alone are left out.
        """
        first = self.first.first("optimizer")["groups"][group]["settings"].get(name)
        updates = [each[name] for each in self.first.updates[: self.updates] if each[name]]
        return [each[group] if group < len(each) else first for each in updates] or [first]

    def summary(self) -> str:
        """Describe the job's processes, updates and minibatch in one sentence."""
        count, passes = len(self.processes), self.micro_batches
        parts = [format_count(count, "process", "processes")]
        if passes > 1:
            parts.append(f"{passes} micro-batches")
        parts.append(format_count(self.worker_batch, "image"))
        images = format_count(self.minibatch, "image")
        return f"{format_count(self.updates, 'update')} seen, of {images} = {' x '.join(parts)}"


def _passes(update: Line) -> float:
    return float(len(update["passes"]) / max(1, update["models"]))


def _images(update: Line) -> int:
    return int(sum(each["images"] for each in update["passes"]) / max(1, update["models"]))


def script_recipe(job: AuditedJob) -> Recipe:
    """Return a recipe with the minibatch and optimizer of a script, which papers' rules ask for."""
    recipe = config.load_recipe(["+recipe=bs256"])
    name = "lars" if "lars" in job.first.first("optimizer").get("name", "").lower() else "sgd"
    averages = any(each.first("gradient").get("averages") for each in job.processes)
    smoothing = _smoothing_values(job)
    return replace(
        recipe,
        workers=len(job.processes) * job.micro_batches,
        worker_batch=max(1, job.worker_batch),
        optim=replace(recipe.optim, name=name),
        averaging=replace(recipe.averaging, name="ema" if averages else "none"),
        label_smoothing=max(smoothing, default=0.0),
    )


def observe(job: AuditedJob) -> list[Observation]:
    """Return all observations of a script's job for which some rule may exist."""
    observers: list[Callable[[AuditedJob], Iterator[Observation]]] = [
        _initialisation, _decay, _momentum, observe_gradient, _clipping, _smoothing, _batchnorm,
        _precision, _learning_rate, _worker_batch, _tail, _shuffling, _random_streams, _parameters,
        _training_mode, _evaluation_mode, _evaluation, _averaging,
    ]  # fmt: skip
    return [each for observer in observers for each in observer(job)]


def _initialisation(job: AuditedJob) -> Iterator[Observation]:
    layers = job.first.of_kind("layer")
    convolutions = [each for each in layers if each["type"] == "convolution"]
    linear = [each for each in layers if each["type"] == "linear"]
    norms = [each for each in layers if each["type"] == "batchnorm"]
    if not convolutions or job.first.first("loaded").get("is_loaded"):
        return  # loaded weights are not initial ones
    yield from observe_weights(*(map(_initial_weights, each) for each in (convolutions, linear)))
    if last := [each for each in norms if each["is_last_norm"]]:
        gammas = _gammas(last)
        yield Observation(
            "last_gamma",
            f"{_values(gammas)} in the last norm of {format_count(len(last), 'block')}",
            gammas,
            last[0]["place"],
        )
    if norms:
        others = [each for each in norms if not each["is_last_norm"]]
        values = _gammas(others)
        beta = any(each["bias"] for each in norms)
        yield Observation(
            "other_gammas",
            f"{_values(values)} in {len(others)} other BNs, and beta {'not ' * beta}0",
            values <= {1.0} and not beta,
            norms[0]["place"],
        )
        eps = {each["eps"] for each in norms}
        yield Observation("batchnorm_eps", _values(eps), eps, norms[0]["place"])


def _initial_weights(layer: Line) -> InitialWeights:
    named = {key: layer[key] for key in ("shape", "mean", "std", "place")}
    return InitialWeights(**named, has_bias=layer["bias"])


def _gammas(norms: Sequence[Line]) -> set[float]:
    """Return the initial gammas; Horovod makes a step without gradients to broadcast a state."""
    return {round(value, 3) for each in norms for value in (each["low"], each["high"])}


def _values(values: set[float]) -> str:
    low, high = min(values, default=0.0), max(values, default=0.0)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _decay(job: AuditedJob) -> Iterator[Observation]:
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
    yield Observation(
        "weight_decay",
        _by_value(decays["weights"], "weights")
        + "; " * bool(decays["biases"])
        + _by_value(decays["biases"], "biases")
        + (f"; {left} are not trained, such as {untouched['names'][0]}" if left else ""),
        WeightDecayGroups(frozenset(decays["weights"]), frozenset(decays["biases"]), left),
        place,
    )
    if norms := decays["norms"]:
        yield Observation(
            "batchnorm_decay", _by_value(norms, "gammas and betas"), frozenset(norms), place
        )


def _by_value(decays: Counter[float], kind: str) -> str:
    return ", ".join(f"{decay:g} on {kind} ({decays[decay]})" for decay in sorted(decays)[::-1])


def _momentum(job: AuditedJob) -> Iterator[Observation]:
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


def observe_gradient(job: AuditedJob) -> Iterator[Observation]:
    """Observe whether gradients are the mean over all images of an update, in all processes."""
    found = [each for i in range(job.updates) if (each := _gradient_of(job, i))]
    if not found:
        return
    faults = [each for each in found if each[0]]
    run, place = faults[0] if faults else found[0]
    sizes = [{_images(each.updates[i]) for each in job.processes} for i in range(job.updates)]
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
    factor = _clip_factor(first) / first["scale"]
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
        elif abs(scale * passes / (_images(first) or passes) - 1) < TOLERANCE:
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


def _clip_factor(update: Line) -> float:
    clip = update["clip"]
    if not clip:
        return 1.0
    return float(min(1.0, clip["max_norm"] / (clip["norm"] + 1e-6)))


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


def _clipping(job: AuditedJob) -> Iterator[Observation]:
    clips = [each["clip"] for each in job.first.updates if each["clip"]]
    if clips and job.first.first("gradient").get("scaler") is not None:
        scaled = [each for each in clips if each["is_scaled"]]
        run = f"{len(clips)} updates are clipped to norm {clips[0]['max_norm']:g}"
        if scaled:
            run += f", {len(scaled)} of them while the loss scale is still in the gradients"
        yield Observation("clipping", run, not scaled, (scaled or clips)[0]["place"])


def _smoothing_values(job: AuditedJob) -> set[float]:
    losses = [each for update in job.first.updates for each in update["losses"]]
    return {each["smoothing"] for each in losses if each["smoothing"] is not None}


def _smoothing(job: AuditedJob) -> Iterator[Observation]:
    shares = _smoothing_values(job)
    if len(shares) == 1:
        place = next(each["losses"][0]["place"] for each in job.first.updates if each["losses"])
        yield observe_smoothing(shares.pop(), place)


def _batchnorm(job: AuditedJob) -> Iterator[Observation]:
    calls = [each for each in job.first.of_kind("batchnorm") if each["train"] and each["grad"]]
    if not calls:
        return
    usual = max(calls, key=lambda each: each["calls"])
    shared = [each for each in calls if each["sync"]]
    rows, count = usual["rows"], len(job.processes)
    run = f"over the {rows} images of a forward pass of one process"
    if shared:
        over = format_count(count, "process", "processes")
        run = f"SyncBatchNorm, over {rows * count} images of {over}"
    yield Observation("batchnorm", run, not shared, (shared or [usual])[0]["place"])
    layers: dict[float | None, list[Line]] = {}
    # Scripts with SAM set a momentum of 0 for the passes that shall not move the statistics.
    for each in [each for each in calls if each["momentum"] != 0] or calls:
        momentum = each["momentum"]
        m = None if momentum is None else round((1 - float(momentum)) ** job.micro_batches, 6)
        layers.setdefault(m, []).append(each)
    usual_m = max(layers, key=lambda m: sum(each["calls"] for each in layers[m]))
    other = next((m for m in layers if m != usual_m), usual_m)
    times = "once" if job.micro_batches == 1 else f"by {job.micro_batches} micro-batches"
    run = f"momentum {_share(usual_m)} per step, {times}, each process its own"
    if other != usual_m:
        run += f"; {_share(other)} in other layers"
    value = usual_m if len(layers) == 1 else None
    yield Observation("running_average", run, value, layers[other][0]["place"])


def _forward_place(job: AuditedJob) -> str:
    """Return the line that calls the network in training, empty if unknown."""
    passes = (each for update in job.first.updates for each in update["passes"])
    return next((str(each["place"]) for each in passes), "")


def _share(m: float | None) -> str:
    return "of a cumulative average" if m is None else f"{m:g}"


def _precision(job: AuditedJob) -> Iterator[Observation]:
    names = {name for each in job.processes for name in each.first("formats").get("names", [])}
    if names:
        scaler = job.first.first("gradient").get("scaler")
        run = " and ".join(sorted(names))
        run += f", loss scale {scaler:g}" if scaler is not None else ""
        yield Observation("precision", run, names, _forward_place(job))


def _learning_rate(job: AuditedJob) -> Iterator[Observation]:
    if not job.minibatch:
        return  # no argument of the network has shown how many images it has
    optimizer = job.first.first("optimizer")
    main = job.groups[0]
    settings = optimizer["groups"][main]["settings"]
    curve = np.array(job.setting("lr", main), float)
    place, lr_place = optimizer["place"], optimizer["scheduler_place"] or optimizer["place"]
    known = settings.get("max_lr") or settings.get("initial_lr") or 0.0
    peak = max(float(known), float(curve.max()))  # a scheduler may raise the lr above that given
    is_rising = len(curve) > 1 and curve[-1] > curve[0] and curve[-1] == curve.max()
    steps = job.steps_per_epoch
    # The peak of a warmup by hand is not known before it is reached.
    is_known = not (is_rising and peak <= curve[-1])
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


def _worker_batch(job: AuditedJob) -> Iterator[Observation]:
    k, n = len(job.processes) * job.micro_batches, job.worker_batch
    place = job.first.training[0].made if job.first.training else job.first.updates[0]["place"]
    yield Observation("worker_batch", f"n = {n} in each of k = {k} workers", {n}, place)


def _tail(job: AuditedJob) -> Iterator[Observation]:
    sizes = sorted({each for each in job.minibatch_sizes if each})  # 0: its passes were not seen
    training = job.first.training
    if not training or not (training[0].is_whole or len(sizes) > 1):
        return
    run = f"steps of {' and '.join(map(str, sizes))} images"
    yield Observation("tail", run, len(sizes) == 1, training[0].made)


def _epochs(job: AuditedJob) -> list[list[LoaderRecord]]:
    """Return the records of each training epoch that all processes have begun."""
    count = min(len(each.training) for each in job.processes)
    return [[each.training[i] for each in job.processes] for i in range(count)]


def _shuffling(job: AuditedJob) -> Iterator[Observation]:
    epochs = _epochs(job)
    if not epochs or not all(each.order for each in epochs[0]):
        return
    first, count = epochs[0][0], len(job.processes)
    kept = next((each for epoch in epochs for each in epoch if each.is_kept), None)
    if kept is not None:
        # A script that takes all batches before its first update may shuffle them itself.
        if kept.updated_at_end < kept.updated:
            run = "the batches of epoch 1 are kept and repeated, as by itertools.cycle"
            yield Observation("shuffling", run, False, kept.place)
        return
    told = [line for each in job.processes for line in each.first("set_epochs").get("epochs", [])]
    faults: list[tuple[str, str]] = []
    for number, epoch in enumerate(epochs[1:], start=2):
        shared = min(len(first.order), len(epoch[0].order))
        if shared > 7 and first.order[:shared] == epoch[0].order[:shared] and not _in_order(first):
            why = "; set_epoch is never called" if first.is_distributed and not told else ""
            faults.append((f"epoch {number} has the order of epoch 1{why}", first.place))
            break
    if _in_order(first):
        faults.append(("images are not in random order", first.made))
    elif len(epochs) == 1 and first.is_distributed and not told:
        faults.append(("set_epoch is not called before the first epoch", first.place))
    faults += [(fault, first.made) for fault in _missing(epochs[0], count)]
    run = "; ".join(fault for fault, _ in faults)
    if not run:
        seen = "a new permutation in each of 2 epochs" if len(epochs) > 1 else "a permutation"
        run = f"{seen}, divided among {format_count(count, 'process', 'processes')}"
    yield Observation("shuffling", run, not faults, faults[0][1] if faults else first.made)


def _in_order(epoch: LoaderRecord) -> bool:
    steps = np.diff(epoch.order)
    return len(steps) > 7 and Counter(steps.tolist()).most_common(1)[0][1] > 0.5 * len(steps)


def _missing(epoch: list[LoaderRecord], count: int) -> Iterator[str]:
    """Yield how the images of an epoch differ from each image once, over its processes."""
    length = epoch[0].length
    if length is not None and epoch[0].batches is None:
        # The sampler may have no end, and permute the images again and again.
        epoch = [replace(each, order=each.order[: math.ceil(length / count)]) for each in epoch]
    sets = [set(each.order) for each in epoch]
    shared = sum(map(len, sets)) - len(set().union(*sets))
    if count > 1 and shared >= count:
        yield f"{shared} images of an epoch are in more than one process"
    again = max(len(each.order) - len(own) for each, own in zip(epoch, sets, strict=True))
    if again >= max(2, count):
        yield f"{again} images of an epoch are repeated within a process"
    if length is not None and all(each.is_whole for each in epoch) and not again:
        never = length - len(set().union(*sets))
        step = sum(max(each.sizes) for each in epoch)
        if never >= step + count and shared < count:
            yield f"{never} of {length} images are never seen in an epoch"


def _random_streams(job: AuditedJob) -> Iterator[Observation]:
    owners: dict[tuple[str, str], list[str]] = {}
    workers: set[str] = set()
    for process in job.processes:
        for line in process.streams:
            who = f"process {process.rank}"
            if line["worker"] is not None:
                who += f" worker {line['worker']}"
            workers |= {who} if line["drawn"] else set()
            for name, state in line["drawn"].items():
                owners.setdefault((name, state), []).append(who)
    if not owners:
        return
    shared = [(name, whose) for (name, _), whose in owners.items() if len(whose) > 1]
    run = format_count(len(workers), "process draws", "data workers draw")
    run += " from streams of their own"
    if shared:
        name, whose = max(shared, key=lambda each: len(each[1]))
        distinct = list(dict.fromkeys(whose))
        run = ", ".join(distinct[:3]) + ", …" * (len(distinct) > 3)
        run += f" {'draw' if len(distinct) > 1 else 'draws'} the same random numbers of {name}"
        run += ", in each epoch again" if len(whose) > len(distinct) else ""
    place = job.first.training[0].made if job.first.training else ""
    yield Observation("random_streams", run, not shared, place)


def _parameters(job: AuditedJob) -> Iterator[Observation]:
    sums = [each.first("checksums") for each in job.processes]
    if len(sums) < 2 or not all(sums):
        return
    parts, same = [], True
    ends = [len(each.updates) for each in job.processes]
    moments = [("start", "before the first update")]
    if len(set(ends)) == 1:
        moments.append(("end", f"after update {ends[0]}"))
    for key, when in moments:
        names = sums[0][key]
        other = [name for name in names if len({str(each[key].get(name)) for each in sums}) > 1]
        if other:
            same = False
            parts.append(f"{len(other)} of {len(names)} tensors differ between processes {when}")
    run = "; ".join(parts) or f"equal in {len(sums)} processes, " + " and ".join(
        when for _, when in moments
    )
    yield Observation("parameters", run, same, job.first.updates[0]["place"])


def _training_mode(job: AuditedJob) -> Iterator[Observation]:
    updates = job.first.updates
    left = [
        (i, each["place"])
        for i, update in enumerate(updates, start=1)
        for each in update["passes"][:1]
        if not each["train"]
    ]
    run = f"training mode in {format_count(len(updates), 'update')}"
    if left:
        run = f"{len(left)} of {len(updates)} updates are made in evaluation mode, from update "
        run += f"{left[0][0]} on"
    place = left[0][1] if left else _forward_place(job)
    yield Observation("training_mode", run, not left, place)


def _evaluation_mode(job: AuditedJob) -> Iterator[Observation]:
    passes = [
        line
        for each in job.processes
        for line in each.of_kind("evaluation")
        if line["is_of_evaluation"]
    ]
    if not passes:
        return
    moving = [each for each in passes if each["train"]]
    heavy = [each for each in passes if each["grad"] and not each["train"]]
    total = sum(each["calls"] for each in passes)
    parts = []
    if moving:
        calls = sum(each["calls"] for each in moving)
        parts.append(
            f"{calls} of {total} passes in training mode: they move BN's running statistics, and "
            "dropout is on"
        )
    if heavy:
        calls = sum(each["calls"] for each in heavy)
        parts.append(f"{calls} of {total} passes keep gradients")
    run = "; ".join(parts) or f"{format_count(total, 'pass', 'passes')} without gradients"
    yield Observation("evaluation_mode", run, not parts, (moving or heavy or passes)[0]["place"])


def _evaluation(job: AuditedJob) -> Iterator[Observation]:
    passes = [each for process in job.processes for each in process.evaluation]
    keys = dict.fromkeys((each.number, each.epoch) for each in passes)
    for key in keys:
        found = [each for each in passes if (each.number, each.epoch) == key]
        length = found[0].length
        if not length or not all(each.is_whole and each.order for each in found):
            continue
        counts = Counter(example for each in found for example in each.order)
        if all(each.is_gathered for each in found):
            counts = Counter(set(counts))
        counts.update(_evaluated_besides(found, passes))
        times = Counter(counts.get(example, 0) for example in range(length))
        place = found[0].used_at or found[0].place
        if len(times) == 1:
            [often] = times
            run = f"each of {length:,} once"
            if often == len(found) > 1:
                run = f"each of {length:,} by each of {often} processes"
            elif often > 1:
                run = f"each of {length:,} {often} times"
            yield Observation("evaluation", run, often > 0, place)
            return
        usual = times.most_common(1)[0][0]
        again = sum(each for often, each in times.items() if often > usual)
        never = times.get(0, 0)
        parts = [f"{again} of {length:,} counted more often than the others"] * bool(again)
        parts += [f"{never} of {length:,} never"] * bool(never)
        yield Observation("evaluation", ", ".join(parts), False, found[0].made)
        return


def _evaluated_besides(found: list[LoaderRecord], passes: list[LoaderRecord]) -> Iterator[int]:
    """Yield the examples of a whole dataset that loaders of Subsets of it evaluate in addition.

    A script that drops the examples which its processes cannot divide may evaluate these in each of
    its processes. They are not evaluated more often than others, as each process counts its own.
    """
    first = found[0]
    if first.subset is not None:
        return
    parts = {
        tuple(each.subset[example] for example in each.order)
        for each in passes
        if each.subset is not None and (each.root, each.updates) == (first.root, first.updates)
    }
    for part in parts:
        yield from part


def _averaging(job: AuditedJob) -> Iterator[Observation]:
    if places := job.first.first("gradient").get("averages"):
        yield Observation("averaging", "an average of the weights is kept", "ema", places[0])
