"""The command line of the benchmarks: `python -m lsgd.bench inputs recipe=bs256`."""

import shlex
import sys
from collections.abc import Sequence

from lsgd.errors import UsageError
from lsgd.job.command import run_command
from lsgd.suggestions import did_you_mean, suggest_equivalent

HELP = """\
usage: python -m lsgd.bench WHAT recipe=NAME [key=value ...] [options]

How fast the parts of a run are on this machine. Candidates are measured in turn, round after
round, and compared within each round; `python -m lsgd.bench WHAT --help` says how.

WHAT:
  inputs      images/s of each loader, of the model and of both; which bounds; a loader's memory
  scaling     images/s on 1, 2, 4 processes: weak and strong scaling, efficiency against one

What compares lsgd with others is beside it, in a checkout: python -m benchmarks.step, and the
others that benchmarks/README.md lists.
"""


NAMES = ("inputs", "scaling")
CHECKOUT_BENCHMARKS = (
    "batchnorm", "comm", "fold", "live", "memory", "padding", "startup", "step", "strategies",
)  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Run the benchmark that the first command-line argument names and return the exit code."""

    def command() -> None:
        match argv:
            case ["-h" | "--help", *_]:
                print(HELP, end="")
            case ["inputs", *words]:
                from lsgd.bench import inputs

                inputs.main(words)
            case ["scaling", *words]:
                from lsgd.bench import scaling

                scaling.main(words)
            case [name, *words] if name in CHECKOUT_BENCHMARKS:
                raise UsageError(
                    f"{name} compares lsgd with others and comes with its source; write in a "
                    f"checkout {shlex.join(['python', '-m', f'benchmarks.{name}', *words])}"
                )
            case [what, *_]:
                how = suggest_equivalent(what, options=["--help"]) or did_you_mean(what, NAMES)
                raise UsageError(f"there is no benchmark {what!r}; {how}")
            case _:
                raise UsageError(
                    "no benchmark is named; write python -m lsgd.bench inputs, or --help"
                )

    return run_command(command)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
