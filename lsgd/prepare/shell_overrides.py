"""The overrides that point a run to a prepared dataset."""

import shlex
from pathlib import Path

from lsgd.override_syntax import format_override


def shell_override(key: str, path: Path) -> str:
    """Return a `key=path` override, quoted for Hydra and for a shell.

    >>> print(shell_override("data.root", Path("/data/cats")))
    data.root=/data/cats
    >>> print(shell_override("data.root", Path("my cats")))
    'data.root='"'"'my cats'"'"''
    """
    return shlex.quote(format_override(key, path))
