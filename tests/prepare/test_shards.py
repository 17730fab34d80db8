"""Shards hold the bytes, ids and classes of the folder that they are made of."""

import tarfile
from pathlib import Path

import numpy as np
import pytest

from lsgd.errors import InputFailedError, UsageError
from lsgd.inputs.decoding import explain_read_error
from lsgd.inputs.index import ImageIndex
from lsgd.prepare.indexing import index_folder
from lsgd.prepare.shards import write_shards
from lsgd.rules.sampler import MicroBatch


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Sixty files of 5 to 50 kB, some of whole blocks, one with a name too long for plain tar."""
    draw = np.random.default_rng(0)
    for split, each in (("train", 12), ("val", 3)):
        for name in ("n01", "n02", "n03", "n04"):
            folder = tmp_path / f"root/{split}/{name}"
            folder.mkdir(parents=True)
            for i in range(each):
                size = int(draw.integers(5, 50)) * 1024 + (i % 3)
                (folder / f"{name}_{i}.JPEG").write_bytes(draw.bytes(size))
    (tmp_path / f"root/train/n02/{'long' * 40}.JPEG").write_bytes(b"x" * 700)
    index_folder(tmp_path / "root")
    return tmp_path / "root"


def shards(folder: Path) -> dict[str, bytes]:
    """All that is in the folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("processes", [1, 2])
def test_rows_and_members(root: Path, tmp_path: Path, processes: int) -> None:
    folder = tmp_path / "shards"
    assert write_shards(root, root, folder, megabytes=1, processes=processes) == 3
    for split, total in (("train", 49), ("val", 12)):
        files = ImageIndex(root, root / f"{split}.index.npy")
        packed = ImageIndex(folder, folder / f"{split}.index.npy")
        assert len(packed) == len(files) == total
        for column in ("path", "bytes", "label", "width", "height"):
            assert (packed.rows[column] == files.rows[column]).all()
        for i in range(total):
            assert packed.read(i) == files.read(i)
        members: dict[str, bytes] = {}
        for shard in sorted(folder.glob(f"{split}-*.tar")):
            assert shard.stat().st_size < 1.1e6
            with tarfile.open(shard) as tar:
                names = tar.getnames()
                # WebDataset takes neighbours of one stem for one example.
                assert [Path(name).stem for name in names[::2]] == [
                    Path(name).stem for name in names[1::2]
                ]
                for name in names:
                    file = tar.extractfile(name)
                    assert file is not None
                    members[name] = file.read()
        expected = {}
        for i in range(total):
            name = files.path(i).removeprefix(f"{root}/{split}/")
            expected[name] = files.read(i)
            expected[name.replace(".JPEG", ".cls")] = str(files.rows["label"][i]).encode()
        assert members == expected
    # Neighbours in a shard are of mixed classes.
    first = packed_order(folder, "train-000000.tar")
    assert np.count_nonzero(np.diff(first)) > len(first) / 3


def samples(folder: Path, split: str) -> list[tuple[str, dict[str, bytes]]]:
    """The examples that WebDataset finds in the shards of a split, each with its key: files that
    follow each other and are alike before the first dot of their names."""
    found: list[tuple[str, dict[str, bytes]]] = []
    for shard in sorted(folder.glob(f"{split}-*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                directory, _, name = member.name.rpartition("/")
                stem, _, kind = name.partition(".")
                key = f"{directory}/{stem}"
                if not found or found[-1][0] != key or kind in found[-1][1]:
                    found.append((key, {}))
                file = tar.extractfile(member)
                assert file is not None
                found[-1][1][kind] = file.read()
    return found


def test_images_of_one_stem_are_examples_of_their_own(tmp_path: Path) -> None:
    """Two endings, two cases of one ending, and names with more dots."""
    names = ["a.jpg", "a.png", "a.JPG", "a_1.jpg", "b.1.jpg", "b.2.jpg", "b_1.png", "c.jpg"]
    for split in ("train", "val"):
        for label in ("n1", "n2"):
            (tmp_path / "root" / split / label).mkdir(parents=True)
            for name in names:
                path = tmp_path / "root" / split / label / name
                path.write_bytes(f"{split} {label} {name}".encode())
    index_folder(tmp_path / "root")
    folder = tmp_path / "shards"
    write_shards(tmp_path / "root", tmp_path / "root", folder, megabytes=1, processes=1)
    for split in ("train", "val"):
        found = samples(folder, split)
        assert len({key for key, _ in found}) == len(found) == 16
        for key, files in found:
            (kind,) = files.keys() - {"cls"}
            assert kind in ("jpg", "png", "JPG")
            _, label, name = files[kind].decode().split()
            assert (key.split("/")[0], files["cls"]) == (label, str(int(label[1]) - 1).encode())
            assert name.endswith(f".{kind}")
        assert {"n1/c", "n2/c"} <= {key for key, _ in found}


def packed_order(folder: Path, shard: str) -> list[int]:
    """Class numbers in the order of a shard."""
    with tarfile.open(folder / shard) as tar:
        return [int(tar.extractfile(n).read()) for n in tar.getnames() if n.endswith(".cls")]


def test_a_short_or_missing_shard_is_written_again_and_no_other(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    write_shards(root, root, folder, megabytes=1, processes=1)
    expected = shards(folder)
    kept = (folder / "train-000001.tar").stat().st_mtime_ns
    short = folder / "train-000000.tar"
    short.write_bytes(short.read_bytes()[:-600])
    (folder / "val-000000.tar").rename(folder / ".val-000000.tar.part")
    (folder / "train.index.npy").unlink()
    write_shards(root, root, folder, megabytes=1, processes=1)
    assert shards(folder) == expected
    assert (folder / "train-000001.tar").stat().st_mtime_ns == kept


def test_a_damaged_shard_of_the_right_length_is_written_again_once_removed(
    root: Path, tmp_path: Path
) -> None:
    """As the error of an unreadable image says: a shard that is complete by length is not read."""
    folder = tmp_path / "shards"
    write_shards(root, root, folder, megabytes=1, processes=1)
    expected, shard = shards(folder), folder / "val-000000.tar"
    shard.write_bytes(bytes(len(expected[shard.name])))
    index = ImageIndex(folder, folder / "val.index.npy")
    each = MicroBatch(None, np.arange(1), split="val")
    error = explain_read_error(InputFailedError(index.path(0)), each, index, "imagenet")
    assert "remove this shard and write it again" in str(error)
    assert f"lsgd.prepare imagenet FOLDER_OF_THE_IMAGES --shards {folder}" in str(error)
    write_shards(root, root, folder, megabytes=1, processes=1)
    assert shards(folder) != expected
    shard.unlink()
    write_shards(root, root, folder, megabytes=1, processes=1)
    assert shards(folder) == expected


def test_folders_with_other_shards_are_left_alone(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    write_shards(root, root, folder, megabytes=1, processes=1)
    before = shards(folder)
    with pytest.raises(UsageError, match=r"of other images or of another --shard-mb"):
        write_shards(root, root, folder, megabytes=2, processes=1)
    (root / "val/n01/n01_0.JPEG").unlink()
    index_folder(root)
    with pytest.raises(UsageError, match=r"of other images or of another --shard-mb"):
        write_shards(root, root, folder, megabytes=1, processes=1)
    assert shards(folder) == before
    (folder / "shards.json").unlink()
    with pytest.raises(UsageError, match="was not written by this command"):
        write_shards(root, root, folder, megabytes=1, processes=1)


def test_an_image_that_changed_since_is_refused(root: Path, tmp_path: Path) -> None:
    (root / "val/n01/n01_0.JPEG").write_bytes(b"short")
    with pytest.raises(UsageError, match=r"n01_0.JPEG changed since it was indexed"):
        write_shards(root, root, tmp_path / "shards", megabytes=1, processes=1)
    assert not list((tmp_path / "shards").glob("val-*.tar"))
