"""Memory of each process of a loader after each epoch: see README.md beside this file.

python measure.py FOLDER torchvision 5 +recipe=bs256 data.root=…
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import torch

from lsgd import config
from lsgd.bench.loaders import consume, micro_batches_of_step
from lsgd.inputs import open_inputs
from lsgd.workloads import open_workload


def memory(process: psutil.Process) -> dict[str, float]:
    """MiB of a process: its own and its part of what is shared, without mapped files (`own`), and
    all that is in RAM; page faults and CPU seconds since its start.
    """
    rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]
    kib = {line.split(":")[0]: int(line.split()[1]) for line in rollup}
    stat = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return {
        "own": (kib["Pss_Anon"] + kib["Pss_Shmem"]) / 1024,
        "resident": kib["Rss"] / 1024,
        "faults": int(stat[7]),
        "cpu": sum(process.cpu_times()[:2]),
    }


def main(folder: str, loader: str, epochs: str, *words: str) -> None:
    """Load the epochs of a recipe of these words and write their figures to FOLDER/LOADER.jsonl."""
    recipe = config.load_recipe(list(words))
    recipe = replace(recipe, inputs=replace(recipe.inputs, loader=loader))
    device = torch.device("cpu")
    inputs, here = open_inputs(recipe, device), psutil.Process()
    rows = []
    for epoch in range(int(epochs)):
        steps = range(epoch * recipe.steps_per_epoch, (epoch + 1) * recipe.steps_per_epoch)
        consume(
            inputs.train(each for step in steps for each in micro_batches_of_step(recipe, step)),
            device,
        )
        evaluation = open_workload(recipe, device).evaluation_micro_batches(
            "val", rank=0, world_size=1
        )
        consume(inputs.evaluation(evaluation), device)
        others = here.children(recursive=True)
        decoders = [p for p in others if not p.children() and "tracker" not in str(p.cmdline())]
        rows.append(
            {
                "epoch": epoch + 1,
                "trainer": memory(here),
                "decoders": [memory(each) for each in decoders],
                "all_resident": sum(memory(each)["resident"] for each in [here, *others]),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    Path(folder).mkdir(parents=True, exist_ok=True)
    Path(folder, f"{loader}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
