"""Who is to blame for the end of a job, and what the others only suffered."""

from lsgd.job.members import ProcessRecord
from lsgd.supervise.verdict import ExitSummary, summarize_exit


def test_an_abort_is_told_in_words() -> None:
    """Of which Python leaves no more than this; NCCL's watchdog ends a process so."""
    dead = [ProcessRecord(3, "here", 9, None, "Fatal Python error: Aborted")]
    ending = summarize_exit(dead, "torchrun", 1)
    assert ending.lost
    assert ending.cause.startswith("process 3 on here (pid 9) was aborted by a library, as NCCL")


def test_who_is_blamed() -> None:
    def blamed(*codes: int | None, launcher: int | None = 1) -> ExitSummary:
        dead = [ProcessRecord(rank, "here", rank, code) for rank, code in enumerate(codes)]
        return summarize_exit(dead, "mpirun", launcher)

    assert "process 1 on here" in blamed(0, None, 5).cause
    assert blamed(0, None, 5).lost
    assert blamed(5, None).code == 5
    assert not blamed(5, 5).lost
    assert "process 2 on here" in blamed(0, None, 5, launcher=5).cause
    assert blamed(0, 0, launcher=0).code == 0
    assert "process 0" in blamed(None, None, launcher=137).cause
    assert "killed by signal 6" in blamed(None, launcher=134).cause
    assert blamed(0, 0, launcher=1).cause == (
        "mpirun ended with exit code 1, and no process gave a reason"
    )


def test_a_process_that_could_not_save_its_last_words_either() -> None:
    """The launcher that it became, or that has its exit code, says so."""
    assert summarize_exit([ProcessRecord(0, "here", 9)], "env", 6) == ExitSummary(
        6, "env could not save"
    )
    assert summarize_exit([], "mpirun", 6).code == 6
    said = ProcessRecord(1, "here", 9, 4, "no image")
    assert summarize_exit([said, ProcessRecord(0, "here", 8)], "mpirun", 6).code == 4
