"""What a launcher starts or submits: shown, or done."""

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from lsgd.errors import Refused
from lsgd.launch.attended import is_attended, run_attended
from lsgd.launch.options import IMAGES, Request
from lsgd.launch.processes import find_python
from lsgd.launch.quoting import shell_line


@dataclass(frozen=True)
class Start:
    """A command, and what has to be there for it."""

    request: Request
    processes: int
    command: list[str]
    program: str
    """What the command needs installed."""
    remedy: str
    """How to get that, or what does without it."""
    text: str | None = None
    """What the command is handed to submit; None if it is the job itself."""
    log_folder: Path | None = None
    """Where a submitted job keeps its own log, which has to be there before."""
    saves_at_interrupt: bool = False
    """Whether the command by itself lets its processes save at Ctrl-C."""

    def shown(self) -> str:
        """The text to submit, else the command as a line for a shell."""
        return shell_line(self.command) if self.text is None else self.text

    def go(self) -> NoReturn:
        """Become the job, or submit it and end with the exit code of that.

        Raises Refused if the program or Python is not there, or for a mistake in the recipe.
        """
        if shutil.which(self.program) is None:
            raise Refused(f"{self.program} is not installed; {self.remedy}")
        if not self._in_image:
            find_python()
        self.check()
        if self.text is None:
            sys.stdout.flush()
            sys.stderr.flush()
            if is_attended() and not self.saves_at_interrupt:
                raise SystemExit(run_attended(self.command))
            # Python ignores them, and what it becomes would go on ignoring them.
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            os.execvp(self.command[0], self.command)
        if self.log_folder:
            try:
                self.log_folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise Refused(
                    f"{self.log_folder} cannot be made for the job's log ({error.strerror}); write "
                    "run_dir=PATH where you may"
                ) from None
        done = subprocess.run(self.command, input=f"{self.text}\n", text=True)
        raise SystemExit(done.returncode)

    @property
    def _in_image(self) -> bool:
        return bool(self.request.options.keys() & IMAGES)

    def check(self) -> None:
        """Raise Refused for a mistake in the recipe: launchers bury it under tracebacks of their
        own and lose the exit code, and a job in a queue comes to it late.

        Of a run in an image, whose lsgd may be another, the mistake is only said.
        """
        from lsgd import config  # Hydra takes a while to import, which --help does not wait for
        from lsgd.recipe.checks import check_world_size

        words = [f"+recipe={self.request.recipe}", *self.request.words]
        try:
            check_world_size(config.load_recipe(words), self.processes)
        except Refused as refusal:
            if not self._in_image:
                raise
            print(f"lsgd: unless the image has another lsgd: {refusal}", file=sys.stderr)
