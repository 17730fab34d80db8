"""A run that may not be evaluated after every epoch, and is disturbed where that matters:

    python sparse.py WHAT STEP words of lsgd.train …

Process 0 is killed before the evaluation at that step (`evaluate`), between the row of the epoch
that ends there and its checkpoint (`save`) or after the row of that step (`step`); or it is told to
`leave` there, which the job does two steps later.
"""

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from lsgd import train
from lsgd.evaluation import EvaluationProgress
from lsgd.inputs import Inputs
from lsgd.learner import Learner
from lsgd.run.checkpoint import Checkpoint
from lsgd.run.metrics import RunLog
from lsgd.run.saver import Saver
from lsgd.tally import Scores

evaluate, save, write = train.evaluate, Saver.save, RunLog.write
what, at = "never", 0


def noted_evaluate(
    learner: Learner, inputs: Inputs, sets: Sequence[str], watch: EvaluationProgress
) -> dict[str, Scores]:
    note("evaluate", learner.next_step)
    return evaluate(learner, inputs, sets, watch)


def noted_save(self: Saver, made: Checkpoint, *, milestone: bool = False) -> None:
    if made.step % 5 == 0 and made.step // 5 in made.rates:
        note("save", made.step)
    save(self, made, milestone=milestone)


def noted_write(self: RunLog, kind: str, step: int, **values: Any) -> None:
    write(self, kind, step, **values)
    note("leave", step)
    note("step", step)


def note(now: str, step: int) -> None:
    if (now, step) == (what, at) and os.environ.get("RANK", "0") == "0":
        os.kill(os.getpid(), signal.SIGUSR1 if what == "leave" else signal.SIGKILL)


if __name__ == "__main__":
    what, at = sys.argv[1], int(sys.argv[2])
    train.evaluate, Saver.save, RunLog.write = noted_evaluate, noted_save, noted_write
    sys.exit(train.main(sys.argv[3:]))
