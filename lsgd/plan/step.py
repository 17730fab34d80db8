"""A model of the time of one training step on any number of GPUs, by its parts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import NormalDist

from lsgd.plan.allreduce import ALGORITHMS, Cost, exposed_cost
from lsgd.plan.gradients import GradientBucket
from lsgd.plan.hardware import Hardware
from lsgd.recipe import Recipe


@dataclass(frozen=True)
class MeasuredStep:
    """A measured training step on a few GPUs of one server, from which estimates start."""

    seconds: float
    """Seconds per step, of the slowest of the GPUs."""
    images: int
    """The images per GPU and step, in one micro-batch."""
    gpus: int
    backward_share: float
    """The backward pass's share of the step time."""
    data_wait: float
    """The share of the step spent waiting for data; 0 if unknown."""
    source: str
    backward_source: str

    @property
    def images_per_second(self) -> float:
        """The training throughput of one GPU, in images per second."""
        return self.images / self.seconds


@dataclass(frozen=True)
class StepTime:
    """The modelled seconds of one training step of the slowest GPU, split into parts."""

    gpus: int
    workers: int
    images: int
    """The images of all workers, kn."""
    compute: float
    """Seconds of forward, backward and update for the average number of images per GPU."""
    data: float
    """Seconds of waiting for data."""
    uneven: float
    """Additional seconds of the GPU with the most workers, compared with the average."""
    stragglers: float
    """Additional seconds of the slowest GPU, compared with the average."""
    latency: float
    """Seconds of all-reduce latencies that do not overlap with the backward pass."""
    bandwidth: float
    """Seconds of all-reduce transfers that do not overlap with the backward pass."""

    @property
    def parts(self) -> dict[str, float]:
        """The seconds of each part of the modelled training step, by its name."""
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
        """The modelled seconds of the whole training step."""
        return sum(self.parts.values())

    @property
    def images_per_second(self) -> float:
        """The modelled training throughput of all GPUs, in images per second."""
        return self.images / self.seconds

    @property
    def largest_overhead(self) -> tuple[str, float]:
        """The name of the largest part of the step besides computation, and its share."""
        parts = self.parts
        del parts["compute"]
        most = max(parts, key=lambda part: parts[part])
        return most, parts[most] / self.seconds

    @property
    def bottleneck(self) -> str:
        """The name of the step's largest part, or `workers` if some GPUs have no worker."""
        if self.gpus > self.workers:
            return "workers"
        return max(self.parts, key=lambda part: self.parts[part])


@dataclass(frozen=True)
class ModelledCluster:
    """A cluster of identical servers, and the gradient buckets of a network trained on it."""

    hardware: Hardware
    gpus_per_server: int
    gradient_buckets: Sequence[GradientBucket]
    """The gradient buckets of one step, in the order of the backward pass."""
    measured: MeasuredStep
    concurrent: int = 1
    """The number of all-reduces that may be in flight at once."""

    def exposed_cost(self, gpus: int, images: float) -> Cost:
        """Return the all-reduce time that outlasts a backward pass over `images` images per GPU."""
        servers, per_server = self.servers(gpus), min(gpus, self.gpus_per_server)
        sum_over, cluster = ALGORITHMS[self.hardware.allreduce], self.hardware.cluster
        return exposed_cost(
            [piece.ready_share for piece in self.gradient_buckets],
            [sum_over(piece.size, servers, per_server, cluster) for piece in self.gradient_buckets],
            self.backward(images),
            concurrent=self.concurrent,
        )

    def servers(self, gpus: int) -> int:
        """Return the number of servers of this cluster that `gpus` GPUs need."""
        return ceil(gpus / self.gpus_per_server)

    def backward(self, images: float) -> float:
        """Return the seconds of a backward pass over `images` images on one GPU."""
        return self.measured.backward_share * images / self.measured.images_per_second

    def straggler_share(self, gpus: int) -> float:
        """Return the additional time of the slowest of `gpus` GPUs, relative to their average."""
        return self.hardware.spread.value * expected_maximum(gpus)

    def step(self, recipe: Recipe, gpus: int) -> StepTime:
        """Return the modelled time of a training step of this recipe on `gpus` GPUs.

        GPUs without a worker do not change it. The time per image is assumed not to depend on the
        micro-batch size, and the spread of the times not to average out over several micro-batches.
        """
        used = min(gpus, recipe.workers)
        hosted = ceil(recipe.workers / used)
        sums = self.exposed_cost(used, last_micro_batch_images(recipe, used))
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
            stragglers=(average + uneven) * self.straggler_share(used),
            latency=sums.latency,
            bandwidth=sums.transfer,
        )

    def efficiency(self, step: StepTime) -> float:
        """Return a step's throughput per GPU, relative to that of the measured GPUs."""
        return step.images_per_second / step.gpus / self.measured.images_per_second

    def _alone(self) -> float:
        """Return the seconds per image of an average GPU without any waiting for others."""
        measured = self.measured
        # The measured step includes its straggler and its all-reduces: both are removed.
        # It is of one server, also where those of the plan have fewer GPUs.
        server = replace(self, gpus_per_server=max(self.gpus_per_server, measured.gpus))
        sums = server.exposed_cost(measured.gpus, measured.images)
        without_sums = measured.seconds - sums.seconds
        return without_sums / (1 + self.straggler_share(measured.gpus)) / measured.images


def last_micro_batch_images(recipe: Recipe, gpus: int) -> int:
    """Return the number of images in the last micro-batch of the GPU with the most workers.

    The backward pass of this micro-batch overlaps with the all-reduces.
    """
    hosted = ceil(recipe.workers / gpus)
    return ((hosted - 1) % recipe.micro_batch_workers + 1) * recipe.worker_batch


def expected_maximum(n: int) -> float:
    """Return the expected maximum of n standard normal draws, about Φ⁻¹((n - 3/8) / (n + 1/4)).

    Source: Blom 1958.

    >>> [round(expected_maximum(n), 2) for n in (1, 8, 256)]  # exactly: 0, 1.42, 2.83
    [0.0, 1.43, 2.81]
    """
    return NormalDist().inv_cdf((n - 0.375) / (n + 0.25))
