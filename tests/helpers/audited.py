"""Audits of a script by forks of this process, which has imported torch already."""

import faulthandler
import gc
import os
import runpy
import signal
import socket
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

# torch.optim imports it at its first step, which would cost each fork.
import torch._dynamo  # noqa: F401

from lsgd.audit import watch
from lsgd.audit.facts import AuditedJob, PlacedObservation, observe, script_recipe
from lsgd.audit.processes import read_records
from lsgd.check.observation import RuleResult
from lsgd.check.papers import apply_script_rules

UPDATES = 40
HANGS = 600.0
"""The seconds after which a fork counts as hanging."""


def deviations(
    script: Path, words: Sequence[str] = (), *, processes: int = 1, paper: str = "goyal2017",
    epochs: int = 2,
) -> dict[str, tuple[str, int]]:  # fmt: skip
    """Return what was seen and the line, for each rule from which a script deviates."""
    return {
        result.rule: (result.run, int(fact.place.rpartition(":")[2] or 0))
        for result, fact in results(script, words, processes, paper, epochs)
        if not result.is_followed
    }


def results(
    script: Path, words: Sequence[str], processes: int, paper: str = "goyal2017", epochs: int = 2
) -> list[tuple[RuleResult, PlacedObservation]]:
    """Return the results of a paper's rules for a script, which forks of this process run."""
    job = watched(script, words, processes, epochs)
    facts = observe(job)
    found = apply_script_rules(paper, script_recipe(job), [each.observation for each in facts])
    return [(one, fact) for one, fact in zip(found, facts, strict=True) if one is not None]


def watched(script: Path, words: Sequence[str], processes: int, epochs: int = 2) -> AuditedJob:
    """Run a script by forks of this process and return what was observed."""
    with tempfile.TemporaryDirectory() as folder:
        limits = {"LSGD_AUDIT_UPDATES": str(UPDATES), "LSGD_AUDIT_EPOCHS": str(epochs)}
        _run_forks(script, words, processes, Path(folder), {"LSGD_AUDIT": folder} | limits)
        records = read_records(Path(folder))
    failures = [line["text"] for each in records for line in each.of_kind("failure")]
    assert not failures
    assert len(records) == processes
    return AuditedJob(records)


def printed(script: Path, words: Sequence[str], processes: int) -> list[str]:
    """Run a script by forks of this process, unwatched, and return what each of them printed."""
    with tempfile.TemporaryDirectory() as folder:
        return _run_forks(script, words, processes, Path(folder), {})


def _run_forks(
    script: Path, words: Sequence[str], processes: int, folder: Path, variables: dict[str, str]
) -> list[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
    said = [folder / f"{rank}.said" for rank in range(processes)]
    pids = [
        _forked(script, words, variables | job | {"RANK": str(rank)}, said[rank])
        for rank in range(processes)
    ]
    ends = [_wait(pid) for pid in pids]
    texts = [each.read_text() for each in said]
    assert ends == [0] * processes, (ends, texts)
    return texts


def _wait(pid: int) -> int:
    """Wait for a fork and return its wait status; if it hangs, let it write its stacks and end."""
    limit = time.monotonic() + HANGS
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        time.sleep(0.02)
        if time.monotonic() > limit:
            os.kill(pid, signal.SIGABRT)
            return os.waitpid(pid, 0)[1]
    return ended[1]


def _forked(script: Path, words: Sequence[str], variables: dict[str, str], output: Path) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has threads, which the fork does not use
        if pid := os.fork():
            return pid
    code = 1
    try:
        # What a crash has printed stays, and its stacks are added.
        with output.open("w", buffering=1) as said:
            faulthandler.enable(said)
            try:
                # Otherwise this fork's garbage collection could end objects of the tests before.
                gc.freeze()
                os.environ |= variables
                with redirect_stdout(said), redirect_stderr(said):
                    code = _run(script, words)
            except BaseException:
                traceback.print_exc(file=said)
    finally:
        os._exit(code)


def _run(script: Path, words: Sequence[str]) -> int:
    record = watch.start() if "LSGD_AUDIT" in os.environ else None
    sys.argv = [str(script), *words]
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    if record:
        record.write()
    return 0
