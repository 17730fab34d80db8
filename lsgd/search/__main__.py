"""Hyper-parameters by Optuna: `python -m lsgd.search` trains points of a space, finds the best.

    python -m lsgd.search +search=digits                        # one trial after another
    python -m lsgd.search +search=digits --jobs 2               # two at a time
    python -m lsgd.search +search=digits --print                # what is done, what runs
    python -m lsgd.search +search=digits sampler=gp trials=20   # words change the search …
    python -m lsgd.search +search=digits worker_batch=32        # … or hold for all its trials
    python -m lsgd.search --report runs/searches/a runs/searches/b --out FOLDER   # one page on both
    python -m lsgd.search +search=digits --launch slurm --nodes 1 --jobs 8   # 8 in the queue
    python -m lsgd.search +search=digits --launch spark --master spark://HOST:7077 --jobs 8

A point is one value of each field of the search's space, in recipes/search/NAME.yaml; its trials
are runs like those of a study, one for each of `seeds`, in runs/trials/NAME-seedS-FINGERPRINT: one
that is there already, from whatever study or search, is not trained again. The point's value is the
mean of their numbers.

    sampler=grid|random|tpe|gp    how the next point is chosen; sampler_seed=N for another series
    trials=N                      how many points; more of them later go on with the same search
    prune={rule: median}          points whose value after an epoch is worse than half of the others
                                  then are told to save and leave; their run_dir goes on with them
    seeds=[0,1]                   the seeds that each point is trained with
    compared_seeds=[2,3]          other seeds, by which the best point is held against the recipe

The same command goes on where it stopped, also if it was killed: its points are in a journal in
runs/searches/NAME, which optuna-dashboard opens. Points that were begun are finished, and with one
job the search takes the points that it would have taken. Several searches in one folder share the
work. A run that diverges has failed, and one that crashes is started once more. Ctrl-C and SIGTERM
make the trials save and leave; on Slurm they stay in the queue, and the same command finds them.

exit code 0: every point is tried; 2: refused, or a trial was; 75: told to stop, and the same
command goes on.
"""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lsgd.errors import Preempted
from lsgd.files import new_folder
from lsgd.job.command import run_alone
from lsgd.report.libraries import check_libraries
from lsgd.search.controller import Controller, say
from lsgd.search.folder import check_folder, folder_of, locked, open_folder
from lsgd.search.places import Place, place_for
from lsgd.search.point import RUNNING, Point, best_of
from lsgd.search.record import load, record_of, save
from lsgd.search.report import write_page
from lsgd.search.space import in_short, words_of
from lsgd.search.words import ReportRequest, SearchRequest, read_request
from lsgd.supervise.signals import catch_stop_signals
from lsgd.trials.launch import share_cores
from lsgd.trials.trial import Trial, ended

if TYPE_CHECKING:
    from lsgd.search.engine import Engine


def search(argv: Sequence[str]) -> int:
    """Do what the words ask for; returns the exit code, which is 0 once every point is tried."""
    request = read_request(__doc__ or "", argv)
    if isinstance(request, ReportRequest):
        return report(request)
    request.space.check()
    place = place_for(request.launcher)
    # Only now, so that --help does without Optuna.
    from lsgd.search.engine import Engine, begun

    if request.prints:
        folder = folder_of(request.space)
        check_folder(folder, request.space)
        show(request, begun(folder, request.storage), folder)
        return 0
    # Better now than when all is trained.
    check_libraries("search")
    folder = open_folder(request.space)
    engine = Engine(request.space.search, folder, request.storage)
    if request.jobs > 1:
        share_cores(request.launcher, request.jobs)
    with place.open(folder, request.jobs, prunes=bool(request.space.search.prune)):
        return go(request, engine, place, folder)


def go(request: SearchRequest, engine: "Engine", place: Place, folder: Path) -> int:
    """Try the points that are left, compare the best, and report; returns the exit code."""
    signals = catch_stop_signals()  # after Spark, which takes one for itself
    controller = Controller(request.space, engine, place, folder, signals)
    done = sum(point.state != RUNNING for point in engine.points())
    say(f"{folder}: {controller.budget} points, {done} of them tried")
    controller.search(request.jobs)
    if not signals:
        for name, trials in compared(request, engine.points()).items():
            controller.compare(name, trials, request.jobs)
    finish(request, engine.points(), folder)
    if signals:
        say("stopped; the same command goes on")
        return Preempted.exit_code
    return 0


def compared(request: SearchRequest, points: Sequence[Point]) -> dict[str, list[Trial]]:
    """The runs by which the best point is held against the recipe as it is."""
    space, seeds = request.space, request.space.search.compared_seeds
    best = best_of(points)
    if best is None:
        return {}
    return {
        "the best point": space.trials(best.values, seeds),
        "the recipe as it is": space.trials({}, seeds),
    }


def finish(request: SearchRequest, points: Sequence[Point], folder: Path) -> None:
    """Write the record and the page of the search, and say what is best."""
    command = shlex.join(
        ["python", "-m", "lsgd.search", f"+search={request.space.search.name}", *request.words]
    )
    record = record_of(request.space, points, folder.name, command)
    with locked(folder, "report"):
        save(record, folder)
        write_page([record], folder, command)
    best = best_of(points)
    if best and best.value is not None:
        say(f"best: {record.metric.named(best.value)} with {' '.join(words_of(best.values))}")
    print(f"report: {folder / 'index.html'}", flush=True)


def report(request: ReportRequest) -> int:
    """Write one page on several searches."""
    records = [load(folder) for folder in request.folders]
    with new_folder(request.out) as out:
        assert out
        command = ["python", "-m", "lsgd.search", "--report", *map(str, request.folders)]
        write_page(records, out, shlex.join([*command, "--out", str(out)]))
    print(request.out / "index.html")
    return 0


def show(request: SearchRequest, points: Sequence[Point], folder: Path) -> None:
    """Print what has become of each point, and the commands of those that are not finished."""
    print(f"# {folder}: {request.space.search.points} points, {len(points)} of them begun")
    for point in points:
        value = "" if point.value is None else f" {point.value:.4g}"
        print(f"# {point.number + 1}: {in_short(point.values)}: {point.state}{value} {point.why}")
        if point.state == RUNNING:
            for trial in request.space.trials(point.values, request.space.search.seeds):
                if not ended(trial.run):
                    print(shlex.join(request.launcher.command(trial)))


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    return run_alone(lambda: search(argv))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
