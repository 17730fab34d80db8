"""The dry run: a miniature of a recipe that tests machine, launch and checkpoints."""

import math
from collections.abc import Sequence
from dataclasses import replace

from lsgd.recipe import Data, Evaluation, ImageSizes, Model, Recipe
from lsgd.recipe.fields import all_fields, default, relevances
from lsgd.recipe.settings import EarlyStopping
from lsgd.recipe.wording import UNITS

N = 2
"""The number of examples of a worker in a step."""
SIZE, VALIDATED = 32, 64
"""The side of an image, in pixels, and the number of examples of an evaluation set."""
VOCABULARY_SIZE, WIDTH = 100, 8
"""The vocabulary size of a text, and the units of a layer of its network."""


def make_dry_run(recipe: Recipe) -> Recipe:
    """Return the dry run of a recipe: a miniature with the same workers, steps and lr.

    Data and network of a workload of the user's own cannot shrink, and stay. The strategy is kept.
    """
    stays = f"data, network and worker_batch stay those of {recipe.data.workload}"
    small, changes = (recipe, [stays]) if recipe.data.is_own_workload else _shrink(recipe)
    if len(recipe.evaluation.sets) > 1:
        changes.append(f"evaluation.sets {','.join(recipe.evaluation.sets)} -> val")
    steps = (
        f"{recipe.total_steps} steps -> the first two, mid-warmup, warmup's end, both sides of the "
        "first drop"
        + " and of each growth" * bool(recipe.batch_growth.milestones)
        + " and of each phase" * bool(recipe.batch_schedule)
        + " and of each point of the lr" * bool(recipe.schedule.points)
    )
    return replace(
        small,
        evaluation=Evaluation(),
        metric=replace(recipe.metric, epochs_to={}, steps_to={}, stop=False),
        stop=EarlyStopping(),
        log_steps=1,
        target=None,
        replaced=[
            "dry run: this run shows that the machine, launch, communication, "
            + "BN groups, " * (recipe.data.workload == "images")
            + "checkpoint and lr are right, and does not measure accuracy",
            *(f"  {change}" for change in [*changes, steps]),
        ],
    )


def _shrink(recipe: Recipe) -> tuple[Recipe, list[str]]:
    """Return a recipe with 2 small examples per worker and step, and a note of each change.

    The reference batch shrinks with n, so that the lr at every step of the run is unchanged.
    """
    # Where the minibatch changes, the numbers of images of a worker keep their ratios.
    sizes = [stage.worker_batch for stage in recipe.stages]
    divisor = math.gcd(*sizes)
    n = [max(1, N * divisor // min(sizes)) * size // divisor for size in sizes]
    data = replace(_data(recipe, n), stage=None)
    model, network = _model(recipe)
    # Multiplied before it is divided: a batch equal to the reference stays equal, to the last bit.
    reference_batch = recipe.schedule.reference_batch * n[0] / recipe.worker_batch
    images = data.workload == "images"
    made_up = (
        f"images of {data.image_size} x {data.image_size}"
        if images
        else UNITS[data.workload].dataset
    )
    small = replace(
        recipe,
        worker_batch=n[0],
        batch_schedule=[
            [*row[:2], m] for row, m in zip(recipe.batch_schedule, n[1:], strict=False)
        ],
        data=data,
        model=model,
        image_sizes=_image_sizes(recipe, data.image_size),
        schedule=replace(recipe.schedule, reference_batch=reference_batch),
        inputs=replace(recipe.inputs, loader="synthetic", options={}, source=""),
    )
    return small, [
        f"worker_batch {recipe.worker_batch} -> {n[0]}; schedule.reference_batch "
        f"{recipe.schedule.reference_batch:g} -> {reference_batch:g}, which leaves the lr of each "
        "step as it is",
        f"model {recipe.model.name} {network}",
        f"data {recipe.data.name} -> synthetic {made_up}, {data.train_examples} to train and "
        f"{data.val_examples} to validate"
        + f"; augmentation {recipe.data.augmentation} -> none"
        * images,
    ]


def _data(recipe: Recipe, n: Sequence[int]) -> Data:
    """Return a small synthetic dataset that gives a dry run as many steps as the recipe has.

    `n` has the images of a worker in each stage.
    """
    data, batch_size = recipe.data, recipe.batch_size // recipe.worker_batch * n[0]
    examples = recipe.steps_per_epoch * batch_size
    if recipe.batch_schedule:
        examples = _examples_of_phases(recipe, n)
    if data.workload == "language":
        # Each stream needs its windows and the token after the last one.
        tokens = examples * data.window + batch_size
        small = replace(data, train_examples=tokens, val_examples=VALIDATED * data.window)
        return replace(small, test_examples=0, classes=VOCABULARY_SIZE, eval_streams=N)
    small = replace(data, train_examples=examples, val_examples=VALIDATED)
    if data.workload in ("tagging", "trees"):
        return replace(small, test_examples=0, words=VOCABULARY_SIZE)
    side = data.image_size if recipe.model.is_from_library else SIZE
    settings = {
        key: default(entry)
        for key, entry in all_fields(Data)
        if any(rule.key == "data.augmentation" for rule in relevances(entry))
    }
    whole = replace(small, augmentation_options={}, augmentation_source="", **settings)
    return replace(whole, image_size=side, augmentation="none")


def _examples_of_phases(recipe: Recipe, n: Sequence[int]) -> int:
    """Return the number of images that gives each phase of a dry run its number of steps."""
    examples, rest = divmod(recipe.train_examples * n[0], recipe.worker_batch)
    if not recipe.keeps_tail:
        return examples
    examples += rest > 0
    batches = [(stage.workers * m, m) for stage, m in zip(recipe.stages, n, strict=True)]
    steps = [-(-examples // size) for size, _ in batches]
    for more in range(examples, examples + min(size for size, _ in batches)):
        is_same = [-(-more // size) for size, _ in batches] == steps
        # No worker of a last step may have a single image.
        if is_same and all(more % size % m != 1 for size, m in batches):
            return more
    return examples


def _image_sizes(recipe: Recipe, side: int) -> ImageSizes:
    """Return the sizes of a dry run's training images, in proportion to its evaluated ones."""
    sizes = recipe.image_sizes
    if side == recipe.data.image_size:
        return sizes
    least, ratio = SIZE // 4, side / recipe.data.image_size
    points = [[epoch, float(max(least, round(size * ratio)))] for epoch, size in sizes.points]
    return replace(sizes, points=points, multiple=1)


def _model(recipe: Recipe) -> tuple[Model, str]:
    """Return a dry run's small network, or the given one of a library, and a note of the change."""
    if recipe.model.is_from_library:
        return recipe.model, "stays"
    if recipe.data.workload == "images":
        small = replace(
            recipe.model,
            name="small_resnet",
            start=None,
            start_sha256="",
            start_optimizer=False,
            new_head=False,
            frozen=[],
        )
        left_out = " without the weights of model.start" * bool(recipe.model.start_sha256)
        left_out += " without model.frozen" * bool(recipe.model.frozen)
        return small, f"-> small_resnet{left_out}"
    small = replace(recipe.model, embedding=WIDTH, width=WIDTH)
    return small, f"-> the same of {WIDTH} units"
