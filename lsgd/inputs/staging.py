"""Copies of a dataset on storage of the machine (data.stage), which readers open instead of it.

    STAGE/imagenet-1f0c2b7a/     the copies of one data.root
        lock                     held while a process looks for a copy, makes one or removes one
        3b9d10c45e12/            the copy of one state of the dataset, which is the readers' folder
            .stage.json          whether it is complete
            .stage.used          locked by each process that reads the copy

A file has its name only once it is complete, and the copy is used only once all files are. So a
kill leaves complete files, which the next process keeps. A dataset that has changed gets another
copy, which shares the unchanged files with the earlier one by hard links; an earlier copy is
removed once no process reads it. The locks are the kernel's, and end with their process.

Training begins with the complete copy: an epoch is in random order, so that its first minibatches
need nearly every shard.
"""

import hashlib
import json
import logging
import os
import platform
import random
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import BinaryIO

from tqdm import tqdm

from lsgd import files, messages
from lsgd.comm import Comm, all_or_raise
from lsgd.comm.single import SingleComm
from lsgd.errors import DISK_FULL_ERRNOS, UsageError, dangling_link
from lsgd.inputs import IN_MEMORY_DATASETS
from lsgd.inputs.index import MARKER, open_evaluation_index, open_indexes, read_marker
from lsgd.inputs.source_files import SUFFIX, FolderFiles, IndexedFiles, SourceFiles
from lsgd.job.launcher import detect_launch
from lsgd.job.system import boot_id
from lsgd.paths import path_on_machine
from lsgd.recipe import Recipe
from lsgd.untrusted_files import open_regular

LOCK, USED = "lock", ".stage.used"
THREADS = 16
"""The number of files that are copied at once, for storage that answers slowly."""
CHUNK = 4 << 20
"""The bytes of a file that are copied at a time."""
SAMPLED_FILES, SAMPLE = 1000, 1 << 16
"""The most files that are compared with their source, and the bytes of each block compared."""
BEAT = 1.0
"""The seconds between two exchanges of the machines' progress, which also keep the job together."""
POLL = 0.2
"""The seconds between two attempts to lock."""
QUIET = 10.0
"""The seconds between two lines of progress where there is no bar."""


@dataclass
class StagedCopy:
    """A complete copy of a dataset; its open file keeps other processes from removing it."""

    folder: Path
    used: BinaryIO = field(repr=False)


_in_use: dict[tuple[Path, ...], StagedCopy] = {}
"""The copies that this process reads, by their dataset and their place."""


def with_staged_data(recipe: Recipe) -> Recipe:
    """Return the recipe for readers: with data.stage, its data.root is the copy on this machine.

    A copy that is missing is made. The given recipe is the one to record.
    """
    if not _stages(recipe):
        return recipe
    if (copy := _in_use.get(_key(recipe))) is None:
        stage_data(recipe, SingleComm())
        copy = _in_use[_key(recipe)]
    sets = ("train", *recipe.evaluation.sets)
    data = replace(
        recipe.data,
        root=str(copy.folder),
        index=None,
        stage=None,
        # The copy has no index of other sets.
        skip=[path for path in recipe.data.skip if path.split("/")[0] in sets],
    )
    return replace(recipe, data=data)


def stage_data(recipe: Recipe, comm: Comm) -> None:
    """Copy the dataset to the machine's storage if data.stage asks for it and no copy is there.

    All processes call it, and return once the copies of all machines are complete. One process of a
    machine copies. Raises UsageError on all processes if one machine cannot have the copy.
    """
    if not _stages(recipe):
        return
    copying = _Copying(recipe)
    with ThreadPoolExecutor(1, "data.stage") as pool, _Display(recipe, comm) as display:
        job = pool.submit(copying.run)
        try:
            is_over = False
            while not is_over:
                wait([job], BEAT)
                is_done, has_failed = job.done(), job.done() and job.exception() is not None
                mine = _MachineState(platform.node(), copying.copied, copying.total)
                told = comm.gather_objects((is_done, has_failed, mine))
                display.show([state for *_, state in told])
                is_over = all(done for done, *_ in told) or any(failed for _, failed, _ in told)
        finally:
            copying.stop.set()
    copy = all_or_raise(comm, job.result)
    assert copy is not None, "it was stopped, and so another process has failed"
    display.show_end()
    if before := _in_use.get(_key(recipe)):
        before.used.close()
    _in_use[_key(recipe)] = copy


def _stages(recipe: Recipe) -> bool:
    """Return whether a recipe's data are staged; the timing of steps uses made-up examples."""
    return recipe.data.stage is not None and recipe.inputs.loader != "synthetic"


def _key(recipe: Recipe) -> tuple[Path, ...]:
    root = recipe.data.folder
    return tuple(map(Path, (root, recipe.data.index or root, recipe.data.stage or "")))


def _open_source(recipe: Recipe) -> SourceFiles:
    """Return the files of a recipe's dataset; raises UsageError if it is not the recipe's."""
    data, root = recipe.data, recipe.data.folder
    is_own = recipe.inputs.is_own or data.is_own_workload
    if data.workload == "images" and data.name not in IN_MEMORY_DATASETS and not is_own:
        open_indexes(data, root)
        for name in recipe.evaluation.sets[1:]:
            open_evaluation_index(data, root, name)
        # Other sets have indexes too, which no check has compared with their images.
        sets = ("train", *recipe.evaluation.sets)
        return IndexedFiles(root, Path(data.index) if data.index else root, sets, data.skip)
    if not root.is_dir():
        raise UsageError(
            f"data.stage={data.stage} copies the files of {root}, and this folder does not exist; "
            "write data.root=FOLDER"
        )
    if not any(root.iterdir()):
        raise UsageError(
            f"data.stage={data.stage} copies the files of {root}, which is empty; mount or prepare "
            "it, or write data.root=FOLDER"
        )
    return FolderFiles(root)


def _place(recipe: Recipe, source: SourceFiles) -> Path:
    """Return the folder on this machine's storage for the copies of a dataset.

    Raises UsageError for a variable without a value, and for a folder inside the dataset.
    """
    stage, data = str(recipe.data.stage), recipe.data
    folder, root = path_on_machine("data.stage", stage).resolve(), source.root.resolve()
    if folder.is_relative_to(root):
        raise UsageError(
            f"data.stage={stage} is inside of the dataset at {root}, which would be copied into "
            "itself; write a folder elsewhere"
        )
    return folder / f"{root.name}-{_digest([root, data.index and Path(data.index).resolve()])[:8]}"


def _digest(values: Sequence[object]) -> str:
    return hashlib.sha256(
        "\n".join(map(str, values)).encode("utf-8", "surrogateescape")
    ).hexdigest()


class _Copying:
    """The search for a complete copy of a recipe's dataset, which makes one if there is none.

    It runs in a thread, and other threads read its progress, or stop it.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe, self.stop, self.total = recipe, Event(), 0
        self._copied = [0] * THREADS

    @property
    def copied(self) -> int:
        """The bytes copied so far."""
        return sum(self._copied)

    def run(self) -> StagedCopy | None:
        """Return the copy, once it is complete and locked; None if `stop` was set before.

        Raises UsageError if the dataset cannot be read, or the copy not be made.
        """
        source = _open_source(self.recipe)
        place = _place(self.recipe, source)
        try:
            place.mkdir(parents=True, exist_ok=True)
            with (place / LOCK).open("ab") as lock:
                while not files.lock(lock, wait=False):  # while another process copies
                    if self.stop.wait(POLL):
                        return None
                return self._find_or_make(source, place)
        except (OSError, ValueError) as error:
            raise self._failed(source, error) from None

    def _failed(self, source: SourceFiles, error: Exception) -> UsageError:
        """Return the error for one of a file system, or for files that differ or change."""
        name, why, fix = None, str(error), "rerun the same command"
        if isinstance(error, OSError):
            name, why = error.filename, dangling_link(error) or error.strerror or str(error)
            if error.errno in DISK_FULL_ERRNOS:
                fix = f"free some space and {fix}, which keeps the complete files"
            else:
                fix = "fix that, or write another folder on a local disk, or leave it out"
        return UsageError(
            f"data.stage={self.recipe.data.stage} on {platform.node()} cannot have a copy of "
            f"{source.root} ({f'{name}: ' if name else ''}{why}); {fix}"
        )

    def _find_or_make(self, source: SourceFiles, place: Path) -> StagedCopy | None:
        """Return the copy of the dataset's present state; the caller holds the lock of `place`."""
        state = source.state()
        folder = place / _digest(state)[:12]
        marker = read_marker(folder)
        is_complete, same_boot = marker.get("complete") is True, marker.get("boot") == boot_id()
        if is_complete and same_boot and detect_launch().local_rank:
            return _opened(folder)  # the first process of a job checks the files
        if not is_complete and not same_boot and folder.exists():
            shutil.rmtree(folder)  # a machine that was switched off may leave files without content
        listed = list(source.names_and_sizes())
        for name in source.folders():
            (folder / name).mkdir(parents=True, exist_ok=True)
        missing = [each for each in listed if _size(folder / each[0]) != each[1]]
        if is_complete and same_boot and not missing:
            return _opened(folder)
        if missing:
            folder.mkdir(exist_ok=True)
            _write_marker(folder, source, complete=False)
            missing = self._linked(source, folder, missing)
        _remove_unused(place, folder)
        if not self._copy(source, folder, missing) or not self._verify(source, folder, listed):
            return None
        if source.state() != state:
            raise ValueError("its files have changed while they were copied")
        for name, _ in listed:
            if name.endswith(SUFFIX) and os.path.dirname(name) == "":
                os.utime(folder / name)  # a reader lists the folders that are newer than the index
        _write_marker(folder, source, complete=True)
        return _opened(folder)

    def _linked(
        self, source: SourceFiles, folder: Path, missing: list[tuple[str, int]]
    ) -> list[tuple[str, int]]:
        """Link unchanged files of earlier copies into the new one; return the others."""
        for parent in sorted({os.path.dirname(name) for name, _ in missing}):
            (folder / parent).mkdir(parents=True, exist_ok=True)
        earlier = [
            each
            for each in _copies(folder.parent)
            if each != folder and read_marker(each).get("boot") == boot_id()
        ]
        return [
            each
            for each in missing
            if not any(_link(source, old, folder, *each) for old in earlier)
        ]

    def _copy(self, source: SourceFiles, folder: Path, missing: list[tuple[str, int]]) -> bool:
        """Copy files by several threads if there is space; return False if it was stopped."""
        self._check_space(source, folder, missing)
        self.total = sum(size for _, size in missing)

        def copy_share(share: int) -> None:
            for name, size in missing[share::THREADS]:
                for count in _copy_file(source.path(name), folder / name, size):
                    self._copied[share] += count
                    if self.stop.is_set():
                        return

        return self._in_threads(copy_share)

    def _verify(self, source: SourceFiles, folder: Path, listed: list[tuple[str, int]]) -> bool:
        """Compare the sizes of all files, and blocks of some, with those of the source."""
        if wrong := [name for name, size in listed if _size(folder / name) != size]:
            raise ValueError(f"{wrong[0]} differs in size from its copy")
        drawn = random.Random()  # the generator of the process belongs to the run
        sample = drawn.sample(listed, min(SAMPLED_FILES, len(listed)))

        def verify_share(share: int) -> None:
            for name, size in sample[share::THREADS]:
                if self.stop.is_set():
                    return
                if not _has_equal_blocks(source.path(name), folder / name, size, drawn):
                    raise ValueError(f"{name} differs from its copy")

        try:
            return self._in_threads(verify_share)
        except ValueError as error:
            if _remove_unless_used(folder):  # others may differ too
                raise ValueError(f"{error}, so that all were removed") from None
            raise ValueError(f"{error}, which another run reads until it ends") from None

    def _in_threads(self, work: Callable[[int], None]) -> bool:
        """Call work(share) in each thread; return False if it was stopped, and raise its error."""
        with ThreadPoolExecutor(THREADS, "data.stage") as pool:
            jobs: list[Future[None]] = [pool.submit(work, share) for share in range(THREADS)]
            wait(jobs, return_when=FIRST_EXCEPTION)
            was_stopped = self.stop.is_set()
            if any(job.done() and job.exception() for job in jobs):
                self.stop.set()
        for job in jobs:
            job.result()
        return not was_stopped

    def _check_space(
        self, source: SourceFiles, folder: Path, missing: list[tuple[str, int]]
    ) -> None:
        """Raise UsageError unless the files fit into the free space, each in whole blocks."""
        storage = os.statvfs(folder)
        needed = sum(-(-size // storage.f_frsize) for _, size in missing) * storage.f_frsize
        if needed > (free := storage.f_bavail * storage.f_frsize):
            raise UsageError(
                f"data.stage={self.recipe.data.stage} on {platform.node()} has {free} bytes free, "
                f"and the copy of {source.root} needs {needed}; free some space, or write another "
                "folder, or leave it out"
            )


def _write_marker(folder: Path, source: SourceFiles, *, complete: bool) -> None:
    entries = {
        "source": str(source.root.resolve()),
        "index": str(source.index.resolve()),
        "complete": complete,
        "boot": boot_id(),
    }
    files.write_files(folder, {MARKER: json.dumps(entries).encode()})


def _opened(folder: Path) -> StagedCopy:
    """Lock a complete copy against its removal, and return it."""
    used = (folder / USED).open("a+b")  # the marker itself is replaced, and a lock on it lost
    files.lock(used, wait=True, shared=True)
    return StagedCopy(folder, used)


def _copies(place: Path) -> list[Path]:
    return [path for path in place.iterdir() if re.fullmatch("[0-9a-f]{12}", path.name)]


def _remove_unused(place: Path, kept: Path) -> None:
    """Remove the copies of a dataset's earlier states that no process reads."""
    for folder in _copies(place):
        if folder != kept:
            _remove_unless_used(folder)


def _remove_unless_used(folder: Path) -> bool:
    """Remove a copy that no process reads; return whether it was removed."""
    with (folder / USED).open("a+b") as used:
        is_unused = files.lock(used, wait=False)
    if is_unused:  # and the caller holds the lock under which another process would open it
        shutil.rmtree(folder)
    return is_unused


def _size(path: Path) -> int:
    """Return the size of a file in bytes, or -1 if there is none."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return -1


def _link(source: SourceFiles, earlier: Path, folder: Path, name: str, size: int) -> bool:
    """Link a file of an earlier copy into the new one, unless its source has changed since."""
    if _size(earlier / name) != size:
        return False
    now = source.path(name).stat()
    if (now.st_size, now.st_mtime_ns) != (size, (earlier / name).stat().st_mtime_ns):
        return False
    (folder / name).unlink(missing_ok=True)
    try:
        os.link(earlier / name, folder / name)
    except OSError:  # on a file system without hard links it is copied
        return False
    return True


def _copy_file(path: Path, target: Path, size: int) -> Iterator[int]:
    """Copy a file, which has its name at the end; yield the bytes of each part once it is written.

    Raises ValueError if it has another size.
    """
    with (
        open_regular(path, buffering=0) as original,
        files.atomic_write(target, sync=False) as copy,
    ):
        status = os.fstat(original.fileno())
        if status.st_size != size:
            raise ValueError(
                f"{path} has {status.st_size} bytes and had {size} when it was listed; if it is an "
                "indexed image, prepare the dataset again"
            )
        while part := original.read(CHUNK):
            copy.write(part)
            yield len(part)
        copy.flush()
        os.utime(copy.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))


def _has_equal_blocks(path: Path, target: Path, size: int, drawn: random.Random) -> bool:
    """Return whether the first, the last and a drawn block of a file are those of its copy."""
    last = max(0, size - SAMPLE)
    with open_regular(path, buffering=0) as original, open_regular(target, buffering=0) as copy:
        return all(
            os.pread(original.fileno(), SAMPLE, begin) == os.pread(copy.fileno(), SAMPLE, begin)
            for begin in (0, drawn.randint(0, last), last)
        )


@dataclass(frozen=True)
class _MachineState:
    """The progress of a process with the copy of its machine; `total` is 0 if it copies nothing."""

    host: str
    copied: int
    total: int


class _Bar(tqdm):  # type: ignore[misc]
    """A progress bar without tqdm's thread, which would outlive the copy."""

    monitor_interval = 0


class _Display:
    """The progress of all machines, which process 0 shows by a bar, or by lines where it has none.

    A terminal has a bar within this context.
    """

    def __init__(self, recipe: Recipe, comm: Comm) -> None:
        self.what, self.is_first = f"data.stage={recipe.data.stage}", comm.rank == 0
        self.states: list[_MachineState] = []
        self.begin = self.printed = time.monotonic()

    def __enter__(self) -> "_Display":
        # None disables the bar where stderr is a file, which it would fill.
        disable = None if self.is_first and messages.LOGGER.isEnabledFor(logging.INFO) else True
        self.bar = _Bar(desc=self.what, unit="B", unit_scale=True, disable=disable, leave=False)
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def show(self, states: list[_MachineState]) -> None:
        """Show the states of all processes."""
        self.states = [state for state in states if state.total]
        if not self.bar.disable:
            self.bar.total = sum(state.total for state in self.states) or None
            self.bar.update(sum(state.copied for state in self.states) - self.bar.n)
        elif self.is_first and time.monotonic() - self.printed >= QUIET:
            self.printed = time.monotonic()
            waits = "looks for a copy, or waits for the process that makes it"
            messages.show(f"{self.what}: {self._text() if self.states else waits}")

    def show_end(self) -> None:
        """Print what was copied, now that all copies are complete."""
        if self.is_first:
            messages.show(f"{self.what}: {self._text() if self.states else 'the copy is there'}")

    def _text(self) -> str:
        return _describe(self.states, time.monotonic() - self.begin)


def _describe(states: list[_MachineState], seconds: float) -> str:
    """Describe in a few words how much of a dataset is copied, how fast, and the slowest machine.

    >>> states = [_MachineState("a", 10**9, 10**9), _MachineState("b", 10**8, 10**9)]
    >>> _describe(states, 10.0)
    '1.10G of 2.00GB copied on 2 machines in 00:10 (110MB/s), least on b (10 %)'
    """
    copied, total = (sum(getattr(each, key) for each in states) for key in ("copied", "total"))
    slowest = min(states, key=lambda state: state.copied / state.total)
    machines = f" on {len(states)} machines" if len(states) > 1 else ""
    least = f", least on {slowest.host} ({100 * slowest.copied // slowest.total} %)"
    return (
        f"{tqdm.format_sizeof(copied)} of {tqdm.format_sizeof(total)}B copied{machines} in "
        f"{tqdm.format_interval(seconds)} ({tqdm.format_sizeof(copied / max(seconds, 1e-3))}B/s)"
        + (least if machines and copied < total else "")
    )
