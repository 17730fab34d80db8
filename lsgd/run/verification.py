"""The result of verifying a run, in a file beside its folder; reading it needs no torch.

The file is beside the folder, not in it: a run folder comes from somebody else, who could put any
verdict into it.
"""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from lsgd.errors import UsageError
from lsgd.files import BLOCK, atomic_write
from lsgd.typed import convert_json
from lsgd.untrusted_files import open_regular, parse_json, read_bounded

ENDING = ".verification.json"
"""The ending of the file's name, after the name of the run folder."""


@dataclass(frozen=True)
class RunVerification:
    """The verdict of one verification of a run: what was compared, and what differed."""

    fingerprint: str
    """The fingerprint of the run's recipe."""
    rows_sha256: str
    """The SHA-256 of the metrics.jsonl that was verified, in hexadecimal."""
    checkpoints: list[str]
    """The file names of the checkpoints that were read."""
    seed: int
    """The verifier's seed, which drew the places."""
    steps: int
    """The largest number of steps that were executed again at each place."""
    places: list[int]
    """The steps after which steps were executed again."""
    tolerance: float
    """The relative difference of losses, norms and tensors that was allowed beside rounding."""
    executed_steps: int
    """The number of different steps of the run that were executed again."""
    made_steps: int
    """The number of steps that the run has made by its rows and checkpoints."""
    compared: dict[str, int]
    """The number of values that were compared and equal, by kind, such as loss."""
    unresolved: dict[str, int]
    """The number of values that rounding alone may change too much to confirm them, by kind."""
    largest_difference: float
    """The largest relative difference of a confirmed loss, gradient norm or tensor."""
    mismatches: list[str]
    """One sentence for each value that differs; empty if everything was confirmed."""
    notes: list[str]
    """One sentence for each thing that could not be compared, or is of another version."""
    machine: str
    """The processes, hardware and loader of the verification."""
    host: str
    time: str
    lsgd: str
    """The version and commit of lsgd that verified."""

    @property
    def is_confirmed(self) -> bool:
        """Whether no compared value differs."""
        return not self.mismatches


def verification_path(run: Path) -> Path:
    """Return the path of the verification beside a run folder, such as runs/a.verification.json."""
    folder = run.resolve()  # the path may be ".", which has no name
    return folder.with_name(folder.name + ENDING)


def rows_digest(run: Path, rows: int | None = None) -> str:
    """Return the SHA-256 of a run folder's metrics.jsonl, in hexadecimal; raises OSError.

    With a number of rows, which were read from it, that of these rows alone if others follow, as a
    run that still trains writes them.
    """
    with open_regular(run / "metrics.jsonl") as file:
        digest = hashlib.sha256()
        if rows is not None:
            for line in islice(file, rows):
                digest.update(line)
            following = file.readline(BLOCK)
            if following.endswith(b"\n"):
                return digest.hexdigest()
            digest.update(following)
        while block := file.read(BLOCK):
            digest.update(block)
        return digest.hexdigest()


def check_new(path: Path, run: Path) -> None:
    """Raise UsageError if a verification cannot be written to `path`, before any work is done."""
    if path.resolve().is_relative_to(run.resolve()):
        raise UsageError(
            f"--out {path} is in the run folder, which stays as it is; write a file outside of it"
        )
    if path.exists() or path.is_symlink():
        raise UsageError(
            f"{path} exists already, and is never overwritten; remove it, or write --out FILE"
        )
    if path.parent.is_dir() and not os.access(path.parent, os.W_OK):
        raise UsageError(
            f"{path} cannot be written, as {path.parent} is not yours to write to; write --out "
            "FILE in another folder"
        )
    if not path.parent.is_dir():
        raise UsageError(
            f"{path} cannot be written, as {path.parent} is not a folder; write --out FILE in "
            "a folder that exists"
        )


def write_verification(verification: RunVerification, path: Path) -> None:
    """Write a verification to a JSON file atomically; raise UsageError if it cannot be written."""
    try:
        with atomic_write(path) as file:
            file.write(json.dumps(asdict(verification), indent=1, allow_nan=False).encode() + b"\n")
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written ({error.strerror}); write --out FILE for a file in a "
            "folder that you can write to"
        ) from None


def read_verification(path: Path) -> RunVerification:
    """Read a verification from its file; raise OSError or ValueError if it holds none."""
    verification: RunVerification = convert_json(
        RunVerification, parse_json(read_bounded(path)), at="the verification"
    )
    return verification
