"""The command line of the benchmarks: `python -m lsgd.bench inputs recipe=bs256`."""

import shlex
import sys
from collections.abc import Sequence
from importlib import import_module

from lsgd.errors import UsageError
from lsgd.job.command import run_command
from lsgd.suggestions import did_you_mean, suggest_equivalent

HELP = """\
usage: python -m lsgd.bench WHAT recipe=NAME [key=value ...] [options]

Measure the speed of the parts of a run on this machine. Candidates are measured in turn, round
after round, and compared within each round; `python -m lsgd.bench WHAT --help` describes it.

WHAT:
  inputs      images/s of each loader, of the model and of both; the bottleneck; a loader's memory
  scaling     images/s on 1, 2, 4 processes: weak and strong scaling, efficiency against one

Comparisons with other programs are in a checkout: python -m benchmarks.step,
and the others in
benchmarks/README.md.
"""


NAMES = ("inputs", "scaling")
CHECKOUT_BENCHMARKS = (
    "batchnorm", "comm", "fold", "live", "memory", "padding", "startup", "step", "strategies",
)  # fmt: skip


def run_benchmark(argv: Sequence[str]) -> None:
    """Run the benchmark that the first command-line argument names."""
    match argv:
        case ["-h" | "--help", *_]:
            print(HELP, end="")
        case [name, *words] if name in NAMES:
            import_module(f"lsgd.bench.{name}").main(words)
        case [name, *words] if name in CHECKOUT_BENCHMARKS:
            raise UsageError(
                f"{name} compares lsgd with other programs and is part of its source only; "
                "run in a checkout "
                f"{shlex.join(['python', '-m', f'benchmarks.{name}', *words])}"
            )
        case [what, *_]:
            how = suggest_equivalent(what, options=["--help"]) or did_you_mean(what, NAMES)
            raise UsageError(f"benchmark {what!r} does not exist; {how}")
        case _:
            raise UsageError("no benchmark is given; write python -m lsgd.bench inputs, or --help")


def main(argv: Sequence[str]) -> int:
    """Run the `lsgd bench` command line and return its exit code."""
    return run_command(lambda: run_benchmark(argv))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
