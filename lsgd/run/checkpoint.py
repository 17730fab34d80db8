"""A checkpoint: what is in it, and its files, written whole or not at all."""

import dataclasses
import hashlib
import io
import os
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, get_origin

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lsgd import config
from lsgd.errors import Refused
from lsgd.rules.metric import TOP1

FILE = "checkpoint.pt"
"""The name of a link to the newest checkpoint."""
FORMAT = 2
"""The format that `write` makes. A new field with a default makes no new format."""
DIGEST = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on at `step`, on any number of processes.

    A field that is added has a default: its value in files that were written before it.
    """

    recipe: dict[str, Any]
    fingerprint: str
    step: int
    """The next step of the run."""
    epoch: int
    """The epoch of that step."""
    order: str
    """Hash of the order of examples in that epoch."""
    lr: float
    """The learning rate of the last step made."""
    model: dict[str, Tensor]
    """Parameters and buffers, with the running statistics of all processes combined; they load into
    torchvision's networks."""
    optimizer: dict[str, Any]
    parts: dict[str, dict[str, Tensor]]
    """The state that workers carry from step to step, by the name of the part: `batchnorm` has
    `shares`, as RunningStatistics.state has them."""
    tally: dict[str, Tensor]
    """Loss and counts over the steps of the epoch so far, as in Tally.state."""
    rates: dict[int, dict[str, float]]
    """The metrics of each epoch that has ended, as in its row of metrics.jsonl, by its number from
    1: train_loss, …, and val_top1_error, … if it was evaluated. A file of format 1 has only the
    latter."""


class Damaged(Refused):
    """The refusal of a file that is no whole checkpoint; an older file of the run may be one."""


def order_hash(order: NDArray[np.int64]) -> str:
    """The hash by which two orders of examples are compared."""
    return hashlib.sha256(order.tobytes()).hexdigest()


def write(checkpoint: Checkpoint, folder: Path, *, milestone: bool = False, keep: int = 2) -> None:
    """Put the checkpoint into the folder in one move: a kill leaves it there whole, or not at all.

    The file is checkpoint-STEP.pt, of which the newest `keep` stay, or milestone-STEP.pt, which
    stays for good; `checkpoint.pt` is a link that is then moved to it. The file ends with the
    SHA-256 of torch's archive, which torch.load ignores, so that no manifest is needed. Raises
    OSError and leaves the folder as it was, if the file cannot be written.
    """
    target = folder / f"{'milestone' if milestone else 'checkpoint'}-{checkpoint.step}.pt"
    temporary = Path(f"{target}.tmp")
    try:
        with temporary.open("wb") as file:
            archive = _Hashed(file)
            torch.save({"format": FORMAT} | vars(checkpoint), archive)  # type: ignore[arg-type]
            if archive.error:
                raise archive.error
            file.write(archive.hash.digest())
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    os.replace(temporary, target)
    point_to(target)
    for old in _numbered(folder, "checkpoint")[keep:]:
        old.unlink()


class _Hashed:
    """A file that takes a hash of what is written; an error waits, since torch would hide it.

    Hashing and writing let training go on, which putting the archive together in memory does not.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.hash = file, hashlib.sha256()
        self.error: OSError | None = None

    def write(self, content: memoryview) -> int:
        if self.error is None:
            self.hash.update(content)
            try:
                self.file.write(content)
            except OSError as error:
                self.error = error
        return len(content)

    def flush(self) -> None:
        """torch calls it at the end of the archive, behind which the hash is still to come."""


def point_to(target: Path) -> None:
    """Make FILE a link to the target, and make sure that the folder says so after a power cut."""
    link = target.parent / FILE
    temporary = Path(f"{link}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target.name)
    os.replace(temporary, link)
    descriptor = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _numbered(folder: Path, kinds: str = "checkpoint|milestone") -> list[Path]:
    """The files of these kinds in the folder, that of the last step first."""
    steps = {
        path: int(match[1])
        for path in folder.iterdir()
        if (match := re.fullmatch(rf"(?:{kinds})-(\d+)\.pt", path.name))
    }
    # A milestone comes before a checkpoint of its step, which left its evaluation to the resume.
    return sorted(steps, key=lambda path: (steps[path], path.name), reverse=True)


def files(folder: Path) -> list[Path]:
    """The checkpoints in a run folder, newest first; the newest may have been cut short."""
    # A plain file comes from a run folder that was copied with its links followed.
    plain = [path for path in [folder / FILE] if path.exists() and not path.is_symlink()]
    return plain + _numbered(folder)


def load(content: bytes, name: str) -> Checkpoint:
    """The checkpoint in these bytes, which may be of an older version.

    Raises Damaged naming `name` if they are no whole checkpoint, and Refused if they are one of a
    version to come.
    """
    archive, digest = content[:-DIGEST], content[-DIGEST:]
    try:
        if hashlib.sha256(archive).digest() != digest:
            raise ValueError("its content does not match its check sum")
        fields = load_numbers(archive)
        if not isinstance(fields, dict) or "format" not in fields:
            raise ValueError("it has no format")
        written = fields.pop("format")
        if written == 1:
            _from_format_1(fields)
        later = sorted(fields.keys() - {entry.name for entry in dataclasses.fields(Checkpoint)})
        if written not in (1, FORMAT) or later:
            what = f"it has {', '.join(later)}" if later else f"it is of format {written}"
            raise Refused(f"{name} was written by a newer lsgd ({what}); go on with that version")
        loaded = Checkpoint(**fields)
        for entry in dataclasses.fields(Checkpoint):
            kind: Any = get_origin(entry.type) or entry.type
            if not isinstance(getattr(loaded, entry.name), (float, int) if kind is float else kind):
                raise ValueError(f"its {entry.name} is no {kind.__name__}")
        return loaded
    except Refused:
        raise
    except Exception as error:  # of any type, since the bytes may be anything
        why = (str(error) or repr(error)).splitlines()[0]
        raise Damaged(
            f"{name} is damaged or no checkpoint of lsgd ({why}); move it away to start again, or "
            "write run_dir=PATH of another run"
        ) from None


def load_numbers(content: bytes) -> Any:
    """What torch.save has written into these bytes, if it is tensors, numbers, texts and the like.

    Raises ValueError, in words of our own, for anything else: torch's advise to load it unsafely.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except RuntimeError as error:
        raise ValueError(str(error).splitlines()[0]) from None
    except Exception:  # of any type, since the bytes may be anything
        raise ValueError(
            "it is no file of torch.save, or has more than tensors, numbers and texts in it, which "
            "is not loaded, as that could run a program"
        ) from None


def _from_format_1(fields: dict[str, Any]) -> None:
    """Bring the fields of a file of lsgd 0.1.0 to where they are now."""
    fields["parts"] = {"batchnorm": {"shares": fields.pop("bn_shares")}}
    # The epochs of a rehearsal have gaps, so that counting from 0 would not do.
    epochs = (epoch for epoch, _ in config.from_saved(fields["recipe"]).epochs_from(0))
    evaluated = zip(epochs, fields.pop("errors"), strict=False)
    fields["rates"] = {epoch + 1: {TOP1.key: error} for epoch, error in evaluated}


def read(path: Path) -> bytes:
    """The content of a checkpoint file; raises Damaged if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise Damaged(
            f"{path} cannot be read ({error.strerror}); give the checkpoint.pt of a run"
        ) from None
