"""Studies, as a user asks for them."""

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from helpers.studies import Place

from lsgd import paths
from lsgd.study.__main__ import main


def test_print_starts_nothing(place: Place) -> None:
    code, said = place.run("+study=small", "epochs=31", "seeds=[1]", "--np", "1", "--print")
    assert code == 0
    assert not (place.folder / "runs").exists()
    lines = said.splitlines()
    assert lines[::2] == ["# digits, seed 1: not started", "# digits_unscaled, seed 1: not started"]
    python = re.escape(shlex.quote(sys.executable))
    for line, recipe in zip(lines[1::2], ("digits", "digits_unscaled"), strict=True):
        assert re.fullmatch(
            f"{python} -m lsgd.launch local {recipe} seed=1 epochs=31 "
            f"run_dir=runs/trials/{recipe}-seed1-[0-9a-f]{{8}} --np 1",
            line,
        )


def test_a_study_that_cannot_be_read_stops_no_other(
    installation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(installation / "recipes", tmp_path / "recipes")
    (tmp_path / "recipes/study/bad.yaml").write_text("title: [")
    monkeypatch.setattr(paths, "recipes_dir", lambda: tmp_path / "recipes")
    monkeypatch.chdir(tmp_path)
    assert main(["+study=small", "--np", "1", "--print"]) == 0
    assert main(["--help"]) == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "which study? Write one, for example +study=digits; --help lists them all"),
        ("small", "'small' is not of the form key=value; write +study=small"),
        ("study=small", "'study=small' needs a plus sign; write +study=small"),
        ("+study=smal", "+study=smal does not exist; did you mean small?"),
        ("+study=small +study=digits", "which study? Write one"),
        ("+study=small name=a", "'name=a' cannot be said to a study"),
        ("+study=small seed=1", "write seeds=[0,1] for some of them"),
        ("+study=small ++run_dir=a", "the folder of a trial is named by recipe, seed"),
        ("+study=small +recipe=digits", "a study has its recipes"),
        ("+study=small rehearse=true", "a rehearsal has no result"),
        ("+study=small seeds=[0,5]", "seeds=[0,5] has 5, and the study has the seeds 0, 1; write"),
        (
            "+study=fashion_table2_gamma model.last_gamma=0",
            "model.last_gamma=0 makes fashion_bs64 and fashion_bs64_gamma0 the same run",
        ),
        ("+study=small --launch k8s --kind mpijob --image a --claim c", "write --print for the"),
        ("+study=small seeds=1", "seeds=1 is not a list of numbers; write seeds=[0,1]"),
        ("+study=small epoch=1", "there is no key 'epoch'; did you mean epochs?"),
        ("+study=nothing", "+study=nothing does not exist; write one of "),
        ("+study=small --launch sbatch", "write one of horovodrun, k8s, local, mpirun"),
        ("+study=small --launch job", "--launch job does not exist"),
        ("+study=small --nodes 2", "--nodes is an option of torchrun,"),
        ("+study=small --np 2 --np", "--np has no value"),
        ("+study=small --launch mpirun --np 2 --gpus 2", "write one of them"),
        ("+study=small --np x", "--np is x, but must be a number"),
        ("+study=small --jobs 0", "0 is not a whole number of 1 or more"),
        ("+study=small --jobs", "expected one argument"),
        ("+study=small --launch slurm --jobs 2", "leave out --jobs"),
    ],
)
def test_what_makes_no_sense_is_said_in_a_sentence(
    words: str, sentence: str, installation: Path, place: Place,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(place.folder)
    monkeypatch.setattr(paths, "_PACKAGE", installation / "lsgd")
    assert main(words.split()) == 2
    said = capsys.readouterr().err
    assert said.startswith("lsgd: ")
    assert sentence in said
    assert said.count("\n") == 1
    assert not (place.folder / "runs").exists()
