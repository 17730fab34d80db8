"""What benchmarks fetch of other libraries: made once, whole or not at all, in the user's cache."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from benchmarks import environment as module
from benchmarks import torchfold
from benchmarks.environment import ensure_environment, environment_folder
from lsgd.errors import UsageError


def tiny() -> Path:
    return ensure_environment("tiny", ["tiny==1"], size="a kB")


def test_one_that_is_there_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that could not be made is not there, and what a killed one has left is not used."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    network: list[str] = []

    def finished(command: Sequence[str], *, limit: float) -> tuple[int, str]:
        """In place of venv and of pip, which has no network at first."""
        if "venv" in command:
            (Path(command[-1]) / "bin").mkdir(parents=True)
            (Path(command[-1]) / "bin/python").touch()
            return 0, ""
        # Whatever a user has told pip of packages for the user alone.
        assert command[:2] == ["env", "PIP_USER=0"]
        assert Path(command[2]).exists()
        return (0, "") if network else (1, "Collecting\nERROR: no tiny==1 is found")

    monkeypatch.setattr(module, "run_with_limit", finished)
    folder = environment_folder("tiny", ["tiny==1"])
    with pytest.raises(UsageError, match=r"^tiny==1 cannot be installed .* no tiny==1 .*a network"):
        tiny()
    assert [each.suffix for each in folder.parent.iterdir()] == [".lock"]

    (folder.with_name(f"{folder.name}.part") / "left").mkdir(parents=True)
    network.append("is there")
    capsys.readouterr()
    assert tiny() == folder / "bin/python"
    assert capsys.readouterr().out == f"installing tiny==1 into {folder}: a kB, once\n"
    assert [path.name for path in folder.iterdir()] == ["bin"]

    monkeypatch.setattr(module, "run_with_limit", None)  # so that nothing can be installed
    assert tiny() == folder / "bin/python"
    assert capsys.readouterr().out == ""
    assert environment_folder("tiny", ["tiny==1"]) != environment_folder("tiny", ["tiny==2"])


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a number in a container has none, unless HOME is set."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 7)
    with pytest.raises(UsageError, match=r"no home folder, .*; set XDG_CACHE_HOME to a folder"):
        environment_folder("tiny", ["tiny==1"])


@pytest.mark.parametrize("make", [tiny, torchfold.fetch_wheel])
def test_a_cache_that_cannot_be_written_is_refused(
    make: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UsageError, match=r"cannot be written .* set XDG_CACHE_HOME to a folder"):
        make()


def test_a_wheel_without_a_network_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torchfold, "run_with_limit", lambda command, limit: (1, "ERROR: no index"))
    with pytest.raises(UsageError, match=r"^torchfold==0.1.0 cannot be fetched: .*a network"):
        torchfold.fetch_wheel()
    assert [*torchfold.wheel_path().parent.iterdir()] == []
