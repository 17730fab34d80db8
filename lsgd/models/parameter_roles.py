"""Analysis of what each parameter of a network does, from a forward pass on meta tensors.

The class or name of a foreign layer says little about it, but its operations do: a weight is summed
over by a product, a scale is multiplied elementwise, and a residual block ends where its branch is
added to the shortcut.
"""

import copy
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PRODUCT_WEIGHT_ARGS = {
    "convolution": (1,),
    "mm": (0, 1),
    "addmm": (1, 2),
    "bmm": (0, 1),
    "baddbmm": (1, 2),
    "mv": (0, 1),
    "dot": (0, 1),
    "embedding": (0,),
}
"""The operations that sum products, and the indices of their arguments that may be weights."""
NORMS = ("batch_norm", "layer_norm", "group_norm", "rms_norm")
"""Parts of the names of the operations that normalise."""
STATISTICS = ("rsqrt", "std", "var", "var_mean", "linalg_vector_norm", "norm")
"""The operations with which a hand-written layer normalises."""
TRANSPARENT = ("clone", "_to_copy", "_unsafe_view", "native_dropout", "constant_pad_nd")
"""The operations, besides views, that keep all numbers or set some to 0."""
POOLS = ("avg_pool2d", "max_pool2d_with_indices", "_adaptive_avg_pool2d", "mean")


@dataclass(frozen=True)
class ParameterRoles:
    """The roles of a network's parameters and layers, such as the last norm of a residual block."""

    last_norms: tuple[str, ...]
    """The paths of the norms that are the last operation in the branch of a residual block."""
    elementwise: frozenset[str]
    """The names of the parameters that are applied elementwise.

    They are scales and shifts of any norm, layer scales, position embeddings and tokens. Biases of
    products are not among them.
    """
    norm_rows: dict[str, frozenset[int]]
    """The numbers of rows in the inputs of each BN, by its path."""


def find_roles(network: nn.Module, images: Tensor) -> ParameterRoles:
    """Find a network's last norms of residual blocks and elementwise parameters by a forward pass.

    The network must be in training mode, and the images on the meta device. The network is not
    modified. Raises what its forward pass raises.
    """
    network = _without_values(network)
    trace = _Trace(dict(network.named_parameters()))
    for module in network.modules():
        module.register_forward_pre_hook(trace.enter)
        module.register_forward_hook(trace.leave)
    with torch.no_grad(), trace:
        trace.note_images(images)
        network(images)
    paths = {module: path for path, module in network.named_modules()}
    last = trace.last_norms()
    placed = {
        name
        for name in trace.placed - trace.multiplied
        if not _is_bias(network, name, trace.multiplied)
    }
    return ParameterRoles(
        tuple(paths[module] for module in last),
        frozenset(placed),
        {paths[norm]: frozenset(rows) for norm, rows in trace.rows.items()},
    )


def _without_values(network: nn.Module) -> nn.Module:
    """Copy a network to the meta device, where its parameters and buffers have no values.

    The copy is needed since some networks keep tensors of a forward pass.
    """
    memo: dict[int, object] = {}
    for parameter in network.parameters():
        memo[id(parameter)] = nn.Parameter(torch.empty_like(parameter, device="meta"))
    for buffer in network.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(network, memo)


def is_vector(tensor: Tensor) -> bool:
    """Return whether at most one dimension of a tensor has more than one element."""
    return sum(size > 1 for size in tensor.shape) <= 1


def _is_bias(network: nn.Module, name: str, multiplied: set[str]) -> bool:
    """Return whether a parameter is the bias of a linear layer or convolution, not of a norm."""
    path, _, own = name.rpartition(".")
    if "bias" not in own or not is_vector(network.get_parameter(name)):
        return False
    weight = getattr(network.get_submodule(path), "weight", None)
    return not _is_gamma(weight) or f"{path}.weight" in multiplied


def _is_gamma(weight: object) -> bool:
    return isinstance(weight, Tensor) and is_vector(weight)


@dataclass(frozen=True)
class _Origin:
    """The origin of a tensor: the operations and parameters that it was computed from."""

    before: int = 0
    """A bit for each operation on the images that the tensor depends on, with its own."""
    parameters: frozenset[str] = frozenset()
    """The names of the parameters that it is computed from, if it does not depend on the images."""
    norm: tuple[nn.Module, int] | None = None
    """The layer that normalised it last, with the bit of its operation.

    If gamma and beta of that layer are 0, so is the tensor.
    """
    operation: str = ""


@dataclass(frozen=True)
class _Sum:
    """The addition that ends a residual block whose branch ends in a norm layer."""

    norm: nn.Module
    norm_bit: int
    bit: int
    branch: int
    """The bits of the operations that the branch depends on, as in _Origin.before."""


class _Trace(TorchDispatchMode):
    """A dispatch mode that records the origin of every tensor in a forward pass."""

    def __init__(self, parameters: dict[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # The tensors are kept alive, so that no id is used twice.
        self.origins: dict[int, tuple[_Origin, Tensor]] = {}
        for name, tensor in parameters.items():
            self._note(tensor, _Origin(parameters=frozenset([name])))
        self.matrices = {name for name, tensor in parameters.items() if not is_vector(tensor)}
        self.inside: list[nn.Module] = []
        self.rows: dict[nn.Module, set[int]] = {}
        self.measuring: set[nn.Module] = set()
        self.operations = 0
        self.weighted = self.changed = 0
        """The bits of the operations that have weights, and of those that change numbers."""
        self.multiplied: set[str] = set()
        self.placed: set[str] = set()
        self.normalised: Counter[nn.Module] = Counter()
        self.sums: list[_Sum] = []
        self.befores: list[tuple[int, int]] = []
        """The bit of each operation on the images, and the bits of those that it depends on."""

    def note_images(self, images: Tensor) -> None:
        """Record a tensor as the network's input images, on which later results depend."""
        self._note(images, _Origin(before=self._bit()))

    def _bit(self) -> int:
        self.operations += 1
        return 1 << self.operations

    def _note(self, tensor: Tensor, origin: _Origin) -> None:
        self.origins[id(tensor)] = (origin, tensor)

    def _origin(self, tensor: object) -> _Origin:
        return self.origins[id(tensor)][0] if id(tensor) in self.origins else _Origin()

    def enter(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Record that a module starts its forward pass, and the number of input rows of a BN."""
        self.inside.append(module)
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            self.rows.setdefault(module, set()).add(len(inputs[0]))

    def leave(self, module: nn.Module, inputs: object, output: object) -> None:
        """Record that a module ends its forward pass, and whether it normalised its output.

        It counts as a norm if it computed statistics and then scaled its output.
        """
        self.inside.pop()
        origin = self._origin(output)
        is_norm = module in self.measuring and _is_gamma(getattr(module, "weight", None))
        if is_norm and isinstance(output, Tensor) and origin.operation in ("mul", "add", "addcmul"):
            self.normalised[module] += 1
            newest = 1 << origin.before.bit_length() - 1
            self._note(output, replace(origin, norm=(module, newest)))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a torch operation and record the origin of its results."""
        keywords = kwargs or {}
        output = func(*args, **keywords)
        name = func._schema.name.removeprefix("aten::").rstrip("_")
        inputs = [leaf for leaf in tree_leaves((args, keywords)) if isinstance(leaf, Tensor)]
        origin = self._after(name, bool(func.is_view), args, inputs)
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor):
                self._note(leaf, origin)
        return output

    def _after(self, name: str, is_view: bool, args: Any, inputs: list[Tensor]) -> _Origin:
        origins = [self._origin(tensor) for tensor in inputs]
        parameters = frozenset().union(*(origin.parameters for origin in origins))
        before = 0
        for origin in origins:
            before |= origin.before
        has_weights = name in PRODUCT_WEIGHT_ARGS and self._multiply(name, args)
        if not before:
            # A vector that scales a matrix, as in weight standardisation, is no weight.
            matrices = parameters & self.matrices
            if matrices:
                self.placed |= parameters - matrices
            return _Origin(parameters=matrices or parameters)
        bit = self._bit()
        if name not in PRODUCT_WEIGHT_ARGS:
            self.placed |= parameters
        if has_weights:
            self.weighted |= bit
        plain = is_view or name in TRANSPARENT
        if not plain:
            self.changed |= bit
        if self.inside and name in STATISTICS:
            self.measuring.add(self.inside[-1])
        if plain:
            name = next((origin.operation for origin in origins if origin.before), name)
        self.befores.append((bit, before | bit))
        return _Origin(before | bit, norm=self._norm(name, plain, bit, origins), operation=name)

    def _multiply(self, name: str, args: Any) -> bool:
        """Record the weights that a matrix product sums over; return whether there are any."""
        operands = [self._origin(args[place]).parameters for place in PRODUCT_WEIGHT_ARGS[name]]
        # If both operands have parameters, the second is the weight, and the first an input such as
        # a table of positions.
        weights = next((each for each in reversed(operands) if each), frozenset())
        self.multiplied |= weights
        return bool(weights)

    def _norm(
        self, name: str, plain: bool, bit: int, origins: list[_Origin]
    ) -> tuple[nn.Module, int] | None:
        moving = [origin for origin in origins if origin.before]
        if any(word in name for word in NORMS) and not plain:
            module = self.inside[-1] if self.inside else None
            if module is None or not _is_gamma(getattr(module, "weight", None)):
                return None
            self.normalised[module] += 1
            return module, bit
        if name == "add" and not plain and len(moving) == 2:
            return self._sum(moving[0], moving[1], bit)
        scaled = name in ("mul", "div") and not any(origin.parameters for origin in origins)
        if plain or scaled or name in POOLS:
            return next((origin.norm for origin in moving if origin.norm), None)
        return None

    def _sum(self, one: _Origin, other: _Origin, bit: int) -> tuple[nn.Module, int] | None:
        """Record the last norm if this sum ends a residual block; return the shortcut's norm.

        If the gamma of the last norm is 0, only the shortcut is left of the sum.
        """
        for shortcut, branch in ((one, other), (other, one)):
            around = shortcut.before & ~branch.before
            within = branch.before & ~shortcut.before
            if not branch.norm or not within & branch.norm[1] or not within & self.weighted:
                continue
            projections = (around & self.weighted).bit_count()
            is_projected = projections == 1 and (within & self.weighted).bit_count() > 1
            if is_projected or not around & self.changed:
                self.sums.append(_Sum(*branch.norm, bit, branch.before))
                return shortcut.norm
        return None

    def last_norms(self) -> list[nn.Module]:
        """Return the norm layers that end a residual block in every call and have no other use."""
        counts = Counter(
            each.norm
            for each in self.sums
            if not any(
                before & each.norm_bit and not before & each.bit and not bit & each.branch
                for bit, before in self.befores
            )
        )
        return [norm for norm, count in counts.items() if count == self.normalised[norm]]
