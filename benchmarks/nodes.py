"""Jobs over several nodes, which are network namespaces of this machine.

The reports are Markdown, for a README as for a terminal.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path

import torch

from benchmarks import node_sums
from benchmarks.command import as_command
from benchmarks.node_daemons import start_slurm
from benchmarks.virtual_nodes import MAXIMUM, NodeProcess, VirtualCluster, run_isolated
from lsgd.bench import results
from lsgd.bench.job import parse_numbers
from lsgd.bench.setting import Result, environment_facts, machine_lines
from lsgd.errors import UsageError
from lsgd.job.command import Parser, run_command
from lsgd.plan.allreduce import NetworkLink, gloo_ring, ring
from lsgd.tables import markdown_table

ABOUT = f"""\
Do all-reduces over several nodes take as long as lsgd plan says?

The nodes are network namespaces of this machine with a link each to one switch, whose bandwidth and
latency are set. A process on each node sums tensors: a fork of this command, or one that srun of a
Slurm over the nodes starts, over torch.distributed; or one that mpirun or horovodrun starts, over
Horovod. The plan's figure is that of gloo's ring (lsgd.plan.allreduce), or of a ring without its
announcements over MPI, with the bandwidth of the slowest link, and the latency that a message over
it was measured to have; for Horovod, the latency that was set. Root is needed; nothing of it stays
on this machine, however the command ends. There are 2 to {MAXIMUM} nodes.

  python -m benchmarks.nodes
  … --nodes 2,8 --mbits 100 --over mpirun --bytes 1000000
  … --latency 5 --slow-link 0.1    # milliseconds of a message; the share that the last node has
"""

PORT = 29500
FAST = 10_000
"""The Mbit/s of a link that does not limit a job here."""
LAUNCHERS = ("fork", "slurm", "mpirun", "horovodrun")


def nodes(argv: Sequence[str]) -> None:
    """Measure the sums of each cluster, print the report and save it in --out."""
    line = Parser("benchmarks.nodes", ABOUT)
    line.add_argument("--nodes", default="2,4,8", help="nodes of a cluster (2,4,8)")
    line.add_argument("--mbits", default="20,50,100", help="Mbit/s of a link (20,50,100)")
    line.add_argument("--bytes", default="1000000,10000000", help="bytes of a tensor")
    line.add_argument("--over", default="fork", help=f"launchers: {','.join(LAUNCHERS)}")
    line.add_argument("--latency", type=float, default=0.0, help="ms that a message takes (0)")
    line.add_argument(
        "--slow-link", type=float, default=1.0, help="share of --mbits that the last node has (1)"
    )
    results.add_options(line, "nodes", rounds=5, limit=300)
    options = line.parse_args(argv)
    counts = parse_numbers("--nodes", options.nodes, least=2)
    parse_numbers("--mbits", options.mbits, least=1)
    parse_numbers("--bytes", options.bytes, least=4)
    launchers = options.over.split(",")
    if max(counts) > MAXIMUM:
        raise UsageError(f"--nodes {max(counts)} is too many; write at most {MAXIMUM}")
    if unknown := [each for each in launchers if each not in LAUNCHERS]:
        raise UsageError(f"--over {unknown[0]} is not possible; write {', '.join(LAUNCHERS)}")
    with results.open_record("nodes", line.prog, argv, options.out) as record:

        def measure() -> None:
            result: Result = environment_facts(torch.device("cpu"), "horovod")
            result |= {"latency": options.latency / 1000, "slow_link": options.slow_link}
            result["measured"] = []
            for launcher, count in product(launchers, counts):
                print(f"{launcher}, {count} nodes", flush=True)
                result["measured"] += measure_sums(launcher, count, options)
                record.write_result(result)
            record.write_report(result, report(result))

        run_isolated(line.prog, lambda: run_command(measure))


def measure_sums(launcher: str, count: int, options: argparse.Namespace) -> list[Result]:
    """Start a job of benchmarks.node_sums over new nodes and return its result for each speed."""
    cluster = VirtualCluster(count, FAST, options.latency / 1000)
    file, log = cluster.folder / "sums.json", cluster.folder / "log"
    library = "horovod" if launcher in ("mpirun", "horovodrun") else "torch"
    words = [library, str(file), str(options.rounds), options.mbits, options.bytes]
    words.append(str(options.slow_link))
    deadline = time.monotonic() + options.limit
    try:
        jobs = start_job(cluster, launcher, words, log)
        while time.monotonic() < deadline and any(job.poll() is None for job in jobs):
            time.sleep(0.1)
        if not file.exists():
            raise UsageError(f"{launcher} on {count} nodes failed:\n{log.read_text()[-3000:]}")
        return [{"launcher": launcher} | each for each in json.loads(file.read_text())]
    finally:
        cluster.close()


def start_job(
    cluster: VirtualCluster, launcher: str, words: Sequence[str], log: Path
) -> list[NodeProcess]:
    """Start benchmarks.node_sums on each node by a launcher, and return the launcher's processes.

    With `fork` they are forks of this process, with the variables that torchrun would set.
    """
    names = cluster.names
    count, hosts = str(len(names)), ",".join(f"{name}:1" for name in names)
    environment = {"OMP_NUM_THREADS": "1"}
    if launcher == "fork":
        return [
            cluster.fork(
                name,
                lambda: node_sums.main(words),
                log,
                environment
                | {"RANK": str(rank), "WORLD_SIZE": count, "LOCAL_RANK": "0"}
                | {"LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": names[0], "MASTER_PORT": str(PORT)},
            )
            for rank, name in enumerate(names)
        ]
    python = [sys.executable, "-m", "benchmarks.node_sums", *words]
    if launcher == "slurm":
        environment |= start_slurm(cluster)
        command = ["srun", "--nodes", count, "--ntasks", count, "--cpu-bind=none"]
    elif launcher == "mpirun":
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        command = ["mpirun", "--bind-to", "none", "-np", count, "-H", hosts, "-x", "PYTHONPATH"]
    else:
        command = [sys.executable, "-m", "horovod.runner.launch", "--gloo", "--disable-cache"]
        command += ["-np", count, "-H", hosts]
    return [cluster.start(names[0], [*command, *python], log, environment)]


def planned_seconds(library: str, size: int, nodes: int, mbits: float, latency: float) -> float:
    """Return the seconds of an all-reduce by the plan's model of the library's ring.

    `library` is named as by `Comm.library`, such as `torch.distributed (gloo)`.
    """
    modelled = gloo_ring if "gloo" in library.lower() else ring
    return modelled(size, nodes, NetworkLink(latency, mbits * 1e6 / 8)).seconds


def report(result: Result) -> str:
    """Return the benchmark's result as a report in Markdown."""
    rows = []
    for job in result["measured"]:
        latency = job.get("latency", result["latency"])
        carried = job.get("bits_per_second", 0.0) / 1e6
        for size, seconds in job["seconds"].items():
            measured = statistics.median(seconds)
            of_job = job["library"], int(size), job["processes"]
            ring_of = partial(planned_seconds, *of_job, latency=latency)
            by_set, carried_ratio = ring_of(mbits=job["mbits"] * result["slow_link"]), ""
            if carried and result["slow_link"] == 1:
                carried_ratio = f"{measured / ring_of(mbits=carried):.2f}"
            rows.append(
                [
                    job["launcher"],
                    str(job["processes"]),
                    str(job["mbits"]),
                    f"{int(size):,}",
                    f"{1000 * measured:.0f}",
                    f"{1000 * by_set:.0f}",
                    f"{measured / by_set:.2f}",
                    f"{min(seconds) / by_set:.2f} to {max(seconds) / by_set:.2f}",
                    carried_ratio,
                ]
            )
    head = ["job", "nodes", "Mbit/s", "bytes", "ms", "planned ms", "ratio", "of all rounds"]
    head += ["ratio with what 4 MB got"]
    return "\n".join([*machine_lines(result), "", markdown_table(head, rows), "", *_links(result)])


def _links(result: Result) -> list[str]:
    """Return a line for each job that measured its link."""
    return [
        f"- {job['processes']} nodes at {job['mbits']} Mbit/s: a message takes "
        f"{1e6 * job['latency']:.0f} µs, and 4 MB go at {job['bits_per_second'] / 1e6:.0f} Mbit/s"
        for job in result["measured"]
        if "latency" in job
    ]


main = as_command(nodes)

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
