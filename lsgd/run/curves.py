"""The rows of a run as TensorBoard's curves, drawn so that runs of any minibatch size overlay.

Training is drawn against the examples seen and validation against epochs. A run has one event file.
metrics.jsonl is the truth: when a run goes on, the file is made anew from its rows.
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

from lsgd.files import Appended
from lsgd.run.rows import Row

FILES = "events.out.tfevents.*"


class Curves:
    """The event file of a run folder, which already has the rows made so far.

    `examples` says how many training examples have been seen after a step. The file gets its name
    when all of these rows are in it, on a full disk once there is space again. Only then the file
    before it is emptied, which the next one removes.
    """

    def __init__(self, run: Path, rows: list[Row], examples: Callable[[int], int]) -> None:
        self.examples = examples
        folder = run / "tensorboard"
        folder.mkdir(exist_ok=True)
        # TensorBoard reads its files in the order of their names.
        name = FILES.replace("*", f"{time.time():.6f}.{platform.node()}.{os.getpid()}")
        self.path = folder / name
        # TensorBoard would take any name with tfevents in it for a file of its own.
        self.unfinished = folder / "events.part"
        self.unfinished.unlink(missing_ok=True)
        self.file = Appended(self.unfinished)
        self.records = RecordWriter(self.file)
        self._begin()
        config = run / "config.yaml"
        self._text("config", _verbatim(config.read_text(encoding="utf-8")))
        for row in rows:
            self._record(row)
        self._put_in_place()

    def draw(self, row: Row) -> None:
        """Write a row at once, so that it is not lost if the process dies."""
        self._record(row)
        self._put_in_place()

    def say(self, tag: str, text: str) -> None:
        """Add a text under this name."""
        self._text(tag, text)
        self._put_in_place()

    def close(self) -> None:
        """Write what is left to write, if there is space."""
        self.file.close()
        self._put_in_place()

    def _begin(self) -> None:
        self._add(Event(step=0, file_version="brain.Event:2"))
        # At a START a running TensorBoard drops what it has read from the file before.
        self._add(Event(step=0, session_log=SessionLog(status=SessionLog.START)))

    def _record(self, row: Row) -> None:
        match row["kind"]:
            case "train":
                group, position = "train_by_examples", self.examples(row["step"])
            case "epoch":
                group, position = "epoch", row["epoch"]
            case _:
                return
        values = [
            Summary.Value(tag=f"{group}/{key}", simple_value=value)
            for key, value in row.items()
            if key not in ("kind", "step", "epoch") and isinstance(value, int | float)
        ]
        values += [
            Summary.Value(tag=f"{group}/{key}", histo=_histogram(value))
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
            # TensorBoard that watches one would wait for it for ever if it vanished; at the end of
            # an empty one it looks for the next.
            if old.stat().st_size:
                os.truncate(old, 0)
            else:
                old.unlink()


def _histogram(counts: list[int]) -> HistogramProto:
    """How often each whole number from 0 on was there."""
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
    """Markdown that shows the text as it is."""
    return "".join(f"    {line}\n" for line in text.splitlines())
