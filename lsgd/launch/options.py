"""The launchers and their options, each said once, and how a command line is read by them."""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lsgd.errors import Refused
from lsgd.job.command import Parser


@dataclass(frozen=True)
class Option:
    """An option of one launcher or several; it always has a value."""

    name: str
    value: str
    """What the value is, such as N, in the help."""
    sentence: str
    form: str = ".+"
    """The regular expression that a value has to match."""
    expected: str = ""
    """What the form means, in words."""

    def __str__(self) -> str:
        return f"{self.name} {self.value}"


@dataclass(frozen=True)
class Launcher:
    """A program that starts the processes of a run, as this package calls it."""

    about: str
    options: tuple[str, ...]
    submits: bool = False
    """Whether it returns before the run has begun, and takes 8 GPUs of a machine unless it is told
    otherwise."""


_NUMBER = (r"[1-9][0-9]*", "a number, 1 or more")
_HOST = r"[^:,]+:[1-9][0-9]*"

OPTIONS = {
    option.name: option
    for option in (
        Option(
            "--np", "N", "processes; by default one per GPU of this machine, or 2 without GPUs",
            *_NUMBER,
        ),
        Option("--nodes", "N", "machines", *_NUMBER),
        Option("--gpus", "N", "GPUs, and with them processes, on each machine", *_NUMBER),
        Option(
            "--cpus", "N",
            "cores per process, on machines shared with other jobs; else they are the job's alone",
            *_NUMBER,
        ),
        Option(
            "--hosts", "HOST:N,…",
            "machines, and how many processes each has; process 0 is on the first",
            f"{_HOST}(,{_HOST})*", "like host1:8,host2:8",
        ),
        Option("--time", "TIME", "limit, such as 8:00:00"),
        Option("--container", "IMAGE", "to run in, with Slurm's pyxis"),
        Option("--kind", "mpijob|pytorchjob", "which of Kubeflow's jobs"),
        Option("--image", "IMAGE", "which has lsgd installed"),
        Option(
            "--claim", "NAME",
            "the PersistentVolumeClaim with the data and the runs, mounted at /lsgd",
        ),
        Option("--name", "NAME", "of the job; by default the recipe's"),
    )
}  # fmt: skip
"""Every option by its name."""

LAUNCHERS = {
    "local": Launcher(
        "one job on this machine, over Horovod if it is there, else under torchrun", ("--np",)
    ),
    "torchrun": Launcher(
        "torch.distributed: on this machine, or the same line on each of several",
        ("--np", "--nodes", "--gpus"),
    ),
    "horovodrun": Launcher(
        "Horovod over Gloo, on other machines over ssh", ("--np", "--hosts")
    ),
    "mpirun": Launcher(
        "Horovod over Open MPI, on the machines that it knows of",
        ("--np", "--nodes", "--gpus", "--hosts"),
    ),
    "slurm": Launcher(
        "an sbatch job; what sbatch reads from the environment holds too",
        ("--nodes", "--gpus", "--np", "--cpus", "--time", "--container"),
        submits=True,
    ),
    "k8s": Launcher(
        "Kubeflow's MPIJob (Horovod) or PyTorchJob (torch.distributed)",
        ("--kind", "--image", "--claim", "--nodes", "--gpus", "--name"),
        submits=True,
    ),
}  # fmt: skip
"""Every launcher by its name."""

PRINT = ("--print", "show what would be started or submitted, and do nothing")


@dataclass(frozen=True)
class Given:
    """What a command line says to a launcher."""

    words: list[str]
    """All that is neither an option nor its value, in its order."""
    options: dict[str, str]
    """The value of each option that is given."""
    prints: bool
    """Whether to show what would be started, and do nothing."""


@dataclass(frozen=True)
class Request:
    """The run that a launcher is to start, and the options it is given."""

    recipe: str
    words: list[str]
    """`key=value` words for lsgd.train."""
    options: Mapping[str, str]
    prints: bool = False

    @property
    def run_dir(self) -> str:
        """The run folder that the words name, or an empty text."""
        named = [word.partition("=")[2] for word in self.words if word.startswith("run_dir=")]
        return named[-1] if named else ""

    @property
    def train(self) -> list[str]:
        """What each process runs, after `python`."""
        return ["-m", "lsgd.train", f"+recipe={self.recipe}", *self.words]


class LauncherParser(Parser):
    """The command line of a launcher, whose help has one line for each option."""

    def __init__(self, launcher: str) -> None:
        self.takes = [OPTIONS[name] for name in LAUNCHERS[launcher].options]
        program = f"lsgd.launch {launcher}"
        listed = " ".join(f"[{option}]" for option in [*self.takes, PRINT[0]])
        self.form = f"python -m {program} RECIPE [key=value …] {listed}"
        super().__init__(program, LAUNCHERS[launcher].about, usage=self.form)
        self.add_argument("words", nargs="*")
        self.add_argument(PRINT[0], action="store_true")
        for option in self.takes:
            # A missing value is refused by `read`, which has the sentence for it.
            self.add_argument(
                option.name, dest=option.name, nargs="?", const="", default=argparse.SUPPRESS
            )

    def format_help(self) -> str:
        """The usage, and one line for each option."""
        lines = [(str(option), option.sentence) for option in self.takes] + [PRINT]
        return f"usage: {self.form}\n" + "".join(f"  {name:<24} {says}\n" for name, says in lines)

    def read(self, argv: Sequence[str]) -> Given:
        """What the words say; raises Refused for options that the launcher does not take."""
        # Intermixed: options may stand among the words.
        namespace, unknown = self.parse_known_intermixed_args(argv)
        # What looks like a negative number is a word to argparse.
        unknown += [word for word in namespace.words if word.startswith("-")]
        if unknown:
            raise Refused(f"option {unknown[0].partition('=')[0]} is not known; write {self.form}")
        options = {name: value for name, value in vars(namespace).items() if name in OPTIONS}
        for name, value in options.items():
            if not value:
                raise Refused(f"{name} has no value; write {self.form}")
            if not re.fullmatch(OPTIONS[name].form, value, re.DOTALL):
                raise Refused(f"{name} is {value}, but must be {OPTIONS[name].expected}")
        if "--np" in options and "--gpus" in options:
            raise Refused(
                "--np counts all processes and --gpus those of a machine; write one of them"
            )
        return Given(namespace.words, options, namespace.print)

    def request(self, argv: Sequence[str]) -> Request:
        """The run that the words ask for; raises Refused without exactly one recipe."""
        given = self.read(argv)
        recipes = [word for word in given.words if "=" not in word and not word.startswith("~")]
        if not recipes or not recipes[0]:
            raise Refused(f"which recipe? Write {self.form}")
        if len(recipes) > 1:
            raise Refused(f"{recipes[1]} is a second recipe after {recipes[0]}; write {self.form}")
        words = [word for word in given.words if word != recipes[0]]
        return Request(recipes[0], words, given.options, given.prints)
