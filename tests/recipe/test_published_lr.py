"""The lr of recipes after 2017 against their sources' formulas, written down a second time.

Each at ten places of the run, in numbers of the source, and at steps that its log or code prints.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from helpers.composed import compose_recipe

from lsgd import config

IMAGES = 1_281_167


@dataclass(frozen=True)
class Source:
    """The lr of a source: of a step t, with S steps per epoch."""

    lr: Callable[[float, float], float]
    steps: int
    """The steps of the run here."""
    per_epoch: int
    printed: dict[int, float] = field(default_factory=dict)
    """The lr of some steps, as the source's own code computes it."""
    within: float = 1e-9


def drops(full: float, warmup: float, *at: int, start: float = 0.0) -> Callable[..., float]:
    def lr(t: float, s: float) -> float:
        if t < warmup * s:
            return start + (full - start) * t / (warmup * s)
        return full / 10 ** sum(t >= epoch * s for epoch in at)

    return lr


def power(full: float, warmup: float, end: int, last: float, p: float = 2) -> Callable[..., float]:
    def lr(t: float, s: float) -> float:
        rise = warmup * s
        if t < rise:
            return full * t / rise
        return last + (full - last) * (max(end - t, 0) / (end - rise)) ** p

    return lr


def cosine(
    full: float, warmup: float, epochs: int, start: float = 0.0, end: float = 0.0
) -> Callable[..., float]:
    def lr(t: float, s: float) -> float:
        if t < warmup * s:
            return start + (full - start) * t / (warmup * s)
        half = 1 + math.cos(math.pi * (t / s - warmup) / (epochs - warmup))
        return end + (full - end) / 2 * half

    return lr


def by_epoch(full: float, epochs: int) -> Callable[..., float]:
    """NVIDIA DeepLearningExamples."""

    def lr(t: float, s: float) -> float:
        e = t // s
        if e < 8:
            return full * (e + 1) / 8
        return full / 2 * (1 + math.cos(math.pi * (e - 8) / (epochs - 8)))

    return lr


def fujitsu(t: float, _: float) -> float:
    """Its updates count from 1."""
    n = t + 1
    if n <= 541:
        return min(13 * n / 540, 13)
    return 0.0325 + (13 - 0.0325) * (max(1321 - n, 0) / 780) ** 2.2


def tpu(full: float, warmup: int, batch: int, steps: int) -> Callable[..., float]:
    """Its warmup has fractions of a step, and its decay counts from a whole one."""
    per_epoch = IMAGES / batch

    def lr(t: float, _: float) -> float:
        rise = int(warmup * per_epoch)
        if t <= rise:
            return full * t / (warmup * per_epoch)
        return 1e-4 + (full - 1e-4) * (max(0, 1 - (t - rise) / (steps - rise + 1))) ** 2

    return lr


SOURCES = {
    "mlperf05_bs1664": Source(drops(0.6, 5, 30, 60, 80), 77_000, 770),
    "mlperf05_bs4096": Source(drops(1.8, 8, 30, 60, 80), 31_300, 313),
    "mlperf05_bs16384": Source(drops(4.096, 15, 30, 60, 80), 7900, 79),
    "mlperf05_bs16640": Source(drops(4.1, 15, 30, 60, 80), 7700, 77),
    "mlperf06_bs1664": Source(power(5, 5, 55_440, 1e-4), 55_440, 770),
    "mlperf06_bs3328": Source(power(10, 5, 27_720, 1e-4), 27_720, 385),
    "mlperf06_bs33280": Source(power(31.2, 25, 3003, 1e-4), 3003, 39),
    "mlperf06_bs54080": Source(power(38, 25, 2160, 0), 2160, 24),
    "mlperf06_bs59904": Source(power(40.7, 33, 1980, 0), 1980, 22),
    "mlperf06_bs4096": Source(power(10, 5, 22_536, 1e-4), 22_776, 312),
    "mlperf06_bs16384": Source(power(25, 5, 5634, 1e-4), 5694, 78),
    "mlperf06_bs32768": Source(power(33, 25, 2983, 1e-4), 3003, 39),
    "cloudtpu_bs1k": Source(drops(0.4, 5, 30, 60, 80), 113_841, 1251),
    "cloudtpu_bs4k": Source(drops(1.6, 5, 30, 60, 80), 28_392, 312),
    "cloudtpu_bs16k": Source(
        tpu(25, 5, 16384, 7116),
        7176,
        78,
        {100: 6.39417, 391: 24.992568, 1000: 20.671618, 4000: 5.367563},
        within=4e-4,
    ),
    "cloudtpu_bs32k": Source(
        tpu(34, 12, 32768, 3558),
        3588,
        39,
        {0: 0, 100: 7.246726, 469: 33.987147, 1000: 23.318634, 2000: 8.654818, 3557: 0.000114},
        within=4e-4,
    ),
    "haiku_bs256": Source(drops(0.1, 5, 30, 60, 80), 450_360, 5004),
    "haiku_bs1k": Source(drops(0.4, 5, 30, 60, 80), 112_590, 1251),
    "haiku_bs4k": Source(drops(1.6, 5, 30, 60, 80), 28_080, 312),
    "haiku_smooth_bs4k": Source(drops(1.6, 5, 30, 60, 80), 28_080, 312),
    "haiku_bs32k": Source(drops(12.8, 5, 30, 60, 80), 3510, 39),
    "flax_bs512": Source(cosine(0.2, 5, 100), 250_200, 2502),
    "flax_bs1k": Source(cosine(0.4, 5, 100), 125_100, 1251),
    "flax_bs2k": Source(cosine(0.8, 5, 100), 62_500, 625),
    "intel_bs2k": Source(drops(0.8, 3, 30, 60, 80, start=0.1), 56_250, 625),
    "intel_bs4k": Source(drops(1.6, 3, 30, 60, 80, start=0.1), 28_080, 312),
    "algoperf_bs1k": Source(
        power(4.131896390902391, 6999 / 1251, 133_107, 0.004131896390902391, 1),
        147_618,
        1251,
        {0: 0, 3500: 2.066243, 6999: 4.131896, 70_000: 2.069749, 133_107: 0.004132},
        within=1e-6,
    ),
    # Its own decay ends one step before the run.
    "gluon_bs1k": Source(
        cosine(0.4, 5, 120),
        150_120,
        1251,
        {49: 0.003133, 6255: 0.4, 75_000: 0.213908},
        within=1e-5,
    ),
    "torchvision_bs256": Source(drops(0.1, 0, 30, 60), 450_360, 5004),
    # At each step here, and at the beginning of an epoch the source's.
    "torchvision_bs1k": Source(cosine(0.5, 5, 90, start=0.005), 112_590, 1251),
    "rsb_a3": Source(cosine(0.008, 5, 100, start=8e-7, end=1e-6), 62_500, 625),
    "torchvision_v2_bs1k": Source(cosine(0.5, 5, 600, start=0.005), 750_600, 1251),
    "fujitsu_bs86016": Source(
        fujitsu,
        1350,
        15,
        {
            0: 0.02407407,
            269: 6.5,
            539: 13,
            540: 13,
            541: 12.96345313,
            930: 2.85471611,
            1319: 0.03250563,
            1349: 0.0325,
        },
        within=2.5e-3,
    ),
} | {
    name: Source(
        by_epoch(full, epochs),
        per_epoch * epochs,
        per_epoch,
        {epoch * per_epoch + 7: lr for epoch, lr in printed.items()},
    )
    for name, full, per_epoch, epochs, printed in [
        (
            "dle_amp_bs2k",
            2.048,
            625,
            90,
            {0: 0.256, 3: 1.024, 7: 2.048, 8: 2.048, 9: 2.047249, 49: 1.024, 89: 0.000751},
        ),
        ("dle_tf32_bs2k", 2.048, 625, 90, {}),
        ("dle_bs896", 0.896, 1429, 90, {}),
        ("dle_amp_bs4k", 4.096, 312, 90, {}),
        ("dle_bs4k", 4.096, 312, 90, {}),
        ("dle_amp_bs4k_50", 4.096, 312, 50, {0: 0.512, 29: 2.048, 49: 0.005727}),
        ("dle_bs4k_50", 4.096, 312, 50, {}),
    ]
}
SOURCES |= {
    f"mlperf06_span{span}": Source(power(31.2, 25, 2983, 1e-4), 3003, 39) for span in (32, 64, 128)
}


def test_every_recipe_of_these_ladders_is_here() -> None:
    ladders = {name.partition("_")[0] for name in SOURCES}
    names = [name for name in config.sorted_recipe_names() if name.partition("_")[0] in ladders]
    assert sorted(SOURCES) == sorted(names)


@pytest.mark.parametrize("name", SOURCES)
def test_lr_at_ten_places(name: str) -> None:
    """In the warmup, on both sides of edges, and at the beginning of epochs up to the last."""
    recipe, source = compose_recipe(f"+recipe={name}"), SOURCES[name]
    per_epoch, last = source.per_epoch, source.steps - 1
    assert (recipe.steps_per_epoch, recipe.total_steps) == (per_epoch, source.steps)
    epochs = [1, 2, 5, 9, 20, 30, 45, recipe.epochs - 1]
    for step in [0, 1, *(epoch * per_epoch for epoch in epochs), 30 * per_epoch - 1, last]:
        expected = source.lr(step, per_epoch)
        assert recipe.lr(step) == pytest.approx(expected, rel=source.within, abs=1e-7), step
    for step, printed in source.printed.items():
        assert recipe.lr(step) == pytest.approx(printed, rel=max(source.within, 1e-6), abs=6e-7)
