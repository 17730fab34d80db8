"""Hugging Face's copy of ImageNet becomes what the archives of image-net.org become."""

import gzip
import io
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.ilsvrc import WNIDS, devkit, train_tar, write_tar
from PIL import Image

from lsgd.errors import UsageError
from lsgd.files import atomic_write
from lsgd.prepare import parquet
from lsgd.prepare.__main__ import main
from lsgd.prepare.journal import Journal

CLASSES = [WNIDS[0], WNIDS[1], WNIDS[999]]
Row = tuple[bytes | None, str | None, int]


def jpeg(i: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (40 + i, 40), (i * 9, 0, 0)).save(file, "JPEG")
    return file.getvalue()


TRAIN = {f"{wnid}_{i}": (wnid, jpeg(5 * c + i)) for c, wnid in enumerate(CLASSES) for i in range(5)}
VAL = {f"ILSVRC2012_val_{i:08d}": (wnid, jpeg(20 + i)) for i, wnid in enumerate(CLASSES, 1)}


def rows(images: Mapping[str, tuple[str, bytes]]) -> list[Row]:
    """Images as Hugging Face has them, with their class behind the name, mixed."""
    named = [
        (content, f"{name}_{wnid}.JPEG", WNIDS.index(wnid))
        for name, (wnid, content) in images.items()
    ]
    return [named[i] for i in np.random.default_rng(0).permutation(len(named))]


def write_parquet(file: Path, listed: Sequence[Row], columns: str = "image label") -> Path:
    """A Parquet file with these rows, a group of two after the other."""
    import pyarrow as pa
    from pyarrow.parquet import write_table

    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    images = pa.array([{"bytes": content, "path": path} for content, path, _ in listed], image)
    labels = pa.array([label for *_, label in listed], pa.int64())
    file.parent.mkdir(parents=True, exist_ok=True)
    write_table(pa.table([images, labels], names=columns.split()), file, row_group_size=2)
    return file


def parquet_copy(folder: Path) -> Path:
    train = rows(TRAIN)
    for i in range(3):
        write_parquet(folder / f"data/train-{i:05d}-of-00003.parquet", train[i::3])
    write_parquet(folder / "data/validation-00000-of-00001.parquet", rows(VAL))
    write_parquet(folder / "data/test-00000-of-00001.parquet", [(jpeg(1), "test_1.JPEG", -1)])
    return folder


def tar_copy(folder: Path) -> Path:
    (folder / "data").mkdir(parents=True)
    for name, listed in (
        ("train_images_0", rows(TRAIN)[:7]),
        ("train_images_1", rows(TRAIN)[7:]),
        ("val_images", rows(VAL)),
        ("test_images", [(jpeg(1), "ILSVRC2012_test_00000001.JPEG", -1)]),
    ):
        members = {str(path): content or b"" for content, path, _ in listed}
        write_tar(folder / f"data/{name}.tar.gz", members, "w:gz")
    return folder


def tree(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.name != ".prepare.lock"
    }


def prepared(copy: Path, root: Path, *words: str) -> int:
    return main(["imagenet", str(root), "--parquet", str(copy), "--processes", "1", *words])


@pytest.fixture(scope="module")
def from_archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """All files that the same images in the archives of image-net.org become."""
    folder = tmp_path_factory.mktemp("archives")
    by_class: dict[str, dict[str, bytes]] = {wnid: {} for wnid in CLASSES}
    for name, (wnid, content) in TRAIN.items():
        by_class[wnid][f"{name}.JPEG"] = content
    train = train_tar(folder / "train.tar", by_class)
    val = write_tar(folder / "val.tar", {f"{name}.JPEG": each[1] for name, each in VAL.items()})
    kit = devkit(folder / "kit.tar.gz", [wnid for wnid, _ in VAL.values()])
    options = {"--train-tar": train, "--val-tar": val, "--val-classes": kit, "--processes": 1}
    words = [str(word) for option in options.items() for word in option]
    assert main(["imagenet", str(folder / "root"), *words]) == 0
    return tree(folder / "root")


@pytest.mark.parametrize(
    "copy",
    [pytest.param(parquet_copy, marks=pytest.mark.parquet), pytest.param(tar_copy, id="tar_copy")],
)
def test_the_same_images_names_and_numbers_as_from_the_archives(
    copy: Any, from_archives: dict[str, bytes], tmp_path: Path
) -> None:
    words = ["--shards", str(tmp_path / "shards")]
    assert prepared(copy(tmp_path / "copy"), tmp_path / "root", *words) == 0
    assert tree(tmp_path / "root") == from_archives
    assert len(np.load(tmp_path / "shards/train.index.npy")) == len(TRAIN)


@pytest.mark.parametrize(
    "copy",
    [pytest.param(parquet_copy, marks=pytest.mark.parquet), pytest.param(tar_copy, id="tar_copy")],
)
def test_an_ended_command_goes_on_and_reads_no_finished_file_again(
    copy: Any, from_archives: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, root = copy(tmp_path / "copy"), tmp_path / "root"
    written: list[Path] = []

    def until_the_ninth(path: Path, **options: bool) -> Any:
        written.append(path)
        if len(written) == 9:
            raise KeyboardInterrupt
        return atomic_write(path, **options)

    read: list[str] = []

    def reading(function: Any) -> Any:
        def read_and_note(file: Path, split: str) -> Iterator[parquet.CopyImage]:
            read.append(file.name.partition(".")[0])
            return function(file, split)  # type: ignore[no-any-return]

        return read_and_note

    monkeypatch.setattr(parquet, "atomic_write", until_the_ninth)
    for name in ("_parquet_images", "_tar_images"):
        monkeypatch.setattr(parquet, name, reading(getattr(parquet, name)))
    files = parquet.copy_files(folder)
    root.mkdir()
    with pytest.raises(KeyboardInterrupt):
        parquet.unpack_copy(files, root, Journal(root / "journal"), processes=1)
    assert len(list(root.rglob("*.JPEG"))) == 8
    first, second, *rest = read
    assert not rest
    read.clear()
    counts = parquet.unpack_copy(files, root, Journal(root / "journal"), processes=1)
    assert second in read
    assert first not in read
    assert counts == {"train": (7, 8), "val": (3, 0)}
    # A file is read again if an image of it is gone, or if it is another one.
    read.clear()
    (root / next(iter(Journal(root / "journal").findings[str(files[0].path)].files))).unlink()
    files[1].path.write_bytes(files[1].path.read_bytes())
    assert parquet.unpack_copy(files, root, Journal(root / "journal"), processes=1) == {
        "train": (1, 14),
        "val": (0, 3),
    }
    assert read == [first, second]
    assert prepared(folder, root) == 0
    (root / "journal").unlink()
    assert tree(root) == from_archives


@pytest.mark.parquet
def test_a_file_is_never_in_memory_whole(tmp_path: Path) -> None:
    import pyarrow as pa

    noise = np.random.default_rng(0)
    listed = [(noise.bytes(50_000), f"{WNIDS[0]}_{i}.JPEG", 0) for i in range(100)]
    file = write_parquet(tmp_path / "train-00000-of-00001.parquet", listed)
    listed.clear()
    before, most = pa.total_allocated_bytes(), 0
    for _, content in parquet._parquet_images(file, "train"):
        assert len(content) == 50_000
        most = max(most, pa.total_allocated_bytes() - before)
    assert 50_000 < most < file.stat().st_size / 2


@pytest.mark.parquet
def test_an_image_without_its_published_name_is_of_its_label(tmp_path: Path) -> None:
    listed = [(jpeg(i), path, 7) for i, path in enumerate((None, "", "image.jpg", "../../x.JPEG"))]
    file = write_parquet(tmp_path / "train-00003-of-00009.parquet", listed)
    places = [place for place, _ in parquet._parquet_images(file, "train")]
    assert places == [f"{WNIDS[7]}/train-00003-of-00009_{i:06d}.JPEG" for i in range(4)]


@pytest.mark.parquet
@pytest.mark.parametrize(
    ("listed", "columns", "why"),
    [
        (
            [(b"x", "n01440764_1_n01440764.JPEG", 1)],
            "image label",
            "row 0 .* label 1, which is n01",
        ),
        ([(b"x", "a.JPEG", -1)], "image label", "row 0 has label -1 and not one of 0 to 999"),
        ([(None, "a.JPEG", 1)], "image label", "row 0 has a path and no image"),
        ([(b"x", "a.JPEG", 1)], "img fine_label", "columns are img, fine_label and not image"),
    ],
)
def test_rows_of_something_else_are_refused(
    tmp_path: Path, listed: list[Row], columns: str, why: str
) -> None:
    file = write_parquet(tmp_path / "train-00000-of-00001.parquet", listed, columns)
    with pytest.raises(UsageError, match=rf"{file} is not of ILSVRC 2012: .*{why}"):
        list(parquet._parquet_images(file, "train"))


@pytest.mark.parametrize("name", ["n01440764_1.JPEG", "a.JPEG", "../n01440764_1.JPEG", "n01440764"])
def test_members_of_something_else_are_refused(tmp_path: Path, name: str) -> None:
    file = write_tar(tmp_path / "val_images.tar.gz", {name: b"x"}, "w:gz")
    with pytest.raises(UsageError, match=rf"{file} is not of ILSVRC 2012: '{name}'"):
        list(parquet._tar_images(file, "val"))


def test_a_link_in_an_archive_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "train_images_0.tar.gz"
    with tarfile.open(file, "w:gz") as tar:
        link = tarfile.TarInfo("n01440764_1_n01440764.JPEG")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    with pytest.raises(UsageError, match="is not a plain file"):
        list(parquet._tar_images(file, "train"))


def test_a_compressed_archive_is_read_to_its_end(tmp_path: Path) -> None:
    """A cut at the end of a member, or within the checksum, was taken for the archive's end."""
    names = [f"ILSVRC2012_val_{i:08d}_n01440764.JPEG" for i in range(1, 4)]
    file = write_tar(tmp_path / "val_images.tar.gz", dict.fromkeys(names, b"x" * 512), "w:gz")
    assert len(list(parquet._tar_images(file, "val"))) == 3
    whole = file.read_bytes()
    plain = gzip.decompress(whole)
    damaged = bytearray(plain)
    damaged[1024 + 5] ^= 0xFF
    flushed = zlib.compressobj(wbits=31)
    at_member = flushed.compress(plain[:1024]) + flushed.flush(zlib.Z_FULL_FLUSH)
    for content in (whole[:-1], whole[:-8], at_member, gzip.compress(bytes(damaged))):
        file.write_bytes(content)
        with pytest.raises(UsageError, match="is cut short or damaged"):
            list(parquet._tar_images(file, "val"))


@pytest.mark.parquet
def test_what_is_cut_short_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i, copy in enumerate((parquet_copy, tar_copy)):
        folder = copy(tmp_path / str(i))
        file = sorted(folder.glob("data/train*"))[1]
        file.write_bytes(file.read_bytes()[:-40])
        assert prepared(folder, tmp_path / f"root{i}") == 2
        assert re.search(rf"{file} is cut short or damaged \(.*; fetch it", capsys.readouterr().err)


@pytest.mark.parquet
def test_missing_files_are_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = parquet_copy(tmp_path / "copy")
    (folder / "data/train-00001-of-00003.parquet").unlink()
    assert prepared(folder / "data", tmp_path / "root") == 0
    said = capsys.readouterr().out
    assert "warning: 1 of 3 files of train are missing, the first of them 00001-of-00003" in said
    assert "data.train_examples=10 " in said


def test_refusals_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for name, why in (
        ("train-00000-of-00294.parquet.incomplete", "has no file of the copy; give a folder with"),
        ("train-00000-of-00294.parquet", "needs pyarrow, which is not installed; run "),
        ("train-00000-of-00257.parquet", "has two copies of train, with train-00000-of-00257"),
    ):
        (copy / name).touch()
        monkeypatch.setattr(parquet, "is_installed", lambda name: False)
        assert prepared(copy, tmp_path / "root") == 2
        assert why in capsys.readouterr().err
        assert not (tmp_path / "root").exists()
    assert prepared(tmp_path / "nowhere", tmp_path / "root") == 2
    assert "has no file of the copy" in capsys.readouterr().err
