"""NVIDIA apex's FusedSGD as a replacement for torch's, with the same settings and state.

The update is equation (9) in float32, as in torch's kernel. The last bits differ, since apex takes
lr, momentum and decay in float32, and torch in float64.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lsgd import installation
from lsgd.errors import UsageError

NEEDED = "optim.fused=apex needs NVIDIA's apex"
INSTEAD = "or write optim.fused=torch"


def apex_sgd(
    groups: list[dict[str, Any]], *, momentum: float, nesterov: bool
) -> torch.optim.Optimizer:
    """Create NVIDIA apex's momentum SGD over parameter groups, each with a `weight_decay`; lr is 0.

    It skips an update if its `found_inf` is 1, and its state_dict is that of torch's SGD. Raises
    UsageError if apex is missing, is another package, or does not update tensors like the first.
    """
    fused_sgd = _find()
    _check_updates(fused_sgd, next(each for group in groups for each in group["params"]))
    return _make_fused_sgd(fused_sgd, groups, momentum, nesterov)


def _make_fused_sgd(
    fused_sgd: Any, groups: list[dict[str, Any]], momentum: float, nesterov: bool
) -> torch.optim.Optimizer:
    # torch's SGD gives each group all of its settings, `fused` among them. A checkpoint without it
    # would be resumed by torch's unfused loop, which ignores found_inf.
    plain = torch.optim.SGD(groups, lr=0.0, momentum=momentum, nesterov=nesterov, fused=True)
    # apex takes its device from the first tensor of the first group, which must not be empty.
    filled = [group for group in plain.param_groups if group["params"]]
    made: torch.optim.Optimizer = fused_sgd(filled, lr=0.0, momentum=momentum, nesterov=nesterov)
    made.param_groups = plain.param_groups
    made.register_step_pre_hook(_copy_found_inf)
    return made


def _copy_found_inf(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Copy found_inf into the flag with which apex's kernels skip an update, without a host sync.

    apex has no found_inf. It made the flag for its amp, never sets or clears it, and passes it
    to each kernel launch.
    """
    found_inf: Tensor | None = getattr(optimizer, "found_inf", None)
    if found_inf is not None:
        optimizer._dummy_overflow_buf.copy_(found_inf)  # type: ignore[attr-defined]


def _build() -> str:
    return installation.script_command("setup/apex.sh")


def _find() -> Any:
    """Import and return apex's optimizer class FusedSGD; raises UsageError if that fails."""
    spec = find_spec("apex")
    if spec is None:
        raise UsageError(f"{NEEDED}, which is not installed; {_build()} builds it, {INSTEAD}")
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    if not any((folder / "optimizers").is_dir() for folder in folders):
        raise UsageError(
            f"{NEEDED}, and the apex in {', '.join(map(str, folders))} is another package, such "
            f"as the apex of PyPI; {installation.pip_command('uninstall', 'apex')}, then "
            f"{_build()}, {INSTEAD}"
        )
    try:
        from apex.optimizers import FusedSGD
    except ImportError as error:
        raise UsageError(
            f"{NEEDED}, and the one installed here cannot be imported ({error}); {_build()} builds "
            f"it anew, {INSTEAD}"
        ) from None
    return FusedSGD


def _check_updates(fused_sgd: Any, tensor: Tensor) -> None:
    """Raise UsageError unless apex's SGD updates tensors like this one, and skips on found_inf.

    apex silently ignores tensors other than float32 and float16, its kernels need a GPU and may be
    missing or built for another torch, and the flag's buffer is not part of its public interface.
    """
    probe = torch.ones(2, dtype=tensor.dtype, device=tensor.device)
    probe.grad = torch.ones_like(probe)
    found = []
    try:
        made = _make_fused_sgd(fused_sgd, [{"params": [probe], "weight_decay": 0.0}], 0.5, False)
        made.param_groups[0]["lr"] = 0.25
        for skips in (0.0, 1.0):
            made.found_inf = probe.new_full((), skips)  # type: ignore[attr-defined]
            made.step()
            found.append(probe[0].item())
        why = f"from 1 by 0.25 it gave {found[0]:g}, and in a skipped update {found[1]:g}"
    except (AttributeError, RuntimeError) as error:
        why = str(error).partition("\n")[0]
    if found != [0.75, 0.75]:
        kind = f"{str(tensor.dtype).removeprefix('torch.')} on {tensor.device.type}"
        raise UsageError(
            f"{NEEDED}, and the one installed here makes no update of {kind} ({why}); it takes "
            f"float32 on a GPU, {_build()} builds it for this torch, {INSTEAD}"
        )
