"""Training steps of a tagger in torch, padded in several ways: what `lsgd bench padding` measures.

`python -m lsgd.bench.padded_steps` is a process of it, as lsgd.bench.member runs them. What both
libraries have in common is here too: the steps of each way to pad, and the weights at the start.
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

from lsgd.bench.member import main
from lsgd.comm import Comm
from lsgd.models.tagger import Tagger
from lsgd.recipe import Recipe
from lsgd.rules.sampler import Pass
from lsgd.text.conll import Sentences
from lsgd.workloads.tagging import Tagging

LR = 0.1
"""The lr of all measured steps, by plain SGD."""


@dataclass(frozen=True)
class Padded:
    """The training sentences of a recipe, padded in one way, in batches of one size."""

    recipe: Recipe
    padding: str
    batch: int

    @cached_property
    def workload(self) -> Tagging:
        """The recipe's tagging, in float32 and without dropout; bucket takes batches of sentences
        of like length, the others shuffled ones."""
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
        return Tagging(recipe, torch.device("cpu"))

    @property
    def sentences(self) -> Sentences:
        """The training sentences."""
        return self.workload.corpus.sets["train"]

    def batches(self) -> list[NDArray[np.int64]]:
        """The sentences of each step of an epoch, by their numbers; the last may be fewer."""
        order = self.workload.order(0)
        return np.split(order, range(self.batch, len(order), self.batch))

    def wasted(self) -> float:
        """The share of the cells that the LSTMs go through without a word, over an epoch."""
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
    """The weights by the names that lsgd/bench/tensorflow_tagger.py has for them."""
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
    """An Assignment whose settings each add a candidate, by its name.

    A setting has `name`, `padding`, `batch`, `steps`, which is the number of different batches, and
    `compile`: None for eager, else the value of `dynamic` of torch.compile.
    """

    def __init__(self, recipe: Recipe, comm: Comm, device: torch.device) -> None:
        self.recipe = recipe
        self.candidates: Mapping[str, Callable[[int], Any]] = {}
        torch.set_num_threads(1)

    def prepare(self, setting: dict[str, Any]) -> dict[str, Any]:
        """Make the network and the batches; says how many words of the cells there are."""
        padded = Padded(self.recipe, setting["padding"], setting["batch"])
        workload, chosen = padded.workload, padded.batches()[: setting["steps"]]
        passes = [Pass(0, each, range(1), number) for number, each in enumerate(chosen)]
        batches = list(workload.inputs().train(passes))
        network = workload.network()
        assert isinstance(network, Tagger)
        # As in TensorFlow, an update moves the words of its batch, and not the whole table.
        network.embedding.sparse = True
        forward: Callable[..., Any] = network
        if setting["compile"] is not None:
            # What compiling takes is measured, so nothing of an earlier time may help.
            torch.compiler.config.force_disable_caches = True
            forward = torch.compile(network, dynamic=setting["compile"])
        optimizer = torch.optim.SGD(network.parameters(), lr=LR)

        def steps(number: int) -> dict[str, Any]:
            done: dict[str, Any] = {"losses": [], "seconds": [], "cpu_seconds": [], "graphs": []}
            for index in range(number):
                batch = batches[index % len(batches)]
                begin, cpu = time.perf_counter(), time.process_time()
                optimizer.zero_grad()
                loss = network.loss(forward(batch), batch) / len(batch.words)
                loss.backward()
                optimizer.step()
                done["losses"].append(loss.item())
                done["seconds"].append(time.perf_counter() - begin)
                done["cpu_seconds"].append(time.process_time() - cpu)
                done["graphs"].append(counters["stats"]["unique_graphs"])
            taken = [batches[index % len(batches)] for index in range(number)]
            return done | {
                "words": sum(len(batch.words) for batch in taken),
                "cells": sum(grid.size for batch in taken for grid in batch.grids),
            }

        self.candidates = {**self.candidates, setting["name"]: steps}
        return {"torch": torch.__version__}


if __name__ == "__main__":
    raise SystemExit(main(PaddedSteps, sys.argv[1:]))
