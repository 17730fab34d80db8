"""The scripts that compile, with a torch, an nvcc and a pip that only say what they do."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = (
    *("CUDA_HOME", "TORCH_CUDA_ARCH_LIST", "HOROVOD_BUILD_CUDA_CC_LIST", "HOROVOD_NCCL_HOME"),
    *("HOROVOD", "CXX", "PYTHON", "LSGD_REQUIRE"),
)
BASIC = (
    *("cp", "env", "grep", "head", "ln", "mkdir", "mktemp", "mv"),
    *("readlink", "rm", "sleep", "tail"),
)
LIMIT = 600
"""Seconds after which a script hangs, on however busy a machine."""
COMPILE = ("c++", "cmake", "g++", "git", "make")
GIT = '[ "$1" != init ] || { mkdir "$3"; echo > "$3/setup.py"; }'
PARTS = dict(re.findall(r"^    (\S+)=(\w+)$", (ROOT / "setup/cuda.sh").read_text(), re.MULTILINE))
"""The files of a whole toolkit, and the extra of PyPI's cuda-toolkit that brings each."""
BUILT_FOR = "horovod-0.28.1-torch-2.13.0+test-{tag}-mpi-none-nccl-"
"""How the folder of a Horovod in the cache begins."""

TORCH = """
class version: cuda = {cuda!r}
class cuda:
    device_count = staticmethod(lambda: {gpus})
    get_device_capability = staticmethod(lambda i: (9, 0))
__version__ = "2.13.0+test"
"""
HEADERS = """
import sysconfig

path = sysconfig.get_path
sysconfig.get_path = lambda name: "{folder}/headers" if name == "include" else path(name)
"""
PIP = """
import json, os, sys
from importlib.util import find_spec
from pathlib import Path

words = sys.argv[1:]
if "wheel" in words and "--wheel-dir" in words:
    seen = {"words": words, "environment": dict(os.environ)}
    if toolkit := os.environ.get("CUDA_HOME"):
        seen["bin_is_link"] = Path(toolkit, "bin").is_symlink()
        seen["lib64"] = sorted(each.name for each in Path(toolkit, "lib64").iterdir())
        seen["include"] = os.path.realpath(f"{toolkit}/include")
    Path(os.environ["SEEN"]).write_text(json.dumps(seen))
    if not os.environ.get("BUILDS"):
        sys.exit("error: as the test has it")
    Path(words[words.index("--wheel-dir") + 1], "apex-0.1-py3-none-any.whl").touch()
elif "install" in words and not words[-1].endswith(".whl"):
    with open(os.environ["SEEN"] + ".asked", "a") as asked:
        print(*words, file=asked)
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
    """A Python with the packages of a folder, and no tools but those of another.

    It has what compiles, and neither nvcc nor MPI, as most have.
    """

    folder: Path
    venv: Path

    def __post_init__(self) -> None:
        (self.folder / "tools").mkdir()
        for tool in ("bash", "dirname", *BASIC):
            (self.folder / "tools" / tool).symlink_to(shutil.which(tool) or f"/bin/{tool}")
        for tool in COMPILE:
            self.tool(tool)
        self.tool("git", GIT)
        self.torch()
        self.put("site/torch/include/ATen/ATen.h", "#error C++17 or later compatible\n")
        self.put("site/pip/__main__.py", PIP)
        # Python's own headers are a package of Debian's, which need not be there.
        self.put("headers/Python.h", "")
        self.put("site/sitecustomize.py", HEADERS.format(folder=self.folder))

    def tool(self, name: str, does: str = "") -> None:
        (self.folder / "tools" / name).unlink(missing_ok=True)
        self.put(f"tools/{name}", f"#!/bin/sh\n{does}\n", runs=True)

    def torch(self, cuda: str | None = "13.0", gpus: int = 0) -> None:
        self.put("site/torch/__init__.py", TORCH.format(cuda=cuda, gpus=gpus))

    def toolkit(self, release: str = "13.0", folder: str = "site/nvidia/cu13") -> Path:
        """As PyPI's packages leave it, beside torch."""
        banner = f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.88'\n"
        for file in (*PARTS, "lib/libcudart.so.13", "lib/libcudadevrt.a"):
            self.put(f"{folder}/{file}", "")
        self.put(f"{folder}/bin/nvcc", banner, runs=True)
        version = "#define NCCL_MAJOR 2\n#define NCCL_MINOR 29\n#define NCCL_PATCH 7\n"
        self.put("site/nvidia/nccl/include/nccl.h", version)
        self.put("site/nvidia/nccl/lib/libnccl.so.2", "")
        return self.folder / folder

    def horovod(self, nccl: str) -> None:
        """A Horovod in place that lsgd has built with this NCCL."""
        major, minor = sys.version_info[:2]
        name = BUILT_FOR.format(tag=f"cp{major}{minor}-{os.uname().machine}") + nccl
        self.put("site/horovod-0.28.1.dist-info/METADATA", "Name: horovod\nVersion: 0.28.1\n")
        url = json.dumps({"url": f"file:///cache/lsgd/wheels/{name}/horovod.whl"})
        self.put("site/horovod-0.28.1.dist-info/direct_url.json", url)

    def put(self, name: str, text: str, *, runs: bool = False) -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755 if runs else 0o644)

    def start(self, script: str, python: str | Path = "python", **env: str) -> subprocess.Popen:
        kept = {k: v for k, v in os.environ.items() if k not in OURS}
        kept |= {
            "PATH": f"{self.folder}/tools",
            "PYTHONPATH": f"{self.folder}/site",
            "PYTHONDONTWRITEBYTECODE": "1",
            "XDG_CACHE_HOME": f"{self.folder}/cache",
            "TMPDIR": f"{self.folder.parent}",
            "SEEN": f"{self.folder}/seen.json",
        }
        pipe = subprocess.PIPE
        command = [ROOT / "setup" / script, self.folder / python]
        return subprocess.Popen(command, env=kept | env, stdout=pipe, stderr=pipe, text=True)

    def run(self, script: str, **env: str) -> subprocess.CompletedProcess[str]:
        started = self.start(script, self.venv / "bin/python", **env)
        output, errors = started.communicate(timeout=LIMIT)
        return subprocess.CompletedProcess(script, started.returncode, output, errors)

    def seen(self) -> dict:
        """What pip was asked to build, and in which environment; there is none if it was not."""
        return json.loads((self.folder / "seen.json").read_text())


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment without packages, whose Python all machines have."""
    folder = tmp_path_factory.mktemp("python") / "a venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=900)
    return folder


@pytest.fixture
def machine(tmp_path: Path, venv: Path) -> Machine:
    (tmp_path / "a machine").mkdir()
    return Machine(tmp_path / "a machine", venv)


LIMITED = """
import sys

sys.path.insert(0, {root!r})
from lsgd.job import system

system.cpu_quota, system.memory_limit = lambda: {cores}, lambda: {memory}
"""


@pytest.mark.parametrize(("cores", "memory", "compilers"), [(1.5, 9e12, "1"), (9.0, 1e9, "1")])
def test_no_more_compilers_than_a_container_is_allowed(
    cores: float, memory: float, compilers: str, machine: Machine
) -> None:
    """As under docker run --cpus=2 --memory=8g on a machine with 64 cores and 512 GB."""
    limited = LIMITED.format(root=str(ROOT), cores=cores, memory=int(memory))
    machine.put("site/sitecustomize.py", limited)
    command = [machine.venv / "bin/python", ROOT / "setup/facts.py", "horovod", "none"]
    env = os.environ | {"PYTHONPATH": f"{machine.folder}/site"}
    assert subprocess.check_output(command, env=env, text=True).splitlines()[8] == compilers


@pytest.mark.slow
@pytest.mark.parametrize("script", ["horovod.sh", "apex.sh"])
def test_a_toolkit_of_pypi_gets_what_a_linker_looks_for(machine: Machine, script: str) -> None:
    """lib64 with names that have no version; the toolkit itself stays as it is.

    All this is in a folder without a blank, whatever the cache's is called: Horovod's CMake files
    have paths without quotes.
    """
    toolkit = machine.toolkit()
    done = machine.run(script, HOROVOD="nccl")
    seen = machine.seen()
    assert {"libcudart.so", "libcudart.so.13", "libcudadevrt.a"} <= {*seen["lib64"]}, done.stderr
    home = Path(seen["environment"]["CUDA_HOME"])
    assert home.is_relative_to(machine.folder.parent)
    assert not [each for each in (str(home), seen["environment"]["TMPDIR"]) if " " in each]
    assert [*machine.folder.parent.iterdir()] == [machine.folder], "the folder of the build stays"
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
    machine.run(script, CUDA_HOME=f"{machine.folder}/whole", HOROVOD="nccl")
    assert machine.seen()["environment"]["CUDA_HOME"] == f"{machine.folder}/whole"


@pytest.mark.slow
def test_without_a_gpu_in_sight_apex_says_how_to_compile_for_one(machine: Machine) -> None:
    """As on a login node; what is built so has the name of what a node with that GPU builds."""
    machine.toolkit()
    assert "TORCH_CUDA_ARCH_LIST=9.0 compiles for an H100" in machine.run("apex.sh").stdout
    assert "TORCH_CUDA_ARCH_LIST" not in machine.seen()["environment"]
    assert "no GPU" not in machine.run("apex.sh", TORCH_CUDA_ARCH_LIST="9.0").stdout
    machine.torch(gpus=2)
    assert "no GPU" not in machine.run("apex.sh").stdout
    assert logs(machine) == ["cc-9.0", "cc-9.0", "cc-all"]


def logs(machine: Machine) -> list[str]:
    """How the keys end that were built for, one for each build."""
    names = [each.name for each in (machine.folder / "cache/lsgd/wheels").glob("*.log")]
    return sorted(each[each.index("-cc-") + 1 :].rsplit(".", 2)[0] for each in names)


@pytest.mark.slow
def test_horovod_is_built_for_the_gpus_in_sight(machine: Machine) -> None:
    """Without one for CPU tensors, which takes a fraction of the time, unless it is asked for."""
    machine.toolkit()
    done = machine.run("horovod.sh")
    assert "NCCL: none" in done.stdout
    assert "no GPU is in sight, so Horovod is built for CPU tensors; for the GPUs" in done.stdout
    assert "HOROVOD_GPU_OPERATIONS" not in machine.seen()["environment"]
    for asked in ({"HOROVOD": "nccl"}, {"HOROVOD_BUILD_CUDA_CC_LIST": "80,90"}):
        assert "no GPU" not in machine.run("horovod.sh", **asked).stdout
        assert machine.seen()["environment"]["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    machine.torch(gpus=2)
    assert "no GPU" not in machine.run("horovod.sh").stdout
    assert machine.seen()["environment"]["HOROVOD_BUILD_CUDA_CC_LIST"] == "90"
    machine.torch(cuda=None)
    assert "CUDA" not in (done := machine.run("horovod.sh")).stdout + done.stderr
    done = machine.run("horovod.sh", HOROVOD="nccl")
    assert "horovod: HOROVOD=nccl needs a CUDA build of torch, and torch 2.13" in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("nccl", "gpus", "stays"),
    [
        ("none", 0, True),
        ("none", 2, False),
        ("2.29.7-cc-90", 0, True),
        ("2.29.7-cc-80,90", 2, True),
        ("2.29.7-cc-all", 2, True),
        ("2.29.7-cc-80", 2, False),
        ("2.27.3-cc-90", 2, False),
    ],
)
def test_a_horovod_in_place_stays_where_it_serves_the_gpus(
    machine: Machine, nccl: str, gpus: int, stays: bool
) -> None:
    """A login node keeps what a GPU node has built, and that one replaces what is for CPUs."""
    machine.toolkit()
    machine.torch(gpus=gpus)
    machine.horovod(nccl)
    done = machine.run("horovod.sh")
    assert ("is in place" in done.stdout) == stays, done.stdout
    assert (machine.folder / "seen.json").exists() != stays


@pytest.mark.slow
def test_setuptools_is_one_that_torch_takes(machine: Machine) -> None:
    """The pinned one is too new for torch 2.11, and the other packages are as pinned."""
    metadata = "Name: torch\nVersion: 2.11.0\nRequires-Dist: jinja2\nRequires-Dist: setuptools<82\n"
    machine.put("site/torch-2.11.0.dist-info/METADATA", metadata)
    machine.run("horovod.sh")
    others, asked = (machine.folder / "seen.json.asked").read_text().splitlines()
    assert "-c " in others
    assert "setuptools" not in others
    assert asked.split("install", 1)[1].split() == ["--quiet", "setuptools>=70.1", "setuptools<82"]


def test_a_horovod_for_cpus_on_a_node_with_gpus_is_named(machine: Machine) -> None:
    """Where it cannot be replaced, for want of a toolkit."""
    machine.toolkit()
    machine.torch(gpus=2)
    machine.horovod("none")
    done = machine.run("horovod.sh", CUDA_HOME=str(machine.folder))
    sentence = "horovod: the Horovod in place is for CPU tensors, as a whole CUDA toolkit ("
    assert done.stdout.startswith(f"{sentence}{machine.folder} lacks bin/nvcc, nvvm/bin/cicc, ")
    assert "is missing; for GPUs install CUDA toolkit 13.0 ('" in done.stdout
    assert done.returncode == 0
    assert machine.run("horovod.sh", CUDA_HOME="/", HOROVOD="nccl").returncode == 1


PYTHON = """
case $* in
    *facts.py*)
        set -- "$0" 2.13.0+test 13.0 17 cp311-x86_64 9.0 {folder}/site {folder}/Python.h 2 none
        IFS='
'; echo "$*" ;;
    *os.rename*) [ -e "$4" ] || /bin/mv "$3" "$4" ;;
    *' --wheel-dir '*)
        while [ "$1" != --wheel-dir ]; do shift; done
        {builds} ;;
esac
"""


def scripted(machine: Machine, builds: str = 'echo > "$2/package-1-py3-none-any.whl"') -> None:
    """Replace the machine's Python by a shell script that starts in no time."""
    machine.toolkit()
    machine.put("Python.h", "")
    folder = str(machine.folder).replace(" ", "\\ ")
    does = PYTHON.format(folder=folder, builds=builds)
    machine.put("python", f"#!/bin/sh\n{does}", runs=True)


KILLED = ("tools/mktemp", "tools/make", "python")
"""The places that are tried with a tool that a signal ends, which bash tells of in its own way."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "place",
    [
        *(f"tools/{tool}" for tool in (*BASIC, *COMPILE, "nvcc", "mpirun", "mpicxx")),
        *("site/nvidia/cu13/bin/nvcc", "python"),
    ],
)
def test_whatever_tool_fails_a_sentence_is_the_last_word(machine: Machine, place: str) -> None:
    """Horovod goes on with torch.distributed, and apex does not; or both do without the tool."""
    scripted(machine)
    machine.tool("mpirun", "echo 'mpirun (Open MPI) 4.1.4'")
    machine.tool("mpicxx")
    for does in ("exit 1", None, *(("kill -KILL $$",) if place in KILLED else ())):
        (machine.folder / place).unlink(missing_ok=True)
        if does:
            machine.put(place, f"#!/bin/sh\n{does}\n", runs=True)
        both = [machine.start(script) for script in ("horovod.sh", "apex.sh")]
        for package, started in zip(("horovod", "apex"), both, strict=True):
            output, errors = started.communicate(timeout=LIMIT)
            text = f"{does}:\n{output}{errors}"
            went_well = "installed from" in output
            last = (output if went_well else errors or output).splitlines()[-1]
            assert last.startswith(f"{package}: "), text
            may_fail = package == "apex" or place == "python"  # what nothing goes on without
            assert started.returncode == (may_fail and not went_well), text


def test_what_nobody_foresaw_is_told_with_its_line_and_required_horovod_fails(
    machine: Machine,
) -> None:
    scripted(machine)
    machine.tool("mktemp", "kill -KILL $$")
    started = machine.start("horovod.sh", LSGD_REQUIRE="mpi,horovod")
    errors = started.communicate(timeout=LIMIT)[1].splitlines()
    assert errors[-2].startswith("horovod: line ")
    assert " of setup/build.sh, 'made=$(mktemp -d " in errors[-2]
    assert errors[-2].endswith("was ended by signal 9; lsgd goes on with torch.distributed.")
    assert errors[-1] == "horovod: LSGD_REQUIRE names horovod, so this is an error."
    assert started.returncode == 1


def test_without_a_compiler_it_is_named_and_lsgd_goes_on(machine: Machine) -> None:
    scripted(machine)
    for tool in ("c++", "g++", "make", "cmake"):
        (machine.folder / "tools" / tool).unlink()
    started = machine.start("horovod.sh")
    errors = started.communicate(timeout=LIMIT)[1]
    assert "needs g++ make cmake" in errors
    assert "sudo apt install g++ make cmake" in errors
    assert "torch.distributed" in errors
    assert started.returncode == 0


@pytest.mark.parametrize("script", ["horovod.sh", "apex.sh"])
def test_ctrl_c_ends_the_compilers_and_leaves_no_half_a_build(
    machine: Machine, script: str
) -> None:
    compiler = machine.folder / "compiler"
    name = str(compiler).replace(" ", "\\ ")
    scripted(machine, f"sh -c 'echo $$ > \"$0\"; exec sleep 600' {name} & wait")
    machine.tool("sh", 'exec /bin/sh "$@"')
    started = machine.start(script)
    while not (compiler.is_file() and compiler.read_text()):
        assert started.poll() is None, started.communicate(timeout=LIMIT)
        time.sleep(0.01)
    started.send_signal(signal.SIGINT)
    errors = started.communicate(timeout=LIMIT)[1]
    assert errors.endswith(": interrupted; the same command begins again.\n")
    assert started.returncode == 130
    state = Path(f"/proc/{compiler.read_text().strip()}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"
    assert not [*(machine.folder / "cache/lsgd/wheels").glob(".build*")]
    assert [*machine.folder.parent.iterdir()] == [machine.folder]


def test_what_says_how_far_a_build_is_ends_with_it(machine: Machine) -> None:
    slow = "sleep; sleep; sleep; sleep; sleep"
    scripted(machine, f'echo > "$2/a-1-py3-none-any.whl"; {slow} ;; *--force-reinstall*) {slow}')
    machine.tool("sleep", f"exec {shutil.which('sleep')} 0.1")
    output, errors = machine.start("horovod.sh").communicate(timeout=LIMIT)
    assert "installed from" in output, errors
    assert "building: " not in output[output.index("built in") :]


def test_of_two_builds_at_once_the_first_wheel_is_taken(machine: Machine) -> None:
    """The second moves its own to where one is, and that is as good."""
    key = BUILT_FOR.format(tag="cp311-x86_64") + "2.29.7-cc-90"
    first = machine.folder / "cache/lsgd/wheels" / key / "first.whl"
    scripted(machine, f'mkdir {str(first.parent)!r}; echo > {str(first)!r}; echo > "$2/second.whl"')
    output, errors = machine.start("horovod.sh").communicate(timeout=LIMIT)
    assert f"installed from {first}" in output, errors
    assert [*first.parent.iterdir()] == [first]


def test_a_cache_that_cannot_be_written_is_named(machine: Machine) -> None:
    scripted(machine)
    machine.put("cache", "a file")
    for script, code in (("horovod.sh", 0), ("apex.sh", 1)):
        started = machine.start(script)
        assert " cannot be written (set XDG_CACHE_HOME to" in started.communicate(timeout=LIMIT)[1]
        assert started.returncode == code


@pytest.mark.slow
def test_apex_is_built_once_and_then_installed_from_the_cache(machine: Machine) -> None:
    machine.toolkit()
    assert "installed from" in (done := machine.run("apex.sh", BUILDS="1")).stdout, done.stderr
    seen = machine.seen()
    assert seen["environment"]["APEX_CUDA_EXT"] == "1"
    assert seen["environment"]["NVCC_APPEND_FLAGS"] == "--threads 4"
    assert "--no-build-isolation" in seen["words"]
    (machine.folder / "seen.json").unlink()
    assert machine.run("apex.sh").stdout.endswith("is in place.\n")
    (machine.folder / "site/apex-0.1.dist-info/direct_url.json").write_text(
        '{"url": "file:///old/lsgd/wheels/apex-of-an-older-torch/apex-0.1.whl"}'
    )
    assert "installed from" in machine.run("apex.sh").stdout
    assert not (machine.folder / "seen.json").exists()


@pytest.mark.slow
def test_apex_is_built_with_its_extension_amp_c_alone(tmp_path: Path) -> None:
    """By apex's own setup.py, run as by pip, with what else this adds; packages stay all."""
    (tmp_path / "setup.py").write_text((ROOT / "setup/amp_c.py").read_text())
    (tmp_path / "setup_of_apex.py").write_text(
        "from setuptools import Extension, setup\n"
        "made = [Extension(name, [f'{name}.cpp']) for name in ('amp_C', 'syncbn')]\n"
        "setup(name='apex', version='0.1', packages=['apex'], ext_modules=made)\n"
    )
    (tmp_path / "apex").mkdir()
    # What setuptools compiles is what it would look for in a source distribution.
    for name in ("amp_C", "syncbn"):
        (tmp_path / f"{name}.cpp").touch()
    command = [sys.executable, "setup.py", "--quiet", "egg_info"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=900)
    sources = (tmp_path / "apex.egg-info/SOURCES.txt").read_text()
    assert "amp_C.cpp" in sources
    assert "syncbn.cpp" not in sources
    assert (tmp_path / "apex.egg-info/top_level.txt").read_text().split() == ["amp_C", "apex"]


@pytest.mark.parametrize("missing", ["include/cusparse.h", "nvvm/bin/cicc", "release"])
@pytest.mark.parametrize("script", ["horovod.sh", "apex.sh"])
def test_a_toolkit_in_path_that_is_not_whole_is_passed_over(
    machine: Machine, script: str, missing: str
) -> None:
    """For PyPI's; as one is that is whole, but of another CUDA than torch."""
    whole = machine.toolkit()
    in_path = machine.toolkit("12.4" if missing == "release" else "13.0", "partial")
    (in_path / missing).unlink(missing_ok=True)
    (machine.folder / "tools/nvcc").symlink_to(in_path / "bin/nvcc")
    machine.run(script, HOROVOD="nccl")
    assert Path(machine.seen()["include"]) == whole / "include"


@pytest.mark.parametrize("script", ["horovod.sh", "apex.sh"])
def test_where_no_toolkit_is_whole_each_says_what_it_lacks(machine: Machine, script: str) -> None:
    """Before anything compiles, with what to ask of pip: nvcc's own parts in the release of torch.

    nvidia-cuda-nvcc by itself takes the newest of the packages that it depends on, and cuda-toolkit
    names those of one release.
    """
    python = machine.venv / "bin/python"
    # Of a CUDA that this machine has not, whatever it has.
    machine.torch(cuda="99.0")
    of_pypi = machine.toolkit("99.0", "site/nvidia/cu99")
    in_path = machine.toolkit("99.0", "partial")
    for lacking in ("bin/nvcc", "nvvm/bin/cicc"):
        (of_pypi / lacking).unlink()
    (in_path / "include/cusparse.h").unlink()
    (machine.folder / "tools/nvcc").symlink_to(in_path / "bin/nvcc")
    done = machine.run(script, HOROVOD="nccl")
    assert done.returncode == 1
    assert f"{in_path} lacks include/cusparse.h; " in done.stderr
    assert f"{of_pypi} lacks bin/nvcc, nvvm/bin/cicc" in done.stderr
    extras = "nvcc,nvvm,crt,cudart,cccl,cublas,cusolver,cusparse"
    asked = f"('{python} -m pip install \"cuda-toolkit[{extras}]==99.0.*\"')"
    assert f"install CUDA toolkit 99.0 {asked}, or set CUDA_HOME" in done.stderr
    assert not (machine.folder / "seen.json").exists()
    machine.torch(cuda="9.2")
    done = machine.run(script, HOROVOD="nccl")
    assert "; install CUDA toolkit 9.2, or set CUDA" in done.stderr.replace("for GPUs ", "")
    assert str(of_pypi) not in done.stderr


def test_nothing_is_said_of_what_is_no_toolkit(machine: Machine) -> None:
    """A script in PATH that runs the nvcc of a toolkit elsewhere."""
    machine.put("bin/nvcc", "#!/bin/sh\nexec /opt/cuda/bin/nvcc", runs=True)
    (machine.folder / "tools/nvcc").symlink_to(machine.folder / "bin/nvcc")
    machine.torch(cuda="99.0")
    done = machine.run("apex.sh")
    assert done.returncode == 1
    assert "no whole toolkit of it is here" in done.stderr
    assert f"{machine.folder} lacks" not in done.stderr


@pytest.mark.slow
def test_apex_needs_an_nvcc_of_the_cuda_of_torch(machine: Machine) -> None:
    """And Horovod one of the same major version."""
    nowhere = machine.folder / "nowhere"
    done = machine.run("apex.sh", CUDA_HOME=str(nowhere))
    assert done.returncode == 1
    assert f"is here ({nowhere} lacks bin/nvcc, nvvm/bin/cicc, " in done.stderr
    home = machine.toolkit(release="13.2")
    done = machine.run("apex.sh", CUDA_HOME=str(home))
    assert done.returncode == 1
    sentence = "torch 2.13.0+test is built for CUDA 13.0, and no whole toolkit of it is here"
    assert f"{sentence} ({home} is of CUDA 13.2); install CUDA" in done.stderr
    assert not (machine.folder / "seen.json").exists()
    machine.run("horovod.sh", HOROVOD="nccl", CUDA_HOME=str(home))
    assert machine.seen()["environment"]["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    machine.toolkit(release="12.8")
    done = machine.run("horovod.sh", HOROVOD="nccl", CUDA_HOME=str(home))
    assert f"HOROVOD=nccl needs a whole CUDA toolkit ({home} is of CUDA 12.8), " in done.stderr


OF_PART = {
    "cudart": ("cuda.h", "cuda_bf16.h", "cuda_fp16.h", "cuda_runtime.h", "cuda_runtime_api.h"),
    "cublas": ("cublasLt.h", "cublas_v2.h"),
    "cusolver": ("cusolverDn.h", "cusolver_common.h"),
    "cusparse": ("cusparse.h",),
}
"""Headers of CUDA by the extra of PyPI's cuda-toolkit that brings them."""


def test_torchs_headers_for_extensions_are_of_parts_that_are_looked_for() -> None:
    """What ATen's and c10's for CUDA include, which apex and Horovod include in turn."""
    folder = Path(find_spec("torch").origin).parent / "include"
    files = [folder / f"ATen/cuda/{name}.h" for name in ("CUDAContextLight", "Exceptions")]
    files += folder.glob("c10/cuda/**/*.h")
    text = "".join(file.read_text() for file in files)
    included = {*re.findall(r"^#include <(cu\w+\.h)>", text, re.MULTILINE)}
    assert "cusparse.h" in included
    # cuDSS is included if torch was built with it, as PyPI's torch is not.
    known = {header for part in OF_PART for header in OF_PART[part]}
    assert included - {"cudss.h"} <= known
    assert OF_PART.keys() <= {*PARTS.values()}


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


@pytest.mark.slow
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
