"""The command line of `python -m lsgd.track`."""

import sys
from collections.abc import Sequence

from lsgd import paths, track
from lsgd.errors import UsageError
from lsgd.job.command import Parser, run_alone
from lsgd.recipe.settings import TRACKERS
from lsgd.run.read import without_side_files
from lsgd.run.trackers import check_installed
from lsgd.track.upload import follow_run, send_run


def _send(argv: Sequence[str]) -> int:
    """Send the runs of a command line; return 2 if some could not be sent, which is printed."""
    parser = Parser("lsgd.track", track.__doc__ or "")
    parser.add_argument(
        "runs", nargs="+", type=paths.parse_path, metavar="RUN", help="the folder of a run"
    )
    parser.add_argument("--to", choices=TRACKERS, required=True, help="the tracker")
    parser.add_argument(
        "--follow",
        action="store_true",
        help="keep sending new rows until standard input ends, which a training run holds open",
    )
    options = parser.parse_args(argv)
    check_installed([options.to])
    runs = without_side_files(options.runs)
    if options.follow and len(runs) > 1:
        raise UsageError("--follow takes one run; start a process for each")
    if options.follow:
        follow_run(runs[0], options.to)
        return 0
    failed = 0
    for run in runs:
        try:
            print(send_run(run, options.to), flush=True)
        except UsageError as error:
            failed += 1
            print(f"lsgd: {error}", file=sys.stderr, flush=True)
    if failed and len(runs) > 1:
        print(f"lsgd: {failed} of {len(runs)} runs were not sent", file=sys.stderr)
    return UsageError.exit_code if failed else 0


def main(argv: Sequence[str]) -> int:
    """Run the command line `python -m lsgd.track` and return its exit code."""
    return run_alone(lambda: _send(argv))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
