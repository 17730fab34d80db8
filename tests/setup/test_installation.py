"""Hints hold for the installation that gives them."""

import ast
import json
import re
import sys
from pathlib import Path

import pytest

from lsgd import installation, paths
from lsgd.installation import install_command, is_installed, pip_command, script_command

PACKAGE = Path(installation.__file__).parent
METADATA = """\
Metadata-Version: 2.4
Name: lsgd
Version: 0.1.0
Requires-Dist: torch<2.16,>=2.11
Provides-Extra: report
Requires-Dist: matplotlib>=3.9; extra == 'report'
Requires-Dist: scipy>=1.13; extra == "report"
Provides-Extra: spark
Requires-Dist: pyspark>=4.3; extra == 'spark'
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages with an lsgd in it, whose name has a blank, and a Python beside it."""
    site = tmp_path / "my site"
    record = site / "lsgd-0.1.0.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text(METADATA)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(installation, "_PACKAGE", site / "lsgd")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin/python"))
    monkeypatch.chdir(tmp_path)
    return site


def origin(site: Path, **record: object) -> None:
    (site / "lsgd-0.1.0.dist-info/direct_url.json").write_text(json.dumps(record))


def test_in_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its folder as one would type it there, and from anywhere else by its path."""
    root = tmp_path / "the checkout"
    root.mkdir()
    (root / "pyproject.toml").touch()
    python = root / ".venv/bin/python"
    monkeypatch.setattr(installation, "_PACKAGE", root / "lsgd")
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.chdir(root)
    assert install_command("report") == ".venv/bin/python -m pip install -e '.[report]'"
    assert install_command() == ".venv/bin/python -m pip install -e ."
    assert script_command("setup/horovod.sh") == "setup/horovod.sh"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert install_command("report") == f"'{python}' -m pip install -e '{root}[report]'"
    assert script_command("setup/horovod.sh") == f"'{root}/setup/horovod.sh'"
    monkeypatch.setattr(sys, "executable", "/opt/python")
    assert script_command("setup/horovod.sh") == f"'{root}/setup/horovod.sh' /opt/python"
    monkeypatch.setattr(sys, "executable", str(elsewhere / "python"))
    assert pip_command("install", "torch") == "./python -m pip install torch"  # not another on PATH


def test_from_a_wheel(site: Path, tmp_path: Path) -> None:
    (tmp_path / "a b.whl").touch()
    url = f"file://{tmp_path}/a%20b.whl"
    origin(site, url=url, archive_info={})
    assert install_command("report") == f"bin/python -m pip install 'lsgd[report] @ {url}'"
    assert install_command() == f"bin/python -m pip install 'lsgd @ {url}'"
    (tmp_path / "a b.whl").unlink()
    assert install_command("report") == "bin/python -m pip install 'matplotlib>=3.9' 'scipy>=1.13'"


def test_from_git(site: Path) -> None:
    """The commit that is installed, not what its branch has since."""
    git = {"vcs": "git", "requested_revision": "main", "commit_id": "1a2b3c4"}
    origin(site, url="https://example.org/lsgd", vcs_info=git)
    assert install_command("report").endswith(
        "'lsgd[report] @ git+https://example.org/lsgd@1a2b3c4'"
    )
    origin(site, url="https://example.org/lsgd", vcs_info=git, subdirectory="a")
    assert install_command().endswith(
        "'lsgd @ git+https://example.org/lsgd@1a2b3c4#subdirectory=a'"
    )
    origin(site, url="file:///srv/lsgd", vcs_info=git)
    assert install_command("report").endswith("'matplotlib>=3.9' 'scipy>=1.13'")


def test_from_an_index(site: Path) -> None:
    """lsgd itself is on no public one, so what is missing is named."""
    assert install_command("report") == "bin/python -m pip install 'matplotlib>=3.9' 'scipy>=1.13'"
    assert install_command("report", "spark").endswith("'scipy>=1.13' 'pyspark>=4.3'")
    assert install_command() == "bin/python -m pip install 'torch<2.16,>=2.11'"


def test_a_script_of_the_checkout_is_not_in_a_wheel(site: Path) -> None:
    assert script_command("setup/apex.sh") == "setup/apex.sh bin/python in a checkout of lsgd"


def test_an_environment_of_uv_has_no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/python")
    monkeypatch.setattr(installation, "_has_pip", lambda: False)
    assert pip_command("install", "torch") == "uv pip install --python /opt/python torch"


def test_a_path_is_shown_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert paths.display_path(tmp_path / "a/b") == "a/b"
    assert paths.display_path(tmp_path) == "."
    assert paths.display_path(Path("/opt/a")) == "/opt/a"


def test_a_folder_of_a_package_s_name_is_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Weights & Biases makes one where runs are started."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "not_there_1").mkdir()
    assert not is_installed("not_there_1")
    (tmp_path / "not_there_1/__init__.py").touch()
    assert is_installed("not_there_1")
    assert not is_installed("not_there_2")


BESIDE = re.compile(
    r"\b(setup|launch|docs|results|benchmarks|tests)/\w|\bmake (setup|train|test|demo|docs)\b"
    r"|pip install|CONTRIBUTING\.md|constraints\.txt"
)
"""What no wheel has, and the hint that holds in none but some installations."""


def texts(file: Path) -> list[str]:
    """Those that users of the file may see: help has a module's docstring, and no other."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    bare = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    hidden = {node for node in bare if node.lineno > 1}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in hidden
    ]


@pytest.mark.slow
def test_messages_name_nothing_that_a_wheel_lacks() -> None:
    """But by lsgd.installation, whose `script` gets the bare name, or saying that it is there."""
    wrong = {
        f"{file.relative_to(PACKAGE)}: {text[max(0, found.start() - 40) : found.end() + 40]!r}"
        for file in PACKAGE.rglob("*.py")
        for text in texts(file)
        if (found := BESIDE.search(text))
        if "checkout" not in text and text not in ("setup/horovod.sh", "setup/apex.sh")
    }
    assert wrong == set()
