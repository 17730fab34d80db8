"""One trajectory: any number of processes, any workers per pass, any restart; to 1e-10 in float64.

A run of each workload, and of each strategy whose order of updates is known, is left within an
epoch by three processes and goes on by one, and the other way round: all of them in one launch.
tests/workloads and tests/strategy have the rules, and threads that play the processes;
test_launchers.py has the launchers and libraries.
"""

import json
import signal
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from helpers.capabilities import require_capability
from helpers.differences import distance
from helpers.joined_run import (
    compose_once,
    early_ends,
    step_with_signal,
    train_with_comm,
    write_ends,
)
from helpers.launching import launch
from helpers.reference_run import WORDS, assert_equal, assert_equal_rows, newest_checkpoint, rows

from lsgd.comm import Comm, joined
from lsgd.comm.single import SingleComm
from lsgd.errors import PeerLostError
from lsgd.recipe import CommSettings

pytestmark = [pytest.mark.distributed, pytest.mark.side_by_side]
PROCESSES = 3
FINISHED = Path(__file__).parents[1] / "fixtures/0.1/finished"
"""A run folder of lsgd 0.1 with the network of the digits."""
ANY = [
    "precision=float64", "device=cpu", "log_steps=1", "inputs=synthetic", "epochs=2", "tail=keep",
    "schedule.reference_batch=8", "evaluation.every=0.3",
]  # fmt: skip
# 8 steps an epoch; the last is of 4 + 4 + 3 + 0 + 0 images.
IMAGES = [
    "+recipe=digits", *ANY, "workers=5", "worker_batch=4", "data.train_examples=151",
    "data.val_examples=13", "schedule.milestones=[1]", "schedule.warmup_epochs=0.5",
    "model.last_gamma=1.0",
]  # fmt: skip
# 7 steps an epoch; the last is of 2 + 2 + 2 + 0 examples. Words and features are dropped.
SENTENCES = [
    *ANY, "workers=4", "worker_batch=2", "model.embedding=6", "model.width=5",
    "data.train_examples=54", "data.val_examples=9", "data.test_examples=7", "data.words=40",
]  # fmt: skip
# 5 windows of 16 streams, and evaluation streams of different lengths.
LANGUAGE = [
    "+recipe=ptb_small", *[word for word in ANY if "tail" not in word], "workers=8",
    "worker_batch=2", "data.window=6", "data.train_examples=501", "data.val_examples=57",
    "data.test_examples=50", "data.classes=20", "data.eval_streams=3", "model.embedding=7",
    "model.width=12", "schedule.milestones=[1]",
]  # fmt: skip
# 4 steps an epoch; the last is of 2 + 2 + 2 + 0 images.
LIBRARY = [
    "+recipe=bs256", *ANY, "data=tiny_imagenet", "data.train_examples=30", "data.val_examples=5",
    "data.classes=20", "data.image_size=48", "workers=4", "worker_batch=2", "epochs=2",
    "schedule.milestones=[]", "schedule.warmup=none", "schedule.reference_lr=0.01",
]  # fmt: skip
SERVERS = ["strategy=sync", "strategy.servers=3"]
KINDS = {
    # From lr 0 and down by a polynomial, with smoothed labels, and losses weighted by class.
    "lars": [
        *IMAGES, "data.balance=weights", "optim=lars", "optim.weight_decay=1e-3",
        "label_smoothing=0.1",
        "schedule.scaling=none", "schedule.reference_lr=2", "schedule.warmup_start=0",
        "schedule.milestones=[]", "schedule.decay=polynomial", "schedule.end_lr=1e-4",
        "schedule.decay_steps=16",
    ],
    # 10 workers in the second epoch; averages are evaluated, with precise BN statistics. LAMB
    # counts its updates.
    "growing": [
        *IMAGES, "batch_growth.milestones=[1]", "batch_growth.factor=2", "averaging=ema",
        "averaging.half_life=5", "bn_statistics.examples=100", "optim=lamb",
        "optim.bias_correction=true", "schedule.reference_lr=0.005",
    ],
    # Fewer workers in the second epoch, of more images, which are larger; the lr jumps there.
    "phases": [
        *IMAGES, "schedule=points", "schedule.milestones=[]",
        "schedule.points=[[0,0.01],[1,0.1],[1,0.05],[2,0]]", "batch_schedule=[[1,3,8]]",
        "image_sizes.points=[[0,8],[1,12]]", "loss=bce", "label_smoothing=0.1",
        "optim.decay=decoupled", "model.blurpool=all",
    ],
    "language": LANGUAGE,
    "tagging": ["+recipe=conll_bilstm_crf", *SENTENCES, "model.dropout=0.5"],
    "trees": ["+recipe=sst_treelstm", *SENTENCES],
    # Images of a worker are mixed, by either method.
    "library": [*LIBRARY, "model=timm/test_resnet", "data.mixup=0.4", "data.cutmix=1"],
    # No BN, blocks that are skipped by example, and the decay of networks that are trained so.
    # Images are drawn by class, some several times an epoch.
    "library without BN": [
        *LIBRARY, "model=timm/test_convnext", "model.options.drop_path_rate=0.2", "optim=adamw",
        "schedule.reference_lr=0.001", "data.balance=sampler",
    ],
    # From trained weights, of which the first layers stay and the last one is new. Half of an
    # update is RMSprop's in the first epoch, and a tenth in the second one.
    "fine-tuned": [
        *IMAGES, f"model.start={FINISHED}", "model.new_head=true",
        "model.frozen=[conv1,bn1,layer1]", "optim=rmsprop_warmup", "optim.beta_center=0",
        "optim.beta_period=2.5",
    ],
    "servers": [*IMAGES, *SERVERS, "strategy.placement=round_robin"],
    "rows": [
        "+recipe=conll_bilstm", *SENTENCES, "optim=sgd", "optim.momentum=0", "optim.nesterov=false",
        "optim.weight_decay=0", "schedule.reference_lr=0.3", *SERVERS, "strategy.sparse_rows=true",
    ],
    "local": [
        *IMAGES, "strategy=local", "strategy.local_steps=3", "strategy.outer=nesterov",
        "strategy.outer_lr=0.7", "strategy.outer_momentum=0.9",
    ],
    "elastic": [
        *IMAGES, "strategy=local", "strategy.local_steps=3", "strategy.outer=elastic",
        "strategy.moving_rate=0.15",
    ],
    "replayed": [
        *IMAGES, "workers_per_pass=1", "strategy=async", "strategy.servers=3",
        "strategy.topology=colocated", "cluster.spread=0.7", "cluster.worker_gbits=0.02",
    ],
}  # fmt: skip
"""The words of each kind of run."""
LEFT, KILLED = 4, "servers"
"""The step of a run in which the last process is told to leave or is killed; and the kind of the
run in which it is killed."""
BY_ALLREDUCE = dict.fromkeys(("servers", "rows"), "strategy=allreduce")
"""What one process makes of a kind instead, with what it then has to be equal to."""


def run(
    comm: Comm, folder: Path, kind: str, *, begin_with: Path | None = None,
    signal_: signal.Signals | None = None,
) -> str:  # fmt: skip
    """Train in this folder, or go on there from that one's state; how it ended, if early."""
    put: dict[str, object] = {}
    if signal_ and comm.rank == comm.world_size - 1:
        put["lsgd.train.train_step"] = step_with_signal(LEFT, signal_)
    words = KINDS[kind]
    if comm.world_size == 1 and kind in BY_ALLREDUCE:
        words = [word for word in words if not word.startswith("strategy")] + [BY_ALLREDUCE[kind]]
    return train_with_comm(comm, compose_once(comm, folder, *words), put, begin_with)


def main(out: Path, *kinds: str) -> None:
    """All runs, on every process of a job; its last one is lost at the end."""
    with joined(CommSettings(timeout=600), torch.device("cpu")) as comm:
        ends = {}
        for kind in kinds:
            ends[f"{kind} left"] = run(comm, out / f"{kind} left", kind, signal_=signal.SIGTERM)
            left = out.parent / "alone" / f"{kind} left"
            ends[kind] = run(comm, out / kind, kind, begin_with=left)
        write_ends(comm, out, ends)
        # Or the launcher would end the others before they have said anything.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            run(comm, out / "killed", KILLED, signal_=signal.SIGKILL)
        except PeerLostError as lost:
            (out / f"lost-{comm.rank}.json").write_text(json.dumps(str(lost)))
            raise


@pytest.fixture(scope="module")
def alone(folder: Path) -> Callable[[str], Path]:
    """The folder of a run that one process makes, when it is first asked for."""

    @cache
    def made(name: str) -> Path:
        kind = name.removesuffix(" left")
        number = signal.SIGTERM if kind != name else None
        run(SingleComm(), folder / "alone" / name, kind, signal_=number)
        return folder / "alone" / name

    return made


@pytest.fixture(scope="module")
def together(folder: Path, alone: Callable[[str], Path]) -> Path:
    """The folder of all runs of three processes."""
    kinds = [kind for kind in KINDS if kind not in without_timm()]
    for kind in kinds:
        alone(f"{kind} left")
    (out := folder / "together").mkdir()
    done = launch("forked", PROCESSES, __file__, str(out), *kinds, limit=3600)
    # The launcher says so of the process that is killed when all else is done.
    assert "SIGKILL" in done.stderr, done.stdout[-3000:] + done.stderr[-3000:]
    return out


def without_timm() -> set[str]:
    """The kinds that cannot be made where timm is not installed."""
    try:
        require_capability("timm")
    except pytest.skip.Exception:
        return {kind for kind, words in KINDS.items() if any("timm/" in word for word in words)}
    return set()


@pytest.mark.parametrize(("processes", "workers_per_pass"), [(1, 2), (2, 1), (8, 16)])
def test_any_number_of_processes_and_of_workers_per_pass(
    undisturbed: Path, tmp_path: Path, processes: int, workers_per_pass: int
) -> None:
    words = [*WORDS, f"workers_per_pass={workers_per_pass}", f"run_dir={tmp_path}"]
    done = launch("forked", processes, "-m", "lsgd.train", *words)
    assert done.returncode == 0, done.stderr
    assert_equal(tmp_path, undisturbed)


def assert_the_same_run(one: Path, other: Path) -> None:
    """Every row once; and the last state, with momentum and all that workers carry."""
    for kind in ("train", "evaluation", "epoch"):
        assert_equal_rows(rows(one, kind), rows(other, kind))
    ours, theirs = newest_checkpoint(one), newest_checkpoint(other)
    assert distance(ours, theirs) < 1e-10
    assert ours.rates[2] == pytest.approx(theirs.rates[2], rel=1e-10)
    assert ours.evaluations.keys() == theirs.evaluations.keys()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of run in turn."""
    if request.param in without_timm():
        require_capability("timm")
    return request.param


def test_all_leave_within_the_epoch_and_one_goes_on(
    alone: Callable[[str], Path], together: Path, tmp_path: Path, kind: str
) -> None:
    """It is the last process that is told; a second signal later would find them gone."""
    left = together / f"{kind} left"
    (end,) = early_ends(together, left.name)
    step = newest_checkpoint(left).step
    assert end.startswith(f"PreemptedError: preempted by a signal: saved after step {step};")
    assert LEFT < step < newest_checkpoint(alone(kind)).step
    assert run(SingleComm(), tmp_path / "on", kind, begin_with=left) == ""
    assert_the_same_run(tmp_path / "on", alone(kind))


def test_what_one_process_has_left_is_taken_over(
    alone: Callable[[str], Path], together: Path, kind: str
) -> None:
    assert early_ends(together, kind) == {""}
    assert_the_same_run(together / kind, alone(kind))


def test_a_job_records_how_long_it_waits_for_other_processes(
    alone: Callable[[str], Path], together: Path, kind: str
) -> None:
    assert 0 < rows(together / kind, "epoch")[-1]["communication_wait"] < 1
    assert "communication_wait" not in rows(alone(kind), "epoch")[-1]


def test_the_runs_learn_something(alone: Callable[[str], Path], kind: str) -> None:
    """Else nothing that is equal would say much."""
    first, last = rows(alone(kind), "epoch")
    assert last["train_loss"] < first["train_loss"]


def test_a_process_that_is_killed_is_missed_by_all(together: Path) -> None:
    paths = sorted(together.glob("lost-*.json"))
    assert len(paths) == PROCESSES - 1
    for path in paths:
        assert "another process has exited" in json.loads(path.read_text())


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
