"""A process keeps to the cores next to its GPU."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from lsgd.job import numa

ADDRESS = "0001:c1:00.0"


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> set[int]:
    """The cores that this process may use: at first 2 to 5, of a machine with one GPU."""
    cores = {2, 3, 4, 5}

    def bind(process: int, wanted: set[int]) -> None:
        cores.clear()
        cores.update(wanted)

    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(cores))
    monkeypatch.setattr(os, "sched_setaffinity", bind)
    monkeypatch.setattr(numa, "DEVICES", tmp_path)
    (tmp_path / ADDRESS).mkdir()
    return cores


@pytest.mark.parametrize(
    ("near", "left"),
    [("0-3,8-11", {2, 3}), ("4", {4}), ("8-11", {2, 3, 4, 5}), ("", {2, 3, 4, 5})],
    ids=["some", "one", "none-allowed", "not-said"],
)
def test_of_the_cores_next_to_the_gpu_the_allowed_ones_are_left(
    near: str, left: set[int], bound: set[int], tmp_path: Path
) -> None:
    (tmp_path / ADDRESS / "local_cpulist").write_text(near + "\n")
    assert numa.bind_near_device(ADDRESS) == left == bound


def test_a_system_without_the_list_leaves_all(bound: set[int]) -> None:
    assert numa.bind_near_device("0000:00:00.0") == {2, 3, 4, 5} == bound


def test_the_address_is_written_as_linux_does() -> None:
    properties = SimpleNamespace(pci_domain_id=1, pci_bus_id=0xC1, pci_device_id=0)
    assert numa.pci_address(properties) == ADDRESS
