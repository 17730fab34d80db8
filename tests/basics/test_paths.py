import re
from pathlib import Path

import pytest

from lsgd import paths
from lsgd.errors import UsageError


@pytest.mark.parametrize("where", ["beside the package", "inside it"])
def test_shipped_folders_are_found_in_a_checkout_and_in_a_wheel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str
) -> None:
    package = tmp_path / "lsgd"
    home = package if where == "inside it" else tmp_path
    for folder in ("conf", "recipes", "data/digits"):
        (home / folder).mkdir(parents=True)
    # In site-packages, somebody else's folder may lie beside the package.
    (tmp_path / "conf").mkdir(exist_ok=True)
    monkeypatch.setattr(paths, "_PACKAGE", package)
    assert paths.conf_dir() == home / "conf"
    assert paths.recipes_dir() == home / "recipes"
    assert paths.digits_dir() == home / "data/digits"


def test_a_broken_installation_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(paths, "_PACKAGE", tmp_path / "lsgd")
    (tmp_path / "conf").touch()
    with pytest.raises(FileNotFoundError, match=r"conf/.*reinstall"):
        paths.conf_dir()


def test_this_installation_is_whole() -> None:
    assert (paths.conf_dir() / "config.yaml").is_file()
    assert (paths.recipes_dir() / "recipe" / "bs8k.yaml").is_file()
    assert (paths.digits_dir() / "digits.npz").is_file()


def test_data_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LSGD_DATA", raising=False)
    assert paths.data_root("imagenet") == Path("data/imagenet")
    monkeypatch.setenv("LSGD_DATA", "")
    assert paths.data_root("imagenet") == Path("data/imagenet")
    monkeypatch.setenv("LSGD_DATA", "/sets")
    assert paths.data_root("imagenet") == Path("/sets/imagenet")
    monkeypatch.setenv("LSGD_DATA", "s3://bucket")
    with pytest.raises(UsageError, match="LSGD_DATA=s3://bucket is a URL, but lsgd reads"):
        paths.data_root("imagenet")


def test_a_variable_without_a_value_names_no_other_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty one would be the current folder, or with a path after it one of the machine."""
    for name, value in (
        ("FAST", "/nvme"),
        ("NONE", ""),
        ("NESTED", "/a/$USER_X"),
        ("S3", "s3://b"),
    ):
        monkeypatch.setenv(name, value)
    assert paths.path_on_machine("data.stage", "$FAST/me") == Path("/nvme/me")
    for text, says in (
        ("$NONE", "data.stage=$NONE has the variable $NONE, which has no value on "),
        ("$FAST/$NONE/a", "has the variable $NONE,"),
        ("$NOT_SET/a", "has the variable $NOT_SET,"),
        ("$NESTED", "has the variable $USER_X,"),
        ("$S3/a", "s3://b/a is a URL"),
    ):
        with pytest.raises(UsageError, match=re.escape(says)):
            paths.path_on_machine("data.stage", text)


def test_an_empty_path_is_not_the_current_folder() -> None:
    """As `lsgd prepare folder $ROOT` has it, where the variable is not set."""
    with pytest.raises(UsageError, match=r"a path is empty, .*; write the path, or \. for"):
        paths.parse_path("")
    assert paths.parse_path(".") == Path()


def test_a_linked_folder_is_left_out_only_if_it_is_searched_itself(tmp_path: Path) -> None:
    for folder in ("a", ".store/b"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "1.jpg").touch()
    for link, target in (("same", "a"), ("b", ".store/b")):
        (tmp_path / link).symlink_to(target)
    assert sorted(paths.files_below(tmp_path, once=True)) == ["a/1.jpg", "b/1.jpg"]
    assert sorted(paths.files_below(tmp_path)) == ["a/1.jpg", "b/1.jpg", "same/1.jpg"]
