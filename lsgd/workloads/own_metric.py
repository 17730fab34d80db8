"""Metrics of images of one's own: whole counts that are added up, and one number of them."""

import re
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from lsgd.errors import UsageError
from lsgd.own_parts import METRIC, imported_part, refusing_errors
from lsgd.recipe import Recipe
from lsgd.rules.metric import Metric

PROBE_IMAGES, FIRST = 12, 5
"""The number of made-up images with which a metric is tried, and of those in the first part."""


class ImageMetric(Protocol):
    """The interface of a metric of images; lower is better.

    Its counts are added up over micro-batches and processes, so that it depends on neither. In rows
    it has the name of its class in small letters; one that ends in Error is a percentage.
    """

    @property
    def count_names(self) -> tuple[str, ...]:
        """The names of the counts, such as images and right."""

    def counts(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the counts of a micro-batch, whole numbers of shape (counts,), on its device.

        Each is a sum over the images, whose logits have the shape (images, classes).
        """

    def value(self, counts: list[int]) -> float:
        """Return the metric of summed counts, a finite number."""


HIGHER_IS_BETTER = re.compile(
    "acc|accuracy|au(c|prc|roc)|bleu|dice|f1|m?iou|kappa|likelihood|mcc|mrr|ndcg|precision|"
    "psnr|r2|recall|rouge|sensitivity|specificity|ssim"
)
"""Words for metrics whose highest value is the best."""
LOWER_IS_BETTER = re.compile(
    "brier|complement|cost|deficit|distance|divergence|drop|ece|eer|err|error|fnr|fpr|gap|inv|"
    "inverse|kl|loss|mae|minus|miss|mse|neg|negative|nll|rmse|std"
)
"""Words that make the lowest value of such a metric the best."""


def is_higher_better(name: str) -> bool:
    """Return whether the name of a metric is known to be one whose highest value is the best.

    >>> [is_higher_better(name) for name in ("accuracy", "macro_f1", "io_u", "r2_score")]
    [True, True, True, True]
    >>> [is_higher_better(name) for name in ("f1_error", "rmse", "map_mse", "fpr_at_recall")]
    [False, False, False, False]
    """
    words = [*name.split("_"), name.replace("_", "")]
    return any(map(HIGHER_IS_BETTER.fullmatch, words)) and not any(
        map(LOWER_IS_BETTER.fullmatch, words)
    )


def check_direction(recipe: Recipe, metric: Metric, part: str) -> None:
    """Raise UsageError if the highest value is the best of a metric that judges a new run.

    `metric` is that of the workload, and `part` the override that names the user's own part with
    it. A run that has begun with such a metric can be resumed.
    """
    if recipe.run_dir and Path(recipe.run_dir, "config.yaml").exists():
        return
    goal, stop = recipe.metric, recipe.stop
    stopping = [stop.metric] if stop.patience is not None else []
    names = [metric.name, *goal.epochs_to, *goal.steps_to, *stopping, recipe.keep_best or ""]
    if wrong := next(filter(is_higher_better, names), None):
        raise UsageError(
            f"{part} has the metric {wrong}, whose highest value is the best, and a run is judged "
            f"by the lowest; return 100 minus its percentage, under the name {wrong}_error; if its "
            "lowest value is the best, write another name"
        )


def open_metric(recipe: Recipe) -> ImageMetric | None:
    """Make the metric of a recipe's user, or return None for lsgd's own.

    It is tried on made-up images. Raises UsageError if it fails, or its counts are no sums.
    """
    if recipe.metric.own_name is None:
        return None
    part = imported_part(METRIC, recipe.metric.name, recipe.metric.source)
    made: ImageMetric = part(recipe.metric.options, classes=recipe.data.classes)
    draws = torch.Generator().manual_seed(recipe.seed)
    logits = torch.randn(PROBE_IMAGES, recipe.data.classes, generator=draws)
    labels = torch.arange(PROBE_IMAGES) % recipe.data.classes
    where = f"{part.override} fails on {PROBE_IMAGES} made-up images"
    with refusing_errors(where):
        kinds = len(made.count_names)
        whole, *parts = (
            made.counts(logits[some], labels[some])
            for some in (slice(None), slice(FIRST), slice(FIRST, None))
        )
        shape = tuple(whole.shape)
    if shape != (kinds,) or whole.dtype != torch.int64:
        raise UsageError(
            f"{part.override} returns counts of shape {shape} of {whole.dtype}, and has {kinds} "
            "count_names; return an int64 tensor with a number for each"
        )
    if not whole.equal(parts[0] + parts[1]):
        raise UsageError(
            f"{part.override} has counts of {PROBE_IMAGES} images that are not the sum of those of "
            f"the first {FIRST} and of the others, so that the metric would depend on the number "
            "of processes; count each image for itself"
        )
    with refusing_errors(where):
        float(made.value(whole.tolist()))
    return made
