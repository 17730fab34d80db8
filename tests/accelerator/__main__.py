"""Compare runs on a stand-in of an accelerator with runs on the CPU, and count the device's work.

    python tests/accelerator                       # the runs of the tests, a minute or two
    python tests/accelerator --write               # write what tests/golden/device.json expects
    python tests/accelerator optim bn precision    # all values of these with all of the others and
                                                   # with every strategy: hours, if they are many

Prints a row for the last step of each run: operators, copies to and from the device, and the
operations for which the host waits.
"""

import argparse
import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]
import test_device_jobs  # noqa: E402
from helpers.device_runs import (  # noqa: E402
    AXES,
    FLOAT16_RUN,
    GOLDEN,
    PHASES_RUN,
    STRATEGIES,
    compare,
    image_runs,
    make_images,
    products,
    text_runs,
    versions,
)
from helpers.launching import SERVERS, launch  # noqa: E402

from lsgd.tables import markdown_table  # noqa: E402

HEAD = ["run", "as on the CPU", "operators", "copies to", "copies from", "waits"]


def main() -> int:
    """Run the command line and return the exit code, 1 if any run differs."""
    line = argparse.ArgumentParser(
        "python tests/accelerator",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    line.add_argument("axes", nargs="*", choices=[[], *AXES], help=", ".join(AXES))
    line.add_argument("--write", action="store_true", help=f"write {GOLDEN.name} anew")
    options = line.parse_args()
    if options.axes:
        cells = list(products(options.axes))
    else:
        cells = [each for name in STRATEGIES for each in (*image_runs(name), *text_runs(name))]
        cells += [FLOAT16_RUN, PHASES_RUN]
    torch.set_num_threads(1)
    golden, differing, rows = {}, 0, []
    with tempfile.TemporaryDirectory() as folder:
        images = make_images(Path(folder) / "images")
        for number, cell in enumerate(cells):
            with contextlib.redirect_stdout(io.StringIO()):
                outcome = compare(cell.recipe(images), Path(folder) / str(number))
            golden[cell.name] = step = outcome.step.summary()
            differing += bool(outcome.differences)
            waits = ", ".join(f"{kind} {count}" for kind, count in step["waits"].items())
            same = "no: " + "; ".join(outcome.differences[:3]) if outcome.differences else "yes"
            numbers = [str(step[key]) for key in ("operators", "to device", "from device")]
            rows.append([cell.name, same, *numbers, waits or "none"])
            print(f"{number + 1}/{len(cells)} {cell.name}: {same}", file=sys.stderr, flush=True)
    print(markdown_table(HEAD, rows))
    print(f"\n{len(cells) - differing} of {len(cells)} runs are as on the CPU")
    if options.write:
        content = versions() | {"steps": golden, "jobs": counts_of_jobs()}
        GOLDEN.write_text(json.dumps(content, indent=1) + "\n")
    return bool(differing)


def counts_of_jobs() -> dict[str, Any]:
    """Return the counts of a step's device operations in jobs of two processes, by run and rank."""
    with SERVERS, tempfile.TemporaryDirectory() as folder:
        launch("forked", 2, test_device_jobs.__file__, folder).check_returncode()
        return test_device_jobs.read_counts(Path(folder))


if __name__ == "__main__":
    raise SystemExit(main())
