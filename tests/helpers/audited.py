"""Audits of a script by forks of this process, which has imported torch already."""

import io
import os
import runpy
import socket
import sys
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from lsgd.audit.facts import Job, PlacedObservation, observe, script_recipe
from lsgd.audit.processes import read_records
from lsgd.check.observation import RuleResult
from lsgd.check.papers import apply_script_rules

UPDATES = 40


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


def watched(script: Path, words: Sequence[str], processes: int, epochs: int = 2) -> Job:
    """Run a script by forks of this process and return what was observed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        variables = {
            "LSGD_AUDIT": folder, "LSGD_AUDIT_UPDATES": str(UPDATES),
            "LSGD_AUDIT_EPOCHS": str(epochs), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "WORLD_SIZE": str(processes),
        }  # fmt: skip
        pids = [
            _forked(script, words, variables | {"RANK": str(rank)}) for rank in range(processes)
        ]
        ends = [os.waitpid(pid, 0)[1] for pid in pids]
        said = "".join(each.read_text() for each in Path(folder).glob("*.said"))
        assert ends == [0] * processes, said
        records = read_records(Path(folder))
    failures = [line["text"] for each in records for line in each.of_kind("failure")]
    assert not failures
    assert len(records) == processes
    return Job(records)


def _forked(script: Path, words: Sequence[str], variables: dict[str, str]) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has threads, which the fork does not use
        if pid := os.fork():
            return pid
    code, said = 1, io.StringIO()
    try:
        os.environ |= variables
        with redirect_stdout(said), redirect_stderr(said):
            code = _run(script, words)
    except BaseException:
        import traceback

        traceback.print_exc(file=said)
    finally:
        if code:
            Path(variables["LSGD_AUDIT"], f"{os.getpid()}.said").write_text(said.getvalue())
        os._exit(code)


def _run(script: Path, words: Sequence[str]) -> int:
    from lsgd.audit import watch

    record = watch.start()
    sys.argv = [str(script), *words]
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    record.write()
    return 0
