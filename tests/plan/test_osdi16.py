"""Virtual time against what TensorFlow's paper reports of its parameter servers."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

RESULTS = Path(__file__).resolve().parents[2] / "results"


def script(path: str) -> Iterator[ModuleType]:
    """The script that is kept beside the numbers it has given."""
    name = Path(path).stem
    spec = importlib.util.spec_from_file_location(name, RESULTS / path)
    assert spec is not None
    assert spec.loader is not None
    # Where its dataclasses look for their module.
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[name]


@pytest.fixture(scope="module")
def osdi16() -> Iterator[ModuleType]:
    yield from script("2026-11-22-osdi16/osdi16.py")


@pytest.fixture(scope="module")
def servers() -> Iterator[ModuleType]:
    yield from script("2026-11-22-servers/servers.py")


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
    speed = osdi16.IMAGES * osdi16.inception("sync", 200).rate
    assert speed == pytest.approx(osdi16.PUBLISHED_IMAGES["sync", 200], rel=0.05)


@pytest.mark.slow
def test_three_or_four_backup_workers_are_the_best(osdi16: ModuleType) -> None:
    best = max(osdi16.backups(), key=lambda each: each.normalised)
    assert best.backup in (3, 4)
    assert best.normalised == pytest.approx(1.095, abs=0.03)
    assert osdi16.backups()[4].seconds == pytest.approx(1.93, rel=0.02)
    # The paper's fifth makes the step longer, which is listed as not reproduced.
    assert osdi16.backups()[5].seconds == pytest.approx(osdi16.backups()[4].seconds, rel=0.002)


@pytest.mark.slow
def test_the_readme_of_the_paper_s_servers_has_what_the_script_prints(osdi16: ModuleType) -> None:
    readme = (RESULTS / "2026-11-22-osdi16/README.md").read_text(encoding="utf-8")
    assert all(table in readme for table in osdi16.tables())


@pytest.mark.slow
def test_the_readme_of_placements_has_what_the_script_prints(servers: ModuleType) -> None:
    readme = (RESULTS / "2026-11-22-servers/README.md").read_text(encoding="utf-8")
    assert all(table in readme for table in servers.tables())


def test_placement_decides_and_not_topology(servers: ModuleType) -> None:
    lenet, arms = servers.NETWORKS[0], {arm.name: arm for arm in servers.ARMS}
    central, colocated, even = (
        servers.rate(lenet, "sync", arms[name], 8)
        for name in ("central as many, hash", "colocated, hash", "colocated, split evenly")
    )
    assert colocated < 1.1 * central
    assert even > 2 * colocated


@pytest.mark.parametrize(
    ("network", "count", "shares"),
    [
        (0, 2, (1.99, 1.56, 1.99)),
        (0, 3, (2.34, 2.33, 2.34)),
        (0, 4, (3.18, 3.11, 3.18)),
        (1, 2, (1.00, 1.14, 1.00)),
        (1, 3, (2.68, 1.50, 1.07)),
        (1, 4, (1.99, 1.86, 1.14)),
    ],
)
def test_the_fullest_server_has_so_much_more_than_the_mean(
    servers: ModuleType, network: int, count: int, shares: tuple[float, ...]
) -> None:
    """Worked out by hand for round_robin, greedy and hash, to two digits."""
    sizes = servers.NETWORKS[network].sizes
    for placement, share in zip(servers.PLACEMENTS, shares, strict=True):
        slices = servers.place(sizes, count, placement)
        fullest = max(map(servers.elements, slices))
        assert fullest / (sum(sizes) / count) == pytest.approx(share, abs=0.0051)


def test_the_sizes_of_lenet_are_those_of_the_model(servers: ModuleType) -> None:
    from lsgd.config import load_recipe
    from lsgd.plan.gradients import parameter_sizes

    sizes = parameter_sizes(load_recipe(["+recipe=fashion_lenet5"]))
    assert tuple(sizes) == servers.NETWORKS[0].sizes
