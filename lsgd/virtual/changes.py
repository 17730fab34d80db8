"""The checks that no other code has changed a model, or its gradients, that steps train."""

from collections.abc import Mapping, Sequence
from itertools import chain
from operator import attrgetter, is_, methodcaller

from torch import Tensor, nn

from lsgd.errors import UsageError
from lsgd.rules.batchnorm import WorkerBatchNorm
from lsgd.strategy.reducer import CHANGED_GRADIENT, Reducer
from lsgd.virtual.model import check_draws, may_draw

_VALUES = methodcaller("values")
MAKE_ANOTHER = "since virtual(…); call close(), and make another step"


class ModelRecord:
    """A record of a model's layers and parameters, with which each step compares the model."""

    def __init__(self, model: nn.Module, layers: Sequence[WorkerBatchNorm]) -> None:
        self.model, self.layers = model, layers
        self.momenta = [layer.momentum for layer in layers]
        self.parameters = [*model.parameters()]
        self.requires_grad = [each.requires_grad for each in self.parameters]
        self.tables: list[Mapping[str, object]] = []
        for each in model.modules():
            self.tables += each._modules, each._parameters
        self.members = [*chain.from_iterable(map(_VALUES, self.tables))]
        self.may_draw = [(path, each) for path, each in model.named_modules() if may_draw(each)]

    def check(self) -> None:
        """Raise UsageError if a step would not train the model as it was when it was made."""
        if not self.model.training or not all(map(attrgetter("training"), self.layers)):
            raise UsageError(
                "the model, or a batch norm layer of it, is in evaluation mode in a training "
                "step; call model.train() first, and set layers that stay frozen to evaluation "
                "mode before virtual(…)"
            )
        if [*map(attrgetter("requires_grad"), self.parameters)] != self.requires_grad:
            raise UsageError(f"a parameter of the model was frozen or unfrozen {MAKE_ANOTHER}")
        members = [*chain.from_iterable(map(_VALUES, self.tables))]
        if len(members) != len(self.members) or not all(map(is_, members, self.members)):
            raise UsageError(
                "a layer or parameter of the model was added, removed or replaced, and would not "
                f"be trained, {MAKE_ANOTHER}"
            )
        if [*map(attrgetter("momentum"), self.layers)] != self.momenta:
            raise UsageError(f"the momentum of a batch norm layer was changed {MAKE_ANOTHER}")
        for path, module in self.may_draw:
            check_draws(module, f" in {path}")


class GradientRecord:
    """A record of the gradients as the last backward pass of a step has left them."""

    def __init__(self, parameters: Sequence[nn.Parameter], reducer: Reducer) -> None:
        self.parameters, self.reducer = parameters, reducer
        self.clear()

    def clear(self) -> None:
        """Release the gradients."""
        self.gradients: list[Tensor | None] = []
        self.versions: list[int | None] = []

    def update(self, *, is_last: bool) -> None:
        """Record the number of changes in place, and after the last pass the gradients themselves.

        Before that all gradients are views of buckets, as the reducer checks in the last pass.
        """
        self.gradients = [each.grad for each in self.parameters] if is_last else []
        flats = [bucket.flat for bucket in self.reducer.buckets]
        self.versions = [
            None if each is None else each._version for each in self.gradients or flats
        ]

    def check(self, *, is_last: bool) -> None:
        """Raise UsageError if other code has set or changed a gradient since `update`."""
        gradients, versions = self.gradients, self.versions
        self.update(is_last=is_last)
        if not all(map(is_, self.gradients, gradients)) or self.versions != versions:
            raise UsageError(CHANGED_GRADIENT)
