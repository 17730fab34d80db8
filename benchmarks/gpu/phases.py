"""Short training run with profile=true, which saves its phase times and rows.

    python -m benchmarks.gpu.phases FOLDER +recipe=bs256 data.train_examples=10240

Images are made up. An epoch of at least 28 steps is long enough to be timed and traced.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from lsgd import config
from lsgd.errors import UsageError
from lsgd.files import create_output_folder, write_files
from lsgd.job.command import run_command
from lsgd.train import train

SHORT = (
    *("inputs=synthetic", "profile=true", "epochs=1", "schedule.milestones=[]"),
    *("schedule.warmup=none", "data.val_examples=64", "log_steps=5"),
)


def save_phases(out: Path, overrides: Sequence[str]) -> None:
    """Train the recipe, and save its phase times, rows and configuration in the new folder.

    Raises UsageError if the folder exists, or if the run was too short.
    """
    with create_output_folder(out), TemporaryDirectory(prefix="lsgd-profile-") as run:
        recipe = config.load_recipe([*overrides, *SHORT])
        train(replace(recipe, run_dir=run))
        phases = list(Path(run).glob("profile/*/README.md"))
        if not phases:
            raise UsageError(
                "no phases were timed: the run had too few steps; write more data.train_examples"
            )
        contents = {
            "config.yaml": config.to_yaml(recipe).encode(),
            "metrics.jsonl": Path(run, "metrics.jsonl").read_bytes(),
            "README.md": phases[0].read_bytes(),
        }
        write_files(out, contents)


if __name__ == "__main__":
    raise SystemExit(run_command(lambda: save_phases(Path(sys.argv[1]), sys.argv[2:])))
