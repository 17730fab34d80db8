"""Paths as users write them, the data folders of this installation, and names of checkpoints.

The data folders are beside the package in a checkout, and inside it in a wheel.
"""

import os
import platform
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from lsgd.errors import UsageError

_NAME = re.compile(r"\w[\w.+-]*")
"""The form of the name of a recipe, a study, a search or a choice of a group."""
OWN_RECIPES = "LSGD_RECIPES"
"""The environment variable with the folder of a user's own recipes, studies and searches."""
_PACKAGE = Path(__file__).resolve().parent


def shipped_folder(folder: str) -> Path:
    """Return the folder `conf`, `recipes` or `data/digits` of this installation.

    Raises FileNotFoundError if it is missing, which means a broken installation.
    """
    for parent in (_PACKAGE, _PACKAGE.parent):
        if (parent / folder).is_dir():
            return parent / folder
    raise FileNotFoundError(f"{folder}/ is neither in {_PACKAGE} nor beside it: reinstall lsgd")


def conf_dir() -> Path:
    """Return the folder conf/ of lsgd's Hydra config groups, which recipes combine."""
    return shipped_folder("conf")


def recipes_dir() -> Path:
    """Return the folder recipes/ of lsgd's recipes, studies and searches, a root for Hydra."""
    return shipped_folder("recipes")


YAML_ENDINGS = (".yaml", ".yml")
"""The endings of a user's own YAML files; lsgd's own have the first."""


def yaml_names(folder: Path, endings: Sequence[str] = YAML_ENDINGS[:1]) -> list[str]:
    """Return the sorted names, without the ending, of the YAML files in a folder.

    Files that editors and systems create, such as .#a.yaml, ._a.yaml or "a (copy).yaml", are left
    out.
    """
    files = (path for ending in endings for path in folder.glob(f"*{ending}"))
    return sorted({path.stem for path in files if _NAME.fullmatch(path.stem) and path.is_file()})


def recipe_names() -> list[str]:
    """Return the names of all shipped recipes."""
    return yaml_names(recipes_dir() / "recipe")


def is_recipe_name(name: str) -> bool:
    """Return whether lsgd ships a recipe of this name, without listing all of them."""
    return bool(_NAME.fullmatch(name)) and os.path.isfile(recipes_dir() / "recipe" / f"{name}.yaml")


def digits_dir() -> Path:
    """Return the folder of the digits dataset, which lsgd ships with its source and licence."""
    return shipped_folder("data/digits")


SYSTEM_NAMES = {
    "@eadir", "@recycle", "@recently-snapshot", "#recycle", "#snapshot", "~snapshot", "lost+found",
    "__macosx", "__pycache__", "$recycle.bin", "system volume information", "thumbs.db",
    "desktop.ini",
}  # fmt: skip
"""The names, in lower case, of files that file systems, file servers and desktops create."""


def is_leftover(name: str) -> bool:
    """Return, by its name, whether a file or folder is hidden or created by the system.

    >>> list(map(is_leftover, [".ipynb_checkpoints", "._cat.jpg", "@eaDir", "lost+found", "cat"]))
    [True, True, True, True, False]
    """
    return name.startswith(".") or name.lower() in SYSTEM_NAMES


def files_below(
    root: Path,
    folder: str = "",
    above: frozenset[tuple[int, int]] = frozenset(),
    *,
    once: bool = False,
) -> Iterator[str]:
    """Yield the paths, relative to the root, of all but folders in a folder of it at any depth.

    Links to folders are followed, but not to one above; with `once` nor to any other folder that is
    searched, whose files have another name there. Hidden and system files are left out.
    """
    status = (root / folder).stat()
    here = (status.st_dev, status.st_ino)
    if here in above:
        return
    for entry in os.scandir(root / folder):
        if is_leftover(entry.name):
            continue
        name = os.path.join(folder, entry.name)
        is_folder = os.path.isdir(entry.path)  # which raises no error for a link to itself
        if is_folder and once and entry.is_symlink() and _is_searched(root, entry.path):
            continue
        if is_folder:
            yield from files_below(root, name, above | {here}, once=once)
        else:
            yield name


def _is_searched(root: Path, link: str) -> bool:
    """Return whether a link leads into the root, and not to or below a hidden folder of it."""
    target, root = Path(link).resolve(), root.resolve()
    return target.is_relative_to(root) and not any(map(is_leftover, target.relative_to(root).parts))


def display_path(path: Path) -> str:
    """Return a path as messages show it: relative to the current folder if it is inside."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def data_root(dataset: str) -> Path:
    """Return the default `data.root` of a dataset: the folder `$LSGD_DATA/<dataset>`.

    If the environment variable is empty or not set, it is `data/<dataset>` in the current folder.
    """
    return Path(path_in_variable("LSGD_DATA", "data")) / dataset


def path_in_variable(name: str, default: str = "") -> str:
    """Return the path in an environment variable, or the default, as local_path does.

    An empty variable counts as not set. The UsageError names the variable, of which the command
    line says nothing.
    """
    try:
        return local_path(os.environ.get(name) or default)
    except UsageError as error:
        raise UsageError(f"{name}={error}") from None


def cache_dir() -> Path:
    """Return lsgd's cache folder: $XDG_CACHE_HOME/lsgd, or ~/.cache/lsgd.

    Raises UsageError if the user has no home folder, as a numeric user id in a container may.
    """
    try:
        return parse_path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lsgd"
    except RuntimeError:
        raise UsageError(
            "this user has no home folder, and so no cache; set XDG_CACHE_HOME to a folder that "
            "can be written"
        ) from None


def local_path(text: str) -> str:
    """Replace ~ or ~USER at the start of a path by that user's home folder.

    A shell does so only at the start of a word, and not in data.root=~/sets or --index=~/a. Raises
    UsageError if there is no such home, and for a URL, which would name a folder such as `s3:`.
    """
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", text):
        raise UsageError(
            f"{text} is a URL, but lsgd reads and writes folders; copy it from or to a folder, as "
            "'aws s3 sync' does, or mount it, and write the folder"
        )
    expanded = os.path.expanduser(text)
    if expanded.startswith("~"):
        raise UsageError(
            f"{text} begins with ~, but there is no such home folder here; write the whole path, "
            f"or ./{text} for a folder of that name"
        )
    return expanded


def path_on_machine(key: str, text: str) -> Path:
    """Return the path that a field names, with this machine's variables and ~ expanded.

    Raises UsageError for a variable that is empty or not set, which would name another folder, and
    as local_path does.
    """
    expanded = os.path.expandvars(text)
    empty = [each for each in re.findall(r"\$(?:\w+|{\w+})", text) if not os.path.expandvars(each)]
    if lacking := [*empty, *re.findall(r"\$(?:\w+|{\w*}|)", expanded)]:
        raise UsageError(
            f"{key}={text} has the variable {lacking[0]}, which has no value on "
            f"{platform.node()}; write one that the job sets there, or a path"
        )
    return parse_path(expanded)


def parse_path(text: Path | str) -> Path:
    """Convert the text of a command-line argument to a Path, with ~ expanded; an argparse type.

    Raises UsageError for an empty text, which would be the current folder, and as local_path does.
    """
    if not str(text):
        raise UsageError(
            "a path is empty, as that of a variable without a value is; write the path, or . for "
            "the current folder"
        )
    return Path(local_path(str(text)))


CHECKPOINT = "checkpoint.pt"
"""The name of the link to a run's newest checkpoint, which a drive without symlinks lacks."""


def checkpoint_name(step: int, *, milestone: bool = False) -> str:
    """Return the name of the checkpoint file of a step; a milestone is kept for good."""
    return f"{'milestone' if milestone else 'checkpoint'}-{step}.pt"


def step_in_name(path: Path, *, milestones: bool = True) -> int | None:
    """Return the step in the name of a checkpoint file or milestone; None for other files."""
    match = re.fullmatch(rf"(?:checkpoint{'|milestone' * milestones})-(\d+)\.pt", path.name)
    return int(match[1]) if match else None


def checkpoint_steps(folder: Path, *, milestones: bool = True) -> dict[Path, int]:
    """Return the steps of a run folder's checkpoint files by their paths, the last step first."""
    named = ((step_in_name(path, milestones=milestones), path) for path in folder.iterdir())
    steps = [(step, path) for step, path in named if step is not None]
    # By its name, a milestone goes before a checkpoint of its step, which lacks the evaluation.
    return {path: step for step, path in sorted(steps, reverse=True)}


def checkpoint_files(folder: Path) -> list[Path]:
    """Return the paths of a run folder's checkpoint files, newest first, damaged ones included."""
    # It is a regular file in a run folder that was copied with links followed.
    plain = [path for path in [folder / CHECKPOINT] if path.exists() and not path.is_symlink()]
    return [*plain, *checkpoint_steps(folder)]


def existing_checkpoint(path: Path) -> Path:
    """Return a path, or, if it is a missing link to the newest checkpoint of a folder, that one."""
    if path.name != CHECKPOINT or path.exists() or not path.parent.is_dir():
        return path
    return next(iter(checkpoint_files(path.parent)), path)
