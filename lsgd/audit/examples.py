"""Observations of the examples of a training script: their order, random draws and evaluation."""

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np

from lsgd.audit.job import AuditedJob
from lsgd.audit.processes import LoaderRecord
from lsgd.check.observation import Observation
from lsgd.tables import format_count


def observe_worker_batch(job: AuditedJob) -> Iterator[Observation]:
    """Observe the images of a forward pass, and the number of workers."""
    k, n = len(job.processes) * job.micro_batches, job.worker_batch
    place = job.first.training[0].made if job.first.training else job.first.updates[0]["place"]
    yield Observation("worker_batch", f"n = {n} in each of k = {k} workers", {n}, place)


def observe_tail(job: AuditedJob) -> Iterator[Observation]:
    """Observe whether the last step of an epoch has as many images as the others."""
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


def observe_shuffling(job: AuditedJob) -> Iterator[Observation]:
    """Observe whether each epoch is a permutation, divided among the processes."""
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
    # A script may permute a Subset itself, or have a random one in a fixed order.
    examples = first.examples
    is_in_order = _in_order(examples)
    if not is_in_order and is_subset_in_order(job):
        return
    told = [line for each in job.processes for line in each.first("set_epochs").get("epochs", [])]
    faults: list[tuple[str, str]] = []
    for number, epoch in enumerate(epochs[1:], start=2):
        others = epoch[0].examples
        shared = min(len(examples), len(others))
        if shared > 7 and examples[:shared] == others[:shared] and not is_in_order:
            why = "; set_epoch is never called" if first.is_distributed and not told else ""
            place = first.made if _in_order(first.order) else first.place
            faults.append((f"epoch {number} has the order of epoch 1{why}", place))
            break
    if is_in_order:
        faults.append(("images are not in random order", first.made))
    elif len(epochs) == 1 and first.is_distributed and not told:
        faults.append(("set_epoch is not called before the first epoch", first.place))
    faults += [(fault, first.made) for fault in _missing(epochs[0], count)]
    run = "; ".join(fault for fault, _ in faults)
    if not run:
        seen = "a new permutation in each of 2 epochs" if len(epochs) > 1 else "a permutation"
        run = f"{seen}, divided among {format_count(count, 'process', 'processes')}"
        if examples_over_processes(epochs[0]) is None:
            run = f"{seen} in each process; how images are divided is not known"
    yield Observation("shuffling", run, not faults, faults[0][1] if faults else first.made)


def is_subset_in_order(job: AuditedJob) -> bool:
    """Return whether only one epoch was seen, of a Subset whose images came in its own order.

    A script that permutes it anew in each epoch looks so, and one that forgets to shuffle a random
    split.
    """
    epochs = _epochs(job)
    first = epochs[0][0] if epochs else None
    return bool(first and len(epochs) == 1 and first.subset is not None and _in_order(first.order))


def examples_over_processes(found: list[LoaderRecord]) -> tuple[list[list[int]], int | None] | None:
    """Return the examples of each process, in numbers that all share, and how many there are.

    A script may give each process a Subset of its own. Returns None if processes have datasets of
    their own whose examples cannot be compared.
    """
    first = found[0]
    if all((each.subset, each.length) == (first.subset, first.length) for each in found):
        return [each.order for each in found], first.length
    orders, every = [], set[int]()
    for each in found:
        if each.subset is None:
            return None
        orders.append(each.examples)
        every.update(each.subset)
    return orders, len(every)


def _in_order(examples: list[int]) -> bool:
    steps = np.diff(examples)
    return len(steps) > 7 and Counter(steps.tolist()).most_common(1)[0][1] > 0.5 * len(steps)


def _missing(epoch: list[LoaderRecord], count: int) -> Iterator[str]:
    """Yield how the images of an epoch differ from each image once, over its processes."""
    known = examples_over_processes(epoch)
    if known is None:
        return
    orders, length = known
    if length is not None and epoch[0].batches is None:
        # The sampler may have no end, and permute the images again and again.
        orders = [order[: math.ceil(length / count)] for order in orders]
    sets = [set(order) for order in orders]
    shared = sum(map(len, sets)) - len(set().union(*sets))
    if count > 1 and shared >= count:
        yield f"{shared} images of an epoch are in more than one process"
    again = max(len(order) - len(own) for order, own in zip(orders, sets, strict=True))
    if again >= max(2, count):
        yield f"{again} images of an epoch are repeated within a process"
    are_known = all(each.is_whole and not each.is_cut_off for each in epoch)
    if length is not None and are_known and not again:
        never = length - len(set().union(*sets))
        step = sum(max(each.sizes) for each in epoch)
        if never >= step + count and shared < count:
            yield f"{never} of {length} images are never seen in an epoch"


def observe_random_streams(job: AuditedJob) -> Iterator[Observation]:
    """Observe whether processes and data workers draw random numbers of their own."""
    owners: dict[tuple[str, str], list[str]] = {}
    workers: set[str] = set()
    for process in job.processes:
        for line in process.training_streams:
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


def observe_evaluation(job: AuditedJob) -> Iterator[Observation]:
    """Observe whether each evaluation counts each image equally often; report one that does not."""
    judged = [each for each, is_judged in _evaluations(job) if is_judged]
    yield from sorted(judged, key=lambda each: bool(each.value))[:1]


def unjudged_evaluations(job: AuditedJob) -> list[Observation]:
    """Return the evaluations of a part of a dataset that no rule is asked about.

    They are of training data, as a training accuracy, or another one counts all of the dataset.
    """
    return [each for each, is_judged in _evaluations(job) if not is_judged]


def _evaluations(job: AuditedJob) -> list[tuple[Observation, bool]]:
    """Return the evaluations whose counts are known, and whether each is judged."""
    passes = [each for process in job.processes for each in process.evaluation]
    epochs: dict[tuple[int, int], list[LoaderRecord]] = {}
    for each in passes:
        epochs.setdefault((each.number, each.epoch), []).append(each)
    processes: dict[int, int] = {}
    for (number, _), found in epochs.items():
        processes[number] = max(processes.get(number, 0), len(found))
    results = [
        (result, _dataset(found))
        for (number, _), found in epochs.items()
        # The watch may have ended some processes in the last evaluation.
        if len(found) == processes[number] and (result := _evaluation(found, passes))
    ]
    whole = {dataset for result, dataset in results if result.value}
    training = _dataset([each for process in job.processes for each in process.training])
    return [
        (result, bool(result.value) or not (dataset in whole or _is_part(dataset, training)))
        for result, dataset in results
    ]


def _dataset(found: list[LoaderRecord]) -> tuple[int, frozenset[int] | None]:
    """Return the number of a whole dataset, and the examples of Subsets of it, None for all."""
    subsets = [each.subset for each in found]
    root = found[0].root if found else -1
    if None in subsets:
        return root, None
    return root, frozenset(example for each in subsets if each for example in each)


def _is_part(
    dataset: tuple[int, frozenset[int] | None], of: tuple[int, frozenset[int] | None]
) -> bool:
    """Return whether all examples of a dataset are among those of another."""
    (root, own), (other_root, others) = dataset, of
    return root == other_root and (others is None or (own is not None and own <= others))


def _evaluation(found: list[LoaderRecord], passes: list[LoaderRecord]) -> Observation | None:
    """Return how often an evaluation counts each image; None if unknown."""
    known = examples_over_processes(found)
    orders, length = known or ([], None)
    if not length or not all(each.is_whole and each.order for each in found):
        return None
    if any(each.is_cut_off for each in found):
        return None
    counts = Counter(example for order in orders for example in order)
    if all(each.is_gathered for each in found):
        counts = Counter(set(counts))
    counts.update(_evaluated_besides(found, passes))
    times = Counter(counts.values())
    if len(counts) < length:
        times[0] = length - len(counts)
    place = found[0].used_at or found[0].place
    if len(times) == 1:
        [often] = times
        run = f"each of {length:,} once"
        if often == len(found) > 1:
            run = f"each of {length:,} by each of {often} processes"
        elif often > 1:
            run = f"each of {length:,} {often} times"
        return Observation("evaluation", run, True, place)
    usual = times.most_common(1)[0][0]
    again = sum(each for often, each in times.items() if often > usual)
    less = sum(each for often, each in times.items() if 0 < often < usual)
    never = times.get(0, 0)
    parts = [f"{again} of {length:,} counted more often than the others"] * bool(again)
    parts += [f"{less} of {length:,} counted less often than the others"] * bool(less)
    parts += [f"{never} of {length:,} never"] * bool(never)
    return Observation("evaluation", ", ".join(parts), False, found[0].made)


def _evaluated_besides(found: list[LoaderRecord], passes: list[LoaderRecord]) -> Iterator[int]:
    """Yield the examples of a whole dataset that loaders of Subsets of it evaluate in addition.

    A script that drops the examples which its processes cannot divide may evaluate these in each of
    its processes. They are not evaluated more often than others, as each process counts its own.
    """
    first = found[0]
    if first.subset is not None:
        return
    parts = {
        tuple(each.examples)
        for each in passes
        if each.subset is not None and (each.root, each.updates) == (first.root, first.updates)
    }
    for part in parts:
        yield from part
