"""The benchmark of loaders against the model: `python -m lsgd.bench inputs`."""

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from lsgd.bench import results
from lsgd.bench.loader_memory import resident_after_epochs
from lsgd.bench.loaders import (
    DALI,
    DALI_READER,
    PLAIN,
    TORCHVISION,
    LoaderSetting,
    loader_setting,
    open_loaders,
    timed_work,
)
from lsgd.bench.setting import Result, environment_facts, machine_lines
from lsgd.bench.timing import Samples, check_rounds, estimate, measure, speed_ratio
from lsgd.bench.training import MODEL, TOGETHER, FedTraining, measure_training
from lsgd.errors import UsageError
from lsgd.recipe import Recipe
from lsgd.recipe_parser import RecipeParser
from lsgd.tables import markdown_table

ABOUT = """\
Measure whether the loaders are fast enough for training, on the files and the device of a recipe.

The images/s are those of

  ours, DALI            lsgd's loaders, in the order of the recipe and with its windows
  ours, torchvision
  plain DataLoader      torchvision's ImageFolder and transforms, shuffle=True
  DALI's reader         with its own shuffle buffer and random crops
  the model             training steps on images that are on the device already
  together              training steps with the faster loader of ours, and the time spent waiting

and which of the two is the bottleneck. All loaders have the same files, batches, decoders (threads
or processes: inputs.decoders) and distribution of crops. Every round measures each once, one right
after the other; what is compared is the ratio within a round. A goal that lies inside the interval
of its ratio is not resolved: more --rounds or a quieter machine help.

  python -m lsgd.bench inputs recipe=bs256 data.root=/data/imagenet
  … --steps 0 --rounds 15      the loaders alone, with a narrower interval
  … --rounds 0 --epochs 5      only the memory of our loaders, over 5 epochs

Memory that grows over short epochs may be holes between freed batches, which glibc keeps; with
MALLOC_MMAP_THRESHOLD_=4194304 in the environment it keeps none, and what grows then is held.
"""

GOALS = ((DALI, DALI_READER, 0.97), (DALI, PLAIN, 1.3), (TORCHVISION, PLAIN, 1.0))
"""Goals of our loaders: the loader, another loader, and the minimum ratio of their speeds."""
GROWTH = 3.0
"""The acceptable growth of a loader's memory from the first to the last epoch, in percent."""
IN_RECIPES = {DALI: "dali", TORCHVISION: "torchvision"}
"""The value of inputs.loader for each of our loaders."""


def main(argv: Sequence[str]) -> None:
    """Run the loader benchmark by its command line, print its report and save it in --out."""
    line = RecipeParser(program="lsgd.bench inputs", about=ABOUT)
    line.add_argument(
        "--rounds", type=int, default=7, metavar="N", help="measure each N times (7); 0: no speeds"
    )
    line.add_argument(
        "--images", type=int, default=2000, metavar="N", help="images per round and loader (2000)"
    )
    line.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help="training steps per round (default: those of --images); 0: no model",
    )
    line.add_argument(
        "--epochs", type=int, default=0, metavar="N", help="measure memory over N epochs (0)"
    )
    results.add_out(line, "inputs")
    recipe, options = line.parse(argv)
    _check(options.rounds, options.images, options.steps, options.epochs)
    with results.open_record("inputs", line.prog, argv, options.out) as record:
        result = bench(
            recipe,
            options.words,
            rounds=options.rounds,
            images=options.images,
            steps=options.steps,
            epochs=options.epochs,
        )
        record.write_report(result, report(result))


def bench(
    recipe: Recipe,
    overrides: Sequence[str],
    *,
    rounds: int,
    images: int,
    steps: int | None,
    epochs: int,
) -> Result:
    """Measure the speeds of data loaders and of training with them, and the loaders' memory.

    The result has the setting; with rounds `loaders`, with steps too `training`, and with epochs
    `memory_bytes`. `missing` has the reason why a loader is not measured.
    """
    common = loader_setting(recipe)
    result = _setting(common) | {"rounds": rounds, "missing": {}}
    if rounds:
        batches = -(-images // common.batch)
        loaders = open_loaders(common, rounds=rounds + 1, batches=batches)
        result |= {"missing": loaders.missing, "images_per_round": batches * common.batch}
        print(
            f"{rounds} rounds of {batches * common.batch} images with {len(loaders.alone)} loaders",
            flush=True,
        )
        works = {name: timed_work(loader, common.device) for name, loader in loaders.alone.items()}
        speeds = measure(works, rounds, what="loaders")
        result["loaders"] = speeds
        steps = max(1, round(images / recipe.batch_size)) if steps is None else steps
        if steps:
            best = max(loaders.ours, key=lambda name: estimate(speeds[name]).median)
            print(f"{rounds} rounds of training, fed by {best}; steps a round: {steps}", flush=True)
            training = measure_training(
                common, best, loaders.ours[best], rounds=rounds, steps=steps
            )
            result |= {"steps_per_round": steps, "training": asdict(training)}
    if epochs:
        result["memory_bytes"] = {}
        for name, loader in IN_RECIPES.items():
            print(f"{epochs} epochs with {name} alone", flush=True)
            try:
                result["memory_bytes"][name] = resident_after_epochs(overrides, loader, epochs)
            except UsageError as refusal:
                result["missing"][name] = str(refusal)
    return result


def report(result: Result) -> str:
    """Format the result of the loader benchmark as a Markdown report."""
    files = result["files"]
    lines = [
        f"{result['recipe']}: batches of {result['batch']} images, {result['decoders']} decoders, "
        f"device {result['device']}; {files['number']} files of {files['mean_bytes'] / 1000:.0f} "
        f"kB and {files['mean_megapixels']:.2f} megapixels on average",
        *machine_lines(result),
        "",
    ]
    if result["rounds"]:
        lines += _loaders(result)
    if "training" in result:
        lines += _training(FedTraining(**result["training"]), result["steps_per_round"])
    if "memory_bytes" in result:
        lines += _memory(result["memory_bytes"])
    lines += [f"- {name} is not measured: {why}" for name, why in result["missing"].items()]
    return "\n".join(lines).rstrip()


def _loaders(result: Result) -> list[str]:
    speeds: Samples = result["loaders"]
    against = [name for name in (PLAIN, DALI_READER) if name in speeds]
    rows = [
        [
            name,
            estimate(values).shown(".0f"),
            *(
                "1" if name == other else speed_ratio(speeds, name, other).shown(".3f")
                for other in against
            ),
        ]
        for name, values in speeds.items()
    ]
    verdicts = []
    for name, other, goal in GOALS:
        if name in speeds and other in speeds:
            times = speed_ratio(speeds, name, other)
            verdicts.append(
                f"- {name}, at least {goal:g} times {other}: {times.compare_at_least(goal)}, "
                f"{times.shown('.3f')}"
            )
    return [
        f"{result['rounds']} rounds of {result['images_per_round']} images; medians (and "
        "intervals of 95 %)",
        "",
        markdown_table(["alone", "images/s", *(f"times {name}" for name in against)], rows),
        "",
        *verdicts,
        "",
    ]


def _training(training: FedTraining, steps: int) -> list[str]:
    speeds, loader = training.speeds, training.loader
    rows = [
        [
            name,
            estimate(speeds[name]).shown(".0f"),
            "1" if name == loader else speed_ratio(speeds, name, loader).shown(".3f"),
        ]
        for name in (loader, MODEL, TOGETHER)
    ]
    return [
        markdown_table([f"training, steps a round: {steps}", "images/s", f"times {loader}"], rows),
        "",
        f"- {training.verdict()}",
        "",
    ]


def _memory(memory: dict[str, list[int]]) -> list[str]:
    if not memory:
        return []
    epochs = max(len(sizes) for sizes in memory.values())
    rows = []
    for name, sizes in memory.items():
        growth = 100 * (sizes[-1] / sizes[0] - 1)
        met = "yes" if growth < GROWTH else "no"
        mebibytes = [f"{size / 2**20:.0f}" for size in sizes]
        rows.append([name, *mebibytes, f"{growth:+.1f} % (under {GROWTH:g} %: {met})"])
    head = ["MiB in memory after epoch", *(str(epoch + 1) for epoch in range(epochs)), "growth"]
    return [markdown_table(head, rows), ""]


def _setting(common: LoaderSetting) -> Result:
    """Return facts about machine, recipe and image files on which loader speeds depend."""
    recipe, ids = common.recipe, np.arange(len(common.index))
    return environment_facts(common.device) | {
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
    """Raise UsageError for options of the loader benchmark that are invalid or measure nothing."""
    if rounds:
        check_rounds(rounds)
    for option, value, least in (
        ("--images", images, 1),
        ("--steps", steps or 0, 0),
        ("--epochs", epochs, 0),
    ):
        if value < least:
            raise UsageError(f"{option} {value} is not possible; write {least} or more")
    if not rounds and epochs < 2:
        raise UsageError(
            f"--rounds 0 with --epochs {epochs} measures nothing; write --rounds 7 for speeds, or "
            "--epochs 5 for memory"
        )
