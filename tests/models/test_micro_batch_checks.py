"""What does other things in several micro-batches than in one is found: hooks and embeddings."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lsgd.models.micro_batch_checks import find_nonadditive_hook, find_renormalized_embedding

SEEN: list[Tensor] = []
NOISE = torch.Generator().manual_seed(0)


def fails(_: Tensor) -> Tensor:
    raise RuntimeError("the backward pass has left nothing")


ADDITIVE: list[Callable[[Tensor], Tensor | None]] = [
    SEEN.append,  # type: ignore[list-item]
    lambda g: g * (torch.arange(g.numel()).view(g.shape) % 2),
    lambda g: 0.1 * g,
    lambda g: g - g.mean(),
    lambda g: g - g.mean(dim=-1, keepdim=True),
    lambda g: g.half().to(g.dtype),
    lambda g: g / 65536,
    lambda g: g.mul_(0),
    lambda g: g.nan_to_num(),
    fails,
]
NOT_ADDITIVE: list[Callable[[Tensor], Tensor | None]] = [
    lambda g: g.clamp(-0.01, 0.01),
    lambda g: g.clamp_(max=100.0),
    lambda g: torch.cat([g.flatten()[:-1], g.flatten()[-1:].clamp(-1, 1)]).view(g.shape),
    lambda g: g * (0.1 / g.norm()).clamp(max=1),
    lambda g: g.sign(),
    lambda g: g.relu(),
    lambda g: g + 1e-4,
    lambda g: g + 1e-4 * torch.randn(g.shape, generator=NOISE),
    lambda g: torch.where(g.abs() < g.abs().mean(), 0, g),
]


@pytest.mark.parametrize("layer", [nn.Linear(3, 5), nn.PReLU(), nn.Conv2d(2, 2, 3).double()])
def test_hooks_that_are_not_additive_are_found(layer: nn.Module) -> None:
    """Also of a single number; a frozen layer may have any."""
    before = torch.get_rng_state()
    for hook in ADDITIVE:
        handle = layer.weight.register_hook(hook)
        assert find_nonadditive_hook(layer) is None
        handle.remove()
    assert torch.equal(torch.get_rng_state(), before)
    for hook in NOT_ADDITIVE[: -1 if isinstance(layer, nn.PReLU) else None]:
        handle = layer.weight.register_hook(hook)
        assert find_nonadditive_hook(layer) == "weight"
        layer.weight.requires_grad_(False)
        assert find_nonadditive_hook(layer) is None
        layer.weight.requires_grad_(True)
        handle.remove()


def test_a_hook_that_observes_sees_one_gradient_of_zeros() -> None:
    seen: list[Tensor] = []
    layer = nn.Linear(3, 5)
    layer.weight.register_hook(seen.append)  # type: ignore[arg-type]
    assert find_nonadditive_hook(layer) is None
    assert [each.count_nonzero() for each in seen] == [0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounding_is_no_clipping(dtype: torch.dtype) -> None:
    """As of centralised gradients in a low precision."""
    layer = nn.Linear(512, 256, dtype=dtype)
    layer.weight.register_hook(lambda g: g - g.mean(dim=1, keepdim=True))
    assert find_nonadditive_hook(layer) is None
    layer.weight.register_hook(lambda g: g * (1 / g.norm()).clamp(max=1))
    assert find_nonadditive_hook(layer) == "weight"


def test_embeddings_that_scale_rows_are_found() -> None:
    for kind in (nn.Embedding, nn.EmbeddingBag):
        assert find_renormalized_embedding(nn.Sequential(kind(5, 3, max_norm=1.0))) == "0"
        assert find_renormalized_embedding(kind(5, 3)) is None
