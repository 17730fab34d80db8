"""The part that tagging and trees share: workloads of sentences, which are independent."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lsgd.comm import Comm
from lsgd.inputs import Inputs
from lsgd.models import DTYPES
from lsgd.recipe import Recipe
from lsgd.rules import sampler
from lsgd.rules.sampler import MicroBatch
from lsgd.text.conll import TaggedCorpus
from lsgd.text.sst import TreeCorpus
from lsgd.workloads import CarriedState, round_robin_micro_batches

SentenceCorpus = TypeVar("SentenceCorpus", TaggedCorpus, TreeCorpus)


class SentenceWorkload(Generic[SentenceCorpus]):
    """The base class of the workloads of sentences, tagged or parsed, which carry no state."""

    open_corpus: ClassVar[Callable[..., Any]]
    """The function that reads the corpus of a recipe's data."""
    synthetic_corpus: ClassVar[Callable[..., Any]]
    """The function that generates a corpus of given sizes."""
    metrics_part = ""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.dtype = DTYPES[recipe.precision]
        self.evaluation_sets = recipe.text_sets
        # Cached, since every checkpoint asks for it.
        self._order = lru_cache(maxsize=1)(self._draw_order)

    @cached_property
    def corpus(self) -> SentenceCorpus:
        """The recipe's corpus of sentences, read or generated at its first use.

        Raises UsageError if they are missing or not the recipe's.
        """
        data, kind = self.recipe.data, type(self)
        if self.recipe.inputs.loader == "synthetic":
            counts = {"train": data.train_examples, "val": data.val_examples}
            corpus: SentenceCorpus = kind.synthetic_corpus(
                counts | {"test": data.test_examples},
                words=data.words,
                classes=data.classes,
                seed=self.recipe.seed,
            )
            return corpus
        corpus = kind.open_corpus(data)
        return corpus

    def carried_states(
        self, model: nn.Module, hosted: range, comm: Comm
    ) -> tuple[CarriedState, ...]:
        """Return no carried state, since each sentence starts from a zero state."""
        return ()

    def example_order(self, epoch: int) -> NDArray[np.int64]:
        """Return the order of all training sentences in an epoch, by default a random one."""
        return self._order(epoch)

    def _draw_order(self, epoch: int) -> NDArray[np.int64]:
        return sampler.epoch_order(self.recipe.train_examples, seed=self.recipe.seed, epoch=epoch)

    def evaluation_micro_batches(self, split: str, rank: int, world_size: int) -> list[MicroBatch]:
        """Return a process's micro-batches of an evaluation set's sentences, sorted by length."""
        ids = np.argsort(self.corpus.sets[split].lengths, kind="stable")
        return round_robin_micro_batches(ids, self.recipe.val_batch, split, rank, world_size)

    def evaluation_mode(self, model: nn.Module, inputs: Inputs) -> AbstractContextManager[None]:
        """Return an empty context, since these networks are evaluated as they are trained."""
        return nullcontext()
