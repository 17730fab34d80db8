"""The command line `python -m lsgd.plan bound`: a lower bound on the time of a step on a GPU."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from lsgd.job.gpus import GPUS, GpuDataSheet
from lsgd.plan.hardware import Constant
from lsgd.plan.processes import read_recipe_and_processes, tabulated_workers
from lsgd.profile.traffic import (
    OperatorCall,
    count_bare_traffic,
    count_traffic,
    traffic_by_operator,
)
from lsgd.recipe import Recipe
from lsgd.strategy.tasks import hosted_workers
from lsgd.tables import markdown_table

ABOUT = """\
Compute a lower bound of the time of a training step on GPUs that are not available here, and its
cause: memory, arithmetic, or the launches of the host. It counts the bytes and the floating-point
operations of every operator of lsgd's own step, on tensors that have shapes and no numbers.

  python -m lsgd.plan bound recipe=bs256                      one process hosts all 8 workers
  … --processes 8                                             each of 8 hosts one

An operator takes at least its bytes over the memory bandwidth, and at least its operations over the
peak arithmetic. A step takes at least the sum over its operators, and at least the host's time to
launch them. Neighbours that a compiler can fuse are fused. No real kernels reach this bound.
"""
LAUNCH = Constant(5, "µs", "assumed: the host time of eager torch for an operator")
PUBLISHED = Constant(
    7100, "images/s", "H100, computed from MLPerf Training v4.0: 35 epochs in 13.163 min on 8 GPUs"
)
"""The published throughput of ResNet-50 at 224 pixels, in 16 bits."""


@dataclass(frozen=True)
class StepTimeBound:
    """A lower bound on the seconds of a training step on a GPU, split by bottleneck."""

    memory: float
    arithmetic: float
    launches: float
    """The seconds in which the host launches all operators."""

    @property
    def seconds(self) -> float:
        """The least seconds of the training step: the larger of device and launch time."""
        return max(self.memory + self.arithmetic, self.launches)

    @property
    def bottleneck(self) -> str:
        """The name of what bounds the training step most: launches, memory or arithmetic."""
        if self.launches > self.memory + self.arithmetic:
            return "launches"
        return "memory" if self.memory >= self.arithmetic else "arithmetic"


def step_time_bound(calls: Sequence[OperatorCall], gpu: GpuDataSheet) -> StepTimeBound:
    """Return the lower bound on the time of a training step's operator calls on a GPU."""
    memory = arithmetic = 0.0
    for call in calls:
        peak = (gpu.lower if call.is_bfloat16 else gpu.float32) * 1e12
        moving, computing = call.bytes_moved / (gpu.bandwidth * 1e12), call.flops / peak
        if moving >= computing:
            memory += moving
        else:
            arithmetic += computing
    return StepTimeBound(memory, arithmetic, len(calls) * LAUNCH.value * 1e-6)


def plan_bound(argv: Sequence[str]) -> None:
    """Print how fast each GPU type can train a recipe at most, by command-line arguments."""
    remedy = "a short run of it with profile=true shows where its time goes"
    recipe, processes = read_recipe_and_processes("bound", ABOUT, argv, remedy=remedy)
    for section in _sections(recipe, processes):
        print(f"{section}\n", flush=True)


def _sections(recipe: Recipe, processes: int) -> Iterator[str]:
    hosted = len(hosted_workers(recipe, processes, 0))
    yield f"{recipe.summary()}\n{processes} process{'es' * (processes > 1)}"
    counted = tabulated_workers(recipe, hosted)
    rows: list[list[str]] = []
    compared = []
    for precision in ("float32", "bfloat16"):
        typed = replace(recipe, precision=precision)
        for workers in counted:
            step = count_traffic(typed, workers, world_size=processes)
            rows.append(_row(precision, workers, "eager", step.eager, step.examples))
            rows.append(_row(precision, workers, "fused", step.fused, step.examples))
            if workers in (counted[0], counted[-1]):
                passes = -(-hosted // workers)
                title = f"{precision}, {passes} micro-batch{'es' * (passes > 1)} of {workers}"
                bare = count_bare_traffic(typed, step.examples)
                compared.append(excess_traffic(title, step.eager, bare))
    head = ["precision", "workers per pass", "operators", "MB/image", "GFLOP/image", "launches"]
    yield "Upper bound of a GPU's images/s, and the bottleneck:"
    yield markdown_table([*head, *(gpu.name for gpu in GPUS)], rows)
    yield (
        "The bytes that a step moves beyond one of plain PyTorch on as many images (BN over all "
        "of them, torch's fused SGD), by operator. Each of several micro-batches reads the "
        "weights, casts them to bfloat16, and reads and writes the accumulated gradients (add_), "
        "in buckets that are cleared before the first (zero_)."
    )
    yield from compared
    yield _sources()


def _row(
    precision: str, workers: int, what: str, calls: Sequence[OperatorCall], examples: int
) -> list[str]:
    found = [step_time_bound(calls, gpu) for gpu in GPUS]
    return [
        precision,
        str(workers),
        what,
        f"{sum(call.bytes_moved for call in calls) / examples / 1e6:,.0f}",
        f"{sum(call.flops for call in calls) / examples / 1e9:.1f}",
        str(len(calls)),
        *(f"{examples / each.seconds:,.0f} {each.bottleneck}" for each in found),
    ]


def excess_traffic(title: str, calls: Sequence[OperatorCall], bare: Sequence[OperatorCall]) -> str:
    """List by operator the bytes that lsgd's step moves beyond those of plain PyTorch's."""
    ours, theirs = traffic_by_operator(calls), traffic_by_operator(bare)
    total = sum(moved for _, moved in theirs.values())
    more = {name: ours.get(name, (0, 0))[1] - theirs.get(name, (0, 0))[1] for name in ours | theirs}
    named = [
        f"`{name}` {100 * size / total:+.2f} %"
        for name, size in sorted(more.items(), key=lambda item: -abs(item[1]))
        if abs(size) >= total / 10_000
    ]
    share = 100 * sum(more.values()) / total
    return f"- {title}: {share:+.2f} %" + (f" ({', '.join(named)})" if named else "")


def _sources() -> str:
    rows = [
        [
            gpu.name,
            f"{gpu.bandwidth:.4g} TB/s",
            *(f"{peak:.4g} TFLOP/s" for peak in (gpu.float32, gpu.lower)),
            "NVIDIA's data sheet, dense",
        ]
        for gpu in GPUS
    ]
    head = ["GPU", "memory", "float32", "bfloat16, or float16", "source"]
    return (
        f"{markdown_table(head, rows)}\n\nA launch takes {LAUNCH} ({LAUNCH.source}). Others have "
        "reached "
        f"{PUBLISHED} with ResNet-50 at 224 pixels ({PUBLISHED.source})."
    )
