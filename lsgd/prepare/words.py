"""The words by which a run is given what has been prepared."""

import re
import shlex
from pathlib import Path


def word(key: str, path: Path) -> str:
    """A word for a shell and for Hydra, which both have characters of their own.

    >>> print(word("data.root", Path("/data/cats")), word("data.root", Path("my cats")))
    data.root=/data/cats 'data.root='"'"'my cats'"'"''
    """
    plain = re.fullmatch(r"[\w./~-]+", str(path))
    return f"{key}={path}" if plain else shlex.quote(f"{key}='{path}'")
