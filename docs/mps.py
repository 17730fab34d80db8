"""Writer of docs/reference/mps.md, on the operators that a Mac's GPU has: `python -m docs.mps`.

It looks up the operators of the small recipes in torch's own list of kernels,
native_functions.yaml, which is part of every installation. No Mac is needed.
"""

import gzip
import tempfile
import textwrap
import traceback
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor
from torch.autograd.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lsgd import config
from lsgd.comm.single import SingleComm
from lsgd.evaluation import evaluate
from lsgd.learner import Learner
from lsgd.recipe import Recipe
from lsgd.step import train_step
from lsgd.tables import markdown_table

PAGE = Path(__file__).parent / "reference" / "mps.md"
ROOT = Path(__file__).resolve().parents[1]
IMAGES = {"train": 64, "t10k": 10}
"""The numbers of images in a made-up Fashion-MNIST, by the names of its files."""
SMALL = ("workers=4", "worker_batch=4")
"""The overrides that make a recipe's step small without changing its operators."""
CHOSEN = {
    "copy_": ("_copy_from",),
    "convolution": ("_mps_convolution",),
    "convolution_backward": ("mps_convolution_backward",),
}
"""The operators that torch calls on mps within operators that choose their kernel by device.

From ATen's Convolution.cpp and Copy.cpp.
"""

Uses = dict[str, set[str]]
"""Operators by their full names, each with the parts of a run that call it."""


class Recorder(TorchDispatchMode):
    """A dispatch mode that records called operators, and lsgd's lines that make float64 tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.part = ""
        self.uses: Uses = {}
        self.doubles: dict[str, set[str]] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call the operator and record it."""
        result = function(*args, **(kwargs or {}))
        if function.namespace != "profiler":  # marks of a profile, not computations
            self.uses.setdefault(str(function), set()).add(self.part)
        if any(
            isinstance(each, Tensor) and each.dtype == torch.float64 for each in tree_leaves(result)
        ):
            self.doubles.setdefault(_line(), set()).add(str(function))
        return result


def _line() -> str:
    """Return the innermost line of lsgd on the call stack."""
    frames = [each for each in traceback.extract_stack() if "/lsgd/" in each.filename]
    return f"{Path(frames[-1].filename).relative_to(ROOT)}:{frames[-1].name}" if frames else "torch"


def recipes() -> list[Recipe]:
    """Return one recipe of each kind among those of digits and Fashion-MNIST.

    Recipes of one kind call the same operators in their steps and evaluations.
    """
    kinds: dict[str, Recipe] = {}
    for name in config.sorted_recipe_names():
        if name.startswith(("digits", "fashion")):
            recipe = config.load_recipe([f"+recipe={name}"])
            kinds.setdefault(_kind(recipe), recipe)
    return [*kinds.values()]


def _kind(recipe: Recipe) -> str:
    """Return a key of the settings that decide which operators a recipe calls."""
    optim = {
        key: bool(value) if isinstance(value, float) else value
        for key, value in asdict(recipe.optim).items()
    }
    return str(
        [
            recipe.model.name,
            optim,
            recipe.averaging.name,
            recipe.bn_statistics.name,
            recipe.strategy.name,
            recipe.precision,
            bool(recipe.label_smoothing),
            recipe.noise_scale,
            recipe.data.augmentation,
        ]
    )


def record(recipes: list[Recipe]) -> tuple[Recorder, dict[str, set[str]]]:
    """Train two steps of each recipe, save and evaluate it, and return the recorded operators.

    Also returns, for each composite operator, the operators that it calls.
    """
    recorder = Recorder()
    inner: dict[str, set[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        _make_images(Path(folder))
        for recipe in recipes:
            words = [f"+recipe={recipe.name}", *SMALL]
            if recipe.data.name == "fashion-mnist":
                words += [f"data.root={folder}", f"data.train_examples={IMAGES['train']}"]
                words += [f"data.val_examples={IMAGES['t10k']}"]
            small = config.load_recipe([*words, "workers_per_pass=4"])
            _run(small, recorder)
            with profile() as profiled:
                _run(replace(small, workers_per_pass=2), recorder)
            for event in profiled.function_events:
                called = {each.name.removeprefix("aten::") for each in _within(event)}
                inner.setdefault(event.name.removeprefix("aten::"), set()).update(called)
    return recorder, inner


def _within(event: Any) -> Iterator[Any]:
    """Yield the direct child calls of an event, skipping the recorder's own level."""
    for each in event.cpu_children:
        if each.name == "PythonDispatchMode":
            yield from _within(each)
        else:
            yield each


def _make_images(folder: Path) -> None:
    """Write files in the format of Fashion-MNIST, with noise as images."""
    generator = np.random.default_rng(0)
    for split, count in IMAGES.items():
        for kind, array in (
            ("images-idx3", generator.integers(256, size=(count, 28, 28))),
            ("labels-idx1", np.arange(count) % 10),
        ):
            head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
            with gzip.open(folder / f"{split}-{kind}-ubyte.gz", "wb") as file:
                file.write(head + array.astype(np.uint8).tobytes())


def _run(recipe: Recipe, recorder: Recorder) -> None:
    learner = Learner(recipe, SingleComm(), torch.device("cpu"))
    inputs = learner.workload.inputs()
    with recorder:
        recorder.part = "step"
        for task in learner.strategy.tasks(0, [0, 1]):
            train_step(learner, task, inputs.train(task.micro_batches))
        recorder.part = "evaluation"
        evaluate(learner, inputs)
        recorder.part = "save"
        learner.restore(learner.checkpoint())


@cache
def _native() -> dict[str, dict[str, Any]]:
    """Return the entries of native_functions.yaml by the full names of their operators."""
    text = (files("torchgen") / "packaged/ATen/native/native_functions.yaml").read_text()
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    entries = {}
    for entry in yaml.load(text, loader):
        name = entry["func"].partition("(")[0]
        entries[name if "." in name else f"{name}.default"] = entry
    return entries


def dispatch(operator: str) -> set[str]:
    """Return the dispatch keys for which torch has a kernel of an operator such as add.Tensor."""
    entry = _native().get(operator, {})
    if delegate := entry.get("structured_delegate"):
        return dispatch(delegate)
    kernels = entry.get("dispatch")
    if kernels is None:
        return {"CompositeImplicitAutograd"} if entry else set()
    return {key.strip() for keys in kernels for key in keys.split(",")}


def _overloads(base: str) -> list[str]:
    return [each for each in _native() if each.partition(".")[0] == base]


def mps_support(operator: str, inner: dict[str, set[str]], above: tuple[str, ...] = ()) -> str:
    """Return mps's support of an operator: `kernel`, `made of …` or `missing: …`.

    The operator is add.Tensor, say, or add for any overload. `missing` names the operator that mps
    lacks, which may be one that the given operator calls.
    """
    base = operator.partition(".")[0]
    overloads = [operator] if "." in operator else _overloads(base)
    keys = set().union(*(dispatch(each) for each in overloads))
    if "MPS" in keys:
        return "kernel"
    if not any(key.startswith("Composite") for key in keys):
        return f"missing: {operator}"
    # This covers an operator that calls another overload, such as the one that writes to `out`.
    if own := [each for each in _overloads(base) if "CPU" in dispatch(each)]:
        has = [each for each in own if "MPS" in dispatch(each)]
        return f"made of {has[0]}" if has else f"missing: {own[0]}"
    within = CHOSEN.get(base) or sorted(inner.get(base, set()) - {base, *above})
    for each in within:
        if (found := mps_support(each, inner, (*above, base))).startswith("missing"):
            return found
    return f"made of {', '.join(within)}" if within else "calls no other"


def rows(uses: Uses, inner: dict[str, set[str]]) -> list[list[str]]:
    """Return a table row for each operator: its name, the calling parts of a run, mps's support."""
    found = []
    for full, parts in sorted(uses.items()):
        namespace, _, operator = full.partition(".")
        has = mps_support(operator, inner) if namespace == "aten" else f"missing: {full}"
        found.append([f"`{operator}`", ", ".join(sorted(parts)), has])
    return found


def render_page() -> str:
    """Return the text of docs/reference/mps.md."""
    chosen = recipes()
    recorder, inner = record(chosen)
    found = rows(recorder.uses, inner)
    missing = [row for row in found if row[2].startswith("missing")]
    doubles = [
        [f"`{place}`", ", ".join(f"`{each.removeprefix('aten.')}`" for each in sorted(operators))]
        for place, operators in sorted(recorder.doubles.items())
    ]
    names = textwrap.fill(
        "`python -m docs.mps`, from two steps of "
        + ", ".join(f"`{recipe.name}`" for recipe in chosen)
        + ", which between them have all networks, optimizers, averages and BN statistics of these "
        "recipes, with one micro-batch of 4 workers per step and with two of 2.",
        100,
    )
    version = torch.__version__.partition("+")[0]
    verdict = (
        "mps has all of them."
        if not missing
        else f"mps lacks {len(missing)} of them: " + ", ".join(row[0] for row in missing) + "."
    )
    return TEXT.format(
        version=version,
        names=names,
        count=len(found),
        verdict=verdict,
        operators=markdown_table(["operator", "called in", "on mps"], found),
        doubles=markdown_table(["place in lsgd", "operators"], doubles),
    )


TEXT = """\
# The operators of the small recipes on a Mac's GPU

lsgd has not been run on a Mac yet. This page has what can be checked without one: each operator
that a step, an evaluation or a checkpoint of the digits and Fashion-MNIST recipes calls is looked
up in torch's own list of the kernels of its device `mps` (`native_functions.yaml` of torch
{version}). It is written by
{names}

{count} operators are called. {verdict}

## No float64

A Mac's GPU has no float64. These places make tensors of float64 in a float32 run:

{doubles}

On a device without float64 the metric sums are float32, and only the sums of losses are rounded to
it: a run on a stand-in device shows this (`tests/accelerator/test_commands.py`).
`precision=float64` is rejected. Host tensors stay on the host on any device. Horovod does not
support mps either.

## Operators

*kernel*: mps has a kernel of its own. *made of*: the operator has no kernel on any device, and
calls these operators, all of which mps has. Where only the name of an operator is known, all its
overloads are looked up.

{operators}
"""


if __name__ == "__main__":
    PAGE.write_text(render_page(), encoding="utf-8")
