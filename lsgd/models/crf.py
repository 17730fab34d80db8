"""A linear-chain conditional random field (Lafferty et al. 2001; Lample et al. 2016)."""

import torch
from torch import Tensor, nn


class CRF(nn.Module):
    """A linear-chain conditional random field, which scores all tags of a sentence together.

    The score is the sum of each token's emission score, which a network computes, and of parameters
    for each transition, the first and the last tag. The sentences of a batch are in a grid of T
    time steps, filled from step 0; `mask` marks the cells with a token. All parameters start at 0,
    where no tag is preferred. It has no forward(), so that torch.compile ignores it: it would
    compile the loop over time steps for each T.
    """

    def __init__(self, tags: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(tags))
        self.transitions = nn.Parameter(torch.zeros(tags, tags))
        """The score of each tag (rows) before each other (columns)."""
        self.last = nn.Parameter(torch.zeros(tags))

    def loss(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """Return the negative log-likelihood of tags (T, sentences), summed over sentences, ().

        `emissions` are the network's scores, shape (T, sentences, tags).
        """
        return (self.log_partition(emissions, mask) - self.score(emissions, tags, mask)).sum()

    def score(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """Return the CRF's score of each sentence's tags (T, sentences), shape (sentences,)."""
        own = emissions.gather(2, tags[:, :, None])[:, :, 0]
        steps = self.transitions[tags[:-1], tags[1:]]
        ends = mask.sum(0) - 1
        last = tags.gather(0, ends[None])[0]
        sums = own.mul(mask).sum(0) + steps.mul(mask[1:]).sum(0)
        return sums + self.first[tags[0]] + self.last[last]

    def log_partition(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """Compute for each sentence the log of the sum of exp(score) over all tag sequences.

        It uses the forward algorithm (Lample et al. 2016, equation 1); the shape is (sentences,).
        """
        paths = self.first + emissions[0]
        for emission, inside in zip(emissions[1:], mask[1:, :, None], strict=True):
            longer = torch.logsumexp(paths[:, :, None] + self.transitions, 1) + emission
            paths = torch.where(inside, longer, paths)
        return torch.logsumexp(paths + self.last, 1)

    @torch.no_grad()
    def decode(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """Return each sentence's tags of highest score (Viterbi 1967), shape (T, sentences).

        Cells without a token get tag 0. Ties are broken in the same way in every batch.
        """
        paths = self.first + emissions[0]
        # After the end of a sentence each tag follows itself, so that the last tag is kept.
        stay = torch.arange(len(self.first), device=emissions.device).expand_as(paths)
        steps = []
        for emission, inside in zip(emissions[1:], mask[1:, :, None], strict=True):
            best, before = (paths[:, :, None] + self.transitions).max(1)
            paths = torch.where(inside, best + emission, paths)
            steps.append(torch.where(inside, before, stay))
        tags = [(paths + self.last).argmax(1)]
        for before in reversed(steps):
            tags.append(before.gather(1, tags[-1][:, None])[:, 0])
        return torch.stack(tags[::-1]).masked_fill(~mask, 0)
