"""A real Slurm cluster on this machine: munged, slurmctld and two slurmd in a temporary folder."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.node_daemons import configure_slurm

# A node's name is the address where it listens, so that processes find each other without DNS.
NODES = ("127.0.0.2", "127.0.0.3")


class SlurmCluster:
    """A running Slurm cluster, with the commands of its user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}

    def ask(self, *command: str) -> str:
        """Run a Slurm command and return its output; assert that it succeeds."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def state(self, job: str) -> dict[str, str]:
        """Return the fields of a job in `scontrol show job`, such as JobState and ExitCode."""
        words = self.ask("scontrol", "show", "job", job, "--oneliner").split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, job: str, *states: str, seconds: float = 1200) -> dict[str, str]:
        """Wait until a job is in one of these states, and return its fields."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = self.state(job)
            if found["JobState"] in states:
                return found
            time.sleep(0.2)
        raise AssertionError(f"job {job} is not {' or '.join(states)}: {found}\n{self.logs()}")

    def wait_until_idle(self) -> None:
        """Wait until the nodes are up and idle."""
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline:
            done = subprocess.run(
                ["sinfo", "--noheader", "--Node", "--format=%t"],
                env=self.environment, capture_output=True, text=True, timeout=600,
            )  # fmt: skip
            if done.stdout.split() == ["idle"] * len(NODES):
                return
            time.sleep(0.2)
        raise AssertionError(f"the nodes are not idle: {done.stdout}{done.stderr}\n{self.logs()}")

    def logs(self) -> str:
        """Return the last 2000 characters of each daemon's log."""
        return "".join(path.read_text()[-2000:] for path in sorted(self.folder.glob("*.log")))

    def cancel_all(self) -> None:
        """Cancel all jobs and wait until they have left the queue."""
        subprocess.run(
            ["scancel", "--user", "root"], env=self.environment, timeout=600, check=False
        )
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and self.ask("squeue", "--noheader"):
            time.sleep(0.2)


@contextmanager
def cluster() -> Iterator[SlurmCluster]:
    """Start a Slurm cluster with two idle nodes for this context, and stop its daemons after it."""
    # Not in pytest's folder, since the name of a socket must be short.
    folder = Path(tempfile.mkdtemp(prefix="lsgd-slurm-"))
    try:
        with ExitStack() as daemons:
            munged = _configure(folder)
            found = SlurmCluster(folder)
            _start(daemons, found, *munged)
            _start(daemons, found, "slurmctld", "-D")
            for node in NODES:
                _start(daemons, found, "slurmd", "-D", "-N", node)
            found.wait_until_idle()
            daemons.callback(found.cancel_all)
            yield found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _configure(folder: Path) -> list[str]:
    """Configure a cluster of nodes on this machine; return the command of its munged."""
    with ExitStack() as sockets:
        ports = []
        for _ in range(1 + len(NODES)):
            free = sockets.enter_context(socket.socket())
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    host = socket.gethostname().partition(".")[0]
    lines = [f"SlurmctldPort={ports.pop()}", "JobRequeue=1", "KillWait=10"]
    lines += [
        f"NodeName={node} NodeHostname={host} NodeAddr={node} Port={port} CPUs=4"
        for node, port in zip(NODES, ports, strict=True)
    ]
    return configure_slurm(folder, f"{host}(127.0.0.1)", NODES, lines)


def _start(daemons: ExitStack, cluster: SlurmCluster, *command: str) -> None:
    """Start a daemon, stop it with `daemons`, and let it end if this process is killed."""
    log = (cluster.folder / f"{command[0]}.out.log").open("a")
    daemon = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", *command],
        env=cluster.environment,
        stdout=log,
        stderr=log,
    )

    def stop() -> None:
        daemon.terminate()
        try:
            daemon.wait(timeout=10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
        log.close()

    daemons.callback(stop)
