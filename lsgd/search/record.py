"""What a search has found, in the points.json of its folder, from which reports are made."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from lsgd import files
from lsgd.errors import Refused
from lsgd.rules.metric import TOP1, Metric, named_metric
from lsgd.run import provenance
from lsgd.run.tuned import POINTS
from lsgd.search.point import PRUNED, Point, Values, best_of
from lsgd.search.space import Space, words_of


@dataclass(frozen=True)
class SearchRecord:
    """One search, as far as it has come."""

    name: str
    """Of its folder."""
    title: str
    command: str
    sampler: str
    budget: int
    """The points that it is to try."""
    epochs: int
    """Of a point that is finished, all its seeds together."""
    metric: Metric
    points: list[Point]
    best: list[float]
    """The numbers of the best point with the seeds by which it is compared."""
    default: list[float]
    """The numbers of the recipe as it is with the same seeds, in the same order."""
    start: dict[str, Any]
    """Machine and versions of one of its runs."""

    @property
    def in_order(self) -> list[Point]:
        """The points that have ended, first end first."""
        ended = [point for point in self.points if point.ended]
        return sorted(ended, key=lambda point: (point.ended, point.number))

    @property
    def saved(self) -> float:
        """The share of the epochs of all points that those given up have not trained."""
        given_up = [point for point in self.points if point.state == PRUNED]
        epochs = sum(self.epochs - max(point.reported, default=0) for point in given_up)
        return epochs / (len(self.points) * self.epochs) if self.points else 0.0

    @property
    def seconds(self) -> float:
        """How long at least one point was at work; pauses between two commands do not count."""
        spans = sorted((p.began, p.ended) for p in self.points if p.began and p.ended)
        total, until = timedelta(), None
        for began, ended in spans:
            begins = max(began, until) if until else began
            total += max(ended - begins, timedelta())
            until = max(ended, until) if until else ended
        return total.total_seconds()


def record_of(space: Space, points: Sequence[Point], name: str, command: str) -> SearchRecord:
    """What there is of a search, with the runs by which it is compared."""
    search, best = space.search, best_of(points)
    seeds = search.compared_seeds if best else []

    def numbers(values: Values) -> list[float]:
        runs = [trial.run for trial in space.trials(values, seeds)]
        found = [run.number for run in runs if run and run.finished]
        return found if len(found) == len(seeds) else []

    run = space.trials(best.values, search.seeds[:1])[0].run if best else None
    return SearchRecord(
        name,
        search.title,
        command,
        search.sampler,
        search.points,
        space.recipe({}).epochs * len(search.seeds),
        run.metric if run else TOP1,
        list(points),
        numbers(best.values) if best else [],
        numbers({}),
        run.start if run else {},
    )


def save(record: SearchRecord, folder: Path) -> None:
    """Write the record; the tuned words are in it too, which a study may train with."""
    best = best_of(record.points)
    values = asdict(record) | {
        "metric": record.metric.full_name,
        "tuned": words_of(best.values) if best else None,
        "lsgd": provenance.version(),
    }
    with files.whole(folder / POINTS) as file:
        file.write(json.dumps(values, indent=1, default=str).encode() + b"\n")


def load(folder: Path) -> SearchRecord:
    """The record in the folder of a search; raises Refused if there is none."""
    try:
        values = json.loads((folder / POINTS).read_text(encoding="utf-8"))
        del values["tuned"], values["lsgd"]
        values["metric"] = named_metric(values["metric"])
        values["points"] = [_point(each) for each in values["points"]]
        return SearchRecord(**values)
    except (OSError, ValueError, LookupError, TypeError):
        raise Refused(
            f"{folder} has no {POINTS} of a search; write the folder of one, such as "
            "runs/searches/digits"
        ) from None


def _point(values: dict[str, Any]) -> Point:
    for key in ("began", "ended"):
        values[key] = values[key] and datetime.fromisoformat(values[key])
    values["reported"] = {int(step): value for step, value in values["reported"].items()}
    return Point(**values)
