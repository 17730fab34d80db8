"""The checkpoints of a run that is verified, which may still train and delete some of them."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from lsgd.errors import UsageError
from lsgd.run import checkpoint
from lsgd.run.checkpoint import Checkpoint
from lsgd.run.read import Run
from lsgd.run.rows import MEASURED
from lsgd.verify.evidence import Evidence


def read_checkpoints(
    paths: Sequence[Path], evidence: Evidence
) -> Iterator[tuple[Path, Checkpoint]]:
    """Read the checkpoints of a run one by one, oldest first; a damaged one differs.

    `paths` has them newest first. One that was deleted meanwhile, as by a run that still trains, is
    noted.
    """
    for path in reversed(paths):
        try:
            saved = load(path)
        except checkpoint.DamagedCheckpointError as error:
            evidence.differ(str(error).partition("; ")[0].replace(str(path), path.name))
            continue
        if saved is None:
            note_deleted(path, evidence)
        else:
            yield path, saved


def load(path: Path) -> Checkpoint | None:
    """Read a checkpoint from its file; return None if the file was deleted since it was listed."""
    try:
        content = checkpoint.read(path)
    except UsageError:
        if path.exists():
            raise
        return None
    return checkpoint.decode_checkpoint(content, str(path))


def note_deleted(path: Path, evidence: Evidence) -> None:
    """Note that a checkpoint was deleted while the run was verified."""
    evidence.note(f"{path.name} was deleted during the verification, and is not compared")


def is_newer_than_rows(saved: Checkpoint, run: Run) -> bool:
    """Return whether a checkpoint of a run that is not over is newer than its rows that were read.

    It has the metrics of evaluations after the last row, and all rows before: the run still trains,
    its folder was copied while it did, or the last line is incomplete.
    """
    recipe, last_epoch = run.recipe, MEASURED.index("epoch")
    if run.finished or run.diverged is not None:
        return False
    if not all(type(epoch) is int and 0 < epoch <= recipe.epochs for epoch in saved.rates):
        return False
    rows = [row for row in run.rows if row["kind"] in MEASURED]
    newest = max((row["step"], MEASURED.index(row["kind"])) for row in rows) if rows else (0, 0)
    evaluated = {row["step"] for row in rows if row["kind"] == "evaluation"}
    lacking = [(recipe.first_step(epoch), last_epoch) for epoch in saved.rates.keys() - run.epochs]
    lacking += [
        (step, MEASURED.index("evaluation")) for step in saved.evaluations.keys() - evaluated
    ]
    return bool(lacking) and min(lacking) > newest
