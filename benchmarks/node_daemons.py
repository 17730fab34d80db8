"""A real Slurm on the nodes of a virtual cluster.

Its daemons are processes of the nodes, so they end with the cluster.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.virtual_nodes import VirtualCluster
from lsgd.errors import UsageError

LIMIT = 300.0
"""The seconds within which all nodes have to be ready."""

SLURM_CONF = """\
ClusterName=lsgd
SlurmctldHost={nodes[0]}
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
NodeName={names} CPUs=2
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def start_slurm(cluster: VirtualCluster) -> dict[str, str]:
    """Start Slurm, whose controller is on the first node; return the variables of its commands.

    Returns when all nodes are idle.
    """
    folder, nodes = cluster.folder / "slurm", cluster.names
    for name in ("state", *nodes):
        (folder / name).mkdir(parents=True)
    (folder / "munge.key").write_bytes(secrets.token_bytes(1024))
    (folder / "munge.key").chmod(0o600)
    (folder / "slurm.conf").write_text(
        SLURM_CONF.format(folder=folder, nodes=nodes, names=",".join(nodes))
    )
    environment = {"SLURM_CONF": str(folder / "slurm.conf")}
    log = folder / "daemons.log"
    files = (f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "seed", "log"))
    munged = ["munged", "--foreground", "--force", *files, f"--socket={folder}/munge.socket"]
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


def _wait_until(is_ready: Callable[[], bool], logs: Sequence[Path]) -> None:
    """Wait until daemons are ready; raise UsageError with the ends of their logs at the limit."""
    deadline = time.monotonic() + LIMIT
    while not is_ready():
        if time.monotonic() > deadline:
            texts = "\n".join(log.read_text()[-2000:] for log in logs if log.exists())
            raise UsageError(f"the daemons are not ready after {LIMIT:g} s:\n{texts}")
        time.sleep(0.5)
