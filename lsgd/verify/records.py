"""Checks of a run folder's files that need no training step: recipe, rows and checkpoints."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from lsgd.compare import is_not_compared
from lsgd.errors import UsageError
from lsgd.inputs import IN_MEMORY_DATASETS
from lsgd.recipe import Recipe
from lsgd.recipe.continuation import past_difference
from lsgd.recipe.fields import AUTO, is_set_name
from lsgd.rules.metric import METRICS, TOP1
from lsgd.run import checkpoint, provenance
from lsgd.run.checkpoint import Checkpoint
from lsgd.run.folder import shorter_recipe
from lsgd.run.metrics import to_writable
from lsgd.run.read import Run, steps_until_divergence
from lsgd.run.rows import MEASURED, Row
from lsgd.untrusted_files import read_bounded
from lsgd.verify.evidence import MOST_SHOWN, Evidence

PLACE_KEYS = ("kind", "step", "epoch", "lr")
"""The keys of rows whose values are functions of the recipe and the step."""
SET_ENDINGS = tuple(f"_{name}" for name in ("loss", *METRICS))
"""The endings of the keys of rows that have the metrics of an evaluation set."""


def check_fingerprint(run: Run, evidence: Evidence) -> None:
    """Compare the fingerprint written in a run's config.yaml with that of the recipe in it."""
    text = read_bounded(run.path / "config.yaml", follow=False).decode(errors="replace")
    written = re.search(r"^# fingerprint: (\w+)$", text, re.MULTILINE)
    if written is None:
        evidence.note("config.yaml names no fingerprint")
    else:
        evidence.equal("fingerprint", "config.yaml", written[1], run.recipe.fingerprint)


def check_versions(run: Run, here: Mapping[str, str], evidence: Evidence) -> None:
    """Note in which versions and on which device the run was made, where it was not those `here`.

    Other versions may round differently, or have a bug less.
    """
    for key, version in here.items():
        others = {str(start[key]) for start in run.starts if start.get(key)} - {version}
        if others:
            evidence.note(f"{key}: {', '.join(sorted(others))} in the run, {version} here")


def check_metric(run: Run, name: str, evidence: Evidence) -> None:
    """Compare the metric by which a run's starts say that it is judged with its workload's."""
    for row in run.of_kind("start"):
        where = f"start row of step {row['step']}"
        evidence.equal("final metric", where, row.get("metric", TOP1.name), name)


def is_of_this_commit(run: Run) -> bool:
    """Return whether each start of a run was by the commit of lsgd that runs here."""
    here = provenance.commit()
    return here is not None and {row.get("commit") for row in run.of_kind("start")} == {here}


def loader_of(run: Run) -> str:
    """Return the loader with which a run read image files, dali or torchvision; auto if unknown."""
    recipe = run.recipe
    if recipe.data.workload != "images" or recipe.data.name in IN_MEMORY_DATASETS:
        return AUTO
    known = {name.split()[0].lower() for name in _loaders(run)} & {"dali", "torchvision"}
    return known.pop() if len(known) == 1 else AUTO


def settings_of_dali(run: Run, loader: str) -> dict[str, Any]:
    """Return the settings of the loader of a run that decide the pixels, if it is DALI.

    It decodes on the CPU if the run did, which depends on the run's device too.
    """
    if loader != "dali":
        return {}
    settings, decoders = run.recipe.inputs, {_decoder(name) for name in _loaders(run)}
    return {
        "dtype": settings.dtype,
        "decode_on": "cpu" if decoders == {("DALI", "CPU")} else AUTO,
        "hardware_share": settings.hardware_share,
    }


def check_loader(run: Run, here: str, evidence: Evidence) -> None:
    """Note that a run read its examples by another loader or decoder than the one `here`.

    Two of them round pixels differently where they decode or resize an image.
    """
    others = {name for name in _loaders(run) if _decoder(name) != _decoder(here)}
    if others:
        evidence.note(
            f"inputs: {', '.join(sorted(others))} in the run, {here} here, which rounds pixels "
            "differently"
        )


def _loaders(run: Run) -> set[str]:
    """Return the names of the loaders of a run's starts, such as DALI 2.4.0 on the CPU."""
    names = (start.get("inputs") for start in run.starts)
    return {name for name in names if isinstance(name, str) and name.strip()}


def _decoder(name: str) -> tuple[str, str]:
    """Return the loader of this name and, of DALI, the device that decodes.

    >>> _decoder("DALI 2.4.0 on the GPU, 65% in hardware, 16 threads")
    ('DALI', 'GPU, 65% in hardware')
    >>> _decoder("torchvision in 2 processes")
    ('torchvision', '')
    """
    loader, device = name.split()[0], name.partition(" on the ")[2]
    return loader, re.sub(r", \d+ threads$", "", device) if loader == "DALI" else ""


def check_rows(recipe: Recipe, rows: list[Row], evidence: Evidence) -> bool:
    """Compare the place, the epoch and the lr of each row of measurements with the recipe's.

    Both are functions of the recipe and the step alone, so every row of the run is checked. Returns
    whether the rows are in the order of the run's steps.
    """
    before = (0, 0)
    for row in rows:
        step, kind = row["step"], row["kind"]
        if kind not in MEASURED:
            continue
        where = f"{kind} row of step {step}"
        place = (step, MEASURED.index(kind))
        if not before < place or not 0 < step <= recipe.total_steps:
            evidence.differ(f"{where}: it is not in the order of the run's steps")
            return False
        before = place
        if kind == "epoch":
            evidence.equal("epoch", where, row["epoch"], recipe.locate_step(step - 1)[0] + 1)
            evidence.equal("step", where, step, recipe.first_step(row["epoch"]))
        else:
            evidence.exact("epoch", where, row.get("epoch"), recipe.epoch(step))
        if kind != "evaluation":
            evidence.exact("lr", where, row.get("lr"), recipe.lr(step - 1))
    if not recipe.rehearse:  # it makes few of its steps
        _check_gaps(recipe, rows, evidence)
    return True


def check_divergence(run: Run, saved_steps: Collection[int], evidence: Evidence) -> int | None:
    """Return the step by which a run states that it diverged, if it is one of the run's last steps.

    No checkpoint of it or of a later step exists, as a state that is not finite is not saved.
    """
    if run.diverged is None:
        return None
    step, newest = steps_until_divergence(run.diverged), max(saved_steps, default=0)
    if step is None:
        evidence.note("the message of the divergence names no step, so that it is not executed")
    elif not newest < step <= run.recipe.total_steps:
        evidence.differ(
            f"the last row: the run says that it diverged by step {step}, which must be after its "
            f"last checkpoint, of step {newest}, and at most {run.recipe.total_steps}"
        )
    else:
        return step
    return None


def sets_in_rows(run: Run) -> list[str]:
    """Return the names of the evaluation sets of which a run's rows have metrics, in their order.

    Since rows may be edited, a name may be that of no set.
    """
    rows = (row for row in run.rows if row["kind"] in ("epoch", "evaluation"))
    names = (key.partition("_")[0] for row in rows for key in row if key.endswith(SET_ENDINGS))
    return [name for name in dict.fromkeys(names) if is_set_name(name)]


def check_keys(
    run: Run,
    executed: Sequence[Row],
    sets: Collection[str],
    evidence: Evidence,
    digested: Collection[str] = (),
) -> None:
    """Find the values in the rows of a run that the recipe does not compute, once for each key.

    `executed` are the rows of steps that were executed again, with metrics of these `sets`. Others
    may be the run's only if config.yaml has them, or they are `digested`: a checkpoint has digests
    of their images.
    """
    known_sets = {*run.recipe.evaluation.sets, *digested} - {*sets}
    computed: dict[str, set[str]] = {}
    for row in executed:
        computed.setdefault(row["kind"], set()).update(row)
    # A restored model is evaluated without the epoch before it, and some epochs end without an
    # evaluation.
    splits = {
        (kind, key.partition("_")[0])
        for kind, keys in computed.items()
        for key in keys
        if key.endswith(SET_ENDINGS)
    }
    seen: set[tuple[str, str]] = set()
    for row in run.rows:
        kind = row["kind"]
        known = {*computed.get(kind, ()), *PLACE_KEYS}
        for key in sorted(row.keys() - known):
            if kind not in MEASURED or is_not_compared(key) or (kind, key) in seen:
                continue
            seen.add((kind, key))
            where, split = f"{kind} row of step {row['step']}", key.partition("_")[0]
            if kind != "train" and split in known_sets:
                evidence.note(
                    f"metrics of {split} are not compared, as it is not evaluated here; write "
                    f"'evaluation.sets=[{','.join([*sets, split])}]', with a data.root that has it"
                )
            elif kind != "train" and key.endswith(SET_ENDINGS) and split not in ("train", *sets):
                evidence.differ(f"{where}: {key} is not computed by the recipe")
            elif kind in computed and (split not in ("train", *sets) or (kind, split) in splits):
                evidence.other_key(where, key)


def _check_gaps(recipe: Recipe, rows: list[Row], evidence: Evidence) -> None:
    """Find epoch and train rows that are missing among the others, as if they were deleted.

    From each start on, train rows are at the multiples of log_steps, which another start may
    change. A crash may lose the last ones before a start, but none that others follow.
    """
    epochs = [row["epoch"] for row in rows if row["kind"] == "epoch"]
    for epoch in _missing(range(1, max(epochs, default=0)), epochs):
        evidence.differ(f"epoch row of epoch {epoch}: it is missing, and later ones are not")
    starts = [i for i, row in enumerate(rows) if row["kind"] == "start"]
    for start, end in pairwise([*starts, len(rows)]):
        steps = [row["step"] for row in rows[start:end] if row["kind"] == "train"]
        if len(steps) < 2:
            continue
        every = min(later - step for step, later in pairwise(steps))
        last = steps[-1]
        if end == len(rows) and recipe.epochs in epochs:
            last = recipe.total_steps
        first = rows[start]["step"] // every * every + every
        for step in _missing(range(first, last + 1, every), steps):
            evidence.differ(f"train row of step {step}: it is missing, and others are not")


def _missing(expected: range, there: list[int]) -> Iterator[int]:
    """Yield the first numbers that are not there; a stranger's recipe may have a billion steps."""
    known = {*there}
    return islice((number for number in expected if number not in known), MOST_SHOWN)


def check_checkpoint(
    path: Path, saved: Checkpoint, run: Run, order_hash: Callable[[int], str], evidence: Evidence
) -> bool:
    """Compare a checkpoint's own statements with its name, the recipe and the rows of the run.

    `order_hash` computes the hash of the order of examples in an epoch. Returns whether the
    checkpoint is one of the run at this step, so that it can be restored.
    """
    recipe, where, before = run.recipe, path.name, evidence.differing_values
    earlier = shorter_recipe(saved, recipe)
    if earlier and not past_difference(recipe, earlier, saved.step):
        evidence.note(f"{where} was saved while the run had epochs={earlier.epochs}")
    else:
        evidence.equal("fingerprint", where, saved.fingerprint, recipe.fingerprint)
    if (step := checkpoint.step_in_name(path)) is not None:
        evidence.equal("step", where, saved.step, step)
    if not 0 < saved.step <= recipe.total_steps:
        evidence.differ(f"{where}: step {saved.step} is not one of the run")
        return False
    epoch, _ = recipe.locate_step(saved.step)
    evidence.equal("epoch", where, saved.epoch, epoch)
    evidence.exact("lr", where, saved.lr, recipe.lr(saved.step - 1))
    evidence.equal("order of examples", where, saved.order, order_hash(epoch))
    belongs = evidence.differing_values == before
    # Preempted in an evaluation, the run saved before the last of these epochs had its metrics.
    finished = list(range(1, epoch + 1))
    at_end = saved.step == recipe.first_step(epoch)
    if not all(type(number) is int for number in saved.rates):
        evidence.differ(f"{where}: its metrics are not by the numbers of epochs")
        return False
    if sorted(saved.rates) not in ([finished, finished[:-1]] if at_end else [finished]):
        evidence.differ(f"{where}: it has the metrics of epochs {sorted(saved.rates)[:9]}")
    for number_of, metrics in saved.rates.items():
        _check_metrics(where, f"epoch {number_of}", metrics, run.epochs.get(number_of), evidence)
    evaluations = {row["step"]: row for row in run.of_kind("evaluation")}
    for step, metrics in saved.evaluations.items():
        _check_metrics(where, f"step {step}", metrics, evaluations.get(step), evidence)
    return belongs


def _check_metrics(
    where: str, place: str, metrics: Any, row: Row | None, evidence: Evidence
) -> None:
    """Compare the metrics of an evaluation in a checkpoint with their row, to the bit."""
    if row is None or not isinstance(metrics, dict):
        evidence.differ(f"{where}: its metrics of {place} have no row in metrics.jsonl")
        return
    for key, value in metrics.items():
        found = f"{where} and the row of {place}, {key}"
        evidence.equal("metric", found, row.get(key), to_writable(value))
    for key in row.keys() - metrics.keys() - set(PLACE_KEYS):
        if not is_not_compared(key):
            evidence.other_key(f"row of {place}, by checkpoints", key)


def require_supported(recipe: Recipe) -> None:
    """Raise UsageError for a run that executing its steps again cannot verify."""
    if recipe.rehearse:
        raise UsageError(
            "the run is a dry run, whose numbers mean nothing; give the folder of a run"
        )
    if not recipe.strategy.is_synchronous:
        raise UsageError(
            f"lsgd.verify supports only strategy.name=allreduce or sync, and the run has "
            f"strategy.name={recipe.strategy.name}; train its recipe again, or replay its "
            "recorded order, and compare the two with lsgd.compare"
        )
