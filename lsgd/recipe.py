"""The recipe: a typed description of one run, what follows from it, and what makes no sense.

Trajectory fields decide what is computed and are hashed into the fingerprint; execution fields
(EXECUTION below) decide how fast and where, and change nothing else.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lsgd import sampler, schedule
from lsgd.errors import Refused

EXECUTION = {
    "name",
    "target",
    "deviations",
    "replaced",
    "comm",
    "inputs",
    "workers_per_pass",
    "val_batch",
    "channels_last",
    "compile",
    "device",
    "run_dir",
    "checkpoint_steps",
    "keep_checkpoints",
    "log_steps",
    "profile",
    "data.root",
    "data.index",
    "data.skip_list",
}
"""Fields that change speed, place or description; every other field changes the trajectory."""

LATER: dict[str, Any] = {
    "data.skip": [],
}
"""Trajectory fields that came after runs had been published, and what means "as before" in each.

A run with this value keeps the fingerprint that it had without the field, and a file from before
the field is read as if it said so, whatever the default for new runs. A group may come later too:
then the value is that of all the trajectory fields which came with it. Execution fields need no
place here, since their default means "as before".
"""

AUTO = "auto"

CHOICES = {
    "tail": ("drop", "keep"),
    "precision": ("float32", "bfloat16", "float64"),
    "gradient_compression": ("none", "fp16"),
    "device": ("auto", "cpu", "cuda"),
    "data.augmentation": ("none", "shift_flip", "crop_flip"),
    "model.name": ("resnet50", "resnet101", "resnet20", "small_resnet"),
    "optim.equation": (9, 10),
    "schedule.scaling": schedule.SCALINGS,
    "schedule.warmup": schedule.WARMUPS,
    "inputs.loader": ("auto", "memory", "dali", "torchvision", "synthetic"),
    "inputs.decode_on": ("auto", "cpu", "gpu"),
    "inputs.dtype": ("float32", "float16"),
    "comm.library": ("auto", "single", "torch", "horovod"),
}
"""What the fields that name a choice may say."""

LEAST = {
    "workers": 1,
    "worker_batch": 2,
    "epochs": 1,
    "seed": 0,
    "val_batch": 1,
    "checkpoint_steps": 0,
    "keep_checkpoints": 1,
    "log_steps": 1,
    "data.train_examples": 1,
    "data.val_examples": 1,
    "data.classes": 1,
    "data.channels": 1,
    "data.image_size": 1,
    "optim.momentum": 0,
    "optim.weight_decay": 0,
    "schedule.warmup_epochs": 0,
    "inputs.decoders": 0,
    "inputs.hardware_share": 0,
    "inputs.prefetch": 1,
}
"""The least that a number may be."""

ABOVE_0 = (
    "schedule.reference_lr",
    "schedule.reference_batch",
    "schedule.gamma",
    "comm.bucket_mb",
    "comm.timeout",
    "comm.join_timeout",
)


@dataclass(frozen=True)
class Data:
    """A dataset: what to expect of it, and how training images are drawn from it."""

    name: str
    train_examples: int
    val_examples: int
    classes: int
    channels: int
    image_size: int
    """Side in pixels of what the model is given."""
    mean: list[float]
    std: list[float]
    """Per channel, of pixels in [0, 1]."""
    augmentation: str
    root: str | None = None
    index: str | None = None
    """Folder with the index of an image folder; by default its root."""
    skip_list: str | None = None
    """File that names images to leave out; config reads it into `skip` and takes them off the
    numbers of examples."""
    skip: list[str] = field(default_factory=list)
    """Images that are left out, such as `train/n01440764/n01440764_10026.JPEG`."""


@dataclass(frozen=True)
class Model:
    """Which network, and how the last BN of every residual block starts."""

    name: str
    last_gamma: float = 0.0
    """Goyal et al. 2017, section 5.1; 1.0 is the other row of table 2b."""


@dataclass(frozen=True)
class Optim:
    """SGD with momentum; defaults are those of Goyal et al. 2017, section 5.1."""

    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 1e-4
    equation: int = 9
    """Form of the momentum update in the paper: 9 keeps the lr outside the buffer, 10 inside."""
    momentum_correction: bool = False
    """Remark 2; has a meaning for equation 10 only."""


@dataclass(frozen=True)
class Schedule:
    """The learning rate as a function of the epoch; see lsgd.schedule."""

    reference_lr: float = 0.1
    reference_batch: float = 256.0
    scaling: str = "linear"
    warmup: str = "gradual"
    warmup_epochs: float = 5.0
    milestones: list[float] = field(default_factory=lambda: [30.0, 60.0, 80.0])
    gamma: float = 0.1


@dataclass(frozen=True)
class Inputs:
    """How images get to the device."""

    loader: str = "auto"
    decoders: int | None = None
    """Images decoded at once per training process, by DALI's threads or torchvision's processes; by
    default as many as it has cores of the machine."""
    prefetch: int = 2
    """Passes made ready ahead: by DALI in all, by each of torchvision's processes."""
    dtype: str = "float32"
    """DALI: of the pixels that it writes, float32 or float16 (0.1 8-bit levels coarser)."""
    decode_on: str = "auto"
    """DALI: cpu or gpu; auto is where the model is."""
    hardware_share: float = 0.65
    """DALI on a GPU with a JPEG decoder of its own: the share of the images that go there."""


@dataclass(frozen=True)
class Comm:
    """How the processes of a job talk to each other."""

    library: str = "auto"
    bucket_mb: float = 25.0
    """Gradients are reduced in flat buckets of this many MiB."""
    timeout: float = 600.0
    """Seconds after which a process that does not answer is given up."""
    join_timeout: float = 120.0
    """Seconds until processes that have not met at the start give up."""


TARGET_DATA = "imagenet"
"""The dataset that every published number is of."""


@dataclass(frozen=True)
class Target:
    """The published number that this recipe should reproduce."""

    top1_error: float
    """Percent."""
    std: float | None = None
    source: str = ""

    def beside(self, error: float) -> str:
        """How far the error of one run, in percent, is from the published one, in words.

        Whether that is the published number is decided over several seeds, by lsgd.report.verdict.
        """
        above = round(error - self.top1_error, 2)
        distance = f"{abs(above):.2f} {'above' if above > 0 else 'below'}"
        spread = "" if self.std is None else f" ± {self.std:.2f}"
        source = f" ({self.source})" if self.source else ""
        return f"{distance} the published {self.top1_error:.2f}{spread} %{source}"


@dataclass(frozen=True)
class Recipe:
    """One run. `batch_size`, steps and lr are derived, never set."""

    name: str
    data: Data
    model: Model
    optim: Optim
    schedule: Schedule
    inputs: Inputs
    comm: Comm
    workers: int
    """k: each has its own images and its own BN statistics."""
    worker_batch: int
    """n: images per worker and step."""
    epochs: int
    seed: int = 0
    tail: str = "drop"
    precision: str = "float32"
    gradient_compression: str = "none"
    rehearse: bool = False
    deviations: dict[str, str] = field(default_factory=dict)
    """Rules of the paper that this recipe does not follow, each with the reason."""
    target: Target | None = None
    workers_per_pass: int | str = 1
    """Or auto: lsgd.passes finds it when training starts."""
    val_batch: int = 250
    channels_last: bool = False
    compile: bool = False
    device: str = "auto"
    run_dir: str | None = None
    checkpoint_steps: int = 0
    """Also save every that many steps; 0 saves at the end of each epoch only."""
    keep_checkpoints: int = 2
    """How many of the newest stay; those at a drop of the lr all do."""
    log_steps: int = 20
    profile: bool = False
    """Time the phases of some steps, and trace a few; see lsgd.profile."""
    replaced: list[str] = field(default_factory=list)
    """What a rehearsal replaced, one line each."""

    @property
    def batch_size(self) -> int:
        """kn, the examples of one step."""
        return self.workers * self.worker_batch

    @property
    def pass_workers(self) -> int:
        """workers_per_pass as a number; raises Refused while it is auto."""
        if isinstance(self.workers_per_pass, str):
            raise Refused(
                "workers_per_pass=auto is found where training starts; here write a number, such "
                "as workers_per_pass=8"
            )
        return self.workers_per_pass

    @property
    def keeps_tail(self) -> bool:
        """Whether the last N mod kn examples of an epoch make a smaller step."""
        return self.tail == "keep"

    @property
    def steps_per_epoch(self) -> int:
        """S, the steps really made in one epoch."""
        return sampler.steps_per_epoch(
            self.data.train_examples, self.batch_size, keeps_tail=self.keeps_tail
        )

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        return self.epochs * self.steps_per_epoch

    def examples(self, steps: int) -> int:
        """How many training examples the first so many steps of the run see."""
        epochs, rest = divmod(steps, self.steps_per_epoch)
        whole = self.steps_per_epoch * self.batch_size
        each = self.data.train_examples if self.keeps_tail else whole
        return epochs * each + rest * self.batch_size

    def epoch(self, step: int) -> float:
        """The (fractional) epoch at the start of a step of the run: e + t/S."""
        steps = self.steps_per_epoch
        whole, part = divmod(step, steps)
        return whole + part / steps

    def lr(self, step: int) -> float:
        """The learning rate of a step of the run."""
        return schedule.learning_rate(
            self.epoch(step), batch_size=self.batch_size, **vars(self.schedule)
        )

    def epochs_from(self, step: int) -> Iterator[tuple[int, list[int]]]:
        """The epochs still to train when `step` is the next one, each with its steps of the run.

        A rehearsal makes six steps of the whole run: the first two, one in the middle of the
        warmup, the one at its end, and one on each side of the first drop.
        """
        per_epoch, run = self.steps_per_epoch, range(step, self.total_steps)
        if self.rehearse:
            warmup = self.schedule.warmup_epochs
            drop = self._first_step((self.schedule.milestones or [self.epochs])[0])
            at = {0, 1, self._first_step(warmup / 2), self._first_step(warmup), drop - 1, drop}
            steps = sorted(s for s in at if s in run)
            for epoch in sorted({s // per_epoch for s in steps}):
                yield epoch, [s for s in steps if s // per_epoch == epoch]
            return
        for epoch in range(step // per_epoch, self.epochs):
            yield epoch, list(range(max(step, epoch * per_epoch), (epoch + 1) * per_epoch))

    def drops_in(self, epoch: int) -> bool:
        """Whether the lr drops within this epoch, counted from 0, or at its end."""
        return any(epoch < milestone <= epoch + 1 for milestone in self.schedule.milestones)

    def _first_step(self, epoch: float) -> int:
        """The first step of the run that is at this (fractional) epoch or after it."""
        near = round(epoch * self.steps_per_epoch)
        return near if self.epoch(near) >= epoch else near + 1

    def trajectory(self) -> dict[str, Any]:
        """The fields that decide what is computed, N among them."""
        fields = asdict(self)
        for key in EXECUTION:
            group, name = _place(fields, key)
            del group[name]
        # A field before its group, whose value is that of the fields which came with it.
        for key in sorted(LATER, key=lambda key: key.count("."), reverse=True):
            group, name = _place(fields, key)
            if group[name] == LATER[key]:
                del group[name]
        # The loader is execution, but these images are not the dataset's.
        fields["data"]["synthetic"] = self.inputs.loader == "synthetic"
        return fields

    @property
    def fingerprint(self) -> str:
        """Hash of the trajectory fields: two recipes with the same one train the same run."""
        text = json.dumps(self.trajectory(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def summary(self) -> str:
        """What this run is, in a few plain lines."""
        first, last = (
            self.lr(0),
            schedule.scaled_lr(
                self.batch_size,
                reference_lr=self.schedule.reference_lr,
                reference_batch=self.schedule.reference_batch,
                scaling=self.schedule.scaling,
            ),
        )
        ramp = f"lr {first:g}" if first == last else f"lr {first:g} to {last:g}"
        skipped = len(self.data.skip)
        lines = [
            f"{self.name}: {self.model.name} on {self.data.name}, {self.epochs} epochs of "
            f"{self.steps_per_epoch} steps, seed {self.seed}",
            f"batch_size {self.batch_size} = {self.workers} workers x {self.worker_batch} images, "
            f"{ramp}",
            *([f"images left out (data.skip): {skipped}"] if skipped else []),
            *self.replaced,
        ]
        return "\n".join(lines)

    def outcome(self, error: float) -> str:
        """What came out, beside the published number if the run is on the data of that.

        The error of a rehearsal means nothing, and is left out.
        """
        if self.rehearse:
            return "rehearsal done: steps, evaluations and checkpoints all went through"
        outcome = f"top-1 error {error:.2f} % (median of the last 5 epochs)"
        of_its_data = self.data.name == TARGET_DATA and self.inputs.loader != "synthetic"
        return f"{outcome}; {self.target.beside(error)}" if self.target and of_its_data else outcome


def check(recipe: Recipe) -> None:
    """Refuse a recipe that makes no sense; the message says what to write instead."""
    for key, allowed in CHOICES.items():
        if (value := _value(recipe, key)) not in allowed:
            raise Refused(f"{key}={value} is unknown; write one of {', '.join(map(str, allowed))}")
    _check_numbers(recipe)
    _check_data(recipe)
    _check_schedule(recipe)
    _check_tail(recipe)
    if recipe.optim.momentum_correction and recipe.optim.equation == 9:
        raise Refused(
            "optim.momentum_correction=true has no meaning for optim.equation=9, which keeps the "
            "lr out of the momentum; leave it false or write optim.equation=10"
        )
    if recipe.workers_per_pass == AUTO and recipe.compile:
        raise Refused(
            "workers_per_pass=auto times a model that is not compiled, and compile=true is faster "
            "with another number; write one, such as workers_per_pass=8"
        )
    if not re.fullmatch(r"\w[\w.+-]*", recipe.name):
        raise Refused(
            f"name={recipe.name} does not make a folder's name; write letters, digits, -, _ and ."
        )
    if recipe.run_dir == "":
        raise Refused("run_dir= is empty; write run_dir=PATH, or leave it out for a new folder")


def _place(fields: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """The group that has the field with this dotted key, and its name there."""
    *groups, name = key.split(".")
    for group in groups:
        fields = fields[group]
    return fields, name


def _value(recipe: Recipe, key: str) -> Any:
    value: Any = recipe
    for part in key.split("."):
        value = getattr(value, part)
    return value


def _check_numbers(recipe: Recipe) -> None:
    for key, least in LEAST.items():
        value = _value(recipe, key)
        if value is not None and not least <= value < math.inf:
            raise Refused(f"{key}={value} is not possible; write {least} or more")
    if recipe.workers_per_pass != AUTO and (
        isinstance(recipe.workers_per_pass, str) or recipe.workers_per_pass < 1
    ):
        raise Refused(
            f"workers_per_pass={recipe.workers_per_pass} is not possible; write 1 or more, or auto"
        )
    for key in ABOVE_0:
        if not 0 < (value := _value(recipe, key)) < math.inf:
            raise Refused(f"{key}={value:g} is not possible; write a number above 0")
    if recipe.inputs.hardware_share > 1:
        raise Refused(
            f"inputs.hardware_share={recipe.inputs.hardware_share:g} is more than all images; "
            "write a number from 0 to 1"
        )
    if recipe.seed >= 2**64:
        raise Refused(f"seed={recipe.seed} is too large; write a number below 2^64")
    if recipe.optim.momentum >= 1:
        raise Refused(
            f"optim.momentum={recipe.optim.momentum:g} grows without end; write a number below 1"
        )
    if recipe.optim.nesterov and not recipe.optim.momentum:
        raise Refused(
            "optim.nesterov=true looks ahead along the momentum, and optim.momentum=0 leaves none; "
            "write optim.nesterov=false"
        )


def _check_data(recipe: Recipe) -> None:
    data, model = recipe.data, recipe.model.name
    for image in data.skip:
        if not image.startswith(("train/", "val/")) or data.skip.count(image) > 1:
            raise Refused(
                f"data.skip has {image!r}; name each image once, by its path below the root, such "
                "as train/n01440764/n01440764_10026.JPEG"
            )
    if not len(data.mean) == len(data.std) == data.channels:
        raise Refused(
            f"data.mean and data.std need {data.channels} numbers each, one per channel, and have "
            f"{len(data.mean)} and {len(data.std)}"
        )
    if not all(0 < std < math.inf for std in data.std):
        raise Refused(f"data.std={_numbers(data.std)} divides the pixels; write numbers above 0")
    if model in ("resnet50", "resnet101") and data.channels != 3:
        raise Refused(
            f"model={model} takes images of 3 channels and {data.name} has {data.channels}; write "
            "model=small_resnet or model=resnet20"
        )


def _check_schedule(recipe: Recipe) -> None:
    milestones, epochs = recipe.schedule.milestones, recipe.epochs
    for milestone in milestones:
        if not 0 < milestone < epochs:
            raise Refused(
                f"schedule.milestones={_numbers(milestones)} has {milestone:g}, which is outside a "
                f"run of {epochs} epochs; write schedule.milestones=[…] between 0 and {epochs}, or "
                "write more epochs"
            )
    if sorted(set(milestones)) != list(milestones):
        raise Refused(
            f"schedule.milestones={_numbers(milestones)} does not rise; write each once, in order"
        )
    first = min([*milestones, epochs])
    warms_up = (
        recipe.schedule.warmup != "none" and recipe.batch_size > recipe.schedule.reference_batch
    )
    if warms_up and not 0 < recipe.schedule.warmup_epochs <= first:
        raise Refused(
            f"schedule.warmup_epochs={recipe.schedule.warmup_epochs:g} does not end by epoch "
            f"{first:g}, where the lr drops or the run ends; write a number above 0 and up to "
            f"{first:g}, or schedule.warmup=none"
        )


def _check_tail(recipe: Recipe) -> None:
    examples, batch_size = recipe.data.train_examples, recipe.batch_size
    if examples < batch_size:
        fewer = examples // recipe.worker_batch
        raise Refused(
            f"batch_size {batch_size} (workers={recipe.workers} x worker_batch="
            f"{recipe.worker_batch}) is more than the {examples} training examples; write "
            + (f"workers={fewer} or fewer" if fewer else f"worker_batch={examples} or less")
        )
    if recipe.keeps_tail and examples % batch_size % recipe.worker_batch == 1:
        raise Refused(
            f"tail=keep leaves one worker of the last step with a single image ({examples} = "
            f"{examples // batch_size} x {batch_size} + {examples % batch_size}), and BN needs "
            "two; write tail=drop or another worker_batch"
        )


def check_world_size(recipe: Recipe, world_size: int) -> None:
    """Refuse more processes than workers: a process without a worker would have nothing to do."""
    if world_size > recipe.workers:
        raise Refused(
            f"{world_size} processes cannot share workers={recipe.workers}; start at most "
            f"{recipe.workers} processes"
        )


def rehearsal(recipe: Recipe) -> Recipe:
    """The same run in miniature: its k, steps and lr function, on 2 small images per worker.

    The reference batch shrinks with n, so that the lr at every step of the run is unchanged.
    """
    n, size = 2, 32
    data = replace(
        recipe.data,
        train_examples=recipe.steps_per_epoch * recipe.workers * n,
        val_examples=64,
        image_size=size,
        augmentation="none",
    )
    # Multiplied first: a batch that is the reference stays so, down to the last bit.
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


def _numbers(values: list[float]) -> str:
    return "[" + ",".join(f"{v:g}" for v in values) + "]"
