import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from helpers.saved import content, open_once, recipe, tiny

from lsgd.comm.single import SingleComm
from lsgd.errors import Refused
from lsgd.run import checkpoint, lock
from lsgd.run import folder as run_folder
from lsgd.run.folder import Opened, open_run


def listing(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file with the time it was changed and its content."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    } | {".": (folder.stat().st_mtime_ns, b"")}


def saved_run(folder: Path, *words: str, step: int = 3) -> bytes:
    """Make a run folder with a checkpoint at this step; returns that."""
    made = recipe(*words, f"run_dir={folder}")
    open_once(made)
    return content(replace(tiny(step), fingerprint=made.fingerprint, recipe=asdict(made)), folder)


@pytest.mark.parametrize("exists", [True, False])
def test_an_empty_or_new_folder_starts_a_run(tmp_path: Path, exists: bool) -> None:
    folder = tmp_path / "runs" / "a"
    if exists:
        folder.mkdir(parents=True)
    made = recipe(f"run_dir={folder}")
    assert open_once(made) == Opened(folder)
    assert [path.name for path in folder.iterdir()] == ["config.yaml"]
    text = (folder / "config.yaml").read_text()
    assert made.fingerprint in text
    assert "workers: 2\n" in text


def test_the_same_trajectory_resumes(tmp_path: Path) -> None:
    """Execution fields may be others; the configuration that started it stays."""
    saved = saved_run(tmp_path)
    before = listing(tmp_path)
    words = ["workers_per_pass=2", "checkpoint_steps=5", "comm=torch", "val_batch=7"]
    opened = open_once(recipe(*words, f"run_dir={tmp_path}"))
    path = f"{tmp_path}/checkpoint-3.pt"
    assert opened == Opened(tmp_path, saved, path, workers_per_pass=16)
    assert listing(tmp_path) | {".": before["."]} == before


def test_a_run_that_died_before_its_first_checkpoint_starts_again(tmp_path: Path) -> None:
    made = recipe(f"run_dir={tmp_path}")
    open_once(made)
    (tmp_path / "checkpoint-5.pt.tmp").write_bytes(b"half")
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    assert open_once(made) == Opened(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "metrics.jsonl"]


def test_a_run_that_died_while_it_wrote_its_configuration_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "WATCH", 0.1)
    (tmp_path / "job.lock").write_text("")
    (tmp_path / "config.yaml.tmp").write_text("# finge")
    made = recipe(f"run_dir={tmp_path}")
    assert open_once(made) == Opened(tmp_path)
    assert made.fingerprint in (tmp_path / "config.yaml").read_text()


@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_another_trajectory_is_refused(tmp_path: Path, with_checkpoint: bool) -> None:
    """With both fingerprints and what to write; nothing in the folder is touched."""
    saved_run(tmp_path)
    if not with_checkpoint:
        (tmp_path / checkpoint.FILE).unlink()
        (tmp_path / "checkpoint-3.pt").unlink()
    before = listing(tmp_path)
    other = recipe("seed=1", f"run_dir={tmp_path}")
    hashes = [recipe().fingerprint[:12], other.fingerprint[:12]]
    expected = rf"another run at step {3 * with_checkpoint} .*{hashes[0]}.*{hashes[1]}.*config.yaml"
    with pytest.raises(Refused, match=expected):
        open_once(other)
    assert listing(tmp_path) == before


def test_a_rehearsal_is_named_as_what_is_there(tmp_path: Path) -> None:
    """The words of the real run differ from it in numbers that its user has never written."""
    open_once(recipe("rehearse=true", f"run_dir={tmp_path}"))
    with pytest.raises(Refused, match=r"holds a rehearsal \(rehearse=true\), .* another run_dir"):
        open_once(recipe(f"run_dir={tmp_path}"))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 100)


def test_damaged_checkpoints_are_refused_and_left_alone(tmp_path: Path) -> None:
    """Never taken for a folder without one, where the run would start again."""
    saved_run(tmp_path, step=2)
    saved_run(tmp_path, step=3)
    for path in checkpoint.files(tmp_path):
        cut(path)
    before = listing(tmp_path)
    expected = rf"{tmp_path}/checkpoint-3.pt is damaged.*so are the 1 before it.*run_dir=PATH"
    with pytest.raises(Refused, match=expected):
        open_once(recipe(f"run_dir={tmp_path}"))
    assert listing(tmp_path) == before


@pytest.mark.parametrize("copied", [False, True])
def test_a_damaged_newest_one_gives_way_to_the_one_before(tmp_path: Path, copied: bool) -> None:
    """And stays, under another name; so too where a copy has made a file of the link."""
    older = saved_run(tmp_path, step=2)
    newer = saved_run(tmp_path, step=3)
    name = "checkpoint-3.pt"
    if copied:
        (tmp_path / name).rename(tmp_path / checkpoint.FILE)
        name = checkpoint.FILE
    cut(tmp_path / name)
    made = recipe(f"run_dir={tmp_path}")
    opened = open_once(made)
    assert (opened.content, opened.path) == (older, f"{tmp_path}/checkpoint-2.pt")
    assert f"{tmp_path}/{name} is damaged or no checkpoint" in opened.warning
    assert "goes on from checkpoint-2.pt, at step 2, and what is damaged is" in opened.warning
    assert (tmp_path / f"{name}.damaged").read_bytes() == newer[:-100]
    assert checkpoint.read(tmp_path / checkpoint.FILE) == older
    assert open_once(made) == replace(opened, warning="")


def test_a_copied_file_resumes(tmp_path: Path) -> None:
    """checkpoint.pt alone, as scp makes it of the link."""
    saved = saved_run(tmp_path / "there")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / checkpoint.FILE).write_bytes(saved)
    opened = open_once(recipe(f"run_dir={tmp_path / 'here'}"))
    assert opened.content == saved


def test_another_job_keeps_a_folder_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From before its first file on, also where its name is the time, and others touch nothing."""
    monkeypatch.setattr(lock, "DYING", 0.2)
    monkeypatch.chdir(tmp_path)
    for words in ([f"run_dir={tmp_path / 'a'}"], []):
        with open_run(recipe(*words), SingleComm()) as opened:
            before = listing(opened.folder)
            sentence = f"{opened.folder} is being written by another job .process {os.getpid()} on"
            with pytest.raises(Refused, match=sentence):
                open_once(recipe(f"run_dir={opened.folder}"))
            assert listing(opened.folder) == before
        assert open_once(recipe(f"run_dir={opened.folder}")) == opened


def test_what_a_job_saves_before_it_lets_go_is_what_the_next_goes_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_run(tmp_path, step=2)
    (tmp_path / "beside").mkdir()
    newer = saved_run(tmp_path / "beside", step=3)

    @contextmanager
    def late(folder: Path) -> Iterator[None]:
        shutil.copy(tmp_path / "beside" / "checkpoint-3.pt", tmp_path)
        yield

    monkeypatch.setattr(lock, "held", late)
    assert open_once(recipe(f"run_dir={tmp_path}")).content == newer


def test_files_of_something_else_are_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    before = listing(tmp_path)
    with pytest.raises(Refused, match=rf"run_dir={tmp_path} holds files of something else"):
        open_once(recipe(f"run_dir={tmp_path}"))
    assert listing(tmp_path) == before


def test_runs_of_the_same_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime(2026, 1, 2, 3, 4, 5)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_folder, "datetime", Stopped)
    found = [open_once(recipe("seed=7")) for _ in range(3)]
    stem = "runs/digits/20260102-030405-seed7"
    assert found == [Opened(Path(stem + end)) for end in ("", "-2", "-3")]
    assert all((tmp_path / each.folder / "config.yaml").is_file() for each in found)


@pytest.mark.parametrize("run_dir", ["file", "file/below", "null"])
def test_a_file_in_the_way_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_dir: str
) -> None:
    monkeypatch.chdir(tmp_path)
    in_the_way = tmp_path / ("runs" if run_dir == "null" else "file")
    in_the_way.write_text("precious")
    with pytest.raises(Refused, match=r"cannot be written \(.*write run_dir=PATH"):
        open_once(recipe(f"run_dir={run_dir}"))
    assert in_the_way.read_text() == "precious"
