"""What the number of a run is, whatever the rates are that its rows have besides."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsgd.rules.metric import METRICS, TOP1, Metric, TimeToTarget, metric_by_name

EPOCHS = st.dictionaries(st.integers(1, 99), st.floats(0, 100) | st.none(), min_size=1).filter(
    lambda epochs: any(value is not None for value in epochs.values())
)


@given(EPOCHS, st.sampled_from(list(METRICS)))
def test_the_number_is_of_the_last_evaluated_epochs_on_the_first_set(
    epochs: dict[int, float | None], name: str
) -> None:
    """In whatever order the epochs are given, and with other rates and sets of other values."""
    metric = METRICS[name]
    rows = {
        epoch: {
            f"{other}_{rate}": -1.0 - epoch
            for other in ("train", "val", "test")
            for rate in METRICS
            if (other, rate) != ("val", name)
        }
        for epoch in epochs
    }
    evaluated = {epoch: value for epoch, value in epochs.items() if value is not None}
    for epoch, value in evaluated.items():
        rows[epoch][metric.key] = value
    last = sorted(evaluated[epoch] for epoch in sorted(evaluated)[-metric.last_epochs :])
    middle = len(last) // 2
    expected = last[middle] if len(last) % 2 else (last[middle - 1] + last[middle]) / 2
    assert metric.final_metric(rows) == expected
    test = {epoch: row | {f"test_{name}": row.get(metric.key, 5.0)} for epoch, row in rows.items()}
    if len(evaluated) == len(epochs):
        assert metric.final_metric(test, "test") == expected


@given(st.integers(2, 100_000))
def test_who_guesses_is_right_once_in_so_many(classes: int) -> None:
    """Perplexity is the exponential of the loss; one of 5 guesses is right 5 times as often."""
    loss, top1, top5, perplexity = (
        METRICS[name].chance_level(classes)
        for name in ("loss", "top1_error", "top5_error", "perplexity")
    )
    assert math.exp(loss) == pytest.approx(perplexity) == classes
    assert 100 - top1 == pytest.approx(100 / classes)
    assert 100 - top5 == pytest.approx(min(100, 500 / classes))
    for name in ("token_error", "fine_error", "node_error"):
        assert METRICS[name].chance_level(classes) == top1
    assert METRICS["binary_error"].chance_level(classes) == 50
    assert METRICS["f1_error"].chance_level(classes) == 100


@pytest.mark.parametrize("metric", METRICS.values(), ids=list(METRICS))
def test_a_rate_has_one_name_everywhere(metric: Metric) -> None:
    """The first underscore of a key ends the name of the set, and the noun ends the words."""
    assert METRICS[metric.name] is metric
    assert metric.key.partition("_") == ("val", "_", metric.name)
    assert metric.plural.startswith(metric.noun[:-1])
    assert metric.label_on("test").replace("test ", "") == metric.label
    assert (metric.unit == "%") == metric.name.endswith("_error")
    assert metric.last_epochs == (5 if metric.name in ("top1_error", "top5_error") else 1)


def test_counts_to_a_rate_are_one_metric_for_runs_of_any_batch() -> None:
    """And another one for another target, rate or count; its words tell them apart."""
    small = TimeToTarget.for_metric(
        TOP1, 24.1, time_unit="epochs", first_step=lambda epoch: 5004 * epoch
    )
    assert small == TimeToTarget.for_metric(
        TOP1, 24.1, time_unit="epochs", first_step=lambda epoch: 39 * epoch
    )
    others = [
        TimeToTarget.for_metric(TOP1, 24.2, time_unit="epochs"),
        TimeToTarget.for_metric(METRICS["loss"], 24.1, time_unit="epochs"),
        TimeToTarget.for_metric(TOP1, 24.1, time_unit="steps"),
        TOP1,
    ]
    assert all(other != small for other in others)
    for metric in (small, *others):
        assert metric_by_name(metric.full_name) == metric
    assert len({metric.full_name for metric in (small, *others)}) == 5
    assert (small.key, small.base_metric, small.noun) == ("val_top1_error", TOP1, "epochs")
    assert small.format_value(35.15, 0.748) == "35.15 ± 0.75"
    assert small.format_value(math.inf) == "never"


def test_a_count_is_of_the_first_evaluation_that_has_the_target_and_no_other() -> None:
    rates = {1: {}, 2: {"val_loss": 2.0}, 3: {}, 4: {"val_loss": 1.0}, 6: {"val_loss": 0.5}}
    loss = METRICS["loss"]
    for target, epochs in ((2.0, 2), (1.99, 4), (0.5, 6), (0.4, math.inf)):
        assert (
            TimeToTarget.for_metric(loss, target, time_unit="epochs").final_metric(rates) == epochs
        )
        steps = TimeToTarget.for_metric(
            loss, target, time_unit="steps", first_step=lambda epoch: 7 * epoch
        )
        assert steps.final_metric(rates) == 7 * epochs


def test_a_target_has_all_of_its_decimals() -> None:
    loss = [
        TimeToTarget.for_metric(METRICS["loss"], target, time_unit="epochs")
        for target in (0.5, 0.004, 0.001)
    ]
    assert [metric.label for metric in loss] == [
        "epochs to loss 0.50", "epochs to loss 0.004", "epochs to loss 0.001",
    ]  # fmt: skip
    assert loss[1].format_labelled(math.inf) == "loss 0.004 not reached"
    assert loss[1].label_on("test") == "epochs to test loss 0.004"
    error = TimeToTarget.for_metric(TOP1, 24.125, time_unit="epochs")
    assert error.label == "epochs to top-1 error 24.125 %"
