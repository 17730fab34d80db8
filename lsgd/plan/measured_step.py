"""The measured step that an estimate starts from, derived from a throughput or a run."""

import re
import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lsgd.errors import UsageError
from lsgd.plan.step import MeasuredStep
from lsgd.recipe import Recipe
from lsgd.recipe.fields import as_override
from lsgd.run.read import NotARunError, Run, read_run

BACKWARD_SHARE = 2 / 3
BACKWARD_SOURCE = "assumed: two of the three products of each layer are the backward pass's"

WITHOUT_WORK = (
    "last_gamma", "gamma", "last_bias", "source", "start", "start_sha256", "start_optimizer",
    "new_head",
)  # fmt: skip
"""The fields of a recipe's `model` that do not change what a step computes, but its values."""


def from_speed(images_per_second: float, recipe: Recipe) -> MeasuredStep:
    """Convert the training throughput of one GPU into the step that an estimate starts from."""
    return _on_one(images_per_second, recipe, 0.0, "--images-per-second")


def from_run(folder: Path, recipe: Recipe) -> MeasuredStep:
    """Read the step that an estimate starts from out of the folder of a run of one process.

    Of a run that was resumed, it is that of its latest start with several rows. Raises UsageError
    if the run is too short, has several processes, trains on images of several sizes, or differs
    from the recipe in the work of a step: the network, its frozen parameters, the noise scale,
    image size, channels, precision, memory format, or compilation.
    """
    try:
        run = _latest_start(read_run(folder))
    except NotARunError as why:
        raise UsageError(f"--run {folder} is not a run folder: {why}; give another") from None
    _check_same_step(run, recipe, f"--run {folder}")
    machine = str(run.start.get("machine", "an unknown number of processes"))
    processes = run.start.get("processes")
    # Older runs have the number of processes only in the text of `machine`.
    is_of_one = processes == 1 if processes else re.match(r"1 process\b", machine)
    if not is_of_one:
        raise UsageError(
            f"--run {folder} was made by {machine.split(',')[0]}, and a plan needs the step time "
            "of one; give a run of a single process, which may be short"
        )
    # The first row includes the first steps, which are slower.
    rows = [row for row in run.of_kind("train") if row.get("images_per_second")][1:]
    if not rows:
        raise UsageError(
            f"--run {folder} has less than two rows of steps in metrics.jsonl; train for longer, "
            "or with log_steps=1"
        )
    speed, data_wait = (
        statistics.median(float(row[key]) for row in rows)
        for key in ("images_per_second", "data_wait")
    )
    source = f"{folder}: median of {len(rows)} rows; {machine}"
    if recipe.workers > 1:
        # The model assumes a constant time per image, which small micro-batches exceed.
        source += (
            f"; in micro-batches of {_pass(run.recipe, machine)} workers, and a GPU that hosts "
            "fewer"
        )
        source += " is slower"
    return _on_one(speed, recipe, data_wait, source)


def _latest_start(run: Run) -> Run:
    """Return a run with the rows of its latest start that has several rows of steps, or of all."""
    starts = [place for place, row in enumerate(run.rows) if row["kind"] == "start"]
    for begin, end in reversed([*zip(starts, [*starts[1:], len(run.rows)], strict=True)]):
        rows = run.rows[begin:end]
        if sum(row["kind"] == "train" for row in rows) > 1:
            return replace(run, rows=rows)
    return run


def _check_same_step(run: Run, recipe: Recipe, name: str) -> None:
    """Raise UsageError if a step of the run is another than one of the recipe."""
    model = recipe.model
    if model.starts_pretrained:  # for which a run saves the file of the weights
        model = model.started_from(None)
    models = [
        (f"model.{key}".removesuffix(".name"), _text(value), _text(getattr(model, key)))
        for key, value in vars(run.recipe.model).items()
        if key not in WITHOUT_WORK
    ]
    for key, theirs, ours in (
        *models,
        ("noise_scale", _text(run.recipe.noise_scale), _text(recipe.noise_scale)),
        ("data.image_size", run.recipe.data.image_size, recipe.data.image_size),
        ("data.channels", run.recipe.data.channels, recipe.data.channels),
        ("precision", run.recipe.precision, recipe.precision),
        ("channels_last", run_layout(run), _text(recipe.channels_last)),
        ("compile", _logged(run, "compile", run.recipe.compile), _text(recipe.compile)),
    ):
        if theirs != ours:
            raise UsageError(
                f"{name} has {key}={theirs} and {recipe.name} has {ours}, so its step time does "
                f"not apply; give a run with {key}={ours}, or plan with {key}={theirs}"
            )
    if run.recipe.training_sizes != (recipe.data.image_size,):
        raise UsageError(
            f"{name} trains on images of {', '.join(map(str, run.recipe.training_sizes))} pixels, "
            f"and a plan needs the step time of those of data.image_size={recipe.data.image_size}; "
            "give a run with image_sizes.points=[], which may be short"
        )


def _text(value: Any) -> str:
    """Format the value of a field as an override does, but options in alphabetical order."""
    if not isinstance(value, Mapping):
        return as_override(value)
    return "{" + ",".join(f"{key}:{as_override(value[key])}" for key in sorted(value)) + "}"


def run_layout(run: Run) -> str:
    """Return a run's channels_last, from its recipe or, if that has auto, from its log."""
    return _logged(run, "channels_last", run.recipe.channels_last)


def _logged(run: Run, name: str, value: bool | str) -> str:
    """Return the value of a field that a run has logged for auto, or else that of its recipe."""
    found = re.search(rf"\b{name}=(true|false)", str(run.start.get("machine")))
    return found[1] if found else _text(value)


def _pass(recipe: Recipe, machine: str) -> int:
    """Return the number of workers in one micro-batch of a run, from its log or recipe."""
    found = re.search(r"workers_per_pass=(\d+)", machine)
    wanted = int(found[1]) if found else recipe.micro_batch_workers
    return min(wanted, recipe.workers)


def _on_one(speed: float, recipe: Recipe, data_wait: float, source: str) -> MeasuredStep:
    return MeasuredStep(
        recipe.worker_batch / speed,
        images=recipe.worker_batch,
        gpus=1,
        backward_share=BACKWARD_SHARE * (1 - data_wait),
        data_wait=data_wait,
        source=f"worked out from {speed:,.1f} images/s ({source})",
        backward_source=BACKWARD_SOURCE,
    )
