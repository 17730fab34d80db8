"""The marker of a dataset's copy by data.stage, which says of what it is a copy."""

from pathlib import Path
from typing import Any

from lsgd.untrusted_files import parse_json, read_bounded

MARKER = ".stage.json"
"""The name of the marker's file in the folder of a copy."""


def read_marker(folder: Path) -> dict[str, Any]:
    """Read the marker of a copy of a dataset; return an empty dict if it has none, or a torn one.

    Its entries are the `source` folder, that of the `index`, whether the copy is `complete`, and
    the `boot` of the machine in which it was made.
    """
    try:
        found = parse_json(read_bounded(folder / MARKER))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def original_folders(root: Path, index: Path) -> tuple[Path, Path]:
    """Return the folders of a dataset and of its index, if `root` is a copy those of the original.

    Advice names them, since a copy is removed when its dataset changes.
    """
    marker = read_marker(root)
    source = marker.get("source")
    if not isinstance(source, str):
        return root, index
    return Path(source), Path(str(marker.get("index", source)))
