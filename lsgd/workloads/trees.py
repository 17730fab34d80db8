"""Classification of parsed sentences by a TreeLSTM, which labels each node (Tai et al. 2015).

The calls for many trees are batched (lsgd.fold), or made one tree after the other. The metric is
the error of the roots.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lsgd.models import initialise
from lsgd.models.treelstm import TREE_LSTMS, TreeLSTM
from lsgd.recipe import Recipe
from lsgd.rules.metric import METRICS
from lsgd.rules.sampler import MicroBatch
from lsgd.text.sst import TreeCorpus, open_tree_corpus
from lsgd.text.synthetic import synthetic_trees
from lsgd.workloads import is_finite_output
from lsgd.workloads.sentences import SentenceWorkload
from lsgd.workloads.tree_inputs import TreeBatch, TreeInputs


class TreeClassification(SentenceWorkload[TreeCorpus]):
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
    open_corpus = open_tree_corpus
    synthetic_corpus = synthetic_trees

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        super().__init__(recipe, device)
        self.polarities = _sides(recipe.data.classes).to(device)

    def network(self) -> nn.Module:
        """Build the recipe's TreeLSTM in its precision."""
        data, model = self.recipe.data, self.recipe.model
        network = TREE_LSTMS[model.name](
            data.words, data.classes, embedding=model.embedding, width=model.width
        )
        initialise(network, last_gamma=0, seed=self.recipe.seed)
        return network.to(self.dtype)

    def inputs(self) -> TreeInputs:
        """Create the loader of the recipe's parsed sentences."""
        return TreeInputs(self.corpus, self.recipe)

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
