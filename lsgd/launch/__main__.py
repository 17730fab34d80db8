"""The command line of `python -m lsgd.launch`, which starts a run with one line.

In a checkout launch/LAUNCHER.sh does the same, and after an installation `lsgd-launch LAUNCHER`.
"""

import sys
from collections.abc import Callable, Sequence

from lsgd.errors import UsageError
from lsgd.job.command import run_alone
from lsgd.launch.commands import horovodrun, local, mpirun, ray, singly, torchrun
from lsgd.launch.k8s import k8s
from lsgd.launch.launch_command import LaunchCommand
from lsgd.launch.options import LAUNCHERS, Request, option_line, read_request
from lsgd.launch.slurm import slurm
from lsgd.paths import recipe_names
from lsgd.suggestions import did_you_mean, suggest_equivalent

LAUNCH_COMMANDS: dict[str, Callable[[Request], LaunchCommand]] = {
    "local": local,
    "torchrun": torchrun,
    "horovodrun": horovodrun,
    "mpirun": mpirun,
    "singly": singly,
    "ray": ray,
    "slurm": slurm,
    "k8s": k8s,
}
"""The function for each launcher that returns its command.

All raise UsageError for options that do not fit together.
"""


HELP = """\
usage: python -m lsgd.launch LAUNCHER RECIPE [key=value ...] [options]

Start training on many processes or machines; --print shows the command and starts nothing.

examples:
  python -m lsgd.launch slurm bs8k --nodes 32 data.root=/data/imagenet
  python -m lsgd.launch mpirun digits --np 4 --print
  python -m lsgd.launch slurm bs8k --nodes 32 --check   measure every node, and train nothing
  python -m lsgd.launch slurm --help                    the options of a launcher
  python -m lsgd.launch --status RUN                    a run's Slurm job: its state, nodes and logs

launchers:"""


def launch(argv: Sequence[str]) -> int:
    """Start, submit or print the job that the arguments describe, or print a job's status."""
    launcher, *arguments = argv or ["--help"]
    names = sorted(LAUNCHERS)
    if launcher in ("-h", "--help"):
        print(HELP)
        print("\n".join(option_line(name, LAUNCHERS[name].about) for name in names))
        return 0
    if launcher == "--status":
        from lsgd.launch.status import print_status  # it reads runs, which starting one does not

        return print_status(arguments)
    if launcher not in LAUNCHERS:
        hint = f"it is a recipe: write lsgd launch local {launcher}"
        if launcher not in recipe_names():
            hint = suggest_equivalent(launcher, options=["--help"]) or did_you_mean(launcher, names)
        raise UsageError(f"launcher {launcher} does not exist; {hint}")
    request = read_request(launcher, arguments)
    start = LAUNCH_COMMANDS[launcher](request)
    if not request.print_only:
        start.execute()
    start.check()
    print(start.shown())
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the launch command line; return its exit code, unless this process becomes the job."""
    arguments = sys.argv[1:] if argv is None else argv
    return run_alone(lambda: launch(arguments))


if __name__ == "__main__":
    raise SystemExit(main())
