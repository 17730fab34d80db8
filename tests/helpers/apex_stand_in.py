"""A fake of NVIDIA's apex for machines without a GPU: FusedSGD, with its kernel in torch.

Follows apex/optimizers/fused_sgd.py, csrc/multi_tensor_sgd_kernel.cu and
csrc/multi_tensor_apply.cuh at 6424da3b, 2026-07-08: names, checks, silently skipped parameters, and
arithmetic.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

CHUNK_SIZE = 2048 * 32


class FusedSGD(torch.optim.Optimizer):
    """A copy of apex.optimizers.FusedSGD without the master weights of amp."""

    def __init__(
        self, params: Any, lr: float, momentum: float = 0, dampening: float = 0,
        weight_decay: float = 0, nesterov: bool = False,
    ) -> None:  # fmt: skip
        defaults = {
            "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay,
            "nesterov": nesterov,
        }  # fmt: skip
        super().__init__(params, defaults)
        device = self.param_groups[0]["params"][0].device
        self._dummy_overflow_buf = torch.tensor([0], dtype=torch.int, device=device)

    def get_momentums(self, params: list[Tensor]) -> tuple[list[Tensor], bool]:
        """Return the momentum buffers, and whether the last parameter had none before.

        Missing buffers are created with zeros.
        """
        momentums, first_run = [], True
        for p in params:
            state = self.state[p]
            first_run = "momentum_buffer" not in state
            if first_run:
                state["momentum_buffer"] = torch.zeros_like(p.data)
            momentums.append(state["momentum_buffer"])
        return momentums, first_run

    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for dtype in (torch.float16, torch.float32):
                params = [p for p in group["params"] if p.dtype == dtype and p.grad is not None]
                grads = [p.grad for p in params]
                momentums, first_run = self.get_momentums(params)
                if params:
                    multi_tensor_sgd(
                        CHUNK_SIZE, self._dummy_overflow_buf, [grads, params, momentums],
                        group["weight_decay"], group["momentum"], group["dampening"], group["lr"],
                        group["nesterov"], first_run, False, 1.0,
                    )  # fmt: skip


def multi_tensor_sgd(
    chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], wd: float,
    momentum: float, dampening: float, lr: float, nesterov: bool, first_run: bool,
    wd_after_momentum: bool, scale: float,
) -> None:  # fmt: skip
    """Update weights and momenta as amp_C.multi_tensor_sgd does, on any device.

    `tensor_lists` are the gradients, weights and momenta.
    """
    assert not wd_after_momentum
    assert noop_flag.dtype == torch.int
    for tensor in (each for of_kind in tensor_lists for each in of_kind):
        if not (tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)):
            raise RuntimeError("A tensor was not contiguous.")
        assert tensor.device == noop_flag.device
    if noop_flag.item():
        return
    # The kernel's scalar arguments are float32.
    wd, momentum, dampening, lr = torch.tensor([wd, momentum, dampening, lr]).tolist()
    for tensors in zip(*tensor_lists, strict=True):
        # The kernel processes memory in order, whatever the shapes and strides are.
        g, w, m = (each.detach().as_strided((each.numel(),), (1,)) for each in tensors)
        g = g * scale
        if wd:
            g = g + wd * w
        if momentum:
            m.copy_(g if first_run else m * momentum + (1 - dampening) * g)
            g = g + momentum * m if nesterov else m
        w += -lr * g


@contextmanager
def importable(folder: Path, **modules: str) -> Iterator[None]:
    """Make a package apex with these modules (name: source) importable within this context."""
    for name, source in ({"__init__": ""} | modules).items():
        file = folder / "apex" / name.replace("__init__", ".") / "__init__.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    kept = _forget()
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        _forget()
        sys.modules.update(kept)


def fake_apex(folder: Path) -> Any:
    """Return a context manager in which `apex.optimizers.FusedSGD` is the class of this file."""
    return importable(folder, optimizers=f"from {__name__} import FusedSGD\n")


def _forget() -> dict[str, Any]:
    names = [name for name in sys.modules if name.partition(".")[0] == "apex"]
    return {name: sys.modules.pop(name) for name in names}
