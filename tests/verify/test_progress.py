"""The progress of a verification: the work that is planned, and the lines by a clock."""

from dataclasses import replace

from helpers.base_recipe import BASE

from lsgd.recipe import Evaluation
from lsgd.verify.progress import Progress, Work, work_of_place


def test_steps_are_executed_three_times_and_ends_of_epochs_evaluated() -> None:
    first = BASE.steps_per_epoch
    assert work_of_place(BASE, 0, 3) == Work(9, 0)
    assert work_of_place(BASE, 0, first) == Work(3 * first, 3)
    assert work_of_place(BASE, first, first + 1) == Work(3, 3)  # the restored model
    assert work_of_place(BASE, first + 1, first + 2) == Work(3, 0)
    assert work_of_place(BASE, BASE.total_steps, BASE.total_steps) == Work(0, 3)
    rarely = replace(BASE, evaluation=Evaluation(every=2))
    assert work_of_place(rarely, 0, 2 * first) == Work(6 * first, 3)


def test_evaluations_within_epochs_count_from_the_place_to_the_last_step() -> None:
    often = replace(BASE, evaluation=Evaluation(every=0.5))
    first = often.evaluation_places(0)[0]
    end = BASE.steps_per_epoch
    assert work_of_place(often, 0, first - 1) == Work(3 * (first - 1), 0)
    assert work_of_place(often, 0, first) == Work(3 * first, 3)
    assert work_of_place(often, first, first + 1) == Work(3, 3)  # the restored model
    assert work_of_place(often, first, end) == Work(3 * (end - first), 6)
    assert work_of_place(often, end, end + first) == Work(3 * first, 6)
    assert work_of_place(often, often.total_steps, often.total_steps) == Work(0, 3)


def test_a_line_at_most_every_ten_seconds_with_the_time_left() -> None:
    now, lines = [0.0], list[str]()
    progress = Progress({0: Work(9, 0), 9: Work(9, 6)}, lines.append, lambda: now[0])

    def step(seconds: float) -> None:
        now[0] += seconds
        progress.end_step()

    assert progress.all == Work(18, 6)
    progress.start_execution(0, 0)
    step(6)
    assert lines == []
    step(6)
    assert lines == ["step 2 of 18, at least 96 s left"]
    list(progress.watch_batches(iter("ab")))
    now[0] += 11
    assert list(progress.watch_batches(iter("ab"))) == ["a", "b"]
    assert lines[1:] == ["step 2 of 18, at least 96 s left"]
    progress.start_execution(9, 1)  # the executions before were shorter than planned
    now[0] += 1
    progress.watch_evaluation("val", 0, 2)
    now[0] += 20
    progress.watch_evaluation("val", 1, 2)
    progress.end_evaluation()
    assert lines[2] == "step 12 of 18, evaluating val: batch 1/2, at least 36 s left"
    step(11)
    assert lines[3] == "step 13 of 18, 2 min left"


def test_nothing_is_printed_on_other_processes() -> None:
    now = [0.0]
    progress = Progress({0: Work(3, 0)}, None, lambda: now[0])
    progress.start_execution(0, 0)
    now[0] = 100.0
    progress.end_step()
    assert progress.done == Work(1, 0)
