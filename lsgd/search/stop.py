"""Why a trial of a search is to leave before its end."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import overload


@dataclass
class Stop(Sequence[int]):
    """Why a trial is to save and leave: as signals, of which more may come while it is trained."""

    leaving: Sequence[int]
    """Those that the search itself has received."""
    pruned: list[int] = field(default_factory=list)
    """One, if the trial is not worth finishing."""

    def __len__(self) -> int:
        return len(self.leaving) + len(self.pruned)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        return [*self.pruned, *self.leaving][index]

    def prune(self) -> None:
        """Tell the trial to leave, once."""
        if not self.pruned:
            self.pruned.append(signal.SIGTERM)
