"""lsgd.virtual beside a run of lsgd, on several processes and passes, and what it refuses."""

import copy
import gc
import io
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from functools import cache, partial
from threading import Lock
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.composed import compose_recipe
from helpers.steps import train
from helpers.threaded import run_on_threads, seeded
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm
from torch.optim import LBFGS
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from lsgd.comm import Comm
from lsgd.comm.single import SingleComm
from lsgd.errors import DivergedError, UsageError
from lsgd.job import device
from lsgd.learner import Learner
from lsgd.models import make_network
from lsgd.recipe import Recipe
from lsgd.rules import optim
from lsgd.rules.batchnorm import WorkerBatchNorm2d
from lsgd.rules.counter_dropout import CounterBasedDropout
from lsgd.rules.sampler import MicroBatch
from lsgd.strategy import reducer
from lsgd.virtual import VirtualSampler, VirtualStep, _interleave, virtual, virtual_sampler

WORKERS, WORKER_BATCH = 8, 20
LEFT, STEPS = 10, 13
"""The step after which a run is saved and resumed, within its second epoch of 9; and the last."""
CLOSE = {"rtol": 0, "atol": 1e-10}


@cache
def recipe() -> Recipe:
    return compose_recipe(
        "+recipe=digits", "precision=float64", "model.last_gamma=1.0", f"workers={WORKERS}",
        f"worker_batch={WORKER_BATCH}", "epochs=2", "schedule.milestones=[1]",
        "schedule.warmup_epochs=0.5", "label_smoothing=0.1",
    )  # fmt: skip


@cache
def own_run() -> Learner:
    """The state of lsgd's own run after as many steps."""
    learner = train(recipe(), SingleComm(), until=STEPS)
    learner.strategy.synchronize()
    return learner


@cache
def digits() -> TensorDataset:
    """The digits as lsgd's loader gives them."""
    made = recipe()
    ids = torch.arange(made.train_examples).numpy()
    [(images, labels)] = own_run().workload.inputs().train([MicroBatch(0, ids)])
    return TensorDataset(images.double(), labels)


class Loop:
    """A training loop with lsgd.virtual, as anybody would write it."""

    def __init__(self, group: object = None, workers_per_pass: int = 1) -> None:
        made = recipe()
        self.model = make_network(made)
        for module in self.model.modules():
            if isinstance(module, WorkerBatchNorm2d):
                module.__class__ = nn.BatchNorm2d
        groups = optim.parameter_groups(self.model, made.optim.weight_decay)
        self.optimizer = torch.optim.SGD(groups, lr=1.0, momentum=0.9, nesterov=True)
        self.schedule = LambdaLR(self.optimizer, made.lr)
        counted = {"workers": WORKERS, "worker_batch": WORKER_BATCH, "group": group}
        self.sampler = virtual_sampler(digits(), seed=made.seed, **counted)
        self.step = virtual(
            self.model, self.optimizer, nn.CrossEntropyLoss(label_smoothing=0.1),
            workers_per_pass=workers_per_pass, **counted,
        )  # fmt: skip

    def train(self, until: int) -> None:
        self.sampler.seek(self.step.steps)
        self.model.train()
        for epoch in range(self.sampler.epoch, recipe().epochs):
            self.sampler.set_epoch(epoch)
            for images, labels in DataLoader(digits(), batch_sampler=self.sampler):
                if self.step.steps == until:
                    return
                self.optimizer.zero_grad()
                self.step(images, labels)
                self.schedule.step()

    def save(self) -> bytes:
        file = io.BytesIO()
        state = self.step.state_dict()
        others = [each.state_dict() for each in (self.model, self.optimizer, self.schedule)]
        torch.save([*others, state], file)
        return file.getvalue()

    def load(self, content: bytes) -> None:
        parts = (self.model, self.optimizer, self.schedule, self.step)
        for part, state in zip(parts, torch.load(io.BytesIO(content)), strict=True):
            part.load_state_dict(state)


GENERATOR = Lock()
"""Whoever holds it draws from torch's generator, which the threads of a test share."""


def small(workers_per_pass: int = 1, group: object = None, **options: Any) -> VirtualStep:
    """A step of 4 workers of 3 images, of a network with one batch norm and dropout."""
    with GENERATOR:
        torch.manual_seed(3)
        net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Dropout(0.3), nn.Flatten())
        model = nn.Sequential(*net, nn.LazyLinear(5)).double()
        model(images_and_labels()[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    counted = {"workers": 4, "worker_batch": 3, "workers_per_pass": workers_per_pass}
    return virtual(model, optimizer, group=group, **counted | options)


def images_and_labels(processes: int = 1, rank: int = 0) -> tuple[Tensor, Tensor]:
    images = torch.randn(12, 1, 5, 5, generator=seeded(1), dtype=torch.float64)
    share = slice(rank * 12 // processes, (rank + 1) * 12 // processes)
    return images[share], (torch.arange(12) % 5)[share]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "workers_per_pass", "resumed_on", "then"),
    [(1, 1, 3, 2), (1, 8, 4, 1), (2, 3, 1, 8), (4, 2, 2, 4)],
)
def test_the_trajectory_is_that_of_lsgd(
    processes: int, workers_per_pass: int, resumed_on: int, then: int
) -> None:
    """On any number of processes, of workers in a pass, and after a resume on another number."""

    def begin(comm: Comm) -> bytes:
        loop = Loop(comm, workers_per_pass)
        loop.train(LEFT)
        return loop.save()

    def finish(comm: Comm) -> tuple[Loop, float]:
        loop = Loop(comm, then)
        loop.load(saved)
        loop.train(STEPS)
        loop.step.synchronize()
        return loop, loop.step.mean_loss()

    digits()
    saved = run_on_threads(processes, begin)[0]
    (loop, loss), *others = run_on_threads(resumed_on, finish)
    assert all(other == loss for _, other in others)
    own = own_run()
    torch.testing.assert_close(loop.model.state_dict(), own.model.state_dict(), **CLOSE)
    ours, theirs = (each.state for each in (loop.optimizer, own.strategy.optimizer))
    for mine, its in zip(ours.values(), theirs.values(), strict=True):
        torch.testing.assert_close(mine["momentum_buffer"], its["momentum_buffer"], **CLOSE)
    torch.testing.assert_close(loop.step.gradient_norm, own.strategy.reducer.gradient_norm, **CLOSE)
    assert loop.step.steps == own.next_step


def test_the_mean_loss_is_that_of_all_images_since_it_was_asked_last() -> None:
    """On two processes, and after a resume."""

    def losses(comm: Comm) -> list[float]:
        step = small(group=comm)
        batch = images_and_labels(comm.world_size, comm.rank)
        own = [step(*batch)]
        resumed = small(group=comm)
        resumed.load_state_dict(step.state_dict())
        assert resumed.mean_loss() == step.mean_loss()
        own.append(step(*batch))
        return [*own, step.mean_loss()]

    [alone] = run_on_threads(1, losses)
    one, other = run_on_threads(2, losses)
    assert alone[1] == pytest.approx(alone[2], rel=1e-12)
    for index in range(2):
        assert (one[index] + other[index]) / 2 == pytest.approx(float(alone[index]), rel=1e-12)
    assert one[2] == other[2] == pytest.approx(alone[2], rel=1e-12)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_loop_of_ones_own_makes_the_same_step(processes: int) -> None:
    """With dropout, losses by image, an output with logits, and zero_grad where one is used to
    it: the same on two processes as in one call on one."""

    def loop(comm: Comm) -> dict[str, Tensor]:
        step = small(2, comm)
        optimizer = step._core.optimizer
        for _ in range(3):
            batch = images_and_labels(comm.world_size, comm.rank)
            for images, labels in step.micro_batches(*batch):
                output = SimpleNamespace(logits=step.model(images))
                step.backward(F.cross_entropy(output.logits, labels, reduction="none"))
            step.update()
            optimizer.zero_grad()
        step.synchronize()
        return step.model.state_dict()

    whole = small(workers_per_pass=4)
    for _ in range(3):
        whole(*images_and_labels())
    whole.synchronize()
    expected = whole.model.state_dict()
    for state in run_on_threads(processes, loop):
        torch.testing.assert_close(state, expected, **CLOSE)


def test_dropout_draws_anew_in_each_step() -> None:
    step, drawn = small(), []
    layer = step.model[2]
    assert isinstance(layer, CounterBasedDropout)
    layer.register_forward_hook(lambda _, inputs, output: drawn.append(output != 0))
    for _ in range(2):
        step(*images_and_labels())
    assert len(drawn) == 8
    assert not any(torch.equal(drawn[0], other) for other in drawn[1:])


def test_images_keep_their_memory_format() -> None:
    """Or a network in channels_last would compute slowly."""
    images = torch.randn(6, 3, 5, 5).to(memory_format=torch.channels_last)
    turned, numbers = _interleave(images, 2), _interleave(torch.arange(6), 2)
    assert turned.is_contiguous(memory_format=torch.channels_last)
    assert numbers.tolist() == [0, 3, 1, 4, 2, 5]
    torch.testing.assert_close(turned, images[numbers])


def test_processes_start_with_the_weights_of_the_first() -> None:
    """Whatever they have drawn, as with DistributedDataParallel."""

    def start(comm: Comm) -> dict[str, Tensor]:
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.detach().fill_(5 + comm.rank)
        optimizer = torch.optim.SGD(model.parameters())
        step = virtual(model, optimizer, workers=3, worker_batch=2, group=comm)
        return {name: value.clone() for name, value in step.model.state_dict().items()}

    for state in run_on_threads(3, start):
        assert {value for tensor in state.values() for value in tensor.flatten().tolist()} == {5}


def test_old_statistics_are_neither_evaluated_nor_saved() -> None:
    """They are in shares on the processes, and the model has those of the last synchronization."""
    step = small()
    model, images = step.model, images_and_labels()[0]
    model.eval()(images)
    before = copy.deepcopy(model.state_dict())
    model.train()
    step(*images_and_labels())
    with pytest.raises(UsageError, match=r"call step.synchronize\(\) .* before state_dict"):
        model.state_dict()
    with pytest.raises(UsageError, match="before an evaluation"):
        model.eval()(images)
    step.synchronize()
    assert not torch.equal(model.state_dict()["1.running_mean"], before["1.running_mean"])
    # What is loaded is what the next step goes on from.
    model.load_state_dict(before)
    step.synchronize()
    torch.testing.assert_close(model.state_dict(), before)


def test_statistics_of_a_part_of_the_model() -> None:
    """What is loaded into a layer alone is trained on from there; others keep theirs. Old ones are
    neither evaluated, saved nor pickled by a part of the model."""
    step = small()
    step(*images_and_labels())
    norm, share = step.model[1], step._statistics.share.clone()
    with pytest.raises(UsageError, match="before an evaluation"):
        norm.eval()(torch.randn(2, 3, 4, 4, dtype=torch.float64))
    for save in (norm.state_dict, lambda: torch.save(step.model, io.BytesIO())):
        with pytest.raises(UsageError, match=r"call step.synchronize\(\)"):
            save()
    step.model.train()
    step.model[0].load_state_dict(step.model[0].state_dict())
    step.model.load_state_dict({"0.bias": step.model[0].bias}, strict=False)
    assert torch.equal(step._statistics.share, share)
    step.synchronize()
    loaded = {name: value + 3 for name, value in norm.state_dict().items()}
    norm.load_state_dict(loaded)
    step.synchronize()
    torch.testing.assert_close(norm.state_dict(), loaded)


def test_a_copy_of_the_model_is_not_the_model() -> None:
    """Statistics that are loaded into a copy are not those of the training, which goes on; and a
    model that was saved as a whole can be evaluated."""
    step, other = small(), small()
    copied = copy.deepcopy(step.model)
    for each in (step, other):
        each(*images_and_labels())
    copied.load_state_dict(small().model.state_dict())
    with pytest.raises(UsageError, match="before an evaluation"):
        step.model.eval()(images_and_labels()[0])
    with pytest.raises(UsageError, match="before a copy of the model"):
        copy.deepcopy(step.model)
    step.model.train()
    for each in (step, other):
        each(*images_and_labels())
        each.synchronize()
    torch.testing.assert_close(step.model.state_dict(), other.model.state_dict())
    file = io.BytesIO()
    torch.save(step.model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False).eval()
    step(*images_and_labels())
    images = images_and_labels()[0]
    torch.testing.assert_close(loaded(images), other.model.eval()(images))


def test_statistics_of_an_average_are_of_a_copy_made_before() -> None:
    """A copy of a model in training would stay at mean 0 and variance 1 silently."""
    step = small()
    step.close()
    average = AveragedModel(step.model)
    step = of(step.model)
    step(*images_and_labels())
    average.update_parameters(step.model)
    step.synchronize()
    images = images_and_labels()[0]
    for model in (step.model, copy.deepcopy(step.model), AveragedModel(step.model)):
        with pytest.raises(UsageError, match="or make the copy before virtual"):
            update_bn([images], model)
    step.close()
    update_bn([images], average)
    update_bn([images], step.model)
    outputs = [layer(images).mean((0, 2, 3)) for layer in (average.module[0], step.model[0])]
    for model, expected in zip((average.module, step.model), outputs, strict=True):
        torch.testing.assert_close(model[1].running_mean, expected)


def test_a_layer_that_was_set_to_evaluation_stays_frozen() -> None:
    step = small()
    step.close()
    norm = step.model[1].eval()
    before = copy.deepcopy(norm.state_dict())
    step = virtual(step.model, step._core.optimizer, workers=4, worker_batch=3)
    step.model.train()
    step(*images_and_labels())
    step.synchronize()
    after = step.model.eval()[1].state_dict()
    assert not torch.equal(after["weight"], before["weight"])
    assert torch.equal(after["running_mean"], before["running_mean"])


def test_what_is_frozen_or_off_may_be_anything() -> None:
    """It is never normalised by worker, nor drawn."""
    frozen = nn.BatchNorm2d(2, momentum=None, affine=False)
    others = [nn.Dropout2d(0), nn.BatchNorm2d(2, momentum=0.2)]
    model = nn.Sequential(nn.Conv2d(1, 2, 3), frozen, *others, nn.Flatten(), nn.Linear(18, 5))
    frozen.eval()
    step = of(model)
    images, labels = images_and_labels()
    before = frozen(model[0](images.float()))
    model.train()
    step(images.float(), labels)
    step.synchronize()
    assert not frozen.running_mean.any()
    torch.testing.assert_close(model[3].running_mean, 0.2 * before.mean((0, 2, 3)))


def test_dropout_has_the_mode_of_the_layer_that_it_replaces() -> None:
    """In both directions; one that was set to evaluation alone stays frozen, as BN does."""

    def network() -> nn.Module:
        return nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 3))

    inputs, targets = torch.randn(8, 6, generator=seeded(0)), torch.arange(8) % 3
    counted = {"workers": 2, "worker_batch": 4}
    model = network()
    model[0].eval()
    with virtual(model, torch.optim.SGD(model.parameters(), lr=0.0), **counted) as step:
        model.train()
        assert [layer.training for layer in model] == [False, True, True, True]
        step(inputs, targets)
        assert torch.equal(model[0](inputs), inputs)
        model.eval()
    assert not any(layer.training for layer in model.modules())
    assert torch.equal(model(inputs), model(inputs))
    model = network().eval()
    with virtual(model, torch.optim.SGD(model.parameters(), lr=0.0), **counted) as step:
        assert not any(layer.training for layer in model.modules())
        model.train()
        step(inputs, targets)
    assert all(layer.training for layer in model.modules())


def test_a_closed_step_leaves_the_model_as_it_was() -> None:
    """And a copy of a model can be made after each synchronization, such as for an average."""
    with small() as step:
        step(*images_and_labels())
        step.synchronize()
        assert type(copy.deepcopy(step.model)[1]) is WorkerBatchNorm2d
    kinds = [type(layer) for layer in step.model]
    assert kinds == [nn.Conv2d, nn.BatchNorm2d, nn.Dropout, nn.Flatten, nn.Linear]
    loss = F.cross_entropy(step.model(images_and_labels()[0]), images_and_labels()[1])
    loss.backward()
    step.model.state_dict()
    again = torch.optim.SGD(step.model.parameters())
    virtual(step.model, again, workers=4, worker_batch=3)(*images_and_labels())


@pytest.mark.slow
@pytest.mark.timm
def test_layers_of_timm_keep_their_activation() -> None:
    import lsgd.vision  # noqa: F401 - timm's own import of torchvision fails beside a CPU torch

    import timm  # isort: skip

    torch.manual_seed(0)
    model = timm.create_model("test_efficientnet", num_classes=5, drop_rate=0.2).double()
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    step = virtual(model, optimizer, workers=2, worker_batch=3, workers_per_pass=2)
    images = torch.randn(6, 3, 32, 32, dtype=torch.float64)
    step(images, torch.arange(6) % 5)
    # Of one worker each, with plain batch norm; lr 0 keeps the weights.
    plain.train()
    for each in images.split(3):
        plain.forward_features(each)
    for norm in (each for each in plain.modules() if isinstance(each, nn.BatchNorm2d)):
        assert norm.num_batches_tracked == 2
    step.synchronize()
    stem, expected = model.bn1.running_mean, plain.bn1.running_mean
    first, second = (plain.conv_stem(each).mean((0, 2, 3)) for each in images.split(3))
    torch.testing.assert_close(stem, 0.1 * (first + second) / 2)
    torch.testing.assert_close(expected, 0.1 * (0.9 * first + second))
    model.eval()
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(images), plain.eval()(images))


class Mixing(nn.Module):
    """A network in which images meet, or that counts its forward passes."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.calls, self.head = kind, 0, nn.Linear(4, 5)

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        if self.kind == "images":
            images = images - images.mean(0)
        return self.head(images) * (self.calls if self.kind == "calls" else 1)


class Tokens(nn.Module):
    """A network with a batch norm of tokens, which are image by image, or in another order."""

    def __init__(self, order: str = "images") -> None:
        super().__init__()
        self.order = order
        self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 5)

    def forward(self, images: Tensor) -> Tensor:
        if self.order == "tokens":
            rows = self.norm(images.transpose(0, 1).flatten(0, 1))
            return self.head(rows.view(-1, len(images), 4).mean(0))
        if self.order == "views":
            first, second = self.norm(torch.cat([images, -images])).chunk(2)
            return self.head(first + second)
        return self.head(self.norm(images.flatten(0, 1)).view(images.shape).mean(1))


def in_two_calls(step: VirtualStep, model: nn.Module) -> None:
    """A step of a loop that puts two views of each image one after the other."""
    for images, labels in step.micro_batches(torch.randn(12, 1, 4), torch.arange(12) % 5):
        one, other = model(torch.cat([images, -images])).chunk(2)
        step.backward(F.cross_entropy(one + other, labels))
    step.update()


def test_rows_of_an_image_are_of_its_worker() -> None:
    """A batch norm of tokens gets several rows of each image, more when the images grow."""

    states = []
    for workers_per_pass in (1, 4):
        torch.manual_seed(0)
        model = Tokens()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        counted = {"workers": 4, "worker_batch": 3, "workers_per_pass": workers_per_pass}
        step = virtual(model, optimizer, **counted)
        for rows in (1, 3, 3, 5):
            step(torch.randn(12, rows, 4, generator=seeded(0)), torch.arange(12) % 5)
        step.synchronize()
        states.append(model.state_dict())
    torch.testing.assert_close(*states)


class OptimizerWrapper(torch.optim.Optimizer):
    """A wrapper as Lightning's, from which other values are read than are assigned to it."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer

    def step(self, closure: Any = None) -> None:
        self._optimizer.step()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)


@pytest.mark.parametrize("wrap", [None, OptimizerWrapper])
@pytest.mark.parametrize("fused", [False, True])
def test_a_loss_that_is_not_finite_ends_the_training(fused: bool, wrap: Any) -> None:
    """With a fused optimizer the weights stay those before; an earlier state goes on."""
    step = small()
    inner = torch.optim.SGD(step.model.parameters(), lr=0.1, fused=fused)
    optimizer = wrap(inner) if wrap else inner
    step.close()
    step = virtual(step.model, optimizer, workers=4, worker_batch=3)
    images, labels = images_and_labels()
    before = copy.deepcopy([*step.model.parameters()])
    earlier = [copy.deepcopy(each.state_dict()) for each in (step, step.model)]
    step(images * torch.nan, labels)
    with pytest.raises(DivergedError, match="of step 0 is not finite; load an earlier checkpoint"):
        step.state_dict()
    assert fused == all(map(torch.equal, before, step.model.parameters()))
    step.model.load_state_dict(earlier[1])
    step.load_state_dict(earlier[0])
    step(images, labels)
    step.synchronize()
    assert not torch.equal(step.model[-1].weight, before[-2])
    assert step.model[-1].weight.isfinite().all()
    step.close()
    assert not hasattr(optimizer, "found_inf")


def test_a_step_that_an_error_has_ended_leaves_nothing_behind() -> None:
    step, other = small(), small()
    batch = images_and_labels()
    for images, labels in step.micro_batches(*batch):
        step.backward(F.cross_entropy(step.model(images), labels))
        break
    for each in (step, other):
        each(*batch)
        each.synchronize()
    torch.testing.assert_close(step.model.state_dict(), other.model.state_dict(), **CLOSE)
    assert step.mean_loss() == other.mean_loss()


def test_a_step_whose_update_was_interrupted_counts_once() -> None:
    """Neither its statistics nor its loss are those of the next step too."""
    step, other = small(), small()
    batch = images_and_labels()
    interrupted = True

    def interrupt(*_: object) -> None:
        if interrupted:
            raise KeyboardInterrupt

    step._core.optimizer.register_step_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        step(*batch)
    interrupted = False
    for each in (step, other):
        each(*batch)
        each.synchronize()
    torch.testing.assert_close(step.model.state_dict(), other.model.state_dict(), **CLOSE)
    assert step.mean_loss() == other.mean_loss()


@pytest.mark.parametrize("processes", [1, 2])
def test_a_state_ends_a_step_that_was_not_updated(processes: int) -> None:
    """Otherwise its gradients would be applied to the weights that were loaded."""

    def trained(comm: Comm, fails: bool) -> tuple[Tensor, dict[str, Any]]:
        step = small(group=comm)
        batch = images_and_labels(processes, comm.rank)
        saved = copy.deepcopy((step.state_dict(), step.model.state_dict()))
        if fails:
            for images, labels in step.micro_batches(*batch):
                step.backward(100 * F.cross_entropy(step.model(images), labels))
            step.load_state_dict(saved[0])
            step.model.load_state_dict(saved[1])
            assert all(bucket.wait is reducer._nothing for bucket in step._core.reducer.buckets)
            with pytest.raises(UsageError, match="had their backward pass"):
                step.update()
        step(*batch)
        step.synchronize()
        return step.gradient_norm.clone(), step.model.state_dict()

    for after, expected in zip(
        *(run_on_threads(processes, partial(trained, fails=fails)) for fails in (True, False)),
        strict=True,
    ):
        torch.testing.assert_close(after, expected, **CLOSE)


def test_an_autocast_around_the_loop_computes_with_the_new_weights() -> None:
    trained = []
    for around in (torch.autocast("cpu", torch.bfloat16), nullcontext()):
        layer = nn.Linear(6, 3)
        nn.init.normal_(layer.weight, generator=seeded(0))
        nn.init.zeros_(layer.bias)
        step = of(layer)
        step._core.optimizer.param_groups[0]["lr"] = 1.0
        batch = (torch.randn(12, 6, generator=seeded(1)), torch.arange(12) % 3)
        with around:
            for _ in range(4):
                with torch.autocast("cpu", torch.bfloat16):
                    step(*batch)
        trained.append(step.model.state_dict())
    torch.testing.assert_close(*trained, rtol=0, atol=0)


CHANGES: dict[str, Callable[[nn.Module], object]] = {
    "clip": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.1),
    "scale": lambda model: model[-1].weight.grad.mul_(0.5),
    "zero": nn.Module.zero_grad,
    "zeros": lambda model: model.zero_grad(set_to_none=False),
    "set": lambda model: setattr(model[0].bias, "grad", torch.ones(3).double()),
    "penalty": lambda model: model[-1].weight.square().sum().backward(),
}


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("workers_per_pass", [1, 4])
@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_other_code_does_not_change_gradients_within_a_step(
    change: str, is_last: bool, workers_per_pass: int, processes: int
) -> None:
    """Processes would sum it or not, by the time at which they send a gradient."""

    def train(comm: Comm) -> None:
        step = small(workers_per_pass, comm)
        for _ in range(2):  # between two steps a change does no harm
            CHANGES["penalty"](step.model)
            step(*images_and_labels(processes, comm.rank))
        for images, labels in step.micro_batches(*images_and_labels(processes, comm.rank)):
            step.backward(F.cross_entropy(step.model(images), labels))
            if is_last == (step._left == 0):
                CHANGES[change](step.model)
        step.update()

    if is_last or workers_per_pass == 1:
        with pytest.raises(UsageError, match=r"other code, .*by optimizer.register_step_pre_hook"):
            run_on_threads(processes, train)


@pytest.mark.parametrize("processes", [1, 2])
def test_the_gradient_of_another_loss_is_not_added_to_that_of_large_layers(processes: int) -> None:
    """Autograd assigns the gradients of such layers in a step of one pass."""

    def train(comm: Comm) -> None:
        model = nn.Linear(512, 512, bias=False)
        step = of(model, workers=processes, worker_batch=2, group=comm)
        for (some,) in step.micro_batches(torch.ones(2, 512)):
            loss = model(some).square().mean()
            (5 * loss).backward(retain_graph=True)
            step.backward(loss)

    with pytest.raises(
        UsageError, match=r"other code, .* another backward pass, has changed a par"
    ):
        run_on_threads(processes, train)


def test_layers_without_parameters_may_be_made_later() -> None:
    step, other = with_metric(), small()
    for _ in range(2):
        other(*images_and_labels())
    for each in (step, other):
        each(*images_and_labels())
        each.synchronize()
    expected = other.model.state_dict()
    torch.testing.assert_close(step.model.state_dict(), expected, rtol=0, atol=0)


def test_targets_of_one_worker_may_be_lists_or_arrays() -> None:
    """They are cut by worker, in order."""
    images, labels = images_and_labels()
    losses = [small()(images, labels)]
    step, got = small(), []
    for some, texts, array in step.micro_batches(
        images, [f"{i}" for i in range(12)], labels.numpy()
    ):
        got += texts
        step.backward(F.cross_entropy(step.model(some), torch.as_tensor(array)))
    step.update()
    assert got == [f"{i}" for i in range(12)]
    assert step.mean_loss() == float(losses[0])


def test_the_averaged_gradient_is_changed_by_a_hook() -> None:
    """The way that the error names: on each process after the all-reduce, to the same norm."""

    def train(comm: Comm) -> list[Tensor]:
        step = small(group=comm)
        parameters = [*step.model.parameters()]

        def clip(*_: object) -> None:
            nn.utils.clip_grad_norm_(parameters, 0.1)

        step._core.optimizer.register_step_pre_hook(clip)
        step(*images_and_labels(comm.world_size, comm.rank))
        return [each.detach() for each in parameters]

    expected = train(SingleComm())
    for parameters in run_on_threads(2, train):
        torch.testing.assert_close(parameters, expected, **CLOSE)


def test_the_gradient_of_one_worker_may_be_clipped() -> None:
    """There is one micro-batch in a step, on any number of processes."""
    step = of(clipped(), workers=1, worker_batch=12)
    step(images_and_labels()[0].float(), images_and_labels()[1])
    assert step.model[0].weight.grad.abs().max() == pytest.approx(0.01)


def test_the_rate_of_dropout_may_change() -> None:
    """Also of a layer that had none, to the masks of a layer that had the rate from the start; and
    it is that of the model's own layer again after close()."""

    def first_loss(before: float, rate: float) -> Tensor:
        layers = [nn.Flatten(), nn.Dropout(before), nn.Linear(25, 5, bias=False)]
        model = nn.Sequential(*layers).double()
        nn.init.constant_(model[2].weight, 0.1)
        model[2].weight.data[0] = 0.3
        step = of(model)
        [found] = (each for each in model.modules() if isinstance(each, nn.Dropout))
        found.p = rate
        images, labels = images_and_labels()
        loss = step(images, labels)
        step.close()
        assert model[1] is layers[1]
        assert model[1].p == rate
        return loss

    losses = [first_loss(before, 0.5) for before in (0.5, 0.0, 0.2)]
    assert losses == losses[:1] * 3
    assert first_loss(0.0, 0.0) == first_loss(0.5, 0.0) != losses[0]


def test_a_layer_without_dropout_does_not_change_the_masks_of_others() -> None:
    def masks(*more: nn.Module) -> Tensor:
        layers = [nn.Flatten(), *more, nn.Dropout(0.5), nn.Linear(25, 5, bias=False)]
        model = nn.Sequential(*layers).double()
        nn.init.constant_(model[-1].weight, 0.1)
        step = of(model)
        step(*images_and_labels())
        return model[-1].weight.detach()

    assert torch.equal(masks(), masks(nn.Dropout(0.0)))


def test_a_step_that_cannot_be_made_leaves_the_model_as_it_was() -> None:
    model = network(nn.BatchNorm2d(2), nn.Dropout(0.5))
    for wrong in ({"workers_per_pass": 2.5}, {"seed": "a"}, {"loss": None}):
        with pytest.raises(UsageError):
            of(model, **wrong)
    assert [type(each) for each in model] == [nn.Conv2d, nn.BatchNorm2d, nn.Dropout]


def test_a_state_without_a_seed_is_loaded() -> None:
    step = small(seed=5)
    state = step.state_dict()
    del state["seed"]  # as of earlier versions
    step.load_state_dict(state)


def test_a_state_can_be_loaded_whose_settings_are_numbers_of_numpy() -> None:
    """torch.load reads plain numbers alone."""
    workers, seed = np.int64(4), np.int32(5)
    saved = io.BytesIO()
    torch.save(small(workers=workers, workers_per_pass=workers, seed=seed).state_dict(), saved)
    saved.seek(0)
    small(seed=5).load_state_dict(torch.load(saved))


def generator_and_critic() -> list[nn.Linear]:
    models = [nn.Linear(3, 6, bias=False).double(), nn.Linear(6, 1, bias=False).double()]
    for model in models:
        nn.init.normal_(model.weight, generator=seeded(0))
    return models


@pytest.mark.parametrize("processes", [1, 2])
def test_the_loss_of_one_step_may_go_through_the_model_of_another(processes: int) -> None:
    """As that of a generator does: the gradients that the critic gets are not of its steps."""
    noise = torch.randn(12, 3, generator=seeded(1), dtype=torch.float64)

    def trained(comm: Comm) -> list[Tensor]:
        generator, critic = generator_and_critic()
        of_generator, of_critic = (of(each, group=comm) for each in (generator, critic))
        critic(generator(noise)).sum().backward()
        for _ in range(3):
            share = noise.chunk(processes)[comm.rank]
            for (some,) in of_critic.micro_batches(share):
                of_critic.backward(F.softplus(critic(generator(some).detach())).mean())
            of_critic.update()
            for (some,) in of_generator.micro_batches(share):
                of_generator.backward(F.softplus(-critic(generator(some))).mean())
            of_generator.update()
        return [generator.weight.detach(), critic.weight.detach()]

    generator, critic = generator_and_critic()
    for _ in range(3):
        for model, sign in ((critic, 1), (generator, -1)):
            loss = F.softplus(sign * critic(generator(noise))).mean()
            [gradient] = torch.autograd.grad(loss, model.weight)
            model.weight.data.sub_(1e-3 * gradient)
    for weights in run_on_threads(processes, trained):
        torch.testing.assert_close(weights, [generator.weight, critic.weight], **CLOSE)


@pytest.mark.slow
def test_a_default_device_of_the_program_changes_nothing() -> None:
    """On meta, tensors that should be on the host have no values; and the checks are made too."""
    plain, tokens, mixing = small(), Tokens(), Mixing("images")
    plain.close()
    nn.init.zeros_(mixing.head.bias)  # which the check replaces in its copy
    batch, of_tokens = images_and_labels(), torch.randn(12, 3, 4)
    states = []
    for default in ("cpu", "meta"):
        models = copy.deepcopy((plain.model, tokens, mixing))
        with torch.device(default):
            steps = [of(model, workers_per_pass=2) for model in models]
            for _ in range(2):
                steps[0](*batch)
            steps[1](of_tokens, batch[1])
            with pytest.raises(UsageError, match="the other images of a micro-batch"):
                steps[2](of_tokens[:, 0], batch[1])
            states += [(step.state_dict(), step.model.state_dict()) for step in steps[:2]]
    torch.testing.assert_close(states[2:], states[:2], rtol=0, atol=0)


def test_the_process_is_left_as_it_was() -> None:
    """A program goes on with its own random numbers, threads, kernels and signals."""

    def state() -> list[Any]:
        flags = [getattr(module, name) for module, name in device.KERNEL_FLAGS]
        drawn = [random.getstate(), torch.get_rng_state().tolist()]
        # torch's own optimizers set the folder of its compiler.
        environment = {name: text for name, text in os.environ.items() if "INDUCTOR" not in name}
        handlers = [signal.getsignal(number) for number in signal.valid_signals()]
        others = [torch.get_num_threads(), torch.get_default_dtype(), gc.isenabled()]
        return [*flags, *drawn, environment, *handlers, *others]

    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(25, 5)).double()
    optimizer, before = torch.optim.SGD(model.parameters()), state()
    step = virtual(model, optimizer, workers=4, worker_batch=3)
    step(*images_and_labels())
    step.state_dict()
    step.close()
    assert state() == before


def test_the_end_of_a_step_keeps_its_statistics() -> None:
    """They are in shares on the processes, of which a closed step has none; an error in the loop is
    raised as it is, and a training that has diverged has none to keep."""

    def leave(comm: Comm) -> dict[str, Tensor]:
        with small(group=comm) as step:
            step(*images_and_labels(comm.world_size, comm.rank))
        return step.model.state_dict()

    expected = small()
    expected(*images_and_labels())
    with pytest.raises(
        UsageError, match=r"call step.synchronize\(\) on every process before close"
    ):
        expected.close()
    expected.synchronize()
    expected.close()
    assert expected.model[1].running_mean.any()
    for state in run_on_threads(2, leave):
        torch.testing.assert_close(state, expected.model.state_dict(), **CLOSE)
    images, labels = images_and_labels()
    with pytest.raises(UsageError, match="a batch of 5"), small() as step:
        step(step(images, labels).new_zeros(5), labels)
    step = of(step.model)
    step(images * torch.nan, labels)
    with pytest.raises(DivergedError):
        step.synchronize()
    step.close()
    with pytest.raises(DivergedError), of(step.model) as step:
        step(images * torch.nan, labels)
    assert type(step.model[1]) is nn.BatchNorm2d


def test_a_step_that_has_synchronized_ends_without_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their process group may be destroyed by then."""
    with small() as step:
        step(*images_and_labels())
        step.synchronize()
        monkeypatch.setattr(step._core, "synchronize", None)
    assert type(step.model[1]) is nn.BatchNorm2d


def test_an_error_in_a_loop_that_closes_its_step_is_raised_as_it_is() -> None:
    step = small()
    step(*images_and_labels())
    with pytest.raises(KeyboardInterrupt), closing(step):
        raise KeyboardInterrupt
    assert type(step.model[1]) is nn.BatchNorm2d


def closed() -> VirtualStep:
    with small() as step:
        step(*images_and_labels())
    step.close()  # once more, which does no harm
    return step


def outside_of_steps(steps: int) -> None:
    """A forward pass of 7 images in training mode."""
    step = small()
    for _ in range(steps):
        step(*images_and_labels())
    step.model(images_and_labels()[0][:7])


class TokensFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(4, 5)
        assert self.drop.p == 0.5

    def forward(self, images: Tensor) -> Tensor:
        dropped = self.drop(images.transpose(0, 1))
        assert self.drop.p == 0.5
        return self.head(dropped.mean(0))


def frozen_later() -> VirtualStep:
    step = small()
    step.model[0].weight.requires_grad_(False)
    return step


def test_a_model_stays_where_it_was_and_as_it_was() -> None:
    """torch gives a converted model other gradients than those that are averaged; a call that
    converts nothing does no harm, and a model that was converted before another step is trained."""
    step, other = small(), small()
    step.model.to("cpu", torch.float64)
    for each in (step, other):
        each(*images_and_labels())
        each.synchronize()
    torch.testing.assert_close(step.model.state_dict(), other.model.state_dict())
    state = step.state_dict()
    step.model.float()
    images, labels = images_and_labels()
    with pytest.raises(UsageError, match="moved or converted since virtual"):
        step(images.float(), labels)
    step.close()
    optimizer = torch.optim.SGD(step.model.parameters(), lr=0.1)
    again = virtual(step.model, optimizer, workers=4, worker_batch=3)
    again.load_state_dict(state)
    again(images.float(), labels)
    other(images, labels)
    torch.testing.assert_close(again.gradient_norm.double(), other.gradient_norm, rtol=1e-5, atol=0)


def converted(convert: Callable[[nn.Module], object], steps: int, **options: Any) -> None:
    step = small(**options)
    images, labels = images_and_labels()
    for _ in range(steps):
        step(images, labels)
    convert(step.model)
    step(images.to(step.model[0].weight.dtype), labels)


def frozen_norm() -> VirtualStep:
    step = small()
    step.model[1].eval()
    return step


def unfinished(step: VirtualStep) -> None:
    for images, labels in step.micro_batches(*images_and_labels()):
        step.backward(F.cross_entropy(step.model(images), labels))
    step(*images_and_labels())


def replaced(index: int, layer: nn.Module) -> VirtualStep:
    step = small()
    step(*images_and_labels())
    step.model[index] = layer
    return step


def with_metric() -> VirtualStep:
    """A step of a model that got a layer without parameters after its first step."""
    step = replaced(3, nn.Sequential(nn.Flatten(), nn.Identity()))
    step.model[0].metric = nn.Softmax(1)
    step(*images_and_labels())
    return step


def changed(step: VirtualStep, index: int, name: str, value: object) -> VirtualStep:
    setattr(step.model[index], name, value)
    return step


def twice(step: VirtualStep) -> None:
    step(*images_and_labels())
    step.mean_loss()
    step.mean_loss()


def with_ignored_labels(step: VirtualStep) -> None:
    images, labels = images_and_labels()
    labels[:2] = -100
    step(images, labels)


def without_gradients(step: VirtualStep) -> None:
    with torch.no_grad():
        step(*images_and_labels())


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(12))


def without_backward(step: VirtualStep) -> None:
    for _ in step.micro_batches(*images_and_labels()):
        pass


def network(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), *layers)


def of(model: nn.Module, loss: Any = F.cross_entropy, **options: Any) -> VirtualStep:
    optimizer = torch.optim.SGD(options.pop("parameters", model.parameters()))
    return virtual(model, optimizer, loss, **{"workers": 4, "worker_batch": 3} | options)


def clipped() -> nn.Module:
    model = network(nn.Flatten(), nn.Linear(18, 5))
    model[0].weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    return model


class Wrapped(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


class OwnDropout(nn.Dropout):
    pass


Wrapped.__name__ = "DistributedDataParallel"
# As hvd.DistributedOptimizer makes it.
HvdSGD = type("SGD", (torch.optim.SGD,), {"__module__": "horovod.torch.optimizer"})
OTHER = nn.Linear(1, 1)
REFUSALS: dict[str, tuple[Callable[[], Any], str]] = {
    "workers": (lambda: of(network(), workers=0), "workers=0 must be 1 or more"),
    "pass": (lambda: small(workers_per_pass=0), "workers_per_pass=0 must be 1 or more"),
    "fractional workers": (lambda: small(workers=4.0), "workers=4.0 must be a whole number"),
    "text of workers": (lambda: small(workers="4"), "workers='4' must be a whole number"),
    "fractional pass": (lambda: small(workers_per_pass=2.0), "workers_per_pass=2.0 must be a wh"),
    "fractional seed": (lambda: small(seed=1.5), "seed=1.5 must be a whole number"),
    "class of a loss": (lambda: small(loss=nn.CrossEntropyLoss), "not a function of.*Loss\\(\\)"),
    "name of a loss": (lambda: small(loss="mean"), "loss='mean' is not a function"),
    "tuple of losses": (
        lambda: small(loss=lambda *_: (1.0, 2.0))(*images_and_labels()),
        r"the loss of 3 images is \(1.0, 2.0\); return a tensor",
    ),
    "no loss": (lambda: small(loss=lambda *_: None)(*images_and_labels()), "3 images is None"),
    "detached loss": (
        lambda: small(loss=lambda out, _: out.mean().detach())(*images_and_labels()),
        "the loss of 3 images has no gradient",
    ),
    "no gradients": (lambda: without_gradients(small()), r"outside of torch.no_grad\(\)"),
    "list": (lambda: small(4)(images_and_labels()[0], [0] * 12), "a batch of type list.*tensors"),
    "list of images": (lambda: small()([0.0] * 12), "a batch of type list.*tensors"),
    "number": (lambda: small()(images_and_labels()[0], 0), "a batch of type int.*tensors"),
    "short list": (lambda: small()(images_and_labels()[0], [0] * 11), "a batch of 11, .* pass 12"),
    "array": (lambda: small()(images_and_labels()[0].numpy()), "a batch of type ndarray"),
    "labels that are left out": (
        lambda: with_ignored_labels(small(4)),
        "the loss of 4 workers, .* is not the mean of .*return one number for each image",
    ),
    "weights within a function": (
        lambda: small(2, loss=lambda *a: F.cross_entropy(*a, torch.arange(1.0, 6).double()))(
            *images_and_labels()
        ),
        "the loss of 2 workers, .* is not the mean of .*class weights",
    ),
    "replaced": (
        lambda: replaced(4, nn.Linear(27, 5).double())(*images_and_labels()),
        r"a layer or parameter of the model was added, removed or replaced.*call close\(\)",
    ),
    "inserted": (
        lambda: replaced(3, nn.Sequential(nn.BatchNorm2d(3), nn.Flatten()))(*images_and_labels()),
        "a layer or parameter of the model was added",
    ),
    "dropout later": (
        lambda: replaced(3, nn.Sequential(nn.Dropout(0.5), nn.Flatten()))(*images_and_labels()),
        "a layer or parameter of the model was added",
    ),
    "dropout replaced": (
        lambda: replaced(2, nn.Identity())(*images_and_labels()),
        "a layer or parameter of the model was added",
    ),
    "added twice": (
        lambda: changed(with_metric(), 0, "bias", None)(*images_and_labels()),
        "a layer or parameter of the model was added",
    ),
    "parameter": (
        lambda: changed(small(), 0, "bias", nn.Parameter(torch.ones(3)))(*images_and_labels()),
        "a layer or parameter of the model was added, removed or replaced",
    ),
    "momentum later": (
        lambda: changed(small(), 1, "momentum", 0.5)(*images_and_labels()),
        "momentum of a batch norm layer was changed since virtual",
    ),
    "dropout of channels later": (
        lambda: changed(of(network(nn.Dropout2d(0.0))), 1, "p", 0.5)(
            images_and_labels()[0].float(), images_and_labels()[1]
        ),
        "Dropout2d in 1 draws from torch's generator",
    ),
    "rate": (lambda: changed(small(), 2, "p", 1.5), "p=1.5 must be from 0 to 1"),
    "mean of no step": (lambda: small().mean_loss(), r"no step since the last mean_loss\(\)"),
    "mean twice": (lambda: twice(small()), r"no step since the last mean_loss\(\)"),
    "stream": (
        lambda: virtual_sampler(Stream(), workers=4, worker_batch=3),  # type: ignore[arg-type]
        "the dataset, a Stream, has no length",
    ),
    "epoch": (
        lambda: virtual_sampler(range(12), workers=4, worker_batch=3).set_epoch(-1),
        "epoch=-1 must be 0 or more",
    ),
    "steps": (
        lambda: virtual_sampler(range(12), workers=4, worker_batch=3).seek(-1),
        "steps=-1 must be 0 or more",
    ),
    "optimizer of Horovod": (
        lambda: virtual(net := network(), HvdSGD(net.parameters()), workers=4, worker_batch=3),
        "the optimizer SGD is wrapped in hvd.DistributedOptimizer.*without the wrapper",
    ),
    "wrapped": (lambda: of(Wrapped(network())), "wrapped in DistributedDataParallel.*without"),
    "synchronized": (
        lambda: of(network(nn.SyncBatchNorm(2))),
        "SyncBatchNorm in 1, .*leave out convert_sync_batchnorm",
    ),
    "unknown": (lambda: of(network(nn.BatchNorm3d(2))), "by BatchNorm3d in 1, which may mix"),
    "affine": (lambda: of(network(nn.BatchNorm2d(2, affine=False))), "no gamma and beta"),
    "frozen without statistics": (
        lambda: of(network(nn.BatchNorm2d(2, track_running_stats=False).eval())),
        "no running statistics",
    ),
    "dropout of channels": (
        lambda: of(network(nn.Dropout2d())),
        "^Dropout2d in 1 draws from torch's generator, .*use nn.Dropout, or",
    ),
    "dropout of ones own": (lambda: of(network(OwnDropout())), "OwnDropout in 1 draws"),
    "dropout of attention": (
        lambda: of(network(nn.MultiheadAttention(4, 2, dropout=0.1))),
        "MultiheadAttention in 1 draws",
    ),
    "dropout of states": (lambda: of(network(nn.LSTM(4, 4, 2, dropout=0.1))), "LSTM in 1 draws"),
    "random slopes": (lambda: of(network(nn.RReLU())), "RReLU in 1 draws"),
    "sparse": (lambda: of(network(nn.Embedding(3, 2, sparse=True))), "in 1 has sparse gradients"),
    "lazy": (lambda: of(network(nn.LazyLinear(3))), "LazyLinear in 1, .*call the model on a batch"),
    "momentum": (
        lambda: of(network(nn.BatchNorm2d(2), nn.BatchNorm2d(2, momentum=0.01))),
        "momentum 0.01, 0.1; give all the same",
    ),
    "frozen": (lambda: of(network().requires_grad_(False)), "no parameter that requires"),
    "dtypes": (lambda: of(network(nn.BatchNorm2d(2).double())), "float32 on cpu and|float64 on"),
    "optimizer": (
        lambda: of(network(), parameters=OTHER.parameters()),
        "2 of 2 parameters that are not the model's",
    ),
    "twice": (lambda: of(small().model), r"another step or library; call close\(\)"),
    "clipped micro-batches": (
        lambda: of(clipped()),
        r"the parameter 0.weight has a hook on its gradient .*register_step_pre_hook\(…\)",
    ),
    "sum": (lambda: of(network(), nn.CrossEntropyLoss(reduction="sum")), "use reduction='mean'"),
    "weights": (
        lambda: of(network(), nn.CrossEntropyLoss(torch.ones(2))),
        "class weights.*use reduction='none'",
    ),
    "weights of NLL": (lambda: of(network(), nn.NLLLoss(torch.ones(2))), "class weights"),
    "ignored": (
        lambda: of(network(), nn.CrossEntropyLoss(ignore_index=2)),
        "ignore_index=2, without which its mean is taken.*use reduction='none'",
    ),
    "partial weights": (
        lambda: of(network(), partial(F.cross_entropy, weight=torch.ones(2))),
        "class weights, by whose sum.*use reduction='none'",
    ),
    "partial sum": (
        lambda: of(network(), partial(F.cross_entropy, reduction="sum")),
        "use reduction='mean'",
    ),
    "partial ignored": (
        lambda: of(network(), partial(F.nll_loss, ignore_index=0)),
        "ignore_index=0",
    ),
    "closure": (
        lambda: virtual(net := network(), LBFGS(net.parameters()), workers=4, worker_batch=3),
        "LBFGS computes the loss itself by the closure",
    ),
    "group": (lambda: of(network(), group="all"), "'all' is not a process group.*leave it out"),
    "batch": (
        lambda: small()(*(tensor[:5] for tensor in images_and_labels())),
        "a batch of 5, and the 4 workers of process 0 have worker_batch=3 each, so pass 12",
    ),
    "frozen later": (lambda: frozen_later()(*images_and_labels()), r"frozen or unfrozen since"),
    "layout": (
        lambda: converted(lambda model: model.to(memory_format=torch.channels_last), 0),
        "moved or converted since virtual",
    ),
    "dtype later": (lambda: converted(nn.Module.float, 1), "do that before virtual"),
    "dtype of one pass": (
        lambda: converted(nn.Module.float, 1, workers_per_pass=4),
        "moved or converted since virtual",
    ),
    "spectral norm": (
        lambda: of(nn.Sequential(nn.Flatten(), spectral_norm(nn.Linear(25, 5))))(
            images_and_labels()[0].float(), images_and_labels()[1]
        ),
        "changes the buffer 1.parametrizations.weight.0._u in a forward pass",
    ),
    "scaled rows": (
        lambda: of(nn.Sequential(nn.Embedding(3, 5, max_norm=0.1))),
        "the embedding 0 has max_norm, by which each process scales .*; leave max_norm out",
    ),
    "closed": (lambda: closed()(*images_and_labels()), r"was closed; make another one by virtual"),
    "closed and synchronized": (lambda: closed().synchronize(), "was closed"),
    "before the first step": (
        lambda: outside_of_steps(0),
        r"dropout layer 2 of rate 0.3 is called .* before the first step.*call model.eval\(\)",
    ),
    "between two steps": (lambda: outside_of_steps(1), r"gets 7 rows for the 3 .*model.eval\(\)"),
    "rows of dropout": (
        lambda: of(TokensFirst())(torch.randn(12, 7, 4), torch.arange(12) % 5),
        "layer drop of rate 0.5 gets 7 rows for the 3 examples.*put the examples first",
    ),
    "tokens": (
        lambda: of(Tokens("tokens"), workers_per_pass=2)(
            torch.randn(12, 3, 4), torch.arange(12) % 5
        ),
        "layer norm gets rows in which those of an image are not adjacent.*use workers_per_pass=1",
    ),
    "images": (
        lambda: of(Mixing("images"), workers_per_pass=2)(torch.randn(12, 4), torch.arange(12) % 5),
        "output for an image also from the other images of a micro-batch.*workers_per_pass=1",
    ),
    "calls": (
        lambda: of(Mixing("calls"), workers_per_pass=2)(torch.randn(12, 4), torch.arange(12) % 5),
        "output for an image also from earlier forward passes",
    ),
    "views": (
        lambda: of(Tokens("views"), workers_per_pass=4)(torch.randn(12, 4), torch.arange(12) % 5),
        "layer norm gets rows in which those of an image are not adjacent",
    ),
    "views of the loop": (
        lambda: in_two_calls(of(model := Tokens(), workers_per_pass=2), model),
        "layer norm gets several rows for each image, and the model was not called with the 6",
    ),
    "one value": (
        lambda: of(Tokens(), workers=12, worker_batch=1)(torch.randn(12, 1, 4), torch.arange(12)),
        "layer norm gets one value of each channel from a worker with worker_batch=1",
    ),
    "evaluation": (lambda: frozen_norm()(*images_and_labels()), r"call model.train\(\) first"),
    "shape": (
        lambda: small(loss=lambda output, labels: output)(*images_and_labels()),
        r"the loss of 3 images has the shape \(3, 5\)",
    ),
    "update": (lambda: small().update(), r"loop over step.micro_batches\(…\) first"),
    "no update": (lambda: unfinished(small()), r"call update\(\) after its loop"),
    "no backward": (lambda: without_backward(small()), "each micro-batch needs one backward pass"),
    "backward": (lambda: small().backward(torch.ones(())), r"belongs into the loop"),
    "state": (
        lambda: small().load_state_dict(small(workers=2).state_dict()),
        "saved with workers=2, and this step has workers=4",
    ),
    "state of another seed": (
        lambda: small().load_state_dict(small(seed=1).state_dict()),
        "saved with seed=1, and this step has seed=0",
    ),
    "no state": (lambda: small().load_state_dict({}), "the state has no batchnorm, .*state_dict"),
    "state of another model": (
        lambda: small().load_state_dict(of(network()).state_dict()),
        "the state has 0 running BN statistics, and the model 6",
    ),
    "dataset": (
        lambda: virtual_sampler(range(11), workers=4, worker_batch=3),
        "11 examples, too few for a step of workers x worker_batch = 4 x 3",
    ),
}


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(ignore_index=-100),
        nn.CrossEntropyLoss(torch.ones(5).double(), ignore_index=2, reduction="none"),
        partial(F.cross_entropy, weight=torch.ones(5).double(), reduction="none"),
        lambda output, labels: F.cross_entropy(output, labels),
        lambda output, labels: F.cross_entropy(output.float(), labels),
        lambda output, labels: F.cross_entropy(output, labels) + torch.rand(()),
        lambda output, labels: F.binary_cross_entropy(
            output.sigmoid_(), F.one_hot(labels, 5).double()
        ),
        lambda output, labels: F.cross_entropy(output.div_(2.0), labels.sub_(1).clamp_(0)),
    ],
)
def test_losses_that_are_means_over_images(loss: Any) -> None:
    """Whatever the number of workers in a pass."""
    [one, two] = (small(each, loss=loss) for each in (1, 4))
    for step in (one, two):
        step(*images_and_labels())
    torch.testing.assert_close(one.gradient_norm, two.gradient_norm, **CLOSE)


class MovingCentre(nn.Module):
    """A loss with a state that each of its calls changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(5).double())
        self.calls = 0

    def forward(self, output: Tensor, labels: Tensor) -> Tensor:
        self.calls += 1
        loss = F.cross_entropy(output - self.centre, labels)
        self.centre.lerp_(output.detach().mean(0), 0.1)
        return loss

    def method(self, output: Tensor, labels: Tensor) -> Tensor:
        return self(output, labels)


def test_a_loss_is_called_once_for_each_pass() -> None:
    """Its check changes neither what it keeps nor the generators from which it draws."""
    losses = [MovingCentre() for _ in range(4)]
    other, in_closure = losses[2:]
    calls: list[Callable[[Tensor, Tensor], Tensor]] = [
        losses[0], losses[1].method, partial(other), lambda *pair: in_closure(*pair)
    ]  # fmt: skip
    for call, loss in zip(calls, losses, strict=True):
        small(4, loss=call)(*images_and_labels())
        assert loss.calls == 1
        assert torch.equal(loss.centre, losses[0].centre)
    drawing = small(2, loss=lambda *pair: F.cross_entropy(*pair) + torch.rand(()))
    with GENERATOR, torch.random.fork_rng([]):
        torch.manual_seed(0)
        drawing(*images_and_labels())
        drawn = torch.rand(())
        torch.manual_seed(0)
        assert torch.rand(3)[2] == drawn


def test_images_of_one_worker_may_meet() -> None:
    """As negatives of a contrastive loss, in a pass of this worker."""
    model = Mixing("images")
    of(model)(torch.randn(12, 4), torch.arange(12) % 5)
    assert model.calls == 4
    counted = Mixing("none")
    of(counted, workers_per_pass=2)(torch.randn(12, 4), torch.arange(12) % 5)
    assert counted.calls == 2


@pytest.mark.parametrize("case", REFUSALS)
def test_refused_in_one_sentence(case: str) -> None:
    call, sentence = REFUSALS[case]
    with pytest.raises(UsageError, match=sentence):
        call()


def test_refused_on_several_processes() -> None:
    def too_many(comm: Comm) -> None:
        with pytest.raises(UsageError, match="5 processes have only workers=4 to host; start at"):
            small(group=comm)

    def different(comm: Comm) -> None:
        with pytest.raises(UsageError, match="the worker_batch differ between processes"):
            small(group=comm, worker_batch=3 + comm.rank)

    run_on_threads(5, too_many)
    run_on_threads(2, different)


def test_a_launcher_whose_processes_are_not_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would train alone, and nobody would notice."""
    for name, number in {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0}.items():
        monkeypatch.setenv(name, str(number))
    with pytest.raises(UsageError, match="torchrun started 2 processes that are not connected"):
        small()


def test_the_sampler_has_the_order_of_a_recipe() -> None:
    """Each example at most once in an epoch, whole steps alone, from any step on."""
    made = recipe()
    order = own_run().workload.example_order(1)[: made.steps_per_epoch * made.batch_size]

    def shares(comm: Comm) -> list[list[int]]:
        of_process = VirtualSampler(
            range(made.train_examples),
            workers=WORKERS,
            worker_batch=WORKER_BATCH,
            seed=made.seed,
            group=comm,
        )
        of_process.set_epoch(1)
        whole = list(of_process)
        assert len(of_process) == len(whole) == made.steps_per_epoch
        of_process.seek(made.steps_per_epoch + 3)
        of_process.set_epoch(1)
        assert [*of_process] == whole[3:]
        assert [*of_process] == whole  # once more from its begin
        return whole

    for processes in (1, 3):
        steps = zip(*run_on_threads(processes, shares), strict=True)
        assert [each for step in steps for share in step for each in share] == order.tolist()


def test_trainers_set_the_epoch() -> None:
    """Lightning and Accelerate call set_epoch of the `sampler` that a batch sampler has."""
    orders = []
    loader = DataLoader(
        range(64), batch_sampler=virtual_sampler(range(64), workers=4, worker_batch=4)
    )
    for epoch in range(2):
        loader.batch_sampler.sampler.set_epoch(epoch)
        orders.append([each.tolist() for each in loader])
    expected = virtual_sampler(range(64), workers=4, worker_batch=4)
    expected.set_epoch(1)
    assert orders[0] != orders[1] == [*expected]
