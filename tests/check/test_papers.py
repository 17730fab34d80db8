"""The rules of those whom a recipe may follow, each asked of a run that breaks it."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.composed import compose_recipe
from helpers.device_runs import with_fields

from lsgd import check
from lsgd.check import images, learning_rate, network, sampling, step
from lsgd.check.__main__ import main, verdict
from lsgd.check.learning_rate import LrCurve
from lsgd.check.observation import Observation
from lsgd.check.papers import PAPERS, stated
from lsgd.errors import UsageError
from lsgd.recipe import settings

pytestmark = pytest.mark.usefixtures("computed_once")
SMALL = ("model=small_resnet", "workers_per_pass=2", "data.val_examples=1000", "data.classes=10")
"""A network that is built in no time."""
RUNS = {
    "mlperf": (
        "+recipe=mlperf_bs3264", *SMALL, "data.train_examples=32650", "schedule.decay_steps=370"
    ),
    "mlperf_sgd": ("+recipe=mlperf_sgd_bs3264", *SMALL, "data.train_examples=32650"),
    "mlperf_32k": (
        "+recipe=mlperf_bs32768", *SMALL, "data.train_examples=65540", "schedule.decay_steps=116"
    ),
    "lars2017": ("+recipe=lars_bs1k", *SMALL, "data.train_examples=10250"),
    "nus": ("+recipe=nus_lars_bs1k", *SMALL, "data.train_examples=10250"),
    "nado2021": ("+recipe=nado_lars_bs32k", *SMALL, "data.train_examples=1281167"),
    "lamb2020": ("+recipe=lamb_bs32k", *SMALL, "data.train_examples=1281167"),
    "nus_lamb": ("+recipe=nus_lamb_bs4k", *SMALL, "data.train_examples=41000"),
    "akiba2017": ("+recipe=akiba_bs32k", *SMALL, "data.train_examples=65540"),
    "hoffer2017": ("+recipe=cifar10_hoffer_bs2k", *SMALL, "data.train_examples=10250"),
    "ffcv": ("+recipe=ffcv_e16", *SMALL, "data.train_examples=41000", "precision=float32"),
    "mosaic": ("+recipe=mosaic_mild", *SMALL, "data.train_examples=20500", "precision=float32"),
    "diu": ("+recipe=diu_v100x8", *SMALL, "precision=float32"),
    "mlperf05": ("+recipe=mlperf05_bs4096", *SMALL, "data.train_examples=32768"),
    "mlperf06": ("+recipe=mlperf06_bs3328", *SMALL, "data.train_examples=33280"),
    "mlperf06_google": ("+recipe=mlperf06_bs4096", *SMALL, "data.train_examples=1281167"),
    "cloudtpu": ("+recipe=cloudtpu_bs4k", *SMALL, "data.train_examples=40960"),
    "cloudtpu_lars": ("+recipe=cloudtpu_bs16k", *SMALL, "data.train_examples=1281167"),
    "haiku": ("+recipe=haiku_bs4k", *SMALL, "data.train_examples=40960"),
    "flax": ("+recipe=flax_bs2k", *SMALL, "data.train_examples=40960"),
    "intel": ("+recipe=intel_bs2k", *SMALL, "data.train_examples=40960"),
    "algoperf": ("+recipe=algoperf_bs1k", *SMALL, "data.train_examples=1281167"),
    "gluon": ("+recipe=gluon_bs1k", *SMALL, "data.train_examples=40960"),
    "rsb": ("+recipe=rsb_a3", *SMALL, "data.train_examples=20500"),
    "torchvision_v2": (
        "+recipe=torchvision_v2_bs1k", *SMALL, "image_sizes.points=[[0,16]]",
        "data.train_examples=40960",
    ),
    "torchvision": ("+recipe=torchvision_bs1k", *SMALL, "data.train_examples=40960"),
    "dle": ("+recipe=dle_bs4k_50", *SMALL, "data.train_examples=40960"),
    "fujitsu": ("+recipe=fujitsu_bs86016", *SMALL, "data.train_examples=1281167"),
}  # fmt: skip
"""A run for each paper, and two of MLPerf's other rows, which keeps to what it declares."""


@functools.cache
def found(*words: str) -> dict[str, bool]:
    """The rules that are asked of the run of these words, and whether it follows them.

    But for those of images and their order, of which no word here says anything.
    """
    built = check.build_learner(compose_recipe(*words))
    [first] = built.strategy.tasks(0, [0])
    facts = [
        *network.observe(built),
        *step.observe(built),
        *learning_rate.observe(built),
        sampling._worker_batch(first.micro_batches),
        sampling._evaluation_epochs(built.recipe),
        sampling._metric(built),
    ]
    return {each.rule: each.is_followed for each in check.apply_rules(built.recipe, facts)}


def deviating(*words: str) -> set[str]:
    return {rule for rule, same in found(*words).items() if not same}


def test_every_paper_has_its_file() -> None:
    assert tuple(PAPERS) == tuple(sorted(PAPERS)) == settings.PAPERS
    for name, module in PAPERS.items():
        assert module.__name__ == f"lsgd.check.papers.{name}"
        assert module.TITLE
        assert module.WHO
        assert module.NOTE.endswith(".")


@pytest.mark.parametrize("run", RUNS)
def test_every_rule_has_its_fact(run: str) -> None:
    """One with a name that no fact has would never be asked."""
    asked = compose_recipe(*RUNS[run])
    rules = PAPERS[asked.paper].rules(asked)
    assert {*rules} == {each.rule for each in check.rule_results(check.build_learner(asked))}
    assert all(rule.paper and rule.section for rule in rules.values())


@pytest.mark.parametrize(
    ("run", "word", "rule"),
    [
        ("mlperf", "optim.equation=9", "lars"),
        ("mlperf", "optim.trust=0.01", "lars"),
        ("mlperf", "optim.eps=1e-8", "lars"),
        ("mlperf", "optim.adapts=all", "lars"),
        ("mlperf", "optim.nesterov=true", "lars"),
        ("mlperf", "optim.momentum=0.95", "lars"),
        ("mlperf_32k", "optim.momentum=0.95", None),
        ("mlperf", "optim.weight_decay=3e-5", "weight_decay"),
        ("mlperf", "optim.weight_decay=4e-4", None),
        ("mlperf", "optim.decay_bias=true", "weight_decay"),
        ("mlperf", "schedule.end_lr=0", "decay"),
        ("mlperf", "schedule.power=1", "decay"),
        ("mlperf", "schedule.warmup_start=0.1", "warmup"),
        ("mlperf", "schedule.warmup_epochs=2.5", "warmup"),
        ("mlperf", "schedule.warmup_epochs=3", None),
        ("mlperf", "label_smoothing=0", None),
        ("mlperf", "label_smoothing=0.2", "label_smoothing"),
        ("mlperf", "model.last_gamma=0", None),
        ("mlperf", "model.last_gamma=0.5", "last_gamma"),
        ("mlperf", "metric.epochs_to={top1_error: 25}", "metric"),
        ("mlperf_sgd", "optim.momentum=0.8", "momentum"),
        ("mlperf_sgd", "optim.nesterov=true", None),
        ("mlperf_sgd", "optim.weight_decay=3e-5", "weight_decay"),
        ("mlperf_sgd", "schedule.reference_lr=6.0005", "peak_lr"),
        ("lars2017", "schedule.reference_lr=10", "warmup"),
        ("lars2017", "schedule.warmup_epochs=4", "warmup"),
        ("lars2017", "workers=31", "warmup"),
        ("lars2017", "schedule.decay_steps=999", "decay"),
        ("lars2017", "schedule.decay=cosine", "decay"),
        ("lars2017", "epochs=90", "epochs"),
        ("lars2017", "optim.weight_decay=1e-4", "weight_decay"),
        ("lars2017", "optim.adapts=weights", "lars"),
        ("nus", "schedule.scaling=linear", "warmup"),
        ("nus", "schedule.warmup_epochs=1", "warmup"),
        ("nus", "label_smoothing=0.1", "label_smoothing"),
        ("nus", "model.last_gamma=0", "last_gamma"),
        ("nado2021", "optim.momentum=0.9", "lars"),
        ("nado2021", "schedule.decay_steps=2500", "decay"),
        ("ffcv", "schedule.points=[[0,0.0017],[2,1.7],[16,0]]", "lr_curve"),
        ("ffcv", "optim.nesterov=true", "momentum"),
        ("ffcv", "model.blurpool=all", None),
        ("ffcv", "loss=bce", "loss"),
        ("ffcv", "model.last_gamma=0", "last_gamma"),
        ("mosaic", "schedule.warmup_epochs=5", "lr_curve"),
        ("mosaic", "optim.decay=gradient", "weight_decay"),
        ("mosaic", "optim.decay_norm=false", "batchnorm_decay"),
        ("mosaic", "bce_over_classes=mean", "loss"),
        ("diu", "schedule.points=[[0,1],[7,2],[28,0]]", "lr_curve"),
        ("diu", "optim.weight_decay=5e-5", "weight_decay"),
        ("lamb2020", "optim.bias_correction=true", "lamb"),
        ("lamb2020", "optim.adapts=weights", "lamb"),
        ("lamb2020", "optim.weight_decay=0.01", "weight_decay"),
        ("lamb2020", "schedule.warmup_epochs=20", "lr_curve"),
        ("lamb2020", "schedule.decay_steps=3500", "lr_curve"),
        ("nus_lamb", "schedule.warmup_epochs=2", "lr_curve"),
        ("nus_lamb", "schedule.decay=cosine", "lr_curve"),
        ("nus_lamb", "optim.clip_norm=null", "clip_norm"),
        ("nus_lamb", "optim.adapts=all", "lamb"),
        ("akiba2017", "optim.beta_center=5", "rmsprop_warmup"),
        ("akiba2017", "schedule.factors=[0.15,0.02,0.001]", "lr_curve"),
        ("akiba2017", "gradient_compression=none", "gradient_compression"),
        ("akiba2017", "bn_statistics=moving", "running_average"),
        ("hoffer2017", "schedule.scaling=linear", "scaling"),
        ("hoffer2017", "schedule.warmup=gradual", "warmup"),
        ("hoffer2017", "optim.clip_norm=null", "momentum"),
        ("hoffer2017", "optim.nesterov=true", "momentum"),
        ("mlperf05", "optim.momentum_correction=true", "momentum"),
        ("mlperf05", "schedule.reference_lr=1.48", "lr_curve"),
        ("mlperf05", "metric.epochs_to={top1_error: 24.1}", "metric"),
        ("mlperf06", "optim.momentum_correction=false", "lars"),
        ("mlperf06", "schedule.end_lr=0", "lr_curve"),
        ("mlperf06", "optim.decay_bias=false", "weight_decay"),
        ("mlperf06_google", "schedule.decay_steps=22464", "lr_curve"),
        ("cloudtpu", "precision=float32", "precision"),
        ("cloudtpu_lars", "schedule.warmup_epochs=4", "lr_curve"),
        ("haiku", "schedule.warmup_start=0.1", "lr_curve"),
        ("haiku", "label_smoothing=0.1", "worker_batch"),
        ("flax", "schedule.decay=linear", "lr_curve"),
        ("intel", "schedule.warmup_start=0", "lr_curve"),
        ("intel", "optim.equation=9", "momentum"),
        ("algoperf", "schedule.decay_steps=146999", "lr_curve"),
        ("gluon", "epochs=90", "epochs"),
        ("torchvision", "optim.nesterov=true", "momentum"),
        ("torchvision_v2", "label_smoothing=0", "label_smoothing"),
        ("rsb", "optim.adapts=all", "lamb"),
        ("rsb", "bce_over_classes=mean", "loss"),
        ("torchvision_v2", "optim.weight_decay=1e-4", "weight_decay"),
        ("dle", "schedule.per=step", "lr_curve"),
        ("dle", "optim.weight_decay=1e-4", "weight_decay"),
        ("fujitsu", "optim.ratio_decay=null", "lars"),
        ("fujitsu", "schedule.power=2", "lr_curve"),
        ("hoffer2017", "label_smoothing=0.1", "label_smoothing"),
        ("intel", "label_smoothing=0.1", "label_smoothing"),
        ("lars2017", "label_smoothing=0.3", "label_smoothing"),
        ("akiba2017", "optim.clip_norm=1", "clip_norm"),
        ("rsb", "optim.clip_norm=null", "clip_norm"),
        ("gluon", "bn_statistics=precise", "running_average"),
        ("dle", "bn_statistics=last", "running_average"),
        ("dle", "optim.head_lr=5", "head_lr"),
        ("dle", "precision=bfloat16", "precision"),
        ("algoperf", "optim.decay=decoupled", "weight_decay"),
    ],
)
def test_a_word_that_breaks_a_rule_is_named(run: str, word: str, rule: str | None) -> None:
    before = deviating(*RUNS[run])
    assert deviating(*RUNS[run], word) == before | ({rule} - {None})


@pytest.mark.parametrize(
    ("words", "run", "same"),
    [
        ("", "trivial_augment, erasing 0.1", True),
        ("data.erase_probability=1", "trivial_augment, erasing 1.0", False),
        (
            "data.augmentation=[crop,flip,rand_augment,erasing] data.rand_magnitude=7",
            "rand_augment of 2 operations of magnitude 7, erasing 0.1",
            False,
        ),
    ],
)
def test_the_strength_of_an_augmentation_is_compared(words: str, run: str, same: bool) -> None:
    asked = compose_recipe(*RUNS["torchvision_v2"], *words.split())
    results = {each.rule: each for each in check.apply_rules(asked, images.observe(asked))}
    found = results["augmentation"]
    assert found.run.endswith(f"flip 0.5, {run}")
    assert found.is_followed is same


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ((*RUNS["nus"], "worker_batch=64", "workers=16"), "worker_batch"),
        ((*RUNS["nado2021"], "worker_batch=128", "workers=256"), "worker_batch"),
        ((*RUNS["hoffer2017"], "worker_batch=256", "workers=8"), "worker_batch"),
    ],
)
def test_the_images_of_a_worker_where_they_are_known(words: tuple[str, ...], rule: str) -> None:
    assert not found(*words)[rule]
    assert found(*words[:-2])[rule]


@pytest.mark.parametrize(
    ("run", "word", "rule"),
    [
        ("ffcv", "image_sizes.points=[[10,160],[12,192]]", "image_sizes"),
        ("ffcv", "evaluation.mirror=false", "mirror"),
        ("ffcv", "worker_batch=256", "phases"),
        ("diu", "image_sizes.points=[[0,128],[13,128],[13,224]]", "image_sizes"),
        ("diu", "batch_schedule=[[13,8,224]]", "phases"),
        ("mosaic", "averaging.half_life=1", "averaging"),
        ("torchvision_v2", "averaging.every=1", "averaging"),
    ],
)
def test_sizes_and_phases_are_those_of_the_source(run: str, word: str, rule: str) -> None:
    asked = [compose_recipe(*RUNS[run], *words) for words in ((), (word,))]
    own, other = (
        {each.rule for each in check.apply_rules(recipe, sampling.observe_settings(recipe))
         if not each.is_followed}
        for recipe in asked
    )  # fmt: skip
    assert rule not in own
    assert other == own | {rule}


EXTRAS: dict[str, tuple[str, Any]] = {
    "mixing": ("data.mixup", 0.3),
    "loss": ("loss", "bce"),
    "mirror": ("evaluation.mirror", True),
    "blurpool": ("model.blurpool", "all"),
    "image_sizes": ("image_sizes.points", [[0.0, 128.0], [1.0, 160.0]]),
    "batch_growth": ("batch_schedule", [[1, 2, 8]]),
}
"""Another loss, network or set of images for each recipe, by the rule against it."""


@pytest.mark.parametrize("run", RUNS)
def test_extras_that_a_source_does_not_have_are_named(run: str) -> None:
    """Those that it states have rules of their own, and so have DIU's minibatches by epoch."""
    for extra in EXTRAS:
        check_that_it_is_named(run, extra)


def check_that_it_is_named(run: str, extra: str) -> None:
    asked = with_fields(compose_recipe(*RUNS[run]), dict([EXTRAS[extra]]))
    paper = PAPERS[asked.paper]
    facts = [
        *sampling.observe_settings(asked),
        step._loss(asked),
        Observation("blurpool", "all of ResNet-50", (52 * (extra == "blurpool"), 1)),
    ]
    rules = paper.rules(asked)
    name = "phases" if extra == "batch_growth" and "phases" in rules else extra
    if name == extra and extra in rules:
        return
    results = {each.rule: each.is_followed for each in check.apply_rules(asked, facts)}
    assert results[name] is False, extra


@pytest.mark.parametrize(
    "run", ["mlperf", "torchvision", "torchvision_v2", "rsb", "mosaic", "ffcv"]
)
def test_another_crop_of_evaluated_images(run: str) -> None:
    """A rule for a short side of 232 pixels refuses 240 too, and not 256 alone."""
    for ratio, is_broken in ((None, False), (224 / 240, True)):
        asked = compose_recipe(*RUNS[run], *[f"data.crop_ratio={ratio}"] * is_broken)
        results = check.apply_rules(asked, images.observe(asked))
        [crop] = [each for each in results if each.rule == "evaluation_crop"]
        assert crop.is_followed != is_broken


@pytest.mark.parametrize(
    ("recipe", "word"),
    [
        ("diu_v100x8_rectangles", "evaluation.rectangle_epoch=22"),
        ("diu_v100x8_rectangles", "evaluation.rectangle_batch=64"),
        ("diu_v100x8_rectangles", "evaluation.image_sizes=[[0,128],[13,224],[25,288]]"),
        ("bs256", "evaluation.rectangle_batch=128"),
        ("bs256", "evaluation.image_sizes=[[0,128],[30,224]]"),
    ],
)
def test_sizes_and_rectangles_of_evaluated_images(recipe: str, word: str) -> None:
    """A crop of another epoch, number of images or ratio than the source's is found."""
    for words in ((), (word,)):
        asked = compose_recipe(f"+recipe={recipe}", *words)
        [crop] = check.apply_rules(asked, [images._evaluation_crop(asked)])
        assert crop.is_followed == (not words)


def test_what_a_loader_of_ones_own_does_is_not_said_to_follow() -> None:
    """It crops and normalises by code that a check does not see."""
    recipe = compose_recipe("+recipe=bs256")
    asked = replace(recipe, inputs=replace(recipe.inputs, loader="pkg.mod:Loader"))
    [data] = check.apply_rules(asked, images.observe(asked))
    assert not data.is_followed


def test_evaluations_every_four_epochs_are_mlperfs() -> None:
    words = (*RUNS["mlperf"], "evaluation.every=4", "evaluation.offset=2")
    assert deviating(*RUNS["mlperf"]) - deviating(*words) == {"evaluation_epochs"}
    asked = compose_recipe(*words)
    results = check.rule_results(check.build_learner(asked))
    with pytest.raises(
        UsageError, match=r"declares a deviation in evaluation_epochs that does not"
    ):
        verdict(asked, results)


# --- Faults in the code ----------------------------------------------------------------------


def test_another_eps_of_bn() -> None:
    asked = check.build_learner(compose_recipe(*RUNS["mlperf"]))
    for module in asked.model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eps = 1e-3
    after = check.apply_rules(asked.recipe, network.observe(asked))
    assert {each.rule for each in after if not each.is_followed} == {
        "batchnorm_eps",
        "model",
        "conv_init",
    }


# --- The lr ----------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [0.0, 1e-4])
@pytest.mark.parametrize("behind", [0, 7], ids=["to the end", "with steps behind it"])
def test_a_parabola_is_found(end: float, behind: int) -> None:
    steps = np.arange(300 - behind)
    falling = end + (3 - end) * (1 - (steps - 40).clip(0) / (len(steps) - 40)) ** 2
    falling[:40] = 3 * steps[:40] / 40
    curve = np.append(falling, np.full(behind, end))
    parabola = learning_rate._decay(curve).value
    assert (parabola.end, parabola.end_step) == (
        pytest.approx(end, abs=1e-9),
        pytest.approx(len(steps)),
    )


@pytest.mark.parametrize("power", [0.9, 1, 1.9, 3])
def test_another_decay_is_none(power: float) -> None:
    assert learning_rate._decay(3 * (1 - np.arange(300) / 300) ** power).value is None
    assert learning_rate._decay(np.repeat([1, 0.1, 0.01], 50)).value is None
    assert learning_rate._decay(np.cos(np.pi / 2 * np.arange(300) / 300) ** 2).value is None


# --- The command -----------------------------------------------------------------------------


def test_the_command_says_whose_rules_it_asks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["+recipe=digits"]) == 0
    assert "asked by the rules of Goyal et al. 2017\n" in capsys.readouterr().out
    assert main(["+recipe=fashion_lars_bs2k"]) == 0
    said = capsys.readouterr().out
    assert "asked by the rules of MLPerf Training, ResNet-50 v1.5\n" in said
    assert "fashion_lars_bs2k follows MLPerf in " in " ".join(said.split())


def test_the_paper_decides_nothing_of_a_run() -> None:
    asked, other = compose_recipe("+recipe=digits"), compose_recipe("+recipe=digits", "paper=nus")
    assert (other.paper, asked.paper) == ("nus", "goyal2017")
    assert other.fingerprint == asked.fingerprint


@pytest.mark.parametrize("shape", [stated.by_power, stated.by_cosine])
def test_a_run_as_short_as_the_warmup_has_an_lr_curve(shape: Callable[..., stated.LrRule]) -> None:
    """The decay has 0 epochs then, by which its formula divides."""
    epochs = np.arange(0, 5, 0.5)
    rule = stated.lr_curve("code", "text", shape(2.0, 5.0))
    assert rule.holds(LrCurve(2.0 * epochs / 5, epochs))
    assert not rule.holds(LrCurve(2.0 * epochs / 4, epochs))
