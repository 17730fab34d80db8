"""The schedule against the paper's rules in exact fractions, at any batch, and peers' defects.

That the steps of every shipped recipe have the paper's lr is shown in test_recipes.py.
"""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsgd.rules.schedule import learning_rate, remaining_decay, scaled_lr

lrs = st.fractions(min_value=Fraction(1, 1000), max_value=2, max_denominator=1000)
references = st.integers(1, 4096)
batches = st.integers(1, 65536)
steps_per_epoch = st.integers(1, 20_000)


def of_step(step: int, steps: int, batch: int, **rule: object) -> float:
    """The lr of a step of the run, as a recipe with that many steps per epoch asks for it."""
    epoch, part = divmod(step, steps)
    return learning_rate(epoch + part / steps, batch_size=batch, **rule)  # type: ignore[arg-type]


@given(lrs, references, batches)
def test_scaling_is_exact(lr: Fraction, reference: int, batch: int) -> None:
    """Also where the batch is no multiple of the reference, or below it."""
    rule = {"reference_lr": float(lr), "reference_batch": reference}
    ratio = Fraction(batch, reference)
    linear = scaled_lr(batch, **rule, scaling="linear")
    assert linear == pytest.approx(float(lr * ratio), rel=1e-15, abs=0)
    assert scaled_lr(batch, **rule, scaling="none") == float(lr)
    root = Fraction(scaled_lr(batch, **rule, scaling="sqrt")) / lr
    assert float(root**2 / ratio) == pytest.approx(1, rel=1e-14)


def test_scaling_does_not_round_the_ratio() -> None:
    """tensorpack's 0.1 * (batch // 256) has 0.1 for 384 and 0 below 256."""
    assert learning_rate(29.0, batch_size=384) == pytest.approx(0.15, rel=1e-15)
    assert learning_rate(0.0, batch_size=192) == pytest.approx(0.075, rel=1e-15)


@given(
    lrs, st.integers(1, 300), st.integers(2, 300), st.integers(1, 10), steps_per_epoch, st.data()
)
def test_gradual_warmup_rises_by_the_same_each_step(
    lr: Fraction, reference: int, ratio: int, epochs: int, steps: int, data: st.DataObject
) -> None:
    """From the reference lr, not from 0 or a tenth of it, to k times that, per step."""
    rule = {
        "reference_lr": float(lr), "reference_batch": reference, "warmup_epochs": float(epochs),
        "milestones": (),
    }  # fmt: skip
    batch, end = reference * ratio, epochs * steps
    assert of_step(0, steps, batch, **rule) == float(lr)
    step = data.draw(st.integers(0, end - 1))
    expected = lr + lr * (ratio - 1) * step / end
    assert of_step(step, steps, batch, **rule) == pytest.approx(float(expected), rel=1e-12)
    target = scaled_lr(batch, reference_lr=float(lr), reference_batch=reference, scaling="linear")
    assert of_step(end - 1, steps, batch, **rule) < of_step(end, steps, batch, **rule) == target


@given(st.integers(1, 256), st.sampled_from(["gradual", "constant", "none"]), st.floats(0, 30))
def test_up_to_the_reference_nothing_warms_up(batch: int, warmup: str, epoch: float) -> None:
    rule = {"warmup": warmup, "milestones": ()}
    found = learning_rate(epoch, batch_size=batch, **rule)  # type: ignore[arg-type]
    assert found == pytest.approx(float(Fraction(batch, 2560)), rel=1e-15)


def test_constant_warmup_jumps_at_its_end() -> None:
    steps = 156
    found = [of_step(step, steps, 8192, warmup="constant") for step in range(6 * steps)]
    assert found == [0.1] * (5 * steps) + [3.2] * steps


@given(
    st.lists(st.integers(6, 89), min_size=1, max_size=4, unique=True).map(sorted),
    steps_per_epoch,
    st.fractions(min_value=Fraction(1, 100), max_value=1, max_denominator=100),
)
def test_drops_stay_and_multiply_once(drops: list[int], steps: int, gamma: Fraction) -> None:
    """Horovod's example applies its factor again in every epoch and jumps back at the next drop."""
    rule = {"milestones": drops, "gamma": float(gamma)}
    edges = [5, *drops, 90]
    for passed, (begin, end) in enumerate(pairwise(edges)):
        expected = pytest.approx(float(Fraction(32, 10) * gamma**passed), rel=1e-14)
        for step in (begin * steps, (begin * steps + end * steps) // 2, end * steps - 1):
            assert of_step(step, steps, 8192, **rule) == expected


@given(st.integers(2, 5000), st.data())
def test_a_fractional_drop_is_at_its_step(steps: int, data: st.DataObject) -> None:
    """Where the milestone is written as a decimal, and e + t / S is rounded to less than that."""
    place = data.draw(st.integers(6 * steps, 89 * steps))
    for at in (place / steps, float(f"{place / steps:.12g}")):
        changes: list[dict[str, object]] = [
            {"milestones": [at]},
            {"warmup": "constant", "warmup_epochs": at, "milestones": []},
            {"decay": "points", "points": [[0, 1.0], [at, 1.0], [at, 0.5], [90, 0.5]]},
        ]
        for rule in changes:
            before, first, after = (of_step(place + by, steps, 8192, **rule) for by in (-1, 0, 1))
            assert before != first == after


def test_a_step_just_before_a_point_without_jump_has_its_own_lr() -> None:
    points = [[0, 0.0], [1.36, 1.36], [2, 0.0]]
    epoch = 1 + 18 / 50
    assert epoch < 1.36
    assert of_step(68, 50, 8192, decay="points", points=points) == epoch


SMOOTH = {"polynomial": lambda left: left**2, "linear": lambda left: left}


@given(
    st.sampled_from(sorted(SMOOTH)),
    st.integers(0, 300),
    st.integers(1, 30_000),
    st.fractions(min_value=0, max_value=Fraction(1, 100), max_denominator=10_000),
    st.data(),
)
def test_a_smooth_decay_is_exact_at_every_step(
    decay: str, warmup: int, steps: int, end_lr: Fraction, data: st.DataObject
) -> None:
    """From the full lr at the end of the warmup to end_lr at decay_steps, which stays."""
    last = warmup + steps
    step = data.draw(st.integers(warmup, last + 10))
    left = Fraction(max(0, last - step), steps)
    expected = end_lr + (Fraction(32, 10) - end_lr) * SMOOTH[decay](left)
    found = learning_rate(
        90.0,
        batch_size=8192,
        milestones=(),
        decay=decay,
        end_lr=float(end_lr),
        remaining_decay=remaining_decay(step, warmup_steps=warmup, decay_steps=last),
    )
    assert found == pytest.approx(float(expected), rel=1e-14, abs=0)


def test_a_decay_of_numpy_has_a_plain_number() -> None:
    """A checkpoint with one of numpy could not be read."""
    found = learning_rate(90.0, batch_size=256, own_decay=np.sqrt, remaining_decay=0.25)
    assert (found, type(found)) == (0.05, float)


def test_a_cosine_has_its_middle_and_ends_and_does_not_cancel() -> None:
    def at(left: float) -> float:
        return learning_rate(
            90.0, batch_size=256, milestones=(), decay="cosine", remaining_decay=left
        )

    assert [at(1), at(0.5), at(0)] == pytest.approx([0.1, 0.05, 0], rel=1e-15)
    for left in (0.9, 0.3, 0.01):
        assert at(left) == pytest.approx(0.05 * (1 + math.cos(math.pi * (1 - left))), rel=1e-12)
    # By the cosine itself the last of 450,000 steps would be right to 5 digits.
    assert at(2e-6) == pytest.approx(0.1 * (math.pi * 1e-6) ** 2, rel=1e-11, abs=0)


def test_a_warmup_from_0_is_of_any_batch_and_rises_to_the_full_lr() -> None:
    rule = {"warmup_start": 0.0, "milestones": (), "scaling": "none", "reference_lr": 7.4}
    for batch in (32, 256, 8192):
        found = [learning_rate(epoch, batch_size=batch, **rule) for epoch in (0.0, 1.0, 2.5, 5.0)]
        assert found == pytest.approx([0.0, 1.48, 3.7, 7.4], rel=1e-15)


def test_a_milestone_may_have_a_share_of_its_own() -> None:
    """Akiba et al. 2017: half the lr from epoch 40 on, then 0.075, 0.01 and 0.001 of it."""
    rule = {"milestones": (40, 70, 80, 85), "factors": (0.5, 0.075, 0.01, 0.001)}
    epochs, shares = (39.9, 40.0, 75.0, 80.0, 89.9), (1, 0.5, 0.075, 0.01, 0.001)
    for epoch, share in zip(epochs, shares, strict=True):
        assert learning_rate(epoch, batch_size=8192, **rule) == 3.2 * share
