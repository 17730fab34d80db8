import contextlib
import importlib
import pickle
import re
import shutil
from pathlib import Path

import pytest
import torch
from helpers.exported import GREY, OWN, images, logits, read, trained_learner
from torch import Tensor, nn

import lsgd
from lsgd import config
from lsgd.export.__main__ import write
from lsgd.models import make_network
from lsgd.vision import models

PAGE = Path(__file__).parents[2] / "docs/how-to/detection.md"


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
    if name == "resnet50":
        check_detection_page(tmp_path / "a.pth", theirs, batch)


def check_detection_page(file: Path, theirs: nn.Module, batch: Tensor) -> None:
    """The programs of the page load every tensor but the last layer's, and give the features.

    The names of detectron2 are those of its modeling/backbone/resnet.py.
    """
    programs = re.findall(r"```text\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    shutil.copy(file, file.with_name("resnet50.pth"))
    first, second = ({"__name__": "page"} for _ in programs)
    with contextlib.chdir(file.parent):
        for program, names in zip(programs, (first, second), strict=True):
            exec(compile(program, str(PAGE), "exec"), names)
        content = pickle.loads(Path("resnet50.pkl").read_bytes())
    # In float64, since the frozen BN rounds in another order.
    body, theirs, batch = (
        first["model"].backbone.body.eval().double(),
        theirs.double(),
        batch.double(),
    )
    with torch.no_grad():
        stages = theirs.maxpool(theirs.relu(theirs.bn1(theirs.conv1(batch))))
        for place, features in body(batch).items():
            stages = theirs.get_submodule(f"layer{int(place) + 1}")(stages)
            torch.testing.assert_close(features, stages, rtol=1e-6, atol=1e-6)
    trained = {n.split(".")[0] for n, p in body.named_parameters() if p.requires_grad}
    assert trained == {"layer2", "layer3", "layer4"}
    assert content["matching_heuristics"] is True
    layers = ["stem.conv1"]
    for stage, blocks in (("res2", 3), ("res3", 4), ("res4", 6), ("res5", 3)):
        layers += [f"{stage}.{block}.conv{n}" for block in range(blocks) for n in (1, 2, 3)]
        layers.append(f"{stage}.0.shortcut")
    norm = ("weight", "bias", "running_mean", "running_var")
    expected = {f"{layer}.norm.{name}" for layer in layers for name in norm}
    assert content["model"].keys() == expected | {f"{layer}.weight" for layer in layers}
    convolution = torch.from_numpy(content["model"]["res3.0.shortcut.weight"])
    assert torch.equal(convolution.double(), theirs.layer2[0].downsample[0].weight)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["small_resnet", "timm/test_convnext"])
def test_a_network_of_our_own_says_so(name: str, tmp_path: Path) -> None:
    learner = trained_learner(name, tmp_path / "run", "averaging=ema", "averaging.half_life=1")
    exported = read(tmp_path / "run", "torchvision")
    how = write(exported, "torchvision", tmp_path / "a.pth")
    how_of_ours = "torchvision does not build it from its name alone; load it: lsgd.workloads."
    assert how.startswith(how_of_ours)
    ours = make_network(exported.recipe).eval()
    ours.load_state_dict(torch.load(tmp_path / "a.pth"), strict=True)
    batch = images(exported.recipe, 3)
    with torch.no_grad():
        torch.testing.assert_close(ours(batch), logits(learner, batch), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("resnet50", GREY),
        ("torchvision/squeezenet1_1", GREY),
        ("torchvision/squeezenet1_1", ()),
        ("mynets:Small", ()),
        ("mynets:altered", ()),
    ],
)
def test_the_printed_code_loads_it(
    name: str, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the first layer has another number of channels than torchvision's."""
    (tmp_path / "mynets.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    recipe = trained_learner(name, tmp_path / "run", *words).recipe
    (tmp_path / "run/config.yaml").write_text(config.to_yaml(recipe))
    how = write(read(tmp_path / "run", "torchvision"), "torchvision", file := tmp_path / "a.pth")
    assert ("torchvision.models." in how) == (name.startswith("torchvision/") and not words)
    names = {"RUN": tmp_path / "run", "FILE": file, "lsgd": lsgd, "torch": torch}
    names |= {module: importlib.import_module(module) for module in ("torchvision", "mynets")}
    assert not any(eval(how.rpartition("load it: ")[2], names))
