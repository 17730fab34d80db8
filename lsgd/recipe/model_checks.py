"""Checks that a recipe's network, its start, its optimizer and its weights fit each other."""

import re

from lsgd.errors import UsageError
from lsgd.own_parts import FORM, KINDS, is_import_path
from lsgd.recipe import Optim, Recipe
from lsgd.recipe.fields import as_override, one_of
from lsgd.recipe.settings import MEAN_SQUARE, MODELS, OWN_NETWORK


def check_model(recipe: Recipe) -> None:
    """Raise UsageError if the network or its options do not fit the workload.

    This check runs first, since the messages of all others would assume the wrong workload.
    """
    workload, model = recipe.data.workload, recipe.model.name
    one_of(*MODELS, own=True)["one_of"].enforce("data.workload", workload)
    if recipe.data.is_own_workload != (model == OWN_NETWORK):
        raise UsageError(
            f"data.workload={workload} makes its network itself, and this is model.name={model}; "
            f"write model: {{name: {OWN_NETWORK}}}, and `override /model: null` in `defaults`"
            if recipe.data.is_own_workload
            else f"model.name={OWN_NETWORK} is the network of a workload of your own, and this is "
            f"data.workload={workload}; write model={' or '.join(MODELS[workload])}"
        )
    for other, models in MODELS.items():
        if model in models and other != workload:
            raise UsageError(
                f"model={model} does not support data.workload={workload}; write "
                f"model={' or '.join(MODELS[workload])}"
            )
    if recipe.model.is_from_library and workload != "images":
        raise UsageError(
            f"model={model} is for images, and data.workload={workload}; write "
            f"model={' or '.join(MODELS[workload])}"
        )
    if workload == "images" and recipe.model.options and not recipe.model.is_from_library:
        raise UsageError(
            f"model.options={dict(recipe.model.options)} is for the maker of a library's network, "
            f"and this is model={model}; leave it out, or write model=torchvision/NAME"
        )
    for key, option in recipe.model.options.items():
        if not isinstance(option, bool | int | float | str) and not recipe.model.is_own:
            raise UsageError(
                f"model.options.{key}={option} is neither a number nor a text, which is all that "
                "a configuration keeps; write one, or leave it out"
            )


def check_weights(recipe: Recipe) -> None:
    """Raise UsageError for settings of a network's weights and their updates that do not fit."""
    _check_bn_statistics(recipe)
    _check_start(recipe)
    _check_optim(recipe.optim)
    _check_decoupled(recipe)
    _check_own_network(recipe)
    _check_own_parts(recipe)
    _check_fused(recipe)
    _check_float16(recipe)


def _check_start(recipe: Recipe) -> None:
    model = recipe.model
    if model.start_sha256 and not re.fullmatch("[0-9a-f]{64}", model.start_sha256):
        raise UsageError(
            f"model.start_sha256={model.start_sha256} is not a SHA-256 of 64 hexadecimal digits; "
            "leave it out, and it is computed from model.start"
        )
    if model.starts_pretrained and model.start:
        raise UsageError(
            f"model.options.pretrained=true has no effect with model.start={model.start}, which "
            "gives the weights; leave one of them out"
        )
    if model.new_head and not model.start_sha256 and not model.starts_pretrained:
        raise UsageError(
            "model.new_head=true has no effect without model.start, as all layers start from the "
            "seed then; leave it out, or write model.start=PATH"
        )

    if model.start_optimizer and not model.start_sha256:
        raise UsageError(
            "model.start_optimizer=true has no effect without model.start; leave it out, or write "
            "model.start=RUN"
        )
    if model.start_optimizer and model.new_head:
        raise UsageError(
            "model.start_optimizer=true has no state for the new layer of model.new_head=true; "
            "leave one of them out"
        )
    if model.start_optimizer and not recipe.strategy.is_synchronous:
        raise UsageError(
            "model.start_optimizer=true needs one optimizer for all workers, which "
            f"strategy={recipe.strategy.name} does not have; leave it out, or write "
            "strategy=allreduce"
        )


def _check_optim(optim: Optim) -> None:
    name = optim.name
    if optim.nesterov and not optim.momentum:
        raise UsageError(
            "optim.nesterov=true looks ahead along the momentum, and optim.momentum=0 leaves none; "
            "write optim.nesterov=false"
        )
    if name == "rmsprop_warmup" and not optim.momentum:
        raise UsageError(
            "optim.momentum=0 leaves no momentum that has both parts of the update of "
            "optim.name=rmsprop_warmup; write optim.momentum=0.9"
        )
    if name in MEAN_SQUARE and not optim.momentum:
        raise UsageError(
            f"optim.momentum=0 is beta1 of optim.name={name}, and keeps no mean of gradients; "
            "write optim.momentum=0.9"
        )
    if name != "lars" and not optim.eps:
        raise UsageError(
            f"optim.eps=0 may divide by 0 with optim.name={name}; write a number above 0, such as "
            "optim.eps=1e-8"
        )
    if optim.clip_norm is not None and optim.equation == 10:
        raise UsageError(
            f"optim.clip_norm={optim.clip_norm:g} is not for optim.equation=10, which is compared "
            "with the paper's updates; write optim.equation=9, or leave optim.clip_norm out"
        )


def _check_decoupled(recipe: Recipe) -> None:
    """Raise UsageError for a decoupled decay of SGD where no process updates whole models."""
    if recipe.optim.decay == "decoupled" and recipe.strategy.name != "allreduce":
        raise UsageError(
            "optim.decay=decoupled shrinks the weights of one model before each update, and "
            f"strategy={recipe.strategy.name} has parts of it, or several; write "
            "strategy=allreduce, or optim.decay=gradient"
        )


def _check_own_network(recipe: Recipe) -> None:
    """Raise UsageError for changes of lsgd's networks with the network of a library."""
    model = recipe.model
    if not model.is_from_library:
        return
    for key, usual in (("gamma", "ones"), ("blurpool", "none"), ("last_bias", 0.0)):
        if (value := getattr(model, key)) != usual:
            raise UsageError(
                f"model.{key}={as_override(value)} is for the networks of lsgd, and this is "
                f"model={model.name}; leave it out, or write model=resnet50"
            )


def _check_own_parts(recipe: Recipe) -> None:
    """Raise UsageError for the options or the source of a part where lsgd's own is chosen."""
    for kind in KINDS:
        if is_import_path(name := kind.named(recipe)):
            continue
        # check_model checks the options of a library's network.
        options = kind.options_of(recipe) if kind.key != "model.name" else {}
        for end, value in (("options", options), ("source", kind.source_of(recipe))):
            if value:
                raise UsageError(
                    f"{kind.group}.{kind.prefix}{end} is for a part of your own, and this is "
                    f"{kind.choice}={name}; leave it out, or write {kind.choice}={FORM}"
                )
    if recipe.optim.is_own and recipe.strategy.name != "allreduce":
        raise UsageError(
            f"optim={recipe.optim.name} updates whole tensors of one model, and with strategy="
            f"{recipe.strategy.name} there are parts of them, or several models; write "
            "strategy=allreduce"
        )


def _check_fused(recipe: Recipe) -> None:
    """Raise UsageError if a recipe selects apex's fused optimizer, which cannot train it."""
    optim = recipe.optim
    if optim.fused == "torch":
        return
    for key, value, possible in (
        ("optim.name", optim.name, ("sgd", "lars")),
        ("optim.equation", optim.equation, (9,)),
        ("optim.decay", optim.decay, ("gradient",)),
        ("precision", recipe.precision, ("float32", "tf32", "bfloat16", "float16")),
        ("device", recipe.device, ("auto", "cuda")),
        ("strategy.name", recipe.strategy.name, ("allreduce", "local")),
    ):
        if value not in possible:
            raise UsageError(
                "optim.fused=apex updates whole models in float32 on a GPU, by equation 9, and is "
                f"not for {key}={value}; write {key}={' or '.join(map(str, possible))}, or "
                "optim.fused=torch"
            )
    if not optim.momentum:
        raise UsageError(
            "optim.fused=apex keeps a momentum though optim.momentum=0 leaves none, and a "
            "checkpoint would have it; write optim.fused=torch"
        )


def _check_float16(recipe: Recipe) -> None:
    """Raise UsageError if a float16 recipe has no common updates, or measures scaled gradients."""
    if recipe.precision != "float16":
        return
    if recipe.strategy.name != "allreduce":
        raise UsageError(
            "precision=float16 skips a step on all processes where the sum of all gradients "
            f"overflows, and strategy={recipe.strategy.name} computes no such sum before it "
            "updates parameters; write precision=bfloat16, or strategy=allreduce"
        )
    if recipe.optim.is_own:
        raise UsageError(
            "precision=float16 skips the updates whose gradient overflows, which "
            f"optim={recipe.optim.name}, code outside of lsgd, does not do; write "
            "precision=bfloat16, or an optimizer of lsgd"
        )
    if recipe.noise_scale:
        raise UsageError(
            "noise_scale=true measures the gradients of micro-batches, in which precision=float16 "
            "still has its loss scale; write precision=bfloat16, or leave it out"
        )


def _check_averaging(recipe: Recipe) -> None:
    averaging, strategy = recipe.averaging, recipe.strategy.name
    if averaging.name == "none":
        return
    if strategy != "allreduce":
        raise UsageError(
            f"averaging={averaging.name} needs the model on each process after each update, "
            f"unlike strategy={strategy}; write averaging=none, or strategy=allreduce"
        )
    if recipe.bn_statistics.name == "last":
        raise UsageError(
            f"bn_statistics=last belongs to the last weights, and averaging={averaging.name} "
            "evaluates other weights with their own statistics; leave it out"
        )
    if averaging.every > recipe.total_steps:
        raise UsageError(
            f"averaging.every={averaging.every} is more than the {recipe.total_steps} steps of the "
            "run, whose evaluations would all be of the initial weights; write "
            f"averaging.every={recipe.total_steps} or less"
        )


def _check_bn_statistics(recipe: Recipe) -> None:
    _check_averaging(recipe)
    name = recipe.bn_statistics.name
    if name == "moving":
        return
    if recipe.model.name == "lenet5":
        raise UsageError(
            f"bn_statistics={name} has no effect with model=lenet5, which has no BN; leave it out"
        )
    if not recipe.strategy.is_synchronous:
        raise UsageError(
            f"bn_statistics={name} needs whole steps, which strategy={recipe.strategy.name} does "
            "not make; write bn_statistics=moving, or strategy=allreduce"
        )
