"""A study trains a recipe by the best point of a search, and says so."""

import json
import re
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from lsgd import config
from lsgd.errors import UsageError
from lsgd.recipe.study import Entry, Study, check_study
from lsgd.report import report
from lsgd.rules.metric import TOP1
from lsgd.run.tuned import apply_search_results
from lsgd.search.record import SearchRecord, save_record
from lsgd.search.trial import FINISHED, Trial
from lsgd.study.planned_runs import planned_runs

STUDY = Study(
    name="one", title="One", question="Is it?", source="nobody", baseline="digits", seeds=[0, 1],
    entries=[Entry("digits", "tuned", search="mine"), Entry("digits_unscaled", "as it is")],
)  # fmt: skip
NOON = datetime(2026, 1, 1, 12)
POINTS = [
    Trial(n, {"schedule.reference_lr": 0.5 * n}, FINISHED, 9.0 - n, {}, "", NOON, NOON)
    for n in (1, 2)
]  # fmt: skip


@pytest.fixture
def searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs/searches/mine"
    folder.mkdir(parents=True)
    save_record(
        SearchRecord("mine", "Mine", "a command", "tpe", 2, 4, TOP1, POINTS, [], [], {}), folder
    )
    (folder / "search.json").write_text(json.dumps({"recipe": "digits"}))
    return folder


@pytest.mark.slow
def test_a_recipe_is_trained_with_what_its_search_has_found(searched: Path) -> None:
    study = apply_search_results(STUDY)
    tuned, _, other, _ = planned_runs(study, ["epochs=31"])
    assert tuned.recipe.schedule.reference_lr == 1.0
    assert tuned.overrides == ["seed=0", "epochs=31", "schedule.reference_lr=1.0"]
    assert other.overrides == ["seed=0", "epochs=31"]
    for trial in planned_runs(study, []):
        write_run(trial.folder, config.to_yaml(trial.recipe))
    page = report([Path("runs/trials")], study, Path("out")) / "README.md"
    text = page.read_text()
    assert "`schedule.reference_lr=1.0`, the best trial of `runs/searches/mine`" in text
    assert re.search(r"\| tuned +\|.*10\.00", text)


def write_run(folder: Path, recipe: str) -> None:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(recipe)
    rows = [
        {"kind": "epoch", "step": epoch, "epoch": epoch, "val_top1_error": 10.0,
         "train_top1_error": 9.0} for epoch in range(1, 31)
    ]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("gone", "where no search exists; run python -m lsgd.search search=mine first"),
        ("more", "which has tried 2 of 3 trials; rerun its command to resume it"),
        (
            "crashed",
            "has tried 1 of 2 trials; rerun its command with --retry-failed to retry those that",
        ),
        ("other", "which is a search of fashion_bs64; write a search of digits"),
    ],
)
def test_a_search_that_does_not_suit_is_told(wrong: str, sentence: str, searched: Path) -> None:
    match wrong:
        case "gone":
            (searched / "points.json").unlink()
        case "more":
            save_record(
                SearchRecord("mine", "", "", "tpe", 3, 4, TOP1, POINTS, [], [], {}), searched
            )
        case "crashed":
            record = SearchRecord("mine", "", "", "tpe", 2, 4, TOP1, POINTS, [], [], {}, crashed=1)
            save_record(record, searched)
        case "other":
            (searched / "search.json").write_text(json.dumps({"recipe": "fashion_bs64"}))
    with pytest.raises(UsageError, match=re.escape(sentence)):
        apply_search_results(STUDY)


def test_only_a_search_gives_an_entry_words() -> None:
    entries = [replace(STUDY.entries[0], words=["epochs=3"]), STUDY.entries[1]]
    with pytest.raises(UsageError, match="has overrides for digits; write a recipe with them"):
        check_study(replace(STUDY, entries=entries), config.sorted_recipe_names())
