from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
import torch
from helpers.composed import compose_recipe
from helpers.threaded import run_on_threads
from torch import Tensor, nn

from lsgd.comm import Comm
from lsgd.comm.single import SingleComm
from lsgd.evaluation import TrainedModel, evaluate
from lsgd.inputs import Batch
from lsgd.recipe import Evaluation
from lsgd.rules.batchnorm import WorkerBatchNorm2d
from lsgd.rules.sampler import MicroBatch
from lsgd.scores import Scores
from lsgd.workloads import open_workload

CPU = torch.device("cpu")
EXAMPLES, CLASSES = 53, 7
DIGITS = compose_recipe("+recipe=digits", "precision=float64")


class Images:
    """A validation set of random images, which remembers what was asked of it."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randn(EXAMPLES, 2, 3, 3, generator=generator)
        self.labels = torch.randint(CLASSES, (EXAMPLES,), generator=generator)
        self.asked: list[list[int]] = []

    def evaluation(self, passes: Iterable[MicroBatch]) -> Iterator[Batch]:
        for each in passes:
            self.asked.append(each.examples.tolist())
            yield self.images[each.examples], self.labels[each.examples]


class Model(nn.Module):
    """BN and a linear layer; notes in which mode it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.bn, self.fc = WorkerBatchNorm2d(2), nn.Linear(18, CLASSES)
        self.modes: list[bool] = []
        generator = torch.Generator().manual_seed(1)
        self.fc.weight.data = torch.randn(CLASSES, 18, generator=generator)
        nn.init.zeros_(self.fc.bias)
        self.double()

    def forward(self, images: Tensor) -> Tensor:
        self.modes.append(self.training)
        logits: Tensor = self.fc(self.bn(images).flatten(1))
        return logits


def evaluated(comm: Comm, batch: int) -> tuple[Scores, list[list[int]]]:
    """The scores, and the ids of the passes that this process asked for."""
    inputs = Images()
    return evaluate(candidate(Model(), comm, EXAMPLES, batch), inputs)["val"], inputs.asked


def candidate(model: nn.Module, comm: Comm, examples: int, batch: int) -> TrainedModel:
    """The model, to be evaluated on so many images in passes of this size."""
    recipe = replace(DIGITS, val_batch=batch, data=replace(DIGITS.data, val_examples=examples))
    return TrainedModel(open_workload(recipe, CPU), model, comm, CPU)


def expected() -> Scores:
    """By hand, all images at once."""
    inputs = Images()
    with torch.inference_mode():
        logits = Model().eval()(inputs.images.double())
    rank = (logits > logits[torch.arange(EXAMPLES), inputs.labels][:, None]).sum(1)
    wrong1, wrong5 = (int((rank >= guesses).sum()) for guesses in (1, 5))
    return Scores(
        {"images": EXAMPLES, "top1": EXAMPLES - wrong1, "top5": EXAMPLES - wrong5},
        {
            "loss": nn.functional.cross_entropy(logits, inputs.labels).item(),
            "top1_error": 100 * wrong1 / EXAMPLES,
            "top5_error": 100 * wrong5 / EXAMPLES,
        },
    )


@pytest.mark.parametrize("batch", [1, 4, 52, 53, 100])
@pytest.mark.parametrize("processes", [1, 3])
def test_every_image_counts_once(processes: int, batch: int) -> None:
    """53 of them divide by neither 3 nor 4: none is padded, none left out, and counts are exact."""
    found = run_on_threads(processes, lambda comm: evaluated(comm, batch))
    by_hand = expected()
    for scores, _ in found:
        loss = scores.metrics["loss"]
        assert scores == replace(by_hand, metrics=by_hand.metrics | {"loss": loss})
        assert loss == pytest.approx(by_hand.metrics["loss"], rel=1e-12)
    chunks = [chunk for _, asked in found for chunk in asked]
    assert [i for chunk in chunks for i in chunk] == list(range(EXAMPLES))
    assert max(map(len, chunks)) <= batch


def test_more_processes_than_images() -> None:
    """The rest take part in the sums and look at nothing."""
    found = run_on_threads(EXAMPLES + 2, lambda comm: evaluated(comm, 4))
    errors = {scores.metrics["top1_error"] for scores, _ in found}
    assert errors == {expected().metrics["top1_error"]}
    assert found[-1][1] == []


@pytest.mark.parametrize("lower", [False, True])
def test_an_evaluation_is_in_bfloat16_where_the_recipe_says_so(lower: bool) -> None:
    """Its products alone, and no other: training has its own words for that."""
    seen = []
    model = Model().float()
    model.fc.register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    recipe = replace(DIGITS, precision="float32", evaluation=Evaluation(bfloat16=lower))
    recipe = replace(recipe, data=replace(DIGITS.data, val_examples=EXAMPLES))
    evaluate(TrainedModel(open_workload(recipe, CPU), model, SingleComm(), CPU), Images())
    assert set(seen) == {torch.bfloat16 if lower else torch.float32}
    assert not torch.is_autocast_enabled("cpu")


def test_the_model_evaluates_in_evaluation_mode_and_goes_on_training() -> None:
    model = Model()
    evaluate(candidate(model, SingleComm(), 10, 5), Images())
    assert model.modes == [False, False]
    assert model.training
    assert model.bn.training
    # What is computed afterwards can still be differentiated.
    model.bn.seen = torch.zeros(2, 2, dtype=torch.float64)
    model(Images().images.double()).sum().backward()
    assert model.fc.weight.grad.any()
