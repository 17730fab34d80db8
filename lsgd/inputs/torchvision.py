"""A loader of image files with torchvision's pixels, decoded ahead by PIL in other processes."""

import os
import select
import signal
import socket
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

import numpy as np
import torch
from torch import Tensor

from lsgd.errors import InputFailedError
from lsgd.inputs import Batch, ExampleColumns, Inputs
from lsgd.inputs.decoder import ImageFiles, LabelsAndColours, Pixels, SharedPixelBuffer
from lsgd.inputs.index import ImageIndex, index_columns
from lsgd.inputs.pixels import Normalise, recolour
from lsgd.job import preemption
from lsgd.job.device import arrays_to_device
from lsgd.job.system import open_memory
from lsgd.recipe import Recipe
from lsgd.rules.sampler import MicroBatch

EXIT_TIMEOUT = 1.0
"""Seconds to wait for the exit of a killed process, which a dead drive may delay further."""


class FolderInputs(Inputs):
    """A data loader of image folders that decodes by PIL in other processes, or in this one.

    The processes run as long as this object exists, through all epochs and evaluations.
    """

    def __init__(
        self, recipe: Recipe, indexes: Mapping[str, ImageIndex], device: torch.device, decoders: int
    ) -> None:
        self.name = f"torchvision in {decoders} processes"
        self.device = device
        self.normalise = Normalise(recipe.data, device)
        self.files = ImageFiles(recipe.data, indexes, seed=recipe.seed)
        prefetch = recipe.inputs.prefetch
        # Started here, so that they start up while the training process builds its model.
        self.decoders = _DecoderPool(self.files, decoders, prefetch) if decoders else None

    def columns(self) -> ExampleColumns:
        """Return the metadata columns (such as path and label) of all indexed images."""
        return index_columns(self.files.indexes)

    def train(self, passes: Iterable[MicroBatch]) -> Iterator[Batch]:
        """Yield the images and labels of each micro-batch in order, augmented in training."""
        decoded = self.decoders.decode(passes, self._taken) if self.decoders else self._here(passes)
        for pixels, (labels, colours) in decoded:
            if colours is not None:
                pixels = pixels.float()
                recolour(pixels, arrays_to_device(colours.astype(np.float32), self.device))
            yield self.normalise(pixels.permute(0, 3, 1, 2)), arrays_to_device(labels, self.device)

    def _here(self, passes: Iterable[MicroBatch]) -> Iterator[tuple[Tensor, LabelsAndColours]]:
        for each in passes:
            pixels = np.empty(self.files.shape(each), self.files.dtype)
            beside = self.files.decode(each, pixels)
            yield self._taken(pixels), beside

    def _taken(self, pixels: Pixels) -> Tensor:
        """Copy decoded pixels to the device as a tensor, on a CPU converted to float32."""
        return (
            _floats(pixels) if self.device.type == "cpu" else arrays_to_device(pixels, self.device)
        )


def _floats(pixels: Pixels) -> Tensor:
    """Convert pixels to a float32 tensor in memory that glibc can reuse for later batches.

    torch asks for an address divisible by 64, so glibc looks for a gap that is larger by as much:
    the gap of an equal batch is too small, and gaps add up to 40 batches. numpy accepts any
    address, and the bytes skipped to reach one divisible by 64 are part of the allocation.
    """
    room = np.empty(pixels.size + 15, np.float32)
    start = -room.ctypes.data % 64 // room.itemsize
    floats = torch.from_numpy(room[start : start + pixels.size])
    return floats.view(pixels.shape).copy_(torch.from_numpy(pixels))


class _DecoderPool:
    """A pool of image decoder processes that take micro-batches in turn, each `prefetch` ahead."""

    def __init__(self, files: ImageFiles, number: int, prefetch: int) -> None:
        self.files, self.prefetch = files, prefetch
        self.members = [_DecoderProcess(prefetch) for _ in range(number)]
        weakref.finalize(self, _end, self.members)
        self.poll = select.poll()
        for member in self.members:
            member.send(files)
            self.poll.register(member.connection, 0)  # reports its exit only
        self.in_flight: deque[tuple[_DecoderProcess, MicroBatch, int]] = deque()
        """The requested micro-batches in the order of their replies, with decoder and buffer."""

    def decode(
        self, passes: Iterable[MicroBatch], convert: Callable[[Pixels], Tensor]
    ) -> Iterator[tuple[Tensor, LabelsAndColours]]:
        """Decode micro-batches of images in the pool; yield pixels, after `convert`, and labels.

        Raises InputFailedError if an image cannot be read, or as soon as one of the processes
        has died.
        """
        while self.in_flight:  # by an unfinished round
            self._answer()
        passes = iter(passes)
        number = len(self.members)
        for turn, each in zip(range(number * self.prefetch), passes, strict=False):
            self._ask(self.members[turn % number], each, turn // number)
        while self.in_flight:
            decoder, each, room = self.in_flight[0]
            answer = self._answer()
            if isinstance(answer, InputFailedError):
                raise answer
            pixels = decoder.rooms[room].pixels(self.files.shape(each), self.files.dtype)
            tensor = convert(pixels)
            # Its buffer is free again, so it decodes the next micro-batch during the computation on
            # this one.
            if following := next(passes, None):
                self._ask(decoder, following, room)
            yield tensor, answer

    def _ask(self, decoder: "_DecoderProcess", each: MicroBatch, room: int) -> None:
        decoder.send((each, room))
        self.in_flight.append((decoder, each, room))

    def _answer(self) -> LabelsAndColours | InputFailedError:
        """Wait for the oldest requested micro-batch; return its labels and colours or its error."""
        decoder, _, _ = self.in_flight[0]
        self.poll.modify(decoder.connection, select.POLLIN)
        found = dict(self.poll.poll())
        self.poll.modify(decoder.connection, 0)
        for member in self.members:
            # poll() reports the exit of any of them, also while another one's reply is awaited.
            if found.get(member.connection.fileno(), 0) & ~select.POLLIN:
                raise member.exit_error()
        try:
            answer: LabelsAndColours | InputFailedError = decoder.connection.recv()
        except (EOFError, OSError):  # it was killed during its reply
            raise decoder.exit_error() from None
        self.in_flight.popleft()
        return answer


class _DecoderProcess:
    """A running image decoder process, with its socket and its shared pixel buffers."""

    def __init__(self, rooms: int) -> None:
        self.rooms = [SharedPixelBuffer(open_memory("lsgd-pixels")) for _ in range(rooms)]
        ours, theirs = socket.socketpair()
        self.connection = Connection(ours.detach())
        shared = [theirs.fileno(), *(room.descriptor for room in self.rooms)]
        # A new program: a fork would copy the threads and locks of the communication library in an
        # undefined state, and multiprocessing would import the main module, and torch.
        command = [sys.executable, "-P", "-m", "lsgd.inputs.decoder", *map(str, shared)]
        own = {"PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
        # A launcher may signal all processes; this one exits with the process that it serves.
        with theirs, preemption.block_stop_signals():
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            self.process = subprocess.Popen(
                command, env=os.environ | own, stdin=subprocess.DEVNULL, pass_fds=shared
            )

    def send(self, message: object) -> None:
        """Send a message to the decoder process, or raise InputFailedError if it has exited."""
        try:
            self.connection.send(message)
        except OSError:
            raise self.exit_error() from None

    def exit_error(self) -> InputFailedError:
        """Return the error for a decoder process that has exited, with its signal or exit code."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(EXIT_TIMEOUT)
        code = self.process.returncode or 0
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return InputFailedError(
            f"a process that decodes images has died ({how}); rerun the same command to resume, "
            "with fewer inputs.decoders if it was out of memory"
        )


def _end(decoders: Sequence[_DecoderProcess]) -> None:
    for decoder in decoders:
        decoder.process.kill()
    for decoder in decoders:
        with suppress(subprocess.TimeoutExpired):
            decoder.process.wait(EXIT_TIMEOUT)
        decoder.connection.close()
        for room in decoder.rooms:
            os.close(room.descriptor)
