"""What follows from a recipe's fields, what is hashed, what is refused, and the rehearsal."""

from dataclasses import fields, is_dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from lsgd import sampler
from lsgd.errors import Refused
from lsgd.recipe import (
    Comm,
    Data,
    Inputs,
    Model,
    Optim,
    Recipe,
    Schedule,
    Target,
    check,
    check_world_size,
    rehearsal,
)

BASE = Recipe(
    name="base",
    data=Data("imagenet", 1281167, 50000, 1000, 3, 224, [0.5] * 3, [0.2] * 3, "crop_flip"),
    model=Model("resnet50"),
    optim=Optim(),
    schedule=Schedule(),
    inputs=Inputs(),
    comm=Comm(),
    workers=256,
    worker_batch=32,
    epochs=90,
)

TRAJECTORY = {
    "data.name": "other", "data.train_examples": 1281166, "data.val_examples": 49999,
    "data.classes": 999, "data.channels": 1, "data.image_size": 192, "data.mean": [0.4] * 3,
    "data.std": [0.3] * 3, "data.skip": ["train/a/b"], "data.augmentation": "none",
    "model.name": "resnet101",
    "model.last_gamma": 1.0, "optim.momentum": 0.8, "optim.nesterov": False,
    "optim.weight_decay": 0.0, "optim.equation": 10, "optim.momentum_correction": True,
    "schedule.reference_lr": 0.2, "schedule.reference_batch": 128.0, "schedule.scaling": "sqrt",
    "schedule.warmup": "none", "schedule.warmup_epochs": 4.0, "schedule.milestones": [30.0],
    "schedule.gamma": 0.2, "workers": 128, "worker_batch": 16, "epochs": 91, "seed": 1,
    "tail": "keep", "precision": "bfloat16", "gradient_compression": "fp16", "rehearse": True,
}  # fmt: skip
"""Every field that decides what is computed, with another value."""

EXECUTION = {
    "name": "other", "target": Target(1.0), "deviations": {"rule": "reason"}, "replaced": ["this"],
    "inputs.loader": "torchvision", "inputs.decoders": 8, "inputs.prefetch": 8,
    "inputs.dtype": "float16", "inputs.decode_on": "cpu", "inputs.hardware_share": 0.5,
    "comm.library": "torch", "comm.bucket_mb": 1.0, "comm.timeout": 9.0,
    "comm.join_timeout": 9.0, "data.root": "/data", "data.index": "/index",
    "data.skip_list": "skip.txt", "workers_per_pass": 4, "val_batch": 100, "channels_last": True,
    "compile": True, "device": "cpu", "run_dir": "runs/a", "checkpoint_steps": 5,
    "keep_checkpoints": 3, "log_steps": 1, "profile": True,
}  # fmt: skip
"""Every field that decides how fast and where, with another value."""


def changed(recipe: Recipe, **values: Any) -> Recipe:
    """The recipe with other values; `data__root` is data.root."""
    for name, value in values.items():
        group, _, key = name.partition("__")
        value = replace(getattr(recipe, group), **{key: value}) if key else value
        recipe = replace(recipe, **{group: value})
    return recipe


def leaves(recipe: Recipe) -> dict[str, Any]:
    """All fields by dotted name; target, deviations and lists count as one value each."""
    found = {}
    for entry in fields(recipe):
        value = getattr(recipe, entry.name)
        if is_dataclass(value) and entry.name != "target":
            found |= {
                f"{entry.name}.{each.name}": getattr(value, each.name) for each in fields(value)
            }
        else:
            found[entry.name] = value
    return found


# --- The fingerprint -------------------------------------------------------------------------


def test_every_field_is_of_one_kind() -> None:
    """A new field has to be given a line in one of the two tables above."""
    assert sorted(leaves(BASE)) == sorted([*TRAJECTORY, *EXECUTION])


@pytest.mark.parametrize("key", TRAJECTORY)
def test_trajectory_field_changes_the_fingerprint(key: str) -> None:
    other = changed(BASE, **{key.replace(".", "__"): TRAJECTORY[key]})
    assert other != BASE
    assert other.fingerprint != BASE.fingerprint


def test_execution_fields_leave_the_fingerprint() -> None:
    other = changed(BASE, **{key.replace(".", "__"): value for key, value in EXECUTION.items()})
    assert all(leaves(other)[key] != leaves(BASE)[key] for key in EXECUTION)
    assert other.fingerprint == BASE.fingerprint


def test_synthetic_images_are_another_trajectory() -> None:
    prints = {
        changed(BASE, inputs__loader=loader).fingerprint
        for loader in ("auto", "memory", "torchvision", "synthetic")
    }
    assert len(prints) == 2


# --- What follows from the fields ------------------------------------------------------------


@given(
    st.integers(1, 50), st.integers(2, 64), st.integers(1, 20_000),
    st.sampled_from(["drop", "keep"]), st.integers(1, 20), st.data(),
)  # fmt: skip
def test_steps_and_epochs(
    workers: int, n: int, examples: int, tail: str, epochs: int, data: st.DataObject
) -> None:
    assume(examples >= workers * n)
    recipe = changed(
        BASE,
        workers=workers,
        worker_batch=n,
        data__train_examples=examples,
        tail=tail,
        epochs=epochs,
    )
    whole, rest = divmod(examples, workers * n)
    steps = whole + (tail == "keep" and rest > 0)
    assert (recipe.steps_per_epoch, recipe.total_steps) == (steps, steps * epochs)

    step = data.draw(st.integers(0, recipe.total_steps))
    assert recipe.epoch(step) == pytest.approx(float(Fraction(step, steps)), rel=1e-15, abs=0)
    assert recipe.epoch(step // steps * steps) == step // steps

    left = list(recipe.epochs_from(step))
    assert [s for _, each in left for s in each] == list(range(step, recipe.total_steps))
    assert all(s // steps == epoch for epoch, each in left for s in each)
    assert all(each for _, each in left)


@pytest.mark.parametrize("tail", ["drop", "keep"])
def test_examples_are_those_of_the_steps_so_far(tail: str) -> None:
    """A tail that is dropped is not seen; one that is kept counts as what it is."""
    recipe = changed(BASE, data__train_examples=1000, workers=8, tail=tail, epochs=3)
    seen = 0
    for step in range(recipe.total_steps):
        assert recipe.examples(step) == seen
        seen += sampler.step_size(1000, 256, step % recipe.steps_per_epoch)
    assert recipe.examples(recipe.total_steps) == seen == 3 * (1000 if tail == "keep" else 768)


@pytest.mark.parametrize(("error", "distance"), [(23.83, "0.09 above"), (23.56, "0.18 below")])
def test_the_outcome_has_its_distance_to_the_published_number(error: float, distance: str) -> None:
    """And no verdict, which takes several seeds."""
    recipe = changed(BASE, target=Target(23.74, 0.09, "table 1"))
    run = f"top-1 error {error:.2f} % (median of the last 5 epochs)"
    assert recipe.outcome(error) == f"{run}; {distance} the published 23.74 ± 0.09 % (table 1)"
    side = f"{distance} the published 23.74 %"
    assert changed(BASE, target=Target(23.74)).outcome(error) == f"{run}; {side}"
    assert changed(BASE, target=None).outcome(error) == run
    assert "published" not in changed(recipe, rehearse=True).outcome(error)


def test_an_error_on_other_data_is_not_held_against_the_published_number() -> None:
    recipe = changed(BASE, target=Target(23.74, 0.09, "table 1"))
    for other in (
        changed(recipe, data__name="fashion-mnist"),
        changed(recipe, inputs__loader="synthetic"),
    ):
        assert other.outcome(8.0) == "top-1 error 8.00 % (median of the last 5 epochs)"


# --- The rehearsal ---------------------------------------------------------------------------

ratios = st.fractions(min_value=Fraction(1, 100), max_value=20, max_denominator=100).map(float)


@given(
    st.integers(1, 300), st.integers(2, 100), st.integers(1, 5000), st.integers(1, 5000),
    st.sampled_from(["linear", "sqrt", "none"]), st.sampled_from(["gradual", "constant", "none"]),
)  # fmt: skip
@example(1, 49, 49, 1, "linear", "gradual")
def test_rehearsal_keeps_the_lr_of_every_step(
    workers: int, n: int, reference_batch: int, examples: int, scaling: str, warmup: str
) -> None:
    recipe = changed(
        BASE, workers=workers, worker_batch=n, data__train_examples=workers * n * 3 + examples,
        schedule__reference_batch=float(reference_batch), schedule__scaling=scaling,
        schedule__warmup=warmup, rehearse=True,
    )  # fmt: skip
    small = rehearsal(recipe)
    check(small)
    assert (small.workers, small.worker_batch) == (workers, 2)
    assert (small.steps_per_epoch, small.epochs) == (recipe.steps_per_epoch, recipe.epochs)
    assert (small.batch_size > small.schedule.reference_batch) == (workers * n > reference_batch)
    for step in [s for _, steps in small.epochs_from(0) for s in steps]:
        assert small.lr(step) == pytest.approx(recipe.lr(step), rel=1e-14)


@given(st.integers(1, 40), ratios, ratios)
@example(25, 2.2, 1.0)  # 2.2 x 25 is a little more than 55
def test_rehearsal_makes_six_steps(steps: int, warmup: float, later: float) -> None:
    """Those of the first epoch at or after mid-warmup, its end and the drop, for any fraction."""
    drop = warmup + later
    recipe = rehearsal(
        changed(
            BASE, data__train_examples=8192 * steps, schedule__warmup_epochs=warmup,
            schedule__milestones=[drop], rehearse=True,
        )
    )  # fmt: skip
    run = range(recipe.total_steps)
    middle, end, dropped = (
        next(s for s in run if recipe.epoch(s) >= epoch) for epoch in (warmup / 2, warmup, drop)
    )
    found = list(recipe.epochs_from(0))
    assert [s for _, each in found for s in each] == sorted(
        {0, 1, middle, end, dropped - 1, dropped}
    )
    assert all(s // steps == epoch for epoch, each in found for s in each)
    assert recipe.lr(end) > recipe.lr(end - 1) or end == dropped
    assert recipe.lr(dropped) < recipe.lr(dropped - 1) or end == dropped


def test_rehearsal_resumes() -> None:
    recipe = rehearsal(changed(BASE, rehearse=True))
    steps = [s for _, each in recipe.epochs_from(0) for s in each]
    assert steps == [0, 1, 390, 780, 4679, 4680]
    assert list(recipe.epochs_from(781)) == [(29, [4679]), (30, [4680])]


def test_rehearsal_prints_every_replacement() -> None:
    recipe = changed(BASE, tail="keep", target=Target(23.74))
    small = rehearsal(recipe)
    before, after = leaves(recipe), leaves(small)
    text = "\n".join(small.replaced)
    assert text in small.summary()
    said = {
        "worker_batch": "worker_batch 32 -> 2",
        "schedule.reference_batch": "schedule.reference_batch 256 -> 16",
        "model.name": "model resnet50 -> small_resnet",
        "inputs.loader": "data imagenet -> synthetic images",
        "data.image_size": "of 32 x 32",
        "data.train_examples": "80384 to train",
        "data.val_examples": "64 to validate",
        "data.augmentation": "augmentation crop_flip -> none",
        "tail": "tail keep -> drop",
    }
    described = {"replaced", "target", "log_steps"}
    assert {key for key in before if before[key] != after[key]} == {*said, *described}
    assert all(phrase in text for phrase in said.values())
    assert small.target is None


# --- What is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"workers": 0}, "workers=0 is not possible; write 1 or more"),
        ({"worker_batch": 1}, "worker_batch=1 is not possible; write 2 or more"),
        ({"seed": 2**64}, f"seed={2**64} is too large; write .* below 2.64"),
        ({"inputs__decoders": -1}, "inputs.decoders=-1 is not possible; write 0 or more"),
        ({"inputs__hardware_share": 1.5}, "share=1.5 is more than all .* a number from 0 to 1"),
        ({"tail": "pad"}, "tail=pad is unknown; write one of drop, keep"),
        ({"optim__equation": 8}, "optim.equation=8 is unknown; write one of 9, 10"),
        ({"model__name": "resnet18"}, "model.name=resnet18 .* resnet50, resnet101, resnet20"),
        ({"optim__momentum_correction": True}, "momentum_correction=true .* optim.equation=10"),
        ({"optim__momentum": 1.0}, "optim.momentum=1 .* below 1"),
        ({"optim__momentum": 0.0}, "optim.momentum=0 .* write optim.nesterov=false"),
        ({"schedule__reference_lr": 0.0}, "schedule.reference_lr=0 .* above 0"),
        ({"schedule__reference_lr": float("nan")}, "schedule.reference_lr=nan .* above 0"),
        ({"schedule__reference_batch": 0.0}, "schedule.reference_batch=0 .* above 0"),
        ({"comm__timeout": float("inf")}, "comm.timeout=inf .* above 0"),
        ({"schedule__milestones": [30.0, 90.0]}, r"=\[30,90\] has 90.* 90 epochs; .* more epochs"),
        ({"schedule__milestones": [0.0]}, r"=\[0\] has 0.* between 0 and 90"),
        ({"schedule__milestones": [60.0, 30.0]}, r"=\[60,30\] does not rise; write .* in order"),
        ({"schedule__milestones": [30.0, 30.0]}, r"=\[30,30\] does not rise; write each once"),
        ({"schedule__warmup_epochs": 31.0}, "=31 does not end by epoch 30.* up to 30, or .*=none"),
        ({"schedule__warmup_epochs": 0.0}, "=0 does not end .* schedule.warmup=none"),
        ({"workers": 40037}, "1281184 .*1281167 training examples; write workers=40036 or fewer"),
        ({"worker_batch": 2000000}, "write worker_batch=1281167 or less"),
        ({"data__mean": [0.5]}, "data.mean and data.std need 3 numbers .* have 1 and 3"),
        ({"data__std": [0.2, 0.2, 0.0]}, r"data.std=\[0.2,0.2,0\] .* above 0"),
        ({"data__channels": 1, "data__mean": [0.5], "data__std": [0.2]}, "model=small_resnet"),
        ({"name": "../run"}, "name=../run .* write letters"),
        ({"run_dir": ""}, "run_dir= is empty; write run_dir=PATH"),
    ],
)
def test_refused_in_one_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Refused, match=sentence) as caught:
        check(changed(BASE, **values))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"schedule__warmup_epochs": 30.0},
        {"schedule__milestones": [], "schedule__warmup_epochs": 90.0},
        {"workers": 8, "schedule__warmup_epochs": 0.0},
        {"schedule__warmup": "none", "schedule__warmup_epochs": 0.0},
        {"workers": 40036},
        {"optim__momentum": 0.0, "optim__nesterov": False},
        {"optim__momentum_correction": True, "optim__equation": 10},
        {"seed": 2**64 - 1},
    ],
)
def test_accepted_up_to_the_edge(values: dict[str, Any]) -> None:
    check(changed(BASE, **values))


@given(st.integers(1, 6), st.integers(2, 6), st.integers(2, 200))
def test_kept_tail_never_leaves_a_worker_one_image(workers: int, n: int, examples: int) -> None:
    """Refused exactly where the sampler would give a worker a single image, whose BN is 0."""
    assume(examples >= workers * n)
    recipe = changed(
        BASE, workers=workers, worker_batch=n, data__train_examples=examples, tail="keep"
    )
    sizes = {
        each.by_worker.shape[1]
        for step in range(recipe.steps_per_epoch)
        for each in sampler.step_passes(
            np.arange(examples), epoch=0, step=step, workers=workers, worker_batch=n,
            hosted=range(workers), workers_per_pass=workers,
        )
    }  # fmt: skip
    if 1 in sizes:
        with pytest.raises(Refused, match=r"tail=keep .* tail=drop"):
            check(recipe)
    else:
        check(recipe)
    check(replace(recipe, tail="drop"))


def test_more_processes_than_workers() -> None:
    check_world_size(BASE, 256)
    with pytest.raises(Refused, match=r"257 processes .* workers=256; start at most 256"):
        check_world_size(BASE, 257)
