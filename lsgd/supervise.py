"""A run that goes on by itself: `python -m lsgd.supervise`, a loop around any launch command.

    python -m lsgd.supervise launch/horovodrun.sh bs8k run_dir=runs/a --np 8
    python -m lsgd.supervise -- mpirun -np 8 python -m lsgd.train +recipe=bs8k run_dir=runs/a
    python -m lsgd.supervise --processes 8 launch/torchrun.sh bs8k run_dir=runs/a --np {np}
    python -m lsgd.supervise --hosts a:8,b:8 launch/mpirun.sh bs8k run_dir=runs/a --hosts {hosts} \\
        --np {np}

Nothing in a running job is elastic. When one of its processes dies, the rest is stopped within 15
seconds, and the whole job starts again from its newest checkpoint. The workers of lsgd are virtual,
so fewer processes make the same run: kn, lr, n of BN and the order of examples stay as they are.

Whether fewer are started is said in the command. A number written there is kept, which suits
processes that crash on a sound machine. Where `{np}` stands, it begins as --processes, and each
process that dies takes one away, until the command is given anew. With --hosts it begins as their
sum, and `{hosts}` stands for those that answer, where ssh does, when the job is started: a machine
that is lost is left out, and one that is back takes part.

What an end means is told by the dead processes themselves (`lsgd.job.members`), since launchers
make 1 of most exit codes. The first that died counts, as it drags the others along:

    2 refused, 3 diverged       the same words would do the same: the end
    4 an input failed           started again, as a decoding process may have been killed; a second
                                time without a new checkpoint between: the end
    6 could not be saved        the end: the disk wants looking after
    75 preempted, has saved     started again at once
    130 interrupted             the end
    killed, crashed, 5 a peer lost, the launcher gone
                                started again; 3 times without a new checkpoint: the end

The supervisor itself may be killed: a helper process notices and stops the job on this machine, and
the same command given again goes on. On other machines the launcher has to do that.
"""

import argparse
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import IO, Any

from lsgd.errors import Diverged, InputFailed, NotSaved, PeerLost, Preempted, Refused
from lsgd.job import members
from lsgd.job.members import GRACE, TAG, Member, Watch

NP, HOSTS = "{np}", "{hosts}"
SSH = 22
DEATHS = 3
"""After so many in a row without a new checkpoint the job would die for ever."""
SAVING = 60.0
"""Seconds that a job gets for saving when it is asked to end."""
WAKE = 0.5
"""Seconds between looks at what no event tells: new processes, signals, silence."""
INTERRUPTED = 130
CAUSES = {
    Refused.exit_code: "was refused",
    Diverged.exit_code: "diverged",
    InputFailed.exit_code: "had an input that failed",
    PeerLost.exit_code: "lost a peer",
    NotSaved.exit_code: "could not save",
    Preempted.exit_code: "was preempted and has saved",
    INTERRUPTED: "was interrupted",
}


class Taken(Refused):
    """Another supervisor is at work in the run folder."""


@dataclass(frozen=True)
class Ending:
    """How one start of the job ended."""

    code: int
    """0, the exit code of the process that died first, or 1 if it could not say."""
    cause: str
    """Who and why, in words."""
    lost: bool = False
    """Whether a process was killed or crashed."""


class Log:
    """What happens, as lines on the screen and as rows of the run folder's supervise.log."""

    def __init__(self, file: IO[str], screen: IO[str] | None = None) -> None:
        self.file, self.screen = file, screen

    def say(self, event: str, text: str, **values: Any) -> None:
        """One event."""
        now = datetime.now().astimezone()
        print(f"{now:%H:%M:%S} supervise: {text}", file=self.screen or sys.stderr, flush=True)
        row = {"time": now.isoformat(timespec="milliseconds"), "event": event, **values}
        self.file.write(json.dumps(row | {"text": text}) + "\n")
        self.file.flush()


class Asked:
    """How often the supervisor was asked to end, and by which signal."""

    SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")

    def __init__(self) -> None:
        self.times, self.number = 0, 0
        for number in (signal.Signals[name] for name in self.SIGNALS):
            # nohup ignores one of them.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.times, self.number = self.times + 1, number


def supervise(options: argparse.Namespace) -> int:
    """Start the command until it is done or cannot be helped; return the exit code.

    Raises Refused, having started nothing, if the command names no run folder, or one that holds
    something else or has another supervisor.
    """
    folder = run_folder(options.command)
    with open_log(folder) as log:
        asked = Asked()
        deaths = restarts = lost = 0
        last = None
        while True:
            hosts = answering(options.hosts)
            slots = options.processes or sum(hosts.values())
            size = max(slots - lost, options.min_processes) if slots else None
            command = placed(options.command, size, hosts)
            before = _newest_checkpoint(folder)
            if len(hosts) < len(options.hosts):
                log.say("hosts", f"no answer from {', '.join(options.hosts.keys() - hosts)}")
            log.say("start", f"starts {' '.join(command)}", processes=size, command=command)
            ending = run(command, log, asked, silence=options.silence, grace=options.grace)
            saved = _newest_checkpoint(folder) != before
            step = last_step(folder)
            log.say("end", f"{ending.cause}, after step {step}", step=step, code=ending.code)
            if ending.code == 0:
                return 0
            if asked.times:
                return (
                    Preempted.exit_code
                    if ending.code == Preempted.exit_code
                    else 128 + asked.number
                )
            deaths = 0 if saved or ending.code == Preempted.exit_code else deaths + 1
            again = ending.code == last and not saved
            reason = _hopeless(ending, deaths, again=again)
            if not reason and restarts == options.restarts:
                reason = f"--restarts {restarts} are used up"
            if reason:
                log.say("given up", f"not started again: {reason}")
                return ending.code
            restarts += 1
            last = ending.code
            if ending.lost and size and size > options.min_processes:
                lost += 1


def placed(command: Sequence[str], size: int | None, hosts: Mapping[str, int]) -> list[str]:
    """The command with its places filled.

    >>> placed(["mpirun", "-H", "{hosts}", "-np", "{np}"], 12, {"a": 8, "b": 4})
    ['mpirun', '-H', 'a:8,b:4', '-np', '12']
    """
    names = ",".join(f"{host}:{slots}" for host, slots in hosts.items())
    return [word.replace(NP, str(size)).replace(HOSTS, names) for word in command]


def answering(hosts: Mapping[str, int]) -> dict[str, int]:
    """Those of the hosts that answer on the port of ssh, by which launchers reach them.

    Raises Refused if there are some and none does.
    """
    found = {}
    for host, slots in hosts.items():
        with suppress(OSError), socket.create_connection((host, SSH), timeout=GRACE):
            found[host] = slots
    if hosts and not found:
        raise Refused(f"none of --hosts answers on port {SSH}; start sshd there, or write others")
    return found


def _hopeless(ending: Ending, deaths: int, *, again: bool) -> str:
    """Why another start would end as this one did, if that is known."""
    if ending.code in (Refused.exit_code, Diverged.exit_code):
        return "the same words would do the same"
    if ending.code == INTERRUPTED:
        return "somebody has ended it"
    if ending.code == NotSaved.exit_code:
        return "what is written would be lost again; look after the disk, then give the same words"
    if ending.code == InputFailed.exit_code and again:
        return "an input failed twice at the same place"
    if deaths == DEATHS:
        return (
            f"{DEATHS} deaths in a row without a new checkpoint between them; what its processes "
            "said stands above; if they came too early, save more often with checkpoint_steps=N"
        )
    return ""


def run(
    command: Sequence[str],
    log: Log,
    asked: Asked,
    *,
    silence: float | None = None,
    grace: float = SAVING,
    output: IO[str] | None = None,
) -> Ending:
    """Start the command once, wait for its end, and leave nothing of it on this machine.

    What it prints goes to `output`, by default where the prints of this process go.
    """
    folder = run_folder(command)
    members.clear(folder)
    memory_kills = _memory_kills()
    with guarded(folder, log):
        try:
            launcher = subprocess.Popen(
                command,
                env=os.environ | {TAG: str(folder)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Ctrl-C reaches the supervisor alone, which passes it on in its own way.
                start_new_session=True,
            )
        except OSError as error:
            raise Refused(f"{command[0]} cannot be started ({error.strerror})") from None
        with Watch(folder, launcher.pid) as watch:
            began, stop_at, heard, silent = time.time(), float("inf"), 0, False
            while launcher.poll() is None and time.monotonic() < stop_at:
                watch.wait(WAKE)
                if any(member.code not in (0, Preempted.exit_code) for member in watch.dead):
                    # The launcher may end the others by itself.
                    stop_at = min(stop_at, time.monotonic() + GRACE)
                if heard < asked.times:
                    heard += 1
                    log.say("asked", f"{signal.Signals(asked.number).name}: the job is to end")
                    watch.wait(0)
                    _ask_to_leave(watch, launcher.pid)
                    stop_at = min(stop_at, time.monotonic() + (grace if heard == 1 else 0))
                if silence and time.time() - max(began, _last_written(folder)) > silence:
                    silent, stop_at = True, 0
            watch.wait(0)
            code = launcher.poll()
        members.stop(folder)
        launcher.wait()
    if silent:
        return Ending(1, f"nothing was written for {silence:g} s")
    # Deaths on other machines are not seen; their last words stand behind.
    others = [each for each in members.members(folder) if each.code and each not in watch.dead]
    ending = how_it_ended([*watch.dead, *others], command[0], code)
    if ending.lost and _memory_kills() > memory_kills:
        cause = f"{ending.cause}; the kernel has killed a process for want of memory meanwhile"
        return Ending(ending.code, cause, lost=True)
    return ending


def how_it_ended(dead: Sequence[Member], launcher: str, launcher_code: int | None) -> Ending:
    """The ending that the dead tell of, first death first.

    `launcher_code` as subprocess has it, None if the launcher had not ended by itself.
    """
    if launcher_code == 0:
        return Ending(0, "done")
    for first in (each for each in dead if each.code != 0):
        who = f"process {first.rank} on {first.host} (pid {first.pid})"
        if first.code in CAUSES:
            return Ending(first.code, f"{who} {CAUSES[first.code]}: {first.why}")
        return Ending(1, f"{who} {_crash(first, launcher_code)}", lost=True)
    if launcher_code == Refused.exit_code:
        return Ending(launcher_code, f"{launcher} was refused")
    if launcher_code is None or launcher_code < 0:
        return Ending(1, f"{launcher} was killed by signal {-(launcher_code or -9)}")
    return Ending(1, f"{launcher} ended with exit code {launcher_code}, and no process said why")


def _crash(member: Member, launcher_code: int | None) -> str:
    if member.why:
        return f"crashed: {member.why}"
    # Open MPI passes a signal on as 128 + its number; torchrun and horovodrun do not.
    if launcher_code and launcher_code > 128:
        return f"was killed by signal {launcher_code - 128}"
    return "was killed, most likely by signal 9, as it left no words"


def _ask_to_leave(watch: Watch, launcher: int) -> None:
    """Ask the processes themselves, as launchers give them too little time to save."""
    for member in watch.alive.values():
        with suppress(ProcessLookupError):
            os.kill(member.pid, signal.SIGTERM)
    if not watch.alive:
        with suppress(ProcessLookupError):
            os.killpg(launcher, signal.SIGTERM)


@contextmanager
def guarded(folder: Path, log: Log) -> Iterator[None]:
    """Have a helper process that stops the folder's job as soon as this process is gone."""
    helper = subprocess.Popen(
        [sys.executable, "-m", "lsgd.job.members", str(folder)],
        stdin=subprocess.PIPE,
        # It keeps the lock until the job is stopped.
        pass_fds=[log.file.fileno()],
        start_new_session=True,
    )
    try:
        yield
    finally:
        helper.communicate()


def run_folder(command: Sequence[str]) -> Path:
    """The folder that the command's `run_dir=` names; raises Refused without one."""
    named = [word.partition("=")[2].strip("'\"") for word in command if word.startswith("run_dir=")]
    if not named:
        raise Refused(
            "the command names no run folder, so each start would begin another run; add for "
            "example run_dir=runs/a"
        )
    return Path(named[-1]).absolute()


@contextmanager
def open_log(
    folder: Path, *, screen: IO[str] | None = None, patience: float = 2 * GRACE
) -> Iterator[Log]:
    """The log in the run folder, for this supervisor alone; what another has left is stopped.

    Raises Taken if another is at work there for so many seconds, and Refused if the folder holds
    files of something else.
    """
    try:
        there = {each.name for each in folder.iterdir()} if folder.exists() else set()
        if there and not there & {"config.yaml", "checkpoint.pt", "supervise.log", "logs"}:
            raise Refused(
                f"run_dir={folder} holds files of something else; write a new or empty folder"
            )
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "supervise.log").open("a", encoding="utf-8")
    except OSError as error:
        raise Refused(
            f"run_dir={folder} cannot be written ({error.strerror}); write run_dir=PATH where you "
            "may"
        ) from None
    with file:
        # A supervisor that was killed leaves a helper, which needs a while.
        deadline = time.monotonic() + patience
        while not _locked(file):
            if time.monotonic() > deadline:
                raise Taken(
                    f"run_dir={folder} has a supervisor already; wait for it, or end it with "
                    "kill PID"
                )
            time.sleep(WAKE)
        log = Log(file, screen)
        if left := members.stop(folder):
            log.say("stopped", f"stopped {len(left)} processes of an earlier start", pids=left)
        yield log


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def last_step(folder: Path) -> int:
    """The last step that the run's metrics tell of; 0 without any."""
    step = 0
    with suppress(FileNotFoundError):
        for line in (folder / "metrics.jsonl").read_bytes().splitlines():
            # The last line may be cut short.
            with suppress(ValueError, KeyError):
                step = json.loads(line)["step"]
    return step


def _newest_checkpoint(folder: Path) -> tuple[int, int] | None:
    """What tells one checkpoint from the next."""
    try:
        status = (folder / "checkpoint.pt").stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def _last_written(folder: Path) -> float:
    """When the run last wrote metrics or a checkpoint, in seconds since 1970."""
    times = [0.0]
    for name in ("metrics.jsonl", "checkpoint.pt"):
        with suppress(FileNotFoundError):
            times.append((folder / name).stat().st_mtime)
    return max(times)


def _memory_kills() -> int:
    """How many processes the kernel has killed for want of memory since this machine started."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _hosts(text: str) -> dict[str, int]:
    """Of `a:8,b:4`; raises ValueError, which argparse words, for anything else."""
    pairs = [each.partition(":") for each in text.split(",")]
    return {host: int(slots) for host, _, slots in pairs}


def check(options: argparse.Namespace) -> None:
    """Raise Refused if the options and the places in the command do not fit together."""
    words = " ".join(options.command)
    if options.processes and options.hosts:
        raise Refused("--hosts says how many processes there are; leave out --processes")
    if (NP in words) != bool(options.processes or options.hosts):
        raise Refused(
            f"{NP} in the command and --processes N belong together; for example "
            f"--processes 4 launch/torchrun.sh digits run_dir=runs/a --np {NP}"
        )
    if (HOSTS in words) != bool(options.hosts):
        raise Refused(
            f"{HOSTS} in the command and --hosts HOST:N,... belong together; for example "
            f"--hosts a:8,b:8 launch/mpirun.sh bs8k run_dir=runs/a --hosts {HOSTS} --np {NP}"
        )


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    about, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m lsgd.supervise",
        usage="python -m lsgd.supervise [options] [--] COMMAND ... run_dir=FOLDER ...",
        description=about,
        epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="how many processes {np} in the command stands for at first",
    )
    parser.add_argument(
        "--hosts",
        type=_hosts,
        metavar="HOST:N,...",
        default={},
        help="what {hosts} stands for, and how many processes each has",
    )
    parser.add_argument(
        "--min-processes", type=int, metavar="N", default=1, help="never fewer (default 1)"
    )
    parser.add_argument(
        "--restarts", type=int, metavar="N", help="at most so many (default: no limit)"
    )
    parser.add_argument(
        "--silence",
        type=float,
        metavar="SECONDS",
        help="restart too if neither metrics nor a checkpoint were written for so long: choose "
        "more than a start, an evaluation and log_steps take (default: comm.timeout alone ends a "
        "job that hangs)",
    )
    parser.add_argument(
        "--grace",
        type=float,
        metavar="SECONDS",
        default=SAVING,
        help="what the job gets for saving when the supervisor is asked to end (default "
        f"{SAVING:g})",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    options.command = options.command[options.command[:1] == ["--"] :]
    try:
        check(options)
        return supervise(options)
    except Refused as error:
        print(f"lsgd: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
