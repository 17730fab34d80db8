"""The tagger is that of a plain loop: each word counts alike, in any sentence, pass or worker."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import sentence_jobs as jobs
from helpers.sentences import write_corpus
from torch import Tensor, nn

from lsgd import config
from lsgd.comm.single import SingleComm
from lsgd.errors import Refused
from lsgd.evaluation import TrainedModel, evaluate
from lsgd.learner import Learner
from lsgd.models.tagger import TaggedBatch, Tagger
from lsgd.recipe import PADDINGS, Recipe
from lsgd.rules import dropout
from lsgd.step import train_step
from lsgd.text.conll import Sentences
from lsgd.workloads.sentences import BUCKET
from lsgd.workloads.tagging import Tagging

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tagging") / "corpus"
    write_corpus(root)
    return root


def plain_loss(model: Tagger, sentences: Sentences, example: int, recipe: Recipe) -> Tensor:
    """The loss of a training sentence of epoch 0, by torch's own layers on it alone."""
    seed, width = recipe.seed, recipe.model.embedding
    begin, length = sentences.begins[example], sentences.lengths[example]
    alone = np.full(length, example)
    unknown = dropout.dropped_words(alone, np.arange(length), 0.2, seed=seed, epoch=0)
    words = np.where(unknown, 0, sentences.words[begin : begin + length])
    tags = torch.from_numpy(sentences.tags[begin : begin + length])
    (mask,) = dropout.feature_masks(
        alone[:1], width + 2 * recipe.model.width, 0.5, seed=seed, epoch=0
    )
    mask = torch.from_numpy(mask)
    read = model.embedding(torch.from_numpy(words)) * mask[:width]
    there, back = model.onwards(read)[0], model.backwards(read.flip(0))[0].flip(0)
    scores = model.fc(torch.cat((there, back), 1) * mask[width:])
    if model.crf is None:
        return nn.functional.cross_entropy(scores, tags, reduction="sum")
    return model.crf.loss(scores[:, None], tags[:, None], torch.ones(length, 1, dtype=torch.bool))


def gradients(recipe: Recipe, step: int) -> list[Tensor]:
    """The gradient of a step of epoch 0, of the model that the run starts with, by a plain loop."""
    workload = Tagging(recipe, CPU)
    model, sentences = workload.network(), workload.corpus.sets["train"]
    size = recipe.batch_size
    examples = workload.order(0)[step * size : (step + 1) * size]
    losses = [plain_loss(model, sentences, example, recipe) for example in examples]
    loss = torch.stack(losses).sum() / sentences.lengths[examples].sum()
    return [*torch.autograd.grad(loss, model.parameters())]


@pytest.mark.parametrize("workers_per_pass", [1, 2, 4])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("model", ["bilstm", "bilstm_crf"])
def test_a_step_is_the_mean_over_all_its_words(
    corpus: Path, model: str, padding: str, workers_per_pass: int
) -> None:
    """In the first step and in the last one, which is shorter: update by plain SGD at lr 1."""
    words = [
        f"model.name={model}", "schedule.reference_lr=1", "optim.momentum=0",
        "optim.nesterov=false", "optim.weight_decay=0",
    ]  # fmt: skip
    plain = jobs.recipe(corpus, *words)
    made = replace(plain, padding=padding, workers_per_pass=workers_per_pass)
    for step in (0, 6):
        learner = Learner(made, SingleComm(), CPU)
        before = [parameter.detach().clone() for parameter in learner.model.parameters()]
        (task,) = learner.strategy.tasks(0, [step])
        train_step(learner, task, learner.workload.inputs().train(task.passes))
        after = learner.model.parameters()
        moved = [one - other.detach() for one, other in zip(before, after, strict=True)]
        assert made.lr(step) == 1
        torch.testing.assert_close(moved, gradients(plain, step), rtol=0, atol=1e-12)


def batches(recipe: Recipe, workers_per_pass: int = 4) -> list[TaggedBatch]:
    """Those of the steps of an epoch."""
    made = replace(recipe, workers_per_pass=workers_per_pass)
    learner = Learner(made, SingleComm(), CPU)
    tasks = learner.strategy.tasks(0, [*range(made.steps_per_epoch)])
    return [*learner.workload.inputs().train(each for task in tasks for each in task.passes)]


@pytest.mark.parametrize("padding", PADDINGS)
def test_grids_have_as_many_cells_as_the_padding_says(corpus: Path, padding: str) -> None:
    recipe = jobs.recipe(corpus, f"padding={padding}", "workers=8")
    longest = Tagging(recipe, CPU).corpus.sets["train"].lengths.max()
    for batch in batches(recipe, 8):
        lengths = batch.sentences.bincount().tolist()
        sizes = [grid.size for grid in batch.grids]
        expected = {
            "global": [len(lengths) * longest],
            "batch": [len(lengths) * max(lengths)],
            "packed": [len(lengths) * max(lengths)],
            "bucket": [
                len(lengths[begin : begin + BUCKET]) * max(lengths[begin : begin + BUCKET])
                for begin in range(0, len(lengths), BUCKET)
            ],
            "per_sentence": lengths,
        }
        assert sizes == expected[padding]
        assert [grid.packed for grid in batch.grids] == [padding == "packed"] * len(sizes)
        if padding == "bucket":
            assert lengths == sorted(lengths)


def test_an_evaluation_is_of_sentences_as_they_are(corpus: Path) -> None:
    """Each once, nothing dropped, in passes that are the same on any number of processes."""
    workload = Tagging(jobs.recipe(corpus), CPU)
    for split, size in (("val", 23), ("test", 9)):
        alone = workload.evaluation(split, 0, 1)
        shared = [workload.evaluation(split, rank, 3) for rank in range(3)]
        assert sorted(np.concatenate([each.examples for each in alone])) == [*range(size)]
        key = [tuple(each.examples) for each in alone]
        assert sorted(tuple(each.examples) for own in shared for each in own) == sorted(key)
        assert len(shared[0]) == max(map(len, shared))
        sentences = workload.corpus.sets[split]
        for each, batch in zip(alone, workload.inputs().evaluation(alone), strict=True):
            assert batch.masks is None
            own = np.split(sentences.words, sentences.begins[1:])
            assert batch.words.tolist() == [word for i in each.examples for word in own[i]]


def test_what_is_counted_is_what_the_tags_say(corpus: Path) -> None:
    """By a network that always gives each word its own tag, and by one that gives O."""
    recipe = jobs.recipe(corpus, "model.name=bilstm")
    workload = Tagging(recipe, CPU)
    val = workload.corpus.sets["val"]

    def rates(tagger: type) -> tuple[dict[str, int], dict[str, float]]:
        model = tagger(recipe.data.words, recipe.data.classes, embedding=1, width=1, crf=False)
        trained = TrainedModel(workload, model.double(), SingleComm(), CPU)
        scored = evaluate(trained, workload.inputs())["val"]
        return scored.counts, scored.rates

    class Right(Tagger):
        def forward(self, batch: TaggedBatch) -> Tensor:
            return nn.functional.one_hot(batch.tags, recipe.data.classes).double()

    class Outside(Tagger):
        def forward(self, batch: TaggedBatch) -> Tensor:
            return (
                -nn.functional.one_hot(batch.tags, recipe.data.classes).double()
                * batch.tags[:, None]
            )

    counts, scored = rates(Right)
    assert counts["tokens"] == counts["right_tokens"] == len(val.words)
    assert counts["spans"] == counts["found_spans"] == counts["right_spans"] > 10
    assert (scored["f1_error"], scored["token_error"]) == (0, 0)
    outside, scored = rates(Outside)
    assert (outside["spans"], outside["found_spans"]) == (counts["spans"], 0)
    assert scored["f1_error"] == 100
    assert scored["token_error"] == pytest.approx(100 * (val.tags > 0).mean())


def test_f1_is_of_sums() -> None:
    workload = Tagging(config.load_recipe(["+recipe=conll_bilstm"]), CPU)
    rates = workload.rates(1.0, [100, 90, 10, 6, 4])
    precision, recall = 4 / 6, 4 / 10
    f1 = 2 * precision * recall / (precision + recall)
    assert rates == pytest.approx({"f1_error": 100 * (1 - f1), "token_error": 10})


def test_another_corpus_is_refused_with_the_words_that_make_its_recipe(corpus: Path) -> None:
    words = ["+recipe=conll_bilstm", f"data.root={corpus}"]
    with pytest.raises(Refused) as refused:
        Tagging(config.load_recipe(words), CPU).inputs()
    remedy = [word for word in str(refused.value).split() if word.startswith("data.")]
    written = [word for word in remedy if not word.endswith(",")][-5:]
    Tagging(config.load_recipe([*words, *written]), CPU).inputs()


def test_a_missing_or_broken_corpus_is_refused(tmp_path: Path) -> None:
    recipe = config.load_recipe(["+recipe=conll_bilstm", f"data.root={tmp_path}"])
    with pytest.raises(
        Refused, match=r"eng\.train is missing; run `python -m lsgd\.prepare conll2003"
    ):
        Tagging(recipe, CPU).inputs()
    write_corpus(tmp_path)
    (tmp_path / "valid.txt").write_text("word\n")
    with pytest.raises(Refused, match=r"valid\.txt, line 1, has 'word' alone"):
        Tagging(recipe, CPU).inputs()


def test_made_up_sentences_are_the_recipes(corpus: Path) -> None:
    recipe = config.load_recipe(["+recipe=conll_bilstm", "inputs=synthetic", "data.classes=5"])
    one, other = (Tagging(recipe, CPU).corpus for _ in range(2))
    assert one.counts == {name: getattr(recipe.data, name) for name in one.counts}
    for name, sentences in one.sets.items():
        assert np.array_equal(sentences.words, other.sets[name].words)
        assert 0 <= sentences.words.min() < sentences.words.max() < recipe.data.words
        assert set(sentences.tags) == set(range(5))
    lengths = one.sets["train"].lengths
    # Those of CoNLL-2003 have a median of 10, a mean of 14.5 and 37 at 95 %.
    assert np.quantile(lengths, [0.5, 0.95]) == pytest.approx([10, 37], abs=2)


@pytest.mark.data
def test_the_longest_sentence_wastes_most_cells(test_data: Path) -> None:
    """Padded to the longest of the whole corpus, 87.2 % of all cells have no word."""
    root = test_data / "conll2003"
    words = [f"data.root={root}", "padding=global", "workers_per_pass=8"]
    recipe = config.load_recipe(["+recipe=conll_bilstm", *words])
    lengths = Tagging(recipe, CPU).corpus.sets["train"].lengths
    read = batches(recipe, 8)
    wasted = 1 - sum(len(batch.words) for batch in read) / sum(
        grid.size for batch in read for grid in batch.grids
    )
    assert wasted == 1 - lengths.sum() / (len(lengths) * lengths.max())
    assert round(100 * wasted, 1) == 87.2
