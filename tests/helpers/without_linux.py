"""A simulation of systems without Linux's calls and folders, such as macOS."""

import os
from pathlib import Path

from helpers.launching import WITHOUT_COMPILER

ROOT = Path(__file__).resolve().parents[2]

HIDING = """
import ctypes, os, sys

LINUX = {"pidfd_open", "memfd_create", "posix_fallocate", "eventfd", "splice", "copy_file_range"}
for name in LINUX | {name for name in dir(os) if name.startswith("sched_")}:
    if hasattr(os, name):
        delattr(os, name)


def is_hidden(path):
    text = "" if isinstance(path, int) or path is None else os.fsdecode(path)
    return text.startswith(("/proc", "/sys", "/dev/shm"))


def raise_if_hidden(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and is_hidden(arguments[0]):
        raise FileNotFoundError(2, "No such file or directory", arguments[0])


def hiding(real):
    def call(path, *more, **named):
        raise_if_hidden("open", [path])
        return real(path, *more, **named)
    return call


class WithoutPrctl(ctypes.CDLL):
    def __getattr__(self, name):
        if name in ("prctl", "gnu_get_libc_version"):
            raise AttributeError(name)
        return super().__getattr__(name)


sys.addaudithook(raise_if_hidden)
for name in ("stat", "lstat", "statvfs", "readlink", "access"):
    setattr(os, name, hiding(getattr(os, name)))
ctypes.CDLL = WithoutPrctl
"""


def environment_without_linux(folder: Path) -> dict[str, str]:
    """Return environment variables that hide Linux's own calls and folders from a Python process.

    They apply to its child processes too, and not to C libraries. None of these compiles.
    """
    without_compiler = Path(WITHOUT_COMPILER, "sitecustomize.py").read_text()
    (folder / "sitecustomize.py").write_text(f"{HIDING}\n{without_compiler}")
    return os.environ | {"PYTHONPATH": f"{folder}:{ROOT}", "OMP_NUM_THREADS": "1"}
