"""Checks of what a program passes to lsgd.virtual, and the changes that it makes to the model."""

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves, tree_map

from lsgd.comm import Comm, all_reduce_
from lsgd.errors import UsageError
from lsgd.models.forward_checks import find_changed_buffer, record_buffers
from lsgd.models.micro_batch_checks import find_nonadditive_hook, find_renormalized_embedding
from lsgd.rules.batchnorm import WorkerBatchNorm, keeps_images_apart, worker_batch_norm_type
from lsgd.rules.counter_dropout import CounterBasedDropout
from lsgd.rules.optim import trained_parameters
from lsgd.rules.sampler import MicroBatch
from lsgd.rules.statistics_freshness import StatisticsFreshness

Loss: TypeAlias = Callable[..., Tensor]
"""The type of a loss function of the model's output and the targets of some images.

It returns the mean over these images, or one number for each image.
"""


WRAPPERS = {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}
"""The classes that average or shard the gradients of a model themselves."""
IGNORE_INDEX = -100
"""The default of the losses of torch, a label that no image has."""


def check_model(model: nn.Module) -> None:
    """Raise UsageError if virtual workers cannot train a model, or something else does already."""
    for path, module in model.named_modules():
        where = f" in {path}" if path else ""
        if wrapper := WRAPPERS.intersection(base.__name__ for base in type(module).__mro__):
            raise UsageError(
                f"the model is wrapped in {wrapper.pop()}{where}, which reduces gradients itself; "
                "pass the model without the wrapper"
            )
        own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        if any(map(is_lazy, own)):
            raise UsageError(
                f"the model has {type(module).__name__}{where}, whose parameters have no shape "
                "yet; call the model on a batch before virtual(…)"
            )
        is_embedding = isinstance(module, nn.Embedding | nn.EmbeddingBag)
        if is_embedding and module.sparse and module.weight.requires_grad:
            raise UsageError(
                f"the embedding{where} has sparse gradients, which are not averaged; use "
                "sparse=False"
            )
        _check_norm(module, where, is_frozen=_is_frozen(module, model))
        check_draws(module, where)
    _check_parameters(model)


def _is_frozen(module: nn.Module, model: nn.Module) -> bool:
    """Return whether a layer stays in evaluation mode, as it does in a model in training mode."""
    return model.training and not module.training


def _check_norm(module: nn.Module, where: str, *, is_frozen: bool) -> None:
    """Raise UsageError for a norm that would mix the images of several workers."""
    if isinstance(module, nn.SyncBatchNorm):
        raise UsageError(
            f"the model has SyncBatchNorm{where}, whose statistics span processes and not "
            "workers; leave out convert_sync_batchnorm"
        )
    if not isinstance(module, nn.modules.batchnorm._NormBase) or keeps_images_apart(module):
        return
    if worker_batch_norm_type(module) is None:
        raise UsageError(
            f"the model normalises by {type(module).__name__}{where}, which may mix the images of "
            "several workers; use BatchNorm2d, or a norm of single images"
        )
    if not (module.track_running_stats and (module.affine or is_frozen)):
        raise UsageError(
            f"the batch norm{where} has no gamma and beta, or no running statistics; use one "
            "with both"
        )


def check_draws(module: nn.Module, where: str) -> None:
    """Raise UsageError for a layer that draws from torch's generator."""
    if _draws(module):
        raise UsageError(
            f"{type(module).__name__}{where} draws from torch's generator, so that the "
            "trajectory would depend on processes and workers_per_pass; use nn.Dropout, or a "
            "layer without random numbers"
        )


def may_draw(module: nn.Module) -> bool:
    """Return whether a layer of torch draws from its generator if its dropout rate is not 0.

    Those that `replace_dropout` replaces do not.
    """
    kinds = (nn.modules.dropout._DropoutNd, nn.RNNBase, nn.MultiheadAttention)
    return isinstance(module, kinds) and not _is_replaced(module)


def _is_replaced(module: nn.Module) -> bool:
    """Return whether a layer is, or becomes, one that draws by example."""
    return type(module) is nn.Dropout or isinstance(module, CounterBasedDropout)


def _draws(module: nn.Module) -> bool:
    """Return whether a layer of torch draws from its generator in training."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0 and not _is_replaced(module)
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0 and module.num_layers > 1
    if isinstance(module, nn.MultiheadAttention):
        return bool(module.dropout > 0)
    return isinstance(module, nn.RReLU)


def _check_parameters(model: nn.Module) -> None:
    """Raise UsageError if the trained parameters are of several kinds, or have an owner."""
    parameters = trained_parameters(model)
    if not parameters:
        raise UsageError("the model has no parameter that requires a gradient")
    kinds = {(parameter.dtype, parameter.device) for parameter in parameters}
    if len(kinds) > 1:
        found = " and ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
        raise UsageError(
            f"the trained parameters are {found}; move the model to one device and dtype, and use "
            "torch.autocast for a lower precision"
        )
    if any(getattr(each, "_post_accumulate_grad_hooks", None) for each in parameters):
        raise UsageError(
            "the model's gradients are handled by hooks of another step or library; call close() "
            "of the earlier virtual step first"
        )


def check_micro_batches(model: nn.Module) -> None:
    """Raise UsageError if a hook or an embedding makes a step depend on its micro-batches."""
    if path := find_renormalized_embedding(model):
        raise UsageError(
            f"the embedding {path} has max_norm, by which each process scales the rows that its "
            "own images look up, so that the replicas would drift apart; leave max_norm out"
        )
    if path := find_nonadditive_hook(model):
        raise UsageError(
            f"the parameter {path} has a hook on its gradient that is not additive, such as one "
            "that clips, so that the trajectory would depend on processes and workers_per_pass; "
            "remove it, and change the averaged gradient by optimizer.register_step_pre_hook(…)"
        )


def do_nothing(_: Tensor) -> None:
    """Do nothing with the gradient of a parameter."""


def check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise UsageError for an optimizer that cannot make the update of a virtual step.

    Its step needs a closure, or reduces gradients itself, or it holds parameters of another model.
    """
    # Horovod's classes have the names of those that they wrap.
    if any(base.__module__ == "horovod.torch.optimizer" for base in type(optimizer).__mro__):
        raise UsageError(
            f"the optimizer {type(optimizer).__name__} is wrapped in hvd.DistributedOptimizer, "
            "which reduces gradients itself; pass the optimizer without the wrapper"
        )
    try:
        # Of the class, since a scheduler has replaced the instance's.
        inspect.signature(type(optimizer).step).bind(optimizer)
    except TypeError:
        raise UsageError(
            f"{type(optimizer).__name__} computes the loss itself by the closure that its step "
            "needs, and a virtual step has the gradient only; use an optimizer whose step takes no "
            "argument"
        ) from None
    own = {id(parameter) for parameter in model.parameters()}
    held = [each for group in optimizer.param_groups for each in group["params"]]
    if foreign := [each for each in held if id(each) not in own]:
        raise UsageError(
            f"the optimizer holds {len(foreign)} of {len(held)} parameters that are not the "
            "model's; make it from the parameters of the model that is passed"
        )


def unwrapped(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the optimizer whose step a wrapper calls, such as Lightning's or Accelerate's."""
    for name in ("_optimizer", "optimizer"):
        inner = getattr(optimizer, name, None)
        if isinstance(inner, torch.optim.Optimizer):
            return unwrapped(inner)
    return optimizer


def check_loss(loss: Loss) -> None:
    """Raise UsageError for a loss of torch whose value is not the mean over the images."""
    if isinstance(loss, type) or not callable(loss):
        raise UsageError(
            f"loss={loss!r} is not a function of the model's output and the targets; pass one, "
            "such as nn.CrossEntropyLoss()"
        )
    setting: Callable[..., object] = partial(getattr, loss)
    may_weigh = isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss)
    if isinstance(loss, partial):
        setting, may_weigh = loss.keywords.get, loss.func in (F.cross_entropy, F.nll_loss)
    reduction, ignored = setting("reduction", "mean"), setting("ignore_index", IGNORE_INDEX)
    if reduction == "sum":
        raise UsageError(
            "the loss has reduction='sum', and a step takes a mean or one number for each image; "
            "use reduction='mean'"
        )
    if not may_weigh or reduction != "mean":
        return
    if setting("weight", None) is not None:
        what = "class weights, by whose sum its mean is divided"
    elif ignored != IGNORE_INDEX:
        what = f"ignore_index={ignored}, without which its mean is taken"
    else:
        return
    raise UsageError(
        f"the loss has {what}, so that it would depend on workers_per_pass; use reduction='none'"
    )


def check_mean(
    loss: Loss, value: object, arguments: tuple[Any, ...], micro_batch: MicroBatch
) -> None:
    """Raise UsageError if the loss of several workers is not the mean of the losses of each.

    `value` is the loss of the arguments, those of a micro-batch. A loss that may keep a state, that
    draws random numbers, or whose arguments cannot be split into those of the workers, is not
    checked.
    """
    workers, images = len(micro_batch.workers), len(micro_batch.examples)
    leaves = tree_leaves(arguments)
    is_split = all(isinstance(leaf, Tensor) and leaf.shape[:1] == (images,) for leaf in leaves)
    if workers == 1 or not is_split or not isinstance(value, Tensor) or value.dim():
        return
    if not _may_be_repeated(loss):
        return
    try:
        again, losses = _repeat(loss, arguments, workers)
        kinds = [each.dtype for each in (value, *leaves) if each.is_floating_point()]
        tolerance = max(torch.finfo(kind).eps for kind in kinds) ** 0.7
        if value.device.type != "cpu":  # which may multiply matrices in a lower precision
            tolerance = max(tolerance, 1e-3)
        difference = (losses.mean() - value.detach()).abs()
        # A loss that draws, or that has changed its arguments or itself, differs from the first.
        is_same = torch.equal(again, value.detach())
        is_wrong = is_same and bool(difference > tolerance * losses.abs().max())
    except Exception:  # as of a loss of a fixed number of images
        return
    if is_wrong:
        raise UsageError(
            f"the loss of {workers} workers, {value:.6g}, is not the mean of the losses of each, "
            f"{losses.mean():.6g}, as with class weights, labels that are left out or pairs of "
            "images, so that it would depend on workers_per_pass; return one number for each image"
        )


def _may_be_repeated(loss: Loss) -> bool:
    """Return whether further calls of a loss, or of a copy of a module, change no state."""
    if isinstance(loss, partial):
        return getattr(loss.func, "__module__", "") == F.__name__
    if isinstance(loss, FunctionType):
        return not loss.__closure__ and not vars(loss)
    return isinstance(loss, nn.Module | BuiltinFunctionType)


@torch.no_grad()
def _repeat(loss: Loss, arguments: tuple[Any, ...], workers: int) -> tuple[Tensor, Tensor]:
    """Return the loss of the arguments again, and those of each worker, from copies of all."""
    copied = copy.deepcopy(loss) if isinstance(loss, nn.Module) else loss

    def call(part: slice) -> Tensor:
        return copied(*tree_map(lambda leaf: leaf[part].detach().clone(), arguments))

    devices = {each.device for each in tree_leaves(arguments) if each.device.type != "cpu"}
    kind = next((device.type for device in devices), "cuda")
    with torch.random.fork_rng(devices, device_type=kind):
        again = call(slice(None))
        losses = [call(slice(first, None, workers)) for first in range(workers)]
    return again, torch.stack(losses).double()


@contextmanager
def check_buffers(model: nn.Module) -> Iterator[None]:
    """Raise UsageError if a forward pass within the context changes a buffer that is not BN's."""
    buffers = record_buffers(model)
    yield
    if path := find_changed_buffer(model, buffers):
        raise UsageError(
            f"the model changes the buffer {path} in a forward pass, so that the trajectory would "
            "depend on processes and workers_per_pass; choose a layer whose buffers are constant "
            "in training"
        )


def common_momentum(model: nn.Module) -> float:
    """Return the momentum of a model's batch norm layers; raises UsageError if they differ."""
    found = {
        norm.momentum
        for norm in model.modules()
        if isinstance(norm, nn.modules.batchnorm._BatchNorm) and not _is_frozen(norm, model)
    }
    if len(found) > 1 or None in found:
        raise UsageError(
            f"the batch norm layers have momentum {', '.join(sorted(map(str, found)))}; give all "
            "the same, such as 0.1"
        )
    return cast(float, found.pop()) if found else 0.1


@torch.no_grad()
def broadcast_model(model: nn.Module, comm: Comm) -> None:
    """Give every process the parameters and buffers of process 0, as DistributedDataParallel does.

    They are sums in which the other processes are 0, which every communicator has.
    """
    if comm.world_size == 1:
        return
    for tensor in (*model.parameters(), *model.buffers()):
        sent = tensor.detach().clone(memory_format=torch.contiguous_format)
        if sent.dtype == torch.bool:
            sent = sent.to(torch.uint8)
        if comm.rank:
            sent.zero_()
        all_reduce_(comm, sent)
        tensor.copy_(sent)


def convert_batch_norms(model: nn.Module) -> dict[nn.Module, type[nn.Module]]:
    """Make a model's batch norm layers normalise per worker; return the class of each before.

    The layers stay the same objects, with their parameters, buffers and hooks. One that is in
    evaluation mode while the model is in training mode stays frozen in it.
    """
    plain: dict[nn.Module, type[nn.Module]] = {}
    for module in model.modules():
        if not isinstance(module, nn.modules.batchnorm._BatchNorm):
            continue
        plain[module] = type(module)
        module.__class__ = worker_batch_norm_type(module)  # type: ignore[assignment]
        assert isinstance(module, WorkerBatchNorm)
        module.is_frozen = _is_frozen(module, model)
        module.freshness = StatisticsFreshness()
    return plain


def restore_batch_norms(plain: dict[nn.Module, type[nn.Module]]) -> None:
    """Give the batch norm layers that `convert_batch_norms` returned their classes again."""
    for layer, kind in plain.items():
        layer.__class__ = kind
        for name in (
            "is_frozen", "workers", "rows_per_image", "images", "seen", "calls", "freshness",
        ):  # fmt: skip
            vars(layer).pop(name, None)
