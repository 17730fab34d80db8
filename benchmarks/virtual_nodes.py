"""Nodes of a cluster on this machine: network namespaces, whose links have a set bandwidth.

Each node has a hostname, an address and one network card, whose link leads to a switch, a bridge.
Links can be slowed down and cut, and ports blocked. Processor, memory and disks are shared, so the
files of a run are on all nodes, as on a shared file system.

Everything, including all processes, is in namespaces of its own. They end with the first process
in them, so the kernel removes them however that ends, and no other program on this machine can see
them.
"""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lsgd.errors import UsageError

INSIDE = "LSGD_VIRTUAL_NODES"
"""The environment variable that is set within the namespaces."""
FOLDER = Path("/run/netns")
"""Where `ip` expects namespaces by name; within the namespaces it is a file system in memory."""
MAXIMUM = 8
"""The maximum number of nodes."""
BURST = 32 * 1024
"""The bytes that a link passes on at once before its bandwidth limits it."""

REMOTE_SHELL = """\
#!/bin/sh
# Run a command on a node, as ssh would: [-o OPTION] [-p PORT] … NODE COMMAND
while :; do case $1 in -[op]) shift 2;; -*) shift;; *) break;; esac; done
node=$1; shift
exec nsenter --net={folder}/$node --uts={folder}/$node.uts sh -c "$*"
"""


def is_inside() -> bool:
    """Return whether this process is within the namespaces of a virtual cluster."""
    return INSIDE in os.environ


def run_inside(module: str, argv: Sequence[str]) -> int:
    """Run a module's command line within new namespaces and return its exit code.

    Raises UsageError if this machine or user cannot make namespaces.
    """
    tools = ("unshare", "nsenter", "ip", "tc", "mount")
    if missing := [tool for tool in tools if shutil.which(tool) is None]:
        raise UsageError(
            f"{module} needs the programs {', '.join(missing)} of Linux; "
            "run apt install util-linux iproute2"
        )
    if os.geteuid():
        raise UsageError(f"{module} makes network namespaces, which needs root; run it with sudo")
    spaces = ("--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
    command = ["unshare", *spaces, sys.executable, "-m", module, *argv]
    with subprocess.Popen(command, env=os.environ | {INSIDE: "1"}) as child:
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:  # the terminal has sent it to the child too
                continue


class VirtualCluster:
    """Some nodes and their switch, in the namespaces of this process: node0, node1 and so on."""

    def __init__(self, nodes: int, mbits: float) -> None:
        self.names = [f"node{i}" for i in range(nodes)]
        self.addresses = {name: f"10.77.0.{i + 1}" for i, name in enumerate(self.names)}
        FOLDER.mkdir(exist_ok=True)
        run("mount", "-t", "tmpfs", "lsgd", str(FOLDER))
        self.hosts = self.write_hosts("hosts", {})
        run("mount", "--bind", str(self.hosts), "/etc/hosts")
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "name", "switch", "type", "bridge")
        run("ip", "link", "set", "switch", "up")
        for name in self.names:
            self._add(name)
            self.set_bandwidth(name, mbits)
        self.remote_shell = FOLDER / "bin" / "ssh"
        self.remote_shell.parent.mkdir()
        self.remote_shell.write_text(REMOTE_SHELL.format(folder=FOLDER))
        self.remote_shell.chmod(0o755)

    def _add(self, name: str) -> None:
        port = f"to-{name}"
        run("ip", "netns", "add", name)
        (FOLDER / f"{name}.uts").touch()
        run("unshare", f"--uts={FOLDER / name}.uts", "hostname", name)
        run("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", port, "master", "switch", "up")
        run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", name, "address", "add", f"{self.addresses[name]}/24", "dev", "eth0")
        run("ip", "-n", name, "link", "set", "eth0", "up")

    def write_hosts(self, file: str, changed: Mapping[str, str]) -> Path:
        """Write a hosts file in which some nodes have other addresses, and return its path."""
        found = {"localhost": "127.0.0.1"} | self.addresses | dict(changed)
        path = FOLDER / file
        path.write_text("".join(f"{address} {name}\n" for name, address in found.items()))
        return path

    def set_bandwidth(self, name: str, mbits: float) -> None:
        """Limit a node's link to so many Mbit/s in each direction."""
        limit = ("tbf", "rate", f"{mbits:g}mbit", "burst", f"{BURST}", "limit", "4mb")
        run("tc", "qdisc", "replace", "dev", f"to-{name}", "root", *limit)
        run("tc", "-n", name, "qdisc", "replace", "dev", "eth0", "root", *limit)

    def cut(self, name: str) -> None:
        """Take a node's link down at the switch, so that packets are lost without any answer."""
        run("ip", "link", "set", f"to-{name}", "down")

    def block_ports(self, name: str, match: Sequence[str]) -> None:
        """Drop what reaches a node and matches, in the words of tc's u32 filter, as firewalls do.

        The packets go into a link that is down, since some kernels lack tc's action to drop.
        """
        run("ip", "-n", name, "link", "add", "hole", "type", "veth", "peer", "name", "hole2")
        run("ip", "-n", name, "link", "set", "hole", "up")
        run("tc", "-n", name, "qdisc", "add", "dev", "eth0", "clsact")
        run(
            *("tc", "-n", name, "filter", "add", "dev", "eth0", "ingress", "protocol", "ip"),
            *("u32", *match, "action", "mirred", "egress", "redirect", "dev", "hole"),
        )

    def start(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        first: str = "",
    ) -> "subprocess.Popen[bytes]":
        """Start a command on a node, with its output in a file.

        `first` are commands of a shell that run before it, in a mount namespace of its own.
        """
        enter = ["nsenter", f"--net={FOLDER / name}", f"--uts={FOLDER / name}.uts"]
        if first:
            enter += ["unshare", "--mount", "sh", "-c", f'set -e; {first}; exec "$@"', "sh"]
        path = f"{self.remote_shell.parent}:{os.environ['PATH']}"
        with log.open("ab") as output:
            return subprocess.Popen(
                [*enter, *command],
                env=os.environ | {"PATH": path} | dict(environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def processes(self, name: str) -> list[int]:
        """Return the pids of a node's processes."""
        return [int(pid) for pid in run("ip", "netns", "pids", name).split()]

    def close(self) -> None:
        """End all processes of the nodes, and remove nodes and switch, so that others can follow."""
        for name in self.names:
            for pid in self.processes(name):
                subprocess.run(["kill", "-KILL", str(pid)], check=False)
            run("ip", "link", "delete", f"to-{name}")
            run("umount", f"{FOLDER / name}.uts")
            run("ip", "netns", "delete", name)
        run("ip", "link", "delete", "switch")
        run("umount", "/etc/hosts")
        run("umount", "--lazy", str(FOLDER))


def run(*command: str) -> str:
    """Run a command of the system and return its output; raise UsageError if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode:
        why = done.stderr.strip().replace("\n", "; ")
        raise UsageError(f"{shlex.join(command)} fails here ({why}); mend that first")
    return done.stdout
