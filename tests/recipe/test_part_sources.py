"""Recipes with parts of one's own: names, fingerprints, and saved recipes that import nothing."""

import sys
from pathlib import Path

import pytest

from lsgd import config, recipe_parser
from lsgd.config import load_recipe
from lsgd.errors import UsageError
from lsgd.own_parts import OPTIMIZER, imported_part
from lsgd.recipe import Recipe
from lsgd.recipe.part_sources import changed_parts
from lsgd.recipe.reference import option_list

OPTIMIZERS = """
import torch

class Plain(torch.optim.Optimizer):
    '''Subtract the gradient.'''
    def __init__(self, params, lr: float, decay: float = 0.5): super().__init__(params, {})
"""
DIGITS = ["recipe=digits", "optim=own_optimizers:Plain"]


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the module of optimizers, which is imported anew in each test."""
    file = tmp_path / "own_optimizers.py"
    file.write_text(OPTIMIZERS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("lsgd.own_parts._imported", {})
    monkeypatch.delitem(sys.modules, "own_optimizers", raising=False)
    return file


def loaded_anew(monkeypatch: pytest.MonkeyPatch, *overrides: str) -> Recipe:
    """The recipe in a new process, as far as imports go."""
    monkeypatch.setattr("lsgd.own_parts._imported", {})
    sys.modules.pop("own_optimizers", None)
    return load_recipe([*DIGITS, *overrides])


def test_options_and_source_are_in_the_fingerprint(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default of an option is the same run as its value; other source is another run."""
    recipe = load_recipe(DIGITS)
    assert recipe.optim.options == {"decay": 0.5}
    prints = [load_recipe([*DIGITS, f"optim.options.decay={decay}"]) for decay in (0.5, 0.25)]
    assert [each.fingerprint == recipe.fingerprint for each in prints] == [True, False]
    module.write_text(f"{OPTIMIZERS}# changed\n")
    changed = loaded_anew(monkeypatch)
    assert changed.fingerprint != recipe.fingerprint
    assert changed_parts(changed, recipe) == ["optim=own_optimizers:Plain"]
    assert changed_parts(recipe, recipe) == []


@pytest.mark.slow
def test_an_installed_part_is_its_import_path(module: Path) -> None:
    info = module.parent / "own_parts_of_a_test-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-parts-of-a-test\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[lsgd.optim]\nplain = own_optimizers:Plain\nsgd = own_optimizers:Plain\n"
    )
    recipe = load_recipe(["recipe=digits", "optim=plain"])
    assert recipe == load_recipe(DIGITS)
    assert load_recipe(["recipe=digits", "optim=sgd"]).optim.name == "sgd"
    (module.parent / "mine.yaml").write_text(
        "defaults: [digits, {override /optim: own}]\nname: digits\noptim: {name: plain}\n"
    )
    own = load_recipe([f"recipe={module.parent / 'mine.yaml'}"])
    assert own.fingerprint == recipe.fingerprint
    with pytest.raises(UsageError, match="optim=plane does not exist; did you mean plain"):
        load_recipe(["recipe=digits", "optim=plane"])
    assert "|sgd|plain" in recipe_parser.field_list("optim").splitlines()[0]


def test_a_saved_recipe_imports_nothing(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless an override names the part, whose source has to be that of the run then."""
    recipe = load_recipe(DIGITS)
    monkeypatch.setattr("lsgd.own_parts._imported", {})
    sys.modules.pop("own_optimizers")
    (module.parent / "config.yaml").write_text(config.to_yaml(recipe))
    read = config.read_recipe(module.parent / "config.yaml")
    assert (read, read.fingerprint) == (recipe, recipe.fingerprint)
    assert "own_optimizers" not in sys.modules
    named = "optim=own_optimizers:Plain"
    assert config.from_saved(recipe_values(recipe), named) == recipe
    module.write_text(f"{OPTIMIZERS}# changed\n")
    loaded_anew(monkeypatch)
    with pytest.raises(UsageError, match=f"{named} has changed since the recipe was written"):
        config.from_saved(recipe_values(recipe), named)


def test_a_file_with_the_hash_is_trained_with_that_source(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As what --cfg prints: such a recipe imports its parts, unlike a run that is read."""
    recipe, file = load_recipe(DIGITS), module.parent / "all.yaml"
    file.write_text(config.to_yaml(recipe))
    monkeypatch.setattr("lsgd.own_parts._imported", {})
    assert load_recipe([f"recipe={file}"]) == recipe
    assert imported_part(OPTIMIZER, recipe.optim.name, recipe.optim.source).path in DIGITS[1]
    module.write_text(f"{OPTIMIZERS}# changed\n")
    loaded_anew(monkeypatch)
    with pytest.raises(UsageError, match="own_optimizers:Plain has changed since the recipe was"):
        load_recipe([f"recipe={file}"])


def recipe_values(recipe: Recipe, source: str | None = None) -> dict[str, object]:
    """What a checkpoint has of a recipe, with another hash of the source of its optimizer."""
    from dataclasses import asdict

    values = asdict(recipe)
    values["optim"]["source"] = values["optim"]["source"] if source is None else source
    return values


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["inputs.source=abc"], "inputs.source is for a part of your own, and this is inputs=auto"),
        (["strategy=sync"], "optim=own_optimizers:Plain updates whole tensors of one model"),
        (["optim.weight_decay=0.1"], "optim.weight_decay=0.1 has no effect with optim=own_"),
        (["optim.momentum=0.9"], "optim.momentum=0.9 has no effect with optim=own_optimizers:Pl"),
    ],
)
def test_what_does_not_fit_the_part_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_recipe([*DIGITS, *words])


def test_options_are_for_parts_of_ones_own() -> None:
    with pytest.raises(UsageError, match=r"optim\.options is for a part of your own, and this"):
        load_recipe(["recipe=digits", "optim.options.a=1"])


def test_a_saved_recipe_has_the_hash() -> None:
    with pytest.raises(UsageError, match=r"has the hash of its source in optim\.source; give that"):
        config.from_saved(recipe_values(load_recipe(DIGITS), source=""))


def test_help_lists_the_options() -> None:
    assert option_list("optim=own_optimizers:Plain").splitlines() == [
        "optim=own_optimizers:Plain",
        "    Subtract the gradient.",
        "optim.options.decay=0.5   [a number]",
    ]
    for wrong in ("optim=sgd", "epochs=3"):
        with pytest.raises(UsageError, match=f"{wrong} is not a part of your own"):
            option_list(wrong)


@pytest.mark.parametrize(
    ("returned", "message"),
    [("-1", "has -1 of the lr left where 1 of"), ("1 / 0", r"fails where 1 .* \(ZeroDivisionErr")],
)
def test_a_decay_has_a_share_of_the_lr(module: Path, returned: str, message: str) -> None:
    module.write_text(f"class Decay:\n    def share(self, remaining): return {returned}\n")
    words = ["schedule=own_optimizers:Decay", "schedule.milestones=[]"]
    with pytest.raises(UsageError, match=message):
        load_recipe(["recipe=digits", *words])


def test_a_decay_multiplies_the_lr_after_the_warmup(module: Path) -> None:
    module.write_text("class Decay:\n    def share(self, remaining): return remaining**2\n")
    words = ["schedule=own_optimizers:Decay", "schedule.milestones=[]"]
    recipe, linear = (
        load_recipe(["recipe=digits", *schedule, "schedule.milestones=[]"])
        for schedule in (words, ["schedule=linear"])
    )
    steps, full = range(recipe.total_steps + 1), recipe.scaled_lr
    arrived = recipe.first_step(int(recipe.schedule.warmup_epochs))
    for step in steps:
        expected = linear.lr(step) ** 2 / full if step > arrived else linear.lr(step)
        assert recipe.lr(step) == pytest.approx(expected, rel=1e-12)
