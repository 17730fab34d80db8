"""The command line of the benchmarks: `python -m lsgd.bench inputs +recipe=bs256`."""

import shlex
import sys
from collections.abc import Sequence

from lsgd.errors import Refused
from lsgd.job.command import run_command
from lsgd.nearest import did_you_mean, written_here

HELP = """\
usage: python -m lsgd.bench WHAT +recipe=NAME [key=value ...] [options]

How fast the parts of a run are on this machine. Candidates are measured in turn, round after
round, and compared within each round; `python -m lsgd.bench WHAT --help` says how.

WHAT:
  fold        ms of a batch of trees by the way they are batched: lsgd.fold, TorchFold, by hand
  inputs      images/s of each loader, of the model and of both; which bounds; a loader's memory
  live        batches/s of real asynchronous processes, beside those of virtual time
  padding     words/s of a tagger by the way its sentences are padded, in torch and TensorFlow
  scaling     images/s on 1, 2, 4 processes: weak and strong scaling, efficiency against one
  strategies  batches/s and start-up of all-reduce and servers, TensorFlow's and those of lsgd

What proves lsgd's own speed is beside it, in a checkout: python -m benchmarks.step, and the others
that benchmarks/README.md lists.
"""


NAMES = ("fold", "inputs", "live", "padding", "scaling", "strategies")


def main(argv: Sequence[str]) -> int:
    """Hand the words to the benchmark that the first one names; returns the exit code."""

    def command() -> None:
        match argv:
            case ["-h" | "--help", *_]:
                print(HELP, end="")
            case ["fold", *words]:
                from lsgd.bench import folding

                folding.main(words)
            case ["inputs", *words]:
                from lsgd.bench import inputs

                inputs.main(words)
            case ["live", *words]:
                from lsgd.bench import live

                live.main(words)
            case ["padding", *words]:
                from lsgd.bench import padding

                padding.main(words)
            case ["scaling", *words]:
                from lsgd.bench import scaling

                scaling.main(words)
            case ["strategies", *words]:
                from lsgd.bench import strategies

                strategies.main(words)
            case ["step" | "batchnorm" | "comm" | "memory" | "startup" as name, *words]:
                raise Refused(
                    f"{name} measures lsgd itself and comes with its source; write in a checkout "
                    f"{shlex.join(['python', '-m', f'benchmarks.{name}', *words])}"
                )
            case [what, *_]:
                how = written_here(what, options=["--help"]) or did_you_mean(what, NAMES)
                raise Refused(f"there is no benchmark {what!r}; {how}")
            case _:
                raise Refused("no benchmark is named; write python -m lsgd.bench inputs, or --help")

    return run_command(command)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
