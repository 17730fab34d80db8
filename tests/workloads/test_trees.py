"""Trees are those of a plain recursion: each counts alike, in any batching, pass or worker."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import sentence_jobs as jobs
from helpers.trees import write_trees
from torch import Tensor, nn

from lsgd import config
from lsgd.comm.single import SingleComm
from lsgd.errors import Refused
from lsgd.fold import Ragged
from lsgd.learner import Learner
from lsgd.models.treelstm import BinaryTreeLSTM, ChildSumTreeLSTM, TreeLSTM
from lsgd.recipe import Recipe
from lsgd.rules.sampler import Pass
from lsgd.step import train_step
from lsgd.tally import Tally
from lsgd.text.sst import INNER, TreeSet
from lsgd.workloads import scores
from lsgd.workloads.trees import Trees

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("trees") / "trees"
    write_trees(root)
    return root


def state(model: TreeLSTM, trees: TreeSet, begin: int, place: int) -> Tensor:
    """The state of a node, shape (1, …), by recursion."""
    left, right = (int(side[begin + place]) for side in (trees.left, trees.right))
    if left == INNER:
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


@pytest.mark.parametrize("workers_per_pass", [1, 4])
@pytest.mark.parametrize("batching", ["folded", "recursive"])
@pytest.mark.parametrize("model", ["treelstm", "childsum"])
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
        train_step(learner, task, learner.workload.inputs().train(task.passes))
        after = learner.model.parameters()
        moved = [one - other.detach() for one, other in zip(before, after, strict=True)]

        workload = Trees(recipe, CPU)
        network, trees = workload.network(), workload.corpus.sets["train"]
        examples = workload.order(0)[step * 8 : (step + 1) * 8]
        losses = torch.stack([plain_loss(network, trees, example) for example in examples])
        gradients = torch.autograd.grad(losses.mean(), network.parameters())
        torch.testing.assert_close(moved, [*gradients], rtol=0, atol=1e-12)
        counted = learner.scores(learner.counted())
        assert counted.counts["trees"] == len(examples)
        assert counted.counts["nodes"] == trees.lengths[examples].sum()
        nodes = trees.lengths[examples].sum()
        assert counted.rates["loss"] == pytest.approx(losses.sum().item() / nodes, rel=1e-12)


@pytest.mark.parametrize("model", ["treelstm", "childsum"])
def test_folded_is_recursive(root: Path, model: str) -> None:
    """Loss, gradient and counts of whole sets, by a network that has learned something."""
    recipes = [
        jobs.tree_recipe(root, f"model={model}", f"batching={batching}")
        for batching in ("folded", "recursive")
    ]
    network = Trees(recipes[0], CPU).network()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(8)
    for split, size in (("train", 54), ("val", 23), ("test", 9)):
        results = []
        for recipe in recipes:
            workload = Trees(recipe, CPU)
            (batch,) = workload.inputs().train([every := Pass(0, np.arange(size), split=split)])
            loss, counts = workload.loss(network, batch, every)
            gradient = torch.autograd.grad(loss, network.parameters())
            results.append((loss.detach(), counts.tolist(), [*gradient]))
        torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-10)
        seen, right = np.reshape(results[0][1], (3, 2)).T
        assert split != "train" or ((right > 0) & (right < seen)).all()


def test_a_pass_has_a_call_for_each_depth(root: Path) -> None:
    """One of all leaves, and one of all nodes of a height."""
    workload = Trees(jobs.tree_recipe(root), CPU)
    trees = workload.corpus.sets["train"]

    def height(begin: int, place: int) -> int:
        left, right = trees.left[begin + place], trees.right[begin + place]
        return 0 if left == INNER else 1 + max(height(begin, left), height(begin, right))

    deepest = [height(begin, length - 1) for begin, length in zip(trees.begins, trees.lengths)]  # noqa: B905
    for examples in (np.arange(54), np.array([0]), np.array([3, 50, 7])):
        (batch,) = workload.inputs().train([Pass(0, examples)])
        assert batch.calls.launches == 1 + max(deepest[example] for example in examples)


class Given(BinaryTreeLSTM):
    """A network that says what it is given."""

    def scores(self, state: Tensor) -> Tensor:
        return state


def counted(root: Path, probabilities: list[list[float]], labels: list[int]) -> dict[str, float]:
    """The rates of trees of one node each that get these probabilities, by their names."""
    classes = len(probabilities[0])
    workload = Trees(jobs.tree_recipe(root, f"data.classes={classes}"), CPU)
    given = torch.tensor(probabilities, dtype=torch.float64).log()
    batch = SimpleNamespace(
        calls=SimpleNamespace(apply=lambda model: [given]),
        labels=torch.tensor(labels),
        roots=torch.arange(len(labels)),
        to=lambda device: batch,
    )
    every = Pass(0, np.arange(len(labels)))
    model = Given(1, classes, embedding=1, width=1)
    tally = Tally(len(workload.counts), CPU)
    tally.add(*workload.loss(model, batch, every))
    return scores(workload, tally.state(lambda _: None)).rates


@pytest.mark.parametrize(
    ("probabilities", "label", "fine", "binary"),
    [
        # Neutral is the most likely one, and of the others the positive side.
        ([0.1, 0.1, 0.5, 0.2, 0.1], 3, 100, 0),
        ([0.1, 0.1, 0.5, 0.2, 0.1], 1, 100, 100),
        # The most likely class is negative, and its side is not.
        ([0.05, 0.4, 0.05, 0.3, 0.2], 1, 0, 100),
        ([0.05, 0.4, 0.05, 0.3, 0.2], 4, 100, 0),
        ([0.5, 0.2, 0.1, 0.1, 0.1], 1, 100, 0),
        # A neutral tree is no polar one.
        ([0.1, 0.1, 0.5, 0.2, 0.1], 2, 0, 0),
        ([0.5, 0.2, 0.1, 0.1, 0.1], 2, 100, 0),
        # Without a class in the middle none is neutral.
        ([0.6, 0.4], 0, 0, 0),
        ([0.6, 0.4], 1, 100, 100),
    ],
    ids=[
        "right",
        "wrong",
        "likely-wrong",
        "likely-right",
        "same-side",
        "neutral",
        "no-side",
        "two-right",
        "two-wrong",
    ],
)  # fmt: skip
def test_the_binary_error_is_of_sides(
    root: Path, probabilities: list[float], label: int, fine: float, binary: float
) -> None:
    rates = counted(root, [probabilities], [label])
    assert (rates["fine_error"], rates["binary_error"]) == (fine, binary)


def test_rates_are_of_roots_and_of_nodes(root: Path) -> None:
    workload = Trees(jobs.tree_recipe(root), CPU)
    rates = workload.rates(1.0, [100, 80, 10, 4, 8, 6])
    assert rates == pytest.approx({"fine_error": 60, "binary_error": 25, "node_error": 20})


def test_a_passs_trees_are_its_examples(root: Path) -> None:
    workload = Trees(jobs.tree_recipe(root), CPU)
    trees, examples = workload.corpus.sets["val"], np.array([5, 0, 22])
    (batch,) = workload.inputs().train([Pass(None, examples, range(0), split="val")])
    own = np.split(trees.labels, trees.begins[1:])
    assert batch.labels.tolist() == [label for example in examples for label in own[example]]
    assert batch.labels[batch.roots].tolist() == [own[example][-1] for example in examples]


def test_every_tree_is_evaluated_once_in_passes_of_any_process(root: Path) -> None:
    workload = Trees(jobs.tree_recipe(root), CPU)
    for split, size in (("val", 23), ("test", 9)):
        alone = workload.evaluation(split, 0, 1)
        shared = [workload.evaluation(split, rank, 3) for rank in range(3)]
        assert sorted(np.concatenate([each.examples for each in alone])) == [*range(size)]
        key = [tuple(each.examples) for each in alone]
        assert sorted(tuple(each.examples) for own in shared for each in own) == sorted(key)
        assert len(shared[0]) == max(map(len, shared))


def test_other_trees_are_refused_with_the_words_that_make_their_recipe(root: Path) -> None:
    words = ["+recipe=sst_treelstm", f"data.root={root}"]
    with pytest.raises(Refused) as refused:
        Trees(config.load_recipe(words), CPU).inputs()
    remedy = [word for word in str(refused.value).split() if word.startswith("data.")]
    written = [word for word in remedy if not word.endswith(",")][-4:]
    Trees(config.load_recipe([*words, *written]), CPU).inputs()


def test_missing_or_broken_trees_are_refused(tmp_path: Path) -> None:
    recipe = config.load_recipe(["+recipe=sst_treelstm", f"data.root={tmp_path}"])
    with pytest.raises(Refused, match=r"train\.txt is missing; run `python -m lsgd\.prepare sst"):
        Trees(recipe, CPU).inputs()
    write_trees(tmp_path)
    (tmp_path / "dev.txt").write_text("(2 a\n")
    with pytest.raises(Refused, match=r"dev\.txt, line 1, has brackets that are not closed \(1\)"):
        Trees(recipe, CPU).inputs()


def test_a_network_of_trees_is_not_compiled(root: Path) -> None:
    with pytest.raises(Refused, match=r"compile=true is for one forward pass.*; leave it out"):
        jobs.tree_recipe(root, "compile=true")


def made_up(*words: str) -> Recipe:
    return config.load_recipe(["+recipe=sst_treelstm", "inputs=synthetic", *words])


def test_made_up_trees_are_the_recipes() -> None:
    recipe = made_up("data.classes=3", "data.test_examples=0")
    one, other = (Trees(recipe, CPU).corpus for _ in range(2))
    assert one.counts == {name: getattr(recipe.data, name) for name in one.counts}
    for name, trees in one.sets.items():
        assert np.array_equal(trees.words, other.sets[name].words)
        assert np.array_equal(trees.left, other.sets[name].left)
    train = one.sets["train"]
    leaves = train.words != INNER
    assert 0 <= train.words[leaves].min() < train.words[leaves].max() < recipe.data.words
    assert set(train.labels) == {0, 1, 2}
    # Those of SST have 18 words in the middle, and 38 at 95 %.
    assert np.quantile((train.lengths + 1) / 2, [0.5, 0.95]) == pytest.approx([18, 38], abs=8)
    places = np.arange(len(train.words)) - np.repeat(train.begins, train.lengths)
    for side in (train.left, train.right):
        assert np.array_equal(side == INNER, leaves)
        assert (side < places).all()
    # Each node but a root is the child of one other.
    begins = np.repeat(train.begins, train.lengths)[~leaves]
    children = np.concatenate([(side[~leaves] + begins) for side in (train.left, train.right)])
    roots = train.begins + train.lengths - 1
    assert np.array_equal(np.sort(np.concatenate([children, roots])), np.arange(len(train.words)))
