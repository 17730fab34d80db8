"""NVIDIA's apex: its FusedSGD in place of torch's, with the same settings and the same state.

The update is equation (9) in float32, as torch's kernel makes it, but for the last bits: apex takes
lr, momentum and decay in float32, and torch in float64.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lsgd import installation
from lsgd.errors import Refused

NEEDED = "optim.fused=apex needs NVIDIA's apex"
INSTEAD = "or write optim.fused=torch"


def apex_sgd(
    groups: list[dict[str, Any]], *, momentum: float, nesterov: bool
) -> torch.optim.Optimizer:
    """Momentum SGD over these groups by apex, with an lr of 0; each has a `weight_decay`.

    It skips an update when its `found_inf` is 1, and its state_dict is that of torch's SGD. Raises
    Refused where apex is missing, is another package, or makes no update of tensors like the first.
    """
    fused_sgd = _find()
    _need_updates(fused_sgd, groups[0]["params"][0])
    return _over(fused_sgd, groups, momentum, nesterov)


def _over(
    fused_sgd: Any, groups: list[dict[str, Any]], momentum: float, nesterov: bool
) -> torch.optim.Optimizer:
    # torch gives each group all of its settings, `fused` among them. Without it in a checkpoint,
    # torch would go on with its loop, which makes an update also where found_inf is 1.
    plain = torch.optim.SGD(groups, lr=0.0, momentum=momentum, nesterov=nesterov, fused=True)
    made: torch.optim.Optimizer = fused_sgd(
        plain.param_groups, lr=0.0, momentum=momentum, nesterov=nesterov
    )
    made.register_step_pre_hook(_hand_on_flag)
    return made


def _hand_on_flag(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Write found_inf where the kernels look whether to return at once; the host waits for nothing.

    apex has no found_inf. It made the buffer for its amp, never raises or clears it by itself, and
    hands it to each launch of the kernel.
    """
    found_inf: Tensor | None = getattr(optimizer, "found_inf", None)
    if found_inf is not None:
        optimizer._dummy_overflow_buf.copy_(found_inf)  # type: ignore[attr-defined]


def _build() -> str:
    return installation.script("setup/apex.sh")


def _find() -> Any:
    """The class FusedSGD; raises Refused where there is none."""
    spec = find_spec("apex")
    if spec is None:
        raise Refused(f"{NEEDED}, which is not installed; {_build()} builds it, {INSTEAD}")
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    if not any((folder / "optimizers").is_dir() for folder in folders):
        raise Refused(
            f"{NEEDED}, and the apex in {', '.join(map(str, folders))} is another package, as "
            f"PyPI's of that name is; {installation.pip('uninstall', 'apex')}, then {_build()}, "
            f"{INSTEAD}"
        )
    try:
        from apex.optimizers import FusedSGD
    except ImportError as error:
        raise Refused(
            f"{NEEDED}, and the one installed here cannot be imported ({error}); {_build()} builds "
            f"it anew, {INSTEAD}"
        ) from None
    return FusedSGD


def _need_updates(fused_sgd: Any, tensor: Tensor) -> None:
    """Try an update of a tensor like this one, and one that is to be skipped.

    apex passes over what is neither float32 nor float16 without a word, its kernels need a GPU and
    may be missing or of another torch, and the buffer for the flag is no public part of it.
    """
    probe = torch.ones(2, dtype=tensor.dtype, device=tensor.device)
    probe.grad = torch.ones_like(probe)
    found = []
    try:
        made = _over(fused_sgd, [{"params": [probe], "weight_decay": 0.0}], 0.5, False)
        made.param_groups[0]["lr"] = 0.25
        for skips in (0.0, 1.0):
            made.found_inf = probe.new_full((), skips)  # type: ignore[attr-defined]
            made.step()
            found.append(probe[0].item())
        why = f"from 1 by 0.25 it came to {found[0]:g}, and in a skipped update to {found[1]:g}"
    except (AttributeError, RuntimeError) as error:
        why = str(error).partition("\n")[0]
    if found != [0.75, 0.75]:
        kind = f"{str(tensor.dtype).removeprefix('torch.')} on {tensor.device.type}"
        raise Refused(
            f"{NEEDED}, and the one installed here makes no update of {kind} ({why}); it takes "
            f"float32 on a GPU, {_build()} builds it for this torch, {INSTEAD}"
        )
