"""Leaving on a signal: any one process gets it, and all of them leave after the same step.

SIGTERM, SIGUSR1 and SIGUSR2 only leave a note; a second one changes nothing. In training the note
rides in the sum of the gradients and is read a step late, with the non-finite flag, so it costs no
communication and no wait for the device; with local steps it is a message of its own, read another
step late. In an evaluation it is summed by itself, chunk by chunk. A job thus leaves within two
steps, or three local ones, or two chunks of an evaluation, and the time of a save. An evaluation
that was left is made after the resume. SIGINT remains KeyboardInterrupt.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

import torch
from torch import Tensor

from lsgd.errors import Preempted

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)

# Of the whole process, as signals are. Not an Event, whose lock a second signal would wait for.
_told = False


def told() -> bool:
    """Whether this process has been told to leave since it began to listen."""
    return _told


@contextmanager
def listening() -> Iterator[None]:
    """Take signals as notes instead of dying of them.

    A process that leaves takes them as notes to its end, so that a second one changes nothing.
    Python hears signals in the main thread only; elsewhere this does nothing.
    """
    global _told
    _told = False
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _take_note) for number in SIGNALS}
    for number in SIGNALS:
        # System calls of the communication libraries are resumed, not failed.
        signal.siginterrupt(number, False)
    try:
        yield
    except Preempted:
        _told = True  # the signal may have reached another process alone
        raise
    finally:
        if not told():
            for number, handler in before.items():
                signal.signal(number, handler)


def _take_note(*_: object) -> None:
    global _told
    _told = True


@contextmanager
def unheard() -> Iterator[None]:
    """Within this context started processes, and their children, never hear the signals."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@cache
def compile_unheard() -> None:
    """From now on the processes that torch.compile starts never hear the signals: compilers, and
    the workers of Inductor, which it starts with the first graph for a GPU and keeps.

    Slurm sends a signal to every process of a step, and a compiler that dies ends the run.
    """
    from torch._dynamo.callback import on_compile_end, on_compile_start

    compiling = ExitStack()
    on_compile_start(lambda _: compiling.enter_context(unheard()))
    on_compile_end(lambda _: compiling.close())


class Rounds:
    """Rounds of work that all processes make, each at its own pace, and leave after the same one.

    `start_sum` is Comm.start_sum_; the sums are of a tensor on the CPU, so no device is waited for.
    """

    def __init__(self, start_sum: Callable[[Tensor, str], Callable[[], None]]) -> None:
        self.start_sum = start_sum
        self.note = torch.zeros(())
        self.wait: Callable[[], None] = lambda: None

    def end_round(self) -> None:
        """Raise Preempted, on all processes, if any was told to leave before the last round."""
        self.finish()
        if self.note:
            raise Preempted
        self.note.fill_(told())
        self.wait = self.start_sum(self.note, "told to leave")

    def finish(self) -> None:
        """Wait for the others to end the round, without a look at their notes."""
        self.wait()
        self.wait = lambda: None
