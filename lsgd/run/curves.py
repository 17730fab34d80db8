"""The rows of a run as TensorBoard curves, drawn so that runs of any minibatch size overlay.

Training, and evaluations within epochs, are drawn against examples seen, and validation at the ends
of epochs against epochs. A run has one event file.
metrics.jsonl is the source of truth: a resume continues the event file behind the event of the last
row that is left, and without such an event it rebuilds the file from all rows. TensorBoard's own
rule for a restart, which drops all points from a step on, is of no use here, since the curves have
two x axes. torch's SummaryWriter is not used, since it ends the run on a full disk and leaves a
file for each start.
"""

import os
import platform
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from textwrap import indent

from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_tensor_proto

from lsgd.files import AppendOnlyFile
from lsgd.rules.metric import METRICS
from lsgd.run.rows import MEASURED, Row, RowReader, read_last_rows
from lsgd.untrusted_files import open_regular

FILES = "events.out.tfevents.*"
HEADER, FOOTER = 12, 4
"""The bytes before and after the content of a TFRecord: its length with a CRC, and its own CRC."""
WINDOW = 2**22
"""The bytes of an event file that are read at a time, from its end backwards."""
BEGINNING = 2**12
"""The bytes at the beginning of an event file in which the first configuration begins."""


def tag(kind: str, key: str, rate: str) -> str:
    """Return the TensorBoard tag for a value of a metrics.jsonl row, by the row's kind and the key.

    `rate` is the name of the run's metric, whose curves come first.

    TensorBoard sorts sections and curves by name and opens the first two sections, so the names
    decide what is seen first.

    >>> tag("epoch", "val_top1_error", "top1_error"), tag("train", "lr", "top1_error")
    ('1_result/val_top1_error', '4_more_by_examples/lr')
    >>> tag("evaluation", "val_top1_error", "top1_error")
    '2_training_by_examples/val_top1_error'
    """
    if kind == "train":
        return f"{'2_training' if key in METRICS else '4_more'}_by_examples/{key}"
    split, _, name = key.partition("_")
    if kind == "evaluation":
        return f"{'2_training' if name == rate else '4_more'}_by_examples/{key}"
    if name == rate and split != "train":
        return f"1_result/{key}"
    return f"{'3_rates' if name in METRICS else '5_more'}_by_epoch/{key}"


class Curves:
    """The TensorBoard event file of a run, which at each start gets the rows of metrics.jsonl.

    `rate` is the name of the run's metric, and `examples` returns how many training examples have
    been seen after a step. The events of dropped rows are cut off, and the file then gets another
    name. A rebuilt file gets its name once all rows are in it, on a full disk once there is space
    again. Only then the previous file is emptied; the next start removes it.
    """

    def __init__(self, run: Path, examples: Callable[[int], int], *, rate: str) -> None:
        self.examples, self.rate = examples, rate
        folder = run / "tensorboard"
        folder.mkdir(exist_ok=True)
        # TensorBoard reads its files in the order of their names.
        name = FILES.replace("*", f"{time.time():.6f}.{platform.node()}.{os.getpid()}")
        self.path = folder / name
        # TensorBoard would read any file with tfevents in its name.
        self.unfinished = folder / "events.part"
        self.unfinished.unlink(missing_ok=True)
        rows = run / "metrics.jsonl"
        text = (run / "config.yaml").read_text(encoding="utf-8")
        config = indent(text, "    ", lambda _: True)  # as a code block of Markdown
        if not self._continue(config, rows):
            self._rebuild(config, rows)

    def _continue(self, config: str, rows: Path) -> bool:
        """Open the newest event file behind the event of the last row, and draw what it lacks.

        That is also the configuration, if the run was extended. Return False, and change no file,
        if it has no such event or cannot be written.
        """
        paths = sorted(path for path in self.path.parent.glob(FILES) if _is_own(path))
        if not paths:
            return False
        newest = paths[-1]
        last = [row for row in read_last_rows(rows) if row["kind"] in MEASURED]
        numbers = {self._event(row).SerializeToString(): number for number, row in enumerate(last)}
        size = newest.stat().st_size
        try:
            found = _last_event(newest, numbers)
        except OSError:
            return False
        if found is None:
            return False
        end, number = found
        if end < size:
            os.truncate(newest, end)
            # A running TensorBoard has read beyond the end, and reads a file of another name anew.
            os.replace(newest, self.path)
            with suppress(OSError):
                newest.touch()  # see _empty_others
            self._empty_others(newest)
        else:
            self.path = newest
            self._empty_others()
        self._open(self.path)
        if not _has_text(self.path, config):
            self._text("config", config, step=self.examples(last[number]["step"]))
        for row in last[number + 1 :]:
            self._record(row)
        return True

    def _rebuild(self, config: str, rows: Path) -> None:
        """Write a new event file with all rows, one by one."""
        self._open(self.unfinished)
        self._add(Event(step=0, file_version="brain.Event:2"))
        # At a START, a running TensorBoard drops what it has read from the previous file.
        self._add(Event(step=0, session_log=SessionLog(status=SessionLog.START)))
        self._text("config", config)
        for row in RowReader(rows):
            self._record(row)
        self._put_in_place()

    def _open(self, path: Path) -> None:
        self.file = AppendOnlyFile(path)
        self.records = RecordWriter(self.file)

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

    def _record(self, row: Row) -> None:
        if row["kind"] in MEASURED:
            self._add(self._event(row))

    def _event(self, row: Row) -> Event:
        """Convert a row of measurements into a TensorBoard event, without a time."""
        kind = row["kind"]
        position = row["epoch"] if kind == "epoch" else self.examples(row["step"])
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
        return Event(step=position, summary=Summary(value=values))

    def _text(self, tag: str, text: str, *, step: int = 0) -> None:
        metadata = create_summary_metadata(display_name=None, description=None)
        value = Summary.Value(tag=tag, metadata=metadata, tensor=make_tensor_proto([text.encode()]))
        self._add(Event(step=step, summary=Summary(value=[value])))

    def _add(self, event: Event) -> None:
        event.wall_time = time.time()
        self.records.write(event.SerializeToString())

    def _put_in_place(self) -> None:
        if self.file.unwritten or not self.unfinished.exists():
            return
        os.replace(self.unfinished, self.path)
        self._empty_others()

    def _empty_others(self, *kept: Path) -> None:
        """Empty the event files of earlier starts, and remove those that are empty."""
        for old in set(self.path.parent.glob(FILES)) - {self.path, *kept}:
            # A running TensorBoard would wait for ever for a file that was removed; at the end of
            # an empty one it opens the next.
            if _is_own(old):
                os.truncate(old, 0)
            else:
                old.unlink()


def _is_own(path: Path) -> bool:
    """Return whether an event file has content that may be changed: no link leads to it."""
    status = path.lstat()
    is_alone = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
    return is_alone and status.st_size > 0 and os.access(path, os.W_OK)


def _has_text(path: Path, text: str) -> bool:
    """Return whether an event file has this text, looking first where that of the start is.

    So the whole file is read only if the configuration has changed since.
    """
    searched = text.encode()
    with open_regular(path) as file:
        if searched in file.read(BEGINNING + len(searched)):
            return True
    return any(searched in content for _, content in _records_from_the_end(path))


def _last_event(path: Path, numbers: dict[bytes, int]) -> tuple[int, int] | None:
    """Find the last event of a file that is one of these; return its end, and its number.

    The events are given as bytes without a time. The file is read from its end backwards, as far as
    there are events of rows after the first one given.
    """
    if not numbers:
        return None
    earliest = Event.FromString(next(iter(numbers)))
    for end, content in _records_from_the_end(path):
        try:
            event = Event.FromString(content)
        except DecodeError:
            continue
        event.ClearField("wall_time")
        if (number := numbers.get(event.SerializeToString())) is not None:
            return end, number
        if _is_before(event, earliest):
            return None
    return None


def _is_before(event: Event, other: Event) -> bool:
    """Return whether an event is on the same x axis as another one, and to the left of it."""
    axis, others = (
        {value.tag.partition("/")[0].rpartition("_")[2] for value in each.summary.value}
        for each in (event, other)
    )
    return axis == others and event.step < other.step


def _records_from_the_end(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield each TFRecord's end in a file and its content, the last one first.

    A record that was cut short at the end of the file is left out. Nothing is yielded of what is
    before a damaged record, nor before one of more than WINDOW bytes.
    """
    with open_regular(path) as file:
        size = border = file.seek(0, os.SEEK_END)
        while border:
            first = max(0, border - WINDOW)
            file.seek(first)
            data = file.read(border - first)
            spans = _record_spans(data, may_be_cut=border == size)
            for begin, end in reversed(spans):
                yield first + end, data[begin + HEADER : end - FOOTER]
            if not spans:
                return
            border = first + spans[0][0]


def _record_spans(data: bytes, *, may_be_cut: bool) -> list[tuple[int, int]]:
    """Return begin and end of the TFRecords that end some bytes, from the first that is whole.

    A record can begin wherever a length stands before its CRC, and counts if it and the records
    after it reach the end of the bytes exactly, or up to a last one that was cut short.
    """
    # Lengths are below 2**24, so five bytes of the eight are 0.
    for zeros in re.finditer(rb"(?=\0{5})", data):
        spans, begin = list[tuple[int, int]](), zeros.start() - 3
        while 0 <= begin <= len(data) - HEADER and (length := _length(data, begin)) is not None:
            end = begin + HEADER + length + FOOTER
            if end > len(data):
                break
            spans.append((begin, end))
            begin = end
        is_cut = may_be_cut and (begin > len(data) - HEADER or _length(data, begin) is not None)
        if spans and (begin == len(data) or is_cut):
            return spans
    return []


def _length(data: bytes, begin: int) -> int | None:
    """Return the length of the record that begins here, or None if its CRC is another one."""
    header = data[begin : begin + 8]
    crc: int = masked_crc32c(header)
    is_length = data[begin + 8 : begin + HEADER] == crc.to_bytes(4, "little")
    return int.from_bytes(header, "little") if is_length else None


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
