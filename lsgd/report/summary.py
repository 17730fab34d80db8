"""The findings of a report for programs: summary.json, from which the table of results is made."""

import math
from collections import Counter
from typing import Any

from lsgd.report.content import title_of
from lsgd.report.findings import Findings
from lsgd.report.groups import Group
from lsgd.report.speed import place
from lsgd.report.verdict import Verdict, target_of
from lsgd.report.welch import Difference
from lsgd.rules.metric import TOP1
from lsgd.run.read import Run


def summarise(findings: Findings, command: str, version: str) -> dict[str, Any]:
    """The numbers of the report; means are of finished runs, and infinite ends are None."""
    study = findings.study
    return {
        "title": title_of(findings),
        # Older summaries, which have no metric, are of this one.
        **({} if findings.metric == TOP1 else {"metric": findings.metric.full_name}),
        "study": study.name if study else None,
        "question": study.question if study else None,
        "partial": findings.partial,
        "runs": findings.counted,
        "runs_asked": findings.planned,
        "baseline": findings.baseline.label if findings.baseline else None,
        "hardware": _hardware(findings),
        "recipes": [
            _recipe(group, verdict)
            for group, verdict in zip(findings.groups, findings.verdicts, strict=True)
        ],
        "claims": [
            {
                "says": decision.claim.says,
                "outcome": decision.outcome,
                "relation": decision.claim.relation,
                "within": decision.claim.within,
                "difference": _difference(decision.difference),
            }
            for decision in findings.decisions
        ],
        "elbows": [
            {
                "baseline": ladder.baseline.recipe.batch_size,
                "batch_size": ladder.elbow.recipe.batch_size,
                "steps_per_epoch": ladder.elbow.recipe.steps_per_epoch,
                "within": ladder.within,
            }
            for ladder in findings.ladders
        ],
        "left_out": [
            {"folder": folder.path.name, "reason": folder.reason} for folder in findings.left_out
        ],
        "command": command,
        "version": version,
    }


def _recipe(group: Group, verdict: Verdict) -> dict[str, Any]:
    sample, target = group.sample, target_of(group)
    return {
        "recipe": group.recipe.name,
        "label": group.label,
        "batch_size": group.recipe.batch_size,
        "steps_per_epoch": group.recipe.steps_per_epoch,
        "lr": group.lr,
        "n": len(group.runs),
        "diverged": group.diverged,
        "errors": {str(run.recipe.seed): _number(run) for run in group.runs},
        "mean": sample.mean if sample else None,
        "std": sample.std if sample and sample.n > 1 else None,
        "repeats": [_number(run) for run in group.repeats],
        "published": (
            {target.metric.name: target.number, "std": target.std, "source": target.source}
            if target
            else None
        ),
        "verdict": verdict.word,
        "reasons": list(verdict.reasons),
        "difference": _difference(verdict.difference),
    }


def _number(run: Run) -> float | None:
    """The number of a run; None if it diverged, or never had the rate that it was to reach."""
    return run.number if run.finished and math.isfinite(run.number) else None


def _difference(gap: Difference | None) -> dict[str, float | None] | None:
    if gap is None:
        return None
    ends = math.isfinite(gap.low)
    return {
        "mean": gap.mean,
        "low": gap.low if ends else None,
        "high": gap.high if ends else None,
    }


def _hardware(findings: Findings) -> list[str]:
    seen = Counter(place(start)[0] for run in findings.runs for start in run.starts)
    return [hardware for hardware, _ in seen.most_common()]
