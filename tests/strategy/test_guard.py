import pytest
import torch

from lsgd.errors import Diverged
from lsgd.strategy.guard import Guard


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
