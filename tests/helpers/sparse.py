"""A training run that receives a signal at a given point, for runs with sparse evaluations.

    python sparse.py WHAT STEP words of lsgd.train …

Process 0 is killed before the evaluation at that step (`evaluate`), between the row of the epoch
that ends there and its checkpoint (`save`), or after the row of that step (`step`). Or it receives
SIGUSR1 after that row (`leave`), and the job stops two steps later, or in the evaluation at that
step (`leave-evaluation`). With `stop` it receives SIGSTOP after the rows of several steps, such as
4,6, and waits for SIGCONT; with `stop-new` only in a start that resumes nothing.
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
from lsgd.run.saver import CheckpointSaver
from lsgd.scores import Scores

evaluate, save, write = train.evaluate, CheckpointSaver.save, RunLog.write
what, at = "never", set[int]()
written: list[int] = []
"""The steps of the training rows that this process has written."""


def noted_evaluate(
    learner: Learner, inputs: Inputs, sets: Sequence[str], watch: EvaluationProgress
) -> dict[str, Scores]:
    note("evaluate", learner.next_step)
    note("leave-evaluation", learner.next_step)
    return evaluate(learner, inputs, sets, watch)


def noted_save(self: CheckpointSaver, made: Checkpoint, *, milestone: bool = False) -> None:
    if made.step % 5 == 0 and made.step // 5 in made.rates:
        note("save", made.step)
    save(self, made, milestone=milestone)


def noted_write(self: RunLog, kind: str, step: int, **values: Any) -> None:
    write(self, kind, step, **values)
    note("leave", step)
    note("step", step)
    if kind == "train":  # a row of kind "warning" may have the same step
        written.append(step)
        note("stop", step)
        if written[0] == 1:
            note("stop-new", step)


SIGNALS = {
    "leave": signal.SIGUSR1,
    "leave-evaluation": signal.SIGUSR1,
    "stop": signal.SIGSTOP,
    "stop-new": signal.SIGSTOP,
}


def note(now: str, step: int) -> None:
    if now == what and step in at and os.environ.get("RANK", "0") == "0":
        os.kill(os.getpid(), SIGNALS.get(what, signal.SIGKILL))


if __name__ == "__main__":
    what, at = sys.argv[1], {*map(int, sys.argv[2].split(","))}
    train.evaluate, CheckpointSaver.save, RunLog.write = noted_evaluate, noted_save, noted_write
    sys.exit(train.main(sys.argv[3:]))
