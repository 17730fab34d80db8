"""Networks as plain modules, and their initial weights, precision and memory layout."""

import copy
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lsgd.errors import UsageError
from lsgd.recipe import Recipe
from lsgd.recipe.fields import as_override
from lsgd.rules.batchnorm import WorkerBatchNorm2d, worker_batch_norms
from lsgd.rules.optim import trained_parameters

DTYPES = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "bfloat16": torch.float32,
    "float16": torch.float32,
    "float64": torch.float64,
}
"""The dtype of parameters and gradients; tf32, bfloat16 and float16 apply only to products."""
AUTOCAST_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
"""The dtype of autocast, by precision; the others have no autocast."""


def make_network(recipe: Recipe) -> nn.Module:
    """Build a recipe's network with its initial weights, the same on every process.

    It has the recipe's precision and memory layout, on the CPU.
    """
    if recipe.model.is_from_library:
        # A slow import, as is torchvision below.
        from lsgd.models.library_networks import make_library_network

        model = make_library_network(recipe)
    else:
        model = make_model(
            recipe.model.name,
            classes=recipe.data.classes,
            channels=recipe.data.channels,
            last_gamma=recipe.model.last_gamma,
            hidden=recipe.model.hidden,
            seed=recipe.seed,
        )
        _change_network(model, recipe)
    freeze_parameters(model, recipe)
    if recipe.optim.head_lr is not None:
        _set_head_lr(model, recipe, recipe.optim.head_lr)
    return converted(model, recipe).to(memory_format=memory_format(recipe))  # type: ignore[call-overload,no-any-return]


def converted(model: nn.Module, recipe: Recipe) -> nn.Module:
    """Convert a model to the recipe's precision in place, with dense gradients; return it.

    Its complex buffers, such as the factors of rotary embeddings, keep their imaginary parts.
    Raises UsageError for a trained complex parameter, and for sparse tensors.
    """
    refuse_sparse_tensors(model)
    dtype = DTYPES[recipe.precision]
    for path, parameter in model.named_parameters():
        if parameter.is_complex() and parameter.requires_grad:
            raise UsageError(
                f"the parameter {path} is complex, and complex gradients are not summed; write it "
                "as two real numbers each, by torch.view_as_real, and torch.view_as_complex in "
                "forward"
            )
    for module in model.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            module.sparse = False  # buckets are dense; strategy.sparse_rows has a way of its own

    def convert(tensor: Tensor) -> Tensor:
        if tensor.is_complex():
            return tensor.to(dtype.to_complex())
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    model._apply(convert)
    return model


def refuse_sparse_tensors(model: nn.Module) -> None:
    """Raise UsageError for a sparse tensor in a state dict, which a checkpoint cannot hold."""
    for path, tensor in model.state_dict().items():
        if isinstance(tensor, Tensor) and tensor.layout is not torch.strided:
            raise UsageError(
                f"{path} of the network is a sparse tensor, which a checkpoint cannot hold; make "
                "it dense, or compute it in __init__ and register it with persistent=False"
            )


def avoid_faulty_kernels(model: nn.Module) -> None:
    """Take every other pixel before 1 x 1 convolutions of few channels, in place of their stride.

    On CPUs with AVX-512 a kernel of oneDNN for the weight gradient of such a convolution in
    channels_last needs 16 input channels: with 3 or 8 it ended the process, or damaged its memory.
    """
    convolutions = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    for layer in convolutions:
        is_point = layer.kernel_size == (1, 1) and layer.padding == (0, 0)
        if is_point and layer.stride != (1, 1) and layer.in_channels < 16:
            layer.register_forward_pre_hook(partial(_take_pixels, layer.stride))
            layer.stride = (1, 1)


def _take_pixels(
    stride: tuple[int, ...], _: nn.Module, inputs: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Return the pixels that a 1 x 1 convolution with this stride would read."""
    return (inputs[0][:, :, :: stride[0], :: stride[1]],)


def _change_network(model: nn.Module, recipe: Recipe) -> None:
    """Apply the recipe's choices of blurred strides, initial gammas and the last layer's bias."""
    settings = recipe.model
    if settings.blurpool != "none":
        from lsgd.models.blurpool import blur_strides

        blur_strides(model, settings.blurpool)
    if settings.gamma == "uniform":
        # Of another generator than the other weights, which stay those of gamma 1.
        generator = torch.Generator().manual_seed(recipe.seed)
        for layer in worker_batch_norms(model):
            nn.init.uniform_(layer.weight, generator=generator)
    if settings.last_bias:
        *_, last = (module for module in model.modules() if isinstance(module, nn.Linear))
        nn.init.constant_(last.bias, settings.last_bias)


def head_parameters(recipe: Recipe) -> tuple[str, ...]:
    """Return the names of the parameters of a network's last layer, which gives the logits.

    They are those whose shape depends on the number of classes, also where a network has several
    such layers.
    """
    recipe = replace(recipe, optim=replace(recipe.optim, head_lr=None))
    data = replace(recipe.data, classes=recipe.data.classes + 1)
    own, other = (_shapes(each) for each in (recipe, replace(recipe, data=data)))
    return tuple(name for name, shape in own.items() if shape != other[name])


def freeze_parameters(model: nn.Module, recipe: Recipe) -> None:
    """Freeze the parameters that model.frozen means, and BN layers without any other parameter.

    Raises UsageError for a pattern that means no parameter, and if all parameters are frozen.
    """
    patterns, parameters = recipe.model.frozen, dict(model.named_parameters())
    if not patterns:
        return
    for pattern in patterns:
        if not any(_is_meant(name, pattern) for name in parameters):
            layers = dict.fromkeys(name.partition(".")[0] for name in parameters)
            raise UsageError(
                f"model.frozen has {pattern}, which is not a parameter or layer of "
                f"model={recipe.model.name}; write some of {', '.join(layers)}, or longer names "
                f"such as {next(iter(parameters))}"
            )
    for name, parameter in parameters.items():
        frozen = any(_is_meant(name, pattern) for pattern in patterns)
        parameter.requires_grad_(parameter.requires_grad and not frozen)
    if not trained_parameters(model):
        raise UsageError(
            f"model.frozen={as_override(patterns)} means all parameters of "
            f"model={recipe.model.name}, and leaves none to train; write fewer patterns"
        )
    for layer in worker_batch_norms(model):
        layer.is_frozen = not any(each.requires_grad for each in layer.parameters())
        layer.train(layer.training)


def _set_head_lr(model: nn.Module, recipe: Recipe, head_lr: float) -> None:
    """Record in a model's `lr_factors` that its last layer has a reference lr of its own.

    Raises UsageError if this layer is not trained.
    """
    parameters = dict(model.named_parameters())
    trained = [name for name in head_parameters(recipe) if parameters[name].requires_grad]
    if not trained:
        raise UsageError(
            f"optim.head_lr={head_lr:g} is the lr of the last layer, which is not trained with "
            f"model.frozen={as_override(recipe.model.frozen)}; leave one of them out"
        )
    factor = head_lr / recipe.schedule.reference_lr
    model.lr_factors = dict.fromkeys(trained, factor)  # type: ignore[assignment]


def give_one_channel(model: nn.Module) -> None:
    """Replace a network's first convolution of 3 channels, if any, by one that takes grey images.

    Its weights are the sums over the three channels, so that it computes for a grey image what the
    other one computes for the same image in RGB.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Conv2d):
            if layer.in_channels == 3:
                grey = copy.copy(layer)
                grey._parameters = dict(layer._parameters)
                grey.in_channels = 1
                grey.weight = nn.Parameter(layer.weight.detach().sum(1, keepdim=True))
                model.set_submodule(name, grey)
            return


def first_layer_parameters(recipe: Recipe) -> dict[str, torch.Size]:
    """Return the shapes in RGB of the parameters whose shape depends on the number of channels."""
    own, colour = recipe, replace(recipe, data=replace(recipe.data, channels=3))
    shapes = _shapes(own)
    return {name: shape for name, shape in _shapes(colour).items() if shapes.get(name) != shape}


def _shapes(recipe: Recipe) -> dict[str, torch.Size]:
    """Return the shapes of the parameters of a recipe's network by their names."""
    with torch.device("meta"):
        network = make_network(recipe)
    return {name: parameter.shape for name, parameter in network.named_parameters()}


def _is_meant(name: str, pattern: str) -> bool:
    """Return whether a pattern means a parameter, by its name or by that of a layer around it."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def memory_format(recipe: Recipe) -> torch.memory_format:
    """Return the torch memory format of a recipe's images and convolutions.

    While channels_last=auto is undecided, it is the contiguous one.
    """
    return torch.channels_last if recipe.channels_last is True else torch.contiguous_format


def make_model(
    name: str, *, classes: int, channels: int, last_gamma: float, hidden: int = 120, seed: int
) -> nn.Module:
    """Build a named image network with initial weights that depend on the seed alone.

    `last_gamma` applies to residual networks, `hidden` to LeNet-5.
    """
    # Imported here, since torchvision takes a second to import and few callers build a network.
    from lsgd.models.lenet import LeNet5
    from lsgd.models.preactivation_resnet import PreActivationResNet50
    from lsgd.models.small_resnet import SmallResNet
    from lsgd.vision import models

    norm = WorkerBatchNorm2d
    makers = {
        "resnet50": partial(models.resnet50, num_classes=classes, norm_layer=norm),
        "resnet50_v2": partial(PreActivationResNet50, classes),
        "resnet101": partial(models.resnet101, num_classes=classes, norm_layer=norm),
        "resnet20": partial(SmallResNet, classes, channels=channels, blocks=3, width=16),
        "small_resnet": partial(SmallResNet, classes, channels=channels, blocks=1, width=8),
        "lenet5": partial(LeNet5, classes, channels=channels, hidden=hidden),
    }
    with _SkipInit():
        model: nn.Module = makers[name]()
        if channels == 1:
            give_one_channel(model)
    initialise(model, last_gamma=last_gamma, seed=seed)
    return model


class _SkipInit(TorchFunctionMode):
    """A torch function mode in which new layers skip torch's random initialisation of weights.

    `initialise` sets all weights afterwards or refuses the layer; drawing those of ResNet-50 twice
    takes 0.2 s.
    """

    draws = (
        Tensor.normal_,
        Tensor.uniform_,
        nn.init.kaiming_normal_,
        nn.init.kaiming_uniform_,
        nn.init.normal_,
        nn.init.uniform_,
    )

    def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a torch function, unless it is a random initialisation of weights."""
        if function in self.draws:
            return args[0] if args else kwargs["tensor"]
        return function(*args, **(kwargs or {}))


def initialise(model: nn.Module, *, last_gamma: float, seed: int) -> None:
    """Initialise the weights of any network from the seed alone, by a rule per type of layer.

    - The last linear layer, which gives the logits, N(0, 0.01²) (Goyal et al. 2017, section 5.1).
    - Other linear layers and convolutions N(0, 2 / fan out) (He et al. 2015, equation 14). Either
      fan will do if all layers use the same: their ratios cancel between layers, up to a constant
      of the network. The paper of 2017 takes fan out for its convolutions.
    - Embeddings and recurrent layers U(-0.1, 0.1), all their parameters (Zaremba et al. 2014,
      section 4.1, the network of 200 units, and the authors' code).
    - The scores of a CRF 0, where no tag is preferred.
    - BN gamma 1 and beta 0, but `last_gamma` for the last BN of every residual block (Goyal et al.
      2017, section 5.1).

    Biases of linear layers and convolutions start at 0. Raises TypeError for any other layer with
    parameters of its own, which would keep numbers of torch's global generator.
    """
    from lsgd.models.crf import CRF
    from lsgd.models.lstm import INIT_BOUND
    from lsgd.models.preactivation_resnet import PreActivationBottleneck
    from lsgd.vision import models

    generator = torch.Generator().manual_seed(seed)
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    for module in model.modules():
        match module:
            case nn.Linear() if module is linear[-1]:
                nn.init.normal_(module.weight, std=0.01, generator=generator)
                _zero(module.bias)
            case nn.Linear() | nn.Conv2d():
                nn.init.kaiming_normal_(
                    module.weight, mode="fan_out", nonlinearity="relu", generator=generator
                )
                _zero(module.bias)
            case nn.Embedding() | nn.RNNBase():
                for parameter in module.parameters(recurse=False):
                    nn.init.uniform_(parameter, -INIT_BOUND, INIT_BOUND, generator=generator)
            case CRF():
                for parameter in module.parameters():
                    nn.init.zeros_(parameter)
            case nn.BatchNorm2d():
                nn.init.ones_(module.weight)
                nn.init.zeros_(module.bias)
            case _:
                _check_without_parameters(module)
    for module in model.modules():
        match module:
            case models.resnet.Bottleneck() | PreActivationBottleneck():
                nn.init.constant_(module.bn3.weight, last_gamma)
            case models.resnet.BasicBlock():
                nn.init.constant_(module.bn2.weight, last_gamma)


def _zero(bias: Tensor | None) -> None:
    if bias is not None:
        nn.init.zeros_(bias)


def _check_without_parameters(module: nn.Module) -> None:
    for name, _ in module.named_parameters(recurse=False):
        raise TypeError(
            f"{type(module).__name__}.{name} has no initialisation rule, and would be "
            "initialised by torch's global generator; add a rule for its layer to "
            "lsgd.models.initialise"
        )
