"""Compare runs on a GPU with the same runs on the CPU, and count the GPU's work in a step.

    python tests/accelerator/on_gpu.py FOLDER              # on a GPU; writes FOLDER/README.md
    python tests/accelerator/on_gpu.py FOLDER --device cpu # to try it without one

The runs are those of the stand-in's tests: every strategy, with every value of the settings that
affect the device. They use float64, since a GPU sums in another order, and in bfloat16 such a
difference grows within a few updates; one run uses bfloat16, and one float16. Exits with 1 if a run
fails or differs by more than TOLERANCE.
"""

import argparse
import contextlib
import io
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]
from helpers.device_runs import (  # noqa: E402
    AXES,
    FLOAT16_RUN,
    STRATEGIES,
    ComparedRun,
    image_runs,
    make_images,
    run,
    saved_content,
    text_runs,
)

from lsgd import train  # noqa: E402
from lsgd.compare import relative_difference  # noqa: E402
from lsgd.errors import UsageError  # noqa: E402
from lsgd.files import atomic_write, create_output_folder  # noqa: E402
from lsgd.recipe import Recipe  # noqa: E402
from lsgd.tables import markdown_table  # noqa: E402

TOLERANCE = {"float64": 1e-9, "bfloat16": 0.3, "float16": 0.3}
"""The largest relative difference of a saved tensor from the CPU's, by precision."""
IN_FLOAT64 = {"precision": "float64", "evaluation.bfloat16": False}
WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize")
"""The calls of CUDA's runtime in which the host waits for the GPU within a step."""
HEAD = ["run", "precision", "difference", "kernels", "copies to", "copies from", "waits"]


@dataclass
class StepWork:
    """The GPU's work in one training step, as the profiler has seen it."""

    kernels: int = 0
    copies_to: int = 0
    copies_from: int = 0
    waits: int = 0


@contextmanager
def profiled_last_step(recipe: Recipe) -> Iterator[StepWork]:
    """Yield the work of the last training step that a run makes within this context."""
    work, real = StepWork(), train.train_step
    kinds = {torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA}
    activities = kinds & torch.profiler.supported_activities()

    def step(learner: Any, task: Any, *arguments: Any) -> None:
        if task.step + 1 < recipe.total_steps:
            return real(learner, task, *arguments)
        with torch.profiler.profile(activities=activities) as profile:
            real(learner, task, *arguments)
        for event in profile.events() or []:
            on_gpu = event.device_type == torch.autograd.DeviceType.CUDA
            if on_gpu and event.name.startswith("Memcpy HtoD"):
                work.copies_to += 1
            elif on_gpu and event.name.startswith("Memcpy DtoH"):
                work.copies_from += 1
            elif on_gpu and not event.name.startswith(("Memcpy", "Memset")):
                work.kernels += 1
            elif event.name in WAITS:
                work.waits += 1
        return None

    with patch.object(train, "train_step", step):
        yield work


def compared_runs() -> Iterator[ComparedRun]:
    """Yield the stand-in's runs in float64, without DALI, one in bfloat16 and one in float16."""
    for name in STRATEGIES:
        for cell in (*image_runs(name), *text_runs(name)):
            if "dali" not in cell.values:
                values = tuple(each for each in cell.values if each not in AXES["precision"])
                yield replace(cell, values=values, fields=cell.fields | IN_FLOAT64)
    yield ComparedRun("images", "allreduce", ("bfloat16",), AXES["precision"]["bfloat16"])
    yield FLOAT16_RUN


def nested_difference(one: Any, other: Any) -> float:
    """Return the largest relative difference of two nested values' tensors and numbers."""
    match one, other:
        case Tensor(), Tensor() if one.shape == other.shape:
            if not one.is_floating_point():
                return 0.0 if torch.equal(one, other) else float("inf")
            a, b = one.double().nan_to_num(), other.double().nan_to_num()
            return float((a - b).norm() / b.norm().clamp(min=1e-12)) if a.numel() else 0.0
        case dict(), dict() if one.keys() == other.keys():
            return max((nested_difference(one[key], other[key]) for key in one), default=0.0)
        case list() | tuple(), list() | tuple() if len(one) == len(other):
            pairs = zip(one, other, strict=True)
            return max((nested_difference(*pair) for pair in pairs), default=0.0)
        case _:
            return relative_difference(one, other)


def compared(
    cell: ComparedRun, images: Path, folder: Path, device: str
) -> tuple[list[str], bool | None]:
    """Make a run on both devices; return its row of the table, and whether it is as on the CPU.

    That is None if the device refused the run.
    """
    recipe = cell.recipe(images)
    try:
        run(recipe, folder / "cpu", "cpu")
        with profiled_last_step(recipe) as work:
            run(recipe, folder / "device", device)
        difference = nested_difference(
            saved_content(folder / "device"), saved_content(folder / "cpu")
        )
    except UsageError as error:  # an older torch lacks a kernel, as of Adagrad
        return [cell.name, recipe.precision, f"refused: {_in_table(error)}", *"––––"], None
    except Exception as error:  # one that fails must not hide the others
        reason = f"failed: {type(error).__name__}: {_in_table(error)}"
        return [cell.name, recipe.precision, reason, *"––––"], False
    counts = [str(number) for number in vars(work).values()]
    row = [cell.name, recipe.precision, f"{difference:.1e}", *counts]
    return row, difference <= TOLERANCE[recipe.precision]


def _in_table(error: Exception) -> str:
    return str(error).partition("\n")[0].partition(" (")[0].replace("|", "/")[:200]


def main() -> int:
    """Run the command line and return the exit code, 1 if any run fails or differs."""
    line = argparse.ArgumentParser(
        "python tests/accelerator/on_gpu.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    line.add_argument("out", type=Path, metavar="FOLDER", help="a new folder")
    line.add_argument("--device", default="cuda", help="cuda, or cpu to try the command")
    line.add_argument("--only", choices=STRATEGIES, help="only the first run of this strategy")
    options = line.parse_args()
    cells = list(compared_runs())
    if options.only:
        cells = [next(each for each in cells if each.strategy == options.only)]
    torch.set_num_threads(1)
    rows, verdicts = [], []
    with create_output_folder(options.out), tempfile.TemporaryDirectory() as folder:
        images = make_images(Path(folder) / "images")
        for number, cell in enumerate(cells):
            with contextlib.redirect_stdout(io.StringIO()):
                row, is_same = compared(cell, images, Path(folder) / str(number), options.device)
            rows.append(row)
            verdicts.append(is_same)
            print(f"{number + 1}/{len(cells)} {cell.name}: {row[2]}", flush=True)
        refused = verdicts.count(None)
        verdict = f"{verdicts.count(True)} of {len(cells)} runs are as on the CPU, "
        verdict += f"{refused} were refused"
        bounds = ", ".join(f"{most:g} in {name}" for name, most in TOLERANCE.items())
        text = (
            "# Runs on the GPU beside the same runs on the CPU\n\n"
            f"- {verdict}: a saved tensor differs by at most {bounds} of its norm.\n\n"
            "The counts are those of the last step, by torch's profiler.\n\n"
        )
        with atomic_write(options.out / "README.md") as file:
            file.write((text + markdown_table(HEAD, rows) + "\n").encode())
    print(verdict)
    return int(False in verdicts or True not in verdicts)


if __name__ == "__main__":
    raise SystemExit(main())
