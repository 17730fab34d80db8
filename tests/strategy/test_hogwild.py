"""Hogwild: by turns it is plain SGD; what the workers count, carry along and say to each other."""

import threading
import time
from functools import cache
from typing import Any

import pytest
import torch
from helpers.composed import compose_recipe
from helpers.differences import largest_difference
from helpers.threaded import ThreadComm, run_on_threads
from torch import Tensor

from lsgd.comm import Comm
from lsgd.comm.single import SingleComm
from lsgd.errors import DivergedError, PeerLostError, PreemptedError, UsageError
from lsgd.job import preemption
from lsgd.learner import Learner
from lsgd.metric_sums import MetricSums
from lsgd.recipe import Recipe
from lsgd.step import train_step
from lsgd.strategy.hogwild import Hogwild

CPU = torch.device("cpu")
# 7 batches of 4 images, and one of 2; the lr rises with every update.
WORDS = [
    "+recipe=fashion_lenet5", "worker_batch=4", "data.train_examples=30", "tail=keep",
    "epochs=2", "schedule.milestones=[]", "schedule.warmup_epochs=2", "schedule.reference_batch=1",
    "inputs=synthetic", "device=cpu", "data.val_examples=4", "workers_per_pass=1", "log_steps=3",
    "optim.momentum=0", "optim.nesterov=false", "precision=float64",
]  # fmt: skip


@cache
def recipe(*words: str) -> Recipe:
    return compose_recipe(*WORDS, *words)


def values(learner: Learner) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in learner.model.parameters()]


@cache
def plain(*words: str) -> list[Tensor]:
    """The parameters after two epochs of SGD by one worker."""
    made = recipe("workers=1", "strategy=allreduce", *words)
    learner = Learner(made, SingleComm(), CPU)
    inputs = learner.workload.inputs()
    for epoch, steps in made.epochs_from(0):
        for task in learner.strategy.tasks(epoch, steps):
            train_step(learner, task, inputs.train(task.micro_batches))
    return values(learner)


def by_turns(comm: Comm, made: Recipe, after: Any = lambda learner: None) -> Learner:
    """A learner on one of the processes, of which each makes an update when it is its turn."""
    learner = Learner(made, comm, CPU)
    inputs = learner.workload.inputs()
    for epoch, steps in made.epochs_from(0):
        tasks = learner.strategy.tasks(epoch, steps)
        for number in range(len(steps)):
            if number % made.workers == comm.rank:
                task = next(tasks)
                train_step(learner, task, inputs.train(task.micro_batches))
                after(learner)
            comm.gather_objects(None)
        assert next(tasks, None) is None
        learner.strategy.synchronize()
        learner.metric_sums.clear()
    return learner


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("word", ["optim.weight_decay=0.01", "optim.clip_norm=0.5"])
def test_by_turns_it_is_plain_sgd(workers: int, word: str) -> None:
    """The lr is that of the number of updates, and each sees those of the others."""
    made = recipe(f"workers={workers}", "strategy=hogwild", word)

    def body(comm: ThreadComm) -> tuple[list[Tensor], int]:
        learner = by_turns(comm, made)
        return values(learner), learner.next_step

    for own, step in run_on_threads(workers, body):
        assert step == made.total_steps == 16
        assert largest_difference(own, plain(word)) < 1e-14


def test_rows_are_due_after_updates_of_others_too() -> None:
    """Process 0 makes updates 1, 3, 5 and 7 of each epoch of 8, and rows are due after every 3."""
    made = recipe("workers=2", "strategy=hogwild")

    def body(comm: ThreadComm) -> list[tuple[int, int]]:
        seen: list[tuple[int, int]] = []

        def note(learner: Learner) -> None:
            seen.append((learner.next_step, int(learner.summed_counts()["counts"][0])))

        by_turns(comm, made, note)
        return seen

    first, second = run_on_threads(2, body)
    assert first == [(1, 4), (3, 12), (5, 20), (6, 28), (9, 4), (11, 12), (12, 20), (15, 28)]
    assert [step for step, _ in second] == [2, 3, 6, 8, 9, 12, 14, 15]


@pytest.mark.slow
def test_running_statistics_are_the_mean_of_those_of_all_workers() -> None:
    """40 batches of 4, of which the last has 2."""
    words = [
        "+recipe=digits", "workers=2", "worker_batch=4", "data.train_examples=158", "tail=keep",
        "epochs=1", "inputs=synthetic", "device=cpu", "model.last_gamma=1.0", "workers_per_pass=1",
        "schedule.milestones=[]", "schedule.warmup=none", "strategy=hogwild", "optim.momentum=0",
        "optim.nesterov=false",
    ]  # fmt: skip
    made = compose_recipe(*words)

    def body(comm: ThreadComm) -> tuple[Tensor, Tensor, Tensor]:
        learner = Learner(made, comm, CPU)
        inputs = learner.workload.inputs()
        (part,) = learner.strategy.carried_states
        own = part._read()
        for task in learner.strategy.tasks(0, list(range(40))):
            for batch, each in zip(
                inputs.train(task.micro_batches), task.micro_batches, strict=True
            ):
                learner.strategy.begin(task, stop_requested=False)
                part.start_micro_batch(each)
                loss, _ = learner.workload.loss(learner.model, batch, each)
                learner.strategy.backward(loss)
                own = 0.9 * own + 0.1 * part.pending_update
                learner.strategy.step(task)
        learner.strategy.synchronize()
        return own, part._read(), learner.checkpoint().parts["batchnorm"]["shares"].sum(0)

    (one, whole, saved), (other, *same) = run_on_threads(2, body)
    assert not torch.equal(one, other)
    torch.testing.assert_close(whole, (one + other) / 2)
    torch.testing.assert_close([whole, saved], [*same])
    torch.testing.assert_close(whole, saved)


# --- How it ends -----------------------------------------------------------------------------


def both(body: Any, *words: str) -> list[Any]:
    """What the body returns on two processes, each with a learner that has begun an epoch."""
    made = recipe("workers=2", "strategy=hogwild", *words)

    def process(comm: ThreadComm) -> Any:
        learner = Learner(made, comm, CPU)
        tasks = learner.strategy.tasks(0, list(range(8)))
        return body(learner, tasks)

    return run_on_threads(2, process)


def test_who_waits_for_the_others_is_told_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other has made one update, and its batches that are left are in the checkpoint."""
    waiting = threading.Event()
    monkeypatch.setattr(preemption, "stop_requested", lambda: waiting.is_set())

    def body(learner: Learner, tasks: Any) -> Any:
        inputs, strategy = learner.workload.inputs(), learner.strategy
        with pytest.raises(PreemptedError):  # noqa: PT012
            for task in tasks if learner.comm.rank == 0 else [next(tasks)]:
                train_step(learner, task, inputs.train(task.micro_batches))
            if learner.comm.rank == 0:
                waiting.set()
                strategy.synchronize()
            assert waiting.wait(timeout=900), "process 0 has failed"
            for _ in range(30_000):
                strategy.poll()
                time.sleep(0.01)
        saved = learner.checkpoint()
        again = Learner(learner.recipe, learner.comm, CPU)
        again.restore(saved)
        left = [task.micro_batches[0].step for task in again.strategy.tasks(0, [5, 6, 7])]
        return saved.step, saved.optimizer["given"].tolist(), saved.tally["counts"][0], left

    # Process 1 has batches 1, 3, 5 and 7, of which the last is of 2 images.
    assert both(body, "comm.timeout=300") == [(5, [4, 1], 20, []), (5, [4, 1], 20, [3, 5, 7])]


@pytest.mark.parametrize("evaluated", [True, False])
def test_what_was_saved_at_the_end_of_an_epoch_begins_the_next(evaluated: bool) -> None:
    """A run that was told to leave there has its evaluation left of the epoch, and no batch."""

    def body(learner: Learner, _: Any) -> list[int]:
        strategy = learner.strategy
        strategy.restore(strategy.state() | {"given": torch.tensor([4, 4])}, 8)
        if not evaluated:
            assert list(strategy.tasks(0, [])) == []
            strategy.synchronize()
        return [task.micro_batches[0].step for task in strategy.tasks(1, list(range(8, 16)))]

    assert both(body) == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_nobody_begins_an_epoch_while_others_save() -> None:
    saved = threading.Event()

    def body(learner: Learner, _: Any) -> bool:
        if learner.comm.rank == 0:
            time.sleep(0.1)
            saved.set()
        learner.strategy.tasks(1, list(range(8, 16)))
        return saved.is_set()

    assert both(body) == [True, True]


def test_no_number_leaves_the_model_as_it_is() -> None:
    def body(learner: Learner, tasks: Any) -> Any:
        before = values(learner)
        learner.comm.gather_objects(None)
        if learner.comm.rank == 1:
            task = next(tasks)
            learner.strategy.begin(task, stop_requested=False)
            learner.strategy.backward(sum(p.sum() for p in learner.model.parameters()) * torch.inf)
            learner.strategy.step(task)
        learner.comm.gather_objects(None)
        with pytest.raises(DivergedError) as diverged:
            learner.strategy.poll()
        torch.testing.assert_close(values(learner), before, rtol=0, atol=0)
        return str(diverged.value)

    (text,) = set(both(body))
    assert text.startswith("the loss or a gradient of step 0 is not finite; nothing was saved")


def test_who_makes_no_update_is_given_up() -> None:
    def body(learner: Learner, tasks: Any) -> None:
        if learner.comm.rank == 0:
            with pytest.raises(
                PeerLostError, match=r"^process 1 has made no update for 0\.05 s; it h"
            ):
                learner.strategy.synchronize()
        learner.comm.gather_objects(None)

    both(body, "comm.timeout=0.05")


def test_a_model_elsewhere_is_refused() -> None:
    made = recipe("workers=1", "strategy=hogwild")
    workload = Learner(made, SingleComm(), CPU).workload
    model = workload.network().to("meta")
    with pytest.raises(UsageError, match=r"in CPU memory, .* is on meta; write device=cpu"):
        Hogwild(made, workload, model, SingleComm(), MetricSums(2, CPU))
