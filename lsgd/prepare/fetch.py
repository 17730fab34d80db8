"""Download of published files, which must match their published size and checksum."""

import argparse
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from tqdm import tqdm

from lsgd import paths
from lsgd.errors import UsageError
from lsgd.files import NoLocksError, lock
from lsgd.job.command import Parser

CHUNK = 1 << 20
PATIENCE = 60.0
"""Seconds without a byte after which a source counts as unavailable."""


@dataclass(frozen=True)
class PublishedFile:
    """A published file of a dataset, identified by its size and checksum."""

    name: str
    size: int
    """The length of the file in bytes."""
    digest: str
    """The checksum, such as `sha256:3aede38d…` or `md5:8d4fb7e6…`."""

    def is_at(self, path: Path) -> bool:
        """Return whether a file with the published size and checksum is at this path."""
        if not path.is_file() or path.stat().st_size != self.size:
            return False
        algorithm, digest = self.digest.split(":")
        with path.open("rb") as opened:
            return hashlib.file_digest(opened, algorithm).hexdigest() == digest


class _UnavailableError(Exception):
    """The failure of a download source that is unreachable or lacks the published file."""


def download(
    dataset: str,
    files: Sequence[PublishedFile],
    folder: Path,
    mirrors: Sequence[str],
    source: str | None = None,
) -> None:
    """Download a dataset's published files that the folder lacks, and verify their checksums.

    `mirrors` are URLs of folders with the files, tried in turn; `source`, a folder or a URL,
    replaces them. An interrupted download resumes where it stopped, in the same command or the
    next. Raises UsageError, which says what to put where, if no source has the published bytes.
    """
    sources = [_as_url(source)] if source else mirrors
    missing = [file for file in files if not (folder / file.name).exists()]
    for file in files:
        if file not in missing and not file.is_at(folder / file.name):
            raise UsageError(
                f"{folder / file.name} is not the published file of {file.size} bytes and "
                f"{file.digest}; move it away and rerun the same command"
            )
    for position, file in enumerate(missing):
        failures = []
        for base in sources:
            try:
                _fetch_from(f"{base.rstrip('/')}/{file.name}", file, folder)
                break
            except _UnavailableError as failure:
                failures.append(str(failure))
        else:
            names = ", ".join(each.name for each in missing[position:])
            raise UsageError(
                f"{dataset} cannot be fetched ({'; '.join(failures)}); download {names} from "
                f"{' or '.join(mirrors)} on a machine that can, put it into {folder.resolve()} "
                "and rerun the same command, which checks it and does the rest, or write "
                "another folder or URL that has it with --source"
            )


def _as_url(source: str) -> str:
    """Return a --source option as a URL; raise UsageError if it is neither a folder nor a URL."""
    if source.startswith(("http://", "https://")):
        return source
    if "://" not in source and (folder := paths.parse_path(source)).is_dir():
        return folder.resolve().as_uri()
    raise UsageError(f"--source {source} is neither a folder here nor an http:// or https:// URL")


def _fetch_from(url: str, file: PublishedFile, folder: Path) -> None:
    """Download a file from a URL and verify its checksum; raise _UnavailableError on failure."""
    part = folder / f"{file.name}.part"
    while True:
        continued = part.exists()
        _receive(url, part, file.size)
        if file.is_at(part):
            # Without fsync a power cut could leave an empty file under the published name.
            with part.open("rb") as whole:
                os.fsync(whole.fileno())
            os.replace(part, folder / file.name)
            return
        part.unlink()
        # The wrong bytes may come from an earlier attempt, such as the login page of a proxy.
        if not continued:
            raise _UnavailableError(f"{url} differs from the published file")


def _receive(url: str, part: Path, size: int) -> None:
    """Complete a partial download, reconnecting as long as each connection brings bytes."""
    before, received = -1, _size(part)
    while before < received < size:
        _receive_once(url, part, received, size)
        before, received = received, _size(part)
    if received < size:
        raise _UnavailableError(f"{url} ended after {received} of {size} bytes")


def _size(path: Path) -> int:
    """Return the size of a file in bytes, or 0 if it does not exist."""
    return path.stat().st_size if path.exists() else 0


def _receive_once(url: str, part: Path, received: int, size: int) -> None:
    """Download from one connection into a partial file; raise _UnavailableError on failure."""
    request = Request(url, headers={"Range": f"bytes={received}-"} if received else {})
    try:
        response = urlopen(request, timeout=PATIENCE)
    except (OSError, HTTPException, ValueError) as error:
        raise _UnavailableError(f"{url}: {_why(error)}") from None
    with response:
        # A server that does not support ranges sends the file from its beginning.
        continues = response.headers.get("Content-Range", "").startswith(f"bytes {received}-")
        received = received if continues else 0
        length = response.headers.get("Content-Length")
        if length is not None and received + int(length) != size:
            raise _UnavailableError(f"{url} has {received + int(length)} bytes instead of {size}")
        with (
            part.open("ab" if continues else "wb") as out,
            tqdm(
                desc=url.rsplit("/", 1)[1],
                initial=received,
                total=size,
                unit="B",
                unit_scale=True,
                disable=None,  # None disables the bar unless stderr is a terminal
            ) as bar,
        ):
            while received < size and (bytes_ := _read(response, min(CHUNK, size - received))):
                out.write(bytes_)
                received += len(bytes_)
                bar.update(len(bytes_))


def _read(response: Any, most: int) -> bytes:
    """Read the bytes that have arrived from a server, or none at the end or a broken connection."""
    try:
        return response.read1(most)  # type: ignore[no-any-return]
    except (OSError, HTTPException):
        return b""


def _why(error: Exception) -> str:
    """Return the reason of a failed HTTP request as text."""
    cause = getattr(error, "reason", error)
    return getattr(cause, "strerror", None) or str(error)


def is_writable(folder: Path) -> bool:
    """Return whether a folder can be written, or made if it does not exist."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return nearest.is_dir() and os.access(nearest, os.W_OK)


@contextmanager
def locked_folder(root: Path) -> Iterator[None]:
    """Create a dataset's folder and lock it within this context; UsageError if it is locked."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".prepare.lock").open("w") as file:
        # On a file system without locks, users must not start two of these commands.
        with suppress(OSError, NoLocksError):
            if not lock(file, wait=False):
                raise UsageError(f"another process is preparing {root}; wait until it has ended")
        yield


def add_command(
    subparsers: "argparse._SubParsersAction[Parser]",
    name: str,
    summary: str,
    prepare: Callable[[Path, str | None], None],
) -> None:
    """Add the command that downloads and prepares a dataset to the command line."""
    parser = subparsers.add_parser(name, help=summary, description=summary)
    parser.add_argument(
        "root",
        nargs="?",
        type=paths.parse_path,
        metavar="ROOT",
        help=f"folder of the dataset (default: $LSGD_DATA/{name}, or data/{name})",
    )
    parser.add_argument(
        "--source", metavar="URL_OR_FOLDER", help="another folder or URL with the published files"
    )
    parser.set_defaults(dataset=name, command=lambda options: prepare(options.root, options.source))


@dataclass(frozen=True)
class PublishedDataset:
    """A dataset of a few published files, which are used as downloaded, without unpacking."""

    name: str
    files: Sequence[PublishedFile]
    mirrors: Sequence[str]
    """URLs of folders that hold the files, tried in turn."""
    summary: str
    """The contents of the dataset, for the list of commands."""
    licence: str = ""
    """The permitted use of its texts, if it is restricted."""

    def prepare(self, root: Path, source: str | None = None) -> None:
        """Download the dataset's files to the root unless they are there; UsageError on failure."""
        with locked_folder(root):
            download(self.name, self.files, root, self.mirrors, source)
        print(f"{self.name} is complete at {root}" + f"; {self.licence}" * bool(self.licence))

    def add_parser(self, subparsers: "argparse._SubParsersAction[Parser]") -> None:
        """Add the command that downloads this dataset to the command line."""
        add_command(subparsers, self.name, self.summary, self.prepare)
