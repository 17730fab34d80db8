"""Networks of torchvision, timm or the user's own package, adapted to the rules of virtual workers.

They start from the recipe's seed with their library's initialisation; weights of a file come later.
Every BN normalises per worker, and every dropout layer draws per example. A test forward pass finds
anything else that depends on the other images of a micro-batch or on a generator, and refuses it.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatch
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from lsgd.errors import UsageError
from lsgd.installation import install_command
from lsgd.models import give_one_channel, refuse_sparse_tensors
from lsgd.models.forward_checks import (
    find_changed_buffer,
    find_dependence,
    find_scattered_rows,
    record_buffers,
)
from lsgd.models.parameter_roles import ParameterRoles, find_roles
from lsgd.models.randomness_guard import RandomnessGuard, seeded_generators, without_global_draws
from lsgd.own_parts import NETWORK, OwnPart, first_line, imported_part
from lsgd.recipe import Recipe
from lsgd.rules.batchnorm import WorkerBatchNorm, keeps_images_apart, worker_batch_norm_type
from lsgd.rules.counter_dropout import dropout_rate, replace_dropout
from lsgd.rules.rectangles import MULTIPLE
from lsgd.suggestions import did_you_mean

OfImages = TypeVar("OfImages")

PROBE_IMAGES = 5
"""The number of images in a test forward pass, which no dimension of a network has."""


LOADING_OPTIONS = {
    "cache_dir", "checkpoint_path", "file", "hf_hub_id", "pretrained", "pretrained_backbone",
    "pretrained_cfg", "pretrained_cfg_overlay", "pretrained_strict", "url", "weights",
    "weights_backbone",
}  # fmt: skip
"""The options with which a library fetches or loads files of pretrained weights."""


def make_library_network(recipe: Recipe) -> nn.Module:
    """Build the torchvision or timm network of a recipe on the CPU, the same on every process.

    Raises UsageError as check_library_network does, but does not search for dependencies between
    images.
    """
    network = _build(recipe)
    _replace_layers(network, recipe, _apply_roles(network, recipe))
    return network


def check_library_network(recipe: Recipe) -> None:
    """Raise UsageError unless a library's network takes the recipe's images and keeps them apart.

    Only BN and known layers may make the logits of an image depend on other images or on a
    generator. This is found in a forward pass on meta tensors, which computes shapes only.
    """
    network = _build(recipe)
    refuse_sparse_tensors(network)
    roles = _apply_roles(network, recipe)
    # Layers without a rule are refused here, before a run has written anything.
    ours = copy.deepcopy(network)
    _replace_layers(ours, recipe, roles)
    name = recipe.model.name
    drawing = {m: path for path, m in network.named_modules() if dropout_rate(m)}
    watched = RandomnessGuard(
        f"model={name}",
        "set their rate to 0 in model.options, or choose another network",
        network,
        set(drawing),
    )
    network = network.to("meta").train()
    buffers = record_buffers(network)
    _check_logits(_probe(network, watched, recipe), recipe)
    evaluated = [images for _, images in recipe.evaluated_changes]
    sizes = {(side, side) for side in (*recipe.training_sizes, *(each.side for each in evaluated))}
    # The narrowest rectangles, whose longer side is a multiple of no more than all have.
    wide = {(each.side + MULTIPLE, each.side) for each in evaluated if each.in_rectangles}
    sizes |= wide | {size[::-1] for size in wide}
    trained = {(side, side) for side in recipe.training_sizes}
    for size in sorted(sizes - {(recipe.data.image_size,) * 2}):
        with torch.no_grad(), _counted_rows(network) as rows:
            _check_logits(_call_on_images(network, recipe, size), recipe)
        if size in trained:
            _check_rows_per_image(rows, roles, recipe, size[0])
    for layer, path in drawing.items():
        if set(watched.calls.get(layer, [PROBE_IMAGES])) != {PROBE_IMAGES}:
            raise UsageError(
                f"model={name} has dropout in {path} on a tensor without a row for each image, "
                "so it cannot be drawn per image; set its rate to 0 in model.options, or choose "
                "another network"
            )
    if path := find_changed_buffer(network, buffers):
        raise UsageError(
            f"model={name} changes {path} in every forward pass, so the result would depend on the "
            "number of processes and micro-batches; choose another network"
        )
    _check_rows(ours, recipe)
    if recipe.model.is_own:
        _check_dependence(ours, recipe)


@contextmanager
def _counted_rows(network: nn.Module) -> Iterator[dict[str, set[int]]]:
    """Return the numbers of input rows of each batch norm, by its path, in this context."""
    found: dict[str, set[int]] = {}

    def count(path: str, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        found.setdefault(path, set()).add(len(inputs[0]))

    with ExitStack() as hooks:
        for path, module in network.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                hooks.enter_context(module.register_forward_pre_hook(partial(count, path)))
        yield found


def _check_rows_per_image(
    found: dict[str, set[int]], roles: ParameterRoles, recipe: Recipe, side: int
) -> None:
    """Raise UsageError if a BN has several rows for each image of a training size alone.

    A layer with one row per image at data.image_size counts none.
    """
    for path, counts in found.items():
        rows = _rows_per_image(path, frozenset(counts), recipe)
        own = _rows_per_image(path, roles.norm_rows.get(path, frozenset()), recipe)
        if rows > own == 1:
            raise UsageError(
                f"model={recipe.model.name} normalises in {path} {rows} rows for each image of "
                f"{side} x {side}, and 1 for each of data.image_size={recipe.data.image_size}; "
                "choose other sizes, or another network"
            )


def _check_rows(network: nn.Module, recipe: Recipe) -> None:
    """Raise UsageError unless the input rows of each batch norm layer are grouped by image.

    The network is modified.
    """
    data = recipe.data
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, data.channels, data.image_size, data.image_size, generator=generator)
    if path := find_scattered_rows(network, lambda some: network(images[some])):
        raise UsageError(
            f"model={recipe.model.name} normalises in {path} rows in which those of an image are "
            "not adjacent, so that workers would share statistics; choose another network"
        )


def _check_dependence(network: nn.Module, recipe: Recipe) -> None:
    """Raise UsageError if an image's logits depend on other images or on earlier forward passes.

    The network is modified. One that fails on the CPU is not checked.
    """
    data = recipe.data
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(3, data.channels, data.image_size, data.image_size, generator=generator)
    try:
        found = find_dependence(network.train(), lambda some: network(images[some]), 2)
    except Exception:  # as of kernels for GPUs only
        return
    if found:
        raise UsageError(
            f"model={recipe.model.name} computes the logits of an image also from {found}, so that "
            "the result would depend on the number of processes and micro-batches; compute them "
            "from the image alone"
        )


def _probe(network: nn.Module, watched: RandomnessGuard, recipe: Recipe) -> Any:
    """Run a network on a few meta images under a guard against randomness; return its output."""

    def call(images: Tensor) -> Any:
        def forward() -> Any:
            with watched:
                return network(images)

        if not recipe.model.is_own:
            return forward()
        return without_global_draws(watched.part, watched.fix, forward)

    with watched.modules(), torch.no_grad():
        return _call_on_images(call, recipe)


def _call_on_images(
    call: Callable[[Tensor], OfImages], recipe: Recipe, size: tuple[int, int] | None = None
) -> OfImages:
    """Call a function with a few meta images; raises UsageError on errors.

    Their (width, height) is `size` or, for None, that of data.image_size.
    """
    data = recipe.data
    width, height = size or (data.image_size, data.image_size)
    images = torch.empty(PROBE_IMAGES, data.channels, height, width, device="meta")
    try:
        return call(images)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"model={recipe.model.name} does not take images of {data.channels} x "
            f"{height} x {width} ({first_line(error)}); choose another size, or another network"
        ) from None


def _check_logits(logits: Any, recipe: Recipe) -> None:
    if not isinstance(logits, Tensor) or logits.shape != (PROBE_IMAGES, recipe.data.classes):
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UsageError(
            f"model={recipe.model.name} gives {found} for {PROBE_IMAGES} images of "
            f"{recipe.data.classes} classes instead of their logits; choose another network"
        )


def find_builder(recipe: Recipe) -> tuple[Any, dict[str, Any]]:
    """Return the function with which a library builds a recipe's network, and its arguments.

    The arguments do not have those of the recipe. Raises UsageError for an unknown network, or if
    its library is not installed.
    """
    library, _, name = recipe.model.name.partition("/")
    # Before timm, whose own import of torchvision fails beside a CPU build of torch.
    from lsgd.vision import models

    if library == "timm":
        try:
            import timm
        except ImportError:
            raise UsageError(
                f"model={recipe.model.name} needs timm, which is not installed; run "
                f"{install_command('timm')}"
            ) from None
        known = timm.list_models()
        build: Any = timm.create_model
        given: dict[str, Any] = {"pretrained": False, "in_chans": recipe.data.channels}
    else:
        # Without the models of detection and video.
        known = models.list_models(module=models)
        build = models.get_model
        given = {"weights": None}
    if name not in known:
        raise UsageError(f"model={recipe.model.name} does not exist; {did_you_mean(name, known)}")
    return build, given


def _build(recipe: Recipe) -> nn.Module:
    if recipe.model.is_own:
        return _build_own(recipe)
    library, _, name = recipe.model.name.partition("/")
    build, given = find_builder(recipe)
    options = builder_options(recipe)
    if recipe.model.starts_pretrained:
        # Its weights, which with_pretrained_weights finds, change no shape and no speed.
        del options["pretrained"]
    if loads := sorted(LOADING_OPTIONS & options.keys()):
        raise UsageError(
            f"model.options.{loads[0]} makes {library} fetch or load weights, which a run reads "
            f"from a file that identifies them; leave it out, save the weights once where the "
            f"network is reachable, by {saving_code(library, name)}, and write "
            f"model.start={name}.pth"
        )
    given |= {"num_classes": recipe.data.classes} | options
    try:
        network = _build_seeded(partial(build, name, **given), recipe.seed)
    except Exception as error:
        raise UsageError(
            f"model={recipe.model.name} cannot be built with "
            f"model.options={dict(recipe.model.options)} ({first_line(error)}); write "
            "options that its library takes"
        ) from None
    if library == "torchvision" and recipe.data.channels == 1:
        give_one_channel(network)
    return network


def own_network_keywords(recipe: Recipe) -> dict[str, Any]:
    """Return the arguments with which a recipe calls its own network's class or function."""
    data = recipe.data
    sizes = {"classes": data.classes, "channels": data.channels, "image_size": data.image_size}
    return _own_network(recipe).keywords(recipe.model.options, **sizes)


def _own_network(recipe: Recipe) -> OwnPart:
    return imported_part(NETWORK, recipe.model.name, recipe.model.source)


def _build_own(recipe: Recipe) -> nn.Module:
    """Build the network of a user's own, with the recipe's seed; raises UsageError if it fails."""
    part = _own_network(recipe)
    try:
        with seeded_generators(recipe.seed):
            return _build_seeded(partial(part.make, **own_network_keywords(recipe)), recipe.seed)
    except UsageError:
        raise
    except Exception as error:
        raise part.refusal(recipe.model.options, error) from error


def _build_seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Call a network's builder with torch's generator at this seed, and put the generator back.

    The network is on the default device. Where the builder fails on meta, it is called on the CPU.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            network = build()
        except (NotImplementedError, RuntimeError):
            if torch.get_default_device().type != "meta":
                raise
            # Some networks compute widths with tensors, which have no values on the meta device.
            with torch.device("cpu"):
                network = build()
    # Other networks choose a device for some of their tensors.
    return network.to(torch.get_default_device())


def saving_code(library: str, name: str) -> str:
    """Return the line of Python that downloads a network's trained weights into a file."""
    maker = (
        f"timm.create_model('{name}', pretrained=True)"
        if library == "timm"
        else f"torchvision.models.get_model('{name}', weights='DEFAULT')"
    )
    return f"torch.save({maker}.state_dict(), '{name}.pth')"


def builder_options(recipe: Recipe) -> dict[str, Any]:
    """Return the options with which a library builds a recipe's network, besides its classes.

    They are those of model.options; the image size is added for networks whose layers depend on it.
    """
    library, _, name = recipe.model.name.partition("/")
    side, size = recipe.data.image_size, {}
    if library == "torchvision" and name.startswith("vit_"):
        size = {"image_size": side}
    elif library == "timm":
        import timm

        config = timm.get_pretrained_cfg(name)
        size = {"img_size": side} if config is not None and config.fixed_input_size else {}
    return size | recipe.model.options


def _apply_roles(network: nn.Module, recipe: Recipe) -> ParameterRoles:
    """Set the recipe's last_gamma on a network's last norms; record these and undecayed parameters.

    Returns the roles that were found. Raises UsageError if the gamma is not 0, the paper's value,
    and there is no such norm.
    """
    roles = _call_on_images(partial(find_roles, network), recipe)
    gamma = recipe.model.last_gamma
    if gamma and not roles.last_norms:
        raise UsageError(
            f"model.last_gamma={gamma:g} needs residual blocks that end in a norm, and "
            f"model={recipe.model.name} has none; leave it out"
        )
    for path in roles.last_norms:
        nn.init.constant_(network.get_parameter(f"{path}.weight"), gamma)
    network.last_norms = roles.last_norms  # type: ignore[assignment]
    # The network's library may exclude further parameters from weight decay.
    patterns: Iterable[str] = getattr(network, "no_weight_decay", tuple)()
    named = {
        name
        for name, _ in network.named_parameters()
        if any(fnmatch(name, pattern) for pattern in patterns)
    }
    network.undecayed = roles.elementwise | named  # type: ignore[assignment]
    return roles


def _replace_layers(network: nn.Module, recipe: Recipe, roles: ParameterRoles) -> None:
    """Replace a network's BN and random layers by versions that are per worker or per example."""
    replace_dropout(network, seed=recipe.seed)
    for path, module in network.named_modules():
        if not isinstance(module, nn.modules.batchnorm._NormBase):
            continue
        rows = _rows_per_image(path, roles.norm_rows.get(path, frozenset()), recipe)
        _normalise_per_worker(module, path, recipe, rows)


def _rows_per_image(path: str, rows: frozenset[int], recipe: Recipe) -> int:
    """Return the number of input rows of a BN per image; raises UsageError if it varies."""
    if len(rows) > 1 or any(count % PROBE_IMAGES for count in rows):
        raise UsageError(
            f"model={recipe.model.name} normalises in {path} "
            f"{' and '.join(map(str, sorted(rows)))} rows for {PROBE_IMAGES} images, not the "
            "same number for each image; choose another network"
        )
    return next(iter(rows), PROBE_IMAGES) // PROBE_IMAGES


def _normalise_per_worker(norm: nn.Module, path: str, recipe: Recipe, rows: int) -> None:
    """Make a norm of a network normalise each worker's images separately, in place.

    `rows` is the number of its rows per image. Raises UsageError if it cannot.
    """
    if isinstance(norm, WorkerBatchNorm) or keeps_images_apart(norm):
        return
    if not (norm.affine and norm.track_running_stats):
        raise UsageError(
            f"model={recipe.model.name} has a BN without gamma and beta, or without running "
            f"statistics, {path}; choose another network"
        )
    kind = worker_batch_norm_type(norm)
    if kind is None:
        raise UsageError(
            f"model={recipe.model.name} normalises by {type(norm).__name__} in {path}, which may "
            "mix the images of several workers; choose another network"
        )
    norm.__class__ = kind
    norm.momentum = 0.1  # type: ignore[assignment]  # as elsewhere; RunningStatistics has its own
    norm.rows_per_image = rows  # type: ignore[assignment]
