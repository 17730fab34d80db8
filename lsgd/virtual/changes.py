"""The checks that no other code has changed a model, or its gradients, that steps train."""

from collections.abc import Mapping, Sequence
from itertools import chain
from operator import attrgetter, is_, methodcaller

from torch import Tensor, nn

from lsgd.errors import UsageError
from lsgd.rules.batchnorm import WorkerBatchNorm
from lsgd.rules.counter_dropout import CounterBasedDropout, dropout_rate
from lsgd.strategy.reducer import CHANGED_GRADIENT, Reducer
from lsgd.virtual.model import check_draws, may_draw

_VALUES = methodcaller("values")
MAKE_ANOTHER = "since virtual(…); call close(), and make another step"


class ModelRecord:
    """A snapshot of a model's layers and parameters, with which each step compares the model."""

    def __init__(self, model: nn.Module, layers: Sequence[WorkerBatchNorm]) -> None:
        self.model, self.layers = model, layers
        self.momenta = [layer.momentum for layer in layers]
        self.parameters = [*model.parameters()]
        self.requires_grad = [each.requires_grad for each in self.parameters]
        self._record_members()

    def _record_members(self) -> None:
        self.modules = {*self.model.modules()}
        self.tables: list[Mapping[str, object]] = []
        for each in self.model.modules():
            self.tables += each._modules, each._parameters
        self.members = [*chain.from_iterable(map(_VALUES, self.tables))]
        named = self.model.named_modules()
        self.may_draw = [(path, each) for path, each in named if may_draw(each)]

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
            self._check_members()
        if [*map(attrgetter("momentum"), self.layers)] != self.momenta:
            raise UsageError(f"the momentum of a batch norm layer was changed {MAKE_ANOTHER}")
        for path, module in self.may_draw:
            check_draws(module, f" in {path}")

    def _check_members(self) -> None:
        """Raise UsageError if what was added, removed or replaced is trained, a norm or a dropout.

        Other layers are recorded, such as an activation that the first forward pass makes.
        """
        parameters = [*self.model.parameters()]
        is_same = len(parameters) == len(self.parameters)
        is_same = is_same and all(map(is_, parameters, self.parameters))
        if not is_same or any(map(_acts_on_steps, self.modules ^ {*self.model.modules()})):
            raise UsageError(
                "a layer or parameter of the model was added, removed or replaced, which a step "
                f"would not train as the others, {MAKE_ANOTHER}"
            )
        self._record_members()


def _acts_on_steps(module: nn.Module) -> bool:
    """Return whether a layer, even without parameters, is one that `virtual` replaces or checks."""
    kinds = (nn.modules.batchnorm._NormBase, CounterBasedDropout)
    is_of_kind = isinstance(module, kinds) or dropout_rate(module) is not None
    return is_of_kind or may_draw(module) or isinstance(module, nn.RReLU)


class GradientRecord:
    """Snapshots of the parameters' .grad, which show if other code changes it between passes."""

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
        unset = [] if is_last else [each for each in self.reducer.buckets if not each.attached]
        # These have no gradient before the pass, in which autograd assigns them.
        if any(each.grad is not None for bucket in unset for each in bucket.parameters()):
            raise UsageError(CHANGED_GRADIENT)
        gradients, versions = self.gradients, self.versions
        self.update(is_last=is_last)
        if not all(map(is_, self.gradients, gradients)) or self.versions != versions:
            raise UsageError(CHANGED_GRADIENT)
