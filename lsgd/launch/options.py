"""The launchers and their options, each said once, and how a command line is read by them."""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lsgd import paths
from lsgd.errors import Refused
from lsgd.job.command import SEE_HELP, Parser
from lsgd.nearest import did_you_mean


@dataclass(frozen=True)
class Launcher:
    """A program that starts the processes of a run, as this package calls it."""

    about: str
    options: tuple[str, ...]
    submits: bool = False
    """Whether it returns before the run has begun, and takes 8 GPUs of a machine unless it is told
    otherwise."""


OPTIONS = {
    "--np": ("N", "processes in all; by default one per GPU of this machine, or 2 without GPUs"),
    "--nodes": ("N", "machines"),
    "--gpus": ("N", "GPUs, and with them processes, on each machine"),
    "--cpus": (
        "N",
        "cores per process, on machines shared with other jobs; else they are the job's alone",
    ),
    "--hosts": (
        "HOST:N,…",
        "machines, and how many processes each has; process 0 is on the first",
    ),
    "--time": ("TIME", "limit, such as 8:00:00"),
    "--mem": (
        "SIZE",
        "memory on each machine, such as 64G; by default all of it, and with --cpus the queue's "
        "own default",
    ),
    "--container": ("IMAGE", "to run in, with Slurm's pyxis"),
    "--kind": ("mpijob|pytorchjob", "which of Kubeflow's jobs"),
    "--image": ("IMAGE", "which has lsgd installed"),
    "--claim": (
        "NAME",
        "the PersistentVolumeClaim with the data and the runs, mounted at /lsgd",
    ),
    "--name": ("NAME", "of the job; by default the recipe's"),
    "--rdma": (
        "RESOURCE",
        "the cluster's name for its network cards, such as rdma/hca: each pod gets one, and may "
        "lock memory",
    ),
}
"""Every option that a launcher may take: what its value is, and what it says, for the help."""

IMAGES = {"--container", "--image"}
"""The options by which a run is in an image, which may have another lsgd than this machine."""

FORMS = {
    "N": ("[1-9][0-9]*", "a number, 1 or more"),
    "SIZE": ("[0-9]+[KMGT]?", "a number of MB, or like 64G; 0 is all that there is"),
    "RESOURCE": ("[a-z0-9.-]+/[A-Za-z0-9._-]+", "like rdma/hca, as kubectl describe node has it"),
    "HOST:N,…": ("[^:,]+:[1-9][0-9]*(,[^:,]+:[1-9][0-9]*)*", "like host1:8,host2:8"),
}
"""The regular expression that such a value has to match, and what that means in words."""

LAUNCHERS = {
    "local": Launcher(
        "one job on this machine: over Horovod if it is there, else under torchrun; one process "
        "without either",
        ("--np",),
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
    "singly": Launcher(
        "torch.distributed on this machine: one process that dies is started again by itself",
        ("--np",),
    ),
    "ray": Launcher(
        "the same over Ray: that of RAY_ADDRESS, or one of its own on this machine", ("--np",)
    ),
    "slurm": Launcher(
        "an sbatch job; what sbatch reads from the environment holds too",
        ("--nodes", "--gpus", "--np", "--cpus", "--mem", "--time", "--container"),
        submits=True,
    ),
    "k8s": Launcher(
        "Kubeflow's MPIJob (Horovod) or PyTorchJob (torch.distributed)",
        ("--kind", "--image", "--claim", "--nodes", "--gpus", "--name", "--rdma"),
        submits=True,
    ),
}  # fmt: skip
"""Every launcher by its name."""


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
        return self.value_of("run_dir")

    def value_of(self, key: str) -> str:
        """The text that the last word of this key gives it, without the quotes; else an empty one.

        Hydra quotes by a pair of quotes around the whole, or by backslashes.
        """
        values = [word.partition("=")[2] for word in self.words if word.startswith(f"{key}=")]
        value = values[-1] if values else ""
        quote = value[:1]
        if len(value) > 1 and quote in "'\"" and value.endswith(quote):
            return value[1:-1].replace(f"\\{quote}", quote)
        return re.sub(r"\\([\\()\[\]{}:=, \t])", r"\1", value)

    @property
    def train(self) -> list[str]:
        """What each process runs, after `python`."""
        return ["-m", "lsgd.train", f"+recipe={self.recipe}", *self.words]


def _lines(launcher: str) -> list[str]:
    """How the launcher is called, and a line for each of its options."""
    sentences = {
        f"{name} {OPTIONS[name][0]}": OPTIONS[name][1] for name in LAUNCHERS[launcher].options
    }
    sentences["--print"] = "show what would be started or submitted, and do nothing"
    listed = " ".join(f"[{option}]" for option in sentences)
    return [
        f"python -m lsgd.launch {launcher} RECIPE [key=value …] {listed}",
        *(f"  {option:<24} {sentence}" for option, sentence in sentences.items()),
    ]


def read_options(
    launcher: str, argv: Sequence[str], asked: Parser | None = None
) -> tuple[list[str], dict[str, str], bool]:
    """The words that are neither options nor their values, the options, and whether --print is one.

    `asked` is the parser of the command that has these words left. Raises Refused for options that
    the launcher does not take.
    """
    form, *_ = lines = _lines(launcher)
    remedy = f"write {form}" if asked is None else SEE_HELP
    if "--" in argv:
        raise Refused(f"option -- is not known; {remedy}")
    parser = Parser(usage="\n".join(lines), add_help=False, keys=recipe_keys)
    parser.add_argument("--help", "-h", action="help", help=argparse.SUPPRESS)
    parser.add_argument("--print", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    for name in LAUNCHERS[launcher].options:
        # A missing value is refused below, where the sentence for it is.
        parser.add_argument(
            name, dest=name, nargs="?", const="", default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )
    # Intermixed: options may stand among the words.
    namespace, unknown = parser.parse_known_intermixed_args(argv)
    # What looks like a negative number is a word to argparse.
    unknown += [word for word in namespace.words if word.startswith("-")]
    if unknown:
        name, _, _ = unknown[0].partition("=")
        if takers := [each for each, other in LAUNCHERS.items() if name in other.options]:
            raise Refused(f"{name} is an option of {', '.join(takers)}, not {launcher}; {remedy}")
        (asked or parser).refuse(unknown[0], argv, remedy, also=parser.known)
    options = {name: value for name, value in vars(namespace).items() if name in OPTIONS}
    for name, value in options.items():
        if not value:
            raise Refused(f"{name} has no value; {remedy}")
        pattern, expected = FORMS.get(OPTIONS[name][0], (".+", ""))
        if not re.fullmatch(pattern, value, re.DOTALL):
            raise Refused(f"{name} is {value}, but must be {expected}")
    if "--np" in options and "--gpus" in options:
        raise Refused("--np counts all processes and --gpus those of a machine; write one of them")
    return namespace.words, options, namespace.print


def recipe_keys() -> list[str]:
    """The fields that key=value words of a training may give."""
    from lsgd.config import field_keys  # Hydra takes a while to import

    return field_keys()


def read_request(launcher: str, argv: Sequence[str]) -> Request:
    """The run that the words ask for; raises Refused without exactly one recipe."""
    words, options, prints = read_options(launcher, argv)
    form, *_ = _lines(launcher)
    names = [word for word in words if "=" not in word and not word.startswith("~")]
    named = [word for word in words if re.match(r"\+?recipe=", word)]
    if named:
        name = named[0].partition("=")[2]
        raise Refused(f"a launcher takes a recipe by its name alone; write {name} for {named[0]}")
    recipe, *others = names or [""]
    if not recipe:
        raise Refused(f"which recipe? Write {form}")
    if others:
        raise Refused(f"{others[0]} is a second recipe after {recipe}; write {form}")
    # An image may have recipes of its own.
    if not options.keys() & IMAGES and recipe not in (known := sorted(paths.recipe_names())):
        hint = did_you_mean(recipe, known, "lsgd train --help lists those there are")
        raise Refused(f"recipe {recipe} does not exist; {hint}")
    return Request(recipe, [word for word in words if word != recipe], options, prints)
