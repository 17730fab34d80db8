"""The folder for the Hub: what it says is read by the Hub's own library, and its code is run."""

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.exported import GREY, OWN, images, logits, read, trained_learner
from helpers.launching import fork_command
from markdown_it import MarkdownIt

from lsgd.config import from_saved
from lsgd.export.__main__ import write
from lsgd.export.card import model_card, validation_metrics
from lsgd.export.hub import hub_config
from lsgd.run.class_names import write_class_names

pytestmark = pytest.mark.export


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("small_resnet", ("averaging=ema", "averaging.half_life=1")),
        ("lenet5", ()),
        ("torchvision/squeezenet1_1", ()),
        ("torchvision/squeezenet1_1", GREY),
        pytest.param("timm/test_convnext", (), marks=pytest.mark.slow),
    ],
)
def test_the_code_of_the_card_loads_the_network(
    name: str, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = trained_learner(name, tmp_path / "run", *words)
    exported = read(tmp_path / "run", "hub")
    write(exported, "hub", tmp_path / "hub")
    names = {file.name for file in (tmp_path / "hub").iterdir()}
    assert names == {"README.md", "config.json", "model.safetensors"}
    text = (tmp_path / "hub/README.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert ("lsgd" in code) == (not name.startswith("torchvision/") or words == GREY)
    monkeypatch.chdir(tmp_path / "hub")
    found: dict = {}
    exec(code, found)
    batch = images(exported.recipe, 3)
    with torch.no_grad():
        said = found["network"](batch)
    torch.testing.assert_close(said, logits(learner, batch), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_the_code_of_the_card_loads_a_network_of_one_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a fork that has imported nothing of it."""
    (tmp_path / "mynets.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    learner = trained_learner("mynets:Small", tmp_path / "run")
    exported = read(tmp_path / "run", "hub")
    write(exported, "hub", tmp_path / "hub")
    text = (tmp_path / "hub/README.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert "network = mynets.Small(hidden=(9,), classes=7, channels=3)" in code
    batch = images(exported.recipe, 3)
    torch.save(batch, tmp_path / "hub/batch.pt")
    code += "import torch\nwith torch.no_grad(): said = network(torch.load('batch.pt'))\n"
    code += "torch.save(said, 'said.pt')\n"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    subprocess.run([*fork_command(), "-c", code], check=True, cwd=tmp_path / "hub", env=environment)
    said = torch.load(tmp_path / "hub/said.pt")
    torch.testing.assert_close(said, logits(learner, batch), rtol=0, atol=1e-5)


def test_the_hub_reads_the_front_matter(tmp_path: Path) -> None:
    """Of a run that was evaluated after the step of this checkpoint, on real images."""
    from huggingface_hub import ModelCard

    trained_learner("small_resnet", tmp_path / "run")
    exported = read(tmp_path / "run", "hub")
    recipe = exported.recipe
    ended = recipe.first_step(3)
    rates = {epoch: {"train_loss": 1.0, "val_top1_error": 3.0 + epoch} for epoch in (1, 2, 3)}
    saved = replace(exported.checkpoint, step=ended, rates=rates)
    data = ModelCard(text := model_card(replace(exported, checkpoint=saved))).data
    assert (data.license, data.pipeline_tag) == ("unknown", "image-classification")
    [result] = data.eval_results
    assert (result.dataset_name, result.metric_type, result.metric_value) == (
        "digits", "accuracy", 0.94,
    )  # fmt: skip
    assert "6.00 %" in text
    assert "top-1 error 5.00 % (median of the last 3 epochs)" in text
    own = replace(recipe, metric=replace(recipe.metric, name="package:MacroError"))
    ended_with = {epoch: rate | {"val_macro_error": 9.0 - epoch} for epoch, rate in rates.items()}
    saved = replace(saved, rates=ended_with)
    judged = model_card(replace(exported, checkpoint=saved, recipe=own))
    assert "Final metric: macro error 6.00 % (of the last epoch)" in judged
    assert recipe.fingerprint in text
    assert "Pixels in [0, 1] are normalised by mean [0.3051]" in text
    assert all(f"- {rule}: {reason}" in text for rule, reason in recipe.deviations.items())


@pytest.mark.parametrize("step", [1, 0])
def test_no_number_is_claimed_of_another_step(step: int, tmp_path: Path) -> None:
    """Within an epoch, or before the evaluation of the one that has just ended."""
    from huggingface_hub import ModelCard

    trained_learner("small_resnet", tmp_path / "run")
    exported = read(tmp_path / "run", "hub")
    rates: dict[int, dict[str, float]] = {1: {"val_top1_error": 4.0}, 2: {"train_loss": 1.0}}
    if step:
        rates[2]["val_top1_error"] = 3.0
    saved = replace(exported.checkpoint, step=exported.recipe.first_step(2) + step, rates=rates)
    exported = replace(exported, checkpoint=saved)
    assert validation_metrics(exported) == {}
    text = model_card(exported)
    assert "The run was not evaluated after this step." in text
    assert ModelCard(text).data.eval_results is None


def test_made_up_images_are_no_dataset(tmp_path: Path) -> None:
    from huggingface_hub import ModelCard

    trained_learner("small_resnet", tmp_path / "run")
    exported = read(tmp_path / "run", "hub")
    made = exported.recipe
    data = replace(made.data, name="imagenet", augmentation="crop_flip", image_size=32)
    made = replace(made, data=data, inputs=replace(made.inputs, loader="synthetic"))
    text = model_card(replace(exported, recipe=made))
    assert "made-up images in place of imagenet" in text
    assert "The centre crop of 32 x 32 after the short side was resized to 37 (bilinear" in text
    assert ModelCard(text).data.datasets is None
    made = replace(made, inputs=replace(made.inputs, loader="pkg.mod:Loader"))
    text = model_card(replace(exported, recipe=made))
    assert "Images of 32 x 32, as pkg.mod:Loader makes them." in text
    assert "centre crop" not in text


def test_no_path_of_this_machine_is_published(tmp_path: Path) -> None:
    learner = trained_learner(
        "small_resnet", tmp_path / "run", f"data.root={tmp_path}/d", f"run_dir={tmp_path}/r"
    )
    write(read(tmp_path / "run", "hub"), "hub", tmp_path / "hub")
    for name in ("README.md", "config.json"):
        assert str(tmp_path) not in (tmp_path / "hub" / name).read_text()
    config = json.loads((tmp_path / "hub/config.json").read_text())
    assert config["num_classes"] == 10
    assert from_saved(config["lsgd_recipe"]).fingerprint == learner.recipe.fingerprint


def test_labels_have_names_if_the_run_knows_them(tmp_path: Path) -> None:
    """Under the keys of transformers' configurations; without names the keys are left out."""
    learner = trained_learner("small_resnet", tmp_path / "run")
    assert "id2label" not in hub_config(read(tmp_path / "run", "hub"))
    names = [f"class {label}" for label in range(10)]
    write_class_names(tmp_path / "run", names)
    config = json.loads(json.dumps(hub_config(read(tmp_path / "run", "hub"))))
    assert config["id2label"] == {str(label): name for label, name in enumerate(names)}
    assert config["label2id"]["class 3"] == 3
    assert (config["image_size"], config["mean"]) == (8, learner.recipe.data.mean)


def test_what_a_recipe_says_is_no_markup_of_the_card(tmp_path: Path) -> None:
    """Neither a tag nor a link nor the end of a block of code."""
    trained_learner("small_resnet", tmp_path / "run")
    exported = read(tmp_path / "run", "hub")
    deviations = {"warmup": "<script>x</script>\n\n```\n\n<b>", "lr": "[a](javascript:b)"}
    made = replace(exported.recipe, name="<b>a\x1b[2J", deviations=deviations)
    _, _, text = model_card(replace(exported, recipe=made)).split("---\n", 2)
    blocks = MarkdownIt("commonmark").parse(text)
    every = [*blocks, *(piece for block in blocks for piece in block.children or [])]
    assert not [each for each in every if each.type.startswith("html")]
    links = [each.attrs["href"] for each in every if each.type == "link_open"]
    assert links == ["https://arxiv.org/abs/1706.02677"]
    assert [each.info for each in every if each.type == "fence"] == ["python", "yaml"]
    assert "\x1b" not in text
