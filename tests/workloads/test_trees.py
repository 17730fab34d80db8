"""Trees are those of a plain recursion: each counts alike, in any batching, pass or worker."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import sentence_jobs as jobs
from helpers.composed import compose_recipe
from helpers.micro_batches import evaluation_micro_batches
from helpers.trees import write_trees
from torch import Tensor, nn

from lsgd.comm.single import SingleComm
from lsgd.errors import UsageError
from lsgd.fold import Ragged
from lsgd.learner import Learner
from lsgd.metric_sums import MetricSums
from lsgd.models.treelstm import BinaryTreeLSTM, ChildSumTreeLSTM, TreeLSTM
from lsgd.recipe import Recipe
from lsgd.rules.sampler import MicroBatch
from lsgd.step import train_step
from lsgd.text.sst import ABSENT, TreeSet
from lsgd.workloads import compute_metrics
from lsgd.workloads.trees import TreeClassification

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("trees") / "trees"
    write_trees(root)
    return root


def state(model: TreeLSTM, trees: TreeSet, begin: int, place: int) -> Tensor:
    """The state of a node, shape (1, …), by recursion."""
    left, right = (int(side[begin + place]) for side in (trees.left, trees.right))
    if left == ABSENT:
        return model.leaf(torch.tensor([trees.words[begin + place]]))
    children = [state(model, trees, begin, child) for child in (left, right)]
    if isinstance(model, ChildSumTreeLSTM):
        return model.node(Ragged(torch.cat(children), torch.tensor([0, 0]), 1))
    return model.node(*children)


def plain_loss(model: TreeLSTM, trees: TreeSet, example: int) -> Tensor:
    """The loss of a tree: of all its nodes, one after the other."""
    begin, length = int(trees.begins[example]), int(trees.lengths[example])
    losses = [
        nn.functional.cross_entropy(
            model.scores(state(model, trees, begin, place)),
            torch.tensor([trees.labels[begin + place]]),
        )
        for place in range(length)
    ]
    return torch.stack(losses).sum()


@pytest.mark.parametrize(
    ("model", "batching", "workers_per_pass"),
    [("treelstm", "folded", 1), ("childsum", "folded", 4), ("childsum", "recursive", 4)],
)
def test_a_step_is_the_mean_over_its_trees_of_all_their_nodes(
    root: Path, model: str, batching: str, workers_per_pass: int
) -> None:
    """In the first step and in the last one, which is shorter: update by plain SGD at lr 1."""
    recipe = jobs.tree_recipe(
        root, f"model={model}", "optim=sgd", "schedule.reference_lr=1", "optim.momentum=0",
        "optim.nesterov=false", "optim.weight_decay=0",
    )  # fmt: skip
    made = replace(recipe, batching=batching, workers_per_pass=workers_per_pass)
    for step in (0, 6):
        learner = Learner(made, SingleComm(), CPU)
        before = [parameter.detach().clone() for parameter in learner.model.parameters()]
        (task,) = learner.strategy.tasks(0, [step])
        train_step(learner, task, learner.workload.inputs().train(task.micro_batches))
        after = learner.model.parameters()
        moved = [one - other.detach() for one, other in zip(before, after, strict=True)]

        workload = TreeClassification(recipe, CPU)
        network, trees = workload.network(), workload.corpus.sets["train"]
        examples = workload.example_order(0)[step * 8 : (step + 1) * 8]
        losses = torch.stack([plain_loss(network, trees, example) for example in examples])
        gradients = torch.autograd.grad(losses.mean(), network.parameters())
        torch.testing.assert_close(moved, [*gradients], rtol=0, atol=1e-12)
        counted = learner.scores(learner.summed_counts())
        assert counted.counts["trees"] == len(examples)
        assert counted.counts["nodes"] == trees.lengths[examples].sum()
        nodes = trees.lengths[examples].sum()
        assert counted.metrics["loss"] == pytest.approx(losses.sum().item() / nodes, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["treelstm", "childsum"])
def test_a_recursion_in_bfloat16_adds_up_its_gradients_in_float32(root: Path, model: str) -> None:
    """Each node's gradient is rounded, and not their sum, which would be 2 % off."""
    exact = jobs.tree_recipe(root, f"model={model}", "batching=recursive")
    every, gradients = MicroBatch(0, np.arange(54)), []
    for precision in ("float64", "bfloat16"):
        learner = Learner(replace(exact, precision=precision), SingleComm(), CPU)
        learner.model.load_state_dict(TreeClassification(exact, CPU).network().state_dict())
        (batch,) = learner.workload.inputs().train([every])
        with learner.autocast:
            loss, _ = learner.workload.loss(learner.model, batch, every)
        matrices = [each for each in learner.model.parameters() if each.dim() > 1]
        gradients.append([each.double() for each in torch.autograd.grad(loss, matrices)])
    for expected, found in zip(*gradients, strict=True):
        assert (found - expected).norm() < 0.01 * expected.norm()


@pytest.mark.parametrize("model", ["treelstm", "childsum"])
def test_folded_is_recursive(root: Path, model: str) -> None:
    """Loss, gradient and counts of whole sets, by a network that has learned something."""
    recipes = [
        jobs.tree_recipe(root, f"model={model}", f"batching={batching}")
        for batching in ("folded", "recursive")
    ]
    network = TreeClassification(recipes[0], CPU).network()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(8)
    for split, size in (("train", 54), ("val", 23), ("test", 9)):
        results = []
        for recipe in recipes:
            workload = TreeClassification(recipe, CPU)
            (batch,) = workload.inputs().train(
                [every := MicroBatch(0, np.arange(size), split=split)]
            )
            loss, counts = workload.loss(network, batch, every)
            gradient = torch.autograd.grad(loss, network.parameters())
            results.append((loss.detach(), counts.tolist(), [*gradient]))
        torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-10)
        seen, right = np.reshape(results[0][1], (3, 2)).T
        assert split != "train" or ((right > 0) & (right < seen)).all()


def test_a_pass_has_a_call_for_each_depth(root: Path) -> None:
    """One of all leaves, and one of all nodes of a height."""
    workload = TreeClassification(jobs.tree_recipe(root), CPU)
    trees = workload.corpus.sets["train"]

    def height(begin: int, place: int) -> int:
        left, right = trees.left[begin + place], trees.right[begin + place]
        return 0 if left == ABSENT else 1 + max(height(begin, left), height(begin, right))

    deepest = [height(begin, length - 1) for begin, length in zip(trees.begins, trees.lengths)]  # noqa: B905
    for examples in (np.arange(54), np.array([0]), np.array([3, 50, 7])):
        (batch,) = workload.inputs().train([MicroBatch(0, examples)])
        assert batch.calls.launches == 1 + max(deepest[example] for example in examples)


class Given(BinaryTreeLSTM):
    """A network that says what it is given."""

    def scores(self, state: Tensor) -> Tensor:
        return state


def counted(root: Path, probabilities: list[list[float]], labels: list[int]) -> dict[str, float]:
    """The rates of trees of one node each that get these probabilities, by their names."""
    classes = len(probabilities[0])
    workload = TreeClassification(jobs.tree_recipe(root, f"data.classes={classes}"), CPU)
    given = torch.tensor(probabilities, dtype=torch.float64).log()
    batch = SimpleNamespace(
        calls=SimpleNamespace(apply=lambda model: [given]),
        labels=torch.tensor(labels),
        roots=torch.arange(len(labels)),
        to=lambda device: batch,
    )
    (every,) = evaluation_micro_batches(np.arange(len(labels)))
    model = Given(1, classes, embedding=1, width=1)
    tally = MetricSums(len(workload.count_names), CPU)
    tally.add(*workload.loss(model, batch, every))
    return compute_metrics(workload, tally.state(lambda _: None)).metrics


LIKELY = [0.05, 0.4, 0.05, 0.3, 0.2]
"""The most likely class is negative, and its side is not."""
NEUTRAL = [0.1, 0.1, 0.5, 0.2, 0.1]
"""Neutral is the most likely class, and of the others the positive side."""
SIDES = {
    "right": (NEUTRAL, 3, 100, 0),
    "wrong": (NEUTRAL, 1, 100, 100),
    "likely-wrong": (LIKELY, 1, 0, 100),
    "likely-right": (LIKELY, 4, 100, 0),
    "same-side": ([0.5, 0.2, 0.1, 0.1, 0.1], 1, 100, 0),
    # A neutral tree is no polar one.
    "neutral": (NEUTRAL, 2, 0, 0),
    "no-side": ([0.5, 0.2, 0.1, 0.1, 0.1], 2, 100, 0),
    # Without a class in the middle none is neutral.
    "two-right": ([0.6, 0.4], 0, 0, 0),
    "two-wrong": ([0.6, 0.4], 1, 100, 100),
}


@pytest.mark.parametrize(("probabilities", "label", "fine", "binary"), SIDES.values(), ids=SIDES)
def test_the_binary_error_is_of_sides(
    root: Path, probabilities: list[float], label: int, fine: float, binary: float
) -> None:
    rates = counted(root, [probabilities], [label])
    assert (rates["fine_error"], rates["binary_error"]) == (fine, binary)


def test_a_tree_whose_outputs_are_not_finite_is_wrong(root: Path) -> None:
    for label in range(5):
        rates = counted(root, [[math.nan] * 5, [*NEUTRAL[:4], math.inf]], [label, 3])
        assert rates["fine_error"] == rates["node_error"] == rates["binary_error"] == 100


def test_rates_are_of_roots_and_of_nodes(root: Path) -> None:
    workload = TreeClassification(jobs.tree_recipe(root), CPU)
    rates = workload.metrics(1.0, [100, 80, 10, 4, 8, 6])
    assert rates == pytest.approx({"fine_error": 60, "binary_error": 25, "node_error": 20})


def test_a_passs_trees_are_its_examples(root: Path) -> None:
    workload = TreeClassification(jobs.tree_recipe(root), CPU)
    trees, examples = workload.corpus.sets["val"], np.array([5, 0, 22])
    (batch,) = workload.inputs().train([MicroBatch(None, examples, range(0), split="val")])
    own = np.split(trees.labels, trees.begins[1:])
    assert batch.labels.tolist() == [label for example in examples for label in own[example]]
    assert batch.labels[batch.roots].tolist() == [own[example][-1] for example in examples]


def test_a_network_of_trees_is_not_compiled(root: Path) -> None:
    with pytest.raises(UsageError, match=r"compile=true is for one forward pass.*; leave it out"):
        jobs.tree_recipe(root, "compile=true")


def made_up(*words: str) -> Recipe:
    return compose_recipe("+recipe=sst_treelstm", "inputs=synthetic", *words)


@pytest.mark.slow
def test_made_up_trees_are_the_recipes() -> None:
    recipe = made_up("data.classes=3", "data.test_examples=0")
    one, other = (TreeClassification(recipe, CPU).corpus for _ in range(2))
    assert one.counts == {name: getattr(recipe.data, name) for name in one.counts}
    for name, trees in one.sets.items():
        assert np.array_equal(trees.words, other.sets[name].words)
        assert np.array_equal(trees.left, other.sets[name].left)
    train = one.sets["train"]
    leaves = train.words != ABSENT
    assert 0 <= train.words[leaves].min() < train.words[leaves].max() < recipe.data.words
    assert set(train.labels) == {0, 1, 2}
    # Those of SST have 18 words in the middle, and 38 at 95 %.
    assert np.quantile((train.lengths + 1) / 2, [0.5, 0.95]) == pytest.approx([18, 38], abs=8)
    places = np.arange(len(train.words)) - np.repeat(train.begins, train.lengths)
    for side in (train.left, train.right):
        assert np.array_equal(side == ABSENT, leaves)
        assert (side < places).all()
    # Each node but a root is the child of one other.
    begins = np.repeat(train.begins, train.lengths)[~leaves]
    children = np.concatenate([(side[~leaves] + begins) for side in (train.left, train.right)])
    roots = train.begins + train.lengths - 1
    assert np.array_equal(np.sort(np.concatenate([children, roots])), np.arange(len(train.words)))
