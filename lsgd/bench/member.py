"""A process of a job of benchmarks: `python -m lsgd.bench.member SOCKET WORK LIBRARY WORD …`.

See lsgd.bench.job, which starts it.
"""

import json
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import torch

from lsgd.bench.loaders import finish
from lsgd.comm import Comm, agree, open_comm, sum_
from lsgd.config import load_recipe
from lsgd.errors import Refused
from lsgd.job.command import run_command
from lsgd.job.device import pick_device
from lsgd.recipe import Recipe

WAIT = 3600.0
"""Seconds that a process waits for the others; who has started the job gives up much sooner."""


class Works(Protocol):
    """What a job can be asked to do: `open`, which comes first, and rounds of work by name."""

    def open(self, setting: Any) -> Any:
        """Make everything ready for this setting; returns what is to be known about it."""

    works: Mapping[str, Callable[[int], None]]
    """Each does its work so many times."""


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    address, work, library, *words = argv
    return run_command(lambda: join(address, work, library, words))


def join(address: str, work: str, library: str, words: Sequence[str]) -> None:
    """Meet the others and do what is asked for, until who asks has gone."""
    recipe = load_recipe(words)
    device = pick_device(recipe.device)
    comm = open_comm(replace(recipe.comm, library=library, timeout=WAIT), device)
    try:
        serve(_works(work, recipe, comm, device), comm, device, address)
    finally:
        comm.close()


def serve(works: Works, comm: Comm, device: torch.device, address: str) -> None:
    """Answer requests, which process 0 reads and tells the others."""
    meeting = torch.zeros(1, device=device)
    with _requests(address if comm.rank == 0 else None) as (requests, answer):
        while (request := comm.broadcast_object(next(requests, None))) is not None:
            name, argument = request
            try:
                if name == "open":
                    done = agree(comm, lambda: works.open(argument))  # noqa: B023
                else:
                    works.works[name](argument)
                    done = argument
            except Refused as refusal:
                answer({"refused": str(refusal)})
                continue
            finish(device)
            # All are through before the clock is stopped.
            sum_(comm, meeting)
            finish(device)
            answer({"done": done})


@contextmanager
def _requests(address: str | None) -> Iterator[tuple[Iterator[Any], Callable[[Any], None]]]:
    if address is None:
        yield iter(()), lambda answer: None
        return
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        lines, out = connection.makefile("r"), connection.makefile("w")
        yield map(json.loads, lines), lambda answer: print(json.dumps(answer), file=out, flush=True)


def _works(work: str, recipe: Recipe, comm: Comm, device: torch.device) -> Works:
    match work:
        case "reductions":
            from lsgd.bench.reductions import Reductions

            return Reductions(recipe, comm, device)
        case "steps":
            from lsgd.bench.scaling import Steps

            return Steps(recipe, comm, device)
    raise ValueError(work)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
