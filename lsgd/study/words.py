"""What the command line of a study asks for: which trials, and how they are started."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lsgd import config, paths
from lsgd.errors import Refused
from lsgd.job.command import Parser
from lsgd.launch.options import LAUNCHERS, read_options
from lsgd.recipe.study import Study
from lsgd.study.launch import TrialLauncher


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


class StudyParser(Parser):
    """The words and options of a study; options that it does not know are the launcher's."""

    def __init__(self, about: str) -> None:
        about, _, self.more = about.partition("\n\n")
        usage = "python -m lsgd.study +study=NAME [key=value ...] [options]"
        super().__init__("lsgd.study", about, usage=usage)
        self.add_argument(
            "--launch",
            metavar="LAUNCHER",
            default="local",
            help="which launcher starts a trial (default local); options of its own may be "
            "given too, such as --np 8",
        )
        self.add_argument(
            "--jobs",
            type=int,
            metavar="N",
            default=1,
            help="trials at a time (default 1), with so many times fewer threads each",
        )
        self.add_argument(
            "--print",
            action="store_true",
            help="show what is done and the commands of the rest, and start nothing",
        )

    def format_help(self) -> str:
        """With every study, which nothing else has to read."""
        self.epilog = f"{self.more}\nstudies:\n{_catalogue()}"
        return super().format_help()

    def read(self, argv: Sequence[str]) -> StudyRequest:
        """What the words ask for; raises Refused."""
        options, rest = self.parse_known_args(argv)
        # launch/slurm.sh means slurm.
        launcher = Path(options.launch).stem
        if launcher not in LAUNCHERS:
            known = ", ".join(sorted(LAUNCHERS))
            raise Refused(f"--launch {launcher} does not exist; write one of {known}")
        launcher_words, launcher_options, _ = read_options(launcher, rest)
        names: list[str] = []
        seed_lists: list[str] = []
        words: list[str] = []
        for word in launcher_words:
            _check_form(word)
            key, _, value = word.partition("=")
            if key.lstrip("+") == "study":
                names.append(value)
            elif key == "seeds":
                seed_lists.append(value)
            else:
                words.append(word)
        if len(names) != 1:
            raise Refused(
                "which study? Write one, for example +study=digits; --help lists them all"
            )
        study = config.load_study(names[0])
        seeds = _seeds(seed_lists[-1], study) if seed_lists else study.seeds
        if options.jobs < 1:
            raise Refused(f"--jobs={options.jobs} is not a number of trials; write 1 or more")
        if LAUNCHERS[launcher].submits and options.jobs > 1:
            raise Refused(
                f"{launcher} submits all trials, and the cluster decides how many run at a time; "
                "leave out --jobs"
            )
        trial_launcher = TrialLauncher(launcher, launcher_options)
        return StudyRequest(study, seeds, words, trial_launcher, options.jobs, options.print)


def _check_form(word: str) -> None:
    if word.startswith("study="):
        raise Refused(f"'{word}' needs a plus sign; write +{word}")
    if "=" not in word and not word.startswith("~"):
        example = f"+study={word}" if word in config.studies() else "for example epochs=30"
        raise Refused(f"'{word}' is not of the form key=value; write {example}")


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
