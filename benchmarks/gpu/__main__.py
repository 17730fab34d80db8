"""Run all measurements that a new GPU needs once, in slices: `make gpu`.

    python -m benchmarks.gpu                         # everything; the ladder for 8 minutes
    python -m benchmarks.gpu --minutes 240           # the ladder for 4 hours
    python -m benchmarks.gpu step-8 batchnorm-8      # only these slices
    python -m benchmarks.gpu --print                 # list finished slices and the others' commands
    python -m benchmarks.gpu --tiny                  # try the command on a CPU, with tiny sizes

A slice is a separate command with a time limit of --limit minutes. It has a folder in
results/<date>-gpu/ with its log, and is done when the folder has its result. Rerun the same command
to resume after a kill at any moment: finished slices are skipped; slices that failed or ran out of
time are listed at the end, and the next call retries them. On another day, name the folder by
--out. README.md in that folder is rewritten after each slice.

The ladder, CIFAR-10's study seed by seed, saves a checkpoint at the end of a slice, and the next
one resumes it. Its runs are in runs/trials/, as those of any study.

exit code 0: all slices that can run here are done; 1: some have failed or ran out of time; 2: usage
error; 75: stopped by a signal, or the ladder is not finished; rerun the same command to resume.
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

from benchmarks.gpu.attempt import run_slice
from benchmarks.gpu.machine import find_machine, keep_machine
from benchmarks.gpu.outcome import (
    FAILED,
    LOG,
    OUT_OF_TIME,
    RESUMABLE,
    SliceOutcome,
    is_done,
    read_outcome,
)
from benchmarks.gpu.report import LADDER, state, write_report
from benchmarks.gpu.slices import FULL, TINY, Slice, SliceSettings, all_slices, ladder_overrides
from lsgd.errors import PreemptedError, UsageError
from lsgd.job.children import describe_failure, run_with_limit
from lsgd.job.command import Parser, run_alone
from lsgd.suggestions import did_you_mean
from lsgd.supervise import catch_stop_signals

PATIENCE = 30.0
"""The seconds to wait for the remaining processes of a killed call."""
REPORTING = 300.0
"""The time limit of the report on the ladder, in seconds."""


def gpu(argv: Sequence[str]) -> int:
    """Run or print the slices that the command line selects, and return the exit code."""
    options = _parser().parse_args(argv)
    sizes = TINY if options.tiny else FULL
    slices = all_slices(sizes)
    chosen = _chosen(slices, options.slices)
    name = "runs/gpu-tiny" if options.tiny else f"results/{date.today().isoformat()}-gpu"
    out = options.out or Path(name)
    if options.print:
        for each in chosen:
            lack = each.missing_requirement
            print(f"# {each.name}: {state(out / each.name, each)}{lack and f': {lack}'}")
            if not is_done(out / each.name):
                print(each.shell_command(out / each.name))
        return 0
    machine = find_machine(sizes.device)
    with _alone_in(out) as held:
        keep_machine(out, machine)
        signals = catch_stop_signals()
        minutes = options.limit if options.minutes is None else options.minutes
        work = SliceRunner(out, sizes, slices, options.limit, held, signals)
        work.run(chosen, minutes)
        write_report(out, slices)
    return work.end(chosen)


class SliceRunner:
    """The slices that this process runs, one after another."""

    def __init__(
        self,
        out: Path,
        sizes: SliceSettings,
        slices: Sequence[Slice],
        limit: float,
        held: int,
        signals: Sequence[int],
    ) -> None:
        self.out, self.sizes, self.slices = out, sizes, slices
        self.limit, self.held, self.signals = limit, held, signals

    def run(self, chosen: Sequence[Slice], for_training: float) -> None:
        """Run all slices that are not done; training slices get `for_training` seconds in all."""
        until = None
        for each in chosen:
            if is_done(self.out / each.name):
                print(f"{each.name}: done already", flush=True)
            elif each.missing_requirement:
                print(f"{each.name}: skipped: {each.missing_requirement}", flush=True)
            elif each.is_resumable:
                until = until or time.monotonic() + for_training
                self._train(each, until)
            elif not self.signals:
                self._attempt(each, self.limit)
        if until is not None and not self.signals:
            self._report_ladder()

    def _train(self, each: Slice, until: float) -> None:
        """Rerun a training slice until its training is finished or the time is over."""
        going_on = True
        while going_on and not self.signals and (left := until - time.monotonic()) > 0:
            going_on = self._attempt(each, min(self.limit, left)).outcome == RESUMABLE

    def _attempt(self, each: Slice, limit: float) -> SliceOutcome:
        log = self.out / each.name / LOG
        print(f"{each.name}: at most {limit / 60:.3g} min, {log}", flush=True)
        outcome = run_slice(each, self.out / each.name, limit, self.held, self.signals)
        print(f"{each.name}: {outcome}", flush=True)
        write_report(self.out, self.slices)
        return outcome

    def _report_ladder(self) -> None:
        command = [sys.executable, "-m", "benchmarks.gpu.ladder", str(self.out / LADDER)]
        arguments = [*command, self.sizes.study, *ladder_overrides(self.sizes)]
        code, text = run_with_limit(arguments, limit=REPORTING)
        if code != 0:
            print(f"no report on the ladder: {describe_failure(code, text, REPORTING)}", flush=True)

    def end(self, chosen: Sequence[Slice]) -> int:
        """Print the failed and the unfinished slices, and return the exit code."""
        outcomes = {each.name: read_outcome(self.out / each.name) for each in chosen}
        failed = [
            name for name, end in outcomes.items() if end and end.outcome in (FAILED, OUT_OF_TIME)
        ]
        for each in chosen:
            if (end := outcomes[each.name]) and each.name in failed:
                print(f"{end.outcome}: {each.name}: {end.why}")
            elif each.missing_requirement and not is_done(self.out / each.name):
                print(f"skipped: {each.name}: {each.missing_requirement}")
        print(f"report: {self.out / 'README.md'}")
        left = [
            each.name
            for each in chosen
            if each.name not in failed
            and not each.missing_requirement
            and not is_done(self.out / each.name)
        ]
        if left:
            print(
                f"not through: {', '.join(left)}; the same command goes on, with --out {self.out}"
            )
            return PreemptedError.exit_code
        return 1 if failed else 0


def _chosen(slices: Sequence[Slice], names: Sequence[str]) -> list[Slice]:
    """Return the slices of these names, or all, in the order in which they run.

    Raises UsageError for an unknown name.
    """
    known = [each.name for each in slices]
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known, "--print lists all")
            raise UsageError(f"there is no slice {name!r}; {hint}")
    return [each for each in slices if not names or each.name in names]


@contextmanager
def _alone_in(out: Path) -> Iterator[int]:
    """Lock the folder for this process and its children, and yield the locked descriptor.

    Raises UsageError if another process holds the lock for longer than a killed one needs to end.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        held = os.open(out, os.O_RDONLY)
    except OSError as error:
        raise UsageError(f"--out {out} cannot be made ({error.strerror}); write another") from None
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.monotonic() > deadline:
                raise UsageError(f"--out {out} has another call at work; wait for it, or end it")
            time.sleep(0.2)
        yield held
    finally:
        os.close(held)


def minutes(text: str) -> float:
    """Parse an option in minutes, and return its seconds."""
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
    parser.add_path("--out", "FOLDER", "by default results/<date>-gpu")
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
    """Run the command line and return the exit code."""
    return run_alone(lambda: gpu(argv))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
