"""The command that starts or submits a job, and its execution or display."""

import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import NoReturn

from lsgd.errors import UsageError, writing_to
from lsgd.launch.attended import is_attended, run_attended
from lsgd.launch.options import IMAGES, Request
from lsgd.launch.processes import find_python
from lsgd.launch.quoting import shell_line
from lsgd.override_syntax import format_override


@dataclass(frozen=True)
class LaunchCommand:
    """A command that starts or submits a training job, with the program and files that it needs."""

    request: Request
    processes: int
    command: list[str]
    program: str
    """The program that has to be installed for the command."""
    remedy: str
    """The way to install that program, or to do without it."""
    text: str | None = None
    """The job file that the command submits; None if the command is the job itself."""
    log_folder: str = ""
    """The folder of the job's output, which is made before the job starts, or an empty string."""
    saves_at_interrupt: bool = False
    """Whether the command itself lets its processes save at Ctrl-C."""

    def shown(self) -> str:
        """Return what --print shows: the job file to submit, or else the command for a shell."""
        return shell_line(self.command) if self.text is None else self.text

    def execute(self) -> NoReturn:
        """Run the job in place of this process, or submit it and exit with that exit code.

        Raises UsageError if the program or Python does not exist, or for a mistake in the recipe.
        """
        program = shutil.which(self.program)
        if program is None:
            raise UsageError(f"{self.program} is not installed; {self.remedy}")
        if interpreter := _missing_interpreter(program):
            raise UsageError(
                f"{program} cannot be started, as its interpreter {interpreter} does not exist: "
                "the environment was moved, or its folder renamed; make it again, in a checkout "
                "by 'rm -rf .venv', then 'make setup'"
            )
        if not self._in_image:
            find_python()
        self.check()
        if self.log_folder:
            run_dir = self.request.run_dir
            shown = f"run_dir={run_dir}" if run_dir else self.log_folder
            with writing_to(shown, "write run_dir=PATH for a folder that you can write to"):
                os.makedirs(self.log_folder, exist_ok=True)
        if self.text is None:
            sys.stdout.flush()
            sys.stderr.flush()
            if is_attended() and not self.saves_at_interrupt:
                raise SystemExit(run_attended(self.command))
            # Python ignores these signals, and the executed program would inherit that.
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            os.execvp(self.command[0], self.command)
        done = subprocess.run(self.command, input=os.fsencode(f"{self.text}\n"))
        raise SystemExit(done.returncode)

    @property
    def _in_image(self) -> bool:
        return bool(self.request.options.keys() & IMAGES)

    def check(self) -> None:
        """Check the job's recipe before any process starts; raise UsageError for a mistake.

        Launchers bury such an error under tracebacks of their own and lose its exit code, and a job
        in a queue meets it late. For a run in an image, whose lsgd may be another, the mistake is
        only printed.
        """
        from lsgd import config  # Hydra takes a while to import, which --help does not wait for
        from lsgd.recipe.checks import check_world_size

        overrides = [format_override("recipe", self.request.recipe), *self.request.overrides]
        try:
            check_world_size(config.load_recipe(overrides), self.processes)
        except UsageError as refusal:
            if not self._in_image:
                raise
            print(f"lsgd: unless the image has another lsgd: {refusal}", file=sys.stderr)


def _missing_interpreter(program: str) -> str:
    """Return the path of a script's interpreter if it does not exist; an empty string otherwise.

    The system says that the script itself is missing. pip and uv write a path that has a blank, or
    is long, into a second line, for the shell. A path that the shell would compute is not judged.
    """
    try:
        with open(program, "rb") as file:
            head = file.read(4096)
    except OSError:  # it may be executable alone
        return ""
    found = re.match(rb"#!/bin/sh\n'''exec' (.+) \"\$0\"", head) or re.match(rb"#!\s*(\S+)", head)
    path = found[1].strip(b"\"'") if found else b""
    is_plain = os.path.isabs(path) and not re.search(rb"[\"'$]", path)
    return os.fsdecode(path) if is_plain and not os.path.exists(path) else ""
