"""The report on what there is of the ladder: `python -m benchmarks.gpu.ladder FOLDER STUDY WORDS…`.

WORDS are those with which lsgd.study trains its trials. A report takes the place of an earlier one.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from lsgd import config
from lsgd.job.command import run_command
from lsgd.report import report
from lsgd.run.tuned import tune
from lsgd.study.trials import trials


def write_ladder(out: Path, name: str, words: Sequence[str]) -> None:
    """Report on the trials that have begun, if any has."""
    study = tune(config.load_study(name))
    folders = [each.folder for each in trials(study, words) if each.folder.is_dir()]
    if folders:
        # Where this machine has the images is no part of what was trained.
        computed = [word for word in words if not word.startswith("data.root=")]
        report(folders, study, out, computed, f"python -m benchmarks.gpu --out {out.parent}")


if __name__ == "__main__":
    raise SystemExit(
        run_command(lambda: write_ladder(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
    )
