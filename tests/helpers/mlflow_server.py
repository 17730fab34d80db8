"""An MLflow server on this machine that tests kill and restart, and queries of its database."""

import os
import sqlite3
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from lsgd.job.ending import end_tagged
from lsgd.supervise.singly import free_port

LIMIT = 600.0
"""The time limit for the start on a busy machine, in seconds."""


class MlflowServer:
    """An MLflow server with an SQLite database in its own folder, always at the same port."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tag = folder, ("LSGD_TEST_MLFLOW", uuid.uuid4().hex)
        self.port = free_port()
        self.environment = {
            "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{self.port}",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            # Else the server starts a process for each kind of job, and nobody asks for one here.
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        }

    def start(self) -> None:
        """Start the server and wait until it responds."""
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
        """Send SIGKILL to all processes of the server."""
        end_tagged(self.tag, 0)
        self.process.wait(timeout=900)

    def metrics(self) -> list[tuple[str, int, float]]:
        """Return (key, step, value) of all metrics in the database, ordered by step and key."""
        return self._asked("key, step, value", "metrics", "order by step, key")

    def runs(self) -> list[tuple[str, str]]:
        """Return the name and status of each run of the experiment."""
        return self._asked("name, status", "experiment_runs")

    def tags(self) -> dict[str, str]:
        """Return the tags of the run by key."""
        return dict(self._asked("key, value", "tags"))

    def params(self) -> dict[str, str]:
        """Return the parameters of the run, which are its configuration, by key."""
        return dict(self._asked("key, value", "params"))

    def _asked(self, what: str, table: str, order: str = "") -> list[tuple]:
        """Query columns of a table of the database, for the runs of the experiment.

        SQL keeps MLflow out of the imports of the test process.
        """
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
def mlflow_server(folder: Path) -> Iterator[MlflowServer]:
    """Start an MLflow server for this context, and kill all its processes at the end."""
    folder.mkdir()
    it = MlflowServer(folder)
    try:
        it.start()
        yield it
    finally:
        it.kill()
