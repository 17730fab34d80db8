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
    """Decode all images of root/train and root/val; returns what is not as it should be.

    A journal in `folder` lets a run that was killed go on where it was.
    """
    journal = Journal(folder / "check.jsonl")
    names = [f"{split}/{name}" for split in SPLITS for name in class_folders(root / split)]
    tasks = [(root, name, journal.found.get(name)) for name in names]
    for findings in in_parallel(_look, tasks, processes=processes, what="checking"):
        journal.add(findings)
    found = [
        Oddity(f"{name}/{image}", kind, detail)
        for name in names
        for image, (_, kinds) in journal.found[name].files.items()
        for kind, detail in kinds
    ]
    with whole(folder / "check.tsv") as file:
        file.write(b"path\tkind\tdetail\n")
        for each in found:
            file.write(os.fsencode("\t".join(each) + "\n"))
    journal.remove()
    return found


def write_skip_list(found: Sequence[Oddity], file: Path) -> tuple[int, int]:
    """Add the fatal ones to a skip list; the lines that it has stay.

    Returns how many images it names, and how many of those were not found to be fatal.
    """
    lines = [
        (each.path, f"# {each.kind}: {each.detail}".replace("\n", " "))
        for each in found
        if each.kind in FATAL
    ]
    for path, _ in lines:
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


def table(found: Sequence[Oddity]) -> str:
    """How many of each kind, and up to 5 examples."""
    counts = Counter(each.kind for each in found)
    lines = []
    for title, kinds in (("not usable", FATAL), ("odd but usable", ODD)):
        lines.append(f"{title}:")
        for kind, meaning in kinds.items():
            lines.append(f"  {kind:<13}{counts[kind]:>8,}  {meaning}")
            examples = [each for each in found if each.kind == kind][:5]
            lines += [f"{'':>25}{each.path} ({each.detail})" for each in examples]
    return "\n".join(lines)


def _look(root: Path, folder: str, earlier: FolderFindings | None) -> FolderFindings:
    return look_at_folder(root, folder, look, earlier)
