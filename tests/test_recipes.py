"""Every shipped recipe: it says what it claims, and its numbers are the paper's and stay so."""

import functools
import json
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from helpers.composed import composed

from lsgd import config, paths
from lsgd.recipe import Recipe
from lsgd.recipe.checks import check
from lsgd.recipe.rehearsal import rehearsal
from lsgd.rules.aggregate import olympic_mean
from lsgd.rules.metric import TOP1

NAMES = config.recipes()
FILES = paths.recipes_dir() / "recipe"
GOLDEN = Path(__file__).parent / "golden"

SIZES = {
    "64": 64, "128": 128, "256": 256, "512": 512, "1k": 1024, "2k": 2048, "4k": 4096, "8k": 8192,
    "16k": 16384, "32k": 32768, "64k": 65536,
}  # fmt: skip

ERRORS = {
    # Goyal et al. 2017, figure 3
    "bs128": (23.49, 0.12), "bs512": (23.48, 0.09), "bs1k": (23.53, 0.08), "bs2k": (23.49, 0.11),
    "bs4k": (23.56, 0.12), "bs16k": (24.79, 0.27), "bs32k": (27.55, 0.28), "bs64k": (33.96, 0.80),
    # table 1
    "bs256": (23.60, 0.12), "bs8k": (23.74, 0.09), "bs8k_no_warmup": (24.84, 0.37),
    "bs8k_constant_warmup": (25.88, 0.56),
    # table 2a
    "bs256_half_lr": (23.92, 0.10), "bs256_double_lr": (23.68, 0.09), "bs8k_half_lr": (24.27, 0.08),
    "bs8k_double_lr": (24.05, 0.18), "bs8k_fixed_lr": (41.67, 0.10), "bs8k_sqrt_lr": (26.22, 0.03),
    # tables 2b and 2c
    "bs256_gamma1": (23.84, 0.18), "bs8k_gamma1": (24.11, 0.07), "bs256_resnet101": (22.08, 0.06),
    "bs8k_resnet101": (22.36, 0.09),
    # table 1, with all that fb.resnet.torch does to images
    "bs256_full": (23.60, 0.12), "bs8k_full": (23.74, 0.09),
    # You et al. 2017, of one run each; and NUS-HPC's table
    "lars_bs256": (24.2, None), "lars_bs1k": (24.6, None), "lars_bs8k": (24.8, None),
    "lars_bs16k": (25.6, None), "lars_bs32k": (27.5, None),
    "nus_lars_bs512": (22.98, None), "nus_lars_bs1k": (23.04, None), "nus_lars_bs4k": (22.62, None),
    "nus_lars_bs8k": (22.86, None), "nus_lars_bs16k": (23.04, None),
    "nus_lars_bs32k": (23.25, None),
}  # fmt: skip
"""Top-1 error in percent and its standard deviation, as the papers print them."""


@functools.cache
def shipped(name: str) -> Recipe:
    return composed(f"+recipe={name}")


@dataclass(frozen=True)
class Row:
    """A schedule in the paper's words, in exact numbers."""

    batch: int
    examples: int = 1_281_167
    reference: tuple[int, Fraction] = (256, Fraction(1, 10))
    scaled: Fraction | None = None
    """The lr after warmup, if it does not follow from the linear scaling rule."""
    warmup: str = "gradual"
    warmup_epochs: int | Fraction = 5
    edges: tuple[int, ...] = (30, 60, 80, 90)
    """The epochs that begin with a drop, and the end."""
    divisor: int = 10
    """By what the lr is divided at a drop."""
    keeps_tail: bool = False

    @property
    def steps(self) -> int:
        return (self.examples + (self.batch - 1) * self.keeps_tail) // self.batch

    def lrs(self) -> list[float]:
        """The lr of every step of the run."""
        batch, start = self.reference
        full = start * self.batch / batch if self.scaled is None else self.scaled
        end = round(self.warmup_epochs * self.steps)
        if self.batch <= batch or self.warmup == "none":
            first = [full] * end
        elif self.warmup == "constant":
            first = [start] * end
        else:
            first = [start + (full - start) * step / end for step in range(end)]
        found, begin = [float(lr) for lr in first], self.warmup_epochs
        for drops, edge in enumerate(self.edges):
            found += [float(full / self.divisor**drops)] * ((edge - begin) * self.steps)
            begin = edge
        return found


@dataclass(frozen=True)
class GrowingRow(Row):
    """The same lr by epoch; some epochs begin with a minibatch that is larger by a factor."""

    growth: tuple[int, ...] = ()
    factor: int = 10
    held: int = 1
    """By what the lr is larger from the first growth on."""

    def lrs(self) -> list[float]:
        alike, found = super().lrs(), []
        for epoch in range(self.edges[-1]):
            size = self.batch * self.factor ** sum(epoch >= edge for edge in self.growth)
            begin, held = epoch * self.steps, self.held if size > self.batch else 1
            found += [held * lr for lr in alike[begin : begin + self.examples // size]]
        return found


@dataclass(frozen=True)
class PolynomialRow(Row):
    """The lr of LARS: from 0 in a straight line, then down by a polynomial of power 2."""

    decay_steps: int = 0
    """T, counted from the first step; 0 for the end of the run."""
    epochs: int = 0
    end: Fraction = Fraction(0)
    after: int = 0
    """What is added to T - W, by which t - W is divided: 1 in MLPerf's reference, 0 in NVIDIA's."""

    def lrs(self) -> list[float]:
        full, end, warmup = map(exact, (self.scaled, self.end, self.warmup_epochs * self.steps))
        total = self.epochs * self.steps
        steps = np.arange(total, dtype=np.longdouble)
        passed = (steps - warmup) / ((self.decay_steps or total) - warmup + self.after)
        falling = end + (full - end) * np.maximum(0, 1 - passed) ** 2
        return [float(lr) for lr in np.where(steps < warmup, full * steps / (warmup or 1), falling)]


def exact(number: Fraction | float | None) -> np.longdouble:
    """To more digits than a float has, where the machine has them."""
    over, under = Fraction(number or 0).as_integer_ratio()
    return np.longdouble(over) / np.longdouble(under)


MLPERF = {
    # Steps of decay as published; with True they begin behind the warmup.
    1632: ("7.4", 2, 37, 27_476, False), 3264: ("10.5", 2, 38, 14_523, False),
    4096: ("10", 5, 43, 13_137, False), 8192: ("17", 5, 45, 6_095, True),
    13056: ("12.8", 9, 49, 4_710, False), 32768: ("21.2", 16, 59, 2_267, False),
    49152: ("19.405", 24, 71, 1_846, False), 58880: ("23.246", 29, 85, 1_785, False),
    65536: ("24.699", 31, 91, 1_133, True), 67840: ("24.699", 31, 94, 1_133, True),
}  # fmt: skip


END_LR = Fraction(1, 10_000)
LARS = {
    # You et al. 2017: lr, epochs of warmup.
    "256": (4, 0), "1k": (9, 5), "8k": (30, 5), "16k": (33, 12), "32k": (40, 12),
}  # fmt: skip
NUS = {
    # NUS-HPC's table: the lr as a power of 2, epochs of warmup.
    "512": (2, Fraction(10, 64)), "1k": (2.5, Fraction(10, 32)), "4k": (3.5, Fraction(10, 8)),
    "8k": (4, Fraction(10, 4)), "16k": (4.5, 5), "32k": (5, 14),
}  # fmt: skip


def polynomial_rows() -> dict[str, Row]:
    """The lr of those after 2017, but for MLPerf's points."""
    found: dict[str, Row] = {
        "nado_lars_bs32k": PolynomialRow(
            32_768, scaled=Fraction(29), warmup_epochs=18, decay_steps=2_512, epochs=65, end=END_LR
        )
    }
    for size, (lr, warmup) in LARS.items():
        found[f"lars_bs{size}"] = PolynomialRow(
            SIZES[size], scaled=Fraction(lr), warmup_epochs=warmup, edges=(), epochs=100
        )
    for size, (power, epochs) in NUS.items():
        found[f"nus_lars_bs{size}"] = PolynomialRow(
            SIZES[size], scaled=Fraction(2.0**power), warmup_epochs=epochs, edges=(), epochs=90
        )
    for batch, lr, warmup, epochs in ((1632, 3, 3, 41), (3264, 6, 5, 42)):
        found[f"mlperf_sgd_bs{batch}"] = PolynomialRow(
            batch, scaled=Fraction(lr), warmup_epochs=warmup, edges=(), epochs=epochs, end=END_LR
        )
    for name, tenths in (("poly", 32), ("lars", 80)):
        found[f"fashion_{name}_bs2k"] = PolynomialRow(
            2048, 60_000, scaled=Fraction(tenths, 10), warmup_epochs=2, epochs=9, end=END_LR
        )
    for name, hundredths in (("poly", 2), ("lars", 100)):
        found[f"fashion_lenet5_{name}"] = PolynomialRow(
            64, 60_000, scaled=Fraction(hundredths, 100), warmup_epochs=2, epochs=10, end=END_LR
        )
    return found


def mlperf_rows(after: int = 0) -> dict[str, PolynomialRow]:
    return {
        f"mlperf_bs{batch}": PolynomialRow(
            batch,
            scaled=Fraction(lr),
            warmup_epochs=warmup,
            edges=(warmup,),
            decay_steps=steps + behind * warmup * (1_281_167 // batch),
            end=END_LR,
            epochs=epochs,
            after=after,
        )
        for batch, (lr, warmup, epochs, steps, behind) in MLPERF.items()
    }


def rows() -> dict[str, Row]:
    """The schedule of every recipe, written down a second time and in another way."""
    found = {f"bs{size}": Row(batch) for size, batch in SIZES.items()}
    for batch in (256, 8192):
        base = f"bs{'8k' if batch > 256 else 256}"
        found[f"{base}_half_lr"] = Row(batch, reference=(256, Fraction(1, 20)))
        found[f"{base}_double_lr"] = Row(batch, reference=(256, Fraction(1, 5)))
        found[f"{base}_gamma1"] = found[f"{base}_resnet101"] = found[base]
        found[f"{base}_full"] = found[base]
    found["bs8k_equation10"] = found["bs8k_equation10_corrected"] = found["bs8k"]
    found["bs8k_no_warmup"] = Row(8192, warmup="none")
    found["bs8k_constant_warmup"] = Row(8192, warmup="constant")
    found["bs8k_fixed_lr"] = Row(8192, scaled=Fraction(1, 10))
    found["bs8k_sqrt_lr"] = Row(8192, scaled=Fraction(math.sqrt(32)) / 10)
    fashion = functools.partial(Row, examples=60_000, warmup_epochs=2, edges=(5, 7, 8, 9))
    cifar10 = functools.partial(Row, examples=50_000, edges=(100, 150, 200))
    for size, batch in list(SIZES.items())[:8]:
        found[f"fashion_bs{size}"] = fashion(batch, reference=(64, Fraction(1, 10)))
    for size, batch in list(SIZES.items())[1:8]:
        found[f"cifar10_bs{size}"] = cifar10(batch, reference=(128, Fraction(1, 10)))
    found |= variants("fashion_bs64", "fashion_bs2k", fashion, 64, gamma=0)
    found |= variants("cifar10_bs128", "cifar10_bs4k", cifar10, 128, gamma=1)
    found["fashion_bs2k_long"] = fashion(
        2048, reference=(64, Fraction(1, 10)), warmup_epochs=6, edges=(15, 21, 24, 27)
    )
    for name, edges, growth in (("", (8, 9), (5, 7)), ("_once", (7, 8, 9), (5,))):
        found[f"fashion_growth{name}"] = GrowingRow(
            64, examples=60_000, reference=(64, Fraction(1, 10)), edges=edges, growth=growth
        )
    found["smith_bs8k"] = GrowingRow(8192, growth=(30,), factor=2, held=2)
    found["fashion_bs8k_precise"] = found["fashion_bs8k_ema"] = found["fashion_bs8k"]
    found["fashion_resnet20"] = fashion(
        128, reference=(128, Fraction(1, 10)), edges=(15, 22, 27, 30)
    )
    found["fashion_lenet5"] = fashion(64, reference=(64, Fraction(1, 50)), edges=(6, 8, 10))
    ptb = functools.partial(Row, examples=20 * ((929_589 // 20 - 1) // 20), warmup_epochs=0)
    found["ptb_small"] = ptb(20, reference=(20, Fraction(1)), edges=(*range(4, 14),), divisor=2)
    for name in ("conll_bilstm", "conll_bilstm_crf"):
        found[name] = Row(
            32, examples=14_041, reference=(32, Fraction(1, 500)), edges=(6,), keeps_tail=True
        )
    for name in ("sst_treelstm", "sst_childsum"):
        found[name] = Row(
            25,
            examples=8544,
            reference=(25, Fraction(1, 20)),
            edges=(3,),
            warmup_epochs=0,
            keeps_tail=True,
        )
    found |= mlperf_rows() | polynomial_rows()
    found["fashion_hoffer_bs2k"] = fashion(
        2048, scaled=Fraction(math.sqrt(32)) / 10, warmup="none", edges=(160, 224, 256, 288)
    )
    found["cifar10_hoffer_bs2k"] = cifar10(
        2048, scaled=Fraction(4, 10), warmup="none", edges=(16 * 81, 16 * 100)
    )
    digits = functools.partial(Row, examples=1442, reference=DIGITS[0], edges=DIGITS[1])
    found["digits_reference"] = digits(16)
    found["digits"] = digits(256)
    found["digits_no_warmup"] = digits(256, warmup="none")
    found["digits_unscaled"] = digits(256, warmup="none", scaled=DIGITS[0][1])
    return found


def variants(
    small: str, large: str, row: Callable[..., Row], batch: int, *, gamma: int
) -> dict[str, Row]:
    """The rows of tables 1 and 2 at the scale of a small dataset: 32 times the reference."""
    full, reference = 32 * batch, (batch, Fraction(1, 10))
    found = {
        f"{large}_no_warmup": row(full, reference=reference, warmup="none"),
        f"{large}_constant_warmup": row(full, reference=reference, warmup="constant"),
        f"{large}_fixed_lr": row(full, reference=reference, scaled=reference[1], warmup="none"),
        f"{large}_sqrt_lr": row(full, reference=reference, scaled=Fraction(math.sqrt(32)) / 10),
    }
    for name, size in ((small, batch), (large, full)):
        found[f"{name}_half_lr"] = row(size, reference=(batch, Fraction(1, 20)))
        found[f"{name}_double_lr"] = row(size, reference=(batch, Fraction(1, 5)))
        found[f"{name}_gamma{gamma}"] = row(size, reference=reference)
    return found


DIGITS = ((16, Fraction(1, 40)), (10, 20, 27, 30))


# --- What a recipe says ----------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_header(name: str) -> None:
    """The claim that --help lists, hardware and time to expect, and whether we have run it."""
    package, claim, hardware, run, *_ = (FILES / f"{name}.yaml").read_text("utf-8").splitlines()
    recipe = shipped(name)
    assert recipe.name == name
    assert package == "# @package _global_"
    assert re.fullmatch(r"# [A-Z0-9a-z].*\.", claim)
    assert re.fullmatch(r"# Hardware: \d+ .*\b(hours?|minutes?|seconds?)\b.*\.", hardware)
    assert re.fullmatch(r"# (Not run by us.*|Run by us.*)\.", run)
    assert (claim + hardware + run).isascii(), "--help prints it on any terminal"
    assert max(len(line) for line in (claim, hardware, run)) <= 100
    if recipe.data.name == "imagenet":
        assert run == "# Not run by us on ImageNet."
    if recipe.target and recipe.target.perplexity:
        assert f": perplexity {recipe.target.perplexity:.2f}" in claim
    elif recipe.target:
        amount = TOP1.amount(recipe.target.top1_error, recipe.target.std)
        assert f": {amount.replace('±', '+-')} top-1 error" in claim
        if recipe.target.source.startswith("Goyal"):
            assert f"({recipe.target.source.removeprefix('Goyal et al. 2017, ')})" in claim


@pytest.mark.parametrize("name", NAMES)
def test_targets_are_the_papers(name: str) -> None:
    """No target where the paper prints no number; the tables differ where they are scanned."""
    target = shipped(name).target
    printed = target and target.top1_error
    assert ((target.top1_error, target.std) if printed else None) == ERRORS.get(name)


def test_no_target_is_of_a_recipe_that_is_not_there() -> None:
    assert ERRORS.keys() <= {*NAMES}


def test_imagenet_recipes_are_the_papers() -> None:
    """Section 5.1, and what each row of the tables changes; the lr is below."""
    for name in (name for name in NAMES if name.startswith("bs")):
        recipe, (size, _, change) = shipped(name), name.removeprefix("bs").partition("_")
        assert recipe.batch_size == SIZES[size]
        assert (recipe.worker_batch, recipe.epochs, recipe.tail) == (32, 90, "drop")
        assert recipe.model.name == ("resnet101" if change == "resnet101" else "resnet50")
        assert recipe.model.last_gamma == (1.0 if change == "gamma1" else 0.0)
        optim = recipe.optim
        assert (optim.momentum, optim.nesterov, optim.weight_decay) == (0.9, True, 1e-4)
        assert optim.equation == (10 if change.startswith("equation10") else 9)
        assert optim.momentum_correction == (change == "equation10_corrected")
        assert recipe.precision == "float32"
        assert recipe.gradient_compression == "none"
        full = change == "full"
        assert recipe.data.augmentation == ("fb_resnet_torch" if full else "crop_flip")


@pytest.mark.parametrize("prefix", ["fashion_", "cifar10_"])
def test_a_ladder_changes_only_the_workers(prefix: str) -> None:
    """kn and with it the lr, through k; n, and so the loss of BN, is one for all."""
    ladder = [shipped(name) for name in NAMES if re.fullmatch(rf"{prefix}bs\d+k?", name)]
    assert len(ladder) > 6
    for recipe in ladder:
        own = recipe.trajectory() | {"workers": ladder[0].workers}
        assert own == ladder[0].trajectory()
        assert recipe.batch_size == SIZES[recipe.name.partition("bs")[2]]
        assert recipe.worker_batch == 32


# --- What a recipe does ----------------------------------------------------------------------


def test_rows_are_of_all_recipes() -> None:
    assert sorted(rows()) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_lr_of_the_steps(name: str) -> None:
    """Of runs of more than 20,000 steps: of the warmup, around each edge, and here and there."""
    row, recipe = rows()[name], shipped(name)
    assert (recipe.batch_size, recipe.steps_per_epoch) == (row.batch, row.steps)
    expected, steps = np.array(row.lrs()), row.steps
    assert recipe.total_steps == len(expected)
    checked = np.arange(recipe.total_steps)
    if recipe.total_steps > 20_000:
        edges = np.array([0, row.warmup_epochs, *row.edges], dtype=float) * steps
        near = np.abs(checked[:, None] - edges).min(axis=1) < 50
        checked = checked[near | (checked < row.warmup_epochs * steps) | (checked % 997 == 0)]
    found = np.fromiter(map(recipe.lr, checked.tolist()), float)
    np.testing.assert_allclose(found, expected[checked], rtol=1e-14)
    if row.batch > row.reference[0] and row.warmup != "none" and row.scaled is None:
        end = row.warmup_epochs * steps
        full = float(row.reference[1] * row.batch / row.reference[0])
        assert recipe.lr(0) == float(row.reference[1])
        assert recipe.lr(end - 1) < recipe.lr(end) == full


def test_the_points_of_mlperf_are_the_recipes() -> None:
    """And each lr is within a step's change of the one that its reference, dividing by one step
    more, has."""
    published = {point.batch_size: point for point in config.load_points("mlperf_resnet").points}
    for name, row in mlperf_rows(after=1).items():
        recipe, point = shipped(name), published[row.batch]
        rule, optim = recipe.schedule, recipe.optim
        assert (rule.reference_lr, rule.warmup_epochs) == (point.lr, point.warmup_epochs)
        assert (optim.momentum, optim.weight_decay) == (point.momentum, point.weight_decay)
        assert (recipe.worker_batch, optim.name) == (point.bn_span, "lars")
        assert (rule.end_lr, optim.eps, optim.trust, optim.equation) == (1e-4, 0, 0.001, 10)
        assert recipe.epochs >= max(point.epochs)
        assert recipe.metric.epochs_to == {"top1_error": 24.1}
        assert f": {olympic_mean(point.epochs):.2f} epochs to 24.1 % top-1 error" in (
            (FILES / f"{name}.yaml").read_text("utf-8")
        )
        begin, steps = row.warmup_epochs * row.steps, row.decay_steps
        ours = np.fromiter(map(recipe.lr, range(begin, steps)), float)
        theirs = np.array(row.lrs()[begin:steps])
        assert (theirs - ours).min() >= 0
        assert (theirs - ours).max() <= 0.5 * point.lr / (steps - begin)


def test_steps_per_epoch() -> None:
    """Of 1,281,167 images with the tail dropped: 5004 for bs256, 156 for bs8k."""
    ladder = ["256", "512", "1k", "2k", "4k", "8k"]
    found = [shipped(f"bs{size}").steps_per_epoch for size in ladder]
    assert found == [5004, 2502, 1251, 625, 312, 156]


@pytest.mark.parametrize("name", NAMES)
def test_rehearsal(name: str) -> None:
    """Six steps of the same run, each at its lr, with the drop and the end of warmup in view, and
    two more for each growth of the minibatch."""
    recipe = shipped(name)
    small = rehearsal(replace(recipe, rehearse=True))
    check(small)
    steps = [step for _, each in small.epochs_from(0) for step in each]
    # No warmup of 5 epochs ends within a run of 3.
    unseen = recipe.epochs <= recipe.schedule.warmup_epochs
    drops = recipe.schedule.milestones[:1]
    sides = 2 * len({*drops, *recipe.batch_growth.milestones})
    assert len(steps) == (4 if drops else 5) + sides - unseen
    assert [small.lr(step) for step in steps] == [recipe.lr(step) for step in steps]
    assert (small.workers, small.worker_batch) == (recipe.workers, 2)


# --- Published recipes are frozen ------------------------------------------------------------


def golden(recipe: Recipe) -> dict[str, object]:
    """What a recipe computes, in numbers: where a change of it shows."""
    warmup = round(recipe.schedule.warmup_epochs * recipe.steps_per_epoch)
    edges = [round(epoch * recipe.steps_per_epoch) for epoch in recipe.schedule.milestones]
    steps = {0, 1, warmup // 2, warmup - 1, warmup, recipe.total_steps - 1}
    steps |= {edge + side for edge in edges for side in (-1, 0)}
    return {
        "batch_size": recipe.batch_size,
        "steps_per_epoch": recipe.steps_per_epoch,
        "lr": {str(step): float(f"{recipe.lr(step):.12g}") for step in sorted(steps)},
        "fingerprint": recipe.fingerprint,
    }


LADDERS = (
    "bs", "cifar10", "conll", "digits", "fashion", "lars", "mlperf", "nado", "nus", "ptb", "smith",
    "sst",
)  # fmt: skip
"""How names of recipes begin; each has a file of golden numbers."""


def test_every_recipe_is_of_a_ladder() -> None:
    """Or it would not be frozen, and nobody would notice."""
    others = [name for name in NAMES if not name.startswith(LADDERS)]
    assert not others, "the beginning of a new name goes into LADDERS"


@pytest.mark.parametrize("ladder", LADDERS)
def test_published_recipes_are_frozen(ladder: str) -> None:
    """A better idea is a new recipe; `LSGD_WRITE_GOLDEN=1 pytest -k frozen` adds its row."""
    path = GOLDEN / f"{ladder}.json"
    found = {name: golden(shipped(name)) for name in NAMES if name.startswith(ladder)}
    if os.environ.get("LSGD_WRITE_GOLDEN"):
        lines = [f'  "{name}": {json.dumps(row)}' for name, row in found.items()]
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        pytest.skip(f"{path} is written anew")
    assert found == json.loads(path.read_text())
