"""The result of a search, saved in the points.json of its folder, from which reports are made."""

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from lsgd import files
from lsgd.errors import UsageError
from lsgd.rules.metric import TOP1, Metric, metric_by_name
from lsgd.run import provenance
from lsgd.run.read import SUPERVISOR_LOG, Run
from lsgd.run.rows import finite_number, read_rows, start_time
from lsgd.run.tuned import POINTS
from lsgd.search.space import SearchSpace, crashed_trials, overrides_of
from lsgd.search.trial import FINISHED, PRUNED, Trial, Values, best_trial
from lsgd.typed import convert_json
from lsgd.untrusted_files import parse_json, read_bounded

Span = tuple[datetime, datetime]
"""A begin and an end, in local time."""


@dataclass(frozen=True)
class SearchRecord:
    """The record of a hyper-parameter search so far: settings, trials and comparison metrics."""

    name: str
    """The name of its folder."""
    title: str
    command: str
    sampler: str
    budget: int
    """The number of trials that the search is to make."""
    epochs: int
    """The epochs that the unchanged recipe trains, summed over the seeds of a trial."""
    metric: Metric
    points: list[Trial]
    best: list[float]
    """The final metrics of the best trial, for the seeds of the comparison."""
    default: list[float]
    """The final metrics of the unchanged recipe, for the same seeds in the same order."""
    start: dict[str, Any]
    """The machine and versions, from the start row of one run."""
    work: list[Span] = field(default_factory=list)
    """The times in which ended trials were trained; empty in records of earlier versions."""
    crashed: int = 0
    """The number of trials that crashed and were not retried; 0 in records of earlier versions."""

    @property
    def ended_trials(self) -> list[Trial]:
        """The trials of the search that have ended, ordered by the time of their end."""
        ended = [point for point in self.points if point.ended]
        return sorted(ended, key=lambda point: (point.ended, point.number))

    @property
    def saved_share(self) -> float:
        """The fraction of the epochs of all trials that pruning has saved."""
        total = saved = 0
        for point in self.points:
            epochs = self.epochs if point.epochs is None else point.epochs
            total += epochs
            if point.state == PRUNED:
                saved += epochs - max(point.reported, default=0)
        return saved / total if total else 0.0

    @property
    def busy_seconds(self) -> float:
        """The seconds in which at least one trial was running, without pauses between commands."""
        total, until = timedelta(), None
        for began, ended in sorted(self._spans):
            begins = max(began, until) if until else began
            total += max(ended - begins, timedelta())
            until = max(ended, until) if until else ended
        return total.total_seconds()

    @property
    def trial_seconds(self) -> float:
        """The seconds of training, summed over the trials."""
        return sum((ended - began).total_seconds() for began, ended in self._spans)

    @property
    def _spans(self) -> list[Span]:
        return self.work or [(p.began, p.ended) for p in self.points if p.began and p.ended]


def make_record(
    space: SearchSpace, points: Sequence[Trial], name: str, command: str
) -> SearchRecord:
    """Build the record of a search so far, with the final metrics of finished comparison runs."""
    search, best = space.search, best_trial(points)
    seeds = search.holdout_seeds if best else []

    def numbers(values: Values) -> list[float]:
        runs = [trial.saved_run for trial in space.planned_runs(values, seeds)]
        found = [run.final_metric for run in runs if run and run.finished]
        return found if len(found) == len(seeds) else []

    ended = best or next((point for point in points if point.state == FINISHED), None)
    run = space.planned_runs(ended.values, search.seeds[:1])[0].saved_run if ended else None
    return SearchRecord(
        name,
        search.title,
        command,
        search.sampler,
        search.trial_count,
        space.recipe({}).epochs * len(search.seeds),
        run.metric if run else TOP1,
        [_with_epochs(space, point) for point in points],
        numbers(best.values) if best else [],
        numbers({}),
        run.start if run else {},
        [span for point in points for span in _work_spans(space, point)],
        sum(not point.is_retry for point in crashed_trials(space, points)),
    )


def _with_epochs(space: SearchSpace, trial: Trial) -> Trial:
    """Key a trial's intermediate values by epochs trained, if its search varies `epochs`.

    Optuna has them by steps, of which a short trial leaves some out between its seeds. The trial
    gets its own number of epochs too.
    """
    varies = "epochs" in space.search.space
    runs = space.valid_runs(trial.values, space.search.seeds) if varies else []
    if not runs:
        return trial
    epochs = runs[0].recipe.epochs
    reported = {space.epochs_until(step, epochs): v for step, v in trial.reported.items()}
    return replace(trial, epochs=len(runs) * epochs, reported=reported)


def _work_spans(space: SearchSpace, trial: Trial) -> list[Span]:
    """Return the times in which a trial that has ended was trained, by its supervisors' logs.

    Times before the trial, in which another search trained its runs, are left out. Without a log it
    is all the time between the trial's begin and end.
    """
    if trial.began is None or trial.ended is None:
        return []
    spans, last = list[Span](), ("killed", trial.ended)
    for planned in space.valid_runs(trial.values, space.search.seeds):
        run, started = planned.saved_run, None
        for event, time in [*_events(planned.folder / SUPERVISOR_LOG), last]:
            if started and event in ("start", "end", "killed"):
                ends = time if event == "end" else _last_row(run, started, time)
                spans.append((started, ends))
            started = time if event == "start" else None if event == "end" else started
    began, ended = trial.began, trial.ended
    clipped = [(max(a, began), min(b, ended)) for a, b in spans if a < ended and b > began]
    return clipped or [(began, ended)]


def _events(log: Path) -> list[tuple[str, datetime]]:
    """Read the events of a supervisor's log with their local times."""
    found = list[tuple[str, datetime]]()
    with suppress(OSError, ValueError, LookupError, TypeError):  # a damaged log
        for row in read_rows(log):
            time = datetime.fromisoformat(row["time"]).astimezone()
            found.append((str(row["event"]), time.replace(tzinfo=None)))
    return found


def _last_row(run: Run | None, started: datetime, until: datetime) -> datetime:
    """Estimate when a start of a run that was killed before `until` wrote its last epoch row.

    Rows of epochs have no times, so that it is the time of the start row plus that of the steps.
    """
    time, step, is_inside = started, 0, False
    for row in run.rows if run else []:
        if row["kind"] == "start":
            at = datetime.fromtimestamp(start_time(row))
            # A start row's time has whole seconds.
            is_inside = started - timedelta(seconds=1) <= at < until
            time = max(time, at) if is_inside else time
        elif row["kind"] == "epoch":
            seconds = finite_number(row, "step_seconds") if is_inside else None
            time += timedelta(seconds=(row["step"] - step) * (seconds or 0.0))
        step = row["step"] if row["kind"] in ("start", "epoch") else step
    return min(time, until)


def save_record(record: SearchRecord, folder: Path) -> None:
    """Write a search's record to its folder as JSON, with the best trial's overrides."""
    best = best_trial(record.points)
    values = asdict(record) | {
        "metric": record.metric.full_name,
        # JSON has no infinity: null is the value of a trial that never reached the target.
        "points": [asdict(p) | {"value": _finite(p.value)} for p in record.points],
        "best": list(map(_finite, record.best)),
        "default": list(map(_finite, record.default)),
        "tuned": overrides_of(best.values) if best else None,
        "lsgd": provenance.version(),
    }
    with files.atomic_write(folder / POINTS) as file:
        text = json.dumps(values, indent=1, default=str, allow_nan=False)
        file.write(text.encode() + b"\n")


def load_record(folder: Path) -> SearchRecord:
    """Read a search's record from its folder; raise UsageError if the folder has no valid one."""
    try:
        values = parse_json(read_bounded(folder / POINTS))
        del values["tuned"], values["lsgd"]
        values["metric"] = metric_by_name(values["metric"])
        for point in values["points"]:
            if point["state"] == FINISHED and point["value"] is None:
                point["value"] = math.inf
        for key in ("best", "default"):
            values[key] = [math.inf if number is None else number for number in values[key]]
        record: SearchRecord = convert_json(SearchRecord, values)
        _check_alike(record)
        return record
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise UsageError(
            f"{folder} has no {POINTS} of a search; write the folder of a search, such as "
            "runs/searches/digits"
        ) from None


def _check_alike(record: SearchRecord) -> None:
    """Raise ValueError unless the trials and comparison metrics of a search record are consistent.

    All finished trials must have the same fields, and the best trial as many final metrics as the
    unchanged recipe, where both have any.
    """
    fields = {frozenset(p.values) for p in record.points if p.state == FINISHED}
    numbers = {len(each) for each in (record.best, record.default) if each}
    if len(fields) > 1 or len(numbers) > 1:
        raise ValueError("its trials are not of one search")


def check_comparable(folders: Sequence[Path], records: Sequence[SearchRecord]) -> None:
    """Raise UsageError unless the searches in these folders have one metric and one search space.

    Those without a finished trial have neither yet.
    """
    known = [pair for pair in zip(folders, records, strict=True) if _searched_fields(pair[1])]
    for folder, record in known[1:]:
        first, other = known[0]
        metrics = [each.metric.full_name for each in (other, record)]
        theirs, ours = (_searched_fields(each) for each in (other, record))
        if metrics[0] != metrics[1]:
            why = f"the first minimises {metrics[0]} and the second {metrics[1]}"
        elif theirs.keys() != ours.keys():
            why = f"the first varies {', '.join(theirs)} and the second {', '.join(ours)}"
        elif any(theirs[key].isdisjoint(ours[key]) for key in ours):
            why = f"the first varies {', '.join(theirs)} and the second values of other kinds"
        else:
            continue
        raise UsageError(f"{first} and {folder} do not fit on one page: {why}; make a page of each")


def _searched_fields(record: SearchRecord) -> dict[str, set[bool]]:
    """Return the fields of a record's finished trials, and whether their values are text.

    A field of numbers and texts has both; without a finished trial there is no field.
    """
    fields = dict[str, set[bool]]()
    for point in record.points:
        if point.state == FINISHED:
            for key, value in sorted(point.values.items()):
                fields.setdefault(key, set()).add(isinstance(value, str))
    return fields


def _finite(number: float | None) -> float | None:
    """Return the number if it is finite, else None."""
    return number if number is not None and math.isfinite(number) else None
