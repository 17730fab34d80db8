import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from lsgd.rules import augmentation, philox, sampler

SIZES = st.lists(st.tuples(st.integers(1, 2500), st.integers(1, 2500)), min_size=1, max_size=8)
MANY = np.arange(40_000)


def windows(
    size: tuple[int, int], examples: NDArray[np.int64] = MANY, **draw: int
) -> NDArray[np.int64]:
    """The windows of these examples if all their images had the same size."""
    sizes = np.tile(np.array(size), (len(examples), 1))
    return augmentation.crop_windows(sizes, examples, **{"seed": 0, "epoch": 0} | draw)


def slow_window(size: tuple[int, int], example: int, seed: int, epoch: int) -> list[int]:
    """The rule in plain words: the first of ten tries that fits, else the centred square."""
    image_width, image_height = size
    for t in range(10):
        u = philox.uniforms((example, epoch, t, augmentation.WINDOW), key=seed)
        area = image_width * image_height * (0.08 + 0.92 * u[0])
        aspect = math.exp((2 * u[1] - 1) * math.log(4 / 3))
        width, height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < width <= image_width and 0 < height <= image_height:
            left = math.floor(u[2] * (image_width - width + 1))
            return [left, math.floor(u[3] * (image_height - height + 1)), width, height]
    side = min(size)
    return [(image_width - side) // 2, (image_height - side) // 2, side, side]


@given(SIZES, st.integers(0, 2**32), st.integers(0, 99))
def test_windows_follow_the_rule_and_lie_in_the_image(
    sizes: list[tuple[int, int]], seed: int, epoch: int
) -> None:
    examples = np.arange(len(sizes)) + 17
    found = augmentation.crop_windows(np.array(sizes), examples, seed=seed, epoch=epoch)
    for size, example, window in zip(sizes, examples.tolist(), found.tolist(), strict=True):
        assert window == slow_window(size, example, seed, epoch)
        left, top, width, height = window
        assert left >= 0
        assert top >= 0
        assert 0 < width <= size[0] - left
        assert 0 < height <= size[1] - top
        # A side is rounded, so it stands for a half pixel less or more.
        area, square = size[0] * size[1], width == height == min(size)
        assert square or (width - 0.5) * (height - 0.5) <= area
        assert square or (width + 0.5) * (height + 0.5) >= 0.08 * area
        assert square or (width - 0.5) / (height + 0.5) <= 4 / 3
        assert square or (height - 0.5) / (width + 0.5) <= 4 / 3


@given(st.permutations(range(12)), st.integers(1, 12))
def test_draws_do_not_depend_on_the_batch(order: list[int], size: int) -> None:
    sizes = np.array([(300 + 31 * i, 700 - 29 * i) for i in range(12)])
    rules: list[Callable[[NDArray[np.int64]], NDArray[np.int64]]] = [
        lambda ids: augmentation.crop_windows(sizes[ids], ids, seed=5, epoch=2),
        lambda ids: augmentation.flips(ids, seed=5, epoch=2),
        lambda ids: augmentation.shifts(ids, 4, seed=5, epoch=2),
    ]
    for rule in rules:
        parts = [rule(np.array(order[i : i + size])) for i in range(0, 12, size)]
        assert np.array_equal(np.concatenate(parts), rule(np.arange(12))[order])


@pytest.mark.parametrize("size", [(1, 1), (1, 1000), (1000, 1), (2, 3), (3, 100)])
def test_extreme_shapes_have_windows(size: tuple[int, int]) -> None:
    left, top, width, height = windows(size).T
    assert min(left.min(), top.min(), width.min() - 1, height.min() - 1) >= 0
    assert (left + width).max() <= size[0]
    assert (top + height).max() <= size[1]


def test_no_try_fits_a_very_long_image() -> None:
    assert np.array_equal(np.unique(windows((10, 999)), axis=0), [[0, 494, 10, 10]])


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
    flipped = augmentation.flips(MANY, seed=0, epoch=0)
    left, _, width, _ = windows((500, 375)).T
    others = [
        augmentation.flips(MANY, seed=0, epoch=1),
        augmentation.flips(MANY, seed=1, epoch=0),
        left > np.median(left),
        width > np.median(width),
        np.argsort(sampler.epoch_order(len(MANY), seed=0, epoch=0)) < len(MANY) / 2,
    ]
    # Five standard deviations of a share of 40,000 coins are 0.0125.
    assert abs(flipped.mean() - 0.5) < 0.0125
    for other in others:
        assert abs((flipped == other).mean() - 0.5) < 0.0125


def test_shifts_reach_every_corner_equally() -> None:
    corners = augmentation.shifts(MANY, 4, seed=0, epoch=0)
    table = np.zeros((9, 9), dtype=int)
    np.add.at(table, tuple(corners.T), 1)
    expected = len(MANY) / 81
    assert np.abs(table - expected).max() < 5 * math.sqrt(expected)
    assert not np.array_equal(corners, augmentation.shifts(MANY, 4, seed=0, epoch=1))


def test_the_draws_are_those_of_all_earlier_versions() -> None:
    """A change here would make every published run another one."""
    examples = np.array([0, 1, 1_281_166])
    assert windows((500, 375), examples, seed=1, epoch=89).tolist() == [
        [34, 29, 378, 288],
        [13, 12, 369, 289],
        [14, 35, 331, 331],
    ]
    flipped = augmentation.flips(np.arange(16), seed=1, epoch=89)
    assert flipped.nonzero()[0].tolist() == [1, 6, 8, 12, 13, 14]
    assert augmentation.shifts(examples, 4, seed=1, epoch=89).tolist() == [[2, 0], [1, 7], [5, 3]]
