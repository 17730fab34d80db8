"""A bidirectional LSTM tagger, and the padded grids in which it reads sentences."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from lsgd.job.device import to_device, to_device_together
from lsgd.models.crf import CRF
from lsgd.text import word_places


@dataclass(frozen=True)
class PaddedGrid:
    """A padded grid of cells, one per time step and sentence, in which an LSTM reads sentences."""

    time_steps: int
    """The number T of time steps, at least the length of the longest sentence."""
    lengths: Tensor
    """The number of tokens in each sentence, shape (sentences,), on the CPU."""
    cells: Tensor
    """The flat index (time step first) of each token's cell, shape (tokens,)."""
    reversed_cells: Tensor
    """The index of each token's cell if sentences are read backwards, shape (tokens,)."""
    packed_positions: Tensor | None = None
    """The position of each cell in a PackedSequence, shape (cells,); None without packing.

    A packed LSTM skips cells without a token; longer sentences come first.
    """
    batch_sizes: Tensor | None = None
    """The number of tokens at each time step of a packed grid, shape (T,), on the CPU."""

    @property
    def size(self) -> int:
        """The number of cells in the grid, with or without a token."""
        return self.time_steps * len(self.lengths)

    def scatter(self, words: Tensor, cells: Tensor) -> Tensor:
        """Copy the values of tokens, (tokens, …), into the cells of the grid, (T, sentences, …).

        Cells without a token are 0.
        """
        flat = words.new_zeros(self.size, *words.shape[1:]).index_copy(0, cells, words)
        return flat.view(self.time_steps, -1, *words.shape[1:])


def make_grid(lengths: NDArray[np.int64], steps: int, *, packed: bool = False) -> PaddedGrid:
    """Build the padded grid of `steps` time steps for sentences of these lengths."""
    count = len(lengths)
    sentence, place = word_places(lengths)
    mirrored = (lengths[sentence] - 1 - place) * count + sentence
    cells = place * count + sentence
    arrays = [lengths, cells, mirrored, *(_packing(lengths, steps) if packed else ())]
    return PaddedGrid(steps, *map(torch.from_numpy, arrays))


def _packing(lengths: NDArray[np.int64], steps: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each cell's position in a PackedSequence, and its batch sizes, for these lengths."""
    sizes = (lengths > np.arange(steps)[:, None]).sum(1)
    ranks = np.empty_like(lengths)
    ranks[np.argsort(-lengths, kind="stable")] = np.arange(len(lengths))
    before = np.cumsum(sizes) - sizes
    # A cell without a token gets the position of another cell, which is never read.
    return (before[:, None] + ranks).ravel(), sizes[sizes > 0]


@dataclass(frozen=True)
class TaggedBatch:
    """The tagged sentences of a micro-batch, concatenated, with the grids that arrange them."""

    tokens: Tensor
    """The tokens, shape (tokens,)."""
    tags: Tensor
    """The tag of each token, shape (tokens,)."""
    sentences: Tensor
    """The index of each token's sentence in the batch, shape (tokens,)."""
    lstm_grids: Sequence[PaddedGrid]
    """The LSTMs' grids, each for the sentences after those of the one before."""
    crf_grids: Sequence[PaddedGrid]
    """The grids in which the CRF reads the sentences.

    They may be fewer than the LSTMs': the CRF has few numbers per cell, so that empty cells cost
    less than another loop over time steps.
    """
    masks: Tensor | None = None
    """The dropout factors of each sentence's features, shape (sentences, embedding + twice width).

    None means no dropout.
    """

    def to(self, device: torch.device, dtype: torch.dtype) -> "TaggedBatch":
        """Copy the batch of sentences to a device; its dropout masks, if any, get this dtype.

        All integers are sent in one transfer.
        """
        numbers = [self.tokens, self.tags, self.sentences]
        for grid in (*self.lstm_grids, *self.crf_grids):
            numbers += (grid.cells, grid.reversed_cells)
            if grid.packed_positions is not None:
                numbers.append(grid.packed_positions)
        words, tags, sentences, *places = to_device_together(numbers, device)
        rest = iter(places)
        grids, chains = (
            [
                replace(
                    grid,
                    cells=next(rest),
                    reversed_cells=next(rest),
                    packed_positions=None if grid.packed_positions is None else next(rest),
                )
                for grid in some
            ]
            for some in (self.lstm_grids, self.crf_grids)
        )
        masks = self.masks
        if masks is not None:
            masks = to_device(masks.to(dtype), device)
        return TaggedBatch(words, tags, sentences, grids, chains, masks)


class Tagger(nn.Module):
    """A bidirectional LSTM between an embedding and a linear layer that scores each token's tags.

    The tags of a sentence are chosen one by one or, with a CRF, together. Results do not depend on
    the grids, except for the last bits.
    """

    def __init__(
        self, vocabulary_size: int, tags: int, *, embedding: int, width: int, crf: bool
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, embedding)
        self.onwards = nn.LSTM(embedding, width)
        self.backwards = nn.LSTM(embedding, width)
        self.fc = nn.Linear(2 * width, tags)
        self.crf = CRF(tags) if crf else None

    def forward(self, batch: TaggedBatch) -> Tensor:
        """Compute the scores of all tags for each token, shape (tokens, tags)."""
        # One look-up for all grids, since each has a gradient of the size of the whole table.
        embedded = self.embedding(batch.tokens)
        width = embedded.shape[1]
        if batch.masks is not None:
            embedded = embedded * batch.masks[batch.sentences, :width]
        features = torch.cat(
            [
                torch.cat(
                    (
                        _run_lstm(self.onwards, words, grid.cells, grid),
                        _run_lstm(self.backwards, words, grid.reversed_cells, grid),
                    ),
                    1,
                )
                for words, grid in zip(
                    _split_by_grid(batch.lstm_grids, embedded), batch.lstm_grids, strict=True
                )
            ]
        )
        if batch.masks is not None:
            features = features * batch.masks[batch.sentences, width:]
        scores: Tensor = self.fc(features)
        return scores

    def loss(self, scores: Tensor, batch: TaggedBatch) -> Tensor:
        """Return the negative log-likelihood of the batch's tags, summed over tokens, shape ()."""
        if self.crf is None:
            return F.cross_entropy(scores, batch.tags, reduction="sum")
        losses = [
            self.crf.loss(
                grid.scatter(own, grid.cells), grid.scatter(tags, grid.cells), _mask(grid)
            )
            for own, tags, grid in zip(
                _split_by_grid(batch.crf_grids, scores),
                _split_by_grid(batch.crf_grids, batch.tags),
                batch.crf_grids,
                strict=True,
            )
        ]
        return torch.stack(losses).sum()

    @torch.no_grad()
    def decode(self, scores: Tensor, batch: TaggedBatch) -> Tensor:
        """Return the most likely tag of each token, (tokens,), with a CRF jointly per sentence."""
        if self.crf is None:
            return scores.argmax(1)
        return torch.cat(
            [
                self.crf.decode(grid.scatter(own, grid.cells), _mask(grid)).flatten()[grid.cells]
                for own, grid in zip(
                    _split_by_grid(batch.crf_grids, scores), batch.crf_grids, strict=True
                )
            ]
        )


def _split_by_grid(grids: Sequence[PaddedGrid], values: Tensor) -> Sequence[Tensor]:
    """Split the values of a batch's tokens, (tokens, …), into one tensor per padded grid."""
    return torch.split(values, [len(grid.cells) for grid in grids])


def _run_lstm(lstm: nn.LSTM, words: Tensor, cells: Tensor, grid: PaddedGrid) -> Tensor:
    """Run an LSTM over the tokens, (tokens, embedding), in their cells; return (tokens, width)."""
    if grid.packed_positions is not None:
        places = grid.packed_positions[cells]
        packed = torch.empty_like(words).index_copy_(0, places, words)
        read: Tensor = lstm(PackedSequence(packed, grid.batch_sizes))[0].data
        return read[places]
    cells_after: Tensor = lstm(grid.scatter(words, cells))[0]
    return cells_after.flatten(0, 1)[cells]


def _mask(grid: PaddedGrid) -> Tensor:
    """Return a grid's mask of the cells that have a token, shape (T, sentences)."""
    return grid.scatter(torch.ones_like(grid.cells, dtype=torch.bool), grid.cells)
