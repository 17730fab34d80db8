"""Graphs of ONNX, computed by ONNX Runtime."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.exported import images, logits, read, trained_learner

from lsgd.errors import UsageError
from lsgd.export import onnx
from lsgd.export.__main__ import write
from lsgd.export.onnx import OPSET
from lsgd.run.class_names import write_class_names

pytestmark = [pytest.mark.onnx, pytest.mark.slow]


class Branching(torch.nn.Module):
    """A network whose path depends on a value, which no graph has."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean((1, 2)) if images.sum() > 0 else images.mean((2, 3))


def test_a_network_that_cannot_be_traced_is_one_sentence(tmp_path: Path) -> None:
    trained_learner("lenet5", tmp_path / "run")
    exported = replace(read(tmp_path / "run", "onnx"), network=Branching())
    with pytest.raises(
        UsageError, match=r"cannot trace .*; write --to safetensors, which"
    ) as error:
        write(exported, "onnx", tmp_path / "a.onnx")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "a.onnx").exists()


def test_a_network_of_2_gib_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is traced, which takes minutes."""
    trained_learner("lenet5", tmp_path / "run")
    exported = read(tmp_path / "run", "onnx")
    monkeypatch.setattr(onnx, "LARGEST", 4 * sum(p.numel() for p in exported.network.parameters()))
    with pytest.raises(UsageError, match=r"has 0\.0 GiB .*; write --to safetensors$"):
        write(exported, "onnx", tmp_path / "a.onnx")
    assert not (tmp_path / "a.onnx").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("small_resnet", ("averaging=ema", "averaging.half_life=1")),
        ("small_resnet", ("precision=float64",)),
        ("lenet5", ("channels_last=true",)),
        ("timm/test_convnext", ()),
    ],
)
def test_it_says_what_the_run_says_of_any_number_of_images(
    name: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    import onnxruntime

    learner = trained_learner(name, tmp_path / "run", *words)
    names = [f"classé {label}" for label in range(learner.recipe.data.classes)]
    write_class_names(tmp_path / "run", names)
    exported = read(tmp_path / "run", "onnx")
    data, file = exported.recipe.data, tmp_path / "a.onnx"
    how = write(exported, "onnx", file)
    assert how.startswith(f"opset {OPSET}, images (n, {data.channels}, {data.image_size}, ")
    assert f"less {data.mean}, divided by {data.std}\n" in how
    expression = how.partition("load it: ")[2]
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for count in (1, 7):
        batch = images(exported.recipe, count)
        [said] = session.run(["logits"], {"images": batch.numpy()})
        assert said.shape == (count, data.classes)
        places = {"FILE": file, "IMAGES": batch.numpy(), "onnxruntime": onnxruntime}
        torch.testing.assert_close(eval(expression, places)[0], said)
        kind = next(learner.model.parameters()).dtype
        expected = logits(learner, batch.to(kind)).float()
        torch.testing.assert_close(torch.from_numpy(said), expected, rtol=0, atol=1e-5)
    facts = session.get_modelmeta().custom_metadata_map
    assert facts["fingerprint"] == learner.recipe.fingerprint
    assert json.loads(facts["class_names"]) == names
    assert json.loads(facts["mean"]) == data.mean
    assert json.loads(facts["std"]) == data.std
    assert json.loads(facts["image_size"]) == data.image_size
