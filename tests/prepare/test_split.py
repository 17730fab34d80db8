"""The division of a folder of images into train and val, by content, as links."""

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lsgd import config
from lsgd.prepare.__main__ import main as prepare
from lsgd.prepare.split import unsplit_classes, validation_digests

CLASSES = ["cat", "dog"]
EACH = 40


def add_image(file: Path, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """40 different images in each of two class folders, without train and val."""
    for label, name in enumerate(CLASSES):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(EACH):
            add_image(tmp_path / "photos" / name / f"{number}.png", 100 * label + number)
    return tmp_path / "photos"


def sides(folder: Path) -> dict[str, str]:
    """Return the side of each image, by class and name."""
    return {
        f"{path.parent.name}/{path.name}": path.parts[-3]
        for split in ("train", "val")
        for path in (folder / split).glob("*/*")
    }


@pytest.mark.parametrize("where", ["", "train"])
def test_it_is_offered_and_can_be_trained_on(
    where: str, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Flat, or with train alone; the images stay where they are."""
    if where:
        photos.rename(photos.with_name("train"))
        photos.mkdir()
        photos.with_name("train").rename(photos / where)
    assert prepare(["folder", str(photos)]) == 2
    said = capsys.readouterr().err
    assert f"{photos / where} has images of classes; write --split 0.2 to evaluate on" in said
    (photos / where / "notes").mkdir()
    before = sorted(photos.rglob("*"))
    assert prepare(["folder", str(photos), "--split", "0.2"]) == 0
    assert sorted(photos.rglob("*")) == before
    divided = Path(f"{photos}-split")
    found = sides(divided)
    assert sorted(found) == sorted(
        f"{name}/{number}.png" for name in CLASSES for number in range(EACH)
    )
    val = list(found.values()).count("val")
    assert 6 <= val <= 28  # 16 expected of 80, with a standard deviation of 3.6
    warning, first, second, note, ready = capsys.readouterr().out.splitlines()
    assert warning == "warning: 1 folder has no image and is skipped (notes)"
    assert first == (
        f"80 images divided by their content into {80 - val} in {divided}/train and {val} in "
        f"{divided}/val, as links"
    )
    assert second == f"2 classes, {80 - val} images in train and {val} in val, indexed"
    assert note.endswith("by a timed step")
    recipe = config.load_recipe(ready.split()[4:])
    assert recipe.data.val_examples == val
    moved = photos.parent / "elsewhere"
    moved.mkdir()
    shutil.move(photos, moved)
    shutil.move(divided, moved)
    assert all(path.is_file() for path in (moved / divided.name).glob("*/*/*"))


def test_content_alone_decides(photos: Path, tmp_path: Path) -> None:
    """Not names, order or other images: more of them move none, and a rerun follows the folder."""
    out = tmp_path / "out"
    arguments = ["folder", str(photos), "--split", "0.3", "--out", str(out)]
    assert prepare(arguments) == 0
    before = sides(out)
    for name, side in before.items():
        content = (photos / name).read_bytes()
        below = int(hashlib.sha256(content).hexdigest(), 16) < 0.3 * 2**256
        assert side == ("val" if below else "train")
    for number in range(EACH, EACH + 9):
        add_image(photos / "cat" / f"{number}.png", 1000 + number)
    (photos / "dog/3.png").rename(photos / "dog/renamed.png")
    (photos / "dog/4.png").unlink()
    assert prepare(arguments) == 0
    after = sides(out)
    assert len(after) == 2 * EACH + 9 - 1
    assert after.pop("dog/renamed.png") == before.pop("dog/3.png")
    del before["dog/4.png"]
    assert {name: after[name] for name in before} == before


def test_copies_are_on_one_side(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(EACH):
        shutil.copy(photos / "cat" / f"{number}.png", photos / "cat" / f"copy-{number}.png")
    assert prepare(["folder", str(photos), "--split", "0.5"]) == 0
    assert ", as links; 40 have the content of another\n" in capsys.readouterr().out
    found = sides(Path(f"{photos}-split"))
    assert all(found[f"cat/{n}.png"] == found[f"cat/copy-{n}.png"] for n in range(EACH))


@pytest.mark.slow
def test_a_class_may_be_called_train(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Among vehicles, a flat folder has images of trains in it; images alone are no classes."""
    (photos / "cat").rename(photos / "train")
    (photos / "dog").rename(photos / "train/dog")
    assert unsplit_classes(photos) == photos / "train"
    (photos / "train/dog").rename(photos / "dog")
    (photos / "dog").rename(hidden := photos.with_name("dog"))
    assert unsplit_classes(photos) is None
    hidden.rename(photos / "val")
    assert unsplit_classes(photos) is None
    (photos / "val").rename(photos / "dog")
    assert prepare(["folder", str(photos)]) == 2
    said = capsys.readouterr().err
    assert f"{photos}/train/CLASS does not exist, and {photos} has images of classes" in said
    assert prepare(["folder", str(photos), "--split", "0.2"]) == 0
    found = sides(Path(f"{photos}-split"))
    assert {name.partition("/")[0] for name in found} == {"train", "dog"}
    assert len(found) == 2 * EACH


@pytest.mark.parametrize("names", [("train", "val"), ("train", "test"), ("train",), ("valid",)])
def test_parts_without_class_folders_are_no_classes(
    names: tuple[str, ...], photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They were offered as the two classes "train" and "val"."""
    for name, part in zip(CLASSES, names, strict=False):
        (photos / name).rename(photos / part)
    for name in CLASSES[len(names) :]:
        shutil.rmtree(photos / name)
    for arguments in ([], ["--split", "0.2"]):
        assert prepare(["folder", str(photos), *arguments]) == 2
        said = capsys.readouterr().err
        assert f"{photos / names[0]} has images that are in no class folder; put those of" in said


def test_a_part_that_may_be_val_is_named(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part in ("train", "valid"):
        for name in CLASSES:
            shutil.copytree(photos / name, photos / "all" / part / name)
    assert prepare(["folder", str(photos / "all")]) == 2
    said = capsys.readouterr().err
    assert f"rename {photos}/all/valid to val to evaluate on its images, or write --split" in said


def test_what_a_division_leaves_out_is_named(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder of links, which is checked after it, has none of it."""
    (photos / "cat/more").mkdir()
    (photos / "cat/a.gif").touch()
    (photos / "cat/._1.png").touch()
    assert prepare(["folder", str(photos), "--split", "0.2"]) == 0
    hidden, others, *_ = capsys.readouterr().out.splitlines()
    assert hidden.endswith("as hidden or system files (cat/._1.png)")
    assert others.startswith("warning: 2 entries are skipped, as not an image by name")
    assert others.endswith("(cat/a.gif, cat/more)")
    (photos / "eel").symlink_to(photos / "gone")
    assert prepare(["folder", str(photos), "--split", "0.2"]) == 2
    assert "1 link leads nowhere (eel), and may be of a class" in capsys.readouterr().err


def test_both_sides_have_every_class() -> None:
    low, middle, high = bytes(32), b"\x80" + bytes(31), b"\xff" * 32
    assert validation_digests([high, middle], 0.1) == {middle}
    assert validation_digests([low, low, middle], 0.9) == {low}
    assert validation_digests([low, middle, high], 0.6) == {low, middle}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--split", "1"], "1 is not between 0 and 1, such as 0.2"),
        (["--split", "nan"], "nan is not between 0 and 1, such as 0.2"),
        (["--out", "a"], "--out a is for the links of --split; leave it out"),
        (["--split", "0.2", "--out", "{photos}/dog/a"], "give a folder outside it"),
        (["--split", "0.2", "--out", "{photos}/.."], "give a folder outside it"),
        (["--split", "0.2", "--out", "{photos}/../notes"], "notes/a is not of an earlier --split"),
        (
            ["--split", "0.2", "--out", "{photos}/../notes/a"],
            "notes/a cannot be written; write --out",
        ),
        (
            ["--split", "0.2", "--out", "{photos}/../notes/a/b"],
            "notes/a/b cannot be written; write --out",
        ),
    ],
)
def test_a_wrong_command_is_one_sentence(
    arguments: list[str], why: str, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos.parent / "notes").mkdir()
    (photos.parent / "notes/a").touch()
    given = [each.format(photos=photos) for each in arguments]
    assert prepare(["folder", str(photos), *given]) == 2
    assert why in capsys.readouterr().err


def test_a_division_changes_nothing_that_it_did_not_write(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    divided = Path(f"{photos}-split")
    assert prepare(["folder", str(photos), "--split", "0.2"]) == 0
    assert prepare(["folder", str(divided), "--split", "0.2"]) == 2
    assert "leave out --split if it has train/CLASS/ and val/CLASS/" in capsys.readouterr().err
    add_image(divided / "train/cat/own.png", 1)
    before = sides(divided)
    assert prepare(["folder", str(photos), "--split", "0.5"]) == 2
    assert "train/cat/own.png is not of an earlier --split" in capsys.readouterr().err
    assert sides(divided) == before


@pytest.mark.slow
def test_a_division_that_was_checked_is_made_again(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = sorted(photos.iterdir())[0]
    (folder / "broken.png").write_bytes(b"none")
    for _ in range(2):
        assert prepare(["folder", str(photos), "--split", "0.3", "--check"]) == 0
    assert "data.skip_list=" in capsys.readouterr().out


@pytest.mark.slow
def test_a_division_beside_evaluation_sets_is_made_again(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own command was refused, since an evaluation set has an index there."""
    divided, command = Path(f"{photos}-split"), ["folder", str(photos), "--split", "0.2"]
    assert prepare(command) == 0
    name = sorted(photos.iterdir())[0].name
    (divided / "v2" / name).mkdir(parents=True)
    add_image(divided / "v2" / name / "1.png", 1)
    for _ in range(2):
        assert prepare([*command, "--sets", "v2"]) == 0
    assert (divided / "v2" / name / "1.png").is_file()
    assert (divided / "v2.index.npy").is_file()
    capsys.readouterr()
    assert prepare(command) == 2
    assert "v2 is not of an earlier --split" in capsys.readouterr().err


def test_links_of_the_user_stay(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Images that are links themselves, also into the folder where the division would be."""
    linked = photos.with_name("linked")
    for image in photos.glob("*/*"):
        link = linked / "train" / image.relative_to(photos)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(image)
    before = {path: path.readlink() for path in linked.glob("*/*/*")}
    assert prepare(["folder", str(linked), "--split", "0.2", "--out", str(linked)]) == 2
    assert "contains" in capsys.readouterr().err
    assert prepare(["folder", str(photos), "--split", "0.2", "--out", str(linked)]) == 2
    assert "linked/train is not of an earlier --split" in capsys.readouterr().err
    assert {path: path.readlink() for path in linked.glob("*/*/*")} == before
    assert prepare(["folder", str(linked), "--split", "0.2"]) == 0
    assert all(path.is_file() for path in Path(f"{linked}-split").glob("*/*/*"))


def test_a_class_of_one_image_is_refused(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (photos / "eel").mkdir()
    add_image(photos / "eel/1.png", 7)
    shutil.copy(photos / "eel/1.png", photos / "eel/2.png")
    assert prepare(["folder", str(photos), "--split", "0.2"]) == 2
    assert f"{photos / 'eel'} has fewer than two different images" in capsys.readouterr().err
    assert not Path(f"{photos}-split").exists()
