"""Every image decoded wholly: what cannot be used goes to a skip list, what is odd is named."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lsgd.errors import Refused
from lsgd.files import whole
from lsgd.inputs.index import SPLITS, class_folders
from lsgd.prepare.images import FATAL, ODD, look
from lsgd.prepare.journal import FolderFindings, Journal, look_at_folder
from lsgd.prepare.workers import in_parallel

SKIP_LIST_HEADER = """\
# Images that cannot be decoded: lsgd leaves them out with data.skip_list={file}
# One path per line, relative to data.root. What is left out is part of the run's identity.
"""


class Oddity(NamedTuple):
    """What is odd about an image, or makes it useless."""

    path: str
    kind: str
    detail: str


def check_folder(root: Path, folder: Path, *, processes: int) -> list[Oddity]:
    """Decode all images of root/train and root/val; returns their oddities.

    A journal in `folder` lets a run that was killed go on where it was.
    """
    journal = Journal(folder / "check.jsonl")
    names = [f"{split}/{name}" for split in SPLITS for name in class_folders(root / split)]
    tasks = [(root, name, journal.findings.get(name)) for name in names]
    for findings in in_parallel(_look, tasks, processes=processes, what="checking"):
        journal.add(findings)
    oddities = [
        Oddity(f"{name}/{image}", kind, detail)
        for name in names
        for image, (_, kinds) in journal.findings[name].files.items()
        for kind, detail in kinds
    ]
    with whole(folder / "check.tsv") as file:
        file.write(b"path\tkind\tdetail\n")
        for oddity in oddities:
            file.write(os.fsencode("\t".join(oddity) + "\n"))
    journal.remove()
    return oddities


def write_skip_list(oddities: Sequence[Oddity], file: Path) -> tuple[int, int]:
    """Add the images with a fatal oddity to a skip list, whose earlier lines stay.

    Returns how many images the list names, and how many of those have no fatal oddity. Raises
    Refused if the path of an image cannot stand in a skip list.
    """
    lines = [
        (oddity.path, f"# {oddity.kind}: {oddity.detail}".replace("\n", " "))
        for oddity in oddities
        if oddity.kind in FATAL
    ]
    for path, _ in lines:
        # A reader of the list takes what follows # for a comment, and strips blanks.
        if "#" in path or path != path.strip() or not path.isprintable():
            raise Refused(f"{path!r} cannot be named in a skip list; rename or remove that file")
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    listed = {line.partition("#")[0].strip() for line in text.splitlines()} - {""}
    added = [f"{path}  {why}\n" for path, why in lines if path not in listed]
    if added:
        if not text:
            text = SKIP_LIST_HEADER.format(file=file)
        with whole(file) as out:
            text = text if text.endswith("\n") else f"{text}\n"
            out.write((text + "".join(added)).encode())
    fatal = {path for path, _ in lines}
    return len(listed | fatal), len(listed - fatal)


def table(oddities: Sequence[Oddity]) -> str:
    """The number of images of each kind of oddity, with up to 5 examples of it."""
    counts = Counter(oddity.kind for oddity in oddities)
    lines = []
    for title, kinds in (("not usable", FATAL), ("odd but usable", ODD)):
        lines.append(f"{title}:")
        for kind, meaning in kinds.items():
            lines.append(f"  {kind:<13}{counts[kind]:>8,}  {meaning}")
            examples = [oddity for oddity in oddities if oddity.kind == kind][:5]
            lines += [f"{'':>25}{oddity.path} ({oddity.detail})" for oddity in examples]
    return "\n".join(lines)


def _look(root: Path, folder: str, earlier: FolderFindings | None) -> FolderFindings:
    return look_at_folder(root, folder, look, earlier)
