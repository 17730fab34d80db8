"""A file is there whole, or as it was; a folder is there with what was to be in it, or not."""

import errno
import fcntl
import os
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from helpers.watched_disk import watched_disk
from hypothesis import given
from hypothesis import strategies as st

from lsgd import files
from lsgd.errors import UsageError
from lsgd.files import atomic_write, check_new_file, create_output_folder, truncate_torn_line


def stop_half_way(path: Path) -> None:
    with atomic_write(path) as file:
        file.write(b"half")
        file.flush()
        raise KeyboardInterrupt


def test_what_stops_half_way_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.JPEG"
    for before in (None, b"before"):
        if before:
            path.write_bytes(before)
        with pytest.raises(KeyboardInterrupt):
            stop_half_way(path)
        assert (path.read_bytes() if path.exists() else None) == before
    with atomic_write(path) as file:
        file.write(b"after")
    assert [each.name for each in tmp_path.iterdir()] == ["a.JPEG"]
    assert path.read_bytes() == b"after"


def test_a_file_is_on_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a power failure could leave an empty one; only what can be made again need not wait."""
    done = watched_disk(tmp_path, monkeypatch)
    for sync in (True, False):
        with atomic_write(tmp_path / "a", sync=sync) as file:
            file.write(b"a")
    assert done == ["sync .a.part", "move .a.part to a", "sync .", "move .a.part to a"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP, errno.EIO])
def test_a_drive_may_refuse_to_synchronize_its_folders(number: int, tmp_path: Path) -> None:
    with patch.object(os, "fsync", side_effect=OSError(number, "refused")):
        expected = pytest.raises(OSError, match="refused") if number == errno.EIO else nullcontext()
        with expected:
            files.sync_folder(tmp_path)


def test_of_what_a_full_disk_does_not_take_nothing_stays(tmp_path: Path) -> None:
    """It would fill the disk; and the error says which file it was."""
    path = tmp_path / "a.JPEG"
    with pytest.raises(OSError, match=rf"No space left.*{path}"), atomic_write(path):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("length", [1, 249, 250, 255])
@pytest.mark.parametrize("letter", ["a", "ä"])
def test_a_file_may_have_the_longest_name(length: int, letter: str, tmp_path: Path) -> None:
    """And two names that begin alike have files of their own while they are written."""
    count = (length - 1) // len(letter.encode())
    paths = [tmp_path / f"{letter * count}{end}" for end in "12"]
    with atomic_write(paths[0]) as first, atomic_write(paths[1]) as second:
        first.write(b"1")
        second.write(b"2")
    assert sorted(tmp_path.iterdir()) == paths
    assert [path.read_bytes() for path in paths] == [b"1", b"2"]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_drive_without_locks_is_named_with_the_way_out(number: int, tmp_path: Path) -> None:
    with (
        (tmp_path / "locked").open("w") as file,
        patch.object(fcntl, "flock", side_effect=OSError(number, "No locks")),
        pytest.raises(
            UsageError, match=r"locked is on a drive without file locks \(No locks\).*; b"
        ),
    ):
        files.lock(file, wait=False, remedy="by hand")


@given(st.lists(st.binary(max_size=9)), st.binary(max_size=9), st.sampled_from([1, 3, 2**16]))
def test_only_a_line_without_its_end_is_cut_off(
    whole_lines: list[bytes], torn: bytes, block: int
) -> None:
    kept = b"".join(line.replace(b"\n", b"") + b"\n" for line in whole_lines)
    with TemporaryDirectory() as folder, patch.object(files, "BLOCK", block):
        path = Path(folder, "log")
        path.write_bytes(kept + torn.replace(b"\n", b""))
        truncate_torn_line(path)
        assert path.read_bytes() == kept


def fill(folder: Path, names: list[str], error: BaseException | None, *, parts_stay: bool) -> None:
    with create_output_folder(folder, keep_partial=parts_stay) as made:
        assert made == folder
        assert made.is_dir()  # at once
        for name in names:
            (made / name).write_text(name)
        if error:
            raise error


@pytest.mark.parametrize("parts_stay", [False, True])
def test_a_folder_is_gone_again_if_nothing_comes_of_it(tmp_path: Path, parts_stay: bool) -> None:
    out = tmp_path / "new" / "out"
    fill(out, [], None, parts_stay=parts_stay)
    assert not out.exists()
    for error in (KeyboardInterrupt(), UsageError("this")):
        with pytest.raises(type(error)):
            fill(out, [], error, parts_stay=parts_stay)
        assert not out.exists()
        with pytest.raises(type(error)):
            fill(out, ["part"], error, parts_stay=parts_stay)
        assert out.exists() == parts_stay
        if parts_stay:
            assert (out / "part").read_text() == "part"
            (out / "part").unlink()
            out.rmdir()
    fill(out, ["a", "b"], None, parts_stay=parts_stay)
    assert sorted(path.name for path in out.iterdir()) == ["a", "b"]


def test_a_folder_that_cannot_be_new_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for out, why in (
        (tmp_path, "exists already, and results are never overwritten; write another"),
        (tmp_path / "file" / "out", r"cannot be made \(Not a directory\); write another"),
    ):
        with pytest.raises(UsageError, match=f"^--out {out} {why}$"):
            fill(out, ["b"], None, parts_stay=False)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    with create_output_folder(None) as folder:
        assert folder is None


def test_only_a_new_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link without a target exists too: a file in its place would be another one."""
    check_new_file(tmp_path / "new", "--out")
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for name, reason in {
        ".": "exists already",
        "file": "exists already",
        "link": "exists already",
        "no/file": "no is not a folder",
        "file/file": "file is not a folder",
    }.items():
        with pytest.raises(UsageError, match=f"^--out {tmp_path / name} .*{reason}.*; .*write a"):
            check_new_file(tmp_path / name, "--out")
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write to any folder
    with pytest.raises(UsageError, match="is not yours to write to; write a file in another"):
        check_new_file(tmp_path / "new", "--out")
