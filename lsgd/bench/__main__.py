"""The command line of the benchmarks: `python -m lsgd.bench inputs +recipe=bs256`."""

import sys
from collections.abc import Sequence

from lsgd.errors import Refused
from lsgd.job.command import run_command

HELP = """\
usage: python -m lsgd.bench WHAT +recipe=NAME [key=value ...] [options]
       python -m lsgd.bench startup [options]

How fast the parts of a run are on this machine. Candidates are measured in turn, round after
round, and compared within each round; `python -m lsgd.bench WHAT --help` says how.

WHAT:
  inputs    images/s of each loader, of the model and of both; which bounds; a loader's memory
  comm      our reducer against DistributedDataParallel and hvd.DistributedOptimizer
  scaling   images/s on 1, 2, 4 processes: weak and strong scaling, efficiency against one
  step      a training step against a loop written by hand, torchvision's script and timm's
  batchnorm a training step with per-worker BN against one with plain BN
  memory    peak memory of a step of one pass against one of many
  startup   how long --help takes, against importing torch and Hydra
"""


def main(argv: Sequence[str]) -> int:
    """Hand the words to the benchmark that the first one names; returns the exit code."""

    def command() -> None:
        match argv:
            case ["-h" | "--help", *_]:
                print(HELP, end="")
            case ["inputs", *words]:
                from lsgd.bench import inputs

                inputs.main(words)
            case ["comm", *words]:
                from lsgd.bench import comm

                comm.main(words)
            case ["scaling", *words]:
                from lsgd.bench import scaling

                scaling.main(words)
            case ["step", *words]:
                from lsgd.bench import steps

                steps.main(steps.STEP, words)
            case ["batchnorm", *words]:
                from lsgd.bench import steps

                steps.main(steps.BATCHNORM, words)
            case ["memory", *words]:
                from lsgd.bench import memory

                memory.main(words)
            case ["startup", *words]:
                from lsgd.bench import startup

                startup.main(words)
            case [what, *_]:
                raise Refused(f"there is no benchmark {what!r}; --help names those that there are")
            case _:
                raise Refused("no benchmark is named; write python -m lsgd.bench inputs, or --help")

    return run_command(command)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
