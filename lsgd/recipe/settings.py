"""The settings of a recipe, each declared once.

The declaration of a field has its default, its kind (trajectory or execution), its limits, the
choices of other fields with which it is used, and its meaning. The metadata are built from the
functions of lsgd.recipe.fields. lsgd.recipe.checks enforces them, and raises UsageError for fields
that contradict each other.

Trajectory fields decide what a run computes and are hashed into the fingerprint. Execution fields
change speed, place or description, and no result.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lsgd import paths
from lsgd.own_parts import FORM, is_import_path, snake_case
from lsgd.recipe.fields import (
    ADDED_LATER,
    AUTO,
    EXECUTION,
    SHARED,
    WORKLOAD,
    above_0,
    added_later,
    at_least,
    at_least_or,
    at_most,
    augmentation_parts,
    below,
    evaluated_sizes,
    evaluation_places,
    finite,
    folder_name,
    is_within,
    not_empty,
    one_of,
    only_for,
    only_with_part,
    phases_by_epoch,
    points_by_epoch,
    set_names,
    setting,
    some_of,
)
from lsgd.recipe.retention import VERIFY
from lsgd.recipe.strategies import StrategySettings, VirtualCluster
from lsgd.rules import evaluation_interval, schedule
from lsgd.rules.augmentation import AREA, ASPECT, CROP_RATIO, PARTS
from lsgd.rules.metric import METRICS, OWN_NAME, TOP1, Metric, TimeToTarget, named_metric

MODELS = {
    "images": ("resnet50", "resnet50_v2", "resnet101", "resnet20", "small_resnet", "lenet5"),
    "language": ("lstm",),
    "tagging": ("bilstm", "bilstm_crf"),
    "trees": ("treelstm", "childsum"),
}
"""The networks that can be trained on each workload."""
OWN_NETWORK = "own"
"""The name of the network of a workload of the user's own, which makes it itself."""
LIBRARIES = ("torchvision", "timm")
"""The libraries whose image networks can be trained, by a name such as timm/convnext_atto."""
UNCHANGED_BY_ROLES = re.compile(r"(torchvision|timm)/(wide_)?resne(t|xt)\d+[a-dt]?(_\d+x\d+d|_2)?")
"""A pattern for library networks whose treatment did not change when parameter roles came in.
Initialisation and weight decay used to depend on the classes of layers. For these networks the
roles decide the same."""
PAPERS = (
    *("akiba2017", "algoperf", "cloudtpu", "diu", "dle", "ffcv", "flax", "fujitsu", "gluon"),
    *("goyal2017", "haiku", "hoffer2017", "intel", "lamb2020", "lars2017", "mlperf", "mlperf05"),
    *("mlperf06", "mosaic", "nado2021", "nus", "nus_lamb", "rsb", "torchvision"),
)
"""The papers whose rules lsgd.check verifies, each in a file of lsgd/check/papers."""
MEAN_SQUARE = ("adam", "adamw", "lamb", "rmsprop_warmup")
"""The optimizers that divide by the root of a mean of squared gradients."""
TRACKERS = ("mlflow", "wandb")
"""The experiment trackers that lsgd.track supports, by the name of their package."""
BLURS = ("none", "convolutions", "all")
"""The choices of layers that a network blurs."""
PADDINGS = ("global", "batch", "bucket", "packed", "per_sentence")
IMAGES, LANGUAGE, TAGGING, TREES = (only_for(WORKLOAD, workload) for workload in MODELS)
TEXT = only_for(WORKLOAD, "language", "tagging", "trees")
TAGGING_AND_TREES = only_for(WORKLOAD, "tagging", "trees")
"""Metadata of fields that exist for some workloads only."""
SMOOTH = only_for("schedule.decay", *schedule.SMOOTH_DECAYS, override="schedule")
"""Metadata of the settings of a smooth decay of the lr."""
CROPPED = only_with_part("crop")
"""Metadata of the settings of random crops of image files."""


@dataclass(frozen=True)
class Data:
    """The dataset settings of a recipe: the reader, the size, and the sampling of examples."""

    name: str
    """The name of the dataset: it selects the reader, and the default folder below $LSGD_DATA."""
    train_examples: int = field(metadata=at_least(1))
    """The number of training images, sentences, trees or text tokens, `<eos>` included."""
    val_examples: int = field(metadata=at_least(1))
    """The number of validation images, sentences, trees or text tokens, counted as in training."""
    classes: int = field(metadata=at_least(1))
    """The number of classes: of images or tree nodes, of tags, or the vocabulary size of a text."""
    channels: int = setting(0, IMAGES, at_least(1))
    """The number of channels of an image: 3 for colour, 1 for grey.
    With 1, files of colours are read as grey, and those of 16 bits keep their precision. The
    network's first layer has one channel; from `model.start` it is the sum over the three."""
    image_size: int = setting(0, IMAGES, at_least(1))
    """The side of an input image of the model, in pixels."""
    mean: list[float] = setting([], IMAGES, finite())
    """The mean of each channel, for pixels in [0, 1]."""
    std: list[float] = setting([], IMAGES, above_0())
    """The standard deviation of each channel, for pixels in [0, 1]."""
    augmentation: str = setting("", IMAGES, augmentation_parts())
    """The augmentation of training images: a name, or a list of parts.
    crop_flip takes 8 to 100 % of the area at an aspect of 3/4 to 4/3 and flips. fb_resnet_torch
    does the same, jitters brightness, contrast and saturation by 0.4, adds lighting noise, and
    resizes bicubically, in evaluation as in training. shift_flip pads by 4, shifts and flips. A
    list, such as [crop,flip,trivial_augment,erasing], has these parts alone, with a bilinear
    resize. One of your own, package.module:Name, changes images that are loaded with none."""
    augmentation_options: dict[str, Any] = setting({}, IMAGES, ADDED_LATER)
    """The options of an augmentation of your own, completed by their defaults."""
    augmentation_source: str = setting("", IMAGES, ADDED_LATER)
    """The SHA-256 of the source of an augmentation of your own, which lsgd computes."""
    root: str | None = setting(
        None, EXECUTION, not_empty("write data.root=FOLDER, or leave it out")
    )
    """The folder of the dataset; by default $LSGD_DATA/<name>, or data/<name>."""
    index: str | None = setting(
        None, EXECUTION, IMAGES, not_empty("write data.index=FOLDER, or leave it out")
    )
    """The folder with the index of the images; by default the dataset folder."""
    stage: str | None = setting(
        None,
        EXECUTION,
        only_for("inputs.loader", "auto", "memory", "dali", "torchvision", FORM, override="inputs"),
        not_empty("write data.stage=FOLDER, or leave it out"),
    )
    """A folder on storage of each machine, to which the dataset's files are copied before the run.
    One process of a machine copies them, and later runs use the copy again. Variables in it, such
    as $TMPDIR, are those of the machine that trains."""
    skip_list: str | None = setting(
        None, EXECUTION, IMAGES, not_empty("write data.skip_list=FILE, or leave it out")
    )
    """A file that names images to exclude.
    lsgd.config reads it into `skip` and subtracts them from the numbers of examples."""
    skip: list[str] = setting([], IMAGES, ADDED_LATER)
    """Paths of excluded images, such as `train/n01440764/n01440764_10026.JPEG`."""
    crop_ratio: float = setting(
        CROP_RATIO,
        IMAGES,
        ADDED_LATER,
        above_0(),
        at_most(1, "is more than the image; write a number up to 1"),
    )
    """The side of the centre crop of an evaluated image over its resized short side.
    It is for files of images; 0.875 resizes to 256 pixels for a crop of 224."""
    crop_area: list[float] = setting([*AREA], IMAGES, CROPPED, ADDED_LATER, above_0())
    """The least and the largest share of an image's area in a random crop, as in [0.05, 1]."""
    crop_aspect: list[float] = setting([*ASPECT], IMAGES, CROPPED, ADDED_LATER, above_0())
    """The least and the largest ratio of the width of a random crop to its height."""
    augmented_epochs: int | None = setting(
        None, IMAGES, only_with_part(*PARTS), ADDED_LATER, at_least(1)
    )
    """The number of first epochs with augmentation; None for all epochs.
    Images of later epochs are resized and cropped as in an evaluation."""
    rand_operations: int = setting(
        2, IMAGES, only_with_part("rand_augment"), ADDED_LATER, at_least(1, 14)
    )
    """The number of operations that RandAugment applies to an image."""
    rand_magnitude: int = setting(
        9, IMAGES, only_with_part("rand_augment"), ADDED_LATER, at_least(0, 30)
    )
    """The magnitude of RandAugment's operations: 0, for none, to 30, as in torchvision."""
    erase_probability: float = setting(
        0.1,
        IMAGES,
        only_with_part("erasing"),
        ADDED_LATER,
        above_0(),
        at_most(1, "is more than all images; write a number up to 1"),
    )
    """The share of training images in which a window is erased, i.e. set to the mean colour.
    Its area is 2 to 33 % of the image, its aspect 0.3 to 3.3 (Zhong et al. 2017)."""
    balance: str = setting("none", IMAGES, ADDED_LATER, one_of("none", "weights", "sampler"))
    """The treatment of classes with unequal numbers of training images: none, weights or sampler.
    weights multiplies the training loss of an image of class c by N / (K N_c), for N images of
    which N_c are of class c, and K classes; the mean weight is 1. sampler draws N images per epoch
    with replacement, each of a class drawn uniformly. Evaluation is not balanced."""
    mixup: float = setting(0.0, IMAGES, ADDED_LATER, at_least(0, 1))
    """The alpha of mixup, or 0: two images are added by the shares of a Beta(alpha, alpha) draw.
    The draw is one per worker and step, and the pairs are of one worker (Zhang et al. 2018).
    train_top1 and train_top5 count an image's own label alone."""
    cutmix: float = setting(0.0, IMAGES, ADDED_LATER, at_least(0, 1))
    """The alpha of CutMix, or 0: a window of another image of the worker replaces its pixels.
    It is that of Yun et al. 2019. With mixup too, each is drawn half of the time."""
    workload: str = setting("images", ADDED_LATER, one_of(*MODELS, own=True))
    """The workload, which decides what the model predicts.
    images: the class of an image. language: the next word of a text. tagging: the tag of each word
    of a sentence. trees: the class of each node of a parsed sentence. A workload of your own is
    named by its import path, package.module:Name."""
    workload_options: dict[str, Any] = setting({}, ADDED_LATER)
    """The options of a workload of your own, completed by their defaults."""
    workload_source: str = setting("", ADDED_LATER)
    """The SHA-256 of the source of a workload of your own, which lsgd computes."""
    test_examples: int = setting(0, TEXT, at_least(0))
    """The number of sentences, trees or tokens in the test set, or 0 without a test set."""
    window: int = setting(0, LANGUAGE, at_least(1))
    """The tokens of a window: the length of truncated backpropagation through time."""
    eval_streams: int = setting(1, LANGUAGE, at_least(1))
    """The number of streams an evaluation text is cut into, each read from a zero state.
    1 reads the text unsplit."""
    words: int = setting(0, TAGGING_AND_TREES, at_least(1))
    """The size of the network's vocabulary: distinct training words and one for unknown words."""
    lowercase: bool = setting(False, TAGGING_AND_TREES)
    """Whether words are lowercased before they are looked up in the vocabulary."""
    order: str = setting("shuffled", TAGGING, one_of("shuffled", "by_length"))
    """The order of the sentences in an epoch.
    by_length puts sentences of similar length into a step, and shuffles the steps."""
    word_dropout: float = setting(
        0.0, TAGGING, at_least(0), below(1, "leaves no word; write less than 1")
    )
    """The share of training words replaced by the unknown word, drawn per epoch and sentence."""

    @property
    def is_own_workload(self) -> bool:
        """Whether the workload is from a package of the user's."""
        return is_import_path(self.workload)

    @property
    def rated_classes(self) -> int | None:
        """The number of classes that predictions are among; None for a workload of the user's own.

        What the metrics of such a workload mean is not known, whatever their names.
        """
        return None if self.is_own_workload else self.classes

    @property
    def folder(self) -> Path:
        """The folder of the dataset's files: data.root, or the default one of its name."""
        return Path(self.root) if self.root else paths.data_root(self.name)


@dataclass(frozen=True)
class Model:
    """The network settings of a recipe: the network's name and its hyper-parameters."""

    name: str = field(
        metadata=one_of(
            *(name for names in MODELS.values() for name in names),
            OWN_NETWORK,
            within=LIBRARIES,
            own=True,
        )
    )
    """The name of a network of lsgd for this workload, or torchvision/NAME or timm/NAME.
    A network of your own is named by its import path, package.module:Name. own is the network that
    a workload of your own makes."""
    last_gamma: float = setting(0.0, IMAGES, only_for("model.gamma", "ones"), finite())
    """The initial gamma of the last norm layer of every residual block.
    0 is the value of Goyal et al. 2017, section 5.1; 1 is the other row of table 2b."""
    hidden: int = setting(120, IMAGES, only_for("model.name", "lenet5"), ADDED_LATER, at_least(1))
    """The units of LeNet-5's first fully connected layer."""
    gamma: str = setting("ones", IMAGES, ADDED_LATER, one_of("ones", "uniform"))
    """The initial gamma of all other norm layers: ones, or uniform in (0, 1) as in MosaicML's code.
    With uniform the last gammas are uniform too."""
    blurpool: str = setting("none", IMAGES, ADDED_LATER, one_of(*BLURS))
    """The layers that are blurred by [1, 2, 1] in both directions (Zhang 2019).
    convolutions are those with a stride and 16 or more input channels, before which it is done;
    all includes max-pooling, whose stride the blur takes."""
    last_bias: float = setting(0.0, IMAGES, ADDED_LATER, finite())
    """The initial bias of the last layer, such as -ln K for binary cross-entropy of K classes."""
    options: dict[str, Any] = setting({}, IMAGES, ADDED_LATER)
    """Further keyword arguments for a library's network, such as {drop_path_rate: 0.1}.
    For a network of your own they are its options, completed by their defaults."""
    source: str = setting("", IMAGES, ADDED_LATER)
    """The SHA-256 of the source of a network of your own, which lsgd computes."""
    start: str | None = setting(
        None, EXECUTION, IMAGES, not_empty("write model.start=PATH, or leave it out")
    )
    """The initial weights of the network, for fine-tuning: a file, a run folder or an export.
    A file is a checkpoint of lsgd, or a state dict, such as torchvision's or timm's, by torch.save
    or as safetensors. By default the recipe's seed determines the weights."""
    start_sha256: str = setting("", IMAGES, ADDED_LATER)
    """The SHA-256 of the file of `start`, in hexadecimal.
    It identifies the weights, and lsgd.config computes it if it is empty."""
    start_optimizer: bool = setting(False, IMAGES, ADDED_LATER)
    """Whether the optimizer's state, such as its momenta, starts from the run of `start` too.
    The run's settings, such as the lr and the weight decay, are the recipe's own. It needs a
    checkpoint of lsgd of the same network and optimizer, by allreduce or sync in both runs."""
    new_head: bool = setting(False, IMAGES, ADDED_LATER)
    """Whether the last layer, whose size is the number of classes, starts anew from the seed.
    All other layers start from the weights of `start`."""
    frozen: list[str] = setting([], IMAGES, ADDED_LATER)
    """Patterns of the parameters that keep their initial values, such as [conv1, "layer1.*"].
    A pattern is the name of a parameter or of a layer, all of whose parameters it means; * stands
    for any text. BN whose gamma and beta are both frozen normalises by its running statistics,
    which do not change."""
    embedding: int = setting(0, TEXT, at_least(1))
    """The dimension of a word embedding."""
    width: int = setting(0, TEXT, at_least(1))
    """The hidden units of an LSTM, per layer and direction, or per node of a tree."""
    layers: int = setting(1, LANGUAGE, at_least(1))
    """The number of stacked LSTM layers."""
    dropout: float = setting(
        0.0, TAGGING, at_least(0), below(1, "leaves nothing; write less than 1")
    )
    """The dropout rate for the word representations of a sentence and for the outputs of the LSTMs.
    All words of a sentence share one dropout mask (Gal and Ghahramani 2016)."""

    @property
    def is_own(self) -> bool:
        """Whether the network is from a package of the user's."""
        return is_import_path(self.name)

    @property
    def is_from_library(self) -> bool:
        """Whether the network is from torchvision, timm or a package of the user's."""
        return is_within(self.name, LIBRARIES) or self.is_own

    @property
    def starts_pretrained(self) -> bool:
        """Whether a run starts from its library's own trained weights, by the option pretrained."""
        return is_within(self.name, LIBRARIES) and self.options.get("pretrained") is True

    def started_from(self, start: str | None) -> "Model":
        """Return these settings with a file of start weights in place of the option pretrained."""
        options = {key: each for key, each in self.options.items() if key != "pretrained"}
        return replace(self, options=options, start=start)

    @property
    def uses_parameter_roles(self) -> bool:
        """Whether parameter roles change how this network is initialised, decayed and normalised.

        Without it the result is that of the earlier rule, which went by the classes of layers.
        """
        return self.is_from_library and not UNCHANGED_BY_ROLES.fullmatch(self.name)


@dataclass(frozen=True)
class Optim:
    """The optimizer settings of a recipe; by default momentum SGD as in Goyal et al. 2017."""

    momentum: float = setting(
        0.9,
        only_for("optim.name", "sgd", "lars", *MEAN_SQUARE, required=0.0),
        at_least(0),
        below(1, "keeps all that has been; write a number below 1"),
    )
    """The momentum of SGD, or beta1 of Adam, AdamW and LAMB, or mu1 of rmsprop_warmup."""
    nesterov: bool = setting(True, only_for("optim.name", "sgd", "lars", required=False))
    """Whether SGD uses Nesterov momentum, as PyTorch defines it."""
    weight_decay: float = setting(1e-4, at_least(0))
    """The weight decay of convolution and fc weights and of the fc bias; BN has none.
    It is added to the gradient. adamw subtracts lr times decay times weight instead, and so does
    optim.decay=decoupled. lamb adds it to the direction of the update, before the ratio."""
    equation: int = setting(9, only_for("optim.name", "sgd", "lars"), one_of(9, 10))
    """The equation of the paper that updates the momentum buffer, 9 or 10.
    9, as in PyTorch, keeps the lr outside the momentum; 10 has it inside."""
    momentum_correction: bool = setting(
        False, only_for("optim.name", "sgd", "lars"), only_for("optim.equation", 10)
    )
    """Whether momentum is corrected when the lr changes (remark 2 of the paper)."""
    name: str = setting(
        "sgd", ADDED_LATER, one_of("sgd", "lars", *MEAN_SQUARE, "adagrad", own=True)
    )
    """The optimizer, such as sgd, or one of your own, package.module:Name.
    adamw is Adam whose weight decay is decoupled from the gradient. lars is momentum SGD whose
    gradient is scaled for each tensor. With equation 9 it keeps the lr outside the momentum; with
    10 inside, as the paper of LARS and MLPerf do. lamb scales the update of adamw for each tensor.
    rmsprop_warmup changes from RMSprop to momentum SGD in the first epochs (Akiba et al. 2017)."""
    beta2: float = setting(
        0.999,
        only_for("optim.name", *MEAN_SQUARE),
        ADDED_LATER,
        at_least(0),
        below(1, "keeps the first gradient's square for ever; write a number below 1"),
    )
    """The beta2 of Adam, AdamW and LAMB, the decay rate of the mean of squared gradients.
    With rmsprop_warmup it is mu2."""
    eps: float = setting(
        1e-8, only_for("optim.name", "lars", *MEAN_SQUARE, "adagrad"), ADDED_LATER, at_least(0)
    )
    """The number added to the denominator: the norms in LARS, the root in the other optimizers."""
    clip_norm: float | None = setting(None, ADDED_LATER, above_0())
    """The largest norm of an update's gradient (all parameters and workers); None for no clipping.
    A longer gradient is scaled down to it (Pascanu et al. 2013)."""
    trust: float = setting(0.001, only_for("optim.name", "lars"), ADDED_LATER, above_0())
    """LARS' trust coefficient, eta: at lr 1, the largest ratio of a step to the tensor's norm."""
    ratio_decay: float | None = setting(
        None, only_for("optim.name", "lars"), ADDED_LATER, at_least(0)
    )
    """The weight decay in the denominator of LARS' ratio; None for weight_decay.
    It applies to tensors that decay."""
    adapts: str = setting(
        "weights",
        only_for("optim.name", "lars", "lamb"),
        ADDED_LATER,
        one_of("weights", "decayed", "all"),
    )
    """The tensors that LARS or LAMB scales: weights, decayed or all.
    weights excludes BN and biases, as MLPerf does. decayed means those with weight decay, as timm
    and apex have it. LARS updates the other tensors by momentum SGD, and LAMB by AdamW."""
    bias_correction: bool = setting(True, only_for("optim.name", "lamb"), ADDED_LATER)
    """Whether LAMB corrects both means for their start at 0, as Adam does.
    timm and apex do; the code of its authors does not."""
    rms_lr: float = setting(3e-4, only_for("optim.name", "rmsprop_warmup"), ADDED_LATER, above_0())
    """The lr of the RMSprop part of rmsprop_warmup, eta_RMSprop, whatever the lr of SGD."""
    beta_center: float = setting(
        10.0, only_for("optim.name", "rmsprop_warmup"), ADDED_LATER, at_least(0)
    )
    """The epoch at which half of rmsprop_warmup's update is momentum SGD."""
    beta_period: float = setting(
        5.0, only_for("optim.name", "rmsprop_warmup"), ADDED_LATER, above_0()
    )
    """The epochs of the transition; half of them after beta_center all is momentum SGD."""
    head_lr: float | None = setting(None, IMAGES, ADDED_LATER, above_0())
    """The schedule.reference_lr of the last layer; None for that of all other layers.
    At every step its lr is head_lr / reference_lr times that of the other layers."""
    decay_bias: bool = setting(True, ADDED_LATER)
    """Whether weight decay applies to biases; that of norms is decay_norm."""
    decay_norm: bool = setting(False, ADDED_LATER)
    """Whether weight decay applies to gamma and beta of norms, and to what a network excludes."""
    decay: str = setting(
        "gradient",
        only_for("optim.name", "sgd"),
        only_for("optim.equation", 9),
        ADDED_LATER,
        one_of("gradient", "decoupled"),
    )
    """The weight decay of sgd: in the gradient, or decoupled from it.
    decoupled multiplies a weight by 1 - weight_decay lr / (full lr) before each update, as
    MosaicML's code does: the full lr is the scaled one, or the highest of schedule.points."""
    fused: str = setting("torch", EXECUTION, SHARED, one_of("torch", "apex"))
    """The source of fused kernels for sgd and lars by equation 9: PyTorch or NVIDIA's apex.
    apex has to be installed. The two agree except for the last bits, and a run may be resumed with
    the other."""
    options: dict[str, Any] = setting({}, ADDED_LATER)
    """The options of an optimizer of your own, completed by their defaults."""
    source: str = setting("", ADDED_LATER)
    """The SHA-256 of the source of an optimizer of your own, which lsgd computes."""

    @property
    def is_own(self) -> bool:
        """Whether the optimizer is from a package of the user's."""
        return is_import_path(self.name)


@dataclass(frozen=True)
class Schedule:
    """The settings of a recipe's learning-rate schedule, by the rules of lsgd.rules.schedule.

    Defaults are those of Goyal et al. 2017, section 5.1.
    """

    reference_lr: float = setting(0.1, above_0())
    """The lr for a minibatch of reference_batch images, not that of this run: eta in the paper."""
    reference_batch: float = setting(256.0, above_0())
    """The minibatch for which reference_lr was chosen."""
    scaling: str = setting("linear", one_of(*schedule.SCALINGS))
    """The growth of the lr with the minibatch: linear, by its root (sqrt), or none."""
    warmup: str = setting("gradual", one_of(*schedule.WARMUPS))
    """The shape of the warmup.
    Only a batch above the reference batch warms up, unless warmup_start is given."""
    warmup_epochs: float = setting(5.0, at_least(0))
    """The length of the warmup, in epochs."""
    milestones: list[float] = setting(
        [30.0, 60.0, 80.0], only_for("schedule.decay", "steps", required=[])
    )
    """Epochs at which the lr is multiplied by gamma."""
    gamma: float = setting(0.1, above_0())
    """The factor of the lr at each milestone."""
    warmup_start: float | None = setting(
        None, only_for("schedule.warmup", "gradual", "constant"), ADDED_LATER, at_least(0)
    )
    """The lr at the start of a warmup for any batch size, such as 0; None for the reference lr."""
    factors: list[float] = setting([], ADDED_LATER, above_0())
    """The share of the full lr from each milestone on, which replaces powers of gamma."""
    decay: str = setting("steps", ADDED_LATER, one_of(*schedule.DECAYS, own=True))
    """The decay of the lr after the warmup: at the milestones (steps), or smooth, to end_lr.
    points is the whole lr, without scaling and warmup. A decay of your own is named by its import
    path, package.module:Name."""
    power: float = setting(
        2.0, only_for("schedule.decay", "polynomial", override="schedule"), ADDED_LATER, above_0()
    )
    """The power of a polynomial decay: end_lr + (lr - end_lr) (1 - t)^power, t from 0 to 1."""
    end_lr: float = setting(0.0, SMOOTH, ADDED_LATER, at_least(0))
    """The lr at the end of a smooth decay and after it."""
    decay_steps: int | None = setting(None, SMOOTH, ADDED_LATER, at_least(1))
    """The step of the run at which a smooth decay ends; None for the last step."""
    per: str = setting("step", ADDED_LATER, one_of("step", "epoch"))
    """The interval at which the lr changes: step or epoch.
    With epoch it is constant in an epoch: the warmup has in epoch e, counted from 0, the lr that it
    otherwise has at the end of this epoch, and the decay the one that it has at its start."""
    points: list[list[float]] = setting(
        [],
        only_for("schedule.decay", "points", override="schedule"),
        ADDED_LATER,
        points_by_epoch(0),
    )
    """Pairs of epoch and lr, such as [[0,0.1],[2,1.7],[16,0]], between which the lr is linear.
    Two pairs of one epoch are a jump. The lr is that of the run's own minibatch, not scaled."""
    options: dict[str, Any] = setting({}, ADDED_LATER)
    """The options of a decay of your own, completed by their defaults."""
    source: str = setting("", ADDED_LATER)
    """The SHA-256 of the source of a decay of your own, which lsgd computes."""


@dataclass(frozen=True)
class Evaluation:
    """The evaluation settings of a recipe: after which epochs, and in which precision.

    The last epoch is always evaluated.
    """

    every: int | float | str = setting(1, SHARED, ADDED_LATER, evaluation_places())
    """The interval between evaluations: a number of epochs, a fraction of one, or '500 steps'.
    A fraction, or steps of the run, add evaluations within epochs to those at the end of each. Only
    whole numbers of epochs are hashed, since evaluations within epochs change no result."""
    sets: list[str] = setting(["val"], EXECUTION, SHARED, IMAGES, set_names())
    """The evaluation sets of an image folder: val first, by which the run is judged, then others.
    Each is a folder beside `train` with the same classes, such as v2 of [val, v2], which
    `lsgd prepare folder --sets v2` indexes. Each has its own metrics in the rows, such as
    v2_top1_error."""
    offset: int = setting(0, ADDED_LATER, at_least(0))
    """The number of epochs before the first evaluation; 0 for `every`."""
    bfloat16: bool = setting(False, IMAGES, ADDED_LATER)
    """Whether evaluation runs its forward passes in bfloat16, by autocast.
    Training does so with precision=bfloat16. Otherwise evaluation runs in the precision of the
    parameters."""

    mirror: bool = setting(False, IMAGES, ADDED_LATER)
    """Whether the logits of an evaluated image are the mean with those of its mirror image.
    An evaluation then takes two forward passes."""
    image_sizes: list[list[float]] = setting([], IMAGES, ADDED_LATER, evaluated_sizes())
    """The size of evaluated images by epoch, a list of [epoch, pixels, crop_ratio].
    Each holds from its epoch on, the first from epoch 0. The last one is data.image_size with
    data.crop_ratio, which a prediction has too. A crop_ratio may be left out for data.crop_ratio,
    and is for image files."""
    rectangle_batch: int = setting(0, IMAGES, ADDED_LATER, at_least(0))
    """The number of images, sorted by aspect ratio, with a common rectangle in evaluation, or 0.
    The rectangle has their mean aspect ratio, and the size of a square as its shorter side, as in
    fast.ai's and DIU's code. 0 evaluates squares. It is for image files."""
    rectangle_epoch: int = setting(0, IMAGES, ADDED_LATER, at_least(0))
    """The first epoch, from 0, that is evaluated in rectangles; those before it are in squares."""

    @property
    def is_within_epochs(self) -> bool:
        """Whether the run is evaluated within epochs too, beside the end of each."""
        return evaluation_interval.is_within_epochs(self.every)

    @property
    def epochs(self) -> int:
        """The number of epochs between two evaluations at the end of an epoch."""
        return self.every if isinstance(self.every, int) else 1


@dataclass(frozen=True)
class BNStatistics:
    """The settings of the means and variances by which BN normalises in an evaluation."""

    name: str = setting("moving", IMAGES, ADDED_LATER, one_of("moving", "precise", "last"))
    """The source of BN's evaluation statistics: moving, precise or last.
    moving is the paper's running average over steps. last takes those of the last step alone.
    precise measures them on training images with the evaluated weights."""
    examples: int = setting(8192, IMAGES, ADDED_LATER, at_least(1))
    """The number of training images for precise BN statistics, rounded up to whole steps."""


@dataclass(frozen=True)
class Averaging:
    """The settings of an average of the weights over training, used in evaluation only.

    BN statistics are measured with the averaged weights. Training is not affected.
    """

    name: str = setting("none", IMAGES, ADDED_LATER, one_of("none", "ema", "last"))
    """The kind of average: none, ema or last.
    ema is an exponential moving average over the updates; last is the mean of the weights at the
    ends of the last epochs."""
    half_life: float = setting(
        100.0, IMAGES, only_for("averaging.name", "ema"), ADDED_LATER, above_0()
    )
    """The half-life of a weight in the ema, in updates."""
    every: int = setting(1, IMAGES, only_for("averaging.name", "ema"), ADDED_LATER, at_least(1))
    """The number of updates of the weights per update of the ema.
    An update of the ema then has the share of all of them."""
    epochs: int = setting(6, IMAGES, only_for("averaging.name", "last"), ADDED_LATER, at_least(1))
    """The number of last epochs whose weights are averaged."""


@dataclass(frozen=True)
class BatchGrowth:
    """A batch-size schedule: the epochs at which the number of workers grows (Smith et al. 2017).

    Each worker keeps its n images, and the lr is not scaled up. It drops at the schedule's epochs;
    a smooth decay is over the steps made, of which there are fewer.
    """

    milestones: list[int] = setting([], IMAGES, ADDED_LATER)
    """Whole epochs at which the number of workers is multiplied by the factor."""
    factor: int = setting(2, IMAGES, ADDED_LATER, at_least(2))
    """The factor by which the number of workers grows at each milestone."""

    def factor_in(self, epoch: int) -> int:
        """Return the ratio of the number of workers in this epoch to that in epoch 0."""
        return int(self.factor ** sum(epoch >= milestone for milestone in self.milestones))


@dataclass(frozen=True)
class ImageSizes:
    """The settings of training images whose size changes with the epoch.

    Evaluated images keep data.image_size and data.crop_ratio.
    """

    points: list[list[float]] = setting([], IMAGES, ADDED_LATER, points_by_epoch(1))
    """Pairs of epoch and side in pixels, such as [[11,160],[13,192]], linear between them.
    Two pairs of one epoch are a jump. All images of an epoch have the size of its beginning."""
    multiple: int = setting(1, IMAGES, ADDED_LATER, at_least(1))
    """The multiple of pixels to which a size is rounded, to the even one of two equally near."""


@dataclass(frozen=True)
class TimeToTargetSettings:
    """The settings of a run's final metric: a metric at its end, or its time to a target metric."""

    epochs_to: dict[str, float] = setting({}, ADDED_LATER)
    """A metric and its target, such as {top1_error: 24.1}; the final metric is the epochs to it."""
    steps_to: dict[str, float] = setting({}, ADDED_LATER)
    """A metric and its target; the final metric is the number of steps to reach it."""
    stop: bool = setting(False, ADDED_LATER)
    """Whether the run stops at the evaluation that reaches the target."""
    name: str = setting("workload", IMAGES, ADDED_LATER, one_of("workload", own=True))
    """The metric of evaluations that judges the run: that of the workload, or one of your own.
    One of your own is named by its import path, package.module:Name, and in rows by the name in
    small letters: MacroError is macro_error."""
    options: dict[str, Any] = setting({}, IMAGES, ADDED_LATER)
    """The options of a metric of your own, completed by their defaults."""
    source: str = setting("", IMAGES, ADDED_LATER)
    """The SHA-256 of the source of a metric of your own, which lsgd computes."""

    @property
    def own_name(self) -> str | None:
        """The name in rows of a metric of the user's own; None without one that has such a name."""
        name = snake_case(self.name) if is_import_path(self.name) else ""
        return name if OWN_NAME.fullmatch(name) else None

    def final_metric(self, rate: Metric, first_step: Callable[[int], int]) -> Metric:
        """Return the definition of a run's final metric: the time to its target, or a given one."""
        for counted, targets in (("epochs", self.epochs_to), ("steps", self.steps_to)):
            for name, target in targets.items():
                return TimeToTarget.for_metric(
                    named_metric(name), target, time_unit=counted, first_step=first_step
                )
        return rate


@dataclass(frozen=True)
class EarlyStopping:
    """The settings of early stopping: a run ends once its validation metric no longer improves."""

    patience: int | None = setting(None, ADDED_LATER, at_least(1))
    """The number of evaluated epochs without an improvement after which the run stops.
    Only the evaluations at the ends of epochs count. None trains all epochs."""
    metric: str = setting("loss", ADDED_LATER)
    """The validation metric that has to improve; lower is better."""


@dataclass(frozen=True)
class InputsSettings:
    """The settings of a run's data loader, which reads and prefetches examples."""

    loader: str = setting(
        "auto", one_of("auto", "memory", "dali", "torchvision", "synthetic", own=True)
    )
    """The data loader: auto, memory, dali, torchvision, synthetic, or one of your own.
    auto is memory for small datasets; for image files it is DALI if that is installed, or else
    torchvision. synthetic generates random examples. A loader of your own, package.module:Name, is
    hashed into the fingerprint with its options and source."""
    decoders: int | None = setting(None, at_least(0))
    """The number of DALI threads or torchvision processes that decode images, per training process.
    By default one for each of its cores."""
    prefetch: int = setting(2, at_least(1))
    """The number of prefetched micro-batches: in total (DALI) or per process (torchvision)."""
    dtype: str = setting("float32", one_of("float32", "float16"))
    """The number format of DALI's pixels; float16 is coarser by 0.1 of an 8-bit level."""
    decode_on: str = setting("auto", one_of("auto", "cpu", "gpu"))
    """The device on which DALI decodes: cpu or gpu; auto is the device of the model."""
    hardware_share: float = setting(
        0.65, at_least(0), at_most(1, "is more than all images; write a number from 0 to 1")
    )
    """The share of images that DALI decodes with a GPU's JPEG decoder, if the GPU has one."""
    options: dict[str, Any] = setting({})
    """The options of a loader of your own, completed by their defaults."""
    source: str = ""
    """The SHA-256 of the source of a loader of your own, which lsgd computes."""

    @property
    def is_own(self) -> bool:
        """Whether the loader is from a package of the user's."""
        return is_import_path(self.loader)

    def with_loader(self, loader: str) -> "InputsSettings":
        """Return the settings of another loader of lsgd; any but DALI decodes on the CPU."""
        if loader == "dali":
            return replace(self, loader=loader)
        default = InputsSettings()
        return replace(
            self, loader=loader, decode_on=default.decode_on, hardware_share=default.hardware_share
        )


@dataclass(frozen=True)
class CommSettings:
    """The settings of communication between a job's processes: library, buckets and timeouts."""

    library: str = setting("auto", one_of("auto", "single", "torch", "horovod"))
    """The communication library: auto, single, torch or horovod.
    auto is single without a launcher; with one it is Horovod if that is built for the launcher, or
    else torch."""
    bucket_mb: float = setting(25.0, SHARED, above_0())
    """The size, in MiB, of the flat buckets in which gradients are reduced."""
    timeout: float = setting(600.0, above_0())
    """The timeout of a collective, in seconds.
    After it the other processes exit with code 5, or a minute later with -6 if NCCL's watchdog
    notices first."""
    join_timeout: float = setting(120.0, above_0())
    """The timeout for all processes to join the job, in seconds after the start."""


TARGET_DATA = ("imagenet", "ptb")
"""The datasets on which published numbers were measured."""


@dataclass(frozen=True)
class Target:
    """The published result that a recipe should reproduce: a metric, its value and the source."""

    top1_error: float | None = setting(
        None, at_least(0), at_most(100, "is not a percentage; write a number from 0 to 100")
    )
    """The published top-1 error in percent; `std` is in percent too."""
    std: float | None = setting(None, at_least(0))
    """The published standard deviation over seeds."""
    source: str = ""
    """The publication of the number, such as a table of the paper."""
    perplexity: float | None = setting(None, at_least(1))
    """The published perplexity, for recipes without an error rate."""
    curve: dict[int, float] = setting({})
    """Published values of the metric by epoch, counted from 1, which a report draws."""
    runs: int | None = setting(None, at_least(2))
    """The number of runs of which value and `std` are, if known, each by lsgd's definition.

    That of an error is the median of the last 5 epochs. Only with this number do reports decide
    whether runs agree with the published result.
    """

    @property
    def metric(self) -> Metric:
        """The metric of the published result: top-1 error or perplexity.

        Only runs of this metric are compared with the result.
        """
        return TOP1 if self.perplexity is None else METRICS["perplexity"]

    @property
    def value(self) -> float:
        """The value of the published result: a top-1 error in percent, or a perplexity."""
        number = self.top1_error if self.perplexity is None else self.perplexity
        assert number is not None, "lsgd.recipe.checks has refused it"
        return number


@dataclass(frozen=True)
class RunSettings:
    """All settings of a training run, its groups of settings among them."""

    name: str = field(metadata=EXECUTION | folder_name())
    """The name of the run in reports and folder names."""
    data: Data
    model: Model
    optim: Optim
    schedule: Schedule
    inputs: InputsSettings = field(metadata=EXECUTION)
    comm: CommSettings = field(metadata=EXECUTION)
    workers: int = field(metadata=at_least(1))
    """k, the number of virtual workers; each has its own images and BN statistics."""
    worker_batch: int = field(metadata=at_least(1))
    """n, the examples of a worker in a step; BN statistics are taken over these images."""
    epochs: int = field(metadata=at_least(1))
    """The number of training epochs."""
    seed: int = setting(
        0, at_least(0, math.inf), below(2**64, "is too large; write a number below 2^64")
    )
    """The seed of all random draws: initial weights, example order, augmentation and dropout."""
    label_smoothing: float = setting(
        0.0,
        IMAGES,
        ADDED_LATER,
        at_least(0),
        below(1, "leaves nothing of the label; write less than 1"),
    )
    """The share of a training label that is spread evenly over all classes (Szegedy et al. 2016).
    It is counted as in torch and MLPerf. train_loss includes the smoothing, and val_loss does
    not."""
    loss: str = setting("cross_entropy", IMAGES, ADDED_LATER, one_of("cross_entropy", "bce"))
    """The loss: cross_entropy or bce, the binary cross-entropy of each class against the others."""
    bce_over_classes: str = setting(
        "sum", IMAGES, only_for("loss", "bce"), ADDED_LATER, one_of("sum", "mean")
    )
    """The reduction of binary cross-entropies over the classes of an image: sum or mean."""
    tail: str = setting("drop", one_of("drop", "keep"))
    """The treatment of the last N mod kn examples of an epoch: drop, or keep as a smaller step."""
    precision: str = setting("float32", one_of("float32", "tf32", "bfloat16", "float16", "float64"))
    """The number format of forward and backward passes.
    bfloat16 and float16 are by autocast, float16 with a dynamic loss scale; tf32 is float32 whose
    products a GPU rounds to 10 bits."""
    gradient_compression: str = setting("none", one_of("none", "fp16"))
    """The number format of the gradient all-reduce; fp16 loses values below 6e-8."""
    rehearse: bool = False
    """Whether to do a dry run: a miniature of the run, built by lsgd.recipe.dry_run."""
    deviations: dict[str, str] = setting({}, EXECUTION)
    """The rules of the paper that this recipe deviates from, each with the reason."""
    paper: str = setting("goyal2017", EXECUTION, IMAGES, one_of(*PAPERS))
    """The paper that this recipe follows, whose rules lsgd.check verifies."""
    target: Target | None = setting(None, EXECUTION)
    strategy: StrategySettings = field(
        default_factory=StrategySettings, metadata=added_later({"name": "allreduce"}) | SHARED
    )
    cluster: VirtualCluster = field(default_factory=VirtualCluster, metadata=added_later({}))
    evaluation: Evaluation = field(default_factory=Evaluation, metadata=added_later({}))
    metric: TimeToTargetSettings = field(
        default_factory=TimeToTargetSettings, metadata=added_later({})
    )
    stop: EarlyStopping = field(default_factory=EarlyStopping, metadata=added_later({}))
    bn_statistics: BNStatistics = field(default_factory=BNStatistics, metadata=added_later({}))
    averaging: Averaging = field(default_factory=Averaging, metadata=added_later({}))
    batch_growth: BatchGrowth = field(default_factory=BatchGrowth, metadata=added_later({}))
    batch_schedule: list[list[int]] = setting([], IMAGES, ADDED_LATER, phases_by_epoch())
    """Changes of the minibatch during the run, a list of [epoch, workers, worker_batch].
    Each holds from the beginning of its epoch on, a whole number from 1; before the first of them
    workers and worker_batch do. The lr is that of the minibatch, by schedule.scaling, or that of
    schedule.points."""
    image_sizes: ImageSizes = field(default_factory=ImageSizes, metadata=added_later({}))
    workers_per_pass: int | str = setting(1, EXECUTION, at_least_or(1, AUTO))
    """The number of workers in one micro-batch, or auto.
    With auto, lsgd.autotune finds the number when training starts. It is always one where each
    worker pushes its own gradient."""
    val_batch: int = setting(
        250, EXECUTION, SHARED, only_for(WORKLOAD, "images", "tagging", "trees", FORM), at_least(1)
    )
    """The number of images, sentences, trees or other examples in one evaluation batch.
    A batch of a text is always one window of each stream."""
    padding: str = setting("bucket", EXECUTION, TAGGING, one_of(*PADDINGS))
    """The padding of the sentences of a micro-batch: global, batch, bucket, packed or per_sentence.
    Sentences are padded to the longest one of the dataset (global), of the micro-batch (batch), or
    of eight of similar length (bucket). packed is batch without the padded positions. per_sentence
    computes one sentence at a time."""
    batching: str = setting("folded", EXECUTION, TREES, one_of("folded", "recursive"))
    """The evaluation of the trees of a micro-batch by the network: folded or recursive.
    folded batches nodes of all trees into a few large calls; recursive computes one tree after the
    other, node by node."""
    channels_last: bool | str = setting(False, EXECUTION, IMAGES, one_of(False, True, AUTO))
    """Whether images are stored in the channels-last memory format (NHWC), which GPUs prefer.
    With auto, lsgd.autotune times both formats when training starts."""
    threads: int | str | None = setting(None, EXECUTION, at_least_or(1, AUTO))
    """The number of CPU threads of a process; by default it depends on the size of micro-batches.
    With auto, lsgd.autotune finds the number when training starts. The default is at most one per
    core, and at most OMP_NUM_THREADS."""
    compile: bool | str = setting(False, EXECUTION, one_of(False, True, AUTO))
    """Whether the model is compiled with torch.compile.
    Training does not time it, as the first step then takes minutes: auto is the result of
    `lsgd autotune` for this network and machine, or else false."""
    cuda_graphs: bool = setting(False, EXECUTION, IMAGES, only_for("compile", True))
    """Whether a GPU replays the compiled model as CUDA graphs.
    This avoids launching kernels one by one, which slows micro-batches of few images. Each shape of
    micro-batch takes memory of its own."""
    deterministic: bool = setting(True, EXECUTION)
    """Whether a GPU uses deterministic algorithms only, the same in each run.
    Otherwise cuDNN times its algorithms and takes the fastest, and two runs differ in their last
    bits."""
    numa: bool = setting(False, EXECUTION)
    """Whether a process is pinned to the CPU cores next to its GPU."""
    device: str = setting("auto", EXECUTION, one_of("auto", "cpu", "cuda", "mps", "xpu"))
    """The device for training: cpu, cuda (NVIDIA or AMD), mps (Apple), xpu (Intel) or auto.
    auto takes the GPU that torch finds, or else the CPU."""
    run_dir: str | None = setting(
        None, EXECUTION, not_empty("write run_dir=PATH, or leave it out for a new folder")
    )
    """The run folder; by default runs/<name>/<time>-seed<seed>."""
    checkpoint_steps: int = setting(0, EXECUTION, SHARED, at_least(0))
    """The number of steps between checkpoints within an epoch; 0 for none by step count."""
    checkpoint_minutes: float = setting(10.0, EXECUTION, at_least(0))
    """The minutes between checkpoints within an epoch, by process 0's clock; 0 for none by time."""
    keep_checkpoints: int | str = setting(2, EXECUTION, at_least_or(1, VERIFY))
    """The number of newest checkpoints that are kept, or verify; those at lr drops always are.
    With verify, at most 12 are kept for lsgd.verify: the newest two, and the first two saves of
    each fifth of the run."""
    keep_best: str | None = setting(None, EXECUTION)
    """The validation metric whose best checkpoint is kept too, such as top1_error; None for none.
    The link best.pt leads to it. Lower is better, and the first of equal ones is kept."""
    log_steps: int = setting(20, EXECUTION, SHARED, at_least(1))
    """The number of steps between two rows of metrics."""
    noise_scale: bool = setting(False, EXECUTION, SHARED, IMAGES)
    """Whether the gradient noise scale is measured; updates do not change.
    It needs steps of at least two micro-batches, and takes one more norm of each parameter's
    gradient per micro-batch."""
    profile: bool = setting(False, EXECUTION, SHARED)
    """Whether lsgd.profile times the phases of some steps and traces a few."""
    trackers: list[str] = setting([], EXECUTION, some_of(*TRACKERS))
    """The experiment trackers that receive the run's metrics, each by a process of lsgd.track."""
    replaced: list[str] = setting([], EXECUTION)
    """The lines in which a dry run lists the settings that it replaced."""
