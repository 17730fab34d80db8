"""Who is to blame for the end of a job, and what the others only suffered."""

from lsgd.job.members import Member
from lsgd.supervise.verdict import Ending, how_it_ended


def test_an_abort_is_told_in_words() -> None:
    """Of which Python leaves no more than this; NCCL's watchdog ends a process so."""
    dead = [Member(3, "here", 9, None, "Fatal Python error: Aborted")]
    ending = how_it_ended(dead, "torchrun", 1)
    assert ending.lost
    assert ending.cause.startswith("process 3 on here (pid 9) was aborted by a library, as NCCL")


def test_who_is_blamed() -> None:
    def blamed(*codes: int | None, launcher: int | None = 1) -> Ending:
        dead = [Member(rank, "here", rank, code) for rank, code in enumerate(codes)]
        return how_it_ended(dead, "mpirun", launcher)

    assert "process 1 on here" in blamed(0, None, 5).cause
    assert blamed(0, None, 5).lost
    assert blamed(5, None).code == 5
    assert not blamed(5, 5).lost
    assert "process 2 on here" in blamed(0, None, 5, launcher=5).cause
    assert blamed(0, 0, launcher=0).code == 0
    assert "process 0" in blamed(None, None, launcher=137).cause
    assert "killed by signal 6" in blamed(None, launcher=134).cause
    assert (
        blamed(0, 0, launcher=1).cause == "mpirun ended with exit code 1, and no process said why"
    )
