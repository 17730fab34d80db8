"""The dry run: a miniature of a recipe that tests machine, launch and checkpoints."""

from dataclasses import replace

from lsgd.recipe import UNITS, Data, EarlyStopping, Evaluation, Model, Recipe

N = 2
"""The number of examples of a worker in a step."""
SIZE, VALIDATED = 32, 64
"""The side of an image, in pixels, and the number of examples of an evaluation set."""
VOCABULARY_SIZE, WIDTH = 100, 8
"""The vocabulary size of a text, and the units of a layer of its network."""


def make_dry_run(recipe: Recipe) -> Recipe:
    """Return the dry run of a recipe: a miniature with the same workers, steps and lr.

    Each worker has 2 small examples per step. The reference batch shrinks with n, so that the lr at
    every step of the run is unchanged. The strategy is kept.
    """
    if recipe.data.is_own_workload:
        return _of_own_workload(recipe)
    data = _data(recipe)
    model, network = _model(recipe)
    # Multiplied before it is divided: a batch equal to the reference stays equal, to the last bit.
    reference_batch = recipe.schedule.reference_batch * N / recipe.worker_batch
    images = data.workload == "images"
    made_up = (
        f"images of {data.image_size} x {data.image_size}"
        if images
        else UNITS[data.workload].dataset
    )
    return replace(
        recipe,
        worker_batch=N,
        data=data,
        model=model,
        schedule=replace(recipe.schedule, reference_batch=reference_batch),
        inputs=replace(recipe.inputs, loader="synthetic", options={}, source=""),
        evaluation=Evaluation(),
        metric=replace(recipe.metric, epochs_to={}, steps_to={}, stop=False),
        stop=EarlyStopping(),
        log_steps=1,
        target=None,
        replaced=[
            "dry run: this run shows that the machine, launch, communication, "
            + "BN groups, " * images
            + "checkpoint and lr are right, and does not measure accuracy",
            f"  worker_batch {recipe.worker_batch} -> {N}; schedule.reference_batch "
            f"{recipe.schedule.reference_batch:g} -> {reference_batch:g}, which leaves the lr of "
            "each step as it is",
            f"  model {recipe.model.name} {network}",
            f"  data {recipe.data.name} -> synthetic {made_up}, "
            f"{data.train_examples} to train and {data.val_examples} to validate"
            + f"; augmentation {recipe.data.augmentation} -> none"
            * images,
            f"  {recipe.total_steps} steps -> the first two, mid-warmup, warmup's end, both sides "
            "of the first drop" + " and of each growth" * bool(recipe.batch_growth.milestones),
        ],
    )


def _of_own_workload(recipe: Recipe) -> Recipe:
    """Return the dry run of a workload of the user's own, whose data and network cannot shrink."""
    return replace(
        recipe,
        evaluation=Evaluation(),
        metric=replace(recipe.metric, epochs_to={}, steps_to={}, stop=False),
        stop=EarlyStopping(),
        log_steps=1,
        replaced=[
            "dry run: this run shows that the machine, launch, communication, checkpoint and lr "
            "are right, and does not measure accuracy",
            f"  data, network and worker_batch stay those of {recipe.data.workload}",
            f"  {recipe.total_steps} steps -> the first two, mid-warmup, warmup's end, both sides "
            "of the first drop",
        ],
    )


def _data(recipe: Recipe) -> Data:
    """Return a small synthetic dataset that gives a dry run as many steps as the recipe has."""
    data, batch_size = recipe.data, recipe.batch_size // recipe.worker_batch * N
    examples = recipe.steps_per_epoch * batch_size
    if data.workload == "language":
        # Each stream needs its windows and the token after the last one.
        tokens = examples * data.window + batch_size
        small = replace(data, train_examples=tokens, val_examples=VALIDATED * data.window)
        return replace(small, test_examples=0, classes=VOCABULARY_SIZE, eval_streams=N)
    small = replace(data, train_examples=examples, val_examples=VALIDATED)
    if data.workload in ("tagging", "trees"):
        return replace(small, test_examples=0, words=VOCABULARY_SIZE)
    side = data.image_size if recipe.model.is_from_library else SIZE
    return replace(
        small, image_size=side, augmentation="none", augmentation_options={}, augmentation_source=""
    )


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
