"""What a task of Spark does for a trial: one process of it, of which nothing stays.

The tasks of a trial run at once, in a barrier stage. The first opens the log and the logbook as any
attempt does, then tells the others where to meet; each starts its process with torchrun's numbers.
A task may be killed at any moment, and a helper of its own then ends what it has started.
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
from typing import Any, Protocol, overload

from lsgd.errors import Diverged, NotSaved, PeerLost, Preempted, Refused
from lsgd.job.launcher import Launch, environment_of
from lsgd.job.members import TAG, members
from lsgd.supervise.seat import Seat
from lsgd.supervise.singly import free_port
from lsgd.supervise.verdict import Ending, how_it_ended
from lsgd.trials.attempt import attempt
from lsgd.trials.launch import TrialLauncher
from lsgd.trials.trial import Trial

ROWS = ("config.yaml", "metrics.jsonl")
"""The files of a run that a search reads."""
TOGETHER = (
    *(0, Diverged.exit_code, PeerLost.exit_code, NotSaved.exit_code, Preempted.exit_code),
    -signal.SIGTERM,  # from the first, which has ended
)
"""Exit codes of a process whose end the first one tells of."""


class Tasks(Protocol):
    """The tasks of a trial, of which this is one; pyspark's BarrierTaskContext is such."""

    def partitionId(self) -> int:
        """The rank of this one."""

    def allGather(self, message: str) -> list[str]:
        """What all of them say, by rank."""

    def getTaskInfos(self) -> list[Any]:
        """The `address` of each, HOST:PORT, by rank."""

    def resources(self) -> Mapping[str, Any]:
        """The `addresses` of the GPUs that are this one's, under `gpu`."""


@dataclass(frozen=True)
class SentTrial:
    """A trial as it is sent to its tasks."""

    trial: Trial
    launcher: TrialLauncher
    environment: Mapping[str, str]
    """Variables of each process, besides those of its executor."""
    folder: str | None
    """Where the search runs, if the executors see that too; else each trial has a folder that lasts
    as long as its tasks."""
    token: Path
    """The file in it by which they are seen to see it."""
    told: Path
    """The file in it in which the search tells the trial to leave."""


@dataclass(frozen=True)
class Returned:
    """What the first task of a trial has to say; of the others it is empty."""

    ending: Ending | None = None
    error: Refused | OSError | None = None
    """Why it could not be started."""
    files: dict[str, str] = field(default_factory=dict)
    """What the run has written, where the search does not see it."""
    log: str = ""


class Lost(Exception):
    """A process other than the first has ended the trial, which Spark hands on as a text."""

    MARK = "lsgd-ending"

    def __init__(self, ending: Ending) -> None:
        super().__init__(f"{self.MARK} {json.dumps([ending.code, ending.cause, ending.lost])}")

    @classmethod
    def read(cls, text: str) -> Ending | None:
        """The ending in what Spark says of a failure, if there is one."""
        _, mark, rest = text.partition(f"{cls.MARK} ")
        return Ending(*json.JSONDecoder().raw_decode(rest)[0]) if mark else None


class Told(Sequence[int]):
    """The signals by which the search tells the trial to leave, as they come, one a line.

    The file is there from now on, by which the search sees that somebody looks for them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def _numbers(self) -> list[int]:
        with suppress(FileNotFoundError):
            return [int(line) for line in self.path.read_text().splitlines()]
        return []

    def __len__(self) -> int:
        return len(self._numbers())

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        return self._numbers()[index]


def tell(path: Path, number: int) -> bool:
    """Write down a signal for the trial that looks there; returns whether one does."""
    if path.exists():
        with path.open("a") as file:
            file.write(f"{number}\n")
        return True
    return False


def sees(folder: str, token: Path) -> bool:
    """Whether this machine sees the folder in which the search runs."""
    return (folder / token).exists()


def train(sent: SentTrial, tasks: Tasks) -> Returned:
    """Run this task's process of the trial to its end."""
    if sent.folder:
        blind = tasks.allGather("" if sees(sent.folder, sent.token) else platform.node())
        if any(blind):
            return Returned(error=Refused(
                f"{sent.folder} is not seen by the executor on {max(blind)}, though by others; "
                "start the search in a folder that all executors share, or that none has"
            ))  # fmt: skip
    with _place(sent.folder):
        return _other(sent, tasks) if tasks.partitionId() else _first(sent, tasks)


@contextmanager
def _place(folder: str | None) -> Iterator[None]:
    """Work in the folder of the search, or else in one that is removed."""
    if folder:
        with chdir(folder):
            yield
    else:
        with TemporaryDirectory(prefix="lsgd-") as own, chdir(own):
            yield


def _meet(tasks: Tasks, port: int | None) -> Launch | None:
    """The numbers of this task's process, once all tasks are here; the first has chosen the port.

    None if it has none, since the trial is not to be trained.
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


def _environment(sent: SentTrial, tasks: Tasks, launch: Launch) -> dict[str, str]:
    """The variables of this task's process."""
    gpus = tasks.resources().get("gpu")
    shown = {"CUDA_VISIBLE_DEVICES": ",".join(gpus.addresses)} if gpus else {}
    return {**sent.environment, **shown, **environment_of(launch)}


@dataclass(frozen=True)
class _FirstProcess(TrialLauncher):
    """Starts the first process once the others may start too: when it is asked for the command,
    the folder is this trial's, and what an earlier start had left there has gone."""

    environment: Callable[[], dict[str, str]]

    def command(self, trial: Trial) -> list[str]:
        variables = [f"{name}={value}" for name, value in self.environment().items()]
        return ["env", *variables, *super().command(trial)]


def _first(sent: SentTrial, tasks: Tasks) -> Returned:
    """Train the trial as any attempt does, with the first process as its launcher."""
    trial, met = sent.trial, False

    def environment() -> dict[str, str]:
        nonlocal met
        met = True
        launch = _meet(tasks, free_port())
        assert launch, "this is the task that has the port"
        return _environment(sent, tasks, launch)

    launcher = _FirstProcess(sent.launcher.name, sent.launcher.options, environment)
    told: Sequence[int] = Told(sent.told) if sent.folder else []
    ending, error = None, None
    try:
        ending = attempt(launcher, trial, told, lambda what: None)
    except (Refused, OSError) as problem:
        error = problem
    if not met:
        _meet(tasks, None)
    if sent.folder:
        return Returned(ending, error)
    written = {name: trial.folder / name for name in ROWS if (trial.folder / name).exists()}
    log = trial.log.read_text(encoding="utf-8", errors="replace") if trial.log.exists() else ""
    return Returned(
        ending, error, {name: path.read_text("utf-8") for name, path in written.items()}, log
    )


def _other(sent: SentTrial, tasks: Tasks) -> Returned:
    """Run a process beside the first; raises Lost if it has ended the trial."""
    launch = _meet(tasks, None)
    if launch is None:
        return Returned()
    folder = sent.trial.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    seat = Seat(sent.launcher.command(sent.trial), uuid.uuid4().hex)
    with sent.trial.log.open("ab") as output, seat.guarded():
        process = seat.start(
            _environment(sent, tasks, launch) | {TAG: str(folder)}, output=output.fileno()
        )
        assert process, "no signal is sent to the seat"
        code = process.wait()
    if code in TOGETHER:
        return Returned()
    host = platform.node()
    said = [each for each in members(folder) if (each.host, each.pid) == (host, process.pid)]
    raise Lost(how_it_ended(said, seat.command[0], code))
