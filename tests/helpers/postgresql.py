"""A temporary PostgreSQL server for a test."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from helpers.waiting import wait_until

USER = "postgres"


def programs() -> Path | None:
    """Return the folder with PostgreSQL's newest programs, None if there are none.

    Debian does not put them on PATH.
    """
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    return found[-1].parent if found else None


@contextmanager
def postgresql() -> Iterator[Callable[[str], str]]:
    """Start a server for this context; yield a function that creates a database, given its name.

    The function returns the URL of the database.
    """
    bin_folder = programs()
    assert bin_folder
    # PostgreSQL refuses to run as root.
    other = ["runuser", "-u", USER, "--"] if os.getuid() == 0 else []

    def run(program: str, *words: str) -> None:
        command = [*other, str(bin_folder / program), *words]
        subprocess.run(command, check=True, capture_output=True, cwd="/", timeout=900)

    folder = Path(tempfile.mkdtemp(prefix="lsgd-postgresql-"))
    try:
        if other:
            shutil.chown(folder, USER)
        data, there = str(folder / "data"), ["-h", str(folder), "-U", USER]
        run("initdb", "-D", data, "-A", "trust", "-U", USER)
        server = subprocess.Popen(
            [*other, str(bin_folder / "postgres"), "-D", data, "-k", str(folder), "-h", ""],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
        )  # fmt: skip
        try:
            ready = [str(bin_folder / "pg_isready"), *there, "-q"]
            wait_until(lambda: subprocess.run(ready, timeout=900).returncode == 0)

            def database(name: str) -> str:
                run("createdb", *there, name)
                return f"postgresql://{USER}@/{name}?host={folder}"

            yield database
        finally:
            run("pg_ctl", "-D", data, "stop", "-m", "immediate")
            server.wait(timeout=900)
    finally:
        shutil.rmtree(folder)
