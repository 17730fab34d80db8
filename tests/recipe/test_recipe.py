"""What follows from a recipe's fields, and what is hashed."""

import copy
import pickle
from dataclasses import asdict, replace
from fractions import Fraction
from operator import attrgetter
from typing import Any

import pytest
from helpers.base_recipe import BASE, field_values, with_fields
from helpers.composed import compose_recipe
from hypothesis import assume, given
from hypothesis import strategies as st

from lsgd.errors import UsageError
from lsgd.recipe import Optim, Recipe, Target
from lsgd.recipe.checks import check_recipe
from lsgd.rules.metric import METRICS, TOP1

EXECUTION = {
    "name", "target", "paper", "deviations", "replaced", "inputs.loader", "inputs.decoders",
    "inputs.prefetch", "inputs.dtype", "inputs.decode_on", "inputs.hardware_share",
    "inputs.options", "inputs.source", "comm.library",
    "comm.bucket_mb", "comm.timeout", "comm.join_timeout", "data.root", "data.index", "data.stage",
    "data.skip_list", "workers_per_pass", "val_batch", "channels_last", "compile", "threads",
    "cuda_graphs", "device", "run_dir", "checkpoint_steps", "checkpoint_minutes",
    "keep_checkpoints", "keep_best", "log_steps", "profile", "noise_scale", "deterministic", "numa",
    "evaluation.sets", "model.start", "optim.fused", "trackers",
}  # fmt: skip
"""Every field that decides how fast and where; a wrong word beside a field shows here."""


def another(value: Any) -> Any:
    """A value of the same kind, which need not make sense."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case list():
            return [*value, 0.5]
        case dict():
            return {"rule": "reason"}
    return f"not {value}"


# --- The best evaluation ---------------------------------------------------------------------


def test_the_best_evaluation_is_at_the_end_of_an_epoch_or_within_one() -> None:
    epochs = {1: {"val_loss": 3.0}, 2: {"train_loss": 0.1}, 3: {"val_loss": 2.0}}
    evaluations = {7: {"val_loss": 1.0}, 9: {"val_loss": 2.0}}
    steps = BASE.steps_per_epoch
    best = with_fields(BASE, keep_best="loss").best_first(epochs, evaluations)
    assert best == [7, 9, 3 * steps, steps]
    assert BASE.best_first(epochs, evaluations) == []
    rehearsed = with_fields(BASE, keep_best="loss", rehearse=True)
    number, made = next(rehearsed.epochs_from(0))
    assert rehearsed.best_first({number + 1: {"val_loss": 1.0}}, {}) == [made[-1] + 1]


# --- The fingerprint -------------------------------------------------------------------------


@pytest.mark.parametrize("key", field_values(BASE))
def test_a_field_changes_the_fingerprint_unless_it_is_execution(key: str) -> None:
    # Of an asynchronous run everything decides that decides the order of its pushes.
    stale = with_fields(BASE, strategy__name="async")
    other = with_fields(stale, **{key.replace(".", "__"): another(field_values(stale)[key])})
    assert other != stale
    assert (other.fingerprint == stale.fingerprint) == (key in EXECUTION)


TEXTS = [
    compose_recipe(f"+recipe={name}") for name in ("ptb_small", "conll_bilstm_crf", "sst_treelstm")
]


@pytest.mark.parametrize("recipe", TEXTS, ids=lambda recipe: recipe.name)
def test_what_only_texts_have_is_theirs_alone(recipe: Recipe) -> None:
    own = field_values(recipe)
    fields = own.keys() - field_values(BASE).keys()
    assert {"model.width", "data.test_examples"} < fields
    for key in fields:
        other = with_fields(recipe, **{key.replace(".", "__"): another(own[key])})
        assert (other.fingerprint == recipe.fingerprint) == (key in ("padding", "batching")), key
    for mine, its in ((BASE, recipe), (recipe, BASE)):
        for key in field_values(its).keys() - field_values(mine).keys():
            default = attrgetter(key)(mine)
            other = with_fields(mine, **{key.replace(".", "__"): another(default)})
            with pytest.raises(UsageError, match=rf"{key}=.* has no effect with data.workload="):
                check_recipe(other)


@pytest.mark.parametrize("name", ["sync", "local", "hogwild"])
def test_no_cluster_decides_what_these_come_to(name: str) -> None:
    """And servers that wait for all are another way to the sums of allreduce."""
    made = with_fields(BASE, strategy__name=name)
    assert (made.fingerprint == BASE.fingerprint) == (name == "sync")
    for key, value in field_values(made).items():
        other = with_fields(made, **{key.replace(".", "__"): another(value)})
        execution = key.startswith("cluster.") or key in EXECUTION
        if name == "sync":
            execution = execution or (key.startswith("strategy.") and key != "strategy.name")
        assert (other.fingerprint == made.fingerprint) == execution, key


def test_a_strategy_alone_is_another_run() -> None:
    names = ("allreduce", "sync", "backup", "bounded", "async", "local", "hogwild")
    prints = [with_fields(BASE, strategy__name=name).fingerprint for name in names]
    assert len(set(prints)) == 6


def test_the_batch_is_that_of_one_update() -> None:
    recipe = with_fields(BASE, workers=10, data__train_examples=10_000)
    names = {"sync": 320, "backup": 256, "bounded": 32, "async": 32, "local": 320, "hogwild": 32}
    for name, batch in names.items():
        other = with_fields(recipe, strategy__name=name, strategy__backup=2 * (name == "backup"))
        assert other.batch_size == batch
        assert other.steps_per_epoch == 10_000 // batch
        assert other.tickets * 32 == other.steps_per_epoch * batch
        assert with_fields(other, tail="keep").tickets == 313
        assert other.lr(other.total_steps - 1) == pytest.approx(batch / 256 * 0.1 * 1e-3)


def test_the_batch_of_local_steps_before_a_push_is_that_of_all_of_them() -> None:
    """And the lr is that of one: each is made of n examples."""
    recipe = with_fields(BASE, workers=10, data__train_examples=10_000, tail="keep")
    for name in ("async", "bounded"):
        single = with_fields(recipe, strategy__name=name)
        local = with_fields(single, strategy__local_steps=8)
        assert (local.batch_size, local.steps_per_epoch) == (256, 40)
        assert (local.tickets, single.tickets) == (40, 313)
        assert [local.gradients_per_ticket(ticket) for ticket in (0, 38, 39)] == [8, 8, 1]
        assert single.gradients_per_ticket(312) == 1
        assert local.lr_batch == single.batch_size == 32
        for epoch in (0, 1, 17, 40):
            assert local.lr(40 * epoch) == single.lr(313 * epoch)
        assert local.lr(40 * 29 + 39.9) > local.lr(40 * 30)
        assert "= 1 of 10 workers x 32 images x 8 local steps" in local.summary()
    together = with_fields(recipe, strategy__name="local", strategy__local_steps=8)
    assert together.batch_size == together.lr_batch == 320


def test_an_outer_rule_makes_a_push_a_way_of_one_step() -> None:
    """Which the server takes up without decay and by no momentum of the recipe's."""
    asynchronous = with_fields(BASE, strategy__name="async")
    assert asynchronous.server_optim == asynchronous.optim
    way = with_fields(asynchronous, strategy__outer="sgd")
    assert way.fingerprint != asynchronous.fingerprint
    assert way.strategy.pushes_deltas
    assert (way.batch_size, way.steps_per_epoch) == (32, asynchronous.steps_per_epoch)
    assert way.server_optim == Optim(momentum=0.0, nesterov=False, weight_decay=0.0)


def test_synthetic_images_are_another_trajectory() -> None:
    prints = {
        with_fields(BASE, inputs__loader=loader).fingerprint
        for loader in ("auto", "memory", "torchvision", "synthetic")
    }
    assert len(prints) == 2


def test_what_follows_from_the_fields_is_no_field() -> None:
    """The steps of an epoch are counted once, and no copy with other fields has those of this."""
    fresh, recipe = replace(BASE), replace(BASE)
    before = asdict(recipe)
    assert recipe.steps_per_epoch == 156
    assert recipe == fresh
    assert asdict(recipe) == before
    assert recipe.fingerprint == fresh.fingerprint
    assert replace(recipe, workers=128).steps_per_epoch == 312
    for twin in (pickle.loads(pickle.dumps(recipe)), copy.deepcopy(recipe)):
        assert twin == recipe
        assert twin.steps_per_epoch == 156


# --- What follows from the fields ------------------------------------------------------------


@given(
    st.integers(1, 50), st.integers(2, 64), st.integers(1, 20_000),
    st.sampled_from(["drop", "keep"]), st.integers(1, 20), st.data(),
)  # fmt: skip
def test_steps_and_epochs(
    workers: int, n: int, examples: int, tail: str, epochs: int, data: st.DataObject
) -> None:
    assume(examples >= workers * n)
    recipe = with_fields(
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
    recipe = with_fields(BASE, data__train_examples=1000, workers=8, tail=tail, epochs=3)
    seen = 0
    for step in range(recipe.total_steps):
        assert recipe.examples(step) == seen
        seen += min(256, 1000 - 256 * (step % recipe.steps_per_epoch))
    assert recipe.examples(recipe.total_steps) == seen == 3 * (1000 if tail == "keep" else 768)


def top1(error: float) -> dict[int, dict[str, float]]:
    """The metrics of six epochs of this top-1 error."""
    return {epoch: {"val_top1_error": error} for epoch in range(1, 7)}


@pytest.mark.parametrize(
    ("error", "distance"),
    [(23.83, "0.09 above"), (23.56, "0.18 below"), (23.74, "equal to"), (23.744, "equal to")],
)
def test_the_outcome_has_its_distance_to_the_published_number(error: float, distance: str) -> None:
    """And no verdict, which takes several seeds."""
    recipe = with_fields(BASE, target=Target(23.74, 0.09, "table 1"))
    run = f"top-1 error {error:.2f} % (median of the last 5 epochs)"
    assert (
        recipe.format_result(TOP1, top1(error))
        == f"{run}; {distance} the published 23.74 ± 0.09 % (table 1)"
    )
    side = f"{distance} the published 23.74 %"
    assert (
        with_fields(BASE, target=Target(23.74)).format_result(TOP1, top1(error)) == f"{run}; {side}"
    )
    assert with_fields(BASE, target=None).format_result(TOP1, top1(error)) == run
    assert "published" not in with_fields(recipe, rehearse=True).format_result(TOP1, top1(error))


def test_a_number_of_another_metric_is_not_held_against_the_published_one() -> None:
    recipe = with_fields(BASE, target=Target(23.74, 0.09, "table 1"))
    assert (
        recipe.format_result(METRICS["perplexity"], {1: {"val_perplexity": 118.2}})
        == "perplexity 118.20 (of the last epoch)"
    )


def test_an_error_on_other_data_is_not_held_against_the_published_number() -> None:
    recipe = with_fields(BASE, target=Target(23.74, 0.09, "table 1"))
    for other in (
        with_fields(recipe, data__name="fashion-mnist"),
        with_fields(recipe, inputs__loader="synthetic"),
    ):
        assert (
            other.format_result(TOP1, top1(8.0))
            == "top-1 error 8.00 % (median of the last 5 epochs)"
        )


def test_a_run_is_evaluated_by_its_grid_and_at_its_end() -> None:
    """MLPerf: every fourth epoch, the first of which is chosen beforehand."""

    def evaluated(every: int, offset: int) -> list[int]:
        recipe = with_fields(BASE, evaluation__every=every, evaluation__offset=offset)
        return [epoch + 1 for epoch in range(10) if recipe.evaluates_after(epoch)] + [
            epoch + 1 for epoch in range(85, recipe.epochs) if recipe.evaluates_after(epoch)
        ]

    assert evaluated(4, 0) == [4, 8, 88, 90]
    assert evaluated(4, 2) == [2, 6, 10, 86, 90]
    assert evaluated(1, 0) == [*range(1, 11), *range(86, 91)]
