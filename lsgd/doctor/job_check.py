"""Check the nodes of a job before a run: `lsgd launch LAUNCHER RECIPE … --check` starts it.

Each process measures a matrix product on its device. The first one of each node runs the doctor's
checks of the machine, reads files of data.root and compares the clock with that of process 0. Then
an all-reduce is timed inside each node, and between the neighbours of a ring of the nodes, over
torch.distributed whatever the run uses.

  python -m lsgd.launch slurm bs8k --nodes 32 data.root=/data/imagenet --check
  python -m lsgd.launch mpirun bs8k --hosts a:8,b:8 --check

Process 0 prints a table and names the nodes that are slow, broken or do not answer. A step without
an answer is given up after a limit, so that one broken node hides no other. Exit codes: 0 no node
is slow or broken, 1 some are, 2 a usage error.
"""

import json
import os
import platform
import random
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import (  # type: ignore[attr-defined]
    HashStore,
    PrefixStore,
    ProcessGroupGloo,
    Store,
)

import lsgd
from lsgd.comm.torch import error_cause, open_store
from lsgd.doctor import FAIL, ProbeResult, machine, probe
from lsgd.doctor.nodes import (
    UNKNOWN,
    Link,
    NodeFigures,
    common_failures,
    culprits,
    exclusion,
    expected_hosts,
    judge_nodes,
    network_name,
    node_table,
    ring_rounds,
)
from lsgd.errors import UnhealthyNodesError, UsageError
from lsgd.job.command import run_command
from lsgd.job.device import pick_device, synchronize
from lsgd.job.launcher import Launch, detect_launch
from lsgd.job.network import list_interfaces
from lsgd.job.system import cpu_quota
from lsgd.paths import is_leftover
from lsgd.recipe import Recipe
from lsgd.recipe_parser import RecipeParser

MATRIX_SECONDS = 2.0
"""The seconds in which matrix products are repeated, enough for a hot GPU to lower its clock."""
READ_MB, READ_SECONDS = 256, 5.0
"""The megabytes and seconds after which the reading of files ends, at the first of both."""
LISTED_FILES = 4096
"""The files of data.root among which those to read are drawn; listing all may take minutes."""
MEASURE_LIMIT, RING_LIMIT, MESSAGE_LIMIT = 300.0, 60.0, 10.0
"""The seconds after which a process's figures, an all-reduce or a message are given up."""
NCCL_WATCHDOG = 3600.0
"""The seconds after which NCCL would abort a process, long after process 0 has reported."""

LEGEND = """\
GFLOP/s of matrix products on the slowest process; MB/s of an all-reduce inside the node and with
the next one, and of reading data.root; seconds by which the clock is ahead of process 0's"""

ProcessFigures = dict[str, Any]


class Meeting:
    """The exchange of JSON values over the store of a job's processes, with time limits.

    Process 0 collects the values of all processes and publishes them. One that has not answered in
    time has None from then on; the others go on without it, and wait for it no more.
    """

    def __init__(self, store: Store, rank: int, world_size: int) -> None:
        self.store, self.rank, self.world_size = store, rank, world_size
        self.answering = list(range(world_size))
        """The ranks that have answered in time so far, as process 0 knows them."""

    def gather(self, name: str, value: object, limit: float) -> list[Any]:
        """Exchange a value under a new name; return those of all processes by rank.

        Raises UsageError if process 0 has not published them some time after the limit.
        """
        own, everyone = f"{name}/{self.rank}", f"{name}/all"
        if self.rank == 0:
            self.store.set(own, json.dumps(value))
            keys = {rank: f"{name}/{rank}" for rank in self.answering}
            with suppress(dist.DistStoreError):
                self.store.wait(list(keys.values()), timedelta(seconds=limit))
            self.answering = [rank for rank, key in keys.items() if self.store.check([key])]
            found: list[Any] = [None] * self.world_size
            for rank in self.answering:
                found[rank] = json.loads(self.store.get(keys[rank]))
            self.store.set(everyone, json.dumps(found))
            return found
        try:
            self.store.set(own, json.dumps(value))
            # Process 0 may begin to wait later, since an earlier step has taken it to its limit.
            self.store.wait([everyone], timedelta(seconds=limit + MEASURE_LIMIT))
        except dist.DistError:
            raise UsageError(
                f"process {self.rank} on {platform.node()} has lost process 0 while it waited for "
                f"the {name}; check that node first",
                is_local=True,
            ) from None
        values: list[Any] = json.loads(self.store.get(everyone))
        return values

    def clock_ahead(self, ranks: Sequence[int]) -> tuple[float, float] | None:
        """Return by how many seconds this clock is ahead of process 0's, and the largest error.

        Process 0 serves these other ranks in turn. It gives up the one that does not answer.
        """
        for rank in ranks if self.rank == 0 else ():
            self.store.set(f"clock/{rank}/turn", "")
            with suppress(dist.DistError):
                self.store.wait([f"clock/{rank}/ask"], timedelta(seconds=MESSAGE_LIMIT))
                self.store.set(f"clock/{rank}/answer", repr(clock()))
        if self.rank not in ranks:
            return None
        limit = timedelta(seconds=MESSAGE_LIMIT)
        with suppress(dist.DistError):
            self.store.wait([f"clock/{self.rank}/turn"], limit * len(ranks))
            before = clock()
            self.store.set(f"clock/{self.rank}/ask", "")
            self.store.wait([f"clock/{self.rank}/answer"], limit)
            after = clock()
            theirs = float(self.store.get(f"clock/{self.rank}/answer"))
            return (before + after) / 2 - theirs, (after - before) / 2
        return None

    def leave(self) -> None:
        """Keep the store, which process 0 may hold, until all have read the last values."""
        self.store.set(f"left/{self.rank}", "")
        if self.rank == 0:
            others = [f"left/{rank}" for rank in self.answering]
            with suppress(dist.DistStoreError):
                self.store.wait(others, timedelta(seconds=MESSAGE_LIMIT))


def check_job(recipe: Recipe, options: Namespace) -> None:
    """Measure all nodes of this job together; raise UnhealthyNodesError on process 0 if one fails.

    Raises UsageError if this process has no address of process 0, or comes after the others.
    """
    launch = detect_launch()
    planned = expected_hosts(launch, options.hosts, os.environ)
    if options.hosts and planned and "MASTER_ADDR" not in os.environ:
        # mpirun may have been started elsewhere, and horovodrun names no machine.
        launch = replace(launch, master_addr=network_name(planned[0]))
    host = node_name(launch, planned)
    try:
        meeting = _meet(launch, recipe.comm.join_timeout)
        hosts = meeting.gather("hosts", host, recipe.comm.join_timeout)
        if hosts[launch.rank] is None:
            raise UsageError(
                f"process {launch.rank} on {host} has joined after the others had begun; raise "
                "comm.join_timeout if it needs longer",
                is_local=True,
            )
    except UsageError as error:
        if launch.rank and error.is_local:
            # At its exit the launcher would end the job before process 0 has reported.
            print(f"lsgd: {error}", file=sys.stderr, flush=True)
            time.sleep(MEASURE_LIMIT)
        raise
    ranks: dict[str, list[int]] = {}
    for rank, name in enumerate(hosts):
        if name is not None:
            ranks.setdefault(name, []).append(rank)
    firsts = [each[0] for each in ranks.values()]
    if launch.rank == 0:
        nodes = "1 node" if len(ranks) == 1 else f"{len(ranks)} nodes"
        who = f"{launch.world_size} processes by {launch.launcher} on {nodes}"
        print(
            f"lsgd {lsgd.__version__}: measuring "
            f"{who if launch.world_size > 1 else 'this process alone'}, for about half a minute",
            flush=True,
        )
    own, device = measure(
        recipe, share=firsts.index(launch.rank) if launch.rank in firsts else None
    )
    figures: list[ProcessFigures | None] = meeting.gather("figures", own, MEASURE_LIMIT)
    measured = [rank for rank, each in enumerate(figures) if each is not None]
    clocks = meeting.gather(
        "clocks",
        meeting.clock_ahead([rank for rank in firsts if rank in measured and rank]),
        MESSAGE_LIMIT * len(firsts),
    )
    # A process without a working device takes part in no all-reduce.
    able = {
        name: [rank for rank in members if (figures[rank] or {}).get("gflops")]
        for name, members in ranks.items()
    }
    able = {name: members for name, members in able.items() if members}
    inside, links = _rings(meeting, able, device)
    meeting.leave()
    if launch.rank == 0:
        found = _nodes(ranks, hosts, planned, figures, clocks, inside, recipe.comm.join_timeout)
        _report(found, links, launch, options)


def node_name(launch: Launch, planned: Sequence[str] | None) -> str:
    """Return the name of this node as its launcher has it, or else this machine's hostname."""
    if "SLURMD_NODENAME" in os.environ:
        return os.environ["SLURMD_NODENAME"]
    return planned[launch.rank] if planned else platform.node()


def clock() -> float:
    """Return this machine's time in seconds since 1970."""
    return time.time()


def measure(recipe: Recipe, *, share: int | None) -> tuple[ProcessFigures, torch.device]:
    """Measure what this process can alone; return the figures and its device.

    `share` is the number of this node if this process is its first, which reads files and runs the
    doctor's checks too. A failure is a figure as well: the text `problem`.
    """
    found: ProcessFigures = {"problems": []}
    device = torch.device("cpu")
    try:
        device = pick_device(recipe.device, numa=recipe.numa)
        found["gflops"], is_repeatable = matrix_rate(device)
        if not is_repeatable:
            found["problems"].append("the same matrix product gave different results")
    except (RuntimeError, UsageError) as error:
        found["problems"].append(f"no matrix product: {error_cause(str(error))}")
    if share is not None:
        try:
            found["disk_mb_per_s"] = read_rate(recipe, share)
        except OSError as error:
            found["problems"].append(f"data.root: {error}")
        try:
            found["failed_checks"] = failed_checks(recipe)
        except Exception as error:  # any type: this is the broken node that is to be named
            found["problems"].append(f"the doctor's checks: {error}")
    return found, device


def matrix_rate(device: torch.device) -> tuple[float, bool]:
    """Return the GFLOP/s of matrix products, and whether all had the bits of the first.

    On a GPU they are in bfloat16 on its tensor cores, else in float32.
    """
    size, dtype = (1024, torch.float32) if device.type == "cpu" else (8192, torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(size, size, generator=generator).to(device, dtype) for _ in range(2))
    first = left @ right
    seconds: list[float] = []
    is_repeatable = True
    until = time.perf_counter() + MATRIX_SECONDS
    while not seconds or time.perf_counter() < until:
        synchronize(device)
        begin = time.perf_counter()
        product = left @ right
        synchronize(device)
        seconds.append(time.perf_counter() - begin)
        is_repeatable = is_repeatable and torch.equal(product, first)
    return 2 * size**3 / statistics.median(seconds) / 1e9, is_repeatable


def read_rate(recipe: Recipe, share: int) -> float | None:
    """Return the MB/s at which files of data.root are read, from the disk or server, not memory.

    None if the recipe reads no files there, or its own loader or workload may read other ones. Each
    node, by its `share`, reads others. Raises OSError if the folder or a file cannot be read.
    """
    data = recipe.data
    is_own = recipe.inputs.is_own or data.is_own_workload
    if recipe.inputs.loader == "synthetic" or (is_own and not data.root):
        return None
    if data.name == "digits" and not is_own:
        return None
    files = list(islice(_files(data.folder), LISTED_FILES))
    random.Random(share).shuffle(files)
    read, begin = 0, time.perf_counter()
    for path in files:
        with path.open("rb", buffering=0) as file:
            if sys.platform == "linux":  # drop what an earlier run has left in memory
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while chunk := file.read(2**20):
                read, seconds = read + len(chunk), time.perf_counter() - begin
                if read >= READ_MB * 10**6 or seconds > READ_SECONDS:
                    return read / 1e6 / seconds
    return read / 1e6 / (time.perf_counter() - begin) if read else None


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and its folders, as the file system has them."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_leftover(entry.name):
                continue
            if entry.is_dir():
                yield from _files(Path(entry.path))
            elif entry.is_file():
                yield Path(entry.path)


def failed_checks(recipe: Recipe) -> dict[str, str]:
    """Return the doctor's checks of this machine that fail, each with its finding and the fix.

    The folders are those of the recipe's run.

    They are those of the machine that need no child process, which a job's process may not start.
    """
    *_, facts = probe.torch_()
    interfaces = list_interfaces()
    host = ProbeResult(next(probe.network()))
    items = [
        *machine.run_folder(Path(recipe.run_dir or "runs")),
        *([machine.staging_folder(recipe.data.stage)] if recipe.data.stage else []),
        machine.cores(cpu_quota()),
        *machine.gpus(ProbeResult(facts), machine.nvidia(MESSAGE_LIMIT)),
        machine.network(host, interfaces),
        machine.nccl_network(interfaces, len(facts.get("gpus", []))),
        machine.open_files(),
        machine.shared_memory(),
    ]
    return {item.name: f"{item.found} -> {item.fix}" for item in items if item.status == FAIL}


def _meet(launch: Launch, timeout: float) -> Meeting:
    if launch.world_size == 1:
        return Meeting(HashStore(), 0, 1)
    try:
        store = open_store(launch, timeout)
    except (dist.DistError, RuntimeError, ValueError) as error:
        raise UsageError(
            f"process {launch.rank} on {platform.node()} could not reach process 0 at "
            f"{launch.master_addr}:{launch.master_port} within {timeout:g} s "
            f"({error_cause(str(error))}); check that node first",
            is_local=True,
        ) from None
    return Meeting(store, launch.rank, launch.world_size)


def _rings(
    meeting: Meeting, able: dict[str, list[int]], device: torch.device
) -> tuple[dict[str, float | str], list[Link]]:
    """Time an all-reduce inside each node, then between the neighbours of a ring of these nodes.

    Return the MB/s inside each node of several processes, or why there is none, and the links. A
    process that has not answered is left out of later rounds.
    """
    inside: dict[str, float | str] = {}
    links = []
    names = list(able)
    rounds: list[list[tuple[str, ...]]] = [[(name,) for name in names]]
    rounds += [[(names[a], names[b]) for a, b in pairs] for pairs in ring_rounds(len(names))]
    for number, groups in enumerate(rounds):
        own: ProcessFigures = {}
        for group in groups:
            members = [rank for name in group for rank in able[name]]
            if meeting.rank in members and len(members) > 1:
                store = PrefixStore(f"ring{number}/{members[0]}", meeting.store)
                own = group_speed(store, members.index(meeting.rank), len(members), device)
        found = meeting.gather(f"ring{number}", own, 2 * RING_LIMIT)
        for group in groups:
            answers = {rank: found[rank] for name in group for rank in able[name]}
            speeds = [each.get("mb_per_s") for each in answers.values() if each]
            is_complete = all(able[name] for name in group) and len(speeds) == len(answers)
            speed = min(speeds) if is_complete and all(speeds) else None
            texts = [each["problem"] for each in answers.values() if each and "problem" in each]
            problem = texts[0] if texts else f"did not end in {RING_LIMIT:g} s"
            if len(group) == 2:
                links.append(Link(group[0], group[1], speed, problem))
            elif len(answers) > 1:
                inside[group[0]] = speed or f"the all-reduce inside {problem}"
        able = {
            name: [rank for rank in members if found[rank] is not None]
            for name, members in able.items()
        }
    return inside, links


def group_speed(store: Store, rank: int, size: int, device: torch.device) -> ProcessFigures:
    """Time an all-reduce of a group of processes that meet at this store, of which this is one.

    Return its MB/s, or the text `problem`.
    """
    try:
        group, device = _open_group(store, rank, size, device)

        def all_reduce_(tensor: Tensor) -> None:
            group.allreduce([tensor]).wait()

        speed, is_right = probe.time_all_reduce(all_reduce_, rank, size, device)
    except RuntimeError as error:
        return {"problem": f"failed: {error_cause(str(error))}"}
    return {"mb_per_s": speed} if is_right else {"problem": "gave a wrong sum"}


def _open_group(
    store: Store, rank: int, size: int, device: torch.device
) -> tuple[Any, torch.device]:
    """Open a process group of its own, so that only its members notice if one of them fails."""
    limit = timedelta(seconds=RING_LIMIT)
    if device.type == "cuda":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=NCCL_WATCHDOG)
        return dist.ProcessGroupNCCL(store, rank, size, options), device
    return ProcessGroupGloo(store, rank, size, limit), torch.device("cpu")


def _nodes(
    ranks: dict[str, list[int]],
    hosts: Sequence[str | None],
    planned: Sequence[str] | None,
    figures: Sequence[ProcessFigures | None],
    clocks: Sequence[tuple[float, float] | None],
    inside: dict[str, float | str],
    join_timeout: float,
) -> list[NodeFigures]:
    """Collect the figures of each node, and add the nodes of processes that have not joined."""
    missing: dict[str, list[int]] = {}
    for rank, name in enumerate(hosts):
        if name is None:
            missing.setdefault(planned[rank] if planned else UNKNOWN, []).append(rank)
    nodes = []
    for host in dict.fromkeys([*ranks, *missing]):
        joined = ranks.get(host, [])
        problems = []
        for rank in missing.get(host, []):
            problems.append(f"process {rank} has not joined within {join_timeout:g} s")
        for rank in joined:
            if (own := figures[rank]) is None:
                problems.append(f"process {rank} gave no figures within {MEASURE_LIMIT:g} s")
                continue
            problems += [f"process {rank}: {text}" for text in own["problems"]]
        within = inside.get(host)
        if isinstance(within, str):
            problems.append(within)
        rates = [
            (own["gflops"], rank) for rank in joined if (own := figures[rank]) and own.get("gflops")
        ]
        slowest = min(rates, default=(None, None))
        first = (figures[joined[0]] if joined else None) or {}
        ahead, error = (0.0, 0.0) if 0 in joined else (joined and clocks[joined[0]]) or (None, 0.0)
        nodes.append(
            NodeFigures(
                host,
                tuple(sorted([*joined, *missing.get(host, [])])),
                gflops=slowest[0],
                slowest=slowest[1],
                inside_mb_per_s=None if isinstance(within, str) else within,
                disk_mb_per_s=first.get("disk_mb_per_s"),
                clock_ahead=ahead,
                clock_error=error,
                problems=tuple(problems),
                failed_checks=first.get("failed_checks", {}),
            )
        )
    return nodes


def _report(
    nodes: Sequence[NodeFigures], links: Sequence[Link], launch: Launch, options: Namespace
) -> None:
    """Print the table of the nodes and all findings; raise UnhealthyNodesError if there are any."""
    print(f"\n{node_table(nodes, links)}\n\n{LEGEND}\n")
    for name, found in common_failures(nodes).items():
        print(f"on most nodes: {name}: {found}")
    findings = judge_nodes(nodes, links)
    for finding in findings:
        print(f"{' and '.join(finding.hosts)}: {finding.text}")
    sys.stdout.flush()
    if not findings:
        print("No node is slow or broken.", flush=True)
        return
    bad = culprits(findings, nodes[0].host)
    is_slurm = launch.launcher == "srun" or "SLURM_JOB_ID" in os.environ
    how = exclusion(bad, options.hosts, options.exclude, is_slurm=is_slurm)
    raise UnhealthyNodesError(
        f"of {len(nodes)} nodes, these are slow or broken: {', '.join(bad)}; "
        + (f"leave them out with {how}" if how else "start the job without them")
    )


def main(argv: Sequence[str]) -> int:
    """Run one process of a check of a job's nodes; return the exit code."""
    return run_command(lambda: check_job(*_parse(argv)))


def _parse(argv: Sequence[str]) -> tuple[Recipe, Namespace]:
    parser = RecipeParser(program="lsgd.doctor.job_check", about=__doc__ or "")
    for name in ("hosts", "exclude"):
        parser.add_argument(f"--{name}", default="", help=f"the launcher's own --{name}")
    return parser.parse(argv)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
