"""How a start of the job has ended, by whose fault, and whether another start can help."""

from collections.abc import Sequence
from dataclasses import dataclass

from lsgd.errors import Diverged, InputFailed, NotSaved, PeerLost, Preempted, Refused
from lsgd.job.members import Member

DEATHS = 3
"""After so many in a row without a new checkpoint the job would die for ever."""
INTERRUPTED = 130
ABORTED = "Fatal Python error: Aborted"
"""What Python leaves of SIGABRT."""
CAUSES = {
    Refused.exit_code: "was refused",
    Diverged.exit_code: "diverged",
    InputFailed.exit_code: "had an input that failed",
    PeerLost.exit_code: "lost a peer",
    NotSaved.exit_code: "could not save",
    Preempted.exit_code: "was preempted and has saved",
    INTERRUPTED: "was interrupted",
}


@dataclass(frozen=True)
class Ending:
    """How one start of the job ended."""

    code: int
    """0, the exit code of the process that died first, or 1 if it could not say."""
    cause: str
    """Who and why, in words."""
    lost: bool = False
    """Whether a process was killed or crashed."""


def how_it_ended(dead: Sequence[Member], launcher: str, launcher_code: int | None) -> Ending:
    """The ending that the dead tell of, first death first.

    `launcher_code` as subprocess has it, None if the launcher had not ended by itself.
    """
    if launcher_code == 0:
        return Ending(0, "done")
    failed = [member for member in dead if member.code != 0]
    if launcher_code in CAUSES:
        # It has the code from the process that ended the job, and may have killed others by itself.
        failed.sort(key=lambda member: member.code != launcher_code)
    for first in failed:
        who = f"process {first.rank} on {first.host} (pid {first.pid})"
        if first.code in CAUSES:
            return Ending(first.code, f"{who} {CAUSES[first.code]}: {first.why}")
        return Ending(1, f"{who} {_crash(first, launcher_code)}", lost=True)
    if launcher_code == Refused.exit_code:
        return Ending(launcher_code, f"{launcher} was refused")
    if launcher_code is None or launcher_code < 0:
        return Ending(1, f"{launcher} was killed by signal {-(launcher_code or -9)}")
    return Ending(1, f"{launcher} ended with exit code {launcher_code}, and no process said why")


def _crash(member: Member, launcher_code: int | None) -> str:
    if member.why == ABORTED:
        return (
            "was aborted by a library, as NCCL does a minute after comm.timeout, or once the "
            "network reports that another process has gone; its own message stands above"
        )
    if member.why:
        return f"crashed: {member.why}"
    # Open MPI passes a signal on as 128 + its number; torchrun and horovodrun do not.
    if launcher_code and launcher_code > 128:
        return f"was killed by signal {launcher_code - 128}"
    return "was killed, most likely by signal 9, as it left no words"


def hopeless(ending: Ending, deaths: int, *, again: bool) -> str:
    """Why another start would end as this one did; empty if it may help.

    `deaths` counts the endings in a row without a new checkpoint, and `again` says that this one
    has ended as the last did, at the same place.
    """
    if ending.code in (Refused.exit_code, Diverged.exit_code):
        return "the same words would do the same"
    if ending.code == INTERRUPTED:
        return "somebody has ended it"
    if ending.code == NotSaved.exit_code:
        return "what is written would be lost again; look after the disk, then give the same words"
    if ending.code == InputFailed.exit_code and again:
        return "an input failed twice at the same place"
    if deaths == DEATHS:
        return (
            f"{DEATHS} deaths in a row without a new checkpoint between them; what its processes "
            "said stands above; if they came too early, save more often with checkpoint_steps=N"
        )
    return ""
