"""The work of one Spark task: it runs one process of a run on an executor.

The tasks of a run execute at once, in a barrier stage. The first opens the log and the logbook as a
local attempt does, then sends the others the rendezvous port; each starts its process with
torchrun's variables. A task may be killed at any moment; a helper process then ends what it
started. Nothing stays on the executor.
"""

import json
import platform
import signal
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from lsgd.errors import (
    DivergedError,
    ExitError,
    NotSavedError,
    PeerLostError,
    PreemptedError,
    UsageError,
)
from lsgd.job.launcher import Launch, environment_of
from lsgd.job.members import JOB_TAG, process_records
from lsgd.planned import PlannedRun, RunLauncher, attempt_run
from lsgd.supervise.process_slot import ProcessSlot
from lsgd.supervise.singly import free_port
from lsgd.supervise.verdict import ExitSummary, summarize_exit

ROWS = ("config.yaml", "metrics.jsonl")
"""The files of a run that a search reads."""
TOGETHER = (
    *(
        0,
        DivergedError.exit_code,
        PeerLostError.exit_code,
        NotSavedError.exit_code,
        PreemptedError.exit_code,
    ),
    -signal.SIGTERM,  # sent by the first process when it ends
)
"""Exit codes of another process that need no report, as the first process reports the cause."""


class Tasks(Protocol):
    """The interface of one Spark task in a barrier stage, as in pyspark's BarrierTaskContext."""

    def partitionId(self) -> int:
        """Return the rank of this Spark task."""

    def allGather(self, message: str) -> list[str]:
        """Send a message to all Spark tasks of the stage; return the messages of all, by rank."""

    def getTaskInfos(self) -> list[Any]:
        """Return an object for each Spark task, by rank, with its `address` HOST:PORT."""

    def resources(self) -> Mapping[str, Any]:
        """Return this Spark task's resources by name; `gpu` has the `addresses` of its GPUs."""


@dataclass(frozen=True)
class SparkRunSpec:
    """The description of a run that the search sends to its Spark tasks."""

    planned_run: PlannedRun
    launcher: RunLauncher
    environment: Mapping[str, str]
    """The variables of each process, besides those of its executor."""
    folder: str | None
    """The folder in which the search runs, if the executors share it.

    Otherwise each run has a temporary folder that is removed with its tasks.
    """
    token: Path
    """The file in that folder by which a task checks that it shares the folder."""
    signal_file: Path
    """The file in that folder to which the search appends the signals for this run."""


@dataclass(frozen=True)
class SparkRunResult:
    """The result that a run's first Spark task returns; the other tasks return an empty one."""

    ending: ExitSummary | None = None
    error: ExitError | OSError | None = None
    """The error that kept the run from being started or its log from being written."""
    files: dict[str, str] = field(default_factory=dict)
    """The text of the run's files by name, if the search does not share their folder."""
    log: str = ""


class RemoteFailure(Exception):
    """The failure of a run by a process other than the first, as text that Spark forwards."""

    MARK = "lsgd-ending"

    def __init__(self, ending: ExitSummary) -> None:
        super().__init__(f"{self.MARK} {json.dumps([ending.code, ending.cause, ending.lost])}")

    @classmethod
    def read(cls, text: str) -> ExitSummary | None:
        """Parse how a run ended from Spark's failure text; return None if it does not tell."""
        _, mark, rest = text.partition(f"{cls.MARK} ")
        return ExitSummary(*json.JSONDecoder().raw_decode(rest)[0]) if mark else None


class StopSignals(Sequence[int]):
    """The stop signals that a search has appended to a run's signal file, one number a line.

    The file exists as long as the run does, which shows the search that the run reads it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def _numbers(self) -> list[int]:
        """Read the numbers in a run's signal file; return an empty list if the file is gone."""
        with suppress(FileNotFoundError):
            return [int(line) for line in self.path.read_text().splitlines()]
        return []

    def __len__(self) -> int:
        return len(self._numbers())

    def __getitem__(self, index: Any) -> Any:
        return self._numbers()[index]


def send_signal(path: Path, number: int) -> bool:
    """Append a stop signal to a run's signal file if it exists; return whether it does."""
    if path.exists():
        with path.open("a") as file:
            file.write(f"{number}\n")
        return True
    return False


def shares_folder(folder: str, token: Path) -> bool:
    """Return whether this machine shares the folder of the search, by a token file in it."""
    return (folder / token).exists()


def train(sent: SparkRunSpec, tasks: Tasks) -> SparkRunResult:
    """Run one process of a run, as this Spark task, to its end, and return the run's result."""
    if sent.folder:
        blind = tasks.allGather("" if shares_folder(sent.folder, sent.token) else platform.node())
        if any(blind):
            return SparkRunResult(error=UsageError(
                f"{sent.folder} is not visible to the executor on {max(blind)}, but is to "
                "others; start the search in a folder that all executors share, or that none has"
            ))  # fmt: skip
    with _place(sent.folder):
        return _other(sent, tasks) if tasks.partitionId() else _first(sent, tasks)


@contextmanager
def _place(folder: str | None) -> Iterator[None]:
    """Change into the search's folder within this context, or into a temporary one for None."""
    if folder:
        with chdir(folder):
            yield
    else:
        with TemporaryDirectory(prefix="lsgd-") as own, chdir(own):
            yield


def _rendezvous(tasks: Tasks, port: int | None) -> Launch | None:
    """Wait for all Spark tasks of a run; return this process's rank and rendezvous address.

    The first task passes the rendezvous port. Returns None if the run is not to be trained.
    """
    chosen, *_ = tasks.allGather("" if port is None else str(port))
    if not chosen:
        return None
    machines = [task.address.rpartition(":")[0] for task in tasks.getTaskInfos()]
    rank = tasks.partitionId()
    neighbours = [other for other, machine in enumerate(machines) if machine == machines[rank]]
    return Launch(
        "torchrun",
        rank,
        len(machines),
        neighbours.index(rank),
        len(neighbours),
        machines[0],
        int(chosen),
    )


def _environment(sent: SparkRunSpec, tasks: Tasks, launch: Launch) -> dict[str, str]:
    """Return the environment variables for the training process of this Spark task."""
    gpus = tasks.resources().get("gpu")
    shown = {"CUDA_VISIBLE_DEVICES": ",".join(gpus.addresses)} if gpus else {}
    return {**sent.environment, **shown, **environment_of(launch)}


@dataclass(frozen=True)
class _FirstProcess(RunLauncher):
    """A launcher that starts a run's rank 0 once all Spark tasks of the run are ready.

    When its command is asked for, this process has locked the run's folder and removed what an
    earlier start left there.
    """

    environment: Callable[[], dict[str, str]]

    def command(self, trial: PlannedRun) -> list[str]:
        variables = [f"{name}={value}" for name, value in self.environment().items()]
        return ["env", *variables, *super().command(trial)]


def _first(sent: SparkRunSpec, tasks: Tasks) -> SparkRunResult:
    """Train the run as on one machine, with rank 0 in this Spark task, and return its result."""
    trial, met = sent.planned_run, False

    def environment() -> dict[str, str]:
        nonlocal met
        met = True
        launch = _rendezvous(tasks, free_port())
        assert launch, "this is the task that has the port"
        return _environment(sent, tasks, launch)

    launcher = _FirstProcess(sent.launcher.name, sent.launcher.options, environment)
    told: Sequence[int] = StopSignals(sent.signal_file) if sent.folder else []
    ending: ExitSummary | None = None
    error: ExitError | OSError | None = None
    try:
        ending = attempt_run(launcher, trial, told, lambda what: None)
    except (UsageError, NotSavedError, OSError) as problem:
        error = problem
    if not met:
        _rendezvous(tasks, None)
    if sent.folder:
        return SparkRunResult(ending, error)
    written = {name: trial.folder / name for name in ROWS if (trial.folder / name).exists()}
    log = (
        trial.log_path.read_text(encoding="utf-8", errors="replace")
        if trial.log_path.exists()
        else ""
    )
    return SparkRunResult(
        ending, error, {name: path.read_text("utf-8") for name, path in written.items()}, log
    )


def _other(sent: SparkRunSpec, tasks: Tasks) -> SparkRunResult:
    """Run a process of rank 1 or above; raise RemoteFailure if that process ended the run."""
    launch = _rendezvous(tasks, None)
    if launch is None:
        return SparkRunResult()
    folder = sent.planned_run.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    seat = ProcessSlot(sent.launcher.command(sent.planned_run), uuid.uuid4().hex)
    with sent.planned_run.log_path.open("ab") as output, seat.guarded():
        process = seat.start(
            _environment(sent, tasks, launch) | {JOB_TAG: str(folder)}, output=output.fileno()
        )
        assert process, "no signal is sent to the seat"
        code = process.wait()
    if code in TOGETHER:
        return SparkRunResult()
    host = platform.node()
    said = [
        each for each in process_records(folder) if (each.host, each.pid) == (host, process.pid)
    ]
    raise RemoteFailure(summarize_exit(said, seat.command[0], code))
