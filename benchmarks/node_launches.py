"""Training jobs that each launcher starts over several nodes, which are network namespaces.

The report is Markdown, for a README as for a terminal.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import torch

from benchmarks.command import as_command
from benchmarks.node_daemons import start_ray, start_slurm
from benchmarks.node_failures import is_training
from benchmarks.nodes import planned_seconds
from benchmarks.virtual_nodes import (
    MAXIMUM,
    NodeProcess,
    VirtualCluster,
    run,
    run_isolated,
    set_bandwidth,
)
from lsgd.bench import results
from lsgd.bench.setting import Result, environment_facts, machine_lines
from lsgd.compare import compare_metrics
from lsgd.errors import UsageError
from lsgd.job.command import Parser, integer_from, positive_number, run_command
from lsgd.plan.gradients import gradient_buckets
from lsgd.run.read import Run, read_run
from lsgd.tables import markdown_table

ABOUT = f"""\
Do jobs over several nodes make the same run as one process, whoever launches them?

On each launcher's nodes, network namespaces of this machine as those of benchmarks.nodes, its
launch script trains digits in float64, a process on each node: torchrun, mpirun, horovodrun, and a
Slurm and a Ray with a daemon on each node. The rows of each run are compared with those of one
process, and the time that a step waits for the others with the plan's for an all-reduce. Root is
needed. There are 2 to {MAXIMUM} nodes.

  python -m benchmarks.node_launches
  … --over slurm,mpirun --nodes 3 --mbits 20
"""

OVERRIDES = (
    *("precision=float64", "epochs=1", "schedule.milestones=[]", "schedule.warmup_epochs=1"),
    *("log_steps=1", "hardware=none", "device=cpu"),
)
SCRIPTS = Path(__file__).resolve().parents[1] / "launch"
LAUNCHERS = ("torchrun", "slurm", "ray", "mpirun", "horovodrun")
TOLERANCE = 1e-10
"""The relative difference between rows that the order of sums may make in float64."""


def node_launches(argv: Sequence[str]) -> None:
    """Train by each launcher, print the report and save it in --out."""
    line = Parser("benchmarks.node_launches", ABOUT)
    line.add_argument("--over", default=",".join(LAUNCHERS), help=f"some of {', '.join(LAUNCHERS)}")
    line.add_argument("--nodes", type=integer_from(2), default=4, help="nodes of a cluster (4)")
    line.add_argument("--mbits", type=positive_number, default=5.0, help="Mbit/s of a link (5)")
    line.add_argument("--latency", type=float, default=0.0, help="ms that a message takes (0)")
    line.add_argument(
        "--slow-link", type=float, default=1.0, help="share of --mbits that the last node has (1)"
    )
    line.add_argument("--limit", type=int, default=600, help="seconds of a job (600)")
    results.add_out(line, "node_launches")
    options = line.parse_args(argv)
    launchers = options.over.split(",")
    if options.nodes > MAXIMUM:
        raise UsageError(f"--nodes {options.nodes} is too many; write at most {MAXIMUM}")
    if unknown := [each for each in launchers if each not in LAUNCHERS]:
        raise UsageError(f"--over {unknown[0]} is not possible; write {', '.join(LAUNCHERS)}")
    with (
        results.open_record("node_launches", line.prog, argv, options.out) as record,
        tempfile.TemporaryDirectory() as name,
    ):

        def measure() -> None:
            result: Result = environment_facts(torch.device("cpu"), "horovod")
            result["versions"] |= launcher_versions()
            result |= {"nodes": options.nodes, "mbits": options.mbits, "runs": {}}
            result |= {"latency": options.latency / 1000, "slow_link": options.slow_link}
            for launcher in ("one process", *launchers):
                print(launcher, flush=True)
                cluster = VirtualCluster(options.nodes, options.mbits, result["latency"])
                try:
                    set_bandwidth(cluster.names[-1], options.mbits * options.slow_link)
                    found = train_over(cluster, launcher, Path(name), options.limit)
                finally:
                    cluster.close()
                result["runs"][launcher] = found
                record.write_result(result)
            record.write_report(result, report(result))

        run_isolated(line.prog, lambda: run_command(measure))


def train_over(cluster: VirtualCluster, launcher: str, folder: Path, limit: float) -> Result:
    """Train over the nodes of a cluster by a launcher; return what its run has, and where it ran.

    Raises UsageError with the ends of its logs if it fails, or takes longer than `limit` seconds.
    """
    name = launcher.replace(" ", "-")
    run_dir, log = folder / name, folder / f"{name}.log"
    jobs = start_launcher(cluster, launcher, run_dir, log)
    seen: set[str] = set()
    deadline = time.monotonic() + limit
    while None in (codes := [job.poll() for job in jobs]) and time.monotonic() < deadline:
        seen |= {each for each in cluster.names if any(map(is_training, cluster.processes(each)))}
        time.sleep(0.2)
    if any(codes) or None in codes:
        logs = [log, *run_dir.glob("logs/*.log")]
        texts = "\n".join(each.read_text()[-3000:] for each in logs if each.exists())
        raise UsageError(f"{launcher} has not trained (exit codes {codes}):\n{texts}")
    return describe_run(read_run(run_dir), read_run(folder / "one-process")) | {"on": sorted(seen)}


def start_launcher(
    cluster: VirtualCluster, launcher: str, run_dir: Path, log: Path
) -> list[NodeProcess]:
    """Start a launcher's script on the nodes where its user would, and return the processes."""
    first, count = cluster.names[0], str(len(cluster.names))
    hosts = ",".join(f"{name}:1" for name in cluster.names)
    words = [*OVERRIDES, f"run_dir={run_dir}"]
    # horovodrun keeps its checks of hosts in the home folder.
    environment = {"OMP_NUM_THREADS": "1", "PYTHON": sys.executable, "HOME": str(cluster.folder)}
    script = [str(SCRIPTS / f"{launcher}.sh"), "digits", *words]
    if launcher == "one process":
        command = [sys.executable, "-m", "lsgd.train", "recipe=digits", *words]
        return [cluster.start(first, command, log, environment)]
    if launcher == "torchrun":
        environment |= {"MASTER_ADDR": first}
        command = [*script, "--nodes", count, "--gpus", "1"]
        return [cluster.start(name, command, log, environment) for name in cluster.names]
    if launcher == "slurm":
        environment |= start_slurm(cluster) | {"SBATCH_WAIT": "1"}
        script += ["--nodes", count, "--np", count]
    elif launcher == "ray":
        environment |= start_ray(cluster)
        script += ["--np", count]
    else:
        # Open MPI waits by polling, and there are more nodes than cores.
        environment |= {"OMPI_MCA_mpi_yield_when_idle": "1"}
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        script += ["--np", count, "--hosts", hosts]
    return [cluster.start(first, script, log, environment)]


def describe_run(made: Run, alone: Run) -> Result:
    """Return how a run compares with that of one process, and the seconds of its steps."""
    compared = compare_metrics((alone, made), TOLERANCE)
    epochs = [made.epochs[number] for number in sorted(made.epochs)]
    return {
        "machine": made.start["machine"],
        "fingerprint": made.recipe.fingerprint,
        "equal rows": compared.rows,
        "difference": compared.max_difference,
        "mismatch": str(compared.first_mismatch or ""),
        "final metric": made.final_metric,
        "bytes": sum(each.size for each in gradient_buckets(made.recipe, fused=True)),
        "step seconds": [row["step_seconds"] for row in epochs],
        "wait seconds": [
            row["step_seconds"] * row.get("communication_wait", 0.0) for row in epochs
        ],
    }


def launcher_versions() -> dict[str, str]:
    """Return the versions of the launchers that have a program of their own."""
    found = {"Slurm": run("slurmd", "-V"), "Open MPI": run("mpirun", "--version")}
    programs = {name: text.splitlines()[0].split()[-1] for name, text in found.items()}
    return programs | {"Ray": version("ray")}


def report(result: Result) -> str:
    """Return the runs as a report in Markdown."""
    rows = []
    for launcher, found in result["runs"].items():
        steps, waits = (statistics.median(found[f"{what} seconds"]) for what in ("step", "wait"))
        nodes = 1 if launcher == "one process" else result["nodes"]
        slowest = result["mbits"] * result["slow_link"]
        of_run = found["machine"], found["bytes"], nodes
        planned = planned_seconds(*of_run, slowest, result["latency"])
        ends = f", then {found['mismatch']}" if found["mismatch"] else ""
        rows.append(
            [
                launcher,
                ", ".join(found["on"]),
                found["machine"].partition(",")[0],
                found["fingerprint"][:12],
                f"{found['equal rows']}{ends}",
                f"{found['difference']:.1g}",
                f"{found['final metric']:.2f} %",
                f"{1000 * steps:.0f}",
                f"{1000 * waits:.0f}",
                f"{1000 * planned:.0f}" if nodes > 1 else "",
            ]
        )
    head = ["job", "on", "processes", "fingerprint", "equal rows", "largest difference"]
    head += ["final metric", "ms a step", "of these waiting", "all-reduce planned"]
    return "\n".join([*machine_lines(result), "", markdown_table(head, rows)])


main = as_command(node_launches)

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
