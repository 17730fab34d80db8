"""The tar shards of an indexed dataset in WebDataset's layout, with an index of their own."""

import hashlib
import json
import os
import tarfile
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsgd.errors import UsageError
from lsgd.files import atomic_write
from lsgd.inputs.index import FIELDS, MAX_FILE_BYTES, SPLITS, index_file, write_index
from lsgd.prepare.process_pool import in_parallel
from lsgd.untrusted_files import read_bounded

SEED = 2017
BLOCK = tarfile.BLOCKSIZE


def write_shards(root: Path, index: Path, folder: Path, *, megabytes: int, processes: int) -> int:
    """Write the images of both indexes into tar shards in a folder, with indexes of the shards.

    The order within a split is shuffled, the same on every machine; the bytes of the images are
    those of the files. A complete shard is not written again. Returns the number of shards. Raises
    UsageError if the folder has shards of something else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables = {split: np.load(index_file(index, split)) for split in SPLITS}
    members = {split: _members(table["path"].tolist()) for split, table in tables.items()}
    _keep_plan(folder, tables, members, megabytes)
    plan = []
    for split, table in tables.items():
        order = np.random.default_rng(SEED).permutation(len(table))
        # A header and padding for the image and for its class.
        ends = np.cumsum(table["bytes"][order] + 4 * BLOCK)
        # A new shard begins where the running total passes a multiple of a shard's size.
        cuts = np.flatnonzero(np.diff(ends // (megabytes * 10**6))) + 1
        plan += [
            (f"{split}-{i:06d}.tar", split, ids) for i, ids in enumerate(np.split(order, cuts))
        ]
    tasks = [
        (root, folder / shard, tables[split][ids], [members[split][i] for i in ids])
        for shard, split, ids in plan
    ]
    offsets = dict(in_parallel(_write_shard, tasks, processes=processes, what="shards"))
    for split, table in tables.items():
        places: dict[int, tuple[bytes, int]] = {}
        for shard, split_of_shard, ids in plan:
            if split_of_shard == split:
                name = shard.encode()
                places |= {
                    int(i): (name, offset) for i, offset in zip(ids, offsets[shard], strict=True)
                }
        columns = (table[name].tolist() for name in FIELDS if name not in ("shard", "offset"))
        write_index(
            folder,
            split,
            (
                (path, *places[i], *rest)
                for i, (path, *rest) in enumerate(zip(*columns, strict=True))
            ),
        )
    return len(plan)


def _members(paths: list[bytes]) -> list[str]:
    """Return the names of images in a tar shard, such as n01440764/n01440764_10026.JPEG.

    WebDataset treats files with the same name before its first dot as one example, and the rest of
    the name as the kind of file. So further dots become underscores, and images that would then
    share a name get their number in the index.
    """
    names = [os.fsdecode(path).partition("/")[2].rpartition(".") for path in paths]
    keys = []
    for stem, _, _ in names:
        folder, slash, name = stem.rpartition("/")
        keys.append(folder + slash + name.replace(".", "_"))
    taken = Counter(keys)
    members = []
    for number, (key, (_, dot, kind)) in enumerate(zip(keys, names, strict=True)):
        own = key
        if taken[key] > 1:
            own = f"{key}_{number}"
            while own in taken:
                own += "_"
            taken[own] = 1
        members.append(own + dot + kind)
    return members


def _keep_plan(
    folder: Path, tables: dict[str, NDArray[Any]], members: dict[str, list[str]], megabytes: int
) -> None:
    """Record which images a folder's tar shards hold; raise UsageError if they hold others."""
    digest = hashlib.sha256()
    for table in tables.values():
        digest.update(repr(table.dtype).encode())
        digest.update(table.tobytes())
    plan = {"images": digest.hexdigest(), "shard_mb": megabytes, "seed": SEED}
    # Omitted if zero, for equality with older plans.
    plan |= {"renamed": renamed} if (renamed := _renamed(tables, members)) else {}
    file = folder / "shards.json"
    if not file.exists():
        if foreign := sorted(folder.glob("[!.]*.tar")):
            raise UsageError(
                f"{foreign[0]} was not written by this command; give --shards a folder of its own"
            )
        with atomic_write(file) as out:
            out.write(json.dumps(plan).encode())
    elif json.loads(file.read_bytes()) != plan:
        raise UsageError(
            f"{folder} has shards of other images or of another --shard-mb; give --shards another "
            "folder, or remove this one"
        )


def _renamed(tables: dict[str, NDArray[Any]], members: dict[str, list[str]]) -> int:
    """Count the images that are given another name in the tar shards than in the image folder."""
    return sum(
        os.fsdecode(path) != f"{split}/{member}"
        for split, table in tables.items()
        for path, member in zip(table["path"].tolist(), members[split], strict=True)
    )


def _write_shard(
    root: Path, shard: Path, rows: NDArray[Any], members: list[str]
) -> tuple[str, list[int]]:
    """Write a tar shard unless it is complete; return its name and its images' offsets."""
    offsets, position = [], 0
    headers: list[tuple[bytes, bytes]] = []
    for row, name in zip(rows, members, strict=True):
        label = str(row["label"]).encode()
        image = _header(name, int(row["bytes"]))
        class_ = _padded(_header(str(PurePosixPath(name).with_suffix(".cls")), len(label)) + label)
        headers.append((image, class_))
        offsets.append(position + len(image))
        position = offsets[-1] + _ceil(int(row["bytes"])) + len(class_)
    # The index determines a shard's length, so a complete one is detected without reading images.
    if shard.is_file() and shard.stat().st_size == position + 2 * BLOCK:
        return shard.name, offsets
    with atomic_write(shard) as out:
        for row, (image, class_) in zip(rows, headers, strict=True):
            path = root / os.fsdecode(row["path"])
            content = read_bounded(path, MAX_FILE_BYTES)
            if len(content) != row["bytes"]:
                raise UsageError(f"{path} changed since it was indexed; rerun the same command")
            out.write(image + _padded(content) + class_)
        out.write(bytes(2 * BLOCK))
    return shard.name, offsets


def _header(name: str, size: int) -> bytes:
    """Return the tar header of a shard's member of this name and size."""
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _padded(content: bytes) -> bytes:
    """Pad the content of a tar member with zeros to full blocks."""
    return content + bytes(_ceil(len(content)) - len(content))


def _ceil(size: int) -> int:
    """Round a size in bytes up to full tar blocks."""
    return -(-size // BLOCK) * BLOCK
