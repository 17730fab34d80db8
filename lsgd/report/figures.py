"""The figures of a report on runs, each with a description in words."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lsgd.own_parts import is_import_path
from lsgd.recipe.settings import TARGET_DATA
from lsgd.report.batch_size_sweep import BatchSizeSweep
from lsgd.report.drawing import BLUE, COLOURS, GREY, RED, Figure, draw_figure, file_names
from lsgd.report.findings import Findings
from lsgd.report.formatting import format_batch_size, format_group
from lsgd.report.groups import RecipeRuns
from lsgd.report.predicted import draw_worst_images
from lsgd.report.speed import Speed
from lsgd.report.verdict import target_of
from lsgd.rules.metric import Metric
from lsgd.run.rows import finite_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDE = 15
"""The difference from a baseline above which a linear axis would hide those below one."""
GAP_TICKS = (0, 0.5, 1, 2, 5, 10, 20, 50)
"""The tick labels of differences from a baseline on an axis that is logarithmic above 1."""
TICKS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 40, 50, 70)
"""The tick labels of two decades on a logarithmic axis."""
NOISE_EPOCHS = 3
"""The epochs over which |G|² and tr Σ are averaged."""
DASHES = ("-", "--", ":", "-.")


def draw(findings: Findings) -> list[Figure]:
    """Draw the figures of a report on runs, as far as the findings have data for them."""
    figures = []
    for index, ladder in enumerate(findings.sweeps):
        name = "figure1" if index == 0 else f"figure1-{index + 1}"
        figures.append(_against_minibatch(name, ladder, findings))
        if published := _published_by_steps(ladder):
            figures.append(_against_steps(f"{name}-steps", ladder, published, findings))
    figures += _curves(findings)
    if findings.groups:
        figures.append(_learning_rates(findings.groups))
    if noisy := [(group, points) for group in findings.groups if (points := _noise(group))]:
        figures.append(_noise_scales(noisy))
    if any(speed.efficiency for speed in findings.speeds):
        figures.append(_scaling(findings.speeds, findings.example_unit))
    return [*figures, *draw_worst_images(findings)]


def _against_minibatch(name: str, ladder: BatchSizeSweep, findings: Findings) -> Figure:
    """Draw the metric of a sweep against the minibatch size, as in the paper's figure 1."""
    groups, metric = ladder.groups, findings.metric
    sizes = [group.recipe.batch_size for group in groups]
    finished = [(g.recipe.batch_size, sample) for g in groups if (sample := g.sample)]
    without = [(g.recipe.batch_size, value) for g in groups for value in g.failed_values]

    def plot(axes: "Axes") -> None:
        published = [
            (group.recipe.batch_size, target.value, target.std or 0)
            for group in groups
            if group.recipe.data.name in TARGET_DATA and (target := target_of(group))
        ]
        if published:
            x, y, std = zip(*published, strict=True)
            axes.errorbar(x, y, std, color=GREY, lw=1, capsize=2, label="the paper")
        axes.errorbar(
            [size for size, _ in finished],
            [sample.mean for _, sample in finished],
            [0 if sample.n < 2 else sample.std for _, sample in finished],
            color=BLUE,
            marker="o",
            ms=4,
            capsize=3,
            label="mean ± std over seeds",
        )
        if without:
            label = _without_value_label(groups)
            axes.plot(*zip(*without, strict=True), color=RED, marker="x", ls="", label=label)
        base = ladder.baseline.claim_sample
        if base:
            limit = base.mean + ladder.margin
            label = f"baseline + {metric.format_difference(f'{ladder.margin:g}')}"
            axes.axhline(limit, color=RED, ls="--", lw=1, label=label)
        means = [sample.mean for _, sample in finished] + [guess for _, guess in without]
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [format_batch_size(size) for size in sizes])
        # On a linear axis a diverged run would hide the differences between the others.
        if means and max(means) > 3 * min(means) > 0:
            axes.set_yscale("log")
            ticks = _log_ticks(metric, 0.7 * min(means), 1.3 * max(means))
            axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel(f"minibatch, {findings.batch_unit}")
        axes.set_ylabel(metric.axis_label(metric.label_on("validation")))
        above = axes.secondary_xaxis("top")
        above.set_xticks(sizes, [str(group.recipe.steps_per_epoch) for group in groups])
        above.minorticks_off()
        above.set_xlabel("steps per epoch")
        axes.legend()

    noun = metric.noun.capitalize()
    alt = f"{noun} against minibatch: " + ", ".join(
        f"{group.recipe.batch_size}: {format_group(group)}" for group in groups
    )
    return draw_figure(name, f"{noun} against minibatch size (the paper's figure 1)", alt, plot)


def _without_value_label(groups: Sequence[RecipeRuns]) -> str:
    """Return the label of the runs that count at the chance level in a figure of these recipes."""
    reasons = [
        *(["diverged"] if any(group.diverged for group in groups) else []),
        *(["never at the target"] if any(group.never_reached for group in groups) else []),
    ]
    return f"runs {' or '.join(reasons)}"


def _published_by_steps(ladder: BatchSizeSweep) -> list[tuple[int, float, float]]:
    """Return the steps per epoch, difference from the baseline and std of the published numbers.

    They are those of the runs of the paper that a sweep's recipes represent on another dataset. The
    list is empty on the paper's own, where both have the same axis of minibatches, and as long as
    the baseline has not been run.
    """
    baseline = ladder.baseline
    base = target_of(baseline)
    if base is None or baseline.claim_sample is None or baseline.recipe.data.name in TARGET_DATA:
        return []
    points = [
        (group.published.steps_per_epoch, target.value - base.value, target.std or 0)
        for group in ladder.groups
        if group.published and (target := target_of(group))
    ]
    return points if len(points) > 1 else []


def _against_steps(
    name: str, ladder: BatchSizeSweep, published: list[tuple[int, float, float]], findings: Findings
) -> Figure:
    """Draw a sweep's differences from its baseline against steps per epoch, beside the paper's."""
    metric, base = findings.metric, ladder.baseline.claim_sample
    ours = [
        (group.recipe.steps_per_epoch, sample.mean - base.mean, 0 if sample.n < 2 else sample.std)
        for group in ladder.groups
        if base and (sample := group.sample)
    ]
    without = [
        (group.recipe.steps_per_epoch, value - base.mean, 0.0)
        for group in ladder.groups
        for value in group.failed_values
        if base
    ]
    reason = _without_value_label(ladder.groups)
    margin = metric.format_difference(f"{ladder.margin:g}")

    def plot(axes: "Axes") -> None:
        for points, colour, marker, label in (
            (published, GREY, "s", "the paper, ImageNet"),
            (ours, BLUE, "o", "here: mean ± std over seeds"),
        ):
            if points:
                x, y, std = zip(*points, strict=True)
                axes.errorbar(x, y, std, color=colour, marker=marker, ms=4, capsize=3, label=label)
        if without:
            x, y, _ = zip(*without, strict=True)
            axes.plot(x, y, color=RED, marker="x", ls="", label=reason)
        axes.axhline(ladder.margin, color=RED, ls="--", lw=1, label=f"baseline + {margin}")
        axes.set_xscale("log", base=2)
        axes.invert_xaxis()  # as in figure 1, larger minibatches are on the right
        steps = [group.recipe.steps_per_epoch for group in ladder.groups]
        axes.set_xticks(steps, [str(each) for each in steps])
        largest = max(gap for _, gap, _ in [*published, *ours, *without])
        if largest > WIDE:
            axes.set_yscale("symlog", linthresh=1)
            ticks = [tick for tick in GAP_TICKS if tick < 1.3 * largest]
            axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.set_ylim(bottom=min(gap - std for _, gap, std in [*published, *ours]) - 0.5)
        axes.minorticks_off()
        axes.set_xlabel("steps per epoch: the minibatch grows to the right")
        axes.set_ylabel(f"{metric.noun} above the baseline" + ", points" * (metric.unit == "%"))
        axes.legend()

    noun = metric.noun.capitalize()
    alt = f"{noun} above the baseline by steps per epoch: " + "; ".join(
        f"{who} {', '.join(f'{steps}: {gap:+.2f}' for steps, gap, _ in points)}"
        for who, points in (("here", ours), (reason, without), ("the paper", published))
        if points
    )
    title = f"{noun} above the baseline against steps per epoch, beside the paper's figure 1"
    return draw_figure(name, title, alt, plot)


def _log_ticks(metric: Metric, low: float, high: float) -> list[float]:
    """Return the ticks of a metric's logarithmic axis that lie between two values above 0."""
    first = math.floor(math.log10(low) / 2)
    scales = [100.0**power for power in range(first, math.ceil(math.log10(high) / 2))]
    ticks = [scale * tick for scale in scales for tick in TICKS]
    if metric.upper_bound is not None:
        ticks = [*(tick for tick in ticks if tick < metric.upper_bound), 90]
    return [tick for tick in ticks if low < tick < high]


def _curves(findings: Findings) -> list[Figure]:
    """Draw a figure of curves for each recipe against the baseline, as the paper's 2 and 3.

    A recipe all of whose runs diverged in their first epoch has no curve.
    """
    drawable = [group for group in findings.groups if any(run.epochs for run in group.runs)]
    baseline = findings.baseline if findings.baseline in drawable else None
    shown = [group for group in drawable if group is not baseline]
    groups = shown or ([baseline] if baseline else [])
    names = file_names([f"curves-{group.recipe.name}" for group in groups])
    return [
        _curve(name, group, baseline if shown else None, findings.metric)
        for name, group in zip(names, groups, strict=True)
    ]


def _curve(name: str, group: RecipeRuns, baseline: RecipeRuns | None, metric: Metric) -> Figure:
    """Draw the training and validation curves of a recipe by epoch, beside the baseline's."""

    def plot(axes: "Axes") -> None:
        for each, colour in ((baseline, GREY), (group, BLUE)):
            if each:
                _line(axes, each, f"train_{metric.name}", colour, each.label, wide=True)
                _line(axes, each, metric.key, colour, "validation", wide=False)
        target = target_of(group)
        if target and target.curve:
            x, y = zip(*sorted(target.curve.items()), strict=True)
            axes.plot(x, y, color=RED, marker="o", ms=4, ls="", label="published")
        axes.set_ylim(0, metric.base_metric.upper_bound)
        _label_by_epoch(axes, metric.base_metric.axis_label(metric.base_metric.label))

    against = f" against {baseline.label}" if baseline else ""
    return draw_figure(
        name,
        f"{group.label}{against}",
        f"Training and validation {metric.base_metric.noun} of {group.label}{against}, by epoch",
        plot,
        height=2.7,
    )


def _label_by_epoch(axes: "Axes", label: str) -> None:
    axes.set_xlim(left=0)
    axes.set_xlabel("epochs")
    axes.set_ylabel(label)
    axes.figure.legend(loc="outside lower center", ncols=2)


def _line(
    axes: "Axes", group: RecipeRuns, key: str, colour: str, label: str, *, wide: bool
) -> None:
    """Draw a metric's mean over a recipe's runs by epoch, with a band of one std if `wide`."""
    curves = [run.epochs for run in group.runs]
    points = []
    for epoch in sorted(set().union(*curves)):
        rows = [curve[epoch] for curve in curves if epoch in curve]
        values = [value for row in rows if (value := finite_number(row, key)) is not None]
        if values:
            std = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
            points.append((epoch, float(np.mean(values)), std))
    if not points:
        return
    x, mean, band = (np.array(column) for column in zip(*points, strict=True))
    width, dashes = (1.8, "-") if wide else (1.0, "--")
    dot = "." if len(points) == 1 else ""  # a line of one point is invisible
    axes.plot(x, mean, color=colour, label=label, lw=width, ls=dashes, marker=dot)
    if wide:
        axes.fill_between(x, mean - band, mean + band, color=colour, alpha=0.2, lw=0)


def _learning_rates(groups: list[RecipeRuns]) -> Figure:
    def plot(axes: "Axes") -> None:
        for index, group in enumerate(groups):
            x, y = _lr_points(group)
            style = DASHES[index % len(DASHES)]
            axes.plot(x, y, label=group.label, color=COLOURS[index % len(COLOURS)], ls=style)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        _label_by_epoch(axes, "learning rate")

    return draw_figure(
        "lr",
        "Learning rate",
        "Learning rate of each recipe by epoch",
        plot,
        height=2.5 + 0.1 * len(groups),
    )


def _noise_scales(noisy: list[tuple[RecipeRuns, list[tuple[int, float]]]]) -> Figure:
    def plot(axes: "Axes") -> None:
        for index, (group, points) in enumerate(noisy):
            colour = COLOURS[index % len(COLOURS)]
            axes.plot(*zip(*points, strict=True), color=colour, marker=".", label=group.label)
            stages = group.recipe.stages
            ends = [*(stage.epoch for stage in stages[1:]), group.recipe.epochs]
            for stage, end in zip(stages, ends, strict=True):
                span = (0, 1) if len(stages) == 1 else (stage.epoch, end)
                draw = axes.axhline if len(stages) == 1 else axes.hlines
                draw(stage.batch_size, *span, color=colour, ls=":", lw=1)
        axes.set_yscale("log")
        _label_by_epoch(axes, "noise scale, examples")

    return draw_figure(
        "noise-scale",
        f"Gradient noise scale over {NOISE_EPOCHS} epochs (McCandlish et al. 2018); dotted: the "
        "minibatch",
        "Gradient noise scale of each recipe by epoch, beside its minibatch",
        plot,
        height=2.5 + 0.1 * len(noisy),
    )


def _noise(group: RecipeRuns) -> list[tuple[int, float]]:
    """Return a recipe's gradient noise scale by epoch, over NOISE_EPOCHS epochs and all runs.

    It is NaN, a gap in the line, where the mean of |G|² is not above 0.
    """
    found: dict[int, tuple[list[float], list[float]]] = {}
    for run in group.runs:
        for epoch, row in run.epochs.items():
            square = finite_number(row, "train_gradient_square")
            variance = finite_number(row, "train_gradient_variance")
            if square is not None and variance is not None:
                squares, variances = found.setdefault(epoch, ([], []))
                squares.append(square)
                variances.append(variance)
    points = []
    for epoch in sorted(found):
        window = [
            found[each] for each in range(epoch - NOISE_EPOCHS + 1, epoch + 1) if each in found
        ]
        # The quotient is of means, since |G|² of a single epoch may be zero or negative.
        square = sum(sum(squares) for squares, _ in window)
        variance = sum(sum(variances) for _, variances in window)
        points.append((epoch, variance / square if square > 0 else math.nan))
    return points


def _lr_points(group: RecipeRuns) -> tuple[list[float], list[float]]:
    """Return epochs and learning rates of a recipe at 200 steps and at the steps around jumps.

    Those of a decay that is not lsgd's, which a report does not import, are those of a run's rows.
    """
    recipe, total = group.recipe, group.recipe.total_steps
    if is_import_path(recipe.schedule.decay):
        rows = [row for run in group.runs[:1] for row in run.of_kind("epoch")]
        return [row["epoch"] for row in rows], [row.get("lr", math.nan) for row in rows]
    steps = {int(step) for step in np.linspace(0, total - 1, 200)}
    rule = recipe.schedule
    places = [rule.warmup_epochs, *rule.milestones, *(epoch for epoch, _ in rule.points)]
    for epoch in places:
        jump = round(recipe.stage(epoch).steps_until(epoch))
        steps |= {step for step in (jump - 1, jump, jump + 1) if 0 <= step < total}
    order = sorted(steps)
    return [recipe.epoch(step) for step in order], [recipe.lr(step) for step in order]


def _scaling(speeds: list[Speed], things: str) -> Figure:
    """Draw the throughput of recipes against the number of processes, with ideal scaling."""
    scaled = [speed for speed in speeds if speed.efficiency]
    lines: dict[tuple[str, str], list[Speed]] = {}
    for speed in speeds:
        if any((s.group, s.hardware) == (speed.group, speed.hardware) for s in scaled):
            lines.setdefault((speed.group.label, speed.hardware), []).append(speed)

    def plot(axes: "Axes") -> None:
        for index, ((label, _), line) in enumerate(lines.items()):
            colour = COLOURS[index % len(COLOURS)]
            x = [speed.processes for speed in line]
            y = [speed.per_second for speed in line]
            axes.plot(x, y, marker="o", ms=4, color=colour, label=label)
            ideal = line[0].per_second / line[0].processes
            axes.plot(x, [ideal * count for count in x], color=GREY, ls=":", lw=1)
        counts = sorted({speed.processes for line in lines.values() for speed in line})
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set_xlabel("processes")
        axes.set_ylabel(f"{things}/s")
        axes.legend()

    alt = f"{things.capitalize()} per second against processes"
    return draw_figure("scaling", f"{alt}; dotted: each as fast as the fewest", alt, plot)
