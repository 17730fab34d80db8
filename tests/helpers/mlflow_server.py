"""MLflow's own server on this machine, to be killed and started again, and what it then has."""

import os
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from lsgd.job.ending import end

LIMIT = 120.0
"""Seconds in which it starts on a machine that has other work."""


class Server:
    """A server over SQLite in a folder of its own, always at the same port."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tag = folder, ("LSGD_TEST_MLFLOW", uuid.uuid4().hex)
        with closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.environment = {
            "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{self.port}",
            "MLFLOW_DISABLE_TELEMETRY": "true",
        }

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with (self.folder / "server.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
                + ["--port", str(self.port), "--workers", "1"]
                + ["--backend-store-uri", f"sqlite:///{self.folder / 'runs.db'}"]
                + ["--artifacts-destination", str(self.folder / "artifacts")],
                env=os.environ | self.environment | dict([self.tag]),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        begin = time.monotonic()
        while process.poll() is None and time.monotonic() - begin < LIMIT:
            with suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).close()
                return
            time.sleep(0.2)
        raise AssertionError((self.folder / "server.log").read_text())

    def kill(self) -> None:
        """SIGKILL for all of its processes."""
        end(self.tag, 0)

    def metrics(self) -> list[tuple[str, int, float]]:
        """Key, step and value of all that it has been sent, in the order of steps."""
        return self._asked("select key, step, value from metrics order by step, key")

    def runs(self) -> list[tuple[str, str]]:
        """Name and status of each run."""
        return self._asked("select name, status from runs")

    def tags(self) -> dict[str, str]:
        """The tags of its only run."""
        return dict(self._asked("select key, value from tags"))

    def params(self) -> dict[str, str]:
        """The configuration of its only run."""
        return dict(self._asked("select key, value from params"))

    def _asked(self, query: str) -> list[tuple]:
        """From the database itself: so the tests' own process imports nothing of MLflow either."""
        database = self.folder / "runs.db"
        if not database.exists():
            return []
        with closing(sqlite3.connect(database, timeout=30)) as connection:
            return connection.execute(query).fetchall()


@contextmanager
def server(folder: Path) -> Iterator[Server]:
    """A server that runs; none of its processes is left behind."""
    folder.mkdir()
    it = Server(folder)
    try:
        it.start()
        yield it
    finally:
        it.kill()
