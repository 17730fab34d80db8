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
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.run import main as run_torchrun

from benchmarks.many_processes import write_images
from benchmarks.virtual_nodes import (
    NodeProcess,
    VirtualCluster,
    run_isolated,
    set_bandwidth,
)
from lsgd.bench import results
from lsgd.bench.setting import Result, environment_facts, machine_lines
from lsgd.errors import UsageError
from lsgd.job.command import Parser, run_command
from lsgd.launch.__main__ import main as launch
from lsgd.tables import markdown_table

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
        return [pid for pid in self.cluster.processes(name) if _is_training(pid)]


def _is_training(pid: int) -> bool:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return b"lsgd.train" in words and b"--nnodes" not in words
    return False


@dataclass(frozen=True)
class Fault:
    """A fault of a node: what happens, and when."""

    what: str
    """The fault, for the report."""
    before: Callable[[VirtualCluster, Path], str] | None = None
    """Makes the fault before the start, and returns commands of a shell for the node's job."""
    during: Callable[[RunningJob], None] | None = None
    """Makes the fault while the job trains."""
    overrides: tuple[str, ...] = ()
    absent: bool = False
    """Whether the node's job is not started at all."""


CONNECTS = ("match", "ip", "protocol", "6", "0xff", "match", "u8", "0x02", "0x12", "at", "33")
"""The first packet of a TCP connection, with SYN and without ACK, in the words of tc's u32."""


def _hide(folder: str) -> str:
    return f"mount -t tmpfs lsgd {folder}"


def _loopback_name(cluster: VirtualCluster, folder: Path) -> str:
    hosts = cluster.write_hosts("hosts-of-debian", {VICTIM: "127.0.1.1"})
    return f"mount --bind {hosts} /etc/hosts"


def _block(*match: str) -> Callable[[VirtualCluster, Path], str]:
    def block(cluster: VirtualCluster, folder: Path) -> str:
        cluster.block_ports(VICTIM, match)
        return ":"

    return block


def _block_rendezvous(cluster: VirtualCluster, folder: Path) -> str:
    cluster.block_ports("node0", (*CONNECTS, "match", "ip", "dport", str(PORT), "0xffff"))
    return ":"


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
        before=lambda cluster, folder: _hide(f"{folder}/images"),
        overrides=(
            *("data=folder", "data.root={folder}/images", "data.image_size=16", "worker_batch=2"),
            *("inputs=torchvision", "inputs.decoders=0"),
        ),
    ),
    "no-run-folder": Fault(
        "the file system of the run folder is not mounted on node1",
        before=lambda cluster, folder: _hide(f"{folder}/runs"),
    ),
    "port-blocked": Fault(
        f"a firewall of node0 drops what comes to port {PORT}", before=_block_rendezvous
    ),
    "ports-blocked": Fault(
        "a firewall of node1 lets no connection to ports from 32768 on come in",
        before=_block(*CONNECTS, "match", "ip", "dport", "32768", "0x8000"),
    ),
    "name-of-loopback": Fault(
        "on node1 its own name resolves to 127.0.1.1, as Debian writes it", before=_loopback_name
    ),
}


def main(argv: Sequence[str]) -> int:
    """Run the command line and return the exit code."""
    return run_command(lambda: node_failures(argv))


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
        *(*overrides, f"run_dir={folder}/runs/a", "--nodes", str(len(NODES)), "--gpus", "1"),
        *(f"comm.timeout={timeout}", f"comm.join_timeout={timeout}"),
    ]
    first = fault.before(cluster, folder) if fault.before else ""
    job = RunningJob(
        cluster,
        folder / "runs" / "a",
        {
            node: cluster.fork(
                node,
                lambda: _launch(words),
                folder / f"{node}.log",
                {"MASTER_ADDR": NODES[0], "OMP_NUM_THREADS": "1"},
                first=first if node == VICTIM else "",
            )
            for node in NODES
            if not (fault.absent and node == VICTIM)
        },
    )
    begin = time.monotonic()
    if fault.during:
        while len(job.rows()) < STEPS / 5:
            if time.monotonic() - begin > 200 or any(map(_ended, job.launchers.values())):
                texts = [(folder / f"{node}.log").read_text() for node in job.launchers]
                raise UsageError("the job does not train:\n" + "\n".join(texts))
            time.sleep(0.1)
        fault.during(job)
        begin = time.monotonic()
    return job, begin


def _launch(words: Sequence[str]) -> None:
    """Run the command of `lsgd launch torchrun` in this process, which has imported torch."""
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
        r"^(?:\[[^\]]*\]:)?(?:lsgd: |warning: )(.*)|(Signal .* received by PID \d+)",
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


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
