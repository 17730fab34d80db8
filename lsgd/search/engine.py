"""Optuna, which proposes points, keeps them and says which are not worth finishing.

Only this file knows it.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast
from zlib import crc32

from lsgd.errors import Refused
from lsgd.installation import install
from lsgd.recipe.search import Choices, Dimension, Pruning, Search, Value
from lsgd.search.point import FAILED, FINISHED, PRUNED, RUNNING, Point

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import optuna
        from optuna.distributions import BaseDistribution
        from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
        from optuna.samplers import BaseSampler, GPSampler, GridSampler, RandomSampler, TPESampler
        from optuna.storages import BaseStorage, JournalStorage
        from optuna.storages.journal import JournalFileBackend
        from optuna.trial import FrozenTrial, TrialState
except ImportError:
    raise Refused(f"a search needs Optuna; type {install('search')}") from None

STATES = {
    TrialState.WAITING: RUNNING,
    TrialState.RUNNING: RUNNING,
    TrialState.COMPLETE: FINISHED,
    TrialState.PRUNED: PRUNED,
    TrialState.FAIL: FAILED,
}
FIRST_DRAWN = 10
"""The points that TPE and GP draw at random before they look at what came of them."""
JOURNAL = "journal.log"
WHY = "why"
"""The attribute of a trial that says why it has failed."""


class Engine:
    """The points of one search, in Optuna's journal in the folder, or in a database.

    Several processes may use one at a time, each with an engine of its own.
    """

    def __init__(self, search: Search, folder: Path, storage: str | None = None) -> None:
        """Open the search, or begin it; raises Refused if the database cannot be reached."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        self.dimensions = search.dimensions
        self.trials: dict[int, optuna.Trial] = {}
        self.study = optuna.create_study(
            study_name=folder.name,
            storage=_storage(folder, storage),
            sampler=_ByNumber(search),
            pruner=_pruner(search.prune),
            load_if_exists=True,
        )

    def points(self) -> list[Point]:
        """All of them, by number."""
        return _points(self.study)

    def ask(self) -> int:
        """A new point; returns its number."""
        trial = self.study.ask()
        self.trials[trial.number] = trial
        return trial.number

    def values(self, number: int) -> dict[str, Value]:
        """What the point says, chosen now where a search that was killed has not come to it."""
        trial = self._trial(number)
        return {each.key: _suggest(trial, each) for each in self.dimensions}

    def report(self, number: int, step: int, value: float) -> None:
        """Tell what the runs of the point say after so many epochs, all its seeds together."""
        self._trial(number).report(value, step)

    def gives_up(self, number: int) -> bool:
        """Whether by what was last reported the point is not worth finishing."""
        return self._trial(number).should_prune()

    def tell(self, number: int, state: str, *, value: float | None = None, why: str = "") -> None:
        """Tell what has become of a point: FINISHED with its value, PRUNED or FAILED.

        A failed one may have a value, as bad as that of guessing: samplers look at values alone,
        and would choose the same point again and again.
        """
        if why:
            self._trial(number).set_user_attr(WHY, why)
        told = FINISHED if value is not None else state
        [of_optuna] = [key for key, mine in STATES.items() if mine == told]
        self.study.tell(number, value, of_optuna)
        self.trials.pop(number, None)

    def _trial(self, number: int) -> optuna.Trial:
        if number not in self.trials:
            found = self.study.get_trials(deepcopy=False)[number]
            self.trials[number] = optuna.trial.Trial(self.study, found._trial_id)
        return self.trials[number]


def begun(folder: Path, storage: str | None = None) -> list[Point]:
    """All points of the search in the folder, by number, none before it begins; nothing is written.

    Raises Refused if the database cannot be reached.
    """
    if storage is None and not (folder / JOURNAL).exists():
        return []
    try:
        # create_study would leave a line in the journal of a search that is there.
        study = optuna.load_study(study_name=folder.name, storage=_storage(folder, storage))
    except KeyError:
        return []
    return _points(study)


def _points(study: optuna.Study) -> list[Point]:
    return [
        Point(
            trial.number,
            dict(trial.params),
            state := FAILED if WHY in trial.user_attrs else STATES[trial.state],
            trial.value if state == FINISHED else None,
            dict(trial.intermediate_values),
            trial.user_attrs.get(WHY, ""),
            trial.datetime_start,
            trial.datetime_complete,
        )
        for trial in study.get_trials(deepcopy=False)
    ]


def _storage(folder: Path, url: str | None) -> BaseStorage | str:
    if url is None:
        return JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
    try:
        return optuna.storages.get_storage(url)
    except Exception as error:  # each database has its own
        raise Refused(
            f"--storage {url} cannot be used ({str(error).splitlines()[0]}); write a URL such as "
            "sqlite:///searches.db, or leave it out for a journal in the search's folder"
        ) from None


def _suggest(trial: optuna.Trial, dimension: Dimension) -> Value:
    """The value of this field at the point: the one it has, or a new one."""
    key = dimension.key
    if isinstance(dimension, Choices):
        return cast(Value, trial.suggest_categorical(key, dimension.values))
    low, high = dimension.low, dimension.high
    if dimension.whole:
        return trial.suggest_int(key, int(low), int(high), log=dimension.log)
    return trial.suggest_float(key, low, high, log=dimension.log)


def _pruner(prune: Pruning | None) -> BasePruner:
    match prune:
        case None:
            return NopPruner()
        case Pruning(rule="median"):
            # Optuna's steps of warmup are those at which nobody is given up, and ours count from 1.
            return MedianPruner(prune.after_trials, prune.after_epochs)
        case _:
            return SuccessiveHalvingPruner(min_resource=prune.after_epochs)


class _ByNumber(BaseSampler):
    """A sampler whose draws for a point follow from the seed, the point's number and its past.

    A search that is interrupted draws what it would have drawn: Optuna's own samplers begin their
    series of random numbers anew in every process.
    """

    def __init__(self, search: Search) -> None:
        self.search = search

    def _seeded(self, *what: Any) -> BaseSampler:
        search = self.search
        seed = crc32(repr((search.sampler_seed, *what)).encode())
        match search.sampler:
            case "grid":
                grid: dict[str, Sequence[Any]] = {each.key: each.grid for each in search.dimensions}
                return GridSampler(grid, seed=search.sampler_seed)  # it goes by the number itself
            case "random":
                return RandomSampler(seed)
            case "gp":
                return GPSampler(
                    seed=seed, n_startup_trials=FIRST_DRAWN, deterministic_objective=False
                )
        return TPESampler(seed=seed, n_startup_trials=FIRST_DRAWN, constant_liar=True)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        self._seeded(trial.number).before_trial(study, trial)

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return self._seeded(trial.number).infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._seeded(trial.number).sample_relative(study, trial, search_space)

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        return self._seeded(trial.number, param_name).sample_independent(
            study, trial, param_name, param_distribution
        )
