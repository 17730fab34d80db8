"""A plan to a target: steps by value, the choice, and what is refused."""

from dataclasses import replace
from functools import cache

import pytest
from helpers.composed import compose_recipe
from helpers.usage_errors import usage_error

from lsgd import definitions
from lsgd.plan import measured_step
from lsgd.plan.__main__ import main
from lsgd.plan.gradients import gradient_buckets
from lsgd.plan.hardware import H200
from lsgd.plan.step import ModelledCluster
from lsgd.plan.time_to_target import (
    TargetPlan,
    cheapest,
    fastest,
    minibatches,
    plan_to_target,
    steps_to,
)

pytestmark = pytest.mark.usefixtures("composed_once")

POINTS = definitions.load_points("mlperf_resnet")
EXAMPLES = 1281167
WORDS = ["--to", "75.9", "+recipe=bs8k", "nodes=16", "gpus=8", "--preset", "h200"]
PLAN = [*WORDS, "--images-per-second", "3000"]


@cache
def found() -> list[TargetPlan]:
    recipe = compose_recipe("+recipe=bs8k")
    sums = tuple(gradient_buckets(recipe, fused=True))
    machine = ModelledCluster(H200, 8, sums, measured_step.from_speed(3000, recipe))
    return plan_to_target(machine, recipe, POINTS.pruned, 2048)


def test_past_32k_hardly_a_step_is_saved() -> None:
    """All ten points, in steps."""
    steps = [steps_to(point.reference, EXAMPLES) for point in POINTS.judged]
    expected = [27476, 13798, 12472, 6549, 4465, 2189, 1772, 1741, 1652, 1621]
    assert [round(each) for each in steps] == expected


def test_minibatches_are_of_whole_workers_and_within_the_points() -> None:
    doubled = [2048, 4096, 8192, 16384, 32768, 65536]
    sizes = [each.batch_size for each in minibatches(POINTS.pruned, 32)]
    assert sizes == sorted({*doubled, 1632, 3264, 49152, 67840})
    assert [each.batch_size for each in minibatches(POINTS.pruned, 64)] == [
        2048, 3264, 4096, 8192, 16384, 32768, 49152, 65536, 67840,
    ]  # fmt: skip
    assert minibatches(POINTS.pruned, 70000) == []


def test_between_points_those_that_count_are_interpolated() -> None:
    """The published points of 8192 and 65536 are slower than the line, and not used."""
    epochs = {each.batch_size: each.mean for each in minibatches(POINTS.pruned, 32)}
    assert epochs[8192] == pytest.approx(38.6357, abs=1e-4)
    assert epochs[65536] == pytest.approx(83.6459, abs=1e-4)


def test_time_is_steps_times_a_step() -> None:
    (some,) = (e for e in found() if (e.reference.batch_size, e.step.gpus) == (32768, 1024))
    assert some.step.workers == 1024
    assert some.hours == pytest.approx(56 * EXAMPLES / 32768 * some.step.seconds / 3600)
    assert some.gpu_hours == pytest.approx(1024 * some.hours)


def test_no_gpu_is_without_a_worker() -> None:
    assert all(each.step.gpus <= each.step.workers for each in found())
    assert max(each.step.gpus for each in found()) == 2048


def test_first_and_cheapest_differ() -> None:
    soon, cheap = fastest(found()), cheapest(found())
    assert (soon.reference.batch_size, soon.step.gpus) == (65536, 2048)
    assert (cheap.reference.batch_size, cheap.step.gpus) == (2048, 8)
    assert all(soon.hours <= each.hours for each in found())
    assert all(cheap.gpu_hours <= each.gpu_hours for each in found())
    slow = replace(soon, steps=2 * soon.steps)
    assert fastest([slow, soon]) is cheapest([slow, soon]) is soon


@pytest.mark.slow
def test_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLAN, "--price", "2.5"]) == 0
    text = capsys.readouterr().out
    assert "**First: minibatch 4096 on 128 GPUs, 2.1 min for 11,179 steps of 11.5 ms" in text
    assert "(modelled); 4.6 GPU hours, 11.43 at 2.5 each.**" in text
    assert "Skipped, as slower than a line between others: 4096, 8192, 13056, 58880" in text
    assert "batch norm was over 64 to 424 images, here it is over 32" in text
    assert "| 32768     |   56.00 |  2,189 |" in text
    assert "38.64 ~" in text
    assert "--images-per-second" in text
    assert main([*PLAN, "--price", "2.5", "--cheapest"]) == 0
    assert "**Cheapest: minibatch 2048 on 8 GPUs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([*PLAN, "--to", "80"], "80 % top-1 accuracy; write --to with one of 75.9 (resnet50 on"),
        ([*PLAN, "--cheapest"], "add --price X"),
        ([*PLAN[2:], "--price", "2"], "add --to 75.9"),
        ([*PLAN, "worker_batch=70000", "workers=1"], "write a smaller worker_batch="),
        ([*PLAN, "model=resnet101"], "bs8k trains resnet101 on imagenet"),
        ([*PLAN, "data.image_size=160"], "on imagenet at 160; write a recipe for these"),
        ([*PLAN, "image_sizes.points=[[0,128]]"], "in all epochs; write image_sizes.points=[]"),
        (WORDS, "how fast a GPU of --preset h200 trains resnet50 is unknown"),
    ],
)
def test_refusals_to_a_target(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in usage_error(main, capsys, *words)
