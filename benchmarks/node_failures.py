"""Faults of a cluster, and what the user of a job over several nodes reads.

The report is Markdown, for a README as for a terminal.
"""

import io
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch.distributed.run import main as run_torchrun

from benchmarks.command import as_command
from benchmarks.many_processes import write_images
from benchmarks.virtual_nodes import NodeProcess, VirtualCluster, run_isolated, set_bandwidth
from lsgd.bench import results
from lsgd.bench.setting import Result, environment_facts, machine_lines
from lsgd.errors import UsageError
from lsgd.job.command import Parser, run_command
from lsgd.launch.__main__ import main as launch
from lsgd.tables import markdown_table
from lsgd.train import main as train

ABOUT = """\
What does the user of a job over several nodes read if a link, node, disk or port fails?

The nodes are network namespaces of this machine, as those of benchmarks.nodes. Each fault happens
to node1 of three nodes, on which `lsgd launch torchrun` trains digits, before the start or once 20
steps are done. The report has what each node prints, its exit code, and the seconds from the fault,
or from the start, to its end. comm.timeout and comm.join_timeout are shortened from their 600 and
120 seconds to those of --timeout.

  python -m benchmarks.node_failures
  … --only link-cut,port-blocked
"""

PORT = 29500
NODES = ("node0", "node1", "node2")
VICTIM = "node1"
STEPS = 20
"""The steps after which faults happen to a running job."""
OVERRIDES = (
    "digits",
    "epochs=30000",
    "schedule.milestones=[10000,20000,27000]",
    "log_steps=5",
    "hardware=none",
)


@dataclass(frozen=True)
class RunningJob:
    """A training job over the nodes of a cluster."""

    cluster: VirtualCluster
    run_dir: Path
    launchers: dict[str, NodeProcess]

    def rows(self) -> list[str]:
        """Return the rows that the run has written so far."""
        file = self.run_dir / "metrics.jsonl"
        return file.read_text().splitlines() if file.exists() else []

    def training_processes(self, name: str) -> list[int]:
        """Return the pids of a node's training processes, without its launcher."""
        return [pid for pid in self.cluster.processes(name) if is_training(pid)]


def is_training(pid: int) -> bool:
    """Return whether a process is one of training, and no launcher."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return b"lsgd.train" in words and b"--nnodes" not in words
    return False


Prepare = Callable[[VirtualCluster, str], str]
"""Prepares a node, by its name; returns a shell's commands for the mount namespace of its job."""


@dataclass(frozen=True)
class Fault:
    """A fault of a node: what happens, and when."""

    what: str
    """The fault, for the report."""
    before: Prepare | None = None
    """Makes the fault before the start."""
    during: Callable[[RunningJob], None] | None = None
    """Makes the fault while the job trains."""
    overrides: tuple[str, ...] = ()
    absent: bool = False
    """Whether node1's job is not started at all."""
    direct: bool = False
    """Whether processes are started without torchrun, with its variables, as by Slurm or pods."""


CONNECTS = ("match", "ip", "protocol", "6", "0xff", "match", "u8", "0x02", "0x12", "at", "33")
"""The first packet of a TCP connection, with SYN and without ACK, in the words of tc's u32."""


def _hide(folder: str) -> Prepare:
    """Return a fault that hides a folder of all nodes from node1."""

    def hide(cluster: VirtualCluster, node: str) -> str:
        return f"mount -t tmpfs lsgd {cluster.folder}/{folder}" if node == VICTIM else ""

    return hide


def _name_loopback(cluster: VirtualCluster, node: str) -> str:
    hosts = cluster.write_hosts(f"hosts-{node}", {node: "127.0.1.1"})
    return f"mount --bind {hosts} /etc/hosts"


def _block(blocked: str, *port: str) -> Prepare:
    """Return a fault that drops new connections to a port, or to a range by its mask, of a node."""

    def block(cluster: VirtualCluster, node: str) -> str:
        if node == blocked:
            cluster.block_ports(node, (*CONNECTS, "match", "ip", "dport", *port))
        return ""

    return block


def _kill(job: RunningJob) -> None:
    for pid in job.training_processes(VICTIM):
        os.kill(pid, signal.SIGKILL)


def _stop(job: RunningJob) -> None:
    for pid in job.training_processes(VICTIM):
        os.kill(pid, signal.SIGSTOP)


def _lose(job: RunningJob) -> None:
    job.cluster.cut(VICTIM)
    for pid in job.cluster.processes(VICTIM):
        os.kill(pid, signal.SIGKILL)


FAULTS = {
    "process-killed": Fault(
        "the training process of node1 is killed, as by the kernel out of memory", during=_kill
    ),
    "process-stopped": Fault("the training process of node1 hangs", during=_stop),
    "link-cut": Fault(
        "the link of node1 is cut, and its processes go on",
        during=lambda job: job.cluster.cut(VICTIM),
    ),
    "node-lost": Fault("node1 loses power: link and processes at once", during=_lose),
    "slow-link": Fault(
        "the link of node1 has 1 Mbit/s instead of 1000",
        during=lambda job: set_bandwidth(VICTIM, 1),
    ),
    "node-absent": Fault("the command was not started on node1", absent=True),
    "no-data": Fault(
        "the data are not mounted on node1",
        before=_hide("images"),
        direct=True,
        overrides=(
            *("data=folder", "data.root={folder}/images", "data.image_size=16", "worker_batch=2"),
            *("inputs=torchvision", "inputs.decoders=0"),
        ),
    ),
    "no-run-folder": Fault(
        "the file system of the run folder is not mounted on node1", before=_hide("runs")
    ),
    "port-blocked": Fault(
        f"a firewall of node0 lets no connection to port {PORT} come in",
        before=_block("node0", str(PORT), "0xffff"),
    ),
    "ports-blocked": Fault(
        "a firewall of each node lets no connection to ports from 32768 on come in",
        before=lambda cluster, node: _block(node, "32768", "0x8000")(cluster, node),
    ),
    "names-of-loopback": Fault(
        "on each node its own name resolves to 127.0.1.1, as Debian writes it",
        before=_name_loopback,
    ),
}
# The launcher waits for the others itself, so some faults are seen by lsgd under others only.
FAULTS |= {
    f"{name}-direct": replace(
        FAULTS[name], what=f"{FAULTS[name].what}; without torchrun", direct=True
    )
    for name in ("node-absent", "port-blocked", "ports-blocked", "names-of-loopback")
}


def node_failures(argv: Sequence[str]) -> None:
    """Make each fault, print the report and save it in --out."""
    line = Parser("benchmarks.node_failures", ABOUT)
    line.add_argument("--only", default=",".join(FAULTS), help=f"some of {', '.join(FAULTS)}")
    line.add_argument("--timeout", type=int, default=40, help="comm.timeout in seconds (40)")
    line.add_argument("--limit", type=int, default=240, help="seconds of a fault's job (240)")
    results.add_out(line, "node_failures")
    options = line.parse_args(argv)
    chosen = options.only.split(",")
    if unknown := [each for each in chosen if each not in FAULTS]:
        raise UsageError(f"--only {unknown[0]} is not a fault; write some of {', '.join(FAULTS)}")
    with results.open_record("node_failures", line.prog, argv, options.out) as record:

        def make() -> None:
            result: Result = environment_facts(torch.device("cpu")) | {"faults": {}}
            result["timeout"] = options.timeout
            for name in chosen:
                print(f"{name}: {FAULTS[name].what}", flush=True)
                result["faults"][name] = make_fault(FAULTS[name], options.timeout, options.limit)
                print(_rows(name, result["faults"][name]), flush=True)
                record.write_result(result)
            record.write_report(result, report(result))

        run_isolated(line.prog, lambda: run_command(make))


def make_fault(fault: Fault, timeout: int, limit: int) -> Result:
    """Train over new nodes with this fault, and return what each node printed and when it ended."""
    cluster = VirtualCluster(len(NODES), 1000)
    folder = cluster.folder
    (folder / "runs").mkdir()
    write_images(folder / "images", 64)
    try:
        job, begin = start_job(cluster, fault, folder, timeout)
        before = job.rows()[-1:]
        ends = _wait(job, begin, limit)
        return {
            "what": fault.what,
            "row before": before,
            "row after": job.rows()[-1:],
            "nodes": {
                node: {"ended": ends.get(node), "log": (folder / f"{node}.log").read_text()}
                for node in job.launchers
            },
        }
    finally:
        cluster.close()


def start_job(
    cluster: VirtualCluster, fault: Fault, folder: Path, timeout: int
) -> tuple[RunningJob, float]:
    """Start a job with this fault; return it and the time of the fault, or of the start."""
    overrides = [word.format(folder=folder) for word in (*OVERRIDES, *fault.overrides)]
    words = [
        *(*overrides, f"run_dir={folder}/runs/a"),
        *(f"comm.timeout={timeout}", f"comm.join_timeout={timeout}"),
    ]
    launchers = {}
    for rank, node in enumerate(NODES):
        first = fault.before(cluster, node) if fault.before else ""
        if fault.absent and node == VICTIM:
            continue
        environment = {"MASTER_ADDR": NODES[0], "MASTER_PORT": str(PORT), "OMP_NUM_THREADS": "1"}
        job: Callable[[], object] = partial(_launch, words)
        if fault.direct:
            ranks = (str(rank), str(len(NODES)), "0", "1")
            names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
            environment |= dict(zip(names, ranks, strict=True))
            job = partial(train, [f"recipe={words[0]}", *words[1:]])
        log = folder / f"{node}.log"
        launchers[node] = cluster.fork(node, job, log, environment, first=first)
    running = RunningJob(cluster, folder / "runs" / "a", launchers)
    begin = time.monotonic()
    if fault.during:
        while len(running.rows()) < STEPS / 5:
            if time.monotonic() - begin > 200 or any(map(_ended, running.launchers.values())):
                texts = [(folder / f"{node}.log").read_text() for node in running.launchers]
                raise UsageError("the job does not train:\n" + "\n".join(texts))
            time.sleep(0.1)
        fault.during(running)
        begin = time.monotonic()
    return running, begin


def _launch(words: Sequence[str]) -> None:
    """Run the command of `lsgd launch torchrun` in this process, which has imported torch."""
    words = [*words, "--nodes", str(len(NODES)), "--gpus", "1"]
    script = io.StringIO()
    with redirect_stdout(script):
        if code := launch(["torchrun", *words, "--print"]):
            raise SystemExit(code)
    _, *assigned = shlex.split(script.getvalue())
    program = next(i for i, word in enumerate(assigned) if "=" not in word)
    os.environ.update(dict(word.split("=", 1) for word in assigned[:program]))
    sys.argv = assigned[program:]
    run_torchrun(sys.argv[1:])


def _ended(process: NodeProcess) -> bool:
    return process.poll() is not None


def _wait(job: RunningJob, begin: float, limit: int) -> dict[str, tuple[int, float]]:
    """Wait until the job has ended on all nodes, or for `limit` seconds.

    Returns the exit code of each node that has ended and the seconds after `begin`.
    """
    ends: dict[str, tuple[int, float]] = {}
    while time.monotonic() - begin < limit and len(ends) < len(job.launchers):
        for node, process in job.launchers.items():
            code = process.poll()
            if code is not None and node not in ends:
                ends[node] = (code, time.monotonic() - begin)
        time.sleep(0.1)
    return ends


def sentences(log: str) -> list[str]:
    """Return the sentences of lsgd in a log, each once, without the launcher's prefixes."""
    found = re.findall(
        r"^(?:\[[^\]]*\]:)?(?:lsgd: |warning: )(.*)|(Signal .* received by PID \d+)"
        r"|^torch\.distributed\.elastic\.\S+\.(\w+Error: .*)",
        log,
        re.MULTILINE,
    )
    return list(dict.fromkeys("".join(each) for each in found))


def _rows(name: str, found: Result) -> str:
    lines = []
    for node, each in found["nodes"].items():
        ended = "goes on" if each["ended"] is None else "exit {}, {:.0f} s".format(*each["ended"])
        lines += [f"  {node}: {ended}", *(f"    {text}" for text in sentences(each["log"]))]
    return "\n".join(lines)


def report(result: Result) -> str:
    """Return the faults as a report in Markdown."""
    rows = []
    for found in result["faults"].values():
        for node, each in found["nodes"].items():
            code, seconds = each["ended"] or ("goes on", None)
            rows.append(
                [
                    found["what"] if node == NODES[0] else "",
                    node,
                    str(code),
                    "" if seconds is None else f"{seconds:.0f}",
                    "; ".join(f"“{text}”" for text in sentences(each["log"])),
                ]
            )
    head = ["fault", "node", "exit code", "seconds", "what lsgd prints there"]
    return "\n".join(
        [
            *machine_lines(result),
            "",
            f"comm.timeout and comm.join_timeout are {result['timeout']} s.",
            "",
            markdown_table(head, rows),
        ]
    )


main = as_command(node_failures)

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
