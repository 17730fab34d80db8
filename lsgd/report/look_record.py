"""The record beside a report of the numbers of seeds at which a study's claims were tested.

Tests are planned before the first run, or noted as they happen. Whoever adds seeds because an
interval did not decide has tested before, and the next report must know.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lsgd import files
from lsgd.errors import UsageError
from lsgd.report.looks import Looks
from lsgd.untrusted_files import parse_json, read_bounded


def looks_file(report: Path) -> Path:
    """Return the path of the file, beside a report's folder, that records tests of claims."""
    return report.with_name(f"{report.name}.looks.json")


def read_looks(report: Path) -> Looks | None:
    """Read from which to which number of seeds a study's claims are tested; None if not recorded.

    Raises UsageError for a file that cannot be understood.
    """
    kept = _kept(report)
    return Looks(kept["first"], kept["last"]) if kept else None


def _kept(report: Path) -> dict[str, Any]:
    """Read `first`, `last`, `planned` and `adding` from a report's record; empty without one.

    `planned` is 0 where the last test is only the last one so far. `adding` are the seeds that were
    added last, by recipe; older records have none.
    """
    path = looks_file(report)
    try:
        kept = parse_json(read_bounded(path))
        adding = {str(name): int(seed) for name, seed in kept.get("adding", {}).items()}
        numbers = {key: int(kept[key]) for key in ("first", "last", "planned")}
        # Earlier versions recorded tests with one seed too, which decide nothing.
        numbers["first"] = max(numbers["first"], 2)
        return numbers | {"adding": adding} if numbers["last"] > 1 else {}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} records the seeds of the earlier looks at the claims, and cannot be read ("
            f"{error}); restore it, or remove it to decide the claims without earlier looks"
        ) from None


def plan_looks(report: Path, first: int, last: int) -> None:
    """Record, before the first test, that claims will be tested with `first` to `last` seeds.

    Raises UsageError if another plan is recorded: whoever chooses the end after a look is wrong
    more often than the level says.
    """
    kept = _kept(report)
    resumes = bool(kept) and kept["planned"] == last
    # Seeds that were added by hand beyond a plan have ended it.
    if kept and kept["planned"] == kept["last"] != last:
        raise UsageError(
            f"--max-seeds {last} is not the {kept['planned']} that {looks_file(report)} has from "
            "the first such command, and a rule must not change after a look; write --max-seeds "
            f"{kept['planned']}"
        )
    if kept and kept["last"] > last and not resumes:
        raise UsageError(
            f"--max-seeds {last} is below the {kept['last']} seeds with which the claims have been "
            f"looked at; write --max-seeds {kept['last'] + 1} or more"
        )
    _write(
        report,
        kept | {"first": min(first, kept.get("first", first)), "planned": last},
        max(last, kept.get("last", last)),
    )


def note_look(report: Path, *seeds: int) -> Looks:
    """Record that claims are tested with these numbers of seeds, and return all tests so far."""
    kept = _kept(report)
    looks = Looks(min(kept.get("first", seeds[0]), *seeds), max(kept.get("last", seeds[0]), *seeds))
    _write(report, kept | {"first": looks.first}, looks.last)
    return looks


def read_added_seeds(report: Path) -> dict[str, int]:
    """Read the seeds that were added last, by recipe; their runs may be unfinished."""
    adding: dict[str, int] = _kept(report).get("adding", {})
    return adding


def note_added_seeds(report: Path, adding: Mapping[str, int]) -> None:
    """Record, before their runs begin, the seeds that are added to recipes of open claims.

    If the study is killed among these runs, its claims must not be tested with a part of them: a
    study that is resumed would come to another verdict than one that is not interrupted.
    """
    kept = _kept(report)
    _write(report, kept | {"adding": dict(adding)}, kept["last"])


def _write(report: Path, kept: Mapping[str, Any], last: int) -> None:
    """Write the record of a report's tests of claims, of which the last is at `last` seeds."""
    path = looks_file(report)
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {"planned": 0, "adding": {}, **kept, "last": last}
    record = {key: values[key] for key in ("first", "last", "planned", "adding")}
    with files.atomic_write(path) as file:
        file.write(json.dumps(record).encode() + b"\n")
