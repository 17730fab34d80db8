"""The command line of tracking."""

import sys
from collections.abc import Sequence
from pathlib import Path

from lsgd import track
from lsgd.errors import Refused
from lsgd.job.command import Parser, run_alone
from lsgd.recipe import TRACKERS
from lsgd.run.trackers import check_installed
from lsgd.track.sending import follow, send


def _send(argv: Sequence[str]) -> None:
    about, _, rest = (track.__doc__ or "").partition("\n\n")
    parser = Parser("lsgd.track", about, epilog=rest)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="the folder of a run")
    parser.add_argument("--to", choices=TRACKERS, required=True, help="the tracker")
    parser.add_argument(
        "--follow",
        action="store_true",
        help="go on as rows are written, until standard input ends: a training run holds it open",
    )
    options = parser.parse_args(argv)
    check_installed([options.to])
    if options.follow and len(options.runs) > 1:
        raise Refused("--follow is for one run; start a process for each")
    for run in options.runs:
        if options.follow:
            follow(run, options.to)
        else:
            print(send(run, options.to), flush=True)


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    return run_alone(lambda: _send(argv))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
