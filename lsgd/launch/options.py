"""The launchers, their options, and the parsing of their command lines."""

import argparse
import os
import re
import textwrap
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from lsgd import paths
from lsgd.errors import UsageError
from lsgd.job.command import SEE_HELP, Parser, RecipeFolder
from lsgd.launch.sbatch_options import (
    FLAGS,
    OPTIONAL,
    OTHER_OPTIONS,
    SET_BY_LSGD,
    SHORT,
    VALUED,
    gres_gpus,
)
from lsgd.override_syntax import expand_override_home, format_override, last_path
from lsgd.suggestions import did_you_mean


@dataclass(frozen=True)
class Launcher:
    """A launcher that users choose by name, such as torchrun: its help, options and kind."""

    about: str
    options: tuple[str, ...]
    submits: bool = False
    """Whether it returns before the run begins; it then takes 8 GPUs of a machine by default."""
    program_options: frozenset[str] = frozenset()
    """Further options with a value, which the launcher passes on to its program."""
    program_flags: frozenset[str] = frozenset()
    """Further options without a value, which the launcher passes on to its program."""
    program_optional: frozenset[str] = frozenset()
    """Further options that may have a value after an equals sign, passed on as the others."""

    def takes(self, name: str) -> bool:
        """Return whether the launcher has an option of this name."""
        program = self.program_options | self.program_flags | self.program_optional
        return name in self.options or name in program


OPTIONS = {
    "--np": ("N", "processes in total; default: one per GPU of this machine, or 2 without GPUs"),
    "--nodes": ("N", "machines"),
    "--gpus": ("N", "GPUs, which is also processes, on each machine"),
    "--cpus": (
        "N",
        "cores per process, for shared machines; default: machines exclusive to the job",
    ),
    "--hosts": (
        "HOST:N,…",
        "machines, with the processes of each; process 0 is on the first",
    ),
    "--time": ("TIME", "time limit, such as 8:00:00"),
    "--mem": (
        "SIZE",
        "memory on each machine; default: all of it, or with --cpus the queue's own",
    ),
    "--partition": ("NAME", "the partition, which is Slurm's name for a queue"),
    "--account": ("NAME", "the account that pays for the job"),
    "--qos": ("NAME", "the quality of service, such as long"),
    "--gres": ("LIST", "generic resources, such as gpu:h100:8, instead of --gpus"),
    "--constraint": ("FEATURES", "features that the nodes must have, such as nvlink&ib"),
    "--nodelist": ("NODES", "nodes that the job must have, such as node[1-4]"),
    "--array": ("SEEDS", "one job for each of these seeds, such as 0-4%2: two at a time"),
    "--signal": (
        "SIGNAL",
        "the signal to save, and its seconds before the time limit (USR2@120)",
    ),
    "--mail": ("ADDRESS", "send mail when the job ends, fails or is requeued"),
    "--setup": (
        "FILE",
        "a bash file that the job reads first: modules, NCCL_* and UCX_* variables",
    ),
    "--container": ("IMAGE", "the container image, run by Slurm's pyxis"),
    "--mount": (
        "A:B,…",
        "further folders A that the container sees, as B: paths in overrides it sees anyway",
    ),
    "--kind": ("KIND", "mpijob, pytorchjob, trainjob (Kubeflow's v1, v1 and v2), or jobset"),
    "--image": ("NAME:TAG", "the container image with lsgd installed"),
    "--claim": (
        "CLAIM",
        "the PersistentVolumeClaim with the data and the runs, mounted at /lsgd",
    ),
    "--name": ("NAME", "the job's name; default: the recipe's"),
    "--rdma": (
        "RESOURCE",
        "the cluster's name for its network cards, such as rdma/hca: each pod gets one, and the "
        "capability IPC_LOCK, which only root can use",
    ),
    "--namespace": ("NAMESPACE", "the namespace of the job"),
    "--env": ("NAME=VALUE,…", "environment variables of the pods, such as NCCL_DEBUG=INFO"),
    "--secret": ("NAMES", "Secrets whose keys become environment variables"),
    "--pull-secret": ("NAMES", "Secrets by which the image is pulled"),
    "--node-selector": ("KEY=VALUE,…", "labels that the nodes must have"),
    "--tolerate": ("TAINTS", "taints of nodes that the pods tolerate"),
    "--requests": ("NAME=SIZE,…", "resources of each pod that trains, such as cpu=64,memory=500Gi"),
    "--limits": ("NAME=SIZE,…", "their limits"),
    "--ttl": ("N", "seconds after which a finished job is deleted"),
    "--queue": ("QUEUE", "the LocalQueue of Kueue"),
    "--patch": ("FILE", "a YAML file that is merged into the manifest by name"),
}
"""The metavariable and the help of every option that a launcher may take."""

CHECK = "--check"
"""The option by which a launcher starts the check of all nodes in place of training."""

IMAGES = {"--container", "--image"}
"""The options by which a run is in an image, which may have another lsgd than this machine."""

HOST = "[A-Za-z0-9_][A-Za-z0-9_.@-]*"
"""A regular expression of host names that are safe as an argument for ssh and in a shell."""

DNS_LABEL = "[a-z0-9]([a-z0-9-]*[a-z0-9])?"
OBJECT = rf"(?=[a-z0-9.-]{{1,253}}(?![a-z0-9.-])){DNS_LABEL}(\.{DNS_LABEL})*"
"""A regular expression of the name of an object of Kubernetes, a DNS subdomain."""

LABEL_VALUE = "[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
LABEL_KEY = f"({OBJECT}/)?{LABEL_VALUE}"
"""A regular expression of the key of a label or a taint of Kubernetes, or of a resource's name."""

LABEL = f"{LABEL_KEY}=({LABEL_VALUE})?"
"""A regular expression of a label of Kubernetes with its value."""

TAINT = f"{LABEL_KEY}(=({LABEL_VALUE})?)?(:(NoSchedule|PreferNoSchedule|NoExecute))?"
"""A regular expression of a taint that pods tolerate."""

QUANTITY = rf"{LABEL_KEY}=[0-9]+(\.[0-9]+)?([munkMGTPE]|[KMGTPE]i)?"
"""A regular expression of an amount of a resource of Kubernetes."""

SEEDS = "[0-9]+(-[0-9]+(:[1-9][0-9]*)?)?"
"""A regular expression of a part of the numbers of an array: a number, or a range with its step."""

FORMS = {
    "N": ("[1-9][0-9]*", "a number, 1 or more"),
    "TIME": (
        "([0-9]+-)?[0-9]+(:[0-9]+){0,2}|UNLIMITED|INFINITE",
        "minutes, hours:minutes:seconds or days-hours, as sbatch has it",
    ),
    "SEEDS": (
        f"{SEEDS}(,{SEEDS})*(%[1-9][0-9]*)?",
        "seeds, such as 0-4, or 0-4%2 for two jobs at a time",
    ),
    # Those by which a run saves, to its processes: with B: the batch script alone would get it.
    "SIGNAL": (
        "(R:)?(SIG)?(TERM|USR1|USR2)(@[1-9][0-9]{0,3}|@[1-5][0-9]{4})?",
        "TERM, USR1 or USR2, by which a run saves, and the seconds before the time limit, such as "
        "USR2@300, without B:, by which Slurm signals the batch script alone",
    ),
    "A:B,…": (
        r"/[^,:\s]*:/[^,:\s]*(:[a-z]+)?(,/[^,:\s]*:/[^,:\s]*(:[a-z]+)?)*",
        "like /scratch:/data",
    ),
    "NAMES": (f"{OBJECT}(,{OBJECT})*", "names of Kubernetes, such as a,b"),
    "NAMESPACE": (
        f"(?=.{{1,63}}$){DNS_LABEL}",
        "a name of Kubernetes: at most 63 lower-case letters, digits and dashes",
    ),
    "QUEUE": (  # it is also the value of a label
        f"(?=.{{1,63}}$){OBJECT}",
        "a name of Kubernetes: at most 63 lower-case letters, digits, dashes and dots",
    ),
    "CLAIM": (
        OBJECT,
        "a name of Kubernetes: at most 253 lower-case letters, digits, dashes and dots",
    ),
    "NAME:TAG": (r"[^\s\"'`$\\]+", "the name of an image, without spaces and quotes"),
    "NAME=VALUE,…": ("[A-Za-z_][A-Za-z0-9_.-]*=.*", "variables, such as A=1,B=2"),
    "KEY=VALUE,…": (
        f"{LABEL}(,{LABEL})*",
        "labels, such as pool=h100, whose keys and values have 63 characters at most",
    ),
    "TAINTS": (
        f"{TAINT}(,{TAINT})*",
        "taints, such as nvidia.com/gpu or pool=h100:NoSchedule",
    ),
    "NAME=SIZE,…": (
        f"{QUANTITY}(,{QUANTITY})*",
        "resources in units of Kubernetes, such as cpu=64,memory=500Gi",
    ),
    "ADDRESS": (r"[^\s,@]+@[^\s,@]+", "the address of a person, such as me@example.org"),
    "SIZE": ("[0-9]+[KMGT]?", "a number of MB, or such as 64G; 0 for all memory"),
    "RESOURCE": (f"{OBJECT}/{LABEL_VALUE}", "like rdma/hca, as kubectl describe node has it"),
    "HOST:N,…": (f"{HOST}:[1-9][0-9]*(,{HOST}:[1-9][0-9]*)*", "like host1:8,host2:8"),
}
"""The regular expression that the value of a metavariable has to match, and its description."""

MANIFEST_OPTIONS = (
    *("--namespace", "--env", "--secret", "--pull-secret", "--node-selector", "--tolerate"),
    *("--requests", "--limits", "--ttl", "--queue", "--patch"),
)
"""The options that change a manifest of Kubernetes, whatever its kind."""

LAUNCHERS = {
    "local": Launcher(
        "one job on this machine: over Horovod if installed, else under torchrun; one process "
        "needs neither",
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
        "Horovod over Open MPI, on the machines that it is configured for",
        ("--np", "--nodes", "--gpus", "--hosts"),
    ),
    "singly": Launcher(
        "torch.distributed on this machine: restarts a single process that dies",
        ("--np",),
    ),
    "ray": Launcher(
        "the same over Ray: the cluster at RAY_ADDRESS, or a new one on this machine", ("--np",)
    ),
    "slurm": Launcher(
        "an sbatch job; sbatch's other options and variables apply too",
        (
            *("--nodes", "--gpus", "--np", "--cpus", "--mem", "--time", "--partition", "--account"),
            *("--qos", "--gres", "--constraint", "--nodelist", "--array", "--signal", "--mail"),
            *("--setup", "--container", "--mount"),
        ),
        submits=True,
        program_options=VALUED,
        program_flags=FLAGS,
        program_optional=OPTIONAL,
    ),
    "k8s": Launcher(
        "a job of Kubeflow (MPIJob, PyTorchJob, TrainJob) or a JobSet",
        (
            *("--kind", "--image", "--claim", "--nodes", "--gpus", "--name", "--rdma"),
            *MANIFEST_OPTIONS,
        ),
        submits=True,
    ),
}  # fmt: skip
"""All launchers by name."""


@dataclass(frozen=True)
class Request:
    """A request to a launcher: the recipe to train, its overrides, and the launcher's options."""

    recipe: str
    """The name of the recipe to train, or the path of its file."""
    overrides: list[str]
    """`key=value` overrides for lsgd.train."""
    options: Mapping[str, str]
    print_only: bool = False

    @property
    def job_name(self) -> str:
        """The name of the recipe, which for a file is that of the file without its ending."""
        is_file = self.recipe.endswith((".yaml", ".yml"))
        return Path(self.recipe).stem if is_file else self.recipe

    @property
    def run_dir(self) -> str:
        """The run folder that the overrides name, or an empty string.

        It begins with no hyphen, after which a launcher would take it for an option.
        """
        path = self.path_of("run_dir")
        return f"./{path}" if path.startswith("-") else path

    def path_of(self, key: str) -> str:
        """Return the path that the overrides give a field of the recipe, or an empty string."""
        return last_path(self.overrides, key) or ""

    @property
    def is_check(self) -> bool:
        """Whether the job checks its nodes and trains nothing."""
        return CHECK in self.options

    @property
    def train_arguments(self) -> list[str]:
        """The arguments of `python` that start training, or the nodes' check, in each process."""
        program = ["lsgd.train"]
        if self.is_check:
            # By which the check names nodes that do not answer, and a job without them.
            known = {name: self.options.get(name) for name in ("--hosts", "--exclude")}
            options = {name: value for name, value in known.items() if value}
            program = ["lsgd.doctor.job_check", *option_words(options)]
        recipe = format_override("+recipe", self.recipe)
        return ["-m", *program, recipe, *self.overrides]


def _lines(launcher: str) -> list[str]:
    """Return a launcher's usage line, and a help line for each of its options."""
    sentences = {
        f"{name} {OPTIONS[name][0]}": OPTIONS[name][1] for name in LAUNCHERS[launcher].options
    }
    if LAUNCHERS[launcher].program_options:
        sentences["--OPTION [VALUE]"] = "any other option of sbatch, such as --reservation NAME"
    sentences[CHECK] = "train nothing: measure every node, and name the slow and the broken ones"
    sentences["--print"] = "print what would be started or submitted, and start nothing"
    return [
        f"python -m lsgd.launch {launcher} RECIPE [key=value …] [options]",
        *(option_line(option, sentence) for option, sentence in sentences.items()),
    ]


def option_line(option: str, sentence: str) -> str:
    """Format an option and its description for a help text, in lines of at most 100 columns."""
    shown = f"  {option:<21} "
    # The description of a long option begins below it.
    first = "" if len(shown) <= 24 else f"{shown.rstrip()}\n"
    begin = shown if not first else 24 * " "
    return first + textwrap.fill(sentence, 100, initial_indent=begin, subsequent_indent=24 * " ")


def read_options(
    launcher: str, argv: Sequence[str], caller: Parser | None = None
) -> tuple[list[str], dict[str, str], bool]:
    """Parse a launcher's command line into positional arguments, options, and whether to --print.

    `caller` is the parser of the command that passes these arguments on. Raises UsageError for
    options that the launcher does not take.
    """
    form, *_ = _lines(launcher)
    remedy = f"write {form}" if caller is None else SEE_HELP
    if "--" in argv:
        raise UsageError(f"option -- is unknown; {remedy}")
    taken, parser = LAUNCHERS[launcher], _option_parser(launcher, may_check=caller is None)
    # As for sbatch, such an option has no value but one after an equals sign.
    recipes = paths.recipe_names()
    for word, following in pairwise(argv) if {*argv} & {*recipes} else ():
        is_value = "=" not in following and not following.startswith("--")
        if word in taken.program_optional and is_value and following not in recipes:
            raise UsageError(
                f"{word} takes a value after an equals sign alone; write {word}={following}"
            )
    argv = [f"{word}=" if word in taken.program_optional else word for word in argv]
    # Intermixed, since options may stand between positional arguments.
    namespace, unknown = parser.parse_known_intermixed_args(argv)
    # argparse takes what looks like a negative number for a positional argument.
    unknown += [word for word in namespace.words if word.startswith("-")]
    if unknown:
        name, _, _ = unknown[0].partition("=")
        if launcher == "slurm" and name in SET_BY_LSGD:
            raise UsageError(f"{name} is set by lsgd itself; {SET_BY_LSGD[name]}")
        if takers := [each for each, other in LAUNCHERS.items() if other.takes(name)]:
            raise UsageError(
                f"{name} is an option of {', '.join(takers)}, not {launcher}; {remedy}"
            )
        if launcher == "slurm" and name in SHORT:
            raise UsageError(f"{name} is not an option of lsgd; write {SHORT[name]}")
        if launcher == "slurm":
            remedy = OTHER_OPTIONS
        (caller or parser).reject_argument(unknown[0], argv, remedy, also=parser.known_options)
    options = {name: value for name, value in vars(namespace).items() if taken.takes(name)}
    _check_values(options, taken.program_flags | taken.program_optional, remedy)
    if vars(namespace).get(CHECK):
        options[CHECK] = ""
    gpus = None if "--np" in options else gres_gpus(options)
    if gpus is not None and int(options.setdefault("--gpus", str(gpus))) != gpus:
        raise UsageError(
            f"--gres {options['--gres']} has {gpus} GPUs on each node, and --gpus "
            f"{options['--gpus']} others; leave out --gpus"
        )
    return namespace.words, options, namespace.print


def _option_parser(launcher: str, *, may_check: bool) -> Parser:
    """Return the parser of a launcher's command line; an option without its value is ''."""
    usage = "\n".join(_lines(launcher)).replace("%", "%%")
    parser = Parser(usage=usage, add_help=False, keys=recipe_keys)
    parser.add_argument("--help", "-h", action="help", help=argparse.SUPPRESS)
    parser.add_argument("--print", action="store_true", help=argparse.SUPPRESS)
    if may_check:  # a study or search has results, which a check has not
        parser.add_argument(CHECK, dest=CHECK, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--recipe-dir", action=RecipeFolder, help=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    taken = LAUNCHERS[launcher]
    hidden: dict[str, Any] = {"const": "", "default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    for name in {*taken.options, *taken.program_options, *taken.program_optional}:
        parser.add_argument(name, dest=name, nargs="?", **hidden)
    for name in taken.program_flags:
        parser.add_argument(name, dest=name, action="store_const", **hidden)
    return parser


def _check_values(options: Mapping[str, str], flags: Container[str], remedy: str) -> None:
    """Raise UsageError for options without the values that they need, or with wrong ones.

    `flags` are the options that need no value; `remedy` is the fix for a missing one.
    """
    for name, value in options.items():
        if name in flags:
            continue
        if not value:
            raise UsageError(f"{name} has no value; {remedy}")
        metavariable, _ = OPTIONS.get(name, ("VALUE", ""))
        pattern, expected = FORMS.get(metavariable, (".+", ""))
        if not re.fullmatch(pattern, value, re.DOTALL):
            given = value if value.isprintable() else repr(value)
            hint = (
                "; --np N is for processes without GPUs" if (name, value) == ("--gpus", "0") else ""
            )
            raise UsageError(f"{name} is {given}, but must be {expected}{hint}")
    if "--np" in options and "--gpus" in options:
        raise UsageError(
            "--np counts all processes and --gpus those of one machine; write one of them"
        )


def option_words(options: Mapping[str, str]) -> list[str]:
    """Return options as arguments of a command line; those without a value are one argument.

    >>> option_words({"--nodes": "2", "--hold": "", "--comment": "-", "--exclusive": "user"})
    ['--nodes', '2', '--hold', '--comment=-', '--exclusive=user']
    """
    words: list[str] = []
    for name, value in options.items():
        # Alone, what begins with a dash would be another option.
        is_one = value.startswith("-") or (value and name in OPTIONAL)
        words += [f"{name}={value}"] if is_one else [name, *filter(None, [value])]
    return words


def recipe_keys() -> list[str]:
    """Return the names of the recipe's fields that key=value overrides may set."""
    from lsgd.config import override_keys  # Hydra takes a while to import

    return override_keys()


def read_request(launcher: str, argv: Sequence[str]) -> Request:
    """Parse a launcher's command line into a request; raise UsageError unless it has one recipe."""
    overrides, options, prints = read_options(launcher, argv)
    form, *_ = _lines(launcher)
    names = [
        word
        for word in overrides
        if ("=" not in word and not word.startswith("~"))
        # Its name may have an equals sign.
        or (word.endswith(paths.YAML_ENDINGS) and os.path.isfile(word))
    ]
    named = [word for word in overrides if re.match(r"\+?recipe=", word)]
    if named:
        name = named[0].partition("=")[2]
        raise UsageError(
            f"a launcher takes the name or path of a recipe alone; write {name} for {named[0]}"
        )
    recipe, *others = names or [""]
    if not recipe:
        raise UsageError(f"no recipe is given; write {form}")
    if others:
        raise UsageError(f"{others[0]} is a second recipe after {recipe}; write {form}")
    # An image may have recipes of its own.
    chosen = recipe
    if not options.keys() & IMAGES and recipe not in (known := sorted(paths.recipe_names())):
        from lsgd.recipe.own_files import find_own_file  # it reads the fields of a recipe

        own = find_own_file(recipe)
        if own is None:
            hint = did_you_mean(recipe, known, "lsgd train --recipes lists them")
            raise UsageError(f"recipe {recipe} does not exist; {hint}")
        # By its path, since a process on another machine has no $LSGD_RECIPES.
        chosen = str(own)
    # ~ is expanded here: on another machine, or in an image, it may be another folder. A pod does
    # not have this machine's home folder.
    overrides = [
        word if launcher == "k8s" else expand_override_home(word)
        for word in overrides
        if word != recipe
    ]
    return Request(chosen, overrides, options, prints)
