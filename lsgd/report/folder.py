"""The folder of a report: README.md, index.html, figures, summary.json and copies of the runs.

It has one configuration for each recipe, and one archive with the config.yaml and metrics.jsonl of
every run, which results/ keeps.
"""

import contextlib
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from lsgd import config, files
from lsgd.errors import UsageError
from lsgd.installation import install_command
from lsgd.paths import is_leftover
from lsgd.recipe.study import Study
from lsgd.report import content, figures, html_page, markdown, run_archive, summary
from lsgd.report.blocks import Content
from lsgd.report.drawing import Figure
from lsgd.report.findings import Findings, compute_findings
from lsgd.report.looks import Looks
from lsgd.report.run_archive import displayed_path
from lsgd.report.run_folders import CONFIGURATIONS, REPORT, find_runs
from lsgd.run import provenance
from lsgd.untrusted_files import parse_json, read_bounded

STUDIES = Path("runs/studies")
"""The folder with the reports of studies and the records of when their claims were tested."""


def report(
    runs: Sequence[Path],
    study: Study | None = None,
    out: Path | None = None,
    overrides: Sequence[str] = (),
    command: str | None = None,
    looks: Looks | None = None,
) -> Path:
    """Write the report on the runs in or below these folders, and return the report's folder.

    `overrides` are those with which the study's runs were trained besides their recipe, such as
    `epochs=3`. `command` is the command that trains the study, if that command makes the report.
    `looks` are the tests of the study's claims, one if they are not given.

    The folder is by default `runs/studies/<study>` or `runs/report`. The files of an earlier report
    are replaced. Raises UsageError before anything is written if `out` is a folder of results/ with
    a README.md, has files that no report wrote, or contains the runs themselves.
    """
    of_study = study_folder(study) if study and not out else None
    out = out or of_study or Path("runs/report")
    earlier = _check(out, runs)
    check_libraries()
    found, left_out = find_runs(runs, train_rows=False)
    # With a command, a study asks for the report, and its runs may still be missing.
    if not found and command is None:
        reasons = "; ".join(f"{displayed_path(each.path)}: {each.reason}" for each in left_out[:3])
        raise UsageError(
            f"no run is in {', '.join(map(str, runs))} ({reasons}); write run folders, or "
            "folders that contain some"
        )
    files.make_output_folder(out)
    if study and of_study:
        note_study(of_study, study)
    findings = compute_findings(found, left_out, study, overrides, looks)
    drawn = figures.draw(findings)
    arguments = ["python", "-m", "lsgd.report", *map(str, runs)]
    arguments += ["--study", study.file or study.name] if study else []
    made_by = command or shlex.join([*arguments, "--out", str(out)])
    composed = content.compose(findings, drawn, made_by, provenance.version(), command)

    written = _copies(findings) | page_files(composed, drawn)
    numbers = summary.summarise(findings, made_by, provenance.version())
    listed = json.dumps(numbers | {"files": sorted(written)}, indent=1, allow_nan=False)
    # The summary is first, so that after a kill the next report knows which files it may replace.
    # The README.md is last: if it is new, so are the other files.
    _replace(out, earlier, {REPORT: f"{listed}\n".encode(), **written})
    return out


def study_folder(study: Study, ending: str = "") -> Path:
    """Return the folder of a study's report: `runs/studies/NAME` with an ending behind the name.

    Raises UsageError if it is the folder of another file's study of this name.
    """
    folder = STUDIES / f"{study.name}{ending}"
    check_study(folder, study)
    return folder


def check_study(folder: Path, study: Study) -> None:
    """Raise UsageError if a folder has the report and the record of tests of another study.

    The file identifies a study, whose recipes and claims its author may change. One that no longer
    exists was moved, and one of the same content was copied.
    """
    theirs = recorded_study(folder).get("file")
    if study.file and theirs and theirs != os.path.relpath(study.file):
        with contextlib.suppress(OSError):
            if Path(theirs).read_bytes() != Path(study.file).read_bytes():
                raise UsageError(
                    f"{folder} has the report on the study in {theirs}, and {study.file} is "
                    f"another study of the same name; rename {study.file}"
                )


def note_study(folder: Path, study: Study, digest: str | None = None) -> None:
    """Record beside the folder of a report the file of a user's own study, and what its runs are.

    `digest` is that of the runs' fingerprints; without one the recorded one is kept. Raises
    UsageError as check_study.
    """
    check_study(folder, study)
    before = recorded_study(folder)
    runs = before.get("runs", "") if digest is None else digest
    record = {"file": study.file and os.path.relpath(study.file), "runs": runs}
    if study.file and record != before:
        with files.atomic_write(_study_record(folder)) as file:
            file.write(json.dumps(record).encode() + b"\n")


def recorded_study(folder: Path) -> dict[str, Any]:
    """Read the record of the study whose report a folder has; empty if there is none.

    Raises UsageError if it cannot be read.
    """
    path = _study_record(folder)
    try:
        record = parse_json(read_bounded(path))
        return {"file": str(record["file"]), "runs": record.get("runs", "")}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} records the file of the study of this report, and cannot be read ({error}); "
            "remove it"
        ) from None


def _study_record(folder: Path) -> Path:
    """Return the path of the record, beside a report's folder, of the file of its study."""
    return folder.with_name(f"{folder.name}.study.json")


def page_files(composed: Content, drawn: Sequence[Figure]) -> dict[str, files.FileContent]:
    """Return the files of a report's page by name: index.html, figures, and last its README.md."""
    return {
        "index.html": html_page.render(composed).encode(),
        **{f"{figure.name}.svg": figure.svg.encode() for figure in drawn},
        **{f"{figure.name}.png": figure.png for figure in drawn},
        "README.md": markdown.render(composed).encode(),
    }


def check_libraries(extra: str = "report") -> None:
    """Raise UsageError if matplotlib or scipy, which every report needs, is missing.

    It is called before the work that needs both. `extra` is the optional dependency group of lsgd
    that installs them.
    """
    for name, use in (("matplotlib", "its figures"), ("scipy", "the intervals of its differences")):
        try:
            import_module(name)
        except ImportError:
            raise UsageError(
                f"a report needs {name} for {use}, which is not installed; run "
                f"{install_command(extra)}"
            ) from None


def _replace(out: Path, earlier: Sequence[str], written: Mapping[str, files.FileContent]) -> None:
    """Write files into a report's folder, in order, and remove an earlier report's others.

    Raises UsageError, having written nothing, if a link in the folder leads a file elsewhere.
    """
    for name in written:
        if not _is_inside(out, name):
            raise UsageError(
                f"--out {out} contains a link to another place, {name}; write a new folder"
            )
    for name in set(earlier) - set(written):
        (out / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            (out / name).parent.rmdir()  # succeeds once the folder is empty
    files.write_files(out, written)


def _check(out: Path, runs: Sequence[Path]) -> list[str]:
    """Return the files of an earlier report in `out`; raise UsageError for any other contents."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is a file; write a folder")
    # A report that was killed at its first file leaves a temporary one.
    if not out.exists() or all(is_leftover(path.name) for path in out.iterdir()):
        return []
    if out.resolve().parent.name == "results" and (out / "README.md").exists():
        raise UsageError(
            f"--out {out} has a README.md, and results are never overwritten; write another folder"
        )
    earlier = _written_to(out)
    if earlier is None or (out / "config.yaml").exists():
        raise UsageError(
            f"--out {out} contains files that no report wrote; write a new or empty folder"
        )
    if any(path.resolve().is_relative_to(out.resolve()) for path in runs):
        raise UsageError(
            f"--out {out} contains runs of this report, which a new report would replace; write "
            "another folder"
        )
    return earlier


def _written_to(out: Path) -> list[str] | None:
    """Return the files that the report in this folder lists; None if there is no report."""
    try:
        names = list(map(Path, parse_json(read_bounded(out / REPORT))["files"]))
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return [str(name) for name in names if _is_inside(out, str(name)) and not (out / name).is_dir()]


def _is_inside(out: Path, name: str) -> bool:
    """Return whether a file of this name would be inside a folder, with links resolved."""
    return (out / name).parent.resolve().is_relative_to(out.resolve())


def _copies(findings: Findings) -> dict[str, files.FileContent]:
    """Return copies of a report's runs: an archive of all, and one configuration per recipe.

    The configurations are those of the first run of each group, in arms/ under that run's name. The
    rows are read as the archive is written, those of one run at a time.
    """
    copies: dict[str, bytes | Path] = {}
    names: dict[Path, str] = {}
    configurations: dict[str, bytes] = {}
    for run in findings.runs:
        own, number = run.path.resolve().name, 1  # resolved, as the path may be ".."
        if is_leftover(own):  # a name of folders that searches for runs and copies of data omit
            own = f"run-{own}"
        name = own
        while name in configurations:
            number += 1
            name = f"{own}-{number}"
        names[run.path] = name
        text = config.to_yaml(run.recipe.without_paths)
        copies[f"{name}/config.yaml"] = configurations[name] = text.encode()
        copies[f"{name}/metrics.jsonl"] = run.path / "metrics.jsonl"
    firsts = [names[run.path] for group in findings.groups for run in group.runs[:1]]
    shown = {f"{CONFIGURATIONS}/{name}.yaml": configurations[name] for name in firsts}
    return {run_archive.FILE: partial(run_archive.pack, copies), **shown} if copies else {}
