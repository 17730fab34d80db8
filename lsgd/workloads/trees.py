"""Trees: a TreeLSTM gives each node of a parsed sentence a class (Tai et al. 2015), by large calls
for many trees (lsgd.fold) or one tree after the other, and what counts is the class of the root.
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
from lsgd.rules.sampler import Pass
from lsgd.text.made_up import made_up_trees
from lsgd.text.sst import TreeCorpus, open_trees
from lsgd.workloads import Part, evaluation_passes
from lsgd.workloads.forest import TreeBatch, TreeInputs


class Trees:
    """The workload. An example is a tree, and counts once, with the loss of all its nodes."""

    metric = METRICS["fine_error"]
    counts = ("nodes", "right_nodes", "trees", "right_trees", "polar_trees", "right_polar_trees")
    weights = None

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.dtype = DTYPES[recipe.precision]
        self.sets = recipe.text_sets
        self.sides = _sides(recipe.data.classes).to(device)
        self._order: tuple[int, NDArray[np.int64]] | None = None

    @cached_property
    def corpus(self) -> TreeCorpus:
        """The recipe's trees; raises Refused if these are missing or not the recipe's."""
        data = self.recipe.data
        if self.recipe.inputs.loader == "synthetic":
            counts = {"train": data.train_examples, "val": data.val_examples}
            return made_up_trees(
                counts | {"test": data.test_examples},
                words=data.words,
                classes=data.classes,
                seed=self.recipe.seed,
            )
        return open_trees(data)

    def network(self) -> nn.Module:
        """The recipe's TreeLSTM, in its precision."""
        data, model = self.recipe.data, self.recipe.model
        network = TREE_LSTMS[model.name](
            data.words, data.classes, embedding=model.embedding, width=model.width
        )
        initialise(network, last_gamma=0, seed=self.recipe.seed)
        return network.to(self.dtype)

    def parts(self, model: nn.Module, hosted: range, comm: Comm) -> tuple[Part, ...]:
        """Nothing: a tree knows none of the others."""
        return ()

    def inputs(self) -> TreeInputs:
        """The loader of the trees."""
        return TreeInputs(self.corpus, self.recipe)

    def order(self, epoch: int) -> NDArray[np.int64]:
        """The permutation of all training trees that the epoch goes through."""
        # Kept, since every checkpoint asks for it.
        if self._order is None or self._order[0] != epoch:
            count, seed = self.recipe.train_examples, self.recipe.seed
            self._order = epoch, sampler.epoch_order(count, seed=seed, epoch=epoch)
        return self._order[1]

    def evaluation(self, split: str, rank: int, world_size: int) -> list[Pass]:
        """Every so many-th of the passes into which the trees fall, sorted by size."""
        ids = np.argsort(self.corpus.sets[split].lengths, kind="stable")
        return evaluation_passes(ids, self.recipe.val_batch, split, rank, world_size)

    def evaluated(self, model: nn.Module, inputs: Inputs) -> AbstractContextManager[None]:
        """The model is evaluated as it is trained."""
        return nullcontext()

    def loss(self, model: nn.Module, batch: TreeBatch, each: Pass) -> tuple[Tensor, Tensor]:
        """The cross-entropy summed over all nodes, and `counts`: how many nodes there are and how
        many of them are right, the same of roots, and how many roots are not neutral and how many
        of these are on the right side."""
        assert isinstance(model, TreeLSTM)
        batch = batch.to(self.device)
        (states,) = batch.calls.apply(model)
        scores = model.scores(states).to(self.dtype)
        # Summed, not averaged: the step divides by the trees of all processes.
        loss = F.cross_entropy(scores, batch.labels, reduction="sum")
        scores = scores.detach()
        right = scores.argmax(1) == batch.labels
        # The more likely one of the two sides, whatever the neutral class has.
        side = (scores[batch.roots].softmax(1) * self.sides).sum(1)
        gold = self.sides[batch.labels[batch.roots]]
        polar = gold != 0
        right_side = ((side > 0) == (gold > 0)) & polar
        nodes, trees = torch.ones_like(right), torch.ones_like(polar)
        kinds = (nodes, right, trees, right[batch.roots], polar, right_side)
        return loss, torch.stack([kind.sum() for kind in kinds])

    def rates(self, loss: float, counts: list[int]) -> dict[str, float]:
        """The share, in percent, of roots with a wrong class, of roots that are not neutral and on
        the wrong side (0 if there is none), and of nodes with a wrong class."""
        nodes, right_nodes, trees, right_trees, polar, right_polar = counts
        return {
            "fine_error": 100 * (trees - right_trees) / trees,
            "binary_error": 100 * (polar - right_polar) / max(polar, 1),
            "node_error": 100 * (nodes - right_nodes) / nodes,
        }


def _sides(classes: int) -> Tensor:
    """The side of each class: -1 of the lower half, 1 of the upper one, 0 of a class in the middle,
    which is neutral. Shape (classes,)."""
    return torch.sign(2 * torch.arange(classes) - (classes - 1))
