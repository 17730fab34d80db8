"""Is training fed fast enough? `python -m lsgd.bench inputs`, from the command line to its report.

The report is Markdown, for a README as for a terminal.
"""

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from lsgd.bench import results
from lsgd.bench.loaders import DALI, PLAIN, READER, TORCHVISION, Alike, alike, open_loaders, work
from lsgd.bench.resident import resident_after_epochs
from lsgd.bench.setting import Found, said, setting
from lsgd.bench.table import head, row, shown
from lsgd.bench.timing import Rounds, check_rounds, estimate, measure, ratio
from lsgd.bench.training import MODEL, TOGETHER, Training, measure_training
from lsgd.config import CommandLine
from lsgd.errors import Refused
from lsgd.recipe import Recipe

ABOUT = """\
Is training fed fast enough? On the files and the device of a recipe, the images/s of

  ours, DALI            lsgd's loaders, in the order of the recipe and with its windows
  ours, torchvision
  plain DataLoader      torchvision's ImageFolder and transforms, shuffle=True
  DALI's reader         with its own shuffle buffer and random crops
  the model             training steps on images that are on the device already
  together              training steps with the faster loader of ours, and the time spent waiting

and which of the two bounds. All loaders have the same files, batches, decoders (threads or
processes: inputs.decoders) and distribution of crops. Every round measures each once, one right
after the other; what is compared is the ratio within a round. A goal that lies inside the interval
of its ratio is not resolved: more --rounds or a quieter machine help.

  python -m lsgd.bench inputs +recipe=bs256 data.root=/data/imagenet
  … --steps 0 --rounds 15      the loaders alone, with a narrower interval
  … --rounds 0 --epochs 5      only the memory of our loaders, over 5 epochs

Memory that grows over short epochs may be holes between freed batches, which glibc keeps; with
MALLOC_MMAP_THRESHOLD_=4194304 in the environment it keeps none, and what grows then is held.
"""

GOALS = ((DALI, READER, 0.97), (DALI, PLAIN, 1.3), (TORCHVISION, PLAIN, 1.0))
"""At least how many times as fast as another a loader of ours is to be."""
GROWTH = 3.0
"""Percent by which a loader's memory may grow, from the first epoch to the last."""
IN_RECIPES = {DALI: "dali", TORCHVISION: "torchvision"}
"""What inputs.loader says for each of ours."""


def main(argv: Sequence[str]) -> None:
    """Measure what the command line asks for, print the report and keep it in --out."""
    line = CommandLine(program="lsgd.bench inputs", about=ABOUT)
    line.usage = f"{line.usage} [--rounds N] [--images N] [--steps N] [--epochs N] [--out FOLDER]"
    line.add_argument(
        "--rounds", type=int, default=7, help="how often each is measured (7); 0: no speeds"
    )
    line.add_argument("--images", type=int, default=2000, help="per round and loader (2000)")
    line.add_argument(
        "--steps",
        type=int,
        help="of the training per round; by default about as many as --images makes; 0: no model",
    )
    line.add_argument("--epochs", type=int, default=0, help="over which memory is watched (0)")
    results.add_out(line, "inputs")
    recipe, options = line.read(argv)
    _check(options.rounds, options.images, options.steps, options.epochs)
    with results.recording("inputs", line.prog, argv, options.out) as record:
        found = bench(
            recipe,
            rounds=options.rounds,
            images=options.images,
            steps=options.steps,
            epochs=options.epochs,
        )
        record.end(found, report(found))


def bench(recipe: Recipe, *, rounds: int, images: int, steps: int | None, epochs: int) -> Found:
    """All that is measured, as JSON can hold it."""
    common = alike(recipe)
    found = _setting(common) | {"rounds": rounds, "missing": {}}
    if rounds:
        batches = -(-images // common.batch)
        loaders = open_loaders(common, rounds=rounds + 1, batches=batches)
        found |= {"missing": loaders.missing, "images_per_round": batches * common.batch}
        print(
            f"{rounds} rounds of {batches * common.batch} images with {len(loaders.alone)} loaders",
            flush=True,
        )
        works = {name: work(loader, common.device) for name, loader in loaders.alone.items()}
        speeds = measure(works, rounds, what="loaders")
        found["loaders"] = speeds
        steps = max(1, round(images / recipe.batch_size)) if steps is None else steps
        if steps:
            best = max(loaders.ours, key=lambda name: estimate(speeds[name]).median)
            print(f"{rounds} rounds of training, fed by {best}; steps a round: {steps}", flush=True)
            training = measure_training(
                common, best, loaders.ours[best], rounds=rounds, steps=steps
            )
            found |= {"steps_per_round": steps, "training": asdict(training)}
    if epochs:
        found["memory_bytes"] = {}
        for name, loader in IN_RECIPES.items():
            print(f"{epochs} epochs with {name} alone", flush=True)
            try:
                found["memory_bytes"][name] = resident_after_epochs(recipe, loader, epochs)
            except Refused as refusal:
                found["missing"][name] = str(refusal)
    return found


def report(found: Found) -> str:
    """What was found, in Markdown."""
    files = found["files"]
    lines = [
        f"{found['recipe']}: batches of {found['batch']} images, {found['decoders']} decoders, "
        f"device {found['device']}; {files['number']} files of {files['mean_bytes'] / 1000:.0f} kB "
        f"and {files['mean_megapixels']:.2f} megapixels on average",
        *said(found),
        "",
    ]
    if found["rounds"]:
        lines += _loaders(found)
    if "training" in found:
        lines += _training(Training(**found["training"]), found["steps_per_round"])
    if "memory_bytes" in found:
        lines += _memory(found["memory_bytes"])
    lines += [f"- {name} is not measured: {why}" for name, why in found["missing"].items()]
    return "\n".join(lines).rstrip()


def _loaders(found: Found) -> list[str]:
    speeds: Rounds = found["loaders"]
    against = [name for name in (PLAIN, READER) if name in speeds]
    lines = [
        f"{found['rounds']} rounds of {found['images_per_round']} images; medians (and intervals "
        "of 95 %)",
        "",
        *head("alone", "images/s", *(f"times {name}" for name in against)),
    ]
    for name, values in speeds.items():
        ratios = (
            "1" if name == other else shown(ratio(speeds, name, other), ".3f") for other in against
        )
        lines.append(row(name, shown(estimate(values), ".0f"), *ratios))
    lines.append("")
    for name, other, goal in GOALS:
        if name in speeds and other in speeds:
            times = ratio(speeds, name, other)
            lines.append(
                f"- {name}, at least {goal:g} times {other}: {times.against(goal)}, "
                f"{shown(times, '.3f')}"
            )
    return [*lines, ""]


def _training(training: Training, steps: int) -> list[str]:
    names = (training.loader, MODEL, TOGETHER)
    return [
        *head(f"training, steps a round: {steps}", "images/s", f"times {training.loader}"),
        *(
            row(
                name,
                shown(estimate(training.speeds[name]), ".0f"),
                "1"
                if name == training.loader
                else shown(ratio(training.speeds, name, training.loader), ".3f"),
            )
            for name in names
        ),
        "",
        f"- {training.verdict()}",
        "",
    ]


def _memory(memory: dict[str, list[int]]) -> list[str]:
    if not memory:
        return []
    epochs = max(len(sizes) for sizes in memory.values())
    lines = head(
        "MiB in memory after epoch", *(str(epoch + 1) for epoch in range(epochs)), "growth"
    )
    for name, sizes in memory.items():
        growth = 100 * (sizes[-1] / sizes[0] - 1)
        met = "yes" if growth < GROWTH else "no"
        lines.append(
            row(
                name,
                *(f"{size / 2**20:.0f}" for size in sizes),
                f"{growth:+.1f} % (under {GROWTH:g} %: {met})",
            )
        )
    return [*lines, ""]


def _setting(common: Alike) -> Found:
    """What the figures depend on."""
    recipe, ids = common.recipe, np.arange(len(common.index))
    return setting(common.device) | {
        "recipe": recipe.name,
        "seed": recipe.seed,
        "batch": common.batch,
        "decoders": common.decoders,
        "files": {
            "number": len(ids),
            "mean_bytes": float(common.index.lengths(ids).mean()),
            "mean_megapixels": float(common.index.sizes(ids).prod(axis=1).mean() / 1e6),
        },
    }


def _check(rounds: int, images: int, steps: int | None, epochs: int) -> None:
    """Refuse numbers that measure nothing."""
    if rounds:
        check_rounds(rounds)
    for option, value, least in (
        ("--images", images, 1),
        ("--steps", steps or 0, 0),
        ("--epochs", epochs, 0),
    ):
        if value < least:
            raise Refused(f"{option} {value} is not possible; write {least} or more")
    if not rounds and epochs < 2:
        raise Refused(
            f"--rounds 0 with --epochs {epochs} measures nothing; write --rounds 7 for speeds, or "
            "--epochs 5 for memory"
        )
