"""The folder of a report: page, figures, summary, what it keeps, and what it leaves alone."""

import errno
import io
import json
import re
import shutil
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from unittest.mock import Mock
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers.run_folders import write_finished_run, write_perplexity_run, write_run
from helpers.usage_errors import usage_error
from PIL import Image

from lsgd import definitions, files
from lsgd.errors import UsageError
from lsgd.report import __main__ as command
from lsgd.report import figures, report
from lsgd.report import folder as report_folder
from lsgd.report.drawing import BLUE, Figure, draw_figure
from lsgd.report.run_archive import FILE, unpack
from lsgd.report.run_folders import find_runs
from lsgd.run.read import read_run

REPOSITORY = Path(__file__).resolve().parents[2]
DIGITS = REPOSITORY / "results" / "2026-11-20-digits"


def fill(folder: Path) -> Path:
    """A study with runs that are finished, diverged and missing, and a ladder of three."""
    for recipe, errors in {
        "fashion_bs64": (8.0, 8.1, 8.2),
        "fashion_bs1k": (8.1, 8.2, 8.3),
        "fashion_bs2k": (16.0, 16.2, 16.1),
        "fashion_bs2k_no_warmup": (30.0, 29.0, 31.0),
        "fashion_bs2k_fixed_lr": (22.0,),
    }.items():
        for seed, error in enumerate(errors):
            write_finished_run(folder, recipe, seed, error)
    for seed in (0, 1):
        write_run(
            folder / f"diverged-{seed}",
            "+recipe=fashion_bs2k_constant_warmup",
            seed=seed,
            errors=[90.0, 90.1],
            diverged=True,
        )
    return folder


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures, which take most of the time of a report, are empty."""

    def empty(name: str, title: str, alt: str, *_: object, **__: object) -> Figure:
        return Figure(name, title, alt, "<svg/>", b"a picture")

    monkeypatch.setattr(figures, "draw_figure", empty)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a study."""
    folder = tmp_path_factory.mktemp("made")
    study = definitions.load_study("fashion_table1_warmup")
    return report([fill(folder / "trials")], study, folder / "out")


def summary(folder: Path) -> dict[str, dict[str, object]]:
    """What summary.json says of each recipe."""
    told = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return {recipe["recipe"]: recipe for recipe in told["recipes"]}


@pytest.mark.slow
def test_the_numbers_are_the_same_in_all_three_forms(made: Path) -> None:
    texts = [(made / name).read_text(encoding="utf-8") for name in ("README.md", "index.html")]
    for text in texts:
        assert "8.10 ± 0.10" in text
        assert "+8.00 (+7.77 to +8.23)" in text
        assert "2 of 2 diverged" in text
        assert "Partial: 15 of 18 runs are finished; 2 of them diverged." in text
        assert "Claims that hold: 2 of 5; that do not hold: 1; not resolved: 2." in text
        assert "23.74 ± 0.09" in text  # the paper's, beside
        assert "counts with the error of guessing: 90 % with 10 classes" in text
    found = summary(made)["fashion_bs2k"]
    assert found["mean"] == pytest.approx(16.1)
    assert found["std"] == pytest.approx(0.1)
    assert found["errors"] == {"0": 16.0, "1": 16.2, "2": 16.1}
    assert found["verdict"] == "not comparable"
    diverged = summary(made)["fashion_bs2k_constant_warmup"]
    assert (diverged["mean"], diverged["errors"]) == (None, {"0": None, "1": None})


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_real_runs_give_the_numbers_that_were_written_down_by_hand(tmp_path: Path) -> None:
    kept = unpack(DIGITS / FILE)
    runs = sorted(kept.glob("two-threads-*"))
    found = summary(report(runs, None, tmp_path / "out"))
    # The README there: 1.7 +- 0.2, 39.6 +- 4.9, 2.4 +- 0.3 and 2.0 +- 0.6.
    rounded = {name: (f"{each['mean']:.1f}", f"{each['std']:.1f}") for name, each in found.items()}
    assert rounded == {
        "digits_reference": ("1.7", "0.2"),
        "digits_unscaled": ("39.6", "4.9"),
        "digits_no_warmup": ("2.4", "0.3"),
        "digits": ("2.0", "0.6"),
    }
    # And once more, from the lines themselves.
    errors = []
    for folder in kept.glob("two-threads-digits-seed*"):
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        epochs = [json.loads(line) for line in lines if '"kind": "epoch"' in line]
        errors.append(sorted(row["val_top1_error"] for row in epochs[-5:])[2])
    assert found["digits"]["mean"] == pytest.approx(sum(errors) / 4)
    assert found["digits"]["std"] == pytest.approx(statistics.stdev(errors))


@pytest.fixture(scope="module")
def made_of_perplexities(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a study of three minibatches, with a run that has diverged."""
    folder = tmp_path_factory.mktemp("perplexities")
    for recipe, least in (("fashion_bs64", 110), ("fashion_bs1k", 120), ("fashion_bs2k", 130)):
        for seed in range(3):
            values = [least + 8 * left + seed for left in range(8, -1, -1)]
            name = folder / "trials" / f"{recipe}-{seed}"
            words = f"+recipe={recipe}"
            diverged = recipe == "fashion_bs2k" and seed == 2
            values = values[:2] if diverged else values
            write_perplexity_run(name, words, seed=seed, perplexities=values, diverged=diverged)
    return report(
        [folder / "trials"], definitions.load_study("fashion_table1_warmup"), folder / "out"
    )


@pytest.mark.slow
def test_a_report_on_perplexities_speaks_of_no_error_and_no_image(
    made_of_perplexities: Path,
) -> None:
    for name in ("README.md", "index.html"):
        text = (made_of_perplexities / name).read_text(encoding="utf-8").replace("(95 %)", "")
        for word in (
            " %)",
            "points",
            "images",
            "top-1",
            "central view",
            "ImageNet, is 8k",
            "paper, ",
        ):
            assert word not in text, word
        assert "error" not in text.lower()
        for part in (
            "111.00 ± 1.00",
            "test perplexity",
            "130.50 ± 0.71, 1 of 3 diverged",
            "+10.00 (+7.73 to +12.27), and at most 0.5 is claimed",
            "counts with the perplexity of guessing: 10 with 10 classes.",
            "tokens/s",
            "Perplexity of a run: validation perplexity of its last epoch.",
        ):
            assert part in text, part
    curves = (made_of_perplexities / "curves-fashion_bs1k.svg").read_text(encoding="utf-8")
    assert ">perplexity<" in curves
    assert ">150<" in curves  # the axis goes as far as the values
    numbers = json.loads((made_of_perplexities / "summary.json").read_text(encoding="utf-8"))
    assert numbers["metric"] == "perplexity"
    assert numbers["recipes"][0]["errors"] == {"0": 110, "1": 111, "2": 112}


@pytest.mark.usefixtures("undrawn")
def test_a_report_on_epochs_to_a_target_says_who_never_had_it_and_judges_as_mlperf(
    tmp_path: Path,
) -> None:
    """Four of five runs have 24.1 % after 36, 35, 34 and 37 epochs, one never."""
    for seed, epochs in enumerate((36, 35, 34, 37, 39)):
        errors = [30.0] * (epochs - 1) + [24.1 if epochs < 39 else 24.2]
        write_run(tmp_path / f"runs/{seed}", "+recipe=mlperf_bs3264", seed=seed, errors=errors[:38])
    out = report([tmp_path / "runs"], None, tmp_path / "report")
    text = (out / "README.md").read_text(encoding="utf-8")
    for part in (
        "## Epochs\n",
        "epochs to top-1 error 24.10 %",
        "35.50 ± 1.29",
        "1 of 5 runs never reached it. The mean is that of the others; in the claims such a run "
        "counts with all epochs of its run, 38, which is too few: so it may be shown to be "
        "worse, and never to be as good.",
        "## Judged as MLPerf does",
        "36 35 34 37 ∞",
        "| never ",
        "Top-1 error by epoch",
    ):
        assert part in text, part
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert summary["metric"] == "epochs to top1_error 24.1"
    assert summary["recipes"][0]["errors"] == {"0": 36, "1": 35, "2": 34, "3": 37, "4": None}


@pytest.mark.usefixtures("undrawn")
def test_whatever_lies_there_is_left_out_with_a_reason(tmp_path: Path) -> None:
    """And its name and reason, whatever is in them, are no part of the page's HTML."""
    trials = tmp_path / "trials"
    write_finished_run(trials, "fashion_bs64", 0, 8.0)
    write_run(trials / "running", "+recipe=fashion_bs64", seed=1, errors=[30.0, 20.0])
    write_run(trials / "rehearsed", "+recipe=fashion_bs64", "rehearse=true", errors=[50.0])
    write_run(trials / "no rows", "+recipe=fashion_bs64")
    (trials / "no rows/metrics.jsonl").write_text("")
    (trials / "nothing").mkdir()
    odd = trials / "odd <b>|&\x01\udcff`"
    odd.mkdir()
    (odd / "config.yaml").write_text("'<script>\\x01': 1\n")
    (trials / "loop").symlink_to(trials)
    report([tmp_path], None, tmp_path / "out")

    out = report([tmp_path], None, tmp_path / "out")  # it does not read what it has kept

    told = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    reasons = {each["folder"]: each["reason"] for each in told["left_out"]}
    assert reasons.pop(odd.name).startswith("config.yaml is not of a run of this lsgd: there is")
    assert reasons == {
        "running": "2 of 9 epochs done: it is running, or was stopped",
        "rehearsed": "a dry run: its errors mean nothing",
        "no rows": "empty: metrics.jsonl has no rows",
        "nothing": "it has no config.yaml",
        "out": "it is a report; give it alone to report on its runs again",
    }
    assert summary(out)["fashion_bs64"]["errors"] == {"0": 8.0}
    page = (out / "index.html").read_text(encoding="utf-8")
    ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>"))
    text = (out / "README.md").read_text(encoding="utf-8")
    for name in ("running", "rehearsed", "no rows", "nothing"):
        assert name in page
        assert name in text
    assert "<script>" not in page
    assert "<script>" not in re.sub("`[^`]*`", "", text)
    assert "\x01" not in text


def test_a_name_is_no_formula_of_a_figure_and_no_path(tmp_path: Path) -> None:
    """Nor a part of its SVG's markup, which no control character may be in."""
    name = '../a<b>"\x01$\\frac$'
    figure = draw_figure(
        f"curves-{name}", "title", "alt", lambda axes: axes.set_title(name) and None
    )
    assert figure.name == "curves-..-a-b-----frac-"
    svg = ElementTree.fromstring(figure.svg)
    assert name.replace("\x01", "\ufffd") in [text.text for text in svg.iter() if text.text]


@pytest.mark.usefixtures("undrawn")
def test_a_full_disk_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_finished_run(tmp_path / "trials", "fashion_bs64", 0, 8.0)
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(files.os, "replace", full)
    assert command.main([str(tmp_path / "trials"), "--out", str(tmp_path / "out")]) == 6
    said = capsys.readouterr().err
    assert said.startswith(f"lsgd: {tmp_path}/out/summary.json could not be written (No space left")
    assert said.count("\n") == 1


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_finished_run(tmp_path / "trials", "fashion_bs64", 0, 8.0)
    (tmp_path / "file").touch()
    monkeypatch.setattr(report_folder, "compute_findings", None)
    monkeypatch.setattr(command, "write_ladder", None)
    for argument in str(tmp_path / "trials"), "--ladder":
        assert command.main([argument, "--out", str(tmp_path / "file/below")]) == 2
        said = capsys.readouterr().err
        assert "/file/below cannot be made (Not a directory); write another folder\n" in said
        assert said.count("\n") == 1


@pytest.mark.usefixtures("undrawn")
def test_only_a_study_has_a_report_without_runs(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with pytest.raises(UsageError, match=r"no run is in .*write run folders"):
        report([tmp_path / "runs"], None, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    study = definitions.load_study("fashion_table1_warmup")
    command = "python -m lsgd.study +study=fashion_table1_warmup"
    out = report([tmp_path / "runs"], study, tmp_path / "study", command=command)
    assert "Partial: 0 of 18 runs" in (out / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_page_is_whole_and_needs_nothing_else(made: Path) -> None:
    page = (made / "index.html").read_text(encoding="utf-8")
    tree = ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>"))
    assert "http" not in page
    assert "<script" not in page
    assert "@import" not in page
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", page))
    ids = [element.attrib["id"] for element in tree.iter() if "id" in element.attrib]
    assert len(set(ids)) == len(ids)
    targets = [element.attrib["href"] for element in tree.iter() if "href" in element.attrib]
    targets += re.findall(r"url\(([^)]*)\)", page)
    assert targets
    assert all(target[1:] in ids for target in targets)
    assert not any("src" in element.attrib for element in tree.iter())
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page
    assert len(list(tree.iter("svg"))) == len(list(made.glob("*.svg")))


@pytest.mark.slow
def test_figures_are_there_and_show_something(made: Path) -> None:
    drawn = {path.stem for path in made.glob("*.png")}
    assert drawn == {path.stem for path in made.glob("*.svg")}
    ends = ["1k", "2k", "2k_no_warmup", "2k_fixed_lr", "2k_constant_warmup"]
    assert drawn == {
        "figure1",
        "figure1-steps",
        "lr",
        *(f"curves-fashion_bs{each}" for each in ends),
    }
    assert "the paper" not in (made / "figure1.svg").read_text(encoding="utf-8")
    for name in drawn:
        texts = list(ElementTree.parse(made / f"{name}.svg").getroot().itertext())
        # Runs that never learned are at the top.
        assert "100" in texts or not name.startswith("curves-")
        pixels = np.asarray(Image.open(io.BytesIO((made / f"{name}.png").read_bytes())))[..., :3]
        coloured = (np.ptp(pixels.astype(int), axis=2) > 60).sum()
        assert coloured > 500, name  # a line in a colour, not axes alone
        assert f"({name}.svg)" in (made / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_recipe_without_a_finished_epoch_has_no_curves(tmp_path: Path) -> None:
    """And a single epoch is a dot, since a line of one point is invisible."""
    trials = tmp_path / "trials"
    for name, ends in (("digits", []), ("digits_unscaled", []), ("digits_no_warmup", [50.0])):
        write_run(trials / name, f"recipe={name}", errors=ends, diverged=True)
    out = report([trials / "digits", trials / "digits_unscaled"], None, tmp_path / "none")
    assert [path.name for path in out.glob("*.svg")] == ["lr.svg"]
    assert "by epoch (the paper" not in (out / "README.md").read_text(encoding="utf-8")
    out = report([trials], None, tmp_path / "one")
    assert [path.stem for path in out.glob("curves-*.svg")] == ["curves-digits_no_warmup"]
    drawn = (out / "curves-digits_no_warmup.svg").read_text(encoding="utf-8")
    dots = re.findall(r"<use [^>]*(#\w+)[^>]*/>", drawn)
    assert dots.count(BLUE) >= 2, "training and validation"


@pytest.mark.slow
def test_figure_1_of_imagenet_has_the_papers_points_beside(tmp_path: Path) -> None:
    for name, error in {"bs256": 24.0, "bs512": 24.1, "bs8k": 24.2}.items():
        write_run(tmp_path / "runs" / name, f"+recipe={name}", errors=[error] * 90)
    out = report([tmp_path / "runs"], None, tmp_path / "out")
    assert "the paper" in (out / "figure1.svg").read_text(encoding="utf-8")
    assert not (out / "figure1-steps.svg").exists()


@pytest.mark.slow
def test_another_dataset_has_the_papers_curve_by_steps_per_epoch(tmp_path: Path) -> None:
    """Not by minibatch, where 256 images would stand beside the paper's 256; and from baselines."""
    errors = {"fashion_ladder_bs8": 8.0, "fashion_ladder_bs256": 8.1, "fashion_ladder_bs2k": 12.5}
    for name, error in errors.items():
        write_run(tmp_path / "runs" / name, f"+recipe={name}", errors=[error] * 18)
    out = report([tmp_path / "runs"], definitions.load_study("fashion_ladder"), tmp_path / "out")
    assert (
        "here 7500: +0.00, 234: +0.10, 29: +4.50; the paper 5004: +0.00, 156: +0.14, 19: +10.36]"
        "(figure1-steps.svg)"
    ) in (out / "README.md").read_text(encoding="utf-8")
    assert "the paper, ImageNet" in (out / "figure1-steps.svg").read_text(encoding="utf-8")


@pytest.mark.usefixtures("undrawn")
def test_a_report_keeps_what_results_needs(tmp_path: Path) -> None:
    words = ("data.root=/secret/place", f"run_dir={tmp_path}/a")
    first = write_finished_run(tmp_path / "a", "fashion_bs64", 0, 8.0, *words)
    second = write_finished_run(tmp_path / "b", "fashion_bs64", 0, 9.0)
    out = report([tmp_path / "a", tmp_path / "b"], None, tmp_path / "out")
    kept = unpack(out / FILE) / first.name
    assert (out / f"arms/{first.name}.yaml").read_text() == (kept / "config.yaml").read_text()
    assert "secret" not in (kept / "config.yaml").read_text()
    assert read_run(kept).recipe.fingerprint == read_run(first).recipe.fingerprint
    assert (kept / "metrics.jsonl").read_bytes() == (first / "metrics.jsonl").read_bytes()
    repeat = kept.with_name(f"{second.name}-2")
    assert (repeat / "metrics.jsonl").read_bytes() == (second / "metrics.jsonl").read_bytes()
    # What was kept is enough to make the same report again.
    again = report([out], None, tmp_path / "again")
    assert summary(again) == summary(out)


@pytest.mark.usefixtures("undrawn")
def test_a_report_keeps_runs_of_hidden_folders(tmp_path: Path) -> None:
    """Under a name that is not hidden, so that they are found in the report again."""
    run = write_finished_run(tmp_path, "fashion_bs64", 0, 8.0)
    hidden = [run.rename(tmp_path / ".trial"), tmp_path / "lost+found"]
    shutil.copytree(*hidden)
    out = report(hidden, None, tmp_path / "out")
    found, left_out = find_runs([out])
    assert [each.path.name for each in found] == ["run-.trial", "run-lost+found"]
    assert not left_out, "not even the configurations in arms"


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("undrawn")
def test_a_report_overwrites_nothing_but_a_report(tmp_path: Path) -> None:
    trials = tmp_path / "trials"
    run = write_finished_run(trials, "fashion_bs64", 0, 8.0)
    out = report([trials], None, tmp_path / "out")
    kept = report([trials], None, tmp_path / "results/2026-11-20-a")
    shutil.copy(out / "summary.json", run)  # as a report of before this was refused
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/README.md").write_text("mine")
    before = content(tmp_path)
    for where, why in {
        trials: "no report wrote",
        run: "no report wrote",
        out: "contains runs of this report",
        kept: "results are never overwritten",
        tmp_path / "mine": "no report wrote",
        tmp_path / "mine/README.md": "is a file",
    }.items():
        given = out / run.name if where is out else trials
        with pytest.raises(UsageError, match=why):
            report([given], None, where)
    with pytest.raises(UsageError, match="is a file"):
        command.write(["--ladder", "--out", str(tmp_path / "mine/README.md")])
    assert content(tmp_path) == before


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_a_report_that_was_killed_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its first file, after it, and before its last."""
    trials = tmp_path / "trials"
    write_finished_run(trials, "fashion_bs64", 0, 8.0)
    wanted = len(content(report([trials], None, tmp_path / "whole")))
    whole = files.atomic_write
    for number in (0, 1, wanted - 1):
        out, left = tmp_path / f"out-{number}", number

        @contextmanager
        def dies(path: Path) -> Iterator[BinaryIO]:
            nonlocal left
            if not left:
                path.with_name(f".{path.name}.part").touch()
                raise KeyboardInterrupt
            left -= 1
            with whole(path) as opened:
                yield opened

        with monkeypatch.context() as patch:
            patch.setattr(files, "atomic_write", dies)
            with pytest.raises(KeyboardInterrupt):
                report([trials], None, out)
        assert not (out / "README.md").exists()
        report([trials], None, out)
        assert len(content(out)) == wanted
        assert not list(out.rglob(".*.part"))


@pytest.mark.usefixtures("undrawn")
def test_names_in_an_old_summary_cannot_lead_elsewhere(tmp_path: Path) -> None:
    trials = tmp_path / "trials"
    write_finished_run(trials, "fashion_bs64", 0, 8.0)
    out = report([trials], None, tmp_path / "out")
    mine = [tmp_path / "mine.txt", tmp_path / "other.txt"]
    for path in mine:
        path.write_text("mine")
    told = json.loads((out / "summary.json").read_text())
    told["files"] += [str(mine[0]), "../other.txt"]
    (out / "summary.json").write_text(json.dumps(told))
    report([trials], None, out)
    assert all(path.exists() for path in mine)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("name", [".", "..", "../run"])
def test_a_run_is_kept_by_its_name_wherever_it_is_asked_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    run = write_finished_run(tmp_path, "fashion_bs64", 0, 8.0).rename(tmp_path / "run")
    here = run / "below" if name == ".." else run
    here.mkdir(exist_ok=True)
    monkeypatch.chdir(here)
    report([Path(name)], None, tmp_path / "out")
    assert (unpack(tmp_path / "out" / FILE) / "run/config.yaml").exists()


@pytest.mark.usefixtures("undrawn")
def test_links_in_the_folder_of_a_report_lead_nowhere(tmp_path: Path) -> None:
    """Neither what an earlier one wrote, nor what this one writes, is behind them."""
    trials, mine = tmp_path / "trials", tmp_path / "mine"
    write_finished_run(trials, "fashion_bs64", 0, 8.0)
    out = report([trials], None, tmp_path / "out")
    mine.mkdir()
    (mine / "note").write_text("mine")
    (out / "more").symlink_to(mine)
    told = json.loads((out / "summary.json").read_text())
    told["files"] += ["more/note"]
    (out / "summary.json").write_text(json.dumps(told))
    (out / ".README.md.part").symlink_to(mine / "note")
    report([trials], None, out)
    assert (mine / "note").read_text() == "mine"
    shutil.rmtree(out / "arms")
    (out / "arms").symlink_to(mine)
    with pytest.raises(UsageError, match="contains a link to another place"):
        report([trials], None, out)
    assert [path.name for path in mine.iterdir()] == ["note"]


@pytest.mark.usefixtures("undrawn")
def test_a_run_that_cannot_be_understood_is_named_and_the_exit_code_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_finished_run(tmp_path / "trials", "fashion_bs64", 0, 8.0)
    words = [str(tmp_path / "trials"), "--out", str(tmp_path / "out")]
    assert command.main(words) == 0
    bad = write_finished_run(tmp_path / "trials", "fashion_bs64", 1, 8.0)
    (bad / "metrics.jsonl").write_text("[" * 100_000 + "\n{}\n{}\n")
    assert command.main(words) == 1
    assert f"`{bad}`: line 1 of metrics.jsonl is damaged" in capsys.readouterr().out


@pytest.mark.usefixtures("undrawn")
def test_a_report_is_made_again_in_its_place(tmp_path: Path) -> None:
    trials = tmp_path / "trials"
    for recipe in ("fashion_bs64", "fashion_bs2k", "fashion_bs2k_no_warmup"):
        write_finished_run(trials, recipe, 0, 8.0)
    out = report([trials], None, tmp_path / "out")
    (out / "mine.txt").write_text("a note")
    before = content(out)
    report([trials], None, out)
    assert content(out) == before
    shutil.rmtree(trials / "fashion_bs2k_no_warmup-seed0")
    report([trials], None, out)
    assert not (out / "curves-fashion_bs2k_no_warmup.png").exists()
    assert not (out / "arms/fashion_bs2k_no_warmup-seed0.yaml").exists()
    assert (out / "arms/fashion_bs2k-seed0.yaml").exists()
    assert (out / "mine.txt").exists()


@pytest.mark.usefixtures("undrawn")
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trials = tmp_path / "trials"
    write_finished_run(trials, "fashion_bs64", 0, 8.0)
    words = [str(trials), "--study", "fashion_table1_warmup", "--out", str(tmp_path / "out")]
    assert command.main(words) == 0
    shown = capsys.readouterr().out
    assert re.search(r"\| baseline, kn = 64 +\| +8\.00 \| 1 of 3 \|", shown)
    assert shown.splitlines()[-1] == str(tmp_path / "out" / "index.html")
    assert f"--study fashion_table1_warmup --out {tmp_path / 'out'}" in shown


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "no run is given"),
        (["nowhere"], "nowhere is not a folder"),
        (
            ["tests/golden"],
            "no run is in tests/golden (tests/golden/launch: it has no config.yaml)",
        ),
        (["results", "--study", "nothing"], "study=nothing does not exist"),
        (["--table", "nowhere.md"], "cannot be read"),
    ],
)
def test_what_cannot_be_done_is_refused(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in usage_error(command.main, capsys, *words)


@pytest.mark.parametrize("library", ["matplotlib", "scipy"])
def test_without_a_library_it_says_what_to_type_and_writes_nothing(
    library: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_finished_run(tmp_path / "trials", "fashion_bs64", 0, 8.0)
    monkeypatch.setitem(sys.modules, library, None)
    words = [str(tmp_path / "trials"), "--out", str(tmp_path / "o")]
    assert re.search(
        rf"a report needs {library} for .*\[report\]'", usage_error(command.main, capsys, *words)
    )
    assert not (tmp_path / "o").exists()
