"""The command line of a study, parsed: the study, its overrides, and the launcher."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lsgd import config, definitions
from lsgd.errors import UsageError
from lsgd.job.command import Parser, integer_from
from lsgd.override_syntax import canonical, parse_seeds, parse_text
from lsgd.planned import RunOptions, add_options, given_options, read_launcher
from lsgd.recipe.study import Study
from lsgd.report.looks import LEAST
from lsgd.run.tuned import apply_search_results


@dataclass(frozen=True, kw_only=True)
class StudyRequest(RunOptions):
    """The parsed command line of a study: its seeds, overrides, launcher and options."""

    study: Study
    seeds: list[int]
    """The seeds to train first; `study.seeds` contains them, and perhaps more."""
    max_seeds: int | None
    """The most seeds per recipe with --until-decided; None without it."""


def _keys() -> list[str]:
    """Return the keys that overrides of a study may set: `seeds`, and the fields of a recipe."""
    return ["seeds", *config.override_keys()]


def _parser(about: str) -> Parser:
    usage = "python -m lsgd.study study=NAME [key=value ...] [options]"
    parser = Parser("lsgd.study", about, keys=_keys, usage=usage)
    exclusive = add_options(parser, trained="runs", timed="recipes")
    parser.add_argument(
        "--quick", action="store_true", help="only train the part of the study that takes minutes"
    )
    parser.add_argument(
        "--until-decided",
        action="store_true",
        help="add seeds to both recipes of each claim until it is resolved",
    )
    parser.add_argument(
        "--max-seeds",
        type=integer_from(2),
        metavar="N",
        help="of a recipe, with --until-decided (default 10); fixed by the first such command",
    )
    exclusive.add_argument(
        "--cost",
        dest="cost_only",
        action="store_true",
        help="only print what the runs cost, as lsgd plan study=NAME does",
    )
    parser.add_listing(
        "--studies", "FILTER", "list the studies whose text contains FILTER", _catalogue
    )
    return parser


def read_request(help_text: str, argv: Sequence[str]) -> StudyRequest:
    """Parse the command line of a study; options it does not define go to the launcher.

    `help_text` is the text of the help. Raises UsageError.
    """
    parser = _parser(help_text)
    options, rest = parser.parse_known_args(argv)
    overrides, launcher = read_launcher(parser, options, rest)
    names: list[str] = []
    seed_lists: list[str] = []
    run_overrides: list[str] = []
    for word in map(canonical, overrides):
        key, equals, value = word.partition("=")
        if not equals and not word.startswith("~"):
            how = f"write study={word}" if word in definitions.study_names() else parser.how(word)
            how = how or "write for example epochs=30"
            raise UsageError(f"'{word}' is not of the form key=value; {how}")
        if key == "study":
            names.append(value)
        elif key == "seeds":
            seed_lists.append(value)
        else:
            run_overrides.append(word)
    if len(names) != 1:
        raise UsageError("no study is given; write for example study=digits; --studies lists them")
    study = definitions.load_study(parse_text("study", names[0]) or "")
    study = apply_search_results(study.quick_part() if options.quick else study)
    seeds = parse_seeds("seeds", seed_lists[-1]) if seed_lists else study.seeds
    max_seeds = _most_seeds(options, study, seeds)
    study = replace(
        study,
        seeds=[*seeds, *(seed for seed in study.seeds if seed not in seeds)],
        # The first planned look is at all seeds that are requested.
        claim_seeds=len(seeds if max_seeds else study.seeds),
    )
    return StudyRequest(
        study=study,
        seeds=seeds,
        max_seeds=max_seeds,
        overrides=run_overrides,
        launcher=launcher,
        **given_options(options),
    )


def _most_seeds(options: argparse.Namespace, study: Study, seeds: Sequence[int]) -> int | None:
    """Return the most seeds per recipe with --until-decided, or None without this option.

    Raises UsageError if the options contradict each other or the study.
    """
    most: int | None = options.max_seeds
    if not options.until_decided:
        if most is not None:
            raise UsageError(
                f"--max-seeds {most} needs --until-decided; add that, or write seeds={most}"
            )
        return None
    most = 10 if most is None else most
    if not study.claims:
        raise UsageError(f"study {study.name} has no claim to decide; leave out --until-decided")
    if len(seeds) < len(study.seeds) or len(seeds) < LEAST:
        raise UsageError(
            f"--until-decided begins with as many seeds as the study has, {LEAST} at least, and "
            f"{len(seeds)} are asked for; write seeds={max(LEAST, len(study.seeds))}"
        )
    if most <= len(seeds):
        raise UsageError(
            f"--max-seeds {most} must be more than the {len(seeds)} seeds of the first look; write "
            f"--max-seeds {len(seeds) + 5}"
        )
    return most


def _catalogue(part: str) -> str:
    """List the studies whose text contains `part`, each with its question, size and hardware.

    Raises UsageError if there is none.
    """

    def describe(study: Study) -> str:
        size = f"{len(study.entries)} recipes x {len(study.seeds)} seeds"
        return f"{study.question}\n    {size}"

    return definitions.definition_list("study", part, definitions.load_study, describe)
