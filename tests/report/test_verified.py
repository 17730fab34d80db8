"""The report's column on the verifications beside run folders."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.run_folders import write_run

from lsgd.report.content import _runs
from lsgd.report.findings import compute_findings
from lsgd.run.read import read_run
from lsgd.run.verification import (
    RunVerification,
    read_verification,
    rows_digest,
    verification_path,
    write_verification,
)

BY = "on elsewhere, seed 7, tolerance 1e-05"


def verification(folder: Path) -> RunVerification:
    return RunVerification(
        fingerprint=read_run(folder).recipe.fingerprint,
        rows_sha256=rows_digest(folder),
        checkpoints=["checkpoint-40.pt"],
        seed=7,
        steps=20,
        places=[0, 40],
        tolerance=1e-5,
        executed_steps=20,
        made_steps=150,
        compared={"loss": 4},
        unresolved={},
        largest_difference=1e-7,
        mismatches=[],
        notes=["torch: 2.12 in the run, 2.13 here"],
        machine="1 process, CPU",
        host="elsewhere",
        time="2026-11-27T10:00:00+00:00",
        lsgd="lsgd 0.1.0",
    )


def column(*folders: Path) -> list[str]:
    """Return the heading and the cells of the last column of the report's table of runs."""
    [table] = _runs(compute_findings([read_run(folder) for folder in folders], [], None))
    return [row[-1] for row in (table.head, *table.rows)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "a", "+recipe=digits", errors=[50.0] * 30)


def test_the_report_shows_a_verification_of_the_same_rows_alone(
    folder: Path, tmp_path: Path
) -> None:
    other = write_run(tmp_path / "b", "+recipe=digits", seed=1, errors=[50.0] * 30)
    assert column(folder, other)[0] == "fingerprint"
    found = verification(folder)
    write_verification(found, verification_path(folder))
    assert read_verification(tmp_path / "a.verification.json") == found
    assert column(folder, other) == ["verified", f"20 of 150 steps ({BY})", "–"]
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().replace("50.0", "5.0", 1))
    assert column(folder)[1] == "no: the run was changed since it was verified"


def test_the_report_shows_the_first_difference(folder: Path) -> None:
    differing = replace(verification(folder), mismatches=["train row of step 2: loss is 1", "more"])
    write_verification(differing, verification_path(folder))
    assert column(folder)[1] == f"no: train row of step 2: loss is 1 ({BY})"


def test_the_report_shows_what_was_not_resolved_and_a_divergence_that_was_not_executed(
    tmp_path: Path,
) -> None:
    folder = write_run(tmp_path / "a", "+recipe=digits", errors=[50.0])
    with (folder / "metrics.jsonl").open("a") as file:
        text = "the loss or a gradient of step 149 is not finite"
        file.write(json.dumps({"kind": "diverged", "step": 5, "text": text}) + "\n")
    found = replace(verification(folder), unresolved={"loss": 4, "top1_error": 270})
    write_verification(found, verification_path(folder))
    steps = f"20 of 150 steps ({BY})"
    assert column(folder)[1] == f"{steps}; divergence not executed; 274 values not resolved"
    executed = replace(found, compared={"divergence": 1}, unresolved={"loss": 1})
    write_verification(executed, verification_path(folder))
    assert column(folder)[1] == f"{steps}; 1 value not resolved"


@pytest.mark.parametrize("text", ["", "[]", '{"seed": 1}', "[" * 10**5])
def test_any_other_file_in_its_place_is_named(text: str, folder: Path) -> None:
    verification_path(folder).write_text(text)
    assert column(folder)[1] == "`a.verification.json` is not a file of lsgd.verify"
