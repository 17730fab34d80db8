"""The confusion matrix of an evaluation of images: how often each class is taken for another.

Its counts are integers that are summed over all processes, like those of the evaluation, so that
they are the same on any number of processes.
"""

import csv
import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import tee
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lsgd.comm import Comm, all_reduce_
from lsgd.evaluation import TrainedModel
from lsgd.files import atomic_write
from lsgd.inputs import Batch, Inputs
from lsgd.inputs.wrapped import WrappedInputs, inputs_after
from lsgd.rules.metric import MAIN_SET
from lsgd.rules.sampler import MicroBatch
from lsgd.tables import markdown_table
from lsgd.workloads import is_finite_output
from lsgd.workloads.images import ranked_labels

MOST_CLASSES = 20
"""The largest number of classes that are listed on the console, those of the highest errors."""
NOT_FINITE = "not finite"
"""The column of images for which the network's output was not finite."""


class LabelledInputs(WrappedInputs):
    """A data loader that remembers the labels of the batch of val that it gave last."""

    def __init__(self, inputs: Inputs) -> None:
        super().__init__(inputs)
        self.labels: Tensor | None = None
        """The labels of the batch whose output is awaited; None without one."""

    def evaluation(self, passes: Iterable[MicroBatch]) -> Iterator[Batch]:
        """Yield the evaluation micro-batches of the loader; remember the labels of those of val."""
        own, ahead = tee(passes)  # the loader prefetches some
        for each, (images, labels) in zip(own, self.inputs.evaluation(ahead), strict=True):
            self.labels = labels if each.split == MAIN_SET else None
            yield images, labels


class ConfusionCounts:
    """The images of each class by the predicted class, counted by one process on its device."""

    def __init__(self, classes: int, device: torch.device) -> None:
        self.classes = classes
        self.flat = torch.zeros(classes * (classes + 1), dtype=torch.int64, device=device)
        """The counts by true class, then by predicted class and, last, for no finite output."""

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """Count a batch of images by its logits; the first guess is that of the top-1 error."""
        guess = ranked_labels(logits, 1)[:, 0]
        guess = guess.where(is_finite_output(logits), self.classes)
        cells = labels.to(guess.device) * (self.classes + 1) + guess
        self.flat += torch.bincount(cells, minlength=len(self.flat))

    def matrix(self, comm: Comm, class_names: list[str]) -> "ConfusionMatrix":
        """Sum the counts of all processes into a matrix; a collective call.

        Without names, which is an empty list, classes are named by their numbers.
        """
        all_reduce_(comm, self.flat)
        counts = self.flat.view(self.classes, self.classes + 1).cpu().numpy()
        return ConfusionMatrix(counts, class_names or list(map(str, range(self.classes))))


@dataclass(frozen=True)
class ConfusionMatrix:
    """The images of an evaluation by true class (row) and by predicted class (column)."""

    counts: NDArray[np.int64]
    """The number of images by true and by predicted class, of shape (classes, classes + 1).

    The last column counts images for which the network's output was not finite.
    """
    class_names: list[str]
    """The name of each class, or its number."""

    def table(self) -> str:
        """Return a table of the classes with the highest errors, with what each is taken for."""
        images = self.counts.sum(1)
        classes = len(self.class_names)
        wrong = self.counts.copy()
        wrong[np.arange(classes), np.arange(classes)] = 0
        errors = wrong.sum(1)
        share = errors / np.maximum(images, 1)
        order = np.argsort(-share, kind="stable")[:MOST_CLASSES]
        names = [*self.class_names, NOT_FINITE]
        rows = [
            [
                self.class_names[each],
                str(images[each]),
                f"{100 * share[each]:.2f} %" if images[each] else "",
                f"{names[wrong[each].argmax()]} ({wrong[each].max()})" if errors[each] else "",
            ]
            for each in order
        ]
        text = markdown_table(["class", "images", "top-1 error", "most often taken for"], rows)
        left = classes - len(rows)
        return text + f"\n{left} classes of lower error are left out" * (left > 0)

    def write(self, path: Path) -> None:
        """Write the matrix as CSV, with a row for each true class and a column for each guess."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["class", *self.class_names, NOT_FINITE])
        for name, row in zip(self.class_names, self.counts.tolist(), strict=True):
            writer.writerow([name, *row])
        with atomic_write(path) as file:
            # Names that are not UTF-8 keep their bytes.
            file.write(text.getvalue().encode("utf-8", "surrogateescape"))


@contextmanager
def counting(
    trained: TrainedModel, inputs: Inputs, classes: int, *, mirrors: bool = False
) -> Iterator[tuple[Inputs, ConfusionCounts]]:
    """Count the confusions of an evaluation of val within this context, with the given loader.

    With `mirrors` (evaluation.mirror) the network runs on each batch and on its mirror images.
    """
    counts = ConfusionCounts(classes, trained.device)
    # Sized here, since an evaluation does not find the sizes behind another loader.
    labelled = LabelledInputs(inputs_after(inputs, trained.epoch))
    plain: Tensor | None = None

    def note(_: object, __: object, logits: Tensor) -> None:
        nonlocal plain
        # Measuring BN statistics runs the network too, on training images.
        if labelled.labels is None:
            return
        if mirrors and plain is None:
            plain = logits
            return
        # The mean as the workload computes it, so that both have the same first guess.
        counts.add(logits if plain is None else (plain + logits) / 2, labelled.labels)
        labelled.labels = plain = None

    hook = trained.model.register_forward_hook(note)
    try:
        yield labelled, counts
    finally:
        hook.remove()
