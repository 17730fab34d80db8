"""The preparation of Tiny-ImageNet: one folder for each class in both splits, and an index."""

import re
import shutil
import zipfile
from pathlib import Path

from tqdm import tqdm

from lsgd.errors import UsageError
from lsgd.files import atomic_write
from lsgd.prepare.fetch import PublishedFile, download, locked_folder
from lsgd.prepare.indexing import index_folder

NAME = "tiny-imagenet"
SUMMARY = "100,000 + 10,000 images of 200 classes, 248 MB"
"""The contents of the dataset, for the list of commands."""
MIRRORS = ("http://cs231n.stanford.edu",)
ARCHIVE = PublishedFile(
    "tiny-imagenet-200.zip",
    248_100_043,
    "sha256:6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
)
IMAGES = {"train": 100_000, "val": 10_000}


def prepare(root: Path, source: str | None = None) -> None:
    """Download, unpack and index Tiny-ImageNet below `train/<wnid>/` and `val/<wnid>/`.

    Without the archive, a folder with as many images is accepted. Raises UsageError if the archive
    cannot be obtained.
    """
    with locked_folder(root):
        if (root / ARCHIVE.name).exists() or not _has_all(root):
            download(NAME, [ARCHIVE], root, MIRRORS, source)
            _unpack(root / ARCHIVE.name, root)
        if unreadable := index_folder(root):
            raise UsageError(
                f"{len(unreadable)} images of {root} cannot be read, such as {unreadable[0]}; "
                "move them away and rerun the same command"
            )
    print(f"{NAME} is complete at {root}")


def _has_all(root: Path) -> bool:
    """Return whether both splits of Tiny-ImageNet have their full number of images."""
    return all(
        len(list((root / split).glob("n*/[!.]*.JPEG"))) == images
        for split, images in IMAGES.items()
    )


def _unpack(archive: Path, root: Path) -> None:
    """Extract the images of both splits from Tiny-ImageNet's zip into class folders."""
    with zipfile.ZipFile(archive) as zipped:
        places = _places(zipped)
        for folder in {root / place for _, place in places}:
            folder.mkdir(parents=True, exist_ok=True)
        for member, place in tqdm(places, desc="unpack", unit=" images", disable=None):
            target = root / place / Path(member.filename).name
            # A file gets its name only when it is complete.
            if not target.exists() or target.stat().st_size != member.file_size:
                with zipped.open(member) as opened, atomic_write(target, sync=False) as file:
                    shutil.copyfileobj(opened, file)


def _places(zipped: zipfile.ZipFile) -> list[tuple[zipfile.ZipInfo, str]]:
    """List the images in Tiny-ImageNet's zip, each with its class folder below the root."""
    with zipped.open("tiny-imagenet-200/val/val_annotations.txt") as lines:
        # Tab separated: file, class, and the four sides of a box.
        wnids = dict(line.decode().split("\t")[:2] for line in lines)
    places = []
    for member in zipped.infolist():
        match member.filename.split("/"):
            case [_, "train" as split, wnid, "images", name] if name:
                pass
            case [_, "val" as split, "images", name] if name:
                wnid = wnids.get(name, "")
            case _:
                continue
        if not re.fullmatch(r"n\d{8}", wnid) or not re.fullmatch(r"\w+\.JPEG", name):
            raise UsageError(
                f"{zipped.filename} has {member.filename} of class {wnid!r}, which is not an "
                "image of Tiny-ImageNet; fetch it again"
            )
        places.append((member, f"{split}/{wnid}"))
    return places
