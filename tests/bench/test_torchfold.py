import zipfile
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lsgd.bench.torchfold import fetched, loaded, place
from lsgd.errors import Refused


class Sums(nn.Module):
    """Numbers, and twice the right one added to the left."""

    def leaf(self, number: Tensor) -> Tensor:
        return number[:, None].float()

    def node(self, left: Tensor, right: Tensor) -> Tensor:
        return left + 2 * right


@pytest.mark.torchfold
def test_it_runs_on_the_torch_of_today() -> None:
    """With numbers, nodes, several outputs and one tensor."""
    fold = loaded(fetched()).Fold()
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
    with pytest.raises(Refused, match=r"has the SHA-256 .* remove the file, and it is fetched"):
        loaded(file)


def test_without_an_index_it_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path),
        "PIP_CONFIG_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Refused, match=r"^torchfold==0.1.0 cannot be fetched: .*a network"):
        fetched()
    assert [*place().parent.iterdir()] == []


def test_a_cache_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(Refused, match=r"cannot be written .* set XDG_CACHE_HOME to a folder"):
        fetched()
