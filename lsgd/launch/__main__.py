"""One line starts a run: `python -m lsgd.launch LAUNCHER RECIPE [key=value …] [options] [--print]`.

    python -m lsgd.launch slurm bs8k --nodes 32 data.root=/data/imagenet
    python -m lsgd.launch mpirun digits --np 4 --print    # show the command, and do nothing
    python -m lsgd.launch slurm --help                    # the options of a launcher

In a checkout launch/LAUNCHER.sh is the same, and installed `lsgd-launch LAUNCHER`.
"""

import sys
from collections.abc import Callable, Sequence

from lsgd.errors import Refused
from lsgd.job.command import run_alone
from lsgd.launch.commands import horovodrun, local, mpirun, ray, singly, torchrun
from lsgd.launch.k8s import k8s
from lsgd.launch.options import LAUNCHERS, Request, read_request
from lsgd.launch.slurm import slurm
from lsgd.launch.start import Start
from lsgd.nearest import did_you_mean, written_here
from lsgd.paths import recipe_names

STARTS: dict[str, Callable[[Request], Start]] = {
    "local": local,
    "torchrun": torchrun,
    "horovodrun": horovodrun,
    "mpirun": mpirun,
    "singly": singly,
    "ray": ray,
    "slurm": slurm,
    "k8s": k8s,
}
"""What each launcher starts or submits; all raise Refused for options that do not fit together."""


def launch(argv: Sequence[str]) -> None:
    """Start, submit or show the run that the words ask for."""
    launcher, *words = argv or ["--help"]
    names = sorted(LAUNCHERS)
    if launcher in ("-h", "--help"):
        form = f"{'|'.join(names)} RECIPE [key=value …] [options] [--print]"
        print(f"usage: python -m lsgd.launch {form}")
        for name in names:
            print(f"  {name:<11} {LAUNCHERS[name].about}")
        print("python -m lsgd.launch slurm --help says which options it has")
        return
    if launcher not in LAUNCHERS:
        hint = f"it is a recipe: write lsgd launch local {launcher}"
        if launcher not in recipe_names():
            hint = written_here(launcher, options=["--help"]) or did_you_mean(launcher, names)
        raise Refused(f"there is no launcher {launcher}; {hint}")
    request = read_request(launcher, words)
    start = STARTS[launcher](request)
    if not request.prints:
        start.go()
    start.check()
    print(start.shown())


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code, unless this process becomes the job."""
    words = sys.argv[1:] if argv is None else argv
    return run_alone(lambda: launch(words))


if __name__ == "__main__":
    raise SystemExit(main())
