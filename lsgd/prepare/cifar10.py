"""The preparation of CIFAR-10: its Python version, unpacked."""

import shutil
import tarfile
from pathlib import Path

from lsgd.errors import UsageError
from lsgd.files import atomic_write
from lsgd.prepare.fetch import PublishedFile, download, locked_folder

NAME = "cifar10"
SUMMARY = "50,000 + 10,000 images of 10 classes, 170 MB"
"""The contents of the dataset, for the list of commands."""
MIRRORS = ("https://www.cs.toronto.edu/~kriz",)
ARCHIVE = PublishedFile(
    "cifar-10-python.tar.gz",
    170_498_071,
    "sha256:6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
)
FOLDER = "cifar-10-batches-py"
BATCHES = (
    PublishedFile("data_batch_1", 31_035_704, "md5:c99cafc152244af753f735de768cd75f"),
    PublishedFile("data_batch_2", 31_035_320, "md5:d4bba439e000b95fd0a9bffe97cbabec"),
    PublishedFile("data_batch_3", 31_035_999, "md5:54ebc095f3ab1f0389bbae665268c751"),
    PublishedFile("data_batch_4", 31_035_696, "md5:634d18415352ddfa80567beed471001a"),
    PublishedFile("data_batch_5", 31_035_623, "md5:482c414d41f54cd18b22e5b47cb7c3cb"),
    PublishedFile("test_batch", 31_035_526, "md5:40351d587109b95175f43aff81a1287e"),
)


def prepare(root: Path, source: str | None = None) -> None:
    """Download CIFAR-10 and unpack its six batches, unless valid ones are at the root.

    Raises UsageError if they cannot be obtained.
    """
    if (root / "train.npz").exists():
        raise UsageError(
            f"{root} has CIFAR-10 as train.npz, which would be read instead of the fetched "
            "files; write another folder"
        )
    with locked_folder(root):
        # Without the folder of the archive the batches may lie at the root itself.
        at_root = not (root / FOLDER).is_dir() and (root / BATCHES[0].name).exists()
        folder = root if at_root else root / FOLDER
        if missing := {batch.name for batch in BATCHES if not batch.is_at(folder / batch.name)}:
            download(NAME, [ARCHIVE], root, MIRRORS, source)
            _unpack(root / ARCHIVE.name, folder, missing)
    print(f"{NAME} is complete at {root}")


def _unpack(archive: Path, folder: Path, names: set[str]) -> None:
    """Extract files from CIFAR-10's archive; raise UsageError if the archive lacks one."""
    folder.mkdir(exist_ok=True)
    with tarfile.open(archive) as tar:
        # A member is chosen by its name and not placed by it, so none gets out of the folder.
        chosen = {f"{FOLDER}/{name}": folder / name for name in names}
        for member in tar:
            # Links are not followed either.
            if member.name in chosen and member.isfile() and (opened := tar.extractfile(member)):
                with atomic_write(chosen.pop(member.name)) as file:
                    shutil.copyfileobj(opened, file)
    if chosen:
        raise UsageError(f"{archive} lacks {', '.join(sorted(chosen))}; fetch it again")
