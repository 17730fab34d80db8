"""What is exported is the network that the run was evaluated as."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from helpers.checkpoints import CPU, tiny
from helpers.composed import compose_recipe
from helpers.exported import images, logits, read, trained_learner
from torch.nn import functional as F

from lsgd.comm.single import SingleComm
from lsgd.errors import UsageError
from lsgd.evaluate import evaluate_path
from lsgd.learner import Learner
from lsgd.models import make_network
from lsgd.run import checkpoint

EMA = ("averaging=ema", "averaging.half_life=1", "bn_statistics.examples=40")
EVALUATED = [
    ("averaging=last", "averaging.epochs=2", "bn_statistics.examples=40", "channels_last=true"),
    EMA,
    ("bn_statistics=precise", "bn_statistics.examples=40"),
    ("bn_statistics=last",),
]


@pytest.mark.parametrize("words", EVALUATED, ids=lambda words: words[0])
def test_its_loss_is_that_of_the_evaluation(words: tuple[str, ...], tmp_path: Path) -> None:
    """On every validation image, and by a plain loop, as lsgd.evaluate finds it; and the logits are
    those of the run."""
    learner = trained_learner("small_resnet", tmp_path, *words)
    exported = read(tmp_path, "onnx")
    inputs, passes = (
        learner.workload.inputs(),
        learner.workload.evaluation_micro_batches("val", 0, 1),
    )
    total = 0.0
    with torch.no_grad():
        for batch, labels in inputs.evaluation(passes):
            total += F.cross_entropy(exported.network(batch), labels, reduction="sum").item()
        said = exported.network(some := images(exported.recipe, 5))
    found = evaluate_path(tmp_path)["val"]
    assert total / found.counts["images"] == pytest.approx(found.metrics["loss"], rel=1e-6)
    torch.testing.assert_close(said, logits(learner, some), rtol=0, atol=1e-6)
    assert all(tensor.is_contiguous() for tensor in exported.network.state_dict().values())


def test_an_average_is_not_the_weights(tmp_path: Path) -> None:
    trained_learner("small_resnet", tmp_path, *EMA)
    exported = read(tmp_path, "onnx")
    batch = images(exported.recipe, 5)
    plain = make_network(exported.recipe).eval()
    plain.load_state_dict(exported.checkpoint.model)
    with torch.no_grad():
        assert not torch.allclose(exported.network(batch), plain(batch), atol=1e-3)
    words = "an exponential moving average of the weights after step 2, BN statistics measured"
    assert exported.evaluated_as == f"{words} with them"


@pytest.mark.slow
def test_data_is_needed_only_where_statistics_are_measured(tmp_path: Path) -> None:
    """LeNet-5 has none, so that its averages need no images either."""
    runs = {
        "average": ("+recipe=fashion_lenet5", *EMA),
        "moving": ("+recipe=cifar10_bs128",),
        "precise": ("+recipe=cifar10_bs128", *EMA),
    }
    for name, words in runs.items():
        made = compose_recipe(*words, f"data.root={tmp_path / 'away'}")
        (tmp_path / name).mkdir()
        checkpoint.write(Learner(made, SingleComm(), CPU).checkpoint(), tmp_path / name)
    read(tmp_path / "average", "onnx")
    read(tmp_path / "moving", "onnx")
    with pytest.raises(UsageError, match="away"):
        read(tmp_path / "precise", "onnx")


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    made = compose_recipe("+recipe=ptb_small", "inputs=synthetic")
    saved = replace(tiny(), recipe=asdict(made), fingerprint=made.fingerprint)
    checkpoint.write(saved, tmp_path)
    for form in ("torchvision", "onnx", "hub"):
        sentence = (
            rf"^--to {form} supports only data.workload=images, and ptb_small has "
            "data.workload=language; write --to safetensors, which takes"
        )
        with pytest.raises(UsageError, match=sentence):
            read(tmp_path, form)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="empty has no checkpoint; give a run folder that has one"):
        read(tmp_path / "empty", "onnx")
    (tmp_path / "page.pt").write_bytes(b"<html>")
    with pytest.raises(
        UsageError, match=r"page\.pt is damaged or not a .*; give another checkpoint"
    ):
        read(tmp_path / "page.pt", "onnx")


def test_words_make_no_other_network(tmp_path: Path) -> None:
    trained_learner("small_resnet", tmp_path)
    with pytest.raises(UsageError, match=r"seed=7 would change the run of .*checkpoint-2"):
        read(tmp_path, "onnx", "seed=7")
    assert read(tmp_path, "onnx", "val_batch=7").recipe.val_batch == 7
