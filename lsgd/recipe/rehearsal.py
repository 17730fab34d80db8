"""A rehearsal: the same run in miniature, which shows that all is right before the real one."""

from dataclasses import replace

from lsgd.recipe import THINGS, Data, Evaluation, Goal, Model, Recipe

N = 2
"""The examples of a worker."""
SIZE, VALIDATED = 32, 64
"""The side of an image, in pixels, and the examples of an evaluation set."""
WORDS, WIDTH = 100, 8
"""The words of a text, and the units of a layer of its network."""


def rehearsal(recipe: Recipe) -> Recipe:
    """The same run in miniature: its k, steps and lr function, on 2 small examples per worker.

    The reference batch shrinks with n, so that the lr at every step of the run is unchanged; the
    strategy stays.
    """
    data = _data(recipe)
    model, network = _model(recipe)
    # Multiplied before it is divided: a batch equal to the reference stays equal, to the last bit.
    reference_batch = recipe.schedule.reference_batch * N / recipe.worker_batch
    images = data.workload == "images"
    made_up = (
        f"images of {data.image_size} x {data.image_size}" if images else THINGS[data.workload]
    )
    return replace(
        recipe,
        worker_batch=N,
        data=data,
        model=model,
        schedule=replace(recipe.schedule, reference_batch=reference_batch),
        inputs=replace(recipe.inputs, loader="synthetic"),
        evaluation=Evaluation(),
        metric=Goal(),
        log_steps=1,
        target=None,
        replaced=[
            "rehearsal: this run shows that the machine, launch, communication, "
            + "BN groups, " * images
            + "checkpoint and lr are right, and says nothing about accuracy",
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


def _data(recipe: Recipe) -> Data:
    """Made-up examples, so many that the run has as many steps."""
    data, batch_size = recipe.data, recipe.batch_size // recipe.worker_batch * N
    examples = recipe.steps_per_epoch * batch_size
    if data.workload == "language":
        # Of each stream the windows, and the token behind the last one.
        tokens = examples * data.window + batch_size
        small = replace(data, train_examples=tokens, val_examples=VALIDATED * data.window)
        return replace(small, test_examples=0, classes=WORDS, eval_streams=N)
    small = replace(data, train_examples=examples, val_examples=VALIDATED)
    if data.workload in ("tagging", "trees"):
        return replace(small, test_examples=0, words=WORDS)
    side = data.image_size if recipe.model.of_library else SIZE
    return replace(small, image_size=side, augmentation="none")


def _model(recipe: Recipe) -> tuple[Model, str]:
    """A small network, and what becomes of the recipe's; one that was asked of a library stays."""
    if recipe.model.of_library:
        return recipe.model, "stays"
    if recipe.data.workload == "images":
        return replace(recipe.model, name="small_resnet"), "-> small_resnet"
    small = replace(recipe.model, embedding=WIDTH, width=WIDTH)
    return small, f"-> the same of {WIDTH} units"
