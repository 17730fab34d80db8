"""Preemption by a signal: any one process receives it, and all of them stop after the same step.

SIGTERM, SIGUSR1, SIGUSR2 and SIGHUP, which a closed terminal sends, only set a flag; a second one
changes nothing. In training the flag is part of the all-reduce of the gradients and is read a step
late, with the non-finite flag, so it costs no communication and no wait for the device; with local
steps it is a message of its own, read another step late. In an evaluation it has an all-reduce of
its own, chunk by chunk. A job thus stops within two steps, or three local ones, or two chunks of an
evaluation, and the time of a save. An interrupted evaluation is made after the resume.

Ctrl-C (SIGINT) sets the flag too, with a limit: somebody at a terminal waits no longer than HURRY
seconds, and a second Ctrl-C ends the process at once, with what was saved before.
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

from lsgd.errors import PreemptedError, TrainingInterrupted
from lsgd.job.launcher import detect_launch
from lsgd.job.resuming import own_command, resume_command

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
HURRY = 10.0
"""The seconds after Ctrl-C within which a run is saved, or is left as it was saved last."""

# Global, as signals are. Not an Event: a second signal's handler would deadlock on its lock.
_told = False
_interrupted = False


def stop_requested() -> bool:
    """Return whether this process has received a stop signal since `defer_stop_signals` began."""
    return _told


def stop_exception(step: int, folder: Path) -> BaseException:
    """Return the exception that ends a run saved after this step because of a signal.

    It is TrainingInterrupted where this process got Ctrl-C, else PreemptedError.
    """
    if _interrupted:
        return TrainingInterrupted(
            f"interrupted: saved after step {step} in {folder}; {resume_command(folder)}"
        )
    return PreemptedError(
        f"preempted by a signal: saved after step {step}; rerun the command with "
        f"run_dir={folder} to resume"
    )


@contextmanager
def defer_stop_signals(folder: Path) -> Iterator[None]:
    """Turn stop signals, such as SIGTERM, into a flag within this context, in which a run trains.

    A command that stops keeps these handlers to its end, so that a second signal changes nothing;
    in another program its own handlers are restored. Python handles signals in the main thread
    only; elsewhere this does nothing. Ctrl-C is caught only where it would raise KeyboardInterrupt:
    a program with a handler of its own keeps that.
    """
    global _told, _interrupted
    _told = _interrupted = False
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # nohup sets SIGHUP to be ignored.
    under_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    caught = [each for each in SIGNALS if not (under_nohup and each == signal.SIGHUP)]
    before = {number: signal.signal(number, _take_note) for number in caught}
    over = threading.Event()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, _interruption(folder, over))
    for number in before:
        # Let interrupted system calls of the communication libraries resume, not fail.
        signal.siginterrupt(number, False)
    try:
        yield
        if _interrupted:  # in the last step, so that the run is complete
            raise TrainingInterrupted(f"interrupted after the last step; {folder} is complete")
    except (PreemptedError, TrainingInterrupted):
        _told = True  # the signal may have reached another process alone
        raise
    finally:
        over.set()
        if not stop_requested() or own_command() is None:
            for number, handler in before.items():
                signal.signal(number, handler)


def _take_note(*_: object) -> None:
    global _told
    _told = True


def _interruption(folder: Path, over: threading.Event) -> Callable[..., None]:
    """Return the handler of Ctrl-C, which sets the stop flag and limits the time to save.

    After HURRY seconds it ends the process, unless that is another program, which gets
    KeyboardInterrupt.
    """

    def give_up() -> None:
        if own_command() is None:
            raise KeyboardInterrupt
        if detect_launch().rank == 0:
            left_as = f"interrupted before a save; {folder} is unchanged"
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
        # A launcher may forward a Ctrl-C that the terminal has already sent to every process.
        if _interrupted and detect_launch().launcher == "none":
            give_up()
        if not _interrupted:
            _interrupted = True
            _take_note()
            threading.Thread(target=wait, name="end after Ctrl-C", daemon=True).start()

    return handle


@contextmanager
def block_stop_signals() -> Iterator[None]:
    """Block stop signals, such as SIGTERM, within this context, also in processes it starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*SIGNALS, signal.SIGINT))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@cache
def block_stop_signals_in_compilers() -> None:
    """Block stop signals, such as SIGTERM, from now on in processes that torch.compile starts.

    These are compilers, and the workers of Inductor, which it starts with the first graph for a GPU
    and keeps. Slurm sends a signal to every process of a step, and a compiler that dies ends the
    run.
    """
    from torch._dynamo.callback import on_compile_end, on_compile_start

    compiling = ExitStack()
    on_compile_start(lambda _: compiling.enter_context(block_stop_signals()))
    on_compile_end(lambda _: compiling.close())


class LockstepRounds:
    """The agreement of all processes to stop after the same round of work once any got a signal.

    `start_sum` is Comm.start_all_reduce_; the sums are of a CPU tensor, so no device is waited for.
    """

    def __init__(self, start_sum: Callable[[Tensor, str], Callable[[], None]]) -> None:
        self.start_sum = start_sum
        self.note = torch.zeros(())
        self.wait: Callable[[], None] = lambda: None

    def end_round(self) -> None:
        """End a round; raise PreemptedError on all processes if any had a signal one round ago."""
        self.finish()
        if self.note:
            raise PreemptedError
        self.note.fill_(stop_requested())
        self.wait = self.start_sum(self.note, "preempted")

    def finish(self) -> None:
        """Wait until all processes have ended the last round, without reading their stop flags."""
        self.wait()
        self.wait = lambda: None
