"""A bare Debian system for one case: cached folders below a writable overlay, in own namespaces.

All mounts are in the mount namespace of a single command, and no process of the command outlives
its process namespace. The network is the machine's.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fresh.cases import Case

STRANGER = 1000
PASSED = (
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"),
)
"""The variables of this machine that a case gets: proxies and certificates, but none of pip's."""
COPIED = ("/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt")
"""The files of this machine that a case gets, beside those that the variables above name."""
PYENV_INSIDE = "/opt/pyenv"

# The arguments are the mount point, the options of the overlay, pairs of a folder outside and its
# place inside, --, and the command. Bash stays as process 1 to collect orphans: a chroot in its
# place would lose the signal that ends it with unshare, when it changes its user.
ENTER = r"""
set -e
root=$1
mount -t overlay -o "$2" overlay "$root"
shift 2
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=666 devpts "$root/dev/pts"
for node in full null random tty urandom zero; do
    touch "$root/dev/$node"
    mount --bind "/dev/$node" "$root/dev/$node"
done
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
ln -s /proc/self/fd/0 "$root/dev/stdin"
ln -s /proc/self/fd/1 "$root/dev/stdout"
ln -s /proc/self/fd/2 "$root/dev/stderr"
while [[ $1 != -- ]]; do
    mkdir -p "$root$2"
    mount --bind "$1" "$root$2"
    shift 2
done
shift
chroot "$root" /sbin/ldconfig
code=0
chroot "$@" || code=$?
exit $code
"""


def size(folder: Path) -> int:
    """Return the bytes that a folder takes on the disk; a file with several links counts once."""
    du = subprocess.run(["du", "-s", "-B1", folder], capture_output=True, text=True, check=True)
    return int(du.stdout.split()[0])


def mirror(sources: str) -> str:
    """Return the first archive of Debian that the text of apt's sources names, or an empty string.

    >>> mirror("Types: deb\\nURIs: http://mirror.example/debian\\nSuites: bookworm")
    'http://mirror.example/debian'
    >>> mirror("# deb http://old.example/debian x\\ndeb [arch=all] http://new.example/debian/ x")
    'http://new.example/debian/'
    """
    found = re.search(r"^(?:URIs:|deb(?: \[.*\])?) +(\S+/debian/?)(?:\s|$)", sources, re.MULTILINE)
    return found[1] if found else ""


def passed_environment(outside: Mapping[str, str], case: Case) -> dict[str, str]:
    """Return a case's environment variables: a login's, those in PASSED, and the case's own."""
    path = f"{PYENV_INSIDE}/bin:" * bool(case.pyenv) + "/usr/local/bin:/usr/bin:/bin"
    login = {"HOME": home(case.user), "USER": case.user, "LOGNAME": case.user}
    login |= {"PATH": path, "SHELL": "/bin/bash", "TERM": "xterm"}
    passed = {name: outside[name] for name in PASSED if name in outside}
    return login | passed | dict(case.environment)


def home(user: str) -> str:
    """Return a user's home folder inside the Debian system."""
    return "/root" if user == "root" else f"/home/{user}"


@dataclass(frozen=True)
class DebianSystem:
    """A Debian system of read-only folders, the topmost first, and a writable one."""

    read_only_folders: tuple[Path, ...]
    upper: Path
    binds: tuple[tuple[Path, str], ...] = ()
    """The folders outside, each with its place inside."""

    def create(self) -> None:
        """Create the writable folder, with copies of this machine's files that a case needs."""
        self.delete()
        for folder in (self.upper, *self._beside()):
            folder.mkdir(parents=True)
            folder.chmod(0o755)
        for file in (*COPIED, *(os.environ[name] for name in PASSED if name in os.environ)):
            if Path(file).is_file():
                (self.upper / file[1:]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, self.upper / file[1:])
        # Where pyenv has built the Python, its libpython was in another folder.
        linker = self.upper / "etc/ld.so.conf.d/pyenv.conf"
        linker.parent.mkdir(parents=True, exist_ok=True)
        linker.write_text(f"{PYENV_INSIDE}/lib\n")

    def command(self, *words: str, user: str, environment: Mapping[str, str]) -> list[str]:
        """Return the command line that runs a command inside this Debian system."""
        work, point = map(str, self._beside())
        lower = ":".join(map(str, self.read_only_folders))
        number = 0 if user == "root" else STRANGER
        return [
            *("unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", ENTER, "bash"),
            *(point, f"lowerdir={lower},upperdir={self.upper},workdir={work}"),
            *(str(each) for pair in self.binds for each in pair),
            *("--", f"--userspec={number}:{number}", point),
            *("env", "-i", *(f"{name}={value}" for name, value in environment.items()), *words),
        ]

    def delete(self) -> None:
        """Delete the writable folder of this Debian system."""
        for folder in (self.upper, *self._beside()):
            shutil.rmtree(folder, ignore_errors=True)

    def _beside(self) -> tuple[Path, Path]:
        """Return the folder in which the kernel prepares files, and the mount point."""
        return Path(f"{self.upper}.work"), Path(f"{self.upper}.mounted")


def debian(cache: Path, release: str, packages: Sequence[str], archive: str) -> tuple[Path, ...]:
    """Return the folders of a Debian system with these packages, created unless they are cached."""
    base = cache / release
    if not base.is_dir():
        unfinished = Path(f"{base}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        # debootstrap mounts folders while it works, and leaves them mounted if it fails.
        make = ("debootstrap", "--variant=minbase", release, str(unfinished), archive)
        _quietly("unshare", "--mount", *make)
        useradd = ("useradd", "--create-home", "--shell=/bin/bash", f"--uid={STRANGER}", "stranger")
        _quietly("chroot", str(unfinished), *useradd)
        unfinished.rename(base)
    layer = cache / "+".join([release, *sorted(packages)])
    if not layer.is_dir():
        root = DebianSystem((base,), Path(f"{layer}.unfinished"))
        root.create()
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"}
        install = f"apt-get install -qy --no-install-recommends {' '.join(packages)}"
        script = f"apt-get update -q && {install} && apt-get clean"
        _quietly(*root.command("sh", "-c", script, user="root", environment=environment))
        root.upper.rename(layer)
        root.delete()
    return layer, base


def _quietly(*command: str) -> None:
    """Run a command; if it fails, exit with its output."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        sys.exit(
            f"{done.stdout.decode(errors='replace')}\n{shlex.join(command)} has failed; see above"
        )
