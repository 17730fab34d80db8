"""Tests that every command which reads hostile files ends with an error message and runs no code.

`make test-all` draws some of the files, and `make soak` tries all.
"""

import contextlib
import io
import os
import random
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from helpers.folders import DATA
from helpers.soak import FaultSeries
from hostile.corpus import ESCAPE, SECRET, VARIABLE, Case, cases

from lsgd import compare, definitions, evaluate
from lsgd.export import __main__ as export
from lsgd.inputs.index import open_indexes
from lsgd.job.command import run_alone
from lsgd.job.members import process_records
from lsgd.report import __main__ as report
from lsgd.report import figures
from lsgd.report.drawing import Figure
from lsgd.run.tuned import apply_search_results
from lsgd.search import __main__ as search
from lsgd.strategy.recorded import load_orders
from lsgd.supervise.folder import last_step
from lsgd.verify import __main__ as verify

SECONDS, HANGS, BYTES = 30, 600, 2**30
"""The limits of a command: processor seconds, elapsed seconds, and bytes of memory."""
CODES = {0, 1, 2, 3, 4, 5, 6, 75}
Commands = dict[str, Callable[[Path], object]]


def _tuned(folder: Path) -> object:
    study = definitions.load_study("fashion_growth")
    (folder.parent / "runs").mkdir(exist_ok=True)
    (folder.parent / "runs/searches").symlink_to(folder.parent)
    folder.rename(folder.parent / str(study.entries[0].search))
    return apply_search_results(study)


COMMANDS: dict[str, Commands] = {
    "run": {
        "report": lambda folder: report.main([str(folder), "--out", str(folder.parent / "out")]),
        "compare": lambda folder: compare.main([str(folder), str(folder)]),
        "supervise": lambda folder: run_alone(lambda: last_step(folder) * 0),
        "verify": lambda folder: verify.main([str(folder), "device=cpu"]),
    },
    "checkpoint": {
        "evaluate": lambda folder: evaluate.main([str(folder / "checkpoint-3.pt"), "device=cpu"]),
        "verify": lambda folder: verify.main([str(_as_run(folder)), "device=cpu", "--steps", "1"]),
        "export": lambda folder: export.main(
            [str(folder), "--to", "safetensors", "--out", str(folder.parent / "out")]
        ),
    },
    "orders": {
        "train": lambda folder: run_alone(lambda: _done(load_orders(folder / "orders.npz")))
    },
    "search": {
        "report": lambda folder: search.main(
            ["--report", str(folder), "--out", str(folder.parent / "out")]
        ),
        "study": lambda folder: run_alone(lambda: _done(_tuned(folder))),
    },
    "report": {
        "table": lambda folder: _table(folder),
        "report": lambda folder: report.main(
            [str(_some_run(folder.parent)), "--out", str(folder)]
        ),
    },
    "members": {"supervise": lambda folder: run_alone(lambda: _done(process_records(folder)))},
    "images": {"train": lambda folder: run_alone(lambda: _done(open_indexes(DATA, folder)))},
}  # fmt: skip
"""The commands that read each kind of folder."""


def _done(_: object) -> None:
    """Do nothing, for a command that reads the files and prints nothing."""


def _table(folder: Path) -> object:
    page = folder.parent / "README.md"
    page.write_text("<!-- results, by make results -->\n<!-- end of results -->\n")
    return report.main(["--table", str(page)])


def _as_run(folder: Path) -> Path:
    """Put the recipe and the rows of a run beside the checkpoints in a folder."""
    from helpers.run_folders import write_run

    run = write_run(folder.parent / "run", "+recipe=digits", errors=[90.0])
    for name in ("config.yaml", "metrics.jsonl"):
        (run / name).rename(folder / name)
    return folder


def _some_run(folder: Path) -> Path:
    from helpers.run_folders import write_finished_run

    return write_finished_run(folder / "trials", "fashion_bs64", 0, 8.0)


# --- Forbidden actions -----------------------------------------------------------------------

STARTS = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect")
OWN = ("git", "fc-list")
"""The programs that lsgd starts to find its version, and Matplotlib to find fonts."""
CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate")


class AuditHook:
    """An audit hook that records the processes a case starts, and the files it opens or changes."""

    def __init__(self) -> None:
        self.inside: Path | None = None
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, words: tuple[object, ...]) -> None:
        if self.inside is None:
            return
        if event in STARTS and words[0] not in OWN:
            self.seen.append(f"{event} {words[:2]}")
        elif event == "open" and isinstance(words[0], str | bytes):
            path = os.path.realpath(os.fsdecode(words[0]))
            flags = words[2] if isinstance(words[2], int) else 0
            writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            if (writes and not self._is_inside(path)) or path == "/etc/passwd":
                self.seen.append(f"opens {path}")
        elif event in CHANGES and not self._is_inside(os.path.abspath(os.fsdecode(words[0]))):  # type: ignore[arg-type]
            self.seen.append(f"{event} {words[0]}")

    def _is_inside(self, path: str) -> bool:
        temporary = (str(self.inside), "/dev/null", os.environ.get("TMPDIR", "/tmp/"))
        return path.startswith(temporary) or "__pycache__" in path


AUDIT_HOOK = AuditHook()


class TimeLimitError(BaseException):
    """An error for a command that has not ended within its limit."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Raise TimeLimitError in this context after the limits, wherever Python is by then."""

    def over(*_: object) -> None:
        raise TimeLimitError

    timers = (signal.ITIMER_PROF, SECONDS), (signal.ITIMER_REAL, HANGS)
    before = {number: signal.signal(number, over) for number in (signal.SIGPROF, signal.SIGALRM)}
    for timer, seconds in timers:
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for timer, _ in timers:
            signal.setitimer(timer, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def try_command(case: Case, command: Callable[[Path], object], folder: Path) -> list[str]:
    """Run a command on a case, and return what it did wrong; empty if nothing."""
    secret = folder / "outside" / "secret"
    secret.parent.mkdir(parents=True)
    secret.write_text(SECRET)
    place = folder / "work" / "folder"
    place.parent.mkdir()
    case.make(place)
    output, wrong, before = io.StringIO(), [], _peak()
    os.chdir(place.parent)
    AUDIT_HOOK.inside, AUDIT_HOOK.seen = place.parent, []
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), limited():
            code = command(place)
        if code not in CODES:
            wrong.append(f"exit code {code}")
        if code == 2 and "lsgd: " not in output.getvalue():
            wrong.append("no sentence")
    except TimeLimitError:
        wrong.append(f"no end after {SECONDS} s of a processor")
    except SystemExit as end:
        wrong += [f"exit {end.code}"] * (end.code not in CODES)
    except BaseException as error:
        wrong.append(f"{type(error).__name__}: {str(error)[:200]}")
    finally:
        AUDIT_HOOK.inside = None
    if _peak() - before > BYTES:
        wrong.append(f"{(_peak() - before) / 2**30:.1f} GiB")
    said = output.getvalue() + "".join(
        path.read_text(errors="replace") for path in (place.parent / "out").glob("*.*")
    )
    shown = {"a traceback": "Traceback", "the secret": SECRET, "a terminal's escape": ESCAPE}
    wrong += [f"shows {what}" for what, text in shown.items() if text in said]
    wrong += AUDIT_HOOK.seen
    if secret.read_text() != SECRET:
        wrong.append("has written to the secret")
    return wrong


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.03, pytest.param(1.0, marks=pytest.mark.soak)])
def test_hostile_files_end_in_a_sentence(
    share: float, tmp_path: Path, soak: FaultSeries, monkeypatch: pytest.MonkeyPatch
) -> None:
    def undrawn(name: str, title: str, alt: str, *_: object, **__: object) -> Figure:
        return Figure(name, title, alt, "<svg/>", b"a picture")

    monkeypatch.setattr(figures, "draw_figure", undrawn)
    monkeypatch.setenv(VARIABLE, SECRET)
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    torch.serialization.clear_safe_globals()
    draw, wrong, count = random.Random(f"{soak.seed}"), [], 0
    for number, case in enumerate(cases()):
        for name, command in COMMANDS[case.kind].items():
            if draw.random() < share:
                count += 1
                found = try_command(case, command, tmp_path / f"{number}-{name}")
                wrong += [f"{case.kind}, {case.name}, {name}: {each}" for each in found]
    soak.note(f"- {count} hostile files and commands, each ended as it should but for {len(wrong)}")
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong)
