"""The record of one audited process, what its watches share, and places in the script."""

from __future__ import annotations

import atexit
import functools
import json
import os
import site
import sys
import sysconfig
import time
import weakref
from collections.abc import Callable, Iterator
from multiprocessing import util
from typing import Any, Protocol

import torch
from torch.jit import _builtins

WATCH = os.path.dirname(os.path.abspath(__file__))
WAIT = 5.0
"""The seconds for which a process that has been watched waits for the others of its job."""
FULL_UPDATES = 8
"""The first updates, which are observed in full. Of later ones those are whose number is a power of
two, and of all others what must be counted: lr, images, training mode, clipping and the order."""


class Watch(Protocol):
    """The observation of one kind of events in a training process."""

    def install(self) -> None:
        """Register the hooks of this watch in this process."""

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the observations of this watch as lines of the process's record."""


class Pass:
    """A forward pass of a whole network outside of a backward pass."""

    def __init__(
        self, model: Any, images: int, loader: Any, place: str, *, train: bool, grad: bool
    ) -> None:
        self.model, self.images, self.loader, self.place = model, images, loader, place
        self.train, self.grad = train, grad
        self.batch = loader.given if loader else 0
        """The batches that the loader has given."""
        self.is_after_update = False
        """Whether the network has been updated by the same batch before."""
        self.batch_images = loader.last if loader else 0
        """The images of that batch, and of those that other loaders have given with it."""
        self.is_of_several = False
        """Whether other loaders have given a batch too."""
        self.backward = 0
        """The number of the backward pass that came next."""
        self.output_hooks = 0
        self.is_used = False
        """Whether a backward pass has computed a gradient of the output."""

    def note_output(self, output: Any) -> None:
        """Let the tensors in the output of this pass note whether they get a gradient.

        The output may have as many rows as its batch has images, unlike the first argument, as of a
        network of sequences whose first dimension is the time, or of graphs.
        """
        tensors = [*tensors_of(output)]
        for each in tensors:
            if each.requires_grad:
                self.output_hooks += 1
                each.register_hook(self._note_gradient)
        count = self.loader.last if self.loader else 0
        shape = next((each.shape for each in tensors if each.dim()), ())
        # A loss may have one row.
        if count > 1 and count in (shape[:2] if len(shape) == 3 else shape[:1]):
            self.images = count

    def _note_gradient(self, _: torch.Tensor) -> None:
        self.is_used = True


def is_compiled() -> bool:
    """Return whether the current call is compiled by torch.compile or torch.jit.trace."""
    return torch.compiler.is_compiling() or torch._C._is_tracing()


def class_of(module: torch.nn.Module) -> type:
    """Return the class of a layer, also of one that torch.jit.script has compiled."""
    is_scripted = isinstance(module, torch.jit.ScriptModule)
    name = getattr(module, "original_name", "") if is_scripted else ""
    found: type = getattr(torch.nn, name, type(module))
    return found


def tensors_of(values: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested arguments or outputs, in their order."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, (list, tuple, dict)):
        for each in values.values() if isinstance(values, dict) else values:
            yield from tensors_of(each)


def micro_batches(passes: list[Pass]) -> list[dict[str, Any]]:
    """Return the images, mode and line of each micro-batch of an update from its forward passes.

    The passes of one batch before one backward pass are of one micro-batch: a network may be called
    with several views of its images, or at each time step. Parts of the batch are micro-batches of
    their own. Of several networks the one that has been called for the most images counts.
    """
    found: list[dict[str, Any]] = []
    for model in {id(each.model): each.model for each in passes}.values():
        groups: dict[tuple[int, int, int], list[Pass]] = {}
        for each in passes:
            if each.model is model:
                groups.setdefault((each.backward, id(each.loader), each.batch), []).append(each)
        own = [
            {
                "images": images,
                "train": each[0].train,
                "place": each[0].place,
                "calls": len(each),
            }
            for group in groups.values()
            for images, each in _parts(group)
        ]
        found = max(found, own, key=lambda batches: sum(each["images"] for each in batches))
    return found


def _parts(passes: list[Pass]) -> list[tuple[int, list[Pass]]]:
    """Return the images and passes of each micro-batch among those before one backward pass."""
    images = [each.images for each in passes]
    most, given = max(images), passes[0].batch_images
    if given >= most:
        are_parts = sum(images) <= given
    else:
        # There is no DataLoader, its dataset is of batches, or the next batch was prefetched.
        are_parts = passes[0].is_of_several or min(images) < most
    if are_parts:
        return [(each.images, [each]) for each in passes]
    return [(max(most, given), passes)]


class Record:
    """The progress of one audited process, which its watches share, and its file."""

    def __init__(self, folder: str, max_updates: int, max_epochs: int) -> None:
        self.folder, self.max_updates, self.max_epochs = folder, max_updates, max_epochs
        self.watches: list[Watch] = []
        self.failures: list[str] = []
        self.reset()
        self.is_written = False
        self.job: dict[str, Any] = {}
        self.awaited: dict[str, Callable[[Any], None]] = {}
        """The watches of modules that the script may import, by their names."""
        self.costly_hooks: list[Callable[[], Any]] = []
        """Functions that register the hooks which are removed while updates are only counted."""
        self.handles: list[Any] = []
        self.note_loss: Callable[[Any, Any, Any], None]
        """The watch of a loss that a library's own criterion computes."""
        self.forget_replaced: Callable[[], None]
        """Forget the passes since the last update if the next backward pass replaces theirs."""
        self.observe_calls: Callable[[type], None]
        """Observe calls of networks of a class also where no hook sees them."""
        self.keeps_hooks = False
        """Whether no hook may be removed: in a compiled graph, that would compile it again."""

    def reset(self) -> None:
        """Forget the progress, as at the start of a forked process."""
        self.updates = 0
        self.is_sampled = True
        """Whether the current update is observed in full."""
        self.model: Any = None
        """The network of the first training pass."""
        self.loader: Any = None
        """The record of the DataLoader epoch from which the last batch came."""
        self.given: dict[int, tuple[Any, weakref.ref[Any]]] = {}
        """The epochs and iterators that have given batches for the next backward pass, by loader's
        number."""
        self.is_given_used = False
        """Whether a backward pass or an update has followed these batches."""
        self.epochs: dict[int, int] = {}
        """The epochs of each DataLoader in which an update was made, by the loader's number."""
        self.pending: list[Pass] = []
        """Forward passes with gradients whose backward pass has not been seen yet."""
        self.backwards = 0
        """The number of backward passes that the audited script has made so far."""
        self.passes: list[Pass] = []
        """Forward and backward passes since the last update."""
        self.begin_after_other: Callable[[], None] | None = None
        """A call by the next backward pass, which forgets those of another network's update."""
        self.updated_by: tuple[Any, int] | None = None
        """The loader and the number of the batch of the last update."""
        self.called: set[int] = set()
        """The ids of the modules that were called before the first update."""
        self.losses = 0
        """The losses that were seen so far."""
        self.is_compiled = False
        self.has_stepped = False
        """Whether any optimizer has made a step."""

    @property
    def in_backward(self) -> bool:
        """Whether this thread runs a backward pass, maybe inside of another one."""
        return torch._C._current_graph_task_id() != -1

    def end_update(self) -> None:
        """Count an update, and register or remove the costly hooks for the next one."""
        self.updates += 1
        self.is_given_used = True
        if self.loader is not None:
            self.loader.updated += 1
            self.loader.updated_at_end += self.loader.is_at_end
            if self.loader.updated == 1:
                number = self.loader.number
                self.epochs[number] = self.epochs.get(number, 0) + 1
        self.is_sampled = self.updates < FULL_UPDATES or self.updates & (self.updates - 1) == 0
        if self.is_sampled or self.keeps_hooks:
            self.register_hooks()
        elif self.handles:
            for each in self.handles:
                each.remove()
            self.handles = []

    def note_batch(self, loader: Any, iterator: Any) -> None:
        """Note the epoch of a DataLoader that has given a batch."""
        if self.is_given_used:
            self.given, self.is_given_used = {}, False
        self.given[loader.number] = loader, weakref.ref(iterator)
        self.loader = loader

    def note_batches_of(self, seen: Pass) -> None:
        """Note how many images all loaders have given for a pass, such as those of zip(A, B).

        A loop that has ended, as over a validation set, leaves no iterator, unless this has
        persistent workers.
        """
        others = [
            each
            for each, iterator in self.given.values()
            if iterator() is not None
            and (each.trained or not each.evaluated)
            and each is not seen.loader
        ]
        if seen.loader is not None and others:
            seen.is_of_several = True
            seen.batch_images += sum(each.last for each in others)

    def leave_evaluation(self) -> None:
        """Take the loader of the last update again after an evaluation has had its last batch.

        A script that has kept the batches of its training asks that loader for no other one.
        """
        loader = self.loader
        if self.updated_by is None or loader is None:
            return
        if loader.is_at_end and loader.evaluated and not loader.trained:
            self.loader = self.updated_by[0]

    def register_hooks(self) -> None:
        """Register the costly hooks until the end of the current update, unless they are."""
        if not self.handles:
            self.handles = [each() for each in self.costly_hooks]

    def keep_hooks(self) -> None:
        """Register the costly hooks for good."""
        self.keeps_hooks = True
        self.register_hooks()

    def add_costly_hook(self, register: Callable[[], Any]) -> None:
        """Add a function that registers a hook and returns its handle, and call it."""
        self.costly_hooks.append(register)
        self.handles.append(register())

    def guard(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a hook that never raises: its first error is recorded and it does nothing."""
        is_broken = False

        @functools.wraps(function)
        def guarded(*arguments: Any, **settings: Any) -> Any:
            nonlocal is_broken
            if is_broken or self.is_written:
                return None
            try:
                return function(*arguments, **settings)
            except Exception as error:
                is_broken = True
                self.failures.append(f"{function.__qualname__}: {type(error).__name__}: {error}")
                return None

        return guarded

    def wrap(
        self,
        owner: Any,
        name: str,
        *,
        before: Callable[..., Any] | None = None,
        after: Callable[..., Any] | None = None,
        is_counted: bool = True,
    ) -> None:
        """Replace owner.name by a function with the same result that calls these observers.

        `before` has its arguments, `after` has its result and then its arguments. Those that are
        not counted are called only while an update is observed in full.
        """
        real = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)
        is_static = isinstance(real, staticmethod)
        called = real.__func__ if is_static else real
        begin = self.guard(before) if before else None
        end = self.guard(after) if after else None

        @functools.wraps(called)
        def observed(*arguments: Any, **settings: Any) -> Any:
            if is_compiled() or not (is_counted or self.is_sampled):
                return called(*arguments, **settings)
            if begin:
                begin(*arguments, **settings)
            result = called(*arguments, **settings)
            if end:
                end(result, *arguments, **settings)
            return result

        # torch.jit.script compiles the real function, or calls its operator.
        observed.__prepare_scriptable__ = lambda: called  # type: ignore[attr-defined]
        if operator := _builtins._find_builtin(called):
            _builtins._register_builtin(observed, operator)
        setattr(owner, name, staticmethod(observed) if is_static else observed)

    def watch_imported(self) -> None:
        """Start the watches of the awaited modules that the script has imported by now."""
        for name in [each for each in self.awaited if each in sys.modules]:
            self.awaited.pop(name)(sys.modules[name])

    @property
    def trained_epochs(self) -> int:
        """The number of epochs of one DataLoader in which an update was made."""
        return max(self.epochs.values(), default=0)

    def is_over(self) -> bool:
        """Return whether this process has been watched for as long as was asked."""
        if self.updates >= self.max_updates:
            return True
        is_last = self.trained_epochs >= self.max_epochs > 0
        return is_last and self.loader is not None and self.loader.updated > 1

    def note_job(self) -> None:
        """Record this process's rank and the number of processes in its job."""
        dist = torch.distributed
        horovod = sys.modules.get("horovod.torch")
        names = ("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
        rank, size = 0, 1
        if dist.is_available() and dist.is_initialized():
            rank, size = dist.get_rank(), dist.get_world_size()
        elif horovod is not None and horovod.is_initialized():
            rank, size = horovod.rank(), horovod.size()
        else:
            for each, of in names:
                if each in os.environ:
                    rank, size = int(os.environ[each]), int(os.environ.get(of, 1))
                    break
        self.job = {"rank": rank, "world_size": size, "parent": os.getppid()}

    def write_at_exit(self) -> None:
        """Write the record when this process ends, also if multiprocessing has forked it."""
        atexit.register(self.write)
        util.register_after_fork(self, Record._restart)

    def _restart(self) -> None:
        self.reset()
        self.register_hooks()
        util.Finalize(None, self.write, exitpriority=100)

    def write(self, *, is_ended_by_watch: bool = False) -> None:
        """Write the record of this process, once, if it has trained or compiled a network."""
        has_trained = self.updates or self.passes or self.has_stepped
        if self.is_written or not (has_trained or self.is_compiled):
            return
        process = {"kind": "process", "pid": os.getpid()}
        process["has_stepped"] = self.has_stepped
        lines = [process | {"is_ended_by_watch": is_ended_by_watch} | self.job]
        for watch in self.watches:
            try:
                lines += watch.lines()
            except Exception as error:
                self.failures.append(f"{type(watch).__name__}: {type(error).__name__}: {error}")
        lines += [{"kind": "failure", "text": each} for each in self.failures]
        self.is_written = True
        self.write_lines(f"{os.getpid()}.jsonl", lines)

    def write_lines(self, name: str, lines: list[dict[str, Any]]) -> None:
        """Write a file of JSON lines into the audit's folder, which appears whole or not at all."""
        path = os.path.join(self.folder, name)
        try:
            with open(path + ".part", "w") as file:
                file.writelines(json.dumps(line, default=_plain) + "\n" for line in lines)
            os.replace(path + ".part", path)
        except OSError:  # the audit says that a process has left no record
            pass

    def end_process(self) -> None:
        """Write the record and end this process, as if the script had called sys.exit(0).

        It first waits for the other processes, which may still receive from this one.
        """
        self.write(is_ended_by_watch=True)
        count = int(os.environ.get("LOCAL_WORLD_SIZE", self.job.get("world_size", 1)))
        until = time.monotonic() + WAIT
        while time.monotonic() < until:
            if sum(name.endswith(".jsonl") for name in os.listdir(self.folder)) >= count:
                break
            time.sleep(0.02)
        raise SystemExit(0)


def _plain(value: Any) -> Any:
    """Return a value that JSON lacks, such as a number of numpy, as one that it has."""
    try:
        return value.item()
    except (AttributeError, RuntimeError, ValueError):
        return str(value)


@functools.cache
def is_of_script(file: str) -> bool:
    """Return whether a source file is the user's, not the watch's, Python's or a library's."""
    path = os.path.abspath(file)
    if file.startswith("<") or path.startswith(WATCH):
        return False
    if not {"site-packages", "dist-packages"}.isdisjoint(path.split(os.sep)):
        return False
    return not any(path.startswith(each + os.sep) for each in _library_folders())


@functools.cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = [paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"]]
    folders += [*site.getsitepackages(), site.getusersitepackages()]
    return tuple({each for f in folders for each in (os.path.abspath(f), os.path.realpath(f))})


def place() -> str:
    """Return the file and line of the script from which the current call came, as file:line.

    It is the innermost frame that belongs to no library, or else the program's own.
    """
    frame = sys._getframe(1)
    main = ""
    while frame is not None:
        code = frame.f_code
        if is_of_script(code.co_filename):
            return f"{code.co_filename}:{frame.f_lineno}"
        name = frame.f_globals.get("__name__")
        if name in ("__main__", "__mp_main__") and not code.co_filename.startswith("<"):
            main = f"{code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return main


def is_call_of_library() -> bool:
    """Return whether a library other than torch makes the current call, and not the script."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((WATCH, os.path.dirname(torch.__file__) + os.sep)):
            return not is_of_script(file)
        frame = frame.f_back  # type: ignore[assignment]
    return True
