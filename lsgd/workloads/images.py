"""Image classification by (binary) cross-entropy, top-1 and top-5 error (Goyal et al. 2017)."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, cached_property, lru_cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from lsgd.comm import Comm, all_reduce_
from lsgd.errors import InputFailedError, UsageError
from lsgd.inputs import (
    Batch,
    Inputs,
    evaluated_image_sizes,
    evaluation_set_size,
    open_inputs,
    training_labels,
)
from lsgd.job.device import arrays_to_device, needs_pinned_memory
from lsgd.models import DTYPES, avoid_faulty_kernels, make_network, memory_format
from lsgd.recipe import Recipe
from lsgd.rules import balance, mixing, sampler
from lsgd.rules.averaging import AveragedWeights, LastEpochsAverage, MovingAverage
from lsgd.rules.batchnorm import RunningStatistics
from lsgd.rules.counter_dropout import CounterBasedDraws
from lsgd.rules.metric import TOP1, Metric, named_metric
from lsgd.rules.rectangles import group_by_aspect
from lsgd.rules.sampler import MicroBatch
from lsgd.workloads import CarriedState, is_finite_output, worker_states
from lsgd.workloads.own_metric import ImageMetric, open_metric


class ImageClassification:
    """The image classification workload, with cross-entropy, top-1 and top-5 error.

    An example is an image, with weight 1.
    """

    metric: Metric = TOP1
    count_names: tuple[str, ...] = ("images", "top1", "top5")
    example_weights = None
    own_metric: ImageMetric | None = None
    metrics_part = ""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self.recipe, self.device, self.is_async = recipe, device, needs_pinned_memory(device)
        self.evaluation_sets = tuple(recipe.evaluation.sets)
        if (own := open_metric(recipe)) and (name := recipe.metric.own_name):
            self.metric, self.own_metric = named_metric(name), own
            self.metrics_part = f"metric.name={recipe.metric.name}"
            self.count_names += tuple(f"{name}: {each}" for each in own.count_names)
        self._set_size = cache(partial(evaluation_set_size, recipe))
        self._rectangles = cache(self._group_by_rectangle)
        self.mixes = bool(recipe.data.mixup or recipe.data.cutmix)
        self.dtype, self.layout = DTYPES[recipe.precision], memory_format(recipe)
        # Cached, since every checkpoint asks for it and ImageNet's takes 0.2 s. Two epochs are
        # kept, since precise BN statistics ask for the first epoch's order in between.
        self._order = lru_cache(maxsize=2)(self._draw_order)
        self.average: AveragedWeights | None = None
        self.draws: CounterBasedDraws | None = None
        self.statistics: RunningStatistics | None = None

    @cached_property
    def _labels(self) -> NDArray[np.int64]:
        """The labels of all training images, by which their classes are balanced."""
        return training_labels(self.recipe)

    @cached_property
    def _class_weights(self) -> Tensor | None:
        """The weights of the losses of each class's training images; None if all are 1."""
        if self.recipe.data.balance != "weights":
            return None
        weights = balance.class_weights(self._labels, self.recipe.data.classes)
        return torch.from_numpy(weights).to(self.device, self.dtype)

    def _draw_order(self, epoch: int) -> NDArray[np.int64]:
        if self.recipe.data.balance == "sampler":
            return balance.balanced_order(self._labels, seed=self.recipe.seed, epoch=epoch)
        return sampler.epoch_order(self.recipe.train_examples, seed=self.recipe.seed, epoch=epoch)

    def network(self) -> nn.Module:
        """Build the recipe's image network in its precision and memory layout."""
        network = make_network(self.recipe)
        # A compiled network chooses that format itself.
        if self.device.type == "cpu" and True in (self.recipe.channels_last, self.recipe.compile):
            avoid_faulty_kernels(network)
        return network

    def carried_states(
        self, model: nn.Module, hosted: range, comm: Comm
    ) -> tuple[CarriedState, ...]:
        """Create an image network's carried states: BN statistics, averaged weights, dropout draws.

        Each is created only if the network or the recipe has it.
        """
        self.hosted, self.comm = hosted, comm
        self.average = self._average(model)
        momentum = 1.0 if self.recipe.bn_statistics.name == "last" else 0.1
        self.statistics, self.draws = worker_states(
            model, hosted, self.recipe.workers, comm, self.device, momentum=momentum
        )
        states = (self.statistics, self.average, self.draws)
        return tuple(state for state in states if state)

    def _average(self, model: nn.Module) -> AveragedWeights | None:
        settings = self.recipe.averaging
        match settings.name:
            case "ema":
                return MovingAverage(model, settings.half_life, settings.every)
            case "last":
                return LastEpochsAverage(model, settings.epochs, self.recipe.locate_step)
        return None

    def inputs(self) -> Inputs:
        """Open the recipe's image loader and check its dataset against the recipe's counts.

        A network from a library and frozen parameters are checked first. Raises UsageError.
        """
        if self.recipe.model.is_from_library:
            from lsgd.models.library_networks import check_library_network

            check_library_network(self.recipe)
        if self.recipe.model.frozen:
            with torch.device("meta"):
                make_network(self.recipe)  # refuses wrong patterns, and the lr of a frozen head
        inputs = open_inputs(self.recipe, self.device)
        if self.recipe.evaluation.rectangle_batch:
            for split in self.evaluation_sets:
                try:
                    self._rectangles(split)
                except InputFailedError as error:  # the index lacks the size of an image
                    raise UsageError(str(error)) from None
        return inputs

    def example_order(self, epoch: int) -> NDArray[np.int64]:
        """Return the training images of an epoch in their random order.

        They are all images once, or those that a balanced sampler draws.
        """
        return self._order(epoch)

    def evaluation_micro_batches(self, split: str, rank: int, world_size: int) -> list[MicroBatch]:
        """Return the micro-batches of this process's share of an evaluation set's images.

        The share is contiguous. Micro-batches have `val_batch` images, and are never padded. Those
        of rectangles have images of one rectangle, and are the same for any number of processes,
        which divide them.
        """
        if self.recipe.evaluation.rectangle_batch:
            every = self._rectangles(split)
            share = sampler.contiguous_share(len(every), world_size, rank)
            return every[share.start : share.stop]
        share = sampler.contiguous_share(self._set_size(split), world_size, rank)
        ids, size = np.arange(share.start, share.stop), self.recipe.val_batch
        chunks = [ids[i : i + size] for i in range(0, len(ids), size)]
        return [MicroBatch(None, ids, range(0), step, split) for step, ids in enumerate(chunks)]

    def _group_by_rectangle(self, split: str) -> list[MicroBatch]:
        """Return all micro-batches of an evaluation set, each of images of one aspect ratio."""
        size = self.recipe.val_batch
        groups = group_by_aspect(
            evaluated_image_sizes(self.recipe, split), self.recipe.evaluation.rectangle_batch
        )
        chunks = [
            (ids[i : i + size], aspect) for ids, aspect in groups for i in range(0, len(ids), size)
        ]
        return [
            MicroBatch(None, ids, range(0), step, split, aspect=aspect)
            for step, (ids, aspect) in enumerate(chunks)
        ]

    @contextmanager
    def evaluation_mode(self, model: nn.Module, inputs: Inputs) -> Iterator[None]:
        """Set the model's weights, BN statistics and precision for evaluation within this context.

        These are averaged weights, precise BN statistics and bfloat16 autocast, each if the recipe
        asks for it.
        """
        with self.average.swapped_in() if self.average else nullcontext():
            lower = self.recipe.evaluation.bfloat16
            with torch.autocast(self.device.type, torch.bfloat16, enabled=lower):
                # Within autocast: statistics are measured in the type in which they normalise,
                # which rounds the activations.
                if self.recipe.measures_bn and self.statistics:
                    self._measure(model, inputs, self.statistics)
                yield

    def _measure(self, model: nn.Module, inputs: Inputs, statistics: RunningStatistics) -> None:
        """Set BN's statistics to their means over the training images of the first steps.

        It always uses the same steps with the crops of epoch 0, so the statistics follow from the
        weights alone.
        """
        recipe, steps = self.recipe, range(self.recipe.bn_steps)
        passes = [
            each
            for step in steps
            for each in sampler.step_micro_batches(
                self.example_order(0),
                epoch=0,
                step=step,
                workers=recipe.workers,
                worker_batch=recipe.worker_batch,
                hosted=self.hosted,
                workers_per_pass=recipe.micro_batch_workers,
            )
        ]
        model.train()
        for each, (images, _) in zip(passes, inputs.train(passes), strict=True):
            statistics.start_micro_batch(each)
            if self.draws:
                self.draws.start_micro_batch(each)
            model(images.to(self.device, self.dtype, memory_format=self.layout))
        examples = min(len(steps) * recipe.batch_size, recipe.train_examples)
        active = -(-examples // recipe.worker_batch)
        statistics.measure(active, partial(all_reduce_, self.comm))

    def loss(self, model: nn.Module, batch: Batch, each: MicroBatch) -> tuple[Tensor, Tensor]:
        """Return the summed cross-entropy of a micro-batch of images, or binary one, and counts.

        The counts are those of images, and of images whose label is the first guess or within five
        guesses. In training, labels are smoothed and losses weighted as the recipe says.
        """
        images, labels = batch
        trains = each.split == "train"
        # Of a loader of the user's own they may be other integers.
        labels, mixed = labels.to(self.device, torch.int64, non_blocking=self.is_async), None
        if trains:
            images = images.to(
                self.device, self.dtype, memory_format=self.layout, non_blocking=self.is_async
            )
            if self.mixes:
                mixed = self._mixing(each, images.shape[-1])
                images = mixing.mix_images(images, mixed).to(memory_format=self.layout)
            logits = model(images)
        else:
            logits = self.logits(model, images)
        loss = self._loss(logits.to(self.dtype), labels, trains=trains, mixed=mixed)
        # topk breaks ties arbitrarily, so every image has exactly one first guess and at most five
        # guesses, those of `ranked_labels`, which a step does not call.
        right = logits.detach().topk(min(5, logits.shape[1])).indices == labels[:, None]
        if not trains:
            right &= is_finite_output(logits)[:, None]
        # Summed in place: stacking three sums would launch more kernels on a GPU.
        counts = labels.new_full((3,), len(labels))
        torch.sum(right[:, 0], 0, out=counts[1])
        torch.sum(right, (0, 1), out=counts[2])
        if self.own_metric:
            counts = torch.cat((counts, self.own_metric.counts(logits.detach(), labels)))
        return loss, counts

    def _mixing(self, each: MicroBatch, side: int) -> Tensor:
        """Return how a training micro-batch's images are mixed, shape (workers, 6).

        The columns are those of mixing.draw_mixing for images of this side.
        """
        data = self.recipe.data
        drawn = mixing.draw_mixing(
            each.by_worker[:, 0],
            side,
            mixup=data.mixup,
            cutmix=data.cutmix,
            seed=self.recipe.seed,
            epoch=each.epoch or 0,
        )
        return arrays_to_device(drawn.astype(np.float32), self.device)

    def _loss(
        self, logits: Tensor, labels: Tensor, *, trains: bool, mixed: Tensor | None
    ) -> Tensor:
        """Return the summed loss of the recipe, that of both labels if images are `mixed`.

        Summed, not averaged: the step divides by the examples of all processes (remark 3).
        """
        weights = self._class_weights if trains else None
        smoothing = self.recipe.label_smoothing if trains else 0.0
        is_entropy = self.recipe.loss == "cross_entropy"
        if is_entropy and weights is None and mixed is None:
            return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)

        def losses(targets: Tensor) -> Tensor:
            if is_entropy:
                each = F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
            else:
                over_classes = self.recipe.bce_over_classes
                each = binary_cross_entropy(
                    logits, targets, smoothing=smoothing, over_classes=over_classes
                )
            return each if weights is None else each * weights[targets]

        if mixed is None:
            return losses(labels).sum()
        own, other = losses(labels), losses(mixing.other_labels(labels, len(mixed)))
        shares = mixed[:, 0].to(own.dtype).repeat(len(labels) // len(mixed))
        return torch.lerp(other, own, shares).sum()

    def logits(self, model: nn.Module, images: Tensor) -> Tensor:
        """Return the logits of normalised images, computed as in an evaluation."""
        # The recipe's layout is for training: float32 kernels are slow in channels_last.
        layout = self.layout if self.recipe.evaluation.bfloat16 else torch.preserve_format
        images = images.to(
            self.device, self.dtype, memory_format=layout, non_blocking=self.is_async
        )
        logits: Tensor = model(images)
        if self.recipe.evaluation.mirror:
            logits = (logits + model(images.flip(-1))) / 2
        return logits

    def metrics(self, loss: float, counts: list[int]) -> dict[str, float]:
        """Convert counts of correct images into the top-1 and top-5 errors in percent."""
        images, top1, top5, *others = counts
        own = {self.metric.name: float(self.own_metric.value(others))} if self.own_metric else {}
        return {
            "top1_error": 100 * (images - top1) / images,
            "top5_error": 100 * (images - top5) / images,
        } | own


def ranked_labels(logits: Tensor, number: int) -> Tensor:
    """Return the labels of this number of highest logits of each image, in order.

    The first five are the guesses of the top-1 and top-5 errors, also where logits are equal: which
    of them topk finds depends on their number.
    """
    labels = logits.topk(min(5, logits.shape[1])).indices
    if number > 5:
        others = logits.scatter(1, labels, -torch.inf)
        labels = torch.cat((labels, others.topk(number - 5).indices), 1)
    return labels[:, :number]


def binary_cross_entropy(
    logits: Tensor, labels: Tensor, *, smoothing: float, over_classes: str
) -> Tensor:
    """Return the binary cross-entropy of each image, summed or averaged over its classes.

    `logits` has shape (images, classes). The target is 1 for the label's class and 0 for others;
    smoothing e makes them 1 - e + e / K and e / K, as in cross-entropy.
    """
    classes = logits.shape[1]
    # Compared rather than one_hot, which reads the labels on some devices.
    is_label = labels[:, None] == torch.arange(classes, device=labels.device)
    targets = is_label.to(logits.dtype) * (1 - smoothing) + smoothing / classes
    losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    return losses.sum(1) if over_classes == "sum" else losses.mean(1)
