"""Steps in float16, whose loss is scaled, and those that are skipped since a gradient overflows."""

from collections.abc import Sequence

import pytest
import torch
from helpers.checkpoints import CPU, content, make_steps, recipe
from helpers.steps import train, train_with_nan_loss
from helpers.threaded import ThreadComm, run_on_threads
from torch import Tensor, nn

from lsgd.comm import Comm
from lsgd.comm.single import SingleComm
from lsgd.errors import DivergedError
from lsgd.learner import Learner
from lsgd.recipe import Recipe
from lsgd.run import checkpoint
from lsgd.strategy.reducer import Reducer

FLOAT16 = ("precision=float16", "schedule.warmup_epochs=1", "epochs=2", "schedule.milestones=[]")


def overflow_in(learner: Learner, steps: Sequence[int]) -> None:
    """Make a gradient of the last worker infinite in these steps, and in no other worker's."""
    strategy = learner.strategy
    begin, left = strategy.begin, [0]

    def begin_counted(task, **words):
        left[:] = [len(task.micro_batches)] if task.step in steps else [0]
        begin(task, **words)

    def planted(gradient: Tensor) -> Tensor | None:
        left[0] -= 1
        last = learner.comm.rank == learner.comm.world_size - 1
        return gradient * torch.inf if last and left[0] == 0 else None

    strategy.begin = begin_counted
    learner.model.fc.weight.register_hook(planted)


def new_learner(made: Recipe, comm: Comm, overflows: Sequence[int] = ()) -> Learner:
    learner = Learner(made, comm, CPU)
    overflow_in(learner, overflows)
    return learner


def state_of(learner: Learner) -> list[Tensor]:
    """Copies of the parameters, the momenta, the loss scale and the number of skipped steps."""
    optimizer, scale = learner.strategy.optimizer, learner.strategy.loss_scale
    momenta = [value for state in optimizer.state.values() for value in state.values()]
    tensors = [*learner.model.parameters(), *momenta, scale.scale, scale.skipped]
    return [each.detach().clone() for each in tensors]


@pytest.mark.parametrize("compression", ["none", "fp16"])
@pytest.mark.parametrize(("passes", "large"), [(1, 0), (1, 2**20), (2, 0)])
def test_the_scale_is_out_of_the_gradient_bit_by_bit(
    passes: int, large: int, compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And out of its norm, wherever autograd has left it; a parameter without a pass has a 0."""
    monkeypatch.setattr("lsgd.strategy.reducer.LARGE", large)
    found = []
    for scales in (False, True):
        torch.manual_seed(0)
        model, unused = nn.Linear(5, 3), nn.Parameter(torch.ones(4))
        parameters = [*model.parameters(), unused]
        single = passes == 1 and compression == "none"
        reducer = Reducer(
            parameters, SingleComm(), bucket_mb=1e-9 if large else 1, compression=compression,
            keep_autograd_grads=single, scales_loss=scales,
        )  # fmt: skip
        if scales:
            reducer.loss_scale.scale.fill_(2.0**10)
        for _ in range(2):
            reducer.start(4, passes)
            for images in torch.linspace(0.5, 1, 4 * 5).view(passes, -1, 5):
                reducer.backward(model(images).square().sum())
            reducer.finish()
        found.append([*(each.grad for each in parameters), reducer.gradient_norm])
    if compression == "none":
        torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
    else:
        torch.testing.assert_close(found[1], found[0], rtol=2e-3, atol=0)


def test_what_is_lost_on_the_wire_in_fp16_is_kept_by_the_scale() -> None:
    weight = nn.Parameter(torch.ones(1))
    reducer = Reducer([weight], SingleComm(), bucket_mb=1, compression="fp16", scales_loss=True)
    for factor, expected, skips in ((1e-8, 1e-8, 0), (2.0, torch.inf, 1), (2.0, torch.inf, 1)):
        reducer.start(1, 1)
        reducer.backward((weight * factor).sum())
        reducer.finish()
        assert weight.grad.item() == pytest.approx(expected, rel=1e-3)
        assert reducer.loss_scale.found_inf == skips
        assert not reducer.found_inf


@pytest.mark.slow
def test_an_overflow_on_one_process_skips_the_step_on_all() -> None:
    """The schedule, the order of examples and BN's statistics go on."""
    made = recipe(*FLOAT16, "workers_per_pass=1")

    def process(comm: ThreadComm | SingleComm) -> tuple[list[list[Tensor]], Tensor, list[float]]:
        learner = new_learner(made, comm, overflows=[1])
        seen, running, rates = [], [], []
        for step in range(4):
            make_steps(learner, step, step + 1)
            assert learner.next_step == step + 1
            seen.append(state_of(learner))
            running.append(learner.strategy.carried_states[0].share.clone())
            rates.append(learner.step_metrics())
        assert not torch.equal(running[0], running[1])
        assert [each["lr"] for each in rates] == [made.lr(step) for step in range(4)]
        assert [each["skipped_steps"] for each in rates] == [0, 1, 1, 1]
        assert [each["loss_scale"] for each in rates] == [65536, *[32768] * 3]
        *before, _, _ = seen[0]
        *after, _, _ = seen[1]
        assert all(map(torch.equal, before, after))
        assert not all(map(torch.equal, after, seen[2]))
        learner.checkpoint()  # nothing in it is infinite
        return seen[-1]

    found = run_on_threads(2, process)
    for theirs in found:
        assert all(map(torch.equal, theirs, found[0]))
    # With two workers the sums have one order.
    assert all(map(torch.equal, found[0], process(SingleComm())))


@pytest.mark.slow
def test_it_goes_on_bit_by_bit_after_a_skipped_step(tmp_path) -> None:
    """With its scale, its growth counter and its number of skipped steps."""
    made = recipe(*FLOAT16)
    learner, other = (new_learner(made, SingleComm(), overflows=[0, 2]) for _ in range(2))
    make_steps(learner, 0, 3)
    saved = checkpoint.decode_checkpoint(content(learner.checkpoint(), tmp_path), "a")
    scale = saved.optimizer["loss_scale"]
    assert {key: value.item() for key, value in scale.items()} == {
        "scale": 2.0**14, "good_steps": 0, "skipped": 2
    }  # fmt: skip
    other.restore(saved)
    for each in (learner, other):
        make_steps(each, 3, 5)
    assert all(map(torch.equal, state_of(learner), state_of(other)))
    assert learner.strategy.loss_scale.good_steps == other.strategy.loss_scale.good_steps == 2


@pytest.mark.parametrize("bad", ["loss", "gradient at scale 1"])
def test_what_no_scale_can_mend_ends_the_run(bad: str) -> None:
    made = recipe(*FLOAT16)
    if bad == "loss":
        error, learner = train_with_nan_loss(SingleComm(), made, 1)
        assert "gradient of step 1 is not finite" in error
        return
    learner = new_learner(made, SingleComm(), overflows=[0])
    learner.strategy.loss_scale.scale.fill_(1.0)
    before = state_of(learner)[: len(list(learner.model.parameters()))]
    with pytest.raises(DivergedError, match="of step 0 is not finite"):
        make_steps(learner, 0, 2)
    assert all(map(torch.equal, learner.model.parameters(), before))


@pytest.mark.slow
def test_the_loss_is_that_of_float32() -> None:
    words = ["optim=lars", "optim.trust=1.0", "workers_per_pass=2", "tail=keep"]
    words += ["schedule.warmup_epochs=0.25", "epochs=1", "schedule.milestones=[]"]
    losses = []
    for precision in ("float32", "float16"):
        made = recipe(*words, f"precision={precision}", "channels_last=true")
        learner = train(made, SingleComm(), until=20)
        sums = learner.summed_counts()
        losses.append((sums["loss"] / sums["counts"][0]).item())
        assert all(each.dtype == torch.float32 for each in learner.model.parameters())
    assert losses[1] == pytest.approx(losses[0], rel=0.01)
    assert losses[1] < 2.28
