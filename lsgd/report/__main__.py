"""Write the report on runs: tables, figures and one HTML page.

    python -m lsgd.report runs/trials/fashion_bs64-seed*        # these runs
    python -m lsgd.report runs/trials --study fashion_figure1   # the runs of this study
    python -m lsgd.report --table results/README.md  # in a checkout: update its results table
    python -m lsgd.report --ladder   # the published results of all recipes by minibatch

A RUN is a run folder, or a folder with run folders at any depth. Of several runs with the same
recipe and seed the first one counts. The report names each folder that does not count, with the
reason; if one of these is a run that cannot be read or understood, the exit code is 1.
With --study the claims are decided by the tests that lsgd.study has recorded in
runs/studies/NAME.looks.json and by that of these runs, which is not recorded: add seeds with
lsgd.study.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from lsgd import definitions, paths
from lsgd.errors import UsageError
from lsgd.files import make_output_folder
from lsgd.job.command import Parser, run_alone
from lsgd.report.folder import check_libraries, report, study_folder
from lsgd.report.ladder import write_ladder
from lsgd.report.look_record import read_looks
from lsgd.report.results import write_table
from lsgd.report.run_folders import REPORT
from lsgd.run.tuned import apply_search_results
from lsgd.untrusted_files import parse_json, read_bounded


def main(argv: Sequence[str]) -> int:
    """Run `python -m lsgd.report` with these arguments; return the exit code."""
    return run_alone(lambda: write(argv), go_on="rerun the same command to write the report again")


def write(argv: Sequence[str]) -> int:
    """Write the report on runs, or update the results table, as the arguments ask; print it.

    Returns 1 if a run was skipped because it cannot be read or understood, else 0.
    """
    options = _parser().parse_args(argv)
    if options.table:
        write_table(options.table)
        print(options.table)
        return 0
    if options.ladder:
        check_libraries()
        out = options.out or Path("runs/ladder")
        make_output_folder(out)
        print(write_ladder(out))
        return 0
    if not options.runs:
        raise UsageError("no run is given; write run folders, or folders that contain some")
    study = apply_search_results(definitions.load_study(options.study)) if options.study else None
    looks = read_looks(study_folder(study)) if study else None
    out = report(options.runs, study, options.out, looks=looks)
    print((out / "README.md").read_text(encoding="utf-8"))
    print(f"{out / 'index.html'}")
    left_out = parse_json(read_bounded(out / REPORT))["left_out"]
    return int(any("damaged" in each for each in left_out))


def _parser() -> Parser:
    parser = Parser("lsgd.report", __doc__ or "")
    parser.add_argument("runs", nargs="*", type=paths.parse_path, metavar="RUN")
    parser.add_argument("--study", metavar="NAME", help="the study of these runs")
    parser.add_path(
        "--out", "FOLDER", "the folder of the report (default: runs/studies/NAME or runs/report)"
    )
    parser.add_path("--table", "PAGE", "only update the results table")
    parser.add_argument(
        "--ladder",
        action="store_true",
        help="only draw the published results of all recipes (default --out: runs/ladder)",
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
