"""The ranges of epochs in which all steps of a run have the same size."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """A range of a run's epochs with a constant number of workers and a constant batch size.

    `steps_before` and `examples_before` are those of all earlier epochs.
    """

    epoch: int
    """The first epoch of the stage, counted from 0."""
    workers: int
    batch_size: int
    """The number of examples of an update."""
    steps_per_epoch: int
    """The number of steps of an epoch."""
    examples_per_epoch: int
    """The number of training examples used by the steps of an epoch."""
    steps_before: int
    examples_before: int

    def steps_until(self, epoch: float) -> float:
        """Return the number of steps of the run before a (fractional) epoch of this stage."""
        return self.steps_before + (epoch - self.epoch) * self.steps_per_epoch

    def examples_until(self, epoch: int) -> int:
        """Return the number of training examples used by the run before an epoch of this stage."""
        return self.examples_before + (epoch - self.epoch) * self.examples_per_epoch
