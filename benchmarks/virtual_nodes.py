"""Nodes of a cluster on this machine: network namespaces, whose links have a set bandwidth.

Each node has a hostname, an address and one network card, whose link leads to a switch, a bridge.
Links can be slowed down and cut, and ports blocked. Processor, memory and disks are shared, so the
files of a run are on all nodes, as on a shared file system.

Everything, including all processes, is in namespaces of its own. They end with the first process
in them, so the kernel removes them however that ends, and no other program on this machine can see
them.
"""

import ctypes
import fcntl
import os
import platform
import select
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from lsgd.errors import UsageError

FOLDER = Path("/run/netns")
"""Where `ip` expects namespaces by name; within the namespaces it is a file system in memory."""
MAXIMUM = 8
"""The maximum number of nodes."""
BURST_SECONDS, MIN_BURST = 0.002, 32 * 1024
"""A link passes on the bytes of this time, and at least these, before its bandwidth limits it."""

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x4000000, 0x20000000, 0x40000000
"""The flags of new namespaces: see unshare(2)."""
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x2, 0x1000
"""The ioctl that opens a network device of this process, and the flags of one for frames alone."""
LARGEST_FRAME = 2**16
PR_SET_PDEATHSIG = 1
"""The option of prctl that sets the signal for a process whose parent exits."""

REMOTE_SHELL = """\
#!/bin/sh
# Run a command on a node, as ssh would: [-o OPTION] [-p PORT] … NODE [-o OPTION] … COMMAND
node=
while :; do case $1 in
    -[iop]) shift 2;;
    -*) shift;;
    *) if [ "$node" ]; then break; fi; node=$1; shift;;
esac; done
exec nsenter --net={folder}/$node --uts={folder}/$node.uts sh -c "$*"
"""


def run_isolated(program: str, action: Callable[[], int]) -> None:
    """Run an action in a fork with namespaces of its own; exit with its exit code if that is not 0.

    All its processes end with it, and it ends with this process. Raises UsageError if this machine
    or user cannot make namespaces.
    """
    tools = ("nsenter", "unshare", "mount", "ip", "tc")
    if missing := [tool for tool in tools if shutil.which(tool) is None]:
        raise UsageError(
            f"{program} needs the programs {', '.join(missing)} of Linux; "
            "run apt install util-linux iproute2"
        )
    if os.geteuid():
        raise UsageError(f"{program} makes network namespaces, which needs root; run it with sudo")
    sys.stdout.flush()
    try:
        _call_c("unshare", CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWPID | CLONE_NEWNET)
    except OSError as error:  # such as that of a container
        raise UsageError(f"{program} may not make namespaces here ({error.strerror})") from None
    if child := os.fork():
        while True:
            try:
                status = os.waitpid(child, 0)[1]
                break
            except KeyboardInterrupt:  # the terminal has sent it to the child too
                continue
        if code := os.waitstatus_to_exitcode(status):
            raise SystemExit(code)
        return
    _call_c("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)

    def isolated() -> int:
        try:
            run("mount", "--make-rprivate", "/")
            run("mount", "-t", "proc", "proc", "/proc")
        except UsageError as error:  # in the fork, whose caller is the parent's
            print(f"{program}: {error}", file=sys.stderr)
            return error.exit_code
        return action()

    _exit(isolated)


class NodeProcess:
    """A child process on a node."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: int | None = None
        """The exit code, or the negative number of the signal that ended it; None while it runs."""

    def poll(self) -> int | None:
        """Return the exit code, or None if the process still runs."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code


class VirtualCluster:
    """Some nodes and their switch, in the namespaces of this process: node0, node1 and so on.

    A message from one node to another takes `latency` seconds, apart from its bandwidth.
    """

    def __init__(self, nodes: int, mbits: float, latency: float = 0.0) -> None:
        self.names = [f"node{i}" for i in range(nodes)]
        self.addresses = {name: f"10.77.0.{i + 1}" for i, name in enumerate(self.names)}
        FOLDER.mkdir(exist_ok=True)
        run("mount", "-t", "tmpfs", "lsgd", str(FOLDER))
        self.hosts = self.write_hosts("hosts", {})
        run("mount", "--bind", str(self.hosts), "/etc/hosts")
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "name", "switch", "type", "bridge")
        run("ip", "link", "set", "switch", "up")
        self.folder = FOLDER / "files"
        """A folder in memory for files of all nodes."""
        self.folder.mkdir()
        self.remote_shell = FOLDER / "bin" / "ssh"
        self.remote_shell.parent.mkdir()
        self.remote_shell.write_text(REMOTE_SHELL.format(folder=FOLDER))
        self.remote_shell.chmod(0o755)
        for name in self.names:
            self._add(name, latency / 2)  # a message passes two links
            set_bandwidth(name, mbits)

    def _add(self, name: str, latency: float) -> None:
        port = f"to-{name}"
        run("ip", "netns", "add", name)
        (FOLDER / f"{name}.uts").touch()
        run("unshare", f"--uts={FOLDER / name}.uts", "hostname", name)
        if latency:
            self._add_slow_link(name, port, latency)
        else:
            run("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", port, "master", "switch", "up")
        run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", name, "address", "add", f"{self.addresses[name]}/24", "dev", "eth0")
        run("ip", "-n", name, "link", "set", "eth0", "up")

    def _add_slow_link(self, name: str, port: str, latency: float) -> None:
        """Connect a node by a process that passes each frame on after `latency` seconds."""
        switch_side = open_network_device(port)
        self.fork(
            name,
            lambda: relay_frames(switch_side, open_network_device("eth0"), latency),
            self.folder / f"{name}-relay.log",
            {},
        )
        os.close(switch_side)
        while "eth0" not in self.query(name, ["ip", "-o", "link"]):
            time.sleep(0.05)

    def write_hosts(self, file: str, changed: Mapping[str, str]) -> Path:
        """Write a hosts file in which some nodes have other addresses, and return its path."""
        found = {"localhost": "127.0.0.1"} | self.addresses | dict(changed)
        path = FOLDER / file
        # A server that listens for IPv6 too sees clients of IPv4 by such addresses.
        lines = [f"{address} {name}\n::ffff:{address} {name}\n" for name, address in found.items()]
        path.write_text("".join(lines))
        return path

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
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> "NodeProcess":
        """Start a command on a node, with its output in a file."""
        return self.fork(name, lambda: os.execvp(command[0], list(command)), log, environment)

    def fork(
        self,
        name: str,
        function: Callable[[], object],
        log: Path,
        environment: Mapping[str, str],
        *,
        first: str = "",
    ) -> "NodeProcess":
        """Call a function in a fork on a node, which exits as Python would, with output in a file.

        A fork has imported what this process has. `first` are commands of a shell that run before
        it, in a mount namespace of its own.
        """
        sys.stdout.flush()
        if pid := os.fork():
            return NodeProcess(pid)

        def run_there() -> object:
            self._enter(name, log, first)
            path = f"{self.remote_shell.parent}:{os.environ['PATH']}"
            os.environ.update({"PATH": path} | dict(environment))
            return function()

        _exit(run_there)

    def _enter(self, name: str, log: Path, first: str) -> None:
        """Move this process into a node and its output into a file."""
        for file in (FOLDER / name, FOLDER / f"{name}.uts"):
            with file.open() as namespace:
                _call_c("setns", namespace.fileno(), 0)
        platform._uname_cache = None  # type: ignore[attr-defined]  # it has the name before
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for descriptor in (sys.stdout.fileno(), sys.stderr.fileno()):
            os.dup2(output, descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if first:
            _call_c("unshare", CLONE_NEWNS)
            run("mount", "--make-rprivate", "/")
            run("sh", "-ec", first)

    def query(self, name: str, command: Sequence[str]) -> str:
        """Return what a command prints on a node, whether it fails or not."""
        there = [str(self.remote_shell), name, shlex.join(command)]
        return subprocess.run(there, capture_output=True, text=True, timeout=60).stdout

    def processes(self, name: str) -> list[int]:
        """Return the pids of a node's processes."""
        return [int(pid) for pid in run("ip", "netns", "pids", name).split()]

    def close(self) -> None:
        """End the processes of the nodes and remove the nodes, so that others can follow."""
        for name in self.names:
            for pid in self.processes(name):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            # That of a relay goes with its process.
            subprocess.run(["ip", "link", "delete", f"to-{name}"], capture_output=True, check=False)
            run("umount", f"{FOLDER / name}.uts")
            run("ip", "netns", "delete", name)
        run("ip", "link", "delete", "switch")
        run("umount", "/etc/hosts")
        run("umount", "--lazy", str(FOLDER))


def set_bandwidth(name: str, mbits: float) -> None:
    """Limit a node's link to a bandwidth in each direction; a process of a node may call it."""
    burst = max(MIN_BURST, round(mbits * 1e6 / 8 * BURST_SECONDS))
    limit = ("tbf", "rate", f"{mbits:g}mbit", "burst", f"{burst}", "limit", "4mb")
    # The first process is in the switch's namespace.
    of_switch = ("nsenter", "--net=/proc/1/ns/net")
    run(*of_switch, "tc", "qdisc", "replace", "dev", f"to-{name}", "root", *limit)
    run("tc", "-n", name, "qdisc", "replace", "dev", "eth0", "root", *limit)


def open_network_device(name: str) -> int:
    """Open a new network device by this name and return its file, of whole Ethernet frames."""
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return device


def relay_frames(first: int, second: int, latency: float) -> None:
    """Pass frames on between two network devices, each `latency` seconds after it was read."""
    other_side = {first: second, second: first}
    waiting: deque[tuple[float, int, bytes]] = deque()
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for device in select.select([first, second], [], [], pause)[0]:
            frame = os.read(device, LARGEST_FRAME)
            waiting.append((time.monotonic() + latency, other_side[device], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, device, frame = waiting.popleft()
            with suppress(OSError):  # the link is down, and the frame is lost
                os.write(device, frame)


def _call_c(function: str, *arguments: int) -> None:
    """Call a function of the C library; raise OSError if it fails."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, function)(*arguments):
        raise OSError(ctypes.get_errno(), f"{function} failed")


def _exit(function: Callable[[], object]) -> NoReturn:
    """Call a function in a fork, and exit as Python would after it."""
    code = 1
    try:
        returned = function()
        code = returned if isinstance(returned, int) else 0
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(*command: str) -> str:
    """Run a command of the system and return its output; raise UsageError if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode:
        why = done.stderr.strip().replace("\n", "; ")
        raise UsageError(f"{shlex.join(command)} fails here ({why}); mend that first")
    return done.stdout
