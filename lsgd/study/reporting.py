"""The report on a study, and the folder it lies in."""

import fcntl
import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lsgd.recipe.study import Study
from lsgd.report import report
from lsgd.study.trials import trials
from lsgd.trials.trial import Trial


def report_folder(study: Study, everything: Sequence[Trial]) -> Path:
    """`runs/studies/NAME`; words that change what is computed get a folder of their own."""

    def computed(trials: Sequence[Trial]) -> list[str]:
        return sorted({replace(trial.recipe, seed=0).fingerprint for trial in trials})

    if computed(everything) == computed(trials(study, [])):
        return Path("runs/studies") / study.name
    digest = hashlib.sha256("".join(computed(everything)).encode()).hexdigest()
    return Path("runs/studies") / f"{study.name}-{digest[:8]}"


def write_report(study: Study, words: Sequence[str], everything: Sequence[Trial]) -> None:
    """On whatever there is of the trials; raises Refused if it cannot be written."""
    folders = [trial.folder for trial in everything if trial.folder.is_dir()]
    if not folders:
        return
    out = report_folder(study, everything)
    if out.name != study.name:
        study = replace(study, title=f"{study.title} ({' '.join(words)})")
    out.parent.mkdir(parents=True, exist_ok=True)
    # Two studies may end at once.
    with out.with_name(f".{out.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = shlex.join(["python", "-m", "lsgd.study", f"+study={study.name}", *words])
        print(f"report: {report(folders, study, out, words, command)}", flush=True)
