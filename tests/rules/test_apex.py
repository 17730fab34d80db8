"""The updates of apex are those of torch; with NVIDIA's own where it is, and by a stand-in."""

import copy
import io
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from helpers import apex_stand_in
from helpers.composed import compose_recipe
from helpers.halted import train_until
from torch import Tensor, nn

from lsgd.check import build_learner, rule_results
from lsgd.errors import UsageError
from lsgd.recipe import Optim, Recipe
from lsgd.rules import optim
from lsgd.rules.optimizers import apex
from lsgd.run import checkpoint
from lsgd.train import train

APEX = Optim(fused="apex", weight_decay=0.01, decay_bias=False)
LARS = replace(APEX, name="lars", eps=0.0, trust=0.02)
RATES = [0.1, 0.1, 0.4, 0.4, 0.04, 0.8, 0.08]
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


@pytest.fixture(
    params=["stand-in", pytest.param("NVIDIA's", marks=[pytest.mark.gpu, pytest.mark.apex])]
)
def device(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[torch.device]:
    """Where apex makes its updates; the stand-in makes them on the CPU."""
    if request.param == "stand-in":
        with apex_stand_in.fake_apex(tmp_path):
            yield torch.device("cpu")
    else:
        yield torch.device("cuda")


def small_net(device: torch.device) -> nn.Module:
    """In channels_last, where a weight does not lie in memory as in its shape."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 4))
    return net.to(device, memory_format=torch.channels_last)


def make(model: nn.Module, settings: Optim) -> torch.optim.Optimizer:
    def norm() -> Tensor:
        return torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in model.parameters()]))

    return optim.make_optimizer(model, norm=norm, **asdict(settings))


def take_step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    """A step on gradients that depend on its number alone, strided as their parameters are."""
    generator = torch.Generator().manual_seed(number)
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter).copy_(
            torch.randn(parameter.shape, generator=generator)
        )
    optim.set_lr(optimizer, RATES[number])
    optimizer.step()


@pytest.mark.parametrize(
    "settings",
    [
        APEX,
        replace(APEX, nesterov=False, weight_decay=0.0, clip_norm=1.5),
        LARS,
        replace(LARS, adapts="all", nesterov=False),
        replace(LARS, adapts="decayed", weight_decay=0.0),  # its first groups are empty
    ],
)
def test_updates_and_momenta_are_those_of_torch(device: torch.device, settings: Optim) -> None:
    """With and without decay and Nesterov, of gradients as they are, clipped or scaled."""
    models = [small_net(device) for _ in range(2)]
    optimizers = [
        make(model, replace(settings, fused=fused))
        for model, fused in zip(models, ("torch", "apex"), strict=True)
    ]
    assert "FusedSGD" in type(optimizers[1]).__name__
    for number in range(len(RATES)):
        for model, optimizer in zip(models, optimizers, strict=True):
            take_step(model, optimizer, number)
    for torchs, apexs in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(apexs, torchs, **CLOSE)
        states = [o.state[p] for o, p in zip(optimizers, (torchs, apexs), strict=True)]
        torch.testing.assert_close(states[1], states[0], **CLOSE)
        assert states[1]["momentum_buffer"].stride() == apexs.stride()


@pytest.mark.parametrize("settings", [APEX, LARS])
def test_found_inf_leaves_everything_as_it_is(device: torch.device, settings: Optim) -> None:
    """Parameters and momentum, bit by bit; a step whose flag is down again makes an update."""
    model = small_net(device)
    optimizer = make(model, settings)
    found_inf = optimizer.found_inf = torch.zeros((), device=device)
    take_step(model, optimizer, 0)
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"]))
    found_inf.fill_(1)
    for parameter in model.parameters():
        parameter.grad.fill_(float("nan"))
    optimizer.step()
    after = model.state_dict(), optimizer.state_dict()["state"]
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    found_inf.fill_(0)
    take_step(model, optimizer, 1)
    assert not torch.equal(model[0].weight, before[0]["0.weight"])
    assert model[0].weight.isfinite().all()


def test_a_momentum_is_there_before_the_first_update(device: torch.device) -> None:
    """With which the workers of local steps begin; the first update with it is that of torch."""
    models = [small_net(device) for _ in range(2)]
    for model, fused in zip(models, ("torch", "apex"), strict=True):
        optimizer = make(model, replace(APEX, fused=fused))
        for parameter in model.parameters():
            optimizer.state[parameter] = optim.initial_state(optimizer, parameter)
            assert [*optimizer.state[parameter]] == ["momentum_buffer"]
        take_step(model, optimizer, 0)
    torch.testing.assert_close(models[1].state_dict(), models[0].state_dict(), **CLOSE)


def test_the_state_goes_from_torch_to_apex_and_back(device: torch.device) -> None:
    """Through files; the way of torch alone, whose own skip still works at its end."""
    straight, moved = small_net(device), small_net(device)
    alone = make(straight, replace(APEX, fused="torch"))
    first = {
        fused: make(moved, replace(APEX, fused=fused)).state_dict() for fused in ("torch", "apex")
    }
    assert first["apex"] == first["torch"]
    numbers, saved = iter(range(len(RATES))), None
    for fused, steps in (("torch", 2), ("apex", 3), ("torch", 2)):
        optimizer = make(moved, replace(APEX, fused=fused))
        if saved:
            saved.seek(0)
            optimizer.load_state_dict(torch.load(saved, weights_only=True))
            for parameter, values in optimizer.state.items():
                values |= optim.copy_in_layout(parameter, values)
        for number in (next(numbers) for _ in range(steps)):
            take_step(straight, alone, number)
            take_step(moved, optimizer, number)
        saved = io.BytesIO()
        torch.save(optimizer.state_dict(), saved)
    torch.testing.assert_close(moved.state_dict(), straight.state_dict(), **CLOSE)
    state, expected = optimizer.state_dict(), alone.state_dict()
    assert state["param_groups"] == expected["param_groups"]
    assert state["state"].keys() == expected["state"].keys()
    before = copy.deepcopy(moved.state_dict())
    optimizer.found_inf = torch.ones((), device=device)
    optimizer.step()
    torch.testing.assert_close(moved.state_dict(), before, rtol=0, atol=0)


def recipe(folder: Path, *words: str) -> Recipe:
    short = ["epochs=1", "schedule.milestones=[]", "schedule.warmup_epochs=0.5"]
    size = ["workers=2", "worker_batch=128"]
    return compose_recipe("+recipe=digits", *short, *size, f"run_dir={folder}", *words)


@pytest.mark.slow
def test_a_run_goes_on_with_the_other(device: torch.device, tmp_path: Path) -> None:
    """From a checkpoint in mid-epoch, by the same words but one."""
    words = [f"device={device.type if device.type == 'cuda' else 'auto'}"]
    train(recipe(tmp_path / "straight", *words))
    moved = recipe(tmp_path / "moved", *words, "checkpoint_steps=1")
    by_apex = replace(moved, optim=replace(moved.optim, fused="apex"))
    assert by_apex.fingerprint == moved.fingerprint
    train_until(moved, 2)
    train_until(by_apex, 4)
    train(moved)
    found, expected = (
        checkpoint.decode_checkpoint(checkpoint.read(tmp_path / name / "checkpoint.pt"), name).model
        for name in ("moved", "straight")
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


# --- Where there is none ----------------------------------------------------------------------


def refusal(folder: Path, dtype: torch.dtype = torch.float32, **modules: str) -> str:
    """The sentence that answers optim.fused=apex where apex has these modules."""
    with apex_stand_in.importable(folder, **modules), pytest.raises(UsageError) as refused:
        make(small_net(torch.device("cpu")).to(dtype), APEX)
    return str(refused.value)


def test_a_missing_apex_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apex, "find_spec", lambda name: None)
    sentence = r"^optim.fused=apex .* not installed; setup/apex.sh builds it, .* optim.fused=torch$"
    with pytest.raises(UsageError, match=sentence):
        make(small_net(torch.device("cpu")), APEX)


def test_pypis_apex_is_told_apart_without_being_imported(tmp_path: Path) -> None:
    """It begins with `from pyramid_mailer.interfaces import IMailer`, and has a folder lib."""
    sentence = refusal(tmp_path, __init__="raise SystemExit('imported')", lib="")
    assert f"the apex in {tmp_path}/apex is another package, such as the apex" in sentence
    assert re.search("pip uninstall apex, then .*setup/apex.sh", sentence)
    assert sentence.endswith(", or write optim.fused=torch")


STAND_IN = f"from {apex_stand_in.__name__} import FusedSGD as Real\n"


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("from amp_C import gone", "cannot be imported .* builds it anew"),
        (
            "def FusedSGD(*_, **__): raise RuntimeError('requires cuda extensions\\ntrace')",
            r"no update of float32 on cpu \(requires cuda extensions\); it takes float32 on a GPU",
        ),
        (
            "class FusedSGD(Real):\n    def step(self): raise RuntimeError('not on cuda')",
            r"no update of float32 on cpu \(not on cuda\)",
        ),
        (
            "class FusedSGD(Real):\n    def step(self): self.param_groups[0]['lr'] = 0.0",
            r"from 1 by 0.25 it gave 1, and in a skipped update 1",
        ),
        (
            "class FusedSGD(Real):\n    def get_momentums(self, params):\n"
            "        self._dummy_overflow_buf.zero_()\n"
            "        return super().get_momentums(params)",
            r"from 1 by 0.25 it gave 0.75, and in a skipped update 0.375",
        ),
    ],
)
def test_an_apex_that_would_do_something_else_is_refused(
    tmp_path: Path, source: str, why: str
) -> None:
    """Not built for this torch, no GPU, and a flag that it reads no longer."""
    sentence = refusal(tmp_path, optimizers=STAND_IN + source)
    assert re.search(why, sentence)
    assert sentence.endswith("or write optim.fused=torch")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_what_apex_passes_over_is_refused(device: torch.device, dtype: torch.dtype) -> None:
    with pytest.raises(
        UsageError, match=r"no update of b?float.* gave 1,.* takes float32 on a GPU"
    ):
        make(small_net(device).to(dtype), APEX)


def test_a_check_of_the_recipe_needs_no_apex() -> None:
    """It is made on the CPU, and of equation 9 torch's updates are as good."""
    words = ["+recipe=digits", "optim.fused=apex"]
    found = {each.rule: each for each in rule_results(build_learner(compose_recipe(*words)))}
    assert found["momentum"].is_followed
