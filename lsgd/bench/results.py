"""The record of a measurement: a report on the screen, and with --out in a new folder."""

import json
import shlex
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lsgd.bench.setting import Result
from lsgd.files import new_folder, whole


@dataclass(frozen=True)
class Record:
    """The record that one run of a benchmark leaves behind."""

    name: str
    """The name of the benchmark on the command line."""
    command: str
    folder: Path | None

    def keep(self, result: Result) -> None:
        """Write NAME.json with what is measured so far, in place of an earlier one."""
        if self.folder:
            text = json.dumps(result | {"command": self.command}, indent=1)
            _write(self.folder / f"{self.name}.json", text)

    def end(self, result: Result, report: str) -> None:
        """Print the report; keep it as README.md, beside all that was measured."""
        print(f"\n{report}", flush=True)
        if self.folder:
            self.keep(result)
            _write(self.folder / "README.md", report)
            print(f"\nkept in {self.folder}")


def add_out(line: ArgumentParser, name: str) -> None:
    """Give the command line of the benchmark of this name its option --out."""
    line.add_argument(
        "--out", type=Path, metavar="FOLDER", help=f"a new folder for README.md and {name}.json"
    )


@contextmanager
def recording(name: str, program: str, argv: Sequence[str], out: Path | None) -> Iterator[Record]:
    """The record of the benchmark of this name, which a program was asked for by these words.

    A folder `out` is made at once; what is kept in it stays if a later part of the benchmark fails.
    Raises Refused, before anything is measured, if the folder is there already.
    """
    with new_folder(out, parts_stay=True) as folder:
        yield Record(name, f"{program} {shlex.join(argv)}", folder)


def _write(file: Path, text: str) -> None:
    with whole(file) as out:
        out.write(f"{text}\n".encode())
