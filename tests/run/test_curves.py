import contextlib
import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import indent

import pytest
from helpers.event_file import points, reader, texts

from lsgd.run import curves
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
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        made.append(Curves(run, examples, rate="top1_error"))
        return made[-1]

    yield opened
    for each in made:
        each.file.file.close()


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


def test_the_configuration_of_an_extended_run_is_added_once(run: Path, opened: Opens) -> None:
    """At the step from which it holds, beside that of the start."""
    rows = [row(1), row(2)]
    opened(run, *rows)
    opened(run, *rows)
    first = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text("name: an extended run\n")
    opened(run, *rows)
    opened(run, *rows)
    opened(run, *rows, row(3))
    events = reader(run).Reload().Tensors("config")
    shown = [(each.step, each.tensor_proto.string_val[0].decode()) for each in events]
    assert shown == [(0, indent(first, "    ")), (20, "    name: an extended run\n")]
    assert points(run)[CURVE] == expected(1, 2, 3)


def test_killed_before_the_old_one_is_removed_no_point_is_there_twice(
    run: Path, opened: Opens
) -> None:
    opened(run, row(1), row(2), row(3))
    (newest,) = files(run)
    older = newest.with_name("events.out.tfevents.1.host.1")
    older.write_bytes(newest.read_bytes())
    assert points(run)[CURVE] == expected(1, 2, 3)
    opened(run, row(1))
    assert points(run)[CURVE] == expected(1)
    assert len(files(run)) == 1


def test_a_running_tensorboard_shows_each_point_once(run: Path, opened: Opens) -> None:
    """Whether rows were dropped, as after a kill, or not, as after a preemption."""
    first = opened(run, row(1))
    running = reader(run)
    for step in (2, 3, 4):
        first.draw(row(step))
    assert points(running)[CURVE] == expected(1, 2, 3, 4)
    left = [row(1), row(2)]
    for then in ((3, 5), (6, 7)):
        again = opened(run, *left)
        for step in then:
            again.draw(row(step))
        left += map(row, then)
        assert points(running)[CURVE] == points(run)[CURVE] == expected(*(r["step"] for r in left))


def test_of_a_long_file_the_end_is_read(
    run: Path, opened: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the last row that is left, however many were dropped; and it is not written anew."""
    many = [row(step) for step in range(1, 401)]
    opened(run, *many)
    read: list[int] = []
    spans = curves._record_spans

    def counted(data: bytes, *, may_be_cut: bool) -> list[tuple[int, int]]:
        read.append(len(data))
        return spans(data, may_be_cut=may_be_cut)

    monkeypatch.setattr(curves, "WINDOW", 2048)
    monkeypatch.setattr(curves, "_record_spans", counted)
    monkeypatch.setattr(Curves, "_rebuild", None)
    for left, windows in ((400, 1), (399, 1), (250, 10)):
        read.clear()
        opened(run, *many[:left])
        assert sum(read) <= windows * 2048
        assert points(run)[CURVE] == expected(*range(1, left + 1))


def test_a_record_cut_short_is_drawn_again(run: Path, opened: Opens) -> None:
    """Wherever the kill cut it, as on a full disk; rows without a record are drawn too."""
    opened(run, *map(row, range(1, 5)))
    (file,) = files(run)
    whole = file.read_bytes()
    record = len(whole) // 4
    for size in range(len(whole) - record, len(whole)):
        file.write_bytes(whole[:size])
        made = opened(run, *map(row, range(1, 6)))
        assert points(run)[CURVE] == expected(1, 2, 3, 4, 5)
        file = made.path


def test_a_file_that_is_not_of_these_rows_is_made_anew(run: Path, opened: Opens) -> None:
    """Damaged, of other rows, or with another name elsewhere, which keeps its content."""
    for content in (bytes(5000), b"\xff" * 5000, b""):
        (run / "tensorboard").mkdir(exist_ok=True)
        newest = run / "tensorboard" / "events.out.tfevents.9999999999.host.1"
        newest.write_bytes(content)
        opened(run, row(1), row(2))
        assert points(run)[CURVE] == expected(1, 2)
        newest.unlink(missing_ok=True)
    opened(run, row(1) | {"loss": 7.0})
    assert points(run)[CURVE] == [(10, 7.0)]
    (file,) = files(run)
    elsewhere = run / "elsewhere"
    os.link(file, elsewhere)
    content = elsewhere.read_bytes()
    opened(run, row(1) | {"loss": 7.0}).draw(row(2))
    assert points(run)[CURVE] == [(10, 7.0), (20, 2.0)]
    assert elsewhere.read_bytes() == content


def test_text_is_shown_as_it_is(run: Path, opened: Opens) -> None:
    opened(run).add_text("outcome", "5.0 % ± 0.1")
    assert texts(run) == {
        "config": "    # *not* Markdown\n    name: a <b> run\n",
        "outcome": "5.0 % ± 0.1",
    }


@pytest.mark.parametrize("rebuilds", [False, True])
def test_what_a_full_disk_keeps_back_is_there_once_there_is_space(
    rebuilds: bool,
    small_disk: Path,
    tmp_path_factory: pytest.TempPathFactory,
    opened: Opens,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither a row nor the file before is lost, whenever it gets full."""
    if rebuilds:
        monkeypatch.setattr(Curves, "_continue", lambda *_: False)
    ballast = small_disk / "ballast"
    (small_disk / "metrics.jsonl").symlink_to(tmp_path_factory.mktemp("large") / "rows")
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
        made_anew = opened(small_disk, *map(row, range(1, made + 1)))
        shown = points(small_disk).get(CURVE, []) if made else []
        assert shown == expected(*range(1, made + 1))
        for step in range(made + 1, made + 301):
            made_anew.draw(row(step))
        made += 300
        assert made_anew.file.unwritten
        ballast.unlink()
        made_anew.close()
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
