"""Image classification: a residual network, cross-entropy, and two errors (Goyal et al. 2017)."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from lsgd.comm import Comm, sum_
from lsgd.inputs import Batch, Inputs, open_inputs
from lsgd.models import DTYPES, layout, make_network
from lsgd.recipe import Recipe
from lsgd.rules import sampler
from lsgd.rules.averaging import AveragedWeights, LastEpochs, MovingAverage
from lsgd.rules.batchnorm import RunningStatistics, worker_norms
from lsgd.rules.drawn import Draws, drawn_layers
from lsgd.rules.metric import TOP1
from lsgd.rules.sampler import Pass
from lsgd.workloads import Part


class Images:
    """The workload of all recipes of the paper. An example is an image, and counts once."""

    metric = TOP1
    counts = ("images", "top1", "top5")
    weights = None
    sets: tuple[str, ...] = ("val",)

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.dtype, self.layout = DTYPES[recipe.precision], layout(recipe)
        # Kept, since every checkpoint asks for it and ImageNet's takes a fifth of a second; of two
        # epochs, as precise statistics ask for that of the first one in between.
        self._order = lru_cache(maxsize=2)(
            partial(sampler.epoch_order, recipe.train_examples, seed=recipe.seed)
        )
        self.average: AveragedWeights | None = None
        self.draws: Draws | None = None

    def network(self) -> nn.Module:
        """The recipe's network, in its precision and memory layout."""
        return make_network(self.recipe)

    def parts(self, model: nn.Module, hosted: range, comm: Comm) -> tuple[Part, ...]:
        """BN's running statistics, if the network has BN, what averages its weights, and what tells
        its layers that draw whose numbers they draw."""
        self.hosted, self.comm = hosted, comm
        self.average = self._average(model)
        self.draws = Draws(layers, self.device) if (layers := drawn_layers(model)) else None
        others = tuple(part for part in (self.average, self.draws) if part)
        if not worker_norms(model):
            return others
        last = self.recipe.bn_statistics.name == "last"
        self.statistics = RunningStatistics(
            model,
            hosted=len(hosted),
            workers=self.recipe.workers,
            rank=comm.rank,
            world_size=comm.world_size,
            momentum=1.0 if last else 0.1,
        )
        return (self.statistics, *others)

    def _average(self, model: nn.Module) -> AveragedWeights | None:
        settings = self.recipe.averaging
        match settings.name:
            case "ema":
                return MovingAverage(model, settings.half_life)
            case "last":
                return LastEpochs(model, settings.epochs, self.recipe.place)
        return None

    def inputs(self) -> Inputs:
        """The loader that the recipe asks for, its dataset checked against the recipe's numbers; a
        library's network is tried first. Raises Refused."""
        if self.recipe.model.of_library:
            from lsgd.models.library import check_library_network

            check_library_network(self.recipe)
        return open_inputs(self.recipe, self.device)

    def order(self, epoch: int) -> NDArray[np.int64]:
        """The permutation of all training images that the epoch goes through."""
        return self._order(epoch=epoch)

    def evaluation(self, split: str, rank: int, world_size: int) -> list[Pass]:
        """A contiguous share of the validation images, in passes of `val_batch`; none is padded."""
        share = sampler.share(self.recipe.data.val_examples, world_size, rank)
        ids, size = np.arange(share.start, share.stop), self.recipe.val_batch
        chunks = [ids[i : i + size] for i in range(0, len(ids), size)]
        return [Pass(None, ids, range(0), step, split) for step, ids in enumerate(chunks)]

    @contextmanager
    def evaluated(self, model: nn.Module, inputs: Inputs) -> Iterator[None]:
        """Meanwhile the model has the averaged weights, if the recipe averages them, and precise
        statistics of BN, if it asks for these; and bfloat16, if an evaluation is to be in it."""
        with self.average.in_model() if self.average else nullcontext():
            if self.recipe.measures_bn and worker_norms(model):
                self._measure(model, inputs)
            lower = self.recipe.evaluation.bfloat16
            with torch.autocast(self.device.type, torch.bfloat16, enabled=lower):
                yield

    def _measure(self, model: nn.Module, inputs: Inputs) -> None:
        """Let BN have the mean statistics over the workers of some steps, always those of the first
        epoch, with its crops: so they follow from the weights alone."""
        recipe, steps = self.recipe, range(self.recipe.bn_steps)
        passes = [
            each
            for step in steps
            for each in sampler.step_passes(
                self.order(0),
                epoch=0,
                step=step,
                workers=recipe.workers,
                worker_batch=recipe.worker_batch,
                hosted=self.hosted,
                workers_per_pass=recipe.pass_workers,
            )
        ]
        model.train()
        for each, (images, _) in zip(passes, inputs.train(passes), strict=True):
            self.statistics.start_pass(each)
            if self.draws:
                self.draws.start_pass(each)
            model(images.to(self.device, self.dtype, memory_format=self.layout))
        examples = min(len(steps) * recipe.batch_size, recipe.train_examples)
        active = -(-examples // recipe.worker_batch)
        self.statistics.measure(active, partial(sum_, self.comm))

    def loss(self, model: nn.Module, batch: Batch, each: Pass) -> tuple[Tensor, Tensor]:
        """Cross-entropy summed over the images, with smoothed labels in training, and how many are
        right at the first guess, and within five guesses."""
        images, labels = batch
        trains = each.split == "train"
        # The recipe's layout is for training; an evaluation in float32 takes the images as they
        # come, since such kernels are poor in channels_last.
        layout = self.layout if trains or self.recipe.evaluation.bfloat16 else torch.preserve_format
        images = images.to(self.device, self.dtype, memory_format=layout, non_blocking=True)
        labels = labels.to(self.device, non_blocking=True)
        logits = model(images)
        # Summed, not averaged: the step divides by the examples of all processes (remark 3).
        smoothing = self.recipe.label_smoothing if trains else 0.0
        loss = F.cross_entropy(
            logits.to(self.dtype), labels, reduction="sum", label_smoothing=smoothing
        )
        right = logits.detach().topk(min(5, logits.shape[1])).indices == labels[:, None]
        # Summed in place: a stack of three sums would be further launches on a GPU.
        counts = labels.new_full((3,), len(labels))
        torch.sum(right[:, 0], 0, out=counts[1])
        torch.sum(right, (0, 1), out=counts[2])
        return loss, counts

    def rates(self, loss: float, counts: list[int]) -> dict[str, float]:
        """The errors at the first guess and within five guesses, in percent."""
        images, top1, top5 = counts
        return {
            "top1_error": 100 * (images - top1) / images,
            "top5_error": 100 * (images - top5) / images,
        }
