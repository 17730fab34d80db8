"""Processes of a job that may be lost and come back while the others go on.

A job whose launcher gives each process a life (lsgd.job.launcher.LIFE) keeps the store at which its
processes met. At it a process that comes back asks process 0 where the run is, opens connections of
its own to those that it works with, and at the next meeting of all is one of the group again.
"""

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

from lsgd.comm.pair import Pair
from lsgd.comm.torch import TorchComm
from lsgd.errors import PeerLost, Refused
from lsgd.job.launcher import Launch

T = TypeVar("T")
LOOK = 0.2
"""Seconds between two looks for a process that is back."""


class LivingComm(TorchComm):
    """The processes of such a job over gloo. One that comes back is `outside` of the group until
    the next meeting: it then knows of no sum but its own part, and has what process 0 tells it."""

    def __init__(
        self, launch: Launch, *, device: torch.device, timeout: float, join_timeout: float
    ) -> None:
        if device.type == "cuda":
            raise Refused(
                "processes that come back meet again over gloo, and this one is on a GPU; write "
                "device=cpu, or start it by torchrun"
            )
        self.process, self.life = launch.rank, launch.life or 0
        self._looking, self._closed = Lock(), False
        self.members = [(rank, 0) for rank in range(launch.world_size)]
        self.outside = self.life > 0 and self._others_have_met(launch, join_timeout)
        if not self.outside:
            super().__init__(launch, device=device, timeout=timeout, join_timeout=join_timeout)
            self.store.set("met", "")
            return
        self.library, self.on_gpu, self.backend = "torch.distributed (gloo)", False, "gloo"
        self.rank, self.world_size = launch.rank, launch.world_size
        self.timeout, self.join_timeout = timeout, join_timeout

    def _others_have_met(self, launch: Launch, join_timeout: float) -> bool:
        """Connect to the store of process 0; returns whether the group was made without this life:
        who died before is waited for."""
        try:
            self.store: Any = TCPStore(
                str(launch.master_addr),
                launch.master_port,
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=join_timeout),
            )
        except (dist.DistError, RuntimeError) as error:
            raise Refused(
                f"process {launch.rank} is back, and process 0 is not at "
                f"{launch.master_addr}:{launch.master_port} ({str(error).splitlines()[0]})",
                here_only=True,
            ) from None
        return bool(self.store.check(["met"]))

    def welcome(self, answer: Callable[[], object]) -> None:
        """From now on let process 0 tell this to each process that comes back and asks."""
        if self.rank == 0:
            Thread(target=self._answer, args=(answer, self.store.clone()), daemon=True).start()

    def _answer(self, answer: Callable[[], object], store: Any) -> None:
        number = 1
        with suppress(dist.DistError, RuntimeError):  # at the end of the job
            while True:
                if self._find(store, f"ask/{number}") is None:
                    time.sleep(LOOK)
                    continue
                said = pickle.dumps(answer())
                with self._before_the_end():
                    store.set(f"answer/{number}", said)
                number += 1

    def broadcast_object(self, value: T) -> T:
        """The value of process 0, and outside of the group what it answers."""
        if not self.outside:
            return super().broadcast_object(value)
        number = self.store.add("asks", 1)
        self.store.set(f"ask/{number}", "")
        try:
            answered: T = pickle.loads(self.store.get(f"answer/{number}"))
        except (dist.DistError, RuntimeError) as error:
            raise PeerLost(f"process 0 does not answer one that is back ({error})") from None
        return answered

    def gather_objects(self, value: T) -> list[T]:
        """The values of all processes, and outside of the group this one's, as often."""
        return [value] * self.world_size if self.outside else super().gather_objects(value)

    def start_sum_(self, tensor: Tensor, name: str) -> Callable[[], None]:
        """Begin to sum; outside of the group the tensor already is the sum."""
        return (lambda: None) if self.outside else super().start_sum_(tensor, name)

    def open_pairs(self, wanted: Sequence[tuple[str, int]]) -> list[Pair]:
        """Open connections, outside of the group to those that look for who is back."""
        if not self.outside:
            return super().open_pairs(wanted)
        self.store.set(f"life/{self.process}", str(self.life))
        return [self.open_pair(f"{name}/{self.life}", side) for name, side in wanted]

    def open_pair(self, name: str, side: int) -> Pair:
        """The connection of this name, at the job's store."""
        store = PrefixStore(f"pairs/{name}", self._own_store())
        return Pair(store, side, timeout=self.timeout, join_timeout=self.join_timeout)

    def wait_for_life(self, process: int, after: int) -> int:
        """Wait until a process is back in a later life than this one; returns which. Raises
        RuntimeError at the end of the job."""
        store = self._own_store()
        while (life := int(self._find(store, f"life/{process}") or 0)) <= after:
            time.sleep(LOOK)
        return life

    def _own_store(self) -> Any:
        """A connection to the store for one thread."""
        with self._before_the_end():
            return self.store.clone()

    def _find(self, store: Any, key: str) -> bytes | None:
        """What the store has of this name, None as long as it has nothing."""
        with self._before_the_end():
            return store.get(key) if store.check([key]) else None

    @contextmanager
    def _before_the_end(self) -> Iterator[None]:
        """Within this context a thread may use the store, and `close` waits for it: one that is in
        the store while Python ends would abort the process. Raises RuntimeError once closed."""
        with self._looking:
            if self._closed:
                raise RuntimeError("the job is over")
            yield

    def meet(self, name: str, members: list[tuple[int, int]] | None) -> None:
        """Make the group anew of these processes and lives, which one of them tells the others
        under this name, if it is not the one that there is. Raises PeerLost."""
        if members is not None:
            self.store.set(f"members/{name}", pickle.dumps(members))
        try:
            now: list[tuple[int, int]] = pickle.loads(self.store.get(f"members/{name}"))
            if now == self.members and not self.outside:
                return
            if not self.outside:
                dist.destroy_process_group()
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
            raise PeerLost(
                f"the processes that are left did not meet again ({str(error).splitlines()[0]}); "
                "the checkpoint is intact, and the same words and run_dir resume it"
            ) from None
        self.outside = False

    def close(self) -> None:
        """Leave the group, if this process is in it, and look for nobody any more."""
        with self._looking:
            self._closed = True
        if not self.outside:
            super().close()
