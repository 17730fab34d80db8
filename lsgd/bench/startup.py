"""How long a command takes to say a word: `python -m lsgd.bench startup`."""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from typing import NoReturn

import torch

from lsgd.bench import results
from lsgd.bench.setting import Found, said, setting
from lsgd.bench.table import head, row, shown
from lsgd.bench.timing import Work, check_rounds, cost, estimate, measure
from lsgd.errors import Refused

ABOUT = """\
How long does `python -m lsgd.train --help` take, against importing torch and Hydra alone?

Each is a process of its own, from its start to its end; every round has one of each.
"""

HELP, BARE = "python -m lsgd.train --help", "importing torch and hydra"
COMMANDS = {HELP: ["-m", "lsgd.train", "--help"], BARE: ["-c", "import torch, hydra"]}
GOAL = 1.2
"""How many times the imports' time the help may take."""


LIMIT = 120.0
"""Seconds after which a process is given up."""


class _CommandLine(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Refused(f"{message}; --help says what there is")


def main(argv: Sequence[str]) -> None:
    """Measure, print the report and keep it in --out."""
    line = _CommandLine(
        prog="python -m lsgd.bench startup",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    line.add_argument("--rounds", type=int, default=12, help="how often each is started (12)")
    results.add_out(line, "startup")
    options = line.parse_args(argv)
    check_rounds(options.rounds)
    with results.recording("startup", line.prog, argv, options.out) as record:
        found = bench(options.rounds)
        record.end(found, report(found))


def bench(rounds: int) -> Found:
    """All that is measured, as JSON can hold it."""
    here = setting(torch.device("cpu")) | {"rounds": rounds}
    works = {name: _process(arguments) for name, arguments in COMMANDS.items()}
    return here | {"per_second": measure(works, rounds, what="startup")}


def report(found: Found) -> str:
    """What was found, in Markdown."""
    speeds = found["per_second"]
    times = cost(speeds, HELP, BARE)
    lines = [
        *said(found),
        f"{found['rounds']} rounds; medians (and intervals of 95 %)",
        "",
        *head("a process that does", "seconds", f"times {BARE}"),
        row(HELP, _seconds(speeds[HELP]), shown(times, ".3f")),
        row(BARE, _seconds(speeds[BARE]), "1"),
        "",
        f"- at most {GOAL:g} times {BARE}: {times.within(GOAL)}, {shown(times, '.3f')}",
    ]
    return "\n".join(lines)


def _seconds(per_second: Sequence[float]) -> str:
    return shown(estimate([1 / each for each in per_second]), ".2f")


def _process(arguments: Sequence[str]) -> Work:
    def work(number: int) -> int:
        command = [sys.executable, *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            raise Refused(
                f"{shlex.join(command)} did not end in {LIMIT:g} s; mend that first"
            ) from None
        if done.returncode:
            said = done.stderr.strip().rpartition("\n")[2]
            raise Refused(f"{shlex.join(command)} fails here ({said}); mend that first")
        return 1

    return work
