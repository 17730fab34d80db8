"""The check that a batch norm layer's running statistics are as new as its weights."""

from collections.abc import Callable
from typing import Any, Self

from lsgd.errors import UsageError


class StatisticsFreshness:
    """A flag of one batch norm layer: whether its running statistics are older than its weights.

    lsgd.virtual keeps the statistics in shares on the processes between two synchronizations.
    `take_loaded` takes over those that were loaded into the layer. A copy of the layer has its own
    statistics, of which the step does not know, so that a copy of the flag does nothing; a layer
    with old statistics is not copied.
    """

    def __init__(self, take_loaded: Callable[[], None] | None = None) -> None:
        self.take_loaded, self.is_stale = take_loaded, False

    def check(self, purpose: str) -> None:
        """Raise UsageError if the statistics are too old for a purpose, such as an evaluation."""
        if self.is_stale:
            raise UsageError(
                "the model's running BN statistics are older than its weights; call "
                f"step.synchronize() on every process before {purpose}"
            )

    def end_load(self) -> None:
        """Take over the statistics that were loaded into the layer."""
        if self.take_loaded:
            self.take_loaded()
            self.is_stale = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy as a flag that does nothing, if the layer may be copied."""
        self.check("a copy of the model")
        return type(self)()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a flag that does nothing, if the layer may be saved."""
        self.check("a save of the model")
        return type(self), ()
