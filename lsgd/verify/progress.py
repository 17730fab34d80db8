"""The progress lines of a verification: executed steps, evaluations and the time left."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lsgd.recipe import Recipe
from lsgd.run.console import QUIET, WORTH_SAYING
from lsgd.run.remaining import RemainingTime, duration

DIRECTIONS = (1, -1)
"""The factors of the perturbation, by perturbed copy."""
EXECUTIONS = len(DIRECTIONS) + 1
"""The executions of the steps of a place: one as they are, two with perturbed parameters."""


@dataclass(frozen=True)
class Work:
    """A number of steps to execute and of evaluations to make."""

    steps: int
    evaluations: int

    def __add__(self, other: "Work") -> "Work":
        return Work(self.steps + other.steps, self.evaluations + other.evaluations)


def work_of_place(recipe: Recipe, place: int, last: int) -> Work:
    """Return the work of executing the steps of a run from a place to before step `last`.

    A model restored where the run was evaluated is evaluated too.
    """
    # An epoch that ends at the place itself counts, unless that is the start.
    first, end = recipe.locate_step(max(0, place - 1))[0], recipe.locate_step(last)[0]
    evaluated = sum(map(recipe.evaluates_after, range(first, end)))
    for epoch in range(first, min(end + 1, recipe.epochs)):
        evaluated += sum(place <= step <= last for step in recipe.evaluation_places(epoch))
    return Work(EXECUTIONS * (last - place), EXECUTIONS * evaluated)


class Progress:
    """The printer of a verification's progress: a line whenever none was printed for QUIET seconds.

    `places` has the work of each place by its step. Nothing is printed without `print_line`, as on
    every process but process 0.
    """

    def __init__(
        self,
        places: Mapping[int, Work],
        print_line: Callable[[str], object] | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.places, self.print_line, self.clock = places, print_line, clock
        self.all = sum(places.values(), Work(0, 0))
        self.done = Work(0, 0)
        self._remaining = RemainingTime()
        self._printed = clock()

    def start_execution(self, place: int, number: int) -> None:
        """Start an execution of the steps after a place, by its number from 0.

        All before it is done, also if it ended early.
        """
        own = self.places[place]
        done = [work for step, work in self.places.items() if step < place]
        done += [Work(own.steps // EXECUTIONS, own.evaluations // EXECUTIONS)] * number
        self.done = sum(done, Work(0, 0))
        self._start_steps()

    def watch_batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the micro-batches of steps; print progress between them, as one may take long."""
        for batch in batches:
            self._print("")
            yield batch

    def end_step(self) -> None:
        """Count a step that was executed."""
        self.done += Work(1, 0)
        self._remaining.update(self.clock(), self.done.steps)
        self._print("")

    def watch_evaluation(self, split: str, done: int, passes: int) -> None:
        """Print how many micro-batches of an evaluation set are evaluated."""
        self._remaining.start_evaluation(self.clock())
        self._print(f", evaluating {split}: batch {done}/{passes}")

    def end_evaluation(self) -> None:
        """Count an evaluation that was made."""
        self._remaining.end_evaluation(self.clock())
        self.done += Work(0, 1)
        self._start_steps()

    def _start_steps(self) -> None:
        # What is not a step, such as reading a checkpoint, must not count as the time of one.
        self._remaining.start_training()
        self._remaining.update(self.clock(), self.done.steps)

    def _print(self, what: str) -> None:
        now = self.clock()
        if self.print_line is None or now - self._printed < QUIET:
            return
        self._printed = now
        evaluations = self.all.evaluations - self.done.evaluations
        left = self._remaining.seconds(self.all.steps - self.done.steps, evaluations)
        if left is not None and left >= WORTH_SAYING:
            is_unknown = evaluations and not self._remaining.seconds_per_evaluation
            what += f", {'at least ' if is_unknown else ''}{duration(left)} left"
        self.print_line(f"step {self.done.steps} of {self.all.steps}{what}")
