"""Random words for every command: a sentence or an answer, never a traceback or a folder.

What a command would start in earnest stands aside, so that also words which make sense end at once.
"""

import contextlib
import importlib
import io
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lsgd import demo, paths
from lsgd.__main__ import COMMANDS
from lsgd.doctor import __main__ as doctor
from lsgd.launch import processes
from lsgd.recipe import Recipe
from lsgd.recipe.fields import all_fields
from lsgd.supervise import __main__ as supervise

NAMES = [name for commands in COMMANDS.values() for name in commands]
HARMLESS = {
    "train": ["--cfg"], "check": ["--cfg"], "plan": ["--cfg"], "bench": ["--cfg"],
    "autotune": ["--cfg"], "launch": ["--print"], "study": ["--print"],
}  # fmt: skip
"""Words by which a command only shows what it would do."""
OWN = {
    "bench": ["inputs", "scaling", "step", "--rounds", "--np", "--limit"],
    "plan": ["nodes=2", "gpus=8", "--preset", "h200", "--images-per-second", "--out"],
    "launch": ["mpirun", "slurm", "k8s", "digits", "bs8k", "--np", "--hosts", "--mem", "--kind"],
    "study": ["+study=digits", "seeds=[0]", "--launch", "slurm", "--jobs"],
    "supervise": ["--processes", "--restarts", "--silence", "{np}", "--", "run_dir=a", "true"],
    "doctor": ["--limit", "--json"],
    "report": ["--study", "digits", "--out", "--table"],
    "compare": ["--tolerance"],
    "track": ["--to", "mlflow", "wandb", "--follow"],
    "prepare": ["imagenet", "--check", "--index", "--shards", "--shard-mb"],
    "evaluate": ["--", "checkpoint.pt"],
}
KEYS = [key for key, _ in all_fields(Recipe)]
VALUES = [
    "", "0", "-1", "2", "nan", "inf", "1e300", "1" * 30, "true", "null", "[nan]", "[", "{",
    "{x: 5}", "'", "a=b", "${x}", "digits", "1,2", "\\", "é", "~", "auto", "single",
]  # fmt: skip
TEXTS = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=12)


def words_for(name: str) -> st.SearchStrategy[list[str]]:
    """Up to five words, of which some mean something to the command."""
    pairs = st.builds("{}={}".format, st.sampled_from(KEYS), st.sampled_from(VALUES))
    known = st.sampled_from(
        ["+recipe=digits", "run_dir=a", "--nothing", *VALUES, *OWN.get(name, [])]
    )
    return st.lists(st.one_of(known, pairs, TEXTS), max_size=5)


def test_every_option_that_is_a_path_begins_at_home() -> None:
    """By one function, which also each path of a recipe and of the environment goes through."""
    for package in ("lsgd", "benchmarks"):
        for file in (paths.conf_dir().parent / package).rglob("*.py"):
            assert not re.search(r"\btype=Path\b", file.read_text(encoding="utf-8")), file


def test_home_within_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LSGD_DATA", "~/sets")
    monkeypatch.setenv("XDG_CACHE_HOME", "~/cache")
    monkeypatch.setenv("PYTHON", "~/bin/python")
    assert paths.data_root("imagenet") == tmp_path / "sets/imagenet"
    assert paths.cache_dir() == tmp_path / "cache/lsgd"
    assert processes.python() == f"{tmp_path}/bin/python"
    (tmp_path / "run").mkdir()
    for name, words in (("evaluate", ["~/run"]), ("export", ["~/run", "--to=torchvision"])):
        code, said = ended(name, words)
        assert (code, f"{tmp_path}/run has no checkpoint" in said) == (2, True), said
    code, said = ended("prepare", ["folder", str(tmp_path / "run"), "--index=~nobody-here/ix"])
    assert (code, "~nobody-here/ix begins with ~" in said) == (2, True), said


@pytest.fixture
def aside(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty folder to be in, and nothing that would take long or start anything."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))  # which a word may be
    monkeypatch.setattr(demo, "demo", lambda folder: "")
    monkeypatch.setattr(doctor, "diagnose", lambda options: 0)
    monkeypatch.setattr(supervise, "supervise_job", lambda options: 0)


def ended(name: str, argv: Sequence[str]) -> tuple[int | str | None, str]:
    """The exit code of a command in this process, and its standard error."""
    package = importlib.import_module(f"lsgd.{name}")
    module = (
        importlib.import_module(f"lsgd.{name}.__main__")
        if hasattr(package, "__path__")
        else package
    )
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            code = module.main(argv)
        except SystemExit as end:
            code = end.code
    return code, errors.getvalue()


def check(code: int | str | None, says: str) -> None:
    """A refusal is a sentence; any other end is one of those of commands."""
    assert "Traceback" not in says
    if code == 2:
        assert says.splitlines()[-1].startswith("lsgd: ")
    else:
        assert code in (0, 1, 130)


@pytest.mark.parametrize("name", NAMES)
def test_no_words_make_a_traceback(name: str, aside: None) -> None:
    @settings(max_examples=15, suppress_health_check=list(HealthCheck))
    @given(words_for(name))
    def each(words: list[str]) -> None:
        check(*ended(name, [*words, *HARMLESS.get(name, [])]))
        assert not list(Path().iterdir())

    each()
