"""Times commands of two checkouts in turns, alone or beside busy programs.

    python results/2026-11-25-threads/pairs.py BEFORE AFTER BUSY ROUNDS [COMMAND …]

BEFORE and AFTER are checkouts of lsgd; both run on the Python that runs this, in turns, so many
ROUNDS, beside BUSY programs that keep a core each busy. Each COMMAND is a name of COMMANDS. FASHION names the
folder of Fashion-MNIST. Prints Markdown, and writes each time into pairs.json beside this file.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FASHION = os.environ.get("FASHION", "data/fashion-mnist")
SHORT = "epochs=1 schedule.milestones=[] schedule.warmup_epochs=0.5"
COMMANDS = {
    "digits": "train +recipe=digits run_dir=RUNS",
    "rehearsal": "train +recipe=bs8k rehearse=true run_dir=RUNS",
    "fashion": f"train +recipe=fashion_bs1k {SHORT} data.root={FASHION} run_dir=RUNS",
    "demo": "demo RUNS",
}
LIMIT = 600.0
"""Seconds after which a command is ended, and counts as that."""
OURS = ("OMP_", "GOMP_", "KMP_")


def seconds(checkout: Path, words: str) -> float:
    """Return how long the command takes in this checkout, with a new folder for its runs."""
    runs = tempfile.mkdtemp()
    shutil.rmtree(runs)
    name, *rest = words.replace("RUNS", runs).split()
    environment = {k: v for k, v in os.environ.items() if not k.startswith(OURS)}
    begin = time.perf_counter()
    try:
        subprocess.run(
            [sys.executable, "-m", f"lsgd.{name}", *rest],
            cwd=checkout,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=LIMIT,
        )
    except subprocess.TimeoutExpired:
        return LIMIT
    finally:
        shutil.rmtree(runs, ignore_errors=True)
    return time.perf_counter() - begin


def main(before: str, after: str, busy: str, rounds: str, *names: str) -> None:
    """Time these commands, or all."""
    record = Path(__file__).with_name("pairs.json")
    rows = json.loads(record.read_text()) if record.exists() else []
    for name in names or COMMANDS:
        beside = [
            subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(int(busy))
        ]
        try:
            pairs = [
                [seconds(Path(checkout).resolve(), COMMANDS[name]) for checkout in (before, after)]
                for _ in range(int(rounds))
            ]
        finally:
            for each in beside:
                each.kill()
                each.wait()
        rows.append({"command": name, "busy": int(busy), "pairs": pairs, "load": os.getloadavg()})
        record.write_text(json.dumps(rows, indent=1) + "\n")
        ratios = sorted(second / first for first, second in pairs)
        medians = [statistics.median(column) for column in zip(*pairs, strict=True)]
        print(
            f"| {name} | {busy} | {medians[0]:.1f} | {medians[1]:.1f} | "
            f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |",
            flush=True,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
