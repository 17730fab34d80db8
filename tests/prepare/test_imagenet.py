"""The whole command, as it is typed; and as it goes on after kills."""

import hashlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.ilsvrc import BY_ID, devkit, train_tar, write_tar
from PIL import Image

from lsgd import config
from lsgd.errors import UsageError
from lsgd.prepare.__main__ import main
from lsgd.prepare.fetch import locked_folder
from lsgd.prepare.validation import imagenet_classes
from lsgd.prepare.verify import verify

CLASSES = 30


def images(root: Path, wnids: list[str], each: int = 2) -> Path:
    """An image folder with so many images of each class in train, and one in val."""
    for i, wnid in enumerate(wnids):
        for split, number in (("train", each), ("val", 1)):
            (root / split / wnid).mkdir(parents=True)
            for j in range(number):
                Image.new("RGB", (33 + i % 50, 34 + j)).save(root / split / wnid / f"{j}.JPEG")
    return root


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "lsgd.prepare", "imagenet", *map(str, words)]


def tree(*folders: Path) -> dict[str, str]:
    """Every file there is, hidden ones too but for the lock, by the hash of its content."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".prepare.lock"
    }


# --- Archives, and kills ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def archives(test_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Archives in the official layout: real images of 30 classes, 3 of each, and one in val."""
    folder = tmp_path_factory.mktemp("archives")
    sample = {
        each.name: next(each.iterdir()).read_bytes()
        for each in sorted((test_data / "imagenet-sample").iterdir())[:CLASSES]
    }
    bad = list(sample)[5]
    train_tar(
        folder / "train.tar",
        {
            wnid: {
                f"{wnid}_{i}.JPEG": content[:-2] if (wnid, i) == (bad, 1) else content
                for i in range(3)
            }
            for wnid, content in sample.items()
        },
    )
    # Not in the order of the classes, as the real ones are not.
    labels = sorted(sample, key=BY_ID.index)
    val = {f"ILSVRC2012_val_{i:08d}.JPEG": sample[wnid] for i, wnid in enumerate(labels, 1)}
    write_tar(folder / "val.tar", val)
    devkit(folder / "devkit.tar.gz", labels)
    return folder


def from_archives(archives: Path, root: Path, shards: Path, processes: int) -> list[str]:
    return command(
        root,
        *("--train-tar", archives / "train.tar", "--val-tar", archives / "val.tar"),
        *("--val-classes", archives / "devkit.tar.gz", "--check"),
        *("--shards", shards, "--shard-mb", 1, "--processes", processes),
    )


def killed_once(words: list[str], begun: Callable[[], bool]) -> None:
    """Run a command, kill it once `begun` holds, and see that nothing of it goes on."""
    process = subprocess.Popen(
        words, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 900
    while not begun() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.0005)
    process.kill()
    assert time.monotonic() < deadline, f"{words} hang"
    told = process.communicate(timeout=900)[1]  # workers that outlive it would hold its pipe
    # On a busy machine it may have ended before; then there is one kill less.
    assert process.returncode in (0, -signal.SIGKILL), told
    # Of its process group, in which its workers are.
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    raise AssertionError("workers outlive the process that they work for")


@pytest.mark.data
@pytest.mark.slow
def test_a_kill_changes_nothing_and_leaves_no_worker(archives: Path, tmp_path: Path) -> None:
    """The whole of it, from archives to shards; that each part goes on is tested where it is."""
    quiet, root = tmp_path / "quiet", tmp_path / "killed"
    whole = subprocess.run(
        from_archives(archives, quiet, quiet / "shards", 1),
        capture_output=True, text=True, timeout=1800,
    )  # fmt: skip
    assert whole.returncode == 0, whole.stderr
    expected = tree(quiet)
    assert sum(name.startswith("train/") for name in expected) == 3 * CLASSES
    assert sum(name.startswith("val/") for name in expected) == CLASSES
    assert {"check.tsv", "skip.txt", "shards/train.index.npy"} <= expected.keys()
    words = from_archives(archives, root, root / "shards", 2)
    killed_once(words, lambda: len(list(root.glob("train/*/*.JPEG"))) > 5)
    again = subprocess.run(words, capture_output=True, text=True, timeout=1800)
    assert again.returncode == 0, again.stderr
    # Hidden files too: what the kill left half-written is no more.
    assert tree(root).keys() == expected.keys()
    assert {name for name, content in tree(root).items() if content != expected[name]} == {
        "skip.txt"  # which names itself
    }
    (ready,) = [line for line in again.stdout.splitlines() if line.startswith("ready:")]
    assert f"data.root={root}/shards data.train_examples=90 data.val_examples=30" in ready
    skip = (root / "skip.txt").read_text().splitlines()
    assert [line.split()[2] for line in skip if line[0] != "#"] == ["truncated:"]
    assert f"data.skip_list={root}/skip.txt" in ready


# --- What is said ----------------------------------------------------------------------------


def test_subset_of_a_read_only_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = images(tmp_path / "root", ["n01440764", "n01443537", "mine"])
    (root / "train/.ipynb_checkpoints").mkdir()
    (root / "val/mine/._0.JPEG").touch()
    before = tree(root)
    words = ["imagenet", str(root), "--index", str(tmp_path / "index"), "--processes", "1"]
    assert main(words) == 0
    said = capsys.readouterr().out
    left = (
        "warning: skipped, as hidden or system files: train/.ipynb_checkpoints, val/mine/._0.JPEG"
    )
    assert left in said
    assert "warning: 998 of the 1000 classes are missing (n01484850 great_white_shark" in said
    assert "warning: 1 class folders are not of ILSVRC 2012 (mine)" in said
    assert f"data.root={root} data.index={tmp_path}/index data.train_examples=6 " in said
    assert "data.val_examples=3 data.classes=3" in said
    assert tree(root) == before


def test_bad_images_fail_unless_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = images(tmp_path, ["n01440764", "n01443537"])
    (root / "train/n01440764/0.JPEG").write_text("no image")
    assert main(["imagenet", str(root), "--processes", "1"]) == 2
    said = capsys.readouterr()
    assert "1 images are cut short, not images, not for every loader, or of more than" in said.err
    assert "(train/n01440764/0.JPEG …)" in said.err
    assert "ready" not in said.out
    assert main(["imagenet", str(root), "--processes", "1", "--check"]) == 0
    said = capsys.readouterr()
    assert said.out.rstrip().endswith(
        f"data.train_examples=4 data.val_examples=2 data.classes=2 data.skip_list={root}/skip.txt"
    )


@pytest.mark.slow
def test_all_of_imagenet(tmp_path: Path) -> None:
    root = images(tmp_path, list(imagenet_classes()), each=1)
    assert verify(root, 1000, 1000).overrides == []
    assert verify(root, 1000, 1000).lines == [
        "verified: 1,000 classes, 1,000 images in train and 1,000 in val, as in ILSVRC 2012"
    ]
    (root / "train/n01440764/0.JPEG").rename(root / "train/n01443537/1.JPEG")
    with pytest.raises(UsageError, match=r"1 classes of .*train have no image .*\(n01440764\)"):
        verify(root, 1000, 1000)
    (root / "train/n01443537/1.JPEG").rename(root / "train/n01440764/0.JPEG")
    assert verify(root, 1001, 1000).overrides == ["data.train_examples=1000"]
    for split in ("train", "val"):
        (root / split / "n01440764").rename(root / split / "tench")
    with pytest.raises(
        UsageError, match=r"1 class folders are not of ILSVRC 2012 \(tench\); rename"
    ):
        verify(root, 1000, 1000)


@pytest.mark.parametrize(
    ("make", "words", "why"),
    [
        (None, [], "there is no .*train; give the folder that contains train/ and val/"),
        ("val/n02", [], r"differ in 1 classes \(n02\)"),
        (
            "val/a.JPEG",
            [],
            r"has 1 images in no class folder \(a.JPEG …\); give --val-cl",
        ),
        (
            "x.tar",
            ["--val-tar", "ROOT/x.tar"],
            "not give the class of an image; give --val-classes",
        ),
        ("ok", ["--train-tar", "nowhere.tar"], "--train-tar nowhere.tar does not exist"),
        ("ok", ["--processes", "0"], "--processes: 0 is not a whole number of 1 or more"),
        ("ok", ["--shards", "ROOT"], "is ROOT itself"),
        ("ok", ["--shards", "ROOT/val"], "itself; give a folder of its own"),
        ("ok", ["--index", "ROOT/val", "--shards", "ROOT/val"], "itself; give a folder of its own"),
        ("x.tar", ["--index", "ROOT/x.tar"], "is not a folder"),
    ],
)
def test_refusals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: str | None, words: list[str], why: str
) -> None:
    root = tmp_path / "root"
    if make:
        images(root, ["n01440764"])
        if "." in make:
            (root / make).touch()
        else:
            (root / make).mkdir()
    before = tree(tmp_path)
    assert main(["imagenet", str(root), *(word.replace("ROOT", str(root)) for word in words)]) == 2
    said = capsys.readouterr().err
    assert re.search(why, said), said
    assert tree(tmp_path) == before


@pytest.mark.slow
def test_the_command_imports_no_torch() -> None:
    """On whose import a help would wait for seconds."""
    loaded = "import sys, lsgd.prepare.__main__; print(*sys.modules)"
    command = [sys.executable, "-c", loaded]
    modules = subprocess.run(command, capture_output=True, text=True, timeout=900).stdout
    assert "argparse" in modules.split()
    assert "torch" not in modules.split()


def test_two_at_once_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each would take what the other has half written for whole."""
    images(tmp_path / "root", ["n01440764"])
    with locked_folder(tmp_path / "root"):
        assert main(["imagenet", str(tmp_path / "root")]) == 2
    assert "another process is preparing" in capsys.readouterr().err
    assert main(["imagenet", str(tmp_path / "root")]) == 0


def test_the_words_at_the_end_survive_a_shell_and_hydra(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "my data,1"
    images(root, ["n01440764"])
    assert main(["imagenet", str(root)]) == 0
    ready = capsys.readouterr().out.splitlines()[-1].partition("lsgd.train ")[2]
    made = config.load_recipe([*shlex.split(ready), "workers=1", "worker_batch=2"])
    assert made.data.root == str(root)
