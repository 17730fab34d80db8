"""What a whole run would take here: `python -m benchmarks.gpu.whole_run STEPS WORDS… --out FOLDER`.

STEPS are the names of slices, separated by commas, that stand beside that of FOLDER. lsgd.plan
starts from the fastest step among them, and WORDS are its own.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.figures import FROM, speeds
from benchmarks.gpu.outcome import is_done, read_outcome
from benchmarks.step import OURS
from lsgd.errors import Refused
from lsgd.job.command import run_command
from lsgd.plan.__main__ import plan


def fastest(results: Path, steps: Sequence[str]) -> tuple[str, float]:
    """The slice with the most images/s of lsgd's step, and these.

    Raises Refused if one has not been tried, which might be the fastest, or none is done.
    """
    if untried := [name for name in steps if read_outcome(results / name) is None]:
        raise Refused(
            f"{', '.join(untried)} might have the fastest step and has not been run; run it first"
        )
    measured = {
        name: speeds(results / name)[OURS].median for name in steps if is_done(results / name)
    }
    if not measured:
        raise Refused(f"no step is measured: none of {', '.join(steps)} is done")
    name = max(measured, key=lambda each: measured[each])
    return name, measured[name]


def whole_run(argv: Sequence[str]) -> None:
    """Plan on one GPU, at the speed of the fastest step."""
    steps, *words = argv
    name, images = fastest(Path(words[-1]).parent.parent, steps.split(","))
    print(f"{FROM}{name}, {images:.0f} images/s", flush=True)
    server = ("nodes=1", "gpus=1", "--preset", "h200")
    plan([*words, *server, "--images-per-second", f"{images:.1f}"])


if __name__ == "__main__":
    raise SystemExit(run_command(lambda: whole_run(sys.argv[1:])))
