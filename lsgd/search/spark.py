"""The Apache Spark backend: executors train the runs of a search, each process as one task.

Only this file imports pyspark. There is one session for each search; Spark logs to spark.log in the
folder of the search. If the executors share that folder, a run is stopped through a file, saves a
checkpoint, and can be resumed anywhere. If they do not, the task returns the rows of its run, and
its checkpoints are lost. pyspark's TorchDistributor is not used: it can neither stop a run so that
it saves, nor return its rows.
"""

import os
import re
import shutil
import socket
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lsgd import files
from lsgd.errors import PreemptedError, UsageError
from lsgd.installation import install_command
from lsgd.job.launcher import LIFE
from lsgd.job.members import JOB_TAG
from lsgd.launch.commands import exported_variables
from lsgd.planned import PlannedRun, RunLauncher, has_ended
from lsgd.search.spark_task import (
    RemoteFailure,
    SparkRunResult,
    SparkRunSpec,
    send_signal,
    shares_folder,
    train,
)
from lsgd.search.trial import StopRequest
from lsgd.supervise.logbook import open_logbook
from lsgd.supervise.process_slot import SLOT_VARIABLE
from lsgd.supervise.verdict import ExitSummary

POLL = 0.25
"""Seconds between two checks for a stop request."""
ANSWER = 10.0
"""Seconds within which a Spark master must answer."""
ARRIVAL = 120
"""Seconds within which executors for all processes of a run must be available."""
SETTINGS = {
    "spark.app.name": "lsgd.search",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    # The search itself restarts a crashed run, once.
    "spark.task.maxFailures": "1",
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
}
SMALL_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Java options that halve its start-up work on a small machine."""
HERE = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.defaultJavaOptions": SMALL_JAVA,
}
"""Settings for a Spark that runs on this machine alone."""
FEW_SLOTS, CHANGING_SLOTS = "SPARK-24819", "SPARK-24942"
"""Spark's error codes for too few slots for a barrier stage, and for a changing number of slots."""


@dataclass(frozen=True)
class _Session:
    """A running Spark session of a search, with the folder that its executors may share."""

    context: Any
    """pyspark's SparkContext."""
    log: Path
    token: Path
    """A file in the search's folder by which executors prove that they share that folder."""
    folder: str | None = None
    """The folder of the search if the executors share it, else None."""


class _JobFailedError(Exception):
    """The failure of a Spark job; the message is Spark's, with its stack traces."""

    @property
    def reason(self) -> str:
        """The last line of Spark's message outside its stack traces: the error of a failed task."""
        lines = [line.strip() for line in str(self).splitlines()]
        said = [
            line for line in lines if line and not re.match(r"at |Driver stacktrace|\.\.\. ", line)
        ]
        return said[-1][:300] if said else "Spark gives no reason"


class SparkBackend:
    """The backend that trains the runs of a search on the executors of a Spark cluster."""

    def __init__(self, launcher: RunLauncher) -> None:
        """Store the launcher of a search's runs; raise UsageError without pyspark or Java."""
        _check_installed()
        self.launcher = launcher
        self._opened: _Session | None = None

    @contextmanager
    def open(self, folder: Path, jobs: int, *, prunes: bool) -> Iterator[None]:
        """Start Spark with slots for `jobs` runs of a search at a time; stop it on exit.

        Raises UsageError if the search `prunes` and the executors do not share its folder.
        """
        began = time.monotonic()
        processes, _ = self.launcher.fit_processes(sys.maxsize)
        log, token = folder / "spark.log", Path(f"runs/spark-{uuid.uuid4().hex}")
        with _open_spark(self.launcher.options.get("--master"), jobs * processes, log) as context:
            token.touch()
            try:
                session = _Session(context, log, token)
                if _all_see(session, processes):
                    session = replace(session, folder=os.getcwd())
                elif prunes:
                    raise UsageError(
                        f"the executors of Spark cannot see {os.getcwd()}, so no trial can be "
                        "pruned; start in a shared folder, or write prune=null"
                    )
                print(f"Spark is ready after {time.monotonic() - began:.0f} s", flush=True)
                self._opened = session
                yield
            finally:
                self._opened = None
                token.unlink()

    def train(
        self, trial: PlannedRun, stop: StopRequest, say: Callable[[str], None]
    ) -> ExitSummary | None:
        """Train a search's run as a Spark job and wait until it ends; see TrialBackend.train."""
        session = self._opened
        assert session, "a place is opened before it trains"
        processes, _ = self.launcher.fit_processes(trial.recipe.most_processes)
        told = Path(f"{trial.folder}.leave-{uuid.uuid4().hex}")
        sent = SparkRunSpec(
            trial, self.launcher, _environment(), session.folder, session.token, told
        )
        say(f"submitted to Spark, processes: {processes}")
        told.parent.mkdir(parents=True, exist_ok=True)
        try:
            if session.folder:
                return _ending(_outcome(session, sent, processes, stop))
            return _train_without_shared_folder(session, sent, processes, stop)
        finally:
            told.unlink(missing_ok=True)


def _train_without_shared_folder(
    session: _Session, sent: SparkRunSpec, processes: int, stop: StopRequest
) -> ExitSummary | None:
    """Train a run on executors that do not share its folder, and write the files they return."""
    trial = sent.planned_run
    with (
        trial.log_path.open("a", encoding="utf-8") as output,
        open_logbook(trial.folder, screen=output, patience=0) as logbook,
    ):
        if has_ended(trial.saved_run):
            return None
        logbook.log_event("start", f"running on Spark, processes: {processes}")
        outcome = _outcome(session, sent, processes, stop)
        if outcome:
            output.write(outcome.log)
            contents = {name: text.encode() for name, text in outcome.files.items()}
            files.write_files(trial.folder, contents)
        ending = _ending(outcome)
        if ending:
            logbook.log_event("end", ending.cause, code=ending.code)
        return ending


def _ending(outcome: SparkRunResult | None) -> ExitSummary | None:
    """Return the ending in the result of a Spark job, None if cancelled; raise an error in it."""
    if outcome and outcome.error:
        raise outcome.error
    return outcome.ending if outcome else None


def _outcome(
    session: _Session, sent: SparkRunSpec, processes: int, stop: StopRequest
) -> SparkRunResult | None:
    """Train a run as a Spark job, pass stop requests on, return its result or None if cancelled.

    A job is cancelled where the run cannot be signalled. Raises UsageError if no other run could be
    trained either, and PreemptedError if Spark has stopped.
    """
    group, passed_on, cancelled = f"{sent.planned_run} {uuid.uuid4().hex}", 0, False
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(_collect, session, processes, partial(_train, sent), group)
        while not wait([job], POLL).done:
            if len(stop) > passed_on and not cancelled:
                passed_on += 1
                cancelled = not send_signal(sent.signal_file, stop[-1])
                if cancelled:
                    with suppress(Exception):  # of a Java that has exited, as the job will show
                        session.context.cancelJobGroup(group)
    try:
        first, *_ = job.result()
    except (UsageError, PreemptedError):
        if stop.search_signals:  # Spark may have received the same signal
            return None
        raise
    except _JobFailedError as failure:
        if cancelled or stop.search_signals:
            return None
        ending = RemoteFailure.read(str(failure))
        return SparkRunResult(
            ending or ExitSummary(1, f"Spark lost it: {failure.reason}", lost=True)
        )
    assert isinstance(first, SparkRunResult)
    return first


def _collect(
    session: _Session, processes: int, work: Callable[[Iterator[int]], Iterator[Any]], group: str
) -> list[Any]:
    """Run `processes` Spark tasks at once; return their results, or raise _JobFailedError.

    Raises UsageError if Spark has too few slots, and PreemptedError if Spark has stopped.
    """
    context = session.context
    try:
        context.setJobGroup(group, group, interruptOnCancel=True)
        tasks = context.parallelize(range(processes), processes).barrier()
        returned: list[Any] = tasks.mapPartitions(work).collect()
        return returned
    except Exception as error:  # Py4J or pyspark raises it, depending on which notices first
        if FEW_SLOTS in str(error):
            raise UsageError(
                f"{processes} processes take a slot each, and Spark at {context.master} has fewer; "
                "write a smaller --np, or start Spark with more executors or cores"
            ) from None
        if CHANGING_SLOTS in str(error):
            raise UsageError(
                "Spark changes the number of its executors, and the processes of a trial need "
                "theirs at once; configure spark.dynamicAllocation.enabled=false"
            ) from None
        if _has_gone(context):
            raise PreemptedError(
                f"Spark at {context.master} has stopped; see {session.log} for the reason, and "
                "rerun the same command to resume"
            ) from None
        raise _JobFailedError(str(error)) from None


def _has_gone(context: Any) -> bool:
    """Return whether Spark has stopped or its Java process no longer answers."""
    try:
        return bool(context._jsc.sc().isStopped())
    except Exception:  # Java does not answer
        return True


def _all_see(session: _Session, processes: int) -> bool:
    """Return whether all Spark executors share the search's folder; UsageError if one fails."""
    try:
        work = partial(_sees, os.getcwd(), session.token)
        return all(_collect(session, processes, work, "sees"))
    except _JobFailedError as failure:
        raise UsageError(
            f"the executors of Spark cannot train ({failure.reason}); install lsgd on each of "
            "their machines, and set PYSPARK_PYTHON to the Python that has it"
        ) from None


def _train(sent: SparkRunSpec, _: Iterator[int]) -> Iterator[SparkRunResult]:
    """Train one process of a run as this Spark task, and yield its result."""
    from pyspark import BarrierTaskContext

    yield train(sent, BarrierTaskContext.get())


def _sees(folder: str, token: Path, _: Iterator[int]) -> Iterator[bool]:
    """Yield whether the machine of this Spark task shares the search's folder."""
    yield shares_folder(folder, token)


def _environment() -> dict[str, str]:
    """Return the environment variables of this process that its runs on Spark inherit."""
    names = {*exported_variables(os.environ), *(os.environ.keys() & {"OMP_NUM_THREADS"})}
    return {name: os.environ[name] for name in sorted(names - {JOB_TAG, SLOT_VARIABLE, LIFE})}


@contextmanager
def _open_spark(master: str | None, slots: int, log: Path) -> Iterator[Any]:
    """Start Spark, locally with `slots` if there is no master, and stop it when the context ends.

    Spark logs to `log`. Raises UsageError if Spark cannot be started or reached.
    """
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway

    # pyspark's warning about recent pandas does not matter here: a search makes no data frames.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_SUBMIT_OPTS", SMALL_JAVA)
    settings = SETTINGS | ({"spark.master": master} if master else {})
    with log.open("a") as output:
        try:
            gateway = launch_gateway(
                SparkConf(loadDefaults=False).setAll([*settings.items()]),
                # Spark must outlive a signal to this process, to pass the stop request on.
                {"stdout": output, "stderr": output, "start_new_session": True},
            )
        except PySparkException:
            raise UsageError(
                f"Java cannot start Spark, which needs Java 17 or newer; see {log} for the reason, "
                "and apt install default-jre-headless installs it"
            ) from None
    conf = SparkConf(_jvm=gateway.jvm)
    if master is None and conf.get("spark.master") == "local[*]":  # spark-submit's own default
        conf.setMaster(f"local[{slots}]")
    master = str(conf.get("spark.master"))
    _check_master(master)
    for key, value in (HERE if master.startswith("local") else {}).items():
        conf.setIfMissing(key, value)
    # A local Spark has all its executors at once; a cluster may still add some.
    patience = 1 if re.match(r"local($|\[)", master) else ARRIVAL
    conf.set("spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures", str(patience))
    try:
        context = SparkContext(conf=conf, gateway=gateway)
    except (Py4JError, PySparkException) as error:
        raise UsageError(
            f"Spark at {master} cannot be used ({_JobFailedError(str(error)).reason}); see {log}, "
            "or leave "
            "out --master for one on this machine"
        ) from None
    try:
        yield context
    finally:
        with suppress(Py4JError):  # Java may have exited already
            context.stop()


def _check_master(master: str) -> None:
    """Raise UsageError if no Spark master answers at this URL within ANSWER seconds.

    Spark itself would retry for a minute.
    """
    places = master.removeprefix("spark://").split(",") if master.startswith("spark://") else []
    why = ""
    for place in places:
        host, _, port = place.rpartition(":")
        try:
            socket.create_connection((host, int(port)), ANSWER).close()
            return
        except (OSError, ValueError) as error:
            why = str(error)
    if places:
        raise UsageError(
            f"no Spark can be reached at {master} ({why}); check that its master runs, or leave "
            "out --master for one on this machine"
        )


def _check_installed() -> None:
    """Raise UsageError if pyspark or Java is missing."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        raise UsageError(f"Spark is not installed; run {install_command('spark')}") from None
    home = os.environ.get("JAVA_HOME")
    if shutil.which(f"{home}/bin/java" if home else "java") is None:
        where = f" at JAVA_HOME={home}" if home else ""
        raise UsageError(
            f"Spark needs Java, which is missing{where}; apt install default-jre-headless"
        )
