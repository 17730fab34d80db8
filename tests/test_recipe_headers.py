"""What the header of a recipe quotes of others: each number once in one form, with its label.

    # Published: 75.9 % top-1 after 2,512 steps [S arXiv 2102.06356, abstract]

P is a paper, and git a file of a repository, that was read; issue is what was written in a
discussion, and S what others say of it. Runs are judged by the first two; the others are shown.
"""

import re
from dataclasses import dataclass

import pytest
from helpers.composed import composed

from lsgd import config, paths
from lsgd.recipe import Recipe
from lsgd.recipe.points import JUDGED, SHOWN

FILES = paths.recipes_dir() / "recipe"
LINE = re.compile(
    r"# Published: (?P<figure>[^][]+) \[(?P<label>P|git|issue|S) (?P<source>[^][]+)\]"
)
AMOUNT = re.compile(
    r"([\d.]+)(?: \+- [\d.]+)?(?= %| epochs (?:to|of) \d)|(?:perplexity|F1 of|F1) ([\d.]+)"
)
LABELS = {"P": "paper", "git": "git", "issue": "issue", "S": "second-hand"}
"""The labels of a header, as convergence points spell them out."""
OURS = {"fashion_lenet5", "fashion_resnet20", "conll_bilstm_crf", "sst_treelstm"}
"""Recipes whose claim is what we expect of them ourselves."""


@dataclass(frozen=True)
class Quoted:
    """What somebody has published, and how we know."""

    figure: str
    label: str

    @property
    def amounts(self) -> set[float]:
        """Its numbers; of an accuracy the error too."""
        found = amounts(self.figure)
        return found | {round(100 - each, 2) for each in found if "%" in self.figure}


def amounts(text: str) -> set[float]:
    """The rates and the epochs to one of a text."""
    return {float((percent or other).rstrip(".")) for percent, other in AMOUNT.findall(text)}


def quoted(header: list[str]) -> list[Quoted]:
    """The published numbers of a header; a line that is not of the form fails."""
    found = []
    for line in header:
        if line.startswith("# Published:"):
            match = LINE.fullmatch(line)
            assert match, f"not of the form '# Published: FIGURE [LABEL SOURCE]': {line}"
            found.append(Quoted(match["figure"], match["label"]))
    return found


def check_header(header: list[str], recipe: Recipe) -> None:
    """Every number that is claimed has a label, and every number that is judged by a good one."""
    published = quoted(header)
    known = {each for quote in published for each in quote.amounts}
    good = {each for quote in published if LABELS[quote.label] in JUDGED for each in quote.amounts}
    if recipe.name not in OURS:
        assert amounts(header[1]) <= known, f"without a label: {amounts(header[1]) - known}"
    judged = {recipe.target.number} if recipe.target else set()
    if recipe.data.name == "imagenet":
        judged |= {*recipe.metric.epochs_to.values(), *recipe.metric.steps_to.values()}
    assert judged <= good, f"judged by what is not confirmed: {judged - good}"


def header_of(name: str) -> list[str]:
    lines = (FILES / f"{name}.yaml").read_text("utf-8").splitlines()
    return [line for line in lines if line.startswith("#")]


@pytest.mark.parametrize("name", config.recipes())
def test_what_is_published_has_its_label(name: str) -> None:
    check_header(header_of(name), composed(f"+recipe={name}"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[git mlcommons/logging", "[M mlcommons/logging"),
        ("[git mlcommons/logging", "[mlcommons/logging"),
        ("[git mlcommons/logging", "[issue mlcommons/logging"),
        ("[git mlcommons/logging", "[S mlcommons/logging"),
        ("# Published: 35.15", "# Published: 35.25"),
        ("# Published: ", "# In numbers: "),
    ],
)
def test_a_header_that_says_less_is_refused(old: str, new: str) -> None:
    header, recipe = header_of("mlperf_bs3264"), composed("+recipe=mlperf_bs3264")
    check_header(header, recipe)
    changed = [line.replace(old, new) for line in header]
    assert changed != header
    with pytest.raises(AssertionError):
        check_header(changed, recipe)


def test_labels_are_those_of_the_points() -> None:
    """What is a discussion in the points is one in the header, and nothing is judged by it."""
    assert {*LABELS.values()} == {*JUDGED, *SHOWN}
    by_size = {point.batch_size: point for point in config.load_points("mlperf_resnet").points}
    for name in (name for name in config.recipes() if name.startswith("mlperf_")):
        size = int(name.rpartition("_bs")[2])
        # In the discussion they are "~1.6k" and "~3.2k".
        point = by_size[size if name.startswith("mlperf_bs") else size // 100 * 100]
        (own,) = (q for q in quoted(header_of(name)) if " epochs " in q.figure)
        assert LABELS[own.label] == point.label
        if point.label in SHOWN:
            assert amounts(own.figure) == {*point.epochs}
            optim, rule = composed(f"+recipe={name}").optim, composed(f"+recipe={name}").schedule
            assert (optim.name, optim.momentum, optim.weight_decay) == (
                point.optimizer, point.momentum, point.weight_decay
            )  # fmt: skip
            assert (rule.reference_lr, rule.warmup_epochs) == (point.lr, point.warmup_epochs)
