"""Observations of a training script, from the records of its processes, for papers' rules."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from lsgd import config
from lsgd.audit.examples import (
    observe_evaluation,
    observe_random_streams,
    observe_shuffling,
    observe_tail,
    observe_worker_batch,
)
from lsgd.audit.gradients import observe_clipping, observe_gradient, observe_label_smoothing
from lsgd.audit.job import AuditedJob
from lsgd.audit.processes import Line
from lsgd.audit.updates import observe_learning_rate, observe_momentum, observe_weight_decay
from lsgd.check.network import InitialWeights, observe_weights
from lsgd.check.observation import Observation
from lsgd.recipe import Recipe
from lsgd.tables import format_count


def script_recipe(job: AuditedJob) -> Recipe:
    """Return a recipe with the minibatch and optimizer of a script, which papers' rules ask for."""
    recipe = config.load_recipe(["recipe=bs256"])
    name = "lars" if "lars" in job.first.first("optimizer").get("name", "").lower() else "sgd"
    averages = any(each.first("gradient").get("averages") for each in job.processes)
    return replace(
        recipe,
        workers=len(job.processes) * job.micro_batches,
        worker_batch=max(1, job.worker_batch),
        optim=replace(recipe.optim, name=name),
        averaging=replace(recipe.averaging, name="ema" if averages else "none"),
        label_smoothing=max(job.smoothing_shares, default=0.0),
    )


def observe(job: AuditedJob) -> list[Observation]:
    """Return all observations of a script's job for which some rule may exist."""
    observers: list[Callable[[AuditedJob], Iterator[Observation]]] = [
        _initialisation, observe_weight_decay, observe_momentum, observe_gradient, observe_clipping,
        observe_label_smoothing, _batchnorm, _precision, observe_learning_rate,
        observe_worker_batch, observe_tail, observe_shuffling, observe_random_streams, _parameters,
        _training_mode, _evaluation_mode, observe_evaluation, _averaging,
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
    batches = [each for update in job.first.updates for each in update["passes"]]
    views = max((each["calls"] for each in batches), default=1)
    times = "once" if views == 1 else f"for each of {views} forward passes of a batch"
    times = times if job.micro_batches == 1 else f"by {job.micro_batches} micro-batches"
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


def _averaging(job: AuditedJob) -> Iterator[Observation]:
    if places := job.first.first("gradient").get("averages"):
        yield Observation("averaging", "an average of the weights is kept", ("ema",), places[0])
