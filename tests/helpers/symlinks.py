"""A drive that refuses symbolic links, as some network drives and formats of USB disks do."""

import os
from typing import NoReturn

import pytest


def refuse_symlinks(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let every symlink fail with this error number from now on."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(number, "refused")

    monkeypatch.setattr(os, "symlink", refuse)
