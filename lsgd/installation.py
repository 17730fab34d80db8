"""How this installation of lsgd was made, and so which command adds to it.

lsgd runs from a checkout, or is a package that pip installed from a wheel, a URL or an index. The
hints of all messages come from here, since what is right in one of these is wrong in another.
"""

import json
import shlex
import sys
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lsgd.paths import shown

_PACKAGE = Path(__file__).resolve().parent


def checkout() -> Path | None:
    """The folder of the checkout that lsgd runs from; None for an installed package."""
    return _PACKAGE.parent if (_PACKAGE.parent / "pyproject.toml").is_file() else None


def install(*extras: str) -> str:
    """The command that installs these extras beside lsgd, or without any lsgd itself anew."""
    named = f"[{','.join(extras)}]" if extras else ""
    if root := checkout():
        return pip("install", "-e", f"{shown(root)}{named}")
    if origin := _origin():
        return pip("install", f"lsgd{named} @ {origin}")
    # lsgd is on no index: what it needs is.
    return pip("install", *_requirements(extras))


def pip(command: str, *words: str) -> str:
    """The command line of pip for this Python; that of uv, whose environments lack pip."""
    python = _called(Path(sys.executable))
    if _has_pip():
        return shlex.join([python, "-m", "pip", command, *words])
    return shlex.join(["uv", "pip", command, "--python", python, *words])


def _has_pip() -> bool:
    """Return whether pip is installed; setuptools warns of distutils where pip itself is looked
    for."""
    try:
        return metadata.distribution("pip") is not None
    except metadata.PackageNotFoundError:
        return False


def script(name: str) -> str:
    """The command that runs a script of the checkout, such as setup/horovod.sh, for this Python."""
    python, root = Path(sys.executable), checkout()
    if root is None:
        return f"{shlex.join([name, _called(python)])} in a checkout of lsgd"
    ours = python == root / ".venv/bin/python"  # which such a script takes by itself
    return shlex.join([_called(root / name), *([] if ours else [_called(python)])])


def _called(program: Path) -> str:
    """The path of a program from the current folder, in which a shell would not look for a name."""
    path = shown(program)
    return path if "/" in path else f"./{path}"


def _origin() -> str | None:
    """The URL that pip installed lsgd from, as PEP 508 writes it; None if none is known or left."""
    try:
        record = json.loads(metadata.distribution("lsgd").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        return None
    url = str(record.get("url", ""))
    address = urlsplit(url)
    if vcs := record.get("vcs_info"):
        if address.scheme == "file":  # which pip does not take after a name
            return None
        folder = record.get("subdirectory")
        pinned = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
        return f"{pinned}#subdirectory={folder}" if folder else pinned
    if address.scheme == "file" and not Path(unquote(address.path)).exists():
        return None
    return url or None


def _requirements(extras: tuple[str, ...]) -> list[str]:
    """What the extras need, or without any what lsgd itself needs, from the package's metadata."""
    markers = {f"extra == '{extra}'" for extra in extras} or {""}
    try:
        lines = metadata.requires("lsgd") or []
    except metadata.PackageNotFoundError:
        lines = []
    pairs = [line.replace('"', "'").partition(";") for line in lines]
    return [name.strip() for name, _, marker in pairs if marker.strip() in markers]
