"""Every validation image comes to its own class, or none is moved."""

import io
import os
import sys
import tarfile
from pathlib import Path

import pytest
from helpers.ilsvrc import WNIDS, devkit, write_tar

from lsgd.errors import UsageError
from lsgd.installation import install_command
from lsgd.prepare.__main__ import main
from lsgd.prepare.validation import ValClasses, check_sorted, imagenet_classes, sort_val

LABELS = [WNIDS[i] for i in (3, 990, 3, 17)]
NAMES = [f"ILSVRC2012_val_{i:08d}" for i in range(1, 5)]


def all_numbers(first: int) -> str:
    """A list with numbers for classes, as long as each needs to occur."""
    return "".join(f"a{i}.JPEG {i}\n" for i in range(first, first + 1000))


def written(tmp_path: Path, kind: str) -> Path:
    """The four images and their classes, as a source has them."""
    file = tmp_path / "classes"
    pairs = list(zip(NAMES, LABELS, strict=True))
    if kind == "devkit":
        return devkit(file, LABELS)
    if kind == "kaggle":
        rows = [f"{name},{wnid} 85 1 499 272 {wnid} 1 2 3 4 " for name, wnid in reversed(pairs)]
        text = "ImageId,PredictionString\r\n" + "\r\n".join(rows)
    elif kind == "wnids":
        text = "".join(f"{name}.JPEG {wnid}\n" for name, wnid in pairs)
    else:
        text = "".join(f"{name}.JPEG {WNIDS.index(wnid)}\n" for name, wnid in pairs)
        text += all_numbers(0)
    file.write_text(text)
    return file


def test_classes_ship_in_order() -> None:
    assert len(imagenet_classes()) == 1000
    assert sorted(WNIDS) == WNIDS
    assert imagenet_classes()["n02124075"] == "Egyptian_cat"


@pytest.mark.parametrize("kind", ["devkit", "kaggle", "wnids", "numbers"])
def test_every_source_gives_the_same_classes(tmp_path: Path, kind: str) -> None:
    class_of = ValClasses(written(tmp_path, kind))
    assert [class_of(f"{name}.JPEG") for name in NAMES] == LABELS
    val = tmp_path / "val"
    val.mkdir()
    for name in NAMES:
        (val / f"{name}.JPEG").write_text(name)
    assert sort_val(val, class_of) == 4
    assert {path.relative_to(val).as_posix(): path.read_text() for path in val.glob("*/*")} == {
        f"{label}/{name}.JPEG": name for label, name in zip(LABELS, NAMES, strict=True)
    }
    check_sorted(val, class_of)
    wrong = val / LABELS[0] / f"{NAMES[1]}.JPEG"
    (val / LABELS[1] / wrong.name).rename(wrong)
    with pytest.raises(UsageError, match=rf"{wrong.name} is of class {LABELS[1]} in"):
        check_sorted(val, class_of)


def test_an_image_that_is_not_named_moves_none(tmp_path: Path) -> None:
    class_of = ValClasses(written(tmp_path, "wnids"))
    val = tmp_path / "val"
    val.mkdir()
    for name in (NAMES[0], "ILSVRC2012_val_00000099"):
        (val / f"{name}.JPEG").touch()
    with pytest.raises(UsageError, match=r"does not name ILSVRC2012_val_00000099.JPEG"):
        sort_val(val, class_of)
    assert len(list(val.iterdir())) == 2


def test_a_sort_that_is_killed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class_of = ValClasses(written(tmp_path, "wnids"))
    (val := tmp_path / "val").mkdir()
    for name in NAMES:
        (val / f"{name}.JPEG").write_text(name)
    rename, moved = os.rename, []

    def killed(image: Path, target: Path) -> None:
        if len(moved) == 2:
            raise KeyboardInterrupt
        rename(image, target)
        moved.append(target)

    monkeypatch.setattr(os, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        sort_val(val, class_of)
    monkeypatch.setattr(os, "rename", rename)
    assert sort_val(val, class_of) == 2
    for label, name in zip(LABELS, NAMES, strict=True):
        assert (val / label / f"{name}.JPEG").read_text() == name


def test_no_image_replaces_another(tmp_path: Path) -> None:
    class_of = ValClasses(written(tmp_path, "wnids"))
    twice = f"{NAMES[0]}.JPEG"
    (tmp_path / "val" / LABELS[0]).mkdir(parents=True)
    for folder in (tmp_path / "val", tmp_path / "val" / LABELS[0]):
        (folder / twice).write_text(str(folder))
    with pytest.raises(UsageError, match="both exist; remove one"):
        sort_val(tmp_path / "val", class_of)
    assert (tmp_path / "val" / LABELS[0] / twice).read_text() == str(tmp_path / "val" / LABELS[0])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "does not name"),
        ("a.JPEG n00000001\n", "n00000001 is not a class of ILSVRC 2012"),
        ("490\n361\n171\n", "has '490' instead of the name of an image and its class"),
        (all_numbers(1), "not all of 0 to 999"),
        ("a.JPEG 3\nb.JPEG 5\n", "not all of 0 to 999"),
        ("a.JPEG 3\nb.JPEG n01440764\n", "not all of 0 to 999"),
        (f"a.JPEG {WNIDS[0]}\na.JPEG {WNIDS[1]}\n", "names a twice, with two classes"),
        (
            f"ImageId,PredictionString\na,{WNIDS[0]} 1 2 3 4 {WNIDS[1]} 1 2 3 4\n",
            "instead of the name",
        ),
        (b"\xff\xfe\x00", "neither text nor a tar"),
    ],
)
def test_lists_that_could_give_wrong_labels(tmp_path: Path, text: str | bytes, why: str) -> None:
    file = tmp_path / "list"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match=why) as refusal:
        ValClasses(file)("a.JPEG")
    if "twice" not in why:
        assert "ILSVRC2012_devkit_t12.tar.gz from image-net.org" in str(refusal.value)


def test_other_tars(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a tar without data/meta.mat"):
        ValClasses(write_tar(tmp_path / "a.tar", {"x/data/other": b"1"}))
    whole = devkit(tmp_path / "kit", LABELS).read_bytes()
    (tmp_path / "kit").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match=r"is cut short .*fetch it again"):
        ValClasses(tmp_path / "kit")


def test_a_damaged_devkit_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """Wherever the damage is: in the compressed stream, or in the MATLAB file."""
    whole, file = devkit(tmp_path / "kit", LABELS).read_bytes(), tmp_path / "kit"
    middle = len(whole) // 2
    file.write_bytes(whole[:middle] + b"\xff" * 40 + whole[middle + 40 :])
    with pytest.raises(UsageError, match=rf"--val-classes {file} (is cut short|cannot be used)"):
        ValClasses(file)
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        contents = {
            member.name: opened.read() for member in tar if (opened := tar.extractfile(member))
        }
    meta = "ILSVRC2012_devkit_t12/data/meta.mat"
    # Cut short, of another version, and no MATLAB file.
    for content in (contents[meta][:200], b"\x89HDF" * 50, contents[meta][:124] + b"\0\2IM", b""):
        with pytest.raises(UsageError, match=r"cannot be (read|used: it is damaged) \(.+\); give"):
            ValClasses(write_tar(file, contents | {meta: content}, "w:gz"))


def test_without_scipy_the_devkit_is_refused_before_anything_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lists in plain text need no library."""
    root = tmp_path / "root"
    (root / "train").mkdir(parents=True)
    (root / "val").mkdir()
    (root / "val" / f"{NAMES[0]}.JPEG").touch()
    words = ["imagenet", str(root), "--val-classes", str(written(tmp_path, "devkit"))]
    for name in ("scipy", "scipy.io"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(words) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert f"scipy is not installed; run {install_command('imagenet')}" in told
    assert [path.name for path in (root / "val").iterdir()] == [f"{NAMES[0]}.JPEG"]
    written(tmp_path, "wnids")
    assert main(words) == 2
    assert "has no class folders" in capsys.readouterr().err  # which comes after the sorting
    assert (root / "val" / LABELS[0] / f"{NAMES[0]}.JPEG").is_file()
