"""The command line `python -m lsgd.plan memory`: the micro-batches that fit each GPU."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from lsgd.autotune import MAX_MEMORY_SHARE
from lsgd.plan.processes import planned_workers, read_recipe_and_processes, tabulated_workers
from lsgd.profile.memory import StepMemory, count_step
from lsgd.recipe import Recipe
from lsgd.strategy.tasks import hosted_workers
from lsgd.tables import markdown_table

ABOUT = f"""\
Compute the memory of a training step on each GPU, for micro-batches of 1, 2, 4, … workers, in
float32 and bfloat16, and the GPUs that it fits, without a GPU and without training.

  python -m lsgd.plan memory recipe=bs256                     one process hosts all 8 workers
  … --processes 8                                             each of 8 hosts one
  … data.image_size=64 model=resnet101                        what if

The step is lsgd's own, on tensors that have shapes and no numbers. A step fits a GPU if it takes at
most {MAX_MEMORY_SHARE:.0%} of its memory: the rest is for CUDA itself, the loader, fragmentation
and the workspace of kernels.
"""
GPU_MEMORY_GB = (16, 40, 80, 141)
"""GPU memory sizes in GB: those of V100, A100, H100 and H200, among others."""
TYPES = ("float32", "bfloat16")


def plan_memory(argv: Sequence[str]) -> None:
    """Print the GPU memory that a recipe's training step needs, by command-line arguments."""
    remedy = "workers_per_pass=auto finds it on the machine"
    recipe, processes = read_recipe_and_processes("memory", ABOUT, argv, remedy=remedy)
    for section in _sections(recipe, processes):
        print(f"{section}\n", flush=True)


def memory_line(recipe: Recipe, processes: int) -> str:
    """Return a sentence on the GPU memory that a recipe's training step needs."""
    workers = planned_workers(recipe, processes)
    memory = count_step(recipe, [workers], world_size=processes)[workers]
    return (
        f"Memory of each GPU: {_gb(memory.total)} GB for micro-batches of {workers} "
        f"worker{'s' * (workers > 1)} in {recipe.precision}, which {_fits(memory)}; python -m "
        "lsgd.plan memory shows other sizes."
    )


def _sections(recipe: Recipe, processes: int) -> Iterator[str]:
    hosted = len(hosted_workers(recipe, processes, 0))
    yield (
        f"{recipe.summary()}\n{processes} process{'es' * (processes > 1)}, of which the first "
        f"hosts {hosted} of {recipe.workers} workers"
    )
    workers = tabulated_workers(recipe, hosted)
    counted = {
        precision: count_step(replace(recipe, precision=precision), workers, world_size=processes)
        for precision in dict.fromkeys([*TYPES, recipe.precision])
    }
    best = {
        precision: [max_workers_per_micro_batch(memories, size) for size in GPU_MEMORY_GB]
        for precision, memories in counted.items()
    }
    yield "The largest workers_per_pass below that fits:"
    yield markdown_table(
        ["precision", *(f"{size} GB" for size in GPU_MEMORY_GB)],
        [[precision, *(str(each or "none") for each in of)] for precision, of in best.items()],
    )
    yield "Peak memory of a step in GB:"
    rows = [
        [
            precision,
            str(count),
            str(count * recipe.worker_batch),
            *(_gb(size) for size in memory.by_category.values()),
            _gb(memory.total),
            _fits(memory),
        ]
        for precision, memories in counted.items()
        for count, memory in memories.items()
    ]
    parts = ["parameters", "gradients", "buckets", "optimizer", "activations"]
    head = ["precision", "workers per pass", "images", *parts, "all", ""]
    yield markdown_table(head, rows)
    yield (
        "Activations are everything else: images, the tensors saved for the backward pass, and "
        "state that workers carry along. The workspace of running kernels is not counted: a few "
        "percent on a CPU, and cuDNN's workspace on a GPU."
    )


def max_workers_per_micro_batch(memories: dict[int, StepMemory], gigabytes: float) -> int:
    """Return the most workers per micro-batch that fit a GPU of `gigabytes` GB, or 0.

    It is 0 if not even one worker fits.
    """
    fitting = [
        w for w, memory in memories.items() if memory.total <= MAX_MEMORY_SHARE * gigabytes * 1e9
    ]
    return max(fitting, default=0)


def _fits(memory: StepMemory) -> str:
    for size in GPU_MEMORY_GB:
        if memory.total <= MAX_MEMORY_SHARE * size * 1e9:
            return f"fits {size} GB"
    return f"fits no GPU of {GPU_MEMORY_GB[-1]} GB"


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f}"
