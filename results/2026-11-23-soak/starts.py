"""Forty starts of a small live job on a busy machine: does any hang, and how long does each take?

    OMP_NUM_THREADS=1 python starts.py FOLDER

Two workers and a server, a process each, two jobs at a time, at a load of 10 or more: where other
jobs make less of it, loops that want a core each make up for the rest. What each start took is in
starts.json beside this file, and the same command goes on where it stopped.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

STARTS, LOAD = 40, 10
HUNG = 300.0
"""Seconds after which a start counts as hung."""
JSON = Path(__file__).with_name("starts.json")
WORDS = [
    "+recipe=fashion_lenet5", "strategy=async", "strategy.order=live", "workers=2",
    "worker_batch=2", "inputs=synthetic", "data.train_examples=80", "data.val_examples=10",
    "epochs=1", "schedule.milestones=[]", "schedule.warmup_epochs=0", "log_steps=1", "device=cpu",
]  # fmt: skip
"""40 pushes."""


def start(folder: Path) -> dict[str, float | int]:
    """The seconds of one start: until the first update has its row, by which all processes have met
    and each worker has its connection with the server, and until the job has ended.
    """
    train = [sys.executable, "-m", "lsgd.train", *WORDS, f"run_dir={folder}"]
    command = [sys.executable, "-m", "lsgd.supervise.singly", "3", "--", *train]
    rows, begin, first = folder / "metrics.jsonl", time.monotonic(), float("nan")
    load = os.getloadavg()[0]
    with open(f"{folder}.log", "w") as log:
        job = subprocess.Popen(command, stdout=log, stderr=log)
    while job.poll() is None and time.monotonic() < begin + HUNG:
        if first != first and rows.exists() and '"train"' in rows.read_text():
            first = time.monotonic() - begin
        time.sleep(0.05)
    if hung := job.poll() is None:
        job.terminate()
        job.wait()
    seconds = time.monotonic() - begin
    return {
        "load": round(load, 1),
        "first": round(first, 1),
        "seconds": round(seconds, 1),
        "code": -1 if hung else job.returncode,
    }


def main(folder: Path) -> None:
    """All starts that are left."""
    folder.mkdir(exist_ok=True)
    made = json.loads(JSON.read_text()) if JSON.exists() else []
    # Each in a session of its own, as schedulers share out cores by sessions.
    loop = [sys.executable, "-c", "while True: pass"]
    lacking = max(0, LOAD - int(os.getloadavg()[0]))
    loops = [subprocess.Popen(loop, start_new_session=True) for _ in range(lacking)]
    try:
        folders = [folder / f"start{number}" for number in range(len(made), STARTS)]
        with ThreadPoolExecutor(2) as pool:
            for each in pool.map(start, folders):
                made.append(each)
                JSON.write_text("[\n" + ",\n".join(map(json.dumps, made)) + "\n]\n")
    finally:
        for each in loops:
            each.kill()
    for name in ("first", "seconds"):
        values = [each[name] for each in made]
        print(name, min(values), statistics.median(values), max(values))
    print("not ended by themselves with 0:", [each for each in made if each["code"]])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
