import pytest
import torch
from helpers.saved import CPU, make_steps, recipe
from helpers.threaded import on_processes

from lsgd.comm import Comm
from lsgd.errors import Diverged, Preempted
from lsgd.learner import Learner
from lsgd.strategy.guard import SAVE, Guard


def guarded(steps: int) -> tuple[Guard, torch.Tensor]:
    """A guard that has watched this many good steps, and the flag it looks at."""
    flags = torch.zeros(2)
    guard = Guard(flags)
    for step in range(steps):
        guard.watch(step)
    return guard, flags[0]


def test_good_steps_raise_nothing() -> None:
    guard, _ = guarded(100)
    guard.check()


def test_it_raises_a_step_late_and_names_the_step() -> None:
    """Late, since reading the flag of the step just made would wait for the device."""
    guard, flag = guarded(3)
    flag.fill_(1)
    guard.watch(3)
    with pytest.raises(Diverged, match=r"step 3 is not finite.*reference_lr"):
        guard.watch(4)


def test_it_raises_before_a_save() -> None:
    """Which comes right after a step, and must not write what is not finite."""
    guard, flag = guarded(3)
    flag.fill_(1)
    guard.watch(3)
    with pytest.raises(Diverged, match="step 3"):
        guard.check()


def test_an_unwatched_guard_raises_nothing() -> None:
    """A resumed run may save before its first step."""
    guard, _ = guarded(0)
    guard.check()
    assert Diverged.exit_code == 3


def test_it_tells_a_step_late_that_it_is_time_to_save() -> None:
    """Unless some have to leave, who save anyway."""
    flags, due = torch.zeros(2), []
    guard = Guard(flags)
    for step, note in enumerate((0, SAVE, 0, 0, SAVE + 2)):
        due.append(guard.leave_if_told())
        flags[1] = note
        guard.watch(step)
    assert due == [False, False, False, True, False]
    guard.watch(5)
    with pytest.raises(Preempted):
        guard.leave_if_told()


@pytest.mark.parametrize("compression", ["none", "fp16"])
@pytest.mark.parametrize(("minutes", "expected"), [(1e-9, True), (10, False), (0, False)])
def test_all_save_by_the_clock_of_process_0(
    compression: str, minutes: float, expected: bool
) -> None:
    """After the same step; the clocks of the others are not asked."""
    made = recipe(f"gradient_compression={compression}", f"checkpoint_minutes={minutes}")

    def process(comm: Comm) -> list[bool]:
        learner, due = Learner(made, comm, CPU), []
        if comm.rank == 1:
            learner.strategy.saved -= 1e9
        for step in range(3):
            make_steps(learner, step, step + 1)
            due.append(learner.strategy.check())
        return due

    assert on_processes(2, process) == [[False, expected, expected]] * 2
