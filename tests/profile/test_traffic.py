"""What a step moves and computes, operator by operator."""

import pytest
import torch
from helpers.composed import compose_recipe
from torch import Tensor, nn
from torch.nn import functional as F

from lsgd.profile.traffic import (
    OperatorCall,
    OperatorTraffic,
    count_bare_traffic,
    count_traffic,
    fuse_calls,
    traffic_by_operator,
)


def calls_of(*shapes: tuple[int, ...], step: object) -> list[OperatorCall]:
    """The calls that a function makes with tensors of ones."""
    tensors = [torch.ones(shape) for shape in shapes]
    with torch.no_grad(), OperatorTraffic() as traffic:
        step(*tensors)  # type: ignore[operator]
    return traffic.calls


def test_each_tensor_is_read_once_and_each_result_written() -> None:
    (product,) = calls_of((2, 3), (3, 4), step=torch.mm)
    assert (product.bytes_moved, product.flops) == (4 * (6 + 12 + 8), 2 * 2 * 3 * 4)
    (added,) = calls_of((5,), (5,), step=Tensor.add_)
    assert (added.bytes_moved, added.flops, added.fusible) == (4 * 15, 0, True)
    (many,) = calls_of((5,), (5,), step=lambda a, b: torch._foreach_add_([a], [b]))
    assert many.bytes_moved == 4 * 15
    # One number, whatever it is shown as.
    (expanded,) = calls_of((1,), (5,), step=lambda a, b: a.expand(5) + b)
    assert expanded.bytes_moved == 4 * 11


def test_the_views_of_a_bucket_are_moved_one_by_one() -> None:
    """As the gradients in a fused update are; the same view twice is one, and none overlaps."""

    def add(bucket: Tensor, other: Tensor) -> None:
        first, second = bucket[:3], bucket[3:]
        torch._foreach_add_([first, second], [other, other])
        torch._foreach_add_([first, bucket], 1)

    parts, overlapping = calls_of((5,), (1,), step=add)
    assert ([*parts.reads.values()], [*parts.writes.values()]) == ([20, 4], [20])
    assert [*overlapping.writes.values()] == [20]


@pytest.mark.parametrize(
    ("layer", "images"),
    [
        (nn.Conv2d(6, 8, 3, padding=1), (2, 6, 5, 5)),
        (nn.Conv2d(6, 12, 3, stride=2, groups=3), (2, 6, 9, 9)),
        (nn.Conv2d(6, 6, 3, groups=6), (2, 6, 5, 5)),
        (nn.ConvTranspose2d(6, 4, 3, stride=2, groups=2), (2, 6, 5, 5)),
    ],
)
def test_a_backward_pass_takes_as_many_operations_per_gradient_as_the_forward_pass(
    layer: nn.Module, images: tuple[int, ...]
) -> None:
    for wants_images in (False, True):
        with OperatorTraffic() as traffic:
            layer(torch.ones(images, requires_grad=wants_images)).sum().backward()
        flops = {call.name: call.flops for call in traffic.calls if call.flops}
        wanted = 1 + wants_images
        assert flops["convolution_backward"] == wanted * flops["convolution"] > 0


def test_views_and_memory_alone_are_no_traffic() -> None:
    assert calls_of((4, 4), step=lambda a: (a.t()[1:].unsqueeze(0), torch.empty_like(a))) == []


def chain(x: Tensor, w: Tensor) -> None:
    y = (F.relu(x) * 2 + 1).neg()
    z = y @ w
    (z + y).sigmoid()


def test_neighbours_are_joined_and_what_stays_among_them_is_not_moved() -> None:
    calls = calls_of((4, 4), (4, 4), step=chain)
    assert [call.name for call in calls] == ["relu", "mul", "add", "neg", "mm", "add", "sigmoid"]
    joined = fuse_calls(calls)
    assert [call.name for call in joined] == ["relu+mul+add+neg", "mm", "add+sigmoid"]
    size = 4 * 16
    # x, y; y, w, z; z, y, the result.
    assert [call.bytes_moved for call in joined] == [2 * size, 3 * size, 3 * size]
    assert joined[1] is calls[4]


def test_what_is_written_over_is_written_once() -> None:
    """A result that is written over is that of who wrote last."""
    calls = calls_of((4,), step=lambda a: a.add_(1).mul_(2))
    (joined,) = fuse_calls(calls)
    assert joined.bytes_moved == 4 * 8


@pytest.mark.slow
def test_passes_and_types_differ_as_they_should() -> None:
    recipe = compose_recipe("+recipe=digits", "workers=4", "worker_batch=8")
    one, two = count_traffic(recipe, 4).eager, count_traffic(recipe, 2).eager
    flops = [sum(call.flops for call in calls) for calls in (one, two)]
    assert flops[0] == flops[1] > 0
    # The second pass adds to the gradients of the first.
    assert traffic_by_operator(two)["add_"][1] > traffic_by_operator(one)["add_"][1]
    assert not any(call.is_bfloat16 for call in one)


@pytest.mark.slow
def test_passes_between_the_first_and_the_last_are_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = compose_recipe("+recipe=digits", "workers=6", "worker_batch=8")
    few = count_traffic(recipe, 1)
    monkeypatch.setattr("lsgd.profile.traffic.COUNTED_MICRO_BATCHES", 6)
    all_of_them = count_traffic(recipe, 1)
    assert traffic_by_operator(few.eager) == traffic_by_operator(all_of_them.eager)
    assert few.examples == all_of_them.examples == 48
    # Where passes meet nothing is joined.
    assert len(few.fused) - len(all_of_them.fused) in range(4)


@pytest.mark.slow
def test_a_step_moves_hardly_more_than_plain_pytorch() -> None:
    """3 % more would be a cast, a copy or a pass over gradients that nobody asked for."""
    recipe = compose_recipe("+recipe=bs256", "precision=bfloat16")
    ours, bare = count_traffic(recipe, 8).eager, count_bare_traffic(recipe, 256)
    assert sum(call.flops for call in ours) == sum(call.flops for call in bare)
    moved = [sum(call.bytes_moved for call in calls) for calls in (ours, bare)]
    assert 0 <= moved[0] / moved[1] - 1 < 0.03
    # 396 MB an image were counted by another program for torchvision's network alone.
    assert moved[1] / 256 / 1e6 == pytest.approx(396, rel=0.01)
