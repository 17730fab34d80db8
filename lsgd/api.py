"""The public Python API: load recipes, train, evaluate and read runs, as the commands do.

    >>> from tempfile import mkdtemp
    >>> from lsgd.api import evaluate, load_recipe, read_runs, train
    >>> short = ["epochs=2", "schedule.milestones=[1]", "schedule.warmup_epochs=0.5"]
    >>> recipe = load_recipe("recipe=digits", *short, f"run_dir={mkdtemp()}")
    >>> kinds = []
    >>> error = train(recipe, on_row=lambda row: kinds.append(row["kind"]))  # doctest: +ELLIPSIS
    digits: ...
    >>> kinds.count("epoch")
    2
    >>> [run] = read_runs(recipe.run_dir)
    >>> run.final_metric == error, run.state
    (True, 'finished')
    >>> scores = evaluate(run.path / "checkpoint.pt")
    >>> scores["val"].metrics["top1_error"] == run.epochs[2]["val_top1_error"]
    True

Every early end of a run raises a subclass of ExitError, such as UsageError, DivergedError and
PreemptedError; its message is the sentence that the command would print. Under a launcher every
process makes the same calls, also where the program has connected the processes itself. torch is
imported by the first training or evaluation.

A call leaves the program's process as it was: Hydra, torch's settings, signals, environment and, in
the main thread, random states. Nor do the program's autocast, `no_grad`, default dtype and default
device change the result of a call. Its messages go to the logger "lsgd", whose handler prints them;
`logging.getLogger("lsgd").setLevel(logging.ERROR)` silences them.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lsgd import config, paths
from lsgd.errors import DivergedError, ExitError, PreemptedError, UsageError
from lsgd.recipe import Recipe
from lsgd.report.run_folders import find_runs
from lsgd.run.read import Run
from lsgd.run.rows import Row
from lsgd.scores import Scores

__all__ = [
    "DivergedError",
    "ExitError",
    "PreemptedError",
    "Recipe",
    "Row",
    "Run",
    "Scores",
    "UsageError",
    "evaluate",
    "load_recipe",
    "read_runs",
    "train",
]

_RENAMED = {
    "Diverged": "DivergedError",
    "EndsEarly": "ExitError",
    "Preempted": "PreemptedError",
    "Refused": "UsageError",
}
"""The names that version 0.1 had for names of this module; deprecated."""

if not TYPE_CHECKING:  # with a type checker they are errors

    def __getattr__(name: str) -> object:
        """Return what a deprecated name stands for, with a warning that has its present name."""
        if name not in _RENAMED:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        text = f"lsgd.api.{name} is now lsgd.api.{_RENAMED[name]}"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return globals()[_RENAMED[name]]


def load_recipe(*overrides: str) -> Recipe:
    """Compose and check a recipe from command-line overrides; raises UsageError.

    >>> recipe = load_recipe("recipe=bs8k", "workers=128")
    >>> recipe.batch_size, recipe.total_steps, round(recipe.lr(recipe.first_step(5)), 3)
    (4096, 28080, 1.6)
    >>> load_recipe("recipe=bs8k", "worker=128")
    Traceback (most recent call last):
    lsgd.errors.UsageError: there is no key 'worker'; did you mean workers?
    """
    return config.load_recipe(overrides)


def train(recipe: Recipe, *, on_row: Callable[[Row], object] | None = None) -> float:
    """Train a recipe, or resume it in its `run_dir`; return the final metric.

    `on_row` is called on process 0 with each row of metrics.jsonl, after it is written; the row's
    `kind` is start, train (every `log_steps` steps), evaluation (within an epoch), epoch, warning
    or diverged. An exception that it raises ends the run; training the same recipe again resumes it
    from its last checkpoint.

    Fields that the program has replaced in the recipe are checked as those of a command line are.
    Raises UsageError, before anything is written, if the recipe cannot be trained here;
    DivergedError, PreemptedError and other subclasses of ExitError if they end the run.
    """
    from lsgd.job.device import use_torch_defaults
    from lsgd.run.metrics import row_callback
    from lsgd.train import train

    with use_torch_defaults(), row_callback(on_row):
        return train(config.from_python(recipe))


def evaluate(checkpoint: Path | str, *overrides: str) -> dict[str, Scores]:
    """Evaluate a checkpoint, or the newest one of a run folder; return scores by evaluation set.

    Scores have `metrics` (loss, top1_error in percent, …) and the `counts` from which they are
    computed. The overrides change where and how the evaluation runs, such as `data.root=…` or
    `device=cpu`. With `recipe=NAME` among them the file holds plain weights, which are evaluated
    with that recipe. Raises UsageError.
    """
    from lsgd.evaluate import evaluate_path
    from lsgd.job.device import use_torch_defaults

    with use_torch_defaults():
        return evaluate_path(paths.parse_path(checkpoint), overrides)


def read_runs(*folders: Path | str) -> list[Run]:
    """Read all training runs in these folders and their subfolders; raises UsageError.

    Unfinished runs are included; folders without a readable run are skipped. A run has its `path`,
    `recipe`, `state` and `final_metric`, which is NaN before the first epoch has ended, the row of
    each of its `epochs` by number from 1, and all its `rows`.

    >>> from lsgd.paths import digits_dir
    >>> read_runs(digits_dir())
    []
    """
    runs, _ = find_runs([paths.parse_path(folder) for folder in folders])
    return runs
