"""The processes that send a run to trackers while it trains, which itself calls no tracker."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from lsgd.errors import Refused
from lsgd.installation import install
from lsgd.job.launcher import without_launcher

WAIT = 10.0
"""Seconds that a run which is through waits, in all, until its trackers have everything: many a
launcher, and each container, takes what is left of a job with it."""


def check_installed(trackers: Sequence[str]) -> None:
    """Raise Refused if the package of one of these is not there; none is imported."""
    for name in trackers:
        if find_spec(name) is None:
            raise Refused(
                f"the tracker {name} needs its package, which is not installed; type "
                f"{install(name)}, or send the run later from a machine that has it (lsgd track)"
            )


def log_of(folder: Path, tracker: str) -> Path:
    """The file in a run folder in which the process of this tracker says how it goes."""
    return folder / f"tracker-{tracker}.log"


class Followers:
    """Processes that each send the rows of a run folder to a tracker, until nobody holds their
    standard input.

    So they learn of the end of this process, whichever end that is. They are in sessions of their
    own and have none of the job's streams, so that nobody waits for them.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder, self.say = folder, say
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, tracker: str) -> None:
        """Start the process for this tracker; if it cannot be, that is said, and ends no run."""
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
            self.say(f"sent to {tracker} by a process of its own: {log}")

    def end(self, wait: float) -> None:
        """Let them send what is left, and end; what is not sent after `wait` seconds is said, if
        there are any."""
        until = time.monotonic() + wait
        for process in self.processes.values():
            assert process.stdin
            process.stdin.close()
        for tracker, process in self.processes.items():
            try:
                sent = process.wait(max(0.0, until - time.monotonic())) == 0
            except subprocess.TimeoutExpired:
                sent = False
            if wait and not sent:
                log = log_of(self.folder, tracker)
                self.say(f"{tracker} does not have everything yet: {log}; {self._later(tracker)}")

    def _later(self, tracker: str) -> str:
        return f"lsgd track {self.folder} --to {tracker} sends the rest later"
