"""The metrics of an evaluation: names, units, formats, and the final metric of a run.

This module does not import torch. The first evaluation set of a workload is named val, and its
metrics are `val_loss`, `val_top1_error`, … in rows and checkpoints.
"""

import math
import re
import statistics
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

OWN_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
"""The form of the name of a metric of the user's own."""
MAIN_SET = "val"
"""The evaluation set from which the final metric of a run is computed."""
SMALL, LARGE = 0.1, 1e9
"""The value below which two decimals are too few, and that from which an exponent is shown."""


def format_decimal(value: float, decimals: int = 2, sign: str = "") -> str:
    """Format a number with these decimals, or with 3 significant digits if these are too long.

    `sign` is that of a format, such as + for a sign of positive numbers too.

    >>> format_decimal(0.0042, 5), format_decimal(1e300), format_decimal(2e-30, 32, "+")
    ('0.00420', '1e+300', '+2e-30')
    """
    is_long = abs(value) >= LARGE or decimals > 9
    return f"{value:{sign}.{'3g' if is_long else f'{decimals}f'}}"


@dataclass(frozen=True)
class Metric:
    """A metric of evaluations, with its name, label, unit and chance level; lower is better."""

    name: str
    """The key of the metric, after the name of an evaluation set: val_NAME."""
    label: str
    """The label of the metric in texts; its last word is the noun."""
    plural: str
    """The plural of the noun."""
    chance_level: Callable[[int], float]
    """The function from a number of equally likely classes to the metric of random guessing."""
    unit: str = ""
    last_epochs: int = 1
    """The number of last evaluated epochs whose median is the final metric of a run."""
    note: str = ""
    """The addition of a report to the definition of the final metric: its source, or its method."""

    @property
    def base_metric(self) -> "Metric":
        """The metric that each evaluation computes: this one, or the one with a target to reach."""
        return self

    @property
    def full_name(self) -> str:
        """The unique name of the metric, by which `metric_by_name` finds it."""
        return self.name

    def is_always_0(self, classes: int | None) -> bool:
        """Return whether every prediction among this number of classes, if known, has the value 0.

        >>> [METRICS["top5_error"].is_always_0(classes) for classes in (2, 5, 6)]
        [True, True, False]
        """
        return classes is not None and self.chance_level(classes) == 0

    @property
    def key(self) -> str:
        """The key of the metric's value on the first evaluation set, such as val_loss."""
        return f"{MAIN_SET}_{self.name}"

    @property
    def noun(self) -> str:
        """The noun of the metric's label, such as error or perplexity."""
        return self.label.split()[-1]

    @property
    def failed_label(self) -> str:
        """The label of the value that counts for a failed run, such as the error of guessing."""
        return f"the {self.noun} of guessing"

    @property
    def counts_failed(self) -> bool:
        """Whether a failed run counts in claims with the value of `failed_label`; else it has none.

        >>> METRICS["top1_error"].counts_failed, named_metric("mean_distance").counts_failed
        (True, False)
        """
        return math.isfinite(self.chance_level(2))

    @property
    def upper_bound(self) -> float | None:
        """The upper bound of the metric: 100 for a percentage, None without a bound."""
        return 100 if self.unit == "%" else None

    def skips_epochs(self, evaluated: Collection[int]) -> bool:
        """Return whether epochs without evaluation lie between those of a run's final metric.

        >>> [METRICS["top1_error"].skips_epochs(epochs) for epochs in ([10, 20, 30], [10], [1, 2])]
        [True, False, False]
        """
        last = sorted(evaluated)[-self.last_epochs :]
        return bool(last) and last[-1] - last[0] >= len(last)

    def aggregation(self, evaluated: Collection[int]) -> str:
        """Return the label of the epochs from which a final metric is computed, of all evaluated.

        >>> error, every = METRICS["top1_error"], range(1, 91)
        >>> [error.aggregation(epochs) for epochs in (every[:1], every[:3], every)]
        ['of the last epoch', 'median of the last 3 epochs', 'median of the last 5 epochs']
        >>> error.aggregation([30, 60, 90])
        'median of the last 3 evaluated epochs'
        """
        if (last := min(self.last_epochs, len(evaluated))) == 1:
            return "of the last epoch"
        return f"median of the last {last} {'evaluated ' * self.skips_epochs(evaluated)}epochs"

    def definition(self, *, skips_epochs: bool = False) -> str:
        """Return the definition of a run's final metric for reports, of runs that skip epochs.

        >>> METRICS["perplexity"].definition(skips_epochs=True)
        'validation perplexity of its last epoch'
        """
        text = f"{self.label_on('validation')} of its last epoch"
        if self.last_epochs > 1:
            last = f"{self.last_epochs} {'evaluated ' * skips_epochs}epochs"
            text = f"median {self.label_on('validation')} of its last {last}"
        return f"{text} {self.note}".rstrip()

    def label_on(self, evaluation_set: str) -> str:
        """Return the metric's label with an evaluation set, such as top-1 validation error.

        >>> METRICS["top1_error"].label_on("validation"), METRICS["perplexity"].label_on("test")
        ('top-1 validation error', 'test perplexity')
        """
        return " ".join([*self.label.split()[:-1], evaluation_set, self.noun])

    def format_value(self, value: float, std: float | None = None) -> str:
        """Format a value of the metric, or a mean with its standard deviation, with the unit.

        >>> METRICS["top1_error"].format_value(23.5), METRICS["perplexity"].format_value(120, 2)
        ('23.50 %', '120.00 ± 2.00')
        """
        decimals = self.decimals(value)
        spread = "" if std is None else f" ± {format_decimal(std, decimals)}"
        return f"{format_decimal(value, decimals)}{spread} {self.unit}".rstrip()

    def decimals(self, value: float) -> int:
        """Return the number of decimals with which a value of the metric is shown.

        It is 2, or more for 3 significant digits of a small value without unit.

        >>> METRICS["top1_error"].decimals(0.0042), METRICS["loss"].decimals(0.0042)
        (2, 5)
        """
        is_small = not self.unit and 0 < abs(value) < SMALL
        return 2 - math.floor(math.log10(abs(value))) if is_small else 2

    def format_target(self, target: float) -> str:
        """Format a target of the metric with the unit and all of its decimals, but at least two.

        >>> [METRICS["top1_error"].format_target(target) for target in (24.1, 24.125)]
        ['24.10 %', '24.125 %']
        """
        shown = f"{target:.2f}" if round(target, 2) == target else f"{target:.12g}"
        return f"{shown} {self.unit}".rstrip()

    def format_labelled(self, value: float) -> str:
        """Format a value of the metric after the metric's label.

        >>> METRICS["top1_error"].format_labelled(23.5)
        'top-1 error 23.50 %'
        """
        return f"{self.label} {self.format_value(value)}"

    def format_difference(self, difference: str) -> str:
        """Add the metric's unit to a difference of two values; percentages get points.

        >>> [METRICS[name].format_difference("+0.50") for name in ("top1_error", "perplexity")]
        ['+0.50 points', '+0.50']
        """
        return f"{difference} points" if self.unit == "%" else f"{difference} {self.unit}".rstrip()

    def axis_label(self, text: str) -> str:
        """Add the metric's unit, if any, to the heading of a column or axis.

        >>> METRICS["top1_error"].axis_label("paper"), METRICS["perplexity"].axis_label("paper")
        ('paper, %', 'paper')
        """
        return f"{text}, {self.unit}" if self.unit else text

    def best_first(self, metrics: Mapping[int, Mapping[str, Any]]) -> list[int]:
        """Return the steps of the evaluations that have the metric, from the best to the worst.

        `metrics` has those of each evaluation by its step. The first of equal ones is the best.

        >>> errors = {10: 9.0, 20: 7.0, 30: math.nan, 40: 7.0, 50: 8.0}
        >>> metrics = {step: {"val_top1_error": error} for step, error in errors.items()}
        >>> METRICS["top1_error"].best_first(metrics)
        [20, 40, 50, 10]
        """
        values = {step: each[self.key] for step, each in metrics.items() if self.key in each}
        finite = [step for step, value in values.items() if math.isfinite(value)]
        return sorted(finite, key=lambda step: (values[step], step))

    def final_metric(
        self, metrics: Mapping[int, Mapping[str, Any]], evaluation_set: str = MAIN_SET
    ) -> float:
        """Compute the final metric of a run from the metrics of each epoch, by its number from 1.

        Some epochs may lack an evaluation. It is NaN if all do.

        >>> errors = [90.0, 9.0, 8.0, 30.0, 7.0, 8.5]
        >>> metrics = {epoch: {"val_top1_error": error} for epoch, error in enumerate(errors, 1)}
        >>> METRICS["top1_error"].final_metric(metrics)
        8.5
        """
        key = f"{evaluation_set}_{self.name}"
        values: list[float] = [
            metrics[epoch][key] for epoch in sorted(metrics) if key in metrics[epoch]
        ]
        return statistics.median(values[-self.last_epochs :] or [math.nan])


def _infinite_chance_level(classes: int) -> float:
    """Return infinity: guessing reaches no target, and of other metrics its value is not known."""
    return math.inf


@dataclass(frozen=True)
class TimeToTarget(Metric):
    """The metric of epochs or steps until another metric reaches a target (MLPerf, Shallue et al.).

    Name and key are those of the other metric. The value is that of the first evaluation at or
    below the target, so it depends on the epochs that are evaluated; it is infinite if there is
    none.
    """

    chance_level: Callable[[int], float] = field(default=_infinite_chance_level, compare=False)
    time_unit: str = "epochs"
    target: float = 0.0
    first_step: Callable[[int], int] = field(default=int, compare=False)
    """The function from an epoch to the number of steps before it.

    It is not compared, so that runs with two batch sizes have the same metric.
    """

    @classmethod
    def for_metric(
        cls,
        metric: Metric,
        target: float,
        *,
        time_unit: str,
        first_step: Callable[[int], int] = int,
    ) -> Self:
        """Create the metric that counts epochs or steps until another is at most its target."""
        label = f"{time_unit} to {metric.label} {metric.format_target(target)}"
        return cls(
            metric.name, label, time_unit, time_unit=time_unit, target=target, first_step=first_step
        )

    @property
    def base_metric(self) -> Metric:
        """The metric whose target is to be reached, such as the top-1 error."""
        return named_metric(self.name)

    @property
    def full_name(self) -> str:
        """The unique name of a time to target: its unit, the other metric and the target."""
        return f"{self.time_unit} to {self.name} {self.target!r}"

    @property
    def noun(self) -> str:
        """The unit of this time to target: epochs or steps."""
        return self.time_unit

    def aggregation(self, evaluated: Collection[int]) -> str:
        """Return the label of the evaluation at which the count of epochs or steps ends."""
        return "at the first evaluation that reaches it"

    @property
    def counts_failed(self) -> bool:
        """Whether a failed run counts in claims: here with the count of its whole run."""
        return True

    @property
    def failed_label(self) -> str:
        """The label of the count for a run that never reached the target."""
        return f"all {self.time_unit} of its run"

    def definition(self, *, skips_epochs: bool = False) -> str:
        """Return the definition of a run's time to target, as a text for reports."""
        return f"{self.label}, at the first evaluation that reaches it"

    def label_on(self, evaluation_set: str) -> str:
        """Return the label of this time to target, with an evaluation set."""
        metric = self.base_metric
        target = metric.format_target(self.target)
        return f"{self.time_unit} to {metric.label_on(evaluation_set)} {target}"

    def format_value(self, value: float, std: float | None = None) -> str:
        """Format a time to target, or a mean with its standard deviation; "never" if infinite."""
        if math.isinf(value):
            return "never"
        return f"{value:g}" if std is None else f"{value:.2f} ± {std:.2f}"

    def decimals(self, value: float) -> int:
        """Return the number of decimals with which a mean of epochs or steps is shown."""
        return 2

    def format_labelled(self, value: float) -> str:
        """Format a time to target before its label.

        >>> metric = TimeToTarget.for_metric(METRICS["top1_error"], 24.1, time_unit="epochs")
        >>> metric.format_labelled(35), metric.format_labelled(math.inf)
        ('35 epochs to top-1 error 24.10 %', 'top-1 error 24.10 % not reached')
        """
        if math.isinf(value):
            metric = self.base_metric
            return f"{metric.label} {metric.format_target(self.target)} not reached"
        return f"{self.format_value(value)} {self.label}"

    def final_metric(
        self, metrics: Mapping[int, Mapping[str, Any]], evaluation_set: str = MAIN_SET
    ) -> float:
        """Return the epochs or steps of a run at its first evaluation that reached the target.

        A value of None, as a row has for one that is not finite, does not reach it.

        >>> errors = {2: 30.0, 4: 24.1, 6: 24.3}
        >>> metrics = {epoch: {"val_top1_error": error} for epoch, error in errors.items()}
        >>> error = METRICS["top1_error"]
        >>> epochs = TimeToTarget.for_metric(error, 24.1, time_unit="epochs")
        >>> steps = TimeToTarget.for_metric(
        ...     error, 24.1, time_unit="steps", first_step=lambda epoch: 39 * epoch
        ... )
        >>> epochs.final_metric(metrics), steps.final_metric(metrics)
        (4.0, 156.0)
        """
        key = f"{evaluation_set}_{self.name}"
        for epoch in sorted(metrics):
            value = metrics[epoch].get(key)
            if value is not None and value <= self.target:
                return float(self.first_step(epoch) if self.time_unit == "steps" else epoch)
        return math.inf


def metric_by_name(full_name: str) -> Metric:
    """Return the metric or time to target with this full name; raises KeyError if unknown.

    >>> metric_by_name("epochs to top1_error 24.1").label
    'epochs to top-1 error 24.10 %'
    """
    counted, _, rest = full_name.partition(" to ")
    if not rest:
        return named_metric(full_name)
    name, _, target = rest.partition(" ")
    return TimeToTarget.for_metric(named_metric(name), float(target), time_unit=counted)


def named_metric(name: str) -> Metric:
    """Return the metric of this name: lsgd's, or one of the user's own, which its name describes.

    A name that ends in error is that of a percentage. Raises KeyError for a name of another form.

    >>> named_metric("macro_error").format_labelled(12.5), named_metric("mean_distance").noun
    ('macro error 12.50 %', 'distance')
    """
    if name in METRICS:
        return METRICS[name]
    if not OWN_NAME.fullmatch(name):
        raise KeyError(name)
    label, is_error = name.replace("_", " "), name.endswith("error")
    plural = f"{label.split()[-1]}s"
    if is_error:
        return Metric(name, label, plural, chance_level=_worst_error, unit="%")
    return Metric(name, label, plural, chance_level=_infinite_chance_level)


def _worst_error(classes: int) -> float:
    """Return 100, with which a failed run counts whose error of guessing is not known."""
    return 100.0


def _classification_chance_level(classes: int) -> float:
    """Return the error, in percent, of guessing among this number of equally likely classes."""
    return 100 * (1 - 1 / classes)


def _error(name: str, label: str, **others: Any) -> Metric:
    """Return the metric of a percentage, by default that of wrong classes."""
    settings: dict[str, Any] = {"chance_level": _classification_chance_level, "unit": "%"} | others
    return Metric(name, f"{label} error", "errors", **settings)


# The median error of the last 5 epochs is the metric of Goyal et al. 2017.
_GOYAL = {
    "last_epochs": 5,
    "note": "(section 5.1 of the paper), on one central view of every image",
}
METRICS = {
    metric.name: metric
    for metric in (
        Metric("loss", "loss", "losses", chance_level=math.log),
        _error("top1_error", "top-1", **_GOYAL),
        _error(
            "top5_error",
            "top-5",
            chance_level=lambda classes: 100 * (1 - min(5, classes) / classes),
            **_GOYAL,
        ),
        Metric("perplexity", "perplexity", "perplexities", chance_level=float),
        # Guessing finds no span with the right boundaries and type.
        _error("f1_error", "F1", chance_level=lambda classes: 100.0),
        _error("token_error", "token"),
        _error("fine_error", "fine-grained"),
        _error("binary_error", "binary", chance_level=lambda classes: 50.0),
        _error("node_error", "node"),
    )
}
"""All metrics by name; TOP1 is the default where a run's workload is not known."""

TOP1 = METRICS["top1_error"]
