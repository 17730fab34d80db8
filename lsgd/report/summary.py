"""The machine-readable findings of a report, summary.json, from which the results table is made."""

import math
from collections import Counter
from typing import Any

from lsgd.report.content import title_of
from lsgd.report.findings import Findings
from lsgd.report.groups import RecipeRuns
from lsgd.report.speed import hardware_and_processes
from lsgd.report.verdict import Verdict, target_of
from lsgd.report.welch import Difference
from lsgd.rules.metric import TOP1
from lsgd.run.read import Run


def summarise(findings: Findings, command: str, version: str) -> dict[str, Any]:
    """Return the findings of a report as JSON values, with infinite numbers as None.

    Means are over the finished runs.
    """
    study = findings.study
    return {
        "title": title_of(findings),
        # Older summaries have no metric, and mean this one.
        **({} if findings.metric == TOP1 else {"metric": findings.metric.full_name}),
        "study": study.name if study else None,
        "question": study.question if study else None,
        "partial": findings.is_partial,
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
                "level": decision.level,
                "difference": _difference(decision.difference),
            }
            for decision in findings.decisions
        ],
        "elbows": [
            {
                "baseline": ladder.baseline.recipe.batch_size,
                "batch_size": ladder.elbow.recipe.batch_size,
                "steps_per_epoch": ladder.elbow.recipe.steps_per_epoch,
                "within": ladder.margin,
            }
            for ladder in findings.sweeps
            if ladder.is_tested
        ],
        "left_out": [
            {"folder": folder.path.name, "reason": folder.reason}
            | ({"damaged": True} if folder.damaged else {})
            for folder in findings.skipped_folders
        ],
        "command": command,
        "version": version,
    }


def _recipe(group: RecipeRuns, verdict: Verdict) -> dict[str, Any]:
    sample, target = group.sample, target_of(group)
    never = sum(run.finished and math.isinf(run.final_metric) for run in group.repeats)
    return {
        "recipe": group.recipe.name,
        "label": group.label,
        "batch_size": group.recipe.batch_size,
        "steps_per_epoch": group.recipe.steps_per_epoch,
        "lr": group.recipe.scaled_lr,
        "n": len(group.runs),
        "diverged": group.diverged,
        "never": len(group.never_reached),
        "errors": {str(run.recipe.seed): _number(run) for run in group.runs},
        "mean": sample.mean if sample else None,
        "std": sample.std if sample and sample.n > 1 else None,
        "repeats": [_number(run) for run in group.repeats],
        **({"repeats_never": never} if never else {}),
        # Older summaries have no such key, and their repeats do not count.
        **({"counts_repeats": True} if group.counts_repeats else {}),
        "published": (
            {target.metric.name: target.value, "std": target.std, "source": target.source}
            | ({"runs": target.runs} if target.runs else {})
            if target
            else None
        ),
        "verdict": verdict.outcome,
        "reasons": list(verdict.reasons),
        "difference": _difference(verdict.difference),
    }


def _number(run: Run) -> float | None:
    """Return the final metric of a run; None if it diverged or never reached its target."""
    return run.final_metric if run.finished and math.isfinite(run.final_metric) else None


def _difference(gap: Difference | None) -> dict[str, float | None] | None:
    """Return a difference of means and its interval as JSON values."""
    if gap is None:
        return None
    return {
        "mean": gap.mean,
        "low": gap.low if math.isfinite(gap.low) else None,
        "high": gap.high if math.isfinite(gap.high) else None,
    }


def _hardware(findings: Findings) -> list[str]:
    """Return the hardware of all runs of a report, the most frequent first."""
    seen = Counter(
        hardware_and_processes(start)[0] for run in findings.runs for start in run.starts
    )
    return [hardware for hardware, _ in seen.most_common()]
