"""A trial without torch, which starts in an instant: small_trial.py … +recipe=NAME [key=value …]

It keeps a run folder as lsgd.train does, resumes it, and saves when it is told to leave. Its error
is the lower, the nearer the lr is to that of its recipe. What SMALL_TRIALS, a JSON object, says for
NAME-seedS, or for an lr above X by `lr>X`, happens instead of the second epoch; but `slow` is what
every epoch is. A file in the run folder tells if two processes ever train the same trial at once.
"""

import json
import math
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from lsgd import config
from lsgd.job.members import last_words

EPOCH, SLOW = 0.01, 0.5


def train(words: list[str]) -> tuple[int, str]:
    recipe = config.load_recipe(words)
    plan = json.loads(os.environ.get("SMALL_TRIALS", "{}"))
    mishap = plan.get(f"{recipe.name}-seed{recipe.seed}", "")
    for key, what in plan.items():
        if key.startswith("lr>") and recipe.schedule.reference_lr > float(key[3:]):
            mishap = what
    error = 10.0 + recipe.seed
    if recipe.name == "digits":
        error += 10 * abs(math.log10(recipe.schedule.reference_lr / 0.025))
    folder = Path(str(recipe.run_dir))
    (folder / "config.yaml").write_text(config.to_yaml(recipe))
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    with (folder / "metrics.jsonl").open("a+") as file:

        def write(kind: str, **values: object) -> None:
            print(json.dumps({"kind": kind, "step": 0, **values}), file=file, flush=True)

        file.seek(0)
        done = sum('"epoch"' in line for line in file)
        write("start", pid=os.getpid())
        for epoch in range(done, recipe.epochs):
            time.sleep(SLOW if mishap == "slow" else EPOCH)
            if told:
                return 75, "told to leave by a signal: saved"
            if epoch == 1 and mishap == "3":
                write("diverged", text="loss is not finite")
            if epoch == 1 and mishap not in ("", "slow"):
                return int(mishap), "so it was planned"
            write("epoch", epoch=epoch + 1, val_top1_error=error)
    return 0, ""


def alone(words: list[str]) -> tuple[int, str]:
    """As train, in a folder where no other process is at work."""
    [folder] = [Path(word.partition("=")[2]) for word in words if word.startswith("run_dir=")]
    here = folder / "supervised" / "at work"
    try:
        with here.open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        with suppress(ProcessLookupError):  # one that was killed has left it
            os.kill(int(here.read_text() or 0), 0)
            (folder / "twice").touch()
    try:
        return train(words)
    finally:
        here.unlink(missing_ok=True)


if __name__ == "__main__":
    # What comes before is the launcher's.
    [first] = [place for place, word in enumerate(sys.argv) if word.startswith("+recipe=")]
    with last_words(0) as leave:
        code, why = alone(sys.argv[first:])
        if why:
            print(f"small: {why}")
        raise SystemExit(leave(code, why))
