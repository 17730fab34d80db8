"""Calls of the operating system beyond POSIX, each with a portable fallback, as for macOS.

The presence of a call decides, and not the system's name, since an older kernel or a strict
container may lack a call too. Modules that only the fallbacks need are imported there.
"""

import os
import re
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Thread

Tag = tuple[str, str]
"""The name and value of an environment variable."""
LOOK = 0.5
"""The seconds between two polls of a process whose end no system call reports."""
PROCESSES = Path("/proc")
"""Linux's folder with one folder for each process."""
LOAD = Path("/proc/loadavg")
"""The Linux file with the number of runnable threads of this machine, among other counts."""
SCHEDULE = Path("/proc/self/schedstat")
"""The Linux file with the nanoseconds that the main thread was runnable but waited for a core."""
COUNTERS = Path("/proc/vmstat")
DRIVER = Path("/sys/module/nvidia/version")
"""The file of the version of the driver of NVIDIA's GPUs, in Linux."""
BOOT = Path("/proc/sys/kernel/random/boot_id")
HIDDEN_GPUS = ("", "-1", "NoDevFiles")
"""The values of CUDA_VISIBLE_DEVICES that hide all GPUs; older versions of Slurm set the last."""
CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = PROCESSES / "self" / "cgroup"
"""The file in which Linux lists the control groups of this process; CGROUPS has their folders."""
TERMINAL = "/dev/tty"
"""The path by which a process opens its controlling terminal, whatever its input and output are."""
PS = ("-E", "-ww") if sys.platform == "darwin" else ("eww",)
"""The options of ps that show a process's environment; macOS has others than elsewhere."""


def usable_cores() -> set[int]:
    """Return the CPU cores that this process may use; all of the machine without CPU affinity.

    >>> len(usable_cores()) <= os.cpu_count()
    True
    """
    if hasattr(os, "sched_getaffinity"):
        cores: set[int] = os.sched_getaffinity(0)
        return cores
    return set(range(os.cpu_count() or 1))


def usable_within(quota: float | None) -> int:
    """Return how many CPU cores this process may use, at most a quota's whole ones, at least 1."""
    usable = len(usable_cores())
    return usable if quota is None else min(usable, max(1, int(quota)))


def count_usable_cores() -> int:
    """Return the number of CPU cores that this process may use by its affinity and its quota."""
    return usable_within(cpu_quota())


@cache
def cpu_quota(root: Path = CGROUPS, own: Path = OWN_CGROUPS) -> float | None:
    """Return the number of CPU cores that control groups allow this process, or None for all."""
    quotas = [_quota(folder) for folder in _control_groups("cpu", root, own)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _control_groups(controller: str, root: Path, own: Path) -> Iterator[Path]:
    """Yield the folders of this process's control groups for a controller, parents included.

    A limit of any of them holds. Version 1 has a hierarchy for each controller.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / controller if controllers else root
        folder = top / path.lstrip("/")
        yield from (group for group in (folder, *folder.parents) if group.is_relative_to(top))


def _quota(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").exists():
            most, period = (folder / "cpu.max").read_text().split()
        else:
            most = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        return None if most in ("max", "-1") else int(most) / int(period)
    except (OSError, ValueError):
        return None


def bind_to(cores: set[int]) -> None:
    """Bind this process and its children to these CPU cores; do nothing without CPU affinity."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def watch_process(pid: int) -> int:
    """Return a file descriptor that becomes readable once the process with this pid has ended.

    The caller closes it. Raises ProcessLookupError if there is no such process.
    """
    if hasattr(os, "pidfd_open"):
        descriptor: int = os.pidfd_open(pid)
        return descriptor
    os.kill(pid, 0)
    ended, writer = os.pipe()
    Thread(target=_tell_end, args=(pid, writer), name=f"end of {pid}", daemon=True).start()
    return ended


def _tell_end(pid: int, writer: int) -> None:
    """Poll until the process with this pid has ended, then write a byte to a pipe."""
    is_parent = pid == os.getppid()
    # A parent's end shows in getppid(), which is cheaper than to read its state.
    while os.getppid() == pid if is_parent else not has_ended(pid):
        time.sleep(LOOK)
    with suppress(OSError):
        os.write(writer, b"\0")
    os.close(writer)


def has_ended(pid: int) -> bool:
    """Return whether the process with this pid has ended: it does not exist, or is a zombie."""
    if PROCESSES.is_dir():
        try:
            stat = (PROCESSES / str(pid) / "stat").read_text(errors="replace")
            return stat.rpartition(")")[2].split()[0] in "ZX"
        except (OSError, IndexError):
            return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    state = _ps("-o", "stat=", "-p", str(pid))
    return state is not None and state.strip()[:1] in ("", "Z")


def tagged_pids(tag: Tag) -> set[int]:
    """Return the pids of this machine's processes that have this variable and exact value."""
    pids: Iterator[int]
    if PROCESSES.is_dir():
        pids = map(int, filter(str.isdecimal, os.listdir(PROCESSES)))
    else:
        # Candidates only, since a value may contain a newline and then a number.
        listed = (_ps("-A", *PS, "-o", "pid=", "-o", "command=") or "").splitlines()
        pids = (int(line.split()[0]) for line in listed if _holds(line, tag))
    return {pid for pid in pids if has_tag(pid, tag)}


def has_tag(pid: int, tag: Tag) -> bool | None:
    """Return whether the process with this pid has this environment variable and exact value.

    Returns None if that is unknown, as for a process that has ended or is in the middle of an exec.
    """
    if not PROCESSES.is_dir():
        line = _ps(*PS, "-o", "command=", "-p", str(pid))
        return _holds(line, tag) if line else None
    try:
        environment = (PROCESSES / str(pid) / "environ").read_bytes()
    except PermissionError:  # a process of another user
        return False
    except OSError:
        return None
    return os.fsencode("=".join(tag)) in environment.split(b"\0") if environment else None


def has_terminal_open(group: int) -> bool | None:
    """Return whether a process of this process group has opened TERMINAL, as a question does.

    Inherited input and output have another path. Returns None where that is unknown.
    """
    if not PROCESSES.is_dir():
        return None
    for pid in map(int, filter(str.isdecimal, os.listdir(PROCESSES))):
        with suppress(OSError):  # it has ended, or is another user's
            if os.getpgid(pid) != group:
                continue
            for file in (PROCESSES / str(pid) / "fd").iterdir():
                with suppress(OSError):
                    if os.readlink(file) == TERMINAL:
                        return True
    return False


def _holds(line: str, tag: Tag) -> bool:
    """Return whether a line of ps's output shows this environment variable with its value.

    ps separates variables by blanks, which their values may contain too.
    """
    return bool(re.search(rf" {re.escape('='.join(tag))}(?= [^ =]+=|\s*$)", line))


def _ps(*arguments: str) -> str | None:
    """Run ps with these options and return its output, or None where ps is missing."""
    # Without a tag of this process, or ps would list itself as tagged.
    own = {key: os.environ[key] for key in ("PATH", "LANG", "LC_ALL") if key in os.environ}
    from subprocess import run

    try:
        return run(
            ["ps", *arguments], env=own, capture_output=True, errors="surrogateescape"
        ).stdout
    except OSError:
        return None


def preallocate(descriptor: int, size: int) -> None:
    """Reserve disk space of `size` bytes for a new file, as zeros.

    Raises OSError if the disk has less, or the file system does not support it.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.pwrite(descriptor, bytes(size), 0)


def open_memory(name: str) -> int:
    """Create an empty file in memory, which ends with its last process; return its descriptor."""
    if hasattr(os, "memfd_create"):
        descriptor: int = os.memfd_create(name)
        return descriptor
    from tempfile import TemporaryFile

    with TemporaryFile() as file:  # it has no name either
        return os.dup(file.fileno())


@contextmanager
def memory_with_path(name: str) -> Iterator[tuple[int, str]]:
    """Create a file in memory; yield its descriptor, and a path for this user's processes."""
    if hasattr(os, "memfd_create") and PROCESSES.is_dir():
        descriptor = open_memory(name)
        path = str(PROCESSES / str(os.getpid()) / "fd" / str(descriptor))
    else:
        from tempfile import mkstemp

        descriptor, path = mkstemp(prefix=name)
    try:
        yield descriptor, path
    finally:
        os.close(descriptor)
        if not path.startswith(f"{PROCESSES}/"):
            os.unlink(path)


def count_runnable_threads() -> int | None:
    """Return the number of runnable threads of this machine; None where it is unknown."""
    with suppress(OSError, ValueError, IndexError):
        return int(LOAD.read_text().split()[3].partition("/")[0])
    return None


def core_wait() -> float:
    """Return the seconds that this process's main thread has waited for a core; 0 if unknown."""
    with suppress(OSError, ValueError, IndexError):
        return int(SCHEDULE.read_text().split()[1]) / 1e9
    return 0.0


def nvidia_driver() -> str | None:
    """Return the version of the driver of NVIDIA's GPUs; None without one."""
    try:
        return DRIVER.read_text(encoding="utf-8").strip()
    except OSError:
        return None


def is_given_gpu(devices: Path = Path("/dev"), environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process may use NVIDIA GPUs: not hidden, and allowed by its container."""
    if environment.get("CUDA_VISIBLE_DEVICES") in HIDDEN_GPUS:
        return False
    for gpu in devices.glob("nvidia[0-9]*"):
        with suppress(OSError), gpu.open("rb"):  # only opening shows what a control group forbids
            return True
    return False


def boot_id() -> str:
    """Return the id of this boot of the machine, or an empty string where there is none."""
    try:
        return BOOT.read_text("ascii").strip()
    except OSError:
        return ""


def memory_kills() -> int:
    """Return how many processes the kernel killed since boot as it was out of memory.

    It is 0 where they are not counted.
    """
    with suppress(OSError):
        for line in COUNTERS.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def memory_limit(root: Path = CGROUPS, own: Path = OWN_CGROUPS) -> int:
    """Return the bytes of memory that processes of this machine, container or job may use."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for folder in _control_groups("memory", root, own):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):  # it is of the other version, or says max
                limits.append(int((folder / name).read_text()))
    return min(limits)


def peak_memory() -> int:
    """Return the peak resident memory of this process, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # pages of kilobytes elsewhere
