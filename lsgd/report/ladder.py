"""The published results of all shipped recipes by minibatch: one picture and its table.

It is drawn from `recipes/` alone: the target of each recipe, and the convergence points, whose runs
are seeds of their own. Numbers that were not read at their source are left out.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from lsgd import config, definitions, files, paths
from lsgd.recipe import Recipe
from lsgd.report.drawing import COLOURS, Figure, draw_figure
from lsgd.report.formatting import format_batch_size
from lsgd.tables import escape_markdown, markdown_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "ladder"
"""The name of the page and of its picture, without their endings."""
PUBLISHED = re.compile(r"# Published: [^][]+ (\[(?:P|git) [^][]+\])")
"""A line of a recipe's header with a number that was read at its source."""
MARKERS = "os^vD*PX<>dhp8"
HIGHEST = 36.0
"""The error at the upper edge of the picture, in percent; larger ones are drawn there."""
SIZES = [2**power for power in range(6, 18)]


@dataclass(frozen=True)
class PublishedResult:
    """A published error, or the epochs to one, of a recipe, with its seeds or their spread."""

    recipe: str
    batch_size: int
    optimizer: str
    values: list[float]
    """The number of each run, or their mean alone."""
    std: float | None
    """The published standard deviation, where the numbers of the runs are not."""
    target: float | None
    """The error of which these are the epochs; None for an error."""
    source: str

    @property
    def family(self) -> str:
        """The recipes that differ in minibatch alone; empty for a recipe without others."""
        found = re.fullmatch(r"(.*bs)\d+k?", self.recipe)
        return f"{found[1]}…" if found else ""

    @property
    def whiskers(self) -> tuple[float, float]:
        """The lengths of the whiskers below and above the mean: the std, or to the last runs."""
        if self.std is not None:
            return self.std, self.std
        middle = mean(self.values)
        return middle - min(self.values), max(self.values) - middle

    @property
    def text(self) -> str:
        """The number as the table has it."""
        if self.target is None:
            spread = f" ± {self.std:.2f}" if self.std is not None else ""
            return f"{self.values[0]:.2f} %{spread}"
        runs = " ".join(f"{value:g}" for value in self.values)
        return f"{mean(self.values):.2f} epochs to {self.target:g} %: {runs}"


def published_results(
    load: Callable[[str], Recipe] = lambda name: config.load_recipe([f"recipe={name}"]),
) -> list[PublishedResult]:
    """Return all results on ImageNet that recipes and convergence points have, by minibatch.

    `load` composes a shipped recipe, by its name.
    """
    found = [*_errors(load), *_epochs()]
    return sorted(found, key=lambda each: (each.target is not None, each.batch_size, each.recipe))


def _errors(load: Callable[[str], Recipe]) -> Iterable[PublishedResult]:
    for name in config.sorted_recipe_names():
        header = (paths.recipes_dir() / "recipe" / f"{name}.yaml").read_text("utf-8")
        sources = PUBLISHED.findall(header)
        if not sources:
            continue
        recipe = load(name)
        target = recipe.target
        if recipe.data.name == "imagenet" and target and target.top1_error is not None:
            yield PublishedResult(
                name, recipe.batch_size, recipe.optim.name, [target.top1_error], target.std,
                None, sources[0],
            )  # fmt: skip


def _epochs() -> Iterable[PublishedResult]:
    for points in definitions.load_all_points():
        for point in points.points:
            if point.label in ("git", "paper") and points.rate == "top1_error":
                name = point.recipe or f"mlperf_bs{point.batch_size}"
                yield PublishedResult(
                    name, point.batch_size, point.optimizer, point.epochs, None, points.target,
                    f"[{point.label} {point.source or points.source}]",
                )  # fmt: skip


def describe(results: list[PublishedResult]) -> str:
    """Return the description of the picture for readers who cannot see it."""
    return (
        f"{len(results)} published results by minibatch and optimizer, with the spread of their "
        "seeds: top-1 errors above, epochs to an error below"
    )


def draw(results: list[PublishedResult]) -> Figure:
    """Draw published errors, and epochs to an error, against the minibatch, by optimizer."""
    optimizers = sorted({each.optimizer for each in results}, reverse=True)
    colours = dict(zip(optimizers, COLOURS, strict=False))
    counts = Counter(each.family for each in results)
    families = sorted(family for family, count in counts.items() if family and count > 1)
    markers = {family: MARKERS[i % len(MARKERS)] for i, family in enumerate(families)}

    def plot(axes: "Axes") -> None:
        figure = axes.figure
        axes.remove()
        upper, lower = figure.subplots(2, 1, sharex=True)
        for place, is_error in ((upper, True), (lower, False)):
            shown = [each for each in results if (each.target is None) == is_error]
            for optimizer in optimizers:
                for family in ["", *families]:
                    own = [
                        each
                        for each in shown
                        if each.optimizer == optimizer
                        and (each.family if each.family in markers else "") == family
                    ]
                    if own:
                        _line(place, own, colours[optimizer], markers.get(family))
        upper.set_ylim(top=HIGHEST)
        upper.set_ylabel("published top-1 error, %")
        lower.set_ylabel("published epochs to 24.1 or 25.1 %")
        lower.set_xscale("log", base=2)
        lower.set_xticks(SIZES, [format_batch_size(size) for size in SIZES])
        lower.minorticks_off()
        lower.set_xlabel("minibatch, images")
        for optimizer in optimizers:
            upper.plot([], [], color=colours[optimizer], lw=3, label=optimizer)
        for family in families:
            upper.plot([], [], color="#8a8a8a", marker=markers[family], ms=4, label=family)
        upper.plot([], [], color="#8a8a8a", marker=".", ls="", label="other recipes")
        figure.legend(loc="outside lower center", ncols=3)

    title = "Published results on ImageNet by minibatch, ResNet-50 in most"
    return draw_figure(NAME, title, describe(results), plot, height=7.4)


def _line(axes: "Axes", own: list[PublishedResult], colour: str, marker: str | None) -> None:
    """Draw results of one optimizer, those of a family, which has a marker, with a line."""
    x = [each.batch_size for each in own]
    y = [mean(each.values) for each in own]
    spread = list(zip(*(each.whiskers for each in own), strict=True))
    y = [min(value, HIGHEST - 0.3) if own[0].target is None else value for value in y]
    axes.errorbar(
        x,
        y,
        spread,
        color=colour,
        marker=marker or ".",
        ms=4,
        ls="-" if marker else "",
        lw=0.8,
        capsize=2,
        alpha=0.85,
    )


def page(results: list[PublishedResult]) -> str:
    """Return the page, in Markdown: the picture, how to read it, and a table with sources."""
    head = ["recipe", "minibatch", "optimizer", "published", "source"]
    rows = [
        [f"`{each.recipe}`", f"{each.batch_size:,}", each.optimizer, each.text,
         escape_markdown(each.source)]
        for each in results
    ]  # fmt: skip
    read = f"""\
Top-1 errors on ImageNet at the end of a run, and the epochs that runs took to 24.1 % or 25.1 %, as
their authors published them: we have run none of them. Whiskers are a published standard deviation,
or reach from the first to the last run. A line is a family of recipes that differ in minibatch and
lr. Errors above {HIGHEST:g} % are drawn at the edge; those of `cloudtpu` are an upper bound.

Sources differ in network, augmentation, epochs and evaluation, as their recipes have them: a point
above another does not compare their optimizers.

`[P …]` is a paper and `[git …]` a file of a repository that was read; other numbers are left out.
`lsgd report --ladder` writes this page from the recipes."""
    picture = f"![{describe(results)}]({NAME}.svg)"
    table = markdown_table(head, rows)
    return "\n\n".join(["# Published results by minibatch", picture, read, table]) + "\n"


def write_ladder(out: Path) -> Path:
    """Write the page of published results and its picture into a folder; return the page."""
    results = published_results()
    svg = draw(results).svg.encode()
    files.write_files(out, {f"{NAME}.svg": svg, f"{NAME}.md": page(results).encode()})
    return out / f"{NAME}.md"
