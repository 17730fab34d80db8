"""Published files on this machine, and none that is not byte for byte what was published."""

import argparse
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.request import Request, urlopen

from tqdm import tqdm

from lsgd import paths
from lsgd.errors import Refused

CHUNK = 1 << 20
PATIENCE = 60.0
"""Seconds without a byte after which a source counts as gone."""


@dataclass(frozen=True)
class File:
    """A published file."""

    name: str
    size: int
    """The length of the file in bytes."""
    digest: str
    """The checksum, such as `sha256:3aede38d…` or `md5:8d4fb7e6…`."""

    def is_at(self, path: Path) -> bool:
        """Whether a file of the published size and checksum lies at this path."""
        if not path.is_file() or path.stat().st_size != self.size:
            return False
        algorithm, digest = self.digest.split(":")
        with path.open("rb") as opened:
            return hashlib.file_digest(opened, algorithm).hexdigest() == digest


class _Unavailable(Exception):
    """A source cannot be reached, or does not have the published file."""


def fetch(
    dataset: str,
    files: Sequence[File],
    folder: Path,
    mirrors: Sequence[str],
    source: str | None = None,
) -> None:
    """Download the files into the folder, except those that it has already.

    `mirrors` are URLs of folders that hold them, tried in turn; `source`, a folder or a URL, stands
    in for them. A download that ends early goes on where it stopped, in the same run or the next.
    Raises Refused, and says what to put where, if no source gives the published bytes.
    """
    sources = [_as_url(source)] if source else mirrors
    missing = [file for file in files if not (folder / file.name).exists()]
    for file in files:
        if file not in missing and not file.is_at(folder / file.name):
            raise Refused(
                f"{folder / file.name} is not the published file of {file.size} bytes and "
                f"{file.digest}; move it away and run the same command again"
            )
    for position, file in enumerate(missing):
        failures = []
        for base in sources:
            try:
                _fetch_from(f"{base.rstrip('/')}/{file.name}", file, folder)
                break
            except _Unavailable as failure:
                failures.append(str(failure))
        else:
            names = ", ".join(each.name for each in missing[position:])
            raise Refused(
                f"{dataset} cannot be fetched ({'; '.join(failures)}); download {names} from "
                f"{' or '.join(mirrors)} on a machine that can, put it into {folder.resolve()} and "
                "run the same command again, which checks it and does the rest, or name another "
                "folder or URL that has it with --source"
            )


def _as_url(source: str) -> str:
    if source.startswith(("http://", "https://")):
        return source
    if Path(source).is_dir():
        return Path(source).resolve().as_uri()
    raise Refused(f"--source {source} is neither a folder here nor an http:// or https:// URL")


def _fetch_from(url: str, file: File, folder: Path) -> None:
    part = folder / f"{file.name}.part"
    while True:
        continued = part.exists()
        _receive(url, part, file.size)
        if file.is_at(part):
            # Else a power cut could leave an empty file under the published name.
            with part.open("rb") as whole:
                os.fsync(whole.fileno())
            os.replace(part, folder / file.name)
            return
        part.unlink()
        # The wrong bytes may be those of an earlier attempt, such as a login page in between.
        if not continued:
            raise _Unavailable(f"{url} has other bytes than were published")


def _receive(url: str, part: Path, size: int) -> None:
    """Complete a partial file; connect again as long as the last connection brought any bytes."""
    before, received = -1, _size(part)
    while before < received < size:
        _receive_once(url, part, received, size)
        before, received = received, _size(part)
    if received < size:
        raise _Unavailable(f"{url} ended after {received} of {size} bytes")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _receive_once(url: str, part: Path, received: int, size: int) -> None:
    request = Request(url, headers={"Range": f"bytes={received}-"} if received else {})
    try:
        response = urlopen(request, timeout=PATIENCE)
    except (OSError, HTTPException, ValueError) as error:
        raise _Unavailable(f"{url}: {_why(error)}") from None
    with response:
        # A server that does not support ranges sends the file from its beginning.
        continues = response.headers.get("Content-Range", "").startswith(f"bytes {received}-")
        received = received if continues else 0
        length = response.headers.get("Content-Length")
        if length is not None and received + int(length) != size:
            raise _Unavailable(f"{url} has {received + int(length)} bytes instead of {size}")
        with (
            part.open("ab" if continues else "wb") as out,
            tqdm(
                desc=url.rsplit("/", 1)[1],
                initial=received,
                total=size,
                unit="B",
                unit_scale=True,
                disable=None,  # unless stderr is a terminal
            ) as bar,
        ):
            while received < size and (bytes_ := _read(response, min(CHUNK, size - received))):
                out.write(bytes_)
                received += len(bytes_)
                bar.update(len(bytes_))


def _read(response: Any, most: int) -> bytes:
    """The bytes that have arrived; none at the end of the file or of a broken connection."""
    try:
        return response.read1(most)  # type: ignore[no-any-return]
    except (OSError, HTTPException):
        return b""


def _why(error: Exception) -> str:
    cause = getattr(error, "reason", error)
    return getattr(cause, "strerror", None) or str(error)


@contextmanager
def filling(root: Path) -> Iterator[None]:
    """Lock a dataset's folder, made if need be; raises Refused while another process holds it."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".prepare.lock").open("w") as lock:
        _lock(lock, root)
        yield


def _lock(lock: IO[str], root: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Refused(f"another process is preparing {root}; wait until it has ended") from None
    except OSError:
        # A file system without locks: then it is up to the user to start one only.
        return


def add_command(
    subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    summary: str,
    prepare: Callable[[Path, str | None], None],
) -> None:
    """Add a dataset that can be fetched to the command line."""
    parser = subparsers.add_parser(name, help=summary, description=summary)
    parser.add_argument(
        "root",
        nargs="?",
        type=Path,
        default=paths.data_root(name),
        metavar="ROOT",
        help=f"folder of the dataset (default: $LSGD_DATA/{name}, or data/{name})",
    )
    parser.add_argument(
        "--source",
        metavar="URL_OR_FOLDER",
        help="where the published files are, if not at their publisher's",
    )
    parser.set_defaults(command=lambda options: prepare(options.root, options.source))


@dataclass(frozen=True)
class PublishedSet:
    """A dataset of a few published files, which are read as they come."""

    name: str
    files: Sequence[File]
    mirrors: Sequence[str]
    """URLs of folders that hold the files, tried in turn."""
    summary: str
    """What it holds, for the list of commands."""
    licence: str = ""
    """What its texts may be used for, where that is not for anything."""

    def prepare(self, root: Path, source: str | None = None) -> None:
        """Have all files at the root, each with its sum; raises Refused if one cannot be had."""
        with filling(root):
            fetch(self.name, self.files, root, self.mirrors, source)
        print(f"{self.name} is complete at {root}" + f"; {self.licence}" * bool(self.licence))

    def add_parser(self, subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
        """Add the dataset to the command line."""
        add_command(subparsers, self.name, self.summary, self.prepare)
