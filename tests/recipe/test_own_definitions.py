"""Studies and searches in users' own files, and searches without a file."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.composed import compose_recipe

from lsgd.config import load_recipe
from lsgd.definitions import load_search, load_study, search_over
from lsgd.errors import UsageError
from lsgd.planned import RunLauncher
from lsgd.report.groups import group_study
from lsgd.search.command_line import SearchRequest, read_request
from lsgd.search.folder import search_folder
from lsgd.study.planned_runs import planned_runs
from lsgd.study.reporting import report_folder
from lsgd.study.request import read_request as read_study

STUDY = """\
title: Mine
question: Is it good?
source: me
baseline: digits
seeds: [0]
entries:
  - {recipe: digits, label: theirs}
  - {recipe: ./tiny.yaml, label: mine}
claims:
  - {says: it is, recipe: ./tiny.yaml, relation: no_worse_than, other: digits, within: 9}
"""
SEARCH = """\
title: Mine
recipe: tiny.yaml
space:
  optim.momentum: {choices: [0.5, 0.8]}
trials: 2
sampler: grid
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder `all` with a recipe of one's own, and an empty current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LSGD_RECIPES", "")
    Path("all").mkdir()
    Path("all/tiny.yaml").write_text("defaults: [digits]\nname: tiny\nworkers: 8\n")


def request_of(line: str) -> SearchRequest:
    """Parse the command line of a search."""
    request = read_request("", shlex.split(line))
    assert isinstance(request, SearchRequest)
    return request


@pytest.mark.parametrize("line", ["study=all/mine.yaml", "study=mine --recipe-dir all"])
def test_a_study_has_recipes_beside_its_file(line: str) -> None:
    """Runs, claims and reports have the recipe's name; a launcher gets the path of its file."""
    Path("all/mine.yaml").write_text(STUDY)
    study = read_study("", line.split()).study
    assert [entry.recipe for entry in study.entries] == ["digits", "tiny"]
    assert (study.name, study.claims[0].recipe) == ("mine", "tiny")
    assert study.command_arguments == ["+study=all/mine.yaml"]
    _, mine = planned_runs(study, ["epochs=30"])
    assert (str(mine), mine.recipe.workers) == ("tiny, seed 0", 8)
    command = RunLauncher("local", {"--np": "1"}).command(mine)
    assert command[3:7] == ["local", "all/tiny.yaml", "seed=0", "epochs=30"]


def test_a_study_names_recipes_as_they_are_written() -> None:
    """YAML reads such a name as a number."""
    Path("all/2026_11.yaml").write_text("defaults: [digits]\nname: 2026_11\n")
    names = STUDY.replace("./tiny.yaml", "2026_11").replace("title: Mine", "title: 1e3")
    Path("all/mine.yaml").write_text(names)
    study = read_study("", ["study=mine", "--recipe-dir", "all"]).study
    assert [entry.recipe for entry in study.entries] == ["digits", "2026_11"]
    assert (study.claims[0].recipe, study.title) == ("2026_11", "1e3")


@pytest.mark.slow
def test_a_search_has_a_recipe_beside_its_file() -> None:
    Path("all/mine.yaml").write_text(SEARCH)
    request = request_of("search=./all/mine.yaml")
    assert search_folder(request.space) == Path("runs/searches/mine")
    request.space.check()
    assert request.space.search.recipe == "tiny"
    assert request.space.search.command_arguments == ["+search=all/mine.yaml"]
    (run,) = request.space.planned_runs({"optim.momentum": 0.5}, [3])
    assert (run.recipe_argument, run.recipe.optim.momentum) == ("all/tiny.yaml", 0.5)
    assert request_of("search=mine --recipe-dir all trials=1").space.search.trials == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (STUDY.partition("entries")[0], "all/mine.yaml: study mine: .*missing .*entries"),
        ("title: [", r"all/mine.yaml, line \d: it is not YAML"),
        (STUDY + "quck: []\n", "line 11: study mine: .*quck"),
        (STUDY.replace("[0]", "many"), "all/mine.yaml, line 5: study mine: "),
        (STUDY.replace("me\n", "${oc.env:HOME}\n"), "line 3: source=.* write the value itself"),
        (STUDY.replace("me\n", "'${seed}'\n"), "line 3: source=.* write the value itself"),
        (STUDY + "name: ../../a\n", "line 11: a study has the name of its file; leave out name"),
        (STUDY + "file: a\n", "line 11: study mine has the field file; leave it out"),
        (STUDY.replace("./tiny", "no"), "all/mine.yaml: study mine has the recipe no.yaml, which"),
        (STUDY.replace("[0]", "[0]\nspread: x"), "line 6: study mine"),
    ],
)
def test_a_wrong_study_is_refused_by_file_and_line(text: str, sentence: str) -> None:
    Path("all/mine.yaml").write_text(text)
    with pytest.raises(UsageError, match=sentence):
        load_study("all/mine.yaml")
    assert load_study("digits").entries


def test_a_wrong_search_is_refused_by_file_and_line() -> None:
    for text, sentence in {
        SEARCH.replace("tiny", "no"): "line 2: search mine has the recipe no.yaml",
        SEARCH.replace("[0.5, 0.8]", "0.5"): "line 4: search mine: space.optim.momentum",
        SEARCH.replace("grid", "gird"): "line 6: sampler=gird is unknown; write",
        SEARCH + "line: [a]\n": "line 7: search mine has the field line; leave it out",
    }.items():
        Path("all/mine.yaml").write_text(text)
        with pytest.raises(UsageError, match=f"all/mine.yaml, {sentence}"):
            load_search("all/mine.yaml")


@pytest.mark.parametrize(
    "added", ["words: ['data.skip_list=a']\n", "  data.skip_list: {choices: [a]}\n"]
)
def test_a_search_names_no_other_file(added: str) -> None:
    head, space, rest = SEARCH.partition("space:\n")
    text = SEARCH + added if added.startswith("words") else head + space + added + rest
    Path("all/mine.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"search mine names a data.skip_list, which is another"):
        load_search("all/mine.yaml")


def test_a_file_of_another_kind_is_answered_with_its_command() -> None:
    Path("all/mine.yaml").write_text(STUDY)
    with pytest.raises(UsageError, match="is a study, not a recipe; write lsgd study study=all/"):
        load_recipe(["recipe=all/mine.yaml"])
    with pytest.raises(UsageError, match="is a recipe, not a search; write lsgd train recipe=all"):
        load_search("all/tiny.yaml")


@pytest.mark.parametrize("load", [load_study, load_search])
def test_a_shipped_name_is_not_taken(load: object) -> None:
    Path("digits.yaml").write_text(STUDY)
    with pytest.raises(UsageError, match=r"digits.yaml would make .*; rename the file"):
        load("digits.yaml")  # type: ignore[operator]
    with pytest.raises(UsageError, match=r"no.yaml does not exist; write the path"):
        load("no.yaml")  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.parametrize("root", ["", ", root: /elsewhere"])
def test_a_recipe_may_be_complete_only_with_overrides(root: str) -> None:
    """Which give the folder of its images: the target stays, and other images are another study."""
    small = "defaults: [bs256, override /data: folder, override /model: resnet20]\nname: tiny\n"
    text = f"{small}workers: 1\ndata: {{image_size: 32{root}}}\ntarget: {{top1_error: 20}}\n"
    Path("all/tiny.yaml").write_text(text)
    Path("all/mine.yaml").write_text(
        STUDY.replace("digits", "./tiny.yaml", 1).partition("claims")[0]
    )
    with pytest.raises(UsageError, match=r"data\.root"):
        load_recipe(["recipe=all/tiny.yaml"])
    for folder, examples in (("cats", 64), ("dogs", 65)):
        Path(folder).mkdir()
        for split in ("train", "val"):
            np.save(f"{folder}/{split}.index.npy", np.zeros(examples, [("label", int)]))
    given = ["recipe=all/tiny.yaml", "data.root=cats"]
    assert load_recipe([*given, "device=cpu"]).target
    assert load_recipe([*given, "workers=2"]).target is None
    study = load_study("all/mine.yaml")
    study = replace(study, entries=study.entries[1:])
    (group,), _ = group_study(study, [], ["data.root=cats"], [])
    assert group.published == load_recipe(given)
    reports = [
        report_folder(study, planned_runs(study, [f"data.root={folder}"])).name
        for folder in ("cats", "./cats", "dogs")
    ]
    assert reports[0] == reports[1] != reports[2]
    Path("all/mine.yaml").write_text(SEARCH)
    search = search_folder(request_of("search=all/mine.yaml data.root=cats").space)
    assert all(re.fullmatch("mine-[0-9a-f]{8}", name) for name in (*reports, search.name))


# --- Searches without a file -----------------------------------------------------------------


def test_a_search_needs_no_file() -> None:
    """A grid over all values; what is no list, or a field that takes one, holds for all trials."""
    line = "recipe=digits 'schedule.reference_lr=[0.05,0.1]' optim=[sgd,lars] epochs=30"
    request = request_of(f"{line} 'schedule.milestones=[9]' seeds=[0,1]")
    space, search = request.space, request.space.search
    assert search.space == {
        "schedule.reference_lr": {"choices": [0.05, 0.1]},
        "optim": {"choices": ["sgd", "lars"]},
    }
    assert (search.trial_count, search.sampler, search.seeds) == (4, "grid", [0, 1])
    assert space.overrides == ["epochs=30", "schedule.milestones=[9]"]
    assert search_folder(space).name.startswith("digits_reference_lr_optim-")
    again = [*search.command_arguments, *request.overrides]
    assert request_of(shlex.join(again)).space.search == search
    other = request_of(line.replace("0.1", "0.2"))
    assert search_folder(other.space) != search_folder(space)


def test_it_searches_a_recipe_in_a_file() -> None:
    request = request_of("recipe=all/tiny.yaml optim.momentum=[0.5,0.8]")
    request.space.check()
    (run,) = request.space.planned_runs({"optim.momentum": 0.5}, [0])
    assert (run.recipe.workers, run.recipe_argument) == (8, "all/tiny.yaml")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("recipe=digits", "has no field to search; write a list"),
        ("recipe=digits schedule.milestones=[3]", "has no field to search; write a list"),
        ("recipe=digit epochs=[3]", "recipe=digit does not exist; did you mean digits"),
        ("recipe=digits epochs=[3", r"epochs=\[3 cannot be read .*; write lists in brackets"),
        ("recipe=digits epochs=[3] seed=[0,1]", "write seeds=.0. for the seeds of"),
        ("recipe=digits epochs=[]", "is not a list of choices; write"),
        ("recipe=digits epochs=[3] search=digits", "recipe=digits' .*: a search has its recipe"),
        ("recipe=digits epochs=[3] sampler=x", "sampler=x is unknown; write"),
    ],
)
def test_a_wrong_line_is_refused(line: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        request_of(line)


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("schedule.reference_lr=0.05,0.1 epochs=30", "'schedule.reference_lr=[0.05,0.1]'"),
        ("optim=sgd,lars run_dir=a", "'optim=[sgd,lars]'"),
    ],
)
def test_several_values_are_answered_with_the_search(words: str, fix: str) -> None:
    """Which is accepted as it is written."""
    with pytest.raises(UsageError) as refused:
        load_recipe(["recipe=digits", *words.split()])
    _, _, command = str(refused.value).partition("or search for the best by python -m lsgd.search ")
    assert fix in command
    assert len(request_of(command).space.search.space) == 1


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("recipe=digits schedule.milestones=1,2", "a list in brackets, schedule.milestones=[1,2]"),
        ("recipe=digits seed=1,2", "write one, and start a run for each"),
        ("recipe=digits,bs8k", "write one, or train a study"),
    ],
)
def test_other_several_values_are_answered_too(words: str, fix: str) -> None:
    with pytest.raises(UsageError) as refused:
        load_recipe(words.split())
    assert fix in str(refused.value)


def test_a_search_without_a_file_computes_what_its_file_would() -> None:
    search = search_over("digits", ["optim.momentum=[0.5]"])
    assert (search.recipe, search.name) == ("digits", "digits_momentum")
    assert compose_recipe(search.recipe_override) == compose_recipe("recipe=digits")
