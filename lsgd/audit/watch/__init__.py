"""The observation of one training process, by hooks of torch, without a change of its results.

This package runs inside the audited script, whose environment may have neither lsgd nor its
dependencies: it imports Python's standard library, torch and itself, by relative imports alone.
Each kind of watch is a class of one file, with the two methods of `record.Watch`.
"""

from __future__ import annotations

import os

from .data import DataWatch
from .forward import ForwardWatch
from .gradient import GradientWatch
from .initialisation import InitialisationWatch
from .record import Record, Watch
from .schedule import ScheduleWatch
from .update import UpdateWatch


def start() -> Record:
    """Register the hooks of all watches in this process; its record is written when it ends."""
    record = Record(
        os.environ["LSGD_AUDIT"],
        int(os.environ["LSGD_AUDIT_UPDATES"]),
        int(os.environ["LSGD_AUDIT_EPOCHS"]),
    )
    watches: list[Watch] = [
        DataWatch(record),
        InitialisationWatch(record),
        GradientWatch(record),
        # Of two observers of a backward pass the later one runs first: it finds the network.
        ForwardWatch(record),
        ScheduleWatch(record),
        UpdateWatch(record),
    ]
    for watch in watches:
        watch.install()
    record.watches = watches
    record.write_at_exit()
    return record
