"""What a process measures for the comparison of a job's nodes; tests/distributed has whole jobs."""

import platform
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.distributed import HashStore

from lsgd.config import load_recipe
from lsgd.doctor import job_check
from lsgd.doctor.job_check import Meeting, group_speed, main, matrix_rate, measure, read_rate
from lsgd.doctor.nodes import Link

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is repeated, and nobody is waited for."""
    monkeypatch.setattr(job_check, "MATRIX_SECONDS", 0.0)
    monkeypatch.setattr(job_check, "RING_LIMIT", 0.1)


def test_a_process_alone_is_a_node(capsys: pytest.CaptureFixture[str]) -> None:
    """With nothing to compare it with."""
    assert main(["+recipe=digits"]) == 0
    said = capsys.readouterr().out
    assert "measuring this process alone" in said
    assert said.endswith("No node is slow or broken.\n")
    [row] = [line for line in said.splitlines() if line.startswith(f"| {platform.node()} ")]
    assert [cell.strip() for cell in row.split("|")][4:7] == ["–", "–", "–"]


def test_a_process_that_does_not_answer_is_waited_for_once() -> None:
    """And the others get the values of all others."""
    store = HashStore()
    first, second = Meeting(store, 0, 3), Meeting(store, 1, 3)
    found: dict[str, object] = {}
    other = threading.Thread(target=lambda: found.update(a=second.gather("a", "b", 0.0)))
    other.start()
    while not store.check(["a/1"]):
        pass
    assert first.gather("a", "a", 0.01) == ["a", "b", None]
    other.join()
    assert found == {"a": ["a", "b", None]}
    assert first.answering == [0, 1]
    store.set("b/1", '"d"')
    # A limit of days would be noticed.
    assert first.gather("b", "c", 1e5) == ["c", "d", None]


def test_a_group_whose_other_end_is_missing_fails_with_a_reason() -> None:
    assert group_speed(HashStore(), 0, 2, CPU)["problem"].startswith("failed: ")


def test_all_reduces_that_fail_are_of_a_node_or_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has not answered leaves the link of its node without a speed."""
    ring = {
        "ring0": [{"mb_per_s": 9.0}] * 2 + [{"problem": "gave a wrong sum"}] * 2,
        "ring1": [{"mb_per_s": 5.0}, {"mb_per_s": 4.0}, None, {"mb_per_s": 5.0}],
    }
    meeting = SimpleNamespace(rank=0, store=HashStore(), gather=lambda name, *_: ring[name])
    monkeypatch.setattr(job_check, "group_speed", lambda *_: {})
    inside, links = job_check._rings(meeting, {"a": [0, 1], "b": [2, 3]}, CPU)
    assert inside == {"a": 9.0, "b": "the all-reduce inside gave a wrong sum"}
    assert links == [Link("a", "b", None, "did not end in 0.1 s")]
    # Nor does a node count that has lost all its processes.
    ring["ring0"][2:] = [None, None]
    _, links = job_check._rings(meeting, {"a": [0, 1], "b": [2, 3]}, CPU)
    assert links == [Link("a", "b", None, "did not end in 0.1 s")]


def test_a_product_with_other_bits_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    rate, is_repeatable = matrix_rate(CPU)
    assert rate > 0
    assert is_repeatable
    monkeypatch.setattr(torch, "equal", lambda first, second: False)
    found, _ = measure(load_recipe(["+recipe=digits"]), share=None)
    assert found["problems"] == ["the same matrix product gave different results"]


def test_files_of_the_data_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of subfolders too; a folder that is not there is the node's fault."""
    recipe = load_recipe(["+recipe=bs256", f"data.root={tmp_path}"])
    assert read_rate(recipe, 0) is None
    for name in ("train/a/1.jpg", "val/2.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(10**5))
    rate = read_rate(recipe, 0)
    assert rate is not None
    assert rate > 0
    monkeypatch.setattr(job_check, "failed_checks", lambda _: {})
    missing = tmp_path / "none"
    found, _ = measure(load_recipe(["+recipe=bs256", f"data.root={missing}"]), share=0)
    problem = f"data.root: [Errno 2] No such file or directory: '{missing}'"
    assert found["problems"] == [problem]
    assert read_rate(load_recipe(["+recipe=bs256", "inputs=synthetic"]), 0) is None


@pytest.mark.parametrize("group", ["inputs", "data"])
def test_parts_of_ones_own_may_read_other_files(
    group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node without the default folder is not broken; with data.root its files are read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "1.jpg").write_bytes(bytes(10**5))
    recipe = load_recipe(["+recipe=bs256"])
    own = {"inputs": {"loader": "pkg.mod:Own"}, "data": {"workload": "pkg.mod:Own"}}[group]
    for root, is_read in ((None, False), (str(tmp_path), True)):
        asked = replace(recipe, data=replace(recipe.data, root=root))
        asked = replace(asked, **{group: replace(getattr(asked, group), **own)})
        assert (read_rate(asked, 0) is not None) == is_read
