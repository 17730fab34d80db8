"""Fuzz the functions that read others' files and overrides, guided by code coverage.

    python tests/hostile/fuzz.py PARSER --seconds 600 --out FOLDER
    python tests/hostile/fuzz.py --list

Needs atheris (pip install atheris), which the other tests do not. An input that ends in another
exception than lsgd's own errors, or takes too long, is written to the folder, once for each line of
code; after a review it becomes a case of corpus.py. Archives are fuzzed by their members, since a
checksum would reject other changes.
"""

import argparse
import gzip
import hashlib
import io
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import atheris
import numpy as np

with atheris.instrument_imports(include=["lsgd", "omegaconf", "hydra"]):
    from helpers.folders import DATA
    from hostile import corpus

    from lsgd import config
    from lsgd.errors import ExitError
    from lsgd.inputs import arrays
    from lsgd.inputs.index import open_indexes
    from lsgd.job import members
    from lsgd.prepare import images, unpack, validation
    from lsgd.prepare.journal import Journal
    from lsgd.recipe import Data
    from lsgd.report import look_record, results
    from lsgd.run import checkpoint, read
    from lsgd.search import record
    from lsgd.strategy.recorded import parse_orders
    from lsgd.text import conll, ptb, read_corpus, sst

SLOW = 10
"""The seconds after which an input counts as hanging."""
Read = Callable[[Path], object]


class FuzzTarget(NamedTuple):
    """A fuzz target: the function that reads a file of a folder, and one that makes the folder."""

    make: Callable[[Path], object]
    file: str
    read: Read
    archive: str = ""
    """The archive format, zip or gz, whose members are fuzzed; empty for plain files."""


def _folder(name: str) -> tuple[Callable[[Path], object], str]:
    make, (file, *_) = corpus.KINDS[name]
    return make, file


def _file(name: str, content: bytes) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        folder.mkdir()
        (folder / name).write_bytes(content)

    return make


def _loaded(folder: Path) -> object:
    file = folder / "checkpoint-3.pt"
    content = file.read_bytes()
    return checkpoint.decode_checkpoint(content + hashlib.sha256(content).digest(), str(file))


def _bare_checkpoint(folder: Path) -> None:
    corpus.KINDS["checkpoint"][0](folder)
    file = folder / "checkpoint-3.pt"
    file.write_bytes(file.read_bytes()[: -checkpoint.DIGEST])


def _image(kind: str) -> Callable[[Path], object]:
    from PIL import Image

    packed = io.BytesIO()
    Image.new("RGB", (9, 7), (200, 30, 40)).save(packed, kind)
    return _file("image", packed.getvalue())


def _tar(name: str, content: bytes) -> bytes:
    import tarfile

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def _weights(folder: Path) -> object:
    """Read plain weights as lsgd.evaluate does, which makes a sentence of a ValueError."""
    try:
        return checkpoint.load_numbers((folder / "checkpoint-3.pt").read_bytes())
    except ValueError as error:
        raise ExitError(str(error)) from error


def _problems(folder: Path) -> object:
    return images.image_problems(folder / "image")


def _array_reader(read: Callable[[Path], object], file: str = "") -> Read:
    """Return a reader of arrays as the loaders call it: any error in the bytes is a sentence."""

    def guarded(folder: Path) -> object:
        try:
            return read(folder / file if file else folder)
        except Exception as error:
            raise ExitError(str(error)) from error

    return guarded


def _idx() -> bytes:
    return b"\0\0\x08\x02\0\0\0\x02\0\0\0\x03" + bytes(range(6))


def _packed(folder: Path) -> None:
    from PIL import Image

    folder.mkdir()
    packed = io.BytesIO()
    Image.new("RGB", (8, 8), (200, 30, 40)).save(packed, "JPEG")
    data = np.frombuffer(packed.getvalue(), np.uint8)
    np.savez(folder / "a.npz", data=data, offsets=np.array([0, len(data)]), labels=np.array([1]))


def _mat() -> bytes:
    from scipy.io import savemat

    packed = io.BytesIO()
    savemat(packed, {"synsets": np.zeros(2, [("ILSVRC2012_ID", "i4"), ("num_children", "i4")])})
    return packed.getvalue()


MAT = _mat()
DIGITS = Path(__file__).resolve().parents[2] / "data/digits/digits.npz"
CONLL = b"-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\nPeter NNP B-NP B-PER\n"
TREES = b"(3 (2 It) (4 (2 's) (4 good)))\n"
WORDS = b" a b <unk> N \n"
TEXTS: dict[str, tuple[Data, Callable[[Path], object], Sequence[str]]] = {
    "conll": (
        config.load_recipe(["+recipe=conll_bilstm"]).data,
        lambda root: conll.read_tagged_corpus.__wrapped__(root, lowercase=True),
        [*conll.FILES[1].values()],
    ),
    "sst": (
        config.load_recipe(["+recipe=sst_treelstm"]).data,
        lambda root: sst.read_tree_corpus.__wrapped__(root, lowercase=True), [*sst.FILES.values()],
    ),
    "ptb": (
        config.load_recipe(["+recipe=ptb_small"]).data,
        lambda root: ptb.read_texts(root, "ptb"),
        [f"ptb.{name}.txt" for name in ("train", "valid", "test")],
    ),
}  # fmt: skip


def _set(name: str, content: bytes) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        folder.mkdir()
        for file in TEXTS[name][2]:
            (folder / file).write_bytes(content)

    return make


def _texts(name: str, folder: Path) -> object:
    data, read_texts, _ = TEXTS[name]
    return read_corpus(replace(data, root=str(folder)), read_texts)


FINDINGS = b'{"folder": "train/a", "begun": 1.0, "files": {"0.jpg": [10, [7, 9]]}}\n'
PARSERS: dict[str, FuzzTarget] = {
    "rows": FuzzTarget(corpus.KINDS["run"][0], "metrics.jsonl", lambda folder: _rows(folder)),
    "config": FuzzTarget(corpus.KINDS["run"][0], "config.yaml", lambda folder: _run(folder)),
    "checkpoint": FuzzTarget(_bare_checkpoint, "checkpoint-3.pt", _loaded, "zip"),
    "checkpoint bytes": FuzzTarget(_bare_checkpoint, "checkpoint-3.pt", _loaded),
    "orders": FuzzTarget(
        *_folder("orders"),
        lambda folder: parse_orders((folder / "orders.npz").read_bytes(), folder), "zip",
    ),
    "index": FuzzTarget(
        *_folder("images"), lambda folder: open_indexes(DATA, folder)
    ),
    "members": FuzzTarget(*_folder("members"), members.process_records),
    "search": FuzzTarget(*_folder("search"), record.load_record),
    "looks": FuzzTarget(
        _file("a.looks.json", b'{"first": 3, "last": 5, "planned": 0, "adding": {"a": 3}}'),
        "a.looks.json",
        lambda folder: look_record.read_looks(folder / "a"),
    ),
    "findings": FuzzTarget(
        _file("findings.jsonl", FINDINGS * 2), "findings.jsonl",
        lambda folder: Journal(folder / "findings.jsonl"),
    ),
    "conll": FuzzTarget(_set("conll", CONLL), "train.txt", lambda folder: _texts("conll", folder)),
    "sst": FuzzTarget(_set("sst", TREES), "train.txt", lambda folder: _texts("sst", folder)),
    "ptb": FuzzTarget(_set("ptb", WORDS), "ptb.train.txt", lambda folder: _texts("ptb", folder)),
    "jpeg": FuzzTarget(_image("JPEG"), "image", _problems),
    "png": FuzzTarget(_image("PNG"), "image", _problems),
    "bmp": FuzzTarget(_image("BMP"), "image", _problems),
    "size": FuzzTarget(
        _image("JPEG"), "image", lambda folder: images.usable_size(folder / "image")
    ),
    "idx": FuzzTarget(
        _file("a.gz", gzip.compress(_idx())), "a.gz",
        _array_reader(arrays._idx, "a.gz"),
        "gz",
    ),
    "digits": FuzzTarget(
        _file("digits.npz", DIGITS.read_bytes()), "digits.npz", _array_reader(arrays._digits), "zip"
    ),
    "jpegs": FuzzTarget(
        _packed, "a.npz", _array_reader(arrays._packed_jpegs, "a.npz"), "zip"
    ),
    "cifar": FuzzTarget(
        _file("a", pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [1]}, 2)), "a",
        _array_reader(arrays._cifar_batch, "a"),
    ),
    "devkit": FuzzTarget(
        _file("a.tar", _tar("a/data/meta.mat", MAT)), "a.tar",
        lambda folder: validation._devkit(folder / "a.tar"),
    ),
    "summary": FuzzTarget(
        *_folder("report"), lambda folder: results.results_table(folder.parent)
    ),
    "tar": FuzzTarget(
        _file("a.tar", _tar("n01440764_1.JPEG", b"abc")), "a.tar",
        lambda folder: unpack.list_members(folder / "a.tar", (".jpeg",)),
    ),
    "classes": FuzzTarget(
        _file("a.txt", b"ILSVRC2012_val_00000001.JPEG n01751748\n"), "a.txt",
        lambda folder: validation.ValClasses(folder / "a.txt"),
    ),
    "words": FuzzTarget(
        _file("words", b"+recipe=digits\nepochs=3\noptim=adam\nworkers=2"), "words",
        lambda folder: config.load_recipe(
            (folder / "words").read_bytes().decode("utf-8", "surrogateescape").split("\n")
        ),
    ),
    "weights": FuzzTarget(_bare_checkpoint, "checkpoint-3.pt", _weights),
}  # fmt: skip


def _run(folder: Path) -> object:
    try:
        return read.read_run(folder)
    except read.NotARunError:
        return None


def _rows(folder: Path) -> object:
    """Read a run as `_run` does, but parse the configuration once, since that takes longest."""
    read.config.read_recipe = _RECIPES.setdefault(folder, cache(read.config.read_recipe))
    return _run(folder)


_RECIPES: dict[Path, Any] = {}


class TimeLimitError(BaseException):
    """An error for an input that has reached its time limit."""


def _members(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        return {name: packed.read(name) for name in packed.namelist()}


def mutated(archive: str) -> Callable[[bytes, int, int], bytes]:
    """Return a mutator that changes one member of an archive, so that checksums stay valid."""

    def change(content: bytes, most: int, seed: int) -> bytes:
        if archive == "gz":
            try:
                inside = gzip.decompress(content)
            except (OSError, EOFError, ValueError):
                inside = _idx()
            packed = gzip.compress(atheris.Mutate(inside, max(len(inside) * 2, 64)), 1)
            return packed if len(packed) <= most else content
        try:
            members = _members(content)
        except Exception:
            return content
        if not members:
            return content
        name = list(members)[seed % len(members)]
        members[name] = atheris.Mutate(members[name], max(len(members[name]) * 2, 64))
        archive_file = io.BytesIO()
        with zipfile.ZipFile(archive_file, "w", zipfile.ZIP_DEFLATED) as written:
            for name, inside in members.items():
                written.writestr(name, inside)
        changed = archive_file.getvalue()
        return changed if len(changed) <= most else content

    return change


def fuzz(name: str, seconds: int, out: Path) -> None:
    """Try inputs for `seconds` seconds, and save those that raise unexpected errors."""
    parser = PARSERS[name]
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"), "case", "folder")
    folder.parent.mkdir()
    parser.make(folder)
    path = folder / parser.file
    seeds = out / f"{name} seeds"
    seeds.mkdir(parents=True, exist_ok=True)
    (seeds / "whole").write_bytes(path.read_bytes())
    places: set[str] = set()
    tried = 0
    end = time.monotonic() + seconds

    def over(*_: object) -> None:
        raise TimeLimitError

    signal.signal(signal.SIGPROF, over)

    def one(content: bytes) -> None:
        nonlocal tried
        tried += 1
        path.write_bytes(content)
        signal.setitimer(signal.ITIMER_PROF, SLOW)
        try:
            parser.read(folder)
        except ExitError:
            pass
        except (Exception, TimeLimitError) as error:
            frames = traceback.extract_tb(error.__traceback__)
            own = [frame for frame in frames if "/lsgd/" in frame.filename] or frames
            place = f"{type(error).__name__} {Path(own[-1].filename).name} {own[-1].lineno}"
            if place not in places:
                places.add(place)
                (out / f"{name} {place}").write_bytes(content)
                (out / f"{name} {place}.txt").write_text(traceback.format_exc())
                print(f"{name}: {place}: {error}", flush=True)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if time.monotonic() > end:
            print(f"{name}: {tried} inputs, {len(places)} places", flush=True)
            os._exit(0)

    words = [sys.argv[0], str(seeds), "-max_len=65536", "-rss_limit_mb=4096", "-verbosity=0"]
    mutator = {"custom_mutator": mutated(parser.archive)} if parser.archive else {}
    warnings.simplefilter("ignore")
    atheris.Setup(words, one, **mutator)
    atheris.Fuzz()


def main(argv: Sequence[str]) -> None:
    """Run the command line."""
    line = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    line.add_argument("parser", nargs="?", choices=PARSERS)
    line.add_argument("--seconds", type=int, default=600, help="how long (600)")
    line.add_argument("--out", type=Path, default=Path("fuzz"), help="what was found (fuzz)")
    line.add_argument("--list", action="store_true", help="the parsers")
    options = line.parse_args(argv)
    if options.list or not options.parser:
        print("\n".join(PARSERS))
        return
    fuzz(options.parser, options.seconds, options.out)


if __name__ == "__main__":
    main(sys.argv[1:])
