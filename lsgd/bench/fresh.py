"""Work in a process of its own, so that nothing else counts, and what ends it is said."""

from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from lsgd.errors import Refused

T = TypeVar("T")


def in_fresh_process(limit: float, function: Callable[..., T], *arguments: Any) -> T:
    """What the function returns; the process has ended then.

    Raises Refused if it does not return in so many seconds, or dies; and what the function refuses.
    """
    # Not forked: it would begin with the memory of this one.
    context = get_context("spawn")
    answers, its_end = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(its_end, function, arguments))
    process.start()
    its_end.close()
    try:
        if not answers.poll(limit):
            raise Refused(f"a process that measures did not end in {limit:g} s; mend that first")
        answer = answers.recv()
        process.join(limit)
    except EOFError:
        process.join(limit)
        raise Refused(
            f"a process that measures died (exit code {process.exitcode}, where -9 is mostly for "
            "lack of memory); mend that first"
        ) from None
    finally:
        process.kill()
        process.join()
    if isinstance(answer, Refused):
        raise answer
    returned: T = answer
    return returned


def _answer(answers: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        answer = function(*arguments)
    except Refused as refusal:
        answer = refusal
    answers.send(answer)
