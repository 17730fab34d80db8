"""A rehearsal: the same run in miniature, which shows that all is right before the real one."""

from dataclasses import replace

from lsgd.recipe import Recipe
from lsgd.recipe.checks import check_known


def rehearsal(recipe: Recipe) -> Recipe:
    """The same run in miniature: its k, steps and lr function, on 2 small images per worker.

    The reference batch shrinks with n, so that the lr at every step of the run is unchanged; the
    strategy stays. Raises Refused for any workload but images.
    """
    remedy = "leave it out and train a recipe of few steps of that workload"
    check_known(recipe, "rehearse=true", remedy, workloads=("images",))
    n, size = 2, 32
    data = replace(
        recipe.data,
        train_examples=recipe.steps_per_epoch * recipe.update_workers * n,
        val_examples=64,
        image_size=size,
        augmentation="none",
    )
    # Multiplied before it is divided: a batch equal to the reference stays equal, to the last bit.
    reference_batch = recipe.schedule.reference_batch * n / recipe.worker_batch
    return replace(
        recipe,
        worker_batch=n,
        data=data,
        tail="drop",
        model=replace(recipe.model, name="small_resnet"),
        schedule=replace(recipe.schedule, reference_batch=reference_batch),
        inputs=replace(recipe.inputs, loader="synthetic"),
        log_steps=1,
        target=None,
        replaced=[
            "rehearsal: this run shows that the machine, launch, communication, BN groups, "
            "checkpoint and lr are right, and says nothing about accuracy",
            f"  worker_batch {recipe.worker_batch} -> {n}; schedule.reference_batch "
            f"{recipe.schedule.reference_batch:g} -> {reference_batch:g}, which leaves the lr of "
            "each step as it is",
            f"  model {recipe.model.name} -> small_resnet",
            f"  data {recipe.data.name} -> synthetic images of {size} x {size}, "
            f"{data.train_examples} to train and {data.val_examples} to validate; augmentation "
            f"{recipe.data.augmentation} -> none, tail {recipe.tail} -> drop",
            f"  {recipe.total_steps} steps -> the first two, mid-warmup, warmup's end, both sides "
            "of the first drop",
        ],
    )
