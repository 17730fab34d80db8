"""What the processes of a live run agree on, and copy from its servers at the end of an epoch."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from lsgd.errors import UsageError
from lsgd.strategy import live


def test_buffers_of_any_size_are_those_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit by bit, -0.0 too: masks are of one byte, and half precision of two."""
    ours = [
        torch.tensor([True, False, True]), torch.tensor([3, -4], dtype=torch.int16),
        torch.tensor([5], dtype=torch.int64), torch.tensor([-0.0, 1.5], dtype=torch.bfloat16),
        torch.tensor([-0.0, 2.5]), torch.tensor([7], dtype=torch.uint8),
    ]  # fmt: skip
    sent: list[Tensor] = []
    monkeypatch.setattr(live, "all_reduce_", lambda _, bits: sent.append(bits.clone()))
    server: Any = SimpleNamespace(process=0, server_ranks=[0], comm=None)
    live.LiveStrategy._copy_from_server(server, ours, 0)
    theirs = [torch.ones_like(each) for each in ours]
    monkeypatch.setattr(live, "all_reduce_", lambda _, bits: bits.add_(sent.pop(0)))
    live.LiveStrategy._copy_from_server(
        SimpleNamespace(process=1, server_ranks=[0], comm=None), theirs, 0
    )
    for mine, copied in zip(ours, theirs, strict=True):
        assert torch.equal(mine.view(torch.uint8), copied.view(torch.uint8))


@pytest.mark.parametrize("own", [4, 16])
def test_a_restarted_process_prefetches_as_the_others_do(
    own: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first checkpoint it knows their number from process 0 alone.

    The length of messages depends on it, so one of its own ends the connection.
    """
    monkeypatch.setattr(live, "prefetch_limit", lambda recipe: own)
    restarted: Any = SimpleNamespace(
        comm=SimpleNamespace(gather_objects=lambda value: [value] * 3),
        living=SimpleNamespace(publish=lambda name, value: 8),
        hosted=range(1, 2), orders=SimpleNamespace(ahead=0), one_gate=False, process=1, recipe=None,
    )  # fmt: skip
    if own > 8:
        with pytest.raises(UsageError, match=r"16 .* 8 .*inputs\.decoders"):
            live.LiveStrategy._agree_on_prefetch(restarted)
    else:
        assert live.LiveStrategy._agree_on_prefetch(restarted) == 8
