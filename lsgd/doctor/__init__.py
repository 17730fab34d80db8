"""The check of this machine's setup, with a fix for each problem: `python -m lsgd.doctor`.

No module of this package but `probe` and `job_check` imports torch or another library that may be
missing or broken. `probe` runs in child processes, which may crash or hang, and `job_check` in each
process of a job, to compare its nodes (`lsgd launch … --check`).
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lsgd.job.children import describe_failure, run_with_limit

PASS, FAIL, ABSENT = "pass", "fail", "not needed"
"""The statuses; ABSENT means missing or unusable while nothing on this machine needs it."""

TEMPORARY_FIX = "export TMPDIR=FOLDER with a folder that you can write to"


MPI_HERE = {"OMPI_MCA_plm": "^slurm", "OMPI_MCA_ras": "^slurm"}
"""The variables with which Open MPI starts its processes on this machine, also in a job of Slurm.

There it would ask for a step of its own, which waits for the cores of the step of the doctor.
"""


@dataclass(frozen=True)
class CheckItem:
    """The result of checking one thing that a run may use, such as a library or the network."""

    name: str
    status: str
    """PASS, FAIL or ABSENT."""
    found: str
    """The finding in one line; this field's name is a key of the JSON that --json prints."""
    fix: str = ""
    """The fix in one sentence; where nothing fails, the way to get an optional thing."""
    required: bool = False
    """Whether no run is possible without it."""
    numbers: dict[str, float] = field(default_factory=dict)
    """The measured values, by names that include the unit."""


@dataclass(frozen=True)
class ProbeResult:
    """The result of one probe of this machine's setup: the facts found, or why it failed."""

    facts: dict[str, Any]
    failure_reason: str = ""
    """The reason of the failure; empty if the probe succeeded."""


def run_probe(
    probe: str,
    *arguments: str,
    limit: float,
    launcher: Sequence[str] = (sys.executable,),
    environment: Mapping[str, str] = {},
) -> ProbeResult:
    """Run a probe of this machine in a child process, or in a launcher's; return its result."""
    try:
        temporary = TemporaryDirectory(prefix="lsgd-doctor-")
    except OSError as error:
        why = f"no temporary folder can be written: {error.strerror}; {TEMPORARY_FIX}"
        return ProbeResult({}, why)
    with temporary as folder:
        answer = Path(folder, "answer.json")
        program = ["-m", "lsgd.doctor.probe", str(answer), str(limit), probe, *arguments]
        code, text = run_with_limit([*launcher, *program], limit=limit, environment=environment)
        facts = json.loads(answer.read_text()) if answer.exists() else {}
    if why := facts.pop("error", ""):
        return ProbeResult(facts, why)
    return ProbeResult(facts, describe_failure(code, text, limit) if code != 0 or not facts else "")
