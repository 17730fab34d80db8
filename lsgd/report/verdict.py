"""The comparison of a recipe with its published number: inside, outside, or not comparable."""

from dataclasses import dataclass

from lsgd.recipe import Recipe, Target
from lsgd.report.groups import RecipeRuns, differences, format_change
from lsgd.report.welch import Difference, SampleStats, welch_difference
from lsgd.tables import format_count

LEAST_SEEDS = 5
"""The fewest seeds that are compared: the paper's number (Goyal et al. 2017, section 5.1)."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on whether one recipe's runs agree with its published number."""

    outcome: str
    """One of: inside, outside, not comparable, none published."""
    difference: Difference | None = None
    """Our mean minus the published number, if the two are comparable."""
    reasons: tuple[str, ...] = ()
    """The reasons why the two cannot be compared."""


def judge_against_published(group: RecipeRuns) -> Verdict:
    """Judge whether a recipe's mean metric agrees with the published number.

    The verdict is "inside" if the 95 % interval (Welch) contains 0, and "outside" if not. So
    "inside" means that no difference is shown, not that there is none.
    """
    target = target_of(group)
    if target is None or group.published is None:
        return Verdict("none published")
    reasons = (*_of_the_recipe(group.recipe, group.published), *_of_the_runs(group, target))
    if reasons or group.sample is None or target.std is None or target.runs is None:
        return Verdict("not comparable", reasons=reasons)
    gap = welch_difference(group.sample, SampleStats(target.runs, target.value, target.std))
    return Verdict("inside" if gap.low <= 0 <= gap.high else "outside", gap)


def target_of(group: RecipeRuns) -> Target | None:
    """Return the published number of a recipe, if there is one of the report's metric."""
    target = group.published.target if group.published else None
    return target if target and target.metric == group.metric else None


def _of_the_recipe(ours: Recipe, theirs: Recipe) -> list[str]:
    """Return reasons why two recipes differ too much to compare a published number."""
    changed = differences(ours, theirs)
    named = {
        "data.name": "{} data, not {}",
        "data.image_size": "{} pixels, not {}",
        "model.name": "{}, not {}",
        "epochs": "{} epochs, not {}",
    }
    reasons = [text.format(*changed[key]) for key, text in named.items() if key in changed]
    if "data.name" not in changed:
        # On other data the lr, the minibatch and so on are on another scale anyway.
        reasons += [format_change(change) for change in changed.items() if change[0] not in named]
    # A deviation that the published recipe declares too, as in an ablation, is no difference.
    undeclared = [rule for rule in ours.deviations if rule not in theirs.deviations]
    return [*reasons, *([f"declared deviations: {', '.join(undeclared)}"] if undeclared else [])]


def _of_the_runs(group: RecipeRuns, target: Target) -> list[str]:
    """Return reasons in a recipe's runs against a comparison with a published number."""
    n = len(group.runs)
    reasons = []
    if n < LEAST_SEEDS:
        seeds = format_count(n, "seed")
        reasons.append(f"{seeds}, not {LEAST_SEEDS}" if n else "no finished run")
    if group.diverged:
        reasons.append(f"{group.diverged} of {len(group.counted)} diverged")
    if target.std is None:
        reasons.append("published without a standard deviation")
    elif target.runs is None:
        reasons.append(
            f"not published as the mean of a known number of runs by lsgd's {target.metric.noun} "
            "of a run"
        )
    return reasons
