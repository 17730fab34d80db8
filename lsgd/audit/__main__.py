"""The command line `python -m lsgd.audit -- COMMAND ...`."""

import json
import os
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lsgd.audit.examples import (
    examples_over_processes,
    is_subset_in_order,
    unjudged_evaluations,
)
from lsgd.audit.facts import observe, script_recipe
from lsgd.audit.gradients import is_in_backward, unknown_factor
from lsgd.audit.job import AuditedJob
from lsgd.audit.launched import EXAMPLE, run_watched
from lsgd.audit.processes import LoaderRecord, ScriptProcess, one_job, read_records
from lsgd.check.observation import Observation, RuleResult
from lsgd.check.papers import PAPERS, apply_script_rules
from lsgd.errors import UsageError
from lsgd.job.command import Parser, integer_from, run_alone
from lsgd.suggestions import did_you_mean
from lsgd.tables import format_count, wrapped_row

ABOUT = """\
Run any PyTorch training script unchanged, watch what it does in all its processes, and compare that
with a paper's rules, line by line of the script. Its results stay as they are, to the bit.

  python -m lsgd.audit -- python train.py --batch-size 64
  python -m lsgd.audit --updates 500 -- torchrun --nproc-per-node 2 train.py
  python -m lsgd.audit --rules mlperf --json -- mpirun -np 2 python train.py

The script ends, as by sys.exit(0), after 200 updates or soon after its second epoch has begun; with
--updates N after N updates. What needs a whole epoch, such as an evaluation, is seen only if the
script reaches it by then. Each fact has the observation, the rule, and the script's line.

Watched are the Python processes of this machine that the command starts, by hooks of torch which a
sitecustomize on PYTHONPATH registers; python -E and -I ignore it. What runs inside of a graph that
torch.compile has made is not seen, nor an update by an optimizer outside of torch.optim.Optimizer.

exit codes: 0 as the rules, 1 otherwise, 2 the script could not be watched.
"""
UPDATES, EPOCHS = 200, 2
"""The default limits on what is watched: updates, and begun epochs."""
WIDTHS = 16, 10, 60
"""The widths of the columns for rule, section and run; the verdict ends at column 100."""
_row = partial(wrapped_row, WIDTHS)
UNSEEN = {"lars", "peak_lr", "batchnorm_eps", "label_smoothing"}
"""Rules that only some papers have, which are no facts where a paper has none."""


def audit(command: Sequence[str], paper: str, *, max_updates: int | None, as_json: bool) -> int:
    """Run a command, print what it does and what the rules say, and return the exit code.

    Raises UsageError if nothing of a training could be watched.
    """
    limits = {"max_updates": max_updates or UPDATES, "max_epochs": 0 if max_updates else EPOCHS}
    with _folder() as folder:
        # The JSON is alone on the standard output, for programs.
        code = run_watched(command, Path(folder), **limits, prints_to_stderr=as_json)
        records = read_records(Path(folder))
    trained = _watched(records, code, command, limits)
    job = AuditedJob(one_job(trained))
    report = AuditReport.of_job(job, paper)
    if len(trained) > len(job.processes):
        report.notes.append(
            f"{len(job.processes)} of {len(trained)} processes that trained are of the training "
            "that is asked; the others share no process group with it"
        )
    print(json.dumps(report.as_json(), indent=2) if as_json else report)
    return 1 if report.deviations else 0


def _folder() -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="lsgd-audit-")
    except OSError as error:
        raise UsageError(
            f"no temporary folder can be made ({error.strerror}); set TMPDIR to a folder that this "
            "user may write to"
        ) from None


def _watched(
    records: list[ScriptProcess], code: int, command: Sequence[str], limits: dict[str, int]
) -> list[ScriptProcess]:
    """Return the records of the processes that have trained; raises UsageError if they have not."""
    trained = [each for each in records if each.updates]
    job = one_job(trained)
    updates = min((len(each.updates) for each in job), default=0)
    how = f"exit code {code}" if code >= 0 else f"signal {-code}"
    # A watched process ends by sys.exit(0); what a launcher makes of that is its own matter.
    is_cut_off = updates >= limits["max_updates"] or _epochs(job) >= limits["max_epochs"] > 0
    if code and not is_cut_off:
        raise UsageError(
            f"the script ended with {how} after {updates} updates, so the audit is not complete; "
            "run it without lsgd audit, and put right what it prints; if it ends well there, the "
            "audit is the cause: report this with the versions of torch and of the script's "
            "libraries"
        )
    if trained:
        return trained
    failures = [line["text"] for each in records for line in each.of_kind("failure")]
    if failures:
        raise UsageError(
            f"the script could not be watched, as a hook failed ({failures[0]}); report this with "
            "the versions of torch and of the script's libraries"
        )
    if any(each.first("compiled").get("is_compiled") for each in records):
        raise UsageError(
            "the network was called only inside of a graph that torch.compile has made, where no "
            "hook is called; audit the script without torch.compile"
        )
    if any(each.first("process").get("has_stepped") for each in records):
        raise UsageError(
            "an optimizer made steps, but neither backward() nor torch.autograd.grad was seen to "
            "compute gradients of a network's parameters after a call of the network; the audit "
            "watches only those"
        )
    if records:
        raise UsageError(
            "the script computed gradients, but no torch.optim.Optimizer made an update; the audit "
            "watches only those"
        )
    raise UsageError(
        f"no Python process of {' '.join(command)[:60]!r} trained a network with torch, so nothing "
        "was watched; give the command that starts the training"
    )


def _epochs(records: list[ScriptProcess]) -> int:
    return max((each.updates[-1]["epoch"] for each in records), default=0)


def notes(job: AuditedJob, failures: list[str]) -> list[str]:
    """Return sentences on what could not be observed, or only in part."""
    remarks = [f"not observed, as a hook failed: {each}" for each in dict.fromkeys(failures)]
    world = job.first.first("process").get("world_size", 1)
    if world > len(job.processes):
        remarks.append(f"{len(job.processes)} of {world} processes of the job were watched")
    if any(each.first("compiled").get("is_compiled") for each in job.processes):
        remarks.append("torch.compile: what runs inside of a compiled graph was not seen")
    if job.first.first("gradient").get("is_sharded"):
        remarks.append(
            "FSDP or ZeRO: sharded gradients and parameters are not compared over processes"
        )
    elif job.first.first("optimizer").get("has_flat_copies"):
        remarks.append(
            "the optimizer updates flat copies of the parameters, as in ZeRO: the exchange of "
            "gradients is not observed"
        )
    counts = [each["counts"] for each in job.first.first("optimizer")["groups"]]
    others = sum(each.get("others", 0) for each in counts)
    if others and any(each.keys() - {"others"} for each in counts):
        remarks.append(
            f"{others} parameters of the optimizer are outside of the audited network, which may "
            "be a part of one that is called by another method than forward: which of them are "
            "BN's is not known"
        )
    if later := job.first.first("optimizer")["later_updates"]:
        remarks.append(
            f"another network got {format_count(later, 'update')} after the last one that is seen "
            "here; of several trainings in one process, such as those of cross-validation, only "
            "the first is watched"
        )
    evaluations = max(each["evaluations"] for each in job.first.updates)
    if evaluations > 1:
        remarks.append(
            f"the gradient was evaluated up to {evaluations} times for an update, as by SAM and "
            "L-BFGS: the last evaluation is compared, and BN's running statistics move in each"
        )
    if found := unknown_factor(job):
        remarks.append(
            f"the row gradient is missing, as the factor of the loss at {_short(found[1])} is not "
            f"known ({found[0]}): losses that are summed in place of averaged are not found"
        )
    if is_in_backward(job):
        remarks.append(
            "the optimizers make their steps inside of the backward pass, as by "
            "register_post_accumulate_grad_hook: the gradient is not observed"
        )
    return remarks + _notes_on_data(job)


def _notes_on_data(job: AuditedJob) -> list[str]:
    """Return sentences on what is not known of the examples, their order and their evaluation."""
    remarks = []
    if any(examples_over_processes([*each]) is None for each in _loaders_of_all(job)):
        remarks.append(
            "the processes have datasets of their own, so it is not known whether they share images"
        )
    if is_subset_in_order(job):
        remarks.append(
            "the images of a Subset come in its order, and only one epoch was seen: audit more "
            "updates to learn whether the next epoch has another order"
        )
    if cut_off := [each for each in _loaders_of_all(job) if any(one.is_cut_off for one in each)]:
        remarks.append(
            f"the epoch at {_short(cut_off[0][0].place)} has more examples than are recorded, so "
            "it is not known whether each is seen once"
        )
    if partial := unjudged_evaluations(job):
        remarks.append(
            f"the evaluation at {_short(partial[0].place)} is not judged ({partial[0].run}): it is "
            "of training data, or another evaluation counts all images of its dataset"
        )
    if not job.first.training:
        remarks.append("no DataLoader of torch was seen, so the order of the examples is not known")
    elif job.first.training[0].is_kept:
        remarks.append(
            "the script repeats batches that it has kept of its DataLoader, so their order is not "
            "known"
        )
    elif not job.first.training[0].order:
        remarks.append("the DataLoader's dataset is iterable, so the order is not known")
    return remarks


def _loaders_of_all(job: AuditedJob) -> Iterator[tuple[LoaderRecord, ...]]:
    """Yield the first epochs of the training and of an evaluation, each of all processes."""
    yield from zip(*(each.training[:1] for each in job.processes), strict=False)
    yield from zip(*(each.evaluation[:1] for each in job.processes), strict=False)


@dataclass(frozen=True)
class AuditReport:
    """The observations of a script's job, compared with the rules of a paper."""

    job: AuditedJob
    paper: str
    asked: list[RuleResult]
    """The results of all rules for which something was seen."""
    others: list[Observation]
    """The observations without a rule."""
    unasked: list[str]
    """The rules for which nothing was seen."""
    notes: list[str]

    @classmethod
    def of_job(cls, job: AuditedJob, paper: str) -> "AuditReport":
        """Apply the rules of a paper to the observations of a job."""
        facts, recipe = observe(job), script_recipe(job)
        asked = apply_script_rules(paper, recipe, facts)
        names = {each.rule for each in asked}
        others = [each for each in facts if each.rule not in names | UNSEEN]
        unasked = sorted(PAPERS[paper].rules(recipe).keys() - names)
        failures = [line["text"] for each in job.processes for line in each.of_kind("failure")]
        return cls(job, paper, asked, others, unasked, notes(job, failures))

    @property
    def deviations(self) -> list[str]:
        """The rules from which the script deviates."""
        return [each.rule for each in self.asked if not each.is_followed]

    def __str__(self) -> str:
        title = f"asked by the rules of {PAPERS[self.paper].TITLE}"
        lines = [self.job.summary(), title, "", _row("rule", "section", "this script", "")]
        for result in self.asked:
            verdict = "same" if result.is_followed else "deviation"
            lines.append(_row(result.rule, result.section, result.run, verdict))
            if not result.is_followed:
                lines.append(_row("", "", f"rule: {result.paper}", ""))
                if result.place:
                    lines.append(_row("", "", f"at {_short(result.place)}", ""))
        lines += [*(_row(each.rule, "–", each.run, "no rule") for each in self.others), ""]
        if self.unasked:
            text = f"rules for which nothing was seen: {', '.join(self.unasked)}"
            lines += [textwrap.fill(text, 100), ""]
        lines += [textwrap.fill(note, 100) for note in self.notes]
        if self.deviations:
            text = f"the script deviates from {len(self.deviations)} of {len(self.asked)} rules: "
            lines.append(textwrap.fill(text + ", ".join(self.deviations), 100))
        else:
            count = len(self.asked)
            lines.append(f"the script follows all {count} rules for which something was seen")
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """Return the same as values for JSON."""
        return {
            "rules": self.paper,
            "processes": len(self.job.processes),
            "updates": self.job.updates,
            "minibatch": self.job.minibatch,
            "micro_batches": self.job.micro_batches,
            "worker_batch": self.job.worker_batch,
            "facts": [
                {
                    "rule": each.rule, "seen": each.run, "paper": each.paper,
                    "section": each.section, "is_followed": each.is_followed, "place": each.place,
                }
                for each in self.asked
            ],
            "facts_without_rule": [
                {"rule": each.rule, "seen": each.run, "place": each.place} for each in self.others
            ],
            "not_seen": self.unasked,
            "notes": self.notes,
        }  # fmt: skip


def _short(place: str) -> str:
    path, _, line = place.rpartition(":")
    near = os.path.relpath(path)
    return f"{path if near.startswith('..') else near}:{line}"


def _audit(parser: Parser, argv: Sequence[str]) -> int:
    """Audit the command after the -- of a command line; return the exit code."""
    own, script = list(argv), []
    if "--" in own:
        script = own[own.index("--") + 1 :]
        own = own[: own.index("--")]
    options, misplaced = parser.parse_known_args(own)
    if misplaced:
        parser.reject_argument(misplaced[0], own, f"write the command after --, as in {EXAMPLE}")
    if options.rules not in PAPERS:
        hint = did_you_mean(options.rules, [*PAPERS])
        raise UsageError(f"--rules {options.rules} does not exist; {hint}")
    if not script:
        raise UsageError(
            f"lsgd audit needs the command of a training; write it after --, as in {EXAMPLE}"
        )
    return audit(script, options.rules, max_updates=options.updates, as_json=options.json)


def main(argv: Sequence[str]) -> int:
    """Run the `lsgd audit` command line and return its exit code."""
    parser = Parser("lsgd.audit", ABOUT, usage="python -m lsgd.audit [options] -- COMMAND")
    parser.add_argument(
        "--updates", type=integer_from(1), metavar="N", help="watch N updates, and no fewer"
    )
    parser.add_argument(
        "--rules", default="goyal2017", metavar="PAPER", help=f"one of {', '.join(PAPERS)}"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the same for programs, and the script's output to standard error",
    )

    return run_alone(lambda: _audit(parser, argv))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
