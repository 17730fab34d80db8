"""The rows of a run as TensorBoard curves, drawn so that runs of any minibatch size overlay.

Training is drawn against examples seen and validation against epochs. A run has one event file.
metrics.jsonl is the source of truth: on a resume the event file is rebuilt from its rows. torch's
SummaryWriter is not used, since it ends the run on a full disk and leaves a file for each start.
"""

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_tensor_proto

from lsgd.files import AppendOnlyFile
from lsgd.rules.metric import METRICS
from lsgd.run.rows import Row

FILES = "events.out.tfevents.*"


def tag(kind: str, key: str, rate: str) -> str:
    """Return the TensorBoard tag for a value of a metrics.jsonl row, by the row's kind and the key.

    `rate` is the name of the run's metric, whose curves come first.

    TensorBoard sorts sections and curves by name and opens the first two sections, so the names
    decide what is seen first.

    >>> tag("epoch", "val_top1_error", "top1_error"), tag("train", "lr", "top1_error")
    ('1_result/val_top1_error', '4_more_by_examples/lr')
    """
    if kind == "train":
        return f"{'2_training' if key in METRICS else '4_more'}_by_examples/{key}"
    split, _, name = key.partition("_")
    if name == rate and split != "train":
        return f"1_result/{key}"
    return f"{'3_rates' if name in METRICS else '5_more'}_by_epoch/{key}"


class Curves:
    """The TensorBoard event file of a run, rebuilt at each start from its rows of metrics.jsonl.

    `rate` is the name of the run's metric, and `examples` returns how many training examples have
    been seen after a step. The file gets its name once all of these rows are in it, on a full disk
    once there is space again. Only then the previous file is emptied; the next start removes it.
    """

    def __init__(
        self, run: Path, rows: list[Row], examples: Callable[[int], int], *, rate: str
    ) -> None:
        self.examples, self.rate = examples, rate
        folder = run / "tensorboard"
        folder.mkdir(exist_ok=True)
        # TensorBoard reads its files in the order of their names.
        name = FILES.replace("*", f"{time.time():.6f}.{platform.node()}.{os.getpid()}")
        self.path = folder / name
        # TensorBoard would read any file with tfevents in its name.
        self.unfinished = folder / "events.part"
        self.unfinished.unlink(missing_ok=True)
        self.file = AppendOnlyFile(self.unfinished)
        self.records = RecordWriter(self.file)
        self._begin()
        config = run / "config.yaml"
        self._text("config", _verbatim(config.read_text(encoding="utf-8")))
        for row in rows:
            self._record(row)
        self._put_in_place()

    def draw(self, row: Row) -> None:
        """Append a metrics.jsonl row's values to the event file at once, so a crash loses none."""
        self._record(row)
        self._put_in_place()

    def add_text(self, tag: str, text: str) -> None:
        """Append a text to the TensorBoard event file under this tag."""
        self._text(tag, text)
        self._put_in_place()

    def close(self) -> None:
        """Close the event file and write what a full disk has delayed, if there is space."""
        self.file.close()
        self._put_in_place()

    def _begin(self) -> None:
        self._add(Event(step=0, file_version="brain.Event:2"))
        # At a START, a running TensorBoard drops what it has read from the previous file.
        self._add(Event(step=0, session_log=SessionLog(status=SessionLog.START)))

    def _record(self, row: Row) -> None:
        kind = row["kind"]
        if kind not in ("train", "epoch"):
            return
        position = self.examples(row["step"]) if kind == "train" else row["epoch"]
        values = [
            Summary.Value(tag=tag(kind, key, self.rate), simple_value=value)
            for key, value in row.items()
            if key not in ("kind", "step", "epoch") and isinstance(value, int | float)
        ]
        values += [
            Summary.Value(tag=tag(kind, key, self.rate), histo=_histogram(value))
            for key, value in row.items()
            if isinstance(value, list)
        ]
        self._add(Event(step=position, summary=Summary(value=values)))

    def _text(self, tag: str, text: str) -> None:
        metadata = create_summary_metadata(display_name=None, description=None)
        value = Summary.Value(tag=tag, metadata=metadata, tensor=make_tensor_proto([text.encode()]))
        self._add(Event(step=0, summary=Summary(value=[value])))

    def _add(self, event: Event) -> None:
        event.wall_time = time.time()
        self.records.write(event.SerializeToString())

    def _put_in_place(self) -> None:
        if self.file.unwritten or not self.unfinished.exists():
            return
        os.replace(self.unfinished, self.path)
        for old in set(self.path.parent.glob(FILES)) - {self.path}:
            # A running TensorBoard would wait for ever for a file that was removed; at the end of
            # an empty one it opens the next.
            if old.stat().st_size:
                os.truncate(old, 0)
            else:
                old.unlink()


def _histogram(counts: list[int]) -> HistogramProto:
    """Convert counts of the integers 0, 1, 2, … into a TensorBoard histogram."""
    return HistogramProto(
        min=next((number for number, count in enumerate(counts) if count), 0),
        max=len(counts) - 1,
        num=sum(counts),
        sum=sum(number * count for number, count in enumerate(counts)),
        sum_squares=sum(number**2 * count for number, count in enumerate(counts)),
        bucket_limit=[number + 0.5 for number in range(len(counts))],
        bucket=counts,
    )


def _verbatim(text: str) -> str:
    """Convert a text into Markdown that shows it literally, as an indented code block."""
    return "".join(f"    {line}\n" for line in text.splitlines())
