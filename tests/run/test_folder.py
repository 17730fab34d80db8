import errno
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from helpers.checkpoints import content, open_once, recipe, tiny
from helpers.symlinks import refuse_symlinks
from helpers.watched_disk import watched_disk

from lsgd import config
from lsgd.comm.elastic import ElasticTorchComm
from lsgd.comm.single import SingleComm
from lsgd.errors import NotSavedError, UsageError
from lsgd.recipe.agreement import shared_fields
from lsgd.run import checkpoint, lock
from lsgd.run import folder as run_folder
from lsgd.run.folder import OpenRun, open_run
from lsgd.trained_model import load_trained


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


@pytest.mark.parametrize("left", [None, [], ["job.lock", "config.yaml.tmp"], [".DS_Store"]])
def test_an_empty_or_new_folder_starts_a_run(
    tmp_path: Path, left: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does that of a run that died while it wrote its configuration."""
    monkeypatch.setattr(lock, "WATCH", 0.1)
    folder = tmp_path / "runs" / "a"
    for name in left or []:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("# finge"[: 7 * (name != "job.lock")])
    if left == []:
        folder.mkdir(parents=True)
    made = recipe(f"run_dir={folder}")
    assert open_once(made) == OpenRun(folder)
    hidden = {".DS_Store"} & {*(left or [])}
    assert {path.name for path in folder.iterdir()} == {"config.yaml", *hidden}
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
    execution = {
        "workers_per_pass": 16, "channels_last": False, "threads": None, "compile": False
    }  # fmt: skip
    assert opened == OpenRun(tmp_path, saved, path, execution=execution)
    assert listing(tmp_path) | {".": before["."]} == before


def test_a_restarted_process_begins_at_no_checkpoint_whose_evaluation_is_still_to_end(
    tmp_path: Path,
) -> None:
    """It has no steps left of that epoch, and would evaluate alone while the others do."""
    made = recipe(f"run_dir={tmp_path}")
    first = OpenRun(tmp_path, shared=shared_fields(made))
    assert run_folder._restart_point(made, tmp_path) == first
    identity = {"fingerprint": made.fingerprint, "recipe": asdict(made)}
    for step, epochs in {3: 0, made.first_step(1): 1, made.total_steps: made.epochs}.items():
        for ended in {max(0, epochs - 1), epochs}:
            rates = {epoch + 1: {"train_loss": 1.0} for epoch in range(ended)}
            content(replace(tiny(step), **identity, rates=rates), tmp_path)
            point = run_folder._restart_point(made, tmp_path)
            assert (point is None) == (ended < epochs)
            assert point is None or point.checkpoint_path.endswith(f"-{step}.pt")


def test_a_restarted_process_with_another_recipe_is_refused(tmp_path: Path) -> None:
    """By what the answer of process 0 has of its recipe; it prints that itself and leaves alone."""

    restarted = object.__new__(ElasticTorchComm)
    point = partial(run_folder._restart_point, recipe(), tmp_path)
    restarted.__dict__ |= {
        "process": 3, "rank": 3, "world_size": 4, "library": "torch", "restart_count": 1,
        "is_outside_group": True, "query_process_0": point,
    }  # fmt: skip
    with open_run(recipe("device=cpu"), restarted) as opened:
        assert opened.folder == tmp_path
    said = "process 3 has restarted and has seed=4 and process 0 has seed=0; start all processes of"
    with pytest.raises(UsageError, match=said) as caught, open_run(recipe("seed=4"), restarted):
        raise AssertionError
    assert caught.value.is_local


def test_a_run_that_died_before_its_first_checkpoint_starts_again(tmp_path: Path) -> None:
    made = recipe(f"run_dir={tmp_path}")
    open_once(made)
    (tmp_path / "checkpoint-5.pt.tmp").write_bytes(b"half")
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    assert open_once(made) == OpenRun(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "metrics.jsonl"]


@pytest.mark.parametrize("left", [b"", bytes(300)])
@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_a_configuration_that_a_power_failure_has_emptied_is_written_again(
    tmp_path: Path, with_checkpoint: bool, left: bytes
) -> None:
    saved = saved_run(tmp_path)
    if not with_checkpoint:
        (tmp_path / checkpoint.FILE).unlink()
        (tmp_path / "checkpoint-3.pt").unlink()
    (tmp_path / "metrics.jsonl").write_text("")
    (tmp_path / "config.yaml").write_bytes(left)
    made = recipe(f"run_dir={tmp_path}")
    assert open_once(made).content == (saved if with_checkpoint else None)
    assert config.read_recipe(tmp_path / "config.yaml") == made


def test_on_a_drive_without_symlinks_a_run_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_symlinks(monkeypatch, errno.EPERM)
    made = recipe(f"run_dir={tmp_path}")
    open_once(made)
    checkpoint.write(replace(tiny(3), fingerprint=made.fingerprint, recipe=asdict(made)), tmp_path)
    opened = open_once(made)
    assert opened.checkpoint_path == f"{tmp_path}/checkpoint-3.pt"
    assert not (tmp_path / checkpoint.FILE).exists()
    for path in (tmp_path, tmp_path / checkpoint.FILE):
        assert load_trained(path, [], remedy="")[1].step == 3


def test_the_configuration_is_on_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = watched_disk(tmp_path, monkeypatch)
    open_once(recipe(f"run_dir={tmp_path}"))
    assert done == ["sync config.yaml.tmp", "move config.yaml.tmp to config.yaml", "sync ."]


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
    with pytest.raises(UsageError, match=expected):
        open_once(other)
    assert listing(tmp_path) == before


TWO_EPOCHS = ["epochs=2", "schedule.milestones=[1]", "schedule.warmup=none"]


def test_a_longer_run_of_the_same_past_goes_on(tmp_path: Path) -> None:
    """Again, too, if it died before it saved; its configuration becomes that of the longer run."""
    saved = saved_run(tmp_path, *TWO_EPOCHS, step=180)
    longer = recipe(*TWO_EPOCHS, "epochs=4", f"run_dir={tmp_path}")
    for _ in range(2):
        opened = open_once(longer)
        assert (opened.content, opened.checkpoint_path) == (saved, f"{tmp_path}/checkpoint-180.pt")
        assert opened.warning == "the run had epochs=2 and is extended to epochs=4"
        assert config.read_recipe(tmp_path / "config.yaml") == longer
    shorter = recipe(*TWO_EPOCHS, f"run_dir={tmp_path}")
    assert open_once(shorter).warning == ""
    assert config.read_recipe(tmp_path / "config.yaml") == shorter


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (
            ["schedule.milestones=[2]"],
            "with epochs=2 at step 180, which cannot be extended to epochs=",
        ),
        (
            ["schedule.milestones=[2]"],
            "4: step 90 had lr 0.005, and .* 0.05 with .*; write another run_d",
        ),
        (["seed=1"], "holds another run at step 180 .* with epochs=2 seed=0, this .* seed=1"),
        (["epochs=1", "schedule.milestones=[]"], "holds another run at step 180"),
    ],
)
def test_a_longer_run_of_another_past_is_refused(
    tmp_path: Path, words: list[str], refusal: str
) -> None:
    saved_run(tmp_path, *TWO_EPOCHS, step=180)
    before = listing(tmp_path)
    with pytest.raises(UsageError, match=refusal):
        open_once(recipe(*TWO_EPOCHS, "epochs=4", *words, f"run_dir={tmp_path}"))
    assert listing(tmp_path) == before


def test_a_library_s_network_of_an_earlier_lsgd_is_refused_with_the_reason(tmp_path: Path) -> None:
    made = recipe("model=timm/convnext_atto", f"run_dir={tmp_path}")
    content(replace(tiny(3), fingerprint=made.earlier_fingerprint, recipe=asdict(made)), tmp_path)
    with pytest.raises(
        UsageError, match="of model=timm/convnext_atto at step 3 that an earlier lsgd"
    ):
        open_once(made)


@pytest.mark.parametrize(
    ("network", "alike"),
    [
        ("small_resnet", True),
        ("torchvision/resnet18", True),
        ("torchvision/wide_resnet50_2", True),
        ("timm/resnext50_32x4d", True),
        ("timm/resnetv2_50", False),
        ("torchvision/vit_b_16", False),
    ],
)
def test_the_fingerprint_of_a_network_that_goes_as_it_did_stays(network: str, alike: bool) -> None:
    made = recipe(f"model={network}")
    assert (made.fingerprint == made.earlier_fingerprint) == alike


def test_a_rehearsal_is_named_as_what_is_there(tmp_path: Path) -> None:
    """The words of the real run differ from it in numbers that its user has never written."""
    open_once(recipe("rehearse=true", f"run_dir={tmp_path}"))
    with pytest.raises(UsageError, match=r"holds a dry run \(dry_run=true\), .* another run_dir"):
        open_once(recipe(f"run_dir={tmp_path}"))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 100)


def test_damaged_checkpoints_are_refused_and_left_alone(tmp_path: Path) -> None:
    """Never taken for a folder without one, where the run would start again."""
    saved_run(tmp_path, step=2)
    saved_run(tmp_path, step=3)
    for path in checkpoint.checkpoint_files(tmp_path):
        cut(path)
    before = listing(tmp_path)
    expected = rf"{tmp_path}/checkpoint-3.pt is damaged.*so are the 1 before it.*run_dir=PATH"
    with pytest.raises(UsageError, match=expected):
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
    assert (opened.content, opened.checkpoint_path) == (older, f"{tmp_path}/checkpoint-2.pt")
    assert f"{tmp_path}/{name} is damaged or not a checkpoint" in opened.warning
    assert "resumes from checkpoint-2.pt, at step 2, and the damaged file is" in opened.warning
    assert (tmp_path / f"{name}.damaged").read_bytes() == newer[:-100]
    assert checkpoint.read(tmp_path / checkpoint.FILE) == older
    assert open_once(made) == replace(opened, warning="")


def test_what_cannot_be_read_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drive that is away, or rights that are missing: nothing is renamed, nothing done again."""
    saved_run(tmp_path, step=2)
    saved_run(tmp_path, step=3)
    before = listing(tmp_path)

    def away(path: Path) -> BinaryIO:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(checkpoint, "open_regular", away)
    with pytest.raises(UsageError, match=r"checkpoint-3\.pt cannot be read \(Stale file handle\)"):
        open_once(recipe(f"run_dir={tmp_path}"))
    assert listing(tmp_path) == before


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
    monkeypatch.setattr(lock, "BEAT", 1000.0)  # or the time of the lock's file changes
    monkeypatch.chdir(tmp_path)
    for words in ([f"run_dir={tmp_path / 'a'}"], []):
        with open_run(recipe(*words), SingleComm()) as opened:
            before = listing(opened.folder)
            sentence = f"{opened.folder} is being written by another job .process {os.getpid()} on"
            with pytest.raises(UsageError, match=sentence):
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

    monkeypatch.setattr(lock, "hold_lock", late)
    assert open_once(recipe(f"run_dir={tmp_path}")).content == newer


def test_a_default_run_folder_behind_a_link_to_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was said to have a thousand runs of this second, as each mkdir fails."""
    monkeypatch.chdir(tmp_path)
    Path("runs").symlink_to("/gone/runs")
    with pytest.raises(UsageError, match="runs leads to /gone/runs, which does not exist"):
        open_once(recipe())


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
    assert found == [OpenRun(Path(stem + end)) for end in ("", "-2", "-3")]
    assert all((tmp_path / each.folder / "config.yaml").is_file() for each in found)


@pytest.mark.parametrize(
    ("run_dir", "why"),
    [
        ("file", r"cannot be written \(.*write run_dir=PATH"),
        ("file/below", r"cannot be written \(.*write run_dir=PATH"),
        ("null", r"cannot be written \(.*write run_dir=PATH"),
        (".", "run_dir=. holds files that are not of a run"),
    ],
)
def test_files_in_the_way_are_refused_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_dir: str, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ("runs" if run_dir == "null" else "file")).write_text("precious")
    before = listing(tmp_path)
    with pytest.raises(UsageError, match=why):
        open_once(recipe(f"run_dir={run_dir}"))
    assert listing(tmp_path) == before


@pytest.mark.parametrize("run_dir", ["null", "a/run"])
def test_a_full_disk_is_no_fault_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_dir: str
) -> None:
    monkeypatch.chdir(tmp_path)
    made = recipe(f"run_dir={run_dir}")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(
            NotSavedError, match=r"run_dir=.* could not be written .*free some space"
        ):
            open_once(made)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert open_once(made).content is None
