"""The counted bytes of a step are those of a real one."""

import itertools
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.composed import compose_recipe
from torch import nn

from lsgd.comm.single import SingleComm
from lsgd.learner import Learner
from lsgd.models import make_network
from lsgd.profile import fake_steps, memory
from lsgd.profile.fake_steps import fake_batches, fake_task
from lsgd.profile.memory import LiveStorages, StepMemory, count_step, max_workers_per_micro_batch
from lsgd.recipe import Recipe
from lsgd.recipe.overrides import choices
from lsgd.step import train_step

CPU = torch.device("cpu")


def recipe(*words: str) -> Recipe:
    return compose_recipe("+recipe=digits", "workers=4", "worker_batch=4", *words)


def real_peak(recipe: Recipe, workers: int) -> int:
    """The most bytes of real tensors in the second step."""
    with LiveStorages() as storages:
        learner = Learner(recipe, SingleComm(), CPU)
        task = fake_task(learner, workers, most=2)
        for _ in range(2):
            storages.reset_peak()
            train_step(learner, task, fake_batches(recipe, task.micro_batches))
    return storages.peak


@pytest.mark.parametrize(
    "words",
    [
        ["workers_per_pass=4"],
        ["workers_per_pass=1"],
        pytest.param(["workers_per_pass=4", "precision=bfloat16"], marks=pytest.mark.slow),
        ["workers_per_pass=2", "optim=lars", "averaging=ema", "averaging.half_life=3"],
        ["workers_per_pass=4", "data.balance=weights"],
        pytest.param(["workers_per_pass=4", "optim=adamw"], marks=pytest.mark.slow),
        pytest.param(
            ["workers_per_pass=2", "optim=lamb", "optim.bias_correction=true"],
            marks=pytest.mark.slow,
        ),
        pytest.param(["workers_per_pass=4", "optim=rmsprop_warmup"], marks=pytest.mark.slow),
        ["workers_per_pass=4", "model=lenet5", "data=fashion_mnist", "channels_last=true"],
    ],
    ids=lambda words: "-".join(words),
)
def test_it_is_what_a_real_step_holds(words: list[str]) -> None:
    made = recipe(*words)
    workers = made.micro_batch_workers
    counted, real = count_step(made, [workers])[workers].total, real_peak(made, workers)
    # A CPU's convolutions in bfloat16 are of a library, which has its own layouts.
    assert counted == pytest.approx(real, rel=0.01 if made.precision == "bfloat16" else 0)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", choices("optim"))
def test_no_operator_computes_with_real_tensors(
    optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's own fused SGD did: a plan of ResNet-50 took twice the memory."""
    fake = partial(fake_steps.FakeTensorMode, allow_fallback_kernels=False)
    monkeypatch.setattr(fake_steps, "FakeTensorMode", fake)
    assert count_step(recipe(f"optim={optimizer}"), [1])


@pytest.mark.parametrize("balance", ["weights", "sampler"])
def test_balanced_classes_need_no_dataset(
    balance: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LSGD_DATA", str(tmp_path))
    words = ["+recipe=bs256", "model=small_resnet", "data.image_size=32"]
    assert count_step(compose_recipe(*words, f"data.balance={balance}"), [1])


@pytest.mark.slow
def test_of_what_they_are() -> None:
    """Of one pass on one process autograd's gradients stay where they are; on several, and with
    several passes, they are in the buckets, which have two flags."""
    made = recipe()
    network = make_network(made)
    numbers = sum(each.numel() for each in network.parameters())
    buffers = sum(each.nbytes for each in network.buffers())
    counted = count_step(made, [1, 2, 4])
    for each in counted.values():
        assert each.parameters == 4 * numbers + buffers
        assert each.optimizer == 4 * numbers
        assert each.buckets == 4 * (numbers + 2)
        assert each.total == sum(each.by_category.values())
    # Images and what is kept of them; weights and the sums of statistics are the rest.
    added = [two.activations - one.activations for one, two in itertools.pairwise(counted.values())]
    assert added[1] == pytest.approx(2 * added[0], rel=0.1)
    assert count_step(made, [4])[4] == counted[4]
    two_means = count_step(recipe("optim=adamw"), [4])[4]
    assert two_means.optimizer == 8 * numbers + 4 * len(list(network.parameters()))
    halved = count_step(replace(made, precision="bfloat16"), [4])[4]
    assert halved.activations < 0.75 * counted[4].activations


@pytest.mark.slow
def test_a_tensor_that_a_step_keeps_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    before = count_step(recipe(), [4])[4]
    kept: list[Any] = []
    monkeypatch.setattr(
        nn.Module, "__call__", lambda self, x: kept.append(x + 0) or self._call_impl(x)
    )
    after = count_step(recipe(), [4])[4]
    assert after.activations > before.activations
    assert after.parameters == before.parameters


@pytest.mark.slow
def test_a_step_in_tf32_has_the_tensors_of_one_in_float32() -> None:
    """A CPU has no tf32, and the step is counted on one."""
    assert count_step(recipe("precision=tf32"), [4]) == count_step(recipe(), [4])


def test_what_is_set_for_the_count_is_given_back() -> None:
    apply, threads = nn.Module._apply, torch.get_num_threads()
    count_step(recipe(), [4])
    assert nn.Module._apply is apply
    assert torch.get_num_threads() == threads
    assert type(torch.empty(1)) is torch.Tensor


def test_the_largest_pass_is_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    of = partial(StepMemory, 10, 0, 10, 10)
    monkeypatch.setattr(memory, "count_step", lambda *_: {1: of(70), 2: of(120)})
    asked = {99: 0, 100: 1, 149: 1, 150: 2, 1000: 19}
    assert {size: max_workers_per_micro_batch(recipe(), size) for size in asked} == asked
