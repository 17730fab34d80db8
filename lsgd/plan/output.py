"""The output files of a plan (--out): its text and its plot, in a new folder."""

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from shlex import join

from lsgd.errors import UsageError
from lsgd.files import atomic_write
from lsgd.installation import install_command

Plotter = Callable[..., dict[str, bytes]]
"""A function that returns the contents of a plot's files, by file name."""


def plotter(name: str) -> Plotter:
    """Import the function of this name that plots a plan, which needs matplotlib.

    Raises UsageError if matplotlib cannot be imported.
    """
    try:
        plot: Plotter = getattr(import_module("lsgd.plan.plot"), name)
    except ImportError as error:
        raise UsageError(
            f"--out draws a plot, and matplotlib cannot be imported ({error}); run"
            f" {install_command('report')}"
        ) from None
    return plot


def write_plan(folder: Path, argv: Sequence[str], text: str, plots: dict[str, bytes]) -> None:
    """Write a plan's text, with its command line, and its plots as files into a folder.

    The text is in plan.md, which begins with the command line.
    """
    command = join(["python", "-m", "lsgd.plan", *argv])
    for name, content in {"plan.md": f"    {command}\n\n{text}\n".encode(), **plots}.items():
        with atomic_write(folder / name) as file:
            file.write(content)
