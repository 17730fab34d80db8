"""The command line of a search: which search to run, and how its runs are launched."""

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import get_origin

from lsgd import config, definitions, paths
from lsgd.errors import UsageError
from lsgd.job.command import Parser, integer_from
from lsgd.override_syntax import canonical, key_and_value, parse_seeds, parse_text
from lsgd.planned import RunLauncher, RunOptions, add_options, given_options, read_launcher
from lsgd.recipe.search import KINDS, PRUNING_RULES, SEARCH_FIELDS, Pruning, Search
from lsgd.search.space import FIXED, SearchSpace
from lsgd.suggestions import did_you_mean

SAID = [name for name in SEARCH_FIELDS if name not in ("title", "recipe", "words", "space")]
"""The fields of a search that the command line may override."""
WHOLE_NUMBERS = ("trials", "sampler_seed", "prune.after_trials", "prune.after_epochs")
"""The overrides of a search that are whole numbers."""
ARRAY_JOBS = TRIAL, COMPARISON = "trial", "comparison"
"""The kinds of jobs of an array on Slurm: each trains a trial, or a run that compares the best."""


@dataclass(frozen=True, kw_only=True)
class SearchRequest(RunOptions):
    """A request to run a hyper-parameter search, with its launcher and command-line options."""

    space: SearchSpace
    storage: str | None
    """The URL of a database, or None for a journal in the folder."""
    retries: bool
    """Whether failed trials are repeated."""
    array_job: str | None
    """The kind of array of which this process is one job on Slurm; None outside of these arrays."""
    step: tuple[str, ...]
    """The command of the array's script that trains on its nodes, up to overrides of lsgd.train."""

    @property
    def arguments(self) -> list[str]:
        """The arguments of `lsgd search` that choose this search and its storage."""
        storage = ["--storage", self.storage] if self.storage else []
        return [*self.space.search.command_arguments, *self.overrides, *storage]


@dataclass(frozen=True)
class ReportRequest:
    """A request to write one report page on several hyper-parameter searches."""

    folders: list[Path]
    out: Path


def read_request(about: str, argv: Sequence[str]) -> SearchRequest | ReportRequest:
    """Parse a command line of the search program into a request to search or to report.

    Options that a search does not define go to the launcher. `about` is the text of the help.
    Raises UsageError.
    """
    parser = _parser(about)
    # What follows is the command of a job's step, in a script that a search has submitted.
    end = argv.index("--") if "--array-job" in argv and "--" in argv else len(argv)
    argv, step = argv[:end], tuple(argv[end + 1 :])
    options, rest = parser.parse_known_args(argv)
    if options.report:
        given = {key for key, value in vars(options).items() if value != parser.get_default(key)}
        if rest or given != {"report", "out"}:
            raise UsageError("--report FOLDER … takes only --out FOLDER, the folder of the page")
        return ReportRequest(options.report, options.out)
    if options.out:
        raise UsageError("--out is for --report; a search writes its page into its own folder")
    on_spark = options.launch == "spark"
    if options.master and not on_spark:
        raise UsageError("--master is for --launch spark; write both")
    overrides, launcher = (
        _on_spark(options, rest) if on_spark else read_launcher(parser, options, rest)
    )
    names, of_search, of_recipe = _divide_overrides(parser, overrides)
    recipes = [value for key, value in map(key_and_value, of_recipe) if key == "recipe"]
    if not names and len(recipes) == 1:
        search, of_recipe = _search_over(recipes[0], of_search, of_recipe)
    elif len(names) == 1:
        chosen = parse_text("search", names[0]) or ""
        search = definitions.load_search(chosen, *of_search)
    else:
        raise UsageError(
            "no search is given; write for example search=digits; --searches lists them"
        )
    return SearchRequest(
        space=SearchSpace(search, of_recipe),
        overrides=[*of_search, *of_recipe],
        launcher=launcher,
        storage=options.storage,
        retries=options.retry_failed,
        array_job=options.array_job,
        step=step,
        **given_options(options),
    )


def _divide_overrides(
    parser: Parser, overrides: Sequence[str]
) -> tuple[list[str], list[str], list[str]]:
    """Divide overrides into the names of searches, those of search fields, and of the recipe.

    Raises UsageError for what is no override, or of a field that only a search file may set.
    """
    names, of_search, of_recipe = list[str](), list[str](), list[str]()
    for word in map(canonical, overrides):
        key, equals, value = word.partition("=")
        field = key.partition(".")[0]
        if not equals and not word.startswith("~"):
            how = f"write search={word}" if word in definitions.search_names() else parser.how(word)
            how = how or "write for example epochs=3"
            raise UsageError(f"'{word}' is not of the form key=value; {how}")
        if key == "search":
            names.append(value)
        elif field in SAID:
            of_search.append(_of_search_field(word))
        elif field in SEARCH_FIELDS and field != "recipe":
            raise UsageError(
                f"'{word}' is a field of a search file; write your own file, and search=./mine.yaml"
            )
        else:
            of_recipe.append(word)
    return names, of_search, of_recipe


def _of_search_field(word: str) -> str:
    """Return an override of a field of the search in the form of its file.

    Raises UsageError for values of another kind, whose errors would be about this form.
    """
    key, value = key_and_value(word)
    if key in ("seeds", "holdout_seeds"):
        is_none = key == "holdout_seeds" and value == "[]"
        seeds = [] if is_none else parse_seeds(key, value)
        return f"{key}=[{','.join(map(str, seeds))}]"
    if key in WHOLE_NUMBERS and not re.fullmatch(r"-?\d{1,18}", value.strip("'\"")):
        raise UsageError(f"{word} is not a whole number; write for example {key}=60")
    if key == "prune" and value != "null" and not re.fullmatch(r"\{.*\}", value):
        raise UsageError(
            f"{word} is not a rule of pruning; write prune.rule={' or '.join(PRUNING_RULES)}, or "
            "prune=null"
        )
    settings = re.findall(r"(\w+) *:", value) if key == "prune" else []
    settings += [key.partition(".")[2]] if key.startswith("prune.") else []
    for name in settings:
        if name not in (known := [field.name for field in fields(Pruning)]):
            raise UsageError(f"'{word}': pruning has no {name}; {did_you_mean(name, known)}")
    # YAML needs the space after a colon, which Hydra does not.
    return re.sub(r"(\w):(?=\w)", r"\1: ", word) if key == "prune" else word


def _search_over(
    recipe: str, of_search: Sequence[str], of_recipe: Sequence[str]
) -> tuple[Search, list[str]]:
    """Make a search without a file, over each override of a recipe whose value is a list.

    Returns it with the other overrides of the recipe. Raises UsageError if there is no such list.
    """
    takes_lists = {key for key, kind in KINDS.items() if get_origin(kind) is list}
    lists: list[str] = []
    others: list[str] = []
    for word in of_recipe:
        key, value = key_and_value(word)
        if key == "recipe":
            continue
        is_list = value.startswith("[") and key not in takes_lists | FIXED.keys()
        (lists if is_list else others).append(word.lstrip("+") if is_list else word)
    if not lists:
        raise UsageError(
            f"recipe={recipe} has no field to search; write a list of values for one, such as "
            "'schedule.reference_lr=[0.05,0.1,0.2]', or search=NAME"
        )
    chosen = parse_text("recipe", recipe) or ""
    return definitions.search_over(chosen, lists, *of_search), others


def _keys() -> list[str]:
    """Return the keys that can be overridden for a search: its own fields and its recipe's."""
    return [*SAID, *config.override_keys()]


def _parser(about: str) -> Parser:
    usage = "python -m lsgd.search search=NAME [key=value ...] [options]"
    parser = Parser("lsgd.search", about, keys=_keys, usage=usage)
    exclusive = add_options(
        parser, trained="trials", timed="a search", more_launchers=" or by spark"
    )
    parser.add_argument(
        "--master", metavar="URL", help="the master of Spark, such as spark://HOST:7077"
    )
    parser.add_argument(
        "--storage",
        metavar="URL",
        help="keep the trials in a database, such as sqlite:///searches.db",
    )
    exclusive.add_argument(
        "--retry-failed",
        action="store_true",
        help="retry the trials that failed, except those that diverged",
    )
    # By which lsgd plan search=NAME asks.
    exclusive.add_argument("--cost", dest="cost_only", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--array-job", choices=ARRAY_JOBS, help=argparse.SUPPRESS)
    exclusive.add_argument(
        "--report",
        nargs="+",
        type=paths.parse_path,
        metavar="F",
        help="write one page on the searches in these folders into --out",
    )
    parser.add_path("--out", "FOLDER", "the folder of that page")
    parser.add_listing(
        "--searches", "FILTER", "list the searches whose text contains FILTER", _catalogue
    )
    return parser


def _on_spark(options: argparse.Namespace, rest: Sequence[str]) -> tuple[list[str], RunLauncher]:
    """Parse the arguments for the Spark launcher; return the overrides and the launcher."""
    parser = Parser(add_help=False)
    parser.add_argument("--np", type=integer_from(1), default=1)
    known, overrides = parser.parse_known_args(rest)
    if strange := [word for word in overrides if word.startswith("-")]:
        raise UsageError(
            f"option {strange[0].partition('=')[0]} is not an option of --launch spark, which "
            "takes --np N, the processes of a trial, and --master URL"
        )
    master = {"--master": options.master} if options.master else {}
    return overrides, RunLauncher("spark", {"--np": str(known.np)} | master)


def _catalogue(part: str) -> str:
    """Return a text listing of the search files that contain `part`: title, space and hardware.

    Raises UsageError if there is none.
    """

    def describe(search: Search) -> str:
        size = f"{search.trial_count} trials of {search.recipe} by {search.sampler}"
        return f"{search.title}: {', '.join(search.space)}\n    {size}"

    return definitions.definition_list("search", part, definitions.load_search, describe)
