"""The weights of a trained network that a run starts from: read as data, checked by name and shape.

The field model.start names a checkpoint or run folder of lsgd, an export, or a state dict that
another script saved by torch.save or as safetensors.
"""

import hashlib
import platform
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from lsgd.comm import Comm, all_or_raise, broadcast_from_rank0
from lsgd.config import from_saved
from lsgd.errors import UsageError
from lsgd.installation import install_command, is_installed
from lsgd.models import DTYPES, first_layer_parameters, head_parameters, make_network
from lsgd.paths import CHECKPOINT, existing_checkpoint
from lsgd.recipe import Model, Recipe
from lsgd.recipe.fields import as_override
from lsgd.recipe.start_file import start_file, unreadable_start
from lsgd.rules.optim import LR_FACTOR, recipe_groups
from lsgd.run.checkpoint import Checkpoint, DamagedCheckpointError, decode_checkpoint, load_numbers
from lsgd.untrusted_files import open_regular

MOST_NAMED = 3
"""The largest number of tensors that an error about another network names."""
OMITTED = (
    "argparse.Namespace", "numpy.dtype", "numpy._core.multiarray.scalar",
    "numpy.core.multiarray.scalar",
)  # fmt: skip
"""The objects beside the weights in checkpoints of torchvision's and timm's scripts, not read."""
SAME_FOR_OPTIMIZER = (
    "optim.name", "optim.equation", "optim.bias_correction", "optim.options", "model.frozen",
    "data.channels",
)  # fmt: skip
"""The fields on which the tensors of an optimizer's state depend, and their shapes."""


@dataclass(frozen=True)
class StartWeights:
    """The tensors that replace a network's initial weights, by name; empty if the seed decides."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    optimizer: Mapping[int | str, Any] | None = None
    """The optimizer state of the checkpoint, if the recipe starts from it too."""
    notes: tuple[str, ...] = ()
    """Text for the log: the file, its hash, and how the tensors were found in it."""


def read_start_weights(recipe: Recipe, comm: Comm) -> StartWeights:
    """Read the weights that a recipe's network starts from, on every process of a job.

    Raises UsageError, on all processes, if the file is not the one whose hash the recipe has, has
    other contents than weights of the recipe's network, or differs between processes.
    """
    model = recipe.model
    if model.starts_pretrained:
        raise RuntimeError("with_pretrained_weights has to be called before")
    if not model.start_sha256:
        return StartWeights()
    has_optimizer = model.start_optimizer
    if has_optimizer and recipe.run_dir:
        # A resumed run has the optimizer state of its own checkpoint.
        own = Path(recipe.run_dir, CHECKPOINT)
        has_optimizer = not broadcast_from_rank0(comm, lambda: existing_checkpoint(own).exists())
    start = all_or_raise(comm, lambda: _read(recipe, has_optimizer=has_optimizer))
    hosts = comm.gather_objects((model.start_sha256, platform.node()))
    for rank, (digest, host) in enumerate(hosts):
        if digest != hosts[0][0]:
            raise UsageError(
                f"model.start={model.start} is another file for process {rank} on {host} than for "
                f"process 0 on {hosts[0][1]}; copy the same file to all machines"
            )
    return start


def _read(recipe: Recipe, *, has_optimizer: bool) -> StartWeights:
    """Read and check the weights of a recipe's start file; raises UsageError."""
    model = recipe.model
    if model.start is None:
        raise UsageError(
            "model.start_sha256 identifies weights, but model.start does not say where they are; "
            "write model.start=PATH of their file"
        )
    file = start_file(model.start)
    try:
        with open_regular(file) as opened:
            content = opened.read()
    except (OSError, ValueError) as error:
        raise unreadable_start(model.start, error) from None
    digest = hashlib.sha256(content).hexdigest()
    if digest != model.start_sha256:
        raise UsageError(
            f"model.start={model.start} has changed: its SHA-256 is {digest[:12]}…, and the "
            f"recipe's model.start_sha256 is {model.start_sha256[:12]}…; write the path of the "
            "original file, or leave model.start_sha256 out to start another run from this one"
        )
    try:
        tensors, found, saved = read_state_dict(content, str(file), lambda: _own_tensors(recipe))
    except (ValueError, DamagedCheckpointError) as error:
        why = str(error).partition(";")[0]
        raise UsageError(
            f"model.start={model.start} holds no weights ({why}); give a checkpoint of lsgd, or a "
            "state dict as safetensors or by torch.save(model.state_dict(), 'weights.pth')"
        ) from None
    # torch computes little in the narrow formats: it has neither isfinite nor sums of 8 bits.
    for name, value in tensors.items():
        if value.is_floating_point() and value.element_size() < 4:
            tensors[name] = value.float()
    summed = _sum_channels(tensors, recipe)
    _check_tensors(tensors, recipe)
    optimizer = _optimizer_state(saved, recipe) if has_optimizer else None
    anew = ", and a new last layer" * model.new_head
    kept = ", and its optimizer state" * has_optimizer
    changed = f"{found}{summed}{anew}{kept}, SHA-256 {digest[:12]}…"
    note = f"model.start={model.start}: {len(tensors)} tensors{changed}"
    return StartWeights(tensors, optimizer, (note,))


def read_state_dict(
    content: bytes, name: str, own: Callable[[], Collection[str]]
) -> tuple[dict[str, Tensor], str, Checkpoint | None]:
    """Decode the tensors in a file of weights by name; return them with a note on what was removed.

    `own` returns the names of the network's tensors, of which prefixes are kept. The checkpoint of
    lsgd that has the tensors is returned too, if it is one; its names are the network's. Raises
    ValueError, DamagedCheckpointError for a damaged checkpoint, and UsageError, which gives `name`,
    if a newer lsgd wrote the file or a library is missing.
    """
    if _is_safetensors(content):
        loaded = _load_safetensors(content, name)
    else:
        loaded = load_numbers(content, omitted=OMITTED)
        if isinstance(loaded, dict) and "fingerprint" in loaded:
            saved = decode_checkpoint(content, name)
            note = f" of the checkpoint after step {saved.step}"
            return _checked_tensors(saved.model), note, saved
    return *_bare_state_dict(loaded, own), None


def _bare_state_dict(
    loaded: Any, own: Callable[[], Collection[str]]
) -> tuple[dict[str, Tensor], str]:
    """Extract a state dict from loaded values; return it with a note on what was removed.

    It is taken out of a checkpoint as many scripts write it, and the name prefixes of
    DistributedDataParallel, AveragedModel and torch.compile are removed, unless more of the names
    are the network's own with them. Raises ValueError if there are values other than tensors by
    name.
    """
    removed = ""
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded, removed = loaded[key], f"{removed} of {key}"
    if not isinstance(loaded, dict) or not loaded or not all(isinstance(n, str) for n in loaded):
        raise ValueError("it has no tensors by name")
    own = cache(own)  # which makes the network
    for prefix in ("module.", "_orig_mod.", "module."):
        plain = {name.removeprefix(prefix): value for name, value in loaded.items()}
        others = {name for name in loaded if not name.startswith(prefix)}
        # AveragedModel of torch.optim.swa_utils counts its averages.
        if not others or (others == {"n_averaged"} != {*loaded} and prefix == "module."):
            names = {*own()}
            if len(names & plain.keys()) >= len(names & loaded.keys()):
                loaded = {name: value for name, value in plain.items() if name not in others}
                removed += f" without the prefix {prefix}"
    return _checked_tensors(loaded), removed


def _checked_tensors(loaded: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a state dict by name; raises ValueError for any other value."""
    for name, value in loaded.items():
        if isinstance(value, dict) and any(isinstance(each, Tensor) for each in value.values()):
            raise ValueError(f"it has tensors in its entry {name:.80}, which alone is to be saved")
        dense = isinstance(value, Tensor) and value.layout == torch.strided
        if not dense or value.is_quantized or value.device.type != "cpu":
            raise ValueError(f"its {name:.80} is not a dense tensor")
    return dict(loaded)


def _is_safetensors(content: bytes) -> bool:
    """Return whether a file begins as safetensors do: the length of its header, then JSON."""
    return int.from_bytes(content[:8], "little") < len(content) and content[8:9] == b"{"


def _load_safetensors(content: bytes, name: str) -> dict[str, Tensor]:
    """Return the tensors in the bytes of a safetensors file; raises ValueError if it is damaged."""
    if not is_installed("safetensors"):
        raise UsageError(
            f"{name} is a safetensors file, which needs safetensors, which is not installed; "
            f"run {install_command('export')}"
        )
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(content)
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"it is a damaged safetensors file: {error}") from None


def _optimizer_state(saved: Checkpoint | None, recipe: Recipe) -> Mapping[int | str, Any]:
    """Return a start checkpoint's optimizer state in the parameter order of the new optimizer.

    Parameters are numbered by their groups, which may differ between the two runs. A velocity of
    equation 10 with momentum correction is corrected for the first lr. Raises UsageError unless the
    checkpoint has one state for all workers, of the same rule and the same parameters.
    """
    refuse = partial(_refuse_optimizer, recipe.model)
    if saved is None:
        refuse("is not a checkpoint of lsgd with an optimizer state")
    if recipe.optim.name in ("sgd", "lars") and not recipe.optim.momentum:
        refuse("has a state that optim.momentum=0 would not use", "write optim.momentum=0.9, or ")
    try:
        earlier = from_saved(saved.recipe)
    except UsageError as error:
        refuse(f"is of a recipe that this lsgd does not take ({str(error).partition('; ')[0]})")
    for key in SAME_FOR_OPTIMIZER:
        theirs, ours = map(attrgetter(key), (earlier, recipe))
        if theirs != ours:
            said = f"{key}={as_override(theirs)}"
            refuse(f"was trained with {said} instead of {as_override(ours)}", f"write {said}, or ")
    if not earlier.strategy.is_synchronous:
        refuse(
            f"was trained by strategy={earlier.strategy.name}, which has an optimizer for each "
            "worker or server"
        )
    state: Mapping[int | str, dict[str, Any]] = saved.optimizer["state"]
    if not state:
        refuse("has no optimizer state")
    if saved.fingerprint != earlier.fingerprint:
        refuse("was trained by an lsgd that numbers the optimizer's parameters in another way")
    # The two networks have the same parameters, and that of ours can be made here.
    of_earlier = replace(recipe, optim=earlier.optim, schedule=earlier.schedule)
    earlier_factors, factors = _lr_factors(of_earlier), _lr_factors(recipe)
    numbers = {name: number for number, name in enumerate(factors)}
    names = list(earlier_factors)
    # A text is the key of an entry that belongs to no parameter, in an optimizer of one's own.
    state = {
        key if isinstance(key, str) else numbers[names[key]]: each for key, each in state.items()
    }
    before, now = DTYPES[earlier.precision], DTYPES[recipe.precision]
    if recipe.optim.is_own and before != now:
        # Its tensors are loaded in the types that they have, and those of the parameters' follow.
        cast = partial(tree_map_only, Tensor, lambda it: it.to(now) if it.dtype == before else it)
        state = {key: cast(each) for key, each in state.items()}
    if recipe.optim.momentum_correction and saved.lr:
        for name, number in numbers.items():
            ratio = recipe.lr(0) * factors[name] / (saved.lr * earlier_factors[name])
            state[number] = {key: value * ratio for key, value in state[number].items()}
    return state


def _lr_factors(recipe: Recipe) -> dict[str, float]:
    """Return the lr factor of each trained parameter by name, in the order of the optimizer."""
    with torch.device("meta"):
        network = make_network(recipe)
    names = {parameter: name for name, parameter in network.named_parameters()}
    return {
        names[parameter]: group.get(LR_FACTOR, 1.0)
        for group in recipe_groups(network, **asdict(recipe.optim))
        for parameter in group["params"]
    }


def _refuse_optimizer(model: Model, why: str, fix: str = "") -> NoReturn:
    raise UsageError(
        f"model.start_optimizer=true, and model.start={model.start} {why}; {fix}leave "
        "model.start_optimizer out"
    )


def _sum_channels(tensors: dict[str, Tensor], recipe: Recipe) -> str:
    """Sum the first layer's weights over three channels for grey images; return a note for the log.

    The network then computes for a grey image what the other one computes for it in RGB.
    """
    if recipe.data.channels != 1:
        return ""
    summed = [
        name
        for name, shape in first_layer_parameters(recipe).items()
        if name in tensors and tensors[name].shape == shape and shape[1:2] == (3,)
    ]
    for name in summed:
        tensors[name] = tensors[name].sum(1, keepdim=True)
    return f", with {', '.join(summed)} summed over three channels" if summed else ""


def _own_tensors(recipe: Recipe) -> dict[str, Tensor]:
    """Return the tensors of a recipe's network by name, which have shapes and no values."""
    with torch.device("meta"):
        return make_network(recipe).state_dict()


def _check_tensors(tensors: dict[str, Tensor], recipe: Recipe) -> None:
    """Raise UsageError unless the tensors are finite and have the network's names and shapes.

    With model.new_head those of the last layer are removed instead, so that it keeps the weights
    that the seed determines.
    """
    model = recipe.model
    own = _own_tensors(recipe)
    head = head_parameters(recipe)
    if model.new_head:
        for name in head:
            own.pop(name, None)
            tensors.pop(name, None)
    # torch 0.4 and older saved no counters of batches, which no result depends on.
    lacking = [n for n in own.keys() - tensors.keys() if not n.endswith("num_batches_tracked")]
    unknown = tensors.keys() - own.keys()
    if lacking or unknown:
        _refuse_network(model, _listed("lacks", lacking) + _listed("also has", unknown))
    other = [name for name, value in tensors.items() if value.shape != own[name].shape]
    if other and set(other) <= set(head):
        raise UsageError(
            f"model.start={model.start} was trained for other classes: {other[0]} is of shape "
            f"{tuple(tensors[other[0]].shape)}, and data.classes={recipe.data.classes} needs "
            f"{tuple(own[other[0]].shape)}; write model.new_head=true"
        )
    if other:
        shapes = tuple(tensors[other[0]].shape), tuple(own[other[0]].shape)
        _refuse_network(model, f", whose {other[0]} is of shape {shapes[0]} and not {shapes[1]}")
    for name, value in tensors.items():
        if own[name].is_floating_point() and not value.is_floating_point():
            kind = str(value.dtype).removeprefix("torch.")
            raise UsageError(
                f"model.start={model.start} has values in {name} that are {kind}, and weights are "
                "floating-point numbers; save them as such, those of a quantized network unpacked"
            )
        if not torch.isfinite(value).all():
            raise UsageError(
                f"model.start={model.start} has values in {name} that are not finite; give the "
                "weights of a run that did not diverge"
            )


def _listed(verb: str, names: Any) -> str:
    """Return a clause that names the first of some tensors, or nothing if there are none."""
    shown = sorted(names)[:MOST_NAMED]
    more = " …" * (len(names) > MOST_NAMED)
    return f", which {verb} {', '.join(f'{name:.60}' for name in shown)}{more}" if shown else ""


def _refuse_network(model: Model, how: str) -> NoReturn:
    raise UsageError(
        f"model.start={model.start} has weights of another network than model={model.name}{how}; "
        "write model=NAME and its options as the weights have them"
    )
