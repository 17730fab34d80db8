"""What the long fault series draw from and where they are recorded."""

import os
from pathlib import Path


class Soak:
    """What the fault tests draw from, $LSGD_SEED, and where they note what they did, $LSGD_SOAK."""

    def __init__(self) -> None:
        self.seed = int(os.environ.get("LSGD_SEED", "0"))
        self.record = Path(os.environ["LSGD_SOAK"]) if "LSGD_SOAK" in os.environ else None

    def note(self, line: str) -> None:
        """Keep a line of what was done and found."""
        if self.record:
            self.record.parent.mkdir(parents=True, exist_ok=True)
            with self.record.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
