"""The options of sbatch itself, which `lsgd launch slurm` writes into the batch script."""

import re
from collections.abc import Mapping

from lsgd.errors import UsageError

VALUED = frozenset(
    """
    --account --acctg-freq --array --batch --bb --bbf --begin --cluster-constraint --clusters
    --comment --constraint --core-spec --cores-per-socket --cpu-freq --cpus-per-gpu --deadline
    --delay-boot --dependency --distribution --exclude --export --export-file --extra
    --extra-node-info --gpu-bind --gpu-freq --gres --gres-flags --hint --job-name
    --kill-on-invalid-dep --licenses --mail-type --mail-user --mcs-label --mem-bind
    --mem-per-cpu --mem-per-gpu --mincpus --network --nodefile --nodelist --ntasks-per-core
    --ntasks-per-socket --partition --power --prefer --priority --profile --qos --reservation
    --resources --segment --signal --sockets-per-node --switches --thread-spec
    --threads-per-core --time-min --tmp --tres-bind --tres-per-task --wait-all-nodes --wckey
    """.split()  # noqa: SIM905
)
"""The options of sbatch with a value that a launch may set."""
FLAGS = frozenset(
    """
    --consolidate-segments --contiguous --hold --ignore-pbs --no-requeue --overcommit
    --oversubscribe --reboot --requeue --spread-job --spread-segments --stepmgr --use-min-nodes
    """.split()  # noqa: SIM905
)
"""The options of sbatch without a value that a launch may set."""
OPTIONAL = frozenset(
    {"--exclusive", "--get-user-env", "--nice", "--no-kill", "--oom-kill-step", "--propagate"}
)
"""The options of sbatch that a launch may set with a value after an equals sign, or without one."""
SET_BY_LSGD = {
    "--output": "run_dir=PATH is the folder beside which the job's log is, PATH.log",
    "--error": "run_dir=PATH is the folder beside which the job's log is, PATH.log",
    "--chdir": "a job runs in the folder in which it is submitted; write cd FOLDER before it",
    "--ntasks": "--np N is the number of processes",
    "--ntasks-per-node": "--gpus N is the number of processes on each node, and of its GPUs",
    "--gpus-per-node": "--gpus N is the number of GPUs of each node",
    "--gpus-per-socket": "--gpus N is the number of GPUs of each node",
    "--gpus-per-task": "a process has one GPU; write --gpus N for those of each node",
    "--ntasks-per-gpu": "a process has one GPU; write --gpus N for those of each node",
    "--cpus-per-task": "--cpus N is the number of cores of each process",
    "--wrap": "the recipe is what the job runs",
    "--parsable": "lsgd launch --status RUN has the job's number",
    "--open-mode": "logs are appended to, so that a requeued job keeps them",
}
"""The options of sbatch that the batch script needs for itself, with what to write instead."""
SHORT = {
    **{"-A": "--account", "-C": "--constraint", "-H": "--hold", "-J": "--job-name"},
    **{"-N": "--nodes", "-a": "--array", "-c": "--cpus", "-d": "--dependency", "-n": "--np"},
    **{"-p": "--partition", "-q": "--qos", "-t": "--time", "-w": "--nodelist", "-x": "--exclude"},
}
"""The options of one letter in sbatch's manual, and what lsgd takes in their place."""
OTHER_OPTIONS = (
    "options of a job in sbatch's manual are passed on, and sbatch itself reads further ones from "
    "SBATCH_* variables, such as SBATCH_RESERVATION=NAME"
)
"""The remedy for an option that neither lsgd nor this list of sbatch's options has."""

# A type is all that is not a number alone, such as a100-sxm4-80gb, or 1g.5gb for a part of a GPU.
_GPU = re.compile(r"(?<![^,])(?:gres[:/])?gpu((?::\d*[^:,(=\d][^:,(=]*)?)(?::(\d+))?(?![^,(])")

SIGNAL_BEFORE = 120
"""The seconds before the time limit at which all processes get USR2, and save, by default."""


def gres_gpus(options: Mapping[str, str]) -> int | None:
    """Return the number of GPUs of each node that --gres requests, or None if it names none.

    >>> gres_gpus({"--gres": "gpu:h100:4,nvme:1"}), gres_gpus({"--gres": "nvme:1"})
    (4, None)
    >>> [gres_gpus({"--gres": gpus}) for gpus in ("gpu:1g.5gb:2", "gpu:a100-80gb", "gpu:8(S:0)")]
    [2, 1, 8]

    Raises UsageError for GPUs of several types, and without a number that is 1 or more.
    """
    text = options.get("--gres", "")
    numbers = [found[2] or "1" for found in _GPU.finditer(text)]
    named = re.findall(r"(?<![^,])(?:gres[:/])?gpu(?![\w-])", text)
    if len(named) > 1:
        raise UsageError(
            f"--gres {text} must not have several types of GPUs, since all processes would wait "
            "for those of the slowest; write one, such as gpu:h100:8"
        )
    if named and not (numbers and int(numbers[0])):
        raise UsageError(
            f"--gres {text} must have a number of GPUs, such as gpu:h100:8; --np N is for "
            "processes without GPUs"
        )
    return int(numbers[0]) if numbers else None


def with_gres_gpus(options: Mapping[str, str], gpus: int) -> dict[str, str]:
    """Return the options with this number of GPUs in --gres, if that requests any.

    >>> with_gres_gpus({"--gres": "gpu:h100:4,nvme:1"}, 2)
    {'--gres': 'gpu:h100:2,nvme:1'}
    """
    if gres_gpus(options) is None:
        return dict(options)
    gres = _GPU.sub(lambda found: f"gpu{found[1]}:{gpus}", options["--gres"])
    return {**options, "--gres": gres}


def time_limit(text: str) -> int | None:
    """Return the seconds of a time limit as sbatch reads it, or None for an unlimited one.

    >>> time_limit("90"), time_limit("2:00"), time_limit("2:00:00"), time_limit("1-12")
    (5400, 120, 7200, 129600)
    >>> time_limit("0"), time_limit("UNLIMITED")
    (None, None)
    """
    days, dash, rest = text.rpartition("-")
    if not rest[:1].isdigit():
        return None
    parts = [int(part) for part in rest.split(":")]
    # Hours come first after days, or if there are three numbers; otherwise minutes do.
    hours, minutes, seconds, *_ = [*([] if dash or len(parts) == 3 else [0]), *parts, 0, 0]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds or None


def seconds_before_limit(options: Mapping[str, str]) -> int:
    """Return the seconds before the time limit at which all processes get a signal, and save.

    >>> [seconds_before_limit(each) for each in ({}, {"--signal": "TERM@300"})]
    [120, 300]
    >>> seconds_before_limit({"--signal": "USR1"})  # sbatch's own default
    60
    """
    if "--signal" not in options:
        return SIGNAL_BEFORE
    return int(options["--signal"].partition("@")[2] or 60)
