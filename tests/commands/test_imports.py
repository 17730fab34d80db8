"""Nothing heavy is imported that a run does not use, nor torch where nothing is computed."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

IMPORTED = """
import sys
from lsgd.train import main
for words in sys.argv[1:]:
    try:
        code = main(words.split())
    except SystemExit as end:
        code = end.code
    assert not code
print(*sys.modules, sep="\\n", file=sys.stderr)
"""

NEVER_UNASKED = {
    "horovod", "nvidia.dali", "matplotlib", "pandas", "tensorflow", "lsgd.comm.torch",
    "lsgd.inputs.torchvision", "lsgd.bench", "lsgd.track", "mlflow", "wandb",
}  # fmt: skip
"""A run by one process in memory has no use for these."""
A_RUN = {
    "torchvision", "tensorboard", "PIL", "torch._dynamo", "torch._inductor", "sympy",
    "torch.utils.flop_counter",
}  # fmt: skip
"""A run uses them: networks, curves and, from inside, torch.optim."""
NOT_OF_THE_BASE = {"scipy", "sklearn", "joblib"}
"""No dependency of lsgd alone: a run that imports them is not one that everybody can make."""

ONE_BY_ONE = """
import importlib.util, sys
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    if hasattr(module, "__path__") and importlib.util.find_spec(f"{name}.__main__"):
        importlib.import_module(f"{name}.__main__")
    if "torch" in sys.modules:
        raise SystemExit(f"{name} imports torch")
from lsgd import config
config.load_recipe(["+recipe=digits", "rehearse=true"])
if "torch" in sys.modules:
    raise SystemExit("composing a recipe imports torch")
print(*sys.modules)
"""


def torch_free() -> list[str]:
    """The modules that need no torch: those of the contract that lint-imports keeps, two which
    reach the loaders' package, where torch is named for types alone, and the one that imports it
    when a function is called that computes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (modules,) = (
        contract["source_modules"]
        for contract in project["tool"]["importlinter"]["contracts"]
        if contract.get("forbidden_modules") == ["torch", "torchvision"]
    )
    return [*modules, "lsgd.prepare", "lsgd.doctor", "lsgd.api"]


def test_what_computes_nothing_imports_no_torch() -> None:
    """At run time too, where lint-imports sees only what the files say."""
    done = subprocess.run(
        [sys.executable, "-c", ONE_BY_ONE, *torch_free()],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert {"lsgd.run.read", "lsgd.report.__main__", "hydra"} <= set(done.stdout.split())


def imported(*lines: str) -> set[str]:
    """The modules that a training process has, once it is through with each line of words."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, *lines],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines())


@pytest.mark.slow
def test_help_needs_torch_and_hydra_alone() -> None:
    modules = imported("--help", "+recipe=bs8k --cfg")
    assert {"torch", "hydra"} <= modules
    assert not modules & (NEVER_UNASKED | A_RUN | NOT_OF_THE_BASE)


@pytest.mark.slow
def test_a_run_in_memory_leaves_out_what_it_does_not_use(tmp_path: Path) -> None:
    short = "+recipe=digits epochs=1 schedule.milestones=[] schedule.warmup_epochs=0.5"
    run = f"{short} run_dir={tmp_path / 'digits'}"
    modules = imported(run, f"{short} inputs=synthetic run_dir={tmp_path / 'made-up'}")
    assert not modules & (NEVER_UNASKED | NOT_OF_THE_BASE)
    assert {"torchvision", "tensorboard"} <= modules  # so the names are right
