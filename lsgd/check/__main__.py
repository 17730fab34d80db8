"""Is this recipe its paper's? `python -m lsgd.check +recipe=NAME [key=value ...]`."""

import sys
import textwrap
from collections.abc import Sequence

from lsgd import config
from lsgd.check import Finding, build, findings
from lsgd.check.papers import PAPERS
from lsgd.errors import Refused
from lsgd.job.command import run_command
from lsgd.recipe import Recipe
from lsgd.recipe.checks import check_known

ABOUT = """\
Compare a recipe with its paper, rule by rule, on the built network, optimizer, schedule, sampler
and loader: Goyal et al. 2017, or whom `paper` names. Nothing is trained and no data is needed.
Where the run differs, the recipe has to say so, in `deviations: {rule: reason}`; the exit code is 0
if it does and 2 if not.
"""
WIDTHS = 20, 10, 56
"""The widths of the columns rule, section and what the run does; the verdict ends at 99."""


def table(recipe: Recipe, results: Sequence[Finding]) -> str:
    """A table of one row per rule; a deviation has the paper's way and the reason in addition."""
    declared = recipe.deviations
    lines = [_row("rule", "section", "this run", "")]
    for finding in results:
        verdict = "same" if finding.same else "deviation"
        lines.append(_row(finding.rule, finding.section, finding.run, verdict))
        if not finding.same:
            lines.append(_row("", "", f"paper: {finding.paper}", ""))
            reason = declared.get(finding.rule) or "not declared"
            lines.append(_row("", "", f"why: {reason}", ""))
    return "\n".join([*lines, "", PAPERS[recipe.paper].NOTE])


def _row(rule: str, section: str, text: str, verdict: str) -> str:
    parts = textwrap.wrap(text, WIDTHS[2], break_on_hyphens=False) or [""]
    firsts = [(rule, section, verdict), *[("", "", "")] * (len(parts) - 1)]
    return "\n".join(
        f"{a:<{WIDTHS[0]}} {b:<{WIDTHS[1]}} {part:<{WIDTHS[2]}} {c}".rstrip()
        for (a, b, c), part in zip(firsts, parts, strict=True)
    )


def verdict(recipe: Recipe, results: Sequence[Finding]) -> str:
    """The concluding sentence; raises Refused unless the deviations are those declared."""
    who = PAPERS[recipe.paper].WHO
    deviating = [finding.rule for finding in results if not finding.same]
    undeclared = [rule for rule in deviating if not recipe.deviations.get(rule)]
    absent = [rule for rule in recipe.deviations if rule not in deviating]
    complaints = []
    if undeclared:
        words = " ".join(f"\"+deviations.{rule}='…'\"" for rule in undeclared)
        complaints.append(
            f"deviates from {who} in {_and(undeclared)} and does not say so: put it right, or "
            f"say why with {words}"
        )
    if absent:
        words = " ".join(f"deviations.{rule}=null" for rule in absent)
        complaints.append(
            f"declares a deviation in {_and(absent)} that is not there: take it back with {words}"
        )
    if complaints:
        raise Refused(f"{recipe.name} {'; it '.join(complaints)}")
    if not deviating:
        return f"{recipe.name} follows {who} in all {len(results)} rules"
    return (
        f"{recipe.name} follows {who} in {len(results) - len(deviating)} of {len(results)} rules "
        f"and declares where it does not: {_and(deviating)}"
    )


def _and(rules: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(rules[:-1]), rules[-1]) if part)


def check(recipe: Recipe) -> None:
    """Print the table and the verdict; raises Refused if they differ from what is declared.

    So it does for what no paper here is about.
    """
    remedy = "the paper has no rules for another, so train it without this check"
    check_known(recipe, "lsgd.check", remedy, workloads=("images",), strategies=("allreduce",))
    if recipe.rehearse:
        raise Refused("rehearse=true is the run in miniature; check the run itself, without it")
    print(recipe.summary())
    print(f"asked by the rules of {PAPERS[recipe.paper].TITLE}", end="\n\n", flush=True)
    results = findings(build(recipe))
    print(table(recipe, results), end="\n\n", flush=True)
    if unasked := PAPERS[recipe.paper].rules(recipe).keys() - {each.rule for each in results}:
        text = (
            f"rules for which this run has nothing that could follow them: {_and(sorted(unasked))}"
        )
        print(textwrap.fill(text, 100), end="\n\n", flush=True)
    print(textwrap.fill(verdict(recipe, results), 100))


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    return run_command(lambda: check(config.load(argv, program="lsgd.check", about=ABOUT)))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
