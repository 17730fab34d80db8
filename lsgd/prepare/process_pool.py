"""Parallel work on the parts of a dataset, in processes that end with their parent."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from typing import TypeVar

from tqdm import tqdm

from lsgd.errors import UsageError

T = TypeVar("T")


def in_parallel(
    work: Callable[..., T], tasks: Sequence[tuple[object, ...]], *, processes: int, what: str
) -> Iterator[T]:
    """Call work(*task) for each task in a process pool; yield the results as they complete.

    A progress bar shows on a terminal. If a task raises, the other processes end after their
    current task; every task leaves only complete files, so the same command can resume.
    """
    # None disables the bar where stderr is a file, which it would fill.
    with tqdm(total=len(tasks), desc=what, unit="", disable=None, smoothing=0.05) as bar:
        for result in _results(work, tasks, min(processes, len(tasks))):
            bar.update()
            yield result


def _results(
    work: Callable[..., T], tasks: Sequence[tuple[object, ...]], processes: int
) -> Iterator[T]:
    """Yield the results of work(*task) for all tasks, from this process or from a pool."""
    if processes <= 1:
        yield from (work(*task) for task in tasks)
        return
    # Not fork: this process may have threads, whose held locks a fork would copy.
    context = get_context("forkserver")
    context.set_forkserver_preload([work.__module__])
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_begin)
    try:
        for future in as_completed([pool.submit(work, *task) for task in tasks]):
            yield future.result()
    except BrokenProcessPool:
        raise UsageError(
            f"one of {processes} processes was killed, perhaps as memory ran out; rerun the same "
            "command to resume, with fewer --processes"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """Make a process of the pool ignore Ctrl-C and end with its parent."""
    # Ctrl-C reaches the whole process group; only the parent should act on it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Wait until the parent process has ended, then end this process."""
    # A killed parent closes no queue: its pool would wait for work for ever, and keep writing.
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
