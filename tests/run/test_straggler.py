"""Which host makes the others wait in an epoch, by the waits of all processes."""

from hypothesis import given
from hypothesis import strategies as st

from lsgd.run.slowness import ProcessWaits, find_straggler


def waits(number: int, *, workers: int = 8) -> list[ProcessWaits]:
    return [ProcessWaits(f"node{i}", workers, 0.3, 0.02) for i in range(number)]


@given(st.data(), st.integers(2, 8))
def test_the_slow_one_of_some_processes(data: st.DataObject, number: int) -> None:
    """With noise of 5 % of the time in the others' waits, none is named without it."""
    noise = st.floats(-0.05, 0.05, exclude_max=True)
    processes = [
        each._replace(communication=each.communication + data.draw(noise)) for each in waits(number)
    ]
    assert find_straggler(processes) == ""
    slow = data.draw(st.integers(0, number - 1))
    processes[slow] = processes[slow]._replace(communication=0.1)
    assert find_straggler(processes) == f"node{slow}"


def test_a_process_with_more_workers_is_no_straggler() -> None:
    """Its machine may be as fast as the others; among its equals one may still be slow."""
    fewer = [each._replace(workers=7, communication=0.5) for each in waits(3)]
    most = ProcessWaits("busy", 8, 0.0, 0.0)
    assert find_straggler([*fewer, most]) == ""
    equals = [most._replace(host="other", communication=0.2), most]
    assert find_straggler([*fewer, *equals]) == "busy"


def test_between_gpus_the_waits_for_data_are_compared() -> None:
    """Since NCCL makes only the device wait."""
    processes = [each._replace(communication=0.0) for each in waits(4)]
    assert find_straggler(processes) == ""
    processes[2] = processes[2]._replace(data=0.2)
    assert find_straggler(processes) == "node2"


def test_one_machine_has_no_other_host() -> None:
    """Nor has one process."""
    assert find_straggler(waits(1)) == ""
    slow = waits(2)[0]._replace(communication=0.0)
    assert find_straggler([slow._replace(communication=0.9), slow]) == ""
