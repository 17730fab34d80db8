"""Who is named, and why, from times given by hand."""

from collections.abc import Iterable

import pytest

from lsgd.profile.stragglers import (
    BETWEEN_STEPS,
    ProcessTiming,
    describe_straggler,
    phase_table,
    process_table,
)


def step(wait: float, forward: float, backward: float, communication: float) -> dict[str, float]:
    """Milliseconds of the phases; the optimizer takes one."""
    times = {"data wait": wait, "forward": forward, "backward": backward}
    times |= {"communication": communication, "optimizer": 1.0, BETWEEN_STEPS: 2.0}
    return {phase: each / 1000 for phase, each in times.items()}


def timing(rank: int, *steps: dict[str, float], workers: int = 4) -> ProcessTiming:
    return ProcessTiming(rank, f"host{rank // 2}", workers, list(steps))


def alike(rank: int, *times: float, workers: int = 4) -> ProcessTiming:
    return timing(rank, *[step(*times)] * 10, workers=workers)


def test_a_slow_loader_is_named_and_not_the_others_backward() -> None:
    """The others' step is as long; they spend it in communication, and in a longer backward."""
    others = [alike(rank, 1, 10, 24, 36) for rank in (0, 1, 3)]
    said = describe_straggler([*others[:2], alike(2, 50, 10, 10, 1), others[2]])
    assert said == (
        "process 2 on host1 makes the others wait, by its data wait: 50.00 ms a step, 49.00 ms "
        "more than the others (median), of a step of 72.00 ms"
    )


@pytest.mark.parametrize(
    ("times", "cause"),
    [((1, 40, 20, 1), "forward"), ((1, 10, 50, 1), "backward"), ((30, 35, 20, 1), "data wait")],
)
def test_the_cause_is_the_phase_with_the_largest_excess(times: Iterable[float], cause: str) -> None:
    said = describe_straggler([alike(0, 1, 10, 20, 31), alike(1, *times)])
    assert f"process 1 on host0 makes the others wait, by its {cause}" in said


def test_noise_names_no_one() -> None:
    """Slow in turns; and a little slower, though in every step."""
    quick, slow = step(1, 10, 20, 31), step(31, 10, 20, 1)
    turns = [timing(0, *[quick, slow] * 4, slow), timing(1, *[slow, quick] * 4, quick)]
    assert describe_straggler(turns).startswith(
        "no process is slower than the others beyond noise: the most"
    )
    assert "process 0, by 3.33 ± " in describe_straggler(turns)
    steady = [alike(0, 1, 10, 20, 31), alike(1, 1, 12, 20, 29)]
    assert describe_straggler(steady).startswith("no process is slower")
    assert "by 2.00 ± 0.00 ms of a step of 63.00 ms" in describe_straggler(steady)


def test_of_a_single_step_no_one_is_named() -> None:
    timings = [timing(0, step(1, 10, 20, 31)), timing(1, step(31, 10, 20, 1))]
    assert describe_straggler(timings).startswith("no process is slower")
    twice = [timing(each.rank, *each.steps * 2) for each in timings]
    assert "process 1" in describe_straggler(twice)
    assert "data wait" in describe_straggler(twice)


def test_only_processes_with_the_most_workers_are_compared() -> None:
    """Others work less, as a server without workers; who hosts more than any other has no peer."""
    busy = [alike(0, 1, 15, 30, 1, workers=3), alike(1, 1, 15, 30, 1, workers=3)]
    idle = [alike(2, 1, 10, 20, 16, workers=2), alike(3, 0, 0, 0, 46, workers=0)]
    assert describe_straggler(busy + idle).startswith("no process is slower than the others")
    assert describe_straggler(busy[:1] + idle) == (
        "process 0 on host0 hosts 3 workers, more than any other, so that there is no process to "
        "compare it with"
    )
    slow = alike(1, 1, 40, 30, 1, workers=3)
    said = describe_straggler([busy[0], slow, *idle])
    assert "process 1 on host0 makes the others wait, by its forward: 40.00 ms a step, 25" in said


def test_alone_there_is_no_one_to_wait_for() -> None:
    assert describe_straggler([alike(0, 1, 10, 20, 0)]) == "one process, which waits for no other"


def test_the_split_is_over_processes_of_means_over_steps() -> None:
    timings = [
        timing(0, step(1, 10, 20, 30), step(3, 10, 20, 30)),
        timing(1, step(4, 10, 20, 28), step(6, 10, 20, 26)),
        timing(2, step(2, 10, 20, 29), step(4, 12, 20, 29)),
    ]
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in phase_table(timings).split("\n")
    ]
    # Steps of 63, 62.5 and 63.5 ms.
    assert rows[2:] == [
        ["data wait", "2.00", "3.00", "5.00", "4.8 %"],
        ["forward", "10.00", "10.00", "11.00", "15.9 %"],
        ["backward", "20.00", "20.00", "20.00", "31.7 %"],
        ["communication", "27.00", "29.00", "30.00", "46.0 %"],
        ["optimizer", "1.00", "1.00", "1.00", "1.6 %"],
        ["between steps", "2.00", "2.00", "2.00", ""],
    ]
    line = process_table(timings).splitlines()[3]
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells == ["1", "host0", "4", "5.00", "10.00", "20.00", "27.00", "1.00", "2.00"]
