"""Any network of torchvision or timm, by its name there, made to keep the rules of a worker.

It starts as its library starts it, from the recipe's seed alone and without trained weights. Every
BN normalises worker by worker, and every layer that draws does so by example. What else depends on
the images that meet in a forward pass, or on a generator, is found by looking on, and refused.
"""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lsgd.errors import Refused
from lsgd.installation import install
from lsgd.nearest import did_you_mean
from lsgd.recipe import Recipe
from lsgd.rules.batchnorm import WorkerBatchNorm, WorkerBatchNorm1d, WorkerBatchNorm2d
from lsgd.rules.drawn import Drawn

TRIED = 5
"""The images of the pass that a network is tried with: a number that no dimension of it has."""


class WorkerBatchNormAct2d(WorkerBatchNorm2d):
    """timm's BN with what follows it: dropping, and an activation. Its keys are plain BN's."""

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__(norm.num_features, eps=norm.eps)
        self.drop: Any = norm.drop
        self.act: Any = norm.act

    def forward(self, input: Tensor) -> Tensor:
        """Normalise (images, channels, height, width), then drop and activate."""
        output: Tensor = self.act(self.drop(super().forward(input)))
        return output


def make_library_network(recipe: Recipe) -> nn.Module:
    """The network that model.name has of a library, on the CPU; the same on every process.

    Raises Refused as check_library_network does, but does not try it.
    """
    network = _build(recipe)
    _start_gammas(network, recipe)
    _keep_rules(network, recipe)
    return network


def check_library_network(recipe: Recipe) -> None:
    """Raise Refused unless the library has the network, it takes the recipe's images, and nothing
    but BN and known layers makes an image's logits depend on other images or on a generator.

    Seen in a forward pass that computes shapes alone.
    """
    network = _build(recipe)
    _start_gammas(network, recipe)
    # What has no rule is refused here, before a run has written anything.
    _keep_rules(copy.deepcopy(network), recipe)
    name = recipe.model.name
    drawing = {m: path for path, m in network.named_modules() if _rate(m)}
    watched = _Watched(name, network, set(drawing))
    network = network.to("meta").train()
    versions = {path: buffer._version for path, buffer in network.named_buffers()}
    _check_logits(_try(network, watched, recipe), recipe)
    for layer, path in drawing.items():
        if set(watched.calls.get(layer, [TRIED])) != {TRIED}:
            raise Refused(
                f"model={name} drops in {path} what has no row for each image, so that it cannot "
                "be an image's own; set its rate to 0 in model.options, or choose another network"
            )
    _check_buffers(network, versions, name)


def _try(network: nn.Module, watched: "_Watched", recipe: Recipe) -> Any:
    """What the network gives for TRIED images, while it is watched."""
    data = recipe.data
    images = torch.empty(TRIED, data.channels, data.image_size, data.image_size, device="meta")
    with watched.modules(), torch.no_grad():
        try:
            with watched:
                return network(images)
        except Refused:
            raise
        except Exception as error:
            raise Refused(
                f"model={recipe.model.name} does not take images of {data.channels} x "
                f"{data.image_size} x {data.image_size} ({_first_line(error)}); choose another "
                "size, or another network"
            ) from None


def _check_logits(logits: Any, recipe: Recipe) -> None:
    if not isinstance(logits, Tensor) or logits.shape != (TRIED, recipe.data.classes):
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise Refused(
            f"model={recipe.model.name} gives {found} for {TRIED} images of {recipe.data.classes} "
            "classes, and not their logits; choose another network"
        )


def _check_buffers(network: nn.Module, versions: dict[str, int], name: str) -> None:
    """Raise Refused for a buffer that has another version now, unless it is a BN's own."""
    own = {
        path
        for path, module in network.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
    }
    for path, buffer in network.named_buffers():
        if buffer._version != versions[path] and path.rpartition(".")[0] not in own:
            raise Refused(
                f"model={name} changes {path} in every pass, which would depend on how many "
                "processes and passes there are; choose another network"
            )


def _build(recipe: Recipe) -> nn.Module:
    library, _, name = recipe.model.name.partition("/")
    # torchvision first, since timm imports it, and would not find it beside a CPU build of torch.
    from lsgd.vision import models

    if library == "timm":
        try:
            import timm
        except ImportError:
            raise Refused(
                f"model={recipe.model.name} needs timm, which is not installed; type "
                f"{install('timm')}"
            ) from None
        known = timm.list_models()
        build: Any = timm.create_model
        given: dict[str, Any] = {"pretrained": False, "in_chans": recipe.data.channels}
    else:
        # Not those of detection or video.
        known = models.list_models(module=models)
        build = models.get_model
        given = {"weights": None}
    if name not in known:
        raise Refused(f"model={recipe.model.name} does not exist; {did_you_mean(name, known)}")
    given |= {"num_classes": recipe.data.classes} | own_words(recipe)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        try:
            network: nn.Module = build(name, **given)
        except (TypeError, ValueError, AssertionError) as error:
            raise Refused(
                f"model={recipe.model.name} cannot be built with model.options="
                f"{dict(recipe.model.options)} ({_first_line(error)}); write what its library takes"
            ) from None
    return network


def own_words(recipe: Recipe) -> dict[str, Any]:
    """What the maker of a library's network is given beside its classes: model.options, and the
    size of images where layers depend on it."""
    library, _, name = recipe.model.name.partition("/")
    side, size = recipe.data.image_size, {}
    if library == "torchvision" and name.startswith("vit_"):
        size = {"image_size": side}
    elif library == "timm":
        import timm

        config = timm.get_pretrained_cfg(name)
        size = {"img_size": side} if config is not None and config.fixed_input_size else {}
    return size | recipe.model.options


def _start_gammas(network: nn.Module, recipe: Recipe) -> None:
    """Start the last BN of every residual block with model.last_gamma; raises Refused if that is
    not 0, the paper's, and there is no such block."""
    last = [norm for block in network.modules() for norm in _last_norms(block)]
    if not last and recipe.model.last_gamma:
        raise Refused(
            f"model.last_gamma={recipe.model.last_gamma:g} is of residual blocks that end in BN, "
            f"and model={recipe.model.name} has none; leave it out"
        )
    for norm in last:
        nn.init.constant_(norm.weight, recipe.model.last_gamma)


def _last_norms(block: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """The last BN of a residual block of torchvision's ResNets, or of one of timm, which finds it
    itself; nothing of other modules."""
    from lsgd.vision import models

    match block:
        case models.resnet.Bottleneck():
            last = [block.bn3]
        case models.resnet.BasicBlock():
            last = [block.bn2]
        case _ if hasattr(block, "zero_init_last"):
            last = [m for m in block.modules() if isinstance(m, nn.BatchNorm2d) and m.affine]
            for norm in last:
                nn.init.ones_(norm.weight)
            block.zero_init_last()  # type: ignore[operator]
            last = [norm for norm in last if not norm.weight.any()]
        case _:
            return []
    # torchvision's blocks may have norms of another kind.
    return [norm for norm in last if isinstance(norm, nn.BatchNorm2d)]


def _keep_rules(network: nn.Module, recipe: Recipe) -> None:
    """Put our own layers in the place of those whose result is of a whole pass, or drawn."""
    ours: dict[nn.Module, nn.Module] = {}
    layer = 0
    for path, module in list(network.named_modules(remove_duplicate=False)):
        if module not in ours:
            if rate := _rate(module):
                ours[module] = _drawn(module, rate, layer, recipe)
                layer += 1
            elif isinstance(module, nn.modules.batchnorm._NormBase):
                ours[module] = _of_workers(module, path, recipe)
            else:
                continue
        above, _, name = path.rpartition(".")
        setattr(network.get_submodule(above), name, ours[module])


def _rate(module: nn.Module) -> float:
    """The share that a known layer sets to 0 in training; 0 for one that is none, or never does."""
    if type(module) is nn.Dropout:
        return float(module.p)
    if type(module).__module__.startswith("timm.") and type(module).__name__ == "DropPath":
        return float(module.drop_prob or 0)  # type: ignore[arg-type]
    if type(module).__name__ == "StochasticDepth" and module.mode == "row":
        return float(module.p)  # type: ignore[arg-type]
    return 0.0


def _drawn(module: nn.Module, rate: float, layer: int, recipe: Recipe) -> Drawn:
    whole = type(module) is not nn.Dropout
    scaled = bool(getattr(module, "scale_by_keep", True))
    return Drawn(rate, layer=layer, seed=recipe.seed, whole=whole, scaled=scaled)


def _of_workers(norm: nn.Module, path: str, recipe: Recipe) -> nn.Module:
    if isinstance(norm, WorkerBatchNorm):
        return norm
    if isinstance(norm, nn.modules.instancenorm._InstanceNorm) and not norm.track_running_stats:
        return norm
    if not (norm.affine and norm.track_running_stats):
        raise Refused(
            f"model={recipe.model.name} has a BN without gamma and beta, or without running "
            f"statistics, {path}; choose another network"
        )
    made: WorkerBatchNorm
    if type(norm) is nn.BatchNorm1d:
        made = WorkerBatchNorm1d(norm.num_features, eps=norm.eps)
    elif type(norm) is nn.BatchNorm2d:
        made = WorkerBatchNorm2d(norm.num_features, eps=norm.eps)
    elif isinstance(norm, nn.BatchNorm2d) and hasattr(norm, "drop") and hasattr(norm, "act"):
        made = WorkerBatchNormAct2d(norm)
    else:
        raise Refused(
            f"model={recipe.model.name} normalises by {type(norm).__name__} in {path}, which is "
            "not known to stay with one worker's images; choose another network"
        )
    made.load_state_dict(norm.state_dict())
    return made


class _Watched(TorchDispatchMode):
    """Looks on as a network computes, and refuses numbers from a generator, by the name of the
    layer that asks for them, unless it is one of `drawing`."""

    def __init__(self, name: str, network: nn.Module, drawing: set[nn.Module]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.name, self.network, self.drawing = name, network, drawing
        self.inside: list[nn.Module] = []
        self.calls: dict[nn.Module, list[int]] = {}

    @contextmanager
    def modules(self) -> Iterator[None]:
        """Meanwhile it is known which layer computes, and how many rows one that draws has."""
        hooks = []
        for module in self.network.modules():
            hooks += [
                module.register_forward_pre_hook(self._enter),
                module.register_forward_hook(self._leave),
            ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.inside.append(module)
        if module in self.drawing:
            self.calls.setdefault(module, []).append(len(inputs[0]))

    def _leave(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        self.inside.pop()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation, unless it draws."""
        words = kwargs or {}
        draws = torch.Tag.nondeterministic_seeded in func.tags and _share(func, args, words) != 0
        if draws and not self.drawing.intersection(self.inside):
            names = {module: path for path, module in self.network.named_modules()}
            where = names[self.inside[-1]] if self.inside else ""
            raise Refused(
                f"model={self.name} draws numbers by itself in {where or 'its own forward pass'} "
                f"({func.name().removeprefix('aten::')}), which are no example's own; set their "
                "rate to 0 in model.options, or choose another network"
            )
        return func(*args, **words)


def _share(func: Any, args: Any, words: dict[str, Any]) -> float:
    """The rate of dropout within an attention, which has it as an argument; else something else
    than 0."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name in ("dropout_p", "p"):
            value = args[place] if place < len(args) else words.get(argument.name)
            value = argument.default_value if value is None else value
            return math.nan if value is None else float(value)
    return math.nan


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
