import zipfile
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from benchmarks.torchfold import fetch_wheel, load_module
from lsgd.errors import UsageError


class Sums(nn.Module):
    """Numbers, and twice the right one added to the left."""

    def leaf(self, number: Tensor) -> Tensor:
        return number[:, None].float()

    def node(self, left: Tensor, right: Tensor) -> Tensor:
        return left + 2 * right


@pytest.mark.torchfold
def test_it_runs_on_the_torch_of_today() -> None:
    """With numbers, nodes, several outputs and one tensor."""
    fold = load_module(fetch_wheel()).Fold()
    leaves = [fold.add("leaf", number) for number in range(4)]
    nodes = [fold.add("node", left, right) for left, right in pairwise(leaves)]
    shifted = fold.add("node", nodes[0], torch.ones(1, 1))
    first, second = fold.apply(Sums(), [nodes, [shifted]])
    assert first.tolist() == [[2.0], [5.0], [8.0]]
    assert second.tolist() == [[4.0]]


def test_nothing_is_run_of_another_file(tmp_path: Path) -> None:
    file = tmp_path / "torchfold.whl"
    with zipfile.ZipFile(file, "w") as wheel:
        wheel.writestr("torchfold/torchfold.py", "raise SystemExit('it was run')\n")
    with pytest.raises(UsageError, match=r"has the SHA-256 .* remove the file, and it is fetched"):
        load_module(file)
