"""Index tar shards in WebDataset's format that another tool wrote; they stay as they are."""

import argparse
import os
import re
import tarfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from lsgd.errors import UsageError
from lsgd.inputs.index import IMAGE_SUFFIXES, MAX_FILE_BYTES, IndexRow, write_index
from lsgd.job.command import Parser
from lsgd.job.system import count_usable_cores
from lsgd.override_syntax import shell_override
from lsgd.paths import files_below, is_leftover
from lsgd.prepare import add_max_pixels, add_processes, listed
from lsgd.prepare.fetch import is_writable, locked_folder
from lsgd.prepare.folder import print_suggestion
from lsgd.prepare.images import FATAL, ShardMember, image_problems, usable_size
from lsgd.prepare.journal import FolderFindings, Journal
from lsgd.prepare.process_pool import in_parallel
from lsgd.prepare.whole_tar import WholeTar
from lsgd.untrusted_files import open_regular, parse_json

HELP = "tar shards of another tool, in WebDataset's format: read once, index"

EPILOG = """\
A shard's name or folder says what it is for: train-000000.tar, val/000000.tar (also valid,
validation; test where there are none of these); --train and --val say it for other names. The
files of an example follow each other and have one name before the first dot: 000123.jpg,
000123.cls. Its class is the number in .cls, the "label" or "cls" of .json, or else the folder:
n01440764/000123.jpg.

examples:
  python -m lsgd.prepare index /data/imagenet-wds
  python -m lsgd.prepare index /mnt/bucket/flowers --index ~/flowers-index    (read-only)
  python -m lsgd.prepare index /data/own --train 'a-*.tar' --val 'b-*.tar'
"""

DEFAULT_PATTERNS = {"train": ("train",), "val": ("val|valid|validation", "test")}
"""The words by which the path of a shard names its split, as regular expressions.

A later one counts where no shard has an earlier one: a test set beside val is another set.
"""
PACKED = {
    b"\x1f\x8b": "gzip",
    b"BZh91AY&SY": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}
"""The compressions by the bytes that a file begins with."""
IMAGE_NAMES = ("image", "img", "input", "rgb", "color", "photo")
"""The names that an example's image has beside other pictures, such as image.jpg beside mask.png.

A kind without a name, such as jpg, comes first.
"""
NAME_RANKS = {name: rank for rank, name in enumerate(("", *IMAGE_NAMES))}
CLASS_KEYS = ("label", "cls")
"""The keys of an example's JSON file that may hold its class number."""
WITHOUT_IMAGE = "an example without an image"
"""The problem of an example whose files have no image among them."""
MAX_CLASS_FILE = 2**24
"""The largest size in bytes of a file that is read for a class."""


ClassFile = tuple[str, bytes | None]
"""The name and content of a file that may hold a class number; None for content above the limit."""


class ShardImage(NamedTuple):
    """An image in a tar shard, as the index needs it."""

    name: str
    """The name of the tar member."""
    offset: int
    """The position of the image's bytes in the shard."""
    length: int
    label: int | None
    """The class number that the shard gives, or None if the folder in the name is the class."""
    size: tuple[int, int]
    """The width and height in pixels, or (0, 0) if the image is unusable."""
    problem: str
    """The reason why the image is unusable, or an empty string."""


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    """Add the command that indexes the tar shards of another tool to the command line."""
    parser = subparsers.add_parser("index", help=HELP, text=f"{__doc__}\n\n{EPILOG}")
    parser.add_path("root", "SHARDS", "folder of the tar shards")
    for split, what in (("train", "train on"), ("val", "evaluate on")):
        parser.add_argument(
            f"--{split}", metavar="PATTERN", help=f"shards to {what}, relative to SHARDS"
        )
    parser.add_path("--index", "FOLDER", "where the indexes go (default: SHARDS)")
    add_max_pixels(parser)
    add_processes(parser)
    parser.set_defaults(command=prepare)


def prepare(options: argparse.Namespace) -> None:
    """Index the tar shards of a folder, and print the command that trains on them.

    Raises UsageError, in one sentence, for all problems that would stop a run.
    """
    root, index = options.root, options.index or options.root
    shards = find_shards(root, {"train": options.train, "val": options.val})
    if not is_writable(index):
        raise UsageError(f"{index} cannot be written; give --index FOLDER for the indexes")
    processes = options.processes or count_usable_cores()
    with locked_folder(index):
        counts = index_shards(
            root, index, shards, processes=processes, max_pixels=options.max_pixels
        )
    print(
        f"{counts['classes']:,} classes, {counts['train']:,} images in train and "
        f"{counts['val']:,} in val, indexed"
    )
    overrides = [shell_override("data.root", root)]
    if options.index:
        overrides.append(shell_override("data.index", options.index))
    print_suggestion(overrides, counts["train"])


def find_shards(root: Path, patterns: dict[str, str | None]) -> dict[str, list[str]]:
    """Return the paths of each split's shards relative to the root, sorted.

    A split without a pattern has the shards whose path names it; it prints which are left out.
    Raises UsageError if a split has none, if both have one, and for compressed shards.
    """
    if not root.is_dir():
        raise UsageError(f"{root} is not a folder; give the one with the tar shards")
    found: dict[str, list[str]] = {}
    for split, pattern in patterns.items():
        if pattern is None:
            found[split], left_out = _named_shards(root, split)
            if left_out := [tar for tar in left_out if tar not in found["train"]]:
                print(
                    f"left out: {listed(left_out)}, as {split} has {listed(found[split])}; give "
                    f"--{split} PATTERN to index them instead"
                )
        elif os.path.isabs(pattern) or ".." in Path(pattern).parts:
            raise UsageError(f"--{split} {pattern} must be relative to {root}, and below it")
        else:
            found[split] = _matching_files(root, split, pattern)
        if not found[split]:
            names = files_below(root)
            packed = (name for name in names if re.search(r"\.(tar\..|tgz$)", name))
            if first := min(packed, default=""):
                raise UsageError(
                    f"{root / first} is compressed, and images are read at their place in a shard; "
                    "unpack the shards to .tar (the images in them are compressed already)"
                )
            raise UsageError(
                f"{root} has no shards {pattern or f'named {split}-….tar or {split}/….tar'}; "
                f"give --{split} PATTERN, such as '{split}-*.tar'"
            )
    files = {os.path.realpath(root / shard) for shard in found["val"]}
    if both := [shard for shard in found["train"] if os.path.realpath(root / shard) in files]:
        raise UsageError(
            f"{both[0]} would be in train and in val; give --train and --val patterns that have "
            "no shard in common"
        )
    return found


def _matching_files(root: Path, split: str, pattern: str) -> list[str]:
    """Return the sorted paths, relative to the root, of the files that match a split's pattern."""
    try:
        matching = [path for path in root.glob(pattern) if path.is_file()]
    except (ValueError, IndexError) as error:  # IndexError: of "."
        raise UsageError(
            f"--{split} {pattern!r} is not a pattern of file names ({error}); write one such as "
            f"'{split}-*.tar', or '**/*.tar' for all below {root}"
        ) from None
    return _distinct(root, [str(path.relative_to(root)) for path in matching])


def _named_shards(root: Path, split: str) -> tuple[list[str], list[str]]:
    """Return the sorted paths of the shards that are named for a split, and those left out."""
    # Any name of a shard may be the one that says its split.
    tars = [name for name in files_below(root) if name.lower().endswith(".tar")]
    by_words = [
        [tar for tar in tars if re.search(rf"(?<![a-z])({words})(?![a-z])", tar, re.I)]
        for words in DEFAULT_PATTERNS[split]
    ]
    taken, *others = [found for found in by_words if found] or [[]]
    files = {os.path.realpath(root / tar) for tar in taken}
    left_out = [
        tar for found in others for tar in found if os.path.realpath(root / tar) not in files
    ]
    return _distinct(root, taken), _distinct(root, left_out)


def _distinct(root: Path, shards: Iterable[str]) -> list[str]:
    """Return the sorted paths of shards without links to others of them, whose images they have."""
    top, names = os.path.realpath(root), dict[str, str]()
    for shard in sorted(shards):
        file = os.path.realpath(root / shard)
        if file not in names or file == os.path.join(top, shard):
            names[file] = shard
    return sorted(names.values())


def index_shards(
    root: Path, index: Path, shards: dict[str, list[str]], *, processes: int, max_pixels: int
) -> dict[str, int]:
    """Write the indexes of both splits' shards; return the numbers of classes and of images.

    Images that not every loader reads, or that have more than `max_pixels` pixels, are skipped with
    a warning. A journal lets a killed command resume: a shard that was read completely and has not
    changed is not read again.
    """
    index.mkdir(parents=True, exist_ok=True)
    journals = {split: Journal(index / f"{split}.shards.jsonl", max_pixels) for split in shards}
    begun = {}
    images: dict[str, list[tuple[str, ShardImage]]] = {}
    for split, names in shards.items():
        journal, start = journals[split], time.time()
        tasks = [(root, name, journal.findings.get(name), max_pixels) for name in names]
        for findings in in_parallel(
            _read_shard, tasks, processes=processes, what=f"shards of {split}"
        ):
            journal.add(findings)
        read = [journal.findings[name] for name in names]
        begun[split] = min([start, *(each.begun for each in read)])
        images[split] = [(each.folder, image) for each in read for image in _images(each)]
    usable = {split: _without_unusable(root, split, own) for split, own in images.items()}
    class_names = _class_names(root, usable)
    for split, own in usable.items():
        file = write_index(index, split, _rows(split, own, class_names))
        # A shard that changed after the scan began must be newer than the index.
        os.utime(file, (begun[split], begun[split]))
        journals[split].remove()
    return {"classes": len(class_names)} | {split: len(own) for split, own in usable.items()}


def _read_shard(
    root: Path, shard: str, earlier: FolderFindings | None, max_pixels: int
) -> FolderFindings:
    """Read a tar shard once from beginning to end; return its images as findings by member name.

    The entry with an empty name has the length of the shard itself.
    """
    path, begun = root / shard, time.time()
    files: dict[str, tuple[int, Any]] = {}
    try:
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            changed = max(status.st_mtime, status.st_ctime)
            if earlier and earlier.files[""][0] == status.st_size and changed < earlier.begun:
                return earlier
            files[""] = status.st_size, None
            head = file.read(8)
            if packed := next((PACKED[magic] for magic in PACKED if head.startswith(magic)), ""):
                raise UsageError(
                    f"{path} is compressed by {packed}, and images are read at their place in a "
                    "shard; unpack it (the images in it are compressed already)"
                )
            file.seek(0)
            with WholeTar.open(fileobj=file, mode="r|", bufsize=2**20) as tar:
                images = list(_examples(tar, path, max_pixels))
            _check_order(path, images)
            for image in images:
                if image.name in files:
                    raise UsageError(f"{path} has two members {image.name}; write it anew")
                files[image.name] = image.length, image[1:]
    except (tarfile.TarError, EOFError) as error:
        raise UsageError(
            f"{path} is cut short or no tar ({error}); copy or write it again"
        ) from None
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror or error}); the same command resumes there"
        ) from None
    return FolderFindings(shard, begun, files)


def _images(findings: FolderFindings) -> Iterator[ShardImage]:
    """Yield the images of a shard from its findings, which may have been stored as JSON."""
    for name, (_, values) in findings.files.items():
        if name:
            offset, length, label, size, problem = values
            yield ShardImage(name, offset, length, label, tuple(size), problem)


def _examples(tar: tarfile.TarFile, shard: Path, max_pixels: int) -> Iterator[ShardImage]:
    """Yield the image of each example in a tar file that is read in order.

    Hidden and system files with the name of an image are yielded last, as unusable.
    """
    ignored: list[str] = []
    members = (member for member in tar if _is_of_example(member, ignored))
    for _, files in groupby(members, key=lambda member: _key_and_kind(member.name)[0]):
        image: tuple[tarfile.TarInfo, bytes] | None = None
        rank, pictures, labels, first = 0, list[str](), dict[str, ClassFile](), None
        for member in files:
            first = first or member
            _, kind = _key_and_kind(member.name)
            name, _, ending = kind.rpartition(".")
            if f".{ending}" in IMAGE_SUFFIXES:
                # An only picture is the image, whatever its name.
                own = NAME_RANKS.get(name, len(NAME_RANKS))
                if image is None or own < rank:
                    rank, pictures = own, []
                    image = member, _content(tar, member, MAX_FILE_BYTES)
                if own == rank:
                    pictures.append(member.name)
            elif kind in ("cls", "json") and member.isreg():
                small = member.size <= MAX_CLASS_FILE
                content = _content(tar, member, MAX_CLASS_FILE) if small else None
                labels.setdefault(kind, (member.name, content))
        if len(pictures) > 1:
            raise UsageError(
                f"{shard} has two pictures in one example, {pictures[0]} and {pictures[1]}, of "
                "which either may be the image; write it anew with an image named .jpg or "
                ".image.jpg, and other names for other pictures"
            )
        label = _class_number(shard, labels)
        assert first is not None
        if image is None:
            yield ShardImage(first.name, 0, 0, label, (0, 0), WITHOUT_IMAGE)
        else:
            yield _shard_image(shard, *image, label, max_pixels)
    for name in ignored:
        yield ShardImage(name, 0, 0, None, (0, 0), "a hidden or system file")


def _is_of_example(member: tarfile.TarInfo, ignored: list[str]) -> bool:
    """Return whether a tar member is a file of an example, or a link.

    The names of hidden and system files that are named like images are appended to `ignored`.
    """
    if not (member.isreg() or member.islnk() or member.issym()):
        return False
    path = PurePosixPath(member.name)
    # As in a folder of images: by the name of the file and that of the class.
    if not any(is_leftover(part) for part in path.parts[-2:] if part != ".."):
        return True
    if path.suffix.lower() in IMAGE_SUFFIXES:
        ignored.append(member.name)
    return False


def _shard_image(
    shard: Path, member: tarfile.TarInfo, content: bytes, label: int | None, max_pixels: int
) -> ShardImage:
    """Return a tar member, whose name is that of an image, as an image of the index."""
    parts = PurePosixPath(member.name).parts
    if ".." in parts or parts[0] == "/":
        raise UsageError(f"{shard} has a member {member.name!r}, outside of it; write it anew")
    if not member.isreg():
        return ShardImage(member.name, 0, 0, label, (0, 0), "a link to another member")
    if member.issparse():  # its bytes are not at one place
        return ShardImage(member.name, 0, 0, label, (0, 0), "sparse, as tar -S stores it")
    source = ShardMember(member.name, content)
    size = usable_size(source, max_pixels) if content else (0, 0)
    problem = "" if size != (0, 0) else _problem(source, member, max_pixels)
    return ShardImage(member.name, member.offset_data, member.size, label, size, problem)


def _check_order(shard: Path, images: Iterable[ShardImage]) -> None:
    """Raise UsageError if a shard has classes apart from its images, whose folders would count."""
    apart = [each for each in images if each.problem == WITHOUT_IMAGE and each.label is not None]
    unnumbered = [each for each in images if each.length and each.label is None]
    if apart and unnumbered:
        raise UsageError(
            f"{shard} has a class number in {apart[0].name} without an image, and none for "
            f"{unnumbered[0].name}: the files of an example do not follow each other; write the "
            "shard anew in the order of their names"
        )


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo, most: int) -> bytes:
    """Return the bytes of a tar member; none if there are more than `most`, or of a link."""
    file = tar.extractfile(member) if member.isreg() and member.size <= most else None
    return file.read() if file else b""


def _key_and_kind(name: str) -> tuple[str, str]:
    """Split a member's name into WebDataset's key, with the folder, and the kind of file.

    >>> _key_and_kind("n01/a.7.JPG")
    ('n01/a', '7.jpg')
    """
    folder, slash, file = name.rpartition("/")
    stem, _, kind = file.partition(".")
    return folder + slash + stem, kind.lower()


def _class_number(shard: Path, files: Mapping[str, ClassFile]) -> int | None:
    """Return the class number of an example: that in its .cls, or else the label in its .json.

    `files` has either by its kind. Returns None if there is no number, as for a label in .json that
    is a text. Raises UsageError for others.
    """
    kind = "cls" if "cls" in files else "json"
    if kind not in files:
        return None
    name, content = files[kind]
    if content is None:
        raise UsageError(
            f"{shard}:{name} has more than {MAX_CLASS_FILE} bytes and is not searched for a class; "
            "write the shard anew with the class number in a .cls"
        )
    if kind == "json":
        label = _json_label(content)
        is_number = label is not None and not isinstance(label, str)
        return _checked_class(label, shard, name, content) if is_number else None
    digits = re.fullmatch(rb"\s*([0-9]{1,20})\s*", content)
    return _checked_class(int(digits[1]) if digits else _json(content), shard, name, content)


def _checked_class(value: Any, shard: Path, name: str, content: bytes) -> int:
    """Return a value if it is a class number; else raise UsageError."""
    where = f"{shard}:{name} holds {content[:40]!r}"
    if isinstance(value, list) and len(value) > 1:
        raise UsageError(
            f"{where}, several labels; multi-label data are not supported, and an image has one "
            "class number"
        )
    if type(value) is not int or not 0 <= value < 2**31:
        raise UsageError(f"{where}, and no class number from 0 on")
    return value


def _json_label(content: bytes) -> Any:
    """Return the label in an example's JSON file, without a list around it; None if it has none.

    A number comes before a text, such as the name of the class.
    """
    values = _json(content)
    if not isinstance(values, dict):
        return None
    found = [values[key] for key in CLASS_KEYS if key in values]
    labels = [each[0] if isinstance(each, list) and len(each) == 1 else each for each in found]
    first, *others = labels or [None]
    numbers = [each for each in others if type(each) is int]
    return numbers[0] if numbers and isinstance(first, str | None) else first


def _json(content: bytes) -> Any:
    """Parse a JSON text; return None if it is invalid."""
    try:
        return parse_json(content)
    except ValueError:
        return None


def _problem(source: ShardMember, member: tarfile.TarInfo, max_pixels: int) -> str:
    """Return why not every loader can use an image."""
    if member.size > MAX_FILE_BYTES:
        return f"larger than {MAX_FILE_BYTES} bytes"
    kinds = [
        f"{kind}: {detail}" for kind, detail in image_problems(source, max_pixels) if kind in FATAL
    ]
    return kinds[0] if kinds else "no image"


def _without_unusable(
    root: Path, split: str, images: list[tuple[str, ShardImage]]
) -> list[tuple[str, ShardImage]]:
    """Return the images of a split that can be used; print a warning that names the others."""
    unusable = [
        f"{shard}:{image.name}, {image.problem}" for shard, image in images if image.problem
    ]
    if unusable:
        more = " …" if len(unusable) > 3 else ""
        print(
            f"warning: {len(unusable):,} of {split} skipped ({'; '.join(unusable[:3])}{more})",
            flush=True,
        )
    left = [(shard, image) for shard, image in images if not image.problem]
    if not left:
        raise UsageError(f"{root} has no image in the shards of {split}; give others")
    return left


def _folder(name: str) -> str:
    return PurePosixPath(name).parent.name


def _class_names(
    root: Path, images: dict[str, list[tuple[str, ShardImage]]]
) -> dict[int | str, tuple[int, str]]:
    """Return the label and name of each class, by the number or folder that the shards give.

    A class that has a number is named by its folder if each has one of its own, else by its number.
    Raises UsageError unless both splits have the same classes, numbered from 0 without a gap.
    """
    found = {
        split: {(image.label, _folder(image.name)): f"{shard}:{image.name}" for shard, image in own}
        for split, own in images.items()
    }
    pairs = found["train"] | found["val"]
    unnumbered = [place for (label, _), place in pairs.items() if label is None]
    if unnumbered and len(unnumbered) < len(pairs):
        raise UsageError(
            f"{root / unnumbered[0]} has no class number and other images have one; give every "
            "image a .cls or a label in .json, or none"
        )
    if unnumbered:
        if "" in {folder for _, folder in pairs}:
            raise UsageError(
                f"{root / unnumbered[0]} has no class: neither a .cls, a number as label in "
                ".json nor a folder in its name; write the shards with one of them"
            )
        names = sorted({folder for _, folder in pairs})
        classes: dict[int | str, tuple[int, str]] = {
            name: (label, name) for label, name in enumerate(names)
        }
    else:
        numbers = sorted({label for label, _ in pairs if label is not None})
        if numbers != list(range(len(numbers))):
            gap = min(set(range(len(numbers))) - set(numbers))
            raise UsageError(
                f"{root} has classes up to {numbers[-1]} and no image of class {gap}; number the "
                "classes of the shards from 0 without a gap"
            )
        folders = {folder for _, folder in pairs} - {""}
        own_folders = len(folders) == len(pairs) == len(numbers)
        width = len(str(numbers[-1]))
        classes = {
            label: (label, folder if own_folders else f"{label:0{width}}")
            for label, folder in pairs
            if label is not None
        }
    for split, other in (("train", "val"), ("val", "train")):
        ours, theirs = (
            {label if label is not None else folder for label, folder in found[each]}
            for each in (split, other)
        )
        if alone := sorted(ours - theirs, key=str):
            raise UsageError(
                f"class {alone[0]} of {root} is only in {split} and not in {other}; give --{other} "
                "shards with all classes"
            )
    return classes


def _rows(
    split: str, images: list[tuple[str, ShardImage]], classes: dict[int | str, tuple[int, str]]
) -> Iterator[IndexRow]:
    """Yield the rows of a split's index, whose paths are SPLIT/CLASS/NAME.

    Where shards repeat names, the shard's own name comes between.
    """
    paths_and_images = []
    for shard, image in images:
        label, name = classes[image.label if image.label is not None else _folder(image.name)]
        tail = image.name.removeprefix("./").removeprefix(f"{name}/")
        paths_and_images.append((shard, image, label, name, tail))
    repeated = Counter((name, tail) for _, _, _, name, tail in paths_and_images)
    inserted = max(repeated.values()) > 1
    for shard, image, label, name, tail in paths_and_images:
        between = f"{shard.removesuffix('.tar')}/" if inserted else ""
        path = os.fsencode(f"{split}/{name}/{between}{tail}")
        yield path, os.fsencode(shard), image.offset, image.length, label, *image.size
