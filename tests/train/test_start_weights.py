"""Runs that start from trained weights: every form of file, the new last layer, what is refused."""

import hashlib
import io
import json
import pickle
import shutil
import sys
import urllib.error
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy
import pytest
import torch
from helpers.capabilities import require_capability
from helpers.composed import compose_recipe
from helpers.reference_run import newest_checkpoint
from helpers.threaded import run_on_threads
from torch import Tensor

from lsgd import config
from lsgd.check import build_learner, observe
from lsgd.check.papers import goyal2017
from lsgd.comm.single import SingleComm
from lsgd.errors import PreemptedError, UsageError
from lsgd.evaluate import evaluate_path
from lsgd.export.__main__ import write
from lsgd.export.network import build_exported_network, load_for_export
from lsgd.learner import Learner
from lsgd.models import head_parameters, make_network
from lsgd.models.pretrained import with_pretrained_weights
from lsgd.recipe import Recipe
from lsgd.recipe.dry_run import make_dry_run
from lsgd.run.checkpoint import write as write_checkpoint
from lsgd.start_weights import read_start_weights
from lsgd.train import train
from lsgd.vision import models

CPU = torch.device("cpu")
WORDS = [
    "+recipe=digits", "workers=4", "worker_batch=4", "data.train_examples=48", "device=cpu",
    "precision=float64", "epochs=1", "schedule.milestones=[]", "schedule.warmup=none",
    "inputs=synthetic",
    "data.val_examples=4", "schedule.reference_batch=16",
]  # fmt: skip
FINISHED = Path(__file__).parents[1] / "fixtures/0.1/finished"
"""A run folder of lsgd 0.1 with the small network on the digits."""
HEAD = ("fc.weight", "fc.bias")


def recipe(*words: str) -> Recipe:
    return compose_recipe(*WORDS, *words)


@pytest.fixture(scope="module")
def trained() -> dict[str, Tensor]:
    """The tensors of the trained network by name."""
    return newest_checkpoint(FINISHED).model


def started(*words: str) -> dict[str, Tensor]:
    """The initial tensors of the network of a run with these overrides."""
    made = recipe(*words)
    start = read_start_weights(made, SingleComm())
    return Learner(made, SingleComm(), CPU, start=start.tensors).model.state_dict()


def saved(path: Path, value: Any, *, zipped: bool = True) -> Path:
    torch.save(value, path, _use_new_zipfile_serialization=zipped)
    return path


def write_export(form: str) -> Callable[[Path, Any], Path]:
    def written(path: Path, _: Any) -> Path:
        exported = build_exported_network(FINISHED, *load_for_export(FINISHED, [], form))
        write(exported, form, path)
        return path

    return written


FORMS: dict[str, tuple[Callable[[Path, Any], Path], str]] = {
    "run folder": (lambda *_: FINISHED, " of the checkpoint after step 20"),
    "checkpoint": (lambda *_: FINISHED / "checkpoint-20.pt", " of the checkpoint after step 20"),
    "state dict": (saved, ""),
    "of DDP": (
        lambda path, tensors: saved(path, {f"module.{k}": v for k, v in tensors.items()}),
        " without the prefix module.",
    ),
    "compiled, within a script's checkpoint": (
        lambda path, tensors: saved(
            path,
            {"epoch": 3, "state_dict": {f"_orig_mod.module.{k}": v for k, v in tensors.items()}},
        ),
        " of state_dict without the prefix _orig_mod. without the prefix module.",
    ),
    "checkpoints of torchvision's and timm's scripts": (
        lambda path, tensors: saved(
            path,
            {
                "model": tensors,
                "epoch": 3,
                "args": Namespace(lr=0.1, betas=(0.9, 0.999)),
                "metric": numpy.float64(0.7),
            },
        ),
        " of model",
    ),
    "legacy file, no counters": (
        lambda path, tensors: saved(
            path, {k: v for k, v in tensors.items() if "num_batches" not in k}, zipped=False
        ),
        "",
    ),
    "torchvision's export": (write_export("torchvision"), ""),
    "safetensors": (write_export("safetensors"), ""),
    "Hub's folder": (write_export("hub"), ""),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_file_gives_the_same_weights(
    form: str, trained: dict[str, Tensor], tmp_path: Path
) -> None:
    if form in ("safetensors", "Hub's folder"):
        pytest.importorskip("safetensors")
    make, note = FORMS[form]
    path = make(tmp_path / "weights", trained)
    start = read_start_weights(recipe(f"model.start={path}"), SingleComm())
    assert start.notes[0].startswith(f"model.start={path}: {len(start.tensors)} tensors{note}, SHA")
    weights = {name: trained[name] for name in start.tensors}
    ours = started(f"model.start={path}", "seed=9")
    assert bool(ours.keys() - weights) == ("no counters" in form)
    torch.testing.assert_close({name: ours[name] for name in weights}, weights, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float8_e5m2, torch.bfloat16])
def test_weights_in_few_bits_are_widened(
    dtype: torch.dtype, trained: dict[str, Tensor], tmp_path: Path
) -> None:
    narrow = {k: v.to(dtype) if v.is_floating_point() else v for k, v in trained.items()}
    path = saved(tmp_path / "narrow.pth", narrow)
    found = read_start_weights(recipe(f"model.start={path}"), SingleComm()).tensors
    assert found.keys() == trained.keys()
    for name, value in found.items():
        assert value.dtype in (torch.float32, torch.int64), name
        assert value.equal(narrow[name].to(value.dtype)), name


def test_a_new_last_layer_is_that_of_the_seed(trained: dict[str, Tensor]) -> None:
    """And all others are those of the file, also with another number of classes."""
    for words in (["seed=9"], ["seed=9", "data.classes=7"]):
        ours = started(f"model.start={FINISHED}", "model.new_head=true", *words)
        anew = started(*words)
        for name, value in ours.items():
            expected = anew[name] if name in HEAD else trained[name]
            assert torch.equal(value, expected.to(value.dtype)), name


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("small_resnet", HEAD),
        ("lenet5", None),
        ("torchvision/resnet18", HEAD),
        ("torchvision/squeezenet1_1", ("classifier.1.weight", "classifier.1.bias")),
        ("torchvision/vit_b_16", ("heads.head.weight", "heads.head.bias")),
    ],
)
def test_the_last_layer_of_a_network(name: str, head: tuple[str, ...] | None) -> None:
    made = recipe()
    size = {"lenet5": 28, "small_resnet": 8}.get(name, 64)
    data = replace(made.data, image_size=size, channels=1 if size < 64 else 3)
    made = replace(made, data=data, model=replace(made.model, name=name))
    found = head_parameters(made)
    assert found == head if head else len(found) == 2


@pytest.mark.parametrize("name", ["small_resnet", "torchvision/squeezenet1_1"])
def test_a_network_of_one_channel_sums_the_first_layer_of_three(name: str, tmp_path: Path) -> None:
    """It computes for a grey image what the network of the file computes for it in RGB."""
    made = recipe(f"model.name={name}")
    grey, colour = (
        replace(
            made, data=replace(made.data, image_size=32, channels=c, mean=[0.5] * c, std=[0.2] * c)
        )
        for c in (1, 3)
    )
    network = make_network(colour).eval()
    path = saved(tmp_path / "colour.pth", network.state_dict())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    model = replace(grey.model, start=str(path), start_sha256=digest)
    start = read_start_weights(replace(grey, model=model), SingleComm())
    first = "conv1.weight" if name == "small_resnet" else "features.0.weight"
    assert f", with {first} summed over three channels, SHA" in start.notes[0]
    own = make_network(grey).eval()
    assert own.state_dict()[first].shape[1] == 1
    own.load_state_dict(start.tensors)
    images = torch.rand(2, 1, 32, 32, dtype=torch.float64)
    with torch.inference_mode():
        torch.testing.assert_close(own(images), network(images.repeat(1, 3, 1, 1)))


def test_the_networks_of_the_paper_take_one_channel() -> None:
    with torch.device("meta"):
        network = make_network(recipe("model.name=resnet50"))
    shapes = {name: tuple(value.shape) for name, value in network.named_parameters()}
    assert shapes["conv1.weight"] == (64, 1, 7, 7)


def test_a_run_begins_with_the_optimizer_of_another(trained: dict[str, Tensor]) -> None:
    """Its momenta are those of the checkpoint, and its settings those of the recipe."""
    words = [f"model.start={FINISHED}", "optim.weight_decay=1e-3", "model.start_optimizer=true"]
    made = recipe(*words)
    start = read_start_weights(made, SingleComm())
    assert ", and its optimizer state, SHA" in start.notes[0]
    learner = Learner(made, SingleComm(), CPU, start=start.tensors, optimizer=start.optimizer)
    assert learner.next_step == 0
    assert 1e-3 in {group["weight_decay"] for group in learner.strategy.state()["param_groups"]}
    assert made.fingerprint != recipe(*words[:2]).fingerprint


def by_name(learner: Learner, state: Mapping[int, Any]) -> dict[str, Tensor]:
    """The first tensor of an optimizer state by the name of its parameter in a learner's model."""
    names = {parameter: name for name, parameter in learner.model.named_parameters()}
    ordered = [
        each for group in learner.strategy.optimizer.param_groups for each in group["params"]
    ]
    assert state.keys() == set(range(len(ordered)))
    return {names[each]: next(iter(state[number].values())) for number, each in enumerate(ordered)}


@pytest.mark.parametrize(
    "words", [[], ["optim.head_lr=0.5"], ["optim.decay_norm=true"], ["optim.decay_bias=false"]]
)
def test_a_momentum_stays_that_of_its_parameter(words: list[str]) -> None:
    """In runs of other parameter groups, which number the parameters in another order."""
    made = recipe(f"model.start={FINISHED}", "model.start_optimizer=true", *words)
    start = read_start_weights(made, SingleComm())
    learner = Learner(made, SingleComm(), CPU, start=start.tensors, optimizer=start.optimizer)
    saved = newest_checkpoint(FINISHED).optimizer["state"]
    theirs = by_name(Learner(recipe(), SingleComm(), CPU), saved)
    for name, momentum in by_name(learner, learner.strategy.state()["state"]).items():
        assert momentum.any(), name
        assert torch.equal(momentum, theirs[name].to(momentum.dtype)), name


def test_an_entry_of_no_parameter_stays(tmp_path: Path) -> None:
    """An optimizer of one's own may count its steps in self.state["steps"]."""
    found = newest_checkpoint(FINISHED)
    state = found.optimizer["state"] | {"steps": 7}
    write_checkpoint(replace(found, optimizer=found.optimizer | {"state": state}), tmp_path)
    made = recipe(f"model.start={tmp_path}", "model.start_optimizer=true")
    start = read_start_weights(made, SingleComm())
    learner = Learner(made, SingleComm(), CPU, start=start.tensors, optimizer=start.optimizer)
    restored = learner.strategy.state()["state"]
    assert restored.keys() == state.keys()
    assert restored["steps"] == 7


def test_a_velocity_is_corrected_for_the_first_lr(tmp_path: Path) -> None:
    """It has the lr of the last update in it, that of the last layer another one."""
    rule = ["optim.equation=10", "optim.momentum_correction=true"]
    before = recipe(*rule, "optim.head_lr=0.3")
    first = Learner(before, SingleComm(), CPU)
    velocities = {
        number: {"velocity": torch.full_like(each, 1 + number)}
        for number, each in enumerate(
            each for group in first.strategy.optimizer.param_groups for each in group["params"]
        )
    }
    found = first.checkpoint()
    write_checkpoint(
        replace(found, lr=0.05, optimizer=found.optimizer | {"state": velocities}), tmp_path
    )
    lower = f"schedule.reference_lr={before.schedule.reference_lr / 5}"
    made = recipe(f"model.start={tmp_path}", "model.start_optimizer=true", *rule, lower)
    start = read_start_weights(made, SingleComm())
    learner = Learner(made, SingleComm(), CPU, start=start.tensors, optimizer=start.optimizer)
    theirs = by_name(first, velocities)
    for name, velocity in by_name(learner, learner.strategy.state()["state"]).items():
        last_lr = 0.05 * (0.3 / before.schedule.reference_lr if name in HEAD else 1)
        torch.testing.assert_close(velocity, theirs[name] * (made.lr(0) / last_lr))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ["optim.momentum=0", "optim.nesterov=false"],
            "that optim.momentum=0 would not use; write",
        ),
        (["optim=adamw"], "was trained with optim.name=sgd instead of adamw; write optim.name=sgd"),
        (["model.frozen=[conv1]"], r"with model.frozen=\[\] instead of \[conv1\]"),
        (["model.new_head=true"], "no state for the new layer"),
        (["strategy=async"], "needs one optimizer for all workers"),
    ],
)
def test_an_optimizer_of_another_kind_is_refused(words: list[str], reason: str) -> None:
    asked = [f"model.start={FINISHED}", "model.start_optimizer=true"]
    with pytest.raises(UsageError, match=reason):
        read_start_weights(recipe(*asked, *words), SingleComm())


def test_a_run_that_has_begun_needs_no_optimizer_of_another(tmp_path: Path) -> None:
    """It has its own, and an earlier lsgd may have begun it where this one would refuse."""
    asked = [f"model.start={FINISHED}", "model.start_optimizer=true", "optim=adamw"]
    made = replace(recipe(*asked), run_dir=str(tmp_path / "run"))
    with pytest.raises(UsageError, match=r"was trained with optim\.name=sgd"):
        read_start_weights(made, SingleComm())
    shutil.copytree(FINISHED, tmp_path / "run")
    assert read_start_weights(made, SingleComm()).optimizer is None


def test_an_optimizer_with_other_tensors_is_refused(tmp_path: Path) -> None:
    """LAMB counts steps only for its bias correction."""
    plain = recipe("optim=lamb", "optim.bias_correction=false")
    of_lamb = replace(
        newest_checkpoint(FINISHED), recipe=asdict(plain), fingerprint=plain.fingerprint
    )
    write_checkpoint(of_lamb, tmp_path)
    asked = [f"model.start={tmp_path}", "model.start_optimizer=true", "optim=lamb"]
    with pytest.raises(UsageError, match=r"bias_correction=false instead of .*true; write optim\."):
        read_start_weights(recipe(*asked, "optim.bias_correction=true"), SingleComm())


def test_the_optimizer_of_an_lsgd_with_other_groups_is_refused(tmp_path: Path) -> None:
    """Its fingerprint is another, as resuming checks it too."""
    write_checkpoint(replace(newest_checkpoint(FINISHED), fingerprint="another"), tmp_path)
    asked = [f"model.start={tmp_path}", "model.start_optimizer=true"]
    with pytest.raises(UsageError, match=r"numbers the optimizer's parameters in another way; le"):
        read_start_weights(recipe(*asked), SingleComm())


def test_a_momentum_of_another_shape_is_refused() -> None:
    """A fused update would go beyond its memory."""
    state = {0: {"momentum_buffer": torch.zeros(3)}}
    with pytest.raises(UsageError, match=r"has other parameters than .*; leave model\.start_opt"):
        Learner(recipe(), SingleComm(), CPU, optimizer=state)


# --- The fingerprint -------------------------------------------------------------------------


def test_the_content_is_in_the_fingerprint_and_the_path_is_not(
    trained: dict[str, Tensor], tmp_path: Path
) -> None:
    one = saved(tmp_path / "one.pth", trained)
    (tmp_path / "copy.pth").write_bytes(one.read_bytes())
    other = saved(tmp_path / "other.pth", {k: v + 1 for k, v in trained.items()})
    none, first, copied, second = (
        recipe(*words)
        for words in ([], *([f"model.start={tmp_path / name}"] for name in
                            ("one.pth", "copy.pth", other.name)))
    )  # fmt: skip
    assert first.model.start_sha256 == hashlib.sha256(one.read_bytes()).hexdigest()
    assert first.fingerprint == copied.fingerprint
    assert len({none.fingerprint, first.fingerprint, second.fingerprint}) == 3


def test_a_recipe_that_was_saved_is_read_without_the_file(tmp_path: Path) -> None:
    (copy := tmp_path / "copy.pt").write_bytes((FINISHED / "checkpoint-20.pt").read_bytes())
    made = recipe(f"model.start={copy}")
    copy.unlink()
    again = config.from_saved(asdict(made))
    assert again == made
    assert again.without_paths.fingerprint == made.fingerprint
    with pytest.raises(UsageError, match=r"model\.start=.*copy\.pt cannot be read \(No such file"):
        read_start_weights(again, SingleComm())
    with pytest.raises(UsageError, match=r"start_sha256 identifies weights.*write model\.start="):
        read_start_weights(again.without_paths, SingleComm())
    values = asdict(made)
    values["model"]["start_sha256"] = ""
    with pytest.raises(UsageError, match=r"a saved recipe with model\.start has the hash"):
        config.from_saved(values)


# --- Runs ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_resumes_from_the_same_file_only(tmp_path: Path) -> None:
    """It is evaluated, too, where the file is gone."""
    (start := tmp_path / "start.pt").write_bytes((FINISHED / "checkpoint-20.pt").read_bytes())
    words = [f"model.start={start}", f"run_dir={tmp_path / 'run'}"]
    train(config.load_recipe([*WORDS, *words]))
    train(config.load_recipe([*WORDS, *words]))
    torch.save(torch.load(start, weights_only=True)["model"], start)
    before = sorted(path.name for path in (tmp_path / "run").iterdir())
    with pytest.raises(UsageError, match=r"model\.start=.*start\.pt has changed since run_dir="):
        train(config.load_recipe([*WORDS, *words]))
    other = config.read_recipe(tmp_path / "run/config.yaml")
    with pytest.raises(UsageError, match=r"model\.start=.*start\.pt has changed: its SHA-256 is"):
        train(replace(other, run_dir=str(tmp_path / "run")))
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before
    start.unlink()
    assert evaluate_path(tmp_path / "run")["val"].counts["images"] == 4


class Code:
    """An object whose unpickling would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def _pickled(value: Any) -> bytes:
    torch.save(value, buffer := io.BytesIO())
    return buffer.getvalue()


WRONG: dict[str, tuple[Callable[[dict[str, Tensor], Path], bytes], str]] = {
    "other network": (
        lambda tensors, _: _pickled({f"x.{k}": v for k, v in tensors.items()}),
        r"another network than model=small_resnet, which lacks .* …, which also has x\..* …; write",
    ),
    "other width": (
        lambda tensors, _: _pickled(tensors | {"conv1.weight": torch.ones(4, 1, 3, 3)}),
        r"whose conv1\.weight is of shape \(4, 1, 3, 3\) and not \(8, 1, 3, 3\); write model=NAME",
    ),
    "other classes": (
        lambda tensors, _: _pickled(tensors | {"fc.weight": torch.ones(7, 32)}),
        r"trained for other classes: .*\(7, 32\), and data\.classes=10 .*model\.new_head=true",
    ),
    "half": (lambda tensors, _: _pickled(tensors)[:9000], r"holds no weights \(it is not a compl"),
    "half a checkpoint": (
        lambda *_: (FINISHED / "checkpoint-20.pt").read_bytes()[:-9], "holds no weights",
    ),
    "code": (
        lambda tensors, path: _pickled(tensors | {"fc.bias": Code(path)}),
        r"objects other than tensors.*could run code\); give",
    ),
    "code beside the weights": (
        lambda tensors, path: _pickled({"model": tensors, "args": Namespace(code=Code(path))}),
        r"it contains builtins\.getattr, and objects .*by torch\.save\(model\.state_dict\(\), ",
    ),
    "numbers of numpy": (
        lambda tensors, _: _pickled(tensors | {"fc.bias": numpy.float64(1)}),
        r"its fc\.bias is not a dense tensor",
    ),
    "a pickle of code": (
        lambda _, path: pickle.dumps(Code(path)), r"objects other than tensors.*could run code",
    ),
    "no tensor": (
        lambda tensors, _: _pickled(tensors | {"fc.bias": 1.0}), r"its fc\.bias is not a dense",
    ),
    "sparse": (
        lambda tensors, _: _pickled(tensors | {"fc.bias": torch.zeros(10).to_sparse()}),
        "holds no weights",
    ),
    "list": (lambda tensors, _: _pickled(list(tensors.values())), "it has no tensors by name"),
    "empty": (lambda *_: b"", "holds no weights"),
    "safetensors": (lambda *_: (9).to_bytes(8, "little") + b"{damaged}" * 3, "safetensors"),
    "diverged": (
        lambda tensors, _: _pickled(tensors | {"fc.bias": torch.full((10,), torch.nan)}),
        r"values in fc\.bias that are not finite",
    ),
    "integers": (
        lambda tensors, _: _pickled(tensors | {"fc.bias": torch.ones(10, dtype=torch.int8)}),
        r"values in fc\.bias that are int8, and weights are floating-point numbers; save",
    ),
    "complex": (
        lambda tensors, _: _pickled(tensors | {"fc.bias": torch.ones(10, dtype=torch.complex64)}),
        r"values in fc\.bias that are complex64, and weights",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_file_is_refused_before_anything_is_written(
    what: str, trained: dict[str, Tensor], tmp_path: Path
) -> None:
    make, sentence = WRONG[what]
    (file := tmp_path / "start").write_bytes(make(trained, tmp_path / "touched"))
    made = recipe(f"model.start={file}", f"run_dir={tmp_path / 'run'}")
    with pytest.raises(UsageError, match=rf"^model\.start.*{sentence}") as refused:
        train(made)
    assert "\n" not in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["start"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "model.start=missing.pt",
            r"model\.start=missing\.pt cannot be read \(No such file.*write",
        ),
        ("model.start=/dev/null", r"cannot be read \(it is not a regular file\)"),
        ("model.start=.", r"is a folder without checkpoint\.pt or model\.safetensors; write"),
        ("model.start=''", r"model\.start= is empty; write model\.start=PATH"),
        ("model.new_head=true", r"no effect without model\.start.*leave it out, or write"),
        ("model.start_sha256=abc", r"is not a SHA-256 of 64 hexadecimal digits; leave it out"),
    ],
)
def test_refused_as_the_recipe_is_read(
    words: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=sentence):
        config.load_recipe([*WORDS, words])


def test_processes_with_different_files_are_refused(
    trained: dict[str, Tensor], tmp_path: Path
) -> None:
    paths = [saved(tmp_path / f"{rank}.pth", {k: v + rank for k, v in trained.items()})
             for rank in range(2)]  # fmt: skip
    recipes = [recipe(f"model.start={path}") for path in paths]

    def refusal(comm: Any) -> str:
        with pytest.raises(UsageError) as refused:
            read_start_weights(recipes[comm.rank], comm)
        return str(refused.value)

    for text in run_on_threads(2, refusal):
        assert "is another file for process 1 on" in text


def test_a_dry_run_of_another_network_leaves_the_weights_out() -> None:
    made = recipe(f"model.start={FINISHED}", "model.new_head=true", "model.frozen=[conv1]")
    small = make_dry_run(made)
    assert small.model == recipe().model
    left_out = "without the weights of model.start without model.frozen"
    assert f"model small_resnet -> small_resnet {left_out}" in "\n".join(small.replaced)
    assert make_dry_run(recipe()).replaced == make_dry_run(recipe()).replaced


def test_other_words_for_the_weights_of_a_library() -> None:
    """What downloads weights is answered with how to save them once."""
    made = recipe()
    data = replace(made.data, image_size=64, channels=3)
    model = replace(made.model, name="torchvision/resnet18", options={"weights": "DEFAULT"})
    with pytest.raises(UsageError, match=r"get_model\('resnet18', weights='DEFAULT'\).*and write "
                                         r"model\.start=resnet18\.pth"):  # fmt: skip
        train(replace(made, data=data, model=model))


def pretrained(name: str, *words: str) -> Recipe:
    made = recipe("model.options.pretrained=true", f"model={name}", *words)
    data = replace(made.data, mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
    return replace(made, data=replace(data, image_size=64, channels=3))


@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_pretrained_weights_for_other_pixels_are_named(
    library: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Many of timm's were trained with means of 0.5; a dataset's own may be meant."""
    made = pretrained(f"{library}/squeezenet1_1")
    known = SimpleNamespace(mean=(0.485, 0.456, 0.406), std=(0.5, 0.5, 0.5))
    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(get_pretrained_cfg=lambda _: known))
    if library == "torchvision":
        made = replace(made, data=replace(made.data, std=[0.5] * 3))
    wanted = {"torchvision": "0.229,0.224,0.225", "timm": "0.5,0.5,0.5"}[library]
    monkeypatch.setattr("lsgd.models.library_networks.find_builder", lambda _: None)
    for name in ("_timm_file", "_torchvision_file"):
        monkeypatch.setattr(f"lsgd.models.pretrained.{name}", lambda _: tmp_path / "weights")
    (tmp_path / "weights").touch()
    assert with_pretrained_weights(made, SingleComm()).model.start == str(tmp_path / "weights")
    assert capsys.readouterr().err.endswith(
        f"unless these are meant, write 'data.std=[{wanted}]'\n"
    )


def test_pretrained_weights_are_downloaded_once_and_recorded_as_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one of two processes of a machine; later their file is enough, without a network."""
    weights = models.squeezenet1_1().state_dict()
    file = tmp_path / "hub/checkpoints/squeezenet1_1-b8a52dc0.pth"
    fetched: list[tuple[str, str]] = []

    def fetch(url: str, path: str, digits: str, progress: bool) -> None:
        fetched.append((url.rpartition("/")[2], digits))
        torch.save(weights, path)

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", fetch)
    made = pretrained("torchvision/squeezenet1_1", "model.new_head=true")
    for _ in range(2):
        found, _ = run_on_threads(2, lambda comm: with_pretrained_weights(made, comm))
    assert fetched == [(file.name, "b8a52dc0")]
    options = {"start": str(file), "start_sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    assert found == replace(made, model=replace(made.model, options={}, **options))
    start = read_start_weights(found, SingleComm()).tensors
    assert weights.keys() - start.keys() == {"classifier.1.weight", "classifier.1.bias"}
    assert torch.equal(start["features.0.weight"], weights["features.0.weight"])
    checked = build_learner(made).model.state_dict()
    assert torch.equal(checked["features.0.weight"], weights["features.0.weight"].double())
    # Shapes and speeds need no weights: the network is that without the option.
    assert not replace(made.model, name="package:Net").starts_pretrained  # an option of its own
    seeded = make_network(replace(made, model=replace(made.model, options={}, new_head=False)))
    built = make_network(made).state_dict()
    assert all(torch.equal(built[name], value) for name, value in seeded.state_dict().items())
    with pytest.raises(
        UsageError, match=r"pretrained=true has no effect with model\.start=.*; leave"
    ):
        pretrained("torchvision/squeezenet1_1", f"model.start={FINISHED}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "torchvision/squeezenet1_1",
            r"finds no weights of model=torchvision/squeezenet1_1 in the cache, and cannot "
            r"download them \(<urlopen error no network>\); save them where .* by torch\.save\("
            r".*get_model\('squeezenet1_1', .*, and write model\.start=squeezenet1_1\.pth instead",
        ),
        ("torchvision/squeezenet9", r"does not exist; did you mean squeezenet1_"),
        ("timm/resnet10t", r"download them \(no network\); save"),
        ("timm/coatnet_0_224", r"and timm has none of model=timm/coatnet_0_224; leave it out, or"),
    ],
)  # fmt: skip
def test_pretrained_without_a_network_is_refused_before_anything_is_written(
    name: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail = Mock(side_effect=urllib.error.URLError("no network"))

    def fail_hub(repository: str, file: str) -> None:
        raise LocalEntryNotFoundError("no network.\nMore text")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", fail)
    if name.startswith("timm/"):
        require_capability("timm")
        from huggingface_hub.errors import LocalEntryNotFoundError

        monkeypatch.setattr("huggingface_hub.hf_hub_download", fail_hub)
    with pytest.raises(UsageError, match=sentence) as refused:
        train(replace(pretrained(name), run_dir=str(tmp_path / "run")))
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_a_check_finds_weights_that_are_not_those_of_the_paper() -> None:
    """And layers that are not trained."""
    made = recipe(f"model.start={FINISHED}", "model.frozen=[conv1]", "optim.head_lr=0.5")
    found = {each.rule: each for each in observe(build_learner(made))}
    plain = {each.rule: each for each in observe(build_learner(recipe()))}
    for rule in ("fc_init", "last_gamma", "weight_decay"):
        assert found[rule].run != plain[rule].run, rule
    assert found["weight_decay"].run.endswith("; 1 are not trained")
    assert found["reference_lr"].run == "lr 0.025 for 16 images, and 0.5 for the last layer"
    rule = goyal2017.rules(made)["reference_lr"]
    assert [rule.holds((0.1, 256, *head)) for head in ((), (0.5,))] == [True, False]


@pytest.mark.slow
def test_a_run_stopped_at_once_begins_from_the_file_again(tmp_path: Path) -> None:
    """Before its first checkpoint a run has nothing but its recipe."""
    made = recipe(f"model.start={FINISHED}", "model.new_head=true")
    made = replace(made, run_dir=str(tmp_path / "run"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("lsgd.train.train_epochs", Mock(side_effect=PreemptedError("at once")))
        with pytest.raises(PreemptedError):
            train(made)
    assert json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[0])["step"] == 0
    undisturbed = replace(made, run_dir=str(tmp_path / "other"))
    train(made)
    train(undisturbed)
    one, other = (newest_checkpoint(tmp_path / name).model for name in ("run", "other"))
    torch.testing.assert_close(one, other, rtol=0, atol=0)
