"""What benchmarks.step, batchnorm and lars compare differs in nothing but what they measure."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from helpers.composed import compose_recipe
from torch import Tensor, nn

from benchmarks import batchnorm, comparison, lars, step
from benchmarks.bare_loop import BareLoop
from benchmarks.scripts import TorchvisionStep, with_plain_batchnorm
from lsgd.bench.loaders import micro_batches_of_step
from lsgd.comm.single import SingleComm
from lsgd.inputs.synthetic import SyntheticInputs
from lsgd.learner import Learner
from lsgd.models import make_network
from lsgd.recipe import Recipe
from lsgd.rules.batchnorm import WorkerBatchNorm2d
from lsgd.strategy import StepTask

CPU = torch.device("cpu")
SMALL = ["+recipe=digits", "device=cpu", "data.train_examples=512", "model.last_gamma=1.0"]


def recipe(*words: str) -> Recipe:
    return compose_recipe(*SMALL, *words)


def task_of_step(made: Recipe, number: int) -> StepTask:
    return StepTask(number, made.batch_size, made.workers, micro_batches_of_step(made, number))


def make_steps(made: Recipe, step: comparison.StepFunction, count: int) -> None:
    """The first steps of the run, on other images each."""
    inputs = SyntheticInputs(made.data, seed=1, device=CPU)
    for number in range(count):
        task = task_of_step(made, number)
        step(task, inputs.train(task.micro_batches))


def state(learner: Learner | BareLoop) -> list[Tensor]:
    """Parameters, BN's share of running statistics, and momentum."""
    if isinstance(learner, BareLoop):
        optimizer, running = learner.optimizer, learner.running
    else:
        optimizer, (running,) = learner.strategy.optimizer, learner.strategy.carried_states
    momentum = [state["momentum_buffer"] for state in optimizer.state.values()]
    return [*learner.model.parameters(), running.share, *momentum]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["channels_last=true", "optim.nesterov=false"],
        ["precision=float64", "workers_per_pass=16", "optim.weight_decay=0.1"],
    ],
)
def test_the_bare_loop_makes_our_steps(words: list[str]) -> None:
    """Bit by bit: to divide by 256 is exact, so it is the same before the sum and after it."""
    made = recipe("workers_per_pass=4", *words)
    ours, bare = Learner(made, SingleComm(), CPU), BareLoop(made, CPU)
    start = [parameter.clone() for parameter in ours.model.parameters()]
    make_steps(made, comparison.step_of(ours), 3)
    make_steps(made, bare.step, 3)
    assert all(map(torch.equal, state(ours), state(bare)))
    assert not any(map(torch.equal, start, ours.model.parameters()))


def kinds(learner: Learner) -> dict[str, type]:
    return {name: type(module) for name, module in learner.model.named_modules()}


def either_learner(made: Recipe) -> tuple[Learner, Learner]:
    """With per-worker BN, and with plain BN."""
    learners = batchnorm.learners(made, SingleComm(), CPU)
    return learners[batchnorm.PER_WORKER], learners[batchnorm.PLAIN]


def test_the_batchnorms_differ_in_nothing_else() -> None:
    """With a worker in the pass they are the same step, bit by bit; with four they are not."""
    per_worker, plain = either_learner(recipe("workers_per_pass=2"))
    for name, kind in kinds(per_worker).items():
        swapped = kind is WorkerBatchNorm2d
        assert kinds(plain)[name] is (nn.BatchNorm2d if swapped else kind)
    assert sum(kind is nn.BatchNorm2d for kind in kinds(plain).values()) == 10

    def after(workers: int) -> list[list[Tensor]]:
        made = recipe(f"workers={workers}", "workers_per_pass=4", "schedule.warmup=none")
        learners = either_learner(made)
        for learner in learners:
            make_steps(made, comparison.step_of(learner), 2)
        return [[p.detach() for p in learner.model.parameters()] for learner in learners]

    assert all(map(torch.equal, *after(1)))
    assert not any(map(torch.equal, *after(4)))


@pytest.mark.parametrize("library", ["torchvision", pytest.param("timm", marks=pytest.mark.timm)])
def test_the_scripts_train_as_they_are(library: str) -> None:
    """With one update for each pass, as SGD on the mean loss of its images with plain BN."""
    words = ["workers_per_pass=4", "optim.weight_decay=0", "precision=float64"]
    made = recipe(*words, "channels_last=true")
    script = step.SCRIPTS[f"{library}'s training step"](made, CPU)
    layer = next(each for each in script.model.modules() if isinstance(each, nn.BatchNorm2d))
    assert type(layer) is nn.BatchNorm2d
    task = task_of_step(made, 0)
    batches = list(SyntheticInputs(made.data, seed=1, device=CPU).train(task.micro_batches))
    script.step(task, iter(batches))
    assert layer.num_batches_tracked == len(task.micro_batches) == made.workers // 4

    model = with_plain_batchnorm(make_network(made)).double()
    sgd = torch.optim.SGD(model.parameters(), lr=made.lr(0), momentum=0.9, nesterov=True)
    for images, labels in batches:
        sgd.zero_grad()
        nn.functional.cross_entropy(model(images.double()), labels).backward()
        sgd.step()
    for theirs, ours in zip(script.model.parameters(), model.parameters(), strict=True):
        assert torch.allclose(theirs, ours, rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("main", "compared", "words"),
    [
        (step.main, step.STEP, []),
        (batchnorm.main, batchnorm.BATCHNORM, []),
        (lars.main, lars.LARS, ["optim=lars"]),
    ],
)
def test_the_whole_command(
    main: Callable[[list[str]], int],
    compared: comparison.Comparison,
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Both are timed in each round, and the ratio is judged against the goal."""
    out = tmp_path / "out"
    words = [*SMALL, "workers=4", "workers_per_pass=2", "schedule.warmup=none", *words]
    assert main([*words, "--rounds", "6", "--steps", "1", "--out", str(out)]) == 0
    found = json.loads((out / f"{compared.name}.json").read_text())
    assert found["command"].startswith(f"python -m benchmarks.{compared.name} +recipe=digits ")
    assert ("timm" in found["versions"]) == (
        compared is step.STEP and find_spec("timm") is not None
    )
    measured = [*found["images_per_second"], *found["missing"]]
    updates = lars.UPDATES.values() if compared is lars.LARS else []
    assert measured == [compared.measured_step, compared.baseline_step, *updates, *compared.scripts]
    assert all(
        len(speeds) == 6 and min(speeds) > 0 for speeds in found["images_per_second"].values()
    )
    said = (out / "README.md").read_text()
    assert said in capsys.readouterr().out
    assert (
        f"- {compared.measured_step}, at most {compared.max_time_ratio:g} times the time of" in said
    )
    assert "batch 64 = 4 workers x 16" in said


def test_the_scripts_train_with_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The context that lets it choose its algorithms turns it off by default."""
    made = recipe("workers_per_pass=16")
    seen = []
    monkeypatch.setattr(
        TorchvisionStep,
        "update",
        lambda *_: seen.append((torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark)),
    )
    make_steps(made, TorchvisionStep(made, CPU).step, 1)
    assert {*seen} == {(True, True)}
