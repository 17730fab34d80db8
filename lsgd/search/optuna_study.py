"""The Optuna study of a search, which proposes trials, stores them and decides which are pruned.

Only this file imports Optuna.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import isnan, nan
from pathlib import Path
from statistics import median
from typing import IO, Any, cast
from zlib import crc32

from lsgd import files
from lsgd.errors import PreemptedError, UsageError, disk_full_error
from lsgd.installation import install_command
from lsgd.recipe.search import CategoricalChoices, Dimension, Pruning, Search, Value
from lsgd.sanitizing import mask_passwords
from lsgd.search.trial import FAILED, FINISHED, PRUNED, RUNNING, Trial

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import optuna
        from optuna.distributions import BaseDistribution
        from optuna.exceptions import StorageInternalError
        from optuna.pruners import BasePruner, NopPruner, SuccessiveHalvingPruner
        from optuna.samplers import BaseSampler, GPSampler, GridSampler, RandomSampler, TPESampler
        from optuna.storages import BaseStorage, JournalStorage
        from optuna.storages.journal import JournalFileBackend
        from optuna.trial import FrozenTrial, TrialState, create_trial
except ImportError:
    raise UsageError(f"a search needs Optuna; run {install_command('search')}") from None

STATES = {
    TrialState.WAITING: RUNNING,
    TrialState.RUNNING: RUNNING,
    TrialState.COMPLETE: FINISHED,
    TrialState.PRUNED: PRUNED,
    TrialState.FAIL: FAILED,
}
FIRST_DRAWN = 10
"""The number of trials that TPE and GP draw at random before they model the values."""
JOURNAL = "journal.log"
WHY = "why"
"""The trial attribute with the reason of a failure."""
PLACE = "place"
"""The trial attribute with the identity of the only folder that may train and resume it."""
UNSTARTED = "unstarted"
"""The trial attribute with the reason why the trial ended before its first step."""
INSTEAD_OF = "instead_of"
"""The trial attribute with the number of the failed trial that this one repeats."""
DEFINITION = "definition"
"""The study attribute with the hash of the settings that decide its trials."""
PATIENCE = 300
"""Seconds that SQLite waits for another process's lock; the default of 5 is short on slow disks."""


class OptunaStudy:
    """The Optuna study of one search, stored in a journal file in its folder or in a database.

    Several processes may use them at the same time, each through its own object. Every method
    raises PreemptedError if the storage cannot be reached, since rerunning the command resumes the
    search, and the error of a full disk where the journal cannot be written.
    """

    def __init__(
        self,
        search: Search,
        folder: Path,
        storage: str | None = None,
        *,
        definition: str = "",
        folder_id: str = "",
    ) -> None:
        """Open the Optuna study of a search, or create it if the storage has none.

        `definition` is a hash of the settings that decide the trials; `folder_id` identifies
        the folder. Raises UsageError if the database cannot be reached or has a different search of
        this name.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        self.dimensions, self.folder_id = search.dimensions, folder_id
        self.where = _where(storage) or str(folder / JOURNAL)
        self.optuna_trials: dict[int, optuna.Trial] = {}
        with self._storage_errors():
            self.study = optuna.create_study(
                study_name=folder.name,
                storage=_storage(folder, storage),
                sampler=_TrialSeededSampler(search),
                pruner=_pruner(search.prune),
                load_if_exists=True,
            )
            _check(self.study, search, definition, self.where)
            if definition and DEFINITION not in self.study.user_attrs:
                self.study.set_user_attr(DEFINITION, definition)

    def all_trials(self) -> list[Trial]:
        """Return all trials of the search by number, without failed ones that were repeated."""
        with self._storage_errors():
            return _points(self.study)

    def trial_numbers_here(self) -> set[int]:
        """Return the numbers of this folder's trials; a database may also have other folders'."""
        with self._storage_errors():
            return {
                trial.number
                for trial in self.study.get_trials(deepcopy=False)
                if trial.user_attrs.get(PLACE, self.folder_id) == self.folder_id
            }

    def ask(self, repeated: Trial | None = None) -> int:
        """Create a trial in Optuna, new or as a repetition of a failed one; return its number."""
        attributes: dict[str, Any] = {PLACE: self.folder_id}
        fixed: dict[str, Any] = {}
        if repeated:
            attributes[INSTEAD_OF] = repeated.number
            fixed["fixed_params"] = dict(repeated.values)
        # study.ask cannot set the folder's identity in the same write as the trial.
        made = create_trial(state=TrialState.RUNNING, user_attrs=attributes, system_attrs=fixed)
        with self._storage_errors():
            identity = self.study._storage.create_new_trial(self.study._study_id, made)
            trial = optuna.trial.Trial(self.study, identity)
        self.optuna_trials[trial.number] = trial
        return trial.number

    def values(self, number: int) -> dict[str, Value]:
        """Return a trial's value of each searched field, sampling those that are not yet drawn."""
        with self._storage_errors():
            trial = self._trial(number)
            return {each.key: _suggest(trial, each) for each in self.dimensions}

    def report(self, number: int, step: int, value: float) -> None:
        """Report a trial's intermediate value to Optuna; `step` stands for its seed and epoch."""
        with self._storage_errors():
            self._trial(number).report(value, step)

    def should_prune(self, number: int) -> bool:
        """Return whether Optuna's pruner would stop this trial after its last reported value."""
        with self._storage_errors():
            return self._trial(number).should_prune()

    def tell(self, number: int, state: str, *, value: float | None = None, why: str = "") -> None:
        """Record a trial's final state in Optuna: FINISHED with its value, PRUNED or FAILED.

        A failed trial may have a value, the chance level: samplers look at values alone, and would
        choose the same point again and again.
        """
        told = FINISHED if value is not None else state
        [of_optuna] = [key for key, mine in STATES.items() if mine == told]
        with self._storage_errors():
            trial = self._trial(number)
            if why or WHY in trial.user_attrs:  # of a process that was killed here
                trial.set_user_attr(WHY, why)
            self.study.tell(number, value, of_optuna)
        self.optuna_trials.pop(number, None)

    def note_unstarted(self, number: int, why: str) -> None:
        """Store why a trial ended before its first step; an empty string once it is resumed."""
        with self._storage_errors():
            self._trial(number).set_user_attr(UNSTARTED, why)

    def unstarted_trials(self) -> dict[int, str]:
        """Return why running trials of this folder ended before their first step, by number."""
        here = self.trial_numbers_here()
        with self._storage_errors():
            return {
                trial.number: why
                for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
                if (why := trial.user_attrs.get(UNSTARTED)) and trial.number in here
            }

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        """Convert errors of Optuna's storage to PreemptedError, or to the error of a full disk."""
        try:
            yield
        except (StorageInternalError, OSError) as error:
            if isinstance(error, OSError) and (full := disk_full_error(error, self.where)):
                raise full from None
            why = str(error.__cause__ or error).splitlines()[0]
            raise PreemptedError(
                f"{self.where} cannot be read or written ({why}); fix that and rerun the same "
                "command to resume"
            ) from None

    def _trial(self, number: int) -> optuna.Trial:
        """Return Optuna's writable trial of this number, to suggest or report its values."""
        if number not in self.optuna_trials:
            found = self.study.get_trials(deepcopy=False)[number]
            self.optuna_trials[number] = optuna.trial.Trial(self.study, found._trial_id)
        return self.optuna_trials[number]


def load_trials(
    search: Search, folder: Path, storage: str | None = None, *, definition: str = ""
) -> list[Trial]:
    """Read a search's trials, ordered by number, from Optuna; an empty list if it has not begun.

    Writes nothing. Raises UsageError if the database cannot be reached or has a different search of
    this name.
    """
    if storage is None and not (folder / JOURNAL).exists():
        return []
    try:
        # create_study would append a line to the journal even of an existing search.
        study = optuna.load_study(study_name=folder.name, storage=_storage(folder, storage))
    except KeyError:
        return []
    _check(study, search, definition, _where(storage) or str(folder))
    return _points(study)


def _check(study: optuna.Study, search: Search, definition: str, where: str) -> None:
    """Raise UsageError if a search with another definition created this Optuna study."""
    attributes = study.user_attrs
    same = attributes.get(DEFINITION, definition) == definition
    if DEFINITION not in attributes:  # older studies have no hash: compare the fields
        keys = {each.key for each in search.dimensions}
        same = all(trial.params.keys() <= keys for trial in study.get_trials(deepcopy=False))
    if not same:
        raise UsageError(
            f"{where} has a search {study.study_name} with another definition; write another "
            "storage, or rename the changed search"
        )


def _points(study: optuna.Study) -> list[Trial]:
    """Convert an Optuna study's trials to lsgd's, leaving out failed trials that were repeated."""
    trials = study.get_trials(deepcopy=False)
    replaced = {trial.user_attrs.get(INSTEAD_OF) for trial in trials}
    return [
        Trial(
            trial.number,
            dict(trial.params),
            state := _state(trial),
            trial.value if state == FINISHED else None,
            dict(trial.intermediate_values),
            trial.user_attrs.get(WHY, ""),
            trial.datetime_start,
            trial.datetime_complete,
            is_retry=INSTEAD_OF in trial.user_attrs,
        )
        for trial in trials
        if trial.number not in replaced
    ]


def _state(trial: FrozenTrial) -> str:
    """Convert the state of an Optuna trial to lsgd's: running, finished, pruned or failed.

    The reason of a failure is written before the state: a process that is killed between the two
    leaves a running trial, and the process that takes it over writes its own reason, or none.
    """
    state = STATES[trial.state]
    return FAILED if state == FINISHED and trial.user_attrs.get(WHY) else state


def _where(storage: str | None) -> str:
    """Return a database URL as a --storage option with its password masked; empty without a URL."""
    return f"--storage {mask_passwords(storage)}" if storage else ""


def _storage(folder: Path, url: str | None) -> BaseStorage | str:
    """Open Optuna's storage: the journal in a search's folder, or the database at a URL.

    Raises UsageError if the database cannot be used.
    """
    if url is None:
        path = (folder / JOURNAL).absolute()
        return JournalStorage(JournalFileBackend(str(path), cast(Any, _JournalLock(path))))
    try:
        if url.startswith("sqlite"):
            waits = {"connect_args": {"timeout": PATIENCE}}
            return optuna.storages.get_storage(optuna.storages.RDBStorage(url, waits))
        return optuna.storages.get_storage(url)
    except Exception as error:  # each database raises its own classes
        raise UsageError(
            f"{_where(url)} cannot be used ({str(error).splitlines()[0]}); write a URL such as "
            "sqlite:///searches.db, or leave it out for a journal in the search's folder"
        ) from None


class _JournalLock:
    """The lock for appending to Optuna's journal, which the kernel frees when its process ends.

    Optuna's own locks are files that a killed process leaves behind: later processes wait 30 s for
    them, or for ever. Each thread opens the file anew, as a shared handle would not exclude
    threads.
    """

    def __init__(self, journal: Path) -> None:
        self.journal = journal
        self.held: IO[bytes] | None = None

    def acquire(self) -> bool:
        """Wait for the journal's lock, then cut off an incomplete last line that a kill has left.

        A full disk leaves such a line too.
        """
        file = self.journal.with_name(f"{self.journal.name}.flock").open("ab")
        files.lock(file, wait=True)
        self.held = file
        files.truncate_torn_line(self.journal)
        return True

    def release(self) -> None:
        """Release the journal's lock, so that the next process can append to the journal."""
        assert self.held
        self.held.close()


def _suggest(trial: optuna.Trial, dimension: Dimension) -> Value:
    """Return a trial's value of one searched field, sampling it if the trial has none yet."""
    key = dimension.key
    if isinstance(dimension, CategoricalChoices):
        return cast(Value, trial.suggest_categorical(key, dimension.values))
    low, high = dimension.low, dimension.high
    if dimension.is_integer:
        return trial.suggest_int(key, int(low), int(high), log=dimension.log)
    return trial.suggest_float(key, low, high, log=dimension.log)


def _pruner(prune: Pruning | None) -> BasePruner:
    """Return the Optuna pruner that a search's pruning settings ask for."""
    match prune:
        case None:
            return NopPruner()
        case Pruning(rule="median"):
            return _LastValueMedianPruner(prune.after_trials, prune.after_epochs)
        case _:
            return SuccessiveHalvingPruner(min_resource=prune.after_epochs)


class _LastValueMedianPruner(BasePruner):
    """An Optuna pruner of trials whose last value exceeds the finished trials' median there.

    The median is over the values of the finished trials at the same step. Optuna's MedianPruner
    compares the best value of all steps so far. The final metric is of a run's last epochs, so it
    would keep a trial that was good once; and a trial whose first seed ended well would be kept
    whatever its second seed yields.
    """

    def __init__(self, after_trials: int, after_steps: int) -> None:
        self.after_trials, self.after_steps = after_trials, after_steps

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        step = trial.last_step
        trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        ended = [each for each in trials if _state(each) == FINISHED]  # no failed one with a value
        if step is None or step < self.after_steps or len(ended) < self.after_trials:
            return False
        others = [each.intermediate_values.get(step, nan) for each in ended]
        others = [value for value in others if not isnan(value)]
        value = trial.intermediate_values[step]
        return bool(others) and (isnan(value) or value > median(others))


class _TrialSeededSampler(BaseSampler):
    """An Optuna sampler whose draws depend only on seed, trial number and the trials before it.

    So a resumed search draws what an uninterrupted one would have drawn: Optuna's own samplers
    start a new series of random numbers in every process.
    """

    def __init__(self, search: Search) -> None:
        self.search = search

    def _seeded(self, *what: Any) -> BaseSampler:
        """Return a new Optuna sampler, seeded by the search's seed and by these further values."""
        search = self.search
        seed = crc32(repr((search.sampler_seed, *what)).encode())
        match search.sampler:
            case "grid":
                grid: dict[str, Sequence[Any]] = {
                    each.key: each.grid_values for each in search.dimensions
                }
                return GridSampler(grid, seed=search.sampler_seed)  # it picks by trial number
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
