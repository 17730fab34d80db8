"""Archives become folders, whole, and nothing else on the disk changes."""

import io
import tarfile
from pathlib import Path
from typing import Literal

import pytest
from helpers.ilsvrc import tar_bytes, train_tar, write_tar

from lsgd.errors import UsageError
from lsgd.prepare.unpack import list_members, unpack_train, unpack_val
from lsgd.prepare.whole_tar import WholeTar

TRAIN = {
    wnid: {f"{wnid}_{i}.JPEG": f"{wnid} {i} ".encode() * 400 * i for i in range(1, 4)}
    for wnid in ("n01440764", "n01443537", "n01484850")
}


def content(folder: Path) -> dict[str, dict[str, bytes]]:
    """Classes and their files."""
    return {
        each.name: {file.name: file.read_bytes() for file in each.iterdir()}
        for each in folder.iterdir()
    }


@pytest.mark.parametrize("processes", [1, 2])
def test_train(tmp_path: Path, processes: int) -> None:
    archive = train_tar(tmp_path / "train.tar", TRAIN)
    folder = tmp_path / "root/train"
    assert unpack_train(archive, folder, processes=processes) == (9, 0)
    assert content(folder) == TRAIN


def test_only_what_is_missing_or_short_is_written(tmp_path: Path) -> None:
    archive = train_tar(tmp_path / "train.tar", TRAIN)
    folder = tmp_path / "train"
    unpack_train(archive, folder, processes=1)
    kept = folder / "n01440764/n01440764_1.JPEG"
    made = kept.stat().st_mtime_ns
    # What a plain `tar x` leaves when it is killed, and what we leave.
    short = folder / "n01443537/n01443537_2.JPEG"
    short.write_bytes(short.read_bytes()[:100])
    gone = folder / "n01484850/n01484850_3.JPEG"
    gone.rename(gone.with_name(f".{gone.name}.part"))
    assert unpack_train(archive, folder, processes=1) == (2, 7)
    assert content(folder) == TRAIN
    assert kept.stat().st_mtime_ns == made


def test_val(tmp_path: Path) -> None:
    images = {f"ILSVRC2012_val_{i:08d}.JPEG": bytes([i]) * 600 for i in range(1, 9)}
    archive = write_tar(tmp_path / "val.tar", images)
    counts = unpack_val(archive, tmp_path / "val", lambda name: f"c{name[-6]}", processes=1)
    assert counts == (8, 0)
    assert content(tmp_path / "val") == {f"c{name[-6]}": {name: images[name]} for name in images}


def link(name: str, kind: bytes) -> bytes:
    """An archive of one class whose member is a link out of it."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, "/etc/passwd"
        tar.addfile(info)
    return file.getvalue()


@pytest.mark.parametrize("name", ["../out.JPEG", "/tmp/out.JPEG", "a/out.JPEG", "..", ".out.JPEG"])
def test_nothing_is_written_outside(tmp_path: Path, name: str) -> None:
    inner = tar_bytes({name: b"x" * 600}, tmp_path / "scratch")
    archive = write_tar(tmp_path / "train.tar", {"n01440764.tar": inner})
    with pytest.raises(UsageError, match=r"has a member .*not the archive of image-net.org"):
        unpack_train(archive, tmp_path / "root/train", processes=1)
    # The same in the outer archive, where the name becomes that of a folder.
    outer = write_tar(tmp_path / "outer.tar", {name.replace("JPEG", "tar"): inner})
    with pytest.raises(UsageError, match="has a member"):
        unpack_train(outer, tmp_path / "root/train", processes=1)
    assert not [path for path in tmp_path.rglob("*") if "out" in path.name and path != outer]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE])
def test_links_and_folders_are_refused(tmp_path: Path, kind: bytes) -> None:
    archive = write_tar(tmp_path / "train.tar", {"n01440764.tar": link("a.JPEG", kind)})
    with pytest.raises(UsageError, match=r"'a.JPEG', but only plain files"):
        unpack_train(archive, tmp_path / "train", processes=1)


def test_cut_archives_are_named(tmp_path: Path) -> None:
    archive = train_tar(tmp_path / "train.tar", TRAIN)
    whole = archive.read_bytes()
    for length in (0, 100, 2000, 12000, len(whole) // 2):
        archive.write_bytes(whole[:length])
        with pytest.raises(UsageError, match=r"train.tar is (cut short|empty)"):
            unpack_train(archive, tmp_path / "train", processes=1)
    # Cut within the archive of a class, which the outer one says is whole.
    inner = tar_bytes(TRAIN["n01440764"], tmp_path / "scratch")
    second = tar_bytes(TRAIN["n01443537"], tmp_path / "scratch")
    write_tar(archive, {"n01440764.tar": inner[:3000], "n01443537.tar": second})
    with pytest.raises(UsageError, match=r"train.tar:n01440764.tar is cut short"):
        unpack_train(archive, tmp_path / "train", processes=1)


def member_names(content: bytes, mode: Literal["r:", "r|"] = "r:") -> list[str]:
    """The names of a tar archive's members, as WholeTar reads them."""
    with WholeTar.open(fileobj=io.BytesIO(content), mode=mode) as tar:
        return [member.name for member in tar]


@pytest.mark.parametrize("mode", ["r:", "r|"])
def test_no_member_is_lost_silently(tmp_path: Path, mode: Literal["r:", "r|"]) -> None:
    """tarfile ends at a damaged header, at one that is cut, and at an end mark in the middle."""
    images = {f"{i}.JPEG": bytes([i]) * 600 for i in range(1, 5)}
    whole = tar_bytes(images, tmp_path / "scratch")
    size, step = 4 * 1536, 1536
    assert member_names(whole, mode) == [*images]
    # GNU tar's padding, more of it, and a writer that was not closed.
    for content in (
        whole[:10240],
        whole + bytes(3 * 2**20),
        whole[:size],
        whole[:size] + bytes(512),
    ):
        assert member_names(content, mode) == [*images]
    damaged = bytearray(whole)
    damaged[2 * step + 5] ^= 0xFF
    zeroed = whole[: 2 * step] + bytes(512) + whole[2 * step + 512 :]
    for content, why in (
        (bytes(damaged), "bad checksum"),
        (whole[: 2 * step + 100], "truncated header"),
        (whole[: 2 * step + 600], "unexpected end"),
        (whole + tar_bytes({"5.JPEG": b"5"}, tmp_path / "scratch"), "data follow its end mark"),
        (zeroed, "data follow its end mark"),
        (whole + bytes(2**21) + b"1", "data follow its end mark"),
    ):
        with pytest.raises(tarfile.ReadError, match=why):
            member_names(content, mode)


def test_an_inner_archive_is_read_up_to_its_own_end(tmp_path: Path) -> None:
    """Without an end mark too; a damaged header behind its first one was taken for its end."""
    images = {f"n01440764_{i}.JPEG": bytes([i]) * 600 for i in range(1, 4)}
    plain = tar_bytes(images, tmp_path / "scratch")
    open_ended, single = plain[: 3 * 1536], plain[:1536]
    archive = write_tar(
        tmp_path / "train.tar",
        {"n01440764.tar": open_ended, "n01443537.tar": plain, "n01484850.tar": single},
    )
    found = [
        [member.name for member in list_members(archive, (".jpeg",), part)]
        for part in list_members(archive, (".tar",))
    ]
    assert found == [[*images], [*images], [*images][:1]]
    damaged = bytearray(plain)
    damaged[1536 + 5] ^= 0xFF
    write_tar(archive, {"n01440764.tar": bytes(damaged), "n01443537.tar": plain})
    with pytest.raises(
        UsageError, match=r"n01440764\.tar is cut short or not a tar \(bad checksum"
    ):
        unpack_train(archive, tmp_path / "train", processes=1)
