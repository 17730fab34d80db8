"""The images of an index in tar shards, as WebDataset lays them out, with an index of their own."""

import hashlib
import json
import os
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsgd.errors import Refused
from lsgd.files import whole
from lsgd.inputs.index import FIELDS, SPLITS, index_file, write_index
from lsgd.prepare.workers import in_parallel

SEED = 2017
BLOCK = tarfile.BLOCKSIZE


def write_shards(root: Path, index: Path, folder: Path, *, megabytes: int, processes: int) -> int:
    """Write the images of both indexes to folder/train-000000.tar … and index them there.

    The order within a split is shuffled, the same on every machine; the bytes of the images are
    those of the files. A shard that is complete is not written again. Returns the number of
    shards. Raises Refused if the folder holds shards of something else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables = {split: np.load(index_file(index, split)) for split in SPLITS}
    _keep_plan(folder, tables, megabytes)
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
    tasks = [(root, folder / shard, tables[split][ids]) for shard, split, ids in plan]
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


def _keep_plan(folder: Path, tables: dict[str, NDArray[Any]], megabytes: int) -> None:
    """Record which images the shards of this folder hold, so that no others are mixed in."""
    digest = hashlib.sha256()
    for table in tables.values():
        digest.update(repr(table.dtype).encode())
        digest.update(table.tobytes())
    plan = {"images": digest.hexdigest(), "shard_mb": megabytes, "seed": SEED}
    file = folder / "shards.json"
    if not file.exists():
        if foreign := sorted(folder.glob("*.tar")):
            raise Refused(f"{foreign[0]} is not from here; give --shards a folder of its own")
        with whole(file) as out:
            out.write(json.dumps(plan).encode())
    elif json.loads(file.read_bytes()) != plan:
        raise Refused(
            f"{folder} has shards of other images or of another --shard-mb; give --shards another "
            "folder, or remove this one"
        )


def _write_shard(root: Path, shard: Path, rows: NDArray[Any]) -> tuple[str, list[int]]:
    """Write a shard, unless it is complete; returns its name and where each image's bytes begin."""
    offsets, position = [], 0
    headers: list[tuple[bytes, bytes]] = []
    for row in rows:
        # The path without the split: n01440764/n01440764_10026.JPEG
        name = PurePosixPath(*PurePosixPath(os.fsdecode(row["path"])).parts[1:])
        label = str(row["label"]).encode()
        image = _header(str(name), int(row["bytes"]))
        class_ = _padded(_header(str(name.with_suffix(".cls")), len(label)) + label)
        headers.append((image, class_))
        offsets.append(position + len(image))
        position = offsets[-1] + _ceil(int(row["bytes"])) + len(class_)
    # The index tells the length of a shard, so a complete one is known without reading images.
    if shard.is_file() and shard.stat().st_size == position + 2 * BLOCK:
        return shard.name, offsets
    with whole(shard) as out:
        for row, (image, class_) in zip(rows, headers, strict=True):
            path = root / os.fsdecode(row["path"])
            content = path.read_bytes()
            if len(content) != row["bytes"]:
                raise Refused(f"{path} changed since it was indexed; give the same command again")
            out.write(image + _padded(content) + class_)
        out.write(bytes(2 * BLOCK))
        out.flush()
        os.fsync(out.fileno())
    return shard.name, offsets


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _padded(content: bytes) -> bytes:
    return content + bytes(_ceil(len(content)) - len(content))


def _ceil(size: int) -> int:
    return -(-size // BLOCK) * BLOCK
