"""What cannot be decoded is found, wherever a file is cut, and what is odd is named."""

import io
import os
import tracemalloc
import zlib
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from helpers.odd_images import HEADER_ONLY, REFUSED, encoded, odd_images, photo, png_of
from PIL import Image, ImageOps
from PIL.ImageFile import ImageFile

from lsgd.config import load_recipe
from lsgd.errors import UsageError
from lsgd.inputs.index import MAX_FILE_BYTES
from lsgd.prepare import check, dali_check, images, png
from lsgd.prepare.__main__ import main
from lsgd.prepare.check import ImageProblem, check_folder, write_skip_list
from lsgd.prepare.images import FATAL, image_problems, usable_size
from lsgd.prepare.journal import FolderFindings, Journal


def save(
    path: Path, mode: str = "RGB", side: int = 40, kind: str = "JPEG", **options: object
) -> Path:
    """An image that is not plain."""
    gradient = Image.linear_gradient("L").resize((side, side))
    gradient.convert(mode).save(path, kind, **options)
    return path


@pytest.mark.data
def test_every_cut_before_the_end_marker_is_truncation(test_data: Path, tmp_path: Path) -> None:
    files = sorted((test_data / "imagenet-sample").rglob("*.JPEG"), key=lambda p: p.stat().st_size)
    cut_file = tmp_path / "cut.JPEG"
    # Without its last two bytes PIL takes the first for whole.
    (tolerated,) = (test_data / "imagenet-sample/n02325366").iterdir()
    for file in [tolerated, *files[2:500:100]]:
        whole = file.read_bytes()
        assert not set(dict(image_problems(file))) & FATAL.keys()
        end = whole.rindex(b"\xff\xd9") + 2
        for length in (2, 20, 300, end // 2, end * 9 // 10, end - 300, end - 20, end - 3):
            cut_file.write_bytes(whole[:length])
            assert [kind for kind, _ in image_problems(cut_file)] == ["truncated"], (file, length)
        for length in (end - 2, end - 1):
            cut_file.write_bytes(whole[:length])
            assert [kind for kind, _ in image_problems(cut_file)] == ["truncated"], (file, length)
            assert usable_size(cut_file) == (0, 0)
        # Bytes behind the marker are no part of the image.
        cut_file.write_bytes(whole[:end] + b"more")
        assert not set(dict(image_problems(cut_file))) & FATAL.keys()


@pytest.mark.data
def test_a_thumbnail_s_end_marker_is_not_the_image_s(test_data: Path, tmp_path: Path) -> None:
    # One that PIL takes for whole without its last two bytes.
    (file,) = (test_data / "imagenet-sample/n02325366").iterdir()
    thumbnail = io.BytesIO()
    Image.new("RGB", (8, 8)).save(thumbnail, "JPEG")
    comment = b"\xff\xfe" + (len(thumbnail.getvalue()) + 2).to_bytes(2) + thumbnail.getvalue()
    content, path = file.read_bytes(), tmp_path / "a.jpg"
    path.write_bytes(content[:2] + comment + content[2:])
    assert image_problems(path) == []
    path.write_bytes(content[:2] + comment + content[2:-2])
    assert [kind for kind, _ in image_problems(path)] == ["truncated"]


def test_kinds(tmp_path: Path) -> None:
    rotated = Image.Exif()
    rotated[0x0112] = 6
    upright = Image.Exif()
    upright[0x0112] = 1
    text, empty = tmp_path / "text.JPEG", tmp_path / "empty.JPEG"
    text.write_text("<html>404</html>")
    empty.touch()
    tiff = tmp_path / "deep.tif"
    Image.new("F", (40, 40)).save(tiff)
    expected = {
        save(tmp_path / "plain.JPEG"): [],
        save(tmp_path / "upright.JPEG", exif=upright): [],
        save(tmp_path / "plain.png", kind="PNG"): [],
        save(tmp_path / "cmyk.JPEG", "CMYK"): [("CMYK", "CMYK")],
        save(tmp_path / "png.JPEG", kind="PNG"): [("other format", "PNG, RGB")],
        save(tmp_path / "exif.JPEG", exif=rotated): [("EXIF-rotated", "orientation 6")],
        save(tmp_path / "gray.JPEG", "L"): [("gray", "L")],
        save(tmp_path / "tiny.JPEG", side=31): [("tiny", "31 x 31")],
        tiff: [
            ("unshared", "TIFF with pixels of F;32F is not decoded the same way by every loader")
        ],
        text: [("not an image", "16 bytes, beginning with b'<html>40'")],
        empty: [("empty", "0 bytes")],
    }
    assert {path: image_problems(path) for path in expected} == expected


@pytest.mark.slow
def test_what_no_loader_or_not_every_one_reads_is_unusable(tmp_path: Path) -> None:
    """That those left are read alike is in inputs/test_decoding.py; some are told why."""
    path = tmp_path / "odd.JPEG"
    kinds, details, without_size = {}, {}, []
    for name, content in odd_images().items():
        path.write_bytes(content)
        found = image_problems(path)
        kinds[name] = [kind for kind, _ in found if kind in FATAL]
        details[name] = " ".join(detail for _, detail in found)
        without_size += [name] if usable_size(path) == (0, 0) else []
    refused = {name: [kind] for kind, names in REFUSED.items() for name in names}
    assert kinds == {name: refused.get(name, []) for name in kinds}
    assert set(without_size) == refused.keys() - set(HEADER_ONLY)
    for name, detail in (
        ("gif", "GIF is not a format that every loader reads"),
        ("png 16 bits x 3", "PNG with pixels of RGB;16B is not decoded the same way"),
        ("png rows missing", "8648 of 9568 bytes of pixels"),
        ("bmp cut by 1", "8701 of 8702 bytes"),
    ):
        assert detail in details[name]


@pytest.mark.parametrize("cut", [0, 9])
def test_a_png_with_more_pixels_than_its_size_takes_no_more_memory(cut: int) -> None:
    """A file of 400 kB took 432 MiB, in each process of a check."""
    stream = zlib.compress(bytes(2**25))
    content = png_of(stream[: len(stream) - cut], width=8, height=8)
    tracemalloc.start()
    try:
        found = png.fault(content)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert (found is None) == (cut == 0)


@pytest.mark.parametrize("extra", [0, 1, 2**16 - 1, 2**16])
def test_the_pixels_of_a_png_are_counted_whatever_their_pieces(extra: int) -> None:
    random = np.random.default_rng(0).bytes(2**17 + extra)
    for pixels in (random, bytes(2**17 + extra), bytes(2**17) + random):
        stream = zlib.compress(pixels)
        assert png._measure(stream) == (len(pixels), True)
        length, is_whole = png._measure(stream[:-4])
        assert (length, is_whole) == (len(pixels), False)


@pytest.mark.dali
def test_what_dali_cannot_decode_is_unusable(tmp_path: Path) -> None:
    """DALI itself is asked: a header does not say with what its own libtiff was built."""
    path = tmp_path / "a.tif"
    for coding, kinds in (("lzma", ["unshared"]), ("tiff_lzw", []), ("lzma", ["unshared"])):
        photo().save(path, "TIFF", compression=coding)
        found = image_problems(path)
        assert [kind for kind, _ in found] == kinds
        assert usable_size(path) == ((0, 0) if kinds else photo().size)
    assert "PIL decodes this TIFF and DALI fails with" in found[0][1]
    content = encoded(photo(), "TIFF")
    assert dali_check.dali_difference(content, photo()) is None
    inverted = ImageOps.invert(photo())
    inverted.format = "TIFF"
    assert "differ between PIL and DALI" in (dali_check.dali_difference(content, inverted) or "")


def test_without_dali_it_is_said_what_was_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "is_dali_installed", lambda: False)
    expected = {"TIFF": [("not by DALI", "TIFF")], "JPEG": [], "PNG": []}
    for kind, found in expected.items():
        assert image_problems(save(tmp_path / f"a.{kind.lower()}", kind=kind)) == found


@pytest.mark.slow
def test_an_image_above_the_limit_is_named_and_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("train/a", "val/a"):
        (tmp_path / name).mkdir(parents=True)
        save(tmp_path / name / "w.JPEG", side=30)
        save(tmp_path / name / "x.JPEG")
    for dataset, needed in ((["folder"], "more than --max-pixels 1599"), (["imagenet"], "--check")):
        options = [*dataset, str(tmp_path), "--max-pixels"]
        monkeypatch.setattr(ImageFile, "load", None)
        assert main([*options, "1599"]) == 2
        assert needed in capsys.readouterr().err
        monkeypatch.undo()
        assert main([*options, "1600"]) == 0
        capsys.readouterr()
    assert main(["imagenet", str(tmp_path), "--max-pixels", "1599", "--check"]) == 0
    skipped = (tmp_path / "skip.txt").read_text().splitlines()[2:]
    why = "too large: 40 x 40 pixels, more than --max-pixels 1599"
    assert skipped == [f"{split}/a/x.JPEG  # {why}" for split in ("train", "val")]


def test_a_file_that_no_loader_reads_is_found_before_a_run(tmp_path: Path) -> None:
    """By its number of bytes, at which a loader stops in the middle of an epoch."""
    path = save(tmp_path / "a.jpg")
    os.truncate(path, MAX_FILE_BYTES + 1)  # a hole, which takes no space
    assert usable_size(path) == (0, 0)
    why = f"{MAX_FILE_BYTES + 1} bytes, more than the {MAX_FILE_BYTES} of a loader"
    assert image_problems(path) == [("too large", why)]


def test_an_unreachable_file_is_no_bad_image(tmp_path: Path) -> None:
    # Of a folder, reading fails as of a failing disk; as root no permission can be missing.
    with pytest.raises(UsageError, match=r"cannot be read \(Is a directory\)"):
        image_problems(tmp_path)


def test_the_journal_of_a_killed_check_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("train/a", "train/b", "val/a", "val/b"):
        (tmp_path / name).mkdir(parents=True)
        save(tmp_path / name / "x.JPEG", "L")
    looked: list[Path] = []

    def stops_at_val(path: Path, max_pixels: int) -> list[tuple[str, str]]:
        looked.append(path)
        if path.parts[-3] == "val" and len(looked) <= 3:
            raise KeyboardInterrupt
        return image_problems(path, max_pixels)

    monkeypatch.setattr(check, "image_problems", stops_at_val)
    with pytest.raises(KeyboardInterrupt):
        check_folder(tmp_path, tmp_path, processes=1)
    # As a kill in the middle of a write leaves it.
    with (tmp_path / "check.jsonl").open("ab") as file:
        file.write(b'{"folder": "val/a", "beg')
    looked.clear()
    looked += [Path()] * 4
    found = check_folder(tmp_path, tmp_path, processes=1)
    assert [path.parts[-3] for path in looked[4:]] == ["val", "val"]
    assert [each.path for each in found] == [
        f"{split}/{name}/x.JPEG" for split in ("train", "val") for name in ("a", "b")
    ]
    assert (tmp_path / "check.tsv").read_text().splitlines()[1] == "train/a/x.JPEG\tgray\tL"
    assert not (tmp_path / "check.jsonl").exists()


def test_a_journal_cut_anywhere_keeps_its_whole_lines(tmp_path: Path) -> None:
    file = tmp_path / "j.jsonl"
    for name in ("a", "b"):
        Journal(file).add(FolderFindings(name, 1.5, {"x.JPEG": (7, None)}))
    text = file.read_bytes()
    first = text.index(b"\n") + 1
    for length in range(len(text) + 1):
        file.write_bytes(text[:length])
        whole = 2 if length == len(text) else 1 if length >= first else 0
        journal = Journal(file)
        assert list(journal.findings) == ["a", "b"][:whole]
        journal.add(FolderFindings("c", 2.5, {}))
        assert list(Journal(file).findings) == [*["a", "b"][:whole], "c"]


@pytest.mark.parametrize(
    "line",
    [
        b"[1]", b'{"a": 1}', b"\xff", b"7", b"[" * 9999,
        b'{"folder": ["a"], "begun": 1.0, "files": {}}',
        b'{"folder": "a", "begun": "1", "files": {}}',
        b'{"folder": "a", "begun": 1.0, "files": {"x.JPEG": 7}}',
        b'{"folder": "a", "begun": 1.0, "files": {"x.JPEG": [7]}}',
    ],
)  # fmt: skip
def test_a_journal_of_somebody_else_is_begun_anew(line: bytes, tmp_path: Path) -> None:
    file = tmp_path / "j.jsonl"
    Journal(file).add(FolderFindings("a", 1.5, {}))
    with file.open("ab") as lines:
        lines.write(line + b"\n")
    Journal(file).add(FolderFindings("b", 1.5, {}))
    assert list(Journal(file).findings) == ["a", "b"]


def test_a_check_with_another_limit_does_not_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was usable by a killed check with a larger limit is not so by this one."""
    for name in ("train/a", "val/a"):
        (tmp_path / name).mkdir(parents=True)
        save(tmp_path / name / "x.JPEG")
    monkeypatch.setattr(check, "atomic_write", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        check_folder(tmp_path, tmp_path, processes=1)
    monkeypatch.undo()
    found = check_folder(tmp_path, tmp_path, processes=1, max_pixels=1599)
    assert [(each.path, each.kind) for each in found] == [
        (f"{split}/a/x.JPEG", "too large") for split in ("train", "val")
    ]


BAD = [
    ImageProblem("train/a/x.JPEG", "truncated", "812 bytes"),
    ImageProblem("train/a/y.JPEG", "gray", "L"),
    ImageProblem("val/b/z.JPEG", "empty", "0 bytes"),
]


def test_skip_list_names_the_fatal_ones_and_keeps_lines(tmp_path: Path) -> None:
    file = tmp_path / "skip.txt"
    assert write_skip_list([BAD[1]], file) == (0, 0)
    assert not file.exists()
    assert write_skip_list(BAD, file) == (2, 0)
    text = file.read_text()
    assert f"data.skip_list={file}" in text
    assert "\ntrain/a/x.JPEG  # truncated: 812 bytes\nval/b/z.JPEG  # empty: 0 bytes\n" in text
    assert write_skip_list(BAD, file) == (2, 0)
    assert file.read_text() == text
    mine = "train/c/duplicate.JPEG  # seen twice\nval/b/z.JPEG"
    file.write_text(mine)
    assert write_skip_list(BAD, file) == (3, 1)
    assert file.read_text() == f"{mine}\ntrain/a/x.JPEG  # truncated: 812 bytes\n"


def test_a_check_that_a_name_ends_keeps_what_it_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("train/C#", "train/a", "val/a"):
        (tmp_path / name).mkdir(parents=True)
        save(tmp_path / name / "x.JPEG", "L")
    (tmp_path / "train/C#/x.JPEG").write_bytes(b"none")
    with pytest.raises(UsageError, match=r"'train/C#/x\.JPEG' cannot be named in a skip list"):
        check_folder(tmp_path, tmp_path, processes=1)
    (tmp_path / "train/C#").rename(tmp_path / "train/CSharp")
    looked: list[Path] = []

    def look(path: Path, max_pixels: int) -> list[tuple[str, str]]:
        looked.append(path)
        return image_problems(path, max_pixels)

    monkeypatch.setattr(check, "image_problems", look)
    check_folder(tmp_path, tmp_path, processes=1)
    assert looked == [tmp_path / "train/CSharp/x.JPEG"]


def test_a_name_that_a_skip_list_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'train/a/#1.JPEG' cannot be named in a skip list"):
        write_skip_list(
            [ImageProblem("train/a/#1.JPEG", "empty", "0 bytes")], tmp_path / "skip.txt"
        )


def test_a_skip_list_in_another_encoding_is_refused_before_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which decoded all images, removed its journal and ended in a traceback."""
    (tmp_path / "skip.txt").write_bytes("train/cat/ä.jpg\n".encode("latin-1"))
    monkeypatch.setattr(check, "check_folder", lambda *_, **__: pytest.fail("it began"))
    sentence = rf"the skip list {tmp_path}/skip.txt is not UTF-8; save it as UTF-8"
    with pytest.raises(UsageError, match=sentence):
        check.list_unusable(tmp_path, tmp_path, processes=1)
    with pytest.raises(UsageError, match=sentence):
        load_recipe(["recipe=bs256", f"data.skip_list={tmp_path}/skip.txt"])
