"""The recipe: a typed description of one run, and what follows from it.

Trajectory fields decide what is computed and are hashed into the fingerprint; execution fields
decide how fast and where, and change nothing else. A field's declaration has its default, its
limits and which of the two kinds it is, in the words of lsgd.recipe.fields. What makes no sense is
refused by lsgd.recipe.checks.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from lsgd.errors import Refused
from lsgd.recipe.fields import (
    AUTO,
    EXECUTION,
    above_0,
    at_least,
    at_least_or_auto,
    at_most,
    below,
    finite,
    is_within,
    later,
    of,
    one_of,
    some_of,
    trajectory,
)
from lsgd.recipe.stages import Stage
from lsgd.recipe.strategies import Cluster as Cluster
from lsgd.recipe.strategies import StrategySettings as StrategySettings
from lsgd.rules import sampler, schedule
from lsgd.rules.metric import METRICS, TOP1, Metric, Until

MODELS = {
    "images": ("resnet50", "resnet101", "resnet20", "small_resnet", "lenet5"),
    "language": ("lstm",),
    "tagging": ("bilstm", "bilstm_crf"),
    "trees": ("treelstm", "childsum"),
}
"""The workloads, and the networks that learn each."""
LIBRARIES = ("torchvision", "timm")
"""Whose networks learn images too, by a name such as timm/convnext_atto."""
EXAMPLES = {
    "images": "images",
    "language": "streams",
    "tagging": "sentences",
    "trees": "trees",
}
"""What a worker takes of each workload in a step, in words."""
THINGS = {
    "images": "images",
    "language": "tokens",
    "tagging": "sentences",
    "trees": "trees",
}
"""What a dataset of each workload has, in words."""
NO_REPLAY = (
    "strategy=hogwild cannot be replayed: two runs of it differ; strategy=async with "
    "strategy.order=live records its order"
)
PAPERS = ("goyal2017", "hoffer2017", "lars2017", "mlperf", "nado2021", "nus")
"""Those whose rules lsgd.check knows, a file each in lsgd/check/papers."""
TRACKERS = ("mlflow", "wandb")
"""Those to which lsgd.track sends runs; each is the name of its package."""
PADDINGS = ("global", "batch", "bucket", "packed", "per_sentence")
IMAGES, LANGUAGE, TAGGING, TREES = (of(workload) for workload in MODELS)
TEXT, WORDS = of("language", "tagging", "trees"), of("tagging", "trees")
"""Metadata of a field that is of some workloads only."""


@dataclass(frozen=True)
class Data:
    """A dataset: what to expect of it, and how training examples are drawn from it."""

    name: str
    """Which reader of lsgd its files have, and the folder below $LSGD_DATA in which they are."""
    train_examples: int = field(metadata=at_least(1))
    """The number of images, sentences or trees, or of tokens of a text, `<eos>` included."""
    val_examples: int = field(metadata=at_least(1))
    """Those of the validation set, counted alike."""
    classes: int = field(metadata=at_least(1))
    """The number of classes of images or of the nodes of trees, of tags, or of different tokens of
    a text."""
    channels: int = field(default=0, metadata=IMAGES | at_least(1))
    """3 of a colour image, 1 of a grey one."""
    image_size: int = field(default=0, metadata=IMAGES | at_least(1))
    """The side of an image, in pixels, as the model takes it."""
    mean: list[float] = field(default_factory=list, metadata=IMAGES | finite())
    """The mean of each channel, for pixels in [0, 1]."""
    std: list[float] = field(default_factory=list, metadata=IMAGES | finite())
    """The standard deviation of each channel, for pixels in [0, 1]."""
    augmentation: str = field(
        default="",
        metadata=IMAGES | one_of("none", "shift_flip", "crop_flip", "fb_resnet_torch"),
    )
    """crop_flip takes 8 to 100 % of the area at an aspect of 3/4 to 4/3 and flips; fb_resnet_torch
    does so too, jitters brightness, contrast and saturation by 0.4, adds lighting noise, and
    resizes bicubically, in evaluation as in training; shift_flip pads by 4, shifts and flips."""
    root: str | None = field(default=None, metadata=EXECUTION)
    """The folder of the dataset; by default $LSGD_DATA/<name>, or data/<name>."""
    index: str | None = field(default=None, metadata=EXECUTION | IMAGES)
    """The folder with the index of the images; by default the folder of the dataset."""
    skip_list: str | None = field(default=None, metadata=EXECUTION | IMAGES)
    """A file that names images to leave out; lsgd.config reads it into `skip` and subtracts them
    from the numbers of examples."""
    skip: list[str] = field(default_factory=list, metadata=IMAGES | later([]))
    """Images that are left out, such as `train/n01440764/n01440764_10026.JPEG`."""
    workload: str = field(default="images", metadata=later("images") | one_of(*MODELS))
    """What is learned of it: the classes of images, the next word of a text (language), the tag of
    each word of a sentence (tagging), or the class of each node of a parsed one (trees)."""
    test_examples: int = field(default=0, metadata=TEXT | at_least(0))
    """The sentences, trees or tokens of a test set, or 0 without one."""
    window: int = field(default=0, metadata=LANGUAGE | at_least(1))
    """The tokens of a window: how far back through time a gradient goes."""
    eval_streams: int = field(default=1, metadata=LANGUAGE | at_least(1))
    """The streams into which an evaluation set is cut, each read from a state of zeros; 1 is the
    text as it is."""
    words: int = field(default=0, metadata=WORDS | at_least(1))
    """The number of different words of the training sentences, as the network takes them, and one
    for all others."""
    lowercase: bool = field(default=False, metadata=WORDS)
    """Whether the network takes all words in lower case."""
    order: str = field(default="shuffled", metadata=TAGGING | one_of("shuffled", "by_length"))
    """The order of the sentences in an epoch: by_length puts sentences of like length into a step,
    and shuffles the steps."""
    word_dropout: float = field(
        default=0.0, metadata=TAGGING | at_least(0) | below(1, "leaves no word; write less than 1")
    )
    """The share of training words that are taken for unknown ones, drawn for each epoch and
    sentence."""


@dataclass(frozen=True)
class Model:
    """The network, and what there is to choose about it."""

    name: str = field(
        metadata=one_of(*(name for names in MODELS.values() for name in names), within=LIBRARIES)
    )
    """A network of lsgd for this workload, or torchvision/NAME or timm/NAME."""
    last_gamma: float = field(default=0.0, metadata=IMAGES | finite())
    """The gamma with which the last BN of every residual block starts: 0 as in Goyal et al. 2017,
    section 5.1; 1 is the other row of table 2b."""
    hidden: int = field(default=120, metadata=IMAGES | later(120) | at_least(1))
    """The units of LeNet-5's first fully connected layer."""
    options: dict[str, Any] = field(default_factory=dict, metadata=IMAGES | later({}))
    """What else the maker of a library's network is given, such as {drop_path_rate: 0.1}."""
    embedding: int = field(default=0, metadata=TEXT | at_least(1))
    """The numbers by which a word is represented."""
    width: int = field(default=0, metadata=TEXT | at_least(1))
    """The units of an LSTM, in each of its layers and directions, or in each node of a tree."""
    layers: int = field(default=1, metadata=LANGUAGE | at_least(1))
    """The LSTM's layers, one on the other."""
    dropout: float = field(
        default=0.0, metadata=TAGGING | at_least(0) | below(1, "leaves nothing; write less than 1")
    )
    """The share of the numbers of a sentence's words, and of what the LSTMs say of them, that
    training sets to 0: for all words of a sentence the same ones (Gal and Ghahramani 2016)."""

    @property
    def of_library(self) -> bool:
        """Whether it is one of torchvision's or timm's."""
        return is_within(self.name, LIBRARIES)


@dataclass(frozen=True)
class Optim:
    """The optimizer; defaults are SGD with momentum as in Goyal et al. 2017, section 5.1."""

    momentum: float = field(
        default=0.9,
        metadata=at_least(0) | below(1, "keeps all that has been; write a number below 1"),
    )
    """The momentum of SGD, and of Adam its beta1."""
    nesterov: bool = True
    """Whether the step looks ahead by the momentum (Nesterov), as PyTorch does it."""
    weight_decay: float = field(default=1e-4, metadata=at_least(0))
    """The decay of the weights of convolutions and of the weights and bias of fc; BN has none."""
    equation: int = field(default=9, metadata=one_of(9, 10))
    """The equation of the paper that updates the momentum: 9, as in PyTorch, keeps the lr outside
    the momentum, and 10 has it inside."""
    momentum_correction: bool = False
    """Momentum correction (remark 2 of the paper), which has a meaning for equation 10 only."""
    name: str = field(
        default="sgd", metadata=later("sgd") | one_of("sgd", "lars", "adam", "adagrad")
    )
    """lars is momentum SGD whose gradient is scaled for each tensor; equation 9 leaves the lr
    outside the momentum then, and 10 has it inside, as the paper of LARS and MLPerf do."""
    beta2: float = field(
        default=0.999,
        metadata=later(0.999)
        | at_least(0)
        | below(1, "keeps the first gradient's square for ever; write a number below 1"),
    )
    """Adam's beta2: what a step leaves of the mean of squared gradients."""
    eps: float = field(default=1e-8, metadata=later(1e-8) | at_least(0))
    """What Adam and Adagrad add to the root by which they divide, and LARS to the norms."""
    clip_norm: float | None = field(default=None, metadata=later(None) | above_0())
    """The norm to which the gradient of an update is shortened where it is longer (Pascanu et al.
    2013), over all parameters and workers; None for no clipping."""
    trust: float = field(default=0.001, metadata=later(0.001) | above_0())
    """LARS' trust coefficient, eta: a step at lr 1 is at most so many times the tensor's norm."""
    adapts: str = field(default="weights", metadata=later("weights") | one_of("weights", "all"))
    """The tensors whose gradient LARS scales: weights, without BN and biases as MLPerf has it, or
    all. The others have plain momentum SGD."""
    decay_bias: bool = field(default=True, metadata=later(True))
    """Whether biases decay as weights do; gamma and beta of BN never decay."""
    fused: str = field(default="torch", metadata=EXECUTION | one_of("torch", "apex"))
    """Whose kernels make the updates of sgd and lars by equation 9: torch's own, or those of
    NVIDIA's apex, which has to be installed. They agree but for the last bits, and a run may go on
    with the others."""


@dataclass(frozen=True)
class Schedule:
    """The learning rate as a function of the epoch, by the rules of lsgd.rules.schedule.

    Defaults are those of Goyal et al. 2017, section 5.1.
    """

    reference_lr: float = field(default=0.1, metadata=above_0())
    """The lr of a minibatch of reference_batch images: eta in the paper, not that of the run."""
    reference_batch: float = field(default=256.0, metadata=above_0())
    """The minibatch for which reference_lr was chosen."""
    scaling: str = field(default="linear", metadata=one_of(*schedule.SCALINGS))
    """How the lr grows with the minibatch: in proportion (linear), with its root (sqrt), or not."""
    warmup: str = field(default="gradual", metadata=one_of(*schedule.WARMUPS))
    """The shape of the warmup; only a batch above the reference has one, unless warmup_start says
    where it begins."""
    warmup_epochs: float = field(default=5.0, metadata=at_least(0))
    """The epochs after which the lr has come to its full size."""
    milestones: list[float] = field(default_factory=lambda: [30.0, 60.0, 80.0])
    """Epochs at which the lr is multiplied by gamma."""
    gamma: float = field(default=0.1, metadata=above_0())
    """By what the lr is multiplied at each milestone."""
    warmup_start: float | None = field(default=None, metadata=later(None) | at_least(0))
    """The lr from which any batch warms up, such as 0; None for that of the reference."""
    factors: list[float] = field(default_factory=list, metadata=later([]) | finite())
    """The share of the full lr from each milestone on, in place of powers of gamma."""
    decay: str = field(default="steps", metadata=later("steps") | one_of(*schedule.DECAYS))
    """How the lr falls after the warmup: at the milestones (steps), or smoothly to end_lr."""
    power: float = field(default=2.0, metadata=later(2.0) | above_0())
    """The power of a polynomial decay: end_lr + (lr - end_lr) (1 - t)^power, t from 0 to 1."""
    end_lr: float = field(default=0.0, metadata=later(0.0) | at_least(0))
    """The lr at the end of a smooth decay, and from there on."""
    decay_steps: int | None = field(default=None, metadata=later(None) | at_least(1))
    """The step, counted from the run's first, at which a smooth decay ends; None for the last."""


@dataclass(frozen=True)
class Evaluation:
    """After which epochs a run is evaluated; after its last one it always is."""

    every: int = field(default=1, metadata=later(1) | at_least(1))
    """The epochs from one evaluation to the next."""
    offset: int = field(default=0, metadata=later(0) | at_least(0))
    """The first evaluation is after so many epochs, of `every`; 0 for as many as `every`."""
    bfloat16: bool = field(default=False, metadata=IMAGES | later(False))
    """Whether its forward passes are in bfloat16, by autocast, as training with
    precision=bfloat16 has them; else they are in the precision of the parameters."""


@dataclass(frozen=True)
class BNStatistics:
    """The means and variances by which BN normalises in an evaluation."""

    name: str = field(
        default="moving", metadata=IMAGES | later("moving") | one_of("moving", "precise", "last")
    )
    """moving is the paper's running average over steps; last has those of the last step alone;
    precise measures them anew, on training images, with the weights that are evaluated."""
    examples: int = field(default=8192, metadata=IMAGES | later(8192) | at_least(1))
    """The training images on which precise ones are measured, rounded up to whole steps."""


@dataclass(frozen=True)
class Averaging:
    """An average of the weights that is evaluated in their place, by BN statistics measured with
    it; training goes on as without."""

    name: str = field(
        default="none", metadata=IMAGES | later("none") | one_of("none", "ema", "last")
    )
    """ema is an exponential moving average over the updates; last the mean of the weights at the
    ends of the last epochs."""
    half_life: float = field(default=100.0, metadata=IMAGES | later(100.0) | above_0())
    """The updates after which a weight counts half of what it did, of ema."""
    epochs: int = field(default=6, metadata=IMAGES | later(6) | at_least(1))
    """The epochs of last."""


@dataclass(frozen=True)
class BatchGrowth:
    """Epochs from which a run has more workers, each with its n images; the lr stays that of the
    first minibatch, as the schedule has it (Smith et al. 2017)."""

    milestones: list[int] = field(default_factory=list, metadata=IMAGES | later([]))
    """Whole epochs at which the number of workers is multiplied by the factor."""
    factor: int = field(default=2, metadata=IMAGES | later(2) | at_least(2))
    """How many times the workers, at each milestone."""

    def factor_in(self, epoch: int) -> int:
        """How many times the workers of epoch 0 this epoch has."""
        return int(self.factor ** sum(epoch >= milestone for milestone in self.milestones))


@dataclass(frozen=True)
class Goal:
    """What the number of a run is: its rate at the end, or how long it takes to a rate."""

    epochs_to: dict[str, float] = field(default_factory=dict, metadata=later({}))
    """A rate and a target, such as {top1_error: 24.1}: the number is the epochs until then."""
    steps_to: dict[str, float] = field(default_factory=dict, metadata=later({}))
    """The same in steps."""
    stop: bool = field(default=False, metadata=later(False))
    """Whether the run ends with the evaluation that has the target."""

    def of(self, rate: Metric, first_step: Callable[[int], int]) -> Metric:
        """The metric of the run's number, which is of this rate where no other is named."""
        for counted, targets in (("epochs", self.epochs_to), ("steps", self.steps_to)):
            for name, target in targets.items():
                return Until.of(METRICS[name], target, counted=counted, first_step=first_step)
        return rate


@dataclass(frozen=True)
class InputsSettings:
    """The loader, which brings images to the device, and its settings."""

    loader: str = field(
        default="auto", metadata=one_of("auto", "memory", "dali", "torchvision", "synthetic")
    )
    """auto is memory for small sets, and for image files DALI where it is installed, or else
    torchvision; synthetic makes images up."""
    decoders: int | None = field(default=None, metadata=at_least(0))
    """Images that a training process decodes at once, in threads of DALI or processes of
    torchvision; by default one for each of its cores."""
    prefetch: int = field(default=2, metadata=at_least(1))
    """Passes that are made ready ahead: in all by DALI, by each process of torchvision."""
    dtype: str = field(default="float32", metadata=one_of("float32", "float16"))
    """The type of the pixels that DALI writes; float16 is coarser by 0.1 of an 8-bit level."""
    decode_on: str = field(default="auto", metadata=one_of("auto", "cpu", "gpu"))
    """Where DALI decodes: on the cpu or the gpu; auto is where the model is."""
    hardware_share: float = field(
        default=0.65,
        metadata=at_least(0) | at_most(1, "is more than all images; write a number from 0 to 1"),
    )
    """The share of the images that DALI sends to the JPEG decoder of a GPU that has one."""


@dataclass(frozen=True)
class CommSettings:
    """The library by which the processes of a job communicate, and its settings."""

    library: str = field(default="auto", metadata=one_of("auto", "single", "torch", "horovod"))
    """auto is single without a launcher, and with one Horovod if it is built for it, else torch."""
    bucket_mb: float = field(default=25.0, metadata=above_0())
    """The size, in MiB, of the flat buckets in which gradients are reduced."""
    timeout: float = field(default=600.0, metadata=above_0())
    """Seconds without an answer after which a process is given up: the others end with exit code 5,
    or, where NCCL's watchdog sees it first, a minute later with -6."""
    join_timeout: float = field(default=120.0, metadata=above_0())
    """Seconds after the start in which the processes have to meet; then they give up."""


TARGET_DATA = ("imagenet", "ptb")
"""The datasets on which published numbers were measured."""


@dataclass(frozen=True)
class Target:
    """The published number that this recipe should reproduce."""

    top1_error: float | None = field(
        default=None,
        metadata=at_least(0) | at_most(100, "is no percentage; write a number from 0 to 100"),
    )
    """The published error in percent; `std`, its standard deviation, is in percent too."""
    std: float | None = field(default=None, metadata=at_least(0))
    """The published standard deviation over seeds."""
    source: str = ""
    """Where it was published, such as a table of the paper."""
    perplexity: float | None = field(default=None, metadata=at_least(1))
    """The published perplexity, in place of an error."""

    @property
    def metric(self) -> Metric:
        """The metric of the published number; runs of another are not held against it."""
        return TOP1 if self.perplexity is None else METRICS["perplexity"]

    @property
    def number(self) -> float:
        """The published number."""
        number = self.top1_error if self.perplexity is None else self.perplexity
        assert number is not None, "lsgd.recipe.checks has refused it"
        return number

    def beside(self, number: float) -> str:
        """The distance of a run's number from the published one, in words.

        Whether that is the published number is decided over several seeds, by lsgd.report.verdict.
        """
        above = round(number - self.number, 2)
        distance = f"{abs(above):.2f} {'above' if above > 0 else 'below'}"
        source = f" ({self.source})" if self.source else ""
        return f"{distance} the published {self.metric.amount(self.number, self.std)}{source}"


@dataclass(frozen=True)
class Recipe:
    """One run. `batch_size`, steps and lr are derived, never set."""

    name: str = field(metadata=EXECUTION)
    """What reports and folders call the run."""
    data: Data
    model: Model
    optim: Optim
    schedule: Schedule
    inputs: InputsSettings = field(metadata=EXECUTION)
    comm: CommSettings = field(metadata=EXECUTION)
    workers: int = field(metadata=at_least(1))
    """k, the number of workers, of which each has its own images and BN statistics."""
    worker_batch: int = field(metadata=at_least(1))
    """n, the examples of a worker in a step; of images its BN statistics are taken over them."""
    epochs: int = field(metadata=at_least(1))
    """How many times the run goes through the training examples."""
    seed: int = field(
        default=0,
        metadata=at_least(0, math.inf) | below(2**64, "is too large; write a number below 2^64"),
    )
    """Of all that is drawn: initial weights, orders, augmentation, dropout."""
    label_smoothing: float = field(
        default=0.0,
        metadata=IMAGES
        | later(0.0)
        | at_least(0)
        | below(1, "leaves nothing of the label; write less than 1"),
    )
    """The share of a training label that is spread evenly over all classes (Szegedy et al. 2016),
    as torch and MLPerf count it; train_loss is then that of smoothed labels, and val_loss not."""
    tail: str = field(default="drop", metadata=one_of("drop", "keep"))
    """The use of the last N mod kn examples of an epoch: none, or with keep a smaller step."""
    precision: str = field(
        default="float32", metadata=one_of("float32", "tf32", "bfloat16", "float64")
    )
    """The number format of forward and backward passes; bfloat16 is by autocast, and tf32 is
    float32 whose products a GPU rounds to 10 bits."""
    gradient_compression: str = field(default="none", metadata=one_of("none", "fp16"))
    """The number format of the sums over processes; fp16 loses what is below 6e-8."""
    rehearse: bool = False
    """Whether the run is replaced by its miniature, which lsgd.recipe.rehearsal makes."""
    deviations: dict[str, str] = field(default_factory=dict, metadata=EXECUTION)
    """The rules of its paper that this recipe does not follow, each with the reason."""
    paper: str = field(default="goyal2017", metadata=EXECUTION | IMAGES | one_of(*PAPERS))
    """Whom this recipe follows, and where it does not says so: lsgd.check asks that one's rules."""
    target: Target | None = field(default=None, metadata=EXECUTION)
    strategy: StrategySettings = field(
        default_factory=StrategySettings, metadata=later({"name": "allreduce"})
    )
    cluster: Cluster = field(default_factory=Cluster, metadata=later({}))
    evaluation: Evaluation = field(default_factory=Evaluation, metadata=later({}))
    metric: Goal = field(default_factory=Goal, metadata=later({}))
    bn_statistics: BNStatistics = field(default_factory=BNStatistics, metadata=later({}))
    averaging: Averaging = field(default_factory=Averaging, metadata=later({}))
    batch_growth: BatchGrowth = field(default_factory=BatchGrowth, metadata=later({}))
    workers_per_pass: int | str = field(default=1, metadata=EXECUTION | at_least_or_auto(1))
    """Workers whose images a forward pass carries; with auto, lsgd.autotune finds the number when
    training starts. Where each worker pushes a gradient of its own, it is always one."""
    val_batch: int = field(
        default=250, metadata=EXECUTION | of("images", "tagging", "trees") | at_least(1)
    )
    """Images, sentences or trees of one pass of an evaluation; of a text it is one window of each
    stream."""
    padding: str = field(default="bucket", metadata=EXECUTION | TAGGING | one_of(*PADDINGS))
    """The cells in which the sentences of a pass are read: as many places as the longest sentence
    of the set has (global) or of the pass (batch), or of eight of like length (bucket); the same as
    batch with the empty ones left out (packed); or each sentence by itself (per_sentence)."""
    batching: str = field(
        default="folded", metadata=EXECUTION | TREES | one_of("folded", "recursive")
    )
    """How the trees of a pass go through the network: all at once, by a few large calls (folded),
    or one after the other, node by node (recursive)."""
    channels_last: bool = field(default=False, metadata=EXECUTION | IMAGES)
    """Whether images lie in memory pixel by pixel (NHWC), as a GPU's convolutions want them."""
    compile: bool = field(default=False, metadata=EXECUTION)
    """Whether the model goes through torch.compile."""
    cuda_graphs: bool = field(default=False, metadata=EXECUTION | IMAGES)
    """Whether a GPU replays what was compiled as CUDA graphs, so that a pass of few images does not
    wait for its kernels to be launched one by one; each kind of pass takes memory of its own."""
    deterministic: bool = field(default=True, metadata=EXECUTION)
    """Whether a GPU takes the same algorithms in each run, and only those that repeat to the bit;
    without, cuDNN times them and takes the fastest, and two runs differ in their last bits."""
    numa: bool = field(default=False, metadata=EXECUTION)
    """Whether a process keeps to the cores that are next to its GPU."""
    device: str = field(default="auto", metadata=EXECUTION | one_of("auto", "cpu", "cuda"))
    """Where it trains; auto takes GPUs where there are any."""
    run_dir: str | None = field(default=None, metadata=EXECUTION)
    """The folder of the run; by default runs/<name>/<time>-seed<seed>."""
    checkpoint_steps: int = field(default=0, metadata=EXECUTION | at_least(0))
    """Steps between two checkpoints within an epoch; 0 for none by their number."""
    checkpoint_minutes: float = field(default=10.0, metadata=EXECUTION | at_least(0))
    """Minutes between two checkpoints within an epoch, by the clock of process 0; 0 for none by the
    clock."""
    keep_checkpoints: int = field(default=2, metadata=EXECUTION | at_least(1))
    """The number of newest checkpoints that stay; those at a drop of the lr always do."""
    log_steps: int = field(default=20, metadata=EXECUTION | at_least(1))
    """Steps between two rows of metrics."""
    noise_scale: bool = field(default=False, metadata=EXECUTION | IMAGES)
    """Whether the gradient noise scale is measured, which needs steps of two passes at least: a
    norm of each parameter's gradient in each pass more, and the same updates."""
    profile: bool = field(default=False, metadata=EXECUTION)
    """Whether lsgd.profile times the phases of some steps and traces a few."""
    trackers: list[str] = field(default_factory=list, metadata=EXECUTION | some_of(*TRACKERS))
    """Trackers that get the run while it goes on, each by a process of its own (lsgd.track)."""
    replaced: list[str] = field(default_factory=list, metadata=EXECUTION)
    """The lines in which a rehearsal says what it has replaced."""

    @property
    def measures_bn(self) -> bool:
        """Whether each evaluation measures the statistics of BN anew; averaged weights never had
        any."""
        return self.bn_statistics.name == "precise" or self.averaging.name != "none"

    @property
    def bn_steps(self) -> int:
        """The steps of an epoch on whose images precise BN statistics are measured."""
        return min(-(-self.bn_statistics.examples // self.batch_size), self.steps_per_epoch)

    @cached_property
    def update_workers(self) -> int:
        """The workers whose gradients make one update: k, or fewer with other strategies."""
        return self.strategy.update_workers(self.workers)

    @property
    def most_processes(self) -> int:
        """The most processes of a job that all have a worker, or a server of their own."""
        return self.workers + self.strategy.server_processes

    @property
    def batch_size(self) -> int:
        """The examples of one update of the model: kn with synchronous SGD, Hn where a worker makes
        H local steps before it pushes."""
        return self.update_workers * self.worker_batch * self.strategy.push_steps

    @property
    def lr_batch(self) -> int:
        """The examples by which the lr is scaled: those of a local step, where workers make them
        before they push, and else those of an update."""
        return self.update_workers * self.worker_batch

    @property
    def server_optim(self) -> Optim:
        """The optimizer of servers: the outer rule where workers push the ways they have gone."""
        if not self.strategy.pushes_ways:
            return self.optim
        return Optim(
            momentum=self.strategy.outer_momentum,
            nesterov=self.strategy.outer == "nesterov",
            weight_decay=0.0,
        )

    @property
    def tickets(self) -> int:
        """The batches of an epoch that one worker at a time computes with: of n examples, or as
        many as it makes local steps before it pushes, or fewer at the end."""
        return -(-self.examples(self.steps_per_epoch) // self._ticket_size)

    def ticket_steps(self, ticket: int) -> int:
        """How many gradients a worker computes with a ticket."""
        first = ticket * self._ticket_size
        left = min(self.examples(self.steps_per_epoch) - first, self._ticket_size)
        return -(-left // self.worker_batch)

    @property
    def _ticket_size(self) -> int:
        return self.worker_batch * self.strategy.push_steps

    @property
    def pass_workers(self) -> int:
        """workers_per_pass as a number; raises Refused while it is auto."""
        if isinstance(self.workers_per_pass, str):
            raise Refused(
                "workers_per_pass=auto is found where training starts; here write a number, such "
                "as workers_per_pass=8"
            )
        return self.workers_per_pass

    def numbers_per_pass(self, hosted: int) -> int | None:
        """Return how many numbers the images of a full forward pass have, on a process that hosts
        so many workers; None for other workloads."""
        if self.data.workload != "images":
            return None
        # Before it is known, auto stands for all of them.
        workers = hosted if self.workers_per_pass == AUTO else min(self.pass_workers, hosted)
        images = workers * self.worker_batch
        return images * self.data.channels * self.data.image_size**2

    @property
    def keeps_tail(self) -> bool:
        """Whether the last N mod kn examples of an epoch make a smaller step."""
        return self.tail == "keep"

    @cached_property
    def train_examples(self) -> int:
        """N, the examples of which an epoch's steps are made: the images, sentences or trees, or of
        a text the windows of its kn streams."""
        if self.data.workload == "language":
            windows = sampler.windows(self.data.train_examples, self.batch_size, self.data.window)
            return windows * self.batch_size
        return self.data.train_examples

    @property
    def text_sets(self) -> tuple[str, ...]:
        """The evaluation sets of a text, sentences or trees: there need not be a test set."""
        return ("val", "test") if self.data.test_examples else ("val",)

    @cached_property
    def steps_per_epoch(self) -> int:
        """S, the number of steps that are really made in one epoch; of a batch that grows, in the
        first."""
        return self.stages[0].steps

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The stretches of epochs with one batch size: one, unless the batch grows."""
        stages: list[Stage] = []
        for epoch in (0, *self.batch_growth.milestones):
            factor, before = self.batch_growth.factor_in(epoch), stages[-1:]
            size, examples = self.batch_size * factor, self.train_examples
            steps = sampler.steps_per_epoch(examples, size, keeps_tail=self.keeps_tail)
            stages.append(
                Stage(
                    epoch=epoch,
                    workers=self.workers * factor,
                    batch_size=size,
                    steps=steps,
                    examples=examples if self.keeps_tail else steps * size,
                    steps_before=sum(int(stage.steps_until(epoch)) for stage in before),
                    examples_before=sum(stage.examples_until(epoch) for stage in before),
                )
            )
        return tuple(stages)

    def stage(self, epoch: float) -> Stage:
        """The stage that a (fractional) epoch is of; the last one has what comes after the run."""
        return [stage for stage in self.stages if stage.epoch <= epoch][-1]

    def first_step(self, epoch: int) -> int:
        """The number of steps before an epoch, counted from 0."""
        return int(self.stage(epoch).steps_until(epoch))

    def place(self, step: int) -> tuple[int, int]:
        """The epoch of a step of the run, and the number of the step in this epoch."""
        [*_, stage] = (stage for stage in self.stages if stage.steps_before <= step)
        epochs, of_epoch = divmod(step - stage.steps_before, stage.steps)
        return stage.epoch + epochs, of_epoch

    @property
    def total_steps(self) -> int:
        """The number of steps of the whole run."""
        return self.first_step(self.epochs)

    def examples(self, steps: int) -> int:
        """The number of training examples that the first `steps` steps of the run see."""
        epoch, rest = self.place(steps)
        stage = self.stage(epoch)
        return stage.examples_until(epoch) + rest * stage.batch_size

    def epoch(self, step: float) -> float:
        """The (fractional) epoch at the start of a step of the run, or within it: e + t/S."""
        stage = self.stages[0]  # found by a loop and no call, since every step asks
        for later_stage in self.stages[1:]:
            if later_stage.steps_before <= step:
                stage = later_stage
        whole, part = divmod(step - stage.steps_before, stage.steps)
        return stage.epoch + whole + part / stage.steps

    def lr(self, step: float) -> float:
        """The learning rate of a step of the run, or of a local step within it."""
        left = 1.0 if self.schedule.decay == "steps" else self._decay_left(step)
        return schedule.learning_rate(self.epoch(step), left=left, **self._schedule_rule)

    @cached_property
    def _schedule_rule(self) -> dict[str, Any]:
        rule = vars(self.schedule) | {"batch_size": self.lr_batch}
        del rule["decay_steps"]  # of which lr makes the share that is left
        return rule

    @property
    def warms_up(self) -> bool:
        """Whether this batch has a warmup."""
        rule = self.schedule
        return schedule.warms_up(
            self.lr_batch,
            reference_batch=rule.reference_batch,
            warmup=rule.warmup,
            warmup_start=rule.warmup_start,
        )

    @cached_property
    def _warmup_steps(self) -> float:
        epochs = self.schedule.warmup_epochs if self.warms_up else 0.0
        return self.stage(epochs).steps_until(epochs)

    def _decay_left(self, step: float) -> float:
        end = self.schedule.decay_steps or self.total_steps
        return schedule.decay_left(step, warmup_steps=self._warmup_steps, decay_steps=end)

    def epochs_from(self, step: int) -> Iterator[tuple[int, list[int]]]:
        """The epochs still to train when `step` is the next one, each with its steps of the run.

        A rehearsal makes a few steps of the whole run: the first two, one in the middle of the
        warmup, the one at its end, and one on each side of the first drop and of each growth.
        """
        run = range(step, self.total_steps)
        if self.rehearse:
            warmup = self.schedule.warmup_epochs
            changes = [(self.schedule.milestones or [self.epochs])[0]]
            changes += self.batch_growth.milestones
            sides = [self._first_step(epoch) - back for epoch in changes for back in (1, 0)]
            at = {0, 1, self._first_step(warmup / 2), self._first_step(warmup), *sides}
            steps = sorted(s for s in at if s in run)
            for epoch in sorted({self.place(s)[0] for s in steps}):
                yield epoch, [s for s in steps if self.place(s)[0] == epoch]
            return
        for epoch in range(self.place(step)[0], self.epochs):
            yield epoch, list(range(max(step, self.first_step(epoch)), self.first_step(epoch + 1)))

    def work_left(self, step: int) -> tuple[int, int]:
        """Return the number of steps and of evaluations still to be made when `step` is the next
        one."""
        if self.rehearse:
            made = dict(self.epochs_from(step))
            return sum(map(len, made.values())), sum(map(self.evaluates_after, made))
        epochs = range(self.place(step)[0], self.epochs)
        return self.total_steps - step, sum(map(self.evaluates_after, epochs))

    def evaluates_after(self, epoch: int) -> bool:
        """Whether the run is evaluated at the end of this epoch, counted from 0."""
        rule, done = self.evaluation, epoch + 1
        return done == self.epochs or done % rule.every == rule.offset

    def number_metric(self, rate: Metric) -> Metric:
        """The metric of the run's number, for a workload with this rate."""
        return self.metric.of(rate, self.first_step)

    def is_over(self, rates: Mapping[int, Mapping[str, Any]]) -> bool:
        """Whether a run stops with these rates of its epochs, as they have the target."""
        return self.metric.stop and math.isfinite(self.number_metric(TOP1).number(rates))

    def drops_in(self, epoch: int) -> bool:
        """Whether the lr drops within this epoch, counted from 0, or at its end."""
        return any(epoch < milestone <= epoch + 1 for milestone in self.schedule.milestones)

    def _first_step(self, epoch: float) -> int:
        """The first step of the run that is at this (fractional) epoch or after it."""
        # Rounded, since the product may miss a whole number in its last bit, or lie between two.
        near = round(self.stage(epoch).steps_until(epoch))
        return near if self.epoch(near) >= epoch else near + 1

    def trajectory(self) -> dict[str, Any]:
        """The fields that decide what is computed, N among them."""
        fields = trajectory(self, self.data.workload)
        # The loader is execution, but these examples are not the dataset's.
        fields["data"]["synthetic"] = self.inputs.loader == "synthetic"
        # Servers are another way to the same sums, unless they do not wait for all of them.
        if self.strategy.synchronous:
            fields.pop("strategy", None)
        if not self.strategy.pushes or self.strategy.order != "virtual":
            fields.pop("cluster", None)
        if self.strategy.pushes and (order := Path(self.strategy.order)).is_file():
            # Whatever the file is called, and wherever it lies.
            fields["strategy"]["order"] = hashlib.sha256(order.read_bytes()).hexdigest()
        return fields

    @property
    def fingerprint(self) -> str:
        """Hash of the trajectory fields: two recipes with the same one train the same run."""
        text = json.dumps(self.trajectory(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def summary(self) -> str:
        """A description of this run, in a few plain lines."""
        first, last = (
            self.lr(0),
            schedule.scaled_lr(
                self.lr_batch,
                reference_lr=self.schedule.reference_lr,
                reference_batch=self.schedule.reference_batch,
                scaling=self.schedule.scaling,
            ),
        )
        ramp = f"lr {first:g}" if first == last else f"lr {first:g} to {last:g}"
        updating = f"{self.update_workers}"
        if self.update_workers < self.workers:
            updating += f" of {self.workers}"
        skipped = len(self.data.skip)
        local_steps = self.strategy.push_steps
        lines = [
            f"{self.name}: {self.model.name} on {self.data.name}, {self.epochs} epochs of "
            f"{', then '.join(str(stage.steps) for stage in self.stages)} steps, seed {self.seed}",
            f"batch_size {self.batch_size} = {updating} workers x {self.worker_batch} "
            f"{EXAMPLES[self.data.workload]}"
            + f" x {local_steps} local steps" * (local_steps > 1)
            + f", {ramp}",
            *(
                f"batch_size {stage.batch_size} = {stage.workers} workers from epoch "
                f"{stage.epoch} on"
                for stage in self.stages[1:]
            ),
            *([NO_REPLAY] if self.strategy.name == "hogwild" else []),
            *([f"images left out (data.skip): {skipped}"] if skipped else []),
            *self.replaced,
        ]
        return "\n".join(lines)

    def outcome(self, metric: Metric, number: float) -> str:
        """The number of the run in a sentence, with the published one if that is of the same.

        The number of a rehearsal means nothing, and is left out.
        """
        if self.rehearse:
            return "rehearsal done: steps, evaluations and checkpoints all went through"
        outcome = metric.named(number) + f" ({metric.whose})" * math.isfinite(number)
        on_its_data = self.data.name in TARGET_DATA and self.inputs.loader != "synthetic"
        if self.target and self.target.metric == metric and on_its_data:
            return f"{outcome}; {self.target.beside(number)}"
        return outcome
