"""The recipes of taggers and tree models for corpora that tests write."""

from functools import cache
from pathlib import Path

from helpers import sentences, trees
from helpers.composed import compose_recipe
from lsgd.recipe import Recipe

# 7 steps an epoch, the last of 2 + 2 + 2 + 0 examples.
EVERY = [
    "precision=float64", "workers=4", "worker_batch=2", "tail=keep", "epochs=3",
    "model.embedding=6", "model.width=5", "schedule.reference_batch=8", "workers_per_pass=4",
    "val_batch=4", "log_steps=1", "device=cpu",
]  # fmt: skip
TAGGER = [
    "+recipe=conll_bilstm_crf", "model.dropout=0.5", "data.word_dropout=0.2", "optim=sgd",
    "schedule.reference_lr=0.3",
]  # fmt: skip


@cache
def recipe(corpus: Path, *words: str) -> Recipe:
    """Return the recipe of a small tagger for this corpus with these overrides, cached."""
    return compose_recipe(*TAGGER, *EVERY, *sentences.corpus_overrides(corpus), *words)


@cache
def tree_recipe(corpus: Path, *words: str) -> Recipe:
    """Return the recipe of a small TreeLSTM for this corpus with these overrides, cached."""
    return compose_recipe("+recipe=sst_treelstm", *EVERY, *trees.corpus_overrides(corpus), *words)
