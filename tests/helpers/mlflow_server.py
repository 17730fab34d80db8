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
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "mlflow", "server", "--workers", "1"),
                    *("--host", "127.0.0.1", "--port", str(self.port)),
                    *("--backend-store-uri", f"sqlite:///{self.folder / 'runs.db'}"),
                    *("--artifacts-destination", str(self.folder / "artifacts")),
                ],
                env=os.environ | self.environment | dict([self.tag]),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        begin = time.monotonic()
        while self.process.poll() is None and time.monotonic() - begin < LIMIT:
            with suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).close()
                return
            time.sleep(0.2)
        raise AssertionError((self.folder / "server.log").read_text())

    def kill(self) -> None:
        """SIGKILL for all of its processes."""
        end(self.tag, 0)
        self.process.wait()

    def metrics(self) -> list[tuple[str, int, float]]:
        """Key, step and value of all that was sent, in the order of steps and keys."""
        return self._asked("key, step, value", "metrics", "order by step, key")

    def runs(self) -> list[tuple[str, str]]:
        """Name and status of each run."""
        return self._asked("name, status", "experiment_runs")

    def tags(self) -> dict[str, str]:
        """The tags of the run."""
        return dict(self._asked("key, value", "tags"))

    def params(self) -> dict[str, str]:
        """The configuration of the run."""
        return dict(self._asked("key, value", "params"))

    def _asked(self, what: str, table: str, order: str = "") -> list[tuple]:
        """What the database has of the runs of the experiment: so the tests' own process imports
        nothing of MLflow either."""
        runs = (
            "select runs.run_uuid, runs.name, runs.status from runs join experiments using "
            "(experiment_id) where experiments.name = ?"
        )
        query = f"with experiment_runs as ({runs}) select {what} from {table}"
        if table != "experiment_runs":
            query += " where run_uuid in (select run_uuid from experiment_runs)"
        with closing(sqlite3.connect(self.folder / "runs.db", timeout=30)) as connection:
            name = self.environment["MLFLOW_EXPERIMENT_NAME"]
            return connection.execute(f"{query} {order}", [name]).fetchall()


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
