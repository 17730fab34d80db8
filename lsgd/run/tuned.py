"""The best overrides of finished searches, applied to the recipes of a study."""

from dataclasses import replace
from pathlib import Path

from lsgd.errors import UsageError
from lsgd.recipe.study import Entry, Study
from lsgd.untrusted_files import parse_json, read_bounded

SEARCHES = Path("runs/searches")
"""The folder that contains the folders of all searches."""
DEFINITION = "search.json"
"""The file in a search's folder that defines what is searched, and how."""
POINTS = "points.json"
"""The file in a search's folder with the results of its trials and the best overrides."""


def apply_search_results(study: Study) -> Study:
    """Return the study with each entry that names a search given that search's best overrides.

    Raises UsageError for a search that does not exist, is not finished, or is of another recipe.
    """
    entries = [
        replace(entry, words=_overrides(study, entry)) if entry.search else entry
        for entry in study.entries
    ]
    return replace(study, entries=entries)


def _overrides(study: Study, entry: Entry) -> list[str]:
    folder = SEARCHES / str(entry.search)
    where = f"study {study.name} trains {entry.recipe} by {folder}"
    try:
        found = parse_json(read_bounded(folder / POINTS))
        recipe = parse_json(read_bounded(folder / DEFINITION))["recipe"]
        overrides, budget = found["tuned"], found["budget"]
        ended = sum(point["ended"] is not None for point in found["points"])
        crashed = int(found.get("crashed", 0))  # of which the values were not tried
    except (OSError, ValueError, LookupError, TypeError):
        raise UsageError(
            f"{where}, where no search exists; run python -m lsgd.search search={entry.search} "
            "first"
        ) from None
    if recipe != entry.recipe:
        raise UsageError(
            f"{where}, which is a search of {recipe}; write a search of {entry.recipe}"
        )
    if ended - crashed < budget or not overrides:
        fix = "with --retry-failed to retry those that crashed" if crashed else "to resume it"
        raise UsageError(
            f"{where}, which has tried {ended - crashed} of {budget} trials; rerun its command "
            f"{fix}"
        )
    return [str(word) for word in overrides]
