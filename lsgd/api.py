"""What a Python program imports: recipes, training, evaluation and runs, as the commands have them.

    >>> from tempfile import mkdtemp
    >>> from lsgd.api import evaluate, load_recipe, read_runs, train
    >>> short = ["epochs=2", "schedule.milestones=[1]", "schedule.warmup_epochs=0.5"]
    >>> recipe = load_recipe("+recipe=digits", *short, f"run_dir={mkdtemp()}")
    >>> kinds = []
    >>> error = train(recipe, on_row=lambda row: kinds.append(row["kind"]))  # doctest: +ELLIPSIS
    digits: ...
    >>> kinds.count("epoch")
    2
    >>> [run] = read_runs(recipe.run_dir)
    >>> run.number == error, run.state
    (True, 'finished')
    >>> scores = evaluate(run.path / "checkpoint.pt")
    >>> scores["val"].rates["top1_error"] == run.epochs[2]["val_top1_error"]
    True

What is refused, has diverged or was told to leave is raised: Refused, Diverged and Preempted, whose
message is the sentence that the command would print, and all others of EndsEarly. Under a launcher
every process makes the same calls. torch is imported by the first training or evaluation.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lsgd import config
from lsgd.errors import Diverged, EndsEarly, Preempted, Refused
from lsgd.recipe import Recipe
from lsgd.report.search import find_runs
from lsgd.run.read import Run
from lsgd.run.rows import Row

if TYPE_CHECKING:
    from lsgd.tally import Scores

__all__ = [
    "Diverged",
    "EndsEarly",
    "Preempted",
    "Recipe",
    "Refused",
    "Run",
    "evaluate",
    "load_recipe",
    "read_runs",
    "train",
]


def load_recipe(*words: str) -> Recipe:
    """The checked recipe that these words compose, the same as on a command line; raises Refused.

    >>> recipe = load_recipe("+recipe=bs8k", "workers=128")
    >>> recipe.batch_size, recipe.total_steps, round(recipe.lr(recipe.first_step(5)), 3)
    (4096, 28080, 1.6)
    >>> load_recipe("+recipe=bs8k", "worker=128")
    Traceback (most recent call last):
    lsgd.errors.Refused: there is no key 'worker'; did you mean workers?
    """
    return config.load_recipe(words)


def train(recipe: Recipe, *, on_row: Callable[[Row], object] | None = None) -> float:
    """Train the recipe, or what is left of it in its `run_dir`; return the number of the run.

    `on_row` is called on process 0 with each row of metrics.jsonl, once it is written: its `kind`
    is start, train (every `log_steps` steps), epoch, warning or diverged. What it raises ends the
    run, which goes on from its last checkpoint when the same recipe is trained again.

    Raises Refused before anything is written if the run makes no sense here, Diverged, Preempted,
    and whatever else of EndsEarly ends a run.
    """
    from lsgd.run.metrics import heard_by
    from lsgd.train import train

    with heard_by(on_row):
        return train(recipe)


def evaluate(checkpoint: Path | str, *words: str) -> "dict[str, Scores]":
    """The scores of a checkpoint, or of the newest in a run folder, over each whole evaluation set
    of its recipe, by the set's name.

    Each has `rates` (loss, top1_error in percent, …) and the `counts` that they are made of. The
    words say where and how it is evaluated, such as `data.root=…` or `device=cpu`; with
    `+recipe=NAME` among them the file has plain weights, to be evaluated as that recipe has it.
    Raises Refused.
    """
    from lsgd.evaluate import scores

    return scores(Path(checkpoint), words)


def read_runs(*folders: Path | str) -> list[Run]:
    """The runs in these folders and below them, in order, finished or not; raises Refused.

    A run has its `path`, `recipe`, `state` and `number`, the row of each of its `epochs` by number
    from 1, and all its `rows`. Folders that no run can be read from are left out.

    >>> from lsgd.paths import digits_dir
    >>> read_runs(digits_dir())
    []
    """
    runs, _ = find_runs([Path(folder) for folder in folders])
    return runs
