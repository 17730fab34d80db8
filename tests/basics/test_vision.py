import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from lsgd import vision
import torch, torchvision
assert vision.models is torchvision.models
assert vision.models.resnet18(num_classes=2).eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 2)
assert vision.transforms.CenterCrop(2)(torch.zeros(3, 4, 4)).shape == (3, 2, 2)
assert vision.datasets.ImageFolder
"""


@pytest.mark.slow
def test_torchvision_can_be_imported_beside_this_torch() -> None:
    """First thing in a process; it would fail or warn if operators were missing or doubled."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=900,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
