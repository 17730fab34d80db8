"""The classes of ILSVRC 2012's validation images, from a file that lists them."""

import csv
import io
import os
import tarfile
import zlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tqdm import tqdm

from lsgd.errors import UsageError
from lsgd.inputs.index import class_folders, image_files
from lsgd.installation import install_command

WHERE_FROM = (
    "--val-classes FILE: ILSVRC2012_devkit_t12.tar.gz from image-net.org, LOC_val_solution.csv "
    "from Kaggle, or lines such as `ILSVRC2012_val_00000001.JPEG n01751748`"
)


@cache
def imagenet_classes() -> dict[str, str]:
    """Return the names of ImageNet's 1000 classes by WordNet id, in label order."""
    lines = Path(__file__).with_name("imagenet_classes.txt").read_text(encoding="utf-8")
    return dict(line.split("\t") for line in lines.splitlines())


class ValClasses:
    """A mapping from ImageNet's validation images, by file name, to their classes."""

    def __init__(self, file: Path) -> None:
        """Read the classes of validation images from a file; raise UsageError if it is unusable."""
        self.file = file
        try:
            by_name = _devkit(file) if tarfile.is_tarfile(file) else _text(file)
        except OSError as error:
            raise UsageError(
                f"--val-classes {file} cannot be read ({error.strerror or error}); give "
                f"{WHERE_FROM}"
            ) from None
        except UsageError:
            raise
        except Exception as error:  # a damaged file can make scipy raise nearly anything
            raise self.usage_error(
                f"it is damaged ({str(error) or type(error).__name__})"
            ) from None
        if unknown := sorted(set(by_name.values()) - set(imagenet_classes())):
            raise self.usage_error(f"{unknown[0]} is not a class of ILSVRC 2012")
        self.by_name = by_name

    def __call__(self, name: str) -> str:
        """Return the class of a validation image; raise UsageError if the file does not name it."""
        try:
            return self.by_name[name.rpartition(".")[0]]
        except KeyError:
            raise self.usage_error(f"it does not name {name}") from None

    def usage_error(self, why: str) -> UsageError:
        """Return a UsageError that names this file of classes and gives the reason."""
        return UsageError(f"--val-classes {self.file} cannot be used: {why}; give {WHERE_FROM}")


def sort_val(folder: Path, class_of: ValClasses) -> int:
    """Move the images directly in a folder to its class folders, and return their number.

    Raises UsageError, with nothing moved, if the file of classes does not name an image, or if the
    image is in its class folder too.
    """
    moves = [(folder / name, folder / class_of(name) / name) for name in image_files(folder)]
    for image, target in moves:
        if target.exists():
            raise UsageError(f"{image} and {target} both exist; remove one of them")
    for class_folder in {target.parent for _, target in moves}:
        class_folder.mkdir(exist_ok=True)
    for image, target in tqdm(moves, desc="sorting val", unit="", disable=None):
        os.rename(image, target)
    return len(moves)


def check_sorted(folder: Path, class_of: ValClasses) -> None:
    """Raise UsageError if a validation image is in the folder of another class than its own."""
    for wnid in class_folders(folder):
        for name in image_files(folder / wnid):
            if (own := class_of(name)) != wnid:
                raise UsageError(
                    f"{folder / wnid / name} is of class {own} in {class_of.file}; move it to "
                    f"{folder / own}, and check how it came there"
                )


def _devkit(file: Path) -> dict[str, str]:
    """Read the class of each validation image, by name, from ImageNet's development kit.

    Line i of the ground truth is the ILSVRC2012_ID, 1 to 1000, of validation image i.
    """
    # Imported here, since only this file format needs it.
    try:
        from scipy.io import loadmat
    except ImportError:
        raise UsageError(
            f"--val-classes {file} has a MATLAB file in it, which scipy reads, and scipy is not "
            f"installed; run {install_command('imagenet')}, or give lines such as "
            "`ILSVRC2012_val_00000001.JPEG n01751748`"
        ) from None
    try:
        with tarfile.open(file) as tar:
            meta, truth = (
                _member(tar, f"/data/{name}")
                for name in ("meta.mat", "ILSVRC2012_validation_ground_truth.txt")
            )
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise UsageError(f"--val-classes {file} is cut short ({error}); fetch it again") from None
    if meta is None or truth is None:
        raise UsageError(
            f"--val-classes {file} is a tar without data/meta.mat and "
            f"data/ILSVRC2012_validation_ground_truth.txt; give {WHERE_FROM}"
        )
    synsets = loadmat(io.BytesIO(meta), squeeze_me=True)["synsets"]
    wnids = {
        int(synset["ILSVRC2012_ID"]): str(synset["WNID"])
        for synset in synsets
        # Synsets with children are groups of classes.
        if int(synset["num_children"]) == 0
    }
    if wnids.keys() != set(range(1, 1001)) or set(wnids.values()) != set(imagenet_classes()):
        raise UsageError(
            f"--val-classes {file} numbers classes other than the 1000 of ILSVRC 2012; give "
            f"{WHERE_FROM}"
        )
    numbers = [int(line) for line in truth.decode("ascii").split()]
    if odd := set(numbers) - wnids.keys():
        raise UsageError(f"--val-classes {file} has class {min(odd)}; expected 1 to 1000")
    return {f"ILSVRC2012_val_{i:08d}": wnids[number] for i, number in enumerate(numbers, 1)}


def _member(tar: tarfile.TarFile, ending: str) -> bytes | None:
    """Return the content of the first tar member whose name has this ending, or None."""
    for member in tar:
        if member.name.endswith(ending) and (file := tar.extractfile(member)):
            return file.read()
    return None


def _text(file: Path) -> dict[str, str]:
    """Read the class of each validation image, by name, from lines of text or Kaggle's CSV."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise UsageError(
            f"--val-classes {file} is neither text nor a tar; give {WHERE_FROM}"
        ) from None
    if lines and lines[0].strip() == "ImageId,PredictionString":
        # Each object has five entries, its class and its box; an image's objects share a class.
        return _pairs(
            file,
            ((row[0], *set("".join(row[1:]).split()[::5])) for row in csv.reader(lines[1:]) if row),
        )
    return _pairs(file, (line.split() for line in lines if line.strip()))


def _pairs(file: Path, pairs: Iterable[Iterable[str]]) -> dict[str, str]:
    """Convert pairs of image name and class, a WordNet id or a label, to classes by image name.

    A label counts the sorted classes from 0, as in Caffe's val.txt.
    """
    by_name: dict[str, str] = {}
    for pair in pairs:
        words = list(pair)
        if len(words) != 2:
            raise UsageError(
                f"--val-classes {file} has {' '.join(words)!r} instead of the name of an image "
                f"and its class; give {WHERE_FROM}"
            )
        name = Path(words[0]).name
        name = name.rpartition(".")[0] if "." in name else name
        if by_name.setdefault(name, words[1]) != words[1]:
            raise UsageError(
                f"--val-classes {file} names {name} twice, with two classes; correct it"
            )
    numbers = set(by_name.values())
    if not any(number.isdecimal() for number in numbers):
        return by_name
    # A list that counts from 1 has a 1000 and no 0: every label of it would be wrong by one.
    if numbers != {str(i) for i in range(1000)}:
        raise UsageError(
            f"--val-classes {file} has class numbers, but not all of 0 to 999; give {WHERE_FROM}"
        )
    by_number = list(imagenet_classes())
    return {name: by_number[int(number)] for name, number in by_name.items()}
