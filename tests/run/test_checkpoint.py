import errno
import hashlib
import io
import math
import os
import resource
import subprocess
import sys
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.checkpoints import CPU, content, learner_after, make_steps, open_once, recipe, tiny
from helpers.soak import FaultSeries
from helpers.symlinks import refuse_symlinks
from helpers.watched_disk import watched_disk
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lsgd.comm.single import SingleComm
from lsgd.errors import DivergedError, UsageError
from lsgd.learner import Learner
from lsgd.paths import existing_checkpoint
from lsgd.recipe.overrides import choices
from lsgd.recipe.retention import Retention, newest_steps
from lsgd.recipe.start_file import start_file
from lsgd.run import checkpoint
from lsgd.run.checkpoint import Checkpoint
from lsgd.start_weights import OMITTED
from lsgd.supervise.folder import newest_checkpoint, progress_marker


def same(a: Any, b: Any) -> bool:
    """Equal to the bit, tensors within dicts, lists and tuples included."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def refused_or_harmless(damaged: bytes, original: Checkpoint) -> bool:
    """Whether the file is refused by name, or all of its content is still what was saved."""
    try:
        return same(
            vars(checkpoint.decode_checkpoint(damaged, "runs/a/checkpoint.pt")), vars(original)
        )
    except UsageError as refusal:
        return "runs/a/checkpoint.pt is damaged" in str(refusal)


@pytest.mark.parametrize(
    "word", ["optim.equation=10", *(f"optim={name}" for name in choices("optim"))]
)
def test_a_learner_is_restored_bit_by_bit(tmp_path: Path, word: str) -> None:
    """After two real steps; and both then make the same third one."""
    made = recipe(word, "workers_per_pass=2")

    learner, other = learner_after(made, 0, 2), Learner(made, SingleComm(), CPU)
    learner.epoch_metrics[1] = {"val_top1_error": 12.5}
    saved = learner.checkpoint()
    loaded = checkpoint.decode_checkpoint(content(saved, tmp_path), "a")
    assert same(vars(loaded), vars(saved))
    assert (loaded.step, loaded.epoch, loaded.lr) == (2, 0, made.lr(1))
    assert loaded.fingerprint == made.fingerprint
    other.restore(loaded)
    assert same(vars(other.checkpoint()), vars(saved))
    make_steps(learner, 2, 3)
    make_steps(other, 2, 3)
    assert same(vars(other.checkpoint()), vars(learner.checkpoint()))
    assert not same(other.checkpoint().model, loaded.model)


def test_the_epochs_left_are_those_that_have_not_ended() -> None:
    """Whatever their number: one may have been left in its evaluation, with no step to make."""
    learner = Learner(
        recipe("epochs=4", "schedule.milestones=[3]", "schedule.warmup=none"), SingleComm(), CPU
    )
    steps = learner.recipe.steps_per_epoch
    assert [epoch for epoch, _ in learner.remaining_epochs()] == [0, 1, 2, 3]
    learner.epoch_metrics[1], learner.strategy.next_step = {}, 2 * steps
    left = list(learner.remaining_epochs())
    assert [epoch for epoch, _ in left] == [1, 2, 3]
    assert [len(each) for _, each in left] == [0, steps, steps]
    learner.epoch_metrics |= {2: {}, 4: {}}
    learner.strategy.next_step += 1
    ((epoch, rest),) = learner.remaining_epochs()
    assert (epoch, rest) == (2, list(range(2 * steps + 1, 3 * steps)))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_resume_may_change_the_layout(tmp_path: Path, optimizer: str) -> None:
    """channels_last is execution; a fused update walks memory, so momentum has to follow."""
    words = [f"optim={optimizer}", "precision=float64"]
    plain, other = (recipe(*words, f"channels_last={value}") for value in ("false", "true"))
    learner = learner_after(plain, 0, 2)
    saved = checkpoint.decode_checkpoint(content(learner.checkpoint(), tmp_path), "a")
    assert plain.fingerprint == other.fingerprint
    switched = Learner(other, SingleComm(), CPU)
    switched.restore(saved)
    make_steps(switched, 2, 4)
    make_steps(learner, 2, 4)
    torch.testing.assert_close(
        switched.model.state_dict(), learner.model.state_dict(), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize(
    ("optimizer", "what"),
    [
        *(("sgd", what) for what in ("flag", "parameter", "statistic", "momentum_buffer")),
        *(("adam", what) for what in ("exp_avg_sq", "step")),
    ],
)
def test_nothing_is_saved_that_is_not_finite(optimizer: str, what: str, value: float) -> None:
    learner = learner_after(recipe(f"optim={optimizer}"), 0, 1)
    strategy = learner.strategy
    (running,) = strategy.carried_states
    places = {"parameter": learner.model.fc.bias.data, "statistic": running.share}
    learner.checkpoint()
    if what == "flag":
        strategy.reducer.found_inf.fill_(1)
        strategy.guard.watch(1)
    else:
        of_optimizer = next(iter(strategy.optimizer.state.values()))
        (places | of_optimizer)[what].view(-1)[-1] = value
    with pytest.raises(DivergedError, match="is not finite"):
        learner.checkpoint()


def test_buffers_of_any_kind_are_saved() -> None:
    """An own network may have an empty one, unsigned ones, or complex factors."""
    learner = Learner(recipe(), SingleComm(), CPU)
    learner.model.register_buffer("none", torch.empty(0, 3))
    learner.model.register_buffer("table", torch.tensor([0, 65535], dtype=torch.uint16))
    learner.model.register_buffer("factors", torch.polar(torch.ones(4), torch.arange(4.0)))
    saved = learner.checkpoint()
    assert saved.model["factors"].is_complex()
    assert saved.model["table"].tolist() == [0, 65535]
    learner.model.factors[1] = complex(1, math.nan)
    with pytest.raises(DivergedError, match="is not finite"):
        learner.checkpoint()


def test_another_order_of_examples_is_refused() -> None:
    """Of a version of lsgd or numpy which would go through the rest of the epoch differently."""
    learner = Learner(recipe(), SingleComm(), CPU)
    with pytest.raises(UsageError, match="epoch 0 in an order that this version"):
        learner.restore(replace(learner.checkpoint(), order="another"))


def test_a_checkpoint_is_read_without_running_code(tmp_path: Path) -> None:
    """What pickle would execute is refused, and not executed."""

    class Malicious:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "executed"),)

    saved = content(replace(tiny(), recipe={"name": Malicious()}), tmp_path)
    with pytest.raises(UsageError, match="runs/a is damaged or not a checkpoint") as refusal:
        checkpoint.decode_checkpoint(saved, "runs/a")
    assert not (tmp_path / "executed").exists()
    # torch's own words are how to load it all the same.
    assert "could run code" in str(refusal.value)
    assert "weights_only" not in str(refusal.value)


def test_a_number_of_numpy_is_left_out_and_not_made() -> None:
    """By a dtype that a hostile file describes, numpy's own function reads any address."""

    class Described:
        def __reduce__(self) -> tuple[Any, ...]:
            state = (3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 0)
            return np.dtype, ("V8",), state

    class Number:
        def __reduce__(self) -> tuple[Any, ...]:
            return np.float64(0).__reduce__()[0], (Described(), b"A" * 8)

    torch.save({"w": torch.ones(2), "metric": Number()}, file := io.BytesIO())
    with pytest.raises(ValueError, match="it contains numpy"):
        checkpoint.load_numbers(file.getvalue())
    loaded = checkpoint.load_numbers(file.getvalue(), omitted=OMITTED)
    assert torch.equal(loaded["w"], torch.ones(2))
    assert not isinstance(loaded["metric"], np.generic)


def test_a_small_file_does_not_become_a_large_one(tmp_path: Path) -> None:
    """By strides of 0, or compressed."""
    vast = torch.zeros(1).expand(10**11)
    saved = content(replace(tiny(), model={"weight": vast}), tmp_path)
    with pytest.raises(UsageError, match=r"shape \(100000000000,\) is larger than the file"):
        checkpoint.decode_checkpoint(saved, "runs/a")
    stored, packed = io.BytesIO(), io.BytesIO()
    torch.save(torch.zeros(10**6), stored)
    with zipfile.ZipFile(stored) as plain, zipfile.ZipFile(packed, "w", 8) as deflated:
        for name in plain.namelist():
            deflated.writestr(name, plain.read(name))
    with pytest.raises(ValueError, match="bytes unpacked"):
        checkpoint.load_numbers(packed.getvalue())


@pytest.mark.parametrize("at", [4, 6, 8])
def test_a_zip_that_cannot_be_listed_is_no_traceback(at: int) -> None:
    """A later version of the form, or a broken header, at these bytes of an entry."""
    file = io.BytesIO()
    torch.save({"w": torch.zeros(2)}, file)
    content = bytearray(file.getvalue())
    entry = content.index(b"PK\1\2")
    content[entry + at - 2 : entry + at + 2] = b"\xff\xff\xff\xff"
    with pytest.raises(ValueError, match=r"it is not a (complete zip archive|file of torch.save)"):
        checkpoint.load_numbers(bytes(content))


def test_another_content_is_refused(tmp_path: Path) -> None:
    """Of torch.save, of a checkpoint with a field of another type, and of no such file at all."""
    contents = [b"", b"hello\n", b"PK\x05\x06" + bytes(18)]
    for values in ([1, 2], {}, {"format": 2, "step": 3}):
        archive = io.BytesIO()
        torch.save(values, archive)
        contents.append(archive.getvalue() + hashlib.sha256(archive.getvalue()).digest())
    odd: Any = "much"
    contents.append(content(replace(tiny(), recipe=odd), tmp_path))
    for each in contents:
        with pytest.raises(UsageError, match="runs/a is damaged or not a checkpoint"):
            checkpoint.decode_checkpoint(each, "runs/a")


def test_a_newer_lsgd_is_named_and_its_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is whole, and must not be set aside as damaged for an older one to take over."""
    made = replace(recipe(), run_dir=str(tmp_path))
    checkpoint.write(replace(Learner(made, SingleComm(), CPU).checkpoint(), step=0), tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT", 99)
        checkpoint.write(tiny(1), tmp_path)
    with pytest.raises(UsageError, match=r"checkpoint-1\.pt was written by a newer .*of format 99"):
        open_once(made)
    with monkeypatch.context() as patch:
        fields = vars(tiny(1)) | {"averages": 1, "trace": 2}
        patch.setattr(checkpoint, "vars", lambda _: fields, raising=False)
        checkpoint.write(tiny(1), tmp_path)
    with pytest.raises(UsageError, match=r"\(it has averages, trace\); resume with that version"):
        open_once(made)
    assert not list(tmp_path.glob("*.damaged"))


@given(st.data())
def test_a_damaged_range_is_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A byte that has changed, zeros where a disk lost a block, an end cut off, more inserted."""
    original = tiny()
    whole = content(original, tmp_path_factory.mktemp("run"))
    begin = data.draw(st.integers(0, len(whole) - 1))
    end = data.draw(st.integers(begin + 1, len(whole)))
    other = bytes([whole[begin] ^ data.draw(st.integers(1, 255))])
    assert refused_or_harmless(whole[:begin] + other + whole[begin + 1 :], original)
    zeros = whole[:begin] + bytes(end - begin) + whole[end:]
    assert refused_or_harmless(zeros, original)
    assert refused_or_harmless(whole[:begin], original)
    assert refused_or_harmless(whole[:begin] + data.draw(st.binary()) + whole[begin:], original)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"{tmp_path}/checkpoint.pt cannot be read"):
        checkpoint.read(tmp_path / "checkpoint.pt")


# --- Saving ----------------------------------------------------------------------------------


def test_the_file_is_on_disk_before_its_name_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And then the name is: otherwise a power cut leaves an empty file, or the old one for ever."""
    done = watched_disk(tmp_path, monkeypatch)
    checkpoint.write(tiny(), tmp_path)
    expected = [
        "sync checkpoint-3.pt.tmp",
        "move checkpoint-3.pt.tmp to checkpoint-3.pt",
        "move checkpoint.pt.tmp to checkpoint.pt",
        "sync .",
    ]
    assert done == expected


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_on_a_drive_without_symlinks_the_newest_file_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Instead of a copied link, which would be the file of another step."""
    (tmp_path / checkpoint.FILE).write_bytes(b"copied")
    refuse_symlinks(monkeypatch, number)
    assert not checkpoint.write(tiny(4), tmp_path)
    assert not checkpoint.write(tiny(5), tmp_path, best_first=[4])
    assert not checkpoint.write(tiny(10), tmp_path, best_first=[4, 10], keep=newest(1))
    assert file_names(tmp_path) == ["checkpoint-10.pt", "checkpoint-4.pt"]
    newest_file = tmp_path / "checkpoint-10.pt"
    assert existing_checkpoint(tmp_path / checkpoint.FILE) == newest_file
    assert start_file(str(tmp_path)) == start_file(f"{tmp_path}/checkpoint.pt") == newest_file
    status = newest_file.stat()
    assert newest_checkpoint(tmp_path) == (status.st_ino, status.st_size, status.st_mtime_ns)
    assert len(progress_marker(tmp_path)) == 1
    assert existing_checkpoint(tmp_path / "gone/checkpoint.pt").parent.name == "gone"
    assert existing_checkpoint(tmp_path / "best.pt") == tmp_path / "best.pt"


def test_a_full_disk_is_no_drive_without_symlinks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.write(tiny(4), tmp_path)
    refuse_symlinks(monkeypatch, errno.ENOSPC)
    with pytest.raises(OSError, match="refused"):
        checkpoint.write(tiny(5), tmp_path)
    assert os.readlink(tmp_path / checkpoint.FILE) == "checkpoint-4.pt"


def test_the_newest_stay_and_every_milestone(tmp_path: Path) -> None:
    for step in (2, 9, 10, 11, 100):
        checkpoint.write(tiny(step), tmp_path, milestone=step in (2, 10))
        assert (
            checkpoint.decode_checkpoint(checkpoint.read(tmp_path / checkpoint.FILE), "a").step
            == step
        )
    assert [path.name for path in checkpoint.checkpoint_files(tmp_path)] == [
        "checkpoint-100.pt", "checkpoint-11.pt", "milestone-10.pt", "milestone-2.pt"
    ]  # fmt: skip
    assert os.readlink(tmp_path / checkpoint.FILE) == "checkpoint-100.pt"


def newest(count: int) -> Retention:
    return partial(newest_steps, count=count)


def file_names(folder: Path) -> list[str]:
    return [path.name for path in checkpoint.checkpoint_files(folder)]


def test_the_best_stays_until_another_is_better(tmp_path: Path) -> None:
    best_first = {1: [1], 2: [2, 1], 3: [2, 1, 3], 4: [2, 1, 3], 5: [2, 1, 3, 5], 6: [6, 2, 1]}
    best = []
    for step, ranked in best_first.items():
        checkpoint.write(tiny(step), tmp_path, keep=newest(1), best_first=ranked)
        best.append(os.readlink(tmp_path / checkpoint.BEST))
    assert best == ["checkpoint-1.pt", *["checkpoint-2.pt"] * 4, "checkpoint-6.pt"]
    assert file_names(tmp_path) == ["checkpoint-6.pt"]
    assert os.readlink(tmp_path / checkpoint.FILE) == "checkpoint-6.pt"


def test_the_best_whose_file_is_lost_gives_way_to_the_next(tmp_path: Path) -> None:
    """Step 2 was not written, on a full disk; and a kill came between the file of 3 and its link.

    Without keep_best, what was the best stays where the link leads.
    """
    checkpoint.write(tiny(1), tmp_path, keep=newest(1), best_first=[1])
    checkpoint.write(tiny(3), tmp_path, keep=newest(2))
    checkpoint.write(tiny(4), tmp_path, keep=newest(1), best_first=[2, 3, 1, 4])
    assert os.readlink(tmp_path / checkpoint.BEST) == "checkpoint-3.pt"
    for step in (5, 6):
        checkpoint.write(tiny(step), tmp_path, keep=newest(1))
    assert file_names(tmp_path) == ["checkpoint-6.pt", "checkpoint-3.pt"]


def test_the_best_of_a_step_is_the_checkpoint_with_its_evaluation(tmp_path: Path) -> None:
    checkpoint.write(tiny(2), tmp_path)
    checkpoint.write(tiny(2), tmp_path, milestone=True, best_first=[2])
    assert os.readlink(tmp_path / checkpoint.BEST) == "milestone-2.pt"


def test_only_checkpoints_that_are_not_kept_are_deleted(tmp_path: Path) -> None:
    """A user's files stay, and the checkpoint just written, even beside one of a later step."""
    users = ["best.pt", "checkpoint-2-copy.pt", "checkpoint-2.pt.bak", "milestone-1.pt"]
    for name in [*users, "checkpoint-2.pt", "checkpoint-8.pt", "checkpoint-9.pt"]:
        (tmp_path / name).write_text("mine")
    checkpoint.write(tiny(5), tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        *users,
        "checkpoint-5.pt",
        "checkpoint-8.pt",
        "checkpoint-9.pt",
        "checkpoint.pt",
    }


def test_of_one_step_the_milestone_is_the_newer_one(tmp_path: Path) -> None:
    """A run left in an evaluation has saved the step before without it."""
    checkpoint.write(tiny(2), tmp_path)
    checkpoint.write(tiny(2), tmp_path, milestone=True)
    assert [path.name for path in checkpoint.checkpoint_files(tmp_path)] == [
        "milestone-2.pt", "checkpoint-2.pt"
    ]  # fmt: skip


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    """Full after 1000 bytes, that is, by the limit on the size of a file."""
    old = tiny(step=3)
    checkpoint.write(old, tmp_path)
    before = sorted(tmp_path.iterdir())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            checkpoint.write(tiny(step=4), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(tmp_path.iterdir()) == before
    kept = checkpoint.decode_checkpoint(checkpoint.read(tmp_path / checkpoint.FILE), "a")
    assert same(vars(kept), vars(old))


SAVES = """
import os, random, signal, sys, time, torch
from dataclasses import replace
from functools import partial
from pathlib import Path
from lsgd.run import checkpoint

torch.set_num_threads(1)
folder, kills, draw = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
link, last, torn = folder / checkpoint.FILE, 0, 0
for kill in range(kills):
    saved = checkpoint.decode_checkpoint(checkpoint.read(link), "the newest")
    child = os.fork()
    while not child:
        step = saved.step + 1
        saved = replace(saved, step=step, model={"w": torch.full((500_000,), float(step))})
        checkpoint.write(saved, folder)
    time.sleep(draw.uniform(0, 0.15))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    for path in [link, *checkpoint.checkpoint_files(folder)]:
        whole = checkpoint.decode_checkpoint(checkpoint.read(path), str(path))
        saved_here = torch.full((500_000,), float(whole.step))
        assert torch.equal(whole.model["w"], saved_here) or not whole.step
    newest = checkpoint.read(checkpoint.checkpoint_files(folder)[0])
    newest = checkpoint.decode_checkpoint(newest, "the newest").step
    before = max(0, newest - 1)  # on a busy machine a kill may come before the first save
    linked = checkpoint.decode_checkpoint(checkpoint.read(link), "link").step
    assert last <= before <= linked <= newest
    last, torn = before, torn + any(folder.glob("*.tmp"))
print(kills, "kills", last, "saves", torn, "within one")
"""


@pytest.mark.slow
@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.soak)])
def test_a_kill_while_saving_leaves_whole_checkpoints(
    tmp_path: Path, kills: int, soak: FaultSeries
) -> None:
    """All files that have their name are whole, and the link leads to one of the newest two."""
    checkpoint.write(tiny(step=0), tmp_path)
    arguments = [str(tmp_path), str(kills), str(soak.seed)]
    done = subprocess.run(
        [sys.executable, "-c", SAVES, *arguments], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    soak.note(f"- kill -9 while saving: {done.stdout.strip()}, none damaged")
