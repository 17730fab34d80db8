"""Audits of a script by forks of the fork server, which has imported torch already."""

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from helpers.launching import HELPERS, fork_command
from lsgd.audit.facts import observe, script_recipe
from lsgd.audit.job import AuditedJob
from lsgd.audit.processes import read_records
from lsgd.check.observation import RuleResult
from lsgd.check.papers import apply_script_rules
from lsgd.supervise.singly import free_port

UPDATES = 40
HANGS = 600
"""The seconds after which a process counts as hanging."""


def deviations(
    script: Path, words: Sequence[str] = (), *, processes: int = 1, paper: str = "goyal2017",
    epochs: int = 2,
) -> dict[str, tuple[str, int]]:  # fmt: skip
    """Return what was seen and the line, for each rule from which a script deviates."""
    return {
        result.rule: (result.run, int(result.place.rpartition(":")[2] or 0))
        for result in results(script, words, processes, paper, epochs)
        if not result.is_followed
    }


def results(
    script: Path, words: Sequence[str], processes: int, paper: str = "goyal2017", epochs: int = 2
) -> list[RuleResult]:
    """Return the results of a paper's rules for a script, which forks run."""
    job = watched(script, words, processes, epochs)
    return apply_script_rules(paper, script_recipe(job), observe(job))


def watched(script: Path, words: Sequence[str], processes: int, epochs: int = 2) -> AuditedJob:
    """Run a script by forks and return what was observed."""
    with tempfile.TemporaryDirectory() as folder:
        limits = {"LSGD_AUDIT_UPDATES": str(UPDATES), "LSGD_AUDIT_EPOCHS": str(epochs)}
        _run(script, words, processes, {"LSGD_AUDIT": folder} | limits)
        records = read_records(Path(folder))
    failures = [line["text"] for each in records for line in each.of_kind("failure")]
    assert not failures
    assert len(records) == processes
    return AuditedJob(records)


def printed(script: Path, words: Sequence[str], processes: int) -> list[str]:
    """Run a script by forks, unwatched, and return what each of them printed."""
    return _run(script, words, processes, {})


def _run(
    script: Path, words: Sequence[str], processes: int, variables: dict[str, str]
) -> list[str]:
    port = str(free_port())
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(processes)}
    command = [*fork_command(), str(HELPERS / "watched_script.py"), str(HANGS), str(script), *words]
    started = [
        subprocess.Popen(
            command,
            env=os.environ | variables | job | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(processes)
    ]
    texts = [process.communicate(timeout=2 * HANGS)[0] for process in started]
    ends = [process.returncode for process in started]
    assert ends == [0] * processes, (ends, texts)
    return texts
