"""The model card of an exported network: front matter for the Hub, and text for readers."""

import re
from typing import Any

import yaml

import lsgd
from lsgd import config
from lsgd.export.network import ExportedNetwork
from lsgd.inputs import IN_MEMORY_DATASETS
from lsgd.recipe import Recipe
from lsgd.rules.metric import TOP1, named_metric
from lsgd.sanitizing import sanitize
from lsgd.tables import escape_markdown, markdown_table

HUB_DATASETS = {
    "imagenet": "ILSVRC/imagenet-1k",
    "fashion-mnist": "zalando-datasets/fashion_mnist",
    "cifar10": "uoft-cs/cifar10",
}
"""The names on the Hub of the datasets that their owners have published there."""

CARD = """\
---
{front}---

# {title}

{network} for images of {channels} x {size} x {size} in {classes} classes, trained on {data}
with the recipe {recipe} of lsgd {version}: large-minibatch SGD
([Goyal et al. 2017](https://arxiv.org/abs/1706.02677)) on virtual workers. These are
{evaluated_as}.

## How to load it

```python
{loading}
```

## Input

{images}

## Evaluation results

{scores}

## How it was trained

{summary}

`lsgd train` with the configuration below trains the same run on any number of processes. Its
fingerprint is `{fingerprint}`.

{deviations}

{fence}yaml
{configuration}{fence}

## Licence

The publisher of these weights chooses their licence: write it in place of `unknown` in the
first lines. The training images have terms of their own; lsgd itself is under the Apache License
2.0.
"""

BY_MODULE = """\
import {module}
from safetensors.torch import load_file

network = {constructor}
network.load_state_dict(load_file("model.safetensors"))
network.eval()"""

BY_LSGD = """\
import json
from pathlib import Path

from lsgd import config
from lsgd.models import make_network
from safetensors.torch import load_file

recipe = json.loads(Path("config.json").read_text())["lsgd_recipe"]
network = make_network(config.from_saved(recipe))
network.load_state_dict(load_file("model.safetensors"))
network.eval()"""


def model_card(exported: ExportedNetwork) -> str:
    """Return the model card of an exported network as Markdown, for README.md of a Hub folder."""
    recipe, data = exported.recipe, exported.recipe.data
    lines = [_text(f"- {rule}: {reason}") for rule, reason in recipe.deviations.items()]
    deviates = f"It deviates from its paper ({recipe.paper}):\n\n" if lines else ""
    configuration = config.to_yaml(recipe)
    return CARD.format(
        front=yaml.safe_dump(front_matter(exported), sort_keys=False, allow_unicode=True),
        title=_text(title(exported)),
        network=_text(recipe.model.name),
        channels=data.channels,
        size=data.image_size,
        classes=data.classes,
        evaluated_as=exported.evaluated_as,
        data=_text(_data(exported)),
        recipe=_text(recipe.name),
        version=lsgd.__version__,
        loading=_loading(exported),
        images=_images(recipe),
        scores=_scores(exported),
        summary=f"    {sanitize(recipe.summary())}".replace("\n", "\n    "),
        fingerprint=exported.checkpoint.fingerprint,
        deviations=deviates + "\n".join(lines) or "It declares no deviation from its paper.",
        fence=_fence(configuration),
        configuration=configuration,
    )


def _text(text: str) -> str:
    """Join the lines of a text into one and escape its Markdown markup."""
    return escape_markdown(" ".join(sanitize(text).split("\n")))


def _fence(code: str) -> str:
    """Return a Markdown code fence of more backticks than any sequence of them in the code."""
    return "`" * (1 + max(map(len, re.findall("``+", code)), default=2))


def title(exported: ExportedNetwork) -> str:
    """Return the title of the model card: recipe, seed, network and dataset."""
    recipe = exported.recipe
    return f"{recipe.name}, seed {recipe.seed}: {recipe.model.name} on {recipe.data.name}"


def front_matter(exported: ExportedNetwork) -> dict[str, Any]:
    """Return the metadata of a model card that the Hugging Face Hub reads, such as tags."""
    recipe = exported.recipe
    hub_dataset = HUB_DATASETS.get(recipe.data.name)
    made_up = recipe.inputs.loader == "synthetic"
    front: dict[str, Any] = {
        "license": "unknown",
        "library_name": "pytorch",
        "pipeline_tag": "image-classification",
        "tags": ["image-classification", "lsgd", recipe.model.name],
    }
    if hub_dataset and not made_up:
        front["datasets"] = [hub_dataset]
    error = validation_metrics(exported).get(TOP1.key)
    if error is not None and not made_up:
        accuracy = {"type": "accuracy", "value": round(1 - error / 100, 6)}
        result = {
            "task": {"type": "image-classification"},
            "dataset": {"name": recipe.data.name, "type": hub_dataset or recipe.data.name},
            "metrics": [accuracy | {"name": "top-1 accuracy, validation set"}],
        }
        front |= {"metrics": ["accuracy"]}
        front |= {"model-index": [{"name": title(exported), "results": [result]}]}
    return front


def validation_metrics(exported: ExportedNetwork) -> dict[str, float]:
    """Return the validation metrics that the run measured at the exported training step, by name.

    There are none if the run did not evaluate after it.
    """
    saved = exported.checkpoint
    epoch, step = exported.recipe.locate_step(saved.step)
    rates = saved.evaluations.get(saved.step, {}) if step else saved.rates.get(epoch, {})
    return {name: rate for name, rate in rates.items() if name.startswith("val_")}


def _data(exported: ExportedNetwork) -> str:
    recipe = exported.recipe
    if recipe.inputs.loader == "synthetic":
        return f"made-up images in place of {recipe.data.name}"
    return f"{recipe.data.name} ({recipe.train_examples} images)"


def _loading(exported: ExportedNetwork) -> str:
    if plain := exported.plain_constructor:
        module, constructor = plain
        return BY_MODULE.format(module=module, constructor=constructor)
    return BY_LSGD


def _images(recipe: Recipe) -> str:
    data, size = recipe.data, recipe.data.image_size
    if recipe.inputs.is_own:
        return f"Images of {size} x {size}, as {recipe.inputs.loader} makes them."
    numbers = f"mean {data.mean} and standard deviation {data.std}"
    each = f"Pixels in [0, 1] are normalised by {numbers} of each channel."
    if data.name in IN_MEMORY_DATASETS:
        return f"Images of {size} x {size}, whole. {each}"
    way = "bicubic" if data.augmentation == "fb_resnet_torch" else "bilinear"
    return (
        f"The centre crop of {size} x {size} after the short side was resized to "
        f"{round(size / data.crop_ratio)} ({way}, antialiased). {each}"
    )


def _scores(exported: ExportedNetwork) -> str:
    recipe, rates = exported.recipe, validation_metrics(exported)
    if not rates:
        return "The run was not evaluated after this step."
    known = [
        (metric, rate)
        for key, rate in rates.items()
        if not (metric := named_metric(key.removeprefix("val_"))).is_always_0(recipe.data.classes)
    ]
    rows = [[metric.label_on("validation"), metric.format_value(rate)] for metric, rate in known]
    lower = ", in bfloat16" if recipe.evaluation.bfloat16 else ""
    epoch = recipe.epoch(exported.checkpoint.step)
    after = (
        f"After epoch {epoch:g} of {recipe.epochs}, over {recipe.data.val_examples} images{lower}:"
    )
    text = f"{after}\n\n{markdown_table(['metric', 'value'], rows)}"
    if not exported.checkpoint.rates:  # saved within the first epoch
        return text
    metric = recipe.final_metric(named_metric(recipe.metric.own_name or TOP1.name))
    number = recipe.format_result(metric, exported.checkpoint.rates)
    return f"{text}\n\nFinal metric: {number}."
