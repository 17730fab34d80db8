"""The rates of an evaluation: how they are called, and what the number of a run is made of.

No torch is needed to know it. The first evaluation set of a workload is named val, and its rates
are `val_loss`, `val_top1_error`, … in rows and checkpoints.
"""

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

FIRST_SET = "val"
"""The name of the evaluation set that the number of a run is of."""


@dataclass(frozen=True)
class Metric:
    """A rate that each evaluation gives; the lower it is, the better."""

    name: str
    """The key of the rate, behind the name of an evaluation set: val_NAME."""
    words: str
    """What it is called in a text; the last word is the noun."""
    plural: str
    """The plural of the noun."""
    guess: Callable[[int], float]
    """The rate of guessing among so many classes that are equally likely."""
    unit: str = ""
    last_epochs: int = 1
    """The number of a run is the median over so many of its last evaluated epochs."""
    note: str = ""
    """What a report adds to the definition of the number: its source, or how it is taken."""

    @property
    def rate(self) -> "Metric":
        """The rate that each evaluation gives, which this is unless it counts until that rate."""
        return self

    @property
    def full_name(self) -> str:
        """The name by which `named_metric` finds it again."""
        return self.name

    @property
    def key(self) -> str:
        """The key of the rate of the first evaluation set."""
        return f"{FIRST_SET}_{self.name}"

    @property
    def noun(self) -> str:
        """The last word of its name: error, perplexity."""
        return self.words.split()[-1]

    @property
    def of_failed(self) -> str:
        """What a run counts with that has no number, in words."""
        return f"the {self.noun} of guessing"

    @property
    def highest(self) -> float | None:
        """The highest value that there can be: 100 of a percentage; None without a limit."""
        return 100 if self.unit == "%" else None

    @property
    def whose(self) -> str:
        """The epochs that the number of a run is made of, in words."""
        if self.last_epochs == 1:
            return "of the last epoch"
        return f"median of the last {self.last_epochs} epochs"

    @property
    def definition(self) -> str:
        """What the number of a run is, in words.

        >>> METRICS["perplexity"].definition
        'validation perplexity of its last epoch'
        """
        text = f"{self.on('validation')} of its last epoch"
        if self.last_epochs > 1:
            text = f"median {self.on('validation')} of its last {self.last_epochs} epochs"
        return f"{text} {self.note}".rstrip()

    def on(self, evaluation_set: str) -> str:
        """The words for the rate of an evaluation set.

        >>> METRICS["top1_error"].on("validation"), METRICS["perplexity"].on("test")
        ('top-1 validation error', 'test perplexity')
        """
        return " ".join([*self.words.split()[:-1], evaluation_set, self.noun])

    def amount(self, value: float, std: float | None = None) -> str:
        """A value of this rate, or a mean and its standard deviation, with the unit.

        >>> METRICS["top1_error"].amount(23.5), METRICS["perplexity"].amount(120, 2)
        ('23.50 %', '120.00 ± 2.00')
        """
        spread = "" if std is None else f" ± {std:.2f}"
        return f"{value:.2f}{spread} {self.unit}".rstrip()

    def named(self, value: float) -> str:
        """A value of this rate behind its name.

        >>> METRICS["top1_error"].named(23.5)
        'top-1 error 23.50 %'
        """
        return f"{self.words} {self.amount(value)}"

    def points(self, difference: str) -> str:
        """A difference of two values with its unit: percentages differ by points.

        >>> METRICS["top1_error"].points("+0.50"), METRICS["perplexity"].points("+3.00")
        ('+0.50 points', '+3.00')
        """
        return f"{difference} points" if self.unit == "%" else f"{difference} {self.unit}".rstrip()

    def heading(self, words: str) -> str:
        """The words over a column, or along an axis, of values of this rate.

        >>> METRICS["top1_error"].heading("paper"), METRICS["perplexity"].heading("paper")
        ('paper, %', 'paper')
        """
        return f"{words}, {self.unit}" if self.unit else words

    def number(
        self, rates: Mapping[int, Mapping[str, Any]], evaluation_set: str = FIRST_SET
    ) -> float:
        """The number of a run of which these are the rates of each epoch, by its number from 1.

        Not every epoch need have been evaluated, but one must.

        >>> errors = [90.0, 9.0, 8.0, 30.0, 7.0, 8.5]
        >>> METRICS["top1_error"].number({i: {"val_top1_error": e} for i, e in enumerate(errors)})
        8.5
        """
        key = f"{evaluation_set}_{self.name}"
        values: list[float] = [rates[epoch][key] for epoch in sorted(rates) if key in rates[epoch]]
        return statistics.median(values[-self.last_epochs :])


def _never(classes: int) -> float:
    """What guessing comes to where a rate is to be reached."""
    return math.inf


@dataclass(frozen=True)
class Until(Metric):
    """The epochs or steps until a rate is as low as a target, as MLPerf and Shallue et al. count.

    Name and key are those of the rate; the number is that of the first evaluation which has it, so
    it is of the grid of evaluations, and infinite if there is none.
    """

    guess: Callable[[int], float] = field(default=_never, compare=False)
    counted: str = "epochs"
    target: float = 0.0
    first_step: Callable[[int], int] = field(default=int, compare=False)
    """The steps before an epoch; runs of two batches have the same metric."""

    @classmethod
    def of(
        cls, rate: Metric, target: float, *, counted: str, first_step: Callable[[int], int] = int
    ) -> Self:
        """The count until this rate is at most the target."""
        words = f"{counted} to {rate.named(target)}"
        return cls(rate.name, words, counted, counted=counted, target=target, first_step=first_step)

    @property
    def rate(self) -> Metric:
        """The rate that is to be reached."""
        return METRICS[self.name]

    @property
    def full_name(self) -> str:
        """What is counted, the rate and the target."""
        return f"{self.counted} to {self.name} {self.target!r}"

    @property
    def noun(self) -> str:
        """What is counted: epochs, or steps."""
        return self.counted

    @property
    def whose(self) -> str:
        """When it is counted, in words."""
        return "at the first evaluation that has it"

    @property
    def of_failed(self) -> str:
        """What a run counts with that never had the rate, in words."""
        return f"all {self.counted} of its run"

    @property
    def definition(self) -> str:
        """What the number of a run is, in words."""
        return f"{self.words}, at the first evaluation that has it"

    def on(self, evaluation_set: str) -> str:
        """The words for the count on an evaluation set."""
        return f"{self.counted} to {self.rate.on(evaluation_set)} {self.rate.amount(self.target)}"

    def amount(self, value: float, std: float | None = None) -> str:
        """A count, or a mean of counts and its standard deviation; never, if it is infinite."""
        if math.isinf(value):
            return "never"
        return f"{value:g}" if std is None else f"{value:.2f} ± {std:.2f}"

    def named(self, value: float) -> str:
        """A count before its name.

        >>> metric = Until.of(METRICS["top1_error"], 24.1, counted="epochs")
        >>> metric.named(35), metric.named(math.inf)
        ('35 epochs to top-1 error 24.10 %', 'top-1 error 24.10 % not reached')
        """
        if math.isinf(value):
            return f"{self.rate.named(self.target)} not reached"
        return f"{self.amount(value)} {self.words}"

    def number(
        self, rates: Mapping[int, Mapping[str, Any]], evaluation_set: str = FIRST_SET
    ) -> float:
        """The epochs, or steps, that a run had made when it was first evaluated with the target.

        >>> errors = {2: 30.0, 4: 24.1, 6: 24.3}
        >>> rates = {epoch: {"val_top1_error": error} for epoch, error in errors.items()}
        >>> rate = METRICS["top1_error"]
        >>> Until.of(rate, 24.1, counted="epochs").number(rates)
        4.0
        >>> Until.of(rate, 24.1, counted="steps", first_step=lambda epoch: 39 * epoch).number(rates)
        156.0
        """
        key = f"{evaluation_set}_{self.name}"
        for epoch in sorted(rates):
            if rates[epoch].get(key, math.inf) <= self.target:
                return float(self.first_step(epoch) if self.counted == "steps" else epoch)
        return math.inf


def named_metric(full_name: str) -> Metric:
    """The metric of this full name; raises KeyError for one that is not known.

    >>> named_metric("epochs to top1_error 24.1").words
    'epochs to top-1 error 24.10 %'
    """
    counted, _, rest = full_name.partition(" to ")
    if not rest:
        return METRICS[full_name]
    name, _, target = rest.partition(" ")
    return Until.of(METRICS[name], float(target), counted=counted)


def _one_of_many(classes: int) -> float:
    """The error, in percent, of who guesses one of so many classes."""
    return 100 * (1 - 1 / classes)


# Goyal et al. 2017: the median error of the last 5 epochs.
_GOYAL = "(section 5.1 of the paper), on one central view of every image"
METRICS = {
    metric.name: metric
    for metric in (
        Metric("loss", "loss", "losses", guess=math.log),
        Metric(
            "top1_error",
            "top-1 error",
            "errors",
            guess=_one_of_many,
            unit="%",
            last_epochs=5,
            note=_GOYAL,
        ),
        Metric(
            "top5_error",
            "top-5 error",
            "errors",
            guess=lambda classes: 100 * (1 - min(5, classes) / classes),
            unit="%",
            last_epochs=5,
            note=_GOYAL,
        ),
        Metric("perplexity", "perplexity", "perplexities", guess=float),
        # Who guesses finds no span of the right words and kind.
        Metric("f1_error", "F1 error", "errors", guess=lambda classes: 100.0, unit="%"),
        Metric("token_error", "token error", "errors", guess=_one_of_many, unit="%"),
        Metric("fine_error", "fine-grained error", "errors", guess=_one_of_many, unit="%"),
        Metric("binary_error", "binary error", "errors", guess=lambda classes: 50.0, unit="%"),
        Metric("node_error", "node error", "errors", guess=_one_of_many, unit="%"),
    )
}
"""All rates by their names; a run of which nothing else is known is of TOP1."""

TOP1 = METRICS["top1_error"]
