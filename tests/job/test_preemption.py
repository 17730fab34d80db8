import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.threaded import run_on_threads

from lsgd.comm import Comm
from lsgd.errors import PreemptedError, TrainingInterrupted
from lsgd.job import preemption
from lsgd.job.preemption import SIGNALS, LockstepRounds


@pytest.fixture(autouse=True)
def not_under_nohup() -> Iterator[None]:
    """The tests themselves may run under it, and SIGHUP is ignored there."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_leaves_a_note_and_a_second_one_changes_nothing(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preemption, "own_command", lambda: "train")
    before = signal.getsignal(number)
    with preemption.defer_stop_signals(Path("runs/a")):
        assert signal.getsignal(number) != before
    assert signal.getsignal(number) == before, "it was not told"
    try:
        with preemption.defer_stop_signals(Path("runs/a")):
            assert not preemption.stop_requested()
            os.kill(os.getpid(), number)
            assert preemption.stop_requested()
            os.kill(os.getpid(), number)
        # On the way out a third one would be noted too, and not end it with another code.
        assert signal.getsignal(number) != before
    finally:
        for each in SIGNALS:
            signal.signal(each, before)


def test_who_leaves_because_of_another_process_stays_deaf_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preemption, "own_command", lambda: "train")
    before = [signal.getsignal(number) for number in SIGNALS]

    def leave() -> None:
        with preemption.defer_stop_signals(Path("runs/a")):
            raise PreemptedError

    try:
        with pytest.raises(PreemptedError):
            leave()
        assert preemption.stop_requested()
        assert all(signal.getsignal(number) not in before for number in SIGNALS)
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)


@pytest.mark.parametrize("raised", [PreemptedError, TrainingInterrupted])
def test_another_program_has_its_own_handlers_again(raised: type[BaseException]) -> None:
    """As a notebook that goes on after lsgd.api.train was told to leave."""
    before = [signal.getsignal(number) for number in (*SIGNALS, signal.SIGINT)]
    with pytest.raises(raised), preemption.defer_stop_signals(Path("runs/a")):
        raise raised
    assert [signal.getsignal(number) for number in (*SIGNALS, signal.SIGINT)] == before


def test_under_nohup_a_closed_terminal_stops_nothing() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with preemption.defer_stop_signals(Path("runs/a")):
        os.kill(os.getpid(), signal.SIGHUP)
        assert not preemption.stop_requested()


def test_outside_the_main_thread_it_hears_nothing() -> None:
    """As in a sweep that trains in threads: Python would raise ValueError."""
    heard = []

    def run() -> None:
        with preemption.defer_stop_signals(Path("runs/a")):
            heard.append(preemption.stop_requested())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(timeout=900)
    assert heard == [False]


@contextmanager
def as_python_starts() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, within and afterwards."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_is_a_note_and_the_run_is_saved(tmp_path: Path) -> None:
    """The program that trains gets KeyboardInterrupt in the end, with the folder of the run."""

    def train() -> None:
        with preemption.defer_stop_signals(tmp_path):
            os.kill(os.getpid(), signal.SIGINT)
            assert preemption.stop_requested()
            raise preemption.stop_exception(7, tmp_path)

    with as_python_starts():
        with pytest.raises(TrainingInterrupted, match=f"saved after step 7 in {tmp_path}; rerun"):
            train()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with preemption.defer_stop_signals(tmp_path):
        assert not preemption.stop_requested()
        assert isinstance(preemption.stop_exception(7, tmp_path), PreemptedError)


def test_a_second_ctrl_c_waits_for_nothing(tmp_path: Path) -> None:
    def train() -> None:
        with preemption.defer_stop_signals(tmp_path):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with as_python_starts(), pytest.raises(KeyboardInterrupt) as raised:
        train()
    assert not isinstance(raised.value, TrainingInterrupted)


def test_ctrl_c_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step may take minutes."""
    monkeypatch.setattr(preemption, "HURRY", 0.05)

    def train() -> None:
        with preemption.defer_stop_signals(tmp_path):
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(6000):
                time.sleep(0.01)

    with as_python_starts(), pytest.raises(KeyboardInterrupt) as raised:
        train()
    assert not isinstance(raised.value, TrainingInterrupted)


def test_ctrl_c_in_the_last_step_is_not_swallowed(tmp_path: Path) -> None:
    """A loop of many runs would go on to the next one."""

    def train() -> None:
        with preemption.defer_stop_signals(tmp_path):
            os.kill(os.getpid(), signal.SIGINT)

    with as_python_starts(), pytest.raises(TrainingInterrupted, match="is complete"):
        train()


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None])
def test_a_program_keeps_its_own_ctrl_c(tmp_path: Path, handler: Any) -> None:
    """Also a job of the background, which a shell lets ignore it."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        with preemption.defer_stop_signals(tmp_path):
            assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


# The second backend starts Inductor's workers, as Inductor itself does for a GPU only.
COMPILES = """
import os, signal, sys
import psutil, torch
from torch._inductor.async_compile import AsyncCompile
from lsgd import config
from lsgd.comm.single import SingleComm
from lsgd.learner import Learner

def as_for_a_gpu(graph, inputs):
    AsyncCompile.wakeup()
    return graph.forward

Learner(config.load_recipe(["+recipe=digits"]), SingleComm(), torch.device("cpu"))
torch.compile(lambda x: x.sin() + 1)(torch.ones(64))
torch.compile(lambda x: x + 1, backend=as_for_a_gpu)(torch.ones(64))
AsyncCompile.wait_pool_ready()
workers = psutil.Process().children(recursive=True)
for worker in workers:
    for number in map(int, sys.argv[1:]):
        worker.send_signal(number)
assert AsyncCompile.process_pool().submit(AsyncCompile._get_ready).result(900) == "ready"
print(len(workers), *(worker.is_running() for worker in workers))
assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()), "the trainer itself has to hear them"
"""
# Not a shell script, as some shells clear what is blocked; and not by the environment's path, which
# may have a blank.
COMPILER = f"""#!{Path(sys.executable).resolve()} -S
import os, signal, sys
with open(sys.argv[0] + ".blocked", "a") as file:
    print(*map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ())), file=file)
os.execvp("g++", ["g++", *sys.argv[1:]])
"""


@pytest.mark.compiler
@pytest.mark.slow
def test_what_compiles_never_hears_the_signals(tmp_path: Path) -> None:
    """Slurm sends them to every process of a step; compilers and workers would die of them."""
    compiler = tmp_path / "g++"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    variables = {"CXX": str(compiler), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    variables |= {"TORCHINDUCTOR_COMPILE_THREADS": "2"}
    compiled = subprocess.run(
        [sys.executable, "-c", COMPILES, *(str(number.value) for number in SIGNALS)],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert compiled.returncode == 0, compiled.stderr
    number, *alive = compiled.stdout.split()
    assert int(number) >= 2
    assert set(alive) == {"True"}
    compilers = Path(f"{compiler}.blocked").read_text().splitlines()
    blocked = frozenset((*SIGNALS, signal.SIGINT))
    assert {frozenset(map(int, line.split())) for line in compilers} == {blocked}


@pytest.mark.parametrize("at", [0, 3, 4, 5])
def test_all_leave_after_the_same_round(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """One round late; what comes in the last one comes too late."""
    here = threading.local()
    monkeypatch.setattr(preemption, "stop_requested", lambda: here.rank == 1 and here.round >= at)

    def process(comm: Comm) -> int:
        rounds, here.rank = LockstepRounds(comm.start_all_reduce_), comm.rank
        try:
            for here.round in range(5):
                rounds.end_round()
            rounds.finish()
        except PreemptedError:
            return here.round
        return -1

    assert run_on_threads(3, process) == [at + 1 if at < 4 else -1] * 3
