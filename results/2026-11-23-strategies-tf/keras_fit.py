"""Keras 3's own training loop under TensorFlow's strategies: which of them run, and what they say.

`PYTHON keras_fit.py`, with the Python of the environment of `lsgd bench padding`, starts 1 and 2
workers of MultiWorkerMirroredStrategy, and a chief, a server and a worker of
ParameterServerStrategy; a line each says how fit() ended.
"""

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack

CLUSTERS = {
    "MultiWorkerMirroredStrategy, 1 worker": {"worker": 1},
    "MultiWorkerMirroredStrategy, 2 workers": {"worker": 2},
    "ParameterServerStrategy, 1 worker": {"chief": 1, "worker": 1, "ps": 1},
}
LIMIT = 90


def fit() -> None:
    """Be a process of the cluster in TF_CONFIG."""
    import keras
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if "ps" in resolver.cluster_spec().jobs:
        if resolver.task_type != "chief":
            spec, task = resolver.cluster_spec(), resolver.task_type
            tf.distribute.Server(spec, task, resolver.task_id, protocol="grpc").join()
        strategy = tf.distribute.ParameterServerStrategy(resolver)
    else:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((28, 28, 1)), keras.layers.Flatten(), keras.layers.Dense(10)]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.SGD(0.01, momentum=0.9), loss=loss)
    example = tf.zeros((28, 28, 1)), tf.zeros((), tf.int32)
    data = tf.data.Dataset.from_tensors(example).repeat().batch(32)
    model.fit(data, epochs=1, steps_per_epoch=20, verbose=0)
    print(f"Keras {keras.__version__} has run", flush=True)


def run(tasks: dict[str, int]) -> str:
    """How the first process of a cluster has ended, in a line."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(sum(tasks.values()))]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        ports = iter([each.getsockname()[1] for each in sockets])
        cluster = {
            task: [f"127.0.0.1:{next(ports)}" for _ in range(n)] for task, n in tasks.items()
        }
    processes = []
    for task, hosts in cluster.items():
        for index in range(len(hosts)):
            config = {"cluster": cluster, "task": {"type": task, "index": index}}
            processes.append(
                subprocess.Popen(
                    [sys.executable, __file__, "process"],
                    env=os.environ | {"TF_CONFIG": json.dumps(config)},
                    stdout=subprocess.PIPE if not processes else subprocess.DEVNULL,
                    stderr=subprocess.STDOUT if not processes else subprocess.DEVNULL,
                    text=True,
                )
            )
    try:
        text = processes[0].communicate(timeout=LIMIT)[0]
    except subprocess.TimeoutExpired:
        text = f"Error: it did not end in {LIMIT} s"
    finally:
        for each in processes:
            each.kill()
            each.wait()
    # An error may go over several lines, with all values of a tensor.
    _, error, rest = text.rpartition("\nValueError: ")
    line = " ".join((f"ValueError: {rest}" if error else text.strip().splitlines()[-1]).split())
    return line if len(line) < 200 else f"{line[:60]} … {line[-100:]}"


if __name__ == "__main__":
    if sys.argv[1:] == ["process"]:
        fit()
    else:
        for name, tasks in CLUSTERS.items():
            print(f"{name}: {run(tasks)}", flush=True)
