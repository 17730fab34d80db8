"""The run folder: creating or opening it, and finding the checkpoint that a run resumes from."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from lsgd import config
from lsgd.comm import Comm, ElasticComm, broadcast_from_rank0
from lsgd.errors import UsageError, writing_to
from lsgd.files import create_empty, sync_file, sync_folder
from lsgd.paths import is_leftover
from lsgd.recipe import Recipe, differing_fields
from lsgd.recipe.agreement import Fields, describe_difference, differing_keys, shared_fields
from lsgd.recipe.continuation import is_longer_run, past_difference
from lsgd.recipe.fields import TIMED
from lsgd.recipe.part_sources import changed_parts
from lsgd.run import lock
from lsgd.run.checkpoint import (
    FILE,
    Checkpoint,
    DamagedCheckpointError,
    checkpoint_files,
    decode_checkpoint,
    point_to,
    read,
)
from lsgd.run.trackers import check_installed

CONFIG_BESIDE = "config.yaml.tmp"
MOST_NAMED = 3
"""The largest number of differing fields that the error about another run in the folder names."""


@dataclass(frozen=True)
class OpenRun:
    """A run folder opened for training, with the bytes of its newest complete checkpoint."""

    folder: Path
    content: bytes | None = None
    """The bytes of the newest complete checkpoint; None if there is none."""
    checkpoint_path: str = ""
    """The path of that checkpoint."""
    warning: str = ""
    """A problem with the folder that does not prevent the run from resuming, or the note that the
    run is extended to more epochs."""
    execution: dict[str, Any] = field(default_factory=dict)
    """The checkpoint's values of the fields that can be auto: what they resolved to at the start.

    It is empty without a checkpoint.
    """
    shared: dict[str, Any] = field(default_factory=dict)
    """The fields of process 0 that a restarted process must have too; empty at a first start."""


@contextmanager
def open_run(recipe: Recipe, comm: Comm) -> Iterator[OpenRun]:
    """Open or create a run folder, lock it for this job, and yield it with its newest checkpoint.

    A new or empty folder starts a run. A folder with a checkpoint of the same fingerprint resumes
    it, as does one whose run died before its first checkpoint, and one whose run is the first steps
    of this longer one. Raises UsageError, having changed nothing, for any other folder, if all
    checkpoints are damaged, and while another job uses the folder. A damaged checkpoint newer than
    the complete one is renamed with the suffix `.damaged`.
    """
    with ExitStack() as holding:
        if isinstance(comm, ElasticComm) and comm.is_outside_group:
            opened = comm.query_process_0()
            _check_restarted(recipe, opened.shared, comm.rank)
        else:
            opened = broadcast_from_rank0(comm, lambda: _open(recipe, holding))
        if isinstance(comm, ElasticComm):
            comm.answer_restarted(lambda: _restart_point(recipe, opened.folder))
        yield opened


def _open(recipe: Recipe, holding: ExitStack) -> OpenRun:
    """Open or create the run folder on process 0, and lock it until `holding` is closed."""
    check_installed(recipe.trackers)
    if recipe.run_dir is None:
        return OpenRun(_new_folder(recipe, holding))
    folder = Path(recipe.run_dir)
    with _writing_to_run(folder):
        seen = _names(folder)
        opened, damaged = _checkpoint_of(recipe, folder)
        folder.mkdir(parents=True, exist_ok=True)
        holding.enter_context(lock.hold_lock(folder))
        if _names(folder) != seen:  # another job has changed it since the first look
            opened, damaged = _checkpoint_of(recipe, folder)
        # Fails on a full disk, before any file of the run is moved or removed.
        _write_config(recipe, folder)
        for path in damaged:
            os.replace(path, f"{path}.damaged")
        for leftover in folder.glob("*.pt.tmp"):
            leftover.unlink()
        if opened.checkpoint_path and not (folder / FILE).exists():
            point_to(Path(opened.checkpoint_path))
    return opened


def _names(folder: Path) -> set[str]:
    """Return the names of all entries in a run folder except its lock file."""
    return set(os.listdir(folder)) - {lock.FILE} if folder.exists() else set()


def _checkpoint_of(recipe: Recipe, folder: Path) -> tuple[OpenRun, list[Path]]:
    """Find a run folder's newest complete checkpoint and damaged newer ones; change no file."""
    # Before a run has started, its folder may contain a job's lock, a configuration whose writing
    # was cut short by a kill, the logs that a launch script has opened for all processes, and the
    # files of a supervisor.
    early = {CONFIG_BESIDE, lock.FILE, "logs"}
    if not folder.exists() or all(
        entry.name in early or entry.name.startswith("supervise") or is_leftover(entry.name)
        for entry in folder.iterdir()
    ):
        return OpenRun(folder), []
    opened, step = OpenRun(folder), 0
    damaged: list[Path] = []
    earlier: Recipe | None = None
    if paths := checkpoint_files(folder):
        opened, damaged, saved = _newest_whole(folder, paths)
        theirs, step, earlier = saved.fingerprint, saved.step, shorter_recipe(saved, recipe)
    elif (folder / "config.yaml").exists():
        # Of an empty one the run did not get far, and any recipe may begin there.
        theirs = _fingerprint_in(folder / "config.yaml") or recipe.fingerprint
    else:
        raise UsageError(
            f"run_dir={folder} holds files that are not of a run; write a new or empty folder"
        )
    if earlier:
        if why := past_difference(recipe, earlier, step):
            raise UsageError(
                f"run_dir={folder} holds a run with epochs={earlier.epochs} at step {step}, which "
                f"cannot be extended to epochs={recipe.epochs}: {why}; write another run_dir, "
                f"where all {recipe.epochs} epochs are trained"
                + (
                    f", or which continues from its weights by model.start={folder}, and from its "
                    "optimizer too by model.start_optimizer=true"
                )
                * (recipe.data.workload == "images")
            )
        longer = f"the run had epochs={earlier.epochs} and is extended to epochs={recipe.epochs}"
        opened = replace(opened, warning="; ".join(filter(None, (opened.warning, longer))))
    elif theirs != recipe.fingerprint:
        _refuse_other_run(recipe, folder, theirs, step)
    return opened, damaged


def _restart_point(recipe: Recipe, folder: Path) -> OpenRun | None:
    """Return the run with its newest checkpoint, at which a restarted process of its job begins.

    None while the other processes evaluate the model after an epoch: a process that began there
    would evaluate alone, with counts of its own.
    """
    opened, _ = _checkpoint_of(recipe, folder)
    if opened.content:
        saved = decode_checkpoint(opened.content, opened.checkpoint_path)
        epoch, steps = recipe.locate_step(saved.step)
        if epoch and not steps and epoch not in saved.rates:
            return None
    return replace(opened, shared=shared_fields(recipe))


def _check_restarted(recipe: Recipe, ours: Fields, rank: int) -> None:
    """Raise UsageError if a restarted process has another recipe than process 0 of its job."""
    own = shared_fields(recipe)
    if keys := differing_keys(ours, own):
        who = f"process {rank} has restarted and"
        text = describe_difference(keys[0], own, ours, who, "process 0")
        raise UsageError(text, is_local=True)


def _refuse_other_run(recipe: Recipe, folder: Path, theirs: str, step: int) -> NoReturn:
    """Raise UsageError for a folder with a run of another fingerprint: how it differs from this."""
    other = _recipe_of(folder)
    if other and other.rehearse and not recipe.rehearse:
        raise UsageError(
            f"run_dir={folder} holds a dry run (dry_run=true), which cannot be resumed as a "
            "run; write another run_dir"
        )
    if theirs == recipe.earlier_fingerprint:
        raise UsageError(
            f"run_dir={folder} holds a run of model={recipe.model.name} at step {step} that "
            "an earlier lsgd started; since then any norm that ends a residual block starts "
            "at model.last_gamma, scales and position embeddings do not decay, and BN of "
            "rows that are not images keeps workers apart; write another run_dir"
        )
    start = other.model.start_sha256 if other else ""
    original = replace(recipe, model=replace(recipe.model, start_sha256=start))
    if start and original.fingerprint == theirs:
        raise UsageError(
            f"model.start={recipe.model.start} has changed since run_dir={folder} started from "
            f"it (SHA-256 {start[:12]}…, now "
            f"{recipe.model.start_sha256[:12]}…); write the path of the original file, or "
            "another run_dir"
        )
    if other and (changed := changed_parts(recipe, other)):
        raise UsageError(
            f"{changed[0]} has changed since run_dir={folder} was at step {step}, and so would "
            "have its results; restore its source to resume the run, or write another run_dir"
        )
    old, new = _differing(recipe, other)
    raise UsageError(
        f"run_dir={folder} holds another run at step {step} (fingerprint {theirs[:12]}{old}, "
        f"this recipe has {recipe.fingerprint[:12]}{new}); write another run_dir, or the "
        f"overrides of that run, which are in {folder / 'config.yaml'}"
    )


def shorter_recipe(saved: Checkpoint, recipe: Recipe) -> Recipe | None:
    """Return the recipe of a checkpoint if `recipe` is a longer run of it; None if it is not."""
    if saved.fingerprint == recipe.fingerprint:
        return None
    try:
        earlier = config.from_saved(saved.recipe)
    except UsageError:
        return None
    is_earlier = earlier.fingerprint == saved.fingerprint and is_longer_run(recipe, earlier)
    return earlier if is_earlier else None


def _recipe_of(folder: Path) -> Recipe | None:
    """Read the recipe of the run in a folder from config.yaml; None if it cannot be read."""
    try:
        return config.read_recipe(folder / "config.yaml")
    except UsageError:
        return None


def _differing(recipe: Recipe, theirs: Recipe | None) -> tuple[str, str]:
    """Format, for an error message, the fields in which the folder's run and this recipe differ."""
    if theirs is None:
        return "", ""
    fields = [field for field in differing_fields((theirs, recipe)) if field.trajectory]
    more = " …" * (len(fields) > MOST_NAMED)
    old, new = (
        " ".join(f"{field.key}={field.values[side]}" for field in fields[:MOST_NAMED])
        for side in (0, 1)
    )
    return (f" with {old}{more}", f" with {new}{more}") if fields else ("", "")


def _newest_whole(folder: Path, paths: list[Path]) -> tuple[OpenRun, list[Path], Checkpoint]:
    refusals: list[str] = []
    for number, path in enumerate(paths):
        try:
            saved = decode_checkpoint(content := read(path), str(path))
        except DamagedCheckpointError as refusal:
            refusals.append(str(refusal))
            continue
        warning = ""
        if refusals:
            names = ", ".join(f"{path}.damaged" for path in paths[:number])
            warning = (
                f"{refusals[0].partition(';')[0]}; the run resumes from {path.name}, at step "
                f"{saved.step}, and the damaged file is now {names}"
            )
        execution = {name: saved.recipe[name] for name in TIMED if name in saved.recipe}
        return OpenRun(folder, content, str(path), warning, execution), paths[:number], saved
    others = f" (and so are the {len(paths) - 1} before it)" if len(paths) > 1 else ""
    raise UsageError(refusals[0].replace("; move", f"{others}; move"))


def _write_config(recipe: Recipe, folder: Path) -> None:
    temporary = folder / CONFIG_BESIDE
    with create_empty(temporary) as file:
        file.write(config.to_yaml(recipe).encode())
        sync_file(file)
    started = folder / "config.yaml"
    if started.exists() and _fingerprint_in(started) in ("none", recipe.fingerprint):
        temporary.unlink()  # the configuration that started the run stays
    else:  # the run is new or goes on to more epochs, or a power failure has emptied the file
        os.replace(temporary, started)
        sync_folder(folder)


def _fingerprint_in(path: Path) -> str:
    """Return the fingerprint in a configuration, `none` without one, or '' if it is empty.

    A power failure may leave zeros or nothing of a file.
    """
    text = path.read_text(encoding="utf-8", errors="replace")
    if not text.strip("\0\n "):
        return ""
    found = (line.split()[-1] for line in text.splitlines() if line.startswith("# fingerprint:"))
    return next(found, "none")


def _new_folder(recipe: Recipe, holding: ExitStack) -> Path:
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-seed{recipe.seed}"
    for number in range(1, 1000):
        folder = Path("runs", recipe.name, stem if number == 1 else f"{stem}-{number}")
        with _writing_to_run(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            # mkdir fails if the folder exists: two jobs of the same second get two folders.
            with suppress(FileExistsError):
                folder.mkdir()
                holding.enter_context(lock.hold_lock(folder))
                _write_config(recipe, folder)
                return folder
    raise UsageError(f"runs/{recipe.name} has a thousand runs of this second; write run_dir=PATH")


def _writing_to_run(folder: Path) -> AbstractContextManager[None]:
    return writing_to(f"run_dir={folder}", "write run_dir=PATH for a folder that you can write to")
