"""CPU milliseconds and page faults for a batch of 32 images through inputs=torchvision with one
decoder, of the lsgd that Python finds: `python measure.py FOLDER IMAGE_SIZE BATCHES CLASSES TRAIN
VAL`.
"""

import sys
import time

import numpy as np
import psutil
import torch

from lsgd.bench.usage import usage
from lsgd.config import load_recipe
from lsgd.inputs import open_inputs
from lsgd.rules.sampler import MicroBatch

FIRST = 10
"""Batches that do not count."""


def main(folder: str, image_size: str, batches: str, classes: str, train: str, val: str) -> None:
    """Load so many batches of images drawn at random, and print what each has cost."""
    torch.set_num_threads(1)
    recipe = load_recipe(
        [
            *("+recipe=bs256", "workers=1", "worker_batch=32", "device=cpu", "inputs=torchvision"),
            *("inputs.decoders=1", f"data.root={folder}", f"data.classes={classes}"),
            *(f"data.train_examples={train}", f"data.val_examples={val}"),
            f"data.image_size={image_size}",
        ]
    )
    count, generator = int(batches), np.random.default_rng(0)
    inputs = open_inputs(recipe, torch.device("cpu"))
    drawn = (MicroBatch(0, generator.integers(0, int(train), 32)) for _ in range(FIRST + count))
    loaded = inputs.train(drawn)
    for _ in range(FIRST):
        next(loaded)
    own = psutil.Process()
    others = own.children(recursive=True)
    before = [usage(process.pid) for process in (own, *others)]
    begin = time.monotonic()
    for _ in range(count):
        next(loaded)
    seconds = time.monotonic() - begin
    after = [usage(process.pid) for process in (own, *others)]
    used = [b.cpu_seconds - a.cpu_seconds for a, b in zip(before, after, strict=True)]
    faults = after[0].page_faults - before[0].page_faults
    print(
        f"training process {1000 * used[0] / count:.2f} ms, {faults / count:.0f} page faults; "
        f"others {1000 * sum(used[1:]) / count:.2f} ms; {1000 * seconds / count:.1f} ms passed"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
