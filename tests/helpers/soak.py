"""The seed and the record file of long series of fault tests."""

import os
from pathlib import Path


class FaultSeries:
    """The seed of the fault tests, $LSGD_SEED, and their record file, $LSGD_SOAK."""

    def __init__(self) -> None:
        self.seed = int(os.environ.get("LSGD_SEED", "0"))
        self.record = Path(os.environ["LSGD_SOAK"]) if "LSGD_SOAK" in os.environ else None

    def note(self, line: str) -> None:
        """Append a line to the record file, if there is one."""
        if self.record:
            self.record.parent.mkdir(parents=True, exist_ok=True)
            with self.record.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
