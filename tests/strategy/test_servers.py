"""Parameter servers that wait for all workers make the updates of all-reduce.

Threads play the processes here; tests/distributed/test_trajectory.py has a job.
"""

from typing import Any

import pytest
from helpers.differences import distance
from helpers.server_runs import (
    ALLREDUCE,
    CASES,
    NaNGradientImages,
    allreduce_checkpoint,
    difference_from_allreduce,
    make_learner,
    make_steps,
    resume,
    resumed_differences,
    sync_servers,
)
from helpers.threaded import ThreadComm, run_on_threads

from lsgd.comm.single import SingleComm
from lsgd.errors import DivergedError, PreemptedError, UsageError
from lsgd.profile.phases import reporting_phases
from lsgd.profile.stragglers import BETWEEN_STEPS
from lsgd.step import train_step
from lsgd.strategy.clock import step_seconds
from lsgd.strategy.guard import SAVE_NOTE, STOP_NOTE

ADAM = ("optim=adam", "optim.eps=1e-4")
ADAMW = ("optim=adamw", "optim.eps=1e-4", "optim.weight_decay=0.5")
ADAGRAD = ("optim=adagrad",)
CLIPPED = ("optim.clip_norm=0.5",)
VELOCITY = ("optim.equation=10", "optim.momentum_correction=true")


@pytest.mark.parametrize("case", [name for name in CASES if "central" in name])
def test_on_one_process_they_are_all_reduce(case: str) -> None:
    assert difference_from_allreduce(SingleComm(), CASES[case]) < 1e-10


@pytest.mark.slow
def test_one_process_goes_on_with_what_another_strategy_has_saved() -> None:
    assert max(resumed_differences(SingleComm(), sync_servers()).values()) < 1e-10


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        # Each optimizer with one of the strategies, and SGD and Adam with all.
        (strategy, words)
        for i, strategy in enumerate(
            (sync_servers(5), sync_servers(1), sync_servers(3, "colocated", "hash"))
        )
        for j, words in enumerate(
            (
                (),
                VELOCITY,
                ("optim.momentum=0", "optim.nesterov=false"),
                ADAM,
                ADAGRAD,
                CLIPPED,
                (*ADAM, "optim.clip_norm=0.3"),
                ADAMW,
            )
        )
        if words in ((), ADAM) or i == j % 3
    ],
)
def test_three_processes_are_all_reduce_and_save_what_it_goes_on_with(strategy, words) -> None:
    """Also if process 0, which saves, has no server."""
    expected = allreduce_checkpoint(*words, until=9)
    early = allreduce_checkpoint(*words, until=3)

    def process(comm: ThreadComm) -> Any:
        assert difference_from_allreduce(comm, strategy, *words, until=9) < 1e-10
        return resume(comm, strategy, early, *words, until=7)

    saved = run_on_threads(3, process)[0]
    assert distance(resume(SingleComm(), ALLREDUCE, saved, *words, until=9), expected) < 1e-10


@pytest.mark.parametrize("words", [ADAM, ADAGRAD])
def test_what_process_0_saves_has_the_updates_of_all_servers(words) -> None:
    """Though it has no server of its own."""
    saved = run_on_threads(
        3, lambda comm: make_steps(make_learner(comm, sync_servers(2), *words), 4)
    )[0]
    assert {state["step"].item() for state in saved.optimizer["state"].values()} == {4}


def test_a_step_is_clipped_by_the_norm_over_all_servers() -> None:
    """The row has the norm before clipping, the same as without servers, and it is above."""

    def norms(comm: Any, strategy: Any) -> list[float]:
        learner = make_learner(comm, strategy, *CLIPPED)
        values = []
        for until in range(1, 7):
            make_steps(learner, until)
            values.append(learner.step_metrics()["gradient_norm"])
        return values

    expected = norms(SingleComm(), ALLREDUCE)
    assert min(expected) > 0.5
    for values in run_on_threads(3, lambda comm: norms(comm, sync_servers(2))):
        assert values == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("strategy", "processes", "hosted", "homes"),
    [
        (sync_servers(3), 1, [5], [0, 0, 0]),
        (sync_servers(3), 2, [5, 0], [1, 1, 1]),
        (sync_servers(3), 3, [5, 0, 0], [1, 2, 1]),
        (sync_servers(1), 3, [3, 2, 0], [2]),
        (sync_servers(2), 4, [3, 2, 0, 0], [2, 3]),
        (sync_servers(3, "colocated"), 2, [3, 2], [0, 1, 0]),
        (sync_servers(2, "colocated"), 3, [2, 2, 1], [0, 1]),
    ],
)
def test_where_workers_and_servers_are(strategy, processes, hosted, homes) -> None:
    def process(comm: ThreadComm) -> tuple[int, list[int]]:
        made = make_learner(comm, strategy).strategy
        return len(made.hosted), [server.home for server in made.servers]

    assert run_on_threads(processes, process) == [(count, homes) for count in hosted]


@pytest.mark.parametrize("strategy", [sync_servers(2), sync_servers(3, "colocated")])
def test_what_one_server_sees_stops_all_after_the_same_step(monkeypatch, strategy) -> None:
    """A gradient that is no number while the loss is one: the other servers learn it by replies."""
    monkeypatch.setattr("helpers.server_runs.TinyImages", NaNGradientImages)

    def process(comm: ThreadComm) -> tuple[str, int]:
        learner = make_learner(comm, strategy)
        with pytest.raises(DivergedError, match=r"gradient of step 6 is not finite") as by_step:
            make_steps(learner)
        with pytest.raises(DivergedError) as by_save:
            learner.checkpoint()
        assert str(by_step.value) == str(by_save.value)
        return str(by_step.value), learner.next_step

    assert len(set(run_on_threads(3, process))) == 1


@pytest.mark.parametrize("note", [STOP_NOTE, SAVE_NOTE, STOP_NOTE + SAVE_NOTE])
@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize(
    "strategy", [sync_servers(1), sync_servers(2), sync_servers(3, "colocated")]
)
def test_the_note_of_any_process_reaches_all_in_the_same_step(strategy, rank, note) -> None:
    """Also that of one which has servers only."""

    def process(comm: ThreadComm) -> list[bool | str]:
        made = make_learner(comm, strategy).strategy
        checks: list[bool | str] = []
        for task in made.tasks(0, list(range(4))):
            made.reducer.start(task.divisor, 0, note=note * (task.step == 1 and comm.rank == rank))
            made.step(task)
            try:
                checks.append(made.poll())
            except PreemptedError:
                checks.append("leaves")
        return checks

    expected = [False, False, "leaves" if note >= STOP_NOTE else True, False]
    assert run_on_threads(3, process) == [expected] * 3


def test_half_precision_is_on_the_wire_alone() -> None:
    word = "gradient_compression=fp16"
    assert difference_from_allreduce(SingleComm(), sync_servers(), word, until=7) == 0
    exact = allreduce_checkpoint(until=7).model
    rounded = allreduce_checkpoint(word, until=7).model
    assert any((exact[name] != rounded[name]).any() for name in exact)


@pytest.mark.parametrize(
    ("words", "strategy", "expected"),
    [
        # One process pushes, and two others get the reply with its three numbers.
        ((), sync_servers(3), 8 * (1444 + 2) + 2 * 8 * (1444 + 3)),
        (("gradient_compression=fp16",), sync_servers(3), 2 * (1444 + 2) + 2 * 8 * (1444 + 3)),
        ((), sync_servers(2, "colocated", "hash"), 2 * 8 * (770 + 2) + 2 * 8 * (770 + 3)),
    ],
)
def test_a_row_says_what_the_norm_is_and_how_many_bytes_the_fullest_server_moves(
    words, strategy, expected
) -> None:
    alone = make_learner(SingleComm(), ALLREDUCE)
    make_steps(alone, 4)

    def process(comm: ThreadComm) -> dict[str, float]:
        learner = make_learner(comm, strategy, *words)
        make_steps(learner, 4)
        return learner.strategy.step_metrics()

    norm = pytest.approx(
        alone.strategy.step_metrics()["gradient_norm"], rel=1e-2 if words else 1e-10
    )
    for now in run_on_threads(3, process):
        assert now["gradient_norm"] == norm
        assert now["wire_bytes"] == expected


def test_virtual_time_is_that_of_a_machine_for_each_worker() -> None:
    """Whatever the processes are; a step takes as long as the slowest of five workers."""

    def process(comm: ThreadComm) -> dict[str, float]:
        learner = make_learner(comm, sync_servers(1), "cluster.spread=0.3")
        make_steps(learner, 8)
        return learner.strategy.step_metrics()

    one, *others = (now for processes in (1, 3) for now in run_on_threads(processes, process))
    cluster = make_learner(SingleComm(), sync_servers(1), "cluster.spread=0.3").recipe.cluster
    draws = [step_seconds(cluster, workers=5, seed=0, epoch=e, steps=range(5)) for e in (0, 1)]
    # The fifth has no images in the last step of an epoch.
    slowest = draws[0][:, :4].max(0).sum() + draws[0][:4, 4].max() + draws[1][:, :3].max(0).sum()
    assert slowest < one["virtual_seconds"] < slowest + 8 * 0.001
    for now in others:
        assert now["virtual_seconds"] == one["virtual_seconds"]
        assert now["queue_wait"] == one["queue_wait"]


class Sums:
    """A library with sums alone, as Horovod is used."""

    library, rank, world_size = "Horovod (MPI)", 0, 2


def test_a_library_without_messages_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^strategy=sync .* Horovod \(MPI\) .* comm=torch, or"):
        make_learner(Sums(), sync_servers())


def test_the_phases_of_a_step() -> None:
    learner = make_learner(SingleComm(), sync_servers())
    phases: list[str] = []
    (task,) = learner.strategy.tasks(0, [0])
    with reporting_phases(learner.strategy.phases(), phases.append):
        train_step(learner, task, learner.workload.inputs().train(task.micro_batches))
    exchange = ["communication", "optimizer", "communication", "optimizer", BETWEEN_STEPS]
    assert phases == ["optimizer", *["backward"] * len(task.micro_batches), *exchange]
