"""The tagger in TensorFlow is the one in torch: same losses, step after step."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from benchmarks import strategies
from benchmarks.tensorflow_job import SCRIPT, Steps, open_tensorflow, save_examples
from lsgd.bench.job import Job

LENGTHS = [7, 1, 12, 3, 3, 9, 5, 6]
VOCABULARY, WIDTH, UNITS, TAGS = 50, 100, 100, 9
LONGEST = 20
LR = 2.0
BATCHES = [[0, 1, 2, 3], [4, 5, 6, 7], [1, 6, 3, 0]]
STEPS: dict[str, Steps] = {
    "global": [[batch] for batch in BATCHES],
    "batch": [[batch] for batch in BATCHES],
    "bucket": [[[1, 3], [0, 2]], [[4, 6], [5, 7]], [[1, 3], [6, 0]]],
    "per_sentence": [[[each] for each in batch] for batch in BATCHES],
}


class TorchTagger(nn.Module):
    """Two LSTMs of one direction each, the second on sentences reversed within their lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.forward_lstm = nn.LSTM(WIDTH, UNITS, batch_first=True)
        self.backward_lstm = nn.LSTM(WIDTH, UNITS, batch_first=True)
        self.output = nn.Linear(2 * UNITS, TAGS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """The scores of the words of one sentence."""
        inputs = self.embedding(words)
        backward, _ = self.backward_lstm(inputs.flip(0))
        return self.output(torch.cat([self.forward_lstm(inputs)[0], backward.flip(0)], -1))

    def weights(self) -> dict[str, np.ndarray]:
        """The weights under the names of the file of examples."""
        lstms = {"forward": self.forward_lstm, "backward": self.backward_lstm}
        named = {
            f"{direction}_{name.removesuffix('_l0')}": value
            for direction, lstm in lstms.items()
            for name, value in lstm.named_parameters()
        }
        named |= {"embedding": self.embedding.weight}
        named |= {f"output_{name}": value for name, value in self.output.named_parameters()}
        return {name: value.detach().numpy() for name, value in named.items()}


@pytest.fixture(scope="module")
def sentences() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "words": rng.integers(VOCABULARY, size=sum(LENGTHS)),
        "tags": rng.integers(TAGS, size=sum(LENGTHS)),
        "offsets": np.cumsum([0, *LENGTHS]),
    }


@pytest.fixture(scope="module")
def network() -> TorchTagger:
    torch.manual_seed(0)
    return TorchTagger().double()


@pytest.fixture(scope="module")
def expected(sentences: dict[str, np.ndarray], network: TorchTagger) -> list[float]:
    """The losses of six steps of the network, sentence by sentence, in float64."""
    weights = {name: value.clone() for name, value in network.state_dict().items()}
    optimizer = torch.optim.SGD(network.parameters(), lr=LR)
    losses = []
    for batch in [*BATCHES, *BATCHES]:
        total = 0.0
        optimizer.zero_grad()
        for number in batch:
            part = slice(*sentences["offsets"][number : number + 2])
            words, tags = (torch.from_numpy(sentences[name][part]) for name in ("words", "tags"))
            scores = network(words)
            loss = functional.cross_entropy(scores, tags, reduction="sum")
            loss = loss / sum(LENGTHS[each] for each in batch)
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    network.load_state_dict(weights)
    return losses


@pytest.fixture(scope="module")
def job() -> Iterator[Job]:
    with open_tensorflow(threads=1, limit=200) as job:
        yield job


@pytest.fixture
def setting(
    tmp_path: Path, sentences: dict[str, np.ndarray], network: TorchTagger
) -> dict[str, Any]:
    """A setting whose file has the steps of the mode `batch`."""
    file = tmp_path / "examples.npz"
    save_examples(file, sentences, STEPS["batch"], network.weights())
    return {
        "name": "tagger",
        "file": str(file),
        "length": None,
        "lstm": "keras",
        "dtype": "float64",
        "lr": LR,
    }


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "lstm", "dtype", "tolerance"),
    [
        *((mode, "keras", "float64", 1e-10) for mode in STEPS),
        ("batch", "block", "float32", 1e-4),
    ],
)
def test_its_losses_are_those_of_torch(
    mode: str,
    lstm: str,
    dtype: str,
    tolerance: float,
    job: Job,
    setting: dict[str, Any],
    sentences: dict[str, np.ndarray],
    network: TorchTagger,
    expected: list[float],
) -> None:
    """Steps of large rates, so that an update that is not torch's is seen in the next loss."""
    save_examples(Path(setting["file"]), sentences, STEPS[mode], network.weights())
    length = LONGEST if mode == "global" else None
    job.prepare(setting | {"length": length, "lstm": lstm, "dtype": dtype})
    done = job.run("tagger", 6)
    assert done["losses"] == pytest.approx(expected, abs=tolerance)
    passes = [each for step in STEPS[mode] for each in step]
    longest = [length or max(LENGTHS[i] for i in each) for each in passes]
    assert done["words"] == 2 * sum(LENGTHS[i] for each in passes for i in each)
    assert done["cells"] == 2 * sum(
        len(each) * most for each, most in zip(passes, longest, strict=True)
    )
    assert done["graphs"] == [1] * 6


@pytest.mark.slow
@pytest.mark.parametrize("script", [SCRIPT, strategies.SCRIPT])
def test_scripts_for_tensorflow_need_nothing_of_lsgd(script: Path) -> None:
    """Their Python has neither lsgd nor torch."""
    nodes = list(ast.walk(ast.parse(script.read_text())))
    names = [each.name for node in nodes if isinstance(node, ast.Import) for each in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    imported = {name.partition(".")[0] for name in names}
    assert imported - sys.stdlib_module_names == {"numpy", "tensorflow"}
