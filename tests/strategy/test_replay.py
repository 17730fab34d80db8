"""Updates in an order known ahead: the same bits whoever computes the pushes, wherever it stops."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.composed import compose_recipe
from helpers.differences import largest_difference
from helpers.steps import copied, plain_optimizer, train, train_until_preempted, train_with_nan_loss
from helpers.threaded import run_on_threads
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from lsgd.comm.single import SingleComm
from lsgd.errors import UsageError
from lsgd.learner import Learner
from lsgd.recipe import Recipe
from lsgd.rules.batchnorm import WorkerBatchNorm2d
from lsgd.rules.sampler import MicroBatch
from lsgd.rules.schedule import learning_rate
from lsgd.run.checkpoint import Checkpoint
from lsgd.step import train_step
from lsgd.strategy.recorded import OrderHistory
from lsgd.strategy.replay import ReplayStrategy

CPU = torch.device("cpu")
# 14 batches of 4, of which the last has 2.
WORDS = [
    "+recipe=digits", "workers=4", "worker_batch=4", "data.train_examples=54", "tail=keep",
    "precision=float64", "epochs=2", "schedule.milestones=[1]", "schedule.warmup_epochs=0.5",
    "schedule.reference_batch=8", "model.last_gamma=1.0", "inputs=synthetic", "device=cpu",
    "data.val_examples=4", "workers_per_pass=1", "log_steps=4",
]  # fmt: skip
# So slow a network, and steps of such times, that every worker is late now and then.
UNEVEN = ["cluster.spread=0.7", "cluster.server_gbits=0.02", "cluster.step=0.03"]
KINDS = {
    "async": ["strategy=async"],
    "async on servers": ["strategy=async", "strategy.servers=3"],
    "async beside workers": [
        "strategy=async", "strategy.servers=3", "strategy.topology=colocated",
        "strategy.placement=round_robin", "cluster.worker_gbits=0.02",
    ],
    "staleness-aware": ["strategy=async", "strategy.staleness_aware=true"],
    "bounded": ["strategy=bounded", "strategy.slack=1", "strategy.servers=2"],
    "backup": ["strategy=backup", "workers=6", "strategy.backup=2", "strategy.servers=2"],
    # 5 pushes of 3 local steps, of which the last has 4 + 2 images.
    "local steps": [
        "strategy=async", "strategy.local_steps=3", "strategy.servers=3",
        "strategy.outer=nesterov", "strategy.outer_lr=0.4", "strategy.outer_momentum=0.5",
    ],
    "bounded local steps": ["strategy=bounded", "strategy.slack=1", "strategy.local_steps=2"],
}  # fmt: skip
"""The words of every kind of order."""


def recipe(*words: str) -> Recipe:
    """The small recipe with these words."""
    return compose_recipe(*WORDS, *words)


def difference(one: Checkpoint, other: Checkpoint) -> float:
    """How far two states are apart; with local steps, what workers have is on process 0 alone."""
    shares = [{"sum": each.parts["batchnorm"]["shares"].sum(0)} for each in (one, other)]
    states = [[each.optimizer["state"]] for each in (one, other)]
    workers = [each.optimizer.get("workers", []) for each in (one, other)]
    if all("state" in worker for each in workers for worker in each):
        states = [[*state, *each] for state, each in zip(states, workers, strict=True)]
    models = [
        {name: value for name, value in each.model.items() if "tracked" not in name}
        for each in (one, other)
    ]
    return max(largest_difference(*pair) for pair in (models, states, shares))


@cache
def alone(*words: str) -> Checkpoint:
    return train(recipe(*words), SingleComm()).checkpoint()


def synchronous(*words: str) -> Checkpoint:
    return train(recipe("workers_per_pass=4", *words), SingleComm()).checkpoint()


# --- What it comes down to -------------------------------------------------------------------


@pytest.mark.parametrize(
    "optimizer",
    [
        (),
        pytest.param(("optim=adam",), marks=pytest.mark.slow),
        pytest.param(("optim=adagrad",), marks=pytest.mark.slow),
        ("optim.clip_norm=0.5",),
        pytest.param(("optim=adamw",), marks=pytest.mark.slow),
    ],
)
def test_no_backup_is_the_synchronous_run(optimizer: tuple[str, ...]) -> None:
    words = ["strategy=backup", "strategy.backup=0", "strategy.servers=2", *UNEVEN, *optimizer]
    assert difference(alone(*words), synchronous(*optimizer)) < 1e-12
    norms = [
        train(made, SingleComm(), until=3).step_metrics()["gradient_norm"]
        for made in (recipe(*words), recipe("workers_per_pass=4", *optimizer))
    ]
    assert norms[0] == pytest.approx(norms[1], rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer",
    [(), ("optim=adagrad",), ("optim=adam", "optim.clip_norm=0.5"), ("data.train_examples=4",)],
)
def test_one_asynchronous_worker_is_the_plain_optimizer(optimizer: tuple[str, ...]) -> None:
    """To the bit, but for the order in which the squares of a norm are added.

    Also of an epoch that has one update, at its end.
    """
    plain = train(recipe("workers=1", *optimizer), SingleComm()).checkpoint()
    clips = any("clip" in word for word in optimizer)
    for words in (["strategy=async"], ["strategy=async", "strategy.servers=3"]):
        gap = difference(alone("workers=1", *words, *optimizer), plain)
        assert gap < 1e-12 if clips else gap == 0


def test_one_worker_is_never_stale() -> None:
    aware = alone("workers=1", "strategy=async", "strategy.staleness_aware=true")
    assert difference(aware, alone("workers=1", "strategy=async")) == 0


@pytest.mark.parametrize(("plain", "equal"), [(True, True), (False, False)])
def test_no_slack_is_synchronous_for_plain_sgd_alone(plain: bool, equal: bool) -> None:
    """k updates at lr are one at k lr, if nothing but the gradient moves the weights."""
    words = [
        "data.train_examples=64", "schedule.warmup=none", "schedule.milestones=[]",
        "model=lenet5", "data.image_size=28",
    ]  # fmt: skip
    if plain:
        words += ["optim.momentum=0", "optim.nesterov=false", "optim.weight_decay=0"]
    bounded = recipe("strategy=bounded", "strategy.slack=0", *UNEVEN, *words)
    one, other = (
        train(made, SingleComm()).model.parameters()
        for made in (bounded, recipe("workers_per_pass=4", *words))
    )
    gap = max((a - b).abs().max().item() for a, b in zip(one, other, strict=True))
    assert gap < 1e-13 if equal else gap > 1e-4


# --- Against a plain loop --------------------------------------------------------------------


def by_hand(made: Recipe) -> list[Tensor]:
    """The parameters and running statistics after a run with one server, in plain torch."""
    learner = Learner(made, SingleComm(), CPU)
    model, workload = learner.model, learner.workload
    replay = learner.strategy
    assert isinstance(replay, ReplayStrategy)
    inputs = workload.inputs()
    weights = [p.detach().clone() for p in model.parameters()]
    momentum = [torch.zeros_like(p) for p in weights]
    decays = [p.dim() > 1 or name == "fc.bias" for name, p in model.named_parameters()]
    norms = [module for module in model.modules() if isinstance(module, WorkerBatchNorm2d)]
    running = [torch.stack((norm.running_mean, norm.running_var)) for norm in norms]
    for epoch in range(made.epochs):
        versions = [weights]
        for step, push in enumerate(replay.time.epoch(epoch).script.pushes):
            with torch.no_grad():
                for parameter, value in zip(
                    model.parameters(), versions[push.read[0]], strict=True
                ):
                    parameter.copy_(value)
            [task] = learner.strategy.tasks(epoch, [epoch * made.steps_per_epoch + step])
            [images, labels] = next(iter(inputs.train(task.micro_batches)))
            for norm in norms:
                norm.seen.zero_()
            loss = F.cross_entropy(model(images.double()), labels)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            lr = made.lr(epoch * made.steps_per_epoch + step)
            if made.strategy.staleness_aware:
                lr /= max(1, step - push.read[0])
            weights = list(weights)
            for i, gradient in enumerate(gradients):
                gradient = gradient + 1e-4 * decays[i] * weights[i]
                momentum[i] = 0.9 * momentum[i] + gradient
                weights[i] = weights[i] - lr * (gradient + 0.9 * momentum[i])
            versions.append(weights)
            running = [0.9 * r + 0.1 * n.seen for r, n in zip(running, norms, strict=True)]
    return [*weights, *running]


@pytest.mark.parametrize("aware", ["false", "true"])
def test_a_run_is_that_of_a_plain_loop(aware: str) -> None:
    made = recipe("strategy=async", f"strategy.staleness_aware={aware}", *UNEVEN)
    model = train(made, SingleComm()).model
    norms = [module for module in model.modules() if isinstance(module, WorkerBatchNorm2d)]
    ours = [p.detach() for p in model.parameters()]
    ours += [torch.stack((norm.running_mean, norm.running_var)) for norm in norms]
    torch.testing.assert_close(ours, by_hand(made), rtol=0, atol=1e-13)


# --- Local steps -----------------------------------------------------------------------------

EVER = ["schedule.warmup=none", "schedule.milestones=[]"]
"""An lr that stays, whichever update it is of."""
WARMUP = ["schedule.reference_batch=1", "schedule.reference_lr=0.01"]
"""An lr that rises with every local step of the first half epoch."""


@pytest.mark.slow
def test_one_local_step_whose_whole_way_is_gone_is_asynchronous_sgd() -> None:
    """Of plain SGD, whose way is lr times its gradient; decay would be of what was read."""
    plain = [
        "optim.momentum=0", "optim.nesterov=false", "optim.weight_decay=0", *EVER, *UNEVEN
    ]  # fmt: skip
    for words in (["strategy=async"], ["strategy=bounded", "strategy.slack=1"]):
        one = train(recipe(*words, "strategy.outer=sgd", *plain), SingleComm())
        other = train(recipe(*words, *plain), SingleComm())
        assert one.next_step == other.next_step == 28
        assert largest_difference(one.model.state_dict(), other.model.state_dict()) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [(), ("optim=adam",), ("optim.clip_norm=0.5",)])
def test_local_steps_of_one_worker_are_the_plain_optimizer(optimizer: tuple[str, ...]) -> None:
    """With the same lr in every step; the statistics move once in three."""
    words = ["workers=1", "data.train_examples=72", *WARMUP, *optimizer]
    plain = train(recipe(*words), SingleComm())
    local = train(recipe(*words, "strategy=async", "strategy.local_steps=3"), SingleComm())
    assert plain.next_step == 3 * local.next_step == 36
    ours, theirs = ([*each.model.parameters()] for each in (local, plain))
    assert largest_difference(ours, theirs) < 1e-12


@pytest.mark.slow
def test_a_local_step_is_divided_by_what_its_own_examples_weigh() -> None:
    """Sentences weigh as many tokens as they have; the last push is of 3 + 2 of them."""
    words = [
        "+recipe=conll_bilstm", "optim=sgd", "model.embedding=6", "model.width=5", "workers=1",
        "worker_batch=3", "data.train_examples=50", "data.val_examples=4", "data.test_examples=0",
        "data.words=30", "tail=keep", "precision=float64", "epochs=2", "device=cpu",
        "inputs=synthetic", *EVER,
    ]  # fmt: skip
    asynchronous = ["strategy=async", "strategy.local_steps=3"]
    plain, local = (
        train(compose_recipe(*words, *each), SingleComm()) for each in ([], asynchronous)
    )
    assert (plain.next_step, local.next_step) == (34, 12)
    assert largest_difference(local.model.state_dict(), plain.model.state_dict()) < 1e-12


def local_steps_by_hand(made: Recipe) -> list[Tensor]:
    """The parameters and running statistics after a run with one server: a network and an optimizer
    for each worker, in plain torch, in the order of the pushes."""
    rule = dict(vars(made.schedule))
    for key in ("decay_steps", "options", "source"):
        del rule[key]
    learner = Learner(made, SingleComm(), CPU)
    workload, outer, n, h = learner.workload, made.strategy, made.worker_batch, 3
    replay, inputs = learner.strategy, workload.inputs()
    assert isinstance(replay, ReplayStrategy)
    models = [workload.network() for _ in range(made.workers)]
    norms = [[m for m in model.modules() if isinstance(m, WorkerBatchNorm2d)] for model in models]
    inner = [plain_optimizer(made, model) for model in models]
    x = [p.detach().clone() for p in models[0].parameters()]
    u = [torch.zeros_like(p) for p in x]
    running = [torch.stack((norm.running_mean, norm.running_var)) for norm in norms[0]]
    for epoch in range(made.epochs):
        order, versions = workload.example_order(epoch), [x]
        for version, push in enumerate(replay.time.epoch(epoch).script.pushes):
            w, read = push.worker, push.read[0]
            for p, value in zip(models[w].parameters(), versions[read], strict=True):
                p.data = value.clone()
            batches = [
                ids
                for b in range(h * push.ticket, h * push.ticket + h)
                if len(ids := order[b * n : (b + 1) * n])
            ]
            for norm in norms[w]:
                norm.seen = torch.zeros(2, norm.num_features, dtype=torch.float64)
            for j, ids in enumerate(batches):
                [(images, labels)] = inputs.train(
                    [MicroBatch(epoch, ids, range(w, w + 1), version)]
                )
                inner[w].zero_grad()
                F.cross_entropy(models[w](images.double()), labels).backward()
                for group in inner[w].param_groups:
                    done = epoch + (read + j / h) / made.steps_per_epoch
                    group["lr"] = learning_rate(done, batch_size=n, **rule)
                inner[w].step()
            lr = outer.outer_lr / (max(1, version - read) if outer.staleness_aware else 1)
            x = list(x)
            for i, p in enumerate(models[w].parameters()):
                way = versions[read][i] - p.detach()
                u[i] = outer.outer_momentum * u[i] + way
                ahead = way + outer.outer_momentum * u[i] if outer.outer == "nesterov" else u[i]
                x[i] = x[i] - lr * ahead
            versions.append(x)
            for i, norm in enumerate(norms[w]):
                running[i] = 0.9 * running[i] + 0.1 * norm.seen / len(batches)
    return [*x, *running]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["strategy.local_steps=3"],
        ["strategy.local_steps=3", "strategy.staleness_aware=true"],
        [word for word in KINDS["local steps"] if "servers" not in word],
        [*KINDS["local steps"][1:2], "strategy.outer=sgd", *KINDS["local steps"][4:]],
    ],
)
def test_local_steps_are_those_of_a_plain_loop(words: list[str]) -> None:
    made = recipe("strategy=async", *words, *WARMUP, *UNEVEN)
    model = train(made, SingleComm()).model
    norms = [module for module in model.modules() if isinstance(module, WorkerBatchNorm2d)]
    ours = [p.detach() for p in model.parameters()]
    ours += [torch.stack((norm.running_mean, norm.running_var)) for norm in norms]
    torch.testing.assert_close(ours, local_steps_by_hand(made), rtol=0, atol=1e-12)


def test_what_workers_keep_is_saved_by_process_0_alone() -> None:
    made = recipe(*KINDS["local steps"], *UNEVEN)
    ends = run_on_threads(3, lambda comm: train(made, comm, until=5).checkpoint())
    first, *others = [saved.optimizer["workers"] for saved in ends]
    assert len(first) == 4
    assert all(worker["state"][0]["momentum_buffer"].abs().max() > 0 for worker in first)
    assert all(list(worker) == ["doubt"] for each in others for worker in each)


# --- The same bits ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bits_on_any_number_of_processes(kind: str) -> None:
    """On three, of which the first has two of four workers; others are asked on two, below."""
    made = recipe(*KINDS[kind], *UNEVEN)
    for saved in run_on_threads(3, lambda comm: train(made, comm).checkpoint()):
        assert difference(saved, alone(*KINDS[kind], *UNEVEN)) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_other_times_are_another_run(kind: str) -> None:
    words = [*KINDS[kind], *UNEVEN]
    assert difference(alone(*words), alone(*words, "cluster.seed=1")) > 1e-6


def goes_on(kind: str, cut: int, processes: int) -> None:
    made = recipe(*KINDS[kind], *UNEVEN)
    cut = min(cut, made.total_steps - 1)
    first = copied(train(made, SingleComm(), until=cut).checkpoint())
    assert first.step == cut
    for saved in run_on_threads(
        processes, lambda comm: train(made, comm, begin=first).checkpoint()
    ):
        assert difference(saved, alone(*KINDS[kind], *UNEVEN)) == 0


@pytest.mark.parametrize(
    ("kind", "cut"), [("async beside workers", 8), ("backup", 8), ("local steps", 4)]
)
def test_a_run_goes_on_in_mid_epoch(kind: str, cut: int) -> None:
    goes_on(kind, cut, 2)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [("optim=adam",), ("optim=adam", "optim.clip_norm=0.5")])
def test_servers_that_are_ahead_of_others_go_on_in_mid_epoch(
    optimizer: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices of one parameter have had different numbers of updates, and pushes have been applied
    by one server and not by another."""
    monkeypatch.setattr("lsgd.strategy.placement.SPLIT", 100)
    made = recipe(*KINDS["async beside workers"], "strategy.placement=hash", *UNEVEN, *optimizer)
    whole = train(made, SingleComm()).checkpoint()
    first = copied(train(made, SingleComm(), until=10).checkpoint())
    assert len({step.item() for step in first.optimizer["steps"]}) > 1
    assert difference(train(made, SingleComm(), begin=first).checkpoint(), whole) == 0


@pytest.mark.slow
@settings(max_examples=8)
@given(
    kind=st.sampled_from(sorted(KINDS)), cut=st.integers(1, 27), processes=st.sampled_from([1, 3])
)
def test_a_run_goes_on_from_any_update_with_what_was_under_way(
    kind: str, cut: int, processes: int
) -> None:
    goes_on(kind, cut, processes)


@pytest.mark.slow
def test_something_was_under_way() -> None:
    """Or the tests above would show little."""
    made = recipe(*KINDS["async beside workers"], *UNEVEN)
    states = [train(made, SingleComm(), until=cut).checkpoint().optimizer for cut in range(1, 14)]
    assert any(state["under_way"] for state in states)
    assert sum(len(state["read"]) for state in states) > 26
    whole = train(made, SingleComm(), until=14).checkpoint().optimizer
    assert not whole["under_way"]


# --- Ends ------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [5, 13])
@pytest.mark.parametrize("kind", ["async on servers", "backup", "local steps"])
def test_a_loss_that_is_no_number_ends_all_processes_after_the_same_step(
    kind: str, step: int
) -> None:
    made = recipe(*KINDS[kind], *UNEVEN)
    step = min(step, made.steps_per_epoch - 1)
    for processes in (1, 3):
        ends, learners = zip(
            *run_on_threads(processes, lambda comm: train_with_nan_loss(comm, made, step)),
            strict=True,
        )
        (end,) = set(ends)
        assert f"of step {step} is not finite" in end
        # No sum is left in which another process would miss this one.
        assert all(each.strategy.arrived == each.strategy.given for each in learners)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["async on servers", "backup"])
def test_who_is_told_to_leave_tells_all(kind: str) -> None:
    words = [*KINDS[kind], *UNEVEN, "data.train_examples=78"]  # steps enough for all to hear
    made = recipe(*words)
    step, _ = train_until_preempted(SingleComm(), made, 3)
    assert step == 4
    ends = run_on_threads(3, lambda comm: train_until_preempted(comm, made, 3))
    assert len({step for step, _ in ends}) == 1
    step, saved = ends[0]
    assert 4 <= step <= 4 + made.workers
    resumed = train(made, SingleComm(), begin=copied(saved)).checkpoint()
    assert difference(resumed, alone(*words)) == 0


@pytest.mark.parametrize("kind", ["async on servers", "local steps"])
def test_a_rehearsal_makes_its_six_steps(kind: str) -> None:
    made = compose_recipe(*WORDS, *KINDS[kind], "rehearse=true", "epochs=4")
    steps = [step for _, each in made.epochs_from(0) for step in each]
    learner = train(made, SingleComm())
    assert learner.next_step == steps[-1] + 1
    assert len(steps) < made.total_steps
    # Of the steps left out nobody reads anything.
    assert len(learner.strategy.copies) <= 2 * made.workers
    whole = compose_recipe(*WORDS, *KINDS[kind], "epochs=4")
    assert [made.lr(step) for step in steps] == pytest.approx([whole.lr(step) for step in steps])


@pytest.mark.slow
def test_a_row_says_what_its_pushes_were(monkeypatch: pytest.MonkeyPatch) -> None:
    made = recipe("strategy=async", *UNEVEN)
    learner = train(made, SingleComm(), until=8)
    row = learner.step_metrics()
    script, timeline = (
        getattr(learner.strategy.time.epoch(0), name) for name in ("script", "timeline")
    )
    staleness = [i - script.pushes[i].read[0] for i in range(4, 8)]
    assert row["staleness"] == sum(staleness) / 4
    assert row["staleness_max"] == max(staleness)
    assert row["staleness_counts"] == [staleness.count(i) for i in range(max(staleness) + 1)]
    assert row["virtual_seconds"] == timeline.updates[7]
    assert row["queue_wait"] == pytest.approx(sum(timeline.waits[4:8]) / 4)
    # A resumed run knows when its epoch began, and draws no epoch before it.
    resumed = Learner(made, SingleComm(), CPU)
    resumed.restore(copied(train(made, SingleComm(), until=17).checkpoint()))
    with monkeypatch.context() as patch:
        patch.setattr(
            resumed.strategy.time, "epoch", {1: resumed.strategy.time.epoch(1)}.__getitem__
        )
        assert resumed.strategy.time.epoch_start(1) == timeline.seconds
    later = train(made, SingleComm(), until=22).step_metrics()
    seconds = timeline.seconds + learner.strategy.time.epoch(1).timeline.updates[7]
    assert later["virtual_seconds"] == seconds
    late = train(recipe(*KINDS["backup"], *UNEVEN), SingleComm(), until=4)
    assert late.step_metrics()["dropped"] == sum(late.strategy.time.epoch(0).script.dropped[:4]) > 0


def ordered(folder: Path, *pushes: list[int]) -> Recipe:
    """The small recipe after an order of these pushes, a list for each epoch."""
    orders = OrderHistory(
        4, 1, epochs={i: [[np.array(row, np.int16)]] for i, row in enumerate(pushes)}
    )
    orders.save(folder / "recorded.npz")
    return recipe("strategy=async", f"strategy.order={folder / 'recorded.npz'}")


WHOLE = [*[0, 1, 2, 3] * 3, 0, 1]


def test_an_order_that_ends_in_mid_epoch_is_trained_to_its_end(tmp_path: Path) -> None:
    """A loader takes all tasks ahead, and what is wrong with the last of them comes last."""
    made = ordered(tmp_path, WHOLE[:7])
    learner = Learner(made, SingleComm(), CPU)
    inputs, tasks = learner.workload.inputs(), list(learner.strategy.tasks(0, list(range(14))))
    assert [task.step for task in tasks] == list(range(7))
    for task in tasks:
        train_step(learner, task, inputs.train(task.micro_batches))
    with pytest.raises(UsageError, match=r"recorded\.npz ends after step 7, where the"):
        learner.strategy.synchronize()
    assert learner.next_step == 7


def test_an_order_that_ends_before_the_first_update_of_an_epoch_says_so(tmp_path: Path) -> None:
    """As that of a run which was stopped then: its workers left, and no push was applied."""
    leaves = [-1, -2, -3, -4]
    strategy = Learner(ordered(tmp_path, WHOLE, leaves), SingleComm(), CPU).strategy
    with pytest.raises(UsageError, match=r"recorded\.npz ends after step 14, where the"):
        next(strategy.tasks(1, list(range(14, 28))))
    strategy = Learner(ordered(tmp_path, leaves), SingleComm(), CPU).strategy
    with pytest.raises(UsageError, match=r"recorded\.npz ends after step 0, where the"):
        next(strategy.tasks(0, list(range(14))))


def test_a_replay_goes_on_from_its_last_step(tmp_path: Path) -> None:
    """As one does that was told to leave in its last evaluation: no epoch follows it."""
    made = ordered(tmp_path, WHOLE, WHOLE)
    saved = train(made, SingleComm()).checkpoint()
    learner = Learner(made, SingleComm(), CPU)
    learner.restore(copied(saved))
    assert list(learner.strategy.tasks(1, [])) == []
    learner.strategy.synchronize()
    assert difference(learner.checkpoint(), saved) == 0


def test_an_order_is_read_once_and_kept_with_the_run(tmp_path: Path) -> None:
    """The file may be that of a run which still goes on."""
    made = ordered(tmp_path, WHOLE)
    fingerprint = made.fingerprint
    learner = Learner(made, SingleComm(), CPU)
    ordered(tmp_path, WHOLE, WHOLE)
    assert learner.recipe.fingerprint == fingerprint
    learner.strategy.save_artifacts(tmp_path)
    kept = replace(made, strategy=replace(made.strategy, order=str(tmp_path / "orders.npz")))
    assert kept.fingerprint == fingerprint != replace(made).fingerprint
    with pytest.raises(UsageError, match="has changed since this job started to read it;"):
        Learner(made, SingleComm(), CPU)
