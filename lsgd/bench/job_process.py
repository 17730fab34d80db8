"""A process of a benchmark job, which lsgd.bench.job starts and sends requests to.

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

from lsgd.comm import Comm, all_or_raise, all_reduce_, joined
from lsgd.config import load_recipe
from lsgd.errors import UsageError
from lsgd.job.command import run_command
from lsgd.job.device import pick_device, synchronize
from lsgd.recipe import Recipe

PEER_TIMEOUT = 3600.0
"""Seconds that a process waits for its peers; the benchmark itself gives up much sooner."""


class Assignment(Protocol):
    """The work of a benchmark job's processes: prepare a setting, then run its candidates.

    Arguments and results are JSON values; process 0's results are returned to the benchmark.
    """

    def prepare(self, setting: Any) -> Any:
        """Create the candidates of a benchmark's setting and return facts for the report.

        Raises UsageError, on any of the processes, if the setting is not possible.
        """

    candidates: Mapping[str, Callable[[int], Any]]
    """The candidates by name, functions that do an amount of work, such as a number of steps."""


AssignmentOf = Callable[[Recipe, Comm, torch.device], Assignment]
"""A function that creates the assignment of a process, without preparing a setting."""


def main(make: AssignmentOf, argv: Sequence[str]) -> int:
    """Run a process of a benchmark job by the arguments SOCKET LIBRARY OVERRIDE …."""
    address, library, *overrides = argv
    return run_command(lambda: join(make, address, library, overrides))


def join(make: AssignmentOf, address: str, library: str, overrides: Sequence[str]) -> None:
    """Connect this process to its benchmark job over a library of lsgd.comm and serve requests."""
    recipe = load_recipe(overrides)
    device = pick_device(recipe.device)
    with joined(replace(recipe.comm, library=library, timeout=PEER_TIMEOUT), device) as comm:
        serve(make(recipe, comm, device), comm, device, address)


def serve(assignment: Assignment, comm: Comm, device: torch.device, address: str) -> None:
    """Execute a benchmark's requests, which process 0 reads and broadcasts, and send replies."""
    meeting = torch.zeros(1, device=device)
    with _requests(address if comm.rank == 0 else None) as (requests, answer):
        while (request := comm.broadcast_object(next(requests, None))) is not None:
            try:
                match request:
                    case ["prepare", setting]:
                        done = all_or_raise(comm, lambda: assignment.prepare(setting))
                    case ["run", name, argument]:
                        done = assignment.candidates[name](argument)
            except UsageError as refusal:
                answer({"refused": str(refusal)})
                continue
            synchronize(device)
            # All processes must finish before the clock stops.
            all_reduce_(comm, meeting)
            synchronize(device)
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
