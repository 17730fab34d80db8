import math
import time
from types import SimpleNamespace

import pytest
import torch
from helpers.checkpoints import CPU, make_steps, recipe
from helpers.threaded import run_on_threads

from lsgd.comm import Comm
from lsgd.comm.single import SingleComm
from lsgd.errors import DivergedError, PeerLostError, PreemptedError
from lsgd.learner import Learner
from lsgd.run.read import steps_until_divergence
from lsgd.strategy.guard import SAVE_NOTE, NonFiniteGuard


def guarded(steps: int) -> tuple[NonFiniteGuard, torch.Tensor]:
    """A guard that has watched this many good steps, and the flag it looks at."""
    flags = torch.zeros(2)
    guard = NonFiniteGuard(flags, timeout=60)
    for step in range(steps):
        guard.watch(step)
    return guard, flags[0]


@pytest.mark.parametrize("steps", [0, 100])  # a resumed run may save before its first step
def test_good_steps_raise_nothing(steps: int) -> None:
    guard, _ = guarded(steps)
    guard.raise_if_nonfinite()


def test_it_raises_a_step_late_and_names_the_step() -> None:
    """Late, since reading the flag of the step just made would wait for the device."""
    guard, flag = guarded(3)
    flag.fill_(1)
    guard.watch(3)
    with pytest.raises(DivergedError, match=r"step 3 is not finite.*reference_lr") as raised:
        guard.watch(4)
    assert steps_until_divergence(str(raised.value)) == 4


def test_it_raises_before_a_save() -> None:
    """Which comes right after a step, and must not write what is not finite."""
    guard, flag = guarded(3)
    flag.fill_(1)
    guard.watch(3)
    with pytest.raises(DivergedError, match="step 3"):
        guard.raise_if_nonfinite()


def test_it_tells_a_step_late_that_it_is_time_to_save() -> None:
    """Unless some have to leave, who save anyway."""
    flags, due = torch.zeros(2), []
    guard = NonFiniteGuard(flags, timeout=60)
    for step, note in enumerate((0, SAVE_NOTE, 0, 0, SAVE_NOTE + 2)):
        due.append(guard.poll())
        flags[1] = note
        guard.watch(step)
    assert due == [False, False, False, True, False]
    guard.watch(5)
    with pytest.raises(PreemptedError):
        guard.poll()


def test_a_note_waits_for_the_next_look_and_is_told_of_once() -> None:
    """However many steps were watched until then; and what is saved in between needs no save."""
    flags = torch.zeros(2)
    guard = NonFiniteGuard(flags, timeout=60)
    for step, note in enumerate((SAVE_NOTE, 0, 0)):
        flags[1] = note
        guard.watch(step)
    assert [guard.poll() for _ in range(2)] == [True, False]
    for step, note in enumerate((SAVE_NOTE, 0)):
        flags[1] = note
        guard.watch(step)
    guard.forget_save()
    assert not guard.poll()
    for step, note in enumerate((SAVE_NOTE + 1, 0)):
        flags[1] = note
        guard.watch(step)
    guard.forget_save()
    with pytest.raises(PreemptedError):
        guard.poll()


def event(done_after: float) -> SimpleNamespace:
    """Stands in for an event of the device, which is done when it is looked at for so many times
    more; looks are counted."""
    looks: list[bool] = []

    def query() -> bool:
        looks.append(len(looks) >= done_after)
        return looks[-1]

    return SimpleNamespace(query=query, record=lambda: None, looks=looks)


def test_who_waits_for_the_device_for_ever_has_lost_a_peer() -> None:
    guard, _ = guarded(2)
    guard.timeout, guard.copied = 0.05, event(1000)
    guard.started = begin = time.monotonic()
    with pytest.raises(PeerLostError, match=r"step 1 has waited .* for 0\.05 s.*comm\.timeout"):
        guard.watch(2)
    assert time.monotonic() - begin >= 0.05


def test_a_step_that_is_done_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """One look and no pause; else pauses that grow to a millisecond."""
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    guard, _ = guarded(2)
    guard.copied = done = event(0)
    guard.watch(2)
    assert (done.looks, pauses) == ([True], [])
    guard.copied = event(7)
    guard.raise_if_nonfinite()
    assert pauses[0] < 1e-4
    assert pauses == sorted(pauses)
    assert pauses[-2:] == [1e-3, 1e-3]


@pytest.mark.parametrize("size", [1, 2])
def test_every_wait_for_a_step_has_its_limit(size: int) -> None:
    """Of the next step, of a row and of a save; one process has nobody to lose."""
    comm = SingleComm()
    comm.world_size = size
    made = recipe("comm.timeout=0.01")
    for wait in (
        lambda learner: make_steps(learner, 1, 2),
        lambda learner: learner.step_metrics(),
        lambda learner: learner.strategy.synchronize(),
    ):
        learner = Learner(made, comm, CPU)
        make_steps(learner, 0, 1)
        learner.strategy.guard.copied = event(100)
        learner.strategy.guard.started = time.monotonic()
        if size == 1:
            wait(learner)
            continue
        with pytest.raises(PeerLostError, match=r"step 0 .* for 0\.01 s") as lost:
            wait(learner)
        assert lost.value.waited == math.inf  # so that the silent process is looked for


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
            due.append(learner.strategy.poll())
        return due

    assert run_on_threads(2, process) == [[False, expected, expected]] * 2
