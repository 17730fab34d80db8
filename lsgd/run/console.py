"""What a run shows while it trains: a progress bar on a terminal or in a notebook, else lines."""

import math
import sys
from collections.abc import Iterator
from typing import TextIO

from tqdm import tqdm

from lsgd.rules.metric import FIRST_SET, METRICS, Metric
from lsgd.run.rows import PER_SECOND, Row, things


class Console:
    """A progress bar with the time left on a terminal or in a notebook, plain lines elsewhere."""

    def __init__(self, first_step: int, total_steps: int, metric: Metric) -> None:
        self.bar = tqdm(
            total=total_steps,
            initial=first_step,
            unit="step",
            dynamic_ncols=True,
            disable=not _can_redraw(sys.stderr),
        )
        self.total_steps = total_steps
        self.metric = metric

    def show(self, kind: str, step: int, row: Row) -> None:
        """Show a row: epochs as lines, steps as the bar's, or as lines where there is no bar."""
        if kind == "train":
            text = f"lr {_shown(row, 'lr'):.4g}  loss {_shown(row, 'loss'):.3f}  {_speed(row)}"
            if self.bar.disable:
                print(
                    f"step {step}/{self.total_steps}  epoch {row['epoch']:.2f}  {text}", flush=True
                )
            self.bar.set_postfix_str(text, refresh=False)
            self.bar.update(step - self.bar.n)
        if kind == "epoch":
            self.say(f"epoch {row['epoch']}: {', '.join([*self._rates(row), _speed(row)])}")

    def _rates(self, row: Row) -> Iterator[str]:
        """The metric, then the other rates of all evaluation sets but their losses, in words."""
        metric = self.metric
        trained = f"(train {metric.amount(_shown(row, f'train_{metric.name}'))})"
        if metric.key in row:
            yield f"{metric.named(_shown(row, metric.key))} {trained}"
        else:
            yield f"not evaluated {trained}"
        for key in row:
            evaluation_set, _, name = key.partition("_")
            if evaluation_set == "train" or name in ("", "loss") or name not in METRICS:
                continue
            rate = METRICS[name]
            if evaluation_set != FIRST_SET:
                yield f"{rate.on(evaluation_set)} {rate.amount(_shown(row, key))}"
            elif key != metric.key:
                yield rate.named(_shown(row, key))

    def say(self, text: str) -> None:
        """A line of its own, above the bar if there is one."""
        self.bar.write(text, file=sys.stdout)
        sys.stdout.flush()

    def close(self) -> None:
        """Close the bar, which stays on the terminal."""
        self.bar.close()


def _can_redraw(stream: TextIO) -> bool:
    """Whether a line can be drawn over itself: a notebook can, and says that it is no terminal."""
    return stream.isatty() or type(stream).__module__.startswith("ipykernel.")


def _speed(row: Row) -> str:
    counted = things(row)
    speed = _shown(row, counted + PER_SECOND)
    # Of an epoch whose steps were all made before the run was resumed.
    return "no step timed" if math.isnan(speed) else f"{speed:.0f} {counted}/s"


def _shown(row: Row, key: str) -> float:
    """The number under this key; null prints as nan."""
    return math.nan if row[key] is None else float(row[key])
