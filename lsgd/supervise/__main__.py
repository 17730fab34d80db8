"""The command line of the supervisor."""

import argparse
import re
import sys
from collections.abc import Sequence

from lsgd import supervise
from lsgd.errors import Refused
from lsgd.job.command import Parser, count_from, run_alone, seconds
from lsgd.supervise.hosts import HOSTS, NP
from lsgd.supervise.loop import supervise_job
from lsgd.supervise.start import SAVING

SUBMITS = re.compile(
    r"(\S*/)?((slurm|k8s)\.sh|sbatch|kubectl|(python\S* -m )?lsgd[ .-]launch (slurm|k8s))(?!\S)"
)
"""The beginning of a command that hands a job to a queue, and ends."""


def _hosts(text: str) -> dict[str, int]:
    """The processes of each host in `a:8,b:4`."""
    if not re.fullmatch("[^:,]+:[1-9][0-9]{0,8}(,[^:,]+:[1-9][0-9]{0,8})*", text):
        raise argparse.ArgumentTypeError(f"{text} is not of the form HOST:N,HOST:N")
    pairs = [pair.partition(":") for pair in text.split(",")]
    return {host: int(slots) for host, _, slots in pairs}


def _parser() -> Parser:
    about, _, rest = (supervise.__doc__ or "").partition("\n\n")
    parser = Parser(
        "lsgd.supervise",
        about,
        usage="python -m lsgd.supervise [options] [--] COMMAND ... run_dir=FOLDER ...",
        epilog=rest,
    )
    parser.add_argument(
        "--processes",
        type=count_from(1),
        metavar="N",
        help="how many processes {np} in the command stands for at first",
    )
    parser.add_argument(
        "--hosts",
        type=_hosts,
        metavar="HOST:N,...",
        default={},
        help="what {hosts} stands for, and how many processes each has",
    )
    parser.add_argument(
        "--min-processes",
        type=count_from(1),
        metavar="N",
        default=1,
        help="never fewer (default 1)",
    )
    parser.add_argument(
        "--restarts",
        type=count_from(0),
        metavar="N",
        help="at most so many (default: no limit)",
    )
    parser.add_argument(
        "--silence",
        type=seconds,
        metavar="SECONDS",
        help="restart too if neither metrics nor a checkpoint were written for so long: choose "
        "more than a start, an evaluation and log_steps take (default: comm.timeout alone ends a "
        "job that hangs)",
    )
    parser.add_argument(
        "--grace",
        type=seconds,
        metavar="SECONDS",
        default=SAVING,
        help="what the job gets for saving when the supervisor is asked to end (default "
        f"{SAVING:g})",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def read(argv: Sequence[str]) -> argparse.Namespace:
    """The options and the command; raises Refused if they do not fit together."""
    options: argparse.Namespace = _parser().parse_args(argv)
    options.command = options.command[options.command[:1] == ["--"] :]
    words = " ".join(options.command)
    if found := SUBMITS.match(words):
        raise Refused(
            f"{found[0]} only submits a job, whose end the supervisor would not see; leave "
            "lsgd.supervise out: the queue starts the job again by itself"
        )
    if options.processes and options.hosts:
        raise Refused("--hosts says how many processes there are; leave out --processes")
    most = options.processes or sum(options.hosts.values())
    if most and options.min_processes > most:
        raise Refused(
            f"--min-processes {options.min_processes} is more than the {most} to begin with; "
            f"write {most} or less"
        )
    if (NP in words) != bool(options.processes or options.hosts):
        raise Refused(
            f"{NP} in the command and --processes N belong together; for example "
            f"--processes 4 python -m lsgd.launch torchrun digits run_dir=runs/a --np {NP}"
        )
    if (HOSTS in words) != bool(options.hosts):
        raise Refused(
            f"{HOSTS} in the command and --hosts HOST:N,... belong together; for example "
            "--hosts a:8,b:8 python -m lsgd.launch mpirun bs8k run_dir=runs/a "
            f"--hosts {HOSTS} --np {NP}"
        )
    return options


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    # Not run_command: the supervisor is none of the processes that it watches, and may itself run
    # where a launcher's environment makes no sense.
    return run_alone(lambda: supervise_job(read(argv)))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
