"""Apache Spark, whose executors train the trials of a search: each process is a task of its own.

Only this file knows it. There is one session for each search; what Spark says by itself goes to
spark.log in the folder of the search. Where the executors see the folder in which the search runs,
a trial is told to leave by a file, saves, and can go on anywhere. Where they do not, the rows of a
trial come back with its task, and its checkpoints stay behind.
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
from lsgd.errors import Refused
from lsgd.installation import install
from lsgd.job.launcher import LIFE
from lsgd.job.members import TAG
from lsgd.launch.commands import carried
from lsgd.search.stop import Stop
from lsgd.search.task import Lost, Returned, SentTrial, sees, tell, train
from lsgd.supervise.logbook import open_logbook
from lsgd.supervise.seat import SEAT
from lsgd.supervise.verdict import Ending
from lsgd.trials.launch import TrialLauncher
from lsgd.trials.trial import Trial, ended

POLL = 0.25
"""Seconds between looks for what a trial is to be told."""
ANSWER = 10.0
"""Seconds that a master has to answer."""
ARRIVAL = 120
"""Seconds in which there have to be executors for all processes of a trial."""
SETTINGS = {
    "spark.app.name": "lsgd.search",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    # The search itself starts a trial once more, and no more often.
    "spark.task.maxFailures": "1",
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
}
SMALL_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Java starts with half the work where it is not prepared for much."""
HERE = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.defaultJavaOptions": SMALL_JAVA,
}
"""Settings of a Spark on this machine alone."""
FEW_SLOTS, CHANGING_SLOTS = "SPARK-24819", "SPARK-24942"
"""What Spark says where it has too few slots for a barrier stage, and where it does not know."""


@dataclass(frozen=True)
class _Session:
    """Spark, as a search uses it."""

    context: Any
    """pyspark's SparkContext."""
    log: Path
    token: Path
    """A file in the folder of the search, by which executors are seen to see that."""
    folder: str | None = None
    """The folder of the search, if they do."""


class _Failed(Exception):
    """A job of Spark has failed; the message is what Spark says, stack and all."""

    @property
    def reason(self) -> str:
        """The last line that no stack has, which is what went wrong in the task, if one did."""
        lines = [line.strip() for line in str(self).splitlines()]
        said = [
            line for line in lines if line and not re.match(r"at |Driver stacktrace|\.\.\. ", line)
        ]
        return said[-1][:300] if said else "Spark does not say why"


class OnSpark:
    """On the executors of Spark."""

    def __init__(self, launcher: TrialLauncher) -> None:
        """Raises Refused without Spark or Java."""
        _check_installed()
        self.launcher = launcher
        self._opened: _Session | None = None

    @contextmanager
    def open(self, folder: Path, jobs: int, *, prunes: bool) -> Iterator[None]:
        """As Place has it."""
        began = time.monotonic()
        processes, _ = self.launcher.fitted(sys.maxsize)
        log, token = folder / "spark.log", Path(f"runs/spark-{uuid.uuid4().hex}")
        with _started(self.launcher.options.get("--master"), jobs * processes, log) as context:
            token.touch()
            try:
                session = _Session(context, log, token)
                if _all_see(session, processes):
                    session = replace(session, folder=os.getcwd())
                elif prunes:
                    raise Refused(
                        f"the executors of Spark do not see {os.getcwd()}, so that no trial can be "
                        "watched and pruned; start in a folder that they share, or write prune=null"
                    )
                print(f"Spark is ready after {time.monotonic() - began:.0f} s", flush=True)
                self._opened = session
                yield
            finally:
                self._opened = None
                token.unlink()

    def train(self, trial: Trial, stop: Stop, say: Callable[[str], None]) -> Ending | None:
        """As Place has it."""
        session = self._opened
        assert session, "a place is opened before it trains"
        processes, _ = self.launcher.fitted(trial.recipe.most_processes)
        told = Path(f"{trial.folder}.leave-{uuid.uuid4().hex}")
        sent = SentTrial(trial, self.launcher, _environment(), session.folder, session.token, told)
        say(f"goes to Spark, processes: {processes}")
        told.parent.mkdir(parents=True, exist_ok=True)
        try:
            if session.folder:
                return _ending(_outcome(session, sent, processes, stop))
            return _train_apart(session, sent, processes, stop)
        finally:
            told.unlink(missing_ok=True)


def _train_apart(session: _Session, sent: SentTrial, processes: int, stop: Stop) -> Ending | None:
    """Train the trial on executors that do not see its folder, which is kept here meanwhile."""
    trial = sent.trial
    with (
        trial.log.open("a", encoding="utf-8") as output,
        open_logbook(trial.folder, screen=output, patience=0) as logbook,
    ):
        if ended(trial.run):
            return None
        logbook.say("start", f"on Spark, processes: {processes}")
        outcome = _outcome(session, sent, processes, stop)
        if outcome:
            output.write(outcome.log)
            for name, content in outcome.files.items():
                with files.whole(trial.folder / name) as file:
                    file.write(content.encode())
        ending = _ending(outcome)
        if ending:
            logbook.say("end", ending.cause, code=ending.code)
        return ending


def _ending(outcome: Returned | None) -> Ending | None:
    """How a trial has ended; raises what has kept it from being started."""
    if outcome and outcome.error:
        raise outcome.error
    return outcome.ending if outcome else None


def _outcome(session: _Session, sent: SentTrial, processes: int, stop: Stop) -> Returned | None:
    """What has become of the trial; None if it was cancelled, as it is to leave and cannot be told.

    Raises Refused where no other trial could be trained either.
    """
    group, passed_on, cancelled = f"{sent.trial} {uuid.uuid4().hex}", 0, False
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(_collect, session, processes, partial(_train, sent), group)
        while not wait([job], POLL).done:
            if len(stop) > passed_on and not cancelled:
                passed_on += 1
                cancelled = not tell(sent.told, stop[-1])
                if cancelled:
                    session.context.cancelJobGroup(group)
    try:
        first, *_ = job.result()
    except Refused:
        if stop.leaving:  # Spark may have been told the same
            return None
        raise
    except _Failed as failure:
        if cancelled or stop.leaving:
            return None
        ending = Lost.read(str(failure))
        return Returned(ending or Ending(1, f"Spark has lost it: {failure.reason}", lost=True))
    assert isinstance(first, Returned)
    return first


def _collect(
    session: _Session, processes: int, work: Callable[[Iterator[int]], Iterator[Any]], group: str
) -> list[Any]:
    """What so many tasks return that run at once; raises _Failed if one of them does not.

    Raises Refused where Spark has no place for so many, and where it has gone.
    """
    context = session.context
    context.setJobGroup(group, group, interruptOnCancel=True)
    try:
        tasks = context.parallelize(range(processes), processes).barrier()
        returned: list[Any] = tasks.mapPartitions(work).collect()
        return returned
    except Exception as error:  # of Py4J or of pyspark, according to where it was first seen
        if FEW_SLOTS in str(error):
            raise Refused(
                f"{processes} processes take a slot each, and Spark at {context.master} has fewer; "
                "write a smaller --np, or start Spark with more executors or cores"
            ) from None
        if CHANGING_SLOTS in str(error):
            raise Refused(
                "Spark changes the number of its executors, and the processes of a trial need "
                "theirs at once; configure spark.dynamicAllocation.enabled=false"
            ) from None
        if _has_gone(context):
            raise Refused(
                f"Spark at {context.master} has gone; see {session.log}, and give the same command "
                "again"
            ) from None
        raise _Failed(str(error)) from None


def _has_gone(context: Any) -> bool:
    try:
        return bool(context._jsc.sc().isStopped())
    except Exception:  # its Java does not answer
        return True


def _all_see(session: _Session, processes: int) -> bool:
    """Whether the executors see the folder of the search; raises Refused where they do not work."""
    try:
        work = partial(_sees, os.getcwd(), session.token)
        return all(_collect(session, processes, work, "sees"))
    except _Failed as failure:
        raise Refused(
            f"the executors of Spark cannot train ({failure.reason}); install lsgd on each of "
            "their machines, and set PYSPARK_PYTHON to the Python that has it"
        ) from None


def _train(sent: SentTrial, _: Iterator[int]) -> Iterator[Returned]:
    """What a task does for a trial."""
    from pyspark import BarrierTaskContext

    yield train(sent, BarrierTaskContext.get())


def _sees(folder: str, token: Path, _: Iterator[int]) -> Iterator[bool]:
    """What a task does before the first trial."""
    yield sees(folder, token)


def _environment() -> dict[str, str]:
    """The variables of this process that its trials are to have."""
    names = {*carried(os.environ), *(os.environ.keys() & {"OMP_NUM_THREADS"})}
    return {name: os.environ[name] for name in sorted(names - {TAG, SEAT, LIFE})}


@contextmanager
def _started(master: str | None, slots: int, log: Path) -> Iterator[Any]:
    """A Spark that says to `log` what it says; with so many slots if nobody says where it runs.

    Raises Refused if it cannot be started or reached.
    """
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway

    # What pyspark says of a young pandas is no word to a search, which makes no data frames.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_SUBMIT_OPTS", SMALL_JAVA)
    settings = SETTINGS | ({"spark.master": master} if master else {})
    with log.open("a") as output:
        try:
            gateway = launch_gateway(
                SparkConf(loadDefaults=False).setAll([*settings.items()]),
                # What ends this process is to reach its trials, by way of Spark.
                {"stdout": output, "stderr": output, "start_new_session": True},
            )
        except PySparkException:
            raise Refused(
                f"Java cannot start Spark, which needs Java 17; {log} says why, and apt install "
                "openjdk-17-jre-headless installs it"
            ) from None
    conf = SparkConf(_jvm=gateway.jvm)
    if master is None and conf.get("spark.master") == "local[*]":  # spark-submit's own default
        conf.setMaster(f"local[{slots}]")
    master = str(conf.get("spark.master"))
    _check_master(master)
    for key, value in (HERE if master.startswith("local") else {}).items():
        conf.setIfMissing(key, value)
    # Those of this process are all there is; others may still come.
    patience = 1 if re.match(r"local($|\[)", master) else ARRIVAL
    conf.set("spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures", str(patience))
    try:
        context = SparkContext(conf=conf, gateway=gateway)
    except (Py4JError, PySparkException) as error:
        raise Refused(
            f"Spark at {master} cannot be used ({_Failed(str(error)).reason}); see {log}, or leave "
            "out --master for one on this machine"
        ) from None
    try:
        yield context
    finally:
        with suppress(Py4JError):  # where Java has gone before
            context.stop()


def _check_master(master: str) -> None:
    """Raise Refused if nobody answers there; Spark itself would ask for a minute."""
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
        raise Refused(
            f"no Spark can be reached at {master} ({why}); see that its master runs, or leave out "
            "--master for one on this machine"
        )


def _check_installed() -> None:
    """Raise Refused without pyspark or Java."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        raise Refused(f"Spark is not installed; type {install('spark')}") from None
    home = os.environ.get("JAVA_HOME")
    if shutil.which(f"{home}/bin/java" if home else "java") is None:
        where = f" at JAVA_HOME={home}" if home else ""
        raise Refused(
            f"Spark needs Java, and there is none{where}; apt install openjdk-17-jre-headless"
        )
