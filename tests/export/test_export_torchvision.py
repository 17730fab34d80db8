from pathlib import Path

import pytest
import torch
from helpers.exported import images, logits, read, trained_learner

from lsgd.export.__main__ import write
from lsgd.models import make_network
from lsgd.vision import models


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet50", "torchvision/squeezenet1_1"])
def test_torchvision_takes_it_strictly_and_says_the_same(name: str, tmp_path: Path) -> None:
    """Also of a network that drops, which the one of torchvision does by a layer of its own."""
    learner = trained_learner(name, tmp_path / "run")
    exported = read(tmp_path / "run", "torchvision")
    how = write(exported, "torchvision", tmp_path / "a.pth")
    name = name.removeprefix("torchvision/")
    assert how.startswith(f"load it: torchvision.models.{name}(num_classes=7).load_state_dict(")
    theirs = models.get_model(name, num_classes=7).eval()
    theirs.load_state_dict(torch.load(tmp_path / "a.pth"), strict=True)
    batch = images(exported.recipe, 3)
    with torch.no_grad():
        torch.testing.assert_close(theirs(batch), logits(learner, batch), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["small_resnet", "timm/test_convnext"])
def test_a_network_of_our_own_says_so(name: str, tmp_path: Path) -> None:
    learner = trained_learner(name, tmp_path / "run", "averaging=ema", "averaging.half_life=1")
    exported = read(tmp_path / "run", "torchvision")
    how = write(exported, "torchvision", tmp_path / "a.pth")
    assert how.startswith(f"torchvision has no {name}; load it: lsgd.workloads.open_workload(")
    ours = make_network(exported.recipe).eval()
    ours.load_state_dict(torch.load(tmp_path / "a.pth"), strict=True)
    batch = images(exported.recipe, 3)
    with torch.no_grad():
        torch.testing.assert_close(ours(batch), logits(learner, batch), rtol=0, atol=1e-5)
