"""What a search may be: its space, its grid, and the sentences for what makes none."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from lsgd import config, definitions, paths
from lsgd.errors import UsageError
from lsgd.recipe.search import CategoricalChoices, NumericRange, Pruning, Search, check_search
from lsgd.search.command_line import SearchRequest, read_request
from lsgd.search.space import SearchSpace

SEARCH = Search("one", "One", "digits", {"optim.momentum": {"from": 0.1, "to": 0.9}}, trials=3)
RANGE = {"from": 0.1, "to": 0.9}


@pytest.mark.slow
@pytest.mark.parametrize("name", definitions.search_names())
def test_every_shipped_search_suits_its_recipe(name: str) -> None:
    """As a grid too, which needs a number of values for each field and has the same corners."""
    definitions.load_search(name, "sampler=grid")
    SearchSpace(definitions.load_search(name), []).check()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"name": "a/b"}, "does not make a folder's name"),
        ({"recipe": "digit"}, "the recipe digit, which does not exist; did you mean digits?"),
        ({"space": {}}, "has an empty space; write at least one field"),
        ({"space": {"seed": 3}}, "space.seed=3 is not a search space; write {from: …, to: …}"),
        ({"space": {"seed": {}}}, "is not a search space"),
        ({"space": {"a": {"form": 1}}}, "space.a has 'form'; did you mean from?"),
        ({"space": {"a": {"choices": []}}}, "is not a list of choices"),
        ({"space": {"a": {"choices": [1], "from": 1}}}, "write {choices: [a, b]} alone"),
        ({"space": {"a": {"choices": [1, 1]}}}, "has a choice twice, in [1, 1]"),
        ({"space": {"a": {"choices": [[1]]}}}, "has the choice [1]; write numbers, texts, true or"),
        ({"space": {"a": {"from": 1}}}, "space.a.to is missing; write one, such as 0.01"),
        ({"space": {"a": {"from": "x", "to": 2}}}, "space.a.from is 'x', which is not a number"),
        ({"space": {"a": {"from": True, "to": 2}}}, "is True, which is not a number"),
        ({"space": {"a": {"from": 0, "to": float("inf")}}}, "is inf, which is not a number"),
        ({"space": {"a": {"from": 0, "to": 10**400}}}, "000, which is not a number"),
        ({"space": {"a": {"from": 2, "to": 1}}}, "goes from 2 to 1; write the smaller number as"),
        ({"space": {"a": RANGE | {"scale": "ln"}}}, "scale=ln is unknown; write linear or log"),
        ({"space": {"a": {"from": 0, "to": 1, "scale": "log"}}}, "begins at 0, which has no logar"),
        ({"space": {"a": RANGE | {"steps": 1}}}, "steps=1 makes no grid; write a whole number"),
        ({"trials": 0}, "trials=0 is not possible; write 1 or more"),
        ({"sampler_seed": -1}, "sampler_seed=-1 is not possible; write 0 or more"),
        ({"sampler": "cma"}, "sampler=cma is unknown; write one of grid, random, tpe, gp"),
        ({"sampler": "grid"}, "sampler=grid needs the number of values of optim.momentum; write"),
        ({"seeds": []}, "has seeds=[]; write different numbers"),
        ({"seeds": [1, 1]}, "has seeds=[1, 1]; write different numbers"),
        ({"holdout_seeds": [0]}, "not among seeds=[0], which select the best trial"),
        ({"prune": Pruning("mean")}, "prune.rule=mean is unknown; write one of median, "),
        ({"prune": Pruning("median", 5, 0)}, "prune.after_epochs=0 is not possible; write 1"),
    ],
)  # fmt: skip
def test_a_search_that_makes_no_sense(wrong: dict, sentence: str) -> None:
    check_search(SEARCH, config.sorted_recipe_names())
    with pytest.raises(UsageError, match=re.escape(sentence)) as refused:
        check_search(replace(SEARCH, **wrong), config.sorted_recipe_names())
    assert "\n" not in str(refused.value)


def test_the_older_name_of_the_holdout_seeds_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a file and on the command line, as searches of users have it."""
    shutil.copytree(paths.recipes_dir() / "recipe", tmp_path / "recipe")
    file = tmp_path / "search/one.yaml"
    file.parent.mkdir()
    file.write_text(
        "title: One\nrecipe: digits\nspace: {optim.momentum: {from: 0.1, to: 0.9}}\n"
        "trials: 3\ncompared_seeds: [1, 2]\n"
    )
    monkeypatch.setattr(paths, "recipes_dir", lambda: tmp_path)
    assert definitions.load_search("one").holdout_seeds == [1, 2]
    request = read_request("", ["search=one", "compared_seeds=[3]"])
    assert isinstance(request, SearchRequest)
    assert request.space.search.holdout_seeds == [3]


def test_a_grid_has_its_ends_as_they_are_written() -> None:
    """1e-4 times a power of ten is 1e-3 only nearly, and a fingerprint would be another."""
    lr = NumericRange("schedule.reference_lr", 1e-4, 1.0, True, 5)
    assert lr.grid_values[0] == 1e-4
    assert lr.grid_values[-1] == 1.0
    assert lr.grid_values[1:-1] == pytest.approx([1e-3, 1e-2, 1e-1])
    assert NumericRange("optim.momentum", 0.0, 1.0, False, 3).grid_values == [0.0, 0.5, 1.0]
    assert NumericRange("optim.momentum", 0.1, 0.95, True, 3).grid_values[-1] == 0.95
    assert NumericRange("workers", 1, 3, False, 9).grid_values == [1, 2, 3]
    assert CategoricalChoices("a", ["x", "y"]).grid_values == ["x", "y"]


def test_only_a_field_of_whole_numbers_is_searched_in_whole_numbers() -> None:
    space = {"workers": {"from": 1, "to": 4}, "optim.momentum": {"from": 0, "to": 1}}
    workers, momentum = replace(SEARCH, space=space).dimensions
    assert workers.is_integer
    assert not momentum.is_integer
    assert type(momentum.low) is float


def test_a_grid_has_no_more_points_than_it_has() -> None:
    space = {"optim.momentum": RANGE | {"steps": 3}, "workers": {"choices": [1, 2]}}
    grid = replace(SEARCH, space=space, sampler="grid")
    assert replace(grid, trials=40).trial_count == 6
    assert replace(grid, trials=4).trial_count == 4
    assert replace(grid, sampler="tpe", trials=40).trial_count == 40


@pytest.mark.parametrize(
    ("word", "seeds", "others"),
    [
        ("seeds=3", [0, 1, 2], []),
        ("seeds=[1..3]", [1, 2, 3], []),
        ("seeds=[7, 0]", [7, 0], []),
        ("holdout_seeds=[1..2]", [0], [1, 2]),
        ("holdout_seeds=[]", [0], []),
    ],
)
def test_a_search_takes_seeds_as_a_study_does(
    word: str, seeds: list[int], others: list[int]
) -> None:
    request = read_request("", ["recipe=digits", "optim.momentum=[0.1,0.2]", word])
    assert isinstance(request, SearchRequest)
    search = request.space.search
    assert (search.seeds, search.holdout_seeds) == (seeds, others)


def test_the_mapping_of_a_pruning_rule_needs_no_spaces() -> None:
    """As those of a recipe need none, which Hydra reads."""
    request = read_request("", ["search=digits", "prune={rule:median,after_trials:2}"])
    assert isinstance(request, SearchRequest)
    assert request.space.search.prune == Pruning("median", after_trials=2)
