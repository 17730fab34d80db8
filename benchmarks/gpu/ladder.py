"""Report on the ladder's runs so far.

    python -m benchmarks.gpu.ladder FOLDER STUDY OVERRIDES…

OVERRIDES are those with which lsgd.study trains its runs. A report replaces an earlier one.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from lsgd import definitions
from lsgd.job.command import run_command
from lsgd.report import report
from lsgd.run.tuned import apply_search_results
from lsgd.study.planned_runs import planned_runs


def write_ladder(out: Path, name: str, overrides: Sequence[str]) -> None:
    """Report on the study's runs that have started, if there are any."""
    study = apply_search_results(definitions.load_study(name))
    folders = [each.folder for each in planned_runs(study, overrides) if each.folder.is_dir()]
    if folders:
        # The location of the images on this machine does not describe what was trained.
        computed = [word for word in overrides if not word.startswith("data.root=")]
        report(folders, study, out, computed, f"python -m benchmarks.gpu --out {out.parent}")


if __name__ == "__main__":
    raise SystemExit(
        run_command(lambda: write_ladder(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
    )
