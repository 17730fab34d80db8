import contextlib
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.event_file import points, reader, texts

from lsgd.run.curves import Curves

CURVE = "2_training_by_examples/loss"
Opens = Callable[..., Curves]


def row(step: int) -> dict:
    return {"kind": "train", "step": step, "epoch": step / 10, "loss": float(step)}


def examples(steps: int) -> int:
    return 10 * steps


def expected(*steps: int) -> list[tuple[int, float]]:
    return [(10 * step, float(step)) for step in steps]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text("# *not* Markdown\nname: a <b> run\n")
    return tmp_path


@pytest.fixture
def opened() -> Iterator[Opens]:
    """Opens the curves of a run that already has such rows; not one is closed, as by a kill."""
    made: list[Curves] = []

    def opened(run: Path, *rows: dict) -> Curves:
        made.append(Curves(run, list(rows), examples, rate="top1_error"))
        return made[-1]

    yield opened
    for curves in made:
        curves.file.file.close()


def files(run: Path) -> list[Path]:
    """Those that are not empty."""
    return [path for path in (run / "tensorboard").iterdir() if path.stat().st_size]


def test_made_anew_it_has_the_rows_that_are_left_and_takes_the_place_of_the_old(
    run: Path, opened: Opens
) -> None:
    first = opened(run)
    for step in (1, 2, 3, 4):
        first.draw(row(step))
    assert points(run)[CURVE] == expected(1, 2, 3, 4)
    (old,) = files(run)
    second = opened(run, row(1), row(2))
    assert points(run)[CURVE] == expected(1, 2)
    second.draw(row(3))
    assert points(run)[CURVE] == expected(1, 2, 3)
    assert len(files(run)) == 1
    assert old.stat().st_size == 0
    opened(run, row(1))
    assert not old.exists()


def test_killed_before_the_old_one_is_removed_no_point_is_there_twice(
    run: Path, opened: Opens
) -> None:
    opened(run, row(1), row(2))
    (old,) = files(run)
    content = old.read_bytes()
    opened(run, row(1), row(2), row(3))
    old.write_bytes(content)
    assert points(run)[CURVE] == expected(1, 2, 3)
    opened(run, row(1))
    assert points(run)[CURVE] == expected(1)
    assert len(files(run)) == 1


def test_text_is_shown_as_it_is(run: Path, opened: Opens) -> None:
    opened(run).add_text("outcome", "5.0 % ± 0.1")
    assert texts(run) == {
        "config": "    # *not* Markdown\n    name: a <b> run\n",
        "outcome": "5.0 % ± 0.1",
    }


def test_what_a_full_disk_keeps_back_is_there_once_there_is_space(
    small_disk: Path, opened: Opens
) -> None:
    """Neither a row nor the file before is lost, whenever it gets full."""
    ballast = small_disk / "ballast"
    (small_disk / "config.yaml").write_text("name: run\n")
    sizes = random.Random(0)

    def fill(left: int) -> None:
        with ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        os.truncate(ballast, max(0, ballast.stat().st_size - left))

    made = 0
    for _ in range(3):
        fill(4096 * sizes.randint(0, 2))
        curves = opened(small_disk, *map(row, range(1, made + 1)))
        shown = points(small_disk).get(CURVE, []) if made else []
        assert shown == expected(*range(1, made + 1))
        for step in range(made + 1, made + 301):
            curves.draw(row(step))
        made += 300
        assert curves.file.unwritten
        ballast.unlink()
        curves.close()
        assert points(small_disk)[CURVE] == expected(*range(1, made + 1))
        assert len(files(small_disk)) == 1


def test_a_list_of_counts_is_a_histogram(run: Path, opened: Opens) -> None:
    """How often each staleness was there, as TensorBoard reads it."""
    opened(run, row(1) | {"staleness_counts": [0, 2, 0, 5]}, row(2) | {"staleness_counts": [3]})
    events = reader(run).Reload()
    first, second = events.Histograms("4_more_by_examples/staleness_counts")
    shown = first.histogram_value
    assert (first.step, shown.min, shown.max, shown.num, shown.sum) == (10, 1, 3, 7, 17)
    assert (shown.bucket_limit, shown.bucket) == ([0.5, 1.5, 2.5, 3.5], [0, 2, 0, 5])
    assert (second.histogram_value.min, second.histogram_value.max) == (0, 0)
    assert points(run)[CURVE] == expected(1, 2)
