"""What `bench step` and `bench batchnorm` compare is the same step, but for what they measure."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lsgd import config
from lsgd.bench import steps
from lsgd.bench.__main__ import main
from lsgd.bench.bare import BareLoop
from lsgd.bench.loaders import passes_of_step
from lsgd.bench.scripts import with_plain_batchnorm
from lsgd.comm.single import SingleComm
from lsgd.inputs.synthetic import SyntheticInputs
from lsgd.learner import Learner
from lsgd.models import make_network
from lsgd.recipe import Recipe
from lsgd.rules.batchnorm import WorkerBatchNorm2d
from lsgd.step import train_step

CPU = torch.device("cpu")
SMALL = ["+recipe=digits", "device=cpu", "data.train_examples=512", "model.last_gamma=1.0"]


def recipe(*words: str) -> Recipe:
    return config.load_recipe([*SMALL, *words])


def make_steps(made: Recipe, step: steps.Step, count: int) -> None:
    """The first steps of the run, on other images each."""
    inputs = SyntheticInputs(made.data, seed=1, device=CPU)
    for number in range(count):
        passes = passes_of_step(made, number)
        step(number, passes, inputs.train(passes))


def state(learner: Learner | BareLoop) -> list[Tensor]:
    """Parameters, BN's share of running statistics, and momentum."""
    momentum = [state["momentum_buffer"] for state in learner.optimizer.state.values()]
    return [*learner.model.parameters(), learner.running.share, *momentum]


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
    make_steps(made, lambda *args: train_step(ours, *args), 3)
    make_steps(made, bare.step, 3)
    assert all(map(torch.equal, state(ours), state(bare)))
    assert not any(map(torch.equal, start, ours.model.parameters()))


def kinds(learner: Learner) -> dict[str, type]:
    return {name: type(module) for name, module in learner.model.named_modules()}


def test_the_batchnorms_differ_in_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a worker in the pass they are the same step, bit by bit; with four they are not."""
    learners: list[Learner] = []
    monkeypatch.setattr(steps, "_ours", lambda learner: learners.append(learner))
    steps.with_either_batchnorm(recipe("workers_per_pass=2"), SingleComm(), CPU)
    plain, per_worker = sorted(
        learners, key=lambda learner: nn.BatchNorm2d not in kinds(learner).values()
    )
    for name, kind in kinds(per_worker).items():
        swapped = kind is WorkerBatchNorm2d
        assert kinds(plain)[name] is (nn.BatchNorm2d if swapped else kind)
    assert sum(kind is nn.BatchNorm2d for kind in kinds(plain).values()) == 10

    def after(workers: int) -> list[list[Tensor]]:
        made = recipe(f"workers={workers}", "workers_per_pass=4", "schedule.warmup=none")
        learners.clear()
        steps.with_either_batchnorm(made, SingleComm(), CPU)
        for learner in learners:
            make_steps(made, lambda *args, learner=learner: train_step(learner, *args), 2)
        return [[p.detach() for p in learner.model.parameters()] for learner in learners]

    assert all(map(torch.equal, *after(1)))
    assert not any(map(torch.equal, *after(4)))


def test_running_statistics_are_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain BN pays for its own alone: the layers' move, and lsgd's stay."""
    learners: list[Learner] = []
    monkeypatch.setattr(steps, "_ours", lambda learner: learners.append(learner))
    made = recipe("workers_per_pass=2")
    steps.with_either_batchnorm(made, SingleComm(), CPU)
    plain = next(each for each in learners if nn.BatchNorm2d in kinds(each).values())
    layers = [layer for layer in plain.model.modules() if isinstance(layer, nn.BatchNorm2d)]
    make_steps(made, lambda *args: train_step(plain, *args), 1)
    assert all(layer.running_mean.any() for layer in layers)
    # Counted once a pass, and not once more at the end of the step.
    assert {layer.num_batches_tracked.item() for layer in layers} == {made.workers // 2}
    assert not any(layer.seen.any() for layer in layers)


@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_the_scripts_train_as_they_are(library: str) -> None:
    """With one update for each pass, as SGD on the mean loss of its images with plain BN."""
    words = ["workers_per_pass=4", "optim.weight_decay=0", "precision=float64"]
    made = recipe(*words, "channels_last=true")
    script = steps.SCRIPTS[f"{library}'s training step"](made, CPU)
    layer = next(each for each in script.model.modules() if isinstance(each, nn.BatchNorm2d))
    assert type(layer) is nn.BatchNorm2d
    passes = passes_of_step(made, 0)
    batches = list(SyntheticInputs(made.data, seed=1, device=CPU).train(passes))
    script.step(0, passes, iter(batches))
    assert layer.num_batches_tracked == len(passes) == made.workers // 4

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


@pytest.mark.parametrize("name", ["step", "batchnorm"])
def test_the_whole_command(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both are timed in each round, and the ratio is judged against the goal."""
    out = tmp_path / "out"
    words = [*SMALL, "workers=4", "workers_per_pass=2", "schedule.warmup=none"]
    assert main([name, *words, "--rounds", "6", "--steps", "1", "--out", str(out)]) == 0
    found = json.loads((out / f"{name}.json").read_text())
    comparison = {"step": steps.STEP, "batchnorm": steps.BATCHNORM}[name]
    measured = [*found["images_per_second"], *found["missing"]]
    assert measured == [comparison.one, comparison.other, *comparison.scripts]
    assert all(
        len(speeds) == 6 and min(speeds) > 0 for speeds in found["images_per_second"].values()
    )
    said = (out / "README.md").read_text()
    assert said in capsys.readouterr().out
    assert f"- {comparison.one}, at most {comparison.goal:g} times the time of" in said
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
        speeds = {steps.OURS: [ours] * 6, steps.BARE: [100.0] * 6}
        assert verdict in steps.report(
            steps.STEP, found | {"images_per_second": speeds, "missing": {}}
        )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["step", "+recipe=digits", "--rounds", "5"], "--rounds 5 is too few"),
        (["batchnorm", "+recipe=digits", "--steps", "0"], "--steps 0 is not possible"),
        (["batchnorm", *SMALL, "workers_per_pass=1"], "workers_per_pass=1 leaves one worker"),
        (["step", "+recipe=digits", "optim.equation=10"], "optim.equation=10 is not PyTorch's SGD"),
        (["memory", "+recipe=digits", "--passes", "1"], "--passes 1 leaves nothing to compare"),
    ],
)
def test_what_makes_no_sense_is_refused(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    assert message in capsys.readouterr().err
