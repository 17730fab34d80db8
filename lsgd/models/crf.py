"""A conditional random field over a chain of tags (Lafferty et al. 2001; Lample et al. 2016)."""

import torch
from torch import Tensor, nn


class CRF(nn.Module):
    """Scores of a sentence's tags as a whole: of each word's tag, which a network gives, and of
    each tag behind another, of a first and of a last one, which are its parameters.

    All sentences of a batch lie in a grid of T places, filled from place 0; `mask` says which
    places have a word. Its scores begin at 0, where no tag is preferred. It has no forward(), so
    that torch.compile leaves it alone: a loop over places would be compiled for each T anew.
    """

    def __init__(self, tags: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(tags))
        self.transitions = nn.Parameter(torch.zeros(tags, tags))
        """The score of each tag (rows) before each other (columns)."""
        self.last = nn.Parameter(torch.zeros(tags))

    def loss(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """The negative log-likelihood of the tags (T, sentences), summed over the sentences, shape
        (); `emissions` are the scores that the network gives, shape (T, sentences, tags)."""
        return (self.log_partition(emissions, mask) - self.score(emissions, tags, mask)).sum()

    def score(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """The score of the tags (T, sentences) of each sentence, shape (sentences,)."""
        own = emissions.gather(2, tags[:, :, None])[:, :, 0]
        steps = self.transitions[tags[:-1], tags[1:]]
        ends = mask.sum(0) - 1
        last = tags.gather(0, ends[None])[0]
        sums = own.mul(mask).sum(0) + steps.mul(mask[1:]).sum(0)
        return sums + self.first[tags[0]] + self.last[last]

    def log_partition(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """The logarithm of the sum of exp(score) over all tags that each sentence could have, by
        the forward algorithm (Lample et al. 2016, equation 1), shape (sentences,)."""
        paths = self.first + emissions[0]
        for emission, inside in zip(emissions[1:], mask[1:, :, None], strict=True):
            longer = torch.logsumexp(paths[:, :, None] + self.transitions, 1) + emission
            paths = torch.where(inside, longer, paths)
        return torch.logsumexp(paths + self.last, 1)

    @torch.no_grad()
    def best(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """The tags of the highest score of each sentence (Viterbi 1967), shape (T, sentences), and
        tag 0 behind its end; of several with that score, the same ones in every batch."""
        paths = self.first + emissions[0]
        # Behind the end of a sentence, each tag comes from itself, so that the last one stays.
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
