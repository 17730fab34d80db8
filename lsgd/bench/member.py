"""One process of a benchmark's job; lsgd.bench.job starts it, and asks it to work.

A module that runs as such a process ends in

    if __name__ == "__main__":
        raise SystemExit(main(ItsAssignment, sys.argv[1:]))
"""

import json
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import torch

from lsgd.bench.loaders import finish
from lsgd.comm import Comm, agree, joined, sum_
from lsgd.config import load_recipe
from lsgd.errors import Refused
from lsgd.job.command import run_command
from lsgd.job.device import pick_device
from lsgd.recipe import Recipe

WAIT = 3600.0
"""Seconds that a process waits for the others; the benchmark itself gives up much sooner."""


class Assignment(Protocol):
    """The work of a job's processes: to prepare a setting, then to run its candidates.

    Arguments and answers are such as JSON can hold; the answers of process 0 count.
    """

    def prepare(self, setting: Any) -> Any:
        """Make the candidates of this setting; returns facts about them for the report.

        Raises Refused, on any of the processes, if the setting is not possible.
        """

    candidates: Mapping[str, Callable[[int], Any]]
    """The candidates by name: each does a piece of work, given for example the number of steps."""


AssignmentOf = Callable[[Recipe, Comm, torch.device], Assignment]
"""A function that makes the assignment of a process, with nothing prepared yet."""


def main(make: AssignmentOf, argv: Sequence[str]) -> int:
    """Run as a process of a job whose words are SOCKET LIBRARY WORD …; returns the exit code."""
    address, library, *words = argv
    return run_command(lambda: join(make, address, library, words))


def join(make: AssignmentOf, address: str, library: str, words: Sequence[str]) -> None:
    """Meet the other processes over a library of lsgd.comm, and work until the benchmark ends."""
    recipe = load_recipe(words)
    device = pick_device(recipe.device)
    with joined(replace(recipe.comm, library=library, timeout=WAIT), device) as comm:
        serve(make(recipe, comm, device), comm, device, address)


def serve(assignment: Assignment, comm: Comm, device: torch.device, address: str) -> None:
    """Answer the requests that process 0 reads from the socket and hands to the others."""
    meeting = torch.zeros(1, device=device)
    with _requests(address if comm.rank == 0 else None) as (requests, answer):
        while (request := comm.broadcast_object(next(requests, None))) is not None:
            try:
                match request:
                    case ["prepare", setting]:
                        done = agree(comm, lambda: assignment.prepare(setting))
                    case ["run", name, argument]:
                        done = assignment.candidates[name](argument)
            except Refused as refusal:
                answer({"refused": str(refusal)})
                continue
            finish(device)
            # All processes have to be done before the clock is stopped.
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
