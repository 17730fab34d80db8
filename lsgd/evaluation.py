"""Exact evaluation: every validation image once, at any number of processes."""

from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from lsgd.comm import Comm, sum_
from lsgd.inputs import Inputs
from lsgd.job.preemption import Rounds
from lsgd.rules import sampler
from lsgd.tally import Scores, Tally, scores


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    inputs: Inputs,
    comm: Comm,
    *,
    examples: int,
    batch: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Scores:
    """Loss and errors over ids 0 … examples-1 of the validation set; the same on every process.

    Each process takes a contiguous share in chunks of `batch`, nothing is padded, and integer
    counts are summed, so the errors do not depend on the number of processes or on `batch`. The
    forward pass is in `dtype`, without autocast, also where training is in bfloat16. Raises
    Preempted, on all processes, at the end of a chunk.
    """
    mine = sampler.share(examples, comm.world_size, comm.rank)
    ids = np.arange(mine.start, mine.stop)
    chunks = [ids[i : i + batch] for i in range(0, len(ids), batch)]
    # The share of process 0 is the largest; who has fewer chunks still takes part in all rounds.
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
