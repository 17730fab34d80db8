"""From run folders to tables, figures and one page.

    python -m lsgd.report runs/trials/fashion_bs64-seed*        # these runs
    python -m lsgd.report runs/trials --study fashion_figure1   # those of a study that are there
    python -m lsgd.report --table results/README.md  # in a checkout: its table, anew

A RUN is a run folder, or a folder that has run folders somewhere in it. Of runs with the same
recipe and seed the first one counts. What does not count is named in the report, with the reason.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from lsgd import config
from lsgd.errors import Refused
from lsgd.job.command import Parser, run_alone
from lsgd.report.folder import report
from lsgd.report.results import write_table
from lsgd.run.tuned import tune


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    return run_alone(lambda: write(argv), go_on="the same words make the report anew")


def write(argv: Sequence[str]) -> None:
    """Write the report or the table that the words ask for, and print it or where it is."""
    options = _parser().parse_args(argv)
    if options.table:
        write_table(options.table)
        print(options.table)
        return
    if not options.runs:
        raise Refused("no run is given; write run folders, or folders that have them")
    study = tune(config.load_study(options.study)) if options.study else None
    out = report(options.runs, study, options.out)
    print((out / "README.md").read_text(encoding="utf-8"))
    print(f"{out / 'index.html'}")


def _parser() -> Parser:
    about, _, rest = (__doc__ or "").partition("\n\n")
    parser = Parser("lsgd.report", about, epilog=rest)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN")
    parser.add_argument("--study", metavar="NAME", help="the study that these runs belong to")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="where it is written (default: runs/studies/NAME or runs/report)",
    )
    parser.add_argument(
        "--table", type=Path, metavar="PAGE", help="only bring the results table up to date"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
