"""Warmup, stable, decay (Zhai et al. 2022): a constant lr, then a line to 0."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StableThenLinear:
    """Keep the full lr, and decay it linearly over the last part of the run."""

    cooldown: float = 0.2
    """The share of the decay in which the lr falls."""

    def share(self, remaining: float) -> float:
        """Return the share of the full lr where this share of the decay remains."""
        return min(1.0, remaining / self.cooldown)
