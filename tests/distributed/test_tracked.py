"""Runs at a real MLflow server and in wandb's files, with kills of everything that takes part."""

import json
import os
import random
import signal
import struct
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers.mlflow_server import Server, server
from helpers.run_folders import write_run
from helpers.undisturbed import WORDS, assert_equal

from lsgd.job.ending import Tag, end, tagged
from lsgd.run.read import read_run
from lsgd.run.rows import read_rows
from lsgd.run.trackers import log_of
from lsgd.track.steps import tracked_steps

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

PATIENCE = 120.0
"""Seconds for what takes a few on a machine that does nothing else."""
TRAINING = """
import sys
from lsgd.train import main
code = main(sys.argv[1:])
trackers = sorted({name.partition(".")[0] for name in sys.modules} & {"mlflow", "wandb"})
print("trackers:", trackers)
raise SystemExit(code)
"""


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server, which starts once for all tests of this file, with all their runs."""
    with server(tmp_path_factory.mktemp("mlflow") / "server") as it:
        yield it


@pytest.fixture
def mlflow(lasting: Server, request: pytest.FixtureRequest) -> Server:
    """The server, with an experiment for this test alone."""
    lasting.environment["MLFLOW_EXPERIMENT_NAME"] = request.node.name
    if lasting.process.poll() is not None:  # as a test that has failed leaves it
        lasting.start()
    return lasting


@pytest.fixture
def tag() -> Iterator[Tag]:
    """What all processes of a test have in their environment; none is left behind."""
    tag = ("LSGD_TEST_TRACKED", uuid.uuid4().hex)
    yield tag
    end(tag, 0)


def until(what: Callable[[], object]) -> None:
    begin = time.monotonic()
    while not what():
        assert time.monotonic() - begin < PATIENCE
        time.sleep(0.05)


def started(tag: Tag, environment: dict[str, str], *words: str) -> "subprocess.Popen[str]":
    """A training run by itself, which says at its end what it has imported."""
    return subprocess.Popen(
        [sys.executable, "-c", TRAINING, *words],
        env=os.environ | environment | dict([tag]),
        stdout=subprocess.PIPE,
        text=True,
    )


def track(tag: Tag, environment: dict[str, str], folder: Path, to: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "lsgd.track", str(folder), "--to", to],
        env=os.environ | environment | dict([tag]),
        stdout=subprocess.PIPE,
        text=True,
    )


def has_everything(folder: Path, tracker: str) -> bool:
    log = log_of(folder, tracker)
    return log.exists() and log.read_text().endswith(f"{tracker} has everything\n")


@contextmanager
def stopped(training: "subprocess.Popen[str]", folder: Path, after: int) -> Iterator[None]:
    """The run stands still after this step or one of the next, while its follower goes on."""
    path = folder / "metrics.jsonl"
    until(lambda: any(row["step"] >= after for row in read_rows(path)))
    training.send_signal(signal.SIGSTOP)
    yield
    training.send_signal(signal.SIGCONT)


def numbers_of(folder: Path) -> list[tuple[str, int, float]]:
    """What a tracker is to have of the run, in the order in which the server says it."""
    of_steps = tracked_steps(read_run(folder))
    return [
        (key, each.number, value) for each in of_steps for key, value in sorted(each.values.items())
    ]


@pytest.mark.mlflow
def test_a_server_that_is_killed_in_mid_run_misses_nothing(
    mlflow: Server, tag: Tag, tmp_path: Path, undisturbed: Path
) -> None:
    """And the run is the same as without it, bit by bit, and imports nothing of it."""
    folder = tmp_path / "run"
    words = [*WORDS, f"run_dir={folder}", "trackers=[mlflow]"]
    training = started(tag, mlflow.environment, *words)
    with stopped(training, folder, after=7):
        until(mlflow.metrics)
        mlflow.kill()
    says, _ = training.communicate(timeout=PATIENCE)
    assert training.returncode == 0, says
    assert "trackers: []" in says
    assert says.count("mlflow does not have everything yet") == 1
    assert_equal(folder, undisturbed, within=0)
    mlflow.start()
    until(lambda: has_everything(folder, "mlflow"))
    until(lambda: not tagged(tag))
    assert mlflow.metrics() == numbers_of(folder)
    assert mlflow.runs() == [("run", "FINISHED")]
    assert mlflow.params()["optim.momentum"] == "0.9"
    assert mlflow.tags()["outcome"].startswith("top-1 error")


@pytest.mark.mlflow
def test_a_run_that_is_killed_goes_on_in_its_tracker_run(
    mlflow: Server, tag: Tag, tmp_path: Path, undisturbed: Path
) -> None:
    """Its follower ends by itself, and no step is there twice, though some are made again."""
    folder = tmp_path / "run"
    words = [*WORDS, f"run_dir={folder}", "trackers=[mlflow]"]
    training = started(tag, mlflow.environment, *words)
    with stopped(training, folder, after=9):
        until(lambda: any(step > 8 for _, step, _ in mlflow.metrics()))
        training.kill()
    training.communicate()
    until(lambda: not tagged(tag))
    assert mlflow.runs() == [("run", "KILLED")]
    training = started(tag, mlflow.environment, *words)
    training.communicate(timeout=PATIENCE)
    until(lambda: not tagged(tag))
    assert mlflow.runs() == [("run", "FINISHED")]
    assert_equal(folder, undisturbed, within=0)
    seen, wanted = mlflow.metrics(), numbers_of(folder)
    assert [(key, step) for key, step, _ in seen] == [(key, step) for key, step, _ in wanted]
    losses = [entry for entry in wanted if entry[0] == "steps/loss"]
    assert [entry for entry in seen if entry[0] == "steps/loss"] == losses


@pytest.mark.mlflow
def test_a_kill_in_mid_batch_loses_and_doubles_nothing(
    mlflow: Server, tag: Tag, tmp_path: Path
) -> None:
    folder = write_run(
        tmp_path / "run", "+recipe=digits", "epochs=2000", "schedule.milestones=[]",
        errors=[random.Random(epoch).uniform(1, 50) for epoch in range(2000)],
    )  # fmt: skip
    wanted = numbers_of(folder)
    for share in (0.0, 0.4):
        sending = track(tag, mlflow.environment, folder, "mlflow")
        until(lambda share=share: len(mlflow.metrics()) > share * len(wanted))
        sending.send_signal(signal.SIGKILL)
        sending.communicate()
    assert len(mlflow.metrics()) < len(wanted)
    sending = track(tag, mlflow.environment, folder, "mlflow")
    sending.communicate(timeout=PATIENCE)
    assert sending.returncode == 0
    seen = mlflow.metrics()
    assert max(Counter((key, step) for key, step, _ in seen).values()) == 1
    assert seen == wanted
    assert len(mlflow.runs()) == 1


@pytest.mark.mlflow
def test_a_run_without_a_server_says_how_it_is_seen(tag: Tag, tmp_path: Path) -> None:
    """The address of a database is no page that a browser could open."""
    folder = write_run(
        tmp_path / "run", "+recipe=digits", "epochs=2", "schedule.milestones=[]",
        "schedule.warmup=none", errors=[9.0, 8.0],
    )  # fmt: skip
    uri = f"sqlite:///{tmp_path}/runs.db"
    sending = track(tag, {"MLFLOW_TRACKING_URI": uri}, folder, "mlflow")
    says, _ = sending.communicate(timeout=PATIENCE)
    assert sending.returncode == 0
    said = f"{folder}: 2 steps sent, {uri}; type mlflow server --backend-store-uri {uri} and open "
    assert said in says


@pytest.mark.wandb
def test_a_run_without_a_network_is_in_files_of_wandb(tag: Tag, tmp_path: Path) -> None:
    """By which `wandb sync` sends it; a resumed run has the same id there."""
    folder = tmp_path / "run"
    words = [*WORDS, f"run_dir={folder}", "trackers=[wandb]"]
    for _ in range(2):  # the second time it is complete, and is written again
        training = started(tag, {"WANDB_MODE": "offline"}, *words)
        says, _ = training.communicate(timeout=PATIENCE)
        assert training.returncode == 0, says
        assert "trackers: []" in says
        until(lambda: not tagged(tag))
    wanted = {each.number: each.values for each in tracked_steps(read_run(folder))}
    files = sorted(folder.glob("wandb/offline-run-*/*.wandb"))
    assert len({path.name for path in files}) == 1
    for path in files:
        assert {row.pop("_step"): row for row in history(path)} == wanted


def history(path: Path) -> Iterator[dict[str, float]]:
    """The rows in a file of wandb: protocol buffers in the blocks of LevelDB's log."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if (left := 2**15 - at % 2**15) < 7:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", content, at)
        whole += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a record, or the last part of one
            items = Record.FromString(whole).history.item
            whole = b""
            row = {item.key or "/".join(item.nested_key): item.value_json for item in items}
            own = {"_timestamp", "_runtime"}
            if row:
                yield {key: json.loads(value) for key, value in row.items() if key not in own}
