"""Image files through PIL, with the pixels of torchvision's transforms, by processes that decode
ahead."""

import os
import select
import signal
import socket
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

import numpy as np
import torch
from torch import Tensor

from lsgd.errors import InputFailed
from lsgd.inputs import Batch
from lsgd.inputs.colours import recolour
from lsgd.inputs.decoder import Beside, ImageFiles, Pixels, Room
from lsgd.inputs.index import Index
from lsgd.inputs.normalise import Normalise
from lsgd.inputs.sending import sent
from lsgd.job import preemption
from lsgd.recipe import Data, InputsSettings
from lsgd.rules.sampler import Pass

END = 1.0
"""Seconds in which a process has ended that was killed, unless it waits for a dead drive."""


class FolderInputs:
    """An image folder that is decoded in processes of its own, or here if there are none.

    The processes live as long as this object, through all epochs and evaluations.
    """

    def __init__(
        self,
        data: Data,
        indexes: tuple[Index, Index],
        settings: InputsSettings,
        *,
        seed: int,
        device: torch.device,
        decoders: int,
    ) -> None:
        self.name = f"torchvision in {decoders} processes"
        self.device = device
        self.normalise = Normalise(data, device)
        self.files = ImageFiles(data, indexes, seed=seed)
        # They start while the trainer makes its model.
        self.decoders = _Decoders(self.files, decoders, settings.prefetch) if decoders else None

    def train(self, passes: Iterable[Pass]) -> Iterator[Batch]:
        """The images of each pass, augmented, in the order of the passes."""
        return self._load(passes)

    def evaluation(self, passes: Iterable[Pass]) -> Iterator[Batch]:
        """The images of each pass, resized and cropped at the centre."""
        return self._load(passes)

    def _load(self, passes: Iterable[Pass]) -> Iterator[Batch]:
        decoded = self.decoders.decode(passes, self._taken) if self.decoders else self._here(passes)
        for pixels, (labels, colours) in decoded:
            if colours is not None:
                pixels = pixels.to(self.device, non_blocking=True).float()
                recolour(pixels, sent(colours.astype(np.float32), self.device))
            yield self.normalise(pixels.permute(0, 3, 1, 2)), sent(labels, self.device)

    def _here(self, passes: Iterable[Pass]) -> Iterator[tuple[Tensor, Beside]]:
        for each in passes:
            pixels = np.empty(self.files.shape(each), np.uint8)
            beside = self.files.decode(each, pixels)
            yield self._taken(pixels), beside

    def _taken(self, pixels: Pixels) -> Tensor:
        """A copy of the pixels, on its way to the device; on a CPU already as float32."""
        return _floats(pixels) if self.device.type == "cpu" else sent(pixels, self.device)


def _floats(pixels: Pixels) -> Tensor:
    """8-bit pixels as float32, in memory that glibc finds again for the batch after the next.

    torch wants an address divisible by 64, and glibc looks for a gap that is larger by as much: the
    one that an equal batch has left is too small, and gaps add up to 40 batches. Memory from numpy
    has any address; what is skipped to one divisible by 64 is part of what was asked for.
    """
    room = np.empty(pixels.size + 15, np.float32)
    start = -room.ctypes.data % 64 // room.itemsize
    floats = torch.from_numpy(room[start : start + pixels.size])
    return floats.view(pixels.shape).copy_(torch.from_numpy(pixels))


class _Decoders:
    """The processes that decode for this one, pass after pass in turns, each `prefetch` ahead."""

    def __init__(self, files: ImageFiles, number: int, prefetch: int) -> None:
        self.files, self.prefetch = files, prefetch
        self.members = [_Decoder(prefetch) for _ in range(number)]
        weakref.finalize(self, _end, self.members)
        self.poll = select.poll()
        for member in self.members:
            member.send(files)
            self.poll.register(member.connection, 0)  # its end alone
        self.asked: deque[tuple[_Decoder, Pass, int]] = deque()
        """What is under way, in the order of the answers."""

    def decode(
        self, passes: Iterable[Pass], taken: Callable[[Pixels], Tensor]
    ) -> Iterator[tuple[Tensor, Beside]]:
        """What `taken` makes of the pixels of each pass, and the rest of it, in their order.

        Raises InputFailed if an image cannot be had, or as soon as any of the processes has died.
        """
        while self.asked:  # by a round that was given up
            self._answer()
        passes = iter(passes)
        number = len(self.members)
        for turn, each in zip(range(number * self.prefetch), passes, strict=False):
            self._ask(self.members[turn % number], each, turn // number)
        while self.asked:
            decoder, each, room = self.asked[0]
            answer = self._answer()
            if isinstance(answer, InputFailed):
                raise answer
            tensor = taken(decoder.rooms[room].pixels(self.files.shape(each)))
            # Its room is free again, and it decodes on while this pass is computed with.
            if following := next(passes, None):
                self._ask(decoder, following, room)
            yield tensor, answer

    def _ask(self, decoder: "_Decoder", each: Pass, room: int) -> None:
        decoder.send((each, room))
        self.asked.append((decoder, each, room))

    def _answer(self) -> Beside | InputFailed:
        """The next answer, once it is there."""
        decoder, _, _ = self.asked[0]
        self.poll.modify(decoder.connection, select.POLLIN)
        found = dict(self.poll.poll())
        self.poll.modify(decoder.connection, 0)
        for member in self.members:
            # An end is told of each, also while another is waited for.
            if found.get(member.connection.fileno(), 0) & ~select.POLLIN:
                raise member.died()
        try:
            answer: Beside | InputFailed = decoder.connection.recv()
        except (EOFError, OSError):  # it was killed while it answered
            raise decoder.died() from None
        self.asked.popleft()
        return answer


class _Decoder:
    """A process that runs lsgd.inputs.decoder, and what this one shares with it."""

    def __init__(self, rooms: int) -> None:
        self.rooms = [Room(os.memfd_create("lsgd-pixels")) for _ in range(rooms)]
        ours, theirs = socket.socketpair()
        self.connection = Connection(ours.detach())
        shared = [theirs.fileno(), *(room.descriptor for room in self.rooms)]
        # A program of its own: a fork would copy the threads and locks of the communication library
        # half alive, and multiprocessing would import what this one has started with, and torch.
        command = [sys.executable, "-P", "-m", "lsgd.inputs.decoder", *map(str, shared)]
        own = {"PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
        # A launcher may signal every process there is; this one ends with whom it works for.
        with theirs, preemption.unheard():
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            self.process = subprocess.Popen(
                command, env=os.environ | own, stdin=subprocess.DEVNULL, pass_fds=shared
            )

    def send(self, message: object) -> None:
        """Hand it a message; raises InputFailed if it has ended."""
        try:
            self.connection.send(message)
        except OSError:
            raise self.died() from None

    def died(self) -> InputFailed:
        """The failure of a run whose decoder has ended."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END)
        code = self.process.returncode or 0
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return InputFailed(
            f"a process that decodes images has died ({how}); resume, with fewer inputs.decoders "
            "if it was for want of memory"
        )


def _end(decoders: Sequence[_Decoder]) -> None:
    for decoder in decoders:
        decoder.process.kill()
    for decoder in decoders:
        with suppress(subprocess.TimeoutExpired):
            decoder.process.wait(END)
        decoder.connection.close()
        for room in decoder.rooms:
            os.close(room.descriptor)
