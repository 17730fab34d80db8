"""The contents of a checkpoint, and the reading and atomic writing of its files."""

import dataclasses
import hashlib
import io
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, get_origin

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, serialization

from lsgd import config
from lsgd.errors import DISK_FULL_ERRNOS, UsageError
from lsgd.files import create_empty, sync_file, sync_folder
from lsgd.paths import CHECKPOINT, checkpoint_name, checkpoint_steps
from lsgd.paths import checkpoint_files as checkpoint_files
from lsgd.paths import step_in_name as step_in_name
from lsgd.recipe.retention import Retention, newest_steps
from lsgd.rules.metric import TOP1
from lsgd.untrusted_files import check_unzipped_size, open_regular

FILE = CHECKPOINT
"""The name of the link to the newest checkpoint, which a drive without symbolic links lacks."""
BEST = "best.pt"
"""The name of the link to the checkpoint of the best evaluation, if the recipe has keep_best."""
FORMAT = 2
"""The format number that `write` uses. Adding a field with a default does not change it."""
TO_RESUME = "make it readable, or move it away to resume from the checkpoint before it"
DIGEST = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Checkpoint:
    """The complete state of a training run at a step, from which any number of processes resume.

    A field that is added later needs a default: its value for files written before it existed.
    """

    recipe: dict[str, Any]
    fingerprint: str
    step: int
    """The next step of the run."""
    epoch: int
    """The epoch of that step, counted from 0."""
    order: str
    """The hash of the order of examples in that epoch."""
    lr: float
    """The learning rate of the last step made."""
    model: dict[str, Tensor]
    """Parameters and buffers, with the running statistics of all processes combined.

    They load into torchvision's networks.
    """
    optimizer: dict[str, Any]
    parts: dict[str, dict[str, Tensor]]
    """The state that workers carry from step to step, by the name of its CarriedState.

    `batchnorm` has `shares`, as returned by RunningStatistics.state.
    """
    tally: dict[str, Tensor]
    """The loss and counts over the steps of the epoch so far, as returned by MetricSums.state."""
    rates: dict[int, dict[str, float]]
    """The metrics of each finished epoch, by its number from 1, as in its row of metrics.jsonl.

    They are train_loss, …, and val_top1_error, … if it was evaluated. A file of format 1 has only
    the latter.
    """
    data: dict[str, str] = dataclasses.field(default_factory=dict)
    """Digests of the training data, from lsgd.inputs.consistency; empty in older files."""
    evaluations: dict[int, dict[str, float]] = dataclasses.field(default_factory=dict)
    """The metrics of each evaluation within an epoch, by the number of steps made before it.

    It is left out of the file while it is empty, so that earlier versions can read the file.
    """


class DamagedCheckpointError(UsageError):
    """The error for a damaged or incomplete checkpoint file; an older file may be intact."""


def order_hash(order: NDArray[np.int64]) -> str:
    """Return the SHA-256, in hexadecimal, that identifies an order of training examples."""
    return hashlib.sha256(order.tobytes()).hexdigest()


def write(
    checkpoint: Checkpoint,
    folder: Path,
    *,
    milestone: bool = False,
    keep: Retention = newest_steps,
    best_first: Sequence[int] = (),
) -> bool:
    """Write a checkpoint file into a run folder atomically, then delete those that `keep` omits.

    A kill leaves a complete file or none. Then the link `checkpoint.pt` is moved to it, and
    `best.pt` to the first file of the steps in `best_first`; the file of this link is kept as long
    as it leads there. The file ends with the SHA-256 of torch's archive, which torch.load ignores,
    so that no manifest is needed. Returns whether the first link could be moved, and raises OSError
    and leaves the folder unchanged if the file cannot be written.
    """
    target = folder / checkpoint_name(checkpoint.step, milestone=milestone)
    temporary = Path(f"{target}.tmp")
    fields = vars(checkpoint).items()
    written = {key: value for key, value in fields if value or key != "evaluations"}
    try:
        with create_empty(temporary) as file:
            archive = _Hashed(file)
            torch.save({"format": FORMAT} | written, archive)  # type: ignore[arg-type]
            if archive.error:
                raise archive.error
            file.write(archive.hash.digest())
            sync_file(file)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    os.replace(temporary, target)
    is_linked = point_to(target)
    best = _link_best(folder, best_first)
    steps = checkpoint_steps(folder, milestones=False)
    kept = {checkpoint.step, *keep(steps.values())}
    for path, step in steps.items():
        if step not in kept and path.name != best:
            path.unlink()
    return is_linked


def _link_best(folder: Path, best_first: Sequence[int]) -> str:
    """Move `best.pt` to the first file of these steps; return its file's name, or ''."""
    # By the files that exist: a full disk or a kill may have lost that of the best evaluation.
    files = {step: path for path, step in reversed(checkpoint_steps(folder).items())}
    best = next((files[step] for step in best_first if step in files), None)
    link = folder / BEST
    kept = os.readlink(link) if link.is_symlink() else ""
    if best is None or best.name == kept:
        return kept
    point_to(best, BEST)
    return best.name


class _Hashed:
    """A checkpoint file that hashes the bytes written and keeps an OSError, which torch hides.

    Hashing while writing lets training continue, unlike building the archive in memory.
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
        """Do nothing: torch flushes at the end of its archive, before the hash is appended."""


def point_to(target: Path, name: str = FILE) -> bool:
    """Replace the symlink of this name by one to this checkpoint file, and fsync its folder.

    Returns whether that was possible: some network drives and formats of USB disks have no
    symlinks. No file of this name is left then, since it would be that of another checkpoint.
    """
    link = target.parent / name
    temporary = Path(f"{link}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        temporary.symlink_to(target.name)
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            raise
        link.unlink(missing_ok=True)
        is_linked = False
    else:
        os.replace(temporary, link)
        is_linked = True
    sync_folder(target.parent)
    return is_linked


def decode_checkpoint(content: bytes, name: str) -> Checkpoint:
    """Decode a checkpoint from the bytes of its file, which may be of an older format.

    Raises DamagedCheckpointError, which gives `name`, if they are no complete checkpoint, and
    UsageError if a newer lsgd wrote them.
    """
    archive, digest = content[:-DIGEST], content[-DIGEST:]
    try:
        if hashlib.sha256(archive).digest() != digest:
            raise ValueError("its content does not match its check sum")
        fields = load_numbers(archive)
        if not isinstance(fields, dict) or "format" not in fields:
            raise ValueError("it has no format number")
        written = fields.pop("format")
        if written == 1:
            _from_format_1(fields)
        later = sorted(fields.keys() - {entry.name for entry in dataclasses.fields(Checkpoint)})
        if written not in (1, FORMAT) or later:
            what = f"it has {', '.join(later)}" if later else f"it is of format {written}"
            raise UsageError(
                f"{name} was written by a newer lsgd ({what}); resume with that version"
            )
        loaded = Checkpoint(**fields)
        for entry in dataclasses.fields(Checkpoint):
            kind: Any = get_origin(entry.type) or entry.type
            if not isinstance(getattr(loaded, entry.name), (float, int) if kind is float else kind):
                raise ValueError(f"its {entry.name} is not a {kind.__name__}")
        return loaded
    except UsageError:
        raise
    except Exception as error:  # any type, since the bytes may be anything
        why = (str(error) or repr(error)).splitlines()[0]
        raise DamagedCheckpointError(
            f"{name} is damaged or not a checkpoint of lsgd ({why}); move it away to start "
            "again, or write run_dir=PATH of another run"
        ) from None


class _Omitted:
    """A stand-in for an object of another script's checkpoint, of which nothing is kept.

    numpy's own functions would read any memory for a hostile description of a dtype.
    """

    def __new__(cls, *_: Any) -> "_Omitted":
        return super().__new__(cls)

    def __setstate__(self, _: Any) -> None:
        """Keep nothing of the object's state."""


def load_numbers(content: bytes, *, omitted: Sequence[str] = ()) -> Any:
    """Decode the bytes of a torch.save file that has only tensors, numbers and strings in it.

    Objects of the classes and functions in `omitted` are replaced by stand-ins. Raises ValueError
    with a message of our own for anything else, as torch's message advises to load it unsafely.
    """
    if content.startswith(b"PK\3\4"):  # by which torch takes it for its archive
        check_unzipped_size(content, len(content))  # torch compresses nothing
    try:
        known: list[Any] = [(_Omitted, name) for name in omitted]
        with warnings.catch_warnings(action="ignore"), serialization.safe_globals(known):
            loaded = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        _check_sizes(loaded, len(content))
        return loaded
    except RuntimeError as error:
        raise ValueError(str(error).splitlines()[0]) from None
    except Exception:  # any type, since the bytes may be anything
        names = _object_names(content) - {*omitted}
        raise ValueError(
            f"it contains {min(names):.80}, and objects other than tensors, numbers and texts are "
            "not loaded, as they could run code"
            if names
            else "it is not a file of torch.save, or contains objects other than tensors, numbers "
            "and texts, which are not loaded, as they could run code"
        ) from None


def _object_names(content: bytes) -> set[str]:
    """Return the classes and functions that a torch.save file names, other than torch's own."""
    try:
        return {*serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(content))}
    except Exception:  # any type, as above; also for the legacy format of torch.save
        return set()


def _check_sizes(value: Any, most: int) -> None:
    """Raise RuntimeError if any tensor in nested containers claims more than `most` bytes.

    Strides of 0 can make a huge tensor of a few bytes, on which any computation would take for
    ever.
    """
    match value:
        case Tensor():
            if value.numel() * value.element_size() > most:
                shape = tuple(value.shape)
                raise RuntimeError(f"a tensor of shape {shape} is larger than the file")
        case dict():
            for each in value.items():
                _check_sizes(each, most)
        case list() | tuple():
            for entry in value:
                _check_sizes(entry, most)


def _from_format_1(fields: dict[str, Any]) -> None:
    """Convert the fields of a checkpoint of lsgd 0.1.0 to the current format, in place."""
    fields["parts"] = {"batchnorm": {"shares": fields.pop("bn_shares")}}
    # The epochs of a dry run have gaps, so their numbers do not simply count from 0.
    epochs = (epoch for epoch, _ in config.from_saved(fields["recipe"]).epochs_from(0))
    evaluated = zip(epochs, fields.pop("errors"), strict=False)
    fields["rates"] = {epoch + 1: {TOP1.key: error} for epoch, error in evaluated}


def read(path: Path, remedy: str = TO_RESUME) -> bytes:
    """Read the bytes of a checkpoint file; raise UsageError if the system cannot read it.

    The sentence ends with the remedy, by default that for a run which resumes.
    """
    try:
        with open_regular(path) as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}); {remedy}") from None
