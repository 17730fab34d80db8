"""The record of a benchmark: a report on the screen, and with --out files in a new folder."""

import json
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lsgd.bench.setting import Result
from lsgd.bench.timing import check_rounds
from lsgd.files import create_output_folder, write_files
from lsgd.job.command import Parser, seconds


@dataclass(frozen=True)
class BenchmarkRecord:
    """The output of one run of a benchmark: a report, and files in a folder if given."""

    name: str
    """The name of the benchmark on the command line."""
    command: str
    folder: Path | None

    def write_result(self, result: Result) -> None:
        """Write a benchmark's measurements so far to NAME.json, replacing an earlier version."""
        if self.folder:
            text = json.dumps(result | {"command": self.command}, indent=1)
            write_files(self.folder, {f"{self.name}.json": f"{text}\n".encode()})

    def write_report(self, result: Result, report: str) -> None:
        """Print a benchmark's report, and write it to README.md and its result to NAME.json."""
        print(f"\n{report}", flush=True)
        if self.folder:
            self.write_result(result)
            write_files(self.folder, {"README.md": f"{report}\n".encode()})
            print(f"\nkept in {self.folder}")


def add_options(line: Parser, name: str, *, rounds: int, limit: float | None = None) -> None:
    """Add the options of a benchmark whose rounds measure each candidate: --rounds and --out.

    With `limit`, the default time limit of a part in seconds, --limit is added too.
    """
    line.add_argument(
        "--rounds",
        type=_rounds,
        default=rounds,
        metavar="N",
        help=f"measure each N times ({rounds})",
    )
    if limit is not None:
        line.add_argument(
            "--limit",
            type=seconds,
            default=limit,
            help=f"seconds after which a part of the measurement is given up ({limit:g})",
        )
    add_out(line, name)


def _rounds(text: str) -> int:
    check_rounds(rounds := int(text))
    return rounds


def add_out(line: Parser, name: str) -> None:
    """Add the option --out, a folder for results, to the command line of a benchmark."""
    line.add_path("--out", "FOLDER", f"a new folder for README.md and {name}.json")


@contextmanager
def open_record(
    name: str, program: str, argv: Sequence[str], out: Path | None
) -> Iterator[BenchmarkRecord]:
    """Open the record of a benchmark's run, and create its folder `out` if given.

    The folder is created at once, and its files are kept if a later part of the benchmark fails.
    Raises UsageError, before anything is measured, if the folder exists.
    """
    with create_output_folder(out, keep_partial=True) as folder:
        yield BenchmarkRecord(name, f"{program} {shlex.join(argv)}", folder)
