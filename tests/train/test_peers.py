"""Defects found in other implementations of large-minibatch SGD, each of which could occur here.

More of them are where the rule is tested: the evaluation that pads, the norms told apart by name,
the momentum correction that PyTorch's form does not need, and those of the lr: a ratio that is
rounded, a drop in each epoch, a warmup from another lr.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.composed import compose_recipe
from torch import Tensor
from torch.nn import functional as F

from lsgd.comm.single import SingleComm
from lsgd.inputs import Batch, open_inputs
from lsgd.job.launcher import detect_launch
from lsgd.learner import Learner
from lsgd.models import make_model
from lsgd.recipe import Recipe
from lsgd.rules import optim
from lsgd.rules.batchnorm import WorkerBatchNorm2d
from lsgd.rules.sampler import contiguous_share
from lsgd.step import train_step
from lsgd.workloads import open_workload

CPU = torch.device("cpu")
CLOSE = {"rtol": 1e-10, "atol": 1e-12}
WORDS = [
    "+recipe=digits",
    "workers=7",
    "worker_batch=8",
    "precision=float64",
    "tail=keep",
    "schedule.reference_batch=56",
    "model.last_gamma=1.0",
]


def recipe(*words: str) -> Recipe:
    return compose_recipe(*WORDS, *words)


def after(made: Recipe, *steps: int) -> Learner:
    """A learner which has made these steps of the run, all of one epoch."""
    learner = Learner(made, SingleComm(), CPU)
    for task in learner.strategy.tasks(0, list(steps)):
        train_step(learner, task, open_inputs(made, CPU).train(task.micro_batches))
    return learner


def parameters(learner: Learner) -> list[Tensor]:
    return [p.detach() for p in learner.model.parameters()]


def gradients(learner: Learner) -> list[Tensor]:
    return [p.grad for p in learner.model.parameters()]


def batch(made: Recipe, step: int) -> Batch:
    """All images of a step, worker by worker, and their labels."""
    apart = replace(made, workers_per_pass=1)
    (task,) = Learner(apart, SingleComm(), CPU).strategy.tasks(0, [step])
    images, labels = zip(*open_inputs(made, CPU).train(task.micro_batches), strict=True)
    return torch.cat(images).double(), torch.cat(labels)


def test_7_workers_in_passes_of_4_make_one_update() -> None:
    """timm: 7 batches accumulated by 4 make 3 updates, the last with a third of the weight."""
    at_once, in_passes = (after(recipe(f"workers_per_pass={p}"), 0, 1) for p in (7, 4))
    assert [len(task.micro_batches) for task in in_passes.strategy.tasks(0, [0, 1])] == [2, 2]
    torch.testing.assert_close(parameters(in_passes), parameters(at_once), **CLOSE)


def test_an_update_has_the_lr_of_its_own_step() -> None:
    """A scheduler that is stepped before the optimizer: each update has the lr of the next step."""
    made = recipe()
    used = []
    learner = Learner(made, SingleComm(), CPU)
    learner.strategy.optimizer.register_step_pre_hook(
        lambda optimizer, *_: used.append([group["lr"] for group in optimizer.param_groups])
    )
    drop = round(made.steps_per_epoch * made.schedule.milestones[0])
    steps = [0, 1, drop - 1, drop]
    for step in steps:
        [task] = learner.strategy.tasks(made.locate_step(step)[0], [step])
        train_step(learner, task, open_inputs(made, CPU).train(task.micro_batches))
    assert used == [[made.lr(step)] * len(used[0]) for step in steps]
    assert made.lr(drop - 1) > made.lr(drop)


def test_another_seed_has_other_weights_and_another_order() -> None:
    """Else the standard deviation over seeds would be that of nothing."""
    one, other = (open_workload(recipe(f"seed={seed}"), CPU) for seed in (0, 1))
    assert not torch.equal(one.network().fc.weight, other.network().fc.weight)
    assert not np.array_equal(one.example_order(0), other.example_order(0))


def test_a_short_last_step_is_divided_by_its_own_size() -> None:
    """Lightning: the last, smaller group of accumulated batches is divided by the full number.

    So are the gradient, by 42 images, and BN's statistics, by the 6 of 7 workers that have some.
    """
    made = recipe("workers_per_pass=2")
    last = made.steps_per_epoch - 1
    images, labels = batch(made, last)
    assert len(labels) == 1442 % 56 == 42
    model = make_model("small_resnet", classes=10, channels=1, last_gamma=1.0, seed=0).double()
    for module in model.modules():
        if isinstance(module, WorkerBatchNorm2d):
            module.seen = torch.zeros(2, module.num_features, dtype=torch.float64)
    loss = torch.zeros((), dtype=torch.float64)
    for mine, its in zip(images.split(8), labels.split(8), strict=True):
        loss = loss + F.cross_entropy(model(mine), its, reduction="sum") / 42
    expected = torch.autograd.grad(loss, list(model.parameters()))
    learner = after(made, last)
    torch.testing.assert_close(gradients(learner), list(expected), **CLOSE)
    learner.strategy.synchronize()
    mean, var = learner.model.bn1.running_mean, learner.model.bn1.running_var
    torch.testing.assert_close(mean, 0.1 * model.bn1.seen[0] / 6, **CLOSE)
    torch.testing.assert_close(var, 0.9 + 0.1 * model.bn1.seen[1] / 6, **CLOSE)


@pytest.mark.parametrize("nesterov", [True, False])
def test_a_step_without_gradient_decays_by_lr_times_1e_4(nesterov: bool) -> None:
    """Horovod's example: a decay of 5e-5 in a loss without the factor 1/2 is copied as 5e-5."""
    made = replace(recipe(), optim=replace(recipe().optim, nesterov=nesterov))
    learner = Learner(made, SingleComm(), CPU)
    before = {name: p.detach().clone() for name, p in learner.model.named_parameters()}
    learner.strategy.reducer.start(divisor=1, passes=0)
    learner.strategy.reducer.finish()
    optim.set_lr(learner.strategy.optimizer, 0.5)
    learner.strategy.optimizer.step()
    # Nesterov's first step goes 1 + m times as far.
    factor = 1 - 0.5 * 1e-4 * (1.9 if nesterov else 1)
    for name, parameter in learner.model.named_parameters():
        decays = parameter.dim() > 1 or name == "fc.bias"
        expected = before[name] * (factor if decays else 1)
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-14, atol=0, msg=name)


@pytest.mark.parametrize("stop", [1, 25, 26, 27, 30])
def test_a_resume_in_mid_epoch_skips_and_repeats_nothing(stop: int) -> None:
    """timm and NVIDIA's example: a checkpoint of a part of an epoch goes on with the next epoch."""
    made = recipe("epochs=2", "schedule.milestones=[]", "schedule.warmup=none")
    first = Learner(made, SingleComm(), CPU)
    first.strategy.next_step = stop
    saved = first.checkpoint()
    second = Learner(made, SingleComm(), CPU)
    second.restore(saved)
    taken: list[list[int]] = [[], []]
    for learner, begin, end in ((first, 0, stop), (second, second.next_step, made.total_steps)):
        for epoch, steps in made.epochs_from(begin):
            for task in learner.strategy.tasks(epoch, [step for step in steps if step < end]):
                ids = [each.by_worker.ravel().tolist() for each in task.micro_batches]
                taken[epoch] += [i for of_pass in ids for i in of_pass]
    for epoch, ids in enumerate(taken):
        assert np.array_equal(ids, first.workload.example_order(epoch))


def test_processes_of_two_machines_have_shares_of_their_own() -> None:
    """DALI's example: the shard is chosen by the local rank, so machines train the same images."""
    hosted = []
    for rank in range(4):
        local = {"LOCAL_RANK": str(rank % 2), "LOCAL_WORLD_SIZE": "2"}
        launch = detect_launch({"RANK": str(rank), "WORLD_SIZE": "4"} | local)
        comm = SingleComm()
        comm.rank, comm.world_size = launch.rank, launch.world_size
        hosted += [*Learner(recipe(), comm, CPU).strategy.hosted]
    assert hosted == list(range(7)) == [*contiguous_share(7, 1, 0)]
