"""Exact evaluation: every validation image once, at any number of processes."""

from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from lsgd.comm import Comm, sum_
from lsgd.inputs import Inputs
from lsgd.job.preemption import Rounds
from lsgd.models import DTYPES
from lsgd.recipe import Recipe
from lsgd.rules import sampler
from lsgd.tally import Scores, Tally, scores


class Evaluated(Protocol):
    """A model on this process's device, with the recipe that says on which data: a Learner is."""

    @property
    def recipe(self) -> Recipe:
        """Its `data.val_examples` are evaluated, `val_batch` at a time, in its precision."""

    @property
    def model(self) -> nn.Module:
        """The network, with whatever running statistics it is to be evaluated with."""

    @property
    def comm(self) -> Comm:
        """The processes that share the images."""

    @property
    def device(self) -> torch.device:
        """Where the model is."""


@dataclass(frozen=True)
class TrainedModel:
    """A model with weights from elsewhere, which no Learner trains."""

    recipe: Recipe
    model: nn.Module
    comm: Comm
    device: torch.device


@torch.inference_mode()
def evaluate(learner: Evaluated, inputs: Inputs) -> Scores:
    """Loss and errors over the validation set of the learner's recipe; the same on every process.

    Each process takes a contiguous share in chunks of `val_batch`, nothing is padded, and integer
    counts are summed, so the errors do not depend on the number of processes or on the chunks. The
    forward pass is without autocast, also where training is in bfloat16. Raises Preempted, on all
    processes, at the end of a chunk.
    """
    model, comm, device = learner.model, learner.comm, learner.device
    examples, batch = learner.recipe.data.val_examples, learner.recipe.val_batch
    dtype = DTYPES[learner.recipe.precision]
    mine = sampler.share(examples, comm.world_size, comm.rank)
    ids = np.arange(mine.start, mine.stop)
    chunks = [ids[i : i + batch] for i in range(0, len(ids), batch)]
    # Process 0 has the most chunks; the others make the rounds that they lack without images.
    most = -(-len(sampler.share(examples, comm.world_size, 0)) // batch)
    rounds = Rounds(comm.start_sum_)
    tally = Tally(device)
    model.eval()
    for images, labels in inputs.validation(chunks):
        logits = model(images.to(device, dtype, non_blocking=True))
        labels = labels.to(device, non_blocking=True)
        tally.add(F.cross_entropy(logits, labels, reduction="sum"), logits, labels)
        rounds.end_round()
    for _ in range(most - len(chunks)):
        rounds.end_round()
    rounds.finish()
    model.train()
    return scores(tally.state(partial(sum_, comm)))
