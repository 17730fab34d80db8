"""Observations from records that are written by hand, without a script that is started."""

import base64
import functools
import itertools
from array import array
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.nn import functional as F

from lsgd.audit.__main__ import _watched, notes
from lsgd.audit.facts import observe
from lsgd.audit.gradients import observe_gradient
from lsgd.audit.job import AuditedJob
from lsgd.audit.processes import LoaderRecord, ScriptProcess, _fields
from lsgd.audit.watch.data import DataWatch, examples_of, sampled
from lsgd.audit.watch.forward import ForwardWatch, is_in_training
from lsgd.audit.watch.gradient import CLASS_LOSSES, ELEMENT_LOSSES, GradientWatch
from lsgd.audit.watch.record import Pass, Record, class_of, micro_batches
from lsgd.audit.watch.schedule import ScheduleWatch, highest
from lsgd.audit.watch.update import CHANGING, UpdateWatch
from lsgd.check.observation import Observation
from lsgd.check.step import Momentum
from lsgd.errors import UsageError

Group = tuple[dict[str, int], dict[str, Any]]
"""The counts of the parameters in a group of an optimizer, and its settings."""
SGD = {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-4}
ORDER = [3, 1, 7, 0, 12, 5, 9, 2, 4, 15, 6, 8, 10, 14, 13, 11]
"""The examples of an epoch in random order."""


def job(
    *lines: dict[str, Any],
    groups: list[Group] | None = None,
    updates: list[dict[str, Any]] | None = None,
) -> AuditedJob:
    """A job of one process with two updates by SGD, or these, besides other observations."""
    groups = groups or [({"weights": 2}, SGD)]
    line = {
        "kind": "update", "clip": None, "group": None, "used": None, "local": None, "losses": [],
        "evaluations": 1, "in_backward": False,
        "passes": [{"images": 256, "train": True, "place": "train.py:8", "calls": 1}],
        **{key: [settings.get(key) for _, settings in groups] for key in CHANGING},
        "place": "train.py:9",
    }  # fmt: skip
    optimizer = {
        "kind": "optimizer", "name": "SGD", "place": "train.py:2", "scheduler_place": "",
        "groups": [{"counts": counts, "settings": settings} for counts, settings in groups],
        "untouched": {"count": 0, "names": []}, "started_with_state": False, "later_updates": 0,
    }  # fmt: skip
    updates = [line | each for each in updates or [{}, {}]]
    return AuditedJob([ScriptProcess([*lines, optimizer, *updates])])


def fact(job: AuditedJob, rule: str) -> Observation:
    """The observation of a job for a rule."""
    [found] = [each for each in observe(job) if each.rule == rule]
    return found


def encoded(numbers: list[int]) -> str:
    return base64.b64encode(array("q", numbers).tobytes()).decode()


def epoch(
    number: int, order: list[int], *, trained: int = 1, updates: int = 0, updated: int = 4,
    updated_at_end: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """The record of an epoch of a DataLoader over 16 examples in batches of 4."""
    return {
        "kind": "loader", "number": 0, "epoch": number, "root": 0, "subset": None,
        "order": encoded(order),
        "sizes": [4] * (len(order) // 4), "length": 16, "batches": 4, "is_distributed": False,
        "trained": trained, "evaluated": 0, "place": "train.py:3", "used_at": "",
        "made": "train.py:1", "updates": updates, "is_gathered": False,
        "updated": updated, "updated_at_end": updated_at_end,
    }  # fmt: skip


def loader(number: int) -> SimpleNamespace:
    """What the record of a process reads and writes of an epoch of a DataLoader."""
    counts = {"updated": 0, "updated_at_end": 0, "trained": 0, "evaluated": 0}
    counts |= {"given": 1, "last": 4}
    return SimpleNamespace(number=number, is_at_end=False, **counts)


def test_an_epoch_without_an_update_does_not_count() -> None:
    """PyTorch's tutorial takes a batch to look at, and scripts read all images for their mean."""
    record = Record("unused", max_updates=100, max_epochs=2)
    ends = []
    for number_of_updates in (0, 3, 0, 3):
        record.loader = loader(0)
        for _ in range(number_of_updates):
            record.end_update()
            ends.append(record.is_over())
    assert ends == [False, False, False, False, True, True]
    assert record.trained_epochs == 2


def test_epochs_of_different_loaders_are_counted_by_themselves() -> None:
    """A script may take batches of two loaders by turns, or another loader for larger images."""
    record = Record("unused", max_updates=100, max_epochs=2)
    loaders = [loader(number) for number in range(2)]
    for update in range(20):
        record.loader = loaders[update % 2]
        record.end_update()
        assert not record.is_over()


def test_the_order_of_a_batch_that_was_only_looked_at_is_not_compared() -> None:
    """The epochs of the training have the same order here, other than that of the look."""
    look = epoch(1, ORDER[::-1], trained=0)
    found = job(look, epoch(2, ORDER), epoch(3, ORDER, updates=4))
    assert [each.epoch for each in found.first.training] == [2, 3]
    shuffling = fact(found, "shuffling")
    assert shuffling.run == "epoch 2 has the order of epoch 1"
    assert shuffling.place == "train.py:3"


def test_the_lr_is_that_of_the_group_with_the_most_weights() -> None:
    """And another lr of any group is a deviation, but for a group of none of the network's."""
    biases = ({"biases": 3, "norms": 4}, SGD | {"lr": 0.05})
    weights = ({"weights": 4}, SGD)
    found = job(groups=[biases, weights])
    reference = fact(found, "reference_lr")
    assert reference.value == (0.1, 256, 0.05)
    assert reference.run == "lr 0.1 for 256 images; other groups: lr 0.05"
    assert fact(found, "peak_lr").run == "lr 0.1 at most; other groups: lr 0.05"
    others = [({"others": 9}, SGD | {"lr": 0.5}), ({}, SGD | {"lr": 7.0})]
    assert fact(job(groups=[*others, weights]), "reference_lr").value == (0.1, 256)


def test_another_lr_is_seen_before_the_peak_is_known() -> None:
    """A group has a tenth of the lr, in a warmup by hand."""
    groups = [({"weights": 2}, SGD | {"lr": lr}) for lr in (0.01, 0.001)]
    updates = [{"lr": [lr, lr / 10]} for lr in (0.01, 0.02, 0.03)]
    value = fact(job(groups=groups, updates=updates), "reference_lr").value
    assert value == pytest.approx((0.03, 256, 0.003))


@pytest.mark.parametrize(
    ("function", "peak"),
    [
        (lambda step: 0.4 - step / 100, 0.4),
        (lambda step: 0.1 + 0.3 * min(1, step / 20), 0.4),  # a warmup that is seen in part
        (lambda step: 0.1 + 0.3 * min(1, step / 3), 0.4),
        (lambda step: 0.4 if step < 30 else 0.04, 0.4),
        ([0.1, 0.2, 0.3, 0.4].__getitem__, 0.4),
        (lambda step: 0.1 + step / 100, 1.0),  # it has no peak, and the initial lr stands for one
    ],
)
def test_the_peak_of_a_schedule_is_not_its_initial_lr(
    function: Callable[[int], float], peak: float
) -> None:
    """A LambdaLR with the initial lr 1 has the lr that its function returns."""
    weight = torch.nn.Parameter(torch.zeros(1))
    schedules = ScheduleWatch(Record("unused", max_updates=1, max_epochs=1))
    scheduler = torch.optim.lr_scheduler.LambdaLR(torch.optim.SGD([weight], 1.0), function)
    schedules._note_scheduler(None, scheduler)
    updates = [{"lr": [function(step)]} for step in range(4)]
    groups = [({"weights": 2}, SGD | {"initial_lr": 1.0})]
    found = job(*schedules.lines(), groups=groups, updates=updates)
    assert fact(found, "peak_lr").value == pytest.approx(peak)


def test_a_curve_that_has_fallen_has_its_peak_behind_it() -> None:
    """But not that of a resumed run."""
    groups, updates = [({"weights": 2}, SGD | {"initial_lr": 1.0})], [{"lr": [0.2]}, {"lr": [0.1]}]
    found = job(groups=groups, updates=updates)
    assert fact(found, "peak_lr").value == 0.2
    found.first.first("optimizer")["started_with_state"] = True
    assert fact(found, "peak_lr").value == 1.0


def test_updates_of_another_optimizer_have_no_lr_of_these_groups() -> None:
    """The head was updated once before the optimizer of the body was met, and that of the neck."""
    groups = [({"weights": 3}, SGD), ({"weights": 9}, SGD | {"lr": 0.4})]
    none: dict[str, Any] = {key: [] for key in CHANGING}
    updates = [none, {"lr": [0.1]}, {"lr": [0.1, 0.2]}, {"lr": [0.1, 0.2]}]
    found = job(groups=groups, updates=updates)
    assert found.setting("lr", 1) == [0.4, 0.2, 0.2]
    assert fact(found, "reference_lr").value == (0.4, 256, 0.1, 0.2)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({}, "SGD as equation (9), Nesterov, m = 0.9"),
        ({"momentum": 0.5}, "SGD as equation (9), Nesterov, m = 0.9; other groups: m = 0.5"),
        (
            {"nesterov": False},
            "SGD as equation (9), Nesterov, m = 0.9; other groups: not Nesterov, m = 0.9",
        ),
    ],
)
def test_momenta_of_all_groups(other: dict[str, Any], says: str) -> None:
    found = job(groups=[({"biases": 1}, SGD | other), ({"weights": 2}, SGD)])
    momentum = fact(found, "momentum")
    assert momentum.run == says
    is_followed = momentum.value == Momentum(9, nesterov=True, m=0.9, clip_norm=None)
    assert is_followed is not bool(other)


def updated(dtype: torch.dtype, momenta: list[float]) -> AuditedJob:
    """A job whose weight a real SGD updates, with these momenta."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(8, dtype=dtype))
    own = [torch.nn.Parameter(torch.zeros(1)), weight]
    groups: list[dict[str, Any]] = [
        {"params": [own[0]], "momentum": 0.5},
        {"params": [weight]},
    ]
    optimizer = torch.optim.SGD(groups, 0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    updates = []
    for momentum in momenta:
        optimizer.param_groups[1]["momentum"] = momentum
        weight.grad = torch.randn(8, dtype=dtype)
        before = weight.tolist()
        optimizer.step()
        updates.append(
            {
                "before": before, "used": weight.grad.tolist(), "after": weight.tolist(),
                "group": 1, "eps": torch.finfo(dtype).eps,
                **{key: [group[key] for group in optimizer.param_groups] for key in CHANGING},
            }
        )  # fmt: skip
    # The weight that is sampled is not in the group of the most weights.
    return job(
        groups=[({"weights": 9}, SGD | {"momentum": 0.5}), ({"weights": 1}, SGD)], updates=updates
    )


def test_the_equation_is_that_of_the_group_of_the_sampled_weight() -> None:
    says = "SGD as equation (9), Nesterov, m = 0.9; other groups: m = 0.5"
    assert fact(updated(torch.float32, [0.9] * 4), "momentum").run == says


def test_a_momentum_that_changes() -> None:
    """OneCycleLR changes it unless it is told not to."""
    says = "SGD as equation (9), Nesterov, momentum changes from 0.95 to 0.85; other groups: m = "
    momentum = fact(updated(torch.float32, [0.95, 0.9, 0.85, 0.9]), "momentum")
    assert momentum.run == says + "0.5"
    assert momentum.value != Momentum(9, nesterov=True, m=0.95, clip_norm=None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_16_bits_do_not_show_the_equation(dtype: torch.dtype) -> None:
    """The settings say it, as for weights that cannot be sampled."""
    says = "SGD as equation (9), Nesterov, m = 0.5; other groups: m = 0.9"
    assert fact(updated(dtype, [0.9] * 4), "momentum").run == says


def test_a_weight_decay_that_changes() -> None:
    updates = [{"weight_decay": [decay]} for decay in (1e-4, 2e-4)]
    run = fact(job(updates=updates), "weight_decay").run
    assert run == "0.0002 on weights (2), 0.0001 on weights (2)"


@pytest.mark.parametrize(
    ("target", "settings", "smoothing"),
    [
        (torch.tensor([0, 1]), {}, 0.0),
        (torch.tensor([0, 1]), {"label_smoothing": 0.1}, 0.1),
        (torch.tensor([[0.7, 0.3], [0.1, 0.9]]), {}, None),
    ],
)
def test_the_smoothing_of_class_probabilities_is_not_known(
    target: torch.Tensor, settings: dict[str, Any], smoothing: float | None
) -> None:
    """As of mixup, and of labels that a script smooths itself."""
    gradients = GradientWatch(Record("unused", max_updates=1, max_epochs=1))
    logits = torch.zeros(2, 2, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(logits, target, **settings)
    gradients._note_loss(loss, logits, target, **settings)
    gradients._note_loss(loss, input=logits, target=target, **settings)
    assert [(each["smoothing"], each["examples"]) for each in gradients.losses] == [
        (smoothing, 2)
    ] * 2


@pytest.mark.parametrize(
    ("updated", "at_end", "run", "is_noted"),
    [
        (4, 1, "a permutation, divided among 1 process", False),
        (4, 4, "a permutation, divided among 1 process", False),  # all batches are taken at once
        (40, 10, "a permutation, divided among 1 process", False),  # ten updates by each batch
        (1, 1, "a permutation, divided among 1 process", False),  # of four micro-batches
        (12, 9, "the batches of epoch 1 are kept and repeated, as by itertools.cycle", True),
        (12, 12, "", True),  # the script takes all batches first, and may shuffle them itself
    ],
)
def test_batches_that_a_script_keeps(updated: int, at_end: int, run: str, is_noted: bool) -> None:
    found = job(epoch(1, ORDER, trained=updated, updated=updated, updated_at_end=at_end))
    runs = [each.run for each in observe(found) if each.rule == "shuffling"]
    assert runs == ([run] if run else [])
    assert any("kept of its DataLoader" in each for each in notes(found, [])) == is_noted


def test_an_optimizer_of_few_parameters_that_comes_first_counts_no_update_of_its_own() -> None:
    """The head's optimizer steps before that of the body, which has more parameters."""
    record = Record("unused", max_updates=100, max_epochs=2)
    record.observe_calls = lambda kind: None
    watch = UpdateWatch(record)
    record.watches = [GradientWatch(record), watch]
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3), torch.nn.Linear(3, 2))
    head = torch.optim.SGD(model[2].parameters(), 0.5, momentum=0.9)
    body = torch.optim.SGD(model[:2].parameters(), 0.1, momentum=0.9)
    for _ in range(3):
        model(torch.ones(4, 3)).sum().backward()
        record.passes = [Pass(model, 4, None, "", train=True, grad=True)]
        for optimizer in (head, body):
            watch._begin_update(optimizer)
            optimizer.step()
            watch._finish(optimizer)
    updates = [each for each in watch.lines() if each["kind"] == "update"]
    assert record.updates == 3
    assert [len(each["passes"]) for each in updates] == [1, 1, 1]
    assert [each["lr"] for each in updates] == [[0.1], [0.1, 0.5], [0.1, 0.5]]
    assert updates[0]["used"]
    assert [each["group"] for each in updates] == [None, None, None]


@pytest.mark.parametrize(
    ("evaluation", "is_left"),
    [
        ({"evaluated": 4, "is_at_end": True}, True),
        ({"evaluated": 3}, False),
        ({"is_at_end": True}, False),  # of one batch, which may be a training batch
        ({"evaluated": 1, "trained": 3, "is_at_end": True}, False),
    ],
)
def test_kept_batches_after_an_evaluation_are_of_the_training(
    evaluation: dict[str, Any], is_left: bool
) -> None:
    """They would count as batches of the validation, which would be no evaluation then."""
    record = Record("unused", max_updates=100, max_epochs=2)
    training, validation = loader(0), loader(1)
    vars(validation).update(evaluation)
    record.loader, record.updated_by = validation, (training, 4)
    record.leave_evaluation()
    assert record.loader is (training if is_left else validation)


class WithLoss(torch.nn.Module):
    """A network with its loss, whose own mode and that of the loss nothing asks."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network, self.loss = network, torch.nn.CrossEntropyLoss()


def test_the_mode_is_that_of_the_layers_inside_of_wrappers() -> None:
    network = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    wrapper = WithLoss(network)
    for grad in (True, False):
        network.train()
        assert is_in_training(wrapper, trains_weights=grad)
        network.eval()
        assert not is_in_training(wrapper, trains_weights=grad)
    with_dropout = torch.nn.Sequential(*network, torch.nn.Dropout()).eval()
    with_dropout[2].train()  # Monte Carlo dropout moves no statistics
    assert not is_in_training(WithLoss(with_dropout), trains_weights=False)
    assert not is_in_training(WithLoss(with_dropout[::2]), trains_weights=False)
    with_dropout[0].train()
    assert is_in_training(with_dropout, trains_weights=False)
    network.train()
    network[1].eval()  # a frozen BN
    assert is_in_training(wrapper, trains_weights=True)
    assert not is_in_training(wrapper, trains_weights=False)
    assert not is_in_training(torch.nn.Linear(2, 2).eval(), trains_weights=True)


def passes(*images: int, given: int, backward: int = 1, batch: int = 1) -> list[Pass]:
    """Forward passes of one network before a backward pass, by a batch of as many images."""
    shared = loader(0)
    shared.given, shared.last = batch, given
    found = [Pass(MODEL, count, shared, "", train=True, grad=True) for count in images]
    for each in found:
        each.backward = backward
    return found


MODEL = torch.nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("made", "images"),
    [
        (passes(32, 32, given=32), [32]),  # two views
        (passes(*[32] * 8, given=32), [32]),  # time steps
        (passes(8, 8, 8, 8, given=32), [8, 8, 8, 8]),  # parts of the batch
        (passes(8, 8, 8, 8, given=16), [16]),  # two views, each in parts
        (passes(8, given=32) + passes(8, given=32, backward=2), [8, 8]),
        (passes(32, given=32) + passes(32, given=32, batch=2), [32, 32]),  # two batches' losses
        (passes(32, given=16), [32]),  # the next batch was prefetched
        (passes(32, given=1), [32]),  # a dataset of batches
        (passes(32, 32, given=0), [32]),  # no DataLoader
        (passes(32, 16, given=0), [32, 16]),
    ],
)
def test_passes_of_a_batch_before_one_backward_pass_are_one_micro_batch(
    made: list[Pass], images: list[int]
) -> None:
    other = Pass(torch.nn.Linear(2, 2), made[0].images, None, "", train=True, grad=True)
    for found in (made, [*made, other]):
        assert [each["images"] for each in micro_batches(found)] == images


@pytest.mark.parametrize(
    ("inputs", "output", "images"),
    [
        (([torch.ones(3, 9, 9)] * 8, [{}] * 8), torch.ones(()), 8),  # a detector's
        (([torch.ones(8, 3, 9, 9)] * 2,), torch.ones(16, 2), 8),  # two views
        ((torch.ones(19, 8, 3),), torch.ones(8, 2), 8),  # of sequences, whose time comes first
        ((torch.ones(19, 8, 3),), torch.ones(19, 8, 2), 8),
        ((torch.ones(50, 3),), {"loss": torch.ones(()), "logits": torch.ones(8, 2)}, 8),  # graphs
        ((torch.ones(16, 3),), torch.ones(16, 8), 16),  # with images of another loader
        ((torch.ones(4, 3, 8, 8),), torch.ones(4, 8, 8, 8), 4),  # a part of the batch
    ],
)
def test_the_images_of_a_pass(inputs: tuple[Any, ...], output: Any, images: int) -> None:
    """Its loader has given 8."""
    record, forward, _, _ = watched()
    record.loader = loader(0)
    record.loader.last = 8
    forward.before(MODEL, inputs)
    forward.after(MODEL, inputs, output)
    assert [each.images for each in record.pending] == [images]


@pytest.mark.parametrize(
    ("images", "sizes"), [((16, 16), [16, 16]), ((16, 48), [16, 48]), ((16, 16, 16, 16), [32])]
)
@pytest.mark.parametrize("has_left_others", [True, False])
def test_batches_of_two_loaders_are_two_micro_batches(
    images: tuple[int, ...], sizes: list[int], has_left_others: bool
) -> None:
    """As those of zip(labelled, unlabelled); no batches of a loop that has ended are among them."""
    record, forward, _, update = watched()
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    labelled, unlabelled, looked_at, validated = (loader(number) for number in range(4))
    labelled.last, unlabelled.last = images[:2]
    validated.evaluated = 3
    iterators = [torch.nn.Identity() for _ in range(4)]
    if has_left_others:
        record.note_batch(looked_at, torch.nn.Identity())
        record.note_batch(validated, iterators[3])
    for _ in range(2):
        record.note_batch(labelled, iterators[0])
        record.note_batch(unlabelled, iterators[1])
        for count in images:
            forward.before(model, (torch.ones(count, 3),))
            forward.after(model, (), model(torch.ones(count, 3)))
        forward._begin_backward()
        model(torch.ones(1, 3)).sum().backward()
        update._begin_update(optimizer)
        update._finish(optimizer)
        optimizer.zero_grad()
    lines = [each for each in update.lines() if each["kind"] == "update"]
    assert [[each["images"] for each in line["passes"]] for line in lines] == [sizes] * 2


def watched() -> tuple[Record, ForwardWatch, GradientWatch, UpdateWatch]:
    """The watches of a process whose hooks a test calls itself."""
    record = Record("unused", max_updates=100, max_epochs=2)
    record.observe_calls = lambda kind: None
    gradients, forward, update = GradientWatch(record), ForwardWatch(record), UpdateWatch(record)
    record.forget_replaced = gradients._forget_replaced
    forward._observe = record.observe_calls  # type: ignore[method-assign]  # leave nn.Linear alone
    record.watches = [gradients, forward, update]
    return record, forward, gradients, update


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_torchscript_compiles_what_the_watch_has_wrapped() -> None:
    """As a scripted nn.CrossEntropyLoss does, and a penalty on gradients; a trace is no call."""
    record = Record("unused", max_updates=100, max_epochs=2)
    real, seen = SimpleNamespace(loss=F.relu, grad=torch.autograd.grad), list[Any]()
    for name in vars(real):
        record.wrap(real, name, before=lambda *inputs, **_: seen.append(inputs))
    loss, derivative = real.loss, real.grad

    def penalty(images: torch.Tensor) -> torch.Tensor:
        gradient = derivative([loss(images).sum()], [images])[0]
        assert gradient is not None
        return gradient.sum()

    images = torch.ones(3, requires_grad=True)
    assert torch.jit.script(penalty)(images) == 3
    traced = torch.jit.trace(lambda each: loss(each).sum(), images, check_trace=False)
    assert traced(images) == 3
    assert not seen
    assert penalty(images) == 3
    assert len(seen) == 2


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_scripted_layers_are_known_by_their_class() -> None:
    network = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    for each in (network, torch.jit.script(network)):
        assert [class_of(layer) for layer in each] == [torch.nn.Linear, torch.nn.BatchNorm1d]
    assert class_of(WithLoss(network)) is WithLoss


def test_parameters_of_no_network_that_was_called_are_noted() -> None:
    """As if the loop calls a training_step of the network, which calls its layers alone."""
    for counts, is_noted in (({"weights": 2, "others": 4}, True), ({"others": 4}, False)):
        found = notes(job(groups=[(counts, SGD)]), [])
        assert any(each.startswith("4 parameters of the opt") for each in found) == is_noted


def test_a_loss_that_is_left_out_adds_no_images() -> None:
    """As by `if not torch.isfinite(loss): continue`."""
    record, forward, _, update = watched()
    record.loader = loader(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in range(1, 5):
        record.loader.given = batch
        images = torch.ones(4, 3)
        forward.before(model, (images,))
        output = model(images)
        forward.after(model, (images,), output)
        if batch == 2:
            continue
        forward._begin_backward()
        output.sum().backward()
        update._begin_update(optimizer)
        update._finish(optimizer)
    lines = [each for each in update.lines() if each["kind"] == "update"]
    assert [[each["images"] for each in line["passes"]] for line in lines] == [[4]] * 3


def test_a_clip_of_other_parameters_has_no_part_in_the_factor() -> None:
    """The strictest stands for the update, wherever it is."""
    _, _, gradients, _ = watched()
    body, head = torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)
    [gradients.parameter, _] = head.parameters()
    for each in (*body.parameters(), *head.parameters()):
        each.grad = torch.ones_like(each)
    for module, most in ((head, 2.0), (body, 0.01)):
        gradients._begin_clip()
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), most)
        gradients._note_clip(norm, module.parameters(), most)
    gradients._begin_clip()
    torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
    gradients._note_clip_with_norm(None, head.parameters(), 1.0, torch.tensor(2.0))
    found = gradients.observe_update()
    assert found["clip"]["max_norm"] == 0.01
    assert [most for most, _ in found["factors"]] == [2.0, 1.0]
    assert [float(norm) for _, norm in found["factors"]] == pytest.approx([8**0.5, 2.0])
    assert not gradients.observe_update()["factors"]


def test_gradients_by_autograd_grad_are_seen_if_they_are_those_of_parameters() -> None:
    """Those of images, as of a gradient penalty, are none of an update."""
    record, forward, _, _ = watched()
    model, images = torch.nn.Linear(3, 2), torch.ones(4, 3)
    record.pending = [Pass(model, 4, None, "", train=True, grad=True)]
    forward._begin_grad(model(images).sum(), images)
    assert not record.passes
    for parameters in (model.parameters(), [*model.parameters()], model.weight):
        record.passes, record.pending = [], [Pass(model, 4, None, "", train=True, grad=True)]
        forward._begin_grad(outputs=model(images).sum(), inputs=parameters)
        assert [each.images for each in record.passes] == [4]


def test_steps_without_gradients_that_were_seen_have_a_cause_of_their_own() -> None:
    """As those by torch.func."""
    records = [ScriptProcess([{"kind": "process", "has_stepped": True}])]
    with pytest.raises(UsageError, match=r"an optimizer made steps, but neither backward\(\) nor"):
        _watched(records, 0, ["python", "train.py"], {"max_updates": 9, "max_epochs": 2})


@pytest.mark.parametrize(
    ("name", "settings", "is_decoupled"),
    [
        ("Adam", {"decoupled_weight_decay": False}, False),
        ("Adam", {"decoupled_weight_decay": True}, True),
        ("AdamW", {}, True),  # of torch before 2.7
        ("SGD", {}, False),
    ],
)
def test_decoupled_weight_decay(name: str, settings: dict[str, Any], is_decoupled: bool) -> None:
    found = job(groups=[({"weights": 2}, SGD | settings)])
    found.first.first("optimizer")["name"] = name
    decay = fact(found, "weight_decay")
    assert decay.value.decoupled == is_decoupled
    assert decay.run.endswith("decoupled from the gradient") == is_decoupled


def evaluation(order: list[int], **settings: Any) -> dict[str, Any]:
    """The record of an evaluation of 16 examples, or of as many as the settings say."""
    line = epoch(1, order, trained=0) | {"number": 1, "root": 1, "evaluated": 4}
    return line | {"batches": 1, "sizes": [len(order)]} | settings


def test_the_worst_of_several_evaluations_is_reported() -> None:
    train = evaluation([*range(16)], number=1, root=0)
    val = evaluation([*range(12)], number=2)
    found = job(epoch(1, ORDER), train, val)
    assert (fact(found, "evaluation").run, fact(found, "evaluation").value) == (
        "4 of 16 never",
        False,
    )
    assert not notes(found, [])
    assert fact(job(epoch(1, ORDER), train, train | {"number": 2}), "evaluation").value


def test_a_partial_evaluation_besides_a_whole_one_is_noted() -> None:
    """As of some batches within an epoch, or the accuracy of training data without a tail."""
    whole, part = evaluation([*range(16)]), evaluation([*range(12)], number=2)
    for other in (part, part | {"root": 0}):
        found = job(epoch(1, ORDER), whole, other)
        assert fact(found, "evaluation").run == "each of 16 once"
        assert any("is not judged (4 of 16 never)" in each for each in notes(found, []))
    alone = job(epoch(1, ORDER), part | {"root": 0})
    assert not [each for each in observe(alone) if each.rule == "evaluation"]


@pytest.mark.parametrize(("examples", "is_judged"), [(range(16, 32), True), (range(16), False)])
def test_a_validation_split_of_the_training_dataset_is_judged(
    examples: range, is_judged: bool
) -> None:
    """As by random_split, which makes Subsets of one dataset."""
    val = evaluation([*range(12)], root=0, subset=encoded([*examples]))
    found = job(epoch(1, ORDER) | {"subset": encoded([*range(16)])}, val)
    runs = [each.run for each in observe(found) if each.rule == "evaluation"]
    assert runs == ["4 of 16 never"] * is_judged


def of_processes(*lines: list[dict[str, Any]]) -> AuditedJob:
    """A job of processes with these observations."""
    return AuditedJob([job(*each).first for each in lines])


def shard(order: list[int], subset: list[int] | None, length: int = 8) -> list[dict[str, Any]]:
    """The training epoch and the evaluation of a process with a dataset of its own."""
    own = {"subset": None if subset is None else encoded(subset), "length": length}
    return [
        epoch(1, order) | own | {"batches": 2, "sizes": [4, 4]},
        evaluation(order, **own),  # of another dataset
    ]


def test_subsets_of_processes_are_numbered_by_their_whole_dataset() -> None:
    order = [3, 1, 7, 0, 5, 2, 4, 6]
    even, odd = [*range(0, 16, 2)], [*range(1, 16, 2)]
    found = of_processes(shard(order, even), shard(order, odd))
    assert fact(found, "shuffling").run == "a permutation, divided among 2 processes"
    assert fact(found, "evaluation").run == "each of 16 once"
    again = of_processes(shard(order, even), shard(order, [*range(1, 8), 0]))
    assert "4 images of an epoch are in more than one" in fact(again, "shuffling").run
    assert fact(again, "evaluation").value is False
    every: Any = range(40)
    whole: Any = torch.utils.data.Subset(every, [*range(4, 40, 4)])
    chosen: Any = torch.tensor([5, 0])
    part = torch.utils.data.Subset(whole, chosen)
    assert examples_of(part).tolist() == [24, 4]


def test_the_subset_of_a_sampler_is_that_of_its_loader() -> None:
    """The usual split, by two samplers of one dataset: each has its own images once."""
    chosen = torch.tensor([9, 4, 14, 1, 11, 6, 2, 15])
    whole: Any = torch.utils.data.Subset(range(40), range(20, 40))  # type: ignore[arg-type]
    sampler = torch.utils.data.SubsetRandomSampler(chosen)  # type: ignore[arg-type]
    data = DataWatch(Record("unused", max_updates=1, max_epochs=1))
    data._begin_epoch(torch.utils.data.DataLoader(whole, 4, sampler=sampler))
    data.is_beginning = True
    for batch in ([15, 4, 9, 2], [11, 1, 14, 6]):
        data._note_index(batch, None)
    [line, _] = data.lines()
    found = LoaderRecord(**_fields(line))
    assert found.length == 8
    assert found.order == [7, 1, 0, 6, 4, 3, 2, 5]
    assert found.examples == [35, 24, 29, 22, 31, 21, 34, 26]


@pytest.mark.parametrize(
    ("subsets", "says"),
    [
        ([ORDER, ORDER[::-1]], "a new permutation in each of 2 epochs, divided among 1 process"),
        ([ORDER, ORDER], "epoch 2 has the order of epoch 1"),  # as by random_split
        ([range(16), range(16)], "images are not in random order"),
    ],
)
def test_an_order_by_subsets(subsets: list[Sequence[int]], says: str) -> None:
    """A script may permute the images itself; a loader of a Subset that does not has a fault."""
    lines = [
        epoch(number, [*range(16)]) | {"subset": encoded([*subset])}
        for number, subset in enumerate(subsets, start=1)
    ]
    shuffling = fact(job(*lines), "shuffling")
    assert (shuffling.run, shuffling.place) == (says, "train.py:1")


def test_datasets_of_different_lengths_are_not_compared() -> None:
    order = [3, 1, 7, 0, 5, 2, 4, 6]
    found = of_processes(shard(order, None), shard(order, None, length=9))
    assert fact(found, "shuffling").run.endswith("how images are divided is not known")
    assert not [each for each in observe(found) if each.rule == "evaluation"]
    assert any("datasets of their own" in each for each in notes(found, []))


def test_of_more_examples_than_are_recorded_none_is_missing() -> None:
    """Of each epoch the first 12 are."""
    cut_off = evaluation(ORDER[:12], sizes=[16])
    found = job(epoch(1, ORDER[:12]) | {"sizes": [4] * 4}, cut_off)
    assert fact(found, "shuffling").run == "a permutation, divided among 1 process"
    assert not [each for each in observe(found) if each.rule == "evaluation"]
    assert any("train.py:3 has more examples than are" in each for each in notes(found, []))


def test_images_that_an_evaluation_counts_less_often() -> None:
    often = evaluation([*range(16), *range(14)])
    says = "2 of 16 counted less often than the others"
    assert fact(job(epoch(1, ORDER), often), "evaluation").run == says


def test_an_evaluation_that_only_some_processes_have_ended_is_left_out() -> None:
    first, second = evaluation([*range(8)]), evaluation([*range(8, 16)])
    cut = [epoch(1, ORDER), first, first | {"epoch": 2}]
    found = fact(of_processes(cut, [epoch(1, ORDER), second]), "evaluation")
    assert found.run == "each of 16 once"


def test_random_streams_are_those_of_loaders_that_are_trained_from() -> None:
    """A script may set the seed before each evaluation."""
    streams = [
        {"worker": None, "drawn": {"torch": state}, "loader": number}
        for state, number in (("a", 0), ("b", 1), ("b", 1), ("c", None))
    ]
    lines = job(epoch(1, ORDER), evaluation([*range(16)])).first.lines
    found = AuditedJob([ScriptProcess(lines, streams)])
    assert fact(found, "random_streams").value
    again = AuditedJob([ScriptProcess(lines, [*streams, streams[0]])])
    assert not fact(again, "random_streams").value


def test_a_later_training_in_the_same_process_is_noted() -> None:
    """As those of cross-validation."""
    for order, later in (("aaabbb", 3), ("ababab", 0)):  # the latter as a critic and a generator
        record, _, _, update = watched()
        models = {name: torch.nn.Linear(3, 2) for name in "ab"}
        record.model = models["a"]
        optimizers = {
            name: torch.optim.SGD(each.parameters(), 0.1) for name, each in models.items()
        }
        for name in order:
            models[name](torch.ones(4, 3)).sum().backward()
            record.passes = [Pass(models[name], 4, None, "", train=True, grad=True)]
            update._begin_update(optimizers[name])
            update._finish(optimizers[name])
        [line] = [each for each in update.lines() if each["kind"] == "optimizer"]
        assert line["later_updates"] == later
    found = job()
    found.first.first("optimizer")["later_updates"] = 3
    assert any("another network got 3 updates after" in each for each in notes(found, []))


def _mixup(out: Any, y: Any, n: int) -> Any:
    return (0.3 * F.cross_entropy(out, y) + 0.7 * F.cross_entropy(out, y.flip(0))) / n


def _smoothed_by_hand(out: Any, y: Any, n: int) -> Any:
    logp = out.log_softmax(1)
    return -(0.9 * logp.gather(1, y[:, None]).squeeze(1) + 0.1 * logp.mean(1)).sum() / n


def _weighted(out: Any, y: Any, n: int) -> Any:
    return (F.cross_entropy(out, y, reduction="none") * torch.arange(4.0)).mean() / n


def _bce(out: Any, y: Any, reduction: str = "none") -> Any:
    return F.binary_cross_entropy_with_logits(out, F.one_hot(y, 3).float(), reduction=reduction)


def _kl(out: Any, y: Any) -> Any:
    return F.kl_div(out.log_softmax(1), F.one_hot(y, 3).float(), reduction="sum")


def _ignoring(out: Any, y: Any, reduction: str) -> Any:
    target = torch.where(y == 0, -100, y)  # one of four
    return F.cross_entropy(out, target, reduction=reduction).sum() / (target != -100).sum()


def _as_subclass(out: Any, y: Any) -> Any:
    return F.cross_entropy(out.as_subclass(Subclass), y).as_subclass(torch.Tensor)


def _beside_vmap(out: Any, y: Any) -> Any:
    torch.vmap(torch.func.grad(F.cross_entropy))(out.detach(), y)  # of each image
    return F.cross_entropy(out, y)


def _old_sum(out: Any, y: Any) -> Any:
    return F.smooth_l1_loss(out, F.one_hot(y, 3).float(), size_average=False)


class Subclass(torch.Tensor):
    """A tensor whose functions are called again for the tensor that it is."""


@pytest.mark.filterwarnings("ignore:size_average and reduce args:UserWarning")
@pytest.mark.parametrize(
    ("loss", "micro_batches", "says"),
    [
        (lambda out, y: _mixup(out, y, 1), 1, "the mean over all images"),
        (lambda out, y: _mixup(out, y, 2), 2, "the mean over all images"),
        (lambda out, y: _mixup(out, y, 1), 2, "2 times the mean over all images: the losses of 2"),
        (lambda out, y: F.cross_entropy(out, y) + 0.4 * F.mse_loss(out[:, 0], y.float()), 1, ""),
        (lambda out, y: _smoothed_by_hand(out, y, 1), 1, ""),
        (lambda out, y: F.mse_loss(out, out.detach() + 1) + F.l1_loss(out, 0 * out), 1, ""),
        (lambda out, y: _as_subclass(out, y), 1, "the mean over all images"),
        (lambda out, y: _beside_vmap(out, y), 1, "the mean over all images"),
        (lambda out, y: _old_sum(out, y) / out.numel(), 1, "the mean over all images"),
        (lambda out, y: _bce(out[:0], y[:0]).sum() + F.cross_entropy(out, y), 1, "the mean over"),
        (lambda out, y: 64 * (F.cross_entropy(out, y) + out.square().mean()), 1, ""),
        (lambda out, y: F.cross_entropy(out, y) + out.square().mean(), 1, "the mean over all"),
        (lambda out, y: (F.cross_entropy(out, y) + out.square().mean()) / 2, 2, ""),
        (lambda out, y: _weighted(out, y, 2), 1, ""),
        (lambda out, y: _kl(out, y), 1, "4 times the mean over all images: the loss is a sum"),
        (lambda out, y: _kl(out, y) / len(y), 1, "the mean over all images"),
        (lambda out, y: _ignoring(out, y, "sum"), 1, "the mean over all images"),
        (lambda out, y: _ignoring(out, y, "none"), 1, "the mean over all images"),
        (lambda out, y: 2 * _ignoring(out, y, "none"), 1, "2 times the mean over all images"),
        (lambda out, y: _bce(out, y).sum(-1).mean(), 1, "the mean over all images"),
        (lambda out, y: _bce(out, y).mean(), 1, "the mean over all images"),
        (lambda out, y: _bce(out, y, "sum") / out.numel(), 1, "the mean over all images"),
        (lambda out, y: _bce(out, y).sum(), 1, "4 times the mean over all images: the loss is a"),
        (lambda out, y: 0.5 * F.cross_entropy(out, y), 1, "0.5 times the mean over all images"),
    ],
)
def test_the_factor_of_a_loss(
    loss: Callable[[Any, Any], Any], micro_batches: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is not known, neither a right nor a wrong gradient is reported."""
    found = trained(loss, micro_batches, monkeypatch)
    [seen] = observe_gradient(found)
    assert seen.rule == ("gradient" if says else "loss_factor")
    assert seen.run.startswith(says or "not known; the gradient is the sum over all micro-batches")
    assert seen.value is ((" times" not in seen.run) if says else None)
    assert any("row gradient is missing" in each for each in notes(found, [])) is not bool(says)


@pytest.mark.parametrize("sets_to_none", [True, False])
def test_gradients_that_are_cleared_before_the_step(
    sets_to_none: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clear = functools.partial(torch.optim.SGD.zero_grad, set_to_none=sets_to_none)
    [seen] = observe_gradient(trained(F.cross_entropy, 1, monkeypatch, clear))
    says = "the optimizer has no gradient: it is cleared between backward and step"
    assert (seen.run, seen.value) == (says, False)


def test_a_gradient_of_the_sampled_weight_alone_may_be_cleared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As that of the last layer in the first epoch of DINO."""

    def clear(optimizer: Any) -> None:
        optimizer.param_groups[0]["params"][0].grad = None

    assert not [*observe_gradient(trained(F.cross_entropy, 1, monkeypatch, clear))]


def test_a_slow_schedule_is_not_computed_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the lr still rises then, its peak is not known."""
    seconds = itertools.count(0.0, 0.25)
    monkeypatch.setattr("lsgd.audit.watch.schedule.time.monotonic", lambda: next(seconds))
    called: list[int] = []
    assert highest(lambda step: called.append(step) or float(step)) is None
    assert len(called) < 9
    assert highest(lambda step: min(step, 2.0)) == 2


def test_a_subset_that_comes_in_order_is_judged_by_two_epochs() -> None:
    """A script may permute it in each epoch, or forget to shuffle a random split."""
    one = job(epoch(1, [*range(16)]) | {"subset": encoded(ORDER)})
    assert not [each for each in observe(one) if each.rule == "shuffling"]
    assert any("come in its order" in each for each in notes(one, []))


def test_a_sampler_of_other_things_than_numbers_has_no_subset() -> None:
    sampler = torch.utils.data.SubsetRandomSampler
    assert sampled(sampler(["a", "b"])) is None  # type: ignore[list-item]
    assert sampled(sampler(torch.tensor([4, 2]))) == [4, 2]  # type: ignore[arg-type]
    assert sampled(torch.utils.data.SequentialSampler([1, 2])) is None


def test_groups_of_equal_sizes_are_told_apart() -> None:
    """To compare them as dictionaries would compare tensors of different shapes."""
    watches = watched()
    model = torch.nn.Linear(3, 2)
    groups = [{"params": [model.bias]}, {"params": [model.weight]}]
    steps(watches, model, torch.optim.SGD(groups, 0.1))
    updates = [each for each in watches[3].lines() if each["kind"] == "update"]
    assert [each["group"] for each in updates] == [1] * 3


def test_steps_inside_of_the_backward_pass_are_noted() -> None:
    update = {"in_backward": True, "local": [1.0], "group": 0, "factor": 1.0}
    updates = [update | {"has_others": False}] * 2
    found = job(updates=updates)
    assert not [*observe_gradient(found)]
    assert any("inside of the backward pass" in each for each in notes(found, []))


def trained(
    loss: Callable[[Any, Any], Any],
    micro_batches: int,
    monkeypatch: pytest.MonkeyPatch,
    before_step: Callable[[Any], None] = lambda _: None,
) -> AuditedJob:
    """The job of a process that makes one update of a small network by a loss."""
    record, forward, gradients, update = watched()
    for owner, name in ((F, each) for each in (*CLASS_LOSSES, *ELEMENT_LOSSES)):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    for name in CLASS_LOSSES:
        record.wrap(F, name, after=gradients._note_loss)
    for name in ELEMENT_LOSSES:
        record.wrap(F, name, after=gradients._note_element_loss)
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(micro_batches):
        images, y = torch.randn(4, 3), torch.tensor([0, 1, 2, 1])
        forward.before(model, (images,))
        output = model(images)
        forward.after(model, (), output)
        value = loss(output, y)
        forward._begin_backward()
        gradients._note_backward(value)
        value.backward()
        gradients._note_other_terms()
    before_step(optimizer)
    update._begin_update(optimizer)
    optimizer.step()
    update._finish(optimizer)
    return AuditedJob([ScriptProcess([*update.lines(), *gradients.lines()])])


class Outer(torch.optim.SGD):
    """An optimizer that makes the step of another, as ZeroRedundancyOptimizer does."""

    inner: torch.optim.Optimizer

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        self.inner.step(closure)
        return None


def test_a_step_inside_of_a_step_ends_no_update() -> None:
    """ZeroRedundancyOptimizer sends the weights to the other processes after the inner step."""
    record, _, _, update = watched()
    model = torch.nn.Linear(3, 2)
    record.model, record.passes = model, [Pass(model, 4, None, "", train=True, grad=True)]
    outer, outer.inner = Outer(model.parameters(), 0.1), torch.optim.SGD(model.parameters(), 0.1)
    updates = []
    for each in (outer, outer.inner):
        each.register_step_pre_hook(update._before)
        each.register_step_post_hook(update._after)
        each.register_step_post_hook(lambda *_: updates.append(record.updates))
    with pytest.raises(OSError, match="full"):  # so that no hook is called after them
        outer.step(Mock(side_effect=OSError("full")))
    for _ in range(2):
        model(torch.ones(4, 3)).sum().backward()
        outer.step()
    assert updates == [0, 1, 1, 2]


def steps(watches: tuple[Any, ...], model: torch.nn.Module, optimizer: Any, count: int = 3) -> None:
    """Make updates by an optimizer after passes of a network that it may not have."""
    _, forward, gradients, update = watches
    for _ in range(count):
        images = torch.ones(4, 3)
        forward.before(model, (images,))
        output = model(images)
        forward.after(model, (images,), output)
        forward._begin_backward()
        gradients._note_backward(output)
        output.square().sum().backward()
        update._begin_update(optimizer)
        optimizer.step()
        update._finish(optimizer)


@pytest.mark.parametrize("has_copies", [False, True])
def test_a_network_that_replaces_that_of_the_optimizer_is_not_trained(has_copies: bool) -> None:
    """Flat copies of the parameters, as those of ZeRO, move its weights."""
    watches = watched()
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(torch.nn.Linear(3, 2).parameters(), 0.1)
    for _ in range(3):
        steps(watches, model, optimizer, 1)
        if has_copies:
            model.weight.data = model.weight - 0.1
    lines = [*watches[3].lines(), *watches[2].lines()]
    found = AuditedJob([ScriptProcess(lines)])
    rules = {each.rule: each.run for each in observe(found)}
    assert (rules["weight_decay"] == "2 are not trained, such as bias") is not has_copies
    assert any("flat copies" in each for each in notes(found, [])) is has_copies
    assert "loss_factor" not in rules or has_copies


def test_layers_that_are_unfrozen_later_are_trained() -> None:
    watches = watched()
    model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(3)))
    model[0].weight.requires_grad = False
    parameters = [model[0].weight, *model[2].parameters()]
    optimizer = torch.optim.SGD(parameters, 0.1, weight_decay=1e-4)
    steps(watches, model, optimizer)
    model[0].weight.requires_grad = True
    optimizer.add_param_group({"params": model[1].parameters(), "weight_decay": 0.0})
    steps(watches, model, optimizer)
    run = fact(AuditedJob([ScriptProcess([*watches[3].lines()])]), "weight_decay").run
    assert run == (
        "0.0001 on weights (2), 0 on weights (1); 0.0001 on biases (1), 0 on biases (1); "
        "1 are not trained, such as 0.bias"
    )
