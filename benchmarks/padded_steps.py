"""Training steps of a tagger in torch with several paddings, which benchmarks.padding measures.

`python -m benchmarks.padded_steps` is a measured process, run by lsgd.bench.job_process. What torch
and TensorFlow share is here too: the steps of each padding, and the initial weights.
"""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch._dynamo.utils import counters

from lsgd.bench.job_process import main
from lsgd.comm import Comm
from lsgd.models.tagger import Tagger
from lsgd.recipe import Recipe
from lsgd.rules.sampler import MicroBatch
from lsgd.text.conll import Sentences
from lsgd.workloads.tagging import SequenceTagging

LR = 0.1
"""The learning rate of all measured steps, by plain SGD."""


@dataclass(frozen=True)
class PaddedSentences:
    """The training sentences of a recipe with one padding, in batches of one size."""

    recipe: Recipe
    padding: str
    batch: int

    @cached_property
    def workload(self) -> SequenceTagging:
        """The recipe's tagging workload, in float32 and without dropout.

        The padding `bucket` has batches of sentences of similar length, the others shuffled
        batches.
        """
        recipe = self.recipe
        bucket = self.padding == "bucket"
        data = replace(recipe.data, order="by_length" if bucket else "shuffled", word_dropout=0.0)
        recipe = replace(
            recipe,
            data=data,
            model=replace(recipe.model, dropout=0.0),
            precision="float32",
            padding="batch" if bucket else self.padding,
            workers=1,
            worker_batch=self.batch,
        )
        return SequenceTagging(recipe, torch.device("cpu"))

    @property
    def sentences(self) -> Sentences:
        """The training sentences of the recipe."""
        return self.workload.corpus.sets["train"]

    def batches(self) -> list[NDArray[np.int64]]:
        """Return the indices of the sentences of each step of an epoch.

        The last step may have fewer.
        """
        order = self.workload.example_order(0)
        return np.split(order, range(self.batch, len(order), self.batch))

    def wasted_share(self) -> float:
        """Return the share of an epoch's grid cells that the LSTMs process without a token."""
        lengths = [self.sentences.lengths[batch] for batch in self.batches()]
        longest, words = int(self.sentences.lengths.max()), len(self.sentences.words)
        match self.padding:
            case "packed" | "per_sentence":
                return 0.0
            case "global":
                cells = sum(len(each) * longest for each in lengths)
            case _:
                cells = sum(len(each) * int(each.max()) for each in lengths)
        return 1 - words / cells


def weights(network: Tagger) -> dict[str, NDArray[Any]]:
    """Return the network's weights by their names in benchmarks/tensorflow_tagger.py."""
    modules: dict[str, nn.Module] = {
        "forward": network.onwards,
        "backward": network.backwards,
        "output": network.fc,
    }
    named = {
        f"{module}_{name.removesuffix('_l0')}": value.detach().numpy()
        for module, parent in modules.items()
        for name, value in parent.named_parameters()
    }
    return named | {"embedding": network.embedding.weight.detach().numpy()}


class PaddedSteps:
    """An Assignment whose settings each add a candidate by name.

    A setting has `name`, `padding`, `batch`, `steps` (the number of different batches) and
    `compile`: None for eager, else the value of torch.compile's `dynamic`.
    """

    def __init__(self, recipe: Recipe, comm: Comm, device: torch.device) -> None:
        self.recipe = recipe
        self.candidates: Mapping[str, Callable[[int], Any]] = {}
        torch.set_num_threads(1)

    def prepare(self, setting: dict[str, Any]) -> dict[str, Any]:
        """Build the candidate of a setting, and return torch's version."""
        padded = PaddedSentences(self.recipe, setting["padding"], setting["batch"])
        workload, chosen = padded.workload, padded.batches()[: setting["steps"]]
        passes = [MicroBatch(0, each, range(1), number) for number, each in enumerate(chosen)]
        batches = list(workload.inputs().train(passes))
        network = workload.network()
        assert isinstance(network, Tagger)
        # As in TensorFlow, an update changes only the rows of the embedding that the batch uses.
        network.embedding.sparse = True
        forward: Callable[..., Any] = network
        if setting["compile"] is not None:
            # The time of compilation is measured, so a cache of an earlier run must not shorten it.
            torch.compiler.config.force_disable_caches = True
            forward = torch.compile(network, dynamic=setting["compile"])
        optimizer = torch.optim.SGD(network.parameters(), lr=LR)

        def steps(number: int) -> dict[str, Any]:
            done: dict[str, Any] = {"losses": [], "seconds": [], "cpu_seconds": [], "graphs": []}
            for index in range(number):
                batch = batches[index % len(batches)]
                begin, cpu = time.perf_counter(), time.process_time()
                optimizer.zero_grad()
                loss = network.loss(forward(batch), batch) / len(batch.tokens)
                loss.backward()
                optimizer.step()
                done["losses"].append(loss.item())
                done["seconds"].append(time.perf_counter() - begin)
                done["cpu_seconds"].append(time.process_time() - cpu)
                done["graphs"].append(counters["stats"]["unique_graphs"])
            taken = [batches[index % len(batches)] for index in range(number)]
            return done | {
                "words": sum(len(batch.tokens) for batch in taken),
                "cells": sum(grid.size for batch in taken for grid in batch.lstm_grids),
            }

        self.candidates = {**self.candidates, setting["name"]: steps}
        return {"torch": torch.__version__}


if __name__ == "__main__":
    raise SystemExit(main(PaddedSteps, sys.argv[1:]))
