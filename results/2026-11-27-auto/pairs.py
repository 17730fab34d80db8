"""Steps of training with hardware=auto beside hardware=none, in pairs of runs that take turns.

python pairs.py FASHION PTB CONLL
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FASHION, PTB, CONLL = sys.argv[1:4]
SECONDS, PAIRS = 6.0, 3
RUNS = {
    "bs256, 224 px, 1 worker": ["recipe=bs256", "workers=1", "inputs=synthetic", "log_steps=1"],
    "bs256, 64 px, 1 worker": [
        "recipe=bs256",
        "workers=1",
        "inputs=synthetic",
        "data.image_size=64",
        "log_steps=2",
    ],
    "fashion_resnet20": ["recipe=fashion_resnet20", f"data.root={FASHION}", "log_steps=5"],
    "fashion_ladder_bs8": ["recipe=fashion_ladder_bs8", f"data.root={FASHION}", "log_steps=100"],
    "ptb_small": ["recipe=ptb_small", f"data.root={PTB}", "log_steps=20"],
    "conll_bilstm_crf": ["recipe=conll_bilstm_crf", f"data.root={CONLL}", "log_steps=10"],
}
cache = tempfile.mkdtemp()


def step_times(folder):
    """The seconds of a step in each train row of a run folder."""
    file = Path(folder, "metrics.jsonl")
    if not file.exists():
        return []
    found = [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]
    return [row["step_seconds"] for row in found if row["kind"] == "train"]


def run(words, hardware):
    """Train for some seconds after the first row; return the median seconds of a step."""
    folder = tempfile.mkdtemp() + "/run"
    command = [
        sys.executable,
        "-m",
        "lsgd.train",
        *words,
        f"hardware={hardware}",
        f"run_dir={folder}",
        "device=cpu",
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"XDG_CACHE_HOME": cache},
    )
    begin = None
    while process.poll() is None:
        time.sleep(0.5)
        if step_times(folder):
            begin = begin or time.monotonic()
            if time.monotonic() - begin > SECONDS and len(step_times(folder)) > 2:
                process.send_signal(signal.SIGTERM)
                process.wait()
    return statistics.median(step_times(folder)[1:])


for name, words in RUNS.items():
    run(words, "auto")  # which times the settings
    pairs = []
    for number in range(PAIRS):
        order = ("auto", "none") if number % 2 else ("none", "auto")
        taken = {hardware: run(words, hardware) for hardware in order}
        pairs.append(taken)
    ratios = sorted(each["auto"] / each["none"] for each in pairs)
    ms = statistics.median(each["none"] for each in pairs) * 1e3
    print(
        f"| {name} | {ms:.1f} | {ratios[1]:.3f} ({ratios[0]:.3f} to {ratios[2]:.3f}) |", flush=True
    )
for file in Path(cache, "lsgd/autotune").glob("*.json"):
    found = json.loads(file.read_text())
    print(found["timed"]["model"]["name"], found.get("fastest"))
