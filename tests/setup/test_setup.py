"""What `make` sets up: the environment, the packages in it, and what each target needs of them."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from urllib.parse import quote

import pytest
from packaging.specifiers import SpecifierSet

from lsgd.doctor import FAIL, PASS, software

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("setup/venv.sh", "setup/packages.py", "constraints.txt")
PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "lsgd"
version = "0.1.0"
"""
BACKEND = """
import shutil
def build_editable(folder, *_):
    return shutil.copy({wheel!r}, folder).rpartition("/")[2]
"""


def finished(command: list[str | Path], cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """The command, run to its end where nobody has configured pip or make but the test."""
    asked = ("PIP_", "CPU", "HOROVOD", "MAKE", "PYTHON", "MFLAGS")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(asked)}
    kept |= {"PIP_CONFIG_FILE": os.devnull, "PYTHONDONTWRITEBYTECODE": "1", "LANG": "C"}
    return subprocess.run(
        command, cwd=cwd, env=kept | env, timeout=600, capture_output=True, text=True
    )


def make_wheel(folder: Path, name: str, version: str, *requires: str) -> Path:
    """A package with a version.py as torch's, which is all that is asked of it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info, cuda = f"{name}-{version}.dist-info", None if "+cpu" in version else "13.0"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/version.py", f"cuda: Optional[str] = {cuda!r}\n")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


class Checkout:
    """A checkout in a folder with a blank, whose lsgd needs torch alone, and two indexes of it.

    `main` has torch 2.13.0 as PyPI, and `cpu` 2.13.0+cpu, laid out as PyTorch's.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "a checkout"
        for each in COPIED:
            (self.folder / each).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / each, self.folder / each)
        lsgd = make_wheel(folder, "lsgd", "0.1.0", "torch>=2.11,<2.16")
        (self.folder / "pyproject.toml").write_text(PYPROJECT)
        (self.folder / "backend.py").write_text(BACKEND.format(wheel=str(lsgd)))
        self.main = self.index(folder / "main", "2.13.0")
        self.cpu = self.index(folder / "whl/cpu", "2.13.0+cpu")
        command = [sys.executable, "-m", "venv", "--without-pip", self.folder / ".venv"]
        subprocess.run(command, check=True)
        (folder / "site").mkdir()
        found = importlib.util.find_spec("pip")
        assert found
        assert found.origin
        (folder / "site/pip").symlink_to(Path(found.origin).parent)
        self.site = str(folder / "site")

    @staticmethod
    def index(folder: Path, version: str) -> str:
        file = make_wheel(folder / "torch", "torch", version)
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        link = f'<a href="{quote(file.name)}#sha256={digest}">{file.name}</a>'
        (file.parent / "index.html").write_text(f"<!DOCTYPE html><html><body>{link}</body></html>")
        return folder.as_uri()

    def install(self, *extras: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = [self.folder / ".venv/bin/python", "setup/packages.py", *extras]
        return finished(command, self.folder, PYTHONPATH=self.site, **env)

    def torch(self) -> list[str]:
        """The versions of torch in the environment."""
        found = self.folder.glob(".venv/lib/python*/site-packages/torch-*.dist-info")
        return [each.name.removesuffix(".dist-info").removeprefix("torch-") for each in found]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


# --- setup/packages.py -----------------------------------------------------------------------


@pytest.mark.slow
def test_the_cpu_build_is_taken_before_the_same_version_of_the_main_index(
    checkout: Checkout,
) -> None:
    """A second time nothing is told of what is there, and that CUDA is not wanted is no problem."""
    places = {"PIP_INDEX_URL": checkout.main, "CPU_INDEX": checkout.cpu, "CPU": "yes"}
    done = checkout.install("report", **places)
    assert done.returncode == 0, done.stdout + done.stderr
    assert checkout.torch() == ["2.13.0+cpu"]
    again = checkout.install("report", **places)
    assert "Installing collected packages: lsgd" in again.stdout
    assert "already" not in again.stdout
    assert checkout.install(CPU="yes").returncode == 0


@pytest.mark.slow
def test_a_pip_that_is_configured_decides(checkout: Checkout) -> None:
    """And where that brought a CUDA build, CPU=yes says what to do, each time."""
    done = checkout.install("report", PIP_INDEX_URL=checkout.main, CPU="yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pip's configuration has index-url ('pip config list'), which decides" in done.stderr
    assert checkout.torch() == ["2.13.0"]
    done = checkout.install(CPU="yes")
    assert "CPU=yes needs an environment without a CUDA build of torch, and " in done.stderr
    assert done.returncode == 1
    assert checkout.install().returncode == 0


@pytest.mark.slow
def test_a_pip_that_installs_for_its_user_installs_into_the_environment(checkout: Checkout) -> None:
    done = checkout.install("report", PIP_INDEX_URL=checkout.main, PIP_USER="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert checkout.torch() == ["2.13.0"]


@pytest.mark.slow
def test_a_pip_that_fails_has_a_sentence_after_it(checkout: Checkout) -> None:
    for setting in ({"PIP_NO_INDEX": "1"}, {"PIP_TIMEOUT": "a while"}):
        done = checkout.install("report", **setting)
        assert done.stderr.endswith("(see its message above); the same command goes on.\n")
        assert "Traceback" not in done.stderr
        assert done.returncode == 1


@pytest.fixture
def packages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("packages", ROOT / "setup/packages.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_each_way_to_configure_pip_counts(
    tmp_path: Path, packages: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in [each for each in os.environ if each.startswith("PIP_")]:
        monkeypatch.delenv(each)
    (tmp_path / "pip.conf").write_text(
        "[global]\nextra-index-url = /g\n[install]\nno-index = yes\n[download]\nindex-url = /d\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_FIND_LINKS", "/e")
    monkeypatch.setenv("PIP_CACHE_DIR", "/c")
    assert packages.configured_places() == ["extra-index-url", "find-links", "no-index"]


def test_from_pypi_it_says_what_is_large_and_what_is_not(
    packages: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CPU_INDEX", raising=False)
    monkeypatch.setattr(packages, "configured_places", list)
    monkeypatch.setattr(packages.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(packages.sys, "platform", "linux")
    assert packages.places_of_torch(cpu=False, torch=None) == []
    assert "CUDA build: 2.8 GB to download" in (said := capsys.readouterr().err)
    assert "CPU=yes" in said
    option = ["--extra-index-url", "https://download.pytorch.org/whl/cpu"]
    assert packages.places_of_torch(cpu=True, torch=None) == option
    assert packages.places_of_torch(cpu=False, torch="none") == []
    monkeypatch.setattr(packages.sys, "platform", "darwin")
    assert packages.places_of_torch(cpu=False, torch=None) == []
    assert capsys.readouterr().err == ""


# --- setup/venv.sh ---------------------------------------------------------------------------

OLD = "import sys; sys.version_info = {version}; exec(sys.argv[1])"
BARE = "import sys; sys.modules['ensurepip'] = None; exec(sys.argv[1])"


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., Path]:
    """A Python of this name in a PATH of its own, which begins with some code, and makes .venv."""

    def python(name: str, code: str = "import sys; exec(sys.argv[1])") -> Path:
        file = tmp_path / "in path" / name
        lines = [
            *["#!/bin/sh", 'if [ "$1" = -m ]; then echo made by "$0"; exec mkdir .venv; fi'],
            f'exec "{sys.executable}" -c "{code}" "$2"',
        ]
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(lines))
        file.chmod(0o755)
        return file

    for tool in ("bash", "dirname", "mkdir"):
        (tmp_path / "in path").mkdir(exist_ok=True)
        (tmp_path / "in path" / tool).symlink_to(shutil.which(tool) or f"/bin/{tool}")
    return python


def make_venv(tmp_path: Path, *given: str | Path) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "a checkout/setup/venv.sh"
    script.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "setup/venv.sh", script)
    return finished([script, *given], tmp_path, PATH=str(tmp_path / "in path"))


def test_venv_is_made_by_the_first_python_that_can(
    tmp_path: Path, python: Callable[..., Path]
) -> None:
    """Not by one that only has the name, is too new, or lacks what Debian keeps in a package."""
    python("python3.11", "import sys; sys.exit(127)")
    python("python3.12", BARE)
    python("python3", OLD.format(version=(3, 14)))
    good = python("python3.13")
    done = make_venv(tmp_path, "")
    assert f"made by {good}" in done.stdout, done.stderr
    assert (tmp_path / "a checkout/.venv").is_dir()


def test_without_a_python_that_can_each_that_is_there_has_its_reason(
    tmp_path: Path, python: Callable[..., Path]
) -> None:
    python("python3.12", BARE)
    python("python3", OLD.format(version=(3, 14)))
    python("python", OLD.format(version=(2, 7)))
    done = make_venv(tmp_path)
    assert done.stderr.startswith("lsgd needs Python 3.11, 3.12 or 3.13; ")
    assert "has no venv or no ensurepip (Debian: sudo apt install python3." in done.stderr
    assert " is Python 3.14; " in done.stderr
    assert " is Python 2.7; name one: make PYTHON=" in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("version", "status"), [((3, 10), FAIL), ((3, 11), PASS), ((3, 13), PASS), ((3, 14), FAIL)]
)
def test_the_doctor_takes_the_pythons_of_pyproject(
    version: tuple[int, int], status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    taken = ".".join(map(str, version)) in SpecifierSet(project["requires-python"])
    assert taken == (status == PASS)
    monkeypatch.setattr(sys, "version_info", (*version, 1, "final", 0))
    assert software.python().status == status


def test_lsgd_names_an_older_python() -> None:
    """The file is read by one that has not all of what it imports."""
    older = "import sys; sys.version_info = (3, 10); import lsgd"
    done = finished([sys.executable, "-c", older], ROOT)
    reason = f"lsgd needs Python 3.11, 3.12 or 3.13, and {sys.executable} is older"
    assert done.stderr.splitlines()[-1] == f"ImportError: {reason}"


def test_the_python_that_is_named_is_the_only_one(
    tmp_path: Path, python: Callable[..., Path]
) -> None:
    python("python3.11")
    old = python("old", OLD.format(version=(3, 10)))
    done = make_venv(tmp_path, old)
    assert " is Python 3.10; name one:" in done.stderr
    assert done.returncode == 1
    done = make_venv(tmp_path, "/no/python")
    assert "and none is at /no/python; name one:" in done.stderr
    good = python("good")
    assert f"made by {good}" in make_venv(tmp_path, good).stdout


# --- Makefile --------------------------------------------------------------------------------


def planned(tmp_path: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """What make would do in a checkout where nothing is made yet."""
    for each in ("Makefile", "pyproject.toml", "constraints.txt", "setup"):
        if not (tmp_path / each).exists():
            (tmp_path / each).symlink_to(ROOT / each)
    return finished(["make", "-n", *words], tmp_path, **env)


def stamped(tmp_path: Path, python: str = "") -> None:
    """Make the environment of `make demo`, whose Python is this shell script, by default intact."""
    (tmp_path / ".venv/bin").mkdir(parents=True)
    for stamp in (".python", ".run"):
        (tmp_path / ".venv" / stamp).touch()
    (tmp_path / ".venv/bin/python").write_text(f"#!/bin/sh\n{python}\n")
    (tmp_path / ".venv/bin/python").chmod(0o755)


def test_each_target_installs_what_it_needs(tmp_path: Path) -> None:
    train = planned(tmp_path, "train").stdout
    assert train.index("packages.py horovod,report\n") < train.index("setup/horovod.sh")
    assert "packages.py dev" not in train
    assert "horovod.sh" not in planned(tmp_path, "train", "HOROVOD=no").stdout
    assert "horovod.sh" not in planned(tmp_path, "setup", HOROVOD="no").stdout
    assert "horovod.sh" not in planned(tmp_path, "demo").stdout
    test = planned(tmp_path, "test").stdout
    assert "packages.py dev,horovod,report,search\n" in test
    assert not {"ray", "horovod.sh"} & {*test.replace(",", " ").replace("/", " ").split()}
    everything = planned(tmp_path, "setup").stdout
    assert everything.index("setup/horovod.sh") < everything.index("packages.py dali,dev,docs")
    wheel = planned(tmp_path, "wheel").stdout
    assert "-c constraints.txt hatchling\n" in wheel
    assert "packages.py" not in wheel


def test_a_horovod_that_was_left_out_is_built_later_and_once_more_for_gpus(tmp_path: Path) -> None:
    stamped(tmp_path)
    for words in (("train",), ("train", "HOROVOD=nccl")):
        text = planned(tmp_path, *words).stdout
        assert "setup/horovod.sh" in text
        assert "packages.py" not in text
    (tmp_path / ".venv/.horovod").touch()
    (tmp_path / ".venv/.horovod-gpu").touch()
    assert "setup/horovod.sh" not in planned(tmp_path, "train", "HOROVOD=nccl").stdout


def test_cpu_is_checked_each_time_and_is_not_the_kind_of_processor(tmp_path: Path) -> None:
    stamped(tmp_path)
    assert "setup/packages.py\n" in planned(tmp_path, "demo", "CPU=yes").stdout
    demo = planned(tmp_path, "demo", CPU="x86_64").stdout
    assert "lsgd.demo" in demo
    assert "packages.py" not in demo


def test_an_environment_that_has_lost_its_python_or_packages_is_no_longer_complete(
    tmp_path: Path,
) -> None:
    """Its stamps are there, and 'make setup', to which messages send, had nothing to do."""
    stamped(tmp_path, "echo torch")  # which a killed pip has uninstalled
    text = planned(tmp_path, "demo").stdout
    assert "packages.py horovod,report\n" in text
    assert "venv.sh" not in text
    (tmp_path / ".venv/bin/python").unlink()
    (tmp_path / ".venv/bin/python").symlink_to("/gone/python3.11")
    assert "setup/venv.sh" in planned(tmp_path, "demo").stdout
    done = finished([tmp_path / "setup/venv.sh"], tmp_path)
    assert "the Python of .venv is gone or has changed" in done.stderr
    assert "'rm -rf .venv', then rerun" in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize("word", ["CPU=no", "HOROVOD=yes"])
def test_a_value_that_make_does_not_know_is_refused(tmp_path: Path, word: str) -> None:
    done = planned(tmp_path, "train", word)
    assert f"{word} must be " in done.stderr
    assert "; leave it out for " in done.stderr
    assert done.returncode == 2
