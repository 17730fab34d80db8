"""The wheel carries all that a run needs, and the scripts around lsgd do what they say."""

import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from lsgd.launch.options import LAUNCHERS
from lsgd.run import provenance

ROOT = Path(__file__).resolve().parents[2]
PINS = ROOT / "constraints.txt"
LOCK = ROOT / "setup/lock.txt"
WORKFLOWS = ROOT / ".github/workflows"
REASONS = (
    ("CHANGELOG.md is not committed", "git status"),
    ("CITATION.cff", "version: 0.1.0"),
    ("CHANGELOG.md", "## [0.1.0]"),
    ("v0.1.0", "lsgd/__init__.py", "git tag"),
)


def finished(
    command: Sequence[str | Path], cwd: Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """The command, run to its end in an environment that names neither a Python nor threads."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHON", "PYTHONPATH")}
    kept.pop("OMP_NUM_THREADS", None)
    return subprocess.run(
        command, cwd=cwd, env=kept | env, timeout=600, capture_output=True, text=True
    )


def output(command: Sequence[str | Path], cwd: Path | None = None, **env: str) -> str:
    """What the command prints; it must succeed."""
    done = finished(command, cwd, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# --- The wheel -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel built from the unpacked sdist, so that a file missing in either shows."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-d", folder]
    output([*build, "-t", "sdist"], cwd=ROOT)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as sdist:
        sdist.extractall(folder, filter="data")
    output([*build, "-t", "wheel"], cwd=next(folder.glob("lsgd-*/")))
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with the wheel in it, whose dependencies are those of the Python running this."""
    folder = tmp_path_factory.mktemp("venv")
    python = folder / "bin/python"
    output([sys.executable, "-m", "venv", "--without-pip", folder])
    site = output([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    # A .pth file's lines become paths, whose own .pth files are not read: no editable lsgd.
    (Path(site) / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    pip = [sys.executable, "-m", "pip", "--python", python, "install"]
    output([*pip, "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", wheel])
    return python


@pytest.mark.slow
def test_wheel_finds_its_folders(installed: Path, tmp_path: Path) -> None:
    program = """
import json, lsgd
from lsgd import paths
folders = paths.conf_dir(), paths.recipes_dir(), paths.digits_dir().parent
print(json.dumps([lsgd.__file__, *map(str, folders)]))
"""
    found = json.loads(output([installed, "-c", program], cwd=tmp_path))
    package = Path(found[0]).parent
    assert package.is_relative_to(installed.parent.parent)
    assert [Path(each).parent for each in found[1:]] == [package] * 3
    assert (package / "py.typed").is_file()
    for folder in ("conf", "recipes", "data/digits"):
        shipped = {p.relative_to(ROOT / folder) for p in (ROOT / folder).rglob("*") if p.is_file()}
        assert shipped == {
            p.relative_to(package / folder) for p in (package / folder).rglob("*") if p.is_file()
        }


@pytest.mark.slow
def test_wheel_trains_anywhere(installed: Path, tmp_path: Path) -> None:
    words = ["+recipe=digits", "epochs=1", "schedule.warmup_epochs=0.5", "schedule.milestones=[]"]
    assert "top-1 error" in output([installed.parent / "lsgd", "train", *words], cwd=tmp_path)


@pytest.mark.slow
def test_wheel_says_what_adds_to_it(installed: Path, tmp_path: Path) -> None:
    """The command that a hint names is one that pip takes, and the commit that of the checkout."""
    program = "from lsgd.installation import install_command; print(install_command('report'))"
    hint = output([installed, "-c", program], cwd=tmp_path)
    assert re.search(r"lsgd\[report\] @ file:///.*\.whl", hint)
    offline = ["--no-index", "--dry-run", "--disable-pip-version-check"]
    taken = output([*shlex.split(hint), *offline], cwd=tmp_path)
    assert "matplotlib" in taken
    printed = output([installed.parent / "lsgd", "--version"], cwd=tmp_path)
    assert f", commit {provenance.commit_of(ROOT) or 'unknown'}\n" in printed


@pytest.mark.slow
def test_wheel_launches(installed: Path, tmp_path: Path) -> None:
    """As a checkout does, with the templates that it needs."""
    launch = installed.parent / "lsgd-launch"
    for words in (["slurm", "bs8k"], ["mpirun", "digits", "--np", "2"]):
        printed = output([launch, *words, "--print"], cwd=tmp_path)
        assert f"{installed} -m lsgd.train +recipe={words[1]}" in printed
    assert "-m lsgd.train +recipe=digits" in output([launch, "local", "digits", "--print"])
    for kind in ("mpijob", "pytorchjob"):
        words = ["k8s", "digits", "--kind", kind, "--image", "i", "--claim", "c", "--print"]
        assert 'claimName: "c"' in output([launch, *words], cwd=tmp_path)
    usage = output([launch], cwd=tmp_path)
    assert all(f"\n  {name} " in usage for name in LAUNCHERS)
    done = finished([launch, "sbatch", "bs8k"], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "launcher sbatch does not exist" in done.stderr


def test_apex_of_pypi_is_not_wanted() -> None:
    """NVIDIA's apex is not on PyPI: the package of that name there is another one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    wanted = [each for group in groups for each in group] + PINS.read_text().splitlines()
    names = {re.split(r"[^\w.-]", each)[0].lower() for each in wanted}
    assert "torch" in names
    assert "apex" not in names


def test_pins_fit_any_build_of_torch() -> None:
    pins = [line for line in PINS.read_text().splitlines() if not line.startswith("#")]
    assert {"torch==2.13.0", "torchvision==0.28.0"} <= set(pins)
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)


# --- setup/ ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "passed_on"),
    [
        ("-std=c++14 -c a.cc", "-std=c++17 -c a.cc"),
        ("-std=gnu++11 -c a.cc", "-std=gnu++17 -c a.cc"),
        ("-std=c++20 -c a.cc", "-std=c++20 -c a.cc"),
        ("-c a.cc", "-c a.cc -std=c++17"),
        ("-std=c++14 a.o -o a", "-std=c++17 a.o -o a"),
        ("-std=c++14 -D__CUDACC__ -c a.cu", "-std=c++14 -D__CUDACC__ -c a.cu"),
    ],
)
def test_compiler_wrapper_raises_the_standard(given: str, passed_on: str) -> None:
    wrapped: list[str | Path] = [ROOT / "setup/cxx", *given.split()]
    printed = output(wrapped, LSGD_CXX="echo", LSGD_CXX_STD="17").strip()
    assert printed.removesuffix(" -include cstdint -include stdexcept -include string") == passed_on


# --- A release -------------------------------------------------------------------------------


def test_the_lock_has_the_pins_with_hashes_and_no_beta() -> None:
    pins = {line for line in PINS.read_text().splitlines() if not line.startswith("#")}
    pins = {f"{canonicalize_name(name)}=={each}" for name, each in (p.split("==") for p in pins)}
    entries = re.split(r"\n(?=\w)", LOCK.read_text().partition("make lock\n")[2].strip())
    locked = {each.split()[0]: each for each in entries}
    assert all("--hash=sha256:" in each for each in entries)
    assert not [each for each in locked if Version(each.partition("==")[2]).is_prerelease]
    names = {each.partition("==")[0] for each in locked}
    assert not {each for each in pins if each.partition("==")[0] in names} - locked.keys()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["horovod"], *extras["report"], *extras["dali"]]
    assert {canonicalize_name(Requirement(each).name) for each in wanted} <= names


@pytest.mark.git
def test_a_release_has_its_version_everywhere_and_nothing_uncommitted(tmp_path: Path) -> None:
    for each in ("lsgd/__init__.py", "setup/release.py", "CITATION.cff", "CHANGELOG.md"):
        (tmp_path / each).parent.mkdir(exist_ok=True)
        (tmp_path / each).write_text((ROOT / each).read_text())
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    release = [sys.executable, tmp_path / "setup/release.py"]
    output([*git, "init", "-q"], tmp_path)
    output([*git, "add", "."], tmp_path)
    output([*git, "commit", "-qm", "a"], tmp_path)
    (tmp_path / "CITATION.cff").write_text("version: 9\n")
    (tmp_path / "CHANGELOG.md").write_text("## [9.9] - 2026-01-01\n")
    done = finished(release, tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    for line, words in zip(done.stderr.splitlines(), REASONS, strict=True):
        assert all(word in line for word in words)
    assert not (tmp_path / "dist").exists()


@pytest.mark.parametrize("path", sorted(WORKFLOWS.glob("*.yml")), ids=lambda path: path.name)
def test_a_workflow_runs_what_there_is(path: Path) -> None:
    """Its steps are targets of make, which can be tried by hand, and programs of a checkout."""
    jobs = yaml.safe_load(path.read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert commands
    for command in commands:
        program, *words = command.split()
        if program == "make":
            assert finished(["make", "-n", *words], ROOT).returncode == 0, command
        else:
            assert program in ("apt-get", "git") or os.access(ROOT / program, os.X_OK)
