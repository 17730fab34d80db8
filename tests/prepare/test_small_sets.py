import hashlib
import io
import re
import runpy
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from helpers.serving import FaultySite, serve
from PIL import Image

from lsgd.errors import UsageError
from lsgd.inputs.index import open_indexes
from lsgd.prepare import cifar10, tiny_imagenet
from lsgd.prepare.__main__ import main
from lsgd.prepare.fetch import PublishedDataset, PublishedFile
from lsgd.prepare.published import CONLL2003, FASHION_MNIST, PTB, SST
from lsgd.recipe import Data
from lsgd.vision import datasets

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPTS = [*(REPOSITORY / "data").glob("*/prepare.py")]
TOP = "tiny-imagenet-200"


def published(name: str, content: bytes, algorithm: str = "sha256") -> PublishedFile:
    return PublishedFile(
        name, len(content), f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}"
    )


def tree(root: Path) -> dict[str, bytes]:
    """All files below the root that the user sees."""
    files = (path for path in root.rglob("*") if path.is_file() and path.name[0] != ".")
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


@pytest.fixture
def site() -> Iterator[FaultySite]:
    with serve(FaultySite({})) as started:
        yield started


# CIFAR-10


def tar_of(members: dict[str, bytes | tarfile.TarInfo]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                tar.addfile(content)
                continue
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Made-up batches in place of the published ones."""
    random = np.random.default_rng(0)
    made = {batch.name: random.bytes(5000) for batch in cifar10.BATCHES}
    monkeypatch.setattr(
        cifar10, "BATCHES", tuple(published(name, made[name], "md5") for name in made)
    )
    return made


def publish_cifar(site: FaultySite, patch: pytest.MonkeyPatch, members: dict[str, Any]) -> None:
    archive = tar_of(members)
    patch.setattr(cifar10, "ARCHIVE", published("cifar.tar.gz", archive))
    patch.setattr(cifar10, "MIRRORS", (site.url,))
    site.files["/cifar.tar.gz"] = archive


def in_folder(batches: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{cifar10.FOLDER}/{name}": content for name, content in batches.items()}


def test_cifar_is_unpacked_and_then_left_alone(
    site: FaultySite, batches: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What unpacking by hand, cut short, has left is repaired, and a bad disk's bytes too."""
    others = {f"{cifar10.FOLDER}/readme.html": b"-"}
    publish_cifar(site, monkeypatch, in_folder(batches) | others)
    folder = tmp_path / cifar10.FOLDER
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(batches["data_batch_1"][:1000])
    (folder / "data_batch_2").write_bytes(bytes(5000))
    cifar10.prepare(tmp_path)
    (tmp_path / "cifar.tar.gz").unlink()
    assert tree(tmp_path) == in_folder(batches)
    made = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*_batch*")}
    cifar10.prepare(tmp_path)
    assert made == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*_batch*")}
    assert len(site.asked) == 1


def test_cifar_batches_may_lie_at_the_root(
    batches: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the loader finds them too."""
    monkeypatch.setattr(cifar10, "MIRRORS", ())
    for name, content in batches.items():
        (tmp_path / name).write_bytes(content)
    cifar10.prepare(tmp_path)
    assert tree(tmp_path) == batches


def test_cifar_beside_jpegs_would_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "train.npz").write_bytes(b"")
    with pytest.raises(UsageError, match=r"has CIFAR-10 as train\.npz.*write another folder"):
        cifar10.prepare(tmp_path)


def test_nothing_leaves_the_folder_of_a_tar(
    site: FaultySite, batches: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, root = tmp_path / "secret", tmp_path / "root"
    secret.write_text("secret")
    link = tarfile.TarInfo(f"{cifar10.FOLDER}/data_batch_1")
    link.type, link.linkname = tarfile.SYMTYPE, str(secret)
    evil = {
        "../evil": b"evil",
        str(tmp_path / "evil"): b"evil",
        f"{cifar10.FOLDER}/../../data_batch_1": b"evil",
        f"{cifar10.FOLDER}/../data_batch_1": b"evil",
    }
    publish_cifar(site, monkeypatch, evil | in_folder(batches) | {link.name: link})
    with pytest.raises(UsageError, match=r"lacks cifar-10-batches-py/data_batch_1; fetch it"):
        cifar10.prepare(root)
    rest = in_folder({name: batches[name] for name in batches if name != "data_batch_1"})
    found = tree(tmp_path)
    del found["root/cifar.tar.gz"]
    assert found == {"secret": b"secret"} | {f"root/{name}": rest[name] for name in rest}


def test_the_batches_have_the_sums_that_torchvision_knows() -> None:
    known = datasets.CIFAR10.train_list + datasets.CIFAR10.test_list
    assert {batch.name: batch.digest for batch in cifar10.BATCHES} == {
        name: f"md5:{digest}" for name, digest in known
    }


# Tiny-ImageNet


def jpeg(shade: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (64, 64), shade).save(file, "JPEG")
    return file.getvalue()


def zip_of(train: dict[str, list[bytes]], val: list[tuple[str, bytes]], **more: bytes) -> bytes:
    """The official layout; the validation images lie in one folder, their classes in a list."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as zipped:
        zipped.writestr(f"{TOP}/", b"")
        zipped.writestr(f"{TOP}/wnids.txt", "\n".join(train))
        zipped.writestr(f"{TOP}/test/images/test_0.JPEG", jpeg(0))
        for wnid, images in train.items():
            zipped.writestr(f"{TOP}/train/{wnid}/images/", b"")
            zipped.writestr(f"{TOP}/train/{wnid}/{wnid}_boxes.txt", "")
            for number, image in enumerate(images):
                zipped.writestr(f"{TOP}/train/{wnid}/images/{wnid}_{number}.JPEG", image)
        lines = [f"val_{i}.JPEG\t{wnid}\t0\t32\t44\t62\n" for i, (wnid, _) in enumerate(val)]
        zipped.writestr(f"{TOP}/val/val_annotations.txt", "".join(lines))
        for number, (_, image) in enumerate(val):
            zipped.writestr(f"{TOP}/val/images/val_{number}.JPEG", image)
        for name, content in more.items():
            zipped.writestr(name, content)
    return file.getvalue()


TRAIN = {
    wnid: [jpeg(10 * i + j) for j in range(6)] for i, wnid in enumerate(("n00000007", "n00000002"))
}
VAL = [("n00000002", jpeg(200)), ("n00000007", jpeg(201)), ("n00000002", jpeg(202))]
SORTED = {
    f"train/{wnid}/{wnid}_{i}.JPEG": image for wnid in TRAIN for i, image in enumerate(TRAIN[wnid])
} | {f"val/{wnid}/val_{i}.JPEG": image for i, (wnid, image) in enumerate(VAL)}


def tiny(train: int, val: int, classes: int) -> Data:
    return Data(
        "tiny-imagenet", train, val, classes, 3, 56, [0.5] * 3, [0.5] * 3, augmentation="crop_flip"
    )


def publish_tiny(site: FaultySite, patch: pytest.MonkeyPatch, archive: bytes) -> None:
    patch.setattr(tiny_imagenet, "ARCHIVE", published("tiny.zip", archive))
    patch.setattr(tiny_imagenet, "MIRRORS", (site.url,))
    patch.setattr(tiny_imagenet, "IMAGES", {"train": 12, "val": 3})
    site.files["/tiny.zip"] = archive


def images(root: Path) -> dict[str, bytes]:
    return {name: content for name, content in tree(root).items() if name.endswith(".JPEG")}


def test_tiny_imagenet_is_sorted_and_indexed(
    site: FaultySite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_tiny(site, monkeypatch, zip_of(TRAIN, VAL))
    tiny_imagenet.prepare(tmp_path)
    indexes = {"train.index.npy", "val.index.npy"}
    assert set(tree(tmp_path)) == set(SORTED) | indexes | {"tiny.zip"}
    assert images(tmp_path) == SORTED
    train, val = open_indexes(tiny(12, 3, 2), tmp_path)
    assert train.classes() == ["n00000002", "n00000007"]
    assert [(val.read(i), val.labels(np.array([i]))) for i in range(3)] == [
        (VAL[0][1], 0), (VAL[2][1], 0), (VAL[1][1], 1),
    ]  # fmt: skip


def test_tiny_imagenet_without_its_archive_is_indexed_only(
    site: FaultySite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_tiny(site, monkeypatch, zip_of(TRAIN, VAL))
    tiny_imagenet.prepare(tmp_path)
    for name in ("tiny.zip", "train.index.npy", "val.index.npy"):
        (tmp_path / name).unlink()
    # As macOS leaves beside each file of a disk of another system.
    (beside := tmp_path / "val/n00000002/._val_0.JPEG").touch()
    tiny_imagenet.prepare(tmp_path)
    beside.unlink()
    assert len(site.asked) == 1
    assert len(open_indexes(tiny(12, 3, 2), tmp_path)[0]) == 12
    # With an image gone it has to be fetched again.
    (tmp_path / "val/n00000002/val_0.JPEG").unlink()
    tiny_imagenet.prepare(tmp_path)
    assert len(site.asked) == 2
    assert images(tmp_path) == SORTED


def test_tiny_imagenet_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny_imagenet, "IMAGES", {"train": 12, "val": 3})
    for name, content in SORTED.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "val/n00000007/val_1.JPEG").write_bytes(b"no image")
    with pytest.raises(UsageError, match=r"1 images .* such as val/n00000007/val_1.JPEG; move"):
        tiny_imagenet.prepare(tmp_path)


def test_ended_while_it_unpacks(
    site: FaultySite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of the fifth image, of which nothing lies under its name then."""
    publish_tiny(site, monkeypatch, zip_of(TRAIN, VAL))
    copy, copied = shutil.copyfileobj, []

    def half(source: IO[bytes], target: IO[bytes]) -> None:
        copied.append(source)
        if len(copied) < 5:
            return copy(source, target)
        target.write(source.read(100))
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "copyfileobj", half)
    with pytest.raises(KeyboardInterrupt):
        tiny_imagenet.prepare(tmp_path)
    monkeypatch.setattr(shutil, "copyfileobj", copy)
    left = images(tmp_path)
    assert len(left) == 4
    assert left.items() <= SORTED.items()
    # As a machine that lost its power can leave it.
    (tmp_path / sorted(left)[0]).write_bytes(b"")
    tiny_imagenet.prepare(tmp_path)
    assert images(tmp_path) == SORTED
    assert not [name for name in tree(tmp_path) if name.endswith(".part")]


@pytest.mark.parametrize(
    "archive",
    [
        zip_of(TRAIN, [("../../../evil", jpeg(0))]),
        zip_of(TRAIN, [("n00000002", jpeg(0))], **{f"{TOP}/train/../images/n1.JPEG": b"evil"}),
        zip_of(TRAIN, VAL, **{f"{TOP}/train/n00000002/images/..": b"evil"}),
        zip_of(TRAIN, VAL, **{f"{TOP}/train/n00000002/images/a\\b.JPEG": b"evil"}),
        zip_of(TRAIN, VAL, **{f"{TOP}/val/images/val_77.JPEG": b"of no class"}),
    ],
    ids=["annotated", "class", "name", "backslash", "unknown"],
)
def test_nothing_leaves_the_folder_of_a_zip(
    site: FaultySite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, archive: bytes
) -> None:
    publish_tiny(site, monkeypatch, archive)
    with pytest.raises(
        UsageError, match=r"tiny.zip has .*, which is not an image of Tiny-ImageNet"
    ):
        tiny_imagenet.prepare(tmp_path / "root")
    assert set(tree(tmp_path)) == {"root/tiny.zip"}


def test_other_members_of_a_zip_are_not_unpacked(
    site: FaultySite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = {"../evil.JPEG": b"evil", f"{tmp_path}/evil.JPEG": b"evil", "train/../../x": b"evil"}
    publish_tiny(site, monkeypatch, zip_of(TRAIN, VAL, **evil))
    tiny_imagenet.prepare(tmp_path / "root")
    assert {name for name in tree(tmp_path) if name.endswith(".JPEG")} == {
        f"root/{name}" for name in SORTED
    }


# All


def test_the_folder_is_where_a_run_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSGD_DATA", str(tmp_path))
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "train.npz").write_bytes(b"")
    assert main(["cifar10"]) == 2


@pytest.mark.parametrize("name", sorted(path.parent.name for path in SCRIPTS))
def test_the_script_in_data_is_the_same_command(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = str(REPOSITORY / "data" / name / "prepare.py")
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(script, run_name="__main__")
    assert not ended.value.code
    assert re.search(rf"^usage: .* {name} ", capsys.readouterr().out)


@pytest.mark.data
@pytest.mark.parametrize(
    ("published", "licence"),
    [
        (FASHION_MNIST, ""),
        (CONLL2003, "for research only"),
        (PTB, "for research alone"),
        (SST, "no licence is stated"),
    ],
    ids=["fashion-mnist", "conll2003", "ptb", "sst"],
)
def test_a_published_set_itself(
    published: PublishedDataset,
    licence: str,
    test_data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """That its recipes have its counts is tested where it is read."""
    published.prepare(tmp_path, str(test_data / published.name))
    assert set(tree(tmp_path)) == {file.name for file in published.files}
    assert licence in capsys.readouterr().out
