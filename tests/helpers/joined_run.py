"""A run through the page, made by a process that has joined others already."""

import shutil
import signal
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from lsgd.comm import Comm
from lsgd.errors import Diverged, Preempted
from lsgd.job.preemption import SIGNALS
from lsgd.recipe import Recipe
from lsgd.train import train


def train_joined(
    comm: Comm, recipe: Recipe, put: dict[str, Any], begin_with: Path | None = None
) -> str:
    """Train the recipe with other objects put under these names; how it ended, if early.

    It goes on from what is in another folder. Joining once is enough for many runs.
    """
    if begin_with and comm.rank == 0:
        shutil.copytree(begin_with, str(recipe.run_dir), symlinks=True)
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    with ExitStack() as stack:
        stack.enter_context(patch("lsgd.train.joined", lambda *_: nullcontext(comm)))
        for name, value in put.items():
            stack.enter_context(patch(name, value))
        try:
            train(recipe)
        except (Diverged, Preempted) as early:
            return f"{type(early).__name__}: {early}"
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return ""
