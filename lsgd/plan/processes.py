"""The command-line arguments and micro-batch sizes of plans of one training step."""

from collections.abc import Sequence
from dataclasses import replace

from lsgd.errors import UsageError
from lsgd.job.command import integer_from
from lsgd.recipe import ImageSizes, Recipe
from lsgd.recipe.checks import check_constant_batch, check_supported, check_world_size
from lsgd.recipe.fields import AUTO
from lsgd.recipe_parser import RecipeParser
from lsgd.strategy.tasks import hosted_workers

MOST = 32
"""The most workers in a planned micro-batch, unless the recipe has another number."""


def read_recipe_and_processes(
    name: str, about: str, argv: Sequence[str], *, remedy: str
) -> tuple[Recipe, int]:
    """Parse the recipe and --processes from the command line of a planning subcommand.

    Where the size of training images changes, it is the largest one. Raises UsageError, with this
    remedy, for an unsupported recipe, and for too many processes.
    """
    program = f"lsgd.plan {name}"
    line = RecipeParser(program=program, about=about)
    line.usage = f"python -m {program} recipe=NAME [key=value ...] [--processes N]"
    line.add_argument(
        "--processes",
        type=integer_from(1),
        default=1,
        metavar="N",
        help="the number of processes, with a GPU each (1)",
    )
    recipe, options = line.parse(argv)
    check_supported(recipe, program, remedy, workloads=("images",), strategies=("allreduce",))
    check_constant_batch(recipe, program)
    check_world_size(recipe, options.processes)
    check_plannable(recipe)
    if recipe.image_sizes.points:  # the largest images take the most memory and time
        data = replace(recipe.data, image_size=max(recipe.training_sizes))
        recipe = replace(recipe, data=data, image_sizes=ImageSizes())
    return recipe, options.processes


def check_plannable(recipe: Recipe) -> None:
    """Raise UsageError if a recipe is a dry run, or has a library network that training refuses.

    A dry run has few steps and needs no plan.
    """
    if recipe.rehearse:
        raise UsageError("dry_run=true is a run of a few steps; leave it out to plan the real run")
    if recipe.model.is_from_library:
        # A slow import, as in lsgd.models.
        from lsgd.models.library_networks import check_library_network

        check_library_network(recipe)


def planned_workers(recipe: Recipe, processes: int) -> int:
    """Return the number of workers in a micro-batch of process 0; 1 for workers_per_pass=auto."""
    if recipe.workers_per_pass == AUTO:
        return 1
    return min(recipe.micro_batch_workers, len(hosted_workers(recipe, processes, 0)))


def tabulated_workers(recipe: Recipe, hosted: int) -> list[int]:
    """Return the numbers of workers per micro-batch for the rows of a plan's table.

    They are the powers of two up to MOST and up to `hosted`, the workers of the process, and the
    recipe's own number.
    """
    counted = {1 << power for power in range(min(MOST, hosted).bit_length())}
    if recipe.workers_per_pass != AUTO:
        counted.add(min(recipe.micro_batch_workers, hosted))
    return sorted(counted)
