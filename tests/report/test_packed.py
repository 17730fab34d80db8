"""Runs in one archive: the same bytes again, and nothing beside its folder."""

import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from helpers.run_folders import write_finished_run

from lsgd.compare import main as compare
from lsgd.errors import UsageError
from lsgd.report.content import compose
from lsgd.report.findings import compute_findings
from lsgd.report.markdown import render
from lsgd.report.run_archive import FILE, pack, unpack
from lsgd.report.run_folders import find_runs

FILES = {"a/config.yaml": b"name: a\n", "parts/b/metrics.jsonl": os.urandom(1000), "c": b""}


def packed(files: Mapping[str, bytes | Path]) -> bytes:
    archive = io.BytesIO()
    pack(files, archive)
    return archive.getvalue()


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_what_is_unpacked_is_what_was_packed(tmp_path: Path) -> None:
    """Whatever the order, which makes no other bytes, and given as content or as other files."""
    (tmp_path / FILE).write_bytes(packed(FILES))
    assert content(unpack(tmp_path / FILE)) == FILES
    assert packed(dict(reversed(FILES.items()))) == packed(FILES)
    assert unpack(tmp_path / FILE) == unpack(tmp_path / "." / FILE)
    paths = {name: unpack(tmp_path / FILE) / name for name in FILES}
    assert packed(paths) == packed(FILES)


def test_runs_are_found_in_an_archive_as_in_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [write_finished_run(tmp_path / "runs", "fashion_bs64", seed, 8.0) for seed in (0, 1)]
    study = tmp_path / "study"
    study.mkdir()
    files = content(tmp_path / "runs")
    (study / FILE).write_bytes(packed({f"seeds/{name}": data for name, data in files.items()}))
    (study / "notes").mkdir()
    found, _ = find_runs([study])
    assert [run.path.name for run in found] == [run.name for run in runs]
    assert [run.rows for run in found] == [run.rows for run in find_runs([tmp_path / "runs"])[0]]
    assert compare([str(found[0].path), str(runs[0])]) == 0
    page = render(compose(compute_findings(found, [], None), [], "command", "version"))
    assert f"`{study / FILE}/seeds/{runs[0].name}`" in page
    assert str(found[0].path) not in page, "a folder that ends with this process"
    again, _ = find_runs([study, tmp_path / "runs"])
    page = render(compose(compute_findings(again, [], None), [], "command", "version"))
    assert "Nothing but more runs of the same seeds, which do not count." in page


def test_hidden_folders_of_an_archive_have_runs_too(tmp_path: Path) -> None:
    """Those of older reports, which kept the names of their runs."""
    run = write_finished_run(tmp_path / "runs", "fashion_bs64", 0, 8.0)
    names = [f"{folder}/{name}" for folder in (".a", "b/lost+found") for name in content(run)]
    files = dict(zip(names, [*content(run).values()] * 2, strict=True))
    (tmp_path / FILE).write_bytes(packed(files))
    shutil.rmtree(tmp_path / "runs")
    assert [run.path.name for run in find_runs([tmp_path])[0]] == [".a", "lost+found"]


def test_a_damaged_archive_is_left_out_by_name(tmp_path: Path) -> None:
    run = write_finished_run(tmp_path / "study", "fashion_bs64", 0, 8.0)
    (tmp_path / "study" / FILE).write_bytes(packed(FILES)[:-9])
    found, left_out = find_runs([tmp_path / "study"])
    assert [each.path for each in found] == [run]
    assert [(each.path.name, each.damaged) for each in left_out] == [(FILE, True)]


def archive(*members: tarfile.TarInfo) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:xz") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(bytes(member.size)))
    return made.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, target
    return made


@pytest.mark.parametrize(
    "make",
    [
        lambda: archive(member("../out")),
        lambda: archive(member("/tmp/out")),
        lambda: archive(member("a/../../out")),
        lambda: archive(member("a", tarfile.SYMTYPE, "/etc"), member("a/passwd")),
        lambda: archive(member("a", tarfile.LNKTYPE, "/etc/passwd")),
        lambda: archive(member("a", tarfile.FIFOTYPE)),
        lambda: archive(member("a"), member("a")),
        lambda: archive(member("a"), member("a/b")),
        lambda: packed(FILES)[:-40],
        lambda: b"no archive",
        lambda: b"",
    ],
)
def test_an_archive_of_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[], bytes]
) -> None:
    """And nothing is left, neither where it is unpacked nor beside."""
    (tmp_path / FILE).write_bytes(make())
    (tmp_path / "unpacked").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "unpacked"))
    before = {*tmp_path.rglob("*")}
    with pytest.raises(UsageError, match=r"runs\.tar\.xz is not an archive of runs"):
        unpack(tmp_path / FILE)
    assert {*tmp_path.rglob("*")} == before


def test_an_archive_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lsgd.report.run_archive.MOST", 900)
    (tmp_path / FILE).write_bytes(packed(FILES))
    with pytest.raises(UsageError, match="is not a file of a run"):
        unpack(tmp_path / FILE)
