import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.composed import compose_recipe
from helpers.folders import LOADERS
from helpers.usage_errors import usage_error
from PIL import Image
from torch.nn import functional as F

from lsgd.comm.single import SingleComm
from lsgd.errors import UsageError
from lsgd.evaluate import _format_scores, evaluate_path, main
from lsgd.inputs import Inputs
from lsgd.learner import Learner
from lsgd.prepare.indexing import index_folder
from lsgd.run import checkpoint
from lsgd.scores import Scores
from lsgd.start_weights import read_state_dict
from lsgd.trained_model import LazyInputs, load_trained, open_data_of_run
from lsgd.vision import models, transforms
from lsgd.workloads import open_workload
from lsgd.workloads.images import ImageClassification

pytestmark = pytest.mark.usefixtures("composed_once")

OLD = Path(__file__).parents[1] / "fixtures/0.1"
IMAGES = ("n02951585_can_opener", "n01871265_tusker", "n02091032_Italian_greyhound")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, test_data: Path) -> Path:
    root = tmp_path_factory.mktemp("evaluate")
    for split in ("train", "val"):
        for name in IMAGES:
            (root / split / name).mkdir(parents=True)
            file = test_data / "imagenet-sample" / name.partition("_")[0] / f"{name}.JPEG"
            (root / split / name / "one.JPEG").symlink_to(file)
    index_folder(root)
    return root


def words(root: Path, *more: str) -> list[str]:
    counts = [f"data.{key}=3" for key in ("train_examples", "val_examples", "classes")]
    return [
        "+recipe=bs256",
        f"data.root={root}",
        "device=cpu",
        "worker_batch=2",
        "workers=1",
        *counts,
        *more,
    ]


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("loader", LOADERS)
def test_published_weights_give_what_torchvision_says_of_them(
    root: Path, tmp_path: Path, loader: str
) -> None:
    """Weights as torchvision publishes them, with its own documented evaluation beside ours."""
    torch.manual_seed(0)
    theirs = models.resnet50(num_classes=3).eval()
    torch.save(theirs.state_dict(), tmp_path / "resnet50.pth")
    preset = transforms.Compose(
        [
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    # In the order of the classes.
    files = sorted((root / "val").glob("*/one.JPEG"))
    images = torch.stack([preset(Image.open(file).convert("RGB")) for file in files])
    with torch.inference_mode():
        logits = theirs(images)
    right = (logits.argmax(dim=1) == torch.arange(3)).sum().item()
    # torchvision decodes in this very process: others would import torch anew, for three images.
    own = [f"inputs={loader}", f"inputs.decoders={0 if loader == 'torchvision' else 1}"]
    found = evaluate_path(tmp_path / "resnet50.pth", words(root, *own))["val"]
    assert found.counts["images"] == 3
    assert found.metrics["top1_error"] == pytest.approx(100 - 100 * right / 3)
    expected = F.cross_entropy(logits, torch.arange(3)).item()
    assert found.metrics["loss"] == pytest.approx(
        expected, rel=1e-6 if loader == "torchvision" else 1e-3
    )


@pytest.mark.slow
@pytest.mark.data
def test_the_command_says_the_error(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(models.resnet50(num_classes=3).state_dict(), tmp_path / "resnet50.pth")
    assert main([str(tmp_path / "resnet50.pth"), *words(root)]) == 0
    assert capsys.readouterr().out.startswith("3 images: top-1 error ")
    torch.save(models.resnet50().state_dict(), tmp_path / "resnet50.pth")
    assert main([str(tmp_path / "resnet50.pth"), *words(root)]) == 2
    assert "does not have the weights of resnet50 for 3 classes" in capsys.readouterr().err


@pytest.mark.slow
def test_other_sizes_than_the_run_trained_on(capsys: pytest.CaptureFixture[str]) -> None:
    """The short side is resized in proportion, as in training's own evaluation; by hand with PIL.

    Catches a size that changes the crop but not the resize, and a checkpoint that refuses it.
    """
    words = [f"data.root={OLD / 'images'}", "inputs=torchvision", "inputs.decoders=0", "device=cpu"]
    path = OLD / "images-killed"
    for side, short, more in ((16, 18, []), (24, 27, []), (24, 32, ["data.crop_ratio=0.75"])):
        recipe, saved = load_trained(
            path, [f"data.image_size={side}", *more], remedy="", any_image_size=True
        )
        preset = transforms.Compose(
            [
                transforms.Resize(short),
                transforms.CenterCrop(side),
                transforms.ToTensor(),
                transforms.Normalize(recipe.data.mean, recipe.data.std),
            ]
        )
        files = sorted(
            (OLD / "images/val").glob("*/*.jpeg"), key=lambda file: file.relative_to(OLD).as_posix()
        )
        images = torch.stack([preset(Image.open(file).convert("RGB")) for file in files])
        model = open_workload(recipe, torch.device("cpu")).network()
        model.load_state_dict(saved.model)
        with torch.inference_mode():
            logits = model.eval()(images.double())
        labels = torch.tensor([int(file.parent.name == "n1") for file in files])
        found = evaluate_path(path, [*words, f"data.image_size={side}", *more])["val"]
        assert found.counts["images"] == len(files) == 8
        expected = F.cross_entropy(logits, labels).item()
        assert found.metrics["loss"] == pytest.approx(expected, rel=1e-5)
    assert main([str(path), *words, "data.image_size=24", "data.crop_ratio=0.95"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-2:] == [
        "images of 24 x 24 pixels; the run's own are 16 x 16",
        "centre crops of 0.95 of the short side; the run's own are 0.875",
    ]
    assert main([str(path), *words]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(said) - 2
    with pytest.raises(
        UsageError, match=r"change the run .* data\.image_size, data\.crop_ratio .* comm\.library"
    ):
        evaluate_path(path, [*words, "data.image_size=24", "seed=1"])


@pytest.mark.parametrize(
    ("group", "fields", "unknown"),
    [
        ("data", {"workload": "speech", "window": 35}, "data.workload=speech"),
        ("strategy", {"name": "servers", "servers": 2}, "strategy.name=servers"),
    ],
)
def test_a_checkpoint_of_an_unknown_kind_is_of_a_newer_lsgd(
    group: str, fields: dict[str, object], unknown: str, tmp_path: Path
) -> None:
    """Its workload or strategy is named, and not a field that came with that."""
    recipe = compose_recipe("+recipe=digits")
    saved = Learner(recipe, SingleComm(), torch.device("cpu")).checkpoint()
    changed = saved.recipe | {group: saved.recipe[group] | fields}
    checkpoint.write(replace(saved, recipe=changed), tmp_path)
    sentence = f"^{unknown} is unknown to this version of lsgd; resume with the version that wrote"
    with pytest.raises(UsageError, match=sentence):
        evaluate_path(tmp_path / checkpoint.FILE)


@pytest.mark.slow
def test_weights_as_other_scripts_save_them(tmp_path: Path) -> None:
    """With what DistributedDataParallel and torch.compile put before names, within a checkpoint."""
    recipe = ["+recipe=digits", "device=cpu"]
    model = open_workload(compose_recipe(*recipe), torch.device("cpu")).network()
    plain = model.state_dict()
    torch.save(plain, tmp_path / "plain.pth")
    expected = evaluate_path(tmp_path / "plain.pth", recipe)
    for prefix in ("module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."):
        named = {prefix + name: value for name, value in plain.items()}
        torch.save({"epoch": 3, "state_dict": named}, tmp_path / "theirs.pth")
        assert evaluate_path(tmp_path / "theirs.pth", recipe) == expected
    torch.save({"model": plain, "args": None}, tmp_path / "theirs.pth")
    assert evaluate_path(tmp_path / "theirs.pth", recipe) == expected
    averaged = {"n_averaged": torch.tensor(3)} | {f"module.{k}": v for k, v in plain.items()}
    torch.save(averaged, tmp_path / "theirs.pth")
    assert evaluate_path(tmp_path / "theirs.pth", recipe) == expected
    torch.save({f"net.{k}": v for k, v in plain.items()}, tmp_path / "theirs.pth")
    with pytest.raises(UsageError, match=r"\(their names begin with net\.\); save them without"):
        evaluate_path(tmp_path / "theirs.pth", recipe)
    torch.save({"net": plain, "epoch": 3}, tmp_path / "theirs.pth")
    with pytest.raises(UsageError, match=r"\(it has tensors in its entry net, which alone is"):
        evaluate_path(tmp_path / "theirs.pth", recipe)
    torch.save(plain | {"module.x": torch.zeros(2)}, tmp_path / "theirs.pth")
    with pytest.raises(UsageError, match="does not have the weights of small_resnet"):
        evaluate_path(tmp_path / "theirs.pth", recipe)


def test_names_of_the_network_keep_what_is_no_prefix(tmp_path: Path) -> None:
    """A network may have a child `module`; DDP puts one more before it."""
    tensors = {"module.weight": torch.zeros(2), "module.bias": torch.zeros(2)}
    for names, own, found in (
        (tensors, tensors.keys(), tensors.keys()),
        (
            {f"module.{name}": each for name, each in tensors.items()},
            tensors.keys(),
            tensors.keys(),
        ),
        (tensors, ["weight", "bias"], {"weight", "bias"}),
        (tensors | {"module.old": torch.zeros(1)}, tensors.keys(), {*tensors, "module.old"}),
    ):
        torch.save(names, tmp_path / "a.pth")
        read, *_ = read_state_dict((tmp_path / "a.pth").read_bytes(), "a", lambda own=own: own)
        assert read.keys() == found


def test_a_folder_of_weights_and_one_of_a_run(tmp_path: Path) -> None:
    recipe = ["+recipe=digits", "device=cpu"]
    saved = Learner(compose_recipe(*recipe), SingleComm(), torch.device("cpu"))
    checkpoint.write(saved.checkpoint(), tmp_path)
    with pytest.raises(UsageError, match=r"is a checkpoint of lsgd, .*; leave out recipe="):
        evaluate_path(tmp_path, recipe)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"empty is a folder without checkpoint\.pt or "):
        evaluate_path(tmp_path / "empty", recipe)


@pytest.mark.slow
def test_statistics_are_measured_on_images_as_the_run_trained_on(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever size is evaluated; they were measured on training images of that size."""
    made = compose_recipe(
        *words(root, "model=small_resnet", "bn_statistics=precise", "data.image_size=32"),
        "inputs=torchvision", "inputs.decoders=0", "data.augmentation=[flip]", "workers=1",
    )  # fmt: skip
    learner = Learner(made, SingleComm(), torch.device("cpu"))
    checkpoint.write(learner.checkpoint(), tmp_path)
    measured: list[torch.Tensor] = []
    original = ImageClassification._measure

    def measure(workload: Any, model: torch.nn.Module, *rest: Any) -> None:
        original(workload, model, *rest)
        measured.append(torch.cat([each.flatten() for each in model.buffers()]))

    monkeypatch.setattr(ImageClassification, "_measure", measure)
    here = [f"data.root={root}", "inputs=torchvision", "inputs.decoders=0", "device=cpu"]
    for more in ([], ["data.image_size=48"], ["data.crop_ratio=0.5"]):
        evaluate_path(tmp_path, [*here, *more])
    assert len(measured) == 3
    assert measured[0].equal(measured[1])
    assert measured[0].equal(measured[2])


@pytest.mark.export
def test_an_export_as_safetensors_is_evaluated(tmp_path: Path) -> None:
    """By its content: neither the ending of its name nor its metadata is asked for."""
    from safetensors.torch import save_file

    recipe = ["+recipe=digits", "device=cpu"]
    plain = open_workload(compose_recipe(*recipe), torch.device("cpu")).network().state_dict()
    torch.save(plain, tmp_path / "plain.pth")
    plain = {name: value.contiguous() for name, value in plain.items()}
    save_file(plain, tmp_path / "a.weights", {"format": "pt"})
    assert evaluate_path(tmp_path / "a.weights", recipe) == evaluate_path(
        tmp_path / "plain.pth", recipe
    )
    (tmp_path / "a.weights").write_bytes((tmp_path / "a.weights").read_bytes()[:-9])
    with pytest.raises(UsageError, match=r"holds no weights \(it is a damaged safetensors file"):
        evaluate_path(tmp_path / "a.weights", recipe)


def test_what_holds_no_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "page.pth").write_bytes(b"<html>404</html>")
    with pytest.raises(UsageError, match=r"page\.pth holds no weights .*; give a file"):
        evaluate_path(tmp_path / "page.pth", ["+recipe=bs256"])
    (tmp_path / "text.pth").write_bytes(b"hello")  # a KeyError to pickle
    with pytest.raises(UsageError, match=r"text\.pth holds no weights .*; give a file"):
        evaluate_path(tmp_path / "text.pth", ["+recipe=bs256"])
    for values in ([1], {1: torch.zeros(2)}):
        torch.save(values, tmp_path / "list.pth")
        sentence = r"list\.pth holds no weights \(it has no tensors by name\); give a file"
        with pytest.raises(UsageError, match=sentence):
            evaluate_path(tmp_path / "list.pth", ["+recipe=bs256"])
    torch.save({"fc.weight": torch.eye(2).to_sparse()}, tmp_path / "sparse.pth")
    with pytest.raises(UsageError, match=r"\(its fc\.weight is not a dense tensor\)"):
        evaluate_path(tmp_path / "sparse.pth", ["+recipe=bs256"])
    torch.save({"fc.weight": torch.zeros(2)}, tmp_path / "plain.pth")
    with pytest.raises(
        UsageError, match=r"plain\.pth is damaged or not a .* weights, add a recipe .* recipe="
    ):
        evaluate_path(tmp_path / "plain.pth")
    torch.save({"fingerprint": "f", "model": {}}, tmp_path / "checkpoint.pt")
    with pytest.raises(UsageError, match=r"is a checkpoint of lsgd, .*; leave out recipe="):
        evaluate_path(tmp_path / "checkpoint.pt", ["+recipe=bs256"])


class Malicious:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("executed",)


def test_weights_are_read_without_running_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor is it advised, by us or by a warning of torch."""
    monkeypatch.chdir(tmp_path)
    torch.save(Malicious(), "new.pth")
    torch.save(Malicious(), "old.pth", _use_new_zipfile_serialization=False)
    Path("pickled.pth").write_bytes(pickle.dumps(Malicious()))
    for name in ("new.pth", "old.pth", "pickled.pth"):
        assert "could run code" in usage_error(main, capsys, name, "+recipe=digits")
    assert not Path("executed").exists()


def test_metrics_of_a_workload_of_ones_own_are_shown_whatever_their_names() -> None:
    """A top-1 error of one class is 0, but what a workload calls so is not known."""
    scores = Scores({"numbers": 4}, {"loss": 0.5, "top1_error": 25.0})
    assert _format_scores("val", scores, 1) == "4 numbers: loss 0.5000"
    assert _format_scores("val", scores, None) == "4 numbers: top-1 error 25.00 %, loss 0.5000"


def test_missing_data_of_a_run_have_no_advice_for_training() -> None:
    """No model of a run can be evaluated on other data, nor export statistics of them."""
    recipe = compose_recipe("+recipe=bs256", "data.root=missing")

    def open_inputs() -> Inputs:
        return open_workload(recipe, torch.device("cpu")).inputs()

    with pytest.raises(UsageError, match=r"does not exist; write data\.root=FOLDER$"):
        open_data_of_run(open_inputs)
    lazy = LazyInputs(open_inputs, {})
    with pytest.raises(UsageError, match=r"FOLDER, where the training images are, on which"):
        lazy.train([])
    with pytest.raises(UsageError, match=r"write data\.root=FOLDER$"):
        lazy.evaluation([])


def test_a_word_that_would_make_another_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = Learner(compose_recipe("+recipe=digits"), SingleComm(), torch.device("cpu"))
    checkpoint.write(saved.checkpoint(), tmp_path)
    path = str(tmp_path / checkpoint.FILE)
    for word in ("model=resnet20", "data=fashion-mnist", "model.name=resnet20", "seed=5"):
        assert f"{word} would change the run of {path}" in usage_error(main, capsys, path, word)
    assert "this process was started without one; leave it out" in usage_error(
        main, capsys, path, "comm=torch"
    )
