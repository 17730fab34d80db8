"""A language model is that of a plain loop of torch, and is evaluated to what its run has said."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from helpers.composed import compose_recipe
from helpers.reference_run import newest_checkpoint, rows
from torch import Tensor, nn
from torch.nn import functional as F

from lsgd.evaluate import evaluate_path
from lsgd.recipe import Recipe
from lsgd.run.checkpoint import FILE
from lsgd.train import train
from lsgd.workloads.language import LanguageModeling

CPU = torch.device("cpu")
# 5 windows of 16 streams, and 5 tokens that no stream has; evaluation streams of different lengths.
WORDS = [
    "+recipe=ptb_small", "precision=float64", "schedule.milestones=[2]", "log_steps=1",
    "device=cpu", "inputs=synthetic", "epochs=4", "workers=8", "worker_batch=2", "data.window=6",
    "data.train_examples=501", "data.val_examples=57", "data.test_examples=50", "data.classes=20",
    "data.eval_streams=3", "model.embedding=7", "model.width=12", "optim.momentum=0.9",
    "optim.clip_norm=1", "checkpoint_steps=7",
]  # fmt: skip


def made_by_hand(workload: LanguageModeling, made: Recipe) -> tuple[nn.Module, list[Tensor]]:
    """The model that a few lines of torch train on all streams at once, and the state it ends with.

    The loss is summed over a window and its mean is over the streams; the gradient is clipped.
    """
    model = workload.network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    text, window = workload.inputs().texts["train"].long(), made.data.window
    columns = text[: len(text) // 16 * 16].view(16, -1).t()
    state: list[Tensor] = []
    for epoch in range(made.epochs):
        carried = None
        for step in range(5):
            inputs, targets = (columns[step * window + i :][:window] for i in (0, 1))
            seen, state = model.lstm(model.embedding(inputs), carried)
            carried = state = [value.detach() for value in state]
            logits = model.output(seen).flatten(0, 1)
            optimizer.zero_grad()
            (F.cross_entropy(logits, targets.flatten(), reduction="sum") / 16).backward()
            gradients = [parameter.grad for parameter in model.parameters()]
            norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
            for gradient in gradients:
                gradient *= min(1, 1 / norm)
            optimizer.param_groups[0]["lr"] = made.lr(epoch * 5 + step)
            optimizer.step()
    return model, state


@pytest.mark.slow
@pytest.mark.parametrize("workers_per_pass", [1, 3, 8])
def test_it_is_that_of_a_plain_loop(tmp_path: Path, workers_per_pass: int) -> None:
    """Weights, hidden state and both perplexities, of every token of a set but its first."""
    words = [*WORDS, f"workers_per_pass={workers_per_pass}", f"run_dir={tmp_path}"]
    made = compose_recipe(*words)
    train(made)
    workload = LanguageModeling(made, CPU)
    model, state = made_by_hand(workload, made)
    kept = newest_checkpoint(tmp_path)
    close = {"rtol": 0, "atol": 1e-10}
    torch.testing.assert_close(kept.model, dict(model.state_dict()), **close)
    torch.testing.assert_close(kept.parts["hidden"]["values"], torch.stack(state), **close)
    texts = workload.inputs().texts
    for split, cuts in (("val", (0, 19, 38, 56)), ("test", (0, 17, 33, 49))):
        text, lost = texts[split].long(), torch.zeros((), dtype=torch.float64)
        for begin, end in pairwise(cuts):
            seen, _ = model.lstm(model.embedding(text[begin:end]))
            targets = text[begin + 1 : end + 1]
            lost += F.cross_entropy(model.output(seen), targets, reduction="sum")
        perplexity = (lost / (len(text) - 1)).exp().item()
        assert kept.rates[4][f"{split}_perplexity"] == pytest.approx(perplexity, rel=1e-10)
    (row, *_) = rows(tmp_path, "train")
    assert {"perplexity", "tokens_per_second"} <= row.keys()
    assert row["gradient_norm"] > 1, "or clipping would not have been tried"
    evaluated = evaluate_path(tmp_path / FILE, ["device=cpu"])
    for split, tokens in (("val", 56), ("test", 49)):
        assert evaluated[split].counts["tokens"] == tokens
        assert evaluated[split].metrics["perplexity"] == kept.rates[4][f"{split}_perplexity"]
