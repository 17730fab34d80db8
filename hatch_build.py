"""Writes into a wheel or an sdist which commit it is built from."""

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the file that lsgd.run.provenance reads where there is no checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the file outside of the tree, which stays as it is."""
        # An sdist has the file of its own already, and an image is built from some files alone.
        if version == "editable" or not (Path(self.root) / ".git").exists():
            return
        sys.path.insert(0, self.root)
        from lsgd.run.provenance import BUILT_FROM, commit

        if name := commit():
            self.folder = tempfile.TemporaryDirectory()
            file = Path(self.folder.name) / BUILT_FROM
            file.write_text(f"{name}\n", encoding="utf-8")
            build_data["force_include"][str(file)] = f"lsgd/{BUILT_FROM}"
