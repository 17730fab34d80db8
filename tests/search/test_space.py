"""The points of a search as words and as trials, and what its recipe says of them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsgd import config, definitions
from lsgd.errors import UsageError
from lsgd.recipe.search import Search
from lsgd.search.folder import definition, search_folder
from lsgd.search.space import SearchSpace, overrides_of

pytestmark = pytest.mark.usefixtures("composed_once")
LR = "schedule.reference_lr"
SEARCH = Search("one", "One", "digits", {LR: {"from": 0.001, "to": 1.0}}, trials=3)


@given(st.floats(1e-9, 1e9))
def test_words_say_a_number_exactly(lr: float) -> None:
    assert overrides_of({LR: lr}) == [f"{LR}={lr!r}"]


@pytest.mark.parametrize("lr", [1e-05, 0.1 + 0.2, 1 / 3, 123456.0])
def test_the_recipe_has_the_values_exactly(lr: float) -> None:
    """1e-05 without a point is a text to YAML."""
    (trial,) = SearchSpace(SEARCH, []).planned_runs({LR: lr}, [7])
    assert trial.recipe.schedule.reference_lr == lr
    assert trial.recipe.seed == 7
    again = config.load_recipe([f"+recipe={trial.recipe.name}", *trial.overrides])
    assert again.fingerprint == trial.recipe.fingerprint
    assert again.seed == 7


def test_the_recipe_as_it_is_needs_no_values() -> None:
    words = ["epochs=3", "schedule.milestones=[]", "schedule.warmup_epochs=1"]
    (trial,) = SearchSpace(SEARCH, words).planned_runs({}, [0])
    assert trial.recipe.schedule.reference_lr == 0.025
    assert trial.recipe.epochs == 3


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("seed=1", r"write seeds=\[0\] for the seeds of every point"),
        ("run_dir=a", "the folder of a run is named by recipe"),
        ("++name=a", "a run has the name of its recipe"),
        ("rehearse=true", "a dry run has no result"),
        (f"{LR}=0.1", "cannot be overridden in a search that varies schedule.reference_lr"),
    ],
)
def test_words_that_cannot_be_said(word: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        SearchSpace(SEARCH, [word])


def test_a_corner_that_the_recipe_refuses_is_named_before_anything_is_trained() -> None:
    """Nesterov's momentum of 0 is no run; here at one end of one of two fields."""
    space = {LR: {"from": 0.001, "to": 1.0}, "optim.momentum": {"from": 0.0, "to": 0.9}}
    with pytest.raises(
        UsageError, match=r"the trial schedule.reference_lr=0.001 optim.momentum=0.0:"
    ):
        SearchSpace(replace(SEARCH, space=space), []).check()
    SearchSpace(replace(SEARCH, space=space), ["optim.nesterov=false"]).check()


def test_of_many_fields_each_is_looked_at_alone() -> None:
    choices = {"choices": [0.1, 0.2, 0.3]}
    space = dict.fromkeys([LR, "schedule.gamma", "optim.weight_decay", "optim.momentum"], choices)
    search = replace(SEARCH, space=space)
    seen = []
    checked = SearchSpace(search, [])
    checked.recipe = lambda values: seen.append(dict(values))  # type: ignore[method-assign,assignment]
    checked.check()
    for key in space:
        assert {values[key] for values in seen if values} == {0.1, 0.2, 0.3}
    assert len(seen) < 20
    space["optim.momentum"] = {"choices": [0.1, 1.5]}
    with pytest.raises(UsageError, match=r"optim.momentum=1.5"):
        SearchSpace(search, []).check()


def test_an_unknown_field_is_named() -> None:
    search = replace(SEARCH, space={"schedule.reference_l": {"from": 1, "to": 2}})
    with pytest.raises(UsageError, match=r"no key 'schedule\.reference_l'; did you mean"):
        SearchSpace(search, []).check()


def test_words_that_change_the_search_change_its_folder() -> None:
    """More trials, or other seeds for the comparison, go on with the same one."""

    def folder(*words: str, of_recipe: tuple[str, ...] = ()) -> str:
        return search_folder(SearchSpace(definitions.load_search("digits", *words), of_recipe)).name

    assert folder() == "digits"
    assert folder("trials=50", "holdout_seeds=[7]") == "digits"
    assert folder("sampler=tpe", of_recipe=("epochs=8",)) == "digits"
    others = [
        folder("sampler=gp"), folder("sampler_seed=1"), folder("seeds=[3]"),
        folder("prune.after_epochs=2"), folder(of_recipe=("worker_batch=8",)),
    ]  # fmt: skip
    assert len({"digits", *others}) == 6
    assert definition(SearchSpace(definitions.load_search("digits"), []))["sampler"] == "tpe"
