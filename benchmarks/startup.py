"""The time that a command takes to print its help: `python -m benchmarks.startup`."""

import shlex
import subprocess
import sys
from collections.abc import Sequence

import torch

from lsgd.bench import results
from lsgd.bench.setting import Result, machine_lines, setting
from lsgd.bench.timing import TimedWork, check_rounds, cost, estimate, measure
from lsgd.errors import Refused
from lsgd.job.command import Parser, run_command
from lsgd.tables import markdown

ABOUT = """\
How long does `python -m lsgd.train --help` take, against importing torch and Hydra alone?

Each is a process of its own, from its start to its end; every round has one of each.
"""

HELP, BARE = "python -m lsgd.train --help", "importing torch and hydra"
COMMANDS = {HELP: ["-m", "lsgd.train", "--help"], BARE: ["-c", "import torch, hydra"]}
GOAL = 1.2
"""At most how many times the imports' time the help may take."""
LIMIT = 120.0
"""Seconds after which a process is given up."""


def main(argv: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    return run_command(lambda: startup(argv))


def startup(argv: Sequence[str]) -> None:
    """Measure, print the report and keep it in --out."""
    line = Parser("benchmarks.startup", ABOUT)
    line.add_argument("--rounds", type=int, default=12, help="how often each is started (12)")
    results.add_out(line, "startup")
    options = line.parse_args(argv)
    check_rounds(options.rounds)
    with results.recording("startup", line.prog, argv, options.out) as record:
        result = bench(options.rounds)
        record.end(result, report(result))


def bench(rounds: int) -> Result:
    """The setting, and how often `per_second` each command can be started and ended."""
    works = {name: timed_process(arguments) for name, arguments in COMMANDS.items()}
    result = setting(torch.device("cpu")) | {"rounds": rounds}
    return result | {"per_second": measure(works, rounds, what="startup")}


def report(result: Result) -> str:
    """The result as a report in Markdown."""
    speeds = result["per_second"]
    times = cost(speeds, HELP, BARE)
    rows = [
        [HELP, _seconds(speeds[HELP]), times.shown(".3f")],
        [BARE, _seconds(speeds[BARE]), "1"],
    ]
    lines = [
        *machine_lines(result),
        f"{result['rounds']} rounds; medians (and intervals of 95 %)",
        "",
        markdown(["a process that does", "seconds", f"times {BARE}"], rows),
        "",
        f"- at most {GOAL:g} times {BARE}: {times.within(GOAL)}, {times.shown('.3f')}",
    ]
    return "\n".join(lines)


def timed_process(arguments: Sequence[str]) -> TimedWork:
    """Python with these arguments, from its start to its end; raises Refused if it fails."""

    def work(number: int) -> int:
        command = [sys.executable, *arguments]
        try:
            # Not lsgd.job.children, whose own work would count.
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            raise Refused(
                f"{shlex.join(command)} did not end in {LIMIT:g} s; mend that first"
            ) from None
        if done.returncode:
            why = done.stderr.strip().rpartition("\n")[2]
            raise Refused(f"{shlex.join(command)} fails here ({why}); mend that first")
        return 1

    return work


def _seconds(per_second: Sequence[float]) -> str:
    return estimate([1 / speed for speed in per_second]).shown(".2f")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
