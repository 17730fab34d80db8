"""What searches have found, as words for the recipes of a study."""

import json
from dataclasses import replace
from pathlib import Path

from lsgd.errors import Refused
from lsgd.recipe.study import Entry, Study

SEARCHES = Path("runs/searches")
"""The folder with the folders of all searches."""
DEFINITION = "search.json"
"""The file in such a folder that says what is searched, and how."""
POINTS = "points.json"
"""The file in such a folder with what became of its points, and the words of the best."""


def tune(study: Study) -> Study:
    """The study with the words that its searches have found.

    Raises Refused for a search that is not there or not at its end, or that is of another recipe.
    """
    entries = [
        replace(entry, words=_words(study, entry)) if entry.search else entry
        for entry in study.entries
    ]
    return replace(study, entries=entries)


def _words(study: Study, entry: Entry) -> list[str]:
    folder = SEARCHES / str(entry.search)
    where = f"study {study.name} trains {entry.recipe} by {folder}"
    try:
        found = json.loads((folder / POINTS).read_text(encoding="utf-8"))
        recipe = json.loads((folder / DEFINITION).read_text(encoding="utf-8"))["recipe"]
        words, budget = found["tuned"], found["budget"]
        tried = sum(point["ended"] is not None for point in found["points"])
    except (OSError, ValueError, LookupError, TypeError):
        raise Refused(
            f"{where}, where no search is; run python -m lsgd.search +search={entry.search} first"
        ) from None
    if recipe != entry.recipe:
        raise Refused(f"{where}, which is a search of {recipe}; write a search of {entry.recipe}")
    if tried < budget or not words:
        raise Refused(
            f"{where}, which has tried {tried} of {budget} points; the command that began it goes "
            "on with it"
        )
    return [str(word) for word in words]
