import zipfile
from pathlib import Path

import pytest

from lsgd.bench import environment as module
from lsgd.bench.environment import environment, place
from lsgd.errors import Refused
from lsgd.job.children import finished


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, the only one that pip knows, and a cache that is empty."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name, value in {
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "PIP_CONFIG_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)
    return folder


def add_wheel(folder: Path) -> None:
    """A wheel of the package tiny, version 1."""
    about = "tiny-1.dist-info"
    with zipfile.ZipFile(folder / "tiny-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny.py", "NAME = 'tiny'\n")
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1\n")
        wheel.writestr(
            f"{about}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(f"{about}/RECORD", "")


@pytest.mark.slow
def test_one_that_is_there_is_whole(
    index: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that could not be made is not there, and what a killed one has left is not used."""
    folder = place("tiny", ["tiny==1"])
    with pytest.raises(Refused, match=r"^tiny==1 cannot be installed .* tiny==1 .*a network"):
        environment("tiny", ["tiny==1"], size="a kB")
    assert [each.suffix for each in folder.parent.iterdir()] == [".lock"]

    (folder.with_name(f"{folder.name}.part") / "lib").mkdir(parents=True)
    add_wheel(index)
    capsys.readouterr()
    python = environment("tiny", ["tiny==1"], size="a kB")
    assert capsys.readouterr().out == f"installing tiny==1 into {folder}: a kB, once\n"
    assert python.is_relative_to(folder)
    assert finished([str(python), "-Ic", "import tiny; print(tiny.NAME)"], limit=60) == (
        0,
        "tiny\n",
    )

    monkeypatch.setattr(module, "finished", None)  # so that nothing can be installed
    assert environment("tiny", ["tiny==1"], size="a kB") == python
    assert capsys.readouterr().out == ""


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a number in a container has none, unless HOME is set."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 7)
    with pytest.raises(Refused, match=r"no home folder, .*; set XDG_CACHE_HOME to a folder"):
        place("tiny", ["tiny==1"])


def test_other_requirements_are_another_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert place("tiny", ["tiny==1"]) == place("tiny", ["tiny==1"])
    assert place("tiny", ["tiny==1"]) != place("tiny", ["tiny==2"])


def test_a_cache_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(Refused, match=r"cannot be written .* set XDG_CACHE_HOME to a folder"):
        environment("tiny", ["tiny==1"], size="a kB")
