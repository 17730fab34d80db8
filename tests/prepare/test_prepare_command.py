"""The command line: each way it ends short is one sentence that says how to go on."""

from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest

from lsgd.errors import UsageError
from lsgd.job.system import usable_cores
from lsgd.prepare import cifar10
from lsgd.prepare.__main__ import main, prepare


@pytest.mark.parametrize("words", [[], ["mnist"], ["imagenet"], ["cifar10", "--bogus"]])
def test_words_that_make_no_sense(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Those of a dataset's own parser too."""
    assert main(words) == 2
    told = capsys.readouterr().err
    assert told.startswith("lsgd: ")
    assert "; see --help" in told or "mnist does not exist; did you mean " in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (KeyboardInterrupt(), 130, "\nlsgd: interrupted; rerun the same command to resume\n"),
        (
            OSError("No space left on device"),
            2,
            "lsgd: No space left on device; fix that and rerun the same command to resume\n",
        ),
    ],
)
def test_the_same_command_goes_on(
    error: BaseException,
    code: int,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cifar10, "prepare", Mock(side_effect=error))
    assert main(["cifar10", "somewhere"]) == code
    assert capsys.readouterr().err == sentence


@pytest.mark.parametrize("command", ["folder", "index"])
def test_fewer_processes_can_be_asked_for(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As the error of a process that is out of memory advises."""
    asked: list[int] = []

    def note(*_: object, processes: int, **__: object) -> None:
        asked.append(processes)
        raise UsageError("noted")

    monkeypatch.setattr("lsgd.prepare.folder.index_folder", note)
    monkeypatch.setattr("lsgd.prepare.webdataset.index_shards", note)
    for split in ("train", "val"):
        (tmp_path / split / "n01").mkdir(parents=True)
        (tmp_path / split / "n01/a.png").touch()
        (tmp_path / split / "0.tar").touch()
    assert main([command, str(tmp_path), "--processes", "1"]) == 2
    assert main([command, str(tmp_path)]) == 2
    assert asked == [1, len(usable_cores())]
    assert main([command, str(tmp_path), "--processes", "0"]) == 2
    assert "0 is not a whole number of 1 or more" in capsys.readouterr().err


def test_an_option_of_another_subcommand_is_not_suggested_for_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["cifar10", "--processes", "2"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("lsgd: option --processes does not exist; ")
    assert told.count("--processes") == 1


def test_an_unusable_default_folder_ends_only_the_command_that_needs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It ended each command, and --help, without the name of the variable."""
    monkeypatch.setenv("LSGD_DATA", "s3://bucket")
    with pytest.raises(SystemExit) as ended:
        prepare(["cifar10", "--help"])
    assert ended.value.code == 0
    with pytest.raises(UsageError, match=r"train/CLASS does not exist"):
        prepare(["folder", str(tmp_path)])
    with pytest.raises(UsageError, match=r"LSGD_DATA=s3://bucket is a URL, but lsgd reads"):
        prepare(["cifar10"])
