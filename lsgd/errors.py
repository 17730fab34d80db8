"""The exceptions that end a run or a command early, each with its own exit code."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from lsgd.sanitizing import sanitize


class ExitError(Exception):
    """The base of all exceptions that end a run or a command early with a sentence for the user.

    The message may contain foreign text; str() returns it sanitized.
    """

    exit_code: int
    has_joined = False
    """Whether it was raised where the processes of the job had joined each other."""
    is_local = False
    """Whether only this process may know of the error.

    If so, this process prints it and exits alone. Otherwise all processes raise it at the same
    place, process 0 prints it, and they exit together.
    """

    def __str__(self) -> str:
        return sanitize(super().__str__())


class UsageError(ExitError):
    """An error in a user's input; its message says in a sentence what to write instead."""

    exit_code = 2

    def __init__(self, message: str, *, is_local: bool = False) -> None:
        super().__init__(message)
        self.is_local = is_local


class DivergedError(ExitError):
    """The end of a run by a non-finite loss or gradient; its last checkpoint is from before it."""

    exit_code = 3


class InputFailedError(ExitError):
    """The failure to load an image, or of a loader process, in a run; checkpoints are intact."""

    exit_code = 4
    is_local = True


class PeerLostError(ExitError):
    """The loss of another process of a distributed job, whose own message gives the reason."""

    exit_code = 5
    is_local = True
    waited = 0.0
    """The seconds in which all processes waited for each other until this; infinite at a timeout.

    It is 0 for a loss that was noticed otherwise.
    """


class StaleRestartError(ExitError):
    """The restart of a process in an epoch that its job has left; another restart may help."""

    exit_code = 1
    is_local = True


class NotSavedError(ExitError):
    """The failure to write a checkpoint or file of a run; earlier checkpoints are intact."""

    exit_code = 6


class UnhealthyNodesError(ExitError):
    """The end of a check of a job's nodes that has found slow or broken ones."""

    exit_code = 1


DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The error numbers of a full disk, an exceeded quota and an exceeded file size limit.

A write that is not essential waits for space and does not end the run.
"""


def disk_full_error(error: OSError, what: object = None) -> NotSavedError | None:
    """Convert an OSError of a full disk to a NotSavedError; return None for any other OSError.

    The message names `what` was written, by default the error's file.
    """
    if error.errno not in DISK_FULL_ERRNOS:
        return None
    ends = NotSavedError(
        f"{what or error.filename or 'a file'} could not be written ({error.strerror}); free "
        "some space and rerun the same command to resume"
    )
    ends.is_local = True
    return ends


UNUSABLE_PATH_ERRNOS = (
    *(errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG),
)
"""The error numbers of a path that a user must change, or its permissions.

A missing file is not among them, as it may be missing by an error of lsgd.
"""


def dangling_link(error: OSError) -> str:
    """Return which link on an error's path leads to a missing target, as a clause; '' if none.

    The error itself says only that the link exists, or that a folder within it does not.
    """
    path = error.filename2 or error.filename  # a renamed file has both, and its new name is meant
    if error.errno not in (errno.EEXIST, errno.ENOENT) or not isinstance(path, str | bytes):
        return ""
    path = os.fsdecode(path)
    while path:
        try:
            os.stat(path)
        except FileNotFoundError:
            if os.path.islink(path):
                return f"{path} leads to {os.readlink(path)}, which does not exist"
        except OSError:
            return ""
        else:
            return ""
        path = os.path.dirname(path)
    return ""


def unusable_path_error(error: OSError) -> UsageError | None:
    """Convert an OSError of a path that cannot be used to a UsageError; return None for others."""
    if link := dangling_link(error):
        return UsageError(f"{link}; make that folder, or remove the link")
    path = error.filename2 or error.filename
    if error.errno not in UNUSABLE_PATH_ERRNOS or not isinstance(path, str | bytes):
        return None
    return UsageError(
        f"{os.fsdecode(path)} cannot be used ({error.strerror}); write another path, or change "
        "this one or its permissions"
    )


NO_COMPILER = (
    *("InvalidCxxCompiler", "Failed to find C compiler"),
    *("working triton installation", "Python.h: No such file"),
)
"""The texts in errors of torch.compile and Triton that show that their compiler is missing."""


def compiler_error(error: RuntimeError) -> UsageError | None:
    """Convert an error of torch.compile without a compiler to a UsageError; None for others."""
    of_compiler = type(error).__module__.startswith(("torch._inductor.", "torch._dynamo."))
    lines = str(error).splitlines() if of_compiler else []
    why = [line.strip() for line in lines if any(text in line for text in NO_COMPILER)]
    if not why:
        return None
    return UsageError(
        f"compile=true needs a compiler, which torch.compile does not find ({why[0]}); install "
        "gcc, g++ and python3-dev, and triton for a GPU, or write compile=false"
    )


@contextmanager
def writing_to(path: object, remedy: str) -> Iterator[None]:
    """Raise UsageError with the remedy if `path` cannot be written within this context.

    Raises NotSavedError instead if its disk is full. The remedy for a name that the locale's
    encoding of file names lacks is another locale.
    """
    try:
        yield
    except UnicodeEncodeError as error:
        if (encoding := sys.getfilesystemencoding()) == "utf-8":
            raise
        raise UsageError(
            f"{path} cannot be written, as {encoding}, the encoding of file names in this locale, "
            f"lacks {error.object[error.start]}; set LC_ALL=C.UTF-8"
        ) from None
    except OSError as error:
        raise disk_full_error(error, path) or UsageError(
            f"{path} cannot be written ({dangling_link(error) or error.strerror}); {remedy}"
        ) from None


@contextmanager
def converting_disk_full(what: object) -> Iterator[None]:
    """Raise NotSavedError instead of OSError if the disk is full while this context writes."""
    try:
        yield
    except OSError as error:
        if ends := disk_full_error(error, what):
            raise ends from None
        raise


class TrainingInterrupted(KeyboardInterrupt):
    """The end of a training by Ctrl-C, after a checkpoint was saved.

    The message names the run folder and the command that resumes it. A program that trains catches
    it as any other KeyboardInterrupt.
    """


class PreemptedError(ExitError):
    """The preemption of the job by a signal, after it saved; the same command resumes it."""

    exit_code = 75
    """The exit code EX_TEMPFAIL: a temporary failure, to be tried again."""
