"""Another workload, other strategies and parts than the paper's, through the page as it is.

tests/sketches has them; in float64 every run has to be that of one process to 1e-10.
"""

import json
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.launching import launch
from helpers.undisturbed import rows, saved
from sketches import jobs
from sketches.language_model import PADDING, LanguageModel
from sketches.replay import pushes
from torch import Tensor
from torch.nn import functional as F

from lsgd import config
from lsgd.comm.single import SingleComm
from lsgd.evaluation import TrainedModel, evaluate
from lsgd.learner import Learner
from lsgd.rules.sampler import Pass
from lsgd.workloads.images import Images

pytestmark = pytest.mark.distributed
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where every launch has a folder, next to that of the process alone."""
    return tmp_path_factory.mktemp("sketches")


@pytest.fixture(scope="module")
def alone(folder: Path) -> Path:
    """The folder of one process."""
    (folder / "alone").mkdir()
    said = jobs.cases(SingleComm(), folder / "alone")
    (folder / "alone" / "said.json").write_text(json.dumps(said))
    return folder / "alone"


@pytest.fixture(scope="module")
def together(folder: Path, alone: Path):
    """The folder of so many processes."""

    @cache
    def made(processes: int) -> Path:
        (out := folder / str(processes)).mkdir()
        done = launch("torch", processes, jobs.__file__, str(out))
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return out

    return made


def tensors(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors in nested values, by where they are."""
    match value:
        case Tensor():
            yield name, value
        case dict():
            for key, entry in value.items():
                yield from tensors(entry, f"{name}.{key}")
        case list():
            for key, entry in enumerate(value):
                yield from tensors(entry, f"{name}.{key}")


def state(run: Path) -> dict[str, Tensor]:
    """All tensors of the newest checkpoint; of the parts of BN's statistics their sum."""
    kept = saved(run)
    parts = {name: dict(part) for name, part in kept.parts.items()}
    if "batchnorm" in parts:
        parts["batchnorm"]["shares"] = parts["batchnorm"]["shares"].sum(0)
    return dict(tensors([kept.model, kept.optimizer, parts, kept.tally]))


def distance(one: Path, other: Path) -> float:
    """The largest difference of any number in the newest checkpoints of two runs, and of rates."""
    ours, theirs = state(one), state(other)
    assert ours.keys() == theirs.keys()
    differences = [(ours[key].double() - theirs[key].double()).abs().max() for key in ours]
    ours, theirs = saved(one), saved(other)
    assert (ours.step, ours.order, ours.lr) == (theirs.step, theirs.order, theirs.lr)
    assert ours.rates.keys() == theirs.rates.keys()
    for epoch, rates in ours.rates.items():
        assert rates.keys() == theirs.rates[epoch].keys()
        differences += [abs(rates[key] - theirs.rates[epoch][key]) for key in rates]
    return float(max(differences))


def said(out: Path) -> dict[str, list[str]]:
    return json.loads((out / "said.json").read_text())


def go_on(run: Path, kind: str, folder: Path) -> Path:
    """What one process makes of a run that has been left."""
    assert jobs.run(SingleComm(), folder / "gone-on", kind, begin_with=run) == ""
    return folder / "gone-on"


@pytest.mark.parametrize(
    ("kind", "carried"), [("language", 1), ("language", 3), ("averages", 1)]
)
def test_the_workers_per_pass_change_nothing(alone: Path, kind: str, carried: int) -> None:
    most = {"language": 8, "averages": 4}[kind]
    assert distance(alone / f"{kind}-{carried}", alone / f"{kind}-{most}") < 1e-10
