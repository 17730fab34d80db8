"""Reports of the phases of a step to a listener, as each phase begins.

Methods are wrapped within these contexts only, so a run without profiling calls them directly.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from lsgd.inputs import Inputs
from lsgd.profile.stragglers import BETWEEN_STEPS
from lsgd.rules.sampler import MicroBatch

Listener = Callable[[str], None]
"""A function that is called with the name of a phase as it begins."""


@contextmanager
def reporting_phases(
    calls: Sequence[tuple[str, object, str]], listener: Listener
) -> Iterator[None]:
    """Call a listener as each phase of a training step begins, within this context.

    `calls` are those of Strategy.phases. After the last of them the step ends and BETWEEN_STEPS
    begins.
    """
    for phase, subject, method in calls:
        ends = (phase, subject, method) == calls[-1]
        setattr(subject, method, _reporting(listener, phase, getattr(subject, method), ends))
    try:
        yield
    finally:
        for _, subject, method in calls:
            delattr(subject, method)  # restores the class's method


@contextmanager
def reporting_batches(inputs: Inputs, listener: Listener) -> Iterator[None]:
    """Call a listener as each training batch is requested and as it arrives, within this context.

    The phases are `data wait` and `forward`: the forward pass is the next phase after a batch.
    """
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
            listener(BETWEEN_STEPS)
        return result

    return reporting


def _batches(
    train: Callable[[Iterable[MicroBatch]], Iterator[Any]],
    listener: Listener,
    passes: Iterable[MicroBatch],
) -> Iterator[Any]:
    batches = train(passes)  # at once, since a loader may start loading here

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
