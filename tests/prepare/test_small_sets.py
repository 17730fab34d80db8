import hashlib
import io
import os
import re
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.serving import Site, serve
from PIL import Image

from lsgd import config
from lsgd.errors import Refused
from lsgd.inputs.arrays import load_arrays
from lsgd.inputs.index import open_indexes
from lsgd.prepare import cifar10, conll2003, fashion_mnist, ptb, sst, tiny_imagenet
from lsgd.prepare.__main__ import main
from lsgd.prepare.fetch import File, PublishedSet
from lsgd.recipe import Data
from lsgd.vision import datasets
from lsgd.workloads import open_workload

REPOSITORY = Path(__file__).resolve().parents[2]
TOP = "tiny-imagenet-200"


def published(name: str, content: bytes, algorithm: str = "sha256") -> File:
    return File(name, len(content), f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}")


def tree(root: Path) -> dict[str, bytes]:
    """All files below the root that the user sees."""
    files = (path for path in root.rglob("*") if path.is_file() and path.name[0] != ".")
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def site() -> Iterator[Site]:
    with serve(Site({})) as started:
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


def publish_cifar(site: Site, patch: pytest.MonkeyPatch, members: dict[str, Any]) -> None:
    archive = tar_of(members)
    patch.setattr(cifar10, "ARCHIVE", published("cifar.tar.gz", archive))
    patch.setattr(cifar10, "MIRRORS", (site.url,))
    site.files["/cifar.tar.gz"] = archive


def in_folder(batches: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{cifar10.FOLDER}/{name}": content for name, content in batches.items()}


def test_cifar_is_unpacked_and_then_left_alone(
    site: Site, batches: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {f"{cifar10.FOLDER}/readme.html": b"-"}
    publish_cifar(site, monkeypatch, in_folder(batches) | others)
    cifar10.prepare(tmp_path)
    (tmp_path / "cifar.tar.gz").unlink()
    assert tree(tmp_path) == in_folder(batches)
    made = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*_batch*")}
    cifar10.prepare(tmp_path)
    assert made == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*_batch*")}
    assert len(site.asked) == 1


def test_cifar_has_a_bad_batch_repaired(
    site: Site, batches: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As unpacking by hand, cut short, leaves it; of the same length, as a bad disk does."""
    publish_cifar(site, monkeypatch, in_folder(batches))
    folder = tmp_path / cifar10.FOLDER
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(batches["data_batch_1"][:1000])
    (folder / "data_batch_2").write_bytes(bytes(5000))
    cifar10.prepare(tmp_path)
    assert in_folder(batches).items() <= tree(tmp_path).items()


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
    with pytest.raises(Refused, match=r"has CIFAR-10 as train\.npz.*name another folder"):
        cifar10.prepare(tmp_path)


def test_nothing_leaves_the_folder_of_a_tar(
    site: Site, batches: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    with pytest.raises(Refused, match=r"lacks cifar-10-batches-py/data_batch_1; fetch it"):
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


def publish_tiny(site: Site, patch: pytest.MonkeyPatch, archive: bytes) -> None:
    patch.setattr(tiny_imagenet, "ARCHIVE", published("tiny.zip", archive))
    patch.setattr(tiny_imagenet, "MIRRORS", (site.url,))
    patch.setattr(tiny_imagenet, "IMAGES", {"train": 12, "val": 3})
    site.files["/tiny.zip"] = archive


def images(root: Path) -> dict[str, bytes]:
    return {name: content for name, content in tree(root).items() if name.endswith(".JPEG")}


def test_tiny_imagenet_is_sorted_and_indexed(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_tiny(site, monkeypatch, zip_of(TRAIN, VAL))
    tiny_imagenet.prepare(tmp_path)
    for name in ("tiny.zip", "train.index.npy", "val.index.npy"):
        (tmp_path / name).unlink()
    tiny_imagenet.prepare(tmp_path)
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
    with pytest.raises(Refused, match=r"1 images .* such as val/n00000007/val_1.JPEG; move"):
        tiny_imagenet.prepare(tmp_path)


KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from lsgd.prepare import tiny_imagenet
from lsgd.prepare.fetch import File

calls = 0

def half(source, target):
    # The real thing, and in the middle of the fifth image the end.
    global calls
    calls += 1
    content = source.read()
    target.write(content if calls < 5 else content[: len(content) // 2])
    if calls == 5:
        target.flush()
        os.kill(os.getpid(), signal.SIGKILL)

shutil.copyfileobj = half
tiny_imagenet.ARCHIVE = File(*sys.argv[2:3], int(sys.argv[3]), sys.argv[4])
tiny_imagenet.prepare(Path(sys.argv[1]))
"""


def test_killed_while_it_unpacks(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_tiny(site, monkeypatch, zip_of(TRAIN, VAL))
    archive = tiny_imagenet.ARCHIVE
    (tmp_path / "tiny.zip").write_bytes(site.files["/tiny.zip"])
    done = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path, archive.name, str(archive.size), archive.digest],
        timeout=100,
    )
    assert done.returncode == -signal.SIGKILL
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
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, archive: bytes
) -> None:
    publish_tiny(site, monkeypatch, archive)
    with pytest.raises(Refused, match=r"tiny.zip has .*, which is no image of Tiny-ImageNet"):
        tiny_imagenet.prepare(tmp_path / "root")
    assert set(tree(tmp_path)) == {"root/tiny.zip"}


def test_other_members_of_a_zip_are_not_unpacked(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = {"../evil.JPEG": b"evil", f"{tmp_path}/evil.JPEG": b"evil", "train/../../x": b"evil"}
    publish_tiny(site, monkeypatch, zip_of(TRAIN, VAL, **evil))
    tiny_imagenet.prepare(tmp_path / "root")
    assert {name for name in tree(tmp_path) if name.endswith(".JPEG")} == {
        f"root/{name}" for name in SORTED
    }


# All


def test_default_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a run looks, so that one command each is enough."""
    monkeypatch.setenv("LSGD_DATA", str(tmp_path))
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "train.npz").write_bytes(b"")
    assert main(["cifar10"]) == 2


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10", "tiny-imagenet", "conll2003", "sst"])
def test_the_script_in_data_is_the_same_command(name: str, tmp_path: Path) -> None:
    script = REPOSITORY / "data" / name / "prepare.py"
    command = [sys.executable, str(script), str(tmp_path), "--source", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100)
    assert done.returncode == 2
    assert done.stderr.startswith(f"lsgd: {name} cannot be fetched (file://{tmp_path}/")


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10"])
def test_a_run_without_data_names_the_command(name: str, tmp_path: Path) -> None:
    recipe = config.load_recipe([f"+recipe={name.split('-')[0]}_bs128", f"data.root={tmp_path}"])
    with pytest.raises(Refused, match=re.escape(f"run python -m lsgd.prepare {name} {tmp_path},")):
        load_arrays(recipe.data, tmp_path)


@pytest.mark.data
def test_fashion_mnist_itself(test_data: Path, tmp_path: Path) -> None:
    fashion_mnist.SET.prepare(tmp_path, str(test_data / "fashion-mnist"))
    assert set(tree(tmp_path)) == {file.name for file in fashion_mnist.SET.files}
    recipe = config.load_recipe(["+recipe=fashion_bs128", f"data.root={tmp_path}"])
    train, val = load_arrays(recipe.data, tmp_path)
    assert np.bincount(train.labels).tolist() == [6000] * 10
    assert np.bincount(val.labels).tolist() == [1000] * 10


@pytest.mark.data
@pytest.mark.parametrize(
    ("published", "recipe", "licence"),
    [
        (conll2003.SET, "conll_bilstm", "for research only"),
        (ptb.SET, "ptb_small", "for research alone"),
        (sst.SET, "sst_treelstm", "no licence is stated"),
    ],
    ids=["conll2003", "ptb", "sst"],
)
def test_a_text_itself(
    published: PublishedSet,
    recipe: str,
    licence: str,
    test_data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    published.prepare(tmp_path, str(test_data / published.name))
    assert set(tree(tmp_path)) == {file.name for file in published.files}
    assert licence in capsys.readouterr().out
    recipe = config.load_recipe([f"+recipe={recipe}", f"data.root={tmp_path}"])
    open_workload(recipe, torch.device("cpu")).inputs()  # which refuses other counts


@pytest.mark.data
def test_tiny_imagenet_itself(
    site: Site, test_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real images of 20 classes, in an archive as Stanford lays it out."""
    loaded = []
    for split in ("train", "val"):
        with np.load(test_data / "tiny-imagenet-20" / f"{split}.npz") as packed:
            data, classes = packed["data"].tobytes(), packed["classes"].tolist()
            files = [data[begin:end] for begin, end in pairwise(packed["offsets"].tolist())]
            loaded.append(
                [(classes[i], image) for i, image in zip(packed["labels"], files, strict=True)]
            )
    train = {wnid: [image for of, image in loaded[0] if of == wnid] for wnid in classes}
    # In the order of the archive the classes of the validation images are mixed.
    val = [loaded[1][i] for i in np.random.default_rng(0).permutation(len(loaded[1]))]
    publish_tiny(site, monkeypatch, zip_of(train, val))
    monkeypatch.setattr(tiny_imagenet, "IMAGES", {"train": 10_000, "val": 1_000})
    tiny_imagenet.prepare(tmp_path)
    indexes = open_indexes(tiny(10_000, 1_000, 20), tmp_path)
    assert indexes[0].classes() == indexes[1].classes() == classes
    for index, images in zip(indexes, loaded, strict=True):
        ids = np.arange(len(index))
        assert (index.sizes(ids) == 64).all()
        found = sorted((classes[label], index.read(i)) for i, label in enumerate(index.labels(ids)))
        assert found == sorted(images)
