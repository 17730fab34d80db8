"""The record beside a report of the numbers of seeds at which a study's claims were tested.

Tests are planned before the first run, or noted as they happen. Whoever adds seeds because an
interval did not decide has tested before, and the next report must know.
"""

import json
from pathlib import Path

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


def _kept(report: Path) -> dict[str, int]:
    """Read `first`, `last` and `planned` from a report's record of tests; empty without one.

    `planned` is 0 where the last test is only the last one so far.
    """
    path = looks_file(report)
    try:
        kept = parse_json(read_bounded(path))
        return {key: int(kept[key]) for key in ("first", "last", "planned")}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, LookupError, TypeError) as error:
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
    if kept and kept["planned"] not in (0, last):
        raise UsageError(
            f"--max-seeds {last} is not the {kept['planned']} that {looks_file(report)} has from "
            "the first such command, and a rule must not change after a look; write --max-seeds "
            f"{kept['planned']}"
        )
    if kept and kept["last"] > last:
        raise UsageError(
            f"--max-seeds {last} is below the {kept['last']} seeds with which the claims have been "
            f"looked at; write --max-seeds {kept['last'] + 1} or more"
        )
    _write(report, min(first, kept.get("first", first)), last, planned=last)


def note_look(report: Path, seeds: int) -> Looks:
    """Record that claims are tested with this number of seeds, and return all tests so far."""
    kept = _kept(report)
    looks = Looks(min(kept.get("first", seeds), seeds), max(kept.get("last", seeds), seeds))
    _write(report, looks.first, looks.last, planned=kept.get("planned", 0))
    return looks


def _write(report: Path, first: int, last: int, *, planned: int) -> None:
    """Write the record of a report's tests of claims to its file."""
    path = looks_file(report)
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.atomic_write(path) as file:
        file.write(json.dumps({"first": first, "last": last, "planned": planned}).encode() + b"\n")
