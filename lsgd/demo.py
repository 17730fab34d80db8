"""Demonstrate the linear scaling rule on a laptop: train 16 small runs and print a table.

    python -m lsgd.demo

A minibatch of 16 is the reference. With a minibatch 16 times as large and the same lr there are too
few steps to learn. With the lr 16 times as large too (Goyal et al. 2017, section 2.1) the error is
that of the reference again. The effect of warmup does not show on a problem this small.
"""

import contextlib
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lsgd import config, paths
from lsgd.errors import UsageError, writing_to
from lsgd.job.command import Parser, run_command
from lsgd.override_syntax import format_override
from lsgd.train import train

RUNS = {
    "digits_reference": "minibatch 16, the reference",
    "digits_unscaled": "minibatch 256, lr as it was",
    "digits_no_warmup": "minibatch 256, lr times 16",
    "digits": "minibatch 256, lr times 16 after warmup",
}
SEEDS = 4


def demo(folder: Path) -> str:
    """Train all runs of the demo, each in its own subfolder; return a table of errors as text.

    A finished run is not trained again, and an interrupted one is resumed.
    """
    rows = [f"{'digits, 30 epochs':<42}{'lr':>7}  top-1 error, mean ± std of {SEEDS} seeds"]
    for name, meaning in RUNS.items():
        errors = []
        for seed in range(SEEDS):
            run_dir = folder / f"{name}-seed{seed}"
            recipe = config.load_recipe(
                [
                    f"recipe={name}",
                    f"seed={seed}",
                    format_override("run_dir", run_dir),
                    "comm=single",
                ]
            )
            print(f"{meaning}, seed {seed}: ", end="", flush=True)
            begin = time.monotonic()
            with writing_to(folder, "write another folder"):
                run_dir.mkdir(parents=True, exist_ok=True)
            log = folder / f"{name}-seed{seed}.log"
            with log.open("a", encoding="utf-8") as file, contextlib.redirect_stdout(file):
                errors.append(train(recipe))
            print(f"{errors[-1]:.2f} %  ({time.monotonic() - begin:.0f} s)", flush=True)
        spread = f"{statistics.mean(errors):5.1f} ± {statistics.stdev(errors):.1f} %"
        rows.append(f"{meaning:<42}{recipe.lr(recipe.steps_per_epoch * 6):>7g}  {spread}")
    return "\n".join(rows)


def _run_demo(folder: Path) -> None:
    """Train the demo's runs in a folder and print their table."""
    # One thread, so that the table does not depend on the machine's number of cores.
    os.environ["OMP_NUM_THREADS"] = "1"
    if "=" in folder.name:
        raise UsageError(
            f"{folder} is not a folder, and the demo takes nothing else; train your own "
            "recipe with lsgd.train"
        )
    count = len(RUNS) * SEEDS
    print(f"{count} runs in {folder}, each with a log; finished runs are not repeated\n")
    try:
        print("\n" + demo(folder))
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; rerun the same command to resume") from None


def main(argv: Sequence[str]) -> int:
    """Run the `lsgd demo` command line and return its exit code."""
    parser = Parser("lsgd.demo", __doc__ or "")
    parser.add_argument(
        "folder",
        nargs="?",
        type=paths.parse_path,
        default=Path("runs/demo"),
        help="the folder for the runs",
    )

    return run_command(lambda: _run_demo(parser.parse_args(argv).folder))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
