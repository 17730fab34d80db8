"""Runs at a real MLflow server and in wandb's files, with kills of everything that takes part."""

import json
import random
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from helpers import sparse
from helpers.mlflow_server import MlflowServer, mlflow_server
from helpers.reference_run import WORDS, assert_equal
from helpers.run_folders import write_run
from helpers.started import start_job

from lsgd.run.read import read_run
from lsgd.run.trackers import log_of
from lsgd.track.steps import tracked_steps

pytestmark = [pytest.mark.distributed, pytest.mark.side_by_side, pytest.mark.slow]

TRAINING = """
import sys
from lsgd.train import main
code = main(sys.argv[1:])
trackers = sorted({name.partition(".")[0] for name in sys.modules} & {"mlflow", "wandb"})
print("trackers:", trackers)
raise SystemExit(code)
"""


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    """A server, which starts once for all tests of this file, with all their runs."""
    with mlflow_server(tmp_path_factory.mktemp("mlflow") / "server") as it:
        yield it


@pytest.fixture
def mlflow(lasting: MlflowServer, request: pytest.FixtureRequest) -> MlflowServer:
    """The server, with an experiment for this test alone."""
    lasting.environment["MLFLOW_EXPERIMENT_NAME"] = request.node.name
    if lasting.process.poll() is not None:  # as a test that has failed leaves it
        lasting.start()
    return lasting


def stopping(folder: Path, step: int) -> list[str]:
    """The command line of a tracked run which stops after the row of a step."""
    words = [*WORDS, f"run_dir={folder}", "trackers=[mlflow]"]
    return [sys.executable, sparse.__file__, "stop", str(step), *words]


def tracking(folder: Path) -> list[str]:
    return [sys.executable, "-m", "lsgd.track", str(folder), "--to", "mlflow"]


def numbers_of(folder: Path) -> list[tuple[str, int, float]]:
    """What a tracker is to have of the run, in the order in which the server says it."""
    of_steps = tracked_steps(read_run(folder))
    return [
        (key, each.number, value) for each in of_steps for key, value in sorted(each.values.items())
    ]


@pytest.mark.mlflow
def test_a_server_that_is_killed_in_mid_run_misses_nothing(
    mlflow: MlflowServer, tmp_path: Path, undisturbed: Path
) -> None:
    """And the run is the same as without it, bit by bit."""
    folder = tmp_path / "run"
    with start_job(stopping(folder, 7), folder, **mlflow.environment) as job:
        with job.stopped(psutil.Process(job.process.pid), 7):
            job.until(mlflow.metrics)
            mlflow.kill()
        assert job.wait() == 0, job.output_text
        assert job.output_text.count("sends the run to mlflow continues with the rest") == 1
        assert_equal(folder, undisturbed, within=0)
        mlflow.start()
        job.wait_until_no_processes()
    assert log_of(folder, "mlflow").read_text().endswith("mlflow has everything\n")
    assert mlflow.metrics() == numbers_of(folder)
    assert mlflow.runs() == [("run", "FINISHED")]
    assert mlflow.params()["optim.momentum"] == "0.9"
    assert mlflow.tags()["outcome"].startswith("top-1 error")


@pytest.mark.mlflow
def test_a_run_that_is_killed_goes_on_in_its_tracker_run(
    mlflow: MlflowServer, tmp_path: Path, undisturbed: Path
) -> None:
    """Its follower ends by itself, and no step is there twice, though some are made again."""
    folder = tmp_path / "run"
    start = stopping(folder, 9)
    with start_job(start, folder, **mlflow.environment) as job:
        job.until(lambda: any(step > 8 for _, step, _ in mlflow.metrics()))
        job.process.kill()
        job.wait_until_no_processes()
        assert mlflow.runs() == [("run", "KILLED")]
        job.start([*start[:2], "stop", "0", *start[4:]])
        assert job.wait() == 0, job.output_text
        job.wait_until_no_processes()
    assert mlflow.runs() == [("run", "FINISHED")]
    assert_equal(folder, undisturbed, within=0)
    seen, wanted = mlflow.metrics(), numbers_of(folder)
    assert [(key, step) for key, step, _ in seen] == [(key, step) for key, step, _ in wanted]
    losses = [entry for entry in wanted if entry[0] == "steps/loss"]
    assert [entry for entry in seen if entry[0] == "steps/loss"] == losses


@pytest.mark.mlflow
def test_a_kill_in_mid_batch_loses_and_doubles_nothing(
    mlflow: MlflowServer, tmp_path: Path
) -> None:
    folder = write_run(
        tmp_path / "run", "+recipe=digits", "epochs=800", "schedule.milestones=[]",
        errors=[random.Random(epoch).uniform(1, 50) for epoch in range(800)],
    )  # fmt: skip
    wanted = numbers_of(folder)
    with start_job(tracking(folder), folder, **mlflow.environment) as job:
        for share in (0.0, 0.4):
            job.until(lambda share=share: len(mlflow.metrics()) > share * len(wanted))
            job.process.kill()
            job.wait_until_no_processes()
            job.start(tracking(folder))
        assert job.wait() == 0, job.output_text
    seen = mlflow.metrics()
    assert max(Counter((key, step) for key, step, _ in seen).values()) == 1
    assert seen == wanted
    assert len(mlflow.runs()) == 1


@pytest.mark.mlflow
def test_a_run_without_a_server_says_how_it_is_seen(tmp_path: Path) -> None:
    """The address of a database is no page that a browser could open."""
    folder = write_run(
        tmp_path / "run", "+recipe=digits", "epochs=2", "schedule.milestones=[]",
        "schedule.warmup=none", errors=[9.0, 8.0],
    )  # fmt: skip
    uri = f"sqlite:///{tmp_path}/runs.db"
    with start_job(tracking(folder), folder, MLFLOW_TRACKING_URI=uri) as job:
        assert job.wait() == 0, job.output_text
        said = f"{folder}: 2 steps sent, {uri}; run mlflow server --backend-store-uri {uri} and"
        assert f"{said} open " in job.output_text


@pytest.mark.wandb
def test_a_run_without_a_network_is_in_files_of_wandb(tmp_path: Path) -> None:
    """By which `wandb sync` sends it; a resumed run has the same id there. And the run itself
    imports nothing of a tracker."""
    folder = tmp_path / "run"
    start = [sys.executable, "-c", TRAINING, *WORDS, f"run_dir={folder}", "trackers=[wandb]"]
    with start_job(start, folder, WANDB_MODE="offline") as job:
        assert job.wait() == 0, job.output_text
        job.wait_until_no_processes()
        job.start(start)  # now it is complete, and is written again
        assert job.wait() == 0, job.output_text
        job.wait_until_no_processes()
        assert job.output_text.count("trackers: []") == 2
    files = sorted(folder.glob("wandb/offline-run-*/*.wandb"))
    wanted = {each.number: each.values for each in tracked_steps(read_run(folder))}
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
