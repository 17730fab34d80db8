"""What a study may be, and every shipped one: its rows are the paper's, and so are its claims."""

import functools
import re
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.composed import compose_recipe

from lsgd import config, definitions, paths
from lsgd.errors import UsageError
from lsgd.recipe import Recipe
from lsgd.recipe.study import Claim, Entry, Study, check_study

NAMES = definitions.study_names()
FILES = paths.recipes_dir() / "study"
IMAGENET = ["figure1", "table1_warmup", "table2_gamma", "table2_lr"]
SMALL = ["fashion_figure1", "fashion_table1_warmup", "fashion_table2_gamma", "fashion_table2_lr",
         "cifar10_figure1", "cifar10_table1_warmup", "cifar10_table2_gamma",
         "cifar10_table2_lr"]  # fmt: skip

ROWS = {
    "figure1": [f"bs{size}" for size in (64, 128, 256, 512, *(f"{2**i}k" for i in range(7)))],
    "table1_warmup": ["bs256", "bs8k_no_warmup", "bs8k_constant_warmup", "bs8k"],
    "table2_lr": [
        "bs256_half_lr", "bs256", "bs256_double_lr", "bs8k_half_lr", "bs8k", "bs8k_double_lr",
        "bs8k_fixed_lr", "bs8k_sqrt_lr",
    ],
    "table2_gamma": ["bs256_gamma1", "bs256", "bs8k_gamma1", "bs8k"],
}  # fmt: skip
"""Of the paper; that the recipes have its errors as their targets is shown in test_recipes.py."""


@functools.cache
def shipped(name: str) -> Study:
    return definitions.load_study(name)


@functools.cache
def recipe(name: str) -> Recipe:
    return compose_recipe(f"+recipe={name}")


def holds(claim: Claim, ours: float, other: float) -> bool:
    difference = ours - other
    return {
        "no_worse_than": difference <= claim.within,
        "worse_than": difference > claim.within,
    }[claim.relation]


STUDY = Study(
    name="one", title="One", question="Is it?", source="nobody", baseline="bs256", seeds=[0, 1],
    entries=[Entry("bs256", "baseline"), Entry("fashion_bs2k", "another", like="bs8k")],
    claims=[Claim("it is", "fashion_bs2k", "no_worse_than", "bs256", 0.5)],
)  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"entries": [Entry("bs9", "a")]}, "the recipe bs9, which does not exist"),
        ({"entries": [Entry("bs256", "a", like="bs9")]}, "the recipe bs9, which does not exist"),
        ({"entries": STUDY.entries[:1]}, "compares fashion_bs2k, which is not among its entries"),
        ({"entries": STUDY.entries * 2}, "has a recipe twice"),
        ({"baseline": "bs8k"}, "compares bs8k, which is not among its entries"),
        ({"claims": [Claim("a", "bs256", "no_worse_than", "bs8k")]}, "compares bs8k, which is"),
        (
            {"claims": [Claim("a", "bs256", "better_than", "bs256")]},
            "=better_than is unknown",
        ),
        ({"seeds": []}, "write different numbers, 0 or more"),
        ({"seeds": [1, 1]}, "write different numbers, 0 or more"),
        ({"seeds": [-1]}, "write different numbers, 0 or more"),
        ({"name": "a/b"}, "does not make a folder's name"),
        ({"repeats": "best"}, "repeats=best is unknown; write one of first, mean"),
        ({"quick": ["fashion_bs2k"]}, "write its baseline bs256 and others of"),
        ({"quick": ["bs256", "bs8k"]}, "write its baseline bs256 and others of"),
        ({"quick_seeds": []}, "write different numbers, 0 or more"),
    ],
)
def test_a_study_that_makes_no_sense(wrong: dict, sentence: str) -> None:
    check_study(STUDY, config.sorted_recipe_names())
    with pytest.raises(UsageError, match=re.escape(sentence)):
        check_study(replace(STUDY, **wrong), config.sorted_recipe_names())


def test_the_quick_part_has_the_claims_on_its_recipes() -> None:
    claims = [*STUDY.claims, Claim("b", "bs8k", "no_worse_than", "bs256", 0.5)]
    whole = replace(
        STUDY, entries=[*STUDY.entries, Entry("bs8k", "b")], claims=claims,
        quick=["bs256", "fashion_bs2k"],
    )  # fmt: skip
    part = whole.quick_part()
    assert [entry.recipe for entry in part.entries] == ["bs256", "fashion_bs2k"]
    assert (part.claims, part.seeds) == (STUDY.claims, [0])
    assert part.name != whole.name, "its report is another one"
    assert part.command_arguments == ["+study=one", "--quick"]
    assert whole.command_arguments == ["+study=one"]
    with pytest.raises(UsageError, match="study one has no quick part; leave out --quick"):
        STUDY.quick_part()


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("title: a\n", "study mine: "),
        ("titel: a\n", "study mine: there is no key 'titel'"),
        ("seeds: [a]\n", "study mine: seeds[0]=a is not a whole number"),
        ("[a]\n", "mine.yaml is not a mapping of keys to values"),
        ("{a\n", "mine.yaml cannot be read"),
    ],
)
def test_a_file_that_is_no_study(
    file: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study/mine.yaml").write_text(file)
    monkeypatch.setattr(paths, "recipes_dir", lambda: tmp_path)
    with pytest.raises(UsageError, match=re.escape(sentence)) as refused:
        definitions.load_study("mine")
    assert "\n" not in str(refused.value)
    with pytest.raises(UsageError, match=r"^study=min does not exist; did you mean mine\?"):
        definitions.load_study("min")


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_it_asks_and_takes(name: str) -> None:
    study = shipped(name)
    lines = (FILES / f"{name}.yaml").read_text().splitlines()
    assert lines[0].startswith("# ")
    assert lines[0].endswith(".")
    assert lines[1].startswith("# Hardware: ")
    assert study.question.endswith("?")
    assert f"| {name} |" in (FILES.parent / "README.md").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_its_claims_are_about_all_of_it(name: str) -> None:
    study = shipped(name)
    compared = {each for claim in study.claims for each in (claim.recipe, claim.other)}
    assert compared == {entry.recipe for entry in study.entries}
    assert len({claim.says for claim in study.claims}) == len(study.claims)
    for claim in study.claims:
        assert claim.recipe != claim.other
        # Never quite as good: a margin has to be stated.
        assert claim.within > 0 or claim.relation == "worse_than"


@pytest.mark.parametrize("name", IMAGENET)
def test_the_rows_are_those_of_the_paper(name: str) -> None:
    study = shipped(name)
    assert [entry.recipe for entry in study.entries] == ROWS[name]
    assert study.baseline == "bs256"
    assert all(entry.like is None for entry in study.entries)


@pytest.mark.parametrize("name", IMAGENET + SMALL)
def test_the_paper_has_found_what_is_claimed(name: str) -> None:
    study = shipped(name)
    published = {each: recipe(each).target for rows in ROWS.values() for each in rows}
    stands_for = {entry.recipe: entry.like or entry.recipe for entry in study.entries}
    for claim in study.claims:
        ours, other = (published[stands_for[each]] for each in (claim.recipe, claim.other))
        if ours and other:
            assert holds(claim, ours.top1_error, other.top1_error), claim.says
