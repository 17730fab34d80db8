"""lsgd's training beside the scripts of torchvision and timm: `python -m benchmarks.peers`."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from tqdm import tqdm

from benchmarks.outside import SETTLED, watch
from benchmarks.peer_scripts import TIMM, TORCHVISION, Start, lsgd
from lsgd.bench import results
from lsgd.bench.setting import Result, check_not_launched, machine_lines, noted, setting
from lsgd.bench.timing import Estimate, Samples, check_rounds, estimate, order, ratio
from lsgd.config import load_recipe
from lsgd.errors import Refused
from lsgd.inputs.index import SPLITS, class_folders, image_files
from lsgd.job.command import Parser, count_from, run_command, seconds
from lsgd.prepare.scan import index_folder
from lsgd.recipe import Recipe
from lsgd.tables import markdown

ABOUT = """\
What does a training step cost that `python -m lsgd.train` makes, beside the training scripts of
torchvision and timm, unchanged, as you have fetched them? ResNet-50 on a folder of images with
train/CLASS/ and val/CLASS/, minibatch 32, one thread of a CPU and as many loader processes for all.
Round after round each is started as a process of its own, and measured from outside: by the lines
that it prints, one for each step, and by what the system says of the process then.

  git clone https://github.com/pytorch/vision
  git clone https://github.com/huggingface/pytorch-image-models
  python -m benchmarks.peers --torchvision vision --timm pytorch-image-models --images FOLDER

A script that fails is named with its last line, and the others go on. Give it a machine with two
idle cores.
"""

OURS, OURS_DALI, OURS_GIVING_BACK = "lsgd", "lsgd, DALI", "lsgd, freed memory given back"
SCRIPTS = {"torchvision": TORCHVISION, "timm": TIMM}
BATCH = 32
GOAL, GOAL_OF_END = 1.02, 1.07
"""At most how many times the CPU seconds per step of the faster script lsgd's may be: the median,
and the end of its interval."""
GOAL_OF_START = GOAL_OF_PEAK = 1.1
"""At most how many times torchvision's time to the first step, and its peak, lsgd's may be."""
DECIDES = ("MALLOC_", "GLIBC_TUNABLES")
"""The beginnings of the environment's variables by which glibc is told what to keep."""


def main(argv: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    return run_command(lambda: peers(argv))


def peers(argv: Sequence[str]) -> None:
    """Measure, print the report and keep it in --out."""
    line = Parser("benchmarks.peers", ABOUT)
    for name, peer in SCRIPTS.items():
        about = f"a checkout of github.com/{peer.repository}"
        line.add_argument(f"--{name}", type=Path, metavar="CHECKOUT", help=about)
    line.add_argument("--images", type=Path, metavar="FOLDER", required=True, help="the images")
    line.add_argument("--image-size", type=count_from(32), default=64, help="in pixels (64)")
    line.add_argument("--loaders", type=count_from(1), default=1, help="loader processes (1)")
    line.add_argument("--steps", type=count_from(1), default=12, help="counted per process (12)")
    line.add_argument("--rounds", type=int, default=8, help="how often each is started (8)")
    line.add_argument(
        "--limit", type=seconds, default=600, help="a process may take for a step (600 s)"
    )
    results.add_out(line, "peers")
    options = line.parse_args(argv)
    check_rounds(options.rounds)
    check_not_launched("whole processes are measured one after the other")
    checkouts = {name: path for name in SCRIPTS if (path := getattr(options, name))}
    check_environment()
    if not checkouts:
        raise Refused("there is no script to compare with; give --torchvision or --timm")
    for name, checkout in checkouts.items():
        SCRIPTS[name].check(checkout)
    torch.set_num_threads(1)  # as in what is measured
    os.environ["OMP_NUM_THREADS"] = "1"
    with (
        results.recording("peers", line.prog, argv, options.out) as record,
        TemporaryDirectory(prefix="lsgd-peers-") as index,
    ):
        words = recipe_words(options.images, Path(index), options.image_size, options.loaders)
        recipe = load_recipe(words)
        check_steps(options.steps, recipe)
        result = setting(torch.device("cpu")) | {
            "model": recipe.model.name,
            "image_size": recipe.data.image_size,
            "batch": recipe.batch_size,
            "loaders": options.loaders,
            "rounds": options.rounds,
            "steps": options.steps,
            "scripts": {name: SCRIPTS[name].described(at) for name, at in checkouts.items()},
        }
        starts = ours(words)
        starts |= {name: SCRIPTS[name].start(at, recipe) for name, at in checkouts.items()}
        bench(starts, result, limit=options.limit, keep=record.keep)
        record.end(result, report(result))


def check_environment() -> None:
    """Raise Refused if the environment decides what glibc keeps, which would be alike for all."""
    for name in os.environ:
        if name.startswith(DECIDES):
            raise Refused(
                f"{name} is set in the environment, and lsgd is measured with and without the "
                f"memory that it keeps; write `env -u {name}` before the command"
            )


def recipe_words(images: Path, index: Path, image_size: int, loaders: int) -> list[str]:
    """The words of lsgd's training on these images, whose index is made in the folder `index`.

    Raises Refused where there are no such images.
    """
    for split in SPLITS:
        if not (images / split).is_dir() or not class_folders(images / split):
            raise Refused(
                f"--images {images} has no {split}/CLASS/; give a folder with train/ and val/"
            )
    root = images.resolve()
    if unreadable := index_folder(root, index):
        raise Refused(
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
        *(f'data.root="{root}"', f'data.index="{index}"'),  # which may have blanks or commas
        f"data.classes={len(classes['train'])}",
        *(f"data.train_examples={count['train']}", f"data.val_examples={count['val']}"),
        *(f"data.image_size={image_size}", "checkpoint_minutes=0"),  # others save after epochs
    ]


def check_steps(steps: int, recipe: Recipe) -> None:
    """Raise Refused if an epoch has fewer steps than are to be made."""
    most = recipe.data.train_examples // BATCH - SETTLED
    if steps > most:
        raise Refused(
            f"--steps {steps} and the {SETTLED} before them are more than an epoch of "
            f"{recipe.data.root} has; "
            + (f"write at most {most}" if most > 0 else "give a folder of more images")
        )


def ours(words: Sequence[str]) -> dict[str, Start]:
    """lsgd as it comes, with DALI, and where glibc gives back what is freed."""
    return {
        OURS: lsgd(words),
        OURS_DALI: lsgd([*words, "inputs=dali"]),
        # No tunable at all: it says that the environment decides, and leaves glibc as it comes.
        OURS_GIVING_BACK: lsgd(words, {"GLIBC_TUNABLES": ""}),
    }


def bench(
    starts: Mapping[str, Start], result: Result, *, limit: float, keep: Callable[[Result], None]
) -> None:
    """Measure the trainings; `samples` of the result has their measurements in each round.

    The first round, of one step more than do not count, is to find what fails and is left out. What
    fails at any time is noted as `missing`, without its measurements. Raises Refused if all fail.
    """
    samples: dict[str, Samples] = {}
    result |= {"samples": samples, "missing": {}}
    total = (result["rounds"] + 1) * len(starts)
    with tqdm(total=total, desc="peers", unit="", disable=None, leave=False) as bar:
        for number in range(result["rounds"] + 1):
            for name in order(list(starts), number):
                bar.set_postfix_str(name)
                bar.update()
                if name in result["missing"]:
                    continue
                with noted(result, name), TemporaryDirectory(prefix="lsgd-peers-") as folder:
                    # Python's processes make folders there, which an end by a signal leaves.
                    own = {"TMPDIR": folder}
                    training = starts[name](Path(folder))
                    training = replace(training, environment={**training.environment, **own})
                    measured = watch(training, result["steps"] if number else 1, limit=limit)
                    for what, value in measured.items() if number else ():
                        samples.setdefault(what, {}).setdefault(name, []).append(value)
            for name in result["missing"]:
                for of_each in samples.values():
                    of_each.pop(name, None)
            keep(result)
    if len(result["missing"]) == len(starts):
        raise Refused("; ".join(f"{name}: {why}" for name, why in result["missing"].items()))


def report(result: Result) -> str:
    """The result as a report in Markdown."""
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
        f"one thread, loaders: {result['loaders']}, lsgd by +recipe=bs256 workers=1",
        *machine_lines(result),
        *result["scripts"].values(),
        f"{result['rounds']} rounds, {result['steps']} steps of each process after its first "
        f"{SETTLED}; medians (and intervals of 95 %)",
        "",
        markdown([*each, "page faults per step", "s per step", "CPU s with loaders"], steps),
        "",
        markdown([*whole, "peak, MiB", "times torchvision", "with loaders, MiB"], starts),
        "",
        *(_goals(samples, fastest) if fastest and OURS in cpu else ()),
        *(f"- {name} is not measured: {why}" for name, why in result["missing"].items()),
        "",
        *NOTES,
    ]
    return "\n".join(lines)


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
    """The lines that say whether lsgd, as it comes, is within its goals."""
    cpu, faults = samples["cpu_seconds_per_step"], samples["page_faults_per_step"]
    times = ratio(cpu, OURS, fastest)
    lines = [
        f"- {OURS}, at most {GOAL:g} times the CPU seconds per step of {fastest}, and "
        f"{GOAL_OF_END:g} at the end of the interval: {within_both(times)}, {times.shown('.3f')}"
    ]
    fewest = min(
        (name for name in SCRIPTS if name in faults),
        key=lambda name: estimate(faults[name]).median,
    )
    # A difference, since a process may have none.
    pairs = zip(faults[OURS], faults[fewest], strict=True)
    more = estimate([our - their for our, their in pairs])
    lines.append(
        f"- {OURS}, at most as many page faults per step as {fewest}: {more.within(0)}, "
        f"{more.shown('+,.0f')}"
    )
    for what, goal, name in (
        ("time to the first step", GOAL_OF_START, "first_step_seconds"),
        ("peak", GOAL_OF_PEAK, "peak_bytes"),
    ):
        if "torchvision" in samples[name]:
            times = ratio(samples[name], OURS, "torchvision")
            judged = f"{times.within(goal)}, {times.shown('.3f')}"
        else:
            judged = "not measured"
        lines.append(f"- {OURS}, at most {goal:g} times the {what} of torchvision: {judged}")
    return lines


def within_both(times: Estimate) -> str:
    """Whether a ratio of CPU seconds is within both goals: `yes`, `no` or `not resolved`."""
    if times.median <= GOAL and times.high <= GOAL_OF_END:
        return "yes"
    return "no" if times.low > GOAL else "not resolved"


def _times(samples: Samples, name: str, baseline: str | None) -> str:
    if baseline is None or baseline not in samples:
        return "–"
    return "1" if name == baseline else ratio(samples, name, baseline).shown(".3f")


def _mebibytes(values: Sequence[float]) -> str:
    return estimate([value / 2**20 for value in values]).shown(",.0f")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
