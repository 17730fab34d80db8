"""Recipes in users' own files: by path, by folder, built on others, and wrong in every way."""

from pathlib import Path

import pytest
import yaml
from helpers.composed import compose_recipe

from lsgd import config, recipe_parser
from lsgd.completion import overrides
from lsgd.config import load_recipe
from lsgd.errors import UsageError
from lsgd.recipe import Recipe
from lsgd.recipe.own_files import read_own_file

MINE = "defaults: [bs256]\nname: mine\nworkers: 16\n"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without recipes as the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LSGD_RECIPES", raising=False)


def write(text: str, name: str = "mine.yaml") -> str:
    """Write a file into the current folder; return its name."""
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)
    return name


@pytest.mark.parametrize(
    "name", ["digits", "bs8k", "bs256_full", "ptb_small", "sst_childsum", "mlperf_bs4096"]
)
def test_what_cfg_prints_is_such_a_file(name: str) -> None:
    """Of each workload, with nothing of the default dataset, network or loader added to it."""
    recipe = compose_recipe(f"recipe={name}")
    write(config.to_yaml(recipe))
    assert load_recipe(["recipe=./mine.yaml"]) == recipe


def test_a_choice_replaces_the_group_of_a_complete_file() -> None:
    write(config.to_yaml(compose_recipe("recipe=bs256", "data.root=/data/imagenet")))
    recipe = load_recipe(["recipe=mine.yaml", "data=digits", "model=small_resnet", "optim=lars"])
    expected = load_recipe(["recipe=bs256", "data=digits", "model=small_resnet", "optim=lars"])
    assert (recipe.data, recipe.optim) == (expected.data, expected.optim)


def test_a_recipe_builds_on_a_complete_file() -> None:
    """Whose fields stay as they are: nothing of the default network or dataset is added."""
    sst = compose_recipe("recipe=sst_childsum")
    write(config.to_yaml(sst), "all.yaml")
    write("defaults: [all.yaml]\nname: mine\n")
    assert load_recipe(["recipe=mine.yaml"]).fingerprint == sst.fingerprint
    write("name: mine\ndefaults:\n- all.yaml\n- override /optim: lars\n")
    with pytest.raises(
        UsageError, match=r"mine.yaml, line 4: defaults chooses .*; write the field"
    ):
        load_recipe(["recipe=mine.yaml"])


def test_a_recipe_builds_on_a_shipped_one_without_its_target() -> None:
    write("# @package _global_\n" + MINE)
    recipe, base = load_recipe(["recipe=mine.yaml", "epochs=90"]), compose_recipe("recipe=bs256")
    assert (recipe.name, recipe.workers, recipe.target) == ("mine", 16, None)
    assert base.target is not None
    assert recipe.fingerprint == compose_recipe("recipe=bs256", "workers=16").fingerprint
    write(MINE + "target: {top1_error: 24}\n")
    stated = load_recipe(["recipe=mine.yaml", "seed=3"]).target
    assert stated is not None
    assert load_recipe(["recipe=mine.yaml", "seed=3", "workers=8"]).target is None


@pytest.mark.parametrize(
    ("top", "overrides", "runs"),
    [
        ("top1_error: 24, std: 0.3", [], None),
        ("std: 0.3", [], None),
        ("top1_error: 24, std: 0.3, runs: 3", [], 3),
        ("top1_error: 24, std: 0.3, runs: 3", ["target.std=0.2"], None),
        ("top1_error: 24, std: 0.3", ["target.std=0.2", "target.runs=4"], 4),
        ("source: mine", [], 5),
    ],
)
def test_a_target_has_no_number_of_runs_of_another_one(
    top: str, overrides: list[str], runs: int | None
) -> None:
    """The five runs of the paper's value say nothing about another value that is stated."""
    write(MINE + f"target: {{{top}}}\n")
    target = load_recipe(["recipe=mine.yaml", *overrides]).target
    assert target is not None
    assert target.runs == runs
    write(f"defaults: [./mine.yaml]\nname: top\ntarget: {{{top}}}\n", "top.yaml")
    target = load_recipe(["recipe=top.yaml", *overrides]).target
    assert target is not None
    assert target.runs == runs


def test_a_recipe_builds_on_a_file_beside_it_and_changes_groups() -> None:
    write("defaults: [digits]\nname: base\ndry_run: false\nworkers: 8\n", "a b/base.yaml")
    write(
        "defaults:\n  - ./base.yaml\n  - override /optim: lars\n  - _self_\nname: top\n"
        "optim: {trust: 0.01}\nlog_steps: ${epochs}\n",
        "a b/top.yaml",
    )
    recipe = load_recipe(["recipe='a b/top.yaml'"])
    assert (recipe.name, recipe.workers, recipe.log_steps) == ("top", 8, 30)
    assert (recipe.optim.name, recipe.optim.trust) == ("lars", 0.01)


def test_a_file_is_read_anew(tmp_path: Path) -> None:
    for workers in (16, 32):
        write(MINE.replace("16", str(workers)))
        assert load_recipe([f"recipe={tmp_path}/mine.yaml", "epochs=30", "schedule.milestones=[9]"])
        assert load_recipe([f"recipe={tmp_path}/mine.yaml"]).workers == workers


def test_a_folder_of_recipes_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shipped name keeps its meaning, and a file that is wrong is in no other's way."""
    write(f"# Twice the workers.\n{MINE}", "all/mine.yaml")
    write("defaults: [mine]\nname: second\n", "all/sub/second.yaml")
    write("# Of another ending.\ndefaults: [mine]\nname: other\n", "all/other.yml")
    write("name: digits\nworkers: 3\n", "all/digits.yaml")
    write("name: [", "all/wrong.yaml")
    write("title: x\nspace: {}\n", "all/search.yaml")
    monkeypatch.setenv("LSGD_RECIPES", "")  # restored after the option has set it
    recipe = recipe_parser.parse_recipe(
        ["recipe=mine", "--recipe-dir", "all"], program="lsgd.train", about=""
    )
    assert (recipe.name, recipe.workers) == ("mine", 16)
    assert load_recipe(["recipe=sub/second.yaml"]).workers == 16
    assert load_recipe(["recipe=digits"]) == compose_recipe("recipe=digits")
    lines = recipe_parser.recipe_list("").splitlines()
    assert f"{'mine':<27} Twice the workers. [all/mine.yaml]" in lines
    assert any(line.startswith("skipped: all/wrong.yaml, line ") for line in lines)
    assert "skipped: all/digits.yaml has the name of a shipped recipe" in "\n".join(lines)
    assert not any(line.startswith("search ") for line in lines)
    assert load_recipe(["recipe=other"]).workers == 16
    assert f"{'other':<27} Of another ending. [all/other.yml]" in lines
    assert "recipe=mine" in overrides("recipe=mi")
    assert "recipe=other" in overrides("recipe=oth")
    with pytest.raises(UsageError, match="mien does not exist; did you mean mine"):
        load_recipe(["recipe=mien"])
    monkeypatch.setenv("LSGD_RECIPES", "none")
    assert overrides("recipe=mi") == []
    with pytest.raises(UsageError, match="LSGD_RECIPES is none, which is not a folder; write"):
        load_recipe(["recipe=mine"])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("defaults: [bs256]\nworkers: 3\n", "mine.yaml has no name, .*; write .* name: mine"),
        ("", "mine.yaml is not a mapping .*; begin with"),
        ("- a\n", "mine.yaml is not a mapping"),
        ("name: mine\nworkers: [\n", "mine.yaml, line 3: it is not YAML .*; fix it"),
        ("name: a\n---\nname: b\n", "mine.yaml, line 2: it is not YAML"),
        ("name: mine\nname: b\n", "line 2: name is there twice, first in line 1; write it once"),
        ("defaults: [mine.yaml]\nname: a\n", "line 1: defaults has mine.yaml, which leads back"),
        ("name: a\ndefaults:\n- bs25\n", "line 3: .*bs25 does not exist; did you mean bs256"),
        ("name: a\ndefaults:\n- no.yaml\n", "line 3: .*no.yaml does not exist; write the path"),
        ("name: a\ndefaults: bs256\n", "line 2: defaults is not a list; write defaults: .bs256."),
        ("name: a\ndefaults:\n- data: digits\n", "line 3: defaults takes .*; write - override"),
        ("name: a\ndefaults:\n- override /../x: b\n", "line 3: defaults takes .*; write"),
        ("name: a\ndefaults:\n- override /data: di\n", "line 3: data: di does not exist; did you"),
        ("name: a\ndefaults:\n- ../../a/bs256\n", "line 3: .*bs256 does not exist"),
        (MINE + "wrkers: 3\n", "line 4: there is no key 'wrkers'; did you mean workers"),
        (MINE + "batch_size: 8\n", "line 4: batch_size is workers x worker_batch"),
        (MINE + "optim:\n  momentun: 3\n", "line 5: there is no key 'optim.momentun'; did you"),
        (MINE + "optim: {momentum: 3}\n", "mine.yaml, line 4: optim.momentum=3"),
        (MINE + "epochs: many\n", "mine.yaml, line 4: epochs=many is not a whole number"),
        (MINE + "data: {root: '${oc.env:HOME}'}\n", "line 4: data.root=.* write the value"),
        (MINE + "run_dir: a${name}\n", "line 4: run_dir=a\\${name} is not a reference to another"),
        (MINE + "data: {skip: ['${oc.env:A}']}\n", "line 4: data.skip=.* write the value"),
        (MINE + "optim: ${data}\n", "line 4: optim=.* write the value"),
        (
            MINE + "seed: ${epochs}\nepochs: ${seed}\n",
            "mine.yaml, line 4: seed refers to itself; write",
        ),
        (MINE + "run_dir: ${run_dir}\n", "line 4: run_dir=.* write the value"),
        (MINE + "data: {skip_list: a}\n", "line 4: data.skip_list is another file, .*; list"),
        (MINE + "optim.momentum: 0.5\n", "line 4: .* inside of a group; write optim: {momentum: "),
        ("defaults: [bs256]\nname: ${model.name}\n", "line 2: name refers to another key; write"),
        (MINE + f"seed: 1{5000 * '0'}\n", "mine.yaml cannot be read"),
        (MINE + f"seed: 0{5000 * '7'}\n", "line 4: it has a number of 5001 characters: write"),
        (MINE + f"data: {{skip: [-0x{5000 * 'f'}]}}\n", "line 4: it has a number of 5003 char"),
        (MINE + "${x}: 3\n", "line 4: it has a key that is not a name"),
        (MINE + "optim: *a\n", "line 4: it has the alias .a: write the value itself"),
        (
            MINE + "optim: !!python/object:os.system {}\n",
            "line 4: it has a value of type .*os.system; write a plain",
        ),
        (MINE + "schedule: &a {gamma: 0.1}\n", "line 4: it has the anchor &a: leave it out"),
        (MINE + "optim: {momentum: !!float 0.8}\n", "line 4: it has the tag !!float: leave it out"),
        (MINE + "epochs: 1:30\n", "line 4: epochs=1:30 is a number to the base 60 .*to the base"),
        (MINE + "epochs: 010\n", "line 4: epochs=010 is a number to the base 60 or 8"),
        (MINE + "epochs: -01_0\n", "line 4: epochs=-01_0 is a number to the base 60 or 8"),
        (MINE + f"seed: {21 * '['}{21 * ']'}\n", "line 4: it has more than 20 levels or 51000"),
        (MINE + "schedule: {milestones: [1:30]}\n", "line 4: schedule.milestones=1:30 is a num"),
        (MINE + "lr: 0.1\n", "line 4: lr is not set itself: .*write schedule.reference_lr="),
        (MINE + "optim: {lr: 0.1}\n", "line 4: optim.lr is not set itself"),
        ("defaults: [bs256]\nname: a/b\n", "mine.yaml, line 2: name=a/b does not make a folder"),
        (
            "defaults: [_self_, bs256]\nname: mine\n",
            "line 1: defaults has bs256 after _self_, .* values of this file; leave _self_ out",
        ),
        ("name: mine\nworkers: 4\n", "mine.yaml has neither defaults nor data; build .*bs256"),
    ],
)
def test_a_wrong_file_is_refused_by_file_and_line(text: str, sentence: str) -> None:
    write(text)
    with pytest.raises(UsageError, match=sentence) as refused:
        load_recipe(["recipe=./mine.yaml"])
    assert "\n" not in str(refused.value)


def test_numbers_with_zeros_before_are_read_if_their_base_does_not_matter() -> None:
    write(MINE + "seed: 007\nepochs: 30\nschedule: {milestones: [05, 10, 0_2_0]}\n")
    with pytest.raises(UsageError, match="milestones=0_2_0 is a number to the base 60 or 8"):
        load_recipe(["recipe=./mine.yaml"])
    write(MINE + "seed: 007\nepochs: 30\nschedule: {milestones: [05, 10, 20]}\n")
    recipe = load_recipe(["recipe=./mine.yaml"])
    assert (recipe.seed, recipe.schedule.milestones) == (7, [5, 10, 20])


def test_a_cycle_is_refused_by_its_files() -> None:
    write("defaults: [b.yaml]\nname: a\n", "a.yaml")
    write("name: b\ndefaults: [./a.yaml]\n", "b.yaml")
    with pytest.raises(UsageError, match=r"b.yaml, line 2: .*\(a.yaml -> b.yaml -> a.yaml\)"):
        load_recipe(["recipe=a.yaml"])


def test_a_file_is_read_a_bounded_number_of_times() -> None:
    write("defaults: [bs256]\nname: f0\n", "f0.yaml")
    for number in (1, 2, 3):
        six = ", ".join([f"f{number - 1}.yaml"] * 6)
        write(f"defaults: [{six}]\nname: f{number}\n", f"f{number}.yaml")
    with pytest.raises(UsageError, match=r"f3.yaml builds on 100 files or more; name each once"):
        load_recipe(["recipe=f3.yaml"])


@pytest.mark.parametrize("name", ["2026_11_27", "no", "1e3"])
def test_a_name_is_a_text_as_it_is_written(name: str) -> None:
    write(f"defaults: [bs256]\nname: {name}\n")
    assert load_recipe(["recipe=mine.yaml"]).name == name


@pytest.mark.parametrize("text", ["2026_11", "0123", "12:30", "1e3", "yes", "0x1F", "+1"])
def test_texts_are_read_as_they_are_written(text: str) -> None:
    """Those of groups and of lists too; YAML reads each of these as a number or a truth."""
    write(
        f"defaults: [bs256]\nname: mine\nrun_dir: {text}\ndata:\n  root: {text}\n"
        f"  skip: [{text}]\nmodel: {{frozen: [{text}, conv1]}}\ntrackers: [{text}]\n"
    )
    own = read_own_file(Path("mine.yaml"))
    read = own.with_texts(yaml.safe_load(own.text), Recipe)
    assert (read["name"], read["run_dir"], read["trackers"]) == ("mine", text, [text])
    assert read["data"] == {"root": text, "skip": [text]}
    assert read["model"] == {"frozen": [text, "conv1"]}
    write(f"defaults: [bs256]\nname: mine\nrun_dir: {text}\ndata: {{root: {text}}}\n")
    recipe = load_recipe(["recipe=mine.yaml"])
    assert (recipe.run_dir, recipe.data.root) == (text, text)
    of_line = load_recipe(["recipe=bs256", f"run_dir={text}", f"data.root={text}"])
    assert (recipe.run_dir, recipe.data.root) == (of_line.run_dir, of_line.data.root)


def test_nothing_and_references_are_no_texts() -> None:
    write("defaults: [bs256]\nname: mine\nrun_dir: ~\ndata:\n  root: ${name}\n  index: null\n")
    recipe = load_recipe(["recipe=mine.yaml"])
    assert (recipe.run_dir, recipe.data.root, recipe.data.index) == (None, "mine", None)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (f"recipe={300 * 'a'}", "does not exist"),
        (f"recipe={300 * 'a'}.yaml", "does not exist; write the path of an existing file"),
        ("recipe=no.yaml", "^recipe=no.yaml does not exist; write the path of an existing file"),
        ("recipe=bs256.yaml", "lsgd's own is recipe=bs256"),
        (
            "recipe=./a.YAML",
            r"a\.YAML has an ending in capital letters; rename the file to a\.yaml",
        ),
        ("recipe=mine", "write recipe=./mine.yaml"),
        ("mine.yaml", "'mine.yaml' is not of the form key=value; write recipe=mine.yaml"),
        ("recipe=folder.yaml", "folder.yaml cannot be read"),
        ("recipe=latin.yaml", "latin.yaml, line 2: it is not UTF-8; save"),
        ("recipe=mine.yaml optim=mine", "optim=mine does not exist; write one of"),
        ("recipe=mine.yaml optim=mine.yaml", "optim=mine.yaml does not exist; write one of"),
        ("recipe=mine.yaml recipe=digits", "are 2 recipes; write one"),
        ("recipe=mine.yaml wrkers=3", "^there is no key 'wrkers'; did you mean workers"),
        ("recipe=mine.yaml workers=-1", "^workers=-1"),
    ],
)
def test_a_wrong_path_is_refused(words: str, sentence: str) -> None:
    write(MINE)
    Path("folder.yaml").mkdir()
    Path("latin.yaml").write_bytes("name: a\n# \xe4\n".encode("latin-1"))
    with pytest.raises(UsageError, match=sentence):
        load_recipe(words.split())


def test_a_byte_order_mark_is_no_mistake() -> None:
    write("\ufeff" + MINE)
    assert load_recipe(["recipe=mine.yaml"]).workers == 16
