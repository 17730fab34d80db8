"""The table of results/README.md is what the folders beside it say."""

import json
from pathlib import Path

import pytest
from helpers.run_folders import write_finished_run, write_perplexity_run, write_run

from lsgd import definitions
from lsgd.errors import UsageError
from lsgd.report import report
from lsgd.report.claims import HOLDS
from lsgd.report.results import BEGIN, END, _verdict, results_table, with_table, write_table
from lsgd.report.run_archive import FILE
from lsgd.rules.metric import named_metric

REPOSITORY = Path(__file__).resolve().parents[2]


def test_the_page_is_current() -> None:
    text = (REPOSITORY / "results" / "README.md").read_text(encoding="utf-8")
    assert with_table(text, REPOSITORY / "results") == text, "run make results"


def test_every_row_has_its_folder_and_every_folder_of_runs_its_row() -> None:
    results = REPOSITORY / "results"
    table = results_table(results)
    for folder in results.iterdir():
        if (folder / FILE).exists() and (folder / "summary.json").exists():
            assert f"({folder.name}/README.md)" in table
            assert (folder / "README.md").exists()


@pytest.mark.slow
def test_a_partial_study_says_so_in_its_row(tmp_path: Path) -> None:
    trials = tmp_path / "trials"
    write_finished_run(trials, "fashion_bs64", 0, 8.0)
    write_finished_run(trials, "fashion_bs64", 1, 8.2)
    write_finished_run(trials, "fashion_bs2k", 0, 16.0)
    write_finished_run(trials / "later", "fashion_bs2k", 0, 17.0)
    write_run(trials / "d", "+recipe=fashion_bs1k", errors=[90.0], diverged=True)
    study = definitions.load_study("fashion_table1_warmup")
    report([trials], study, tmp_path / "results" / "2026-11-20-a")
    readme = tmp_path / "results" / "README.md"
    readme.write_text(f"before\n{BEGIN}\nstale\n{END}\nafter\n")
    write_table(readme)
    text = readme.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "stale" not in text
    assert "(2026-11-20-a/README.md), partial: 4 of 18 runs" in text
    assert "| baseline, kn = 64 | 8.10 ± 0.14 | 2 | 23.60 ± 0.12, not comparable |" in text
    assert "| kn = 2048, gradual warmup | 16.00 | 1; 1 repeat, 17.00 |" in text
    assert "| kn = 1024, gradual warmup | 1 of 1 diverged | 1 |" in text
    assert "| kn = 2048, no warmup | not run | 0 |" in text
    assert "claims: 0 hold, 0 do not hold, 5 not resolved" in text
    assert "(where a diverged run counts with the error of guessing)" in text
    assert "no minibatch above 64" not in text, "no such claim is tested yet"
    write_table(readme)
    assert readme.read_text(encoding="utf-8") == text


@pytest.mark.slow
def test_runs_of_another_metric_have_a_table_of_their_own(tmp_path: Path) -> None:
    write_finished_run(tmp_path / "a", "fashion_bs64", 0, 8.0)
    words = "+recipe=fashion_bs64"
    write_perplexity_run(tmp_path / "b" / "0", words, perplexities=[120.0] * 9)
    for name in "ab":
        report([tmp_path / name], None, tmp_path / "results" / name)
    # Those of before have no metric, and are of the top-1 error.
    assert "metric" not in json.loads((tmp_path / "results/a/summary.json").read_text())
    errors, perplexities = results_table(tmp_path / "results").split("\n\n")
    assert "| top-1 error, % | seeds | published, % |" in errors
    assert "| fashion_bs64 |           8.00 |     1 |" in errors
    assert "| perplexity | seeds | published |" in perplexities
    assert "| fashion_bs64 |     120.00 |     1 |" in perplexities
    assert len(errors.splitlines()) == len(perplexities.splitlines()) == 3


def test_without_its_markers_the_readme_stays_as_it_is(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("no table")
    with pytest.raises(UsageError, match="has no lines"):
        write_table(readme)
    assert readme.read_text() == "no table"


@pytest.mark.parametrize(
    ("metric", "counts"),
    [("top1_error", "counts with the error of guessing"), ("mean_distance", "is left out")],
)
def test_a_verdict_says_how_diverged_runs_count(metric: str, counts: str) -> None:
    summary = {"claims": [{"outcome": HOLDS}], "elbows": [], "recipes": [{"diverged": 1}]}
    said = _verdict(summary, named_metric(metric))
    assert said.endswith(f"(where a diverged run {counts})")
