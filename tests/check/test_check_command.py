"""The check of a recipe against the paper: faults are planted in the code and have to be named."""

import copy
import functools
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.composed import compose_recipe
from torch import nn

from lsgd import check, models, vision
from lsgd.check.__main__ import main, table, verdict
from lsgd.errors import UsageError
from lsgd.learner import Learner
from lsgd.rules import augmentation, optim, schedule

# --- Faults ----------------------------------------------------------------------------------

SMALL = (
    "+recipe=bs1k", "model=small_resnet", "data.train_examples=10250", "workers_per_pass=2",
    "data.val_examples=1000", "data.classes=10",
)  # fmt: skip
"""bs1k with ten steps per epoch and a network that is built in no time."""
WHOLE = (*SMALL, "model=resnet50")
LONG = (*SMALL, "data.train_examples=82000", "workers=1", "workers_per_pass=1")
"""230,580 steps, of which not all are asked for their lr."""

FULL = (
    *SMALL, "data.augmentation=fb_resnet_torch", "deviations.resize=null", "deviations.colour=null",
)  # fmt: skip
"""With the colours and the resize of fb.resnet.torch."""

PLANTS: list[Any] = []
Patch = pytest.MonkeyPatch


def plant(*rules: str, words: tuple[str, ...] = SMALL) -> Callable[..., Any]:
    """A fault, written as a function of monkeypatch, that breaks just these rules."""

    def note(fault: Callable[[Patch], None]) -> Callable[[Patch], None]:
        PLANTS.append(pytest.param(fault, {*rules}, words, id=fault.__name__))
        return fault

    return note


def learning_rate(patch: Patch, rule: Callable[..., float]) -> None:
    """rule(epoch, target, settings) in place of the schedule."""

    def planted(epoch: float, *, batch_size: int, **own: Any) -> float:
        names = ("reference_lr", "reference_batch", "scaling")
        target = schedule.scaled_lr(batch_size, **{name: own[name] for name in names})
        return rule(epoch, target, SimpleNamespace(batch_size=batch_size, **own))

    patch.setattr(schedule, "learning_rate", planted)


def ramp(epoch: float, target: float, own: Any, *, start: float, length: float = 5.0) -> float:
    if own.batch_size > own.reference_batch and epoch < length:
        return start + (target - start) * epoch / length
    return target * 0.1 ** sum(epoch >= milestone for milestone in own.milestones)


def then(patch: Patch, owner: Any, name: str, after: Callable[..., None]) -> None:
    """Do something more with the arguments once the real function is done."""
    real = getattr(owner, name)

    def planted(*args: Any, **kwargs: Any) -> Any:
        result = real(*args, **kwargs)
        after(*args, **kwargs)
        return result

    patch.setattr(owner, name, planted)


def initialised(patch: Patch, kind: type[nn.Module], change: Callable[[Any], object]) -> None:
    """Change every module of a kind once the weights are there."""

    def after(model: nn.Module, **_: Any) -> None:
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, kind):
                    change(module)

    then(patch, models, "initialise", after)


@plant("batchnorm_decay")
def decay_on_shortcut_bns(patch: Patch) -> None:
    def by_name(model: nn.Module, weight_decay: float, *_: object) -> list[dict[str, Any]]:
        named = list(model.named_parameters())
        kept = [p for name, p in named if "bn" in name]
        decayed = [p for name, p in named if "bn" not in name]
        return [
            {"params": decayed, "weight_decay": weight_decay},
            {"params": kept, "weight_decay": 0.0},
        ]

    patch.setattr(optim, "parameter_groups", by_name)


@plant("weight_decay")
def no_decay_on_biases(patch: Patch) -> None:
    def after(self: Learner, *_: Any, **__: Any) -> None:
        (group, kept) = self.strategy.optimizer.param_groups
        kept["params"] += [p for p in group["params"] if p.dim() == 1]
        group["params"] = [p for p in group["params"] if p.dim() > 1]

    then(patch, Learner, "__init__", after)


@plant("warmup")
def warmup_from_0(patch: Patch) -> None:
    learning_rate(patch, functools.partial(ramp, start=0.0))


@plant("warmup")
def warmup_per_epoch(patch: Patch) -> None:
    def rule(epoch: float, target: float, own: Any) -> float:
        return ramp(math.floor(epoch) if epoch < 5 else epoch, target, own, start=0.1)

    learning_rate(patch, rule)


@plant("drops")
def drops_a_step_late(patch: Patch) -> None:
    def rule(epoch: float, target: float, own: Any) -> float:
        late = SimpleNamespace(**vars(own) | {"milestones": [m + 1e-9 for m in own.milestones]})
        return ramp(epoch, target, late, start=0.1)

    learning_rate(patch, rule)


@plant("drops", words=LONG)
def a_drop_within_an_epoch(patch: Patch) -> None:
    def rule(epoch: float, target: float, own: Any) -> float:
        edges = {"milestones": [30, 60, 70.5, 80]}
        return ramp(epoch, target, SimpleNamespace(**vars(own) | edges), start=0.1)

    learning_rate(patch, rule)


@plant("other_gammas", "last_gamma")
def gamma_a_half(patch: Patch) -> None:
    initialised(patch, nn.BatchNorm2d, lambda norm: norm.weight.fill_(0.5))


@plant("fc_init")
def fc_as_pytorch_makes_it(patch: Patch) -> None:
    initialised(patch, nn.Linear, lambda head: head.reset_parameters())


@plant("conv_init")
def conv_init_fan_in(patch: Patch) -> None:
    initialised(patch, nn.Conv2d, lambda c: nn.init.kaiming_normal_(c.weight, nonlinearity="relu"))


@plant("stride", words=WHOLE)
def stride_in_the_1x1_convolution(patch: Patch) -> None:
    def swap(block: Any) -> None:
        block.conv1.stride, block.conv2.stride = block.conv2.stride, (1, 1)

    initialised(patch, vision.models.resnet.Bottleneck, swap)


@plant("model", words=WHOLE)
def one_block_more(patch: Patch) -> None:
    real = vision.models.resnet50
    wide = functools.partial(real, width_per_group=128)
    # The check has torchvision's own, which stay.
    patch.setattr(vision, "models", SimpleNamespace(**vars(vision.models) | {"resnet50": wide}))


@plant("augmentation")
def crops_of_a_quarter_and_more(patch: Patch) -> None:
    real = augmentation.crop_windows
    patch.setattr(
        augmentation,
        "crop_windows",
        lambda *sizes, area_range, **draw: real(*sizes, area_range=(0.25, 1.0), **draw),
    )


@plant("augmentation")
def no_flips(patch: Patch) -> None:
    patch.setattr(augmentation, "flip_mask", lambda ids, **_: np.zeros(len(ids), bool))


@plant("colour", words=FULL)
def lighting_by_eigenvalues_in_ascending_order(patch: Patch) -> None:
    patch.setattr(augmentation, "EIGENVALUES", augmentation.EIGENVALUES[::-1])


@plant("colour", words=FULL)
def one_factor_for_all_three(patch: Patch) -> None:
    real = augmentation.jitter_factors
    patch.setattr(
        augmentation, "jitter_factors", lambda *ids, **draw: real(*ids, **draw)[:, [0, 0, 0]]
    )


@functools.cache
def deviating(words: tuple[str, ...]) -> set[str]:
    return {
        f.rule
        for f in check.rule_results(check.build_learner(compose_recipe(*words)))
        if not f.is_followed
    }


@pytest.mark.parametrize(("fault", "rules", "words"), PLANTS)
def test_a_fault_in_the_code_is_named(
    fault: Callable[[Patch], None],
    rules: set[str],
    words: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fault's own rules deviate, and those which deviate anyway; no others."""
    before, recipe = deviating(words), compose_recipe(*words)
    assert not before & rules
    fault(monkeypatch)
    found = check.rule_results(check.build_learner(recipe))
    assert {finding.rule for finding in found if not finding.is_followed} == before | rules
    with pytest.raises(UsageError, match="does not declare it") as refused:
        verdict(recipe, found)
    for rule in rules:
        assert f"+deviations.{rule}='" in str(refused.value)
    assert max(map(len, table(recipe, found).splitlines())) <= 100


BY_WORDS = {
    "averaging", "drops", "epochs", "gradient_compression", "last_gamma", "metric", "momentum",
    "precision", "reference_lr", "running_average", "scaling", "tail", "warmup", "weight_decay",
    "worker_batch",
}  # fmt: skip
"""The rules that words of a recipe break, as below: the built run is then another one too."""


def test_every_rule_has_a_fault() -> None:
    """But those of the dataset, which are what the recipe says of it."""
    found = {f.rule for f in check.rule_results(check.build_learner(compose_recipe(*SMALL)))}
    planted = {rule for each in PLANTS for rule in each.values[1]}
    assert found - planted - BY_WORDS == {"data", "normalisation", "resize", "evaluation_crop"}


def test_the_papers_resize_and_colours_are_found() -> None:
    """So what a dataset declares of its common augmentation has to be taken back."""
    recipe = compose_recipe(*SMALL, "data.augmentation=fb_resnet_torch")
    found = check.rule_results(check.build_learner(recipe))
    run = {finding.rule: finding.run for finding in found if finding.is_followed}
    assert run["resize"] == "antialiased bicubic"
    assert run["colour"].startswith("jitter by 0.60 to 1.40, lighting of standard deviation 0.1")
    with pytest.raises(UsageError, match="resize and colour that does not exist") as refused:
        verdict(recipe, found)
    assert "deviations.resize=null deviations.colour=null" in str(refused.value)


def test_imagenet_by_another_mean_has_to_be_declared() -> None:
    recipe = compose_recipe(*SMALL, "data.mean=[0.5,0.5,0.5]")
    with pytest.raises(UsageError, match=r"\+deviations\.normalisation='"):
        verdict(recipe, check.rule_results(check.build_learner(recipe)))


def test_the_learner_stays_as_it_is() -> None:
    """Weights, momentum, running statistics and counts, so that one may be asked again."""
    asked = check.build_learner(compose_recipe("+recipe=digits"))
    before = copy.deepcopy(state(asked))
    check.rule_results(asked)
    torch.testing.assert_close(state(asked), before, rtol=0, atol=0)


def state(learner: Learner) -> dict[str, Any]:
    now = vars(learner.checkpoint())
    return {name: now[name] for name in ("model", "optimizer", "parts", "tally", "rates")}


# --- What a recipe says ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "rule"),
    [
        ("worker_batch=32", "worker_batch=null"),  # is the paper's, and declared otherwise
        ("tail=keep", "+deviations.tail"),
        ("optim.nesterov=false", "+deviations.momentum"),
        ("optim.weight_decay=5e-4", "+deviations.weight_decay"),
        ("schedule.scaling=sqrt", "+deviations.scaling"),
        ("schedule.warmup_epochs=3", "+deviations.warmup"),
        ("schedule.warmup=constant", "+deviations.warmup"),
        ("precision=bfloat16", "+deviations.precision"),
        ("precision=float16", "+deviations.precision"),
        ("gradient_compression=fp16", "+deviations.gradient_compression"),
        ("model.last_gamma=1", "+deviations.last_gamma"),
        ("averaging=ema", "+deviations.averaging"),
        ("bn_statistics=precise", "+deviations.running_average"),
        ("metric.epochs_to={top1_error: 25}", "+deviations.metric"),
        ("epochs=90", None),  # with drops at 10, 20 and 27
    ],
)
def test_a_word_that_deviates_has_to_be_declared(word: str, rule: str | None) -> None:
    recipe = compose_recipe("+recipe=digits", word)
    with pytest.raises(UsageError, match=r"^digits (deviates|declares)") as refused:
        verdict(recipe, check.rule_results(check.build_learner(recipe)))
    assert (rule or "deviations.epochs=null") in str(refused.value)


@pytest.mark.parametrize(
    ("words", "rules", "run"),
    [
        ("evaluation.every=10", "metric", "top-1 error of the last 5 epochs, evaluated every 10"),
        ("stop.patience=3", "epochs", "90 at most; stop.patience=3 ends it by its loss"),
        (
            "metric.epochs_to={top1_error:5} metric.stop=true",
            "metric epochs",
            "90 at most; metric.stop=true ends it at its target",
        ),
        ("evaluation.bfloat16=true", "precision", "float32, evaluated in bfloat16"),
        ("precision=tf32", "precision", "float32 and tf32"),
    ],
)
def test_how_a_run_is_evaluated_and_ended(words: str, rules: str, run: str) -> None:
    """A median of epochs further apart, a run that may end early, and rounded numbers."""
    found = check.rule_results(check.build_learner(compose_recipe(*SMALL, *words.split())))
    deviates = {each.rule: each.run for each in found if not each.is_followed}
    assert deviates.keys() - deviating(SMALL) == {*rules.split()}
    assert deviates[rules.split()[-1]].endswith(run)


def test_running_statistics_of_frozen_layers_have_no_momentum() -> None:
    frozen = "model.frozen=[conv1,bn1,'layer*']"
    found = check.observe(check.build_learner(compose_recipe("+recipe=digits", frozen)))
    [average] = [each for each in found if each.rule == "running_average"]
    assert (average.run, average.value) == ("frozen, as given", None)


@pytest.mark.parametrize("balance", ["weights", "sampler"])
def test_balanced_classes_need_no_dataset(
    balance: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LSGD_DATA", str(tmp_path))
    words = (*SMALL, f"data.balance={balance}")
    assert deviating(words) - deviating(SMALL) == {"balance"}


def test_a_decoupled_decay_is_not_that_of_the_paper() -> None:
    """Though it is of the same strength, and on the same tensors."""
    recipe = compose_recipe("+recipe=digits", "optim=adamw", "optim.weight_decay=1e-4")
    found = {f.rule: f for f in check.rule_results(check.build_learner(recipe))}
    assert not found["weight_decay"].is_followed
    assert found["weight_decay"].run.endswith("on 1 tensors, decoupled from the gradient")
    assert found["momentum"].run == "adamw, not momentum SGD"


def test_the_same_ratio_from_another_reference() -> None:
    """Warmup begins at the lr of one worker of 32 images, and ends where the paper's does."""
    words = ["schedule.reference_batch=32", "schedule.reference_lr=0.0125"]
    recipe = compose_recipe(*SMALL, *words)
    found = {f.rule: f for f in check.rule_results(check.build_learner(recipe))}
    assert not found["reference_lr"].is_followed
    assert found["reference_lr"].run == "lr 0.0125 for 32 images"
    with pytest.raises(UsageError, match=r"deviations\.reference_lr='"):
        verdict(recipe, list(found.values()))


def test_a_reference_of_less_than_an_image() -> None:
    """A minibatch of it does not exist, so that of one image is observed."""
    recipe = compose_recipe(*SMALL, "schedule.reference_batch=0.3")
    found = {f.rule: f.run for f in check.rule_results(check.build_learner(recipe))}
    assert found["reference_lr"] == "lr 0.333333 for 1 images"


@pytest.mark.parametrize("name", ["bs1k", "digits"])
def test_made_up_images_are_other_data(name: str) -> None:
    """And no rule says what becomes of them: no crop, no resize, no colour."""
    words = SMALL if name == "bs1k" else (f"+recipe={name}",)
    data, *rest = check.rule_results(
        check.build_learner(compose_recipe(*words, "inputs=synthetic"))
    )
    assert data.run.startswith("made-up images for ")
    assert not data.is_followed
    assert rest[0].rule == "model"


def test_a_reason_that_is_empty_is_none() -> None:
    recipe = compose_recipe("+recipe=digits", "deviations.epochs=''")
    with pytest.raises(UsageError, match="epochs and does not declare it"):
        verdict(recipe, check.rule_results(check.build_learner(recipe)))


# --- The command -----------------------------------------------------------------------------


def test_the_command_prints_the_table_and_agrees(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["+recipe=digits"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    lines = said.out.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith("digits: small_resnet on digits, 30 epochs of 5 steps")
    assert any(line.split() == ["rule", "section", "this", "run"] for line in lines)
    epochs = next(i for i, line in enumerate(lines) if line.startswith("epochs "))
    assert lines[epochs].split() == ["epochs", "5.1", "30", "of", "5", "steps", "deviation"]
    assert [line.strip() for line in lines[epochs + 1 : epochs + 3]] == [
        "paper: 90, for every minibatch",
        "why: 30; enough for so small a problem",
    ]
    assert any(line.startswith("digits follows the paper in ") for line in lines[-3:])


def test_the_command_refuses_what_is_not_declared(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["+recipe=digits", "optim.nesterov=false"]) == 2
    said = capsys.readouterr()
    assert said.err == (
        "lsgd: digits deviates from the paper in momentum and does not declare it: correct it, "
        "or declare the reason with \"+deviations.momentum='…'\"\n"
    )
    assert "why: not declared" in said.out


def test_what_the_refusals_say_to_write_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["+recipe=digits", "optim.nesterov=false", "+deviations.momentum='…'"]) == 0
    long = ["+recipe=digits", "epochs=90", "schedule.milestones=[30,60,80]"]
    assert main(long) == 2
    assert capsys.readouterr().err == (
        "lsgd: digits declares a deviation in drops and epochs that does not exist: remove it with"
        " deviations.drops=null deviations.epochs=null\n"
    )
    assert main([*long, "deviations.drops=null", "deviations.epochs=null"]) == 0


def test_a_rehearsal_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["+recipe=bs8k", "rehearse=true"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("lsgd: dry_run=true is a miniature of the run; leave it out")
