"""Frozen parameters: bit-equal for good, without optimizer state, gradients, traffic and decay.

With any strategy, number of processes and restart the others are trained the same, the new last
layer at its own lr.
"""

import copy
from functools import cache
from pathlib import Path

import pytest
import torch
from helpers.composed import compose_recipe
from helpers.differences import largest_difference
from helpers.threaded import run_on_threads
from torch import Tensor

from lsgd.comm import Comm
from lsgd.comm.single import SingleComm
from lsgd.errors import UsageError
from lsgd.evaluation import evaluate
from lsgd.learner import Learner
from lsgd.models import make_network
from lsgd.plan.gradients import gradient_buckets, parameter_sizes
from lsgd.recipe import Recipe
from lsgd.rules.batchnorm import worker_batch_norms
from lsgd.rules.optim import LR_FACTOR, trained_parameters
from lsgd.run.checkpoint import Checkpoint
from lsgd.start_weights import read_start_weights
from lsgd.step import train_step
from lsgd.strategy.allreduce import AllReduce
from lsgd.trained_model import build_trained
from lsgd.workloads import open_workload

CPU = torch.device("cpu")
FINISHED = Path(__file__).parents[1] / "fixtures/0.1/finished"
PATTERNS = ["conv1", "bn1", "layer1.*"]
# 4 steps an epoch, the last of 4 + 4 + 2 + 0 images; 5 with a backup worker.
WORDS = [
    "+recipe=digits", "precision=float64", "device=cpu", "inputs=synthetic", "workers=4",
    "worker_batch=4", "data.train_examples=58", "data.val_examples=6", "tail=keep", "epochs=2",
    "schedule.milestones=[1]", "schedule.warmup_epochs=0.5", "schedule.reference_batch=8",
    "optim.weight_decay=0.01", "optim.head_lr=0.25", f"model.start={FINISHED}",
    "model.new_head=true", f"model.frozen=[{','.join(PATTERNS)}]",
]  # fmt: skip
PUSHING = ["workers_per_pass=1", "cluster.spread=0.7"]
KINDS = {
    "allreduce": ["optim.clip_norm=0.5"],
    "lars": ["optim=lars", "schedule.reference_lr=2", "optim.head_lr=3"],
    "lamb": [
        "optim=lamb", "optim.bias_correction=true", "optim.adapts=decayed", "optim.decay_bias=true",
        "schedule.reference_lr=0.004", "optim.head_lr=0.02",
    ],
    "akiba": ["optim=rmsprop_warmup", "optim.beta_center=0.5", "optim.beta_period=2"],
    "adam": ["optim=adam", "schedule.reference_lr=0.001", "optim.head_lr=0.004"],
    "equation 10": ["optim.equation=10", "optim.momentum_correction=true"],
    "sync": ["strategy=sync", "strategy.servers=3"],
    "backup": [*PUSHING, "strategy=backup", "strategy.backup=1", "strategy.servers=2"],
    "async": [*PUSHING, "strategy=async", "strategy.servers=2"],
    "local pushes": [
        *PUSHING, "strategy=async", "strategy.local_steps=2", "strategy.outer=nesterov",
        "strategy.outer_lr=0.4", "strategy.outer_momentum=0.5",
    ],
    "local": ["strategy=local", "strategy.local_steps=2"],
    "elastic": ["strategy=local", "strategy.outer=elastic", "strategy.moving_rate=0.2"],
    "averaged": ["averaging=ema", "averaging.half_life=5", "bn_statistics.examples=20"],
    "precise": ["bn_statistics=precise", "bn_statistics.examples=20"],
}  # fmt: skip
END, CUT = 10, 3
"""More steps than a run has, and the step at which another run resumes it."""


@cache
def recipe(*words: str) -> Recipe:
    return compose_recipe(*WORDS, *words)


@cache
def start_tensors() -> dict[str, Tensor]:
    """The tensors with which all runs start."""
    return dict(read_start_weights(recipe(), SingleComm()).tensors)


def learner(comm: Comm, kind: str, *words: str) -> Learner:
    return Learner(recipe(*KINDS[kind], *words), comm, CPU, start=start_tensors())


def make_steps(learner: Learner, until: int) -> Checkpoint:
    """The state of all processes after the steps before `until`, on each of them."""
    inputs = learner.workload.inputs()
    for epoch, steps in learner.recipe.epochs_from(learner.next_step):
        for task in learner.strategy.tasks(epoch, [step for step in steps if step < until]):
            train_step(learner, task, inputs.train(task.micro_batches))
        if until > steps[-1]:
            learner.strategy.synchronize()
    return learner.comm.broadcast_object(copy.deepcopy(learner.checkpoint()))


@cache
def alone(kind: str) -> Checkpoint:
    """The state after all steps of a single process."""
    return make_steps(learner(SingleComm(), kind), END)


def difference(one: Checkpoint, other: Checkpoint) -> float:
    """The largest difference between the models, optimizer states and sums of BN's shares."""
    states = [[each.optimizer.get("state"), each.optimizer.get("workers")] for each in (one, other)]
    shares = [each.parts["batchnorm"]["shares"].sum(0) for each in (one, other)]
    assert one.model.keys() == other.model.keys()
    return max(
        largest_difference(states[0], states[1]),
        largest_difference(shares[0], shares[1]),
        *(float((one.model[name] - value).abs().max()) for name, value in other.model.items()),
    )


def frozen_tensors(model: dict[str, Tensor]) -> dict[str, Tensor]:
    names = ("conv1.", "bn1.", "layer1.")
    return {name: value for name, value in model.items() if name.startswith(names)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_any_processes_and_restarts_leave_frozen_tensors_as_they_are(kind: str) -> None:
    """BN statistics too; and all others move."""
    start = start_tensors()
    saved = alone(kind)
    frozen = frozen_tensors(saved.model)
    assert len(frozen) == 24
    for name, value in saved.model.items():
        if name in frozen:
            assert torch.equal(value, start[name]), name
        elif name in start:
            assert not torch.equal(value, start[name]), name

    cut = run_on_threads(2, lambda comm: make_steps(learner(comm, kind), CUT))[0]

    def resumed(comm: Comm) -> Checkpoint:
        ours = learner(comm, kind, "workers_per_pass=1")
        ours.restore(copy.deepcopy(cut))
        return make_steps(ours, END)

    theirs = run_on_threads(3, resumed)[0]
    assert difference(theirs, saved) < 1e-10
    for name, value in frozen.items():
        assert torch.equal(theirs.model[name], value), name


@pytest.mark.slow
def test_servers_use_the_lr_of_the_last_layer() -> None:
    """Not for the updates by pseudo-gradients, whose local steps have had it."""
    ours, theirs = (
        make_steps(learner(SingleComm(), kind, *words), END)
        for kind, words in (("sync", []), ("allreduce", ["optim.clip_norm=null"]))
    )
    plain = make_steps(learner(SingleComm(), "sync", "optim.head_lr=null"), END)
    assert difference(ours, theirs) < 1e-10
    assert (ours.model["fc.weight"] - plain.model["fc.weight"]).abs().max() > 1e-3
    assert [LR_FACTOR in group for group in ours.optimizer["param_groups"]] == [0, 0, 1, 1]
    pushed = learner(SingleComm(), "local pushes").checkpoint().optimizer["param_groups"]
    assert not any(LR_FACTOR in group for group in pushed)


@pytest.mark.slow
def test_one_process_takes_over_and_it_is_evaluated() -> None:
    cut = run_on_threads(3, lambda comm: make_steps(learner(comm, "averaged"), CUT))[0]
    resumed = learner(SingleComm(), "averaged")
    resumed.restore(copy.deepcopy(cut))
    saved = make_steps(resumed, END)
    assert difference(saved, alone("averaged")) < 1e-10
    inputs = resumed.workload.inputs()
    scores = evaluate(resumed, inputs)["val"].metrics
    made = resumed.recipe
    trained = build_trained(made, "saved", saved.model, saved.parts, SingleComm(), CPU)
    assert evaluate(trained, inputs)["val"].metrics == pytest.approx(scores, rel=1e-12)


@pytest.mark.slow
def test_workers_that_share_memory_share_no_frozen_tensor() -> None:
    words = ["workers=1", "strategy=hogwild", "optim.momentum=0", "optim.nesterov=false"]
    words += ["schedule.warmup=none"]
    made = compose_recipe(*[word for word in WORDS if "warmup" not in word], *words)
    start = read_start_weights(made, SingleComm()).tensors
    ours = Learner(made, SingleComm(), CPU, start=start)
    trained = sum(each.numel() for each in trained_parameters(ours.model))
    assert ours.strategy.own.numel() == trained  # type: ignore[attr-defined]
    saved = make_steps(ours, 5)
    for name, value in frozen_tensors(saved.model).items():
        assert torch.equal(value, start[name]), name
    assert not torch.equal(saved.model["layer3.0.conv1.weight"], start["layer3.0.conv1.weight"])


def test_frozen_parameters_have_no_state_gradient_traffic_or_decay() -> None:
    ours = learner(SingleComm(), "allreduce")
    assert isinstance(ours.strategy, AllReduce)
    make_steps(ours, 1)
    trained = trained_parameters(ours.model)
    names = dict(ours.model.named_parameters())
    assert {n for n, p in names.items() if not p.requires_grad} == set(frozen_tensors(dict(names)))
    optimizer, elements = ours.strategy.optimizer, sum(each.numel() for each in trained)
    grouped = [each for group in optimizer.param_groups for each in group["params"]]
    assert {*map(id, grouped)} == {*map(id, optimizer.state)} == {*map(id, trained)}
    assert sum(bucket.gradients.numel() for bucket in ours.strategy.reducer.buckets) == elements
    assert all(each.grad is None for each in names.values() if not each.requires_grad)
    assert sum(parameter_sizes(ours.recipe)) == elements
    (bucket,) = gradient_buckets(ours.recipe, fused=True)
    assert bucket.size == 8 * (elements + 2)


def test_frozen_bn_normalises_by_its_running_statistics() -> None:
    """So the output for an image does not depend on the others, also in training."""
    ours = learner(SingleComm(), "allreduce").model.train()
    stem = torch.nn.Sequential(*map(ours.get_submodule, ("conv1", "bn1")))
    images = torch.randn(4, 1, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(stem(images)[:1], stem(images[:1]), rtol=1e-12, atol=1e-12)
    modes = [ours.get_submodule(name).training for name in ("bn1", "layer1.0.bn1", "fc", "layer2")]
    assert modes == [False, False, True, True]
    partly = make_network(compose_recipe("+recipe=digits", "model.frozen=['*.bias']"))
    assert all(norm.train().training for norm in worker_batch_norms(partly))


@pytest.mark.parametrize(
    ("frozen", "sentence"),
    [
        (
            "[fc] optim.head_lr=1",
            r"optim\.head_lr=1 is the lr of the last layer, which is not trained with "
            r"model\.frozen=\[fc\]; leave one of them out",
        ),
        (
            "[stem]",
            r"model\.frozen has stem, which is not a parameter or layer of model=small_resnet; "
            r"write some of conv1, bn1, layer1, layer2, layer3, fc, or longer names such as conv1",
        ),
        ("[conv1,'layer9.*']", r"model\.frozen has layer9\.\*, which is not a parameter"),
        ("['*']", r"model\.frozen=\[\*\] means all parameters .* leaves none to train; write"),
    ],
)  # fmt: skip
def test_a_wrong_pattern_is_refused_with_the_names(frozen: str, sentence: str) -> None:
    made = compose_recipe("+recipe=digits", "inputs=synthetic", *f"model.frozen={frozen}".split())
    with pytest.raises(UsageError, match=sentence):
        open_workload(made, CPU).inputs()
