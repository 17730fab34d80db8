"""What benchmarks.step, batchnorm and lars compare differs in nothing but what they measure."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from benchmarks import batchnorm, comparison, lars, step
from benchmarks.bare_loop import BareLoop
from benchmarks.scripts import with_plain_batchnorm
from lsgd import config
from lsgd.bench.loaders import passes_of_step
from lsgd.comm.single import SingleComm
from lsgd.inputs.synthetic import SyntheticInputs
from lsgd.job.launcher import Launch
from lsgd.learner import Learner
from lsgd.models import make_network
from lsgd.recipe import Recipe
from lsgd.rules.batchnorm import WorkerBatchNorm2d
from lsgd.strategy import Task

CPU = torch.device("cpu")
SMALL = ["+recipe=digits", "device=cpu", "data.train_examples=512", "model.last_gamma=1.0"]


def recipe(*words: str) -> Recipe:
    return config.load_recipe([*SMALL, *words])


def task_of_step(made: Recipe, number: int) -> Task:
    return Task(number, made.batch_size, made.workers, passes_of_step(made, number))


def make_steps(made: Recipe, step: comparison.StepFunction, count: int) -> None:
    """The first steps of the run, on other images each."""
    inputs = SyntheticInputs(made.data, seed=1, device=CPU)
    for number in range(count):
        task = task_of_step(made, number)
        step(task, inputs.train(task.passes))


def state(learner: Learner | BareLoop) -> list[Tensor]:
    """Parameters, BN's share of running statistics, and momentum."""
    if isinstance(learner, BareLoop):
        optimizer, running = learner.optimizer, learner.running
    else:
        optimizer, (running,) = learner.strategy.optimizer, learner.strategy.parts
    momentum = [state["momentum_buffer"] for state in optimizer.state.values()]
    return [*learner.model.parameters(), running.share, *momentum]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["channels_last=true", "optim.nesterov=false"],
        ["precision=bfloat16"],
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


def test_running_statistics_are_kept_once() -> None:
    """Plain BN pays for its own alone: the layers' move, and lsgd's stay."""
    made = recipe("workers_per_pass=2")
    _, plain = either_learner(made)
    layers = [layer for layer in plain.model.modules() if isinstance(layer, nn.BatchNorm2d)]
    make_steps(made, comparison.step_of(plain), 1)
    assert all(layer.running_mean.any() for layer in layers)
    # Counted once a pass, and not once more at the end of the step.
    assert {layer.num_batches_tracked.item() for layer in layers} == {made.workers // 2}
    assert not any(layer.seen.any() for layer in layers)


@pytest.mark.parametrize("library", ["torchvision", pytest.param("timm", marks=pytest.mark.timm)])
def test_the_scripts_train_as_they_are(library: str) -> None:
    """With one update for each pass, as SGD on the mean loss of its images with plain BN."""
    words = ["workers_per_pass=4", "optim.weight_decay=0", "precision=float64"]
    made = recipe(*words, "channels_last=true")
    script = step.SCRIPTS[f"{library}'s training step"](made, CPU)
    layer = next(each for each in script.model.modules() if isinstance(each, nn.BatchNorm2d))
    assert type(layer) is nn.BatchNorm2d
    task = task_of_step(made, 0)
    batches = list(SyntheticInputs(made.data, seed=1, device=CPU).train(task.passes))
    script.step(task, iter(batches))
    assert layer.num_batches_tracked == len(task.passes) == made.workers // 4

    model = with_plain_batchnorm(make_network(made)).double()
    sgd = torch.optim.SGD(model.parameters(), lr=made.lr(0), momentum=0.9, nesterov=True)
    for images, labels in batches:
        sgd.zero_grad()
        nn.functional.cross_entropy(model(images.double()), labels).backward()
        sgd.step()
    for theirs, ours in zip(script.model.parameters(), model.parameters(), strict=True):
        assert torch.allclose(theirs, ours, rtol=0, atol=1e-9)
    for theirs, before in zip(
        script.model.parameters(),
        with_plain_batchnorm(make_network(made)).double().parameters(),
        strict=True,
    ):
        assert not torch.allclose(theirs, before, rtol=0, atol=1e-6)


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
    assert measured == [compared.one, compared.other, *updates, *compared.scripts]
    assert all(
        len(speeds) == 6 and min(speeds) > 0 for speeds in found["images_per_second"].values()
    )
    said = (out / "README.md").read_text()
    assert said in capsys.readouterr().out
    assert f"- {compared.one}, at most {compared.goal:g} times the time of" in said
    assert "batch 64 = 4 workers x 16" in said


def test_a_step_that_costs_more_is_called_so() -> None:
    """The verdict is about time, of which the slower one needs more."""
    found = {
        "recipe": "r", "model": "m", "image_size": 8, "workers": 1, "worker_batch": 2,
        "workers_per_pass": 1, "precision": "float32", "channels_last": False, "compile": False,
        "device": "cpu",
        "date": "today", "rounds": 6, "steps_per_round": 1,
        "versions": {"torch": "2", "lsgd": "0"},
        "machine": {"gpu": None, "cpu": "c", "cores": 1, "threads_of_torch": 1, "load_average": 0},
    }  # fmt: skip
    for ours, verdict in ((90.0, "no, 1.111"), (110.0, "yes, 0.909"), (98.1, "yes, 1.019")):
        speeds = {step.OURS: [ours] * 6, step.BARE: [100.0] * 6}
        assert verdict in comparison.report(
            step.STEP, found | {"images_per_second": speeds, "missing": {}}
        )


@pytest.mark.parametrize(
    ("main", "words", "message"),
    [
        (step.main, ["+recipe=digits", "--rounds", "5"], "--rounds 5 is too few"),
        (batchnorm.main, ["+recipe=digits", "--steps", "0"], "--steps 0 is not possible"),
        (batchnorm.main, [*SMALL, "workers_per_pass=1"], "workers_per_pass=1 leaves one worker"),
        (step.main, ["+recipe=digits", "optim.equation=10"], "optim.equation=10 is not PyTorch's"),
        (lars.main, SMALL, "optim.name=sgd is not LARS; write optim=lars"),
        (step.main, ["+recipe=digits", "optim=adam"], "write optim.name=sgd"),
        (step.main, ["+recipe=digits", "optim.clip_norm=1"], "write optim.clip_norm=null"),
    ],
)
def test_what_makes_no_sense_is_refused(
    main: Callable[[list[str]], int],
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_the_steps_of_one_process_are_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lsgd.bench.setting.detect", lambda: Launch("torchrun", world_size=2))
    assert step.main(SMALL) == 2
    said = capsys.readouterr().err
    assert "torchrun started 2 processes, and the steps of one are measured; start it" in said
