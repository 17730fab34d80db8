"""All that the owner of a GPU should run once, in slices: `make gpu`.

    python -m benchmarks.gpu                         # everything; the ladder for 8 minutes
    python -m benchmarks.gpu --minutes 240           # the ladder for 4 hours
    python -m benchmarks.gpu step-8 batchnorm-8      # these slices
    python -m benchmarks.gpu --print                 # what is done, and the commands of the rest
    python -m benchmarks.gpu --tiny                  # the command tried in small, on a CPU

A slice is a command of its own, which ends within --limit minutes or is ended. It has a folder in
results/<date>-gpu/ with its log, and is done when that has its result. The same command goes on
after a kill at any moment: what is done is not done again; what has failed or ran out of time is
named at the end, and tried again by the next call. On another day, name the folder by --out. The
README.md there is written anew after each slice.

The ladder, CIFAR-10's study by seed, saves and leaves when a slice is over, and goes on with the
next one. Its runs lie in runs/trials/, as those of any study.

exit code 0: all slices that can be run here are done; 1: some have failed or ran out of time; 2:
refused; 75: told to stop, or the ladder is not through, and the same command goes on.
"""

import argparse
import fcntl
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import date
from pathlib import Path

from benchmarks.gpu.attempt import attempt
from benchmarks.gpu.machine import find_machine, keep_machine
from benchmarks.gpu.outcome import FAILED, GOES_ON, LATE, LOG, Outcome, is_done, read_outcome
from benchmarks.gpu.report import LADDER, state, write_report
from benchmarks.gpu.slices import FULL, TINY, Sizes, Slice, all_slices, trial_words
from lsgd.errors import Preempted, Refused
from lsgd.job.children import failure, finished
from lsgd.job.command import Parser, run_alone
from lsgd.nearest import did_you_mean
from lsgd.supervise.signals import catch_stop_signals

PATIENCE = 30.0
"""Seconds in which what a killed call has left has ended."""
REPORTING = 300.0
"""Seconds that the report on the ladder may take."""


def gpu(argv: Sequence[str]) -> int:
    """Do what the words ask for; returns the exit code."""
    options = _parser().parse_args(argv)
    sizes = TINY if options.tiny else FULL
    slices = all_slices(sizes)
    chosen = _chosen(slices, options.slices)
    name = "runs/gpu-tiny" if options.tiny else f"results/{date.today().isoformat()}-gpu"
    out = options.out or Path(name)
    if options.print:
        for each in chosen:
            print(
                f"# {each.name}: {state(out / each.name, each)}{each.lacks and f': {each.lacks}'}"
            )
            if not is_done(out / each.name):
                print(each.shown(out / each.name))
        return 0
    machine = find_machine(sizes.device)
    with _alone_in(out) as held:
        keep_machine(out, machine)
        signals = catch_stop_signals()
        minutes = options.limit if options.minutes is None else options.minutes
        work = Work(out, sizes, slices, options.limit, held, signals)
        work.run(chosen, minutes)
        write_report(out, slices)
    return work.end(chosen)


class Work:
    """The slices that are run by this process, one after another."""

    def __init__(
        self,
        out: Path,
        sizes: Sizes,
        slices: Sequence[Slice],
        limit: float,
        held: int,
        signals: Sequence[int],
    ) -> None:
        self.out, self.sizes, self.slices = out, sizes, slices
        self.limit, self.held, self.signals = limit, held, signals

    def run(self, chosen: Sequence[Slice], for_training: float) -> None:
        """Run what is not done yet, what trains for so many seconds in all."""
        until = None
        for each in chosen:
            if is_done(self.out / each.name):
                print(f"{each.name}: done already", flush=True)
            elif each.lacks:
                print(f"{each.name}: skipped: {each.lacks}", flush=True)
            elif each.trains:
                until = until or time.monotonic() + for_training
                self._train(each, until)
            elif not self.signals:
                self._attempt(each, self.limit)
        if until is not None and not self.signals:
            self._report_ladder()

    def _train(self, each: Slice, until: float) -> None:
        """Start it again and again, until it ends by itself or the time is over."""
        going_on = True
        while going_on and not self.signals and (left := until - time.monotonic()) > 0:
            going_on = self._attempt(each, min(self.limit, left)).outcome == GOES_ON

    def _attempt(self, each: Slice, limit: float) -> Outcome:
        log = self.out / each.name / LOG
        print(f"{each.name}: at most {limit / 60:.3g} min, {log}", flush=True)
        outcome = attempt(each, self.out / each.name, limit, self.held, self.signals)
        print(f"{each.name}: {outcome}", flush=True)
        write_report(self.out, self.slices)
        return outcome

    def _report_ladder(self) -> None:
        command = [sys.executable, "-m", "benchmarks.gpu.ladder", str(self.out / LADDER)]
        words = [*command, self.sizes.study, *trial_words(self.sizes)]
        code, text = finished(words, limit=REPORTING)
        if code != 0:
            print(f"no report on the ladder: {failure(code, text, REPORTING)}", flush=True)

    def end(self, chosen: Sequence[Slice]) -> int:
        """Say what is left, and where all is; returns the exit code."""
        outcomes = {each.name: read_outcome(self.out / each.name) for each in chosen}
        failed = [name for name, end in outcomes.items() if end and end.outcome in (FAILED, LATE)]
        for each in chosen:
            if (end := outcomes[each.name]) and each.name in failed:
                print(f"{end.outcome}: {each.name}: {end.why}")
            elif each.lacks and not is_done(self.out / each.name):
                print(f"skipped: {each.name}: {each.lacks}")
        print(f"report: {self.out / 'README.md'}")
        left = [
            each.name
            for each in chosen
            if each.name not in failed and not each.lacks and not is_done(self.out / each.name)
        ]
        if left:
            print(
                f"not through: {', '.join(left)}; the same command goes on, with --out {self.out}"
            )
            return Preempted.exit_code
        return 1 if failed else 0


def _chosen(slices: Sequence[Slice], names: Sequence[str]) -> list[Slice]:
    """The slices of these names, in their own order, or all; raises Refused for another name."""
    known = [each.name for each in slices]
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known, "--print lists all")
            raise Refused(f"there is no slice {name!r}; {hint}")
    return [each for each in slices if not names or each.name in names]


@contextmanager
def _alone_in(out: Path) -> Iterator[int]:
    """A descriptor of the folder, locked for this process and those it hands it to.

    Raises Refused if another one is at work there for longer than a killed one needs to end.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        held = os.open(out, os.O_RDONLY)
    except OSError as error:
        raise Refused(f"--out {out} cannot be made ({error.strerror}); write another") from None
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.monotonic() > deadline:
                raise Refused(f"--out {out} has another call at work; wait for it, or end it")
            time.sleep(0.2)
        yield held
    finally:
        os.close(held)


def minutes(text: str) -> float:
    """The type of an option in minutes; returns seconds."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not a number of minutes, 0 or more")
    return value * 60


def _parser() -> Parser:
    about, _, more = (__doc__ or "").partition("\n\n")
    parser = Parser("benchmarks.gpu", about, epilog=more)
    parser.add_argument("slices", nargs="*", metavar="SLICE", help="by default all")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="by default results/<date>-gpu")
    parser.add_argument(
        "--limit", type=minutes, default=480.0, metavar="MINUTES", help="of a slice (8)"
    )
    parser.add_argument(
        "--minutes", type=minutes, metavar="MINUTES", help="for the ladder in all (--limit)"
    )
    parser.add_argument("--tiny", action="store_true", help="in small, on a CPU")
    parser.add_argument("--print", action="store_true", help="start nothing")
    return parser


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    return run_alone(lambda: gpu(argv))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
