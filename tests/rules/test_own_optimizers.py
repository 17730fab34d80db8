"""Optimizers of one's own: how they are made, and what their state may be."""

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from helpers.checkpoints import learner_after, recipe
from torch.utils._pytree import tree_leaves

from lsgd.errors import UsageError
from lsgd.own_parts import OPTIMIZER, OwnPart
from lsgd.rules import optim


class Scaled(torch.optim.Optimizer):
    """An optimizer with one number of state per tensor, and one tensor of another shape."""

    extra: Any = 0.5

    def __init__(self, params: Any, lr: float, fails: bool = False) -> None:
        assert lr > 0, "as some check it"
        if fails:
            raise ValueError("no such rule")
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                state |= {"rows": torch.ones(len(weight)), "count": 3, "extra": self.extra}
                weight.data.sub_(weight.grad, alpha=group["lr"])


class NeedsClosure(Scaled):
    def step(self, closure: Any) -> None:  # type: ignore[override]
        raise NotImplementedError


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that makes an own optimizer over one weight, by the path of its class."""

    def make(kind: type, **options: Any) -> torch.optim.Optimizer:
        path = f"own:{kind.__name__}"
        part = OwnPart(OPTIMIZER, path, kind, {}, frozenset({"params", "lr"}), True, "source")
        monkeypatch.setattr("lsgd.own_parts._imported", {(OPTIMIZER.key, path): part})
        weight = torch.ones(3, 2, dtype=torch.float64).requires_grad_()
        weight.grad = torch.full_like(weight, 2.0)
        settings = {"momentum": 0.0, "nesterov": False, "equation": 9, "beta2": 0.9, "eps": 1e-8}
        settings |= {
            "momentum_correction": False,
            "clip_norm": None,
            "trust": 0.1,
            "ratio_decay": None,
            "bias_correction": True,
            "rms_lr": 3e-4,
            "beta_center": 10.0,
            "beta_period": 5.0,
            "fused": "torch",
        }
        return optim.optimizer_over_groups(
            [{"params": [weight], "weight_decay": 0.0}],
            name=path, options=options, source="source", **settings,
        )  # fmt: skip

    return make


def test_it_gets_the_lr_of_each_step(own: Any) -> None:
    made = own(Scaled)
    optim.set_lr(made, 0.25)
    made.step()
    [weight] = made.param_groups[0]["params"]
    assert weight.tolist() == [[0.5, 0.5]] * 3


class Counting(Scaled):
    """An optimizer whose state has tensors of several types, and entries of no parameter."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.state["steps"] = self.state.get("steps", 0) + 1  # type: ignore[index, call-overload]
        for weight in self.param_groups[0]["params"]:
            self.state[weight] |= {
                "mask": weight.grad > 0,
                "seen": torch.full_like(weight, 2**60 + 1, dtype=torch.int64),
                "levels": torch.full_like(weight, 200, dtype=torch.uint8),
                "mean": torch.full_like(weight, 1 / 3, dtype=torch.float32),
                "blocks": [torch.ones(2, dtype=torch.bool), {"scale": torch.ones(1).half()}],
            }


def test_a_state_is_restored_as_it_was_saved(own: Any) -> None:
    """torch casts all tensors to the type of the parameter, but for those of no parameter."""
    made, again = own(Counting), own(Counting)
    made.step()
    optim.load_state(again, made.state_dict(), is_own=True)
    assert again.state["steps"] == 1
    [weight], [other] = (each.param_groups[0]["params"] for each in (made, again))
    before, after = (tree_leaves(each) for each in (made.state[weight], again.state[other]))
    assert [each.dtype for each in after] == [each.dtype for each in before]
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
    assert not {each.data_ptr() for each in before} & {each.data_ptr() for each in after}


class Wrapper(Scaled):
    """An optimizer whose state_dict has a form of its own, as those that wrap another have."""

    def state_dict(self) -> dict[str, Any]:
        return {"inner": super().state_dict(), "count": 2}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict["inner"])


def test_a_state_dict_of_another_form_is_restored(own: Any) -> None:
    made, again = own(Wrapper), own(Wrapper)
    made.step()
    optim.load_state(again, made.state_dict(), is_own=True)
    [values] = again.state.values()
    assert (values["rows"].tolist(), values["count"]) == ([1.0] * 3, 3)


def test_a_state_of_any_shape_is_restored(own: Any) -> None:
    made, again = own(Scaled), own(Scaled)
    made.step()
    with pytest.raises(ValueError, match=r"rows of shape \(3,\) for .* of shape \(3, 2\)"):
        optim.load_state(again, made.state_dict(), is_own=False)  # as for an optimizer of lsgd
    optim.load_state(again, made.state_dict(), is_own=True)
    [values] = again.state.values()
    assert (values["rows"].tolist(), values["count"], values["extra"]) == ([1.0] * 3, 3, 0.5)


def test_a_state_that_a_checkpoint_cannot_hold_is_refused(
    own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint is read without running what it names, so it has plain values only."""
    monkeypatch.setattr(Scaled, "extra", [ModuleType("of_the_user")])
    made = own(Scaled)
    made.step()
    with pytest.raises(UsageError, match="optim=own:Scaled has a module in its state, which a che"):
        made.state_dict()


class NeedsClosureAndOneGroup(NeedsClosure):
    """An optimizer that takes no parameter groups, as LBFGS."""

    def __init__(self, params: Any, lr: float) -> None:
        raise ValueError("no groups")


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (Scaled, {"fails": True}, r"with options=\{'fails': True\} \(ValueError: no such rule\);"),
        (NeedsClosure, {}, "computes the loss itself by the closure that its step needs"),
        (
            NeedsClosureAndOneGroup,
            {},
            "computes the loss itself by the closure that its step needs",
        ),
    ],
)
def test_what_cannot_be_made_is_refused(
    own: Any, kind: type, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        own(kind, **options)
    assert "own" not in sys.modules


@pytest.mark.parametrize("words", ["SGD", "Adam", "Adam optim.options.fused=true"])
def test_torchs_own_optimizers_make_steps(words: str) -> None:
    """Their loops assert that nobody has set found_inf, but for the fused ones, which read it."""
    name, *options = words.split()
    made = recipe(f"optim=torch.optim:{name}", *options)
    learner = learner_after(made, 0, 2)
    assert learner.next_step == 2
    assert hasattr(learner.strategy.optimizer, "found_inf") == bool(options)
