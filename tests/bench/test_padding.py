"""What a way to pad wastes and computes, and how its cost is reported."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.refusals import refusal

from lsgd.bench import padding
from lsgd.bench.__main__ import main
from lsgd.bench.padded_steps import Padded, PaddedSteps
from lsgd.comm.single import SingleComm
from lsgd.config import load_recipe
from lsgd.errors import Refused
from lsgd.recipe import PADDINGS, Recipe

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
    return load_recipe(SMALL)


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
    assert Padded(recipe, name, 8).wasted() == pytest.approx(wasted, abs=1e-12)


@pytest.mark.data
def test_conll_wastes_87_percent(test_data: Path) -> None:
    """1 - sum of the lengths / (sentences x longest), and less in the order of the others."""
    recipe = load_recipe([CONLL, f"data.root={test_data / 'conll2003'}"])
    wasted = {name: Padded(recipe, name, 16).wasted() for name in PADDINGS}
    assert wasted["global"] == 1 - 203621 / (14041 * 113)
    assert f"{100 * wasted['global']:.1f}" == "87.2"
    padded = Padded(recipe, "batch", 16)
    lengths = np.array_split(
        padded.sentences.lengths[padded.workload.order(0)], range(16, 14041, 16)
    )
    assert wasted["batch"] == 1 - 203621 / sum(each.size * each.max() for each in lengths)
    assert 0.6 < wasted["batch"] < 0.65
    assert 0 < wasted["bucket"] < 0.01
    assert wasted["packed"] == wasted["per_sentence"] == 0


@pytest.mark.tensorflow
@pytest.mark.distributed
def test_torch_and_tensorflow_do_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the command line to the table; without torch.compile, which takes a minute."""
    monkeypatch.setattr(padding, "COMPILED", ())
    out = tmp_path / "out"
    counts = ["--batches", "4", "--sentences", "8", "--rounds", "6"]
    assert main(["padding", *SMALL, *counts, "--out", str(out)]) == 0
    result = json.loads((out / "padding.json").read_text())
    candidates = result["candidates"]
    assert [(each["system"], each["padding"]) for each in candidates.values()] == [
        *((padding.EAGER, name) for name in PADDINGS),
        *((system, name) for system in padding.LSTMS for name in padding.IN_TENSORFLOW),
    ]
    for each in candidates.values():
        ours = candidates[f"{padding.EAGER}, {each['padding']}, 4"]
        assert (each["words"], each["cells"]) == (ours["words"], ours["cells"])
        assert each["losses"] == pytest.approx(ours["losses"], abs=1e-4)
        assert each["graphs"] == (each["system"] in padding.LSTMS)
    assert {path.name for path in out.iterdir()} == {
        "README.md",
        "padding.json",
        "padding.png",
        "padding.svg",
    }


def made_up(**others: Any) -> dict[str, Any]:
    """The result of a measurement with one candidate."""
    facts = {
        "system": padding.STATIC,
        "padding": "global",
        "batch": 16,
        "wasted": 0.8717,
        "words_per_cpu_second": [2000.0] * 6,
        "milliseconds": 6.25,
        "once_seconds": 3.0,
        "first_graphs": 3,
        "graphs": 24,
        "losses": [2.0],
    }
    machine = {"gpu": None, "cpu": "x", "cores": 1, "threads_of_torch": 1, "load_average": 0}
    return {
        "recipe": "conll_bilstm",
        "dataset": "conll2003",
        "machine": machine,
        "versions": {},
        "date": "today",
        "rounds": 6,
        "sentences": 160,
        "candidates": {"one": facts},
        "speeds": {"one": [1000.0] * 6},
        "missing": {},
    } | others


def test_a_row_tells_graphs_of_the_first_step_from_later_ones() -> None:
    [line] = [each for each in padding.report(made_up()).splitlines() if "static" in each]
    assert [cell.strip() for cell in line.split("|")[4:-1]] == [
        *("1000 (1000 to 1000)", "2000 (2000 to 2000)", "6.2", "87.2", "24", "21", "3.0")
    ]


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lsgd.bench.padding_plot", None)
    assert padding.draw(made_up()) == {}
    report = padding.report(made_up(missing={"TensorFlow, Keras": "no network"}))
    assert report.endswith("- TensorFlow, Keras is not measured: no network")


def test_without_tensorflow_the_others_are_measured(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(**_: Any) -> None:
        raise Refused("no network")

    monkeypatch.setattr(padding, "open_tensorflow", fails)
    result: dict[str, Any] = {"missing": {}}
    prepared = padding._prepared(
        padding.KERAS, recipe, [4], padding.Namespace(limit=1), padding.ExitStack(), Path(), result
    )
    assert list(prepared) == []
    assert result["missing"] == {padding.KERAS: "no network"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["+recipe=digits"], "bench padding knows only data.workload=tagging, and digits has"),
        (["+recipe=conll_bilstm_crf"], "model=bilstm_crf is there in torch alone"),
        ([CONLL, "--sentences", "0"], "--sentences: 0 is not a whole number of 1 or more"),
        ([CONLL, "--batches", "0"], "--batches 0 is not a list of numbers from 1 on"),
        ([CONLL, "--rounds", "3"], "--rounds 3 is too few"),
    ],
)
def test_what_makes_no_sense_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refusal(main, capsys, "padding", *words)
