"""Check this machine's setup and print the fix for each problem: `python -m lsgd.doctor`.

Checks everything that a run may use, one line each: pass; fail, with what to type or do; optional,
with how to get it; or not needed here. Child processes load libraries, decode images and try
all-reduce, so that a crash or a hang is reported and does no harm. Nothing is installed, changed or
left running.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from typing import NoReturn

import lsgd
from lsgd.doctor import (
    ABSENT,
    FAIL,
    PASS,
    CheckItem,
    ProbeResult,
    datasets,
    machine,
    run_probe,
    software,
    sums,
)
from lsgd.job import children
from lsgd.job.command import Parser, run_alone, seconds
from lsgd.job.network import list_interfaces
from lsgd.job.system import cpu_quota, usable_cores

EPILOG = """\
exit codes: 0 a run is possible here, 1 a check that every run needs fails
(Python, torch, torchvision, tensorboard, recipes, the run folder, and with
GPUs CUDA).

--json prints {"lsgd", "host", "fit", "items": [{"name", "status", "found",
"fix", "required", "numbers"}]} with the status pass, fail or not needed; in
numbers are cores, free_gb, mb_per_s and the like. An all-reduce of two
processes
has 16 MB; its mb_per_s is the best of five.

Datasets are looked for in $LSGD_DATA, else in data/, as in a
run; a run can
also have data.root=FOLDER.
"""

COLOURS = {PASS: "32", FAIL: "31", ABSENT: "2"}
LABELS = {PASS: "pass", FAIL: "FAIL", ABSENT: "-"}
NAME_WIDTH = 23


def examine(limit: float, pool: ThreadPoolExecutor) -> Iterator[CheckItem]:
    """Check this machine's setup; yield each result once known, in the order a user needs them."""

    def later(probe: str, *arguments: str) -> Future[ProbeResult]:
        return pool.submit(run_probe, probe, *arguments, limit=limit)

    answers = {
        probe: later(probe)
        for probe in (
            "torch", "torchvision", "recipes", "tensorboard", "setuptools", "horovod", "network",
            "data", "memory",
        )
    }  # fmt: skip
    jpeg = later("dali", "cpu")

    yield software.python()
    if problems := machine.temporary_folder():  # without which no child process answers
        yield from problems
        yield from _safely("run folder", machine.run_folder)
        return
    torch = answers["torch"].result()
    for name in ("torch", "torchvision", "recipes", "tensorboard"):
        yield software.required(name, answers[name].result())
    yield from _safely("run folder", machine.run_folder)
    yield from _safely("cores", lambda: [machine.cores(cpu_quota())])
    yield from _safely("GPU driver", lambda: machine.gpus(torch, machine.nvidia(limit)))
    horovod = answers["horovod"].result()
    yield software.horovod(horovod)
    yield software.setuptools(answers["setuptools"].result(), horovod=horovod)
    mpi = software.mpi(horovod, limit=limit)
    yield mpi
    yield software.slurm(limit=limit)
    host = answers["network"].result()
    [network] = _safely("network", lambda: [machine.network(host, list_interfaces())])
    yield network
    gpus = 0 if "problem" in torch.facts else len(torch.facts.get("gpus", []))
    yield from _safely("NCCL network", lambda: [machine.nccl_network(list_interfaces(), gpus)])
    yield from _safely("open files", lambda: [machine.open_files()])
    yield from _safely("shared memory", lambda: [machine.shared_memory()])
    yield machine.memory(answers["memory"].result())
    yield software.dali(jpeg.result(), where="CPU")
    if torch.facts.get("gpus") and "problem" not in torch.facts:
        yield software.dali(later("dali", "cuda").result(), where="GPU")
        yield software.compiler(later("compiler").result())
        yield software.apex(later("apex").result())
    yield from datasets.datasets(answers["data"].result())
    yield from sums.all_reduces(torch, horovod, mpi, network, limit=limit)


def _safely(name: str, check: Callable[[], list[CheckItem]]) -> list[CheckItem]:
    """Run a check in this process; turn an OSError or ValueError into a failed result."""
    try:
        return check()
    except (OSError, ValueError) as error:
        return [CheckItem(name, FAIL, f"the check failed: {error}", "report this bug of lsgd")]


def main(argv: Sequence[str]) -> int:
    """Run the command line of the check of this machine's setup; return the exit code."""
    # Not run_command: the doctor has to work where no launcher is recognised.
    return run_alone(lambda: diagnose(_parser().parse_args(argv)))


def _parser() -> Parser:
    parser = Parser("lsgd.doctor", f"{__doc__}\n{EPILOG}")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument(
        "--limit",
        type=seconds,
        default=60,
        metavar="SECONDS",
        help="the time limit of each check in seconds (60)",
    )
    return parser


def diagnose(options: argparse.Namespace) -> int:
    """Check this machine's setup and print results and verdict; return 0 if a run can start."""
    signal.signal(signal.SIGTERM, _terminated)
    pool = ThreadPoolExecutor(max(2, min(4, len(usable_cores()))))
    items = []
    try:
        if not options.json:
            print(f"lsgd {lsgd.__version__} on {socket.gethostname()}: the setup of this machine\n")
        for item in examine(options.limit, pool):
            items.append(item)
            if not options.json:
                print(line(item), flush=True)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        children.end_children()
    fit = not any(item.status == FAIL and item.required for item in items)
    if options.json:
        report = {"lsgd": lsgd.__version__, "host": socket.gethostname(), "fit": fit}
        print(json.dumps(report | {"items": [asdict(item) for item in items]}, indent=1))
    else:
        print("\n" + _folded(verdict(items), 0))
    return 0 if fit else 1


def line(item: CheckItem) -> str:
    """Format a check's result and its fix, a line each, folded and coloured on a terminal."""
    label, absent = LABELS[item.status], ""
    if item.status == ABSENT:
        # After "not needed", a fix would read as advice to do what is not needed.
        absent = "optional: " if item.fix else "not needed here: "
    head = f"{label:<4}  {item.name:<{NAME_WIDTH}}  {absent}{item.found}"
    fix = _folded(f"      -> {item.fix}", 9)
    head = _folded(head, NAME_WIDTH + 8)
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        head = f"\033[{COLOURS[item.status]}m{label}\033[0m{head[len(label) :]}"
    return f"{head}\n{fix}" if item.fix else head


def _folded(text: str, indent: int) -> str:
    if not sys.stdout.isatty():
        return text
    return textwrap.fill(
        text,
        max(60, min(100, shutil.get_terminal_size().columns)),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def verdict(items: Sequence[CheckItem]) -> str:
    """Return the conclusion of all checks as a sentence: whether a run is possible, what fails."""
    needed = [item.name for item in items if item.status == FAIL and item.required]
    if needed:
        return f"No run is possible here until this is fixed: {', '.join(needed)}."
    failed = [item.name for item in items if item.status == FAIL]
    but = f", but this fails: {', '.join(failed)}" if failed else ""
    return f"A run is possible here{but}; begin with `python -m lsgd.train recipe=digits`."


def _terminated(*_: object) -> NoReturn:
    raise SystemExit(143)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
