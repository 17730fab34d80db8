"""The runner of the doctor's probes in child processes, which may crash or hang."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lsgd.job.children import describe_failure, run_with_limit


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
    with TemporaryDirectory(prefix="lsgd-doctor-") as folder:
        answer = Path(folder, "answer.json")
        program = ["-m", "lsgd.doctor.probe", str(answer), str(limit), probe, *arguments]
        code, text = run_with_limit([*launcher, *program], limit=limit, environment=environment)
        facts = json.loads(answer.read_text()) if answer.exists() else {}
    if why := facts.pop("error", ""):
        return ProbeResult(facts, why)
    return ProbeResult(facts, describe_failure(code, text, limit) if code != 0 or not facts else "")
