"""The folder of a report: README.md, index.html, figures, summary.json, and of every run its
config.yaml and metrics.jsonl, which is what results/ keeps."""

import contextlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lsgd import config, files
from lsgd.errors import Refused
from lsgd.recipe.study import Study
from lsgd.report import content, figures, markdown, page, summary
from lsgd.report.findings import find
from lsgd.report.libraries import check_libraries
from lsgd.report.search import REPORT, find_runs
from lsgd.run import provenance
from lsgd.run.read import Run


def report(
    runs: Sequence[Path],
    study: Study | None = None,
    out: Path | None = None,
    changed: Sequence[str] = (),
    command: str | None = None,
) -> Path:
    """Report on the runs in these folders and below them; return the folder it is in.

    `changed` are the words that the runs of the study were trained with besides their recipe, such
    as `epochs=3`. `command` is the command that has trained them, and trains those that are
    missing, if the report is a part of it.

    The folder is by default `runs/studies/<study>` or `runs/report`. What an earlier report wrote
    there is replaced. Raises Refused before anything is written if it is a folder of results/ with
    a README.md, has files in it that no report wrote, or has the runs themselves in it.
    """
    out = out or (Path("runs/studies") / study.name if study else Path("runs/report"))
    earlier = _check(out, runs)
    check_libraries()
    found, left_out = find_runs(runs)
    # The report of a study, whose runs are still to come, is asked for with their command.
    if not found and command is None:
        reasons = "; ".join(f"{each.path}: {each.reason}" for each in left_out[:3])
        raise Refused(
            f"there is no run in {', '.join(map(str, runs))} ({reasons}); write run folders, or "
            "folders that have them"
        )
    findings = find(found, left_out, study, changed)
    drawn = figures.draw(findings)
    words = ["python", "-m", "lsgd.report", *map(str, runs)]
    words += ["--study", study.name] if study else []
    made_by = command or shlex.join([*words, "--out", str(out)])
    composed = content.compose(findings, drawn, made_by, provenance.version(), command)

    written = {
        "index.html": page.render(composed).encode(),
        **{f"{figure.name}.svg": figure.svg.encode() for figure in drawn},
        **{f"{figure.name}.png": figure.png for figure in drawn},
        **_copies(findings.runs),
        "README.md": markdown.render(composed).encode(),
    }
    for name in set(earlier) - set(written):
        (out / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            (out / name).parent.rmdir()  # once it has no other file of its run
    numbers = summary.summarise(findings, made_by, provenance.version()) | {
        "files": sorted(written)
    }
    # The summary is first, so that after a kill the next report knows which files it may replace.
    # The README.md is last: where it is new, so are the other files.
    for name, data in ((REPORT, _json(numbers)), *written.items()):
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.whole(path) as file:
            file.write(data)
    return out


def _check(out: Path, runs: Sequence[Path]) -> list[str]:
    """Names of the files that an earlier report has written there; refuse to write over others."""
    if out.exists() and not out.is_dir():
        raise Refused(f"--out {out} is a file; write a folder")
    # The file that is left of a report that was killed at its first.
    unfinished = f".{REPORT}.part"
    if not out.exists() or all(path.name == unfinished for path in out.iterdir()):
        return []
    if out.resolve().parent.name == "results" and (out / "README.md").exists():
        raise Refused(
            f"--out {out} has a README.md, and results are never overwritten; write another folder"
        )
    earlier = _written_to(out)
    if earlier is None or (out / "config.yaml").exists():
        raise Refused(
            f"--out {out} has files in it that no report wrote; write a new or empty folder"
        )
    if any(path.resolve().is_relative_to(out.resolve()) for path in runs):
        raise Refused(
            f"--out {out} has runs in it that are reported on, and a report replaces what it has "
            "kept; write another folder"
        )
    return earlier


def _written_to(out: Path) -> list[str] | None:
    """The files of the report in this folder, as it names them; None if there is none."""
    try:
        names = list(map(Path, json.loads((out / REPORT).read_text(encoding="utf-8"))["files"]))
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return [str(name) for name in names if not name.is_absolute() and ".." not in name.parts]


def _copies(runs: Sequence[Run]) -> dict[str, bytes]:
    """The files copied of every run: its configuration, without paths, and its metrics."""
    copies: dict[str, bytes] = {}
    for run in runs:
        name, number = run.path.name, 1
        while f"{name}/config.yaml" in copies:
            number += 1
            name = f"{run.path.name}-{number}"
        data = replace(run.recipe.data, root=None, index=None, skip_list=None)
        text = config.to_yaml(replace(run.recipe, run_dir=None, data=data))
        copies[f"{name}/config.yaml"] = text.encode()
        copies[f"{name}/metrics.jsonl"] = (run.path / "metrics.jsonl").read_bytes()
    return copies


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1, allow_nan=False).encode() + b"\n"
