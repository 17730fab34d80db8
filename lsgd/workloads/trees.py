"""Classification of parsed sentences by a TreeLSTM, which labels each node (Tai et al. 2015).

The calls for many trees are batched (lsgd.fold), or made one tree after the other. The metric is
the error of the roots.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from lsgd.comm import Comm
from lsgd.inputs import Inputs
from lsgd.models import DTYPES, initialise
from lsgd.models.treelstm import TREE_LSTMS, TreeLSTM
from lsgd.recipe import Recipe
from lsgd.rules import sampler
from lsgd.rules.metric import METRICS
from lsgd.rules.sampler import MicroBatch
from lsgd.text.sst import TreeCorpus, open_tree_corpus
from lsgd.text.synthetic import synthetic_trees
from lsgd.workloads import CarriedState, is_finite_output, round_robin_micro_batches
from lsgd.workloads.tree_inputs import TreeBatch, TreeInputs


class TreeClassification:
    """The workload that classifies each node of parsed sentences, such as by sentiment.

    An example is a tree, with weight 1 and the loss of all its nodes.
    """

    metric = METRICS["fine_error"]
    count_names = (
        "nodes",
        "right_nodes",
        "trees",
        "right_trees",
        "polar_trees",
        "right_polar_trees",
    )
    example_weights = None

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.dtype = DTYPES[recipe.precision]
        self.evaluation_sets = recipe.text_sets
        self.polarities = _sides(recipe.data.classes).to(device)
        self._order: tuple[int, NDArray[np.int64]] | None = None

    @cached_property
    def corpus(self) -> TreeCorpus:
        """The recipe's corpus of parsed sentences, read or generated at its first use.

        Raises UsageError if they are missing or not the recipe's.
        """
        data = self.recipe.data
        if self.recipe.inputs.loader == "synthetic":
            counts = {"train": data.train_examples, "val": data.val_examples}
            return synthetic_trees(
                counts | {"test": data.test_examples},
                words=data.words,
                classes=data.classes,
                seed=self.recipe.seed,
            )
        return open_tree_corpus(data)

    def network(self) -> nn.Module:
        """Build the recipe's TreeLSTM in its precision."""
        data, model = self.recipe.data, self.recipe.model
        network = TREE_LSTMS[model.name](
            data.words, data.classes, embedding=model.embedding, width=model.width
        )
        initialise(network, last_gamma=0, seed=self.recipe.seed)
        return network.to(self.dtype)

    def carried_states(
        self, model: nn.Module, hosted: range, comm: Comm
    ) -> tuple[CarriedState, ...]:
        """Return no carried state, since parsed sentences are independent."""
        return ()

    def inputs(self) -> TreeInputs:
        """Create the loader of the recipe's parsed sentences."""
        return TreeInputs(self.corpus, self.recipe)

    def example_order(self, epoch: int) -> NDArray[np.int64]:
        """Return the random order of all training trees in an epoch."""
        # Cached, since every checkpoint asks for it.
        if self._order is None or self._order[0] != epoch:
            count, seed = self.recipe.train_examples, self.recipe.seed
            self._order = epoch, sampler.epoch_order(count, seed=seed, epoch=epoch)
        return self._order[1]

    def evaluation_micro_batches(self, split: str, rank: int, world_size: int) -> list[MicroBatch]:
        """Return a process's micro-batches of an evaluation set's trees, sorted by size."""
        ids = np.argsort(self.corpus.sets[split].lengths, kind="stable")
        return round_robin_micro_batches(ids, self.recipe.val_batch, split, rank, world_size)

    def evaluation_mode(self, model: nn.Module, inputs: Inputs) -> AbstractContextManager[None]:
        """Return an empty context, since the TreeLSTM is evaluated as it is trained."""
        return nullcontext()

    def loss(self, model: nn.Module, batch: TreeBatch, each: MicroBatch) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy summed over all tree nodes of a micro-batch, and its counts.

        The counts are those of nodes, correct nodes, roots, correct roots, roots that are not
        neutral, and such roots with the correct polarity.
        """
        assert isinstance(model, TreeLSTM)
        batch = batch.to(self.device)
        (states,) = batch.calls.apply(model)
        scores = model.scores(states).to(self.dtype)
        # Summed, not averaged: the step divides by the trees of all processes.
        loss = F.cross_entropy(scores, batch.labels, reduction="sum")
        scores = scores.detach()
        right = scores.argmax(1) == batch.labels
        # The more probable polarity, whatever the probability of the neutral class.
        side = (scores[batch.roots].softmax(1) * self.polarities).sum(1)
        gold = self.polarities[batch.labels[batch.roots]]
        polar = gold != 0
        right_side = ((side > 0) == (gold > 0)) & polar
        if each.split != "train":
            answers = is_finite_output(scores)
            right &= answers
            right_side &= answers[batch.roots]
        nodes, trees = torch.ones_like(right), torch.ones_like(polar)
        kinds = (nodes, right, trees, right[batch.roots], polar, right_side)
        return loss, torch.stack([kind.sum() for kind in kinds])

    def metrics(self, loss: float, counts: list[int]) -> dict[str, float]:
        """Convert counts into percentages of wrong roots, wrong root polarities and wrong nodes.

        Neutral roots do not count for the polarity; without others it is 0.
        """
        nodes, right_nodes, trees, right_trees, polar, right_polar = counts
        return {
            "fine_error": 100 * (trees - right_trees) / trees,
            "binary_error": 100 * (polar - right_polar) / max(polar, 1),
            "node_error": 100 * (nodes - right_nodes) / nodes,
        }


def _sides(classes: int) -> Tensor:
    """Return the sentiment of each class: -1 for the lower half, 1 for the upper half, else 0.

    The class in the middle, if there is one, is neutral. Shape (classes,).
    """
    return torch.sign(2 * torch.arange(classes) - (classes - 1))
