"""Malicious or damaged files, made from files that lsgd has written.

A case is a kind of file, a name, and a function that makes its folder. Every value of every file is
replaced by some of VALUES, and every file by special files, links and endless input.
"""

import hashlib
import io
import json
import os
import pickle
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from helpers.checkpoints import WORDS, tiny
from helpers.composed import compose_recipe
from helpers.folders import make_folder
from helpers.run_folders import write_finished_run

from lsgd.job.members import FOLDER
from lsgd.rules.metric import TOP1
from lsgd.run import checkpoint
from lsgd.search.record import SearchRecord, save_record
from lsgd.search.trial import FINISHED, Trial
from lsgd.strategy.recorded import OrderHistory

SECRET = "what nobody is to see"
"""The text that no command may print, in an environment variable and in a file elsewhere."""
VARIABLE = "LSGD_HOSTILE_SECRET"
ESCAPE = "\x1b[31m"
VALUES: list[Any] = [
    None, True, -1, 0, 2**31, 10**400, 1e308, float("nan"), "", "a" * 10_000, "3", "runs/a", [], {},
    [1] * 1000, {"a": 1}, f"${{oc.env:{VARIABLE}}}", "../outside/secret", f"{ESCAPE}red", "\udcff",
    "<script>alert(1)</script>", "`id`; $(id)", "a\nb: c", "2026-13-45T99:99",
]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A hostile file, in a folder that is otherwise as lsgd wrote it."""

    kind: str
    name: str
    make: Callable[[Path], None]


def cases(kinds: list[str] | None = None) -> list[Case]:
    """Return all cases of these kinds, or of all kinds, always in the same order."""
    found = []
    for kind, (folder_of, files) in KINDS.items():
        if kinds and kind not in kinds:
            continue
        for file in files:
            for name, damage in _damages(file, folder_of):
                found.append(Case(kind, f"{file}: {name}", _maker(folder_of, file, damage)))
    return found


def _maker(
    folder_of: Callable[[Path], None], file: str, damage: Callable[[Path], None]
) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        folder_of(folder)
        damage(folder / file)

    return make


def _damages(
    file: str, folder_of: Callable[[Path], None]
) -> Iterator[tuple[str, Callable[[Path], None]]]:
    yield from _of_files()
    ending = Path(file).suffix
    if ending in (".json", ".jsonl", ".yaml"):
        yield from _of_values(file, folder_of)
    if ending == ".pt":
        yield from _of_checkpoints()
    if ending in (".npz", ".npy"):
        yield from _of_arrays(ending)


# --- Files of another kind -------------------------------------------------------------------


def _of_files() -> Iterator[tuple[str, Callable[[Path], None]]]:
    contents = {
        "empty": b"", "nulls": bytes(5000), "no text": b"\xff\xfe\x00" * 100,
        "open": b"[" * 100_000, "braces": b'{"a":' * 50_000, "digits": b"1" * 5000,
        "a long line": b'"' + b"a" * 2**22, "an alias": b"a: &a [1, 2]\nb: [*a, *a]\n",
        "a tag": b"!!python/object/apply:os.system [id]",
        "lists": b"a: [" + b"1," * 100_000 + b"]", "a byte order mark": b"\xef\xbb\xbf{}\n",
    }  # fmt: skip
    for name, content in contents.items():
        yield name, lambda path, content=content: _written(path, content)
    yield "a pipe", lambda path: (path.unlink(), os.mkfifo(path))[-1]
    yield "a folder", lambda path: (path.unlink(), path.mkdir())[-1]
    yield "a link to a secret", lambda path: _linked(path, path.parents[2] / "outside" / "secret")
    yield "a link to itself", lambda path: _linked(path, path)
    yield "a link to a device", lambda path: _linked(path, Path("/dev/zero"))
    yield "cut in half", lambda path: _written(path, path.read_bytes()[: path.stat().st_size // 2])
    yield "a byte changed", _flipped
    yield "gone", lambda path: path.unlink()


def _written(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)


def _linked(path: Path, target: Path) -> None:
    path.unlink()
    path.symlink_to(target)


def _flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x55
    _written(path, bytes(content))


# --- Values of files -------------------------------------------------------------------------


def _of_values(
    file: str, folder_of: Callable[[Path], None]
) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Yield damages that replace each value of the file by some of VALUES."""
    for number, place in enumerate(_places_in(file, folder_of)):
        # Three values for each place use all of VALUES in every file; all of them would make
        # thousands of cases.
        for step in range(3):
            value = VALUES[(number + step * 8) % len(VALUES)]
            name = f"{'.'.join(map(str, place))} is {str(value)[:30]!r}"
            yield name, lambda path, place=place, value=value: _replaced(path, place, value)


_KNOWN: dict[tuple[str, Callable[[Path], None]], list[tuple[Any, ...]]] = {}


def _places_in(file: str, folder_of: Callable[[Path], None]) -> list[tuple[Any, ...]]:
    if (file, folder_of) not in _KNOWN:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name, "case", "folder")
            folder.parent.mkdir()
            folder_of(folder)
            _KNOWN[file, folder_of] = [*_places(_loaded(folder / file))]
    return _KNOWN[file, folder_of]


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for key in value:
            yield (*place, key)
            yield from _places(value[key], (*place, key))
    elif isinstance(value, list):
        for index in (0, len(value) - 1)[: len(value)]:
            yield (*place, index)
            yield from _places(value[index], (*place, index))


def _loaded(path: Path) -> Any:
    text = path.read_text()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return yaml.safe_load(text) if path.suffix == ".yaml" else json.loads(text)


def _replaced(path: Path, place: tuple[Any, ...], value: Any) -> None:
    values = _loaded(path)
    inner = values
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    if path.suffix == ".jsonl":
        text = "".join(json.dumps(row) + "\n" for row in values)
    elif path.suffix == ".yaml":
        text = yaml.safe_dump(values, allow_unicode=False)
    else:
        text = json.dumps(values)
    _written(path, text.encode(errors="surrogatepass"))


# --- Checkpoints and arrays ------------------------------------------------------------------


class _PickledCall:
    """An object whose unpickling calls a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.what = function, arguments

    def __reduce__(self) -> Any:
        return self.what


def _of_checkpoints() -> Iterator[tuple[str, Callable[[Path], None]]]:
    whole = tiny()
    runs = {
        "os.system": _PickledCall(os.system, "id"), "open": _PickledCall(open, "/etc/passwd"),
        "eval": _PickledCall(eval, "1"), "torch.load": _PickledCall(torch.load, "a"),
    }  # fmt: skip
    for field in ("recipe", "model", "optimizer", "parts", "tally", "rates", "data", "step"):
        odd = [*runs.values(), *VALUES[::3], torch.zeros(1).expand(10**11), {"a": torch.zeros(0)}]
        for number, value in enumerate(odd):
            changed: Any = {field: value}
            made = replace(_saved(), **changed)
            yield f"{field} is odd {number}", lambda path, made=made: _saved_to(path, made)
    options = {"checkpoint_path": "evil.pth", "pretrained": True, "weights": "DEFAULT"}
    for key, value in options.items():
        model = _saved().recipe["model"] | {"name": "timm/resnet10t", "options": {key: value}}
        made = replace(_saved(), recipe=_saved().recipe | {"model": model})
        yield f"options {key}", lambda path, made=made: _saved_to(path, made)
    yield "a bomb", lambda path: _bomb(path)
    yield "a bare pickle", lambda path: _written(path, pickle.dumps(runs["os.system"], 2))
    nested: Any = []
    for _ in range(200):
        nested = [nested]
    for name, value in {"deep": nested, "wide": {str(i): i for i in range(100_000)}}.items():
        made = replace(whole, recipe={"name": value})
        yield name, lambda path, made=made: _saved_to(path, made)


_SAVED: list[checkpoint.Checkpoint] = []


def _saved() -> checkpoint.Checkpoint:
    """Return a checkpoint of the digits recipe that can be evaluated; its weights are arbitrary."""
    if not _SAVED:
        recipe = compose_recipe(*WORDS, "inputs=synthetic")
        _SAVED.append(replace(tiny(), recipe=asdict(recipe), fingerprint=recipe.fingerprint))
    return _SAVED[0]


def _saved_to(path: Path, made: checkpoint.Checkpoint) -> None:
    """Write a checkpoint to this path, where checkpoint.write would name the file by its step."""
    archive = io.BytesIO()
    torch.save({"format": checkpoint.FORMAT} | vars(made), archive)
    content = archive.getvalue()
    _written(path, content + hashlib.sha256(content).digest())


def _bomb(path: Path) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as members:
        members.writestr("archive/data.pkl", bytes(2**26))
    _written(path, archive.getvalue())


def _of_arrays(ending: str) -> Iterator[tuple[str, Callable[[Path], None]]]:
    def header(text: str) -> bytes:
        line = text.encode().ljust(118) + b"\n"
        return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(line)) + line

    headers = {
        "vast": "{'descr': '<i8', 'fortran_order': False, 'shape': (100000000000,)}",
        "negative": "{'descr': '<i8', 'fortran_order': False, 'shape': (-1,)}",
        "objects": "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}",
        "a call": "{'descr': __import__('os').system('id'), 'shape': (1,)}",
        "a number": "7",
        "no fields": "{'descr': '<i8', 'fortran_order': False, 'shape': (1,)}",
    }
    for name, text in headers.items():
        content = header(text) + bytes(64)
        if ending == ".npz":
            packed = io.BytesIO()
            with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as members:
                for member in ("run", "rows", "events"):
                    members.writestr(f"{member}.npy", content)
            content = packed.getvalue()
        yield name, lambda path, content=content: _written(path, content)


# --- Folders as lsgd has written them --------------------------------------------------------


def _run(folder: Path) -> None:
    made = write_finished_run(folder.parent, "fashion_bs64", 0, 8.0)
    made.rename(folder)


def _trained(folder: Path) -> None:
    folder.mkdir()
    checkpoint.write(_saved(), folder)


def _orders(folder: Path) -> None:
    folder.mkdir()
    orders = OrderHistory(2, 1)
    orders.epochs[0] = [[np.array([0, 1, 1, 0], np.int16)]]
    orders.save(folder / "orders.npz")


def _searched(folder: Path) -> None:
    folder.mkdir()
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    points = [
        Trial(number, {"optim.momentum": 0.5}, FINISHED, 9.0 + number, {1: 9.0}, "", moment, moment)
        for number in range(2)
    ]
    record = SearchRecord(
        "small", "small", "the command", "random", 2, 4, TOP1, points, [9.0], [9.5], {"torch": "2"}
    )
    save_record(record, folder)
    (folder / "search.json").write_text(json.dumps({"recipe": "digits", "place": "a"}))


def _reported(folder: Path) -> None:
    folder.mkdir()
    (folder / "summary.json").write_text(
        json.dumps({
            "title": "a", "metric": "top1_error", "files": ["README.md"], "partial": True,
            "runs": 1, "runs_asked": 2, "claims": [{"says": "a", "verdict": "holds"}], "elbows": [],
            "recipes": [{
                "recipe": "digits", "label": "a", "n": 1, "mean": 2.0, "std": None, "diverged": 0,
                "errors": {"0": 2.0}, "target": None,
            }],
        })
    )  # fmt: skip


def _supervised(folder: Path) -> None:
    (folder / FOLDER).mkdir(parents=True)
    rows = [{"rank": 0, "host": "h", "pid": 1}, {"code": 0, "why": ""}]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / FOLDER / "0-h-1.jsonl").write_text(text)


KINDS: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    "run": (_run, ["config.yaml", "metrics.jsonl"]),
    "checkpoint": (_trained, ["checkpoint-3.pt"]),
    "orders": (_orders, ["orders.npz"]),
    "search": (_searched, ["points.json", "search.json"]),
    "report": (_reported, ["summary.json"]),
    "images": (lambda folder: make_folder(folder) and None, ["train.index.npy"]),
    "members": (_supervised, [f"{FOLDER}/0-h-1.jsonl"]),
}
"""The function that makes each kind of folder, and the folder's files to damage."""
