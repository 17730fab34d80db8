"""Every process makes the update of the whole step, clipped or not."""

import pytest
import torch
from helpers.server_runs import ALLREDUCE, make_learner, make_steps
from helpers.threaded import run_on_threads
from torch import Tensor

from lsgd.comm import Comm
from lsgd.comm.single import SingleComm

LIMIT = 0.5


@pytest.mark.parametrize("processes", [1, 3])
def test_the_whole_gradient_is_clipped_once(processes: int) -> None:
    """As by a hand that reaches between the sums and the update; `gradient_norm` is before it."""

    def multiply(optimizer: torch.optim.Optimizer, *_: object) -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        norm = torch.cat([gradient.flatten() for gradient in gradients]).square().sum().sqrt()
        norms.append(norm.item())
        for gradient in gradients:
            gradient *= min(1, LIMIT / norm.item())

    def clipped(comm: Comm) -> tuple[list[Tensor], float | list[int]]:
        # So small a bucket that there are several.
        learner = make_learner(comm, ALLREDUCE, f"optim.clip_norm={LIMIT}", "comm.bucket_mb=1e-4")
        assert len(learner.strategy.reducer.buckets) > 1
        make_steps(learner, 6)
        return list(learner.model.parameters()), learner.step_metrics()["gradient_norm"]

    norms: list[float] = []
    by_hand = make_learner(SingleComm(), ALLREDUCE)
    by_hand.strategy.optimizer.register_step_pre_hook(multiply)
    make_steps(by_hand, 6)
    assert min(norms) > LIMIT
    for parameters, norm in run_on_threads(processes, clipped):
        torch.testing.assert_close(
            parameters, list(by_hand.model.parameters()), rtol=1e-12, atol=1e-12
        )
        assert norm == pytest.approx(norms[-1], rel=1e-12)
