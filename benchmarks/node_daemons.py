"""A real Slurm or Ray on the nodes of a virtual cluster.

Their daemons are processes of the nodes, so they end with the cluster.
"""

import secrets
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.virtual_nodes import NodeProcess, VirtualCluster
from lsgd.errors import UsageError

LIMIT = 300.0
"""The seconds within which all nodes have to be ready."""

RAY_PORT, RAY_STORE = 6379, 10**8
"""The port of Ray's head, and the bytes of the object store on each node."""
RAY_ATTEMPTS = 4
"""The number of times that Ray is started on a node until it starts in time."""

SLURM_CONF = """\
ClusterName=lsgd
SlurmctldHost={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2,batch_sched_delay=0
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def configure_slurm(
    folder: Path, controller: str, nodes: Sequence[str], lines: Sequence[str]
) -> list[str]:
    """Write the configuration of a Slurm cluster into a folder; return the command of its munged.

    `lines` have the nodes, and further options.
    """
    for name in ("state", *nodes):
        (folder / name).mkdir(parents=True)
    (folder / "munge.key").write_bytes(secrets.token_bytes(1024))
    (folder / "munge.key").chmod(0o600)
    common = SLURM_CONF.format(folder=folder, controller=controller)
    (folder / "slurm.conf").write_text(common + "".join(f"{line}\n" for line in lines))
    files = (f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "seed", "log"))
    return ["munged", "--foreground", "--force", *files, f"--socket={folder}/munge.socket"]


def start_slurm(cluster: VirtualCluster) -> dict[str, str]:
    """Start Slurm, whose controller is on the first node; return the variables of its commands.

    Returns when all nodes are idle.
    """
    folder, nodes = cluster.folder / "slurm", cluster.names
    munged = configure_slurm(folder, nodes[0], nodes, [f"NodeName={','.join(nodes)} CPUs=2"])
    environment = {"SLURM_CONF": str(folder / "slurm.conf")}
    log = folder / "daemons.log"
    cluster.start(nodes[0], munged, log, environment)
    cluster.start(nodes[0], ["slurmctld", "-D"], log, environment)
    for name in nodes:
        cluster.start(name, ["slurmd", "-D", "-N", name], log, environment)
    query = ["env", *(f"{name}={value}" for name, value in environment.items())]
    query += ["sinfo", "--noheader", "--Node", "--format=%t"]

    def is_idle() -> bool:
        answer = cluster.query(nodes[0], query)
        return answer.split() == ["idle"] * len(nodes)

    _wait_until(is_idle, [log, *folder.glob("*.log")])
    return environment


def start_ray(cluster: VirtualCluster) -> dict[str, str]:
    """Start Ray, whose head is on the first node; return the variables of a job that joins it.

    Each node has one CPU, so that each runs one process. Returns when all nodes have joined.
    """
    ray, folder = str(Path(sys.executable).with_name("ray")), cluster.folder / "ray"
    first, address = cluster.names[0], f"{cluster.addresses[cluster.names[0]]}:{RAY_PORT}"
    environment = {
        **{"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token"},
        "RAY_AUTH_TOKEN": secrets.token_hex(),
    }

    def start(name: str, *options: str) -> None:
        # Ray would ask the internet first, which these nodes cannot reach.
        command = [ray, "start", f"--node-ip-address={cluster.addresses[name]}", "--block"]
        command += ["--num-cpus=1", f"--object-store-memory={RAY_STORE}", *options]
        # On a busy machine a node may exceed the 30 s that ray/_private/node.py gives it to start.
        for attempt in range(RAY_ATTEMPTS):
            log = cluster.folder / f"ray-{name}-{attempt}.log"
            daemon = cluster.start(name, command, log, environment)

            def has_started(log: Path = log) -> bool:
                return log.exists() and "Ray runtime started" in log.read_text()

            def is_over(daemon: NodeProcess = daemon) -> bool:
                return has_started() or daemon.poll() is not None

            _wait_until(is_over, [log])
            if has_started():
                return
        raise UsageError(
            f"Ray has not started on {name} in {RAY_ATTEMPTS} attempts:\n{log.read_text()[-2000:]}"
        )

    start(
        first, "--head", f"--port={RAY_PORT}", f"--temp-dir={folder}", "--include-dashboard=false"
    )
    for name in cluster.names[1:]:
        start(name, f"--address={address}")
    return environment | {"RAY_ADDRESS": address}


def _wait_until(is_ready: Callable[[], bool], logs: Sequence[Path]) -> None:
    """Wait until daemons are ready; raise UsageError with the ends of their logs at the limit."""
    deadline = time.monotonic() + LIMIT
    while not is_ready():
        if time.monotonic() > deadline:
            texts = "\n".join(log.read_text()[-2000:] for log in logs if log.exists())
            raise UsageError(f"the daemons are not ready after {LIMIT:g} s:\n{texts}")
        time.sleep(0.5)
