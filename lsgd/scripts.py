"""`lsgd-launch`: the launch scripts of an installed lsgd, called as those of a checkout are."""

import os
import sys

from lsgd.paths import launch_dir


def launch() -> None:
    """`lsgd-launch X RECIPE …` becomes launch/X.sh RECIPE …, for the Python that runs this."""
    folder = launch_dir()
    launchers = sorted(path.stem for path in folder.glob("*.sh") if path.stem != "job")
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(f"usage: lsgd-launch {'|'.join(launchers)} RECIPE [key=value …] [options] [--print]")
        print("lsgd-launch slurm --help says which options it has")
        return
    if name not in launchers:
        print(
            f"lsgd-launch: there is no launcher {name}; write one of {', '.join(launchers)}",
            file=sys.stderr,
        )
        raise SystemExit(2)
    os.environ.setdefault("PYTHON", sys.executable)
    # Through bash, as a wheel may lose the permission to execute.
    os.execvp("bash", ["bash", str(folder / f"{name}.sh"), *arguments])
