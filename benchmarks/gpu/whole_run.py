"""Plan of a whole run at the measured speed of this machine's GPU.

    python -m benchmarks.gpu.whole_run STEPS OVERRIDES… --out FOLDER

STEPS are names of slices, separated by commas, whose folders are beside FOLDER. lsgd.plan starts
from the fastest step among them; OVERRIDES and --out are its own.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.outcome import is_done, read_outcome
from benchmarks.gpu.slice_results import FROM, speeds
from benchmarks.step import OURS
from lsgd.errors import UsageError
from lsgd.job.command import run_command
from lsgd.plan.__main__ import plan


def fastest(results: Path, steps: Sequence[str]) -> tuple[str, float]:
    """Return the slice with the most images/s of lsgd's step, and that speed.

    Raises UsageError if a slice has not been run, since it might be the fastest, or if none is
    done.
    """
    if untried := [name for name in steps if read_outcome(results / name) is None]:
        raise UsageError(
            f"{', '.join(untried)} might have the fastest step and has not been run; run it first"
        )
    measured = {
        name: speeds(results / name)[OURS].median for name in steps if is_done(results / name)
    }
    if not measured:
        raise UsageError(f"no step is measured: none of {', '.join(steps)} is done")
    name = max(measured, key=lambda each: measured[each])
    return name, measured[name]


def whole_run(argv: Sequence[str]) -> None:
    """Plan the recipe on one GPU, at the speed of the fastest measured step."""
    steps, *arguments = argv
    name, images = fastest(Path(arguments[-1]).parent.parent, steps.split(","))
    print(f"{FROM}{name}, {images:.0f} images/s", flush=True)
    server = ("nodes=1", "gpus=1", "--preset", "h200")
    plan([*arguments, *server, "--images-per-second", f"{images:.1f}"])


if __name__ == "__main__":
    raise SystemExit(run_command(lambda: whole_run(sys.argv[1:])))
