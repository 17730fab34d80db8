"""Every shipped recipe: it says what it claims, and its numbers are the paper's and stay so."""

import functools
import json
import math
import os
import re
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from helpers.composed import compose_recipe

from lsgd import config, definitions, paths
from lsgd.recipe import Recipe
from lsgd.recipe.checks import check_recipe
from lsgd.recipe.dry_run import make_dry_run
from lsgd.recipe.published_points import DISPLAYED_LABELS, JUDGED_LABELS
from lsgd.report import ladder
from lsgd.rules.convergence import olympic_mean
from lsgd.rules.metric import TOP1

NAMES = config.sorted_recipe_names()
LADDERS: dict[str, list[str]] = {}
"""The recipes by how the names of a ladder begin, as their file of golden numbers is called."""
for _name in NAMES:
    LADDERS.setdefault(re.match(r"bs|[a-z0-9]+", _name)[0], []).append(_name)
FILES = paths.recipes_dir() / "recipe"
GOLDEN = Path(__file__).parents[1] / "golden"

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
    # READMEs of FFCV and of MosaicML's composer
    "ffcv_e16": (26.2, None), "ffcv_e24": (24.4, None), "ffcv_e32": (23.4, None),
    "ffcv_e40": (22.8, None), "ffcv_e56": (22.0, None), "ffcv_e88": (21.6, None),
    "mosaic_mild": (23.4, None),
    # Cloud TPU's reference, which is an upper bound, and dm-haiku, Flax, Intel, AlgoPerf, gluon-cv
    "cloudtpu_bs1k": (24.0, None), "cloudtpu_bs4k": (24.0, None), "cloudtpu_bs16k": (24.0, None),
    "cloudtpu_bs32k": (24.0, None), "haiku_bs256": (23.3, None), "haiku_bs1k": (23.5, None),
    "haiku_bs4k": (23.8, None), "haiku_bs32k": (28.3, None), "haiku_smooth_bs4k": (23.2, None),
    "flax_bs512": (23.28, None), "flax_bs1k": (23.63, None), "flax_bs2k": (23.73, None),
    "intel_bs2k": (23.95, None), "intel_bs4k": (23.85, None), "algoperf_bs1k": (22.57, None),
    "gluon_bs1k": (22.33, None), "torchvision_bs256": (23.87, None),
    "torchvision_bs1k": (23.51, None), "torchvision_v2_bs1k": (19.33, None),
    "rsb_a3": (21.7, None),
    # NVIDIA's examples, and five runs of Fujitsu
    "dle_amp_bs2k": (22.88, 0.11), "dle_tf32_bs2k": (23.05, 0.18), "dle_bs896": (22.99, 0.16),
    "dle_amp_bs4k": (22.90, 0.06), "dle_bs4k": (22.77, 0.04), "dle_amp_bs4k_50": (24.19, 0.08),
    "dle_bs4k_50": (23.96, 0.05), "fujitsu_bs86016": (24.02, 0.07),
    # You et al.'s code of LAMB, one run; and NUS-HPC's table
    "lamb_bs32k": (23.66, None), "nus_lamb_bs4k": (22.86, None), "nus_lamb_bs8k": (22.69, None),
    "nus_lamb_bs16k": (23.09, None), "nus_lamb_bs32k": (23.29, None),
}  # fmt: skip
"""Top-1 error in percent and its standard deviation, as the papers print them."""


@functools.cache
def shipped(name: str) -> Recipe:
    return compose_recipe(f"+recipe={name}")


@dataclass(frozen=True)
class Row:
    """A schedule in the paper's words, in exact numbers."""

    batch: int
    reference_lr: Fraction = Fraction(1, 10)
    scaled: Fraction | None = None
    """The lr after warmup, if it does not follow from the linear scaling rule."""
    warmup: str = "gradual"

    @property
    def steps(self) -> int:
        return 1_281_167 // self.batch

    def lrs(self) -> list[float]:
        """The lr of every step of the run."""
        start, end = self.reference_lr, 5 * self.steps
        full = start * self.batch / 256 if self.scaled is None else self.scaled
        if self.batch <= 256 or self.warmup == "none":
            first = [full] * end
        elif self.warmup == "constant":
            first = [start] * end
        else:
            first = [start + (full - start) * step / end for step in range(end)]
        found = [float(lr) for lr in first]
        for drops, epochs in enumerate((25, 30, 20, 10)):
            found += [float(full / 10**drops)] * (epochs * self.steps)
        return found


def rows() -> dict[str, Row]:
    """The schedule of every row of Goyal et al. 2017, written down a second time.

    That others keep to their papers, test_shipped_recipes.py finds out on the built run.
    """
    found: dict[str, Row] = {f"bs{size}": Row(batch) for size, batch in SIZES.items()}
    for base, batch in (("bs256", 256), ("bs8k", 8192)):
        found[f"{base}_half_lr"] = Row(batch, Fraction(1, 20))
        found[f"{base}_double_lr"] = Row(batch, Fraction(1, 5))
        for change in ("gamma1", "resnet101", "full"):
            found[f"{base}_{change}"] = found[base]
    found["bs8k_equation10"] = found["bs8k_equation10_corrected"] = found["bs8k"]
    found["bs8k_no_warmup"] = Row(8192, warmup="none")
    found["bs8k_constant_warmup"] = Row(8192, warmup="constant")
    found["bs8k_fixed_lr"] = Row(8192, scaled=Fraction(1, 10))
    found["bs8k_sqrt_lr"] = Row(8192, scaled=Fraction(math.sqrt(32)) / 10)
    return found


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
        amount = TOP1.format_value(recipe.target.top1_error, recipe.target.std)
        assert f": {amount.replace('±', '+-')} top-1 error" in claim
        if recipe.target.source.startswith("Goyal"):
            assert f"({recipe.target.source.removeprefix('Goyal et al. 2017, ')})" in claim


def test_the_table_of_small_recipes_says_which_were_run() -> None:
    """As the headers of the recipes do."""
    page = (FILES.parent / "README.md").read_text("utf-8")
    [table] = re.findall(r"^\| recipe .* our top-1 error, % \|\n\|.*\n((?:\|.*\n)+)", page, re.M)
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    for names, *_, outcome in rows:
        for name in re.findall(r"\w+", names):
            run = (FILES / f"{name}.yaml").read_text("utf-8").splitlines()[3]
            assert run.startswith("# Not run") == (outcome == "not run"), name


def test_targets_are_the_papers() -> None:
    """No target where the paper prints no number; the tables differ where they are scanned."""
    targets = {name: shipped(name).target for name in NAMES}
    assert {
        name: (target.top1_error, target.std)
        for name, target in targets.items()
        if target and target.top1_error
    } == ERRORS


@pytest.mark.parametrize(
    ("prefix", "per_worker"), [("fashion_", 32), ("fashion_ladder_", 8), ("cifar10_", 32)]
)
def test_a_ladder_changes_only_the_workers(prefix: str, per_worker: int) -> None:
    """kn and with it the lr, through k; n, and so the loss of BN, is one for all."""
    ladder = [shipped(name) for name in NAMES if re.fullmatch(rf"{prefix}bs\d+k?", name)]
    assert len(ladder) > 6
    for recipe in ladder:
        own = recipe.trajectory() | {"workers": ladder[0].workers}
        assert own == ladder[0].trajectory()
        size = recipe.name.partition("bs")[2]
        thousands = size.endswith("k")
        assert recipe.batch_size == int(size.removesuffix("k")) * (1024 if thousands else 1)
        assert recipe.worker_batch == per_worker


# --- What it quotes of others ----------------------------------------------------------------

# Each number once in one form, with its label:
#
#     # Published: 75.9 % top-1 after 2,512 steps [S arXiv 2102.06356, abstract]
#
# P is a paper, and git a file of a repository, that was read; issue is what was written in a
# discussion, and S what others say of it. Runs are judged by the first two; the others are shown.

LINE = re.compile(
    r"# Published: (?P<figure>[^][]+) \[(?P<label>P|git|issue|S) (?P<source>[^][]+)\]"
)
AMOUNT = re.compile(
    r"([\d.]+)(?: \+- [\d.]+)?(?= %| epochs (?:to|of) \d)|(?:perplexity|F1 of|F1) ([\d.]+)"
)
LABELS = {"P": "paper", "git": "git", "issue": "issue", "S": "second-hand"}
"""The labels of a header, as convergence points spell them out."""
OURS = {"fashion_lenet5", "fashion_resnet20", "conll_bilstm_crf", "sst_treelstm"}
"""Recipes whose claim is what we expect of them ourselves."""


@dataclass(frozen=True)
class Quoted:
    """What somebody has published, and how we know."""

    figure: str
    label: str

    @property
    def amounts(self) -> set[float]:
        """Its numbers; of an accuracy the error too."""
        found = amounts(self.figure)
        return found | {round(100 - each, 2) for each in found if "%" in self.figure}


def amounts(text: str) -> set[float]:
    """The rates and the epochs to one of a text."""
    return {float((percent or other).rstrip(".")) for percent, other in AMOUNT.findall(text)}


def quoted(header: list[str]) -> list[Quoted]:
    """The published numbers of a header; a line that is not of the form fails."""
    found = []
    for line in header:
        if line.startswith("# Published:"):
            match = LINE.fullmatch(line)
            assert match, f"not of the form '# Published: FIGURE [LABEL SOURCE]': {line}"
            found.append(Quoted(match["figure"], match["label"]))
    return found


def check_header(header: list[str], recipe: Recipe) -> None:
    """Every number that is claimed has a label, and every number that is judged by a good one."""
    published = quoted(header)
    known = {each for quote in published for each in quote.amounts}
    good = {
        each
        for quote in published
        if LABELS[quote.label] in JUDGED_LABELS
        for each in quote.amounts
    }
    if recipe.name not in OURS:
        assert amounts(header[1]) <= known, f"without a label: {amounts(header[1]) - known}"
    judged = {recipe.target.value} if recipe.target else set()
    if recipe.data.name == "imagenet":
        judged |= {*recipe.metric.epochs_to.values(), *recipe.metric.steps_to.values()}
    assert judged <= good, f"judged by what is not confirmed: {judged - good}"


def header_of(name: str) -> list[str]:
    lines = (FILES / f"{name}.yaml").read_text("utf-8").splitlines()
    return [line for line in lines if line.startswith("#")]


@pytest.mark.parametrize("ladder", LADDERS)
def test_what_is_published_has_its_label(ladder: str) -> None:
    for name in LADDERS[ladder]:
        check_header(header_of(name), shipped(name))


def test_labels_are_those_of_the_points() -> None:
    """What is a discussion in the points is one in the header, and nothing is judged by it."""
    assert {*LABELS.values()} == {*JUDGED_LABELS, *DISPLAYED_LABELS}
    by_size = {point.batch_size: point for point in definitions.load_points("mlperf_resnet").points}
    for name in (name for name in NAMES if name.startswith("mlperf_")):
        size = int(name.rpartition("_bs")[2])
        # In the discussion they are "~1.6k" and "~3.2k".
        point = by_size[size if name.startswith("mlperf_bs") else size // 100 * 100]
        (own,) = (q for q in quoted(header_of(name)) if " epochs " in q.figure)
        assert LABELS[own.label] == point.label
        if point.label in DISPLAYED_LABELS:
            assert amounts(own.figure) == {*point.epochs}
            optim, rule = shipped(name).optim, shipped(name).schedule
            assert (optim.name, optim.momentum, optim.weight_decay) == (
                point.optimizer, point.momentum, point.weight_decay
            )  # fmt: skip
            assert (rule.reference_lr, rule.warmup_epochs) == (point.lr, point.warmup_epochs)


@pytest.mark.slow
def test_the_page_of_published_results_is_that_of_the_recipes() -> None:
    """`python -m lsgd.report --ladder --out docs/reference` writes it and its picture again."""
    results = ladder.published_results(shipped)
    path = Path(__file__).parents[2] / "docs/reference/ladder.md"
    assert path.read_text("utf-8") == ladder.page(results)
    errors = {each.recipe: (each.values[0], each.std) for each in results if each.target is None}
    assert errors == ERRORS
    assert {each.recipe for each in results if each.target is not None} == {
        name for name in NAMES if re.match(r"mlperf(0[56])?_(bs|span)", name)
    }


# --- What a recipe does ----------------------------------------------------------------------


def test_rows_are_of_all_recipes_of_the_paper() -> None:
    assert sorted(rows()) == sorted(name for name in NAMES if name.startswith("bs"))


@pytest.mark.parametrize("name", rows())
def test_lr_of_the_steps(name: str) -> None:
    """Of runs of more than 20,000 steps: around each edge, at the beginning and in the middle of
    each epoch, and here and there."""
    row, recipe = rows()[name], shipped(name)
    assert (recipe.batch_size, recipe.steps_per_epoch) == (row.batch, row.steps)
    expected, steps = np.array(row.lrs()), row.steps
    assert recipe.total_steps == len(expected)
    checked = np.arange(recipe.total_steps)
    if recipe.total_steps > 20_000:
        edges = np.array([0, 5, 30, 60, 80, 90], dtype=float) * steps
        near = np.abs(checked[:, None] - edges).min(axis=1) < 50
        checked = checked[near | (checked % steps % (steps // 2) == 0) | (checked % 997 == 0)]
    found = np.fromiter(map(recipe.lr, checked.tolist()), float)
    np.testing.assert_allclose(found, expected[checked], rtol=1e-14)


LRS = {
    # The code of LAMB's authors: 782 steps up and down to step 3519; an epoch has 39 steps here.
    "lamb_bs32k": lambda step: min(0.04 * step / 782, max(0, 0.04 * (3519 - step) / (3519 - 782))),
    # NUS: the share of 90 epochs, of which the warmup is 20 for 32,768 images.
    **{
        f"nus_lamb_bs{size}k": lambda step, k=size: (
            0.04 * math.sqrt(k / 32) * min(e / (20 * k / 32), (90 - e) / (90 - 20 * k / 32))
            if (e := step / (1_281_167 // (1024 * k))) < 90
            else pytest.fail("not a step of the run")
        )
        for size in (4, 8, 16, 32)
    },
    # Akiba et al.: 40, 30, 15 and 5 epochs of 39 steps.
    "akiba_bs32k": lambda step: (
        [*[6.4] * 40, *[0.96] * 30, *[0.128] * 15, *[0.0128] * 5][step // 39]
    ),
}  # fmt: skip
"""The lr of a step of others' recipes, by their own formulas."""


@pytest.mark.parametrize("name", LRS)
def test_lr_of_the_steps_at_ten_epochs(name: str) -> None:
    """Before, at and behind the ends of warmup, drops and run."""
    recipe = shipped(name)
    warmup = recipe.schedule.warmup_epochs if recipe.warms_up else 10
    for epoch in (0, 1, 5, warmup, 39.99, 40, 70, 84.99, 85, 89.97):
        step = round(epoch * recipe.steps_per_epoch)
        assert recipe.lr(step) == pytest.approx(LRS[name](step), rel=1e-12, abs=1e-15)


def test_the_points_of_mlperf_are_the_recipes() -> None:
    published = {
        point.batch_size: point for point in definitions.load_points("mlperf_resnet").points
    }
    for name in (name for name in NAMES if name.startswith("mlperf_bs")):
        recipe, point = shipped(name), published[int(name.removeprefix("mlperf_bs"))]
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


@pytest.mark.parametrize("ladder", LADDERS)
def test_rehearsal(ladder: str) -> None:
    """Each step that it makes has the lr that it has in the run."""
    for recipe in map(shipped, LADDERS[ladder]):
        small = make_dry_run(replace(recipe, rehearse=True))
        check_recipe(small)
        steps = [step for _, each in small.epochs_from(0) for step in each]
        assert [small.lr(step) for step in steps] == [recipe.lr(step) for step in steps]
        # Where the minibatch changes, the numbers of images keep their ratios.
        assert small.workers == recipe.workers
        assert small.worker_batch == 2 or recipe.batch_schedule


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


@pytest.mark.parametrize("ladder", LADDERS)
def test_published_recipes_are_frozen(ladder: str) -> None:
    """A better idea is a new recipe; `LSGD_WRITE_GOLDEN=1 pytest -k frozen` adds its row."""
    path = GOLDEN / f"{ladder}.json"
    found = {name: golden(shipped(name)) for name in LADDERS[ladder]}
    if os.environ.get("LSGD_WRITE_GOLDEN"):
        lines = [f'  "{name}": {json.dumps(row)}' for name, row in found.items()]
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        pytest.skip(f"{path} is written anew")
    assert found == json.loads(path.read_text())


def test_mirrored_evaluations_cost_two_forward_passes() -> None:
    for word, share in (("false", "2.6 %"), ("true", "5.2 %")):
        recipe = compose_recipe(
            "+recipe=bs256", "evaluation.every=0.5", f"evaluation.mirror={word}"
        )
        assert f"add about {share} to the training" in recipe.describe_evaluations()


@pytest.mark.parametrize("more", ["", "evaluation.mirror=true", "evaluation.sets=[val,v2]"])
def test_evaluations_that_measure_bn_forward_training_images(more: str) -> None:
    """8,192 of 40,960, 4 times in an epoch, for a third of a step each; once for all sets."""
    words = ("+recipe=bs256", "averaging=ema", "evaluation.every=0.25", "data.train_examples=40960")
    measured = "and 8,192 training images, by which a network's BN is measured, about 26.7 %"
    assert measured in compose_recipe(*words, *more.split()).describe_evaluations()


def test_evaluations_of_larger_images_cost_more() -> None:
    words = ("+recipe=bs256", "evaluation.every=0.5", "image_sizes.points=[[0,112]]")
    assert "add about 10.4 % to the training" in compose_recipe(*words).describe_evaluations()
