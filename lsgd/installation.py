"""The origin of this installation of lsgd, and the commands that add packages to it.

lsgd runs from a checkout, or as a package that pip installed from a wheel, a URL or an index. All
messages take their hints from here, since each kind of installation needs another command.
"""

import json
import shlex
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lsgd.paths import display_path

_PACKAGE = Path(__file__).resolve().parent


def checkout_folder() -> Path | None:
    """Return the folder of the source checkout that lsgd runs from; None if it is installed."""
    return _PACKAGE.parent if (_PACKAGE.parent / "pyproject.toml").is_file() else None


def is_installed(package: str) -> bool:
    """Return whether a Python package is installed, without importing it.

    A folder on sys.path with the package's name, such as wandb/, where that library keeps its runs,
    can be imported but is no package.
    """
    spec = find_spec(package)
    return spec is not None and spec.origin is not None


def install_command(*extras: str) -> str:
    """Return the command that installs these extras of lsgd; without extras, that reinstalls it."""
    named = f"[{','.join(extras)}]" if extras else ""
    if root := checkout_folder():
        return pip_command("install", "-e", f"{display_path(root)}{named}")
    if origin := _origin():
        return pip_command("install", f"lsgd{named} @ {origin}")
    # lsgd is on no index, but its requirements are.
    return pip_command("install", *_requirements(extras))


def pip_command(command: str, *arguments: str) -> str:
    """Return a pip command line for this Python, or uv's in an environment that lacks pip."""
    python = _shell_path(Path(sys.executable))
    if _has_pip():
        return shlex.join([python, "-m", "pip", command, *arguments])
    return shlex.join(["uv", "pip", command, "--python", python, *arguments])


def _has_pip() -> bool:
    """Return whether pip is installed in this Python environment.

    Finding the module pip itself would make setuptools warn about distutils.
    """
    try:
        return metadata.distribution("pip") is not None
    except metadata.PackageNotFoundError:
        return False


def script_command(name: str) -> str:
    """Return the command that runs a setup script of the checkout, such as setup/horovod.sh.

    It passes this Python to the script, unless the script uses it by default.
    """
    python, root = Path(sys.executable), checkout_folder()
    if root is None:
        return f"{shlex.join([name, _shell_path(python)])} in a checkout of lsgd"
    ours = python == root / ".venv/bin/python"  # the default of such a script
    return shlex.join([_shell_path(root / name), *([] if ours else [_shell_path(python)])])


def _shell_path(program: Path) -> str:
    """Return a program's path as a shell needs it, with ./ before a bare file name."""
    path = display_path(program)
    return path if "/" in path else f"./{path}"


def _origin() -> str | None:
    """Return the URL from which pip installed lsgd, in PEP 508 form; None if unknown or gone."""
    try:
        record = json.loads(metadata.distribution("lsgd").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        return None
    url = str(record.get("url", ""))
    address = urlsplit(url)
    if vcs := record.get("vcs_info"):
        if address.scheme == "file":  # pip does not accept it after a name
            return None
        folder = record.get("subdirectory")
        pinned = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
        return f"{pinned}#subdirectory={folder}" if folder else pinned
    if address.scheme == "file" and not Path(unquote(address.path)).exists():
        return None
    return url or None


def _requirements(extras: tuple[str, ...]) -> list[str]:
    """Read the packages that these extras of lsgd, or without any lsgd itself, require."""
    markers = {f"extra == '{extra}'" for extra in extras} or {""}
    try:
        lines = metadata.requires("lsgd") or []
    except metadata.PackageNotFoundError:
        lines = []
    pairs = [line.replace('"', "'").partition(";") for line in lines]
    return [name.strip() for name, _, marker in pairs if marker.strip() in markers]
