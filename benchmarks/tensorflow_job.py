"""The process of TensorFlow that benchmarks.padding starts, and the file of its examples."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.environment import ensure_environment
from lsgd.bench.job import Job, open_command

NAME = "tensorflow"
REQUIREMENTS = ("tensorflow-cpu==2.21.0", "keras==3.15.1", "numpy==2.4.6")
SIZE = "1.6 GB, which takes about a minute"
SCRIPT = Path(__file__).with_name("tensorflow_tagger.py")

Steps = Sequence[Sequence[Sequence[int] | NDArray[np.int64]]]
"""The indices of the sentences of each micro-batch of each step."""


@contextmanager
def open_tensorflow(*, threads: int, limit: float) -> Iterator[Job]:
    """Start benchmarks/tensorflow_tagger.py in its environment, which is created if it is missing.

    With 0 threads TensorFlow chooses the number. Raises UsageError as ensure_environment and
    open_job do.
    """
    python = ensure_environment(NAME, REQUIREMENTS, size=SIZE)
    # -I keeps the caller's folder and PYTHONPATH out of this Python's path.
    command = [str(python), "-I", str(SCRIPT)]
    with open_command("TensorFlow", command, [str(threads)], limit=limit) as job:
        yield job


def save_examples(
    file: Path,
    sentences: Mapping[str, NDArray[Any]],
    steps: Steps,
    weights: Mapping[str, NDArray[Any]],
) -> None:
    """Write the .npz of a prepare request: tokens, tags, offsets, micro-batches and weights."""
    passes = [each for step in steps for each in step]
    arrays: dict[str, Any] = {
        **sentences,
        **weights,
        "order": np.concatenate(passes),
        "pass_sizes": np.array([len(each) for each in passes]),
        "step_sizes": np.array([len(step) for step in steps]),
    }
    np.savez(file, **arrays)
