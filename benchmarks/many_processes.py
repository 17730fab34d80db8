"""Counts of the files, connections and bytes of a job that grow with its number of processes.

The report is Markdown, for a README as for a terminal.
"""

import importlib
import os
import re
import shlex
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from lsgd.bench import results
from lsgd.bench.job import parse_numbers
from lsgd.bench.setting import Result, check_not_launched, environment_facts, machine_lines
from lsgd.comm import all_reduce_, joined
from lsgd.errors import UsageError
from lsgd.inputs.index import IndexRow, write_index
from lsgd.job.children import describe_failure, run_with_limit
from lsgd.job.command import Parser, run_command
from lsgd.job.launcher import Launch, environment_of
from lsgd.recipe import CommSettings
from lsgd.supervise.singly import free_port
from lsgd.tables import markdown_table

ABOUT = """\
Which files does a process of a job open, and how many connections and requests does it make, as the
number of processes grows?

strace counts the system calls of a run of two steps, with one process for each worker, and of a
second one that resumes from its checkpoint for an evaluation. The processes are forks that have
imported torch, so that many fit into this machine; what the imports open is counted once, in a
process of its own. Nothing is timed. With --null-step the processes join the job, sum one number
and end, which is what grows fastest.

  python -m benchmarks.many_processes --processes 8,64
  … --processes 8,64,512 --null-step
"""

CALLS = (
    *("open", "openat", "stat", "lstat", "newfstatat", "statx", "access", "faccessat2"),
    *("readlink", "readlinkat", "getdents64", "connect", "sendto", "recvfrom"),
)
LOOKUPS = {"stat", "lstat", "newfstatat", "statx", "access", "faccessat2", "readlink", "readlinkat"}
WORKER_BATCH, STEPS = 2, 2
LIMIT = 1800.0
"""The seconds after which a job is ended."""
CALL = re.compile(r"(\w+)\((.*)\)\s+= (-?\d+|\?)(?:<(.*?)>)?")
PATH = re.compile(r'"(/[^"]*)"')
IMPORTED = ("lsgd.train", "lsgd.vision", "torchvision", "torch._dynamo", "torch.utils.tensorboard")
STARTED = "/lsgd-counts-from-here"
"""A path that does not exist: a look-up of it marks where the counting of a rank begins."""


def main(argv: Sequence[str]) -> int:
    """Run the benchmark's command line and return the exit code."""
    if argv and argv[0] == "--forked":
        return fork_ranks(int(argv[1]), argv[2:])
    return run_command(lambda: many_processes(argv))


def many_processes(argv: Sequence[str]) -> None:
    """Count the calls of each number of processes, print the report and save it in --out."""
    line = Parser("benchmarks.many_processes", ABOUT)
    line.add_argument("--processes", default="8,64", help="processes of a job (8,64)")
    results.add_out(line, "many_processes")
    line.add_argument("--null-step", action="store_true", help="train nothing, and only join")
    options = line.parse_args(argv)
    processes = parse_numbers("--processes", options.processes, least=1)
    check_not_launched("this benchmark starts its own")
    if shutil.which("strace") is None:
        raise UsageError("benchmarks.many_processes counts by strace; run apt install strace")
    with (
        results.open_record("many_processes", line.prog, argv, options.out) as record,
        tempfile.TemporaryDirectory() as name,
    ):
        folder = Path(name)
        result: Result = environment_facts(torch.device("cpu")) | {"counts": {}}
        if not options.null_step:
            result["imports"] = count_imports(folder)
        for number in processes:
            print(f"{number} processes", flush=True)
            count = count_null_step if options.null_step else count_job
            result["counts"][str(number)] = count(folder, number)
            record.write_result(result)
        record.write_report(result, report(result))


def write_images(root: Path, count: int) -> None:
    """Write a folder of `count` small images for training and eight for validation; index it."""
    random = np.random.default_rng(0)
    for split, images in (("train", count), ("val", 8)):
        rows: list[IndexRow] = []
        for i in range(images):
            path = Path(split, f"class{i % 2}", f"{i:06}.png")
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(random.integers(0, 256, (16, 16, 3), np.uint8)).save(root / path)
            size = (root / path).stat().st_size
            rows.append((bytes(path), b"", 0, size, i % 2, 16, 16))
        write_index(root, split, rows)


def recipe_words(folder: Path, processes: int, run_dir: str) -> list[str]:
    """Return the overrides of a job with one worker for each process."""
    return [
        *("recipe=bs256", "data=folder", f"data.root={folder}/images{processes}"),
        *("data.image_size=16", "model=small_resnet"),
        *(f"workers={processes}", f"worker_batch={WORKER_BATCH}", "epochs=1", "hardware=none"),
        *("schedule.milestones=[]", "schedule.warmup_epochs=0", f"run_dir={folder}/{run_dir}"),
        *("inputs=torchvision", "inputs.decoders=0", "device=cpu", "comm.join_timeout=600"),
    ]


def null_step() -> int:
    """Join the job's processes, sum one number with them, and leave."""
    device = torch.device("cpu")
    with joined(CommSettings(library="torch", join_timeout=LIMIT, timeout=LIMIT), device) as comm:
        all_reduce_(comm, torch.zeros(1))
    return 0


def fork_ranks(processes: int, words: Sequence[str]) -> int:
    """Train in forks of this process, one for each rank; return 1 if one fails, else 0.

    Without overrides they train nothing.
    """
    for name in IMPORTED:
        importlib.import_module(name)
    train = importlib.import_module("lsgd.train")
    port = int(os.environ["MASTER_PORT"])
    torch.set_num_threads(1)
    children = []
    for rank in range(processes):
        if child := os.fork():
            children.append(child)
            continue
        code = 1
        try:
            os.path.exists(STARTED)
            launch = Launch("torchrun", rank, processes, rank, processes, "127.0.0.1", port)
            os.environ.update(environment_of(launch))
            code = train.main(words) if words else null_step()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return max(int(os.waitpid(child, 0)[1] != 0) for child in children)


def count_imports(folder: Path) -> Result:
    """Return the counts of a process that imports what a run does, and stops there."""
    words = ["-c", f"import {', '.join(IMPORTED)}"]
    (counts,) = trace(words, folder, since="")
    return dict(counts)


def count_job(folder: Path, processes: int) -> Result:
    """Return the counts of a job's start and of its resumption: of all processes, and the most."""
    write_images(folder / f"images{processes}", STEPS * WORKER_BATCH * processes)
    run = folder / f"run{processes}"
    words = recipe_words(folder, processes, run.name)
    found: Result = {}
    for what in ("start", "resume"):
        found[what] = count_ranks(folder, processes, words)
    files = [file for file in run.rglob("*") if file.is_file()]
    return found | {"files": len(files), "bytes": sum(file.stat().st_size for file in files)}


def count_null_step(folder: Path, processes: int) -> Result:
    """Count the system calls of a job whose processes join, add up one number, and end."""
    return {"start": count_ranks(folder, processes, ())}


def count_ranks(folder: Path, processes: int, words: Sequence[str]) -> Result:
    """Return the counts of a job with these overrides: of all its processes, and the most of one.

    Raises UsageError if it fails.
    """
    forked = ["-m", "benchmarks.many_processes", "--forked", str(processes), *words]
    ranks = trace(forked, folder, since=STARTED)
    if len(ranks) != processes:
        raise UsageError(f"{processes} processes were traced as {len(ranks)}")
    total = sum(ranks, Counter[str]())
    most = {key: max(rank[key] for rank in ranks) for key in total}
    return {"all": dict(total), "most": most}


def trace(words: Sequence[str], folder: Path, since: str) -> list[Counter[str]]:
    """Run Python with these arguments under strace, and return the counts of each process.

    `since` is a path whose look-up marks where a process's counts begin; processes that never look
    it up are left out. If it is empty, everything counts.
    """
    port = free_port()
    with tempfile.TemporaryDirectory(dir=folder) as traces:
        code, said = run_with_limit(
            [
                *("strace", "-ff", "-qq", "-y", "-s", "0", "--seccomp-bpf", "-o", f"{traces}/t"),
                *("-e", f"trace={','.join(CALLS)}", sys.executable, *words),
            ],
            limit=LIMIT,
            environment={"MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"},
        )
        if code != 0:
            raise UsageError(f"{shlex.join(words)} failed: {describe_failure(code, said, LIMIT)}")
        counts = [
            count_calls(file.read_text(errors="replace"), folder, since, port)
            for file in sorted(Path(traces).iterdir())
        ]
    return [each for each in counts if each]


def count_calls(text: str, folder: Path, since: str, store_port: int) -> Counter[str]:
    """Count the calls in a process's output of strace by what they are for."""
    counts: Counter[str] = Counter()
    begun, store = not since, set[str]()
    sizes: dict[str, int] = {}
    for line in text.splitlines():
        if not (call := CALL.match(line)):
            continue
        name, arguments, returned, opened = call.groups()
        if since and since in arguments:
            begun = True
        if not begun:
            continue
        failed = returned.startswith("-") or returned == "?"
        descriptor = arguments.partition("<")[0]
        if name in ("open", "openat"):
            place = _place(opened or "".join(PATH.findall(arguments)[-1:]), folder)
            counts[f"{place}: {'opens that fail' if failed else 'opens'}"] += 1
            if opened and opened not in sizes:
                with suppress(OSError):
                    sizes[opened] = os.path.getsize(opened)
                    counts[f"{place}: bytes of its files"] += sizes[opened]
        elif name in LOOKUPS:
            if paths := PATH.findall(arguments):
                counts[f"{_place(paths[-1], folder)}: look-ups"] += 1
        elif name == "getdents64":
            counts[f"{_place(_file(arguments), folder)}: listings"] += 1
        elif name == "connect" and (port := re.search(r"htons\((\d+)\)", arguments)):
            is_store = int(port[1]) == store_port
            (store.add if is_store else store.discard)(descriptor)
            counts[f"network: connections to {'the store' if is_store else 'other processes'}"] += 1
        elif name == "sendto" and not failed and descriptor in store:
            counts["network: requests to the store"] += 1
            counts["network: bytes to the store"] += int(returned)
        elif name == "recvfrom" and not failed and descriptor in store:
            counts["network: bytes from the store"] += int(returned)
    return counts


def _file(arguments: str) -> str:
    """Return the path of the file descriptor that is a call's first argument."""
    return arguments.partition("<")[2].partition(">")[0]


def _place(path: str, folder: Path) -> str:
    """Return what a path belongs to, as a report says it."""
    if path.startswith(f"{folder}/images"):
        return "index" if path.endswith(".npy") else "images"
    if path.startswith(f"{folder}/run"):
        return "run folder"
    if path.startswith(("/proc", "/sys", "/dev", "/etc", "/run", "/tmp")) or not path:
        return "the machine's own"
    return "program"


def report(result: Result) -> str:
    """Return the counts as a report in Markdown."""
    numbers = list(result["counts"])
    lines = [*machine_lines(result)]
    if imports := result.get("imports"):
        counted = (f"{count:,} {what}" for what, count in sorted(imports.items()))
        lines += ["", f"The imports of one process: {', '.join(counted)}"]
    for what in ("start", "resume"):
        if what not in result["counts"][numbers[0]]:
            continue
        keys = sorted({key for each in result["counts"].values() for key in each[what]["all"]})
        rows = [
            [
                key,
                *(f"{result['counts'][n][what]['all'].get(key, 0):,}" for n in numbers),
                *(f"{result['counts'][n][what]['most'].get(key, 0):,}" for n in numbers),
            ]
            for key in keys
        ]
        head = [
            f"{what}, after the imports",
            *(f"{number} processes" for number in numbers),
            *(f"most of one of {number}" for number in numbers),
        ]
        lines += ["", markdown_table(head, rows)]
    folders = (
        f"{number} processes leave {each['files']} files of {each['bytes']:,} bytes"
        for number, each in result["counts"].items()
        if "files" in each
    )
    if left := "; ".join(folders):
        lines += ["", f"Run folder: {left}."]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
