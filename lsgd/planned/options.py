"""The launch options of a study or a search: --launch, --jobs and --print."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from lsgd.errors import UsageError
from lsgd.job.command import Parser, integer_from
from lsgd.launch.options import LAUNCHERS, read_options
from lsgd.planned.launch import RunLauncher
from lsgd.suggestions import did_you_mean


def add_options(parser: Parser, *, more_launchers: str = "") -> None:
    """Add the options --launch, --jobs and --print of studies and searches to a parser."""
    parser.add_argument(
        "--launch",
        metavar="LAUNCHER",
        default="local",
        help=f"start runs by this launcher{more_launchers}, with its options (local)",
    )
    parser.add_argument(
        "--jobs",
        type=integer_from(1),
        metavar="N",
        default=1,
        help="train N runs at a time, with N times fewer threads each (1)",
    )
    parser.add_argument(
        "--print",
        action="store_true",
        help="print finished runs and the commands of the others, and start nothing",
    )


def read_launcher(
    parser: Parser, options: argparse.Namespace, rest: Sequence[str]
) -> tuple[list[str], RunLauncher]:
    """Split remaining command-line arguments into overrides and a launcher with its options.

    The launcher comes with its options. `parser` has parsed `options`. Raises UsageError.
    """
    # launch/slurm.sh means slurm.
    launcher = Path(options.launch).stem
    if launcher not in LAUNCHERS:
        hint = did_you_mean(launcher, sorted(LAUNCHERS))
        raise UsageError(f"--launch {launcher} does not exist; {hint}")
    overrides, launcher_options, _ = read_options(launcher, rest, parser)
    return overrides, RunLauncher(launcher, launcher_options)
