import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from helpers.colours import ORDERS, STEPS, colour_jitter
from helpers.distributions import assert_same_distribution
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from lsgd import vision
from lsgd.rules import augmentation, philox, sampler

v2 = import_module(f"{vision.transforms.__name__}.v2")
SIZES = st.lists(st.tuples(st.integers(1, 2500), st.integers(1, 2500)), min_size=1, max_size=8)
MANY = np.arange(40_000)
COLOURS = [
    [1.0424301494995, -0.203143919385, 0.4334012713458,
     -0.0055629170903, -0.0056062979345, -0.0050003299472],
    [1.3267399051202, -0.0040952103998, -0.2649806460487,
     -0.0192660124306, -0.0212695374452, -0.0222830198199],
]  # fmt: skip
"""Of examples 0 and 1 in epoch 89 of seed 1."""


def windows(
    size: tuple[int, int], examples: NDArray[np.int64] = MANY, **draw: int
) -> NDArray[np.int64]:
    """The windows of these examples if all their images had the same size."""
    sizes = np.tile(np.array(size), (len(examples), 1))
    return augmentation.crop_windows(sizes, examples, **{"seed": 0, "epoch": 0} | draw)


RANGES = [((0.08, 1.0), (3 / 4, 4 / 3)), ((0.05, 0.9), (2 / 3, 3 / 2)), ((1.0, 1.0), (1.0, 1.0))]
"""Ranges of area and aspect: the defaults, Fujitsu's, and a single window."""
Range = tuple[float, float]


def slow_window(
    size: tuple[int, int], example: int, seed: int, epoch: int, area_range: Range, wide: float
) -> list[int]:
    """The rule in plain words: the first of ten tries that fits, else the centred square."""
    image_width, image_height = size
    least, most = area_range
    for t in range(10):
        u = philox.uniforms((example, epoch, t, augmentation.WINDOW), key=seed)
        area = image_width * image_height * (least + (most - least) * u[0])
        aspect = math.exp((2 * u[1] - 1) * math.log(wide))
        width, height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < width <= image_width and 0 < height <= image_height:
            left = math.floor(u[2] * (image_width - width + 1))
            return [left, math.floor(u[3] * (image_height - height + 1)), width, height]
    side = min(size)
    return [(image_width - side) // 2, (image_height - side) // 2, side, side]


@hypothesis.example([(1, 1), (1, 1000), (1000, 1), (2, 3), (10, 999)], 0, 0, RANGES[0])
@given(SIZES, st.integers(0, 2**32), st.integers(0, 99), st.sampled_from(RANGES))
def test_windows_follow_the_rule_and_lie_in_the_image(
    sizes: list[tuple[int, int]], seed: int, epoch: int, ranges: tuple[Range, Range]
) -> None:
    examples = np.arange(len(sizes)) + 17
    (least, most), (narrow, wide) = ranges
    found = augmentation.crop_windows(
        np.array(sizes),
        examples,
        seed=seed,
        epoch=epoch,
        area_range=[least, most],
        aspect_range=[narrow, wide],
    )
    for size, example, window in zip(sizes, examples.tolist(), found.tolist(), strict=True):
        assert window == slow_window(size, example, seed, epoch, (least, most), wide)
        left, top, width, height = window
        assert left >= 0
        assert top >= 0
        assert 0 < width <= size[0] - left
        assert 0 < height <= size[1] - top
        # A side is rounded, so it stands for a half pixel less or more.
        area, square = size[0] * size[1], width == height == min(size)
        assert square or (width - 0.5) * (height - 0.5) <= most * area
        assert square or (width + 0.5) * (height + 0.5) >= least * area
        assert square or (width - 0.5) / (height + 0.5) <= wide
        assert square or (height - 0.5) / (width + 0.5) <= wide


@given(st.permutations(range(12)), st.integers(1, 12))
def test_draws_do_not_depend_on_the_batch(order: list[int], size: int) -> None:
    sizes = np.array([(300 + 31 * i, 700 - 29 * i) for i in range(12)])
    rules: list[Callable[[NDArray[np.int64]], NDArray[Any]]] = [
        lambda ids: augmentation.crop_windows(sizes[ids], ids, seed=5, epoch=2),
        lambda ids: augmentation.flip_mask(ids, seed=5, epoch=2),
        lambda ids: augmentation.crop_corners(ids, 4, seed=5, epoch=2),
        lambda ids: augmentation.colour_transforms(ids, seed=5, epoch=2),
    ]
    for rule in rules:
        parts = [rule(np.array(order[i : i + size])) for i in range(0, 12, size)]
        assert np.array_equal(np.concatenate(parts), rule(np.arange(12))[order])


def test_area_aspect_and_place_are_spread_evenly() -> None:
    """On a square image, windows up to 3/4 of its area always fit, so they show the draws."""
    left, top, width, height = windows((4000, 4000)).T
    area = width * height / 4000**2
    below = area < 0.74
    even = {
        "area": (area[below] - 0.08) / (0.74 - 0.08),
        "aspect": np.log(width / height)[below] / (2 * math.log(4 / 3)) + 0.5,
        "left": (left / (4000 - width + 1))[below],
        "top": (top / (4000 - height + 1))[below],
    }
    for name, values in even.items():
        bins = np.histogram(values, bins=10, range=(0, 1))[0]
        # Five standard deviations, and one in a hundred for windows at the edge of `below`.
        expected = len(values) / 10
        assert np.abs(bins - expected).max() < 5 * math.sqrt(expected) + expected / 100, name
    assert area.max() > 0.99


def test_another_epoch_or_seed_draws_anew() -> None:
    first = windows((500, 375))
    for other in (windows((500, 375), epoch=1), windows((500, 375), seed=1)):
        assert (first == other).all(axis=1).mean() < 0.001
        assert abs(np.corrcoef(first[:, 2], other[:, 2])[0, 1]) < 0.025


def test_flips_are_half_and_independent() -> None:
    """Of the epoch, the seed, the window and the place in the epoch's order."""
    flipped = augmentation.flip_mask(MANY, seed=0, epoch=0)
    left, _, width, _ = windows((500, 375)).T
    others = [
        augmentation.flip_mask(MANY, seed=0, epoch=1),
        augmentation.flip_mask(MANY, seed=1, epoch=0),
        left > np.median(left),
        width > np.median(width),
        np.argsort(sampler.epoch_order(len(MANY), seed=0, epoch=0)) < len(MANY) / 2,
    ]
    # Five standard deviations of a share of 40,000 coins are 0.0125.
    assert abs(flipped.mean() - 0.5) < 0.0125
    for other in others:
        assert abs((flipped == other).mean() - 0.5) < 0.0125


def test_shifts_reach_every_corner_equally() -> None:
    corners = augmentation.crop_corners(MANY, 4, seed=0, epoch=0)
    table = np.zeros((9, 9), dtype=int)
    np.add.at(table, tuple(corners.T), 1)
    expected = len(MANY) / 81
    assert np.abs(table - expected).max() < 5 * math.sqrt(expected)
    assert not np.array_equal(corners, augmentation.crop_corners(MANY, 4, seed=0, epoch=1))


# --- Colours ---------------------------------------------------------------------------------


@given(st.integers(0, 2**40), st.integers(0, 99), st.integers(0, 2**32))
def test_colours_are_those_of_any_order_of_steps(seed: int, epoch: int, example: int) -> None:
    """Each step a blend, as fb.resnet.torch has it, on values that leave [0, 1] on the way."""
    image = np.random.default_rng(example).uniform(size=(5, 4, 3))
    image[:2] = np.round(image[:2])
    ids, draw = np.array([example]), {"seed": seed, "epoch": epoch}
    ((own, of_grey, of_mean, *added),) = augmentation.colour_transforms(ids, **draw)
    grey = image @ [0.299, 0.587, 0.114]
    found = own * image + of_grey * grey[..., None] + of_mean * grey.mean() + added
    factors = dict(zip(STEPS, augmentation.jitter_factors(ids, **draw)[0].tolist(), strict=True))
    for order in ORDERS:
        expected = colour_jitter(image, factors, order) + augmentation.lighting_offsets(ids, **draw)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)


def test_factors_are_spread_evenly_over_0_6_to_1_4() -> None:
    factors = augmentation.jitter_factors(MANY, seed=0, epoch=0)
    for values in factors.T:
        bins = np.histogram(values, bins=10, range=(0.6, 1.4))[0]
        assert bins.sum() == len(MANY)
        assert np.abs(bins - len(MANY) / 10).max() < 5 * math.sqrt(len(MANY) / 10)


def test_lighting_is_normal_along_the_colours_of_imagenet() -> None:
    """Along each eigenvector by 0.1 of its eigenvalue; five standard deviations of each moment."""
    lit = augmentation.lighting_offsets(MANY, seed=0, epoch=0)
    vectors = np.array(
        [(-0.5675, -0.5808, -0.5836), (0.7192, -0.0045, -0.6948), (0.4009, -0.8140, 0.4203)]
    )
    assert np.allclose(vectors @ vectors.T, np.eye(3), atol=2e-4)  # as they are printed
    standard = lit @ vectors.T / [0.02175, 0.00188, 0.00045]
    many = math.sqrt(len(MANY))
    assert np.abs(standard.mean(axis=0)).max() < 5 / many
    # By the digits that are printed, a five-hundredth of the first is in the third.
    assert np.abs(np.cov(standard.T) - np.eye(3)).max() < 5 * math.sqrt(2) / many + 0.01
    assert np.abs((standard**4).mean(axis=0) - 3).max() < 5 * math.sqrt(96) / many + 0.01


def test_colours_are_independent() -> None:
    """Of each other, the epoch, the seed, the window and the flip."""

    def columns(**draw: int) -> NDArray[np.float64]:
        jitters = augmentation.jitter_factors(MANY, **draw)
        return np.concatenate((jitters, augmentation.lighting_offsets(MANY, **draw)[:, :1]), axis=1)

    others = (
        columns(seed=0, epoch=1),
        columns(seed=1, epoch=0),
        windows((500, 375)),
        augmentation.flip_mask(MANY, seed=0, epoch=0)[:, None],
    )
    found = np.corrcoef(np.concatenate((columns(seed=0, epoch=0), *others), axis=1).T)[:4]
    assert np.abs(found - np.eye(*found.shape)).max() < 5 / math.sqrt(len(MANY))


def test_the_draws_are_those_of_all_earlier_versions() -> None:
    """A change here would make every published run another one."""
    examples = np.array([0, 1, 1_281_166])
    assert windows((500, 375), examples, seed=1, epoch=89).tolist() == [
        [34, 29, 378, 288],
        [13, 12, 369, 289],
        [14, 35, 331, 331],
    ]
    flipped = augmentation.flip_mask(np.arange(16), seed=1, epoch=89)
    assert flipped.nonzero()[0].tolist() == [1, 6, 8, 12, 13, 14]
    assert augmentation.crop_corners(examples, 4, seed=1, epoch=89).tolist() == [
        [2, 0],
        [1, 7],
        [5, 3],
    ]
    np.testing.assert_allclose(
        augmentation.colour_transforms(examples[:2], seed=1, epoch=89), COLOURS, rtol=0, atol=1e-12
    )


@pytest.mark.slow
def test_erased_windows_are_distributed_as_in_torchvision() -> None:
    """An image of 32 pixels, of which tall and wide windows do not fit at the first try."""
    torch.manual_seed(0)
    theirs = v2.RandomErasing(p=1.0)
    image = torch.zeros(3, 32, 32)
    drawn = np.array([[theirs.make_params([image])[name] for name in "ijhw"] for _ in range(4000)])
    table = augmentation.erased_windows(32, MANY, probability=0.25, seed=0, epoch=0)
    erased = table[table[:, 2] > 0]
    # Four standard deviations.
    assert abs(len(erased) / len(MANY) - 0.25) < 4 * math.sqrt(0.25 * 0.75 / len(MANY))
    left, top, right, bottom = erased.T
    for ours, own in zip((top, left, bottom - top, right - left), drawn.T, strict=True):
        assert_same_distribution(ours, own)
    again = augmentation.erased_windows(32, MANY[5:9], probability=0.25, seed=0, epoch=0)
    assert np.array_equal(again, table[5:9])
