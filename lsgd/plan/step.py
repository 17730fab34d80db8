"""The time of one step on any number of GPUs, and what it is made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import NormalDist

from lsgd.plan.allreduce import ALGORITHMS, Cost
from lsgd.plan.gradients import Piece
from lsgd.plan.hardware import Hardware
from lsgd.plan.overlap import exposed
from lsgd.recipe import Recipe


@dataclass(frozen=True)
class Measured:
    """A step that has been timed, on a few GPUs of one server."""

    seconds: float
    """Seconds per step, of the slowest of the GPUs."""
    images: int
    """Images per GPU and step, in one pass."""
    gpus: int
    backward_share: float
    """The share of the step that its backward pass takes."""
    data_wait: float
    """The share of the step spent waiting for data; 0 where it is not known."""
    source: str
    backward_source: str

    @property
    def images_per_second(self) -> float:
        """Images per second that one GPU trains."""
        return self.images / self.seconds


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step by what they are spent on, of the GPU that all others wait for."""

    gpus: int
    workers: int
    images: int
    """The images of all workers, kn."""
    compute: float
    """Seconds of forward, backward and update of an average GPU's images, undisturbed."""
    data: float
    """Seconds of waiting for data."""
    uneven: float
    """Seconds that the GPU with the most workers takes longer than the average."""
    stragglers: float
    """Seconds that the slowest GPU takes longer than the average."""
    latency: float
    """Seconds of the latencies of sums that the backward pass does not hide."""
    bandwidth: float
    """Seconds of the bytes of sums that the backward pass does not hide."""

    @property
    def parts(self) -> dict[str, float]:
        """The seconds of each part, by its name."""
        return {
            "compute": self.compute,
            "data": self.data,
            "uneven shares": self.uneven,
            "stragglers": self.stragglers,
            "latency": self.latency,
            "bandwidth": self.bandwidth,
        }

    @property
    def seconds(self) -> float:
        """Seconds of the whole step."""
        return sum(self.parts.values())

    @property
    def images_per_second(self) -> float:
        """Images per second that all GPUs train."""
        return self.images / self.seconds

    @property
    def lost_to(self) -> tuple[str, float]:
        """The largest part of the step besides computing, and its share of the step."""
        parts = self.parts
        del parts["compute"]
        most = max(parts, key=lambda part: parts[part])
        return most, parts[most] / self.seconds

    @property
    def bound(self) -> str:
        """The largest part of the step, or `workers` where GPUs are left without one."""
        if self.gpus > self.workers:
            return "workers"
        return max(self.parts, key=lambda part: self.parts[part])


@dataclass(frozen=True)
class Machine:
    """A cluster of equal servers, of any number, and the sums of a model trained on it."""

    hardware: Hardware
    gpus_per_server: int
    pieces: Sequence[Piece]
    """The sums of one step, in the order of the backward pass."""
    measured: Measured
    concurrent: int = 1
    """How many sums may be under way at once."""

    def exposed(self, gpus: int, images: float) -> Cost:
        """The cost of the sums that a backward pass over `images` per GPU does not hide."""
        servers, per_server = self.servers(gpus), min(gpus, self.gpus_per_server)
        sum_over, cluster = ALGORITHMS[self.hardware.allreduce], self.hardware.cluster
        return exposed(
            [piece.ready for piece in self.pieces],
            [sum_over(piece.size, servers, per_server, cluster) for piece in self.pieces],
            self.backward(images),
            concurrent=self.concurrent,
        )

    def servers(self, gpus: int) -> int:
        """The number of servers that `gpus` GPUs fill."""
        return ceil(gpus / self.gpus_per_server)

    def backward(self, images: float) -> float:
        """Seconds of a backward pass over `images` images on one GPU."""
        return self.measured.backward_share * images / self.measured.images_per_second

    def slowest(self, gpus: int) -> float:
        """The extra time of the slowest of `gpus` GPUs, as a share of the average time."""
        return self.hardware.spread.value * expected_maximum(gpus)

    def step(self, recipe: Recipe, gpus: int) -> StepTime:
        """A step of this recipe on `gpus` GPUs; those without a worker only cost money.

        Speed per image is taken not to depend on the size of a pass, and the spread of the times
        not to average out over several passes.
        """
        used = min(gpus, recipe.workers)
        hosted = ceil(recipe.workers / used)
        sums = self.exposed(used, last_pass(recipe, used))
        average = self._alone() * recipe.batch_size / used
        uneven = average * (hosted * used - recipe.workers) / recipe.workers
        waiting = self.measured.data_wait
        return StepTime(
            gpus,
            recipe.workers,
            recipe.batch_size,
            compute=average * (1 - waiting),
            data=average * waiting,
            uneven=uneven,
            stragglers=(average + uneven) * self.slowest(used),
            latency=sums.latency,
            bandwidth=sums.transfer,
        )

    def efficiency(self, step: StepTime) -> float:
        """Images per second and GPU, as a share of those of the GPUs that were measured."""
        return step.images_per_second / step.gpus / self.measured.images_per_second

    def _alone(self) -> float:
        """Seconds per image of an average GPU that waits for no other."""
        measured = self.measured
        # The measured step ends with its slowest GPU and has sums of its own: both are taken out.
        without_sums = measured.seconds - self.exposed(measured.gpus, measured.images).seconds
        return without_sums / (1 + self.slowest(measured.gpus)) / measured.images


def last_pass(recipe: Recipe, gpus: int) -> int:
    """Images of the last pass of the GPU with the most workers: the one that hides the sums."""
    hosted = ceil(recipe.workers / gpus)
    return ((hosted - 1) % recipe.pass_workers + 1) * recipe.worker_batch


def expected_maximum(n: int) -> float:
    """The expected largest of n standard normal numbers: about Φ⁻¹((n - 3/8) / (n + 1/4)).

    Source: Blom 1958.

    >>> [round(expected_maximum(n), 2) for n in (1, 8, 256)]  # exactly: 0, 1.42, 2.83
    [0.0, 1.43, 2.81]
    """
    return NormalDist().inv_cdf((n - 0.375) / (n + 0.25))
