"""Is this the number that was published? Inside, outside, or not comparable and why."""

from dataclasses import dataclass

from lsgd.recipe import Recipe, Target
from lsgd.report.groups import Group, differences, in_words
from lsgd.report.welch import Difference, Sample, difference

PAPER_RUNS = 5
"""Goyal et al. 2017, section 5.1: all of its numbers are of five runs."""


@dataclass(frozen=True)
class Verdict:
    """How the numbers of one recipe stand to its published one."""

    word: str
    """One of: inside, outside, not comparable, none published."""
    difference: Difference | None = None
    """Our number less the published one, where the two can be compared."""
    reasons: tuple[str, ...] = ()
    """The reasons why the two cannot be compared."""


def judge(group: Group) -> Verdict:
    """Inside if the 95 % interval of the difference (Welch) has 0 in it, outside if it has not.

    So inside means that no difference is shown, not that there is none.
    """
    target = target_of(group)
    if target is None or group.published is None:
        return Verdict("none published")
    reasons = (*_of_the_recipe(group.recipe, group.published), *_of_the_runs(group, target))
    if reasons or group.sample is None or target.std is None:
        return Verdict("not comparable", reasons=reasons)
    gap = difference(group.sample, Sample(PAPER_RUNS, target.number, target.std))
    return Verdict("inside" if gap.low <= 0 <= gap.high else "outside", gap)


def target_of(group: Group) -> Target | None:
    """The published number that the group is held against, if there is one of its metric."""
    target = group.published.target if group.published else None
    return target if target and target.metric == group.metric else None


def _of_the_recipe(ours: Recipe, theirs: Recipe) -> list[str]:
    """The reasons that lie in differences between our recipe and the published one."""
    changed = differences(ours, theirs)
    named = {
        "data.name": "{} data, not {}",
        "data.image_size": "{} pixels, not {}",
        "model.name": "{}, not {}",
        "epochs": "{} epochs, not {}",
    }
    reasons = [text.format(*changed[key]) for key, text in named.items() if key in changed]
    if "data.name" not in changed:
        # On other data the lr, the minibatch and so on are of another scale anyway.
        reasons += [in_words(change) for change in changed.items() if change[0] not in named]
    # What the published recipe declares too, such as the row of an ablation, is no difference.
    undeclared = [rule for rule in ours.deviations if rule not in theirs.deviations]
    return [*reasons, *([f"declared deviations: {', '.join(undeclared)}"] if undeclared else [])]


def _of_the_runs(group: Group, target: Target) -> list[str]:
    n = len(group.runs)
    reasons = []
    if n < PAPER_RUNS:
        seeds = "1 seed" if n == 1 else f"{n} seeds"
        reasons.append(f"{seeds}, not {PAPER_RUNS}" if n else "no finished run")
    if group.diverged:
        reasons.append(f"{group.diverged} of {n} diverged")
    if target.std is None:
        reasons.append("published without a standard deviation")
    return reasons
