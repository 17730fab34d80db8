"""A text is a text to all who read it: Hydra, recipes, launchers and supervisors."""

import re
from dataclasses import asdict
from functools import cache
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given
from hypothesis import strategies as st

from lsgd import config
from lsgd.errors import UsageError
from lsgd.launch.options import read_request
from lsgd.override_syntax import PATH_FIELDS, format_override, last_text, parse_text, quote
from lsgd.recipe import Recipe
from lsgd.recipe.fields import all_fields
from lsgd.supervise.folder import run_folder

LIKE_SOMETHING_ELSE = [
    "4711_3", "1e3", "true", "007", "-inf", "[1]", "{a:b}", "a,b", "a=b", "it's", "'a", "f(x)",
    "a b", "a\\b", "#a", "&a", "!a", "yes", "2026-01-01", "läuf", "a: b", "$HOME", "null ", "1 ",
]  # fmt: skip
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12).filter(
    lambda text: "${" not in text and text != "???"
)


@cache
def plain() -> Recipe:
    return config.load_recipe(["+recipe=bs8k"])


@given(TEXTS)
@example("it's")
@example("\\\\'\\")
@example("null")
@example("'a'")
def test_an_override_gives_the_text_that_it_was_made_of(text: str) -> None:
    """To lsgd's reading of it, and to Hydra's of what lsgd hands on."""
    key, _, value = format_override("run_dir", text).partition("=")
    assert parse_text(key, value) == text
    read = OverridesParser.create().parse_override(f"{key}={quote(text)}").value()
    assert read == text


@pytest.mark.parametrize("three", [LIKE_SOMETHING_ELSE[at : at + 3] for at in range(0, 24, 3)])
def test_a_field_typed_as_text_keeps_its_text(three: list[str]) -> None:
    """Of a command line, of a saved recipe's words, and in the file that is saved; the launchers'
    folder and the supervisor's is that of the run."""
    root, source, folder = three
    words = [f"data.root={root}", f"run_dir={folder}"]
    recipe = config.load_recipe(["+recipe=bs8k", *words, f"++target.source={source}"])
    saved = config.from_saved(asdict(plain()), *words, f"target.source={source}")
    again = config.from_saved(config._parse_yaml(config.to_yaml(recipe), "config.yaml"))
    for each in (recipe, saved, again):
        assert each.target is not None
        assert (each.data.root, each.target.source, each.run_dir) == tuple(three)
    assert read_request("slurm", ["bs8k", *words]).run_dir == folder
    assert run_folder(["true", *words]) == Path(folder).absolute()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["run_dir=a", "++run_dir=b"], "b"),
        (["run_dir=a", "~run_dir"], None),
        (["run_dir=a", "run_dir=null"], None),
        (["run_dir='null'"], "null"),
        (["run_dir='a b'"], "a b"),
        (['run_dir="it\'s"'], "it's"),
        (["run_dir=a\\ b\\,c"], "a b,c"),
    ],
)
def test_the_last_override_of_a_field_counts(words: list[str], text: str | None) -> None:
    assert last_text(words, "run_dir") == text
    assert config.load_recipe(["+recipe=bs8k", *words]).run_dir == text


@pytest.mark.parametrize("text", ["runs/${name}", "${oc.env:HOME}", "???"])
def test_what_stands_for_another_value_is_refused_by_all(text: str) -> None:
    word = f"run_dir={text}"
    for read in (
        lambda: config.load_recipe(["+recipe=bs8k", word]),
        lambda: config.from_saved(asdict(plain()), word),
        lambda: read_request("slurm", ["bs8k", word]).run_dir,
        lambda: run_folder([word]),
    ):
        with pytest.raises(UsageError, match=re.escape(word)):
            read()


def test_a_path_begins_at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same for all, in the middle of a word and in a file too; any other text keeps its ~."""
    monkeypatch.setenv("HOME", str(tmp_path))
    words = ["run_dir=~/a", "data.root='~/b c'", "data.index=~", "++target.source=~x"]
    recipe = config.load_recipe(["+recipe=bs8k", *words])
    assert recipe.run_dir == f"{tmp_path}/a"
    assert recipe.target is not None
    assert (recipe.data.root, recipe.data.index, recipe.target.source) == (
        f"{tmp_path}/b c", str(tmp_path), "~x",
    )  # fmt: skip
    assert config.recipe_from_mapping(asdict(recipe) | {"run_dir": "~/a"}).run_dir == recipe.run_dir
    request = read_request("mpirun", ["bs8k", *words])
    assert request.run_dir == recipe.run_dir
    # Elsewhere ~ may be another folder.
    assert config.load_recipe(["+recipe=bs8k", *request.overrides]) == recipe
    assert request.overrides == [
        f"run_dir={tmp_path}/a", f"data.root='{tmp_path}/b c'", f"data.index={tmp_path}", words[3],
    ]  # fmt: skip
    assert run_folder(words) == tmp_path / "a"
    with pytest.raises(UsageError, match=r"~nobody-of-this/x begins with ~.*write .*\./~nobody-of"):
        config.load_recipe(["+recipe=bs8k", "run_dir=~nobody-of-this/x"])


def test_the_last_choice_of_a_group_counts() -> None:
    words = ["+recipe=digits", "model=torchvision/resnet18", "optim=no.module:Lion", "optim=adam"]
    recipe = config.load_recipe([*words, "optim.momentum=0.9", "optim.nesterov=false"])
    assert (recipe.model.name, recipe.optim.name) == ("torchvision/resnet18", "adam")
    assert config.load_recipe([*words[:2], "model=small_resnet"]).model.name == "small_resnet"


@pytest.mark.parametrize("key", ["run_dir", "data.root", "data.index"])
def test_a_url_is_not_taken_for_a_folder(key: str) -> None:
    with pytest.raises(UsageError, match=r"^s3://bucket/a is a URL, .*; copy it .* or mount it"):
        config.load_recipe(["+recipe=bs8k", f"{key}=s3://bucket/a"])


def test_the_name_of_a_recipe_is_a_text() -> None:
    assert config.from_saved(asdict(plain()), "name=1_0").name == "1_0"
    assert config.load_recipe(["+recipe=bs8k", "name=1_0"]).name == "1_0"


def test_what_is_a_path_of_a_recipe() -> None:
    texts = {key for key, entry in all_fields(Recipe) if entry.type in (str, str | None)}
    assert texts >= {*PATH_FIELDS}
