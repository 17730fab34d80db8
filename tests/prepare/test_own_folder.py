"""Any folder of images: looked through, indexed, trained on by its index's numbers, resumed."""

import io
import os
import re
import shlex
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.folders import LOADERS, write_folder_shards
from PIL import Image

from lsgd import config, evaluate, train
from lsgd.errors import UsageError
from lsgd.inputs import index, indexed_class_names
from lsgd.inputs.index import open_indexes
from lsgd.prepare import folder, suggestion
from lsgd.prepare.__main__ import main as prepare
from lsgd.prepare.indexing import index_folder
from lsgd.prepare.suggestion import overrides_for_size
from lsgd.recipe import Recipe
from lsgd.recipe.image_folder import read_skip_list
from lsgd.run.read import read_run
from lsgd.vision import datasets
from lsgd.workloads.images import ImageClassification

# In the order of ImageFolder, which is that of their characters.
CLASSES = ["10", "9", "Zebra", "cat"]
TRAIN, VAL = 6, 2
TOO_FEW = "workers=1 worker_batch=24"
SMALLEST = "model=resnet20 data.image_size=32"
"""The network for images that are no larger, whatever the time of a step."""


def add_image(file: Path, seed: int = 0) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (30, 26, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """6 images of each class to train and 2 to evaluate, JPEGs and PNGs, not indexed."""
    root = tmp_path / "own"
    for split, each in (("train", TRAIN), ("val", VAL)):
        for name in CLASSES:
            (root / split / name).mkdir(parents=True)
            for i in range(each):
                add_image(root / split / name / f"{i}.{'png' if i % 2 else 'JPG'}", seed=i)
    return root


def words(root: Path, *more: str) -> list[str]:
    """A run of 4 steps on images of 16 pixels."""
    return [
        "+recipe=bs256", "data=folder", f"data.root={root}", "data.image_size=16", "workers=2",
        "worker_batch=6", "epochs=2", "schedule.milestones=[1]", "model=small_resnet",
        "inputs=torchvision", "inputs.decoders=0", "device=cpu", "val_batch=8", "log_steps=1",
        f"run_dir={root.parent / 'run'}", *more,
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("real_steps")
def test_three_commands_from_a_folder_to_an_error(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare(["folder", str(root)]) == 0
    counts, note, ready = capsys.readouterr().out.splitlines()
    assert counts == "4 classes, 24 images in train and 8 in val, indexed"
    assert re.fullmatch(
        r"resnet20 at 32 pixels, 90 epochs of 1 step: about [\w .]+ on \d+ cores?, by a timed step",
        note,
    )
    words_of_run = f"recipe=bs256 data=folder data.root={root} {TOO_FEW} {SMALLEST}"
    assert ready == f"ready: python -m lsgd.train {words_of_run}"
    assert train.main(words(root)) == 0
    run = read_run(root.parent / "run")
    assert (run.state, run.recipe.data.classes) == ("finished", 4)
    assert "top-5" not in capsys.readouterr().out  # of four classes, always 0
    assert run.epochs[2]["val_top5_error"] == 0
    command = [str(run.path / "checkpoint.pt"), "inputs=torchvision", "inputs.decoders=0"]
    assert evaluate.main(command) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"8 images: top-1 error {run.epochs[2]['val_top1_error']:.2f} %, loss ")


@pytest.mark.slow
def test_further_evaluation_sets(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A copy of val has its metrics; a set may lack a class, and the fingerprint stays.

    Catches a set that is evaluated on the images of val, and classes that are numbered anew.
    """
    shutil.copytree(root / "val", root / "copy")
    shutil.copytree(root / "val", root / "v2", ignore=shutil.ignore_patterns("10", "0.JPG"))
    assert prepare(["folder", str(root), "--sets", "copy,v2"]) == 0
    told = capsys.readouterr().out
    assert "24 images in train and 8 in val, 8 in copy, 3 in v2, indexed" in told
    assert "'evaluation.sets=[val,copy,v2]'" in told
    assert (
        train.main(
            words(root, "evaluation.sets=[val,copy,v2]", "epochs=1", "schedule.milestones=[]")
        )
        == 0
    )
    run = read_run(root.parent / "run")
    epoch = run.epochs[1]
    assert epoch["copy_loss"] == epoch["val_loss"]
    assert epoch["copy_top1_error"] == epoch["val_top1_error"]
    assert run.sets == ["val", "copy", "v2"]
    assert "makes 1 evaluation of 3 sets; the 8 images of val add" in capsys.readouterr().out
    plain = ["inputs=torchvision", "inputs.decoders=0"]
    found = evaluate.evaluate_path(run.path, [*plain, "evaluation.sets=[val,v2]"])
    assert found["v2"].counts["images"] == 3
    assert found["v2"].metrics["loss"] == epoch["v2_loss"]

    alone = evaluate.evaluate_path(run.path, plain)
    assert [*alone] == ["val", "copy", "v2"]
    recipe = config.load_recipe(words(root))
    longer = config.load_recipe(words(root, "evaluation.sets=[val,v2]"))
    assert longer.fingerprint == recipe.fingerprint
    workload = ImageClassification(longer, torch.device("cpu"))
    for split, count in (("val", 8), ("v2", 3)):
        for processes in (1, 2, 3):
            seen = [
                each.examples
                for rank in range(processes)
                for each in workload.evaluation_micro_batches(split, rank, processes)
            ]
            assert np.concatenate(seen).tolist() == list(range(count))


@pytest.mark.parametrize(
    ("sets", "reason"),
    [
        ("[v2,val]", r"does not begin with val, .* write evaluation\.sets=\[val,v2\]"),
        ("[val,a_b]", "'a_b', which is not a name of an evaluation set; write"),
        ("[val,v2,v2]", "has v2 twice"),
        ("[val,v3]", r"v3\.index\.npy is missing; .* --sets v3"),
    ],
)
def test_wrong_evaluation_sets_are_refused(sets: str, reason: str, root: Path) -> None:
    index_folder(root)
    with pytest.raises(UsageError, match=reason):
        train.train(config.load_recipe(words(root, f"evaluation.sets={sets}")))
    assert not (root.parent / "run").exists()


def test_a_set_of_other_classes_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(root / "val/10", root / "v2/11")
    assert prepare(["folder", str(root), "--sets=v2,none"]) == 2
    said = capsys.readouterr().err
    assert "1 class is only in" in said
    assert "none/CLASS, which --sets names, has no image" in said


@pytest.mark.parametrize("change", ["new image", "damaged index", "new class", "missing index"])
def test_the_command_for_a_stale_set_ends_the_error(
    change: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It indexes this set and the others, and allows the class that val already lacked."""
    monkeypatch.setattr(folder, "print_suggestion", lambda *_: None)  # which composes a recipe
    for name in ("copy", "v2"):
        shutil.copytree(root / "val", root / name)
    shutil.rmtree(root / "val/Zebra")
    assert prepare(["folder", str(root), "--sets", "copy,v2", "--allow-empty-classes"]) == 0
    time.sleep(0.05)  # files of the very moment of the index count as changed
    match change:
        case "new image":
            add_image(root / "v2/cat/new.png")
        case "damaged index":
            (root / "v2.index.npy").write_bytes(b"none")
        case "missing index":
            (root / "copy.index.npy").unlink()
        case "new class":  # after which all others have another number
            shutil.copytree(root / "train/10", root / "train/0")
            assert prepare(["folder", str(root), "--allow-empty-classes"]) == 0
    data = config.load_recipe(words(root)).data

    def open_all() -> int:
        open_indexes(data, root)
        return sum(len(index.open_evaluation_index(data, root, name)) for name in ("copy", "v2"))

    with pytest.raises(UsageError) as refused:
        open_all()
    command = re.search(r"run python -m lsgd\.prepare (.*)", str(refused.value))
    assert command
    assert "--sets copy,v2" in command[1]
    assert prepare(shlex.split(command[1])) == 0
    assert open_all() == 16 + (change == "new image")


def test_further_sets_of_shards_are_refused(root: Path) -> None:
    index_folder(root)
    write_folder_shards(root, root.parent / "shards")
    data = config.load_recipe(words(root)).data
    with pytest.raises(UsageError, match=r"of tar shards only train and val are indexed"):
        index.open_evaluation_index(data, root.parent / "shards", "v2")


@pytest.mark.parametrize("command", [["folder"], ["imagenet", "--check", "--processes", "1"]])
@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_what_is_no_file_is_named_and_not_waited_for(
    kind: str, command: list[str], root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = root / "train/cat/a.jpg"
    os.mkfifo(image) if kind == "pipe" else image.symlink_to("nowhere")
    assert prepare([*command, str(root)]) == 2
    what = "pipe, " if kind == "pipe" else "link to a file that does not exist; repair or remove it"
    assert f"{image} is a {what}" in capsys.readouterr().err
    image.unlink()
    assert prepare([*command, str(root)]) == 0


def test_a_folder_that_is_no_utf_8_is_no_word_of_a_run(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known before its images are looked through; from within it has another name."""
    other = root.rename(root.parent / os.fsdecode(b"caf\xe9"))
    for name in ("folder", "imagenet"):
        assert prepare([name, str(other)]) == 2
        assert r"caf\xe9 is not UTF-8, which recipes require; rename" in capsys.readouterr().err
    monkeypatch.chdir(other)
    assert prepare(["folder", "."]) == 0
    assert config.load_recipe(words(Path())).data.train_examples == 24


def test_names_that_are_no_utf_8(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or that a terminal would obey: they are named in a way that can be printed, and indexed, also
    where a terminal takes UTF-8 alone."""
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, "utf-8", errors="strict"))
    odd = os.fsdecode(b"caf\xe9\x1b[2J")
    for split in ("train", "val"):
        (root / split / odd).mkdir()
        add_image(root / split / odd / os.fsdecode(b"\xe9.png"))
        (root / split / odd / os.fsdecode(b"\xe9.txt")).touch()
    assert prepare(["folder", str(root)]) == 0
    sys.stdout.flush()
    said = printed.getvalue().decode()
    assert r"caf\xe9\x1b[2J/\xe9.txt" in said
    assert "\x1b" not in said
    paths = np.load(root / "train.index.npy")["path"].tolist()
    assert os.fsencode(f"train/{odd}/") + b"\xe9.png" in paths


@pytest.mark.slow
def test_what_is_printed_to_go_on_with_is_accepted(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for images, shown in ((TRAIN, TOO_FEW), (12, "workers=1")):
        for name in CLASSES:
            for i in range(images):
                file = root / "train" / name / f"{i}.png"
                if not file.with_suffix(".JPG").exists():
                    shutil.copy(root / "train/cat/1.png", file) if not file.exists() else None
        assert prepare(["folder", str(root)]) == 0
        *_, ready = capsys.readouterr().out.split("data=folder ")
        assert ready == f"data.root={root} {shown} {SMALLEST}\n"
        recipe = config.load_recipe(["+recipe=bs256", "data=folder", *ready.split()])
        assert recipe.steps_per_epoch == 1


@pytest.mark.parametrize(
    ("seconds", "on", "chosen", "said"),
    [
        (0.001, "cpu", "", "resnet50 at 224 pixels, 90 epochs of 1 step: about 3 s on "),
        (
            0.7, "cpu", "model=torchvision/resnet18 data.image_size=128",
            "resnet18 at 128 pixels, 90 epochs of 1 step: about 9 min on ",
        ),
        (9.0, "cpu", SMALLEST, "resnet20 at 32 pixels, 90 epochs of 1 step: about 30 min on "),
        (9.0, "cuda", "model=torchvision/resnet18", "resnet18 at 224 pixels, 90 epochs of 1 step"),
    ],
)  # fmt: skip
def test_a_suggested_run_takes_ten_minutes_unless_none_is_faster(
    seconds: float, on: str, chosen: str, said: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the time of an image, which grows with the network; here the images are large.

    The 8 images of val add a ninth to the time of the 24 of train.
    """
    index_folder(root)
    given = suggestion.NETWORKS

    def timed(recipe: Recipe) -> suggestion.TimedStep:
        place = given.index((recipe.model.name, recipe.data.image_size))
        return suggestion.TimedStep(0.0, seconds / 12 * 2**place)

    monkeypatch.setattr(suggestion, "timed_step", timed)
    monkeypatch.setattr(suggestion, "_usual_side", lambda _: 500)
    monkeypatch.setattr(suggestion, "pick_device", lambda _: torch.device(on))
    monkeypatch.setattr(suggestion, "device_name", lambda _: "a GPU")
    command, note = suggestion.suggested_command([f"data.root={root}"], 24)
    assert note.startswith(said)
    words = f"recipe=bs256 data=folder data.root={root} {TOO_FEW} {chosen}"
    assert command == f"python -m lsgd.train {words}".rstrip()


@pytest.mark.parametrize(
    ("images", "steps"), [(31, 1), (32, 1), (480, 15), (640, 10), (2559, 11), (2560, 10)]
)
def test_an_epoch_has_steps_to_learn_in(images: int, steps: int) -> None:
    """Where one has 2 images of each minibatch of 256, 90 epochs are 90 updates."""
    counts = ["data.classes=4", "data.val_examples=8", f"data.train_examples={images}"]
    recipe = config.load_recipe(
        ["+recipe=bs256", "data=folder", *counts, *overrides_for_size(images)]
    )
    assert recipe.steps_per_epoch == steps


@pytest.mark.parametrize("loader", LOADERS)
def test_classes_are_those_of_image_folder(root: Path, loader: str) -> None:
    assert prepare(["folder", str(root)]) == 0
    recipe = config.load_recipe([*words(root), f"inputs={loader}"])
    theirs = datasets.ImageFolder(str(root / "train"))
    ours, _ = open_indexes(recipe.data, root)
    ids = np.arange(len(ours))
    assert ours.classes() == theirs.classes == CLASSES
    paths = [root / os.fsdecode(path) for path in ours.paths(ids)]
    assert list(zip(map(str, paths), ours.labels(ids).tolist(), strict=True)) == theirs.samples


def test_a_run_keeps_its_own_numbers(root: Path) -> None:
    """What it was saved with is read without the folder, and numbers in words go before it."""
    assert prepare(["folder", str(root)]) == 0
    recipe = config.load_recipe(words(root))
    (root.parent / "config.yaml").write_text(config.to_yaml(recipe))
    shutil.rmtree(root)
    assert config.read_recipe(root.parent / "config.yaml") == recipe
    numbers = ["data.classes=4", "data.train_examples=24", "data.val_examples=8"]
    assert config.load_recipe([*words(root), *numbers]) == recipe


@pytest.mark.slow
def test_images_left_out_are_taken_off(root: Path) -> None:
    assert prepare(["folder", str(root)]) == 0
    skip = root.parent / "skip.txt"
    skip.write_text("train/cat/0.JPG\nval/9/1.png\n")
    data = config.load_recipe([*words(root), f"data.skip_list={skip}"]).data
    assert (data.train_examples, data.val_examples) == (23, 7)
    train_index, val_index = open_indexes(data, root)
    assert (len(train_index), len(val_index)) == (23, 7)
    (root / "train/cat/0.JPG").unlink()
    assert prepare(["folder", str(root)]) == 0
    assert config.load_recipe([*words(root), f"data.skip_list={skip}"]).data == data
    assert [len(each) for each in open_indexes(data, root)] == [23, 7]


def test_a_skip_list_of_a_further_set_leaves_the_numbers(root: Path) -> None:
    shutil.copytree(root / "val", root / "v2")
    assert prepare(["folder", str(root), "--sets", "v2"]) == 0
    skip = root.parent / "skip.txt"
    skip.write_text("v2/9/1.png\n")
    data = config.load_recipe([*words(root), f"data.skip_list={skip}"]).data
    assert (data.train_examples, data.val_examples) == (24, 8)
    assert [len(each) for each in open_indexes(data, root)] == [24, 8]
    assert len(index.open_evaluation_index(data, root, "v2")) == 7
    skip.write_text("vla/9/1.png\n")
    data = config.load_recipe([*words(root), f"data.skip_list={skip}"]).data
    with pytest.raises(UsageError, match=r"names vla/9/1\.png, and .* correct the skip list"):
        open_indexes(data, root)


@pytest.mark.slow
def test_a_check_of_a_folder_lists_what_to_skip(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command that it prints trains without these images, which are an error otherwise."""
    shutil.copytree(root / "val", root / "v2")
    for name in ("train/cat/0.JPG", "v2/9/1.png"):
        (root / name).write_bytes(b"none")
    assert prepare(["folder", str(root), "--sets=v2"]) == 2
    assert "2 files are unusable" in (error := capsys.readouterr().err)
    assert "which --check lists in a file to be skipped" in error
    assert prepare(["folder", str(root), "--sets=v2", "--check"]) == 0
    assert read_skip_list(root / "skip.txt") == {"train/cat/0.JPG", "v2/9/1.png"}
    ready = capsys.readouterr().out.splitlines()[-1]
    overrides = shlex.split(ready)[4:]
    assert f"data.skip_list={root}/skip.txt" in overrides
    assert "worker_batch=23" in overrides
    assert config.load_recipe(overrides).data.train_examples == 23
    (root / "train/cat/0.JPG").unlink()
    assert prepare(["folder", str(root), "--sets=v2", "--check"]) == 0
    assert read_skip_list(root / "skip.txt") == {"v2/9/1.png"}
    assert "images that do not exist; removed: train/cat/0.JPG" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["folder", "imagenet"])
def test_a_class_whose_images_are_all_skipped_is_refused(
    command: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one without images is; a run never evaluated it, or never trained on it."""
    for file in (root / "val/9").iterdir():
        file.write_bytes(b"none")
    assert prepare([command, str(root), "--check"]) == 2
    assert f"1 class has no usable image in {root}/val (9)" in capsys.readouterr().err
    if command == "imagenet":
        return
    assert prepare(["folder", str(root), "--check", "--allow-empty-classes"]) == 0
    output = capsys.readouterr().out
    assert f"warning: 1 class has no usable image in {root}/val (9), and no evaluat" in output
    assert "24 images in train and 6 in val, indexed (without the 2 to skip)" in output
    for file in (root / "val").rglob("*.*"):
        file.write_bytes(b"none")
    assert prepare(["folder", str(root), "--check", "--allow-empty-classes"]) == 2
    assert f"no class has a usable image in {root}/val" in capsys.readouterr().err
    for file in (root / "train/9").iterdir():
        file.write_bytes(b"none")
    assert prepare(["folder", str(root), "--check", "--allow-empty-classes"]) == 2
    assert f"1 class has no usable image in {root}/train (9)" in capsys.readouterr().err


def test_a_set_whose_images_are_all_skipped_is_refused(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "v2/9").mkdir(parents=True)
    (root / "v2/9/0.png").write_bytes(b"none")
    assert prepare(["folder", str(root), "--sets=v2", "--check"]) == 2
    assert f"{root}/v2 has no usable image" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([], "needs the folder of images; write data.root=FOLDER"),
        (
            ["data.root=nowhere"],
            "data.root=nowhere is not a folder; .* lsgd.prepare folder nowhere",
        ),
        (["data.root=."], "train.index.npy, which is missing; run python -m lsgd.prepare folder ."),
        (["data.root=damaged"], "train.index.npy is not an index .*; run .* folder"),
        (["data.root=.", "data.index=there"], "missing; run .* folder . --index there"),
    ],
)
def test_a_folder_without_an_index_is_refused(
    given: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("damaged").mkdir()
    Path("damaged/train.index.npy").write_bytes(b"no array")
    with pytest.raises(UsageError, match=sentence):
        config.load_recipe(["+recipe=bs256", "data=folder", *given])


def test_all_that_a_run_would_stumble_over_is_said_at_once(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "val" / "dog").mkdir()
    add_image(root / "val" / "dog" / "1.jpg")
    (root / "train" / "emu").mkdir()
    (root / "train" / "emu" / "notes.txt").write_text("no image here")
    assert prepare(["folder", str(root)]) == 2
    told = capsys.readouterr()
    assert told.out.startswith(
        "warning: 1 entry is skipped, as not an image by name or not directly in"
    )
    assert told.out.endswith("(train/emu/notes.txt)\n")
    for fault in (
        f"1 class is only in {root / 'val'} (dog)", f"1 class is only in {root / 'train'} (emu)",
        f"1 class has no image in {root / 'train'} (emu)",
    ):  # fmt: skip
        assert fault in told.err
    assert told.err.count("\n") == 1
    assert not (root / "train.index.npy").exists()


def test_names_that_are_equal_to_the_eye_are_said_to_differ(tmp_path: Path) -> None:
    """A Mac writes a letter and its accent as two characters, and a copy keeps them."""
    for split, name in (("train", "\u00e9"), ("val", "e\u0301")):
        (tmp_path / split / name).mkdir(parents=True)
        (tmp_path / split / "b").mkdir()
        for each in (name, "b"):
            (tmp_path / split / each / "0.jpg").touch()
    first, second = folder.check_names(tmp_path).errors
    assert "(\u00e9) and not in val (\u00e9 has there the same letters in other Unicode" in first
    assert "(e\u0301) and not in train (e\u0301 has there the same letters" in second


@pytest.mark.slow
def test_classes_without_an_image_to_evaluate_are_allowed_by_an_option(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They keep their numbers and names, whether their folder is missing in val or empty."""
    shutil.rmtree(root / "val" / "10")
    for file in (root / "val" / "Zebra").iterdir():
        file.unlink()
    assert prepare(["folder", str(root)]) == 2
    said = capsys.readouterr().err
    assert f"only in {root / 'train'} (10) and not in val, which --allow-empty-classes al" in said
    assert f"no image in {root / 'val'} (Zebra), which --allow-empty-classes allows" in said
    (root / "train" / "emu").mkdir()
    assert prepare(["folder", str(root), "--allow-empty-classes"]) == 2
    assert "no image in" in capsys.readouterr().err
    (root / "train" / "emu").rmdir()
    kept = root.parent / "kept"
    (root / "val").rename(kept)
    (root / "val" / "cat").mkdir(parents=True)
    assert prepare(["folder", str(root), "--allow-empty-classes"]) == 2
    assert f"no class has an image in {root / 'val'}; fix" in capsys.readouterr().err
    shutil.rmtree(root / "val")
    kept.rename(root / "val")
    assert prepare(["folder", str(root), "--allow-empty-classes"]) == 0
    assert f"warning: 2 classes have no image in {root / 'val'} (10, Z" in capsys.readouterr().out
    recipe = config.load_recipe(words(root))
    assert (recipe.data.classes, recipe.data.val_examples) == (4, 2 * VAL)
    assert indexed_class_names(recipe) == CLASSES
    train_index, val_index = open_indexes(recipe.data, root)
    assert train_index.class_names() == dict(enumerate(CLASSES))
    assert val_index.class_names() == {1: "9", 3: "cat"}
    assert train.main(words(root)) == 0
    assert read_run(root.parent / "run").state == "finished"
    (root / "val" / "10").mkdir()
    add_image(root / "val" / "10" / "new.png")
    with pytest.raises(UsageError, match=r"val.index.npy is older .*val/10 is new"):
        open_indexes(recipe.data, root)


def test_files_that_are_no_images_are_named_with_the_reason(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "train" / "cat" / "text.jpg").write_text("no image")
    whole = (root / "train" / "cat" / "0.JPG").read_bytes()
    (root / "val" / "cat" / "half.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "val" / "9" / "empty.png").touch()
    assert prepare(["folder", str(root)]) == 2
    told = capsys.readouterr().err
    assert "3 files are unusable (train/cat/text.jpg, not an image" in told
    assert "val/cat/half.jpg, truncated" in told
    assert "val/9/empty.png, empty" in told
    for name in ("train/cat/text.jpg", "val/cat/half.jpg", "val/9/empty.png"):
        (root / name).unlink()
    assert prepare(["folder", str(root)]) == 0


def test_what_may_be_meant_is_a_warning(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_image(root / "train" / "loose.png")
    (root / "train" / "cat" / "more").mkdir()
    (root / "train" / "cat" / ".hidden").touch()
    for file in sorted((root / "train" / "Zebra").iterdir())[1:]:
        file.unlink()
    assert prepare(["folder", str(root)]) == 0
    left, single, *_ = capsys.readouterr().out.splitlines()
    assert left.endswith("(train/cat/more, train/loose.png)")
    assert single == "warning: 1 class has a single image to train on (Zebra)"


def test_a_class_that_is_a_link_to_nowhere_is_refused(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Left out, it would give the others lower numbers."""
    for split in ("train", "val"):
        (root / split / "10").rename(root.parent / f"{split}-10")
        (root / split / "10").symlink_to(root.parent / f"{split}-10")
    assert prepare(["folder", str(root)]) == 0
    for split in ("train", "val"):
        (root.parent / f"{split}-10").rename(root.parent / f"{split}-11")
    assert prepare(["folder", str(root)]) == 2
    said = capsys.readouterr().err
    assert "2 links lead nowhere (train/10, val/10), and may be of a class; fix" in said


HIDDEN = [".ipynb_checkpoints", "@eaDir", "lost+found", "__MACOSX", "Thumbs.db", ".git"]


@pytest.mark.slow
def test_hidden_folders_are_no_classes(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor are hidden files images: all labels stay, and what is left out is named."""
    assert prepare(["folder", str(root)]) == 0
    plain = [np.load(root / f"{split}.index.npy") for split in ("train", "val")]
    for name in HIDDEN:
        (root / "train" / name).mkdir()
        add_image(root / "train" / name / "1.jpg")
    (root / "val/cat/._1.png").write_bytes(b"\0\5\x16\7")
    capsys.readouterr()
    assert prepare(["folder", str(root)]) == 0
    warning, *_ = capsys.readouterr().out.splitlines()
    assert warning.startswith("warning: 7 entries are skipped, as hidden or system files")
    assert "train/.ipynb_checkpoints, " in warning
    for split, rows in zip(("train", "val"), plain, strict=True):
        assert np.load(root / f"{split}.index.npy").tolist() == rows.tolist()
    assert len(open_indexes(config.load_recipe(words(root)).data, root)[0]) == 24


def test_an_index_that_has_such_classes_stays_that_of_its_runs(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for split in ("train", "val"):
        (root / split / ".cache").mkdir()
        add_image(root / split / ".cache/._1.jpg")
    with monkeypatch.context() as before:
        before.setattr(index, "is_leftover", lambda name: False)
        index_folder(root)
    data = config.load_recipe(words(root)).data
    assert data.classes == 5
    assert open_indexes(data, root)[0].classes() == [".cache", *CLASSES]
    (root / "train/.cache/._1.jpg").unlink()
    (root / "train/.cache").rmdir()
    with pytest.raises(UsageError, match=r"\.cache is missing"):
        open_indexes(data, root)


def test_what_dali_was_not_asked_about_is_a_warning(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lsgd.prepare.folder.is_dali_installed", lambda: False)
    add_image(root / "train" / "cat" / "old.TIFF")
    assert prepare(["folder", str(root)]) == 0
    warning, *_ = capsys.readouterr().out.splitlines()
    assert warning.startswith("warning: 1 image is neither JPEG nor PNG (train/cat/old.TIFF), and")
    assert "and then the same command with --check" in warning
    # With DALI that command asks it, although the image is in the index already.
    for module in ("folder", "images"):
        monkeypatch.setattr(f"lsgd.prepare.{module}.is_dali_installed", lambda: True)
    monkeypatch.setattr("lsgd.prepare.dali_check.dali_difference", lambda *_: "DALI fails")
    assert prepare(["folder", str(root), "--check", "--processes", "1"]) == 0
    assert read_skip_list(root / "skip.txt") == {"train/cat/old.TIFF"}


def test_a_folder_without_train_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(root / "train")
    assert prepare(["folder", str(root)]) == 2
    assert f"{root}/train/CLASS does not exist; give the folder" in capsys.readouterr().err
    assert not list(root.glob("*.npy"))
