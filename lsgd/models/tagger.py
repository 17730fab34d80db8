"""A bidirectional LSTM that tags words, and the grids in which it reads their sentences."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lsgd.models.crf import CRF
from lsgd.text import word_places


@dataclass(frozen=True)
class Grid:
    """The cells in which an LSTM reads some sentences: a row for each of T places, one of each."""

    steps: int
    """T, at least the length of the longest sentence."""
    lengths: Tensor
    """The words of each sentence, shape (sentences,), on the CPU."""
    cells: Tensor
    """The cell of each word, counted place by place: shape (words,)."""
    mirrored: Tensor
    """The same where each sentence is read from its end."""
    packed: bool
    """Whether the LSTM leaves out the cells without a word."""

    @property
    def size(self) -> int:
        """The number of cells, with a word or without."""
        return self.steps * len(self.lengths)

    def put(self, words: Tensor, cells: Tensor) -> Tensor:
        """The values of the words, (words, …), each in its cell, (T, sentences, …); 0 elsewhere."""
        flat = words.new_zeros(self.size, *words.shape[1:]).index_copy(0, cells, words)
        return flat.view(self.steps, -1, *words.shape[1:])


def make_grid(lengths: NDArray[np.int64], steps: int, *, packed: bool = False) -> Grid:
    """The grid of T = `steps` places for sentences of these lengths."""
    count = len(lengths)
    sentence, place = word_places(lengths)
    mirrored = (lengths[sentence] - 1 - place) * count + sentence
    cells = place * count + sentence
    return Grid(
        steps,
        torch.from_numpy(lengths),
        torch.from_numpy(cells),
        torch.from_numpy(mirrored),
        packed,
    )


@dataclass(frozen=True)
class TaggedBatch:
    """The sentences of a pass, one behind the other."""

    words: Tensor
    """Their words, shape (words,)."""
    tags: Tensor
    """The tag of each word, shape (words,)."""
    sentences: Tensor
    """The number of each word's sentence in the batch, shape (words,)."""
    grids: Sequence[Grid]
    """The grids in which the LSTMs read them; each has the next ones."""
    chains: Sequence[Grid]
    """The same for the CRF, which has few numbers in a cell, so that empty ones cost it less than
    another loop over places."""
    masks: Tensor | None = None
    """What the features of each sentence are multiplied by, shape (sentences, embedding + twice
    width); None means no dropout."""

    def to(self, device: torch.device, dtype: torch.dtype) -> "TaggedBatch":
        """The same on a device, with masks of this type."""
        grids, chains = (
            [
                replace(grid, cells=grid.cells.to(device), mirrored=grid.mirrored.to(device))
                for grid in some
            ]
            for some in (self.grids, self.chains)
        )
        words, tags, sentences = (
            each.to(device, non_blocking=True) for each in (self.words, self.tags, self.sentences)
        )
        masks = None if self.masks is None else self.masks.to(device, dtype, non_blocking=True)
        return TaggedBatch(words, tags, sentences, grids, chains, masks)


class Tagger(nn.Module):
    """Embedding, an LSTM in each direction, and a linear layer that gives the scores of each word's
    tags: of a word by itself or, with a CRF, of all words of a sentence together.

    What comes of it does not depend on the grids, except for the last bits.
    """

    def __init__(self, words: int, tags: int, *, embedding: int, width: int, crf: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, embedding)
        self.onwards = nn.LSTM(embedding, width)
        self.backwards = nn.LSTM(embedding, width)
        self.fc = nn.Linear(2 * width, tags)
        self.crf = CRF(tags) if crf else None

    def forward(self, batch: TaggedBatch) -> Tensor:
        """The scores of the tags of each word, shape (words, tags)."""
        # All words at once: each look-up has a gradient of the size of the whole table.
        embedded = self.embedding(batch.words)
        width = embedded.shape[1]
        if batch.masks is not None:
            embedded = embedded * batch.masks[batch.sentences, :width]
        features = torch.cat(
            [
                torch.cat(
                    (
                        _read(self.onwards, words, grid.cells, grid),
                        _read(self.backwards, words, grid.mirrored, grid),
                    ),
                    1,
                )
                for words, grid in zip(_by(batch.grids, embedded), batch.grids, strict=True)
            ]
        )
        if batch.masks is not None:
            features = features * batch.masks[batch.sentences, width:]
        scores: Tensor = self.fc(features)
        return scores

    def loss(self, scores: Tensor, batch: TaggedBatch) -> Tensor:
        """The negative log-likelihood of the batch's tags, summed over its words, shape ()."""
        if self.crf is None:
            return F.cross_entropy(scores, batch.tags, reduction="sum")
        losses = [
            self.crf.loss(grid.put(own, grid.cells), grid.put(tags, grid.cells), _mask(grid))
            for own, tags, grid in zip(
                _by(batch.chains, scores), _by(batch.chains, batch.tags), batch.chains, strict=True
            )
        ]
        return torch.stack(losses).sum()

    @torch.no_grad()
    def best(self, scores: Tensor, batch: TaggedBatch) -> Tensor:
        """The most likely tags, shape (words,): of each word or, with a CRF, of each sentence."""
        if self.crf is None:
            return scores.argmax(1)
        return torch.cat(
            [
                self.crf.best(grid.put(own, grid.cells), _mask(grid)).flatten()[grid.cells]
                for own, grid in zip(_by(batch.chains, scores), batch.chains, strict=True)
            ]
        )


def _by(grids: Sequence[Grid], values: Tensor) -> Sequence[Tensor]:
    """The values of the words, (words, …), of each grid."""
    return torch.split(values, [len(grid.cells) for grid in grids])


def _read(lstm: nn.LSTM, words: Tensor, cells: Tensor, grid: Grid) -> Tensor:
    """What the LSTM makes of the words, (words, embedding), each in its cell: (words, width)."""
    cells_before = grid.put(words, cells)
    if grid.packed:
        packed = pack_padded_sequence(cells_before, grid.lengths, enforce_sorted=False)
        cells_after, _ = pad_packed_sequence(lstm(packed)[0], total_length=grid.steps)
    else:
        cells_after, _ = lstm(cells_before)
    return cells_after.flatten(0, 1)[cells]


def _mask(grid: Grid) -> Tensor:
    """The cells that have a word, shape (T, sentences)."""
    return grid.put(torch.ones_like(grid.cells, dtype=torch.bool), grid.cells)
