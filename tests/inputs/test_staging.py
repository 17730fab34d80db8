"""data.stage: one complete copy of a dataset on each machine, which changes no result."""

import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.composed import compose_recipe
from helpers.folders import DATA, make_folder, write_folder_shards
from helpers.folders import recipe as folder_recipe
from helpers.reference_run import newest_checkpoint, rows
from helpers.threaded import run_on_threads

from lsgd import config
from lsgd.comm.single import SingleComm
from lsgd.errors import InputFailedError, UsageError
from lsgd.inputs import open_inputs, staging
from lsgd.inputs.index import MARKER
from lsgd.inputs.staging import LOCK, USED, stage_data, with_staged_data
from lsgd.prepare.indexing import index_folder
from lsgd.recipe import Recipe
from lsgd.rules.sampler import MicroBatch
from lsgd.run.rows import depends_on_hardware
from lsgd.train import train
from lsgd.trained_model import for_this_machine


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "source")


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Release the copies that this process reads, as its end would."""
    yield
    while staging._in_use:
        staging._in_use.popitem()[1].used.close()


def recipe(root: Path, stage: object, *words: str) -> Recipe:
    made = folder_recipe(root, "torchvision", DATA, "inputs.decoders=0", *words)
    return replace(made, data=replace(made.data, stage=str(stage)))


def staged(made: Recipe) -> tuple[Path, int]:
    """Stage a recipe's data; return the folder that its readers get, and the bytes copied."""
    copied, copy_file = [], staging._copy_file

    def counted(*file: Any) -> Iterator[int]:
        for count in copy_file(*file):
            copied.append(count)
            yield count

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "_copy_file", counted)
        stage_data(made, SingleComm())
    return Path(str(with_staged_data(made).data.root)), sum(copied)


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files of a folder by their relative paths, but for those of lsgd itself."""
    found = (
        path for path in folder.rglob("*") if path.is_file() and path.name not in (MARKER, USED)
    )
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def bytes_in(folder: Path) -> int:
    return sum(map(len, contents(folder).values()))


def copies(stage: Path) -> list[Path]:
    return [path for path in stage.glob("*/*") if path.name != LOCK]


def fork(body: Callable[[], object]) -> int:
    """Run a function in a child process, and return its process id."""
    if child := os.fork():
        return child
    try:
        body()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def exit_code(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_what_is_copied(root: Path, tmp_path: Path) -> None:
    """The indexes and what they list, else all files of a folder; and no second time."""
    shards, index, text = (
        write_folder_shards(root, tmp_path / "shards"),
        tmp_path / "i",
        tmp_path / "t",
    )
    listed = contents(root)
    (root / "train.tar").write_bytes(b"the archive of the images")
    # Of a further set that the recipe does not evaluate, and whose images are gone.
    shutil.copy2(root / "val.index.npy", root / "v2.index.npy")
    for folder in (index, text / "a"):
        folder.mkdir(parents=True)
    for split in ("train", "val"):
        shutil.copy2(root / f"{split}.index.npy", index)
    (text / "a/ptb.train.txt").write_text("a text")
    (text / ".hidden").touch()
    in_shards = {name: each for name, each in contents(shards).items() if name != "shards.json"}
    language = compose_recipe("+recipe=ptb_small")
    stage = tmp_path / "stage"
    apart = recipe(root, stage)
    apart = replace(apart, data=replace(apart.data, index=str(index)))
    texts = replace(language, data=replace(language.data, root=str(text), stage=str(stage)))
    for made, expected in (
        (recipe(root, stage), listed),
        (recipe(shards, stage), in_shards),
        (apart, listed),
        (texts, {"a/ptb.train.txt": b"a text"}),
    ):
        folder, copied = staged(made)
        assert contents(folder) == expected
        assert copied == sum(map(len, expected.values()))
        assert staged(made) == (folder, 0)
        assert with_staged_data(made).fingerprint == replace(made).fingerprint
    assert len(copies(stage)) == 4


def test_a_skipped_image_is_not_copied(root: Path, tmp_path: Path) -> None:
    """Its file may be cut short, which no copy could have; a run that has it copies it."""
    name, stage = "train/n00/odd.JPEG", tmp_path / "stage"
    content = (root / name).read_bytes()
    (root / name).write_bytes(content[:-1])
    made = recipe(root, stage)
    without = replace(made, data=replace(made.data, skip=[name], train_examples=11))
    folder, _ = staged(without)
    assert name not in contents(folder)
    assert len(open_inputs(with_staged_data(without), torch.device("cpu")).columns()["train path"])
    (root / name).write_bytes(content)
    folder, copied = staged(made)
    assert copied == len(contents(folder)[name]) == len(content)


def test_a_whole_class_and_images_of_unused_sets_may_be_skipped(root: Path, tmp_path: Path) -> None:
    """A reader missed the folder of the class, and the index of the set."""
    (root / "v2/n00").mkdir(parents=True)
    shutil.copy(root / "val/n00/rgba.png", root / "v2/n00")
    index_folder(root, sets=["v2"])
    made = recipe(root, tmp_path / "stage")
    skip = ["val/n02/gray.JPEG", "val/n02/rgba.png", "v2/n00/rgba.png"]
    without = replace(made, data=replace(made.data, skip=skip, val_examples=4))
    folder, _ = staged(without)
    read = with_staged_data(without)
    assert (read.data.skip, without.data.skip) == (skip[:2], skip)
    columns = open_inputs(read, torch.device("cpu")).columns()
    assert len(columns["val path"]) == 4
    assert not (folder / "v2").exists()
    (folder / "val/n02").rmdir()  # as a copy of an earlier version has it
    staging._in_use.popitem()[1].used.close()
    assert staged(without) == (folder, 0)
    assert [*(folder / "val/n02").iterdir()] == []


def test_the_error_of_an_unreadable_copy_names_the_original(root: Path, tmp_path: Path) -> None:
    """A command for the copy would be lost with it, and the copy is what can be made anew."""
    shutil.copytree(root, index := tmp_path / "index", ignore=shutil.ignore_patterns("*.JPEG"))
    made = recipe(root, tmp_path / "stage")
    apart = replace(made, data=replace(made.data, index=str(index)))
    for each, command in (
        (made, f"folder {root}"), (apart, f"folder {root} --index {index}")
    ):  # fmt: skip
        folder, _ = staged(each)
        broken = folder / "train/n00/odd.JPEG"
        whole = broken.read_bytes()
        broken.write_bytes(b"x" * len(whole))
        inputs = open_inputs(with_staged_data(each), torch.device("cpu"))
        with pytest.raises(InputFailedError) as raised:
            list(inputs.train([MicroBatch(0, np.arange(12))]))
        told = str(raised.value)
        assert told.startswith(f"{broken} cannot be read")
        assert "remove this file of data.stage and rerun the same command with its run_di" in told
        assert f"copies it again from {root}; if it is damaged there, repair it" in told
        assert f"`python -m lsgd.prepare {command} --check`" in told
        broken.unlink()
        while staging._in_use:
            staging._in_use.popitem()[1].used.close()
        assert staged(each) == (folder, len(whole))
        assert broken.read_bytes() == whole


def test_two_processes_copy_once(root: Path, tmp_path: Path) -> None:
    """The second one waits for the first, which is in the middle of its copy."""
    made, (begun, begins), (waiting, waits) = recipe(root, tmp_path / "stage"), os.pipe(), os.pipe()
    whole, read, write = bytes_in(root), *os.pipe()

    def first() -> None:
        copy_file, staging.THREADS = staging._copy_file, 1
        is_first = iter([True])

        def slow(*arguments: Any) -> Iterator[int]:
            if next(is_first, False):
                os.write(begins, b".")
                os.read(waiting, 1)  # until the other has found the lock held
            return copy_file(*arguments)

        staging._copy_file = slow
        os.write(write, f"{staged(made)[1]} ".encode())

    def second() -> None:
        lock = staging.files.lock

        def observed(*arguments: Any, **options: Any) -> bool:
            is_locked = lock(*arguments, **options)
            if not is_locked:
                os.write(waits, b".")
            return is_locked

        staging.files.lock = observed
        os.write(write, f"{staged(made)[1]} ".encode())

    children = [fork(first)]
    os.read(begun, 1)
    children.append(fork(second))
    assert [exit_code(child) for child in children] == [0, 0]
    assert os.read(read, 100).split() == [str(whole).encode(), b"0"]
    assert contents(copies(tmp_path / "stage")[0]) == contents(root)


def test_a_killed_copy_is_resumed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps complete files, and no half one; after a reboot it keeps none."""
    made = recipe(root, tmp_path / "stage")

    def killed() -> None:
        copy_file, staging.CHUNK, staging.THREADS = staging._copy_file, 100, 1
        names: list[Path] = []

        def dying(path: Path, target: Path, size: int) -> Iterator[int]:
            names.append(target)
            for count in copy_file(path, target, size):
                if len(names) > 4:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield count

        staging._copy_file = dying
        staged(made)

    assert exit_code(fork(killed)) == -signal.SIGKILL
    (folder,) = copies(tmp_path / "stage")
    kept = {path: path.stat().st_ino for path in folder.rglob("*") if path.name[0] != "."}
    kept = {path: inode for path, inode in kept.items() if path.is_file()}
    assert len(kept) == 4
    assert len([*folder.rglob(".*.part")]) == 1
    assert staged(made) == (folder, bytes_in(root) - sum(path.stat().st_size for path in kept))
    assert contents(folder) == contents(root)
    assert all(path.stat().st_ino == inode for path, inode in kept.items())

    shutil.rmtree(folder)
    assert exit_code(fork(killed)) == -signal.SIGKILL
    monkeypatch.setattr(staging, "boot_id", lambda: "another boot")
    assert staged(made) == (folder, bytes_in(root))


def test_a_changed_dataset_is_copied_anew(root: Path, tmp_path: Path) -> None:
    """The copy that a process reads stays until that process ends; unchanged files are linked."""
    made, stage = recipe(root, tmp_path / "stage"), tmp_path / "stage"
    before, _ = staged(made)
    old = contents(before)
    (image,) = root.glob("train/n01/gray.*")
    shutil.copy(root / "train/n02/odd.JPEG", image)
    index_folder(root)
    after, copied = staged(made)
    assert contents(after) == contents(root) != old
    changed = {str(image.relative_to(root)), "train.index.npy", "val.index.npy"}
    assert copied == sum((root / name).stat().st_size for name in changed)
    same = [name for name in old if name not in changed]
    assert all((after / name).samefile(before / name) for name in same)
    assert {*copies(stage)} == {before, after}
    assert contents(before) == old
    # A file that something has removed is copied again, and now nothing reads the earlier copy.
    (after / image.relative_to(root)).unlink()
    assert staged(made) == (after, image.stat().st_size)
    assert copies(stage) == [after]


def test_what_is_refused_before_and_after_a_copy(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, stage = recipe(root, tmp_path / "stage"), tmp_path / "stage"

    def refusal(each: Recipe, processes: int = 1) -> str:
        def body(comm: Any) -> str:
            with pytest.raises(UsageError) as refused:
                stage_data(each, comm)
            return str(refused.value)

        (said,) = {text.removeprefix("process 0: ") for text in run_on_threads(processes, body)}
        return said

    with monkeypatch.context() as full:
        storage = SimpleNamespace(f_frsize=4096, f_bavail=2)
        full.setattr(os, "statvfs", lambda _: storage)
        needed = 4096 * sum(-(-len(each) // 4096) for each in contents(root).values())
        said = refusal(made, processes=2)
        assert f"has 8192 bytes free, and the copy of {root} needs {needed}; free some" in said
        assert contents(copies(stage)[0]) == {}
    with monkeypatch.context() as broken:

        def torn(path: Path, target: Path, size: int) -> Iterator[int]:
            target.write_bytes(bytes(size))
            yield size

        broken.setattr(staging, "_copy_file", torn)
        assert "differs from its copy, so that all were removed); rerun" in refusal(made)
        assert copies(stage) == []
    # One that changes meanwhile has a file of another size, or a class that is newer.
    with monkeypatch.context() as changing:
        copy_file = staging._copy_file

        def changed(path: Path, target: Path, size: int) -> Iterator[int]:
            os.utime(root / "train/n00")
            return copy_file(path, target, size)

        changing.setattr(staging, "_copy_file", changed)
        assert "its files have changed while they were copied" in refusal(made)
    # The copy that another run reads has all but the images which that run leaves out.
    left_out = next(root.glob("train/n01/gray.*"))
    fewer = replace(made.data, skip=[str(left_out.relative_to(root))], train_examples=11)
    skipping = replace(made, data=fewer)
    shutil.rmtree(stage)
    with monkeypatch.context() as broken:
        stage_data(skipping, SingleComm())
        [copied] = copies(stage)
        before = contents(copied)
        _, held = staging._in_use.popitem()
        broken.setattr(staging, "_has_equal_blocks", lambda *_: False)
        assert "which another run reads until it ends); rerun" in refusal(made)
        assert before.items() <= contents(copied).items()
        held.used.close()
    assert "inside of the dataset" in refusal(recipe(root, root / "stage"))
    assert "has the variable $LSGD_NO_SUCH, which" in refusal(recipe(root, "$LSGD_NO_SUCH/stage"))
    (tmp_path / "file").touch()
    assert "Not a directory); fix that" in refusal(recipe(root, tmp_path / "file"))
    (root / "val.index.npy").unlink()
    assert "has no index yet" in refusal(made)

    monkeypatch.setenv("LSGD_NO_SUCH", str(tmp_path))
    for words, why in (
        (["+recipe=digits"], "the digits are part of lsgd"),
        (["+recipe=bs256", "inputs=synthetic"], "has no effect with inputs.loader=synthetic"),
        (["+recipe=bs256", "data.stage="], "data.stage= is empty"),
    ):
        with pytest.raises(UsageError, match=why):
            config.load_recipe([*words, *["data.stage=/nvme"] * ("stage" not in words[-1])])


@pytest.mark.slow
def test_it_changes_no_result(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rows and the checkpoint are the same bit by bit, and name the dataset, not its copy."""
    monkeypatch.setenv("NODE_STORAGE", str(tmp_path / "stage"))
    words = [
        "epochs=1", "schedule.milestones=[]", "workers=2", "worker_batch=2", "val_batch=2",
        "model=small_resnet", "log_steps=1", "data.balance=weights",
    ]  # fmt: skip
    for name in ("staged", "plain"):
        made = recipe(root, "$NODE_STORAGE", *words, f"run_dir={tmp_path / name}")
        if name == "plain":
            made = replace(made, data=replace(made.data, stage=None))
        train(made)
    said = capsys.readouterr().out
    assert "data.stage=$NODE_STORAGE: " in said
    ours, theirs = newest_checkpoint(tmp_path / "staged"), newest_checkpoint(tmp_path / "plain")
    for kind in ("train", "epoch"):
        one, other = (
            [
                {key: value for key, value in row.items() if not depends_on_hardware(key)}
                for row in rows(tmp_path / name, kind)
            ]
            for name in ("staged", "plain")
        )
        assert one == other != []
    torch.testing.assert_close(ours.model, theirs.model, rtol=0, atol=0)
    assert ours.fingerprint == theirs.fingerprint
    assert ours.recipe["data"] == theirs.recipe["data"] | {"stage": "$NODE_STORAGE"}
    # An evaluation may be on a machine without that storage.
    assert for_this_machine(ours.recipe)["data"]["stage"] is None
