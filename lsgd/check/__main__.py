"""The command line `python -m lsgd.check recipe=NAME [key=value ...]`."""

import sys
import textwrap
from collections.abc import Sequence
from functools import partial

from lsgd import recipe_parser
from lsgd.check import RuleResult, build_learner, rule_results
from lsgd.check.papers import PAPERS, rules_of
from lsgd.errors import UsageError
from lsgd.job.command import run_command
from lsgd.recipe import Recipe
from lsgd.recipe.checks import check_supported
from lsgd.tables import wrapped_row

ABOUT = """\
Compare a recipe with its paper, rule by rule, on the built network, optimizer and schedule. The
paper is Goyal et al. 2017, or the one that `paper` names. Nothing is trained and no data is needed.
Where the run differs, the recipe has to declare it in `deviations: {rule: reason}`; the exit code
is 0 if it does and 2 if not.
"""
WIDTHS = 20, 10, 56
"""The widths of the columns for rule, section and run; the verdict ends at column 99."""
_row = partial(wrapped_row, WIDTHS)


def table(recipe: Recipe, results: Sequence[RuleResult]) -> str:
    """Format the results of a paper's rules as a table, with the reason of each deviation."""
    declared = recipe.deviations
    lines = [_row("rule", "section", "this run", "")]
    for finding in results:
        verdict = "same" if finding.is_followed else "deviation"
        lines.append(_row(finding.rule, finding.section, finding.run, verdict))
        if not finding.is_followed:
            lines.append(_row("", "", f"paper: {finding.paper}", ""))
            reason = declared.get(finding.rule) or "not declared"
            lines.append(_row("", "", f"why: {reason}", ""))
    return "\n".join([*lines, "", PAPERS[recipe.paper].NOTE])


def verdict(recipe: Recipe, results: Sequence[RuleResult]) -> str:
    """Return a sentence on how many of its paper's rules a recipe follows.

    Raises UsageError for undeclared deviations, and for declared ones that do not occur.
    """
    who = PAPERS[recipe.paper].WHO
    deviating = [finding.rule for finding in results if not finding.is_followed]
    undeclared = [rule for rule in deviating if not recipe.deviations.get(rule)]
    absent = [rule for rule in recipe.deviations if rule not in deviating]
    complaints = []
    if undeclared:
        overrides = " ".join(f"\"+deviations.{rule}='…'\"" for rule in undeclared)
        complaints.append(
            f"deviates from {who} in {_and(undeclared)} and does not declare it: correct it, or "
            f"declare the reason with {overrides}"
        )
    if absent:
        overrides = " ".join(f"deviations.{rule}=null" for rule in absent)
        complaints.append(
            f"declares a deviation in {_and(absent)} that does not exist: remove it with "
            f"{overrides}"
        )
    if complaints:
        raise UsageError(f"{recipe.name} {'; it '.join(complaints)}")
    if not deviating:
        return f"{recipe.name} follows {who} in all {len(results)} rules"
    return (
        f"{recipe.name} follows {who} in {len(results) - len(deviating)} of {len(results)} rules "
        f"and declares where it does not: {_and(deviating)}"
    )


def _and(rules: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(rules[:-1]), rules[-1]) if part)


def check(recipe: Recipe) -> None:
    """Print how a recipe follows each rule of its paper, and a concluding sentence.

    Raises UsageError if the deviations are not those declared, or for unsupported recipes.
    """
    remedy = "the paper has no rules for it, so train without this check"
    check_supported(recipe, "lsgd.check", remedy, workloads=("images",), strategies=("allreduce",))
    if recipe.rehearse:
        raise UsageError(
            "dry_run=true is a miniature of the run; leave it out to check the run itself"
        )
    print(recipe.summary())
    print(f"asked by the rules of {PAPERS[recipe.paper].TITLE}", end="\n\n", flush=True)
    results = rule_results(build_learner(recipe))
    print(table(recipe, results), end="\n\n", flush=True)
    if unasked := rules_of(recipe).keys() - {each.rule for each in results}:
        text = f"rules that do not apply to this run: {_and(sorted(unasked))}"
        print(textwrap.fill(text, 100), end="\n\n", flush=True)
    print(textwrap.fill(verdict(recipe, results), 100))


def main(argv: Sequence[str]) -> int:
    """Check the recipe of a command line against its paper and return the exit code."""
    return run_command(
        lambda: check(recipe_parser.parse_recipe(argv, program="lsgd.check", about=ABOUT))
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
