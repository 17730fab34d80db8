"""What a run shows while it trains: a progress bar on a terminal, plain lines elsewhere."""

import math
import sys
from typing import Any

from tqdm import tqdm

from lsgd.rules.metric import TOP1
from lsgd.run.rows import Row


class Console:
    """A progress bar with the time left on a terminal, plain lines elsewhere."""

    def __init__(self, first_step: int, total_steps: int) -> None:
        self.bar = tqdm(
            total=total_steps,
            initial=first_step,
            unit="step",
            dynamic_ncols=True,
            disable=not sys.stderr.isatty(),
        )
        self.total_steps = total_steps

    def show(self, kind: str, step: int, row: Row) -> None:
        """Show a row: epochs as lines, steps as the bar's, or as lines where there is no bar."""
        if kind == "train":
            text = "lr {lr:.4g}  loss {loss:.3f}  {images_per_second:.0f} images/s".format_map(
                _Shown(row)
            )
            if self.bar.disable:
                print(
                    f"step {step}/{self.total_steps}  epoch {row['epoch']:.2f}  {text}", flush=True
                )
            self.bar.set_postfix_str(text, refresh=False)
            self.bar.update(step - self.bar.n)
        if kind == "epoch":
            errors = (
                "top-1 error {val_top1_error:.2f} % (train {train_top1_error:.2f} %), top-5 error "
                "{val_top5_error:.2f} %"
                if TOP1.key in row
                else "not evaluated (train {train_top1_error:.2f} %)"
            )
            line = f"epoch {{epoch}}: {errors}, {{images_per_second:.0f}} images/s"
            self.say(line.format_map(_Shown(row)))

    def say(self, text: str) -> None:
        """A line of its own, above the bar if there is one."""
        self.bar.write(text, file=sys.stdout)
        sys.stdout.flush()

    def close(self) -> None:
        """Close the bar, which stays on the terminal."""
        self.bar.close()


class _Shown(dict[str, Any]):
    """A row in which null prints as nan."""

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        return math.nan if value is None else value
