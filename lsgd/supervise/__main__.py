"""The command line of the supervisor."""

import argparse
import re
import sys
from collections.abc import Sequence

from lsgd import supervise
from lsgd.errors import UsageError
from lsgd.job.command import Parser, integer_from, run_alone, seconds
from lsgd.override_syntax import last_text
from lsgd.supervise.loop import HOSTS, NP, supervise_job
from lsgd.supervise.start import SAVING

SUBMITS = re.compile(
    r"(\S*/)?((slurm|k8s)\.sh|sbatch|kubectl|(python\S* -m )?lsgd[ .-]launch (slurm|k8s))(?!\S)"
)
"""The beginning of a command that submits a job to a queue and exits."""


def _hosts(text: str) -> dict[str, int]:
    """Parse `a:8,b:4` into the number of processes of each host."""
    if not re.fullmatch("[^:,]+:[1-9][0-9]{0,8}(,[^:,]+:[1-9][0-9]{0,8})*", text):
        raise argparse.ArgumentTypeError(f"{text} is not of the form HOST:N,HOST:N")
    hosts: dict[str, int] = {}
    twice = ""
    for pair in text.split(","):
        host, _, slots = pair.partition(":")
        twice = twice or (host if host in hosts else "")
        hosts[host] = hosts.get(host, 0) + int(slots)
    if twice:
        raise argparse.ArgumentTypeError(
            f"{text} names {twice} twice; write {twice}:{hosts[twice]}"
        )
    return hosts


def _parser() -> Parser:
    parser = Parser(
        "lsgd.supervise",
        supervise.__doc__ or "",
        usage="python -m lsgd.supervise [options] [--] COMMAND ... run_dir=FOLDER ...",
    )
    parser.add_argument(
        "--processes",
        type=integer_from(1),
        metavar="N",
        help="the initial number of processes, for {np} in the command",
    )
    parser.add_argument(
        "--hosts",
        type=_hosts,
        metavar="HOST:N,...",
        default={},
        help="the hosts for {hosts} in the command, with the processes of each",
    )
    parser.add_argument(
        "--min-processes",
        type=integer_from(1),
        metavar="N",
        default=1,
        help="the smallest number of processes (default 1)",
    )
    parser.add_argument(
        "--restarts",
        type=integer_from(0),
        metavar="N",
        help="the most restarts (default: no limit)",
    )
    parser.add_argument(
        "--stall-timeout",
        "--silence",
        type=seconds,
        metavar="SECONDS",
        help="restart a job that wrote no row and no checkpoint for this long",
    )
    parser.add_argument(
        "--grace",
        type=seconds,
        metavar="SECONDS",
        default=SAVING,
        help="the time that the job gets to save when the supervisor is stopped (default "
        f"{SAVING:g})",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def read(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the supervisor's options and the launch command; raise UsageError if they conflict."""
    options: argparse.Namespace = _parser().parse_args(argv)
    options.command = options.command[options.command[:1] == ["--"] :]
    line = " ".join(options.command)
    folder = last_text(options.command, "run_dir") or ""
    if NP in folder or HOSTS in folder:
        raise UsageError(
            f"run_dir={folder} would change with the number of processes, and so name another "
            f"run; write one without {NP if NP in folder else HOSTS}"
        )
    if found := SUBMITS.match(line):
        raise UsageError(
            f"{found[0]} only submits a job, whose end the supervisor cannot see; leave "
            "lsgd.supervise out: the queue restarts the job"
        )
    if options.processes and options.hosts:
        raise UsageError("--hosts already gives the number of processes; leave out --processes")
    most = options.processes or sum(options.hosts.values())
    if most and options.min_processes > most:
        raise UsageError(
            f"--min-processes {options.min_processes} is more than the {most} at the start; "
            f"write {most} or less"
        )
    if (NP in line) != bool(options.processes or options.hosts):
        raise UsageError(
            f"{NP} in the command needs --processes N, and the other way round; write for example "
            f"--processes 4 python -m lsgd.launch torchrun digits run_dir=runs/a --np {NP}"
        )
    if options.min_processes > 1 and NP not in line:
        raise UsageError(
            f"--min-processes {options.min_processes} needs {NP} in the command, whose number of "
            f"processes is fixed otherwise; write --processes N and {NP}, or leave it out"
        )
    if (HOSTS in line) != bool(options.hosts):
        raise UsageError(
            f"{HOSTS} in the command needs --hosts HOST:N,..., and the other way round; write "
            "for example --hosts a:8,b:8 python -m lsgd.launch mpirun bs8k run_dir=runs/a "
            f"--hosts {HOSTS} --np {NP}"
        )
    return options


def main(argv: Sequence[str]) -> int:
    """Run the supervisor's command line; return the exit code."""
    # Not run_command: the supervisor is not one of the processes that it watches, and may itself
    # run where the launcher's environment variables are not valid.
    return run_alone(lambda: supervise_job(read(argv)))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
