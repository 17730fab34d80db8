"""The watch of data: which examples each epoch of a DataLoader has, and its random streams."""

from __future__ import annotations

import base64
import hashlib
import os
import pickle
import random
import sys
import types
from array import array
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Subset,
    SubsetRandomSampler,
    dataloader,
    get_worker_info,
)
from torch.utils.data.distributed import DistributedSampler

from .record import Record, is_call_of_library, place

MAX_EXAMPLES = 2_000_000
"""The most examples of which an epoch's order, or the indices of a Subset, are recorded."""
MAX_DEPTH, MAX_ITEMS = 6, 64
"""The nesting and length of attributes up to which random generators of a dataset are found."""


class LoaderEpoch:
    """One pass through a DataLoader: the examples that it has asked for, in their order."""

    def __init__(
        self, loader: Any, number: int, epoch: int, where: str, root: int, updates: int
    ) -> None:
        self.loader, self.number, self.epoch, self.where = loader, number, epoch, where
        self.root, self.updates = root, updates
        """The number of the whole dataset, and the updates before this epoch."""
        self.order = array("q")
        self.sizes: list[int] = []
        self.begin = 0
        """The batches that the iterator has asked for before this epoch."""
        self.last = self.given = 0
        self.trained = self.updated = self.evaluated = self.updated_at_end = 0
        """The passes of training, the updates, the passes of evaluations, and the updates since the
        last batch was given."""
        self.is_gathered = False
        self.place = ""
        self.made = getattr(loader, "_audit_place", "")
        sampler = loader.sampler if loader.batch_sampler is None else _sampler(loader)
        self.is_distributed = isinstance(sampler, DistributedSampler)
        self.sampled = sampled(sampler)
        """The examples from which a SubsetRandomSampler draws; None with another sampler."""
        self.dataset = loader.dataset
        if self.sampled is not None:
            self.dataset = Subset(loader.dataset, self.sampled)
        try:
            self.length: int | None = len(self.dataset)
        except TypeError:
            self.length = None
        try:
            self.batches: int | None = len(loader)
        except TypeError:
            self.batches = None

    @property
    def is_at_end(self) -> bool:
        """Whether this epoch has given its last batch."""
        return self.batches is not None and self.given >= self.batches

    def numbered_order(self) -> array[int]:
        """Return the order of the examples by their numbers in the subset, if there is one."""
        if self.sampled is None:
            return self.order
        numbers = {example: number for number, example in enumerate(self.sampled)}
        return array("q", (numbers[each] for each in self.order))


def sampled(sampler: Any) -> list[int] | None:
    """Return the examples from which a SubsetRandomSampler draws; None unless they are numbers."""
    if not isinstance(sampler, SubsetRandomSampler):
        return None
    try:
        return [int(each) for each in sampler.indices]
    except (TypeError, ValueError):
        return None


def _sampler(loader: Any) -> Any:
    batches = loader.batch_sampler
    while isinstance(inner := getattr(batches, "batch_sampler", None), BatchSampler):
        batches = inner  # Accelerate's has those of one process
    sampler = getattr(batches, "sampler", batches)
    # timm's and YOLO's loaders of many epochs repeat a batch sampler.
    return sampler.sampler if isinstance(sampler, BatchSampler) else sampler


class DataWatch:
    """The watch of the order of examples, and of the random numbers that datasets draw."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.epochs: list[LoaderEpoch] = []
        self.counts: dict[tuple[str, int], int] = {}
        self.numbers: dict[tuple[str, int], int] = {}
        self.roots: dict[int, int] = {}
        self.places: dict[int, str] = {}
        """The line that has made the first DataLoader of each dataset."""
        self.subsets: dict[int, str] = {}
        """The examples of each Subset, encoded."""
        self.set_epochs: list[int] = []
        self.streams: list[dict[str, Any]] = []
        self.by_iterator: dict[int, list[LoaderEpoch]] = {}
        self.current: LoaderEpoch | None = None
        self.is_beginning = False

    def install(self) -> None:
        """Observe DataLoaders, their iterators, and the datasets inside their processes."""
        record, iterator = self.record, dataloader._BaseDataLoaderIter
        record.wrap(DataLoader, "__init__", before=self._note_made)
        record.wrap(DataLoader, "__iter__", before=self._begin_epoch, after=self._note_iterator)
        record.wrap(iterator, "_next_index", after=self._note_index)
        record.wrap(iterator, "__next__", after=self._note_batch)
        record.wrap(DistributedSampler, "set_epoch", after=self._note_set_epoch)
        record.awaited["accelerate.accelerator"] = record.guard(self._watch_accelerate)
        real: Any = dataloader._DatasetKind.create_fetcher

        def create_fetcher(kind: Any, dataset: Any, *arguments: Any) -> Any:
            fetcher = real(kind, dataset, *arguments)
            self._watch_first_fetch(fetcher, dataset)
            return fetcher

        dataloader._DatasetKind.create_fetcher = staticmethod(create_fetcher)  # type: ignore[method-assign]

    def _note_made(self, loader: Any, *arguments: Any, **settings: Any) -> None:
        key = id(arguments[0] if arguments else settings.get("dataset"))
        where = place()
        if is_call_of_library():  # such as Accelerate's, which prepares the script's own loader
            where = self.places.get(key, where)
        self.places.setdefault(key, where)
        object.__setattr__(loader, "_audit_place", where)

    def _begin_epoch(self, loader: Any) -> None:
        # Many scripts make a new DataLoader for each epoch.
        key = getattr(loader, "_audit_place", ""), id(loader.dataset)
        count = self.counts.get(key, 0) + 1
        self.counts[key] = count
        number = self.numbers.setdefault(key, len(self.numbers))
        root = self.roots.setdefault(id(whole_dataset(loader.dataset)), len(self.roots))
        # Prefetching begins in __iter__, before its iterator is known.
        self.current = LoaderEpoch(loader, number, count, place(), root, self.record.updates)
        self.epochs.append(self.current)
        self.is_beginning = True
        self.record.register_hooks()  # an evaluation may begin here

    def _note_iterator(self, iterator: Any, loader: Any) -> None:
        if self.current is not None:
            self.by_iterator[id(iterator)] = [self.current]
        self.is_beginning = False

    def _epochs_of(self, iterator: Any) -> list[LoaderEpoch]:
        if self.is_beginning and self.current is not None:
            return [self.current]
        return self.by_iterator.get(id(iterator), [])

    def _next_epoch(self, epochs: list[LoaderEpoch]) -> LoaderEpoch:
        """Begin the next epoch of an iterator that goes on, whose sampler repeats itself."""
        last = epochs[-1]
        begun = LoaderEpoch(
            last.loader, last.number, last.epoch + 1, last.where, last.root, self.record.updates
        )
        begun.begin = last.begin + len(last.sizes)
        epochs.append(begun)
        self.epochs.append(begun)
        self.record.register_hooks()
        return begun

    def _note_index(self, index: Any, iterator: Any) -> None:
        epochs = self._epochs_of(iterator)
        if not epochs:
            return
        epoch = epochs[-1]
        if epoch.order and epoch.batches and len(epoch.sizes) >= epoch.batches:
            epoch = self._next_epoch(epochs)
        many = index if isinstance(index, (list, tuple)) else [index]
        epoch.sizes.append(len(many))
        if len(epoch.order) < MAX_EXAMPLES:
            try:
                epoch.order.extend(array("q", many))
            except TypeError:  # these are no numbers
                return

    def _note_batch(self, _: Any, iterator: Any) -> None:
        # Batches are asked for before they are given.
        count = iterator._num_yielded
        for epoch in reversed(self._epochs_of(iterator)):
            given = epoch.given = count - epoch.begin
            if given > 0:
                epoch.last = epoch.sizes[given - 1] if given <= len(epoch.sizes) else 0
                self.record.note_batch(epoch, iterator)
                return

    def _watch_accelerate(self, module: Any) -> None:
        self.record.wrap(module.Accelerator, "gather_for_metrics", after=self._note_gathering)

    def _note_gathering(self, *_: Any, **__: Any) -> None:
        """Note that Accelerate leaves the examples out with which it has padded an evaluation."""
        if self.record.loader is not None:
            self.record.loader.is_gathered = True

    def _note_set_epoch(self, _: Any, sampler: Any, epoch: int) -> None:
        self.set_epochs.append(int(epoch))

    def _watch_first_fetch(self, fetcher: Any, dataset: Any) -> None:
        """Compare the random generators before and after the first fetch of a loader's process."""
        real, record = fetcher.fetch, self.record
        # A data worker that is no fork of the training process does not know its loader.
        loader = None if self.current is None else self.current.number

        def observe(index: Any) -> Any:
            before = record.guard(generators)(dataset)
            batch = real(index)
            after = record.guard(generators)(dataset)
            fetcher.fetch = real
            record.guard(self._note_streams)(before, after, loader)
            return batch

        fetcher.fetch = observe

    def _note_streams(
        self, before: dict[str, str] | None, after: dict[str, str] | None, loader: int | None
    ) -> None:
        if before is None or after is None:
            return  # a generator could not be read, which is noted
        drawn = {name: state for name, state in before.items() if after.get(name) != state}
        worker = get_worker_info()
        line = {
            "kind": "streams", "worker": None if worker is None else worker.id,
            "parent": os.getpid() if worker is None else os.getppid(), "drawn": drawn,
            "loader": loader,
        }  # fmt: skip
        if worker is None:
            self.streams.append(line)
        else:
            name = f"{os.getppid()}-worker-{os.getpid()}"
            self.record.write_lines(f"{name}.streams", [line])

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield each epoch of each loader, and the random streams of this process.

        Nothing follows after a hook of this watch has failed, since the order is then unknown.
        """
        if any(each.startswith(type(self).__name__) for each in self.record.failures):
            return
        for each in self.epochs:
            yield {
                "kind": "loader", "number": each.number, "epoch": each.epoch,
                "order": _encoded(each.numbered_order()), "sizes": each.sizes,
                "length": each.length, "batches": each.batches,
                "is_distributed": each.is_distributed, "trained": each.trained,
                "evaluated": each.evaluated, "place": each.where, "used_at": each.place,
                "made": each.made, "root": each.root, "updates": each.updates,
                "subset": self._subset(each.dataset), "is_gathered": each.is_gathered,
                "updated": each.updated, "updated_at_end": each.updated_at_end,
            }  # fmt: skip
        yield {"kind": "set_epochs", "epochs": self.set_epochs}
        yield from self.streams

    def _subset(self, dataset: Any) -> str | None:
        """Return the examples of its whole dataset that a Subset has, None of another dataset."""
        if not isinstance(dataset, Subset) or len(dataset) > MAX_EXAMPLES:
            return None
        if id(dataset) not in self.subsets:
            self.subsets[id(dataset)] = _encoded(examples_of(dataset))
        return self.subsets[id(dataset)]


def generators(dataset: Any) -> dict[str, str]:
    """Return a hash of the state of each random generator that a dataset may draw from."""
    states = {
        "torch": torch.random.get_rng_state().numpy().tobytes(),
        "random": repr(random.getstate()).encode(),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states["numpy"] = pickle.dumps(numpy.random.get_state())
        kinds: tuple[type, ...] = (numpy.random.Generator, numpy.random.RandomState)
    else:
        kinds = ()
    for number, (name, value) in enumerate(_own_generators(dataset, "", kinds, 0, set())):
        is_torch = isinstance(value, torch.Generator)
        state = value.get_state().numpy().tobytes() if is_torch else pickle.dumps(value)
        states[f"{name} ({number})" if name in states else name] = state
    return {name: hashlib.sha1(state).hexdigest()[:16] for name, state in states.items()}


def _own_generators(
    value: Any, name: str, kinds: tuple[type, ...], depth: int, seen: set[int]
) -> Iterator[tuple[str, Any]]:
    """Yield the random generators inside of a dataset and of its transforms, by their names."""
    if isinstance(value, (random.Random, torch.Generator, *kinds)):
        yield name, value
        return
    if depth > MAX_DEPTH or id(value) in seen or isinstance(value, (type, torch.Tensor)):
        return
    seen.add(id(value))
    if isinstance(value, (list, tuple, dict)):
        items = value.values() if isinstance(value, dict) else value
        for each in items if len(value) <= MAX_ITEMS else ():
            yield from _own_generators(each, name, kinds, depth + 1, seen)
    elif hasattr(value, "__dict__") and not isinstance(
        value, (types.ModuleType, types.FunctionType)
    ):
        for key, each in vars(value).items():
            own = f"{type(value).__name__}.{key}"
            yield from _own_generators(each, own, kinds, depth + 1, seen)


def whole_dataset(dataset: Any) -> Any:
    """Return the dataset of which another is a Subset, or that dataset itself."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return dataset


def examples_of(subset: Any) -> array[int]:
    """Return the examples that a Subset, maybe of another Subset, has of its whole dataset."""
    examples = array("q", map(int, subset.indices))
    while isinstance(subset := subset.dataset, Subset):
        examples = array("q", (int(subset.indices[each]) for each in examples))
    return examples


def _encoded(numbers: array[int]) -> str:
    return base64.b64encode(numbers.tobytes()).decode()
