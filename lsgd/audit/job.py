"""The processes of an audited script, with what follows from their first updates."""

from collections import Counter
from dataclasses import dataclass
from statistics import median
from typing import Any

from lsgd.audit.processes import Line, ScriptProcess
from lsgd.tables import format_count


@dataclass(frozen=True)
class AuditedJob:
    """The recorded processes of an audited script, and facts derived from their first updates."""

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
        """The micro-batches of a process in an update."""
        return max(1, round(median(len(each["passes"]) for each in self.first.updates)))

    @property
    def minibatch_sizes(self) -> list[int]:
        """The images of each update, over all processes."""
        return [
            sum(images_of(each.updates[i]) for each in self.processes) for i in range(self.updates)
        ]

    @property
    def minibatch(self) -> int:
        """The most frequent number of images in an update, over all processes."""
        return Counter(self.minibatch_sizes).most_common(1)[0][0]

    @property
    def worker_batch(self) -> int:
        """The most frequent number of images in a micro-batch."""
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

    @property
    def smoothing_shares(self) -> set[float]:
        """The shares of a label that losses spread over all classes."""
        losses = [each for update in self.first.updates for each in update["losses"]]
        return {each["smoothing"] for each in losses if each["smoothing"] is not None}

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


def images_of(update: Line) -> int:
    """Return the images of an update in one process."""
    return sum(int(each["images"]) for each in update["passes"])
