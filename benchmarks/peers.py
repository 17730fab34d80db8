"""Benchmark of lsgd's training and the scripts of torchvision and timm.

Its command is `python -m benchmarks.peers`.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from tqdm import tqdm

from benchmarks.command import as_command
from benchmarks.peer_scripts import TIMM, TORCHVISION, TrainingFactory, lsgd_training
from benchmarks.process_measurement import WARMUP_STEPS, measure_training
from lsgd import paths
from lsgd.bench import results
from lsgd.bench.setting import (
    Result,
    check_not_launched,
    environment_facts,
    machine_lines,
    record_refusal,
)
from lsgd.bench.timing import Estimate, Samples, estimate, order, speed_ratio
from lsgd.config import load_recipe
from lsgd.errors import UsageError
from lsgd.inputs.index import SPLITS, class_folders, image_files
from lsgd.job.command import Parser, integer_from
from lsgd.prepare.indexing import index_folder
from lsgd.recipe import Recipe
from lsgd.tables import markdown_table

ABOUT = """\
What does a training step cost that `python -m lsgd.train` makes, beside the training scripts of
torchvision and timm, unchanged, as you have fetched them? ResNet-50 on a folder of images with
train/CLASS/ and val/CLASS/, minibatch 32, one thread of a CPU and as many loader processes for all.
Round after round each is started as a process of its own, and measured from outside: by the lines
that it prints, one for each step, and by what the system says of the process then.

With --fastest each has its fastest settings on a CPU without a compiler: lsgd and timm bfloat16 in
channels_last, and torchvision none, whose script has no such options for a CPU.

  git clone https://github.com/pytorch/vision
  git clone https://github.com/huggingface/pytorch-image-models
  python -m benchmarks.peers --torchvision vision --timm pytorch-image-models --images FOLDER

A script that fails is named with its last line, and the others go on. Give it a machine with two
idle cores.
"""

OURS, OURS_DALI, OURS_GIVING_BACK = "lsgd", "lsgd, DALI", "lsgd, freed memory given back"
SCRIPTS = {"torchvision": TORCHVISION, "timm": TIMM}
FASTEST = ("precision=bfloat16", "channels_last=true")
"""lsgd's overrides for its fastest training on a CPU without a compiler."""
BATCH = 32
GOAL, GOAL_OF_END = 1.02, 1.07
"""The largest allowed ratio of lsgd's CPU seconds per step to those of the faster script.

The first is for the median, the second for the upper end of its interval.
"""
GOAL_OF_START = GOAL_OF_PEAK = 1.1
"""The largest allowed ratio of lsgd's time to the first step, or peak, to torchvision's."""
GLIBC_VARIABLES = ("MALLOC_", "GLIBC_TUNABLES")
"""The prefixes of the environment variables that set which freed memory glibc keeps."""


def peers(argv: Sequence[str]) -> None:
    """Measure lsgd and the given scripts, print the report and save it in --out."""
    line = Parser("benchmarks.peers", ABOUT)
    for name, peer in SCRIPTS.items():
        about = f"a checkout of github.com/{peer.repository}"
        line.add_path(f"--{name}", "CHECKOUT", about)
    line.add_argument(
        "--images", type=paths.parse_path, metavar="FOLDER", required=True, help="the images"
    )
    line.add_argument("--image-size", type=integer_from(32), default=64, help="in pixels (64)")
    line.add_argument("--loaders", type=integer_from(1), default=1, help="loader processes (1)")
    line.add_argument("--steps", type=integer_from(1), default=12, help="counted per process (12)")
    line.add_argument(
        "--fastest", action="store_true", help="compare the fastest settings, not the defaults"
    )
    results.add_options(line, "peers", rounds=8, limit=600)
    options = line.parse_args(argv)
    check_not_launched("whole processes are measured one after the other")
    checkouts = {name: path for name in SCRIPTS if (path := getattr(options, name))}
    check_environment()
    if not checkouts:
        raise UsageError("there is no script to compare with; give --torchvision or --timm")
    for name, checkout in checkouts.items():
        SCRIPTS[name].check(checkout)
    torch.set_num_threads(1)  # as in the measured processes
    os.environ["OMP_NUM_THREADS"] = "1"
    with (
        results.open_record("peers", line.prog, argv, options.out) as record,
        TemporaryDirectory(prefix="lsgd-peers-") as index,
    ):
        overrides = recipe_overrides(
            options.images, Path(index), options.image_size, options.loaders
        )
        if options.fastest:
            overrides += FASTEST
        recipe = load_recipe(overrides)
        check_steps(options.steps, recipe)
        result = environment_facts(torch.device("cpu")) | {
            "model": recipe.model.name,
            "image_size": recipe.data.image_size,
            "batch": recipe.batch_size,
            "loaders": options.loaders,
            "rounds": options.rounds,
            "steps": options.steps,
            "fastest": options.fastest,
            "scripts": {name: SCRIPTS[name].description(at) for name, at in checkouts.items()},
        }
        starts = lsgd_trainings(overrides, cache=Path(index) / "cache")
        starts |= {
            name: SCRIPTS[name].training_factory(at, recipe, fastest=options.fastest)
            for name, at in checkouts.items()
        }
        bench(starts, result, limit=options.limit, keep=record.write_result)
        record.write_report(result, report(result))


def check_environment() -> None:
    """Raise UsageError if the environment sets which freed memory glibc keeps.

    lsgd is measured with and without that memory, and such a variable would make both the same.
    """
    for name in os.environ:
        if name.startswith(GLIBC_VARIABLES):
            raise UsageError(
                f"{name} is set in the environment, and lsgd is measured with and without the "
                f"memory that it keeps; write `env -u {name}` before the command"
            )


def recipe_overrides(images: Path, index: Path, image_size: int, loaders: int) -> list[str]:
    """Index the images in the folder `index`, and return the overrides of lsgd's training on them.

    Raises UsageError if the folder has no train/CLASS/ and val/CLASS/, or unreadable images.
    """
    for split in SPLITS:
        if not (images / split).is_dir() or not class_folders(images / split):
            raise UsageError(
                f"--images {images} has no {split}/CLASS/; give a folder with train/ and val/"
            )
    root = images.resolve()
    if unreadable := index_folder(root, index):
        raise UsageError(
            f"{len(unreadable)} images of {root} cannot be read, such as {unreadable[0]}; move "
            "them away"
        )
    classes = {split: class_folders(root / split) for split in SPLITS}
    count = {
        split: sum(len(image_files(root / split / name)) for name in names)
        for split, names in classes.items()
    }
    return [
        *("+recipe=bs256", "workers=1", f"worker_batch={BATCH}", "device=cpu", "log_steps=1"),
        *("inputs=torchvision", f"inputs.decoders={loaders}"),
        *(f'data.root="{root}"', f'data.index="{index}"'),  # the paths may have blanks or commas
        f"data.classes={len(classes['train'])}",
        *(f"data.train_examples={count['train']}", f"data.val_examples={count['val']}"),
        *(f"data.image_size={image_size}", "checkpoint_minutes=0"),  # others save after epochs
    ]


def check_steps(steps: int, recipe: Recipe) -> None:
    """Raise UsageError if an epoch has fewer steps than a process has to make."""
    most = recipe.data.train_examples // BATCH - WARMUP_STEPS
    if steps > most:
        raise UsageError(
            f"--steps {steps} and the {WARMUP_STEPS} before them are more than an epoch of "
            f"{recipe.data.root} has; "
            + (f"write at most {most}" if most > 0 else "give a folder of more images")
        )


def lsgd_trainings(overrides: Sequence[str], *, cache: Path) -> dict[str, TrainingFactory]:
    """Return lsgd's trainings: by default, with DALI, and with glibc returning freed memory.

    Their choices of hardware=auto are in the folder `cache`, which is empty in the first round.
    """
    own = {"XDG_CACHE_HOME": str(cache)}
    return {
        OURS: lsgd_training(overrides, own),
        OURS_DALI: lsgd_training([*overrides, "inputs=dali"], own),
        # An empty value sets no tunable. It only tells lsgd that the environment decides, so lsgd
        # leaves glibc's defaults.
        OURS_GIVING_BACK: lsgd_training(overrides, own | {"GLIBC_TUNABLES": ""}),
    }


def bench(
    starts: Mapping[str, TrainingFactory],
    result: Result,
    *,
    limit: float,
    keep: Callable[[Result], None],
) -> None:
    """Measure each training once per round, and store the values in `samples` of the result.

    The first round makes a single step after those that are not measured, and finds the trainings
    that fail. Its measurements are in `first_round`: there lsgd times its settings. One that fails
    at any time goes into `missing`, and its measurements are dropped. Raises UsageError if all
    fail.
    """
    samples: dict[str, Samples] = {}
    result |= {"samples": samples, "missing": {}, "first_round": {}}
    total = (result["rounds"] + 1) * len(starts)
    with tqdm(total=total, desc="peers", unit="", disable=None, leave=False) as bar:
        for number in range(result["rounds"] + 1):
            for name in order(list(starts), number):
                bar.set_postfix_str(name)
                bar.update()
                if name in result["missing"]:
                    continue
                with (
                    record_refusal(result, name),
                    TemporaryDirectory(prefix="lsgd-peers-") as folder,
                ):
                    # Processes of Python create temporary folders, which one ended by a signal does
                    # not remove.
                    own = {"TMPDIR": folder}
                    training = starts[name](Path(folder))
                    training = replace(training, environment={**training.environment, **own})
                    measured = measure_training(
                        training, result["steps"] if number else 1, limit=limit
                    )
                    if not number:
                        result["first_round"][name] = measured
                    for what, value in measured.items() if number else ():
                        samples.setdefault(what, {}).setdefault(name, []).append(value)
            for name in result["missing"]:
                for of_each in samples.values():
                    of_each.pop(name, None)
            keep(result)
    if len(result["missing"]) == len(starts):
        raise UsageError("; ".join(f"{name}: {why}" for name, why in result["missing"].items()))


def report(result: Result) -> str:
    """Return the benchmark's result as a report in Markdown."""
    samples: dict[str, Samples] = result["samples"]
    cpu = samples["cpu_seconds_per_step"]
    names = [name for name in (OURS, OURS_DALI, OURS_GIVING_BACK, *SCRIPTS) if name in cpu]
    scripts = [name for name in names if name in SCRIPTS]
    fastest = min(scripts, key=lambda name: estimate(cpu[name]).median, default=None)
    compared = f"times {fastest or 'a script'}"
    steps = [
        [
            name,
            estimate(cpu[name]).shown(".3f"),
            _times(cpu, name, fastest),
            estimate(samples["system_seconds_per_step"][name]).shown(".3f"),
            estimate(samples["page_faults_per_step"][name]).shown(",.0f"),
            estimate(samples["seconds_per_step"][name]).shown(".3f"),
            estimate(samples["cpu_seconds_with_loaders"][name]).shown(".3f"),
        ]
        for name in names
    ]
    first, peak = samples["first_step_seconds"], samples["peak_bytes"]
    starts = [
        [
            name,
            estimate(first[name]).shown(".2f"),
            _times(first, name, "torchvision"),
            estimate(samples["first_step_cpu_seconds"][name]).shown(".2f"),
            _mebibytes(peak[name]),
            _times(peak, name, "torchvision"),
            _mebibytes(samples["bytes_with_loaders"][name]),
        ]
        for name in names
    ]
    each = ["a training", "CPU s per step", compared, "of it in the system"]
    whole = ["a training", "first step after, s", "times torchvision", "CPU s with loaders"]
    lines = [
        f"{result['model']} on images of {result['image_size']}, batch {result['batch']}, "
        f"one thread, loaders: {result['loaders']}, lsgd by +recipe=bs256 workers=1"
        + (", each with its fastest settings" if result["fastest"] else ""),
        *machine_lines(result),
        *result["scripts"].values(),
        f"{result['rounds']} rounds, {result['steps']} steps of each process after its first "
        f"{WARMUP_STEPS}; medians (and intervals of 95 %)",
        "",
        markdown_table([*each, "page faults per step", "s per step", "CPU s with loaders"], steps),
        "",
        markdown_table([*whole, "peak, MiB", "times torchvision", "with loaders, MiB"], starts),
        "",
        *(_goals(samples, fastest) if fastest and OURS in cpu else ()),
        *_first_round(result),
        *(f"- {name} is not measured: {why}" for name, why in result["missing"].items()),
        "",
        *NOTES,
    ]
    return "\n".join(lines)


def _first_round(result: Result) -> list[str]:
    """Return the report's line on lsgd's first step before its cache has a choice of settings."""
    if OURS not in result["first_round"]:
        return []
    first = result["first_round"][OURS]
    return [
        f"- {OURS}, in the first round, before its cache has a choice (hardware=auto): first step "
        f"after {first['first_step_seconds']:.2f} s, by {first['first_step_cpu_seconds']:.2f} CPU s"
    ]


NOTES = (
    "CPU seconds and minor page faults are those of the training process with all its threads, in "
    "which DALI decodes too; what else it has started, such as loaders, is counted where it says "
    "so, and its memory by its share of the pages that several have. A peak is that until the last "
    "step, the start included.",
    "",
    "The scripts run unchanged, in benchmarks/run_script.py, which imports torchvision before them "
    "as lsgd.vision does: beside a CPU build of torch their own import would fail, and that of "
    "lsgd takes as long. lsgd reads an index of the folder that was made before; the scripts list "
    "the folder as they start.",
)


def _goals(samples: Mapping[str, Samples], fastest: str) -> list[str]:
    """Return the report's lines on whether lsgd with its defaults meets its goals."""
    cpu, faults = samples["cpu_seconds_per_step"], samples["page_faults_per_step"]
    times = speed_ratio(cpu, OURS, fastest)
    lines = [
        f"- {OURS}, at most {GOAL:g} times the CPU seconds per step of {fastest}, and "
        f"{GOAL_OF_END:g} at the end of the interval: {meets_both_goals(times)}, "
        f"{times.shown('.3f')}"
    ]
    fewest = min(
        (name for name in SCRIPTS if name in faults), key=lambda name: estimate(faults[name]).median
    )
    # A difference, not a ratio, since a process may have no page faults.
    pairs = zip(faults[OURS], faults[fewest], strict=True)
    more = estimate([our - their for our, their in pairs])
    lines.append(
        f"- {OURS}, at most as many page faults per step as {fewest}: {more.compare_at_most(0)}, "
        f"{more.shown('+,.0f')}"
    )
    for what, goal, name in (
        ("time to the first step", GOAL_OF_START, "first_step_seconds"),
        ("peak", GOAL_OF_PEAK, "peak_bytes"),
    ):
        if "torchvision" in samples[name]:
            times = speed_ratio(samples[name], OURS, "torchvision")
            judged = f"{times.compare_at_most(goal)}, {times.shown('.3f')}"
        else:
            judged = "not measured"
        lines.append(f"- {OURS}, at most {goal:g} times the {what} of torchvision: {judged}")
    return lines


def meets_both_goals(times: Estimate) -> str:
    """Return whether a ratio of CPU seconds meets both goals: `yes`, `no` or `not resolved`."""
    if times.median <= GOAL and times.high <= GOAL_OF_END:
        return "yes"
    return "no" if times.low > GOAL else "not resolved"


def _times(samples: Samples, name: str, baseline: str | None) -> str:
    if baseline is None or baseline not in samples:
        return "–"
    return "1" if name == baseline else speed_ratio(samples, name, baseline).shown(".3f")


def _mebibytes(values: Sequence[float]) -> str:
    return estimate([value / 2**20 for value in values]).shown(",.0f")


main = as_command(peers)

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
