"""Leaving on a signal: any one process gets it, and all of them leave after the same step.

SIGTERM, SIGUSR1 and SIGUSR2 only leave a note; a second one changes nothing. In training the note
rides in the sum of the gradients and is read a step late, with the non-finite flag, so it costs no
communication and no wait for the device; with local steps it is a message of its own, read another
step late. In an evaluation it is summed by itself, chunk by chunk. A job thus leaves within two
steps, or three local ones, or two chunks of an evaluation, and the time of a save. An evaluation
that was left is made after the resume.

Ctrl-C (SIGINT) is such a note too, with a limit: who waits at a terminal is not kept longer than
HURRY seconds, and a second Ctrl-C ends the process at once, with what was saved before.
"""

import _thread
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from lsgd.errors import Interrupted, Preempted
from lsgd.job.launcher import detect
from lsgd.job.resuming import own_command, resume_command

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
HURRY = 10.0
"""Seconds after Ctrl-C in which a run is saved, or is left as it was saved last."""

# Of the whole process, as signals are. Not an Event, whose lock a second signal would wait for.
_told = False
_interrupted = False


def told() -> bool:
    """Whether this process has been told to leave since it began to listen."""
    return _told


def left(step: int, folder: Path) -> BaseException:
    """Return what ends a run that has been saved after this step because of a signal: Interrupted
    where this process got Ctrl-C, else Preempted."""
    if _interrupted:
        return Interrupted(
            f"interrupted: saved after step {step} in {folder}; {resume_command(folder)}"
        )
    return Preempted(
        f"told to leave by a signal: saved after step {step}, and the same words with "
        f"run_dir={folder} go on from there"
    )


@contextmanager
def listening(folder: Path) -> Iterator[None]:
    """Take signals as notes instead of dying of them, while the run in this folder is trained.

    A process that leaves takes them as notes to its end, so that a second one changes nothing.
    Python hears signals in the main thread only; elsewhere this does nothing. Ctrl-C is a note only
    where it would raise KeyboardInterrupt: a program with a handler of its own keeps that.
    """
    global _told, _interrupted
    _told = _interrupted = False
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _take_note) for number in SIGNALS}
    over = threading.Event()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, _interruption(folder, over))
    for number in before:
        # System calls of the communication libraries are resumed, not failed.
        signal.siginterrupt(number, False)
    try:
        yield
        if _interrupted:  # in the last step, whose end it does not change
            raise Interrupted(f"interrupted after the last step; {folder} is complete")
    except (Preempted, Interrupted):
        _told = True  # the signal may have reached another process alone
        raise
    finally:
        over.set()
        if not told():
            for number, handler in before.items():
                signal.signal(number, handler)
        elif signal.SIGINT in before and own_command() is None:
            signal.signal(signal.SIGINT, before[signal.SIGINT])


def _take_note(*_: object) -> None:
    global _told
    _told = True


def _interruption(folder: Path, over: threading.Event) -> Callable[..., None]:
    """Return the handler of Ctrl-C: a note, and the end of the training if it is not heeded; of the
    process too, unless that is another program, which gets KeyboardInterrupt."""

    def give_up() -> None:
        if own_command() is None:
            raise KeyboardInterrupt
        if detect().rank == 0:
            left_as = f"interrupted before it was saved, and {folder} stays as it was"
            with suppress(OSError):
                sys.stdout.flush()
                os.write(2, f"\nlsgd: {left_as}; {resume_command(folder)}\n".encode())
        os._exit(130)

    def wait() -> None:
        if over.wait(HURRY):
            return
        if own_command() is None:
            _thread.interrupt_main()
        else:
            give_up()

    def handle(*_: object) -> None:
        global _interrupted
        # A launcher may pass on what the terminal has sent to every process.
        if _interrupted and detect().launcher == "none":
            give_up()
        if not _interrupted:
            _interrupted = True
            _take_note()
            threading.Thread(target=wait, name="end after Ctrl-C", daemon=True).start()

    return handle


@contextmanager
def unheard() -> Iterator[None]:
    """Within this context started processes, and their children, never hear the signals."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*SIGNALS, signal.SIGINT))
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
