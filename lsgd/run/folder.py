"""The run folder: made or found, and where a run in it goes on."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from lsgd import config
from lsgd.comm import Comm, Living, from_first
from lsgd.errors import Refused
from lsgd.recipe import Recipe
from lsgd.recipe.differing import differing_fields
from lsgd.run import lock
from lsgd.run.checkpoint import FILE, Checkpoint, Damaged, files, load, point_to, read
from lsgd.run.trackers import check_installed

CONFIG_BESIDE = "config.yaml.tmp"
MOST_NAMED = 3
"""The fields that a refusal of another run names, of all in which it differs."""


@dataclass(frozen=True)
class Opened:
    """A run folder that has been made or found."""

    folder: Path
    content: bytes | None = None
    """The bytes of its newest whole checkpoint, if it has one."""
    path: str = ""
    """The path of that checkpoint."""
    warning: str = ""
    """What is wrong with the folder, and does not keep the run from going on."""
    workers_per_pass: int | None = None
    """The workers per pass that the checkpoint was made with: what `auto` came to at the start."""


@contextmanager
def open_run(recipe: Recipe, comm: Comm) -> Iterator[Opened]:
    """The folder of the run, made if need be, and its newest whole checkpoint if it has one.

    An empty or new folder starts a run, one with a checkpoint of the same fingerprint resumes it,
    and so does one which died before its first checkpoint. Within this context it is this job's
    alone. Raises Refused, having touched nothing, for any other folder, if all checkpoints are
    damaged, and while another job is in it. A damaged one that is newer than the whole one is set
    aside, under the same name and `.damaged`.
    """
    with ExitStack() as holding:
        opened = from_first(comm, lambda: _open(recipe, holding))
        if isinstance(comm, Living):
            # What a process begins with that comes back: where the run is by then.
            comm.welcome(lambda: (_checkpoint_of(recipe, opened.folder)[0], None))
        yield opened


def _open(recipe: Recipe, holding: ExitStack) -> Opened:
    """What open_run does on process 0, which holds the folder from here on."""
    check_installed(recipe.trackers)
    if recipe.run_dir is None:
        return Opened(_new_folder(recipe, holding))
    folder = Path(recipe.run_dir)
    try:
        seen = _names(folder)
        opened, damaged = _checkpoint_of(recipe, folder)
        folder.mkdir(parents=True, exist_ok=True)
        holding.enter_context(lock.held(folder))
        if _names(folder) != seen:  # another job was in it until now
            opened, damaged = _checkpoint_of(recipe, folder)
        # Fails on a full disk, before any file of the run is moved or removed.
        _write_config(recipe, folder)
        for path in damaged:
            os.replace(path, f"{path}.damaged")
        for leftover in folder.glob("*.pt.tmp"):
            leftover.unlink()
        if opened.path and not (folder / FILE).exists():
            point_to(Path(opened.path))
    except OSError as error:
        raise _unwritable(folder, error) from None
    return opened


def _names(folder: Path) -> set[str]:
    """The names of all files in the folder, but for the lock's."""
    return set(os.listdir(folder)) - {lock.FILE} if folder.exists() else set()


def _checkpoint_of(recipe: Recipe, folder: Path) -> tuple[Opened, list[Path]]:
    """The newest whole checkpoint of the folder, and the damaged files; touches nothing."""
    # Before there is a run, a folder may have the lock of a job and a configuration that was being
    # written at a kill, the logs that a launch script has opened for all processes, and the files
    # of a supervisor.
    early = {CONFIG_BESIDE, lock.FILE, "logs"}
    if not folder.exists() or all(
        entry.name in early or entry.name.startswith("supervise") for entry in folder.iterdir()
    ):
        return Opened(folder), []
    opened, step = Opened(folder), 0
    damaged: list[Path] = []
    if paths := files(folder):
        opened, damaged, saved = _newest_whole(folder, paths)
        theirs, step = saved.fingerprint, saved.step
    elif (folder / "config.yaml").exists():
        theirs = _fingerprint_in(folder / "config.yaml")
    else:
        raise Refused(
            f"run_dir={folder} holds files of something else; write a new or empty folder"
        )
    if theirs != recipe.fingerprint:
        other = _recipe_of(folder)
        if other and other.rehearse and not recipe.rehearse:
            raise Refused(
                f"run_dir={folder} holds a rehearsal (rehearse=true), which no run goes on from; "
                "write another run_dir"
            )
        old, new = _differing(recipe, other)
        raise Refused(
            f"run_dir={folder} holds another run at step {step} (fingerprint {theirs[:12]}{old}, "
            f"this recipe has {recipe.fingerprint[:12]}{new}); write another run_dir, or the words "
            f"that this run was started with: they are in {folder / 'config.yaml'}"
        )
    return opened, damaged


def _recipe_of(folder: Path) -> Recipe | None:
    """That of the run in the folder, if it can be read."""
    try:
        return config.read_recipe(folder / "config.yaml")
    except Refused:
        return None


def _differing(recipe: Recipe, theirs: Recipe | None) -> tuple[str, str]:
    """The words in which the run of a folder and the recipe differ, if they can be told."""
    if theirs is None:
        return "", ""
    fields = [field for field in differing_fields((theirs, recipe)) if field.trajectory]
    more = " …" * (len(fields) > MOST_NAMED)
    old, new = (
        " ".join(f"{field.key}={field.values[side]}" for field in fields[:MOST_NAMED])
        for side in (0, 1)
    )
    return (f" with {old}{more}", f" with {new}{more}") if fields else ("", "")


def _newest_whole(folder: Path, paths: list[Path]) -> tuple[Opened, list[Path], Checkpoint]:
    refusals: list[str] = []
    for number, path in enumerate(paths):
        try:
            saved = load(content := read(path), str(path))
        except Damaged as refusal:
            refusals.append(str(refusal))
            continue
        warning = ""
        if refusals:
            names = ", ".join(f"{path}.damaged" for path in paths[:number])
            warning = (
                f"{refusals[0].partition(';')[0]}; the run goes on from {path.name}, at step "
                f"{saved.step}, and what is damaged is now {names}"
            )
        taken = saved.recipe["workers_per_pass"]
        return Opened(folder, content, str(path), warning, taken), paths[:number], saved
    others = f" (and so are the {len(paths) - 1} before it)" if len(paths) > 1 else ""
    raise Refused(refusals[0].replace("; move", f"{others}; move"))


def _write_config(recipe: Recipe, folder: Path) -> None:
    temporary = folder / CONFIG_BESIDE
    temporary.write_text(config.to_yaml(recipe), encoding="utf-8")
    if (folder / "config.yaml").exists():
        temporary.unlink()  # the configuration that started the run stays
    else:
        os.replace(temporary, folder / "config.yaml")


def _fingerprint_in(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.split()[-1] for line in lines if line.startswith("# fingerprint:")), "none")


def _new_folder(recipe: Recipe, holding: ExitStack) -> Path:
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-seed{recipe.seed}"
    for number in range(1, 1000):
        folder = Path("runs", recipe.name, stem if number == 1 else f"{stem}-{number}")
        try:
            # Fails if it exists: two jobs of the same second get two folders.
            folder.mkdir(parents=True)
            holding.enter_context(lock.held(folder))
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
