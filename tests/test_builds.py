"""The scripts that compile for GPUs, with a torch, an nvcc and a pip that only say what they do."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = ("CUDA_HOME", "TORCH_CUDA_ARCH_LIST", "HOROVOD_BUILD_CUDA_CC_LIST", "HOROVOD_NCCL_HOME")

TORCH = """
class version: cuda = {cuda!r}
class cuda:
    device_count = staticmethod(lambda: {gpus})
    get_device_capability = staticmethod(lambda i: (9, 0))
__version__ = "2.13.0+test"
"""
PIP = """
import json, os, sys
from pathlib import Path

words = sys.argv[1:]
if "wheel" in words and "--wheel-dir" in words:
    toolkit = Path(os.environ["CUDA_HOME"])
    seen = {"words": words, "environment": dict(os.environ)}
    seen["bin_is_link"] = (toolkit / "bin").is_symlink()
    seen["lib64"] = sorted(each.name for each in (toolkit / "lib64").iterdir())
    Path(os.environ["SEEN"]).write_text(json.dumps(seen))
    if not os.environ.get("BUILDS"):
        sys.exit("error: as the test has it")
    Path(words[words.index("--wheel-dir") + 1], "apex-0.1-py3-none-any.whl").touch()
elif words[-1].endswith(".whl"):
    site = Path(__file__).parent.parent
    (site / "apex/optimizers").mkdir(parents=True, exist_ok=True)
    (site / "amp_C.py").touch()
    (site / "apex/optimizers/__init__.py").write_text("FusedSGD = None")
    info = site / "apex-0.1.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Name: apex\\nVersion: 0.1\\n")
    (info / "direct_url.json").write_text(json.dumps({"url": "file://" + words[-1]}))
"""


@dataclass
class Machine:
    """A Python with the packages of a folder, and the tools of another before all others."""

    folder: Path

    def __post_init__(self) -> None:
        command = [sys.executable, "-m", "venv", "--without-pip", self.folder / "venv"]
        subprocess.run(command, check=True)
        # An nvcc that is no part of a toolkit, before any that this machine has.
        for tool in ("g++", "c++", "make", "cmake", "nvcc", "git"):
            self.put(f"tools/{tool}", "#!/bin/sh\n", runs=True)
        self.torch()
        self.put("site/torch/include/ATen/ATen.h", "#error C++17 or later compatible\n")
        self.put("site/pip/__main__.py", PIP)

    def torch(self, cuda: str | None = "13.0", gpus: int = 0) -> None:
        self.put("site/torch/__init__.py", TORCH.format(cuda=cuda, gpus=gpus))

    def toolkit(self, release: str = "13.0") -> Path:
        """As PyPI's packages leave it, beside torch."""
        banner = f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.88'\n"
        self.put("site/nvidia/cu13/bin/nvcc", banner, runs=True)
        files = (
            "include/cuda_runtime.h", "lib/libcudart.so.13", "lib/libcudadevrt.a", "nvvm/bin/cicc",
        )  # fmt: skip
        for file in files:
            self.put(f"site/nvidia/cu13/{file}", "")
        version = "#define NCCL_MAJOR 2\n#define NCCL_MINOR 29\n#define NCCL_PATCH 7\n"
        self.put("site/nvidia/nccl/include/nccl.h", version)
        self.put("site/nvidia/nccl/lib/libnccl.so.2", "")
        return self.folder / "site/nvidia/cu13"

    def put(self, name: str, text: str, *, runs: bool = False) -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755 if runs else 0o644)

    def run(self, script: str, **env: str) -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if k not in (*OURS, "PYTHON", "LSGD_REQUIRE")}
        kept |= {
            "PATH": f"{self.folder}/tools:{os.environ['PATH']}",
            "PYTHONPATH": f"{self.folder}/site",
            "PYTHONDONTWRITEBYTECODE": "1",
            "XDG_CACHE_HOME": f"{self.folder}/cache",
            "SEEN": f"{self.folder}/seen.json",
        }
        return subprocess.run(
            [ROOT / "setup" / script, self.folder / "venv/bin/python"],
            env=kept | env,
            timeout=120,
            capture_output=True,
            text=True,
        )

    def seen(self) -> dict:
        """What pip was asked to build, and in which environment; there is none if it was not."""
        return json.loads((self.folder / "seen.json").read_text())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("script", ["horovod.sh", "apex.sh"])
def test_a_toolkit_of_pypi_gets_what_a_linker_looks_for(machine: Machine, script: str) -> None:
    """lib64 with names that have no version; the toolkit itself stays as it is."""
    toolkit = machine.toolkit()
    done = machine.run(script)
    seen = machine.seen()
    assert {"libcudart.so", "libcudart.so.13", "libcudadevrt.a"} <= {*seen["lib64"]}, done.stderr
    home = Path(seen["environment"]["CUDA_HOME"])
    assert home.is_relative_to(machine.folder / "cache/lsgd/wheels")
    assert not seen["bin_is_link"], "nvcc would look in the lib64 beside the real one"
    assert sorted(each.name for each in toolkit.iterdir()) == ["bin", "include", "lib", "nvvm"]
    if script == "horovod.sh":
        assert seen["environment"]["HOROVOD_CUDA_HOME"] == str(home)
        assert "NCCL: 2.29.7-cc-all" in done.stdout


@pytest.mark.parametrize("script", ["horovod.sh", "apex.sh"])
def test_a_whole_toolkit_is_taken_as_it_is(machine: Machine, script: str) -> None:
    """That of CUDA_HOME, before all others."""
    machine.toolkit()
    (machine.folder / "whole").symlink_to(machine.folder / "site/nvidia/cu13")
    machine.put("whole/lib64/libcudart.so", "")
    machine.run(script, CUDA_HOME=f"{machine.folder}/whole")
    assert machine.seen()["environment"]["CUDA_HOME"] == f"{machine.folder}/whole"


@pytest.mark.parametrize(
    ("script", "word", "value"),
    [
        ("horovod.sh", "HOROVOD_BUILD_CUDA_CC_LIST", "90"),
        ("apex.sh", "TORCH_CUDA_ARCH_LIST", "9.0"),
    ],
)
def test_without_a_gpu_in_sight_it_says_how_to_compile_for_one(
    machine: Machine, script: str, word: str, value: str
) -> None:
    """As on a login node; what is built so has the name of what a node with that GPU builds."""
    machine.toolkit()
    assert f"{word}={value} compiles for an H100 or H200 alone" in machine.run(script).stdout
    assert word not in machine.seen()["environment"]
    done = machine.run(script, **{word: value})
    assert "no GPU is in sight" not in done.stdout
    assert machine.seen()["environment"][word] == value
    machine.torch(gpus=2)
    assert "no GPU is in sight" not in machine.run(script).stdout
    logs = (machine.folder / "cache/lsgd/wheels").glob("*.log")
    keys = sorted(
        each.name.rpartition("-cc-")[2].rpartition(".")[0].rpartition(".")[0] for each in logs
    )
    assert keys == [value, value, "all"]


def test_apex_is_built_once_and_then_installed_from_the_cache(machine: Machine) -> None:
    machine.toolkit()
    assert "installed from" in (done := machine.run("apex.sh", BUILDS="1")).stdout, done.stderr
    seen = machine.seen()
    assert (seen["environment"]["APEX_CPP_EXT"], seen["environment"]["APEX_CUDA_EXT"]) == ("1", "1")
    assert seen["environment"]["NVCC_APPEND_FLAGS"] == "--threads 4"
    assert "--no-build-isolation" in seen["words"]
    (machine.folder / "seen.json").unlink()
    assert machine.run("apex.sh").stdout.endswith("is in place.\n")
    (machine.folder / "site/apex-0.1.dist-info/direct_url.json").write_text(
        '{"url": "file:///old/lsgd/wheels/apex-of-an-older-torch/apex-0.1.whl"}'
    )
    assert "installed from" in machine.run("apex.sh").stdout
    assert not (machine.folder / "seen.json").exists()


def test_apex_is_not_built_for_a_torch_without_cuda(machine: Machine) -> None:
    machine.torch(cuda=None)
    done = machine.run("apex.sh")
    assert done.returncode == 1
    assert "apex: torch 2.13.0+test of " in done.stderr
    assert "is a CPU build" in done.stderr
    assert "or leave optim.fused=torch." in done.stderr


def test_apex_needs_an_nvcc_of_the_cuda_of_torch(machine: Machine) -> None:
    nowhere = machine.folder / "nowhere"
    done = machine.run("apex.sh", CUDA_HOME=str(nowhere))
    assert done.returncode == 1
    assert f"the CUDA toolkit (nvcc) is missing in CUDA_HOME={nowhere}; install CUDA" in done.stderr
    machine.toolkit(release="12.8")
    done = machine.run("apex.sh")
    assert done.returncode == 1
    assert "is of CUDA 12.8, and torch 2.13.0+test is built for CUDA 13.0; install" in done.stderr
    assert not (machine.folder / "seen.json").exists()


def test_apex_is_not_put_over_another_package(machine: Machine) -> None:
    """PyPI's has no kernels; one that has, and that lsgd did not build, as NGC's, stays."""
    machine.toolkit()
    machine.put("site/apex/__init__.py", "import pyramid_mailer")
    done = machine.run("apex.sh")
    assert done.returncode == 1
    assert "has no CUDA kernels, as PyPI's, another package of that name; " in done.stderr
    assert "-m pip uninstall apex' first" in done.stderr
    machine.put("site/amp_C.py", "")
    done = machine.run("apex.sh")
    assert (done.returncode, done.stderr) == (0, "")
    assert "that lsgd did not build is installed" in done.stdout


def test_apex_that_cannot_be_fetched_or_does_not_build(machine: Machine) -> None:
    machine.toolkit()
    assert "error: as the test has it" in (done := machine.run("apex.sh")).stderr
    assert "did not build for torch 2.13.0+test; the lines above are from its log" in done.stderr
    assert done.returncode == 1
    machine.put("tools/git", '#!/bin/sh\n[ "$1" = init ]\n', runs=True)
    done = machine.run("apex.sh")
    assert done.returncode == 1
    assert "https://github.com/NVIDIA/apex at 6424da3b4faa could not be fetched" in done.stderr
    assert not [*(machine.folder / "cache/lsgd/wheels").glob(".build*")]
