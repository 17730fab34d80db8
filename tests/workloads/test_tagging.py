"""The tagger is that of a plain loop: each word counts alike, in any sentence, pass or worker."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import sentence_jobs as jobs
from helpers.composed import compose_recipe
from helpers.micro_batches import evaluation_micro_batches
from helpers.sentences import write_corpus
from torch import Tensor, nn

from lsgd.comm.single import SingleComm
from lsgd.evaluation import TrainedModel, evaluate
from lsgd.learner import Learner
from lsgd.models.tagger import TaggedBatch, Tagger
from lsgd.recipe import Recipe
from lsgd.recipe.settings import PADDINGS
from lsgd.rules import sentence_dropout
from lsgd.step import train_step
from lsgd.text.conll import Sentences
from lsgd.workloads.sentence_inputs import BUCKET_SIZE
from lsgd.workloads.tagging import SequenceTagging

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
    unknown = sentence_dropout.token_drop_mask(alone, np.arange(length), 0.2, seed=seed, epoch=0)
    words = np.where(unknown, 0, sentences.words[begin : begin + length])
    tags = torch.from_numpy(sentences.tags[begin : begin + length])
    (mask,) = sentence_dropout.feature_dropout_factors(
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
    workload = SequenceTagging(recipe, CPU)
    model, sentences = workload.network(), workload.corpus.sets["train"]
    size = recipe.batch_size
    examples = workload.example_order(0)[step * size : (step + 1) * size]
    losses = [plain_loss(model, sentences, example, recipe) for example in examples]
    loss = torch.stack(losses).sum() / sentences.lengths[examples].sum()
    return [*torch.autograd.grad(loss, model.parameters())]


@pytest.mark.parametrize(
    ("model", "padding", "workers_per_pass"),
    [
        *(("bilstm_crf", padding, 4) for padding in PADDINGS),
        *(("bilstm", "batch", each) for each in (1, 2)),
    ],
)
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
        train_step(learner, task, learner.workload.inputs().train(task.micro_batches))
        after = learner.model.parameters()
        moved = [one - other.detach() for one, other in zip(before, after, strict=True)]
        assert made.lr(step) == 1
        torch.testing.assert_close(moved, gradients(plain, step), rtol=0, atol=1e-12)


def batches(recipe: Recipe, workers_per_pass: int = 4) -> list[TaggedBatch]:
    """Those of the steps of an epoch."""
    made = replace(recipe, workers_per_pass=workers_per_pass)
    learner = Learner(made, SingleComm(), CPU)
    tasks = learner.strategy.tasks(0, [*range(made.steps_per_epoch)])
    return [*learner.workload.inputs().train(each for task in tasks for each in task.micro_batches)]


@pytest.mark.parametrize("padding", PADDINGS)
def test_grids_have_as_many_cells_as_the_padding_says(corpus: Path, padding: str) -> None:
    recipe = jobs.recipe(corpus, f"padding={padding}", "workers=8")
    longest = SequenceTagging(recipe, CPU).corpus.sets["train"].lengths.max()
    for batch in batches(recipe, 8):
        lengths = batch.sentences.bincount().tolist()
        sizes = [grid.size for grid in batch.lstm_grids]
        expected = {
            "global": [len(lengths) * longest],
            "batch": [len(lengths) * max(lengths)],
            "packed": [len(lengths) * max(lengths)],
            "bucket": [
                len(lengths[begin : begin + BUCKET_SIZE])
                * max(lengths[begin : begin + BUCKET_SIZE])
                for begin in range(0, len(lengths), BUCKET_SIZE)
            ],
            "per_sentence": lengths,
        }
        assert sizes == expected[padding]
        assert [grid.packed_positions is not None for grid in batch.lstm_grids] == [
            padding == "packed"
        ] * len(sizes)
        if padding == "bucket":
            assert lengths == sorted(lengths)


@pytest.mark.parametrize(("padding", "is_cached"), [("bucket", True), ("per_sentence", False)])
def test_autocast_caches_weights_that_are_used_once(
    corpus: Path, padding: str, is_cached: bool
) -> None:
    """Gradients of many uses of a cached copy would be added up in bfloat16."""
    recipe = jobs.recipe(corpus, f"padding={padding}")
    with Learner(recipe, SingleComm(), CPU).autocast:
        assert torch.is_autocast_cache_enabled() == is_cached


def test_an_evaluation_is_of_sentences_as_they_are(corpus: Path) -> None:
    """Each once, nothing dropped, in passes that are the same on any number of processes."""
    workload = SequenceTagging(jobs.recipe(corpus), CPU)
    for split, size in (("val", 23), ("test", 9)):
        alone = workload.evaluation_micro_batches(split, 0, 1)
        shared = [workload.evaluation_micro_batches(split, rank, 3) for rank in range(3)]
        assert sorted(np.concatenate([each.examples for each in alone])) == [*range(size)]
        key = [tuple(each.examples) for each in alone]
        assert sorted(tuple(each.examples) for own in shared for each in own) == sorted(key)
        assert len(shared[0]) == max(map(len, shared))
        sentences = workload.corpus.sets[split]
        for each, batch in zip(alone, workload.inputs().evaluation(alone), strict=True):
            assert batch.masks is None
            own = np.split(sentences.words, sentences.begins[1:])
            assert batch.tokens.tolist() == [word for i in each.examples for word in own[i]]


def test_what_is_counted_is_what_the_tags_say(corpus: Path) -> None:
    """By a network that always gives each word its own tag, and by one that gives O."""
    recipe = jobs.recipe(corpus, "model.name=bilstm")
    workload = SequenceTagging(recipe, CPU)
    val = workload.corpus.sets["val"]

    def rates(tagger: type) -> tuple[dict[str, int], dict[str, float]]:
        model = tagger(recipe.data.words, recipe.data.classes, embedding=1, width=1, crf=False)
        trained = TrainedModel(workload, model.double(), SingleComm(), CPU)
        scored = evaluate(trained, workload.inputs())["val"]
        return scored.counts, scored.metrics

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


@pytest.mark.parametrize("name", ["bilstm", "bilstm_crf"])
def test_a_sentence_whose_scores_are_not_finite_is_wrong(corpus: Path, name: str) -> None:
    recipe = jobs.recipe(corpus, f"model.name={name}")
    workload = SequenceTagging(recipe, CPU)
    val, classes = workload.corpus.sets["val"], recipe.data.classes

    class Broken(Tagger):
        """Gives each word its own tag, but for the first word of every other sentence."""

        def forward(self, batch: TaggedBatch) -> Tensor:
            scores = 9 * nn.functional.one_hot(batch.tags, classes).double()
            first = batch.sentences.diff(prepend=torch.tensor([-1])) > 0
            scores[first & (batch.sentences % 2 == 0), 0] = math.nan
            return scores

    crf = name == "bilstm_crf"
    model = Broken(recipe.data.words, classes, embedding=1, width=1, crf=crf).double()

    def counts(*lengths: int) -> list[int]:
        """Those of passes of so many sentences."""
        passes = evaluation_micro_batches(
            *np.split(np.arange(len(val.lengths)), np.cumsum(lengths))
        )
        batches = workload.inputs().evaluation(passes)
        return [
            workload.loss(model, *each)[1].tolist() for each in zip(batches, passes, strict=True)
        ]

    first, rest = counts(1)
    assert (first[0], first[1], first[4]) == (val.lengths[0], 0, 0)
    own = np.repeat(np.arange(len(val.lengths)), val.lengths)[val.lengths[0] :]
    assert rest[1] == (own % 2 == 0).sum()
    assert rest[3] == rest[4] < rest[2]
    if model.crf is not None:
        nn.init.constant_(model.crf.last, math.nan)
        assert [each[1] for each in counts(1)] == [0, 0]


def test_f1_is_of_sums() -> None:
    workload = SequenceTagging(compose_recipe("+recipe=conll_bilstm"), CPU)
    rates = workload.metrics(1.0, [100, 90, 10, 6, 4])
    precision, recall = 4 / 6, 4 / 10
    f1 = 2 * precision * recall / (precision + recall)
    assert rates == pytest.approx({"f1_error": 100 * (1 - f1), "token_error": 10})


def test_made_up_sentences_are_the_recipes(corpus: Path) -> None:
    recipe = compose_recipe("+recipe=conll_bilstm", "inputs=synthetic", "data.classes=5")
    one, other = (SequenceTagging(recipe, CPU).corpus for _ in range(2))
    assert one.counts == {name: getattr(recipe.data, name) for name in one.counts}
    for name, sentences in one.sets.items():
        assert np.array_equal(sentences.words, other.sets[name].words)
        assert 0 <= sentences.words.min() < sentences.words.max() < recipe.data.words
        assert set(sentences.tags) == set(range(5))
    lengths = one.sets["train"].lengths
    # Those of CoNLL-2003 have a median of 10, a mean of 14.5 and 37 at 95 %.
    assert np.quantile(lengths, [0.5, 0.95]) == pytest.approx([10, 37], abs=2)
