"""What the command line of a study asks for: which trials, and how they are started."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lsgd import config, paths
from lsgd.errors import Refused
from lsgd.job.command import Parser
from lsgd.launch.options import LAUNCHERS
from lsgd.recipe.study import Study
from lsgd.run.tuned import tune
from lsgd.trials.launch import TrialLauncher
from lsgd.trials.words import add_options, read_launcher


@dataclass(frozen=True)
class StudyRequest:
    """A study, and what is to be done with it."""

    study: Study
    seeds: list[int]
    """Those of the study that are to be trained."""
    words: list[str]
    """`key=value` words that hold for every trial."""
    launcher: TrialLauncher
    jobs: int
    """Trials at a time."""
    prints: bool
    """Whether to show what is done and what would run, and start nothing."""


def _keys() -> list[str]:
    """What key=value words may give: fields of the study and of its recipes."""
    return ["seeds", *config.field_keys()]


def _parser(about: str, *, lists_studies: bool) -> Parser:
    about, _, more = about.partition("\n\n")
    if lists_studies:
        more = f"{more}\nstudies:\n{_catalogue()}"
    usage = "python -m lsgd.study +study=NAME [key=value ...] [options]"
    parser = Parser("lsgd.study", about, keys=_keys, usage=usage, epilog=more)
    add_options(parser)
    return parser


def read_request(about: str, argv: Sequence[str]) -> StudyRequest:
    """What the words ask for, with options that a study does not know being the launcher's.

    `about` is the text of the help. Raises Refused.
    """
    # Every study is read for the help alone.
    parser = _parser(about, lists_studies=bool({"-h", "--help"} & set(argv)))
    options, rest = parser.parse_known_args(argv)
    words, launcher = read_launcher(parser, options, rest)
    names: list[str] = []
    seed_lists: list[str] = []
    trial_words: list[str] = []
    for word in words:
        key, equals, value = word.partition("=")
        if key == "study" and equals:
            raise Refused(f"'{word}' needs a plus sign; write +{word}")
        if not equals and not word.startswith("~"):
            how = f"write +study={word}" if word in config.studies() else parser.how(word)
            how = how or "write for example epochs=30"
            raise Refused(f"'{word}' is not of the form key=value; {how}")
        if key.lstrip("+") == "study":
            names.append(value)
        elif key == "seeds":
            seed_lists.append(value)
        else:
            trial_words.append(word)
    if len(names) != 1:
        raise Refused("which study? Write one, for example +study=digits; --help lists them all")
    study = tune(config.load_study(names[0]))
    seeds = _seeds(seed_lists[-1], study) if seed_lists else study.seeds
    if LAUNCHERS[launcher.name].submits and options.jobs > 1:
        raise Refused(
            f"{launcher.name} submits all trials, and the cluster decides how many run at a time; "
            "leave out --jobs"
        )
    return StudyRequest(study, seeds, trial_words, launcher, options.jobs, options.print)


def _seeds(text: str, study: Study) -> list[int]:
    """The seeds that `seeds=[0,1]` names; raises Refused for those that the study has not."""
    if not re.fullmatch(r"\[\d+(, ?\d+)*\]", text):
        raise Refused(f"seeds={text} is not a list of numbers; write seeds=[0,1]")
    seeds = [int(number) for number in re.findall(r"\d+", text)]
    if others := [seed for seed in seeds if seed not in study.seeds]:
        raise Refused(
            f"seeds={text} has {others[0]}, and the study has the seeds "
            f"{', '.join(map(str, study.seeds))}; write some of these, or train another with "
            f"python -m lsgd.train +recipe=NAME seed={others[0]}"
        )
    return seeds


def _catalogue() -> str:
    """Every study with its question, its size and what it takes."""
    lines = []
    for name in config.studies():
        study = config.load_study(name)
        file = paths.recipes_dir() / "study" / f"{name}.yaml"
        takes = [line[2:] for line in file.read_text().splitlines() if "Hardware: " in line]
        size = f"{len(study.entries)} recipes x {len(study.seeds)} seeds"
        lines += [f"  +study={name}", f"    {study.question}", f"    {size}. {' '.join(takes)}"]
    return "\n".join(lines)
