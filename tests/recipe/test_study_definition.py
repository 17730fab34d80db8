"""What a study may be, and every shipped one: its rows are the paper's, and so are its claims."""

import functools
import re
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.composed import composed

from lsgd import config, paths
from lsgd.errors import Refused
from lsgd.recipe import Recipe
from lsgd.recipe.study import Claim, Entry, Study, check_study

NAMES = config.studies()
FILES = paths.recipes_dir() / "study"
IMAGENET = ["figure1", "table1_warmup", "table2_gamma", "table2_lr"]
SMALL = ["fashion_figure1", "fashion_table1_warmup", "fashion_table2_gamma", "fashion_table2_lr",
         "cifar10_figure1", "cifar10_table1_warmup", "cifar10_table2_gamma",
         "cifar10_table2_lr"]  # fmt: skip

ROWS = {
    "figure1": [
        ("bs64", None), ("bs128", 23.49), ("bs256", 23.60), ("bs512", 23.48), ("bs1k", 23.53),
        ("bs2k", 23.49), ("bs4k", 23.56), ("bs8k", 23.74), ("bs16k", 24.79), ("bs32k", 27.55),
        ("bs64k", 33.96),
    ],
    "table1_warmup": [
        ("bs256", 23.60), ("bs8k_no_warmup", 24.84), ("bs8k_constant_warmup", 25.88),
        ("bs8k", 23.74),
    ],
    "table2_lr": [
        ("bs256_half_lr", 23.92), ("bs256", 23.60), ("bs256_double_lr", 23.68),
        ("bs8k_half_lr", 24.27), ("bs8k", 23.74), ("bs8k_double_lr", 24.05),
        ("bs8k_fixed_lr", 41.67), ("bs8k_sqrt_lr", 26.22),
    ],
    "table2_gamma": [
        ("bs256_gamma1", 23.84), ("bs256", 23.60), ("bs8k_gamma1", 24.11), ("bs8k", 23.74),
    ],
}  # fmt: skip
"""Of the paper: top-1 error in percent, as it is printed."""


@functools.cache
def shipped(name: str) -> Study:
    return config.load_study(name)


@functools.cache
def recipe(name: str) -> Recipe:
    return composed(f"+recipe={name}")


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
        ({"claims": [Claim("a", "bs256", "better_than", "bs256")]}, "relation 'better_than'; wri"),
        ({"seeds": []}, "write different numbers, 0 or more"),
        ({"seeds": [1, 1]}, "write different numbers, 0 or more"),
        ({"seeds": [-1]}, "write different numbers, 0 or more"),
        ({"name": "a/b"}, "does not make a folder's name"),
    ],
)
def test_a_study_that_makes_no_sense(wrong: dict, sentence: str) -> None:
    check_study(STUDY, config.recipes())
    with pytest.raises(Refused, match=re.escape(sentence)):
        check_study(replace(STUDY, **wrong), config.recipes())


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("title: a\n", "study mine: "),
        ("titel: a\n", "study mine: Key 'titel' not in 'Study'"),
        ("seeds: [a]\n", "study mine: Value 'a' of type 'str' could not be converted"),
        ("[a]\n", "mine.yaml is no mapping of keys to values"),
        ("{a\n", "mine.yaml cannot be read"),
    ],
)
def test_a_file_that_is_no_study(
    file: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study/mine.yaml").write_text(file)
    monkeypatch.setattr(paths, "recipes_dir", lambda: tmp_path)
    with pytest.raises(Refused, match=re.escape(sentence)) as refused:
        config.load_study("mine")
    assert "\n" not in str(refused.value)
    with pytest.raises(Refused, match=r"\+study=min does not exist; did you mean mine\?"):
        config.load_study("min")


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_it_asks_and_takes(name: str) -> None:
    study = shipped(name)
    lines = (FILES / f"{name}.yaml").read_text().splitlines()
    assert lines[0].startswith("# ")
    assert lines[0].endswith(".")
    assert lines[1].startswith("# Hardware: ")
    assert study.question.endswith("?")
    assert len(study.seeds) == (5 if name in IMAGENET else 4 if name == "digits" else 3)
    assert f"| {name} |" in (FILES.parent / "README.md").read_text()
    labels = [entry.label for entry in study.entries]
    assert len({*labels}) == len(labels)


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
    targets = {entry.recipe: recipe(entry.recipe).target for entry in study.entries}
    rows = [(each, target.top1_error if target else None) for each, target in targets.items()]
    assert rows == ROWS[name]
    assert study.baseline == "bs256"
    assert all(entry.like is None for entry in study.entries)


@pytest.mark.parametrize("name", IMAGENET + SMALL)
def test_the_paper_has_found_what_is_claimed(name: str) -> None:
    study = shipped(name)
    published = dict(row for rows in ROWS.values() for row in rows)
    stands_for = {entry.recipe: entry.like or entry.recipe for entry in study.entries}
    for claim in study.claims:
        ours, other = (published[stands_for[each]] for each in (claim.recipe, claim.other))
        if ours is not None and other is not None:
            assert holds(claim, ours, other), claim.says


@pytest.mark.parametrize("name", [*SMALL, "fashion_gap", "digits"])
def test_a_smaller_run_stands_for_one_of_the_same_kind(name: str) -> None:
    """As many times the reference minibatch, at as many times the reference lr, and so on."""
    study = shipped(name)
    base = recipe(study.baseline)

    def kind(ours: Recipe, reference: Recipe) -> dict:
        found = {
            "k": ours.batch_size / reference.batch_size,
            "lr": ours.schedule.reference_lr / reference.schedule.reference_lr,
            "scaling": ours.schedule.scaling,
            "warmup": ours.schedule.warmup,
        }
        if name.endswith("gamma"):
            found["gamma"] = ours.model.last_gamma
        return found

    for entry in study.entries:
        if entry.like:
            expected = kind(recipe(entry.like), recipe("bs256"))
            assert kind(recipe(entry.recipe), base) == expected, entry.recipe
    if name in SMALL:
        whole = shipped(name.partition("_")[2])
        stood_for = {entry.like for entry in study.entries}
        if name.endswith(("lr", "gamma")):
            assert stood_for == {entry.recipe for entry in whole.entries}
        assert base.data.name == name.partition("_")[0].replace("fashion", "fashion-mnist")
