"""Benchmark of the time that a command takes to print its help.

Its command is `python -m benchmarks.startup`.
"""

import shlex
import subprocess
import sys
from collections.abc import Sequence

import torch

from benchmarks.command import as_command
from lsgd.bench import results
from lsgd.bench.setting import Result, environment_facts, machine_lines
from lsgd.bench.timing import TimedWork, estimate, measure, time_ratio
from lsgd.errors import UsageError
from lsgd.job.command import Parser
from lsgd.tables import markdown_table

ABOUT = """\
How long does `python -m lsgd.train --help` take, against importing torch and Hydra alone?

Each is a process of its own, from its start to its end; every round has one of each.
"""

HELP, BARE = "python -m lsgd.train --help", "importing torch and hydra"
COMMANDS = {HELP: ["-m", "lsgd.train", "--help"], BARE: ["-c", "import torch, hydra"]}
GOAL = 1.2
"""The largest allowed ratio of the help's time to that of the imports."""
LIMIT = 120.0
"""The seconds after which a process is ended."""


def startup(argv: Sequence[str]) -> None:
    """Measure the commands, print the report and save it in --out."""
    line = Parser("benchmarks.startup", ABOUT)
    results.add_options(line, "startup", rounds=12)
    options = line.parse_args(argv)
    with results.open_record("startup", line.prog, argv, options.out) as record:
        result = bench(options.rounds)
        record.write_report(result, report(result))


def bench(rounds: int) -> Result:
    """Return the machine's setting, and the runs `per_second` of each command."""
    works = {name: timed_process(arguments) for name, arguments in COMMANDS.items()}
    result = environment_facts(torch.device("cpu")) | {"rounds": rounds}
    return result | {"per_second": measure(works, rounds, what="startup")}


def report(result: Result) -> str:
    """Return the benchmark's result as a report in Markdown."""
    speeds = result["per_second"]
    times = time_ratio(speeds, HELP, BARE)
    rows = [
        [HELP, _seconds(speeds[HELP]), times.shown(".3f")],
        [BARE, _seconds(speeds[BARE]), "1"],
    ]
    lines = [
        *machine_lines(result),
        f"{result['rounds']} rounds; medians (and intervals of 95 %)",
        "",
        markdown_table(["a process that does", "seconds", f"times {BARE}"], rows),
        "",
        f"- at most {GOAL:g} times {BARE}: {times.compare_at_most(GOAL)}, {times.shown('.3f')}",
    ]
    return "\n".join(lines)


def timed_process(arguments: Sequence[str]) -> TimedWork:
    """Return a function that runs Python with these arguments and raises UsageError on failure."""

    def work(number: int) -> int:
        command = [sys.executable, *arguments]
        try:
            # The own work of lsgd.job.children would be measured too.
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            raise UsageError(
                f"{shlex.join(command)} did not end in {LIMIT:g} s; mend that first"
            ) from None
        if done.returncode:
            why = done.stderr.strip().rpartition("\n")[2]
            raise UsageError(f"{shlex.join(command)} fails here ({why}); mend that first")
        return 1

    return work


def _seconds(per_second: Sequence[float]) -> str:
    return estimate([1 / speed for speed in per_second]).shown(".2f")


main = as_command(startup)

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
