import pytest
import torch

from lsgd.rules import loss_scale
from lsgd.rules.loss_scale import LossScale

GOOD, BAD = torch.tensor(1.0), torch.tensor(torch.inf)


def test_it_is_that_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 65536, halved after an overflow, doubled after 2000 updates in a row, here after 20."""
    defaults = torch.amp.GradScaler("cpu")
    assert defaults.get_scale() == loss_scale.INITIAL_SCALE == 65536
    assert defaults.get_growth_factor() == loss_scale.GROWTH_FACTOR
    assert defaults.get_backoff_factor() == loss_scale.BACKOFF_FACTOR
    assert defaults.get_growth_interval() == loss_scale.GROWTH_INTERVAL == 2000
    monkeypatch.setattr(loss_scale, "GROWTH_INTERVAL", 20)

    theirs = torch.amp.GradScaler("cpu", growth_interval=20)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    theirs.scale(torch.ones(1))  # makes its scale
    ours, diverged = LossScale(torch.device("cpu")), torch.zeros(())
    seen = []
    for norm in [BAD, BAD, *[GOOD] * 19, BAD, *[GOOD] * 20, torch.tensor(torch.nan), GOOD]:
        weight.grad = norm.reshape(1).clone()
        theirs.step(optimizer)
        theirs.update()
        ours.end_step(norm, diverged)
        assert (ours.scale.item(), ours.good_steps.item()) == (
            theirs.get_scale(),
            theirs.state_dict()["_growth_tracker"],
        )
        assert ours.found_inf == (norm != GOOD)
        seen.append(ours.scale.log2().item())
    assert list(dict.fromkeys(seen)) == [15, 14, 13]
    assert seen[-4:] == [13, 14, 13, 13]
    assert ours.metrics() == {"loss_scale": 2.0**13, "skipped_steps": 4}
    assert not diverged


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_what_overflows_without_a_scale_has_diverged(bad: float) -> None:
    """For good: later updates are skipped too, with finite gradients."""
    scale, diverged = LossScale(torch.device("cpu")), torch.zeros(())
    scale.scale.fill_(2.0)
    for norm, expected in [(bad, (0, 1, 1.0)), (bad, (1, 2, 0.5)), (1.0, (1, 3, 0.25))]:
        scale.end_step(torch.tensor(norm), diverged)
        assert (diverged, scale.skipped, scale.scale) == expected
        assert scale.found_inf == 1
