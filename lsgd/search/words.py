"""What the command line of a search asks for: which search, and how its trials are started."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lsgd import config, paths
from lsgd.errors import Refused
from lsgd.job.command import Parser, count_from
from lsgd.recipe.search import SEARCH_FIELDS
from lsgd.search.space import Space
from lsgd.trials.launch import TrialLauncher
from lsgd.trials.words import add_options, read_launcher

SAID = [name for name in SEARCH_FIELDS if name not in ("title", "recipe", "words", "space")]
"""The fields of a search that words of the command line may change."""


@dataclass(frozen=True)
class SearchRequest:
    """A search, and what is to be done with it."""

    space: Space
    words: list[str]
    """Those of the command line, but for the one that names the search."""
    launcher: TrialLauncher
    jobs: int
    """Trials at a time."""
    storage: str | None
    """The URL of a database, or None for a journal in the folder."""
    prints: bool


@dataclass(frozen=True)
class ReportRequest:
    """Searches that are to be reported on together."""

    folders: list[Path]
    out: Path


def read_request(about: str, argv: Sequence[str]) -> SearchRequest | ReportRequest:
    """What the words ask for, with options that a search does not know being the launcher's.

    `about` is the text of the help. Raises Refused.
    """
    parser = _parser(about, lists_searches=bool({"-h", "--help"} & set(argv)))
    options, rest = parser.parse_known_args(argv)
    if options.report:
        if rest or not options.out:
            raise Refused("--report FOLDER … takes --out FOLDER, where the page goes, and no more")
        return ReportRequest(options.report, options.out)
    if options.out:
        raise Refused("--out is for --report; a search writes its page into its own folder")
    on_spark = options.launch == "spark"
    if options.master and not on_spark:
        raise Refused("--master is where Spark runs; write --launch spark with it")
    words, launcher = _on_spark(options, rest) if on_spark else read_launcher(parser, options, rest)
    names, of_search, of_recipe = [], [], []
    for word in words:
        key, equals, value = word.partition("=")
        field = key.partition(".")[0]
        if key == "search" and equals:
            raise Refused(f"'{word}' needs a plus sign; write +{word}")
        if not equals and not word.startswith("~"):
            how = f"write +search={word}" if word in config.searches() else parser.how(word)
            how = how or "write for example epochs=3"
            raise Refused(f"'{word}' is not of the form key=value; {how}")
        if key == "+search":
            names.append(value)
        elif field in SAID:
            of_search.append(word)
        elif field in SEARCH_FIELDS and field != "recipe":
            raise Refused(
                f"'{word}' is a field of a search's file; write a file of your own into "
                f"{paths.shown(paths.recipes_dir() / 'search')}"
            )
        else:
            of_recipe.append(word)
    if len(names) != 1:
        raise Refused("which search? Write one, for example +search=digits; --help lists them all")
    space = Space(config.load_search(names[0], *of_search), of_recipe)
    rest = [*of_search, *of_recipe]
    return SearchRequest(space, rest, launcher, options.jobs, options.storage, options.print)


def _keys() -> list[str]:
    """What key=value words may give: fields of the search and of its recipes."""
    return [*SAID, *config.field_keys()]


def _parser(about: str, *, lists_searches: bool) -> Parser:
    about, _, more = about.partition("\n\n")
    if lists_searches:
        more = f"{more}\nsearches:\n{_catalogue()}"
    usage = "python -m lsgd.search +search=NAME [key=value ...] [options]"
    parser = Parser("lsgd.search", about, keys=_keys, usage=usage, epilog=more)
    add_options(parser, more_launchers="; spark, with --np N and --master URL, trains on executors")
    parser.add_argument(
        "--master",
        metavar="URL",
        help="where Spark runs, such as spark://HOST:7077 (default: as spark-submit is configured, "
        "or on this machine)",
    )
    parser.add_argument(
        "--storage",
        metavar="URL",
        help="a database that keeps the points, such as sqlite:///searches.db (default: a journal "
        "in the search's folder)",
    )
    parser.add_argument(
        "--report",
        nargs="+",
        type=Path,
        metavar="FOLDER",
        help="write one page on these searches into the folder of --out, and train nothing",
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    return parser


def _on_spark(options: argparse.Namespace, rest: Sequence[str]) -> tuple[list[str], TrialLauncher]:
    """The words among the rest, and what the executors of Spark are told."""
    parser = Parser(add_help=False)
    parser.add_argument("--np", type=count_from(1), default=1)
    known, words = parser.parse_known_args(rest)
    if strange := [word for word in words if word.startswith("-")]:
        raise Refused(
            f"option {strange[0].partition('=')[0]} is not known to --launch spark, which takes "
            "--np N, the processes of a trial, and --master URL"
        )
    master = {"--master": options.master} if options.master else {}
    return words, TrialLauncher("spark", {"--np": str(known.np)} | master)


def _catalogue() -> str:
    """Every search with its title, what it tries and what it takes."""
    lines = []
    for name in config.searches():
        search = config.load_search(name)
        file = Path(paths.recipes_dir() / "search" / f"{name}.yaml")
        takes = [line[2:] for line in file.read_text().splitlines() if "Hardware: " in line]
        tried = ", ".join(search.space)
        lines += [f"  +search={name}", f"    {search.title}: {tried}"]
        lines += [f"    {search.points} points of {search.recipe} by {search.sampler}. {takes[0]}"]
    return "\n".join(lines)
