"""The model card of a network: front matter for the Hub, and text for people."""

from typing import Any

import yaml

import lsgd
from lsgd import config
from lsgd.export.network import Exported
from lsgd.recipe import Data
from lsgd.rules.augmentation import OF_FILES, RESIZE
from lsgd.rules.metric import METRICS, TOP1
from lsgd.tables import markdown

HUB_DATASETS = {
    "imagenet": "ILSVRC/imagenet-1k",
    "fashion-mnist": "zalando-datasets/fashion_mnist",
    "cifar10": "uoft-cs/cifar10",
}
"""What the Hub calls a dataset, where its owners have put it there."""

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

## What it takes

{images}

## How good it is

{scores}

## How it was trained

{summary}

`lsgd train` with the configuration below makes the same run on any number of processes. Its
fingerprint is `{fingerprint}`.

{deviations}

```yaml
{configuration}```

## Licence

Whoever publishes these weights decides on their licence: write it in place of `unknown` in the
first lines. The images that they were trained on have terms of their own; lsgd itself is under the
Apache License 2.0.
"""

BY_TORCHVISION = """\
from safetensors.torch import load_file
from torchvision import models

network = models.{name}(num_classes={classes})
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


def card(exported: Exported) -> str:
    """The README.md of a folder for the Hub."""
    recipe, data = exported.recipe, exported.recipe.data
    lines = [f"- {rule}: {reason}" for rule, reason in recipe.deviations.items()]
    deviates = f"It deviates from its paper ({recipe.paper}):\n\n" if lines else ""
    return CARD.format(
        front=yaml.safe_dump(front_matter(exported), sort_keys=False, allow_unicode=True),
        title=title(exported),
        network=recipe.model.name,
        channels=data.channels,
        size=data.image_size,
        classes=data.classes,
        evaluated_as=exported.evaluated_as,
        data=_data(exported),
        recipe=recipe.name,
        version=lsgd.__version__,
        loading=_loading(exported),
        images=_images(data),
        scores=_scores(exported),
        summary=f"    {recipe.summary()}".replace("\n", "\n    "),
        fingerprint=exported.saved.fingerprint,
        deviations=deviates + "\n".join(lines) or "It names no deviation from its paper.",
        configuration=config.to_yaml(recipe),
    )


def title(exported: Exported) -> str:
    """The name of the network in words: recipe, seed and network."""
    recipe = exported.recipe
    return f"{recipe.name}, seed {recipe.seed}: {recipe.model.name} on {recipe.data.name}"


def front_matter(exported: Exported) -> dict[str, Any]:
    """What the Hub reads of a card."""
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
    error = evaluated(exported).get(TOP1.key)
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


def evaluated(exported: Exported) -> dict[str, float]:
    """The rates that the run has of just this network; none within an epoch, or without an
    evaluation."""
    epoch, step = exported.recipe.place(exported.saved.step)
    rates = exported.saved.rates.get(epoch, {}) if step == 0 else {}
    return {name: rate for name, rate in rates.items() if name.startswith("val_")}


def _data(exported: Exported) -> str:
    recipe = exported.recipe
    if recipe.inputs.loader == "synthetic":
        return f"made-up images in place of {recipe.data.name}"
    return f"{recipe.data.name} ({recipe.train_examples} images)"


def _loading(exported: Exported) -> str:
    if exported.is_torchvisions:
        name = exported.recipe.model.name.rpartition("/")[2]
        return BY_TORCHVISION.format(name=name, classes=exported.recipe.data.classes)
    return BY_LSGD


def _images(data: Data) -> str:
    size, numbers = data.image_size, f"mean {data.mean} and standard deviation {data.std}"
    each = f"Pixels in [0, 1] are normalised by {numbers} of each channel."
    if data.augmentation not in OF_FILES:
        return f"Images of {size} x {size}, whole. {each}"
    way = "bicubic" if data.augmentation == "fb_resnet_torch" else "bilinear"
    return (
        f"The centre crop of {size} x {size} after the short side was resized to "
        f"{round(size * RESIZE)} ({way}, antialiased). {each}"
    )


def _scores(exported: Exported) -> str:
    recipe, rates = exported.recipe, evaluated(exported)
    if not rates:
        return "The run was not evaluated after this very step."
    known = [(METRICS[key.removeprefix("val_")], rate) for key, rate in rates.items()]
    rows = [[metric.on("validation"), metric.amount(rate)] for metric, rate in known]
    metric = recipe.number_metric(TOP1)
    number = recipe.outcome(metric, metric.number(exported.saved.rates))
    epoch, _ = recipe.place(exported.saved.step)
    lower = ", in bfloat16" if recipe.evaluation.bfloat16 else ""
    after = (
        f"After epoch {epoch} of {recipe.epochs}, over {recipe.data.val_examples} images{lower}:"
    )
    return f"{after}\n\n{markdown(['rate', 'value'], rows)}\n\nThe number of the run: {number}."
