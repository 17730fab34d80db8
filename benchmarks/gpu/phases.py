"""A short run with profile=true, of which the phases are kept, and its rows.

    python -m benchmarks.gpu.phases FOLDER +recipe=bs256 data.train_examples=10240

Images are made up. One epoch of 28 steps or more is long enough to be timed and traced.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from lsgd import config
from lsgd.errors import Refused
from lsgd.files import new_folder, whole
from lsgd.job.command import run_command
from lsgd.train import train

SHORT = (
    *("inputs=synthetic", "profile=true", "epochs=1", "schedule.milestones=[]"),
    *("schedule.warmup=none", "data.val_examples=64", "log_steps=5"),
)


def keep_phases(out: Path, words: Sequence[str]) -> None:
    """Train, and keep phases, rows and configuration in the new folder.

    Raises Refused if it is there already, or the run was too short.
    """
    with new_folder(out), TemporaryDirectory(prefix="lsgd-profile-") as run:
        recipe = config.load_recipe([*words, *SHORT])
        train(replace(recipe, run_dir=run))
        phases = list(Path(run).glob("profile/*/README.md"))
        if not phases:
            raise Refused(
                "no phases were timed: the run had too few steps; write more data.train_examples"
            )
        for name, content in (
            ("config.yaml", config.to_yaml(recipe).encode()),
            ("metrics.jsonl", Path(run, "metrics.jsonl").read_bytes()),
            ("README.md", phases[0].read_bytes()),
        ):
            with whole(out / name) as file:
                file.write(content)


if __name__ == "__main__":
    raise SystemExit(run_command(lambda: keep_phases(Path(sys.argv[1]), sys.argv[2:])))
