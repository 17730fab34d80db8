"""`lsgd COMMAND` is `python -m lsgd.COMMAND`, and its list names every command."""

import contextlib
import importlib
import io
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from helpers.base_recipe import with_fields
from helpers.composed import compose_recipe
from helpers.usage_errors import usage_error

import benchmarks.batchnorm
import benchmarks.comm
import benchmarks.memory
import benchmarks.roofline
import benchmarks.step
import lsgd
import lsgd.__main__
import lsgd.bench.__main__
import lsgd.check.__main__
import lsgd.plan.__main__
from lsgd import config
from lsgd.__main__ import COMMANDS, dispatch
from lsgd.job.command import run_alone

PACKAGE = Path(lsgd.__file__).parent
LISTED = [name for commands in COMMANDS.values() for name in commands]


def ran(*command: str, path: Path = PACKAGE.parent) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=path,
        env={"PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_every_command_is_listed_once() -> None:
    """Those that Python can run, at the top of lsgd: what lies deeper is started by its own."""
    files = [
        path for path in PACKAGE.glob("*.py") if 'if __name__ == "__main__"' in path.read_text()
    ]
    packages = [path.parent for path in PACKAGE.glob("*/__main__.py")]
    runnable = {path.stem for path in (*files, *packages)} - {"__main__"}
    assert set(LISTED) == runnable
    assert len(LISTED) == len(set(LISTED))


@pytest.mark.parametrize("encoding", ["ascii", "iso-8859-1"])
@pytest.mark.parametrize("name", ["", *LISTED])
def test_help_needs_no_utf_8(name: str, encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a terminal cannot show stands there in plainer characters."""
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding=encoding))
    if name:
        package = importlib.import_module(f"lsgd.{name}")
        inside = hasattr(package, "__path__")
        main = importlib.import_module(f"lsgd.{name}.__main__").main if inside else package.main
        with contextlib.suppress(SystemExit):
            main(["--help"])
    else:
        assert run_alone(lambda: dispatch(["--help"])) == 0
    sys.stdout.flush()
    said = printed.getvalue().decode(encoding)
    assert f"lsgd{'.' if name else ''}{name}" in said
    assert "\\u" not in said


def test_the_list_imports_no_command() -> None:
    program = "import sys; from lsgd.__main__ import main; main();print(*sys.modules)"
    done = ran("-c", program, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    *text, modules = done.stdout.splitlines()
    assert set(re.findall(r"^  (\w+)  +\S", "\n".join(text), re.MULTILINE)) == set(LISTED)
    assert all(len(line) <= 80 for line in text)
    imported = set(modules.split())
    assert not imported & {f"lsgd.{name}" for name in LISTED}
    assert not imported & {"torch", "numpy", "hydra", "omegaconf", "yaml"}


TRAIN = """
import multiprocessing, sys

def work(number):
    return number + 1

if __name__ == "__main__":
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        print(__spec__.name, sys.argv, pool.map(work, [1, 2]))
    raise SystemExit(75)
"""


@pytest.mark.slow
@pytest.mark.parametrize("start", [["-m", "lsgd", "train"], ["bin/lsgd", "train"]])
def test_a_command_runs_as_if_python_had_started_it(tmp_path: Path, start: list[str]) -> None:
    """Its words, its exit code, and processes of its own that look for what it defines."""
    own = tmp_path / "lsgd"
    for folder in (own, tmp_path / "bin"):
        folder.mkdir()
    (own / "__init__.py").write_text(f"__path__.append({str(PACKAGE)!r})\n")
    (own / "train.py").write_text(TRAIN)
    script = tmp_path / "bin/lsgd"
    script.write_text("import sys\nfrom lsgd.__main__ import main\nsys.exit(main())\n")
    start = [word.replace("bin/lsgd", str(script)) for word in start]
    done = ran(*start, "+recipe=digits", "--cfg", path=tmp_path)
    printed = f"lsgd.train ['{own / 'train.py'}', '+recipe=digits', '--cfg'] [2, 3]\n"
    assert (done.stdout, done.stderr, done.returncode) == (printed, "", 75)
    assert ran("-m", "lsgd.train", "+recipe=digits", "--cfg", path=tmp_path).stdout == printed


@pytest.mark.parametrize(
    ("command", "names"), [("trian", ["train"]), ("compere", ["compare"]), ("xyzzy", LISTED)]
)
def test_another_word_is_refused_with_the_nearest_names(
    command: str, names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said = usage_error(
        lambda words: run_alone(lambda: lsgd.__main__.dispatch(words)), capsys, command
    )
    assert f"command '{command}' does not exist; " in said
    assert all(name in said for name in names)


@pytest.mark.parametrize(
    ("command", "own", "says"),
    [
        (lsgd.check.__main__.main, [], "lsgd.check .*; the paper has no rules for it"),
        (lsgd.plan.__main__.main, ["nodes=1", "gpus=1"], "lsgd.plan .*; a short run of it with"),
        (lsgd.bench.__main__.main, ["inputs"], "this benchmark .* profile=true"),
        (lsgd.bench.__main__.main, ["scaling"], "this benchmark .* profile=true"),
        (benchmarks.batchnorm.main, [], "this benchmark .* profile=true"),
        (benchmarks.comm.main, [], "this benchmark .* profile=true"),
        (benchmarks.memory.main, [], "this benchmark .* profile=true"),
        (benchmarks.roofline.main, [], "this benchmark .* profile=true"),
        (benchmarks.step.main, [], "this benchmark .* profile=true"),
    ],
)
def test_what_knows_only_images_and_allreduce_says_so(
    command: Callable[[Sequence[str]], int],
    own: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """In one sentence, before any work."""
    recipe = compose_recipe("+recipe=bs256", "device=cpu", "workers_per_pass=2")
    monkeypatch.chdir(tmp_path)
    for key, value, known in (
        ("data.workload", "language", "images"), ("strategy.name", "servers", "allreduce")
    ):  # fmt: skip
        other = with_fields(recipe, **{key.replace(".", "__"): value})
        monkeypatch.setattr(config, "load_recipe", lambda _, other=other, **_more: other)
        said = usage_error(command, capsys, *own, "+recipe=bs256")
        assert f"supports only {key}={known}, and bs256 has {key}={value}; " in said
        assert re.search(says, said)
    assert list(tmp_path.iterdir()) == []
