"""The processes that send a run's metrics to trackers; the training process calls no tracker."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from lsgd.errors import UsageError
from lsgd.installation import install_command, is_installed
from lsgd.job.launcher import without_launcher

WAIT = 10.0
"""The seconds, in all, that a finished run waits for its trackers to receive everything.

Many launchers, and every container, kill the remaining processes when the job ends.
"""


def check_installed(trackers: Sequence[str]) -> None:
    """Raise UsageError if an experiment tracker's Python package is not installed; import none."""
    for name in trackers:
        if not is_installed(name):
            raise UsageError(
                f"the tracker {name} needs its package, which is not installed; run "
                f"{install_command(name)}, or send the run later from a machine that has it (lsgd "
                "track)"
            )


def log_of(folder: Path, tracker: str) -> Path:
    """Return the path of an experiment tracker's log file in a run folder."""
    return folder / f"tracker-{tracker}.log"


class TrackerProcesses:
    """The child processes that each send a run's rows to one experiment tracker while it trains.

    They read their standard input, whose end signals the end of this process, however it ends. They
    run in sessions of their own with none of the job's streams, so that nothing waits for them.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder, self.say = folder, say
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, tracker: str) -> None:
        """Start a process that sends the run's rows to this tracker; print a failure and go on."""
        log = log_of(self.folder, tracker)
        command = [sys.executable, "-m", "lsgd.track", str(self.folder), "--to", tracker]
        try:
            with log.open("ab") as output:
                self.processes[tracker] = subprocess.Popen(
                    [*command, "--follow"],
                    env=without_launcher(os.environ),
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
        except OSError as error:  # a full disk, or no memory for a process
            self.say(f"not sent to {tracker} ({error.strerror}); {self._later(tracker)}")
        else:
            self.say(f"sent to {tracker} by a separate process: {log}")

    def end(self, wait: float) -> None:
        """Let the tracker processes send their remaining rows; wait up to `wait` seconds for all.

        With a wait above 0 it prints which are still sending and which have failed.
        """
        until = time.monotonic() + wait
        for process in self.processes.values():
            assert process.stdin
            process.stdin.close()
        for tracker, process in self.processes.items():
            log = log_of(self.folder, tracker)
            code: int | None = None
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(max(0.0, until - time.monotonic()))
            if wait and code is None:
                self.say(
                    f"the process that sends the run to {tracker} continues with the rest: "
                    f"{log}; if it ends with the job, {self._later(tracker)}"
                )
            elif wait and code:
                self.say(f"{tracker} does not have everything: {log}; {self._later(tracker)}")

    def _later(self, tracker: str) -> str:
        command = shlex.join(["lsgd", "track", str(self.folder), "--to", tracker])
        return f"`{command}` sends the rest later"
