"""What --out keeps of a plan: its text and its plot, in a new folder."""

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from shlex import join

from lsgd.errors import Refused
from lsgd.files import whole
from lsgd.installation import install

Plotter = Callable[..., dict[str, bytes]]
"""Makes the files of a plot, by their names."""


def plotter(name: str) -> Plotter:
    """The function of this name in lsgd.plan.plot; raises Refused without matplotlib."""
    try:
        plot: Plotter = getattr(import_module("lsgd.plan.plot"), name)
    except ImportError as error:
        raise Refused(
            f"--out draws a plot, and matplotlib cannot be imported ({error}); "
            f"type {install('report')}"
        ) from None
    return plot


def keep(folder: Path, argv: Sequence[str], text: str, plots: dict[str, bytes]) -> None:
    """Write plan.md, which begins with the command line, and the plots into the folder."""
    command = join(["python", "-m", "lsgd.plan", *argv])
    for name, content in {"plan.md": f"    {command}\n\n{text}\n".encode(), **plots}.items():
        with whole(folder / name) as file:
            file.write(content)
