"""`lsgd new recipe`: a file that trains at once, and never one in place of another."""

import resource
import signal
from pathlib import Path

import pytest
from helpers.composed import compose_recipe

from lsgd.config import load_recipe
from lsgd.new import main


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty current folder, and no folder of recipes that outlives the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LSGD_RECIPES", "")


@pytest.mark.parametrize(
    ("name", "base"), [("mine", "bs256"), ("null", "digits"), ("1e3", "ptb_small")]
)
def test_a_new_recipe_trains_at_once(
    name: str, base: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As what it builds on, whatever YAML takes its name for; each comment is a field of it."""
    assert main(["recipe", name, "--from", base]) == 0
    assert capsys.readouterr().out.endswith(f"train it by lsgd train recipe=./{name}.yaml\n")
    recipe = load_recipe([f"recipe=./{name}.yaml"])
    assert recipe.name == name
    assert recipe.fingerprint == compose_recipe(f"recipe={base}").fingerprint
    head, *rest = Path(f"{name}.yaml").read_text().partition("name: ")
    text = "".join(rest).replace("\n# ", "\n")
    Path(f"{name}.yaml").write_text(head + text)
    assert load_recipe([f"recipe=./{name}.yaml"]).fingerprint == recipe.fingerprint


def test_one_builds_on_another_in_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    Path("all").mkdir()
    assert main(["recipe", "one", "--from", "digits"]) == 0
    assert main(["recipe", "two", "--from", "one.yaml", "--recipe-dir", "all"]) == 0
    assert "- ../one.yaml\n" in Path("all/two.yaml").read_text()
    assert capsys.readouterr().out.endswith("recipe=two\n")
    assert main(["recipe", "three", "--from", "two"]) == 0
    assert load_recipe(["recipe=three"]).epochs == 30


def test_a_base_may_have_any_path() -> None:
    Path("@w").mkdir()
    assert main(["recipe", "base", "--from", "digits", "--recipe-dir", "@w"]) == 0
    assert main(["recipe", "top", "--from", "@w/base.yaml", "--recipe-dir", "."]) == 0
    assert load_recipe(["recipe=./top.yaml"]).epochs == 30


def test_a_base_may_lack_what_the_command_of_a_run_gives() -> None:
    """Such as the folder of its images."""
    Path("cats.yaml").write_text("defaults: [bs256, override /data: folder]\nname: cats\n")
    assert main(["recipe", "top", "--from", "cats.yaml"]) == 0
    assert "# workers: 8\n" in Path("top.yaml").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("recipe taken --from digits", "taken.yaml exists already; write another name"),
        ("recipe digits --from bs256", "digits is the name of a shipped recipe; write another"),
        ("recipe ../a --from bs256", "the name '../a' must begin with a letter"),
        ("recipe a --from bs25", "does not exist; did you mean bs256"),
        ("recipe a --from no.yaml", "recipe=no.yaml does not exist; write the path"),
        ("recipe a", "required: --from"),
        ("study a --from digits", "lsgd new writes a recipe, not study; write lsgd new recipe"),
        ("recipe a --from digits --recipe-dir no", "no, which is not a folder; write"),
    ],
)
def test_it_is_refused(words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("taken.yaml").write_text("mine")
    assert main(words.split()) == 2
    assert sentence in capsys.readouterr().err
    assert Path("taken.yaml").read_text() == "mine"
    assert sorted(path.name for path in Path().iterdir()) == ["taken.yaml"]


def test_a_full_disk_leaves_no_half_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    """Which was taken for a recipe of the user's, and the name for one that is taken."""
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
        assert main(["recipe", "mine", "--from", "digits"]) == 6
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert "mine.yaml could not be written (File too large); free" in capsys.readouterr().err
    assert not Path("mine.yaml").exists()
    assert main(["recipe", "mine", "--from", "digits"]) == 0
