"""The time of a step and its parts."""

from dataclasses import replace
from statistics import NormalDist

import pytest
from helpers.composed import compose_recipe
from hypothesis import given
from hypothesis import strategies as st

from lsgd.plan.gradients import GradientBucket
from lsgd.plan.hardware import H200, PAPER, Hardware
from lsgd.plan.network import MAX_WAIT_SHARE, required_gbits
from lsgd.plan.step import MeasuredStep, ModelledCluster, expected_maximum, last_micro_batch_images
from lsgd.plan.table import estimate_one_worker_per_gpu, estimate_run
from lsgd.recipe import Recipe

PIECES = [
    GradientBucket(10_000_000, 0.3),
    GradientBucket(60_000_000, 0.9),
    GradientBucket(4_000, 1.0),
]


def measured(seconds: float = 0.2, *, gpus: int = 1, data_wait: float = 0.0) -> MeasuredStep:
    return MeasuredStep(seconds, 32, gpus, 0.5, data_wait, "made up", "made up")


def machine(hardware: Hardware = PAPER, **words: float) -> ModelledCluster:
    for name, value in words.items():
        hardware = hardware.with_value(name, value, "made up")
    return ModelledCluster(hardware, 8, PIECES, measured())


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    """256 workers of 32."""
    return compose_recipe("+recipe=bs8k")


@pytest.mark.parametrize("gpus", [1, 4, 8])
@pytest.mark.parametrize("spread", [0.0, 0.1])
def test_the_measured_step_comes_back(recipe: Recipe, gpus: int, spread: float) -> None:
    """With its own sums and stragglers, which are taken out before others are put in."""
    there = replace(machine(spread=spread), measured=measured(gpus=gpus))
    step = there.step(replace(recipe, workers=gpus), gpus)
    assert step.seconds == pytest.approx(0.2)
    assert there.efficiency(step) == pytest.approx(1.0)


def test_a_step_by_hand(recipe: Recipe) -> None:
    """2 workers on each of 128 GPUs, in one pass each, with an endless network."""
    there = machine(
        spread=0.1,
        network_latency=0,
        network_bandwidth=1e12,
        local_latency=0,
        local_bandwidth=1e12,
        host_latency=0,
        host_bandwidth=1e12,
    )
    step = there.step(recipe, 128)
    assert step.compute == pytest.approx(0.4)
    assert step.stragglers == pytest.approx(0.4 * 0.1 * expected_maximum(128))
    assert step.seconds == pytest.approx(step.compute + step.stragglers, rel=1e-6)
    assert step.images_per_second == pytest.approx(8192 / step.seconds)


def test_workers_that_do_not_divide(recipe: Recipe) -> None:
    """3 GPUs host 8 workers as 3, 3, 2: the step is that of 3."""
    step = machine(spread=0.1).step(replace(recipe, workers=8), 3)
    assert step.compute + step.uneven == pytest.approx(3 * 0.2)
    assert step.stragglers == pytest.approx(3 * 0.2 * 0.1 * expected_maximum(3))
    assert step.compute == pytest.approx(8 / 3 * 0.2)


def test_gpus_without_a_worker_only_lower_efficiency(recipe: Recipe) -> None:
    there = machine(spread=0.1)
    all_busy, half_idle = there.step(recipe, 256), there.step(recipe, 512)
    assert half_idle.seconds == all_busy.seconds
    assert there.efficiency(half_idle) == pytest.approx(there.efficiency(all_busy) / 2)
    assert half_idle.bottleneck == "workers"


def test_only_the_last_pass_hides_sums(recipe: Recipe) -> None:
    """32 workers on a GPU, 12 in a pass: 12, 12 and 8."""
    recipe = replace(recipe, workers_per_pass=12)
    assert last_micro_batch_images(recipe, 8) == 8 * 32
    assert last_micro_batch_images(replace(recipe, workers_per_pass=32), 8) == 32 * 32
    assert last_micro_batch_images(replace(recipe, workers_per_pass=1), 8) == 32


@given(
    st.integers(1, 400), st.floats(0, 0.2), st.floats(0, 200), st.floats(1, 400), st.floats(0, 0.9)
)
def test_parts_make_a_step_that_is_no_faster_than_alone(
    recipe: Recipe, gpus: int, spread: float, micros: float, gbits: float, wait: float
) -> None:
    there = machine(spread=spread, network_latency=micros, network_bandwidth=gbits)
    there = replace(there, measured=measured(data_wait=wait))
    step = there.step(recipe, gpus)
    assert all(seconds >= 0 for seconds in step.parts.values())
    assert sum(step.parts.values()) == step.seconds
    assert there.efficiency(step) <= 1 + 1e-12
    # All sums are exposed at most, one after the other.
    sums = there.exposed_cost(min(gpus, 256), 32)
    assert step.latency + step.bandwidth == pytest.approx(sums.seconds)


def test_what_bounds(recipe: Recipe) -> None:
    assert machine().step(recipe, 256).bottleneck == "compute"
    assert machine(network_latency=1e5).step(recipe, 256).bottleneck == "latency"
    assert machine(network_bandwidth=0.1).step(recipe, 256).bottleneck == "bandwidth"
    assert machine(spread=1).step(recipe, 256).bottleneck == "stragglers"
    waiting = replace(machine(), measured=measured(data_wait=0.7))
    assert waiting.step(recipe, 256).bottleneck == "data"
    assert estimate_one_worker_per_gpu(machine(), recipe, 65536).bottleneck == "dataset"
    assert estimate_one_worker_per_gpu(machine(), recipe, 65536).hours is None


def test_epoch_and_run(recipe: Recipe) -> None:
    found = estimate_run(machine(), recipe, 256)
    assert found.epoch == pytest.approx(156 * found.step.seconds)
    assert found.hours == pytest.approx(90 * 156 * found.step.seconds / 3600)


def test_the_network_needed_is_just_enough(recipe: Recipe) -> None:
    there = machine(H200)
    gbits = required_gbits(there, recipe, 256)
    assert gbits is not None
    for times, enough in ((1.01, True), (0.99, False)):
        hardware = there.hardware.with_value("network_bandwidth", gbits * times, "")
        step = replace(there, hardware=hardware).step(recipe, 256)
        assert ((step.latency + step.bandwidth) / step.seconds <= MAX_WAIT_SHARE) is enough
    assert required_gbits(machine(network_latency=1e4), recipe, 256) is None


@pytest.mark.parametrize("gpus", [2, 8, 352, 65536])
def test_the_slowest_of_many(gpus: int) -> None:
    """Against the integral of the distribution of the largest of so many normal numbers."""
    cdf, width = NormalDist().cdf, 0.01
    at = [-8 + width * (i + 0.5) for i in range(1600)]
    exact = sum(width * ((x > 0) - cdf(x) ** gpus) for x in at)
    assert expected_maximum(gpus) == pytest.approx(exact, rel=0.05)


@pytest.mark.parametrize("gbits", [1.0, 2.5, 10.0])
def test_servers_with_fewer_gpus_have_not_measured_the_network(
    recipe: Recipe, gbits: float
) -> None:
    """The measured step is of one server with 8 GPUs, whose sums do not pass the network."""
    there = replace(machine(network_bandwidth=gbits), measured=measured(gpus=8))
    steps = [replace(there, gpus_per_server=gpus).step(recipe, 256) for gpus in (8, 4, 1)]
    assert [step.compute for step in steps] == pytest.approx([steps[0].compute] * 3)
