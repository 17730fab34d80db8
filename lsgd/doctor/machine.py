"""The checks of the machine: its cores, GPUs, network, limits and disk."""

import errno
import os
import re
import resource
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from lsgd import installation
from lsgd.doctor import ABSENT, FAIL, PASS, TEMPORARY_FIX, CheckItem, ProbeResult
from lsgd.errors import UsageError, dangling_link
from lsgd.job import network as meeting
from lsgd.job.children import run_with_limit
from lsgd.job.launcher import omp_num_threads
from lsgd.job.network import Hostname, NetworkInterface
from lsgd.job.system import HIDDEN_GPUS, is_given_gpu, usable_cores, usable_within
from lsgd.paths import path_on_machine

FILES = 1024
"""The open files that a process may need: images, decoding processes and a socket for each peer."""
SHARED_GB = 0.5
"""The free shared memory, in GB, that NCCL and MPI need."""
DISK_GB = 2.0
"""The free disk space, in GB, that a run needs.

It is for several checkpoints of 0.2 GB each for ResNet-50, and its logs.
"""


def cores(quota: float | None) -> CheckItem:
    """Check that OMP_NUM_THREADS is valid and suits the CPU cores that this process may use.

    Without the variable lsgd takes as many threads as there are cores, within the quota.
    """
    usable, all_ = len(usable_cores()), os.cpu_count() or 1
    finding = f"{usable} of {all_}"
    numbers: dict[str, float] = {"cores": usable, "all_cores": all_}
    if quota is not None:
        numbers["quota"] = quota
        finding += f", {quota:g} of them by the cgroup's quota"
    given = os.environ.get("OMP_NUM_THREADS")
    finding += f"; OMP_NUM_THREADS={given}" if given else ""
    threads, most = omp_num_threads(), usable_within(quota)
    if given and not threads:
        fix = "`unset OMP_NUM_THREADS`, or export a number"
        return CheckItem("cores", FAIL, f"{finding}, which OpenMP ignores", fix, numbers=numbers)
    if threads and threads > most:
        fix = f"`unset OMP_NUM_THREADS`, or export at most {most}, as more threads would only wait"
        return CheckItem("cores", FAIL, finding, fix, numbers=numbers)
    return CheckItem("cores", PASS, finding, numbers=numbers)


def nvidia(limit: float, module: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """Return the version of the NVIDIA driver; empty if it does not work, None without a GPU."""
    with suppress(OSError):  # in a container it may exist and not be readable
        if number := re.search(r"\d+\.\d+(\.\d+)?", module.read_text()):
            return number[0]
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    code, text = run_with_limit(query, limit=limit)
    if code == 0 and text.strip():
        return text.split()[0]
    return "" if _has_card() else None


def _has_card() -> bool:
    for device in Path("/sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind = (device / "vendor").read_text(), (device / "class").read_text()
        except OSError:
            continue
        # NVIDIA's vendor id, and the class of displays: its network cards have another class.
        if vendor.strip() == "0x10de" and kind.startswith("0x03"):
            return True
    return False


def has_device(folder: Path = Path("/dev")) -> bool:
    """Return whether this container or job has a GPU: a device file that may be opened."""
    if (folder / "dxg").exists():  # that of Windows' Linux, for any number of GPUs
        return True
    for device in folder.glob("nvidia[0-9]*"):
        try:
            os.close(os.open(device, os.O_RDWR))
        except OSError as error:
            # EPERM is that of a control group, as of a Slurm job; others are mistakes of the setup.
            if error.errno == errno.EPERM:
                continue
        return True
    return False


def gpus(
    torch: ProbeResult,
    driver: str | None,
    environment: Mapping[str, str] = os.environ,
    devices: Path = Path("/dev"),
) -> list[CheckItem]:
    """Check the GPU driver, CUDA, the GPUs and NCCL; none is needed on a machine without a GPU."""
    facts, names = torch.facts, torch.facts.get("gpus", [])
    why, fix = "no NVIDIA GPU is found", ""
    if driver and not names and not has_device(devices):
        why = f"the host has driver {driver}, but no GPU is given to this container or job"
        fix = "`docker run --gpus all`, or `--gres=gpu:N` of Slurm"
    if fix or (driver is None and not names):
        rest = [CheckItem(name, ABSENT, why) for name in ("CUDA", "GPUs", "NCCL")]
        return [CheckItem("GPU driver", ABSENT, why, fix), *rest]
    if not driver and names:
        items = [CheckItem("GPU driver", PASS, "unknown version, but torch uses it")]
    elif not driver:
        fix = "install NVIDIA's driver, until `nvidia-smi` lists the GPU"
        items = [CheckItem("GPU driver", FAIL, "an NVIDIA GPU, but no working driver", fix)]
    else:
        items = [CheckItem("GPU driver", PASS, driver)]
    if torch.failure_reason:
        items.append(CheckItem("CUDA", FAIL, "torch cannot be imported", "see torch"))
    elif facts["cuda"] is None:
        plain = facts["version"].partition("+")[0]
        again = installation.pip_command("install", "--force-reinstall", f"torch=={plain}")
        fix = f"`{again}` from PyPI, which has the CUDA build"
        items.append(CheckItem("CUDA", FAIL, f"torch {facts['version']} is a CPU build", fix))
    elif problem := facts.get("problem"):
        hidden = environment.get("CUDA_VISIBLE_DEVICES") in HIDDEN_GPUS
        # A run that is given GPUs of which torch can use none refuses to train on the CPU.
        refused = bool(driver) and not names and is_given_gpu(devices, environment)
        fix = "update the driver, or install a torch for the CUDA that `nvidia-smi` shows"
        if hidden:
            fix = "`unset CUDA_VISIBLE_DEVICES`, which hides them"
        fix += ", or train on the CPU by `device=cpu`" * refused
        finding = f"{facts['cuda']} of torch does not fit: {problem}"
        items.append(CheckItem("CUDA", FAIL, finding, fix, required=refused))
    else:
        items.append(CheckItem("CUDA", PASS, f"{facts['cuda']}, fits the driver"))
    if names and not facts.get("problem"):
        listed = "; ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
        items.append(CheckItem("GPUs", PASS, listed, numbers={"gpus": len(names)}))
        items.append(CheckItem("NCCL", PASS, f"{facts['nccl']}, torch's own"))
    else:
        items.append(
            CheckItem("GPUs", FAIL, "torch finds no usable GPU", "see GPU driver and CUDA")
        )
        items.append(CheckItem("NCCL", ABSENT, "no GPU to use it"))
    return items


def _configured(
    variable: str, names: Sequence[str], interfaces: list[NetworkInterface]
) -> CheckItem:
    """Check the network interfaces that an environment variable names."""
    found = []
    for named in names:
        chosen = next((each for each in interfaces if each.name == named), None)
        if chosen is None:
            there = ", ".join(each.name for each in interfaces)
            other = meeting.external_interface(interfaces)
            fix = f"export {variable}={other.name if other else 'lo'}"
            return CheckItem("network", FAIL, f"{variable}={named}, but there are {there}", fix)
        if not chosen.up or not chosen.addresses:
            state = "has no address" if chosen.up else "is down"
            fix = f"`ip link set {named} up`, or export {variable} with another one's name"
            return CheckItem("network", FAIL, f"{variable}={named}, which {state}", fix)
        found.append(str(chosen))
    return CheckItem("network", PASS, f"{', '.join(found)}, up, by {variable}")


def network(
    answer: ProbeResult,
    interfaces: list[NetworkInterface],
    environment: Mapping[str, str] = os.environ,
) -> CheckItem:
    """Check the network interface by which processes connect: the configured or the hostname's."""
    other = meeting.external_interface(interfaces)
    export = f"export GLOO_SOCKET_IFNAME={other.name if other else 'lo'}"
    # torch takes several interfaces, and Horovod one.
    of_torch = environment.get("GLOO_SOCKET_IFNAME", "").split(",")
    if any(of_torch):
        return _configured("GLOO_SOCKET_IFNAME", of_torch, interfaces)
    if named := environment.get("HOROVOD_GLOO_IFACE"):
        return _configured("HOROVOD_GLOO_IFACE", [named], interfaces)
    if answer.failure_reason:
        return CheckItem(
            "network", FAIL, f"asking for the hostname failed: {answer.failure_reason}", export
        )
    host = Hostname(answer.facts["host"], answer.facts["addresses"])
    if problem := meeting.hostname_problem(host, interfaces):
        # Horovod's Gloo crashes on a hostname without an address, whatever is exported.
        fix = f"{problem.fix}, or {export}" if host.addresses else problem.fix
        return CheckItem("network", FAIL, problem.finding, fix)
    chosen = meeting.hostname_interface(host, interfaces)
    assert chosen is not None
    if not chosen.up:
        fix = f"`ip link set {chosen.name} up`, or {export}"
        return CheckItem("network", FAIL, f"{chosen}, to which {host.name} resolves, is down", fix)
    if not chosen.loopback:
        return CheckItem("network", PASS, f"{chosen}, up, to which {host.name} resolves")
    finding = f"{chosen.name}: {host.name} is {host.addresses[0]}, enough for one machine"
    if int(environment.get("SLURM_JOB_NUM_NODES") or 1) > 1:
        fix = f"{meeting.hosts_file_fix(host, interfaces)}, or {export}"
        return CheckItem("network", FAIL, finding, fix)
    if other is None:
        return CheckItem("network", PASS, finding)
    several = f"for several machines, {export} ({other.addresses[0]}, up) on each"
    return CheckItem("network", PASS, finding, several)


def nccl_network(
    interfaces: list[NetworkInterface], gpus: int, environment: Mapping[str, str] = os.environ
) -> CheckItem:
    """Check the network interface that NCCL would use: a configured one, or the one it prefers.

    The rules are those of NCCL's documentation of NCCL_SOCKET_IFNAME: a list of prefixes of names,
    exact names after =, or excluded prefixes after ^; without it names that begin with ib, then any
    others, then docker's, then lo.
    """
    if not gpus:
        return CheckItem("NCCL network", ABSENT, "no GPU to use it")
    usable = [each for each in interfaces if each.up and each.addresses]
    named = environment.get("NCCL_SOCKET_IFNAME", "")
    if not named:
        order = sorted(usable, key=lambda each: (each.loopback, *_rank(each.name)))
        if not order:
            return CheckItem("NCCL network", FAIL, "no interface is up", "`ip link set NAME up`")
        return CheckItem("NCCL network", PASS, f"{order[0]}, up, which NCCL prefers")
    without, whole = named.startswith("^"), named.lstrip("^").startswith("=")
    names = named.lstrip("^=").split(",")

    def matches(name: str) -> bool:
        return name in names if whole else name.startswith(tuple(names))

    if chosen := [each for each in usable if matches(each.name) != without]:
        return CheckItem("NCCL network", PASS, f"{chosen[0]}, up, by NCCL_SOCKET_IFNAME={named}")
    known = ", ".join(each.name for each in usable)
    fix = "export NCCL_SOCKET_IFNAME with the name of one of these, or unset it"
    return CheckItem(
        "NCCL network", FAIL, f"NCCL_SOCKET_IFNAME={named}, but there are {known}", fix
    )


def _rank(name: str) -> tuple[bool, bool]:
    return name.startswith("docker"), not name.startswith("ib")


def open_files() -> CheckItem:
    """Check that a process may open enough files by its limit RLIMIT_NOFILE."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    numbers: dict[str, float] = {"open_files": soft}
    if soft == resource.RLIM_INFINITY or soft >= FILES:
        limit = "no limit" if soft == resource.RLIM_INFINITY else f"{soft} per process"
        return CheckItem("open files", PASS, limit, numbers=numbers)
    fix = (
        f"`ulimit -n {min(hard, 65536) if hard > 0 else 65536}` before the start"
        if hard < 0 or hard >= FILES
        else "raise the limit `nofile` in /etc/security/limits.conf to 65536"
    )
    finding = f"{soft} per process, and a run may need {FILES}"
    return CheckItem("open files", FAIL, finding, fix, numbers=numbers)


def shared_memory(folder: Path = Path("/dev/shm")) -> CheckItem:
    """Check that the shared memory of this machine, /dev/shm, has enough free space."""
    fix = "give the container more: `docker run --shm-size=8g`, or an emptyDir of medium Memory"
    try:
        state = os.statvfs(folder)
    except OSError as error:
        if sys.platform != "linux":
            return CheckItem("shared memory", ABSENT, f"{folder} exists on Linux only")
        return CheckItem("shared memory", FAIL, f"{folder}: {error.strerror}", fix)
    size, free = (n * state.f_frsize / 1e9 for n in (state.f_blocks, state.f_bavail))
    numbers = {"size_gb": size, "free_gb": free}
    finding = f"{free:.3g} of {size:.3g} GB free in {folder}"
    if free < SHARED_GB:
        return CheckItem("shared memory", FAIL, finding, fix, numbers=numbers)
    return CheckItem("shared memory", PASS, finding, numbers=numbers)


def memory(answer: ProbeResult) -> CheckItem:
    """Check how many virtual workers of recipe bs256 fit into a GPU's or the machine's memory."""
    plan = "`python -m lsgd.plan memory recipe=NAME` shows what fits"
    if answer.failure_reason:
        return CheckItem(
            "memory", FAIL, f"the plan failed: {answer.failure_reason}", "see torch and recipes"
        )
    workers, size = answer.facts["workers"], answer.facts["gb"]
    passes = ", ".join(f"{most} in {precision}" for precision, most in workers.items())
    finding = (
        f"{size:.3g} GB of {answer.facts['where']}: a micro-batch of bs256, ResNet-50 at 224 "
        f"pixels, fits about this many workers of 32 images: {passes}"
    )
    numbers = {"memory_gb": size, **{f"workers_{each}": most for each, most in workers.items()}}
    if workers["float32"] < 1:
        fix = f"write a smaller worker_batch, data.image_size or model; {plan}"
        return CheckItem("memory", FAIL, finding, fix, numbers=numbers)
    return CheckItem("memory", PASS, finding, numbers=numbers)


def temporary_folder() -> list[CheckItem]:
    """Check that there is a folder for temporary files; return nothing if there is one."""
    try:
        tempfile.TemporaryFile().close()
    except OSError as error:
        finding = f"no temporary folder can be written: {error.strerror}"
        return [CheckItem("temporary folder", FAIL, finding, TEMPORARY_FIX, required=True)]
    return []


def run_folder(runs: Path = Path("runs")) -> list[CheckItem]:
    """Check that a folder of runs is writable, and the free space on its disk."""
    fix = "change to a folder that you can write to, or write run_dir=FOLDER"
    found, free = _writable("run folder", runs, fix)
    return [found] if free is None else [found, disk(free)]


def staging_folder(stage: str) -> CheckItem:
    """Check that the folder of `data.stage` is writable, with this machine's variables in its path.

    The space for the copy is checked when it is made.
    """
    try:
        folder = path_on_machine("data.stage", stage)
    except UsageError as refused:
        found, _, fix = str(refused).partition("; ")
        return CheckItem("data.stage", FAIL, found, fix)
    return _writable("data.stage", folder, "make it writable, or write data.stage=FOLDER")[0]


def _writable(name: str, folder: Path, fix: str) -> tuple[CheckItem, float | None]:
    """Check that files can be written in a folder; return the free GB of its disk too, if so."""
    # The folder may not exist yet: its disk is that of the nearest existing parent.
    nearest = folder.absolute()
    while not os.path.lexists(nearest):  # which raises no error for a folder that cannot be read
        nearest = nearest.parent
    try:
        with tempfile.TemporaryFile(dir=nearest) as file:
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        why = dangling_link(error) or error.strerror
        finding = f"{folder.absolute()} cannot be written: {why}"
        return CheckItem(name, FAIL, finding, fix, required=True), None
    free = shutil.disk_usage(nearest).free / 1e9
    return CheckItem(name, PASS, str(folder.absolute()), required=True), free


def disk(free_gb: float) -> CheckItem:
    """Check that the disk for runs has enough free space."""
    finding, numbers = f"{free_gb:.3g} GB free for runs", {"free_gb": free_gb}
    if free_gb >= DISK_GB:
        return CheckItem("disk", PASS, finding, numbers=numbers)
    fix = f"free some space, or write run_dir=FOLDER on a disk with {DISK_GB:g} GB or more"
    return CheckItem("disk", FAIL, finding, fix, numbers=numbers)
