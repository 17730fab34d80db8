"""The content of a report, as headings, sentences, tables and figures for Markdown and HTML."""

import shlex
from collections import Counter

from lsgd.report.batch_size_sweep import BatchSizeSweep
from lsgd.report.blocks import Block, BulletList, ClaimResults, Content, Figures, Section, Table
from lsgd.report.claims import FAILS, HOLDS, OPEN, Decision, difference_for_claims
from lsgd.report.convergence import judge_as_mlperf
from lsgd.report.drawing import Figure
from lsgd.report.findings import Findings
from lsgd.report.formatting import (
    NONE,
    format_batch_size,
    format_final_metric,
    format_group,
    interval,
    mean_and_std,
    percent,
    signed,
    steps,
)
from lsgd.report.groups import RecipeRuns
from lsgd.report.predicted import FIGURE, validation_blocks, validation_command
from lsgd.report.run_archive import displayed_path
from lsgd.report.speed import hardware_and_processes
from lsgd.report.verdict import Verdict, target_of
from lsgd.report.welch import welch_difference
from lsgd.rules.metric import TOP1, Metric
from lsgd.run.read import Run
from lsgd.run.rows import Row
from lsgd.run.tuned import SEARCHES
from lsgd.run.verification import read_verification, rows_digest, verification_path
from lsgd.tables import format_count


def compose(
    findings: Findings, figures: list[Figure], command: str, version: str, trains: str | None = None
) -> Content:
    """Compose the content of a report on runs from its findings and figures.

    `command` made the report with lsgd `version`; `trains` is the command that trains the missing
    runs, if it is known.
    """
    sections = [
        Section("Verdict", _verdict(findings)),
        Section(findings.metric.plural.capitalize(), _numbers(findings)),
        Section("Judged as MLPerf does", judge_as_mlperf(findings)),
        Section("Figures", _figures(figures, findings.metric)),
        Section("Validation images", validation_blocks(findings, figures)),
        Section("Tuned", _tuned(findings)),
        Section("Speed", _speeds(findings)),
        Section("Skipped", _left_out(findings)),
        Section("Next steps", _next(findings, trains)),
        Section("Runs", _runs(findings)),
        Section("How the numbers are made", [BulletList(_rules(findings))]),
        Section("Hardware and versions", _machines(findings)),
        Section("Written by", [f"`{command}`", version]),
    ]
    lead = [findings.study.question, f"After {findings.study.source}."] if findings.study else []
    return Content(
        title_of(findings),
        [*lead, progress(findings)],
        [section for section in sections if section.blocks],
    )


def title_of(findings: Findings) -> str:
    """Return the title of a report: that of its study, or else the names of its recipes."""
    if findings.study:
        return findings.study.title
    names = sorted({group.recipe.name for group in findings.groups})
    data = sorted({group.recipe.data.name for group in findings.groups})
    if 0 < len(names) <= 3:
        return ", ".join(names)
    return f"{len(names)} recipes on {', '.join(data)}" if names else "No finished run"


def progress(findings: Findings) -> str:
    """Return a sentence on how many runs of a report are finished, and whether any is missing."""
    diverged = sum(group.diverged for group in findings.groups)
    also = f"; {diverged} of them diverged" if diverged else ""
    if findings.planned is None:
        recipes = len(findings.groups)
        return (
            f"{format_count(findings.counted, 'run')} of {format_count(recipes, 'recipe')}{also}."
        )
    if findings.is_partial:
        return f"Partial: {findings.counted} of {findings.planned} runs are finished{also}."
    return f"Complete: all {findings.planned} runs are finished{also}."


def _verdict(findings: Findings) -> list[Block]:
    """Return the blocks on a study's claims, the elbows and the published numbers."""
    blocks: list[Block] = []
    if findings.decisions:
        counts = Counter(decision.outcome for decision in findings.decisions)
        blocks += [
            f"Claims that hold: {counts[HOLDS]} of {len(findings.decisions)}; that do not hold: "
            f"{counts[FAILS]}; not resolved: {counts[OPEN]}."
        ]
        blocks += [ClaimResults([_decided(decision, findings) for decision in findings.decisions])]
        blocks += _looks(findings)
    blocks += [_elbow(ladder, findings) for ladder in findings.sweeps]
    blocks += [_published(findings)]
    return blocks


def _looks(findings: Findings) -> list[Block]:
    """Return a paragraph on the confidence level, if claims are tested after each added seed."""
    looks = findings.looks
    if looks.first >= looks.last:
        return []
    return [
        f"The claims are tested with {looks.first} to {looks.last} seeds, and an interval of 95 "
        f"% at each look would be wrong too often: each has {percent(looks.level(0.95))} "
        "instead, for 95 % over all looks (Pocock 1977). The intervals of the table are of 95 % "
        "and decide no claim."
    ]


def _decided(decision: Decision, findings: Findings) -> tuple[str, str, str]:
    """Return the sentence of a claim, its outcome, and the numbers that decide it, as text."""
    claim, gap = decision.claim, decision.difference
    labels = {group.recipe.name: group.label for group in findings.groups}
    pair = f"“{labels[claim.recipe]}” less “{labels[claim.other]}”"
    if gap:
        size = f"is {findings.metric.format_difference(interval(gap))}"
    elif decision.lacks:
        size = "is tested once both have enough seeds"
    else:
        size = "is not known, as all runs of one have diverged"
    limit = {
        "as_good_as": f"{claim.within:g} at most to either side",
        "no_worse_than": f"at most {claim.within:g}",
        "worse_than": f"more than {claim.within:g}",
    }[claim.relation]
    says = claim.says[:1].upper() + claim.says[1:]
    level = "" if decision.level == 0.95 else f", by an interval of {percent(decision.level)}"
    detail = f"{pair} {size}{level}, and {limit} is claimed"
    groups = [
        group for group in findings.groups if group.recipe.name in (claim.recipe, claim.other)
    ]
    if gap and any(group.diverged for group in groups):
        label, counts = findings.metric.failed_label, findings.metric.counts_failed
        detail += f", each run that diverged {f'having {label}' if counts else 'being left out'}"
    return says, decision.outcome, ". ".join([detail, *decision.lacks])


def _elbow(ladder: BatchSizeSweep, findings: Findings) -> str:
    """Return a paragraph on the largest minibatch of a sweep that is as good as the baseline."""
    elbow, base, metric = ladder.elbow, ladder.baseline, findings.metric
    untested = ", ".join(format_batch_size(group.recipe.batch_size) for group in ladder.untested)
    if not ladder.is_tested:
        return (
            f"Elbow: it is tested once {format_batch_size(base.recipe.batch_size)} and a larger "
            f"minibatch have {max(base.needed, 2)} seeds each."
        )
    if elbow is base:
        text = f"Elbow: no minibatch above {base.recipe.batch_size} is shown to be as good as that."
    else:
        text = (
            f"Elbow: {format_batch_size(elbow.recipe.batch_size)} {findings.batch_unit} "
            f"({steps(elbow)}) is the "
            "largest minibatch that is shown to be as good as "
            f"{format_batch_size(base.recipe.batch_size)}."
        )
    between = [
        format_batch_size(group.recipe.batch_size)
        for group in ladder.groups
        if base.recipe.batch_size < group.recipe.batch_size < elbow.recipe.batch_size
        and group not in [*ladder.as_good, *ladder.untested]
    ]
    if between:
        text += f" Below it, {', '.join(between)} is not shown to be."
    if ladder.worse:
        first = ladder.worse[0]
        text += (
            f" The first that is shown to be worse is {format_batch_size(first.recipe.batch_size)} "
            f"({steps(first)})."
        )
    if untested:
        text += f" Not tested yet, with too few seeds: {untested}."
    within = metric.format_difference(f"{ladder.margin:g}")
    level, worse = (percent(ladder.level(each)) for each in (ladder.relation, "worse_than"))
    text += (
        f" As good: the {level} interval of the difference lies within {within} on both sides; "
        f"worse: the {worse} interval begins above that."
        if ladder.relation == "as_good_as"
        else f" As good: the {level} interval of the difference ends at {within} or less; worse: "
        "it begins above that."
    )
    if metric == TOP1:
        text += " The paper's, on ImageNet, is 8k (156 steps per epoch); 16k (78) is worse."
    return text


def _published(findings: Findings) -> str:
    """Return a sentence that counts the recipes by their agreement with the published numbers."""
    if not findings.groups:
        return "None: no run is counted."
    counts = Counter(verdict.outcome for verdict in findings.verdicts)
    if set(counts) == {"none published"}:
        return "These recipes name no published number."
    order = ("inside", "outside", "not comparable", "none published")
    parts = ", ".join(f"{counts[word]} {word}" for word in order if counts[word])
    return f"Against the published numbers: {parts}; the table says which."


def _numbers(findings: Findings) -> list[Block]:
    """Return a report's main table, one row for each recipe, and the notes below it."""
    base, metric = findings.baseline, findings.metric
    published = any(target_of(group) for group in findings.groups)
    apart = findings.study is not None and any(group.missing for group in findings.groups)
    rows = []
    for group, verdict in zip(findings.groups, findings.verdicts, strict=True):
        recipe, n = group.recipe, str(len(group.runs))
        row = {"recipe": group.label, metric.axis_label(metric.label): format_group(group)}
        for name in findings.other_evaluation_sets:
            row[metric.axis_label(metric.label_on(name))] = _on(group, name)
        row["n"] = f"{n} of {len(group.seeds)}" if group.seeds else n
        if apart:
            row["not finished yet"] = _without_end(group)
        if base:
            row["against baseline (95 %)"] = _against(group, base)
        if published:
            row |= _paper(group, base, verdict)
        row["kn"] = " → ".join(str(stage.batch_size) for stage in recipe.stages)
        row["lr"] = f"{recipe.scaled_lr:g}"
        row["steps per epoch"] = " → ".join(str(stage.steps_per_epoch) for stage in recipe.stages)
        rows.append(row)
    if not rows:
        return []
    return [Table([*rows[0]], [[*row.values()] for row in rows]), *_notes(findings)]


def _without_end(group: RecipeRuns) -> str:
    """Return how many runs of a recipe have failed, have begun or are missing, as text."""
    failed, begun = len(group.failed_seeds), len(group.begun_seeds)
    counts = {"failed": failed, "begun": begun, "missing": len(group.missing) - failed - begun}
    return ", ".join(f"{number} {word}" for word, number in counts.items() if number) or NONE


def _on(group: RecipeRuns, evaluation_set: str) -> str:
    """Return a recipe's mean metric on an evaluation set as text."""
    sample = group.sample_on(evaluation_set)
    return mean_and_std(sample) if sample else NONE


def _against(group: RecipeRuns, base: RecipeRuns) -> str:
    """Return the difference of a recipe's mean metric from the baseline's as text."""
    if group is base:
        return "the baseline"
    if group.censored or base.censored:
        gap = difference_for_claims(group, base)
        return interval(gap) if gap else NONE
    if group.sample is None or base.sample is None:
        return NONE
    return interval(welch_difference(group.sample, base.sample))


def _paper(group: RecipeRuns, base: RecipeRuns | None, verdict: Verdict) -> dict[str, str]:
    """Return the table cells that compare a recipe's metric with its published number."""
    target, its = target_of(group), target_of(base) if base else None
    number = NONE
    if target:
        number = f"{target.value:.2f}" + (f" ± {target.std:.2f}" if target.std else "")
    cells = {group.metric.axis_label("paper"): number}
    if base:
        cells["paper, difference"] = NONE
        if target and its and group is not base:
            cells["paper, difference"] = signed(target.value - its.value)
    gap = f", {interval(verdict.difference)}" if verdict.difference else ""
    return cells | {"verdict": verdict.outcome + gap}


def _notes(findings: Findings) -> list[Block]:
    """Return the notes below the main table: what is not comparable, which runs do not count."""
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
        counts = (
            f"counts with {findings.metric.failed_label}: {_guessing(findings)}"
            if findings.metric.counts_failed
            else "has no value: its recipe may be shown to be worse, and never to be as good"
        )
        notes.append(
            f"{findings.metric.plural.capitalize()} are of the runs that finished. In the claims, "
            f"and for the elbow, a run that diverged {counts}."
        )
    notes += [
        f"{group.label}: {len(group.never_reached)} of {format_count(len(group.counted), 'run')} "
        "never reached it. The mean is that of the others; in the claims such a run counts with "
        f"{findings.metric.failed_label}, {_unreached(group)}, which is too few: so it may be "
        "shown to be worse, and never to be as good."
        for group in findings.groups
        if group.never_reached
    ]
    if items:
        notes += ["Not comparable with the published numbers, and why:", BulletList(items)]
    notes += [
        f"{group.label}: {format_count(len(group.repeats), 'more run')} of the same seeds, which "
        f"{_how_repeats_count(group)}: {', '.join(map(format_final_metric, group.repeats))}."
        for group in findings.groups
        if group.repeats
    ]
    return notes


def _unreached(group: RecipeRuns) -> str:
    """Return the range of the values of a recipe's runs that never reached the target, as text."""
    values = [f"{value:g}" for value in sorted({*map(group.claim_value, group.never_reached)})]
    return " to ".join(dict.fromkeys([values[0], values[-1]]))


def _how_repeats_count(group: RecipeRuns) -> str:
    """Return the end of a sentence on whether the repeats of a recipe's seeds count."""
    one = len(group.repeats) == 1
    if group.counts_repeats:
        return f"{'counts' if one else 'count'} by the mean of each seed"
    return f"{'does' if one else 'do'} not count"


def _figures(figures: list[Figure], metric: Metric) -> list[Block]:
    """Return the figure blocks of a report: figure 1 large, then the curves and the others."""
    curves = [figure for figure in figures if figure.name.startswith("curves-")]
    first = [figure for figure in figures if figure.name.startswith("figure1")]
    others = [figure for figure in figures if not figure.name.startswith(FIGURE)]
    rest = [figure for figure in others if figure not in (*curves, *first)]
    label = metric.base_metric.label.capitalize()
    about = (
        f"{label} by epoch (the paper's figures 2 and 3): solid in training, "
        "mean and standard deviation over the seeds, each as far as it got; dashed in validation."
    )
    blocks: list[Block] = [Figures(first, large=True)] if first else []
    blocks += [about] if curves else []
    blocks += [Figures([*curves, *rest])] if curves or rest else []
    return blocks


def _speeds(findings: Findings) -> list[Block]:
    """Return the table of the recipes' throughputs and scaling efficiencies, with a note."""
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
    unit = f"{findings.example_unit}/s"
    head = ["recipe", "processes", unit, "of single epochs", "efficiency", "hardware"]
    return [
        Table(head, rows),
        "Median over all epochs of all runs, as they ran: a machine under other load was "
        f"slower. Efficiency: {unit} per process against the smallest number of processes.",
    ]


def _tuned(findings: Findings) -> list[Block]:
    """Return a list of a study's entries whose settings a search has tuned."""
    entries = findings.study.entries if findings.study else []
    items = [
        f"{entry.label}: `{' '.join(entry.words)}`, the best trial of `{SEARCHES / entry.search}`"
        for entry in entries
        if entry.search
    ]
    return [BulletList(items)] if items else []


def _left_out(findings: Findings) -> list[Block]:
    """Return the list of the folders that a report skips, with the reasons."""
    if not findings.skipped_folders:
        if any(group.repeats and not group.counts_repeats for group in findings.groups):
            return ["Nothing but more runs of the same seeds, which do not count."]
        return ["Nothing: all given folders are runs that are counted."]
    return [
        BulletList(
            [
                f"`{displayed_path(folder.path)}`: {folder.reason}"
                for folder in findings.skipped_folders
            ]
        )
    ]


def _next(findings: Findings, trains: str | None) -> list[Block]:
    """Return a list of the runs to train next: missing ones, or seeds to resolve a claim."""
    items = [
        f"{group.label}: run seed{'s' * (len(group.missing) > 1)} "
        f"{', '.join(map(str, group.missing))}"
        for group in findings.groups
        if group.missing
    ]
    if items and findings.study:
        trains = trains or shlex.join(
            ["python", "-m", "lsgd.study", *findings.study.command_arguments]
        )
        items.append(f"`{trains}` trains the missing runs")
    items += [
        f"more seeds of both to decide whether {decision.claim.says}"
        for decision in findings.decisions
        if decision.outcome == OPEN and decision.difference
    ]
    items += validation_command(findings)
    return [BulletList(items)] if items else []


def _runs(findings: Findings) -> list[Block]:
    """Return the table of all runs of a report with folder, seed, metric and state."""
    runs = [run for group in findings.groups for run in (*group.runs, *group.repeats)]
    verdicts = {run.path: _verification(run) for run in runs}
    are_verified = any(verdict != NONE for verdict in verdicts.values())
    rows = [
        [
            f"`{displayed_path(run.path)}`",
            group.label,
            str(run.recipe.seed),
            format_final_metric(run) if run.finished else NONE,
            run.state + (", a repeat" if run in group.repeats else ""),
            run.recipe.fingerprint[:12],
            *([verdicts[run.path]] if are_verified else []),
        ]
        for group in findings.groups
        for run in (*group.runs, *group.repeats)
    ]
    head = ["folder", "recipe", "seed", findings.metric.label, "state", "fingerprint"]
    head += ["verified"] if are_verified else []
    return [Table(head, rows)] if rows else []


def _verification(run: Run) -> str:
    """Return, as text, what the verification beside a run folder confirms; NONE without one."""
    path = verification_path(run.path)
    try:
        found = read_verification(path)
        same_rows = found.rows_sha256 == rows_digest(run.path)
    except FileNotFoundError:
        return NONE
    except (OSError, ValueError):
        return f"`{path.name}` is not a file of lsgd.verify"
    if not same_rows or found.fingerprint not in (
        run.recipe.fingerprint,
        run.recipe.earlier_fingerprint,
    ):
        return "no: the run was changed since it was verified"
    by = f"on {found.host}, seed {found.seed}, tolerance {found.tolerance:g}"
    if not found.is_confirmed:
        return f"no: {found.mismatches[0]} ({by})"
    parts = [f"{found.executed_steps} of {found.made_steps} steps ({by})"]
    if run.diverged is not None and "divergence" not in found.compared:
        parts.append("divergence not executed")
    if unresolved := sum(found.unresolved.values()):
        parts.append(f"{format_count(unresolved, 'value')} not resolved")
    return "; ".join(parts)


def _rules(findings: Findings) -> list[str]:
    """Return sentences that explain how the numbers of a report are computed."""
    metric = findings.metric
    by_mean = findings.study is not None and findings.study.repeats == "mean"
    evaluated = [
        [epoch for epoch, row in run.epochs.items() if metric.key in row] for run in findings.runs
    ]
    skips = any(map(metric.skips_epochs, evaluated))
    targets = filter(None, map(target_of, findings.groups))
    counts = sorted({target.runs for target in targets if target.runs})
    published = f"{' or '.join(map(str, counts))} published runs" if counts else "published runs"
    return [
        f"{metric.noun.capitalize()} of a run: {metric.definition(skips_epochs=skips)}.",
        "± is the standard deviation over seeds (n − 1 below the sum).",
        "Differences have the 95 % interval of Welch's t, of all runs that have ended. A claim "
        "of “no worse” holds if the whole interval is at or below the margin and does not hold "
        "if it is all above; one of “worse” the other way round; one of “as good” holds if the "
        "interval of 90 % (two one-sided tests, 5 % each) is within the margin on both sides, "
        "and does not hold if it is outside; else it is not resolved. One seed has no interval, "
        "nor have seeds with equal results.",
        f"Inside: the 95 % interval of our mean less that of the {published} has 0 in it, which "
        "means that no difference is shown, not that none exists; outside: it has not. Not "
        "comparable if anything but the seeds differs, if a run diverged, with fewer than 5 seeds, "
        "or if the published mean is of an unknown number of runs or of another definition.",
        (
            "Runs with the same recipe and seed count by their mean, whatever their ends."
            if by_mean
            else "Of runs with the same recipe and seed that have ended, the first one counts by "
            "the order of the given folders, and within these by name, whatever its end."
        )
        + " One that is still to end does not count.",
    ]


def _guessing(findings: Findings) -> str:
    """Return the chance level, at which diverged runs count in claims, as text.

    It is given for each number of classes, or for each recipe if the metric counts until a target.
    """
    diverged = [group for group in findings.groups if group.diverged]
    if findings.metric.base_metric is not findings.metric:
        return ", ".join(f"{group.chance_level:g} ({group.label})" for group in diverged)
    guesses = {group.recipe.data.classes: group.chance_level for group in diverged}
    return ", ".join(
        f"{f'{guess:g} {findings.metric.unit}'.rstrip()} with {classes} classes"
        for classes, guess in sorted(guesses.items())
    )


def _machines(findings: Findings) -> list[Block]:
    """Return a list of machines and library versions, with the number of runs on each."""
    seen: Counter[str] = Counter()
    for run in findings.runs:
        seen.update({_machine(start) for start in run.starts})
    items = [f"{format_count(runs, 'run')}: {what}" for what, runs in sorted(seen.items())]
    return [BulletList(items)] if items else []


def _machine(start: Row) -> str:
    """Return the processes, hardware and versions of a start row of metrics.jsonl as text."""
    hardware, processes = hardware_and_processes(start)
    host = f" (host {start['host']})" if "host" in start else ""
    keys = ("lsgd", "commit", "torch", "numpy")
    versions = [f"{key} {start[key]}" for key in keys if start.get(key)]
    many = format_count(processes, "process", "processes")
    return f"{many}, {hardware}{host}; {', '.join(versions)}"
