"""Counts of what a model got right, kept on the device and added up as integers."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Scores:
    """What a tally says, once summed over all processes."""

    examples: int
    loss: float
    """Mean over the examples."""
    top1_error: float
    """Percent."""
    top5_error: float
    """Percent."""

    def named(self, split: str) -> dict[str, float]:
        """The scores as metrics of a split: train_loss, train_top1_error, train_top5_error."""
        return {
            f"{split}_{key}": getattr(self, key) for key in ("loss", "top1_error", "top5_error")
        }


class Tally:
    """Loss and correct answers of the examples that this process has seen."""

    def __init__(self, device: torch.device) -> None:
        self.counts = torch.zeros(3, dtype=torch.int64, device=device)
        """Examples, right at the first guess, right within five guesses."""
        self.loss = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Count a pass: the sum of its losses, logits (images, classes) and labels (images,)."""
        guesses = logits.detach().topk(min(5, logits.shape[1])).indices == labels[:, None]
        self.loss += loss.detach()
        self.counts[0] += len(labels)
        self.counts[1] += guesses[:, 0].sum()
        self.counts[2] += guesses.sum()

    def state(self, sum_: Callable[[Tensor], None]) -> dict[str, Tensor]:
        """The tally of all processes together, as tensors of their own."""
        counts, loss = self.counts.clone(), self.loss.clone()
        sum_(counts)
        sum_(loss)
        return {"counts": counts, "loss": loss}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go on counting from a state."""
        self.counts.copy_(state["counts"])
        self.loss.copy_(state["loss"])

    def clear(self) -> None:
        """Start again from nothing."""
        self.counts.zero_()
        self.loss.zero_()


def scores(state: dict[str, Tensor]) -> Scores:
    """The mean loss and the errors of a summed state, which must have seen an example."""
    examples, top1, top5 = state["counts"].tolist()
    return Scores(
        examples,
        loss=state["loss"].item() / examples,
        top1_error=100 * (examples - top1) / examples,
        top5_error=100 * (examples - top5) / examples,
    )


def difference(now: dict[str, Tensor], before: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state of what was seen between two states."""
    return {key: now[key] - before[key] for key in now}
