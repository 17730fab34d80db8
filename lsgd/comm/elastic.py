"""Communicator of elastic jobs, whose processes may exit and restart while others continue.

In a job whose launcher counts the restarts of each process (lsgd.job.launcher.LIFE), the store at
which the processes met stays open. Over it a restarted process asks process 0 for the state of the
run and opens connections to the processes that it works with. At the next synchronization of all
processes it joins the group again.
"""

import logging
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from threading import Lock, Thread
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from lsgd import messages
from lsgd.comm import RERUN
from lsgd.comm.pair import ProcessPair
from lsgd.comm.torch import TorchComm
from lsgd.errors import PeerLostError
from lsgd.job.launcher import Launch

T = TypeVar("T")
LOOK = 0.2
"""Seconds between two checks for a restarted process."""


class ElasticTorchComm(TorchComm):
    """Communicator of an elastic job over gloo, which restarted processes can join again.

    A restarted process is outside of the process group until the next synchronization. Until then
    its sums and gathered lists have its own values only, and it receives no broadcasts.
    """

    def __init__(
        self, launch: Launch, *, device: torch.device, timeout: float, join_timeout: float
    ) -> None:
        self.process, self.restart_count = launch.rank, launch.restart_count or 0
        self._looking, self._closed = Lock(), False
        self.members = [(rank, 0) for rank in range(launch.world_size)]
        self.is_outside_group = self.restart_count > 0 and self._others_have_met(
            launch, join_timeout
        )
        if not self.is_outside_group:
            super().__init__(launch, device=device, timeout=timeout, join_timeout=join_timeout)
            self.store.set("met", "")
            return
        self.library, self.device_backend, self.backend = "torch.distributed (gloo)", "", "gloo"
        self.rank, self.world_size = launch.rank, launch.world_size
        self.timeout, self.join_timeout = timeout, join_timeout

    def _others_have_met(self, launch: Launch, join_timeout: float) -> bool:
        """Connect to the store of process 0; return whether the process group exists already.

        Until it exists, the other processes wait for a process that has exited.
        """
        try:
            self.store: Any = TCPStore(
                str(launch.master_addr),
                launch.master_port,
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=join_timeout),
            )
        except (dist.DistError, RuntimeError) as error:
            raise PeerLostError(
                f"process {launch.rank} has restarted and cannot reach process 0 at "
                f"{launch.master_addr}:{launch.master_port} ({str(error).splitlines()[0]})"
            ) from None
        return bool(self.store.check(["met"]))

    def answer_restarted(self, answer: Callable[[], object]) -> None:
        """Make process 0 answer each query of a restarted process by a call of `answer`."""
        if self.rank == 0:
            Thread(target=self._answer, args=(answer, self.store.clone()), daemon=True).start()

    def _answer(self, answer: Callable[[], object], store: Any) -> None:
        """Answer the queries of restarted processes until the job ends."""
        number = 1
        with suppress(dist.DistError, RuntimeError):  # at the end of the job
            while True:
                said = None
                if self._find(store, f"ask/{number}") is not None:
                    said = _answered(answer)
                if said is None:
                    time.sleep(LOOK)
                    continue
                with self._before_the_end():
                    store.set(f"answer/{number}", said)
                number += 1

    def query_process_0(self) -> Any:
        """Ask process 0, through the store, which of its checkpoints to continue from."""
        number = self.store.add("asks", 1)
        self.store.set(f"ask/{number}", "")
        return self._await_process_0(f"answer/{number}")

    def broadcast_object(self, value: T) -> T:
        """Broadcast the value of process 0; raise PeerLostError outside of the group."""
        if self.is_outside_group:
            raise PeerLostError(
                f"process {self.process} has restarted, and receives no broadcast of process 0 "
                f"before the next synchronization of all processes; {RERUN}"
            )
        return super().broadcast_object(value)

    def publish(self, name: str, value: T) -> T:
        """Return the value that process 0 passes; it stays in the store for restarted processes."""
        key = f"published/{name}"
        if self.process == 0:
            self.store.set(key, pickle.dumps(value))
        published: T = self._await_process_0(key)
        return published

    def _await_process_0(self, key: str) -> Any:
        """Return the value that process 0 sets in the store under this key, once it is there."""
        try:
            return pickle.loads(self.store.get(key))
        except (dist.DistError, RuntimeError) as error:
            raise PeerLostError(f"process 0 does not answer this process ({error})") from None

    def gather_objects(self, value: T) -> list[T]:
        """Gather the values of all processes; outside of the group, copies of the own value."""
        return [value] * self.world_size if self.is_outside_group else super().gather_objects(value)

    def start_all_reduce_(self, tensor: Tensor, name: str) -> Callable[[], None]:
        """Start an in-place all-reduce; outside of the group, leave the tensor as it is."""
        return (lambda: None) if self.is_outside_group else super().start_all_reduce_(tensor, name)

    def open_pairs(self, wanted: Sequence[tuple[str, int]]) -> list[ProcessPair]:
        """Open connections as TorchComm does; after a restart the other ends wait for this one.

        They are then opened one by one, from the last to the first.
        """
        if not self.is_outside_group:
            return super().open_pairs(wanted)
        self.store.set(f"life/{self.process}", str(self.restart_count))
        opened = [
            self.open_pair(f"{name}/{self.restart_count}", side) for name, side in reversed(wanted)
        ]
        return opened[::-1]

    def open_pair(self, name: str, side: int) -> ProcessPair:
        """Open a two-process connection of this name over the job's store."""
        store = PrefixStore(f"pairs/{name}", self._own_store())
        return ProcessPair(store, side, timeout=self.timeout, join_timeout=self.join_timeout)

    def wait_for_restart(self, process: int, after: int) -> int:
        """Poll the store until a process has restarted more often than `after`."""
        store = self._own_store()
        while (life := int(self._find(store, f"life/{process}") or 0)) <= after:
            time.sleep(LOOK)
        return life

    def _own_store(self) -> Any:
        """Return a new client of the job's key-value store, for use in one thread."""
        with self._before_the_end():
            return self.store.clone()

    def _find(self, store: Any, key: str) -> bytes | None:
        """Return the value that the job's store has under this key, or None if it has none."""
        with self._before_the_end():
            return store.get(key) if store.check([key]) else None

    @contextmanager
    def _before_the_end(self) -> Iterator[None]:
        """Guard a thread's use of the job's store: `close` waits for it (context manager).

        A thread that uses the store while Python exits would abort the process. Raises RuntimeError
        after `close`.
        """
        with self._looking:
            if self._closed:
                raise RuntimeError("the job has ended")
            yield

    def form_group(self, name: str, members: list[tuple[int, int]] | None) -> None:
        """Form a new process group of these members, unless it equals the current one.

        Members are pairs of a process and its restart count. One process passes them; the others
        pass None and receive them under this name. Raises PeerLostError.
        """
        if members is not None:
            self.store.set(f"members/{name}", pickle.dumps(members))
        try:
            now: list[tuple[int, int]] = pickle.loads(self.store.get(f"members/{name}"))
            if now == self.members and not self.is_outside_group:
                return
            if not self.is_outside_group:
                dist.destroy_process_group()
                self.is_outside_group = True  # also if no new group comes about: `close` has none
            self.rank = [process for process, _ in now].index(self.process)
            self.world_size, self.members = len(now), now
            dist.init_process_group(
                self.backend,
                store=PrefixStore(f"group/{name}", self.store),
                rank=self.rank,
                world_size=self.world_size,
                timeout=timedelta(seconds=self.timeout),
            )
        except (dist.DistError, RuntimeError, ValueError) as error:
            raise PeerLostError(
                f"the remaining processes could not reconnect ({str(error).splitlines()[0]}); "
                f"{RERUN}"
            ) from None
        self.is_outside_group = False

    def close(self) -> None:
        """Leave the process group, if in it, and stop looking for restarted processes."""
        with self._looking:
            self._closed = True
        if not self.is_outside_group:
            super().close()


def _answered(answer: Callable[[], object]) -> bytes | None:
    """Return the pickled answer for a restarted process, or None if there is none yet.

    The answer may also fail for a while, with an error that is printed, as when a checkpoint is
    replaced between listing and reading it. The thread then tries again: if it ended, no restarted
    process would get an answer.
    """
    try:
        said = answer()
        return None if said is None else pickle.dumps(said)
    except Exception as error:
        text = f"lsgd: a restarted process gets no answer yet ({error})"
        messages.show(text, level=logging.WARNING, on_stderr=True)
        return None
