"""Mixup and CutMix: torchvision's distributions, and draws that no other worker changes."""

from importlib import import_module

import numpy as np
import pytest
import torch
from helpers.distributions import assert_same_distribution
from numpy.typing import NDArray
from torch import Tensor

from lsgd import vision
from lsgd.rules import sampler
from lsgd.rules.mixing import draw_mixing, mix_images, other_labels

v2 = import_module(f"{vision.transforms.__name__}.v2")
DRAWS, SIDE = 20_000, 32


def drawn(mixup: float, cutmix: float, count: int = DRAWS, **place: int) -> NDArray[np.float64]:
    ids = np.arange(count)
    return draw_mixing(ids, SIDE, mixup=mixup, cutmix=cutmix, **{"seed": 1, "epoch": 2} | place)


@pytest.mark.parametrize("alpha", [0.1, 0.4, 1.0])
def test_lambda_is_distributed_as_in_torchvision(alpha: float) -> None:
    torch.manual_seed(0)
    beta = torch.distributions.Beta(*torch.full((2, 1), alpha, dtype=torch.float64))
    assert_same_distribution(drawn(alpha, 0)[:, 0], beta.sample((DRAWS,)).numpy()[:, 0])


@pytest.mark.slow
def test_windows_are_distributed_as_in_torchvision() -> None:
    torch.manual_seed(0)
    theirs = v2.CutMix(alpha=1.0, num_classes=2)
    images = torch.zeros(2, 1, SIDE, SIDE)
    made = [theirs.make_params([images]) for _ in range(4000)]
    left, top, right, bottom = (np.array([each["box"][i] for each in made]) for i in range(4))
    table = drawn(0, 1.0)
    assert (table[:, 1] == 1).all()
    for ours, own in zip(table[:, 2:].T, (left, top, right, bottom), strict=True):
        assert_same_distribution(ours, own)
    shares = np.array([each["lam_adjusted"] for each in made])
    assert_same_distribution(table[:, 0], shares)
    area = (table[:, 4] - table[:, 2]) * (table[:, 5] - table[:, 3])
    np.testing.assert_allclose(table[:, 0], 1 - area / SIDE**2)


def test_of_both_methods_each_is_drawn_half_of_the_time() -> None:
    table = drawn(0.4, 1.0)
    cuts = table[:, 1] == 1
    # Four standard deviations.
    assert abs(cuts.mean() - 0.5) < 4 * 0.5 / np.sqrt(DRAWS)
    assert (table[~cuts, 2:] == 0).all()
    np.testing.assert_array_equal(table[~cuts, 0], table[~cuts, 1])


@pytest.mark.slow
def test_a_draw_is_a_function_of_seed_epoch_and_worker() -> None:
    whole = drawn(0.4, 1.0)
    np.testing.assert_array_equal(whole[:100], drawn(0.4, 1.0, 100))
    for other in (drawn(0.4, 1.0, seed=2), drawn(0.4, 1.0, epoch=3)):
        assert (whole[:, 0] == other[:, 0]).mean() < 0.01


def mixed(pixels: Tensor, each: sampler.MicroBatch) -> dict[int, Tensor]:
    """Return each example's mixed image, by its id."""
    table = draw_mixing(each.by_worker[:, 0], SIDE, mixup=0.4, cutmix=1.0, seed=1, epoch=0)
    images = mix_images(pixels[each.examples], torch.from_numpy(table))
    return dict(zip(each.examples.tolist(), images, strict=True))


def test_passes_and_processes_change_no_image() -> None:
    """The last worker has fewer images than the others, in a micro-batch of its own."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(26, 3, SIDE, SIDE, generator=generator, dtype=torch.float64)
    order = sampler.epoch_order(26, seed=1, epoch=0)

    def of_split(bounds: list[range], workers_per_pass: int) -> dict[int, Tensor]:
        images: dict[int, Tensor] = {}
        for hosted in bounds:
            for each in sampler.step_micro_batches(
                order, epoch=0, step=0, workers=7, worker_batch=4, hosted=hosted,
                workers_per_pass=workers_per_pass,
            ):  # fmt: skip
                images |= mixed(pixels, each)
        return images

    one = of_split([range(7)], 1)
    assert len(one) == 26
    for other in (of_split([range(7)], 4), of_split([range(3), range(3, 7)], 2)):
        assert all(torch.equal(one[example], other[example]) for example in one)


def test_an_image_is_mixed_with_the_one_at_the_other_end() -> None:
    """Two workers of three images, interleaved: 0 2 4 of the first and 1 3 5 of the second."""
    images = torch.arange(6.0)[:, None, None, None].expand(6, 1, 2, 2)
    table = torch.tensor([[0.7, 0.7, 0, 0, 0, 0], [0.75, 1, 0, 1, 1, 2]])
    found = mix_images(images, table)
    torch.testing.assert_close(found[::2, 0, 0, 0], torch.tensor([1.2, 2.0, 2.8]))
    torch.testing.assert_close(found[1, 0], torch.tensor([[1.0, 1.0], [5.0, 1.0]]))
    assert other_labels(torch.arange(6), 2).tolist() == [4, 5, 2, 3, 0, 1]
