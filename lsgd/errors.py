"""The ways a run ends early, each with an exit code of its own."""

import errno


class EndsEarly(Exception):
    """Why a run or a command ends early: its message is a sentence for the user."""

    exit_code: int
    here_only = False
    """Whether other processes of the job may know nothing of it: then this one says it, and leaves
    alone; else all raise it at the same place, process 0 says it, and they leave together."""


class Refused(EndsEarly):
    """What was asked for cannot be done; the message says in one sentence what to write instead."""

    exit_code = 2

    def __init__(self, message: str, *, here_only: bool = False) -> None:
        super().__init__(message)
        self.here_only = here_only


class Diverged(EndsEarly):
    """The loss or a gradient is no longer a number; the last checkpoint is from before that."""

    exit_code = 3


class InputFailed(EndsEarly):
    """An image or a loader process failed while the run needed it; its checkpoint is intact."""

    exit_code = 4
    here_only = True


class PeerLost(EndsEarly):
    """Another process of the job has gone, and its own message says why."""

    exit_code = 5
    here_only = True


class TooLate(EndsEarly):
    """A process that has come back finds the others further than what it was told; another life of
    it may be in time."""

    exit_code = 1
    here_only = True


class NotSaved(EndsEarly):
    """The state of the run could not be written; the checkpoints before it are intact."""

    exit_code = 6


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""No space on the disk, none in the quota, none within the limit on the size of a file: what does
not end a run while it may still pass."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C has ended a training that has saved where it was; the message names the run folder and
    what resumes it. A program that trains catches it as any other KeyboardInterrupt."""


class Preempted(EndsEarly):
    """A signal told the job to leave, and it has saved where it was: the same words go on."""

    exit_code = 75
    """EX_TEMPFAIL: what is not wrong and wants to be tried again."""
