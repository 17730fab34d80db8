"""TensorFlow beside torch: its process, and the file of examples that the process reads."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsgd.bench.environment import environment
from lsgd.bench.job import Job, open_command

NAME = "tensorflow"
REQUIREMENTS = ("tensorflow-cpu==2.21.0", "keras==3.15.1", "numpy==2.4.6")
SIZE = "1.6 GB, which takes about a minute"
SCRIPT = Path(__file__).with_name("tensorflow_tagger.py")

Steps = Sequence[Sequence[Sequence[int] | NDArray[np.int64]]]
"""The sentences of each pass of each step, by their numbers."""


@contextmanager
def open_tensorflow(*, threads: int, limit: float) -> Iterator[Job]:
    """The process of lsgd/bench/tensorflow_tagger.py, in an environment that is made if need be.

    0 threads are as many as TensorFlow wants. Raises Refused, as environment and open_job do.
    """
    python = environment(NAME, REQUIREMENTS, size=SIZE)
    # -I: what is in the caller's folder or PYTHONPATH is not for this Python.
    command = [str(python), "-I", str(SCRIPT)]
    with open_command("TensorFlow", command, [str(threads)], limit=limit) as job:
        yield job


def save_examples(
    file: Path,
    sentences: Mapping[str, NDArray[Any]],
    steps: Steps,
    weights: Mapping[str, NDArray[Any]],
) -> None:
    """Write the .npz of a prepare request: words, tags and offsets, the passes, and the weights."""
    passes = [each for step in steps for each in step]
    arrays: dict[str, Any] = {
        **sentences,
        **weights,
        "order": np.concatenate(passes),
        "pass_sizes": np.array([len(each) for each in passes]),
        "step_sizes": np.array([len(step) for step in steps]),
    }
    np.savez(file, **arrays)
