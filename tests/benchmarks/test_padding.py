"""What a way to pad wastes and computes, and how its cost is reported."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.composed import compose_recipe
from helpers.launching import serve_python

from benchmarks import padding
from benchmarks.padded_steps import PaddedSentences, PaddedSteps
from lsgd.comm.single import SingleComm
from lsgd.recipe import Recipe
from lsgd.recipe.settings import PADDINGS

CONLL = "+recipe=conll_bilstm"
SMALL = [
    CONLL,
    "inputs=synthetic",
    "data.train_examples=40",
    "data.val_examples=4",
    "data.test_examples=0",
    "data.words=50",
    "model.embedding=8",
    "model.width=8",
]


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return compose_recipe(*SMALL)


@pytest.fixture(scope="module")
def done(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """What five steps of eight sentences have said, by the way to pad; they are an epoch."""
    threads, steps = torch.get_num_threads(), PaddedSteps(recipe, SingleComm(), torch.device("cpu"))
    for name in PADDINGS:
        setting = {"name": name, "padding": name, "batch": 8, "steps": 5, "compile": None}
        steps.prepare(setting)
    torch.set_num_threads(threads)
    return {name: steps.candidates[name](5) for name in PADDINGS}


@pytest.mark.parametrize("name", sorted({*PADDINGS} - {"bucket"}))
def test_all_ways_to_pad_make_the_same_steps(name: str, done: dict[str, dict[str, Any]]) -> None:
    """But for bucket, which has batches of its own."""
    assert done[name]["losses"] == pytest.approx(done["batch"]["losses"], abs=1e-5)


@pytest.mark.parametrize("name", sorted({*PADDINGS} - {"packed"}))
def test_what_is_wasted_is_what_the_cells_have_no_words_for(
    name: str, recipe: Recipe, done: dict[str, dict[str, Any]]
) -> None:
    wasted = 1 - done[name]["words"] / done[name]["cells"]
    assert PaddedSentences(recipe, name, 8).wasted_share() == pytest.approx(wasted, abs=1e-12)


@pytest.mark.data
def test_conll_wastes_87_percent(test_data: Path) -> None:
    """1 - sum of the lengths / (sentences x longest), and less in the order of the others."""
    recipe = compose_recipe(CONLL, f"data.root={test_data / 'conll2003'}")
    wasted = {name: PaddedSentences(recipe, name, 16).wasted_share() for name in PADDINGS}
    assert wasted["global"] == 1 - 203621 / (14041 * 113)
    assert f"{100 * wasted['global']:.1f}" == "87.2"
    padded = PaddedSentences(recipe, "batch", 16)
    lengths = np.array_split(
        padded.sentences.lengths[padded.workload.example_order(0)], range(16, 14041, 16)
    )
    assert wasted["batch"] == 1 - 203621 / sum(each.size * each.max() for each in lengths)
    assert 0.6 < wasted["batch"] < 0.65
    assert 0 < wasted["bucket"] < 0.01
    assert wasted["packed"] == wasted["per_sentence"] == 0


@pytest.mark.tensorflow
@pytest.mark.distributed
def test_torch_and_tensorflow_do_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the command line to the table; without torch.compile, which takes a minute.

    The losses of the other ways in TensorFlow are compared in test_tensorflow_tagger.py.
    """
    monkeypatch.setattr(padding, "TENSORFLOW_PADDINGS", ("global", "bucket"))
    serve_python(tmp_path, monkeypatch)
    monkeypatch.setattr(padding, "COMPILED_PADDINGS", ())
    out = tmp_path / "out"
    counts = ["--batches", "4", "--sentences", "8", "--rounds", "6"]
    assert padding.main([*SMALL, *counts, "--out", str(out)]) == 0
    result = json.loads((out / "padding.json").read_text())
    candidates = result["candidates"]
    assert [(each["system"], each["padding"]) for each in candidates.values()] == [
        *((padding.EAGER, name) for name in PADDINGS),
        *((system, name) for system in padding.LSTMS for name in padding.TENSORFLOW_PADDINGS),
    ]
    for each in candidates.values():
        ours = candidates[f"{padding.EAGER}, {each['padding']}, 4"]
        assert (each["words"], each["cells"]) == (ours["words"], ours["cells"])
        assert each["losses"] == pytest.approx(ours["losses"], abs=1e-4)
        assert each["graphs"] == (each["system"] in padding.LSTMS)
    files = ["README.md", "padding.json", "padding.png", "padding.svg"]
    assert sorted(path.name for path in out.iterdir()) == files


def test_losses_are_compared_where_both_systems_were_measured() -> None:
    """One of them may have been refused for its memory."""
    both = [(padding.EAGER, "batch", [1.0, 2.0]), (padding.KERAS, "batch", [1.0, 2.5])]
    alone = [(padding.KERAS, "global", [7.0, 7.0])]
    for measured, difference in ((both + alone, 0.5), (alone, None)):
        candidates = {
            str(number): {"system": system, "padding": way, "batch": 4, "losses": losses}
            for number, (system, way, losses) in enumerate(measured)
        }
        assert padding._difference({"candidates": candidates}) == difference
