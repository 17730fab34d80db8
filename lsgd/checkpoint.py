"""The run folder and its checkpoints: written whole or not at all, resumed exactly."""

import dataclasses
import hashlib
import io
import os
import pickle
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lsgd import config
from lsgd.errors import Refused
from lsgd.recipe import Recipe
from lsgd.rules.metric import ERROR

FILE = "checkpoint.pt"
"""A link to the newest one."""
CONFIG_BESIDE = "config.yaml.tmp"
FORMAT = 2
"""Of what write makes. A new field is no new format, if it has a default."""
DIGEST = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on at `step`, on any number of processes.

    A field that is added has a default: what a file means that was written before.
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
    """That of the last step made."""
    model: dict[str, Tensor]
    """With the running statistics of all processes combined; loads into torchvision's networks."""
    optimizer: dict[str, Any]
    parts: dict[str, dict[str, Tensor]]
    """What the workers carry from step to step, by the name of the part: `batchnorm` has `shares`,
    RunningStatistics.all_shares."""
    tally: dict[str, Tensor]
    """What the epoch's steps so far got right."""
    rates: dict[int, dict[str, float]]
    """What each epoch that has ended came to, as in its row of metrics.jsonl, by its number from 1:
    train_loss, …, and val_top1_error, … if it was evaluated. A file of format 1 knows only the
    latter."""


class Damaged(Refused):
    """A file that is no whole checkpoint; an older one may be."""


def order_hash(order: NDArray[np.int64]) -> str:
    """A short name for an order of examples."""
    return hashlib.sha256(order.tobytes()).hexdigest()


def write(checkpoint: Checkpoint, folder: Path, *, milestone: bool = False, keep: int = 2) -> None:
    """Put the checkpoint into the folder in one move: a kill leaves it there whole, or not at all.

    The file is checkpoint-STEP.pt, of which the newest `keep` stay, or milestone-STEP.pt, which
    stays for good; `checkpoint.pt` is a link that is then moved to it. Behind torch's archive
    stands its SHA-256, which torch.load passes over: so no manifest has to be kept in step with the
    files. Raises OSError and leaves the folder as it was, if it cannot be written.
    """
    target = folder / f"{'milestone' if milestone else 'checkpoint'}-{checkpoint.step}.pt"
    beside = Path(f"{target}.tmp")
    try:
        with beside.open("wb") as file:
            archive = _Hashed(file)
            torch.save({"format": FORMAT} | vars(checkpoint), archive)  # type: ignore[arg-type]
            if archive.error:
                raise archive.error
            file.write(archive.hash.digest())
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    os.replace(beside, target)
    _point_to(target)
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


def _point_to(target: Path) -> None:
    """Make FILE a link to the target, and make sure that the folder says so after a power cut."""
    link = target.parent / FILE
    beside = Path(f"{link}.tmp")
    beside.unlink(missing_ok=True)
    beside.symlink_to(target.name)
    os.replace(beside, link)
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
    # A plain file is of a run folder from elsewhere, where links were followed.
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
        fields = torch.load(io.BytesIO(archive), map_location="cpu", weights_only=True)
        written = fields.pop("format", None)
        if written == 1:
            _from_format_1(fields)
        later = sorted(fields.keys() - {entry.name for entry in dataclasses.fields(Checkpoint)})
        if written not in (1, FORMAT) or later:
            what = f"it has {', '.join(later)}" if later else f"it is of format {written}"
            raise Refused(f"{name} was written by a newer lsgd ({what}); go on with that version")
        return Checkpoint(**fields)
    except (ValueError, TypeError, RuntimeError, pickle.UnpicklingError) as error:
        why = (str(error) or repr(error)).splitlines()[0]
        raise Damaged(
            f"{name} is damaged or no checkpoint of lsgd ({why}); move it away to start again, or "
            "write run_dir=PATH of another run"
        ) from None


def _from_format_1(fields: dict[str, Any]) -> None:
    """Bring the fields of a file of lsgd 0.1.0 to where they are now."""
    fields["parts"] = {"batchnorm": {"shares": fields.pop("bn_shares")}}
    # Those of a rehearsal have gaps.
    epochs = (epoch for epoch, _ in config.from_saved(fields["recipe"]).epochs_from(0))
    evaluated = zip(epochs, fields.pop("errors"), strict=False)
    fields["rates"] = {epoch + 1: {ERROR: error} for epoch, error in evaluated}


def read(path: Path) -> bytes:
    """The content of a checkpoint file; raises Damaged if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise Damaged(
            f"{path} cannot be read ({error.strerror}); give the checkpoint.pt of a run"
        ) from None


@dataclass(frozen=True)
class Opened:
    """A run folder that has been made or found."""

    folder: Path
    content: bytes | None = None
    """Of its newest whole checkpoint, if it has one."""
    path: str = ""
    """Of that checkpoint."""
    warning: str = ""
    """What is wrong with the folder, and does not keep the run from going on."""
    workers_per_pass: int | None = None
    """With which the checkpoint was made: what auto was when the run started."""


def open_run(recipe: Recipe) -> Opened:
    """The folder of the run, made if need be, and its newest whole checkpoint if it has one.

    For process 0. An empty or new folder starts a run, one with a checkpoint of the same
    fingerprint resumes it, and so does one which died before its first checkpoint. Raises Refused,
    having touched nothing, for any other, and if all checkpoints are damaged. A damaged one that is
    newer than the whole one is set aside, under the same name and `.damaged`.
    """
    if recipe.run_dir is None:
        return Opened(_new_folder(recipe))
    folder = Path(recipe.run_dir)
    try:
        opened, damaged = _checkpoint_of(recipe, folder)
        folder.mkdir(parents=True, exist_ok=True)
        # Also tells whether there is space at all.
        _write_config(recipe, folder)
        for path in damaged:
            os.replace(path, f"{path}.damaged")
        for left in folder.glob("*.pt.tmp"):
            left.unlink()
        if opened.path and not (folder / FILE).exists():
            _point_to(Path(opened.path))
    except OSError as error:
        raise _unwritable(folder, error) from None
    return opened


def _checkpoint_of(recipe: Recipe, folder: Path) -> tuple[Opened, list[Path]]:
    """What there is in the folder, and the files that are damaged; touches nothing."""
    # What a run that died while it wrote its configuration has left, what a launch script has
    # opened for the logs of all processes, and what a supervisor keeps: all before there is a run.
    before = {CONFIG_BESIDE, "logs"}
    if not folder.exists() or all(
        each.name in before or each.name.startswith("supervise") for each in folder.iterdir()
    ):
        return Opened(folder), []
    opened, step = Opened(folder), 0
    damaged: list[Path] = []
    if found := files(folder):
        opened, damaged, saved = _newest_whole(folder, found)
        theirs, step = saved.fingerprint, saved.step
    elif (folder / "config.yaml").exists():
        theirs = _fingerprint_in(folder / "config.yaml")
    else:
        raise Refused(
            f"run_dir={folder} holds files of something else; write a new or empty folder"
        )
    if theirs != recipe.fingerprint:
        raise Refused(
            f"run_dir={folder} holds another run at step {step} (fingerprint {theirs[:12]}, this "
            f"recipe has {recipe.fingerprint[:12]}); write another run_dir, or the words that this "
            f"run was started with: they are in {folder / 'config.yaml'}"
        )
    return opened, damaged


def _newest_whole(folder: Path, found: list[Path]) -> tuple[Opened, list[Path], Checkpoint]:
    refusals: list[str] = []
    for number, path in enumerate(found):
        try:
            saved = load(content := read(path), str(path))
        except Damaged as refusal:
            refusals.append(str(refusal))
            continue
        warning = ""
        if refusals:
            names = ", ".join(f"{path}.damaged" for path in found[:number])
            warning = (
                f"{refusals[0].partition(';')[0]}; the run goes on from {path.name}, at step "
                f"{saved.step}, and what is damaged is now {names}"
            )
        taken = saved.recipe["workers_per_pass"]
        return Opened(folder, content, str(path), warning, taken), found[:number], saved
    others = f" (and so are the {len(found) - 1} before it)" if len(found) > 1 else ""
    raise Refused(refusals[0].replace("; move", f"{others}; move"))


def _write_config(recipe: Recipe, folder: Path) -> None:
    beside = folder / CONFIG_BESIDE
    beside.write_text(config.to_yaml(recipe), encoding="utf-8")
    if (folder / "config.yaml").exists():
        beside.unlink()  # the configuration that started the run stays
    else:
        os.replace(beside, folder / "config.yaml")


def _fingerprint_in(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.split()[-1] for line in lines if line.startswith("# fingerprint:")), "none")


def _new_folder(recipe: Recipe) -> Path:
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-seed{recipe.seed}"
    for number in range(1, 1000):
        folder = Path("runs", recipe.name, stem if number == 1 else f"{stem}-{number}")
        try:
            # Fails if it exists: two jobs of the same second get two folders.
            folder.mkdir(parents=True)
            _write_config(recipe, folder)
            return folder
        except FileExistsError:
            continue
        except OSError as error:
            raise _unwritable(folder, error) from None
    raise Refused(f"runs/{recipe.name} has a thousand runs of this second; write run_dir=PATH")


def _unwritable(folder: Path, error: OSError) -> Refused:
    return Refused(
        f"run_dir={folder} cannot be written ({error.strerror}); write run_dir=PATH where you may"
    )
