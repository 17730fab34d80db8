"""The run folder and its checkpoint: written whole or not at all, resumed exactly."""

import hashlib
import io
import os
import pickle
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lsgd import config
from lsgd.comm import Comm
from lsgd.errors import Refused
from lsgd.recipe import Recipe

FILE = "checkpoint.pt"
FORMAT = 1
DIGEST = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on at `step`, on any number of processes."""

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
    bn_shares: Tensor
    """RunningStatistics.all_shares."""
    tally: dict[str, Tensor]
    """What the epoch's steps so far got right."""
    errors: list[float]
    """Top-1 validation error after each epoch, in percent."""


def order_hash(order: NDArray[np.int64]) -> str:
    """A short name for an order of examples."""
    return hashlib.sha256(order.tobytes()).hexdigest()


def save(checkpoint: Checkpoint, folder: Path, comm: Comm) -> None:
    """Put the checkpoint into the folder in one move: a kill leaves the old one or the new one.

    All processes have made it; the first one writes it. Behind torch's archive stands its SHA-256,
    which torch.load passes over.
    """
    if comm.rank > 0:
        return
    archive = io.BytesIO()
    torch.save({"format": FORMAT} | vars(checkpoint), archive)
    target, beside = folder / FILE, folder / f"{FILE}.tmp"
    with beside.open("wb") as file:
        file.write(archive.getbuffer())
        file.write(hashlib.sha256(archive.getbuffer()).digest())
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, target)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load(content: bytes, name: str) -> Checkpoint:
    """The checkpoint in these bytes; raises Refused naming `name` if they are damaged."""
    archive, digest = content[:-DIGEST], content[-DIGEST:]
    try:
        if hashlib.sha256(archive).digest() != digest:
            raise ValueError("its content does not match its check sum")
        fields = torch.load(io.BytesIO(archive), map_location="cpu", weights_only=True)
        if fields.pop("format", None) != FORMAT:
            raise ValueError(f"it is not of format {FORMAT}")
        return Checkpoint(**fields)
    except (ValueError, TypeError, RuntimeError, pickle.UnpicklingError) as error:
        why = (str(error) or repr(error)).splitlines()[0]
        raise Refused(
            f"{name} is damaged or no checkpoint of lsgd ({why}); move it away to start again, or "
            "write run_dir=PATH of another run"
        ) from None


def read(path: Path) -> bytes:
    """The content of a checkpoint file; raises Refused if there is none."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise Refused(
            f"{path} cannot be read ({error.strerror}); give the checkpoint.pt of a run"
        ) from None


def open_run(recipe: Recipe) -> tuple[Path, bytes | None]:
    """The folder of the run, made if need be, and its checkpoint if it has one.

    For process 0. An empty or new folder starts a run, one with a checkpoint of the same
    fingerprint resumes it, and so does one which died before its first checkpoint. Raises Refused,
    having touched nothing, for any other.
    """
    if recipe.run_dir is None:
        return _new_folder(recipe), None
    folder = Path(recipe.run_dir)
    try:
        content = _checkpoint_of(recipe, folder)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "config.yaml").exists():
            (folder / "config.yaml").write_text(config.to_yaml(recipe), encoding="utf-8")
    except OSError as error:
        raise _unwritable(folder, error) from None
    if not os.access(folder, os.W_OK):
        raise Refused(f"run_dir={folder} cannot be written; write run_dir=PATH where you may")
    return folder, content


def _checkpoint_of(recipe: Recipe, folder: Path) -> bytes | None:
    # A supervisor comes before the run: its log and what the processes tell it are no run.
    if not folder.exists() or all(each.name.startswith("supervise") for each in folder.iterdir()):
        return None
    if (folder / FILE).exists():
        content = read(folder / FILE)
        theirs, step = (saved := load(content, str(folder / FILE))).fingerprint, saved.step
    elif (folder / "config.yaml").exists():
        content, step = None, 0
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
    return content


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
            (folder / "config.yaml").write_text(config.to_yaml(recipe), encoding="utf-8")
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
