"""Tells a listener of each phase of a step as it begins.

Methods are wrapped inside these contexts only: a run that is not profiled calls them as they are.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from lsgd.inputs import Inputs
from lsgd.profile.stragglers import BETWEEN
from lsgd.rules.sampler import Pass

Listener = Callable[[str], None]
"""A function that is called with the name of a phase as it begins and the one before ends."""


@contextmanager
def reporting_phases(
    calls: Sequence[tuple[str, object, str]], listener: Listener
) -> Iterator[None]:
    """Report the phases of every step made in here to the listener; Strategy.timed has the calls.

    After the last of these calls the step has ended, and BETWEEN begins.
    """
    for phase, subject, method in calls:
        ends = (phase, subject, method) == calls[-1]
        setattr(subject, method, _reporting(listener, phase, getattr(subject, method), ends))
    try:
        yield
    finally:
        for _, subject, method in calls:
            delattr(subject, method)  # which uncovers the method of the class


@contextmanager
def reporting_batches(inputs: Inputs, listener: Listener) -> Iterator[None]:
    """Report `data wait` whenever a batch of training is requested in here, and `forward` when it
    has come, since the forward pass is next."""
    inputs.train = partial(_batches, inputs.train, listener)  # type: ignore[method-assign]
    try:
        yield
    finally:
        del inputs.train


def _reporting(
    listener: Listener, phase: str, method: Callable[..., Any], ends: bool
) -> Callable[..., Any]:
    def reporting(*args: Any, **kwargs: Any) -> Any:
        listener(phase)
        result = method(*args, **kwargs)
        if ends:
            listener(BETWEEN)
        return result

    return reporting


def _batches(
    train: Callable[[Iterable[Pass]], Iterator[Any]], listener: Listener, passes: Iterable[Pass]
) -> Iterator[Any]:
    batches = train(passes)  # at once, as a loader may begin to load here

    def reporting() -> Iterator[Any]:
        while True:
            listener("data wait")
            try:
                batch = next(batches)
            except StopIteration:
                return
            listener("forward")
            yield batch

    return reporting()
