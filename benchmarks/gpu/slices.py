"""The slices: what is asked of a GPU, each by a command that ends within minutes or goes on."""

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import benchmarks
from benchmarks.gpu.outcome import REPORT
from lsgd import paths
from lsgd.installation import install

ROOT = Path(os.path.relpath(Path(benchmarks.__file__).parent.parent))
"""The checkout, seen from the current folder."""
TEST_DATA = "LSGD_TEST_DATA"
"""The environment variable that names the folder with the data of the tests."""
CIFAR10 = ("train.npz", "cifar-10-batches-py", "data_batch_1")
"""The files of CIFAR-10, one of which is there in each form of it."""
KEPT = "{report}"
"""The word, or the part of one, that stands for the folder in which a command keeps its result."""


@dataclass(frozen=True)
class Slice:
    """A command, and what it needs."""

    name: str
    words: tuple[str, ...]
    """What follows the name of the Python."""
    lacks: str = ""
    """Why it cannot be run on this machine; empty if it can."""
    environment: Mapping[str, str] = field(default_factory=dict)
    trains: bool = False
    """Whether it saves and leaves when it is told to, and goes on by the same words."""

    def command(self, folder: Path) -> list[str]:
        """The words, for the slice with this folder."""
        return [word.replace(KEPT, str(folder / REPORT)) for word in self.words]

    def shown(self, folder: Path) -> str:
        """The command as it may be typed anywhere: without where this machine has its data."""
        set_here = [f"{name}={value}" for name, value in self.environment.items()]
        command = shlex.join([*set_here, "python", *self.command(folder)])
        data = os.environ.get(TEST_DATA)
        return command.replace(data, f"${TEST_DATA}") if data else command


@dataclass(frozen=True)
class Sizes:
    """The words that make the commands large, for a GPU, or small."""

    device: str
    environment: Mapping[str, str]
    tests: tuple[str, ...]
    """Where pytest looks for tests that are marked `gpu`."""
    step: tuple[str, ...]
    passes: tuple[int, ...]
    """Workers of a pass."""
    rounds: tuple[str, ...]
    inputs: tuple[str, ...]
    profile: tuple[str, ...]
    study: str
    seeds: tuple[int, ...]
    trials: tuple[str, ...]
    whole_run: tuple[str, ...]


# A step of 1024 images takes 0.3 to 2 s on GPUs of 2016 to 2024: of four candidates 84 of them end
# in time. What torch compiles stays in its cache, so that a slice that was too slow gets further
# with the next call.
FULL = Sizes(
    device="cuda",
    environment={},
    tests=("tests",),
    step=("+recipe=bs1k",),
    passes=(1, 8, 32),
    rounds=("--rounds", "20", "--steps", "1"),
    inputs=("+recipe=bs256", "workers_per_pass=8", "--rounds", "9", "--images", "4096"),
    profile=("+recipe=bs256", "workers_per_pass=8", "data.train_examples=10240"),
    study="cifar10_figure1",
    seeds=(0, 1, 2),
    # In float32, as the recipes have it: another precision would be another study.
    trials=("workers_per_pass=auto",),
    whole_run=("+recipe=bs8k",),
)

# Compiling takes longer than all the rest, and is left out.
TINY = Sizes(
    device="cpu",
    environment={"TORCH_COMPILE_DISABLE": "1"},
    tests=("tests/rules/test_batchnorm.py",),
    step=("+recipe=digits", "workers=4", "worker_batch=4", "schedule.warmup=none"),
    passes=(2,),
    rounds=("--rounds", "6", "--steps", "1"),
    inputs=(
        *("+recipe=bs256", "model=small_resnet", "data.image_size=32", "workers=2"),
        *("worker_batch=4", "workers_per_pass=2", "inputs.decoders=1"),
        *("--rounds", "6", "--images", "8", "--steps", "1"),
    ),
    profile=("+recipe=digits", "workers=4", "data.train_examples=2560"),
    study="digits",
    seeds=(0,),
    trials=("epochs=1", "schedule.milestones=[]", "schedule.warmup_epochs=0.5"),
    whole_run=("+recipe=digits",),
)


def all_slices(sizes: Sizes) -> list[Slice]:
    """Every slice of these sizes, in the order in which they are run."""
    steps = list(_steps(sizes))
    names = ",".join(each.name for each in steps if each.name.startswith("step-"))
    whole_run = ("-m", "benchmarks.gpu.whole_run", names, *sizes.whole_run, "precision=bfloat16")
    return [
        _tests(sizes),
        *steps,
        _inputs(sizes),
        Slice(
            "profile",
            ("-m", "benchmarks.gpu.phases", KEPT, *sizes.profile, *_fast(sizes, compiled=True)),
            environment=sizes.environment,
        ),
        Slice("imagenet", (*whole_run, "--out", KEPT), lacks=_report_lacks()),
        # Last, since it takes as long as it is given.
        *(_ladder(sizes, seed) for seed in sizes.seeds),
    ]


def trial_words(sizes: Sizes) -> tuple[str, ...]:
    """The words that hold for all trials of the ladder, and change nothing of what is published."""
    root = _cifar10(sizes)
    return (f"device={sizes.device}", *sizes.trials, *([f"data.root={root}"] if root else []))


def _tests(sizes: Sizes) -> Slice:
    places = [str(ROOT / place) for place in sizes.tests]
    words = (
        "-m",
        "pytest",
        "-c",
        str(ROOT / "pyproject.toml"),
        "-m",
        "gpu",
        "-p",
        "no:cacheprovider",
    )
    return Slice(
        "tests",
        (*words, f"--junit-xml={KEPT}/junit.xml", *places),
        lacks=_unless_installed("pytest", "hypothesis", extra="dev"),
        # A test that is skipped for want of a GPU has shown nothing.
        environment={"LSGD_REQUIRE": "gpu"} if sizes is FULL else {},
    )


def _steps(sizes: Sizes) -> Iterator[Slice]:
    """A whole step, and what per-worker BN costs in it, by the size of a pass."""
    for what in ("step", "batchnorm"):
        for workers in sizes.passes:
            # With one worker in a pass per-worker BN is plain BN.
            if what == "batchnorm" and workers == 1:
                continue
            for compiled in (False, True):
                yield _measured(sizes, what, workers, compiled=compiled)
    # The smallest pass, which waits longest for its kernels to be launched.
    yield _measured(sizes, "step", min(sizes.passes), compiled=True, graphs=True)


def _measured(
    sizes: Sizes, what: str, workers: int, *, compiled: bool, graphs: bool = False
) -> Slice:
    size = f"workers_per_pass={workers}"
    words = (*sizes.step, size, *_fast(sizes, compiled=compiled), *sizes.rounds)
    replayed = ("cuda_graphs=true",) if graphs else ()
    how = "-graphs" if graphs else "-compiled" if compiled else ""
    return Slice(
        f"{what}-{workers}{how}",
        ("-m", f"benchmarks.{what}", *words, *replayed, "--out", KEPT),
        environment=sizes.environment,
    )


def _fast(sizes: Sizes, *, compiled: bool) -> tuple[str, ...]:
    compiles = "true" if compiled else "false"
    return (
        f"device={sizes.device}",
        "precision=bfloat16",
        "channels_last=true",
        f"compile={compiles}",
    )


def _inputs(sizes: Sizes) -> Slice:
    """The loaders on ImageNet where lsgd finds it, else on the photographs of the tests."""
    root = paths.data_root("imagenet")
    test_data = os.environ.get(TEST_DATA)
    words = (*sizes.inputs, *_fast(sizes, compiled=True), "--out", KEPT)
    lacks = _unless_installed("nvidia.dali", extra="dali")
    if sizes is FULL and _has(root, "train*"):
        words = ("-m", "lsgd.bench", "inputs", *words)
    elif test_data:
        words = ("-m", "benchmarks.gpu.sample", test_data, *words)
    else:
        lacks = lacks or (
            f"no images: neither ImageNet at {root}, which LSGD_DATA names, nor photographs of the "
            f"tests, which {TEST_DATA} would name"
        )
        words = ("-m", "lsgd.bench", "inputs", *words)
    return Slice("inputs", words, lacks=lacks, environment=sizes.environment)


def _ladder(sizes: Sizes, seed: int) -> Slice:
    words = ("-m", "lsgd.study", f"+study={sizes.study}", f"seeds=[{seed}]", *trial_words(sizes))
    lacks = _report_lacks()
    root = paths.data_root("cifar10")
    if sizes is FULL and not _has(root, *CIFAR10) and not _cifar10(sizes):
        lacks = lacks or f"no CIFAR-10 at {root}; python -m lsgd.prepare cifar10 fetches it"
    return Slice(f"ladder-seed{seed}", (*words, "--np", "1"), lacks=lacks, trains=True)


def _cifar10(sizes: Sizes) -> Path | None:
    """Where the tests have CIFAR-10, if it is not where lsgd looks for it by itself."""
    test_data = os.environ.get(TEST_DATA)
    if sizes is not FULL or not test_data or _has(paths.data_root("cifar10"), *CIFAR10):
        return None
    root = Path(test_data) / "cifar10-jpeg"
    return root if root.is_dir() else None


def _has(root: Path, *patterns: str) -> bool:
    """Whether a dataset is there: a checkout has a folder for each, with how to prepare it."""
    return any(next(root.glob(pattern), None) for pattern in patterns)


def _report_lacks() -> str:
    return _unless_installed("matplotlib", "scipy", extra="report")


def _unless_installed(*modules: str, extra: str) -> str:
    """Which of the modules are not installed, and what installs them; empty if all are."""
    missing = [name for name in modules if not _is_installed(name)]
    if not missing:
        return ""
    return f"not installed: {', '.join(missing)}; {install(extra)}"


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it would be in
        return False
