"""Local steps: what they come down to, a plain loop, and the same run wherever the workers are."""

from functools import cache
from typing import Any

import pytest
import torch
from helpers.composed import compose_recipe
from helpers.differences import largest_difference
from helpers.steps import copied, plain_optimizer, train, train_until_preempted, train_with_nan_loss
from helpers.threaded import run_on_threads
from torch import Tensor
from torch.nn import functional as F

from lsgd.comm import Comm
from lsgd.comm.single import SingleComm
from lsgd.errors import DivergedError
from lsgd.learner import Learner
from lsgd.recipe import Recipe
from lsgd.rules.batchnorm import worker_batch_norms
from lsgd.rules.sampler import MicroBatch
from lsgd.run.checkpoint import Checkpoint
from lsgd.step import train_step

CPU = torch.device("cpu")
# 5 steps an epoch, in rounds of 3 and 2; the last step is of 4 + 4 + 3 + 0 + 0 images.
WORDS = [
    "+recipe=digits", "workers=5", "worker_batch=4", "data.train_examples=91", "tail=keep",
    "precision=float64", "epochs=2", "schedule.milestones=[1]", "schedule.warmup_epochs=0.5",
    "schedule.reference_batch=8", "model.last_gamma=1.0", "inputs=synthetic", "device=cpu",
    "data.val_examples=4", "log_steps=1", "strategy=local", "strategy.local_steps=3",
]  # fmt: skip
MOMENTUM = "strategy.outer_momentum=0.9"
RULES = {
    "mean": [],
    "sgd": ["strategy.outer=sgd", "strategy.outer_lr=0.7", MOMENTUM],
    "nesterov": ["strategy.outer=nesterov", "strategy.outer_lr=0.7", MOMENTUM],
    "elastic": ["strategy.outer=elastic", "strategy.moving_rate=0.15"],
}
"""The words of each outer rule."""
PLAIN = ["optim.momentum=0", "optim.nesterov=false"]
CUT = 4
"""The steps after which a run is left in the middle of its second round."""


def recipe(*words: str) -> Recipe:
    """The small recipe with these words."""
    return compose_recipe(*WORDS, *words)


def difference(one: Checkpoint, other: Checkpoint) -> float:
    """How far two states are apart, momentum and copies of all workers included."""
    assert (one.step, one.fingerprint) == (other.step, other.fingerprint)
    shares = [{"sum": each.parts["batchnorm"]["shares"].sum(0)} for each in (one, other)]
    pairs = [(one.model, other.model), (one.optimizer, other.optimizer), shares]
    return max(largest_difference(*pair) for pair in pairs)


@cache
def alone(*words: str, until: int | None = None) -> Checkpoint:
    return copied(train(recipe(*words), SingleComm(), until=until).checkpoint())


# --- What it comes down to -------------------------------------------------------------------

TAGGING = [
    "+recipe=conll_bilstm", "optim=sgd", "model.embedding=6", "model.width=5", "worker_batch=3",
    "data.train_examples=50", "data.val_examples=4", "data.test_examples=0", "data.words=30",
    "tail=keep", "schedule.reference_lr=0.3",
]  # fmt: skip
LANGUAGE = [
    "+recipe=ptb_small", "worker_batch=2", "data.window=6", "data.train_examples=501",
    "data.val_examples=57", "data.test_examples=50", "data.classes=20", "model.embedding=7",
    "model.width=12", "optim.clip_norm=null",
]  # fmt: skip
ANY = [
    "workers=4", "precision=float64", "epochs=2", "schedule.milestones=[1]", "device=cpu",
    "schedule.warmup_epochs=0.5", "inputs=synthetic",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "words"),
    [
        ([], PLAIN),
        ([], ["tail=drop"]),  # where all workers have equally many images, momentum is linear too
        (TAGGING, PLAIN),
        (LANGUAGE, PLAIN),
    ],
)
def test_one_local_step_and_their_mean_is_synchronous_sgd(
    base: list[str], words: list[str]
) -> None:
    """Also of workers whose examples weigh more than those of others, or which have none."""

    def made(strategy: str) -> Recipe:
        if base:
            return compose_recipe(*base, *ANY, *words, strategy, "strategy.local_steps=1")
        return recipe(*words, strategy, "strategy.local_steps=1")

    one, other = (train(made(f"strategy={name}"), SingleComm()) for name in ("local", "allreduce"))
    assert one.next_step >= 8
    assert largest_difference(one.model.state_dict(), other.model.state_dict()) < 1e-12


@pytest.mark.slow
def test_outer_sgd_of_lr_1_without_momentum_is_the_mean() -> None:
    outer = alone("strategy.outer=sgd")
    assert largest_difference(outer.model, alone().model) < 1e-13
    assert largest_difference(alone(*RULES["sgd"]).model, alone().model) > 1e-4


def test_diloco_is_a_word_for_the_numbers_of_its_paper() -> None:
    words = ["strategy=local", *RULES["nesterov"], "strategy.local_steps=500"]
    one, other = (compose_recipe("+recipe=digits", *each) for each in (["strategy=diloco"], words))
    assert one.fingerprint == other.fingerprint


# --- Against a plain loop --------------------------------------------------------------------


def by_hand(made: Recipe) -> dict[str, list[Tensor]]:
    """Parameters and running statistics after a run, by a network and an optimizer per worker."""
    workload = Learner(made, SingleComm(), CPU).workload
    inputs, outer, n, k = workload.inputs(), made.strategy, made.worker_batch, made.workers
    models = [workload.network() for _ in range(k)]
    optimizers = [plain_optimizer(made, model) for model in models]
    for norm in (norm for model in models for norm in worker_batch_norms(model)):
        norm.seen = torch.zeros(2, norm.num_features, dtype=torch.float64)
    layers = [worker_batch_norms(model) for model in models]
    running = [torch.stack((norm.running_mean, norm.running_var)) for norm in layers[0]]
    x = [p.detach().clone() for p in models[0].parameters()]
    u, examples = [torch.zeros_like(p) for p in x], [0] * k
    for epoch in range(made.epochs):
        order = workload.example_order(epoch)
        for t in range(made.steps_per_epoch):
            active = 0
            for w in range(k):
                ids = order[(t * k + w) * n : (t * k + w + 1) * n]
                for norm in layers[w]:
                    norm.seen.zero_()
                if not len(ids):
                    continue
                [(images, labels)] = inputs.train([MicroBatch(epoch, ids, range(w, w + 1), t)])
                optimizers[w].zero_grad()
                F.cross_entropy(models[w](images.double()), labels).backward()
                if made.optim.clip_norm:
                    grads = [p.grad for p in models[w].parameters()]
                    norm = torch.cat([grad.flatten() for grad in grads]).norm()
                    for grad in grads:
                        grad *= min(1, made.optim.clip_norm / norm.item())
                for group in optimizers[w].param_groups:
                    group["lr"] = made.lr(epoch * made.steps_per_epoch + t)
                optimizers[w].step()
                examples[w] += len(ids)
                active += 1
            for i, r in enumerate(running):
                seen = sum(each[i].seen for each in layers) / active
                running[i] = 0.9 * r + 0.1 * seen
            if (t + 1) % outer.local_steps and t + 1 < made.steps_per_epoch:
                continue
            for i, params in enumerate(zip(*(m.parameters() for m in models), strict=True)):
                copies = [p.detach().clone() for p in params]
                if outer.outer == "elastic":
                    new = x[i] + outer.moving_rate * sum(copy - x[i] for copy in copies)
                    for p, copy in zip(params, copies, strict=True):
                        p.data = copy - outer.moving_rate * (copy - x[i])
                    x[i] = new
                    continue
                way = x[i] - sum(
                    copy * (e / sum(examples)) for copy, e in zip(copies, examples, strict=True)
                )
                u[i] = outer.outer_momentum * u[i] + way
                ahead = way + outer.outer_momentum * u[i] if outer.outer == "nesterov" else u[i]
                x[i] = x[i] - (1 if outer.outer == "mean" else outer.outer_lr) * ahead
                for p in params:
                    p.data = x[i].clone()
            examples = [0] * k
    return {"parameters": x, "running": running}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "words"),
    [
        *((rule, ()) for rule in RULES),
        ("nesterov", ("optim=adamw", "strategy.local_steps=20")),  # longer than an epoch
        ("elastic", ("optim.clip_norm=0.5",)),
    ],
)
def test_a_run_is_that_of_a_plain_loop(rule: str, words: tuple[str, ...]) -> None:
    """After four exchanges, two of them at the ends of epochs."""
    made = recipe(*RULES[rule], *words)
    model = train(made, SingleComm()).model
    expected = by_hand(made)
    ours = [p.detach() for p in model.parameters()]
    torch.testing.assert_close(ours, expected["parameters"], rtol=0, atol=1e-12)
    running = [
        torch.stack((norm.running_mean, norm.running_var)) for norm in worker_batch_norms(model)
    ]
    torch.testing.assert_close(running, expected["running"], rtol=0, atol=1e-12)


# --- Wherever the workers are ----------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_the_same_run_on_any_number_of_processes(rule: str) -> None:
    """With all that is saved, and what its rows say; a process may have no examples in a step."""
    learner = train(recipe(*RULES[rule]), SingleComm(), until=CUT)
    row = learner.step_metrics()
    assert row["gradient_norm"] > 0

    def process(comm: Comm) -> tuple[Any, Checkpoint]:
        learner = train(recipe(*RULES[rule]), comm, until=CUT)
        return learner.step_metrics(), learner.checkpoint()

    ends = run_on_threads(3, process)
    assert all(own == pytest.approx(row, rel=1e-12) for own, _ in ends)
    assert difference(ends[0][1], alone(*RULES[rule], until=CUT)) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "before", "after"), [("nesterov", 3, 1), ("elastic", 3, 1), ("elastic", 2, 3)]
)
def test_a_run_goes_on_within_a_round_on_another_number(rule: str, before: int, after: int) -> None:
    """It has learned in this round, and has an outer momentum."""
    made = recipe(*RULES[rule])
    first = run_on_threads(before, lambda comm: train(made, comm, until=CUT).checkpoint())[0]
    saved = copied(first)
    ends = run_on_threads(after, lambda comm: train(made, comm, begin=saved).checkpoint())
    assert difference(ends[0], alone(*RULES[rule])) < 1e-12


def test_what_is_saved_within_a_round_is_the_last_exchanged_model() -> None:
    """With the copies beside it, which at the end of a round would say nothing."""
    within, before = (alone(until=steps) for steps in (CUT, CUT - 1))
    statistics = {"running_mean", "running_var", "num_batches_tracked"}
    for name, value in within.model.items():
        assert name.split(".")[-1] in statistics or torch.equal(value, before.model[name])
    copies = [worker["copy"] for worker in within.optimizer["workers"]]
    assert len({copy[0].flatten()[0].item() for copy in copies}) == 5
    assert not any(worker["copy"] for worker in before.optimizer["workers"])


def test_only_process_0_gets_what_all_workers_have() -> None:
    """The others keep a number of each, so that a save takes the memory of one worker there."""
    made = recipe()
    first, *others = run_on_threads(3, lambda comm: train(made, comm, until=CUT).checkpoint())
    size = sum(value.numel() for value in first.optimizer["workers"][0]["copy"])
    assert size > 1000
    for saved in others:
        assert all(list(worker) == ["doubt"] for worker in saved.optimizer["workers"])
        assert {worker["doubt"].numel() for worker in saved.optimizer["workers"]} == {1}


@pytest.mark.parametrize("rule", ["mean", "elastic"])
def test_to_save_disturbs_nothing(rule: str) -> None:
    """Evaluations and saves let the model hold the centre, within a round too."""
    often = train(recipe(*RULES[rule]), SingleComm(), settle=True).checkpoint()
    assert difference(often, alone(*RULES[rule])) == 0


def test_a_row_says_what_the_last_gradients_were_and_what_travels() -> None:
    """2 exchanges in 5 steps, of 5 workers each of which had a gradient."""
    learner = train(recipe(), SingleComm(), until=CUT - 1)
    size = sum(p.nbytes for p in learner.model.parameters())
    norms: list[float] = []
    learner.strategy.optimizer.register_step_pre_hook(
        lambda optimizer, *_: norms.append(
            torch.cat([p.grad.flatten() for g in optimizer.param_groups for p in g["params"]])
            .norm()
            .item()
        )
    )
    [task] = learner.strategy.tasks(0, [CUT - 1])
    train_step(learner, task, learner.workload.inputs().train(task.micro_batches))
    row = learner.step_metrics()
    assert row["exchanged_bytes"] == size * 2 / 5
    assert len(norms) == 5
    mean = sum(norm**2 for norm in norms) / 5
    assert row["gradient_norm"] == pytest.approx(mean**0.5, rel=1e-12)


@pytest.mark.slow
def test_a_channels_last_run_is_taken_up_by_one_that_is_not() -> None:
    other = train(recipe("channels_last=true"), SingleComm(), until=CUT).checkpoint()
    for begin, words in ((other, ()), (alone(until=CUT), ("channels_last=true",))):
        end = train(recipe(*words), SingleComm(), begin=copied(begin)).checkpoint()
        assert difference(end, alone()) < 1e-12


# --- Ends ------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0, 2, 3])
def test_a_loss_that_is_no_number_ends_all_processes_after_the_same_step(step: int) -> None:
    """And is not exchanged: 2 is the last step of a round, and after 3 there is only one more."""
    for processes in (1, 3):
        ends = run_on_threads(
            processes, lambda comm: train_with_nan_loss(comm, recipe(), step, last=True)[0]
        )
        (end,) = set(ends)
        assert end.startswith(f"{min(step + 2, 5)}: the loss or a gradient of step {step} is not")


def test_what_is_no_number_is_not_saved_by_any_process() -> None:
    """Though a save comes at once, before any has heard of it."""

    def saves(comm: Comm) -> None:
        learner = train(recipe(), comm, until=CUT)
        if comm.rank == comm.world_size - 1:
            learner.strategy.reducer.found_inf.fill_(1)
        [task] = learner.strategy.tasks(0, [CUT])
        train_step(learner, task, learner.workload.inputs().train(task.micro_batches))
        with pytest.raises(DivergedError, match=f"of step {CUT} is not finite"):
            learner.checkpoint()

    run_on_threads(2, saves)


@pytest.mark.parametrize(("worker", "number"), [(0, torch.nan), (3, torch.inf), (4, torch.nan)])
def test_a_worker_that_is_not_finite_is_not_saved_by_any_process(
    worker: int, number: float
) -> None:
    """Though only its own process and process 0 have seen what it has: of each process, one."""
    made = recipe()

    def saves(comm: Comm) -> None:
        learner = train(made, comm, until=CUT)
        strategy = learner.strategy
        strategy.synchronize()
        if worker in strategy.hosted:
            strategy.copies[worker - strategy.hosted.start, 7] = number
        with pytest.raises(
            DivergedError, match=f"is not finite before step {CUT} and was not saved"
        ):
            learner.checkpoint()

    run_on_threads(3, saves)


def test_who_is_told_to_leave_tells_all() -> None:
    for processes in (1, 3):
        ends = run_on_threads(processes, lambda comm: train_until_preempted(comm, recipe(), 1))
        assert {step for step, _ in ends} == {4}
        assert difference(ends[0][1], alone(until=4)) < 1e-12


@pytest.mark.parametrize(("minutes", "expected"), [(1e-9, True), (10, False), (0, False)])
def test_all_save_by_the_clock_of_process_0(minutes: float, expected: bool) -> None:
    made = recipe(f"checkpoint_minutes={minutes}")

    def process(comm: Comm) -> list[bool]:
        learner, due = Learner(made, comm, CPU), []
        if comm.rank == 1:
            learner.strategy.saved -= 1e9
        inputs = learner.workload.inputs()
        for task in learner.strategy.tasks(0, list(range(4))):
            train_step(learner, task, inputs.train(task.micro_batches))
            due.append(learner.strategy.poll())
        return due

    assert run_on_threads(2, process) == [[False, False, expected, expected]] * 2


@pytest.mark.parametrize("step", [1, 2])
def test_rows_hide_no_time_to_save_and_repeat_none(step: int) -> None:
    """A row of local steps learns early what has come of its step, and a check comes after it."""
    learner, due = Learner(recipe("checkpoint_minutes=10"), SingleComm(), CPU), []
    inputs, strategy = learner.workload.inputs(), learner.strategy
    for task in strategy.tasks(0, list(range(5))):
        if task.step == step:
            strategy.saved -= 1e9
        train_step(learner, task, inputs.train(task.micro_batches))
        if task.step % 2:  # as with log_steps=2
            learner.step_metrics()
        due.append(strategy.poll())
        if due[-1]:
            strategy.synchronize()
    assert [after for after, told in enumerate(due) if told] == [3]
