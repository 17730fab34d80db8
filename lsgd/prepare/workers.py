"""The same work on many parts of a dataset, in parallel, by processes that outlive no parent."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from typing import TypeVar

from tqdm import tqdm

from lsgd.errors import Refused

T = TypeVar("T")


def in_parallel(
    work: Callable[..., T], tasks: Sequence[tuple[object, ...]], *, processes: int, what: str
) -> Iterator[T]:
    """The result of work(*task) for each task, in the order of completion.

    A progress bar shows on a terminal. What one task raises ends the others after their present
    task; every task leaves only whole files, so the same call later goes on.
    """
    # None: no bar where stderr is a file, which would fill up with it.
    with tqdm(total=len(tasks), desc=what, unit="", disable=None, smoothing=0.05) as bar:
        for result in _results(work, tasks, min(processes, len(tasks))):
            bar.update()
            yield result


def _results(
    work: Callable[..., T], tasks: Sequence[tuple[object, ...]], processes: int
) -> Iterator[T]:
    if processes <= 1:
        yield from (work(*task) for task in tasks)
        return
    # Not a fork: this process may have threads, whose locks a fork would copy as they are.
    context = get_context("forkserver")
    context.set_forkserver_preload([work.__module__])
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_begin)
    try:
        for future in as_completed([pool.submit(work, *task) for task in tasks]):
            yield future.result()
    except BrokenProcessPool:
        raise Refused(
            f"one of {processes} processes was ended from outside, perhaps for want of memory; "
            "the same command goes on, and --processes gives it fewer"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    # Ctrl-C reaches the whole process group; only the parent is to act on it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # A killed parent closes no queue: its pool would wait for work for ever, and go on writing.
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
