"""Items on the machine: its cores, GPUs, network, limits and disk."""

import fcntl
import ipaddress
import os
import re
import resource
import shutil
import socket
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lsgd import installation
from lsgd.doctor.child import Answer
from lsgd.doctor.item import ABSENT, FAIL, PASS, Item
from lsgd.job.children import finished

FILES = 1024
"""Open files that a process may want: images, decoding processes and a socket for each peer."""
SHARED_GB = 0.5
"""Free shared memory, in which NCCL and MPI meet."""
DISK_GB = 2.0
"""Free disk of a run: several checkpoints of 0.2 GB each for ResNet-50, and its logs."""

_SIOCGIFADDR = 0x8915


def cores(quota: float | None) -> Item:
    """The cores that this process may use, and the threads that each process of a run would."""
    usable, all_ = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    finding = f"{usable} of {all_}"
    numbers: dict[str, float] = {"cores": usable, "all_cores": all_}
    if quota is not None:
        numbers["quota"] = quota
        finding += f", {quota:g} of them by the cgroup's quota"
    threads = os.environ.get("OMP_NUM_THREADS")
    finding += f"; OMP_NUM_THREADS={threads}" if threads else ""
    if quota is not None and quota < usable and threads is None:
        fix = f"export OMP_NUM_THREADS={max(1, int(quota))}, since more threads than that only wait"
        return Item("cores", FAIL, finding, fix, numbers=numbers)
    return Item("cores", PASS, finding, numbers=numbers)


def cpu_quota(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> float | None:
    """The number of cores that the control groups leave this process, or None for all."""
    if not own.exists():
        return None
    quotas = []
    for line in own.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        top = root if not controllers else root / "cpu"
        if controllers and "cpu" not in controllers.split(","):
            continue
        folder = top / path.lstrip("/")
        for group in (folder, *folder.parents):
            if group.is_relative_to(top) and (quota := _quota(group)) is not None:
                quotas.append(quota)
    return min(quotas, default=None)


def _quota(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").exists():
            most, period = (folder / "cpu.max").read_text().split()
        else:
            most = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
    except OSError:
        return None
    return None if most in ("max", "-1") else int(most) / int(period)


def nvidia(limit: float) -> str | None:
    """The version of the NVIDIA driver; empty if it does not work, None without a card."""
    module = Path("/proc/driver/nvidia/version")
    if module.exists() and (number := re.search(r"\d+\.\d+(\.\d+)?", module.read_text())):
        return number[0]
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    code, text = finished(query, limit=limit)
    if code == 0 and text.strip():
        return text.split()[0]
    return "" if _has_card() else None


def _has_card() -> bool:
    for device in Path("/sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind = (device / "vendor").read_text(), (device / "class").read_text()
        except OSError:
            continue
        # NVIDIA's number, and the class of displays: its network cards have another one.
        if vendor.strip() == "0x10de" and kind.startswith("0x03"):
            return True
    return False


def gpus(
    torch: Answer, driver: str | None, environment: Mapping[str, str] = os.environ
) -> list[Item]:
    """Driver, CUDA, the GPUs and NCCL, of which none is needed on a machine without a GPU."""
    facts, names = torch.facts, torch.facts.get("gpus", [])
    if driver is None and not names:
        why = "no NVIDIA GPU is found"
        return [Item(name, ABSENT, why) for name in ("GPU driver", "CUDA", "GPUs", "NCCL")]
    if not driver and names:
        items = [Item("GPU driver", PASS, "of unknown version, but torch uses it")]
    elif not driver:
        fix = "install NVIDIA's driver, until `nvidia-smi` lists the GPU"
        items = [Item("GPU driver", FAIL, "an NVIDIA GPU, but no driver that works", fix)]
    else:
        items = [Item("GPU driver", PASS, driver)]
    if torch.why:
        items.append(Item("CUDA", FAIL, "torch does not load", "see torch"))
    elif facts["cuda"] is None:
        plain = facts["version"].partition("+")[0]
        again = installation.pip("install", "--force-reinstall", f"torch=={plain}")
        fix = f"`{again}` from PyPI, which has the CUDA build"
        items.append(Item("CUDA", FAIL, f"torch {facts['version']} is a CPU build", fix))
    elif problem := facts.get("problem"):
        fix = (
            "`unset CUDA_VISIBLE_DEVICES`, which hides them"
            if environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
            else "update the driver, or install a torch for the CUDA that `nvidia-smi` shows"
        )
        finding = f"{facts['cuda']} of torch does not fit: {problem}"
        items.append(Item("CUDA", FAIL, finding, fix))
    else:
        items.append(Item("CUDA", PASS, f"{facts['cuda']}, fits the driver"))
    if names and not facts.get("problem"):
        listed = "; ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
        items.append(Item("GPUs", PASS, listed, numbers={"gpus": len(names)}))
        items.append(Item("NCCL", PASS, f"{facts['nccl']}, torch's own"))
    else:
        items.append(Item("GPUs", FAIL, "torch can use none", "see GPU driver and CUDA"))
        items.append(Item("NCCL", ABSENT, "no GPU to use it"))
    return items


@dataclass(frozen=True)
class Interface:
    """A network interface of this machine."""

    name: str
    up: bool
    addresses: tuple[str, ...]

    @property
    def loopback(self) -> bool:
        """Whether no other machine can reach it."""
        return any(ipaddress.ip_address(each).is_loopback for each in self.addresses)

    def __str__(self) -> str:
        return f"{self.name} {self.addresses[0] if self.addresses else 'without an address'}"


def interfaces() -> list[Interface]:
    """All network interfaces of this machine, with their IPv4 addresses."""
    addresses: dict[str, list[str]] = {name: [] for _, name in socket.if_nameindex()}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for name in addresses:
            try:
                reply = fcntl.ioctl(
                    any_socket, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15])
                )
            except OSError:
                continue  # it has no IPv4 address
            # In the kernel's struct ifreq these bytes are the address.
            addresses[name].append(socket.inet_ntoa(reply[20:24]))
    if (table := Path("/proc/net/if_inet6")).exists():
        # A line has the address in hexadecimal first, and the name of the interface last.
        for words in map(str.split, table.read_text().splitlines()):
            addresses.get(words[-1], []).append(str(ipaddress.ip_address(bytes.fromhex(words[0]))))
    return [Interface(name, _is_up(name), tuple(own)) for name, own in addresses.items()]


def _is_up(name: str) -> bool:
    try:
        return bool(int(Path(f"/sys/class/net/{name}/flags").read_text(), 16) & 1)
    except OSError:
        return False


def network(
    answer: Answer, interfaces: list[Interface], environment: Mapping[str, str] = os.environ
) -> Item:
    """The interface over which processes would meet: one that is named, or the hostname's."""
    outward = [each for each in interfaces if each.up and each.addresses and not each.loopback]
    other = outward[0] if outward else None
    export = f"export GLOO_SOCKET_IFNAME={other.name if other else 'lo'}"
    for variable in ("GLOO_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE"):
        if named := environment.get(variable):
            chosen = next((each for each in interfaces if each.name == named), None)
            if chosen is None:
                names = ", ".join(each.name for each in interfaces)
                fix = f"export {variable}={other.name if other else 'lo'}"
                return Item("network", FAIL, f"{variable}={named}, but there are {names}", fix)
            if not chosen.up or not chosen.addresses:
                state = "has no address" if chosen.up else "is down"
                fix = f"`ip link set {named} up`, or export {variable} with another one's name"
                return Item("network", FAIL, f"{variable}={named}, which {state}", fix)
            return Item("network", PASS, f"{chosen}, up, by {variable}")
    if answer.why:
        return Item("network", FAIL, f"asking for the hostname failed: {answer.why}", export)
    host, addresses = answer.facts["host"], answer.facts["addresses"]
    address = other.addresses[0] if other else "127.0.0.1"
    hosts = f"write `{address} {host}` into /etc/hosts"
    if not addresses:
        # torchrun --standalone then waits for ever, and Horovod's Gloo crashes.
        return Item("network", FAIL, f"the hostname {host} does not resolve", hosts)
    hosts += f", or {export}"
    chosen = next((each for each in interfaces if set(each.addresses) & set(addresses)), None)
    # The whole of 127.0.0.0/8 is lo's; Debian gives the hostname 127.0.1.1.
    if chosen is None and ipaddress.ip_address(addresses[0]).is_loopback:
        chosen = next((each for each in interfaces if each.loopback), None)
    if chosen is None:
        finding = f"{host} resolves to {addresses[0]}, which no interface here has"
        return Item("network", FAIL, finding, hosts)
    if not chosen.up:
        fix = f"`ip link set {chosen.name} up`, or {export}"
        return Item("network", FAIL, f"{chosen}, to which {host} resolves, is down", fix)
    if not chosen.loopback:
        return Item("network", PASS, f"{chosen}, up, to which {host} resolves")
    finding = f"{chosen.name}: {host} is {addresses[0]}, enough for one machine"
    if int(environment.get("SLURM_JOB_NUM_NODES", 1)) > 1:
        return Item("network", FAIL, finding, hosts)
    if other is None:
        return Item("network", PASS, finding)
    return Item("network", PASS, finding, f"for several machines, {export} ({address}, up) on each")


def nccl_network(
    interfaces: list[Interface], gpus: int, environment: Mapping[str, str] = os.environ
) -> Item:
    """The interface by which NCCL would meet: one that is named, or the first that it prefers.

    NCCL's own rules (its documentation of NCCL_SOCKET_IFNAME): a list of beginnings of names, whole
    names after =, or those to leave out after ^; without it names that begin with ib, then any
    others, then docker's, then lo.
    """
    if not gpus:
        return Item("NCCL network", ABSENT, "no GPU to use it")
    usable = [each for each in interfaces if each.up and each.addresses]
    named = environment.get("NCCL_SOCKET_IFNAME", "")
    if not named:
        order = sorted(usable, key=lambda each: (each.loopback, *_rank(each.name)))
        if not order:
            return Item("NCCL network", FAIL, "no interface is up", "`ip link set NAME up`")
        return Item("NCCL network", PASS, f"{order[0]}, up, which NCCL prefers")
    without, whole = named.startswith("^"), named.lstrip("^").startswith("=")
    names = named.lstrip("^=").split(",")

    def matches(name: str) -> bool:
        return name in names if whole else name.startswith(tuple(names))

    if chosen := [each for each in usable if matches(each.name) != without]:
        return Item("NCCL network", PASS, f"{chosen[0]}, up, by NCCL_SOCKET_IFNAME={named}")
    known = ", ".join(each.name for each in usable)
    fix = "export NCCL_SOCKET_IFNAME with the name of one of these, or unset it"
    return Item("NCCL network", FAIL, f"NCCL_SOCKET_IFNAME={named}, but there are {known}", fix)


def _rank(name: str) -> tuple[bool, bool]:
    return name.startswith("docker"), not name.startswith("ib")


def open_files() -> Item:
    """Whether a process may open enough files: RLIMIT_NOFILE."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    numbers: dict[str, float] = {"open_files": soft}
    if soft == resource.RLIM_INFINITY or soft >= FILES:
        limit = "no limit" if soft == resource.RLIM_INFINITY else f"{soft} per process"
        return Item("open files", PASS, limit, numbers=numbers)
    fix = (
        f"`ulimit -n {min(hard, 65536) if hard > 0 else 65536}` before the start"
        if hard < 0 or hard >= FILES
        else "have the limit `nofile` raised in /etc/security/limits.conf, to 65536"
    )
    finding = f"{soft} per process, of {FILES} that a run may want"
    return Item("open files", FAIL, finding, fix, numbers=numbers)


def shared_memory(folder: Path = Path("/dev/shm")) -> Item:
    """The size of /dev/shm and the free space in it."""
    fix = "give the container more: `docker run --shm-size=8g`, or an emptyDir of medium Memory"
    try:
        state = os.statvfs(folder)
    except OSError as error:
        return Item("shared memory", FAIL, f"{folder}: {error.strerror}", fix)
    size, free = (n * state.f_frsize / 1e9 for n in (state.f_blocks, state.f_bavail))
    numbers = {"size_gb": size, "free_gb": free}
    finding = f"{free:.3g} of {size:.3g} GB free in {folder}"
    if free < SHARED_GB:
        return Item("shared memory", FAIL, finding, fix, numbers=numbers)
    return Item("shared memory", PASS, finding, numbers=numbers)


def run_folder(runs: Path = Path("runs")) -> list[Item]:
    """Whether runs can be written to their default folder, and the free space on its disk."""
    # The folder may be still to make: the disk is that of the nearest one above which exists.
    nearest = runs.absolute()
    while not nearest.exists():
        nearest = nearest.parent
    try:
        with tempfile.TemporaryFile(dir=nearest) as file:
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        finding = f"{runs.absolute()} cannot be written: {error.strerror}"
        fix = "change to a folder that you can write to, or write run_dir=FOLDER"
        return [Item("run folder", FAIL, finding, fix, required=True)]
    free = shutil.disk_usage(nearest).free / 1e9
    return [Item("run folder", PASS, str(runs.absolute()), required=True), disk(free)]


def disk(free_gb: float) -> Item:
    """Whether the disk that runs are written to has enough free space."""
    finding, numbers = f"{free_gb:.3g} GB free for runs", {"free_gb": free_gb}
    if free_gb >= DISK_GB:
        return Item("disk", PASS, finding, numbers=numbers)
    fix = f"free some, or write run_dir=FOLDER where there are {DISK_GB:g} GB or more"
    return Item("disk", FAIL, finding, fix, numbers=numbers)
