"""The report on a study, and its folder."""

import hashlib
import shlex
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from lsgd.errors import UsageError, writing_to
from lsgd.files import locked
from lsgd.planned import PlannedRun
from lsgd.recipe.study import Study, without_start
from lsgd.report import report
from lsgd.report.findings import Findings, compute_findings
from lsgd.report.folder import STUDIES, note_study, recorded_study, study_folder
from lsgd.report.look_record import note_look, read_looks
from lsgd.report.run_folders import find_runs
from lsgd.study.planned_runs import planned_runs


def report_folder(study: Study, all_runs: Sequence[PlannedRun]) -> Path:
    """Return a study's report folder: `runs/studies/NAME`, or `NAME-HASH` if overrides change runs.

    Overrides change the fingerprints if they change what a run computes. Recipes that only the
    overrides complete, as by the folder of their images, are changed, unless NAME is that of the
    same runs already.
    """
    digest = _digest_of(all_runs)
    try:
        is_changed = digest != _digest_of(planned_runs(study, []))
    except UsageError:
        is_changed = digest != recorded_study(STUDIES / study.name).get("runs")
    return study_folder(study, f"-{digest[:8]}" if is_changed else "")


def _digest_of(all_runs: Sequence[PlannedRun]) -> str:
    """Return a digest of what the runs of a study compute, apart from their seeds."""
    recipes = [without_start(replace(trial.recipe, seed=0)) for trial in all_runs]
    fingerprints = sorted({recipe.fingerprint for recipe in recipes})
    return hashlib.sha256("".join(fingerprints).encode()).hexdigest()


def make_folders(study: Study, all_runs: Sequence[PlannedRun]) -> None:
    """Make the folders of a study's runs and report, before the first run is trained.

    Raises UsageError if one cannot be written, and NotSavedError if its disk is full.
    """
    remedy = "start the study in a folder that you can write to"
    out = report_folder(study, all_runs)
    for folder in (all_runs[0].folder.parent, out):
        with writing_to(folder, remedy):
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
    with writing_to(out, remedy), locked_report(out):
        note_study(out, study, _digest_of(all_runs))


def study_findings(
    study: Study, overrides: Sequence[str], all_runs: Sequence[PlannedRun]
) -> Findings:
    """Compute the findings of a study from its existing runs: results by recipe, and claims."""
    folders = [trial.folder for trial in all_runs if trial.folder.is_dir()]
    runs, left_out = find_runs(folders, train_rows=False)
    looks = read_looks(report_folder(study, all_runs))
    return compute_findings(runs, left_out, study, overrides, looks)


def locked_report(out: Path) -> AbstractContextManager[None]:
    """Return the lock of a report's folder, held while the report or its record is written.

    Two processes of one study may write both.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    return locked(out.with_name(f".{out.name}.lock"))


def write_report(study: Study, overrides: Sequence[str], all_runs: Sequence[PlannedRun]) -> None:
    """Write the report on a study's existing runs; raise UsageError if it cannot be written."""
    folders = [trial.folder for trial in all_runs if trial.folder.is_dir()]
    if not folders:
        return
    out = report_folder(study, all_runs)
    if out.name != study.name:
        study = replace(study, title=f"{study.title} ({' '.join(overrides)})")
    with locked_report(out):
        command = shlex.join(["python", "-m", "lsgd.study", *study.command_arguments, *overrides])
        looks = read_looks(out)
        findings = study_findings(study, overrides, all_runs)
        if findings.tested_seeds:
            looks = note_look(out, *findings.tested_seeds)
        print(f"report: {report(folders, study, out, overrides, command, looks)}", flush=True)
