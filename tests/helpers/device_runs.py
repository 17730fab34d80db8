"""Training runs on the fake accelerator, compared with the same runs on the CPU.

They cover the values of every field that affects the device, and count the operators, copies and
waits of a step.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from helpers import accelerator
from helpers.accelerator import Counts
from helpers.composed import compose_recipe
from lsgd import train
from lsgd.errors import UsageError
from lsgd.learner import Learner
from lsgd.prepare.indexing import index_folder
from lsgd.recipe import Data, Recipe
from lsgd.recipe.checks import check_recipe
from lsgd.run import checkpoint
from lsgd.run.rows import depends_on_hardware, read_rows

GOLDEN = Path(__file__).resolve().parents[1] / "golden/device.json"
"""The file with the budget: operators, copies and waits in a step of each run."""
Fields = dict[str, Any]
"""A dict of recipe values by dotted field name."""

# 2 epochs of 2 steps of at least 2 micro-batches, an evaluation of 2 batches; images have a tail.
SHORT = ["inputs=synthetic", "epochs=2", "log_steps=100", "schedule.milestones=[1]"]
SENTENCES = [
    *SHORT, "workers=4", "worker_batch=2", "workers_per_pass=2", "data.train_examples=16",
    "data.val_examples=6", "data.test_examples=0", "data.words=30", "model.embedding=4",
    "model.width=4", "val_batch=3",
]  # fmt: skip
WORKLOADS = {
    "images": [
        "+recipe=digits", *SHORT, "schedule.warmup_epochs=1", "workers=4", "worker_batch=4",
        "workers_per_pass=2", "data.train_examples=40", "data.val_examples=8", "val_batch=4",
    ],
    "language": [
        "+recipe=ptb_small", *SHORT, "workers=4", "worker_batch=2", "workers_per_pass=2",
        "data.train_examples=57", "data.val_examples=9", "data.test_examples=0", "data.window=3",
        "data.classes=17", "model.embedding=4", "model.width=4",
    ],
    "tagging": ["+recipe=conll_bilstm", *SENTENCES],
    "trees": ["+recipe=sst_treelstm", *SENTENCES, "worker_batch=1", "data.train_examples=8"],
}  # fmt: skip

STRATEGIES: dict[str, Fields] = {
    "allreduce": {},
    "sync": {"strategy.name": "sync", "strategy.servers": 2},
    "backup": {"strategy.name": "backup", "strategy.backup": 1, "strategy.servers": 2},
    "bounded": {"strategy.name": "bounded", "strategy.slack": 1},
    "async": {"strategy.name": "async", "strategy.servers": 2},
    "async local": {
        "strategy.name": "async", "strategy.local_steps": 2, "strategy.outer": "sgd",
    },
    "local": {"strategy.name": "local", "strategy.local_steps": 2},
    "elastic": {
        "strategy.name": "local", "strategy.local_steps": 2, "strategy.outer": "elastic",
        "strategy.moving_rate": 0.2,
    },
    "diloco": {
        "strategy.name": "local", "strategy.local_steps": 2, "strategy.outer": "nesterov",
        "strategy.outer_momentum": 0.9, "strategy.outer_lr": 0.7,
    },
}  # fmt: skip
VARIANTS = {"backup", "bounded", "async local", "elastic", "diloco"}
"""The strategies that compute micro-batches and updates by the code of sync, async or local."""
PLAIN = {"optim.nesterov": False, "optim.weight_decay": 0.0}
AXES: dict[str, dict[str, Fields]] = {
    "optim": {
        "adam": {"optim.name": "adam", **PLAIN},
        "adagrad": {"optim.name": "adagrad", "optim.momentum": 0.0, **PLAIN},
        "lars": {"optim.name": "lars", "optim.nesterov": False},
        "equation 10": {"optim.equation": 10},
        "corrected": {"optim.equation": 10, "optim.momentum_correction": True},
        "lamb": {"optim.name": "lamb", "optim.nesterov": False},
        "akiba": {"optim.name": "rmsprop_warmup", "optim.nesterov": False},
    },
    "clipping": {"clipped": {"optim.clip_norm": 0.1}},
    "averaging": {
        "ema": {"averaging.name": "ema"},
        "last epochs": {"averaging.name": "last", "averaging.epochs": 2},
    },
    "bn": {
        "precise": {"bn_statistics.name": "precise", "bn_statistics.examples": 16},
        "last step": {"bn_statistics.name": "last"},
    },
    "noise": {"noise scale": {"noise_scale": True}},
    "growth": {"growing": {"batch_growth.milestones": [1]}},
    "precision": {
        "bfloat16": {"precision": "bfloat16", "evaluation.bfloat16": True},
        "float64": {"precision": "float64"},
    },
    "layout": {
        "channels_last": {"channels_last": True},
        "lenet5": {"model.name": "lenet5", "data.image_size": 28},
    },
    "tail": {"kept": {"tail": "keep"}},
    "wire": {"fp16": {"gradient_compression": "fp16"}},
    "loader": {
        "memory": {"inputs.loader": "memory", "data.augmentation": "shift_flip"},
        "torchvision": {"inputs.loader": "torchvision", "inputs.decoders": 0},
        "decoders": {"inputs.loader": "torchvision", "inputs.decoders": 1},
        "dali": {"inputs.loader": "dali", "inputs.decoders": 1},
    },
}
"""The non-default values of the fields varied for images, by axis and value name."""
TEXTS: dict[str, tuple[str, Fields]] = {
    "language": ("language", {}),
    "tagging": ("tagging", {}),
    "tagging crf": ("tagging", {"model.name": "bilstm_crf", "padding": "batch"}),
    "tagging packed": ("tagging", {"padding": "packed", "data.order": "by_length"}),
    "trees": ("trees", {}),
    "trees recursive": ("trees", {"batching": "recursive"}),
    "trees childsum": ("trees", {"model.name": "childsum", "precision": "bfloat16"}),
}


@dataclass(frozen=True)
class ComparedRun:
    """A compared run: workload, strategy, and non-default values."""

    workload: str
    strategy: str
    values: tuple[str, ...]
    fields: Fields = field(compare=False)

    @property
    def name(self) -> str:
        """The display name: strategy and values, separated by commas."""
        return ", ".join((self.strategy, *self.values))

    def recipe(self, images: Path | None = None) -> Recipe:
        """Return the recipe of this run; raise UsageError if its values contradict each other.

        `images` is a folder written by make_images.
        """
        return with_fields(base(self.workload), self.fields, images)


@cache
def base(workload: str) -> Recipe:
    """Return the small base recipe of a workload, composed once per process."""
    return compose_recipe(*WORKLOADS[workload])


FOLDER = Data("folder", 40, 8, 4, 3, 8, [0.5] * 3, [0.25] * 3, augmentation="crop_flip")
"""The data settings of make_images' folder, with as many steps as the digits recipe."""


def make_images(root: Path) -> Path:
    """Write a folder of 48 random JPEG images in 4 classes with an index, and return it."""
    pixels = np.random.default_rng(0).integers(0, 256, (4, 12, 12, 11, 3), dtype=np.uint8)
    for label, number in np.ndindex(4, 12):
        folder = root / ("train" if number < 10 else "val") / f"n{label}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[label, number]).save(folder / f"{number}.JPEG")
    index_folder(root)
    return root


def with_fields(recipe: Recipe, fields: Mapping[str, Any], images: Path | None = None) -> Recipe:
    """Return the recipe with other values of these fields, after checking it."""
    if fields.get("inputs.loader") in ("torchvision", "dali"):
        recipe = replace(recipe, data=replace(FOLDER, root=str(images)))
    elif fields.get("inputs.loader") == "memory":
        digits = {"train_examples": 1442, "val_examples": 355, "augmentation": "shift_flip"}
        data = replace(recipe.data, **digits)
        recipe = replace(recipe, data=data, worker_batch=160, val_batch=178)
    for key, value in fields.items():
        group, _, name = key.rpartition(".")
        value = replace(getattr(recipe, group), **{name: value}) if group else value
        recipe = replace(recipe, **{group or name: value})
    check_recipe(recipe)
    return recipe


def image_runs(strategy: str) -> Iterator[ComparedRun]:
    """Yield a few image runs with a strategy that cover every value of AXES valid with it.

    A run that differs in the loader alone is only made with all-reduce and synchronous servers.
    """
    left = {axis: list(values) for axis, values in AXES.items()}
    yield ComparedRun("images", strategy, (), STRATEGIES[strategy])
    while any(left.values()):
        chosen: list[str] = []
        fields = dict(STRATEGIES[strategy])
        for axis, names in left.items():
            for name in names:
                both = fields | AXES[axis][name]
                try:
                    with_fields(base("images"), both)
                except UsageError:
                    continue
                names.remove(name)
                chosen.append(name)
                fields = both
                break
        if not chosen:
            return
        if strategy not in ("allreduce", "sync") and {*chosen} <= AXES["loader"].keys():
            continue
        yield ComparedRun("images", strategy, tuple(chosen), fields)


FLOAT16_RUN = ComparedRun(
    "images",
    "allreduce",
    ("float16", "lars", "clipped"),
    {"precision": "float16", **AXES["optim"]["lars"], **AXES["clipping"]["clipped"]},
)
"""The run in float16, whose loss scale only all-reduce supports."""


PHASES_RUN = ComparedRun(
    "images",
    "allreduce",
    ("phases", "sizes", "bce", "decoupled", "blurred", "mirrored"),
    {
        "schedule.decay": "points", "schedule.points": [[0.0, 0.01], [1.0, 0.05], [1.0, 0.02]],
        "schedule.milestones": [], "schedule.scaling": "none", "schedule.warmup": "none",
        "batch_schedule": [[1, 5, 3]], "image_sizes.points": [[0.0, 8.0], [1.0, 12.0]],
        "loss": "bce", "label_smoothing": 0.1, "optim.decay": "decoupled",
        "optim.decay_norm": True, "model.blurpool": "all", "model.gamma": "uniform",
        "averaging.name": "ema", "averaging.every": 2, "evaluation.mirror": True,
    },
)  # fmt: skip
"""The run whose size, minibatch and lr change, with what else the recipes of such runs have."""


def text_runs(strategy: str) -> Iterator[ComparedRun]:
    """Yield the runs of the text workloads with a strategy.

    Only allreduce covers all variants: how micro-batches are built does not depend on the strategy.
    """
    for name, (workload, fields) in TEXTS.items():
        if fields and strategy != "allreduce":
            continue
        cell = ComparedRun(workload, strategy, (name,), STRATEGIES[strategy] | fields)
        try:
            cell.recipe()
        except UsageError:
            continue
        yield cell


def products(axes: list[str]) -> Iterator[ComparedRun]:
    """Yield the valid image runs of every strategy with the product of all values of these axes."""
    choices = [[("", {}), *AXES[axis].items()] for axis in axes]
    for strategy, values in product(STRATEGIES, product(*choices)):
        fields = dict(chain(STRATEGIES[strategy].items(), *(each.items() for _, each in values)))
        cell = ComparedRun("images", strategy, tuple(name for name, _ in values if name), fields)
        try:
            cell.recipe()
        except UsageError:
            continue
        yield cell


def versions() -> dict[str, str]:
    """Return the torch version, on which the counts of operators depend, as a dict."""
    return {"torch": torch.__version__.partition("+")[0]}


# --- Runs -----------------------------------------------------------------------------------------


@contextmanager
def counted_steps() -> Iterator[list[Counts]]:
    """Yield a list that receives the counts of each training step made within this context.

    The counts of a step end at the next step, or at `synchronize` at the end of its epoch.
    """
    steps: list[Counts] = []
    real = train.train_step

    def step(learner: Learner, *arguments: Any) -> None:
        settle = type(learner.strategy).synchronize

        def uncounted() -> bool:
            accelerator.count_into(Counts())
            return settle(learner.strategy)  # type: ignore[arg-type]

        learner.strategy.synchronize = uncounted  # type: ignore[method-assign]
        accelerator.count_into(counts := Counts())
        steps.append(counts)
        real(learner, *arguments)

    with patch.object(train, "train_step", step):
        yield steps
    accelerator.count_into(Counts())


def run(recipe: Recipe, folder: Path, device: str) -> None:
    """Train the recipe with this run folder and device, `cpu` or `auto`."""
    train.train(replace(recipe, device=device, run_dir=str(folder)))


@dataclass(frozen=True)
class DeviceComparison:
    """The comparison of a run on both devices."""

    differences: list[str]
    """The paths of values that are not bit-equal."""
    step: Counts
    """The counts of the last step."""


def compare(recipe: Recipe, folder: Path, *, shares_memory: bool = False) -> DeviceComparison:
    """Train the recipe on the CPU and on the fake accelerator, and return their differences.

    With `shares_memory` the accelerator shares the memory of the host, like a Mac's GPU.
    """
    run(recipe, folder / "cpu", "cpu")
    with accelerator.available(shares_memory=shares_memory), counted_steps() as steps:
        run(recipe, folder / "device", "auto")
    return DeviceComparison(differences(folder / "cpu", folder / "device"), steps[-1])


def differences(one: Path, other: Path) -> list[str]:
    """Return the paths of values that differ in two run folders' checkpoints and rows.

    Times, process ids and paths are not compared.
    """
    return list(
        chain(
            differing_paths(saved_content(one), saved_content(other)),
            differing_paths(_rows(one), _rows(other)),
        )
    )


def saved_content(folder: Path) -> Any:
    """Return what a run's newest checkpoint holds, without its recipe."""
    content = vars(
        checkpoint.decode_checkpoint(checkpoint.read(folder / checkpoint.FILE), str(folder))
    )
    return {key: value for key, value in content.items() if key != "recipe"}


def _rows(folder: Path) -> list[dict[str, Any]]:
    return [
        {
            key: value
            for key, value in row.items()
            if key not in ("time", "pids") and not depends_on_hardware(key)
        }
        for row in read_rows(folder / "metrics.jsonl")
        if row["kind"] in ("train", "epoch")
    ]


def differing_paths(one: Any, other: Any, place: str = "") -> Iterator[str]:
    """Yield the paths at which two nested values differ; tensors must be bit-equal."""
    match one, other:
        case Tensor(), Tensor():
            same = one.dtype == other.dtype and one.shape == other.shape
            if not (same and torch.equal(one.nan_to_num(), other.nan_to_num())):
                yield place
        case dict(), dict() if one.keys() == other.keys():
            for key in one:
                yield from differing_paths(one[key], other[key], f"{place} {key}")
        case list() | tuple(), list() | tuple() if len(one) == len(other):
            for number, pair in enumerate(zip(one, other, strict=True)):
                yield from differing_paths(*pair, f"{place} {number}")
        case _:
            if one != other and not one != one != other:
                yield f"{place}: {one} and {other}"
