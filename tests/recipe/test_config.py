"""Recipes are composed and typed; whatever is wrong with a command line is said in one sentence."""

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from helpers.composed import compose_recipe

from lsgd import config, definitions, paths, recipe_parser
from lsgd.errors import UsageError
from lsgd.recipe import Recipe, Schedule, checks, own_files
from lsgd.typed import make_typed

NAMED_BY = {
    "comm": "library", "data": "name", "inputs": "loader", "model": "name", "optim": "name",
    "strategy": "name", "bn_statistics": "name", "averaging": "name",
}  # fmt: skip
"""The field that an option of the group is named by; other groups have none."""
TEXTS = {
    "ptb": "ptb_small", "lstm": "ptb_small", "conll2003": "conll_bilstm", "bilstm": "conll_bilstm",
    "bilstm_crf": "conll_bilstm", "sst": "sst_treelstm", "treelstm": "sst_treelstm",
    "childsum": "sst_treelstm",
}  # fmt: skip
"""The options that are not of images, each with a recipe of its workload."""
NUMBERS = ["data.classes=3", "data.train_examples=5000", "data.val_examples=9"]
"""What data=folder has of the index of a folder, unless words say it."""
POINTS = {"diloco": "local"}
"""The options that are another one with other numbers."""
OPTIONS = [
    (group, path.stem)
    for group in (*NAMED_BY, "schedule", "cluster")
    for path in (paths.conf_dir() / group).glob("*.yaml")
    if path.stem not in ("library", "own")  # chosen by the name of a part of a library, or own
]


# --- What composes ---------------------------------------------------------------------------


PRESETS = [path.stem for path in (paths.conf_dir() / "hardware").glob("*.yaml")]
PRESETS.remove("none")  # which leaves everything as it is


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_chooses_speed_alone(name: str) -> None:
    """It moves no trajectory, says all that any of them says, so that a run can change over, and
    goes before what a recipe has found fast elsewhere, behind what is given word by word."""
    plain = config.load_recipe(["+recipe=fashion_bs64"])
    chosen = config.load_recipe([f"hardware={name}", "+recipe=fashion_bs64", "inputs=memory"])
    assert chosen.fingerprint == plain.fingerprint
    assert chosen.inputs.loader == "memory"
    file = yaml.safe_load((paths.conf_dir() / "hardware" / f"{name}.yaml").read_text())
    top = {"channels_last", "compile", "workers_per_pass", "deterministic", "numa"}
    assert set(file) - {"inputs", "threads"} == top
    assert {key: getattr(chosen, key) for key in top} == {key: file[key] for key in top}
    assert chosen.workers_per_pass != plain.workers_per_pass == 4
    own = config.load_recipe(["workers_per_pass=2", f"hardware={name}", "+recipe=fashion_bs64"])
    assert own.workers_per_pass == 2


def test_a_preset_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="hardware=h100 does not exist; did you mean v100 or h200"):
        config.load_recipe(["+recipe=digits", "hardware=h100"])


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_composes(group: str, option: str) -> None:
    """Also instead of the one that the recipe chooses itself."""
    words = [f"{group}={option}"]
    if option in TEXTS:
        words = [f"+recipe={TEXTS[option]}", *words]
    elif group == "data":
        words += ["+recipe=bs8k", "model=small_resnet", "workers=4"]
        words += NUMBERS if option == "folder" else []
    elif option == "lenet5":
        words += ["+recipe=bs8k", "data=fashion_mnist", "workers=4"]
    elif option == "hogwild":
        words += ["+recipe=bs8k", "optim.momentum=0", "optim.nesterov=false"]
    else:
        words += ["+recipe=bs8k"]
        words += ["schedule.points=[[0,0.1]]"] if option == "points" else []
    chosen = getattr(config.load_recipe(words), group)
    if field := NAMED_BY.get(group):
        named = option.replace("_", "-") if group == "data" else POINTS.get(option, option)
        assert getattr(chosen, field) == named
    if group == "data":
        assert chosen.train_examples > chosen.val_examples > 0


def test_a_network_of_a_library() -> None:
    """By its name there, with words for its maker, in any order; a run's own file has them."""
    words = ["+recipe=bs8k", "model.options.drop_path_rate=0.1", "model=timm/convnext_atto"]
    for order in (words, words[::-1]):
        recipe = config.load_recipe(order)
        assert recipe.model.name == "timm/convnext_atto"
        assert recipe.model.options == {"drop_path_rate": 0.1}
        assert config.from_saved(yaml.safe_load(config.to_yaml(recipe))) == recipe
    others = [config.load_recipe(words[:1]), config.load_recipe([words[0], words[2]])]
    assert len({each.fingerprint for each in (recipe, *others)}) == 3
    rehearsed = config.load_recipe([*words, "rehearse=true"])
    assert rehearsed.model == recipe.model
    assert rehearsed.data.image_size == recipe.data.image_size


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model=timm"], "model=timm does not exist; did you mean timm/NAME"),
        (["model.name=keras/resnet"], "model.name=keras/resnet is unknown; .* torchvision/NAME"),
        (["model.options.width=2"], "and this is model=resnet50; leave it out"),
        (["model=timm/x", "model.options.width=[1]"], "neither a number nor a text"),
    ],
)
def test_words_of_a_library_that_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        config.load_recipe(["+recipe=bs8k", *words])


def test_words_change_the_recipe() -> None:
    recipe = config.load_recipe(
        ["+recipe=bs8k_no_warmup", "workers=128", "schedule.milestones=[10,20.5]", "data.root=/a b",
         "comm=torch", "run_dir='runs/lr=1'", "+deviations.crop=smaller"]
    )  # fmt: skip
    assert (recipe.name, recipe.workers, recipe.batch_size) == ("bs8k_no_warmup", 128, 4096)
    assert recipe.schedule == Schedule(warmup="none", milestones=[10.0, 20.5])
    assert (recipe.data.root, recipe.comm.library) == ("/a b", "torch")
    assert recipe.run_dir == "runs/lr=1"
    assert recipe.deviations["crop"] == "smaller"


@pytest.mark.parametrize(
    ("words", "network"),
    [
        ("model=resnet20 model=small_resnet model=resnet20", "resnet20"),
        ("model=timm/resnet18 model=resnet20 model=timm/resnet18", "timm/resnet18"),
        ("model=resnet20 model=timm/resnet18 model=resnet20", "resnet20"),
    ],
)
def test_the_last_choice_of_a_group_counts_also_if_it_was_made_before(
    words: str, network: str
) -> None:
    assert config.load_recipe(["recipe=digits", *words.split()]).model.name == network


@pytest.mark.parametrize("rehearse", ["false", "true"])
def test_a_recipe_survives_being_written(rehearse: str) -> None:
    """As config.yaml in a run folder and as a dict in a checkpoint, fingerprint and all."""
    recipe = config.load_recipe(["+recipe=bs8k", f"rehearse={rehearse}", "data.root=/data"])
    text = config.to_yaml(recipe)
    for copy in (
        config.recipe_from_mapping(yaml.safe_load(text)),
        config.recipe_from_mapping(asdict(recipe)),
        config.recipe_from_mapping(asdict(recipe), "val_batch=10", "val_batch=250"),
    ):
        assert copy == recipe
        assert copy.fingerprint == recipe.fingerprint
    assert f"# fingerprint: {recipe.fingerprint}\n" in text
    assert f"# steps_per_epoch: {recipe.steps_per_epoch}\n" in text
    other = config.recipe_from_mapping(asdict(recipe), "data.root=/b")
    assert (other.data.root, other.fingerprint) == ("/b", recipe.fingerprint)


def test_a_skip_list_is_recorded_by_what_it_names(tmp_path: Path) -> None:
    """Its images are part of the trajectory and taken off the numbers; the file is read once."""
    file = tmp_path / "skip.txt"
    file.write_text("\ufefftrain/n1/b.JPEG  # truncated\n\nval/n1/c.JPEG\n# an editor's mark\n")
    plain = config.load_recipe(["+recipe=bs256"])
    recipe = config.load_recipe(["+recipe=bs256", f"data.skip_list={file}"])
    assert recipe.data.skip == ["train/n1/b.JPEG", "val/n1/c.JPEG"]
    assert (recipe.data.train_examples, recipe.data.val_examples) == (1281166, 49999)
    assert recipe.fingerprint != plain.fingerprint
    file.unlink()
    again = config.recipe_from_mapping(yaml.safe_load(config.to_yaml(recipe)))
    assert again == recipe
    assert "images skipped (data.skip): 2" in recipe.summary()
    empty = tmp_path / "empty.txt"
    empty.write_text("# none\n")
    nothing = config.load_recipe(["+recipe=bs256", f"data.skip_list={empty}"])
    assert nothing.fingerprint == plain.fingerprint


def test_a_skip_list_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "skip.txt"
    with pytest.raises(UsageError, match=rf"data.skip_list={file} cannot be read .*--check"):
        config.load_recipe(["+recipe=bs256", f"data.skip_list={file}"])
    file.write_text("/data/train/n1/b.JPEG\n")
    with pytest.raises(UsageError, match=r"has '/data/train/n1/b.JPEG'; name each image once"):
        config.load_recipe(["+recipe=bs256", f"data.skip_list={file}"])
    with pytest.raises(UsageError, match=r"has 'train/n1/b.JPEG'; name each image once"):
        config.load_recipe(["+recipe=bs256", "data.skip=[train/n1/b.JPEG,train/n1/b.JPEG]"])


@pytest.mark.parametrize("key", ["root", "index", "skip_list"])
def test_an_empty_path_of_a_dataset_is_refused(key: str) -> None:
    """As that of a variable without a value; a run that an earlier version saved so is read."""
    with pytest.raises(UsageError, match=rf"^data\.{key}= is empty; write data\.{key}="):
        config.load_recipe(["recipe=bs256", f"data.{key}="])
    with pytest.raises(UsageError, match="data=folder needs the folder"):
        config.load_recipe(["recipe=bs256", "data=folder", "data.root="])
    saved = config.load_recipe(["recipe=bs256"])
    values = asdict(saved)
    if key != "skip_list":
        values["data"][key] = ""
    assert config.from_saved(values) == saved


def test_a_skip_list_is_no_longer_than_a_saved_recipe_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = asdict(load("+recipe=bs256", "data.skip=[]"))
    assert config._check_saved_values(values) + checks.MOST_SKIPPED < own_files.MAX_VALUES
    monkeypatch.setattr(checks, "MOST_SKIPPED", 2)
    with pytest.raises(
        UsageError, match=r"has 3 images.* lists 2 at most; make a folder with link"
    ):
        load("+recipe=bs256", "data.skip=[train/a/1,train/a/2,train/a/3]")


def load(*words: str) -> Recipe:
    return recipe_parser.parse_recipe(words, program="lsgd.train", about="Train a recipe.")


def test_cfg_prints_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        load("+recipe=bs256", "--cfg", "seed=7")
    assert ended.value.code == 0
    recipe = config.load_recipe(["+recipe=bs256", "seed=7"], is_tuned=True)
    assert config.recipe_from_mapping(yaml.safe_load(capsys.readouterr().out)) == recipe


def test_no_micro_batch_is_timed_that_later_epochs_outgrow() -> None:
    """Phases have larger images, or more of them, than the first steps, which alone are timed."""
    for words in (["recipe=diu_v100x8"], ["recipe=bs256", "image_sizes.points=[[0,160],[9,224]]"]):
        recipe = config.load_recipe(words, is_tuned=True)
        assert (recipe.workers_per_pass, recipe.threads) == (1, "auto")
    assert config.load_recipe(["recipe=bs256"], is_tuned=True).workers_per_pass == "auto"


@pytest.mark.parametrize(
    "words",
    [
        ["recipe=cifar10_short_sizes"],
        ["recipe=cifar10_short_all"],
        ["recipe=diu_v100x8"],
        ["recipe=fashion_bs256", "batch_schedule=[[3,4,32]]"],
    ],
)
def test_a_run_that_chooses_its_settings_can_be_read(words: list[str], tmp_path: Path) -> None:
    """The recipe is saved before its open settings are timed, and a report reads it so."""
    recipe = config.load_recipe(words, is_tuned=True)
    (tmp_path / "config.yaml").write_text(config.to_yaml(recipe))
    assert config.read_recipe(tmp_path / "config.yaml") == recipe


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """Return the lines that a command prints before it exits with 0."""
    with pytest.raises(SystemExit) as ended:
        load(*words)
    assert ended.value.code == 0
    return capsys.readouterr().out.splitlines()


def test_recipes_are_listed_with_what_they_claim(capsys: pytest.CaptureFixture[str]) -> None:
    names = config.sorted_recipe_names()
    lines = listed(capsys, "--recipes")
    assert [line.split()[0] for line in lines] == names
    for name, line in zip(names, lines, strict=True):
        claim = (paths.recipes_dir() / "recipe" / f"{name}.yaml").read_text().splitlines()[1]
        assert line.endswith(f" {claim[2:]}")
    assert names.index("bs512") < names.index("bs1k") < names.index("bs16k")
    some = listed(capsys, "--recipes", "lars")
    assert some == [line for line in lines if "lars" in line.lower()] != []


def test_fields_are_listed_with_default_limits_and_meaning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = listed(capsys, "--fields")
    assert {line.partition("=")[0].split()[0] for line in lines if line[0] != " "} == {
        *config.override_keys()
    }
    assert max(map(len, lines)) <= 150
    some = listed(capsys, "--fields", "optim.clip")
    assert re.fullmatch(r"optim=adagrad\|adam\|.*\|sgd   \[conf/optim/\]", some[0])
    assert some[1] == "optim.clip_norm=null   [above 0]"
    assert some[2].startswith("    ")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--recipes zzz", "no recipe contains 'zzz'; leave it out"),
        ("--fields optin", "did you mean optim"),
    ],
)
def test_a_list_that_would_be_empty_is_refused(words: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        load(*words.split())


@pytest.mark.parametrize(
    ("words", "standard"),
    [
        ("recipe=digits", "+recipe=digits"),
        ("recipe=digits dry_run=true", "+recipe=digits rehearse=true"),
        (
            "recipe=digits +optim=lars optim.trust=0.01",
            "+recipe=digits optim=lars optim.trust=0.01",
        ),
        ("recipe=digits +seed=3 +optim.beta2=0.999", "+recipe=digits seed=3"),
        ("recipe=digits deviations.crop=why", "+recipe=digits +deviations.crop=why"),
        ("recipe=digits target.top1_error=9", "+recipe=digits ++target.top1_error=9"),
        ("recipe=digits ~seed ~optim.momentum ~strategy.order", "+recipe=digits"),
    ],
)
def test_other_names_make_the_same_recipe(words: str, standard: str) -> None:
    assert config.load_recipe(words.split()) == config.load_recipe(standard.split())


@pytest.mark.parametrize(
    "words",
    [
        "+recipe=bs8k seed=3",
        "+recipe=digits strategy=backup strategy.backup=2 workers=6 optim=adam run_dir=1e3",
        "recipe=bs256 inputs=synthetic comm=torch dry_run=true run_dir=/tmp/a-1/b",
        "+recipe=bs8k model=timm/convnext_atto epochs=30 schedule.milestones=[10]",
    ],
)
def test_the_cache_of_the_tests_composes_the_same_recipe(words: str) -> None:
    """With the target of a published run, which another one has no more."""
    assert compose_recipe(*words.split()) == config.load_recipe(words.split())


OWN = "defaults: [digits, _self_]\nname: own\n"


@pytest.fixture(scope="module")
def copied_recipes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(paths.recipes_dir(), tmp_path_factory.mktemp("own") / "recipes")


@pytest.fixture
def own_recipes(copied_recipes: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of recipes beside which one has put files of one's own, which do not stay there."""
    monkeypatch.setattr(paths, "recipes_dir", lambda: copied_recipes)
    before = {*copied_recipes.rglob("*")}
    yield copied_recipes
    for path in {*copied_recipes.rglob("*")} - before:
        path.rmdir() if path.is_dir() else path.unlink()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (OWN.encode(), "own.yaml does not begin with `# @package _global_`, .* as its first line"),
        (b"", "own.yaml does not begin with `# @package _global_`"),
        (
            b"\xef\xbb\xbf# @package _global_\r\n# x\r\n",
            "begins with a byte order mark, .* save it",
        ),
        (b"# @package _global_\n# \xe4\n", "own.yaml cannot be read .* fix it"),
        (b"# @package _global_\n# x\nname: [", "own.yaml, line 3: .* fix that file"),
        (b"# @package _global_\n# x\n- a", "recipe=own: .*ListConfig"),
    ],
)
def test_a_recipe_that_is_none_stops_no_other(
    content: bytes, sentence: str, own_recipes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own_recipes / "recipe/own.yaml").write_bytes(content)
    (own_recipes / "points/own.yaml").write_bytes(content)
    assert config.load_recipe(["+recipe=digits"]).name == "digits"
    with pytest.raises(UsageError, match=sentence):
        config.load_recipe(["+recipe=own"])
    said = "\n".join(listed(capsys, "--recipes"))
    assert "\ndigits " in said
    assert "own.yaml" in said or "\nown " in said
    names = ["mlperf05", "mlperf06", "mlperf_resnet"]
    assert definitions.load_all_points() == list(map(definitions.load_points, names))
    assert re.search("skipped: .*own", capsys.readouterr().err)


def test_a_recipe_that_has_been_changed_is_read_anew(own_recipes: Path) -> None:
    """Each version of a file is parsed once, and what is made of it leaves it as it is."""
    for seed in (1, 1, 20):
        text = f"# @package _global_\n{OWN}seed: {seed}\n"
        (own_recipes / "recipe/own.yaml").write_text(text)
        assert config.load_recipe(["+recipe=own", "epochs=50"]).seed == seed
        assert config.load_recipe(["+recipe=own"]).epochs == 30


def test_a_recipe_needs_no_comment(own_recipes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (own_recipes / "recipe/own.yaml").write_text(f"# @package _global_\n{OWN}")
    assert config.load_recipe(["+recipe=own"]).name == "own"
    assert any(line.startswith("own ") for line in listed(capsys, "--recipes"))


def test_what_editors_and_systems_leave_is_no_recipe(own_recipes: Path) -> None:
    before = config.sorted_recipe_names(), definitions.study_names(), definitions.search_names()
    for folder in ("recipe", "study", "search", "points"):
        for name in ("._digits", ".digits", "digits (copy)", "#digits#", "digits copy"):
            (own_recipes / folder / f"{name}.yaml").write_bytes(b"\0\5")
        (own_recipes / folder / ".#digits.yaml").symlink_to("me@here.4711")
        (own_recipes / folder / "folder.yaml").mkdir()
    assert (
        config.sorted_recipe_names(),
        definitions.study_names(),
        definitions.search_names(),
    ) == before
    assert len(definitions.load_all_points()) == 3
    with pytest.raises(UsageError, match="does not exist"):
        config.load_recipe(["+recipe=folder"])


# --- What does not ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "named", "remedy"),
    [
        ("", "no recipe", "recipe=digits"),
        ("+recipe=", "no recipe", "recipe=digits"),
        ("+recipe=bs8", "recipe=bs8 does not exist", "did you mean bs8k"),
        ("+recipe=xyzzy", "recipe=xyzzy does not exist", "--help"),
        ("+recipe=bs8k +recipe=digits", "recipe=bs8k and recipe=digits", "write one"),
        ("+recipe=bs8k,bs256", "'recipe=bs8k,bs256'", "write one"),
        ("bs8k", "'bs8k'", "write recipe=bs8k"),
        ("+recipe=bs8k foo", "'foo'", "epochs=30"),
        ("+recipe=bs8k =5", "'=5'", "epochs=30"),
        ("+recipe=bs8k epoch=3", "'epoch'", "did you mean epochs?"),
        ("+recipe=bs8k lr=0.1", "lr is not set itself", "schedule.reference_lr"),
        ("+recipe=bs8k schedule.warmup_epoch=3", "'schedule.warmup_epoch'", "warmup_epochs?"),
        ("+recipes=bs8k", "'recipes'", "did you mean recipe?"),
        ("+recipe=bs8k +deviations.crop=5", "deviations.crop=5 is not a reason", "as a text"),
        ("+recipe=bs8k deviations={crop:5}", "deviations.crop=5 is not a reason", "as a text"),
        ("+recipe=bs8k rehearse=2", "rehearse=2 is not true or false", "rehearse=true"),
        ("+recipe=bs64 target.top1=9", "'target.top1'", "did you mean target.top1_error"),
        ("study=digits", "study=digits is a study", "write lsgd study study=digits"),
        ("+recipe=bs8k ++search=lars", "search=lars is a search", "write lsgd search search=lars"),
        ("+recipe=bs8k ~workers", "workers has no value", "workers=…"),
        ("+recipe=bs8k optim=adamx", "optim=adamx", "did you mean adam"),
        ("+recipe=bs8k optim={a:1}", "'optim.a'", "did you mean optim or optim.name"),
        ("+recipe=bs8k hardware.a=1", "hardware is a choice", "write hardware=NAME for one of"),
        ("+recipe=bs8k model=[resnet50,resnet20]", "model=[resnet50,resnet20]", "resnet50"),
        ("+recipe=bs8k comm=", "'comm='", "comm=NAME"),
        ("+recipe=bs8k batch_size=4096", "workers x worker_batch = 256 x 32", "workers=128"),
        ("+recipe=bs8k batch_size=4100", "4100 is not a multiple of",
         "write workers=128, or for 4100 workers=164 worker_batch=25"),
        ("+recipe=bs8k epochs=3", "has 30, which is outside a run of 3 epochs; in proportion write",
         "epochs=3 schedule.milestones=[1,2] schedule.warmup_epochs=0.17"),
        ("+recipe=bs8k batch-size=64 rehearse=true", "256 x 32", "workers=2"),
        ("+recipe=bs8k bs=64", "'bs'", "write worker_batch=N and workers=K, whose product"),
        ("+recipe=bs8k momentum=0.8", "'momentum'", "write optim.momentum=…"),
        ("+recipe=bs8k optimizer=adam", "'optimizer'", "write optim=…"),
        ("foo.bar=1", "there is no key 'foo'", "see --help"),
        ("batch_size=4096", "batch_size is workers x worker_batch", "workers=…"),
        ("+recipe=bs8k optim.lr=0.1", "optim.lr is not set itself", "schedule.reference_batch"),
        ("+recipe=bs8k epochs=1.5", "epochs=1.5 is not a whole number", "epochs=30"),
        ("+recipe=bs8k workers=null", "workers=null is not a whole number", "workers=30"),
        ("+recipe=bs8k schedule.gamma=x", "schedule.gamma=x is not a number", "gamma=0.5"),
        ("+recipe=bs8k schedule.milestones=30", "=30 is not a list of numbers", "=[1,2,3]"),
        ("+recipe=bs8k data.mean={a:1}", "data.mean={a:1} is not a list of numbers", "=[1,2,3]"),
        ("+recipe=bs8k batch_schedule={a:1}", "is not a list of lists of whole", "[[6,8,64]]"),
        ("+recipe=bs8k data.augmentation=[crop", "=[crop is unknown", "parts of [shift,crop"),
        ("+recipe=bs8k schedule.milestones=30,60", "'schedule.milestones=30,60'", "in brackets"),
        ("+recipe=bs8k data.skip=[[a]]", "=[['a']] is not a list of texts", "=[a,b]"),
        ("+recipe=bs8k ~data", "data has no value", "data=…"),
        ("+recipe=bs8k schedule.milestones=[3", "'schedule.milestones=[3'", "close its brackets"),
        ("+recipe=bs8k target=5", "target=5 is not a group of keys", "target.top1_error=VALUE"),
        ("+recipe=bs8k batch_growth=${x}", "'x' not found", "write the value itself"),
        ("+recipe=bs8k data={root:[1]}", "data.root=[1] is not a text", "data.root=TEXT"),
        ("+recipe=bs8k data.skip=/a=b", "data.skip=/a=b is not a list", "'data.skip=[\"/a=b\"]'"),
        ("+recipe=bs8k optim.momentum=0.9=0.8", "=0.9=0.8 is not a number", "optim.momentum=0.5"),
        ("+recipe=bs8k epochs=٣١", "epochs=٣١ is not a whole number", "epochs=30"),
        ("+recipe=bs8k schedule.milestones=(10,20)", "=(10,20) is not a list", "=[1,2,3]"),
        ("+recipe=bs8k schedule.milestones=[10;20]", "=[10;20] is not a list", "=[1,2,3]"),
        ("+recipe=bs8k schedule.milestones=[10,20,]", "=[10,20,] is not a list", "=[1,2,3]"),
        ("+recipe=bs8k ~foo", "there is no key 'foo'", "see --help"),
        ("+recipe=bs8k ~optim.foo", "there is no key 'optim.foo'", "did you mean optim"),
        ("+recipe=bs8k ~deviations.momentum", "deviations.momentum is not set", "leave ~"),
        ("+recipe=bs8k ~run_dir=x", "'~run_dir=x' has a value", "write ~run_dir"),
        ("+recipe=bs8k ~optim=sgd", "optim has no value", "optim=…"),
        ("+recipe=bs8k ~recipe", "~recipe leaves no recipe", "write recipe=NAME"),
        ("+recipe=bs8k run_dir=a/${b}", "run_dir=a/${b} has ${ in it", "write the value itself"),
        ("+recipe=bs8k run_dir=???", "run_dir=??? has ??? in it", "write the value itself"),
        ("+recipe=bs8k epochs=${nope}", "'nope' not found", "write the value itself"),
        ("+recipe=bs8k target=${name}", "target=bs8k is not a group", "for example target."),
        ("+recipe=bs8k deviations=${name}", "deviations=bs8k is not a group", ".RULE=REASON"),
        ("+recipe=bs8k optim@x=sgd", "'optim@x'", "did you mean optim"),
        ("+recipe=bs8k seed=1,2", "'seed=1,2' has several values", "write one"),
        ("+recipe=bs8k optim.momentum=range(1,2)", "has several values", "[VALUE,VALUE]"),
        ("+recipe=bs8k seed=choice(1,2)", "'seed=choice(1,2)' has several", "start a run for each"),
        ("+recipe=bs8k threads=1.5", "threads=1.5 is not a whole number or auto", "threads=8"),
        ("+recipe=bs8k keep_checkpoints=2.5", "is not a whole number or verify", "checkpoints=8"),
        ("+recipe=bs8k schedule.milestones=null", "milestones=null is not a list", "=[1,2,3]"),
        ("+recipe=bs8k trackers=null", "trackers=null is not a list of texts", "trackers=[a,b]"),
        (f"+recipe=bs8k epochs={5000 * '1'}", "epochs has 5000 digits", "write a smaller one"),
        (f"+recipe=bs8k data.mean=[{5000 * '1'}]", "data.mean has 5000 digits", "write a smaller"),
        ("+recipe=bs8k hydra.run.dir=a", "'hydra.run.dir=a' has no effect", "run_dir=PATH"),
        ("+recipe=bs8k --epochs=3", "option --epochs does not exist", "write epochs=3"),
    ],
)  # fmt: skip
def test_refused_in_one_sentence(words: str, named: str, remedy: str) -> None:
    """It names what was written, and what to write instead."""
    with pytest.raises(UsageError) as caught:
        load(*words.split())
    sentence = str(caught.value)
    assert named in sentence
    assert remedy in sentence.partition(named)[2]
    assert "\n" not in sentence
    assert len(sentence) < 200


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_plus_signs_of_hydra_before_a_choice(plus: str) -> None:
    recipe = load(f"{plus}recipe=digits", f"{plus}optim=lars", f"{plus}hardware=cpu")
    assert recipe == load("recipe=digits", "optim=lars", "hardware=cpu")
    assert recipe.optim.name == "lars"


def test_quotes_around_a_value_that_may_be_a_word() -> None:
    """As those of a field with only numbers, or only true and false."""
    words = ["channels_last='true'", 'compile="auto"', "threads='2'", "keep_checkpoints='verify'"]
    recipe = load("recipe=digits", *words, "deterministic='false'", "evaluation.every='5 steps'")
    assert (recipe.channels_last, recipe.compile, recipe.threads) == (True, "auto", 2)
    assert (recipe.keep_checkpoints, recipe.deterministic) == ("verify", False)
    assert recipe.evaluation.every == "5 steps"


@pytest.mark.slow
def test_a_published_number_goes_with_the_run_that_was_published_alone() -> None:
    """Whatever the seed, and wherever it runs."""
    for words in (
        ["seed=3"],
        ["workers_per_pass=8", "comm=torch", "run_dir=a"],
        ["seed=1", "name=a"],
    ):
        assert load("+recipe=bs8k", *words).target == load("+recipe=bs8k").target is not None
    for words in (["epochs=91"], ["inputs=synthetic"], ["workers=128"], ["precision=bfloat16"]):
        assert load("+recipe=bs8k", *words).target is None
    own = load("+recipe=bs8k", "epochs=91", "target.top1_error=23.5").target
    assert own is not None
    assert (own.top1_error, own.runs) == (23.5, None), "the runs are those of the paper's number"


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("schedule=goyal", "is not a group of keys; write for example schedule.reference_lr=VALUE"),
        ("a={", "cannot be read; close its brackets"),
        ("=5", "there is no key ''; see --help"),
    ],
)
def test_a_word_for_a_saved_recipe_is_refused_as_well(word: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as caught:
        config.from_saved(asdict(load("+recipe=digits")), word)
    assert "Merge error" not in str(caught.value)


def test_a_word_may_name_the_choice_of_a_group_of_a_saved_recipe() -> None:
    saved = asdict(load("+recipe=digits"))
    assert config.from_saved(saved, "model=resnet20").model.name == "resnet20"
    assert config.from_saved(saved, "comm={timeout: 5}").comm.timeout == 5


@pytest.mark.parametrize("strategy", ["hogwild", "async"])
def test_a_saved_time_of_checkpoints_that_had_no_effect_is_dropped(strategy: str) -> None:
    """Earlier versions ignored it, where this one rejects it on a command line."""
    words = [f"strategy={strategy}", "optim.momentum=0", "optim.nesterov=false"]
    recipe = load("+recipe=digits", *words, *["strategy.order=live"] * (strategy == "async"))
    saved = asdict(recipe) | {"checkpoint_minutes": 5.0, "profile": True}
    assert config.from_saved(saved) == recipe
    with pytest.raises(UsageError, match=r"checkpoint_minutes=5\.0 would halt"):
        config.from_saved(saved, "checkpoint_minutes=5")
    with pytest.raises(UsageError, match=r"profile=true compares"):
        config.from_saved(saved, "profile=true")
    saved = asdict(load("+recipe=digits", "checkpoint_minutes=5", "profile=true"))
    assert config.from_saved(saved).checkpoint_minutes == 5
    assert config.from_saved(saved).profile


@pytest.mark.parametrize(
    ("group", "value"),
    [
        ("data", {"name": "${oc.env:HOME}"}),
        ("deviations", {"drops": "${schedule.milestones}"}),
        ("model", {"options": {"a": {"b": ["${oc.env:HOME}"]}}}),
        ("model", {"options": {"${oc.env:HOME}": 1}}),
        ("data", {"skip_list": "/etc/passwd"}),
        ("data", {"skip": ["a"] * 100_000}),
    ],
)
def test_a_saved_recipe_points_to_nothing(group: str, value: dict[str, object]) -> None:
    """Neither to variables, which may be secrets, nor to files; nor is it without end."""
    saved = asdict(load("+recipe=digits"))
    saved[group] |= value
    with pytest.raises(UsageError, match="a saved recipe") as caught:
        config.from_saved(saved)
    assert os.environ["HOME"] not in str(caught.value)


@pytest.mark.parametrize(
    "folder", ["runs/a", "123", "2026/11/27", "a b: " + "long " * 30, "${oc.env:HOME}", None]
)
def test_a_run_folder_is_written_as_the_text_that_it_is(folder: str | None) -> None:
    recipe = replace(config.load_recipe(["+recipe=digits"]), run_dir=folder)
    values = config._parse_yaml(config.to_yaml(recipe), "config.yaml")
    assert values["run_dir"] == folder
    assert make_typed(Recipe, values) == recipe


@pytest.mark.parametrize(("word", "value"), [("yes", True), ("1", True), ("off", False)])
def test_a_field_that_may_be_auto_takes_the_words_of_truth(word: str, value: bool) -> None:
    assert config.load_recipe(["recipe=digits", f"channels_last={word}"]).channels_last is value


def test_a_recipe_of_a_python_program_has_plain_values(tmp_path: Path) -> None:
    """A checkpoint with others is unreadable."""
    recipe = config.load_recipe(["+recipe=digits", f"run_dir={tmp_path}", "seed=3"])
    points = [*recipe.schedule.milestones]
    made = replace(
        recipe,
        run_dir=tmp_path,  # type: ignore[arg-type]
        seed=np.int64(3),
        schedule=replace(recipe.schedule, milestones=np.array(points), reference_lr=np.float64(1)),
    )
    plain = config.from_python(made)
    assert plain == replace(recipe, schedule=replace(recipe.schedule, reference_lr=1.0))
    kinds = [type(each) for each in (plain.run_dir, plain.seed, plain.schedule.reference_lr)]
    assert kinds == [str, int, float]
    for changes, sentence in (
        ({"seed": 2.5}, "seed=2.5 is not a whole number"),
        ({"epochs": 0}, "epochs=0 is not possible; write 1 or more"),
        ({"name": b"a"}, "name=b'a' cannot be saved in a recipe; write"),
        ({"model": replace(recipe.model, options={"a": {1}})}, r"model.options.a=\{1\} cannot be"),
    ):
        with pytest.raises(UsageError, match=sentence):
            config.from_python(replace(recipe, **changes))
