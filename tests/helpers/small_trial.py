"""A fake training run without torch, which starts fast.

    python small_trial.py … +recipe=NAME [key=value …]

It writes a run folder as lsgd.train does, resumes it, and saves on SIGTERM. Its error decreases as
the lr approaches that of its recipe. The JSON object SMALL_TRIALS names an exit code by NAME-seedS,
or by `lr>X` for an lr above X: the run ends with it in the second epoch (3: diverged). The value
`slow` makes every epoch slow, and `dead` fails before the first. The file `twice` in the run folder
shows that two processes have trained the same run at once. The folder SMALL_COMPOSED caches
composed recipes, since composing takes longer than the rest. SMALL_COMPOSER is the JSON list of the
command prefix that composes them, `compose` and its overrides.
"""

import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from lsgd.job.members import exit_report
from lsgd.job.system import has_ended

EPOCH, SLOW = 0.01, 0.5
HERE = "RUN_DIR"


def composed(words: list[str]) -> SimpleNamespace:
    """Return the used fields of a recipe with these overrides, from a cache of files if possible.

    The overrides contain HERE in place of the run folder.
    """
    name = hashlib.sha256(json.dumps(words).encode()).hexdigest()
    file = Path(os.environ["SMALL_COMPOSED"], name)
    if not file.exists():
        composer = json.loads(os.environ["SMALL_COMPOSER"])
        subprocess.run([*composer, __file__, "compose", str(file), *words], check=True)
    return SimpleNamespace(**json.loads(file.read_text()))


def compose(file: Path, words: list[str]) -> None:
    """Write the used fields of a recipe with these overrides."""
    from lsgd import config

    made = config.load_recipe(words)
    found = {"name": made.name, "seed": made.seed, "epochs": made.epochs}
    found |= {"lr": made.schedule.reference_lr, "yaml": config.to_yaml(made)}
    file.parent.mkdir(exist_ok=True)
    part = file.with_name(f"{file.name}-{os.getpid()}")
    part.write_text(json.dumps(found))
    part.rename(file)


def train(words: list[str], folder: Path) -> tuple[int, str]:
    recipe = composed([HERE.join(word.split(str(folder))) for word in words])
    plan = json.loads(os.environ.get("SMALL_TRIALS", "{}"))
    mishap = plan.get(f"{recipe.name}-seed{recipe.seed}", "")
    for key, what in plan.items():
        if key.startswith("lr>") and recipe.lr > float(key[3:]):
            mishap = what
    error = 10.0 + recipe.seed
    if recipe.name == "digits":
        error += 10 * abs(math.log10(recipe.lr / 0.025))
    (folder / "config.yaml").write_text(recipe.yaml.replace(HERE, str(folder)))
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    with (folder / "metrics.jsonl").open("a+") as file:

        def write(kind: str, **values: object) -> None:
            print(json.dumps({"kind": kind, "step": 0, **values}), file=file, flush=True)

        file.seek(0)
        done = sum('"epoch"' in line for line in file)
        write("start", pid=os.getpid())
        if mishap == "dead":
            return 1, "so it was planned"
        for epoch in range(done, recipe.epochs):
            time.sleep(SLOW if mishap == "slow" else EPOCH)
            if told:
                return 75, "preempted by a signal: saved"
            if epoch == 1 and mishap == "3":
                write("diverged", text="loss is not finite")
            if epoch == 1 and mishap not in ("", "slow"):
                return int(mishap), "so it was planned"
            write("epoch", epoch=epoch + 1, val_top1_error=error)
    return 0, ""


def alone(words: list[str]) -> tuple[int, str]:
    """Call `train`, and create the file `twice` if another process trains in the same folder."""
    [folder] = [Path(word.partition("=")[2]) for word in words if word.startswith("run_dir=")]
    here = folder / "supervised" / "at work"
    try:
        with here.open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        # A killed process has left the file, and may still have to be reaped by init.
        if not has_ended(int(here.read_text() or 0)):
            (folder / "twice").touch()
    try:
        return train(words, folder)
    finally:
        here.unlink(missing_ok=True)


if __name__ == "__main__":
    if sys.argv[1] == "compose":
        raise SystemExit(compose(Path(sys.argv[2]), sys.argv[3:]))
    # The arguments before the recipe belong to the launcher.
    [first] = [place for place, word in enumerate(sys.argv) if word.startswith("+recipe=")]
    with exit_report(0) as leave:
        code, why = alone(sys.argv[first:])
        if why:
            print(f"small: {why}")
        raise SystemExit(leave(code, why))
