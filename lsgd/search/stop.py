"""The request that makes a run of a search stop before its end."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import overload


@dataclass
class StopRequest(Sequence[int]):
    """The signals that ask a run to save a checkpoint and exit; more may arrive as it trains."""

    search_signals: Sequence[int]
    """The signals that the search itself has received."""
    prune_signals: list[int] = field(default_factory=list)
    """One signal if the trial has been pruned, else none."""

    def __len__(self) -> int:
        return len(self.search_signals) + len(self.prune_signals)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        return [*self.prune_signals, *self.search_signals][index]

    def prune(self) -> None:
        """Request that the run of a pruned trial stops; repeated calls have no effect."""
        if not self.prune_signals:
            self.prune_signals.append(signal.SIGTERM)
