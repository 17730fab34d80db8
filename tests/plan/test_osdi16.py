"""Virtual time against what TensorFlow's paper reports of its parameter servers."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "results/2026-11-22-osdi16/osdi16.py"


@pytest.fixture(scope="module")
def osdi16() -> Iterator[ModuleType]:
    """The script that is kept beside the numbers it has given."""
    spec = importlib.util.spec_from_file_location("osdi16", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    # Where its dataclasses look for their module.
    sys.modules["osdi16"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["osdi16"]


@pytest.mark.slow
def test_steps_that_compute_nothing(osdi16: ModuleType) -> None:
    off = {
        key: abs(osdi16.null_step(*key).quantile(0.5) / published - 1)
        for key, published in osdi16.PUBLISHED_NULL.items()
    }
    assert len(off) == 6
    assert max(off.values()) < 0.45
    assert max(error for (name, _), error in off.items() if name != "scalar") < 0.3


@pytest.mark.slow
def test_images_per_second_on_200_workers(osdi16: ModuleType) -> None:
    speed = osdi16.IMAGES * osdi16.inception("sync", 200).batches_per_second
    assert speed == pytest.approx(osdi16.PUBLISHED_IMAGES["sync", 200], rel=0.05)
