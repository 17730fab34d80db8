"""Runs the doctor's probes in processes of their own, which may crash or hang."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lsgd.job.children import failure, finished


@dataclass(frozen=True)
class Answer:
    """The facts that a probe has found, or why it has failed."""

    facts: dict[str, Any]
    why: str = ""
    """Why the probe failed, in words; empty if it ended well."""


def ask(
    probe: str,
    *arguments: str,
    limit: float,
    launcher: Sequence[str] = (sys.executable,),
    environment: Mapping[str, str] = {},
) -> Answer:
    """Run a function of lsgd.doctor.probe in a process of its own, or in those of a launcher."""
    with TemporaryDirectory(prefix="lsgd-doctor-") as folder:
        answer = Path(folder, "answer.json")
        program = ["-m", "lsgd.doctor.probe", str(answer), str(limit), probe, *arguments]
        code, text = finished([*launcher, *program], limit=limit, environment=environment)
        facts = json.loads(answer.read_text()) if answer.exists() else {}
    if why := facts.pop("error", ""):
        return Answer(facts, why)
    return Answer(facts, failure(code, text, limit) if code != 0 or not facts else "")
