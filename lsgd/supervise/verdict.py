"""The evaluation of a job's exit: which process caused it, and whether a restart can succeed."""

from collections.abc import Sequence
from dataclasses import dataclass

from lsgd.errors import (
    DivergedError,
    InputFailedError,
    NotSavedError,
    PeerLostError,
    PreemptedError,
    UsageError,
)
from lsgd.job.members import ProcessRecord

DEATHS = 3
"""The number of consecutive deaths without a new checkpoint after which to give up."""
INTERRUPTED = 130
ABORTED = "Fatal Python error: Aborted"
"""The line that Python's faulthandler writes at SIGABRT."""
CAUSES = {
    UsageError.exit_code: "reported a usage error",
    DivergedError.exit_code: "diverged",
    InputFailedError.exit_code: "had an input that failed",
    PeerLostError.exit_code: "lost a peer",
    NotSavedError.exit_code: "could not save",
    PreemptedError.exit_code: "was preempted and has saved",
    INTERRUPTED: "was interrupted",
}


@dataclass(frozen=True)
class ExitSummary:
    """The exit of one start of a job: its exit code, its cause, and whether a process was lost."""

    code: int
    """0, the exit code of the process that died first, or 1 if it has none."""
    cause: str
    """The process and the reason, in words."""
    lost: bool = False
    """Whether a process was killed or crashed."""


def summarize_exit(
    dead: Sequence[ProcessRecord], launcher: str, launcher_code: int | None
) -> ExitSummary:
    """Determine why the job ended, from the records of its dead processes, first death first.

    `launcher_code` is as in subprocess, None if the supervisor had to end the launcher.
    """
    if launcher_code == 0:
        return ExitSummary(0, "done")
    failed = [member for member in dead if member.code != 0]
    if launcher_code in CAUSES:
        # The launcher passes on the code of the process that ended the job; it may kill others.
        failed.sort(key=lambda member: member.code != launcher_code)
    # On a full disk, a process may have been unable to write its own report.
    unsaid = launcher_code == NotSavedError.exit_code and all(m.code is None for m in failed)
    if launcher_code is not None and unsaid:
        return ExitSummary(launcher_code, f"{launcher} {CAUSES[launcher_code]}")
    for first in failed:
        who = f"process {first.rank} on {first.host} (pid {first.pid})"
        if first.code in CAUSES:
            return ExitSummary(first.code, f"{who} {CAUSES[first.code]}: {first.why}")
        return ExitSummary(1, f"{who} {_crash(first, launcher_code)}", lost=True)
    if launcher_code == UsageError.exit_code:
        return ExitSummary(launcher_code, f"{launcher} reported a usage error")
    if launcher_code is None or launcher_code < 0:
        return ExitSummary(1, f"{launcher} was killed by signal {-(launcher_code or -9)}")
    return ExitSummary(
        1, f"{launcher} ended with exit code {launcher_code}, and no process gave a reason"
    )


def _crash(member: ProcessRecord, launcher_code: int | None) -> str:
    if member.why == ABORTED:
        return (
            "was aborted by a library, as NCCL does a minute after comm.timeout, or once the "
            "network reports that another process has gone; its own message is above"
        )
    if member.why:
        return f"crashed: {member.why}"
    # Open MPI returns 128 + the signal's number; torchrun and horovodrun do not.
    if launcher_code and launcher_code > 128:
        return f"was killed by signal {launcher_code - 128}"
    return "was killed, most likely by signal 9, as it printed nothing"


def restart_obstacle(ending: ExitSummary, deaths: int, *, same_failure: bool) -> str:
    """Return why a restart of the job cannot succeed, or an empty string if it might.

    `deaths` counts the exits in a row without a new checkpoint, and `same_failure` is whether this
    exit has the same code and place as the last.
    """
    if ending.code in (UsageError.exit_code, DivergedError.exit_code):
        return "the same command would fail again"
    if ending.code == INTERRUPTED:
        return "it was interrupted by the user"
    if ending.code == NotSavedError.exit_code:
        return "writes would be lost again; check the disk, then rerun the same command"
    if ending.code == InputFailedError.exit_code and same_failure:
        return "an input failed twice at the same step"
    if deaths == DEATHS:
        return (
            f"{DEATHS} deaths in a row without a new checkpoint between them; the messages of "
            "its processes are above; if they died before a save, save more often with "
            "checkpoint_steps=N"
        )
    return ""
