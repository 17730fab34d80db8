"""The slices of the GPU benchmarks: commands that finish within minutes or can be resumed."""

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import benchmarks
from benchmarks.gpu.outcome import REPORT
from lsgd import paths
from lsgd.installation import install_command

ROOT = Path(os.path.relpath(Path(benchmarks.__file__).parent.parent))
"""The checkout, relative to the current folder."""
TEST_DATA = "LSGD_TEST_DATA"
"""The environment variable that names the folder with the data of the tests."""
CIFAR10 = ("train.npz", "cifar-10-batches-py", "data_batch_1")
"""The files by which CIFAR-10 is found; each of its formats has one of them."""
RESULT_PLACEHOLDER = "{report}"
"""The placeholder in arguments for the folder in which a command saves its result."""


@dataclass(frozen=True)
class Slice:
    """A benchmark or test command for a GPU, with its requirements."""

    name: str
    arguments: tuple[str, ...]
    """The arguments of the Python interpreter."""
    missing_requirement: str = ""
    """The reason why it cannot run on this machine; empty if it can."""
    environment: Mapping[str, str] = field(default_factory=dict)
    is_resumable: bool = False
    """Whether a signal makes it save a checkpoint and exit, and the same command resumes it."""

    def command(self, folder: Path) -> list[str]:
        """Return the arguments for the slice with this folder."""
        return [word.replace(RESULT_PLACEHOLDER, str(folder / REPORT)) for word in self.arguments]

    def shell_command(self, folder: Path) -> str:
        """Return the command as a user would type it, without the paths of this machine's data."""
        set_here = [f"{name}={value}" for name, value in self.environment.items()]
        command = shlex.join([*set_here, "python", *self.command(folder)])
        data = os.environ.get(TEST_DATA)
        return command.replace(data, f"${TEST_DATA}") if data else command


@dataclass(frozen=True)
class SliceSettings:
    """The overrides and options that make the slices large, for a GPU, or tiny."""

    device: str
    environment: Mapping[str, str]
    tests: tuple[str, ...]
    """The paths in which pytest looks for tests that are marked `gpu`."""
    compared_runs: tuple[str, ...]
    """The options of the runs that are compared with the CPU's."""
    step: tuple[str, ...]
    passes: tuple[int, ...]
    """The numbers of workers in a micro-batch."""
    rounds: tuple[str, ...]
    inputs: tuple[str, ...]
    profile: tuple[str, ...]
    study: str
    seeds: tuple[int, ...]
    run_overrides: tuple[str, ...]
    whole_run: tuple[str, ...]


# A step of 1024 images takes 0.3 to 2 s on GPUs of 2016 to 2024, so the 84 steps of four candidates
# finish in time. torch caches what it compiles, so a slice that was too slow progresses further in
# the next call.
FULL = SliceSettings(
    device="cuda",
    environment={},
    tests=("tests",),
    compared_runs=(),
    step=("+recipe=bs1k",),
    passes=(1, 8, 32),
    rounds=("--rounds", "20", "--steps", "1"),
    inputs=("+recipe=bs256", "workers_per_pass=8", "--rounds", "9", "--images", "4096"),
    profile=("+recipe=bs256", "workers_per_pass=8", "data.train_examples=10240"),
    study="cifar10_figure1",
    seeds=(0, 1, 2),
    # The precision stays float32, as in the recipes, since another one would make another study.
    run_overrides=("workers_per_pass=auto",),
    whole_run=("+recipe=bs8k",),
)

# Compiling would take longer than everything else, so it is disabled.
TINY = SliceSettings(
    device="cpu",
    environment={"TORCH_COMPILE_DISABLE": "1"},
    tests=("tests/rules/test_batchnorm.py",),
    compared_runs=("--only", "allreduce"),
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
    run_overrides=("epochs=1", "schedule.milestones=[]", "schedule.warmup_epochs=0.5"),
    whole_run=("+recipe=digits",),
)


def all_slices(sizes: SliceSettings) -> list[Slice]:
    """Return every slice of these sizes, in the order in which they run."""
    steps = list(_steps(sizes))
    names = ",".join(each.name for each in steps if each.name.startswith("step-"))
    whole_run = ("-m", "benchmarks.gpu.whole_run", names, *sizes.whole_run, "precision=bfloat16")
    return [
        _tests(sizes),
        _runs(sizes),
        *steps,
        _inputs(sizes),
        Slice(
            "profile",
            (
                "-m",
                "benchmarks.gpu.phases",
                RESULT_PLACEHOLDER,
                *sizes.profile,
                *_fast(sizes, compiled=True),
            ),
            environment=sizes.environment,
        ),
        Slice(
            "imagenet",
            (*whole_run, "--out", RESULT_PLACEHOLDER),
            missing_requirement=_report_lacks(),
        ),
        # The ladder is last, since it takes all the time that it gets.
        *(_ladder(sizes, seed) for seed in sizes.seeds),
    ]


def ladder_overrides(sizes: SliceSettings) -> tuple[str, ...]:
    """Return the overrides of the ladder's runs; at full size the published trajectory stays."""
    root = _cifar10(sizes)
    return (
        f"device={sizes.device}",
        *sizes.run_overrides,
        *([f"data.root={root}"] if root else []),
    )


def _tests(sizes: SliceSettings) -> Slice:
    places = [str(ROOT / place) for place in sizes.tests]
    arguments = (
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
        (*arguments, f"--junit-xml={RESULT_PLACEHOLDER}/junit.xml", *places),
        missing_requirement=_unless_installed("pytest", "hypothesis", extra="dev"),
        # Without a GPU such a test must fail, since a skipped one shows nothing.
        environment={"LSGD_REQUIRE": "gpu"} if sizes is FULL else {},
    )


def _runs(sizes: SliceSettings) -> Slice:
    """Return the slice of small runs of every strategy, compared with the CPU's."""
    script = str(ROOT / "tests/accelerator/on_gpu.py")
    arguments = (script, RESULT_PLACEHOLDER, "--device", sizes.device, *sizes.compared_runs)
    return Slice("runs", arguments, environment=sizes.environment)


def _steps(sizes: SliceSettings) -> Iterator[Slice]:
    """Yield slices of the whole step, and of per-worker BN's cost in it, by micro-batch size."""
    for what in ("step", "batchnorm"):
        for workers in sizes.passes:
            # With one worker in a micro-batch per-worker BN is plain BN.
            if what == "batchnorm" and workers == 1:
                continue
            for compiled in (False, True):
                yield _measured(sizes, what, workers, compiled=compiled)
    # CUDA graphs are tried on the smallest micro-batch, which waits longest for kernel launches.
    yield _measured(sizes, "step", min(sizes.passes), compiled=True, graphs=True)


def _measured(
    sizes: SliceSettings, what: str, workers: int, *, compiled: bool, graphs: bool = False
) -> Slice:
    size = f"workers_per_pass={workers}"
    arguments = (*sizes.step, size, *_fast(sizes, compiled=compiled), *sizes.rounds)
    replayed = ("cuda_graphs=true",) if graphs else ()
    how = "-graphs" if graphs else "-compiled" if compiled else ""
    return Slice(
        f"{what}-{workers}{how}",
        ("-m", f"benchmarks.{what}", *arguments, *replayed, "--out", RESULT_PLACEHOLDER),
        environment=sizes.environment,
    )


def _fast(sizes: SliceSettings, *, compiled: bool) -> tuple[str, ...]:
    """Return the overrides of a fast step, compiled with the kernels that cuDNN chooses, or eager.

    The scripts of torchvision and timm let cuDNN choose its algorithms in either case.
    """
    kernels = ("compile=true", "deterministic=false") if compiled else ("compile=false",)
    return (f"device={sizes.device}", "precision=bfloat16", "channels_last=true", *kernels)


def _inputs(sizes: SliceSettings) -> Slice:
    """Return the loaders' slice, on ImageNet if lsgd finds it, else on the tests' photographs."""
    root = paths.data_root("imagenet")
    test_data = os.environ.get(TEST_DATA)
    arguments = (*sizes.inputs, *_fast(sizes, compiled=True), "--out", RESULT_PLACEHOLDER)
    lacks = _unless_installed("nvidia.dali", extra="dali")
    if sizes is FULL and _has(root, "train*"):
        arguments = ("-m", "lsgd.bench", "inputs", *arguments)
    elif test_data:
        arguments = ("-m", "benchmarks.gpu.sample", test_data, *arguments)
    else:
        lacks = lacks or (
            f"no images: neither ImageNet at {root}, which LSGD_DATA names, nor photographs of the "
            f"tests, which {TEST_DATA} would name"
        )
        arguments = ("-m", "lsgd.bench", "inputs", *arguments)
    return Slice("inputs", arguments, missing_requirement=lacks, environment=sizes.environment)


def _ladder(sizes: SliceSettings, seed: int) -> Slice:
    arguments = (
        "-m",
        "lsgd.study",
        f"+study={sizes.study}",
        f"seeds=[{seed}]",
        *ladder_overrides(sizes),
    )
    lacks = _report_lacks()
    root = paths.data_root("cifar10")
    if sizes is FULL and not _has(root, *CIFAR10) and not _cifar10(sizes):
        lacks = lacks or f"no CIFAR-10 at {root}; python -m lsgd.prepare cifar10 fetches it"
    return Slice(
        f"ladder-seed{seed}",
        (*arguments, "--np", "1"),
        missing_requirement=lacks,
        is_resumable=True,
    )


def _cifar10(sizes: SliceSettings) -> Path | None:
    """Return the tests' CIFAR-10, or None if lsgd finds the dataset in its default place."""
    test_data = os.environ.get(TEST_DATA)
    if sizes is not FULL or not test_data or _has(paths.data_root("cifar10"), *CIFAR10):
        return None
    root = Path(test_data) / "cifar10-jpeg"
    return root if root.is_dir() else None


def _has(root: Path, *patterns: str) -> bool:
    """Return whether a dataset's files exist, since a checkout has a folder for every dataset."""
    return any(next(root.glob(pattern), None) for pattern in patterns)


def _report_lacks() -> str:
    return _unless_installed("matplotlib", "scipy", extra="report")


def _unless_installed(*modules: str, extra: str) -> str:
    """Return which of the modules are missing and what installs them; empty if none is."""
    missing = [name for name in modules if not _is_installed(name)]
    if not missing:
        return ""
    return f"not installed: {', '.join(missing)}; {install_command(extra)}"


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False
