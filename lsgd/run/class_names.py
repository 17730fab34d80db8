"""The names of a run's classes, in a file of the run folder.

They are not part of the trajectory: a checkpoint and a fingerprint are the same without them.
"""

import json
from pathlib import Path

from lsgd.errors import UsageError
from lsgd.files import atomic_write
from lsgd.recipe import Recipe
from lsgd.typed import convert_json
from lsgd.untrusted_files import parse_json, read_bounded

CLASSES = "classes.json"
"""The file in a run folder with the list of the class names, in the order of their labels."""


def write_class_names(folder: Path, names: list[str]) -> None:
    """Write the names of the classes, in the order of their labels, into a run folder."""
    with atomic_write(folder / CLASSES) as file:
        file.write(json.dumps(names).encode() + b"\n")


def read_class_names(folder: Path, recipe: Recipe) -> list[str]:
    """Read the class names in a run folder; return an empty list if there are none.

    Raises UsageError if the file is not a list of as many names as the recipe has classes.
    """
    path, classes = folder / CLASSES, recipe.data.classes
    try:
        names: list[str] = convert_json(list[str], parse_json(read_bounded(path)))
        if len(names) != classes:
            raise ValueError(f"it has {len(names)} names for {classes} classes")
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} has no class names ({error}); remove it to use the numbers of the classes"
        ) from None
    return names
