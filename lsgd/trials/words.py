"""The options by which a study or a search is told how its trials are started."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from lsgd.errors import Refused
from lsgd.job.command import Parser, count_from
from lsgd.launch.options import LAUNCHERS, read_options
from lsgd.nearest import did_you_mean
from lsgd.trials.launch import TrialLauncher


def add_options(parser: Parser, *, more_launchers: str = "") -> None:
    """Add --launch, --jobs and --print."""
    parser.add_argument(
        "--launch",
        metavar="LAUNCHER",
        default="local",
        help="which launcher starts a trial (default local); options of its own may be given too, "
        f"such as --np 8{more_launchers}",
    )
    parser.add_argument(
        "--jobs",
        type=count_from(1),
        metavar="N",
        default=1,
        help="trials at a time (default 1), with so many times fewer threads each",
    )
    parser.add_argument(
        "--print",
        action="store_true",
        help="show what is done and the commands of the rest, and start nothing",
    )


def read_launcher(
    parser: Parser, options: argparse.Namespace, rest: Sequence[str]
) -> tuple[list[str], TrialLauncher]:
    """The words among the rest, and the launcher with the options that it has there.

    The parser is the one that has read the options. Raises Refused.
    """
    # launch/slurm.sh means slurm.
    launcher = Path(options.launch).stem
    if launcher not in LAUNCHERS:
        hint = did_you_mean(launcher, sorted(LAUNCHERS))
        raise Refused(f"--launch {launcher} does not exist; {hint}")
    words, launcher_options, _ = read_options(launcher, rest, parser)
    return words, TrialLauncher(launcher, launcher_options)
