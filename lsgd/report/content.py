"""What a report says, as headings, sentences, tables and figures: the same in Markdown and HTML."""

import math
from collections import Counter

from lsgd.report.blocks import (
    Block,
    Content,
    Figures,
    Listing,
    Outcomes,
    Section,
    Table,
)
from lsgd.report.claims import FAILS, HOLDS, OPEN, Decision
from lsgd.report.convergence import ConvergedRuns, judged_blocks, points_for
from lsgd.report.drawing import Figure
from lsgd.report.findings import Findings
from lsgd.report.groups import Group
from lsgd.report.ladder import Ladder
from lsgd.report.speed import place
from lsgd.report.verdict import Verdict, target_of
from lsgd.report.welch import difference
from lsgd.report.wording import (
    NONE,
    count,
    interval,
    mean_and_std,
    number_of,
    short,
    signed,
    spread,
    steps,
)
from lsgd.rules.convergence import EvaluationGrid
from lsgd.rules.metric import TOP1, Metric, Until
from lsgd.run.rows import Row
from lsgd.run.tuned import SEARCHES


def compose(
    findings: Findings,
    figures: list[Figure],
    command: str,
    version: str,
    trains: str | None = None,
) -> Content:
    """The report on these findings; `command` made it, with lsgd as `version` says.

    `trains` is the command that trains the missing runs, if it is known.
    """
    sections = [
        Section("Verdict", _verdict(findings)),
        Section(findings.metric.plural.capitalize(), _numbers(findings)),
        Section("Judged as MLPerf does", _judged(findings)),
        Section("Figures", _figures(figures, findings.metric)),
        Section("Tuned", _tuned(findings)),
        Section("Speed", _speeds(findings)),
        Section("Left out", _left_out(findings)),
        Section("What next", _next(findings, trains)),
        Section("Runs", _runs(findings)),
        Section("How the numbers are made", [Listing(_rules(findings.metric))]),
        Section("Hardware and versions", _machines(findings)),
        Section("Made by", [f"`{command}`", version]),
    ]
    lead = [findings.study.question, f"After {findings.study.source}."] if findings.study else []
    return Content(
        title_of(findings),
        [*lead, progress(findings)],
        [section for section in sections if section.blocks],
    )


def title_of(findings: Findings) -> str:
    """The title of the study, or else the names of the recipes."""
    if findings.study:
        return findings.study.title
    names = sorted({group.recipe.name for group in findings.groups})
    data = sorted({group.recipe.data.name for group in findings.groups})
    if 0 < len(names) <= 3:
        return ", ".join(names)
    return f"{len(names)} recipes on {', '.join(data)}" if names else "No finished run"


def progress(findings: Findings) -> str:
    """A sentence that says how many runs there are, and whether that is all of them."""
    diverged = sum(group.diverged for group in findings.groups)
    also = f"; {diverged} of them diverged" if diverged else ""
    if findings.planned is None:
        recipes = len(findings.groups)
        return f"{count(findings.counted, 'run')} of {count(recipes, 'recipe')}{also}."
    if findings.partial:
        return f"Partial: {findings.counted} of {findings.planned} runs are there{also}."
    return f"Complete: all {findings.planned} runs are there{also}."


def _verdict(findings: Findings) -> list[Block]:
    blocks: list[Block] = []
    if findings.decisions:
        counts = Counter(decision.outcome for decision in findings.decisions)
        blocks += [
            f"Claims that hold: {counts[HOLDS]} of {len(findings.decisions)}; that do not hold: "
            f"{counts[FAILS]}; not resolved: {counts[OPEN]}."
        ]
        blocks += [Outcomes([_decided(decision, findings) for decision in findings.decisions])]
    blocks += [_elbow(ladder, findings) for ladder in findings.ladders]
    blocks += [_published(findings)]
    return blocks


def _decided(decision: Decision, findings: Findings) -> tuple[str, str, str]:
    claim, gap = decision.claim, decision.difference
    labels = {group.recipe.name: group.label for group in findings.groups}
    pair = f"“{labels[claim.recipe]}” less “{labels[claim.other]}”"
    size = f"is {findings.metric.points(interval(gap))}" if gap else "is not known yet"
    limit = "at most" if claim.relation == "no_worse_than" else "more than"
    says = claim.says[:1].upper() + claim.says[1:]
    detail = f"{pair} {size}, and {limit} {claim.within:g} is claimed"
    groups = [
        group for group in findings.groups if group.recipe.name in (claim.recipe, claim.other)
    ]
    if gap and any(group.diverged for group in groups):
        detail += f", each run that diverged having {findings.metric.of_failed}"
    return says, decision.outcome, ". ".join([detail, *decision.lacks])


def _elbow(ladder: Ladder, findings: Findings) -> str:
    elbow, base, metric = ladder.elbow, ladder.baseline, findings.metric
    if elbow is base:
        text = f"Elbow: no minibatch above {base.recipe.batch_size} is shown to be as good as that."
    else:
        text = (
            f"Elbow: {short(elbow.recipe.batch_size)} {findings.examples} ({steps(elbow)}) is the "
            f"largest minibatch that is shown to be as good as {short(base.recipe.batch_size)}."
        )
    between = [
        short(group.recipe.batch_size)
        for group in ladder.groups
        if base.recipe.batch_size < group.recipe.batch_size < elbow.recipe.batch_size
        and group not in ladder.equal
    ]
    if between:
        text += f" Below it, {', '.join(between)} is not shown to be."
    if ladder.worse:
        first = ladder.worse[0]
        text += (
            f" The first that is shown to be worse is {short(first.recipe.batch_size)} "
            f"({steps(first)})."
        )
    within = metric.points(f"{ladder.within:g}")
    text += (
        f" As good: the 95 % interval of the difference ends at {within} or less; worse: it begins "
        "above that."
    )
    if metric == TOP1:
        text += " The paper's, on ImageNet, is 8k (156 steps per epoch); 16k (78) is worse."
    return text


def _published(findings: Findings) -> str:
    if not findings.groups:
        return "None: no run counts."
    counts = Counter(verdict.word for verdict in findings.verdicts)
    if set(counts) == {"none published"}:
        return "These recipes name no published number."
    order = ("inside", "outside", "not comparable", "none published")
    parts = ", ".join(f"{counts[word]} {word}" for word in order if counts[word])
    return f"Against the published numbers: {parts}; the table says which."


def _numbers(findings: Findings) -> list[Block]:
    base, metric = findings.baseline, findings.metric
    published = any(target_of(group) for group in findings.groups)
    head = ["recipe", metric.heading(metric.words)]
    head += [metric.heading(metric.on(name)) for name in findings.sets]
    head += ["n"]
    head += ["against baseline (95 %)"] if base else []
    head += [metric.heading("paper")] if published else []
    head += ["paper, difference"] if published and base else []
    head += ["verdict"] if published else []
    rows = []
    for group, verdict in zip(findings.groups, findings.verdicts, strict=True):
        recipe, n = group.recipe, str(len(group.runs))
        row = [
            group.label,
            spread(group),
            *(_on(group, name) for name in findings.sets),
            f"{n} of {len(group.seeds)}" if group.seeds else n,
        ]
        row += [_against(group, base)] if base else []
        row += _paper(group, base, verdict) if published else []
        sizes = " → ".join(str(stage.batch_size) for stage in recipe.stages)
        steps = " → ".join(str(stage.steps) for stage in recipe.stages)
        row += [sizes, f"{group.lr:g}", steps]
        rows.append(row)
    head += ["kn", "lr", "steps per epoch"]
    return [Table(head, rows), *_notes(findings)] if rows else []


def _judged(findings: Findings) -> list[Block]:
    """The epochs to a target, where that is what the runs' numbers are."""
    metric = findings.metric
    if not isinstance(metric, Until) or metric.counted != "epochs":
        return []
    groups = [group for group in findings.groups if group.runs]
    runs = [
        ConvergedRuns(
            group.label,
            group.recipe.batch_size,
            [run.number if run.finished else math.inf for run in group.runs],
            EvaluationGrid(group.recipe.evaluation.every, group.recipe.evaluation.offset),
        )
        for group in groups
    ]
    points = points_for(groups[0].recipe, metric.name, metric.target) if groups else None
    return judged_blocks(runs, points)


def _on(group: Group, evaluation_set: str) -> str:
    sample = group.sample_on(evaluation_set)
    return mean_and_std(sample) if sample else NONE


def _against(group: Group, base: Group) -> str:
    if group is base:
        return "the baseline"
    if group.sample is None or base.sample is None:
        return NONE
    return interval(difference(group.sample, base.sample))


def _paper(group: Group, base: Group | None, verdict: Verdict) -> list[str]:
    target, its = target_of(group), target_of(base) if base else None
    if target is None:
        number = NONE
    else:
        number = f"{target.number:.2f}" + (f" ± {target.std:.2f}" if target.std else "")
    cells = [number]
    if base:
        apart = target and its and group is not base
        cells.append(signed(target.number - its.number) if target and its and apart else NONE)
    word = verdict.word
    return [*cells, f"{word}, {interval(verdict.difference)}" if verdict.difference else word]


def _notes(findings: Findings) -> list[Block]:
    """The notes below the table: why numbers cannot be compared, and which runs do not count."""
    why: dict[str, list[str]] = {}
    for group, verdict in zip(findings.groups, findings.verdicts, strict=True):
        for reason in verdict.reasons:
            why.setdefault(reason, []).append(group.label)
    held = sum(bool(verdict.reasons) for verdict in findings.verdicts)
    items = [
        reason + ("" if len(labels) == held else f" ({'; '.join(labels)})")
        for reason, labels in why.items()
    ]
    notes: list[Block] = []
    if any(group.diverged for group in findings.groups):
        notes.append(
            f"{findings.metric.plural.capitalize()} are of the runs that finished. In the claims, "
            f"and for the elbow, a run that diverged counts with {findings.metric.of_failed}: "
            f"{_guessing(findings)}."
        )
    notes += [
        f"{group.label}: {group.never} of {count(len(group.runs), 'run')} never had it. The mean "
        f"is that of the others; in the claims such a run counts with {findings.metric.of_failed}, "
        f"{group.guess:g}, which is too few."
        for group in findings.groups
        if group.never
    ]
    if items:
        notes += ["Not comparable with the published numbers, and why:", Listing(items)]
    notes += [
        f"{group.label}: {count(len(group.repeats), 'more run')} of the same seeds, which "
        f"{'does' if len(group.repeats) == 1 else 'do'} not count: "
        f"{', '.join(map(number_of, group.repeats))}."
        for group in findings.groups
        if group.repeats
    ]
    return notes


def _figures(figures: list[Figure], metric: Metric) -> list[Block]:
    """The figures: figure 1 alone and large, then the panels of curves with the others."""
    curves = [figure for figure in figures if figure.name.startswith("curves-")]
    first = [figure for figure in figures if figure.name.startswith("figure1")]
    rest = [figure for figure in figures if figure not in (*curves, *first)]
    words = metric.rate.words.capitalize()
    about = (
        f"{words} by epoch (the paper's figures 2 and 3): solid in training, "
        "mean and standard deviation over the seeds, each as far as it got; dashed in validation."
    )
    blocks: list[Block] = [Figures(first, large=True)] if first else []
    blocks += [about] if curves else []
    blocks += [Figures([*curves, *rest])] if curves or rest else []
    return blocks


def _speeds(findings: Findings) -> list[Block]:
    if not findings.speeds:
        return []
    rows = [
        [
            speed.group.label,
            str(speed.processes),
            f"{speed.per_second:,.0f}",
            f"{speed.slowest:,.0f} to {speed.fastest:,.0f}",
            f"{100 * speed.efficiency:.0f} %" if speed.efficiency else NONE,
            speed.hardware,
        ]
        for speed in findings.speeds
    ]
    unit = f"{findings.things}/s"
    head = ["recipe", "processes", unit, "of single epochs", "efficiency", "hardware"]
    return [
        Table(head, rows),
        "Median over all epochs of all runs, as they were made: a machine that did other work too "
        f"was slower. Efficiency: {unit} per process against the fewest processes there are.",
    ]


def _tuned(findings: Findings) -> list[Block]:
    """Which entries of the study a search has tuned, and with what."""
    entries = findings.study.entries if findings.study else []
    items = [
        f"{entry.label}: `{' '.join(entry.words)}`, the best point of `{SEARCHES / entry.search}`"
        for entry in entries
        if entry.search
    ]
    return [Listing(items)] if items else []


def _left_out(findings: Findings) -> list[Block]:
    if not findings.left_out:
        return ["Nothing: all folders that were given are runs that count."]
    return [Listing([f"`{folder.path}`: {folder.reason}" for folder in findings.left_out])]


def _next(findings: Findings, trains: str | None) -> list[Block]:
    items = [
        f"{group.label}: run seed{'s' * (len(group.missing) > 1)} "
        f"{', '.join(map(str, group.missing))}"
        for group in findings.groups
        if group.missing
    ]
    if items and findings.study:
        trains = trains or f"python -m lsgd.study +study={findings.study.name}"
        items.append(f"`{trains}` makes what is missing")
    items += [
        f"more seeds of both to decide whether {decision.claim.says}"
        for decision in findings.decisions
        if decision.outcome == OPEN and decision.difference and not decision.lacks
    ]
    return [Listing(items)] if items else []


def _runs(findings: Findings) -> list[Block]:
    rows = [
        [
            f"`{run.path}`",
            group.label,
            str(run.recipe.seed),
            number_of(run) if run.finished else NONE,
            run.state + (", a repeat" if run in group.repeats else ""),
            run.recipe.fingerprint[:12],
        ]
        for group in findings.groups
        for run in (*group.runs, *group.repeats)
    ]
    head = ["folder", "recipe", "seed", findings.metric.words, "state", "fingerprint"]
    return [Table(head, rows)] if rows else []


def _rules(metric: Metric) -> list[str]:
    return [
        f"{metric.noun.capitalize()} of a run: {metric.definition}.",
        "± is the standard deviation over seeds (n − 1 below the sum).",
        "Differences have the 95 % interval of Welch's t. A claim of “no worse” holds if the whole "
        "interval is at or below the margin and does not hold if it is all above; one of “worse” "
        "the other way round; else it is not resolved. One seed has no interval, nor have seeds "
        "that all come out alike.",
        "Inside: the 95 % interval of our mean less the paper's (5 runs) has 0 in it, which means "
        "that no difference is shown, not that there is none; outside: it has not. Not comparable "
        "if anything but the seeds differs, if a run diverged, or with fewer than 5 seeds.",
        "Of runs with the same recipe and seed the first that ended counts, whatever its end. One "
        "that is still to end does not count.",
    ]


def _guessing(findings: Findings) -> str:
    """The number of guessing, for each number of classes that a run diverged on, or for each
    recipe where it is counted until a rate."""
    diverged = [group for group in findings.groups if group.diverged]
    if findings.metric.rate is not findings.metric:
        return ", ".join(f"{group.guess:g} ({group.label})" for group in diverged)
    guesses = {group.recipe.data.classes: group.guess for group in diverged}
    return ", ".join(
        f"{f'{guess:g} {findings.metric.unit}'.rstrip()} with {classes} classes"
        for classes, guess in sorted(guesses.items())
    )


def _machines(findings: Findings) -> list[Block]:
    seen: Counter[str] = Counter()
    for run in findings.runs:
        seen.update({_machine(start) for start in run.starts})
    items = [f"{count(runs, 'run')}: {what}" for what, runs in sorted(seen.items())]
    return [Listing(items)] if items else []


def _machine(start: Row) -> str:
    hardware, processes = place(start)
    host = f" (host {start['host']})" if "host" in start else ""
    words = ("lsgd", "commit", "torch", "numpy")
    versions = [f"{key} {start[key]}" for key in words if start.get(key)]
    many = "1 process" if processes == 1 else f"{processes} processes"
    return f"{many}, {hardware}{host}; {', '.join(versions)}"
