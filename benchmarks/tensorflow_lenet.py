"""Training of LeNet-5 by TensorFlow's own strategies, as one process of a TensorFlow cluster.

This script is for the Python of another environment, so it imports TensorFlow and numpy and nothing
of lsgd: PYTHON -I tensorflow_lenet.py SETTING. TF_CONFIG has the cluster and this process's task,
in TensorFlow's format. SETTING is a JSON file with

    strategy    mirrored, MultiWorkerMirroredStrategy: a sum of the gradients over all workers; or
                servers, ParameterServerStrategy: each worker updates the servers' variables on its
                own, with batches that a chief schedules by a ClusterCoordinator
    examples    a file for each worker: records of float32, an image's pixels and its label
    weights     an .npz with the network's weights, in torch's names and layout
    rows        the file to which the first process writes rows, in the format of metrics.jsonl
    steps       updates of the whole run
    log_steps   updates between two rows
    batch       images of a worker in an update
    lr, momentum  of SGD, which has neither weight decay nor a schedule

Each process has one thread for its operations. Servers and their workers run until they are ended.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # its errors, without notes on its build

import numpy as np
import tensorflow as tf

SIDE = 28
WEIGHTS = tuple(
    f"{layer}.{kind}"
    for layer in ("conv1", "conv2", "fc1", "fc2", "fc")
    for kind in ("weight", "bias")
)


class GraphLeNet:
    """LeNet-5's variables, the momentum of each, and the sum of the losses since the last row.

    It is created within the scope of its strategy, which places the variables.
    """

    def __init__(self, strategy: Any, setting: dict[str, Any]) -> None:
        self._strategy, self._lr, self._momentum = strategy, setting["lr"], setting["momentum"]
        with np.load(setting["weights"]) as content:
            values = [_of_tensorflow(name, content[name]) for name in WEIGHTS]
        with strategy.scope():
            self._variables = [tf.Variable(value) for value in values]
            self._momenta = [tf.Variable(tf.zeros_like(value)) for value in values]
            self._losses = tf.Variable(
                0.0, trainable=False, aggregation=tf.VariableAggregation.MEAN
            )
        self.parameters = sum(value.size for value in values)

    def step(self, images: Any, labels: Any) -> None:
        """Update the variables by the gradient of a batch.

        MultiWorkerMirroredStrategy averages the gradient over its workers first.
        """
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, self._scores(images))
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, self._variables)
        replica = tf.distribute.get_replica_context()
        if isinstance(self._strategy, tf.distribute.MultiWorkerMirroredStrategy):
            # TensorFlow packs these tensors into one all-reduce.
            *gradients, loss = replica.all_reduce(tf.distribute.ReduceOp.MEAN, [*gradients, loss])
        replica.merge_call(self._update, args=(gradients, loss))

    def take_losses(self) -> float:
        """Return the sum of the losses since the last call, and reset it."""
        total = float(self._losses.numpy())
        self._losses.assign(0.0)
        return total

    def _scores(self, images: Any) -> Any:
        (w1, b1, w2, b2, *dense) = self._variables
        x = tf.nn.relu(tf.nn.conv2d(images, w1, 1, "SAME") + b1)
        x = tf.nn.max_pool2d(x, 2, 2, "VALID")
        x = tf.nn.relu(tf.nn.conv2d(x, w2, 1, "VALID") + b2)
        x = tf.nn.max_pool2d(x, 2, 2, "VALID")
        x = tf.reshape(x, (-1, dense[0].shape[0]))
        for weight, bias in zip(dense[:-2:2], dense[1:-2:2], strict=True):
            x = tf.nn.relu(x @ weight + bias)
        return x @ dense[-2] + dense[-1]

    def _update(self, strategy: Any, gradients: Sequence[Any], loss: Any) -> None:
        def move(variable: Any, momentum: Any, gradient: Any) -> Any:
            # One operation on the device of the variable: m <- momentum m + g, w <- w - lr m.
            return tf.raw_ops.ResourceApplyMomentum(
                var=variable.handle,
                accum=momentum.handle,
                lr=self._lr,
                grad=gradient,
                momentum=self._momentum,
            )

        update = strategy.extended.update
        for each in zip(self._variables, self._momenta, gradients, strict=True):
            update(each[0], move, args=each[1:], group=False)
        update(self._losses, lambda variable, value: variable.assign_add(value), args=(loss,))


def mirrored(setting: dict[str, Any]) -> None:
    """Train as a worker of MultiWorkerMirroredStrategy, whose workers make each update together."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    network = GraphLeNet(strategy, setting)
    worker = strategy.cluster_resolver.task_id
    batches = iter(
        strategy.distribute_datasets_from_function(
            lambda context: _batches(setting["examples"][context.input_pipeline_id], setting)
        )
    )

    @tf.function  # type: ignore[untyped-decorator]
    def step(iterator: Any) -> None:
        strategy.run(network.step, args=next(iterator))

    def steps(count: int) -> None:
        for _ in range(count):
            step(batches)

    train(setting, network, steps, workers=len(setting["examples"]), writes=worker == 0)


def servers(setting: dict[str, Any]) -> None:
    """Run a server or worker of ParameterServerStrategy; as the chief, schedule the batches."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type != "chief":
        server = tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=resolver.task_type,
            task_index=resolver.task_id,
            protocol="grpc",
        )
        server.join()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    network = GraphLeNet(strategy, setting)
    # Every worker iterates over all images, in an order of its own.
    data = coordinator.create_per_worker_dataset(
        lambda: strategy.distribute_datasets_from_function(
            lambda context: _batches(setting["examples"], setting, shuffled=True)
        )
    )
    batches = iter(data)

    @tf.function  # type: ignore[untyped-decorator]
    def step(iterator: Any) -> None:
        strategy.run(network.step, args=next(iterator))

    def steps(count: int) -> None:
        for _ in range(count):
            coordinator.schedule(step, args=(batches,))
        coordinator.join()

    train(setting, network, steps, workers=1, writes=True)


def train(
    setting: dict[str, Any],
    network: GraphLeNet,
    steps: Callable[[int], None],
    *,
    workers: int,
    writes: bool,
) -> None:
    """Make all updates, each from `workers` batches, and write a row every log_steps updates."""
    rows = open(setting["rows"] if writes else os.devnull, "a")  # noqa: SIM115

    def write(**row: Any) -> None:
        print(json.dumps(row), file=rows, flush=True)

    write(kind="start", step=0, tensorflow=tf.__version__, parameters=network.parameters)
    every = setting["log_steps"]
    for done in range(every, setting["steps"] + 1, every):
        begin = time.perf_counter()
        steps(every)
        loss = network.take_losses() / every
        speed = every * workers * setting["batch"] / (time.perf_counter() - begin)
        write(kind="train", step=done, loss=loss, images_per_second=speed)


def _batches(files: str | Iterable[str], setting: dict[str, Any], *, shuffled: bool = False) -> Any:
    """Return an endless dataset of batches from these files of examples."""
    size = SIDE * SIDE + 1
    records = tf.data.FixedLengthRecordDataset(files, 4 * size)
    if shuffled:
        records = records.shuffle(4096)

    def decode(batch: Any) -> Any:
        values = tf.reshape(tf.io.decode_raw(batch, tf.float32), (-1, size))
        images = tf.reshape(values[:, :-1], (-1, SIDE, SIDE, 1))
        return images, tf.cast(values[:, -1], tf.int32)

    batches = records.repeat().batch(setting["batch"], drop_remainder=True).map(decode).prefetch(2)
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    return batches.with_options(options)


def _of_tensorflow(name: str, value: Any) -> Any:
    """Convert a weight of torch to TensorFlow's layout, with channels last."""
    if value.ndim == 4:
        return value.transpose(2, 3, 1, 0)
    if name == "fc1.weight":
        # Its inputs are the outputs of conv2, which torch has with channels first.
        return value.reshape(len(value), 16, 5, 5).transpose(2, 3, 1, 0).reshape(-1, len(value))
    return value.T


def main(argv: Sequence[str]) -> None:
    """Run the cluster task that TF_CONFIG assigns to this process."""
    (file,) = argv
    with open(file) as content:
        setting = json.load(content)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    {"mirrored": mirrored, "servers": servers}[setting["strategy"]](setting)


if __name__ == "__main__":
    main(sys.argv[1:])
