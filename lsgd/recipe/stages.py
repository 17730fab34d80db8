"""The stretches of a run in which all epochs have steps of one size."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """A stretch of epochs with as many workers; what comes before it is counted in `…_before`."""

    epoch: int
    """Its first epoch, counted from 0."""
    workers: int
    batch_size: int
    """The examples of an update."""
    steps: int
    """Those of an epoch."""
    examples: int
    """Those that the steps of an epoch see."""
    steps_before: int
    examples_before: int

    def steps_until(self, epoch: float) -> float:
        """The steps of the run before this (fractional) epoch, which is of this stage."""
        return self.steps_before + (epoch - self.epoch) * self.steps

    def examples_until(self, epoch: int) -> int:
        """The training examples that the run has seen before this epoch of the stage."""
        return self.examples_before + (epoch - self.epoch) * self.examples
