"""Which nodes of a job are slow or broken, by their figures."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsgd.doctor.nodes import (
    SLOW_MATRIX,
    UNKNOWN,
    Link,
    NodeFigures,
    common_failures,
    culprits,
    exclusion,
    expected_hosts,
    judge_nodes,
    node_table,
    ring_rounds,
)
from lsgd.job.launcher import Launch


def equal_nodes(number: int, per_node: int = 8) -> list[NodeFigures]:
    return [
        NodeFigures(
            f"n{i}",
            tuple(range(per_node * i, per_node * (i + 1))),
            gflops=500e3,
            slowest=per_node * i + 3,
            inside_mb_per_s=90e3,
            disk_mb_per_s=2000.0,
            clock_ahead=0.002,
        )
        for i in range(number)
    ]


def ring(speeds: Sequence[float | None]) -> list[Link]:
    """The links of a ring in which link i goes from node i to the next."""
    return [Link(f"n{i}", f"n{(i + 1) % len(speeds)}", speed) for i, speed in enumerate(speeds)]


def judged(nodes: Sequence[NodeFigures], links: Sequence[Link] = ()) -> list[tuple[str, str]]:
    return [(" ".join(each.hosts), each.text) for each in judge_nodes(nodes, links)]


@pytest.mark.parametrize("number", [1, 2, 3, 8])
def test_equal_nodes_raise_no_alarm(number: int) -> None:
    links = ring([40e3] * number) if number > 2 else ring([40e3, 40e3])[: number - 1]
    assert judged(equal_nodes(number), links) == []


def test_one_slow_node_of_eight_is_named_with_its_figure_and_the_median() -> None:
    """In each figure alone, and in nothing else."""
    for changes, text in (
        (
            {"gflops": 300e3},
            "matrix product of process 43 300,000 GFLOP/s, 0.60 of the median 500,000",
        ),
        ({"inside_mb_per_s": 45e3}, "all-reduce inside 45,000 MB/s, 0.50 of the median 90,000"),
        ({"disk_mb_per_s": 99.5}, "disk 99.5 MB/s, 0.05 of the median 2,000"),
        ({"clock_ahead": -3.25}, "its clock is 3.2 s behind that of process 0"),
    ):
        nodes = equal_nodes(8)
        nodes[5] = replace(nodes[5], **changes)
        assert judged(nodes, ring([40e3] * 8)) == [("n5", text)]
    # Its two links are slow, and neither neighbour is blamed for one of them.
    links = ring([40e3, 40e3, 40e3, 40e3, 10e3, 10e3, 40e3, 40e3])
    text = "all-reduce with either neighbour 10,000 MB/s, 0.25 of the median 40,000"
    assert judged(equal_nodes(8), links) == [("n5", text)]


def test_of_two_nodes_the_slower_is_named() -> None:
    nodes = equal_nodes(2)
    nodes[1] = replace(nodes[1], gflops=250e3)
    assert [host for host, _ in judged(nodes, ring([40e3, 40e3])[:1])] == ["n1"]
    # Their only link has none to be compared with, unless it fails.
    assert judged(equal_nodes(2), [Link("n0", "n1", 1.0)]) == []
    assert judged(equal_nodes(2), [Link("n0", "n1", None, "gave a wrong sum")]) == [
        ("n0 n1", "the all-reduce between them gave a wrong sum")
    ]


def test_a_slow_link_names_both_its_ends() -> None:
    """As both nodes have another link, which is fast, neither is at fault alone."""
    for number in (3, 4, 8):
        speeds: list[float | None] = [40e3] * number
        speeds[1] = 10e3
        text = "all-reduce between them 10,000 MB/s, 0.25 of the median 40,000"
        assert judged(equal_nodes(number), ring(speeds)) == [("n1 n2", text)]
    assert judged(equal_nodes(4), ring([None, 40e3, 40e3, 40e3])) == [
        ("n0 n1", "the all-reduce between them did not end")
    ]


@given(st.data(), st.integers(2, 12))
def test_noise_of_5_percent_raises_no_alarm(data: st.DataObject, number: int) -> None:
    """Whatever the nodes, and a node of 0.6 beside it is named alone."""
    noise = st.floats(0.95, 1.05)
    names = ("gflops", "inside_mb_per_s", "disk_mb_per_s")
    nodes = [
        replace(node, **{name: getattr(node, name) * data.draw(noise) for name in names})
        for node in equal_nodes(number)
    ]
    speeds = [40e3 * data.draw(noise) for _ in range(number)]
    links = ring(speeds) if number > 2 else ring(speeds)[:1]
    assert judged(nodes, links) == []
    slow = data.draw(st.integers(0, number - 1))
    nodes[slow] = replace(nodes[slow], gflops=500e3 * SLOW_MATRIX * 0.6)
    assert [host for host, _ in judged(nodes, links)] == [f"n{slow}"]


@given(st.integers(1, 40))
def test_a_ring_has_each_link_once_and_a_node_one_at_a_time(number: int) -> None:
    rounds = ring_rounds(number)
    for links in rounds:
        ends = [end for link in links for end in link]
        assert len(ends) == len(set(ends))
    links = [frozenset(link) for each in rounds for link in each]
    wanted = {frozenset((i, (i + 1) % number)) for i in range(number)} if number > 1 else set()
    assert len(links) == len(set(links))
    assert set(links) == wanted


def test_failures_of_most_nodes_are_no_nodes_own() -> None:
    nodes = [
        replace(node, failed_checks={"shared memory": "0.1 GB -> more"}) for node in equal_nodes(4)
    ]
    assert judged(nodes) == []
    assert common_failures(nodes) == {"shared memory": "0.1 GB -> more"}
    nodes = [*equal_nodes(3), nodes[3]]
    assert judged(nodes) == [("n3", "shared memory: 0.1 GB -> more")]
    assert common_failures(nodes) == {}


def test_nodes_without_figures_are_broken_and_judge_no_others() -> None:
    nodes = equal_nodes(4)
    nodes[2] = NodeFigures("n2", (16, 17), problems=("process 16 has not joined within 120 s",))
    assert judged(nodes, ring([40e3] * 3)) == [("n2", "process 16 has not joined within 120 s")]
    table = node_table(nodes, ring([40e3] * 3))
    assert "| n2     |" in table
    assert "16, 17 |       – |" in table
    assert "| median |" in table


def test_the_nodes_to_leave_out() -> None:
    """A slow link costs one of its ends, and not the node of process 0."""
    nodes = equal_nodes(8)
    nodes[5] = replace(nodes[5], gflops=1.0)
    found = judge_nodes(nodes, ring([40e3, 40e3, 40e3, 40e3, 40e3, 40e3, 40e3, 1e3]))
    assert [each.hosts for each in found] == [("n5",), ("n7", "n0")]
    assert culprits(found, "n0") == ["n5", "n7"]
    # A link of a node that is left out anyway costs no other node.
    found = judge_nodes(nodes, ring([40e3, 40e3, 40e3, 40e3, 40e3, 1e3, 40e3, 40e3]))
    assert culprits(found, "n0") == ["n5"]
    hosts = ",".join(f"n{i}:8" for i in range(8))
    without = "--hosts n0:8,n1:8,n2:8,n3:8,n4:8,n6:8,n7:8"
    assert exclusion(["n5"], hosts, "", is_slurm=False) == without
    assert exclusion(["n5"], "", "n9", is_slurm=True) == "--exclude=n9,n5"
    assert exclusion(["n5"], "", "", is_slurm=False) == ""


def test_a_node_without_a_known_name_is_in_no_option() -> None:
    """Neither are nodes that the launcher's list names otherwise."""
    assert exclusion([UNKNOWN, "n5"], "", "n9", is_slurm=True) == "--exclude=n9,n5"
    assert exclusion([UNKNOWN], "", "n9", is_slurm=True) == ""
    assert exclusion([UNKNOWN], "n0:8,n1:8", "", is_slurm=False) == ""
    assert exclusion(["n1.cluster"], "n0:8,n1:8", "", is_slurm=False) == ""


def test_the_node_of_a_process_that_never_came() -> None:
    """By Slurm's list of the step, or the launcher's --hosts; unknown if they count otherwise."""
    step = {"SLURM_STEP_NODELIST": "n[1-3]", "SLURM_STEP_TASKS_PER_NODE": "2(x2),1"}
    planned = expected_hosts(Launch("srun", world_size=5), "", step)
    assert planned == ["n1", "n1", "n2", "n2", "n3"]
    # A job of mpirun inside a Slurm job has another number of processes.
    assert expected_hosts(Launch("mpirun", world_size=5), "", step) is None
    assert expected_hosts(Launch("mpirun", world_size=5), "a:2,b:2", {}) is None
