"""The records of an audited command's processes, read and put together."""

import base64
import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

Line = dict[str, Any]
PREFETCHED = 8
"""The number of last batches of an epoch that a script may take before it uses them."""


@dataclass(frozen=True)
class ScriptProcess:
    """The observations of one training process."""

    lines: list[Line]
    streams: list[Line] = field(default_factory=list)
    """The random streams of the process's data workers, and its own."""

    def of_kind(self, kind: str) -> list[Line]:
        """Return the observations of one kind, in their order."""
        return [line for line in self.lines if line["kind"] == kind]

    def first(self, kind: str) -> Line:
        """Return the first observation of a kind, empty without any."""
        return next((line for line in self.lines if line["kind"] == kind), {})

    @cached_property
    def updates(self) -> list[Line]:
        """The process's updates, in their order."""
        return self.of_kind("update")

    @property
    def rank(self) -> int:
        """The rank of the process in its job."""
        return int(self.first("process").get("rank", 0))

    @cached_property
    def training(self) -> list["LoaderRecord"]:
        """The epochs of the DataLoader with the most training passes, which all have some.

        A script may also take a batch to look at, or read the images for their mean.
        """
        counts: dict[int, int] = {}
        for each in self._loaders:
            counts[each.number] = counts.get(each.number, 0) + each.trained
        number = max(counts, key=lambda each: counts[each], default=-1)
        return [each for each in self._loaders if each.number == number and each.trained]

    @cached_property
    def evaluation(self) -> list["LoaderRecord"]:
        """The epochs of DataLoaders that were only evaluated."""
        loaders = [each for each in self._loaders if each.evaluated and not each.trained]
        trained = {each.number for each in self.training}
        return [each for each in loaders if each.number not in trained]

    @property
    def training_streams(self) -> list[Line]:
        """The random streams of the DataLoaders from which this process has trained."""
        trained = {each.number for each in self._loaders if each.trained}
        return [
            line
            for line in self.streams
            if not trained or line["loader"] is None or line["loader"] in trained
        ]

    @cached_property
    def _loaders(self) -> list["LoaderRecord"]:
        return [LoaderRecord(**_fields(line)) for line in self.of_kind("loader")]


@dataclass(frozen=True)
class LoaderRecord:
    """One pass of a process through a DataLoader."""

    number: int
    epoch: int
    order: list[int]
    """The examples that were asked for, by their numbers in the subset, if there is one; empty for
    an iterable dataset."""
    sizes: list[int]
    length: int | None
    batches: int | None
    is_distributed: bool
    trained: int
    evaluated: int
    place: str
    used_at: str
    made: str
    root: int
    """The number of the dataset, or of that of which it is a Subset."""
    updates: int
    """The updates before this pass."""
    subset: list[int] | None
    """The examples that a Subset, or a sampler of one, has of the whole dataset."""
    is_gathered: bool
    """Whether the padding of its last batch is left out, by Accelerate's gather_for_metrics."""
    updated: int
    """The updates with the batches of this pass."""
    updated_at_end: int
    """The updates since its last batch was given."""

    @property
    def examples(self) -> list[int]:
        """The order of the examples, by their numbers in the whole dataset."""
        return self.order if self.subset is None else [self.subset[each] for each in self.order]

    @property
    def is_whole(self) -> bool:
        """Whether the last batch of this epoch was asked for."""
        return self.batches is not None and len(self.sizes) >= self.batches

    @property
    def is_cut_off(self) -> bool:
        """Whether only the first examples of this epoch are known, as there are too many."""
        return 0 < len(self.order) < sum(self.sizes)

    @property
    def is_kept(self) -> bool:
        """Whether the script went on with batches that it has kept, as itertools.cycle does."""
        if self.batches is None:
            return False
        # A script may make several updates by a batch, and a prefetcher takes batches in advance.
        usual = (self.updated - self.updated_at_end) / max(1, self.batches - 1)
        return self.trained > self.batches and self.updated_at_end > PREFETCHED * max(usual, 1)


def _fields(line: Line) -> Line:
    subset = line["subset"]
    decoded = {
        "order": _numbers(line["order"]), "subset": None if subset is None else _numbers(subset)
    }  # fmt: skip
    return {key: each for key, each in line.items() if key != "kind"} | decoded


def _numbers(text: str) -> list[int]:
    numbers = array("q")
    numbers.frombytes(base64.b64decode(text))
    return numbers.tolist()


def read_records(folder: Path) -> list[ScriptProcess]:
    """Read the records of all processes that have trained, by rank."""
    streams: dict[str, list[Line]] = {}
    for path in sorted(folder.glob("*.streams")):
        streams.setdefault(path.name.split("-")[0], []).extend(_lines(path))
    records = []
    for path in sorted(folder.glob("*.jsonl")):
        lines = list(_lines(path))
        own = [line for line in lines if line["kind"] == "streams"]
        records.append(ScriptProcess(lines, own + streams.get(path.stem, [])))
    return sorted(records, key=lambda each: each.rank)


def has_ended_process(folder: Path) -> bool:
    """Return whether the audit has ended a process of the script, after enough updates."""
    for path in folder.glob("*.jsonl"):
        with path.open(encoding="utf-8") as file:
            if json.loads(file.readline()).get("is_ended_by_watch"):
                return True
    return False


def one_job(records: list[ScriptProcess]) -> list[ScriptProcess]:
    """Return the processes of one training, with the most updates, if a command started several.

    Processes that share no process group train separately, as do two jobs one after the other.
    """
    size = max((each.first("process").get("world_size", 1) for each in records), default=1)
    if len(records) <= size:
        return records
    jobs: dict[int, list[ScriptProcess]] = {}
    for each in records:
        process = each.first("process")
        jobs.setdefault(process["pid" if size == 1 else "parent"], []).append(each)
    whole = [job for job in jobs.values() if len(job) == size]
    return max(whole, key=lambda job: len(job[0].updates), default=records)


def _lines(path: Path) -> Iterator[Line]:
    for text in path.read_text("utf-8").splitlines():
        yield json.loads(text)
