"""Spark as a place for trials, without Spark: words, what is missing, and what a task does."""

import os
import pickle
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from helpers.composed import compose_recipe
from helpers.studies import wait_until

from lsgd.errors import PreemptedError, UsageError
from lsgd.job.launcher import Launch, detect_launch
from lsgd.job.system import has_ended
from lsgd.planned import PlannedRun, RunLauncher
from lsgd.search import spark as module
from lsgd.search.__main__ import main
from lsgd.search.spark_task import RemoteFailure, SparkRunSpec, shares_folder, train
from lsgd.search.trial import StopRequest
from lsgd.supervise.verdict import ExitSummary

SPARK = "+search=small --launch spark"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("+search=small --master local[2]", "--master is for --launch spark"),
        (
            f"{SPARK} --nodes 2",
            "option --nodes is not an option of --launch spark, which takes --np N",
        ),
        (f"{SPARK} --np 0", "0 is not a whole number of 1 or more"),
        (SPARK, "Spark needs Java, which is missing; apt install default-jre-headless"),
        (f"java {SPARK}", "Spark needs Java, which is missing at JAVA_HOME=/no/java; apt install"),
        (f"pyspark {SPARK}", "Spark is not installed; run"),
    ],
)
def test_what_cannot_begin(
    words: str, sentence: str, inside: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Without what it needs, it says in a sentence what to type, and has begun nothing."""
    monkeypatch.setenv("PATH", str(inside))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    missing, _, rest = words.partition(" ")
    monkeypatch.setitem(sys.modules, "pyspark", None if missing == "pyspark" else SimpleNamespace())
    if missing == "java":
        monkeypatch.setenv("JAVA_HOME", "/no/java")
    assert main((rest if missing in ("java", "pyspark") else words).split()) == 2
    said = capsys.readouterr().err
    assert said.startswith("lsgd: ")
    assert sentence in said
    assert said.count("\n") == 1
    assert not [*inside.iterdir()]


def test_a_master_that_does_not_answer_is_named_at_once() -> None:
    with pytest.raises(UsageError, match=r"no Spark can be reached at spark://127.0.0.1:1 \(.*ref"):
        module._check_master("spark://127.0.0.1:1")
    with pytest.raises(UsageError, match="no Spark can be reached at spark://host"):
        module._check_master("spark://host")
    module._check_master("local[2]")


def test_what_went_wrong_is_found_in_what_spark_says() -> None:
    said = (
        "Job aborted due to stage failure: Could not recover from a failed barrier ResultStage.\n"
        "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        '  File "worker.py", line 1, in main\n'
        "ModuleNotFoundError: No module named 'lsgd'\n\n"
        "\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)\n"
        "\t... 1 more\n\nDriver stacktrace:"
    )
    assert module._JobFailedError(said).reason == "ModuleNotFoundError: No module named 'lsgd'"
    assert RemoteFailure.read(said) is None
    ending = ExitSummary(2, "process 1 on b (pid 3) was refused: write 'a \"b\"'", lost=True)
    assert (
        RemoteFailure.read(
            f"Traceback:\n  x\nlsgd.search.task.Lost: {RemoteFailure(ending)}\n\tat org"
        )
        == ending
    )


def test_what_a_process_has_said_is_how_the_trial_ended(
    sent: SparkRunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not that Spark has lost the trial, which would be started once more."""
    session = module._Session(None, tmp_path / "log", Path("token"), str(tmp_path))
    said = "Job aborted\n"

    def fail(*_: object) -> list[object]:
        raise module._JobFailedError(said)

    monkeypatch.setattr(module, "_collect", fail)
    returned = module._outcome(session, sent, 2, StopRequest([]))
    assert returned
    assert returned.ending == ExitSummary(1, "Spark lost it: Job aborted", lost=True)
    refused = ExitSummary(2, "process 1 on b (pid 3) was refused: no data")
    said += f"Lost: {RemoteFailure(refused)}\n"
    returned = module._outcome(session, sent, 2, StopRequest([]))
    assert returned
    assert returned.ending == refused


class Tasks:
    """Two tasks of a trial on one machine, of which this is the second."""

    def __init__(self, *first_says: str) -> None:
        self.first_says = [*first_says]

    def partitionId(self) -> int:
        return 1

    def allGather(self, message: str) -> list[str]:
        return [self.first_says.pop(0), message]

    def getTaskInfos(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(address=f"host{port % 2}:{port}") for port in (7, 8)]

    def resources(self) -> dict[str, SimpleNamespace]:
        return {"gpu": SimpleNamespace(addresses=["3"])}


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SparkRunSpec:
    """A trial whose processes write their environment."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nenv > environment\nexit $CODE\n")
    python.chmod(0o755)
    monkeypatch.setenv("PYTHON", str(python))
    trial = PlannedRun(compose_recipe("+recipe=digits"), [])
    launcher = RunLauncher("spark", {"--np": "2"})
    (tmp_path / "token").touch()
    return SparkRunSpec(
        trial, launcher, {"CODE": "0"}, str(tmp_path), Path("token"), tmp_path / "leave"
    )


def test_the_second_process_meets_the_first_where_that_says(
    sent: SparkRunSpec, tmp_path: Path
) -> None:
    assert shares_folder(str(tmp_path), sent.token)
    here = os.getcwd()
    train(sent, Tasks("", "4321"))
    assert os.getcwd() == here
    lines = (tmp_path / "environment").read_text().splitlines()
    environment = dict(line.split("=", 1) for line in lines if "=" in line)
    assert detect_launch(environment) == Launch("torchrun", 1, 2, 0, 1, "host1", 4321)
    assert environment["CUDA_VISIBLE_DEVICES"] == "3"


def test_a_second_process_that_is_refused_ends_the_trial(sent: SparkRunSpec) -> None:
    sent.environment["CODE"] = "2"  # type: ignore[index]
    with pytest.raises(RemoteFailure, match=r"lsgd-ending \[2, "):
        train(sent, Tasks("", "4321"))
    sent.environment["CODE"] = "5"  # type: ignore[index]
    train(sent, Tasks("", "4321"))


def test_an_executor_that_does_not_see_the_folder_is_named(
    sent: SparkRunSpec, tmp_path: Path
) -> None:
    (tmp_path / "token").unlink()
    error = train(sent, Tasks("", "4321")).error
    assert f"{tmp_path} is not visible to the executor on {os.uname().nodename}, but" in str(error)


OUTLIVES = """
import sys
from test_spark_place import Tasks
from lsgd.search.spark_task import train
import pickle
train(pickle.load(sys.stdin.buffer), Tasks("", "4321"))
"""


@pytest.mark.slow
def test_a_second_process_does_not_outlive_its_task(sent: SparkRunSpec, tmp_path: Path) -> None:
    """Though the first is on another machine, and does not know."""
    (tmp_path / "python").write_text(
        "#!/bin/sh\necho $$ > pid.tmp\nmv pid.tmp pid\nexec sleep 600\n"
    )
    task = subprocess.Popen(
        [sys.executable, "-c", OUTLIVES],
        stdin=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert task.stdin
    task.stdin.write(pickle.dumps(sent))
    task.stdin.close()
    wait_until(lambda: (tmp_path / "pid").exists())
    pid = int((tmp_path / "pid").read_text())
    try:
        task.kill()
        task.wait(timeout=900)
        wait_until(lambda: has_ended(pid))
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_spark_whose_java_has_gone_ends_the_search_with_a_sentence(tmp_path: Path) -> None:
    """Whatever it was asked first; a supervisor may start the same command again."""
    gone = Mock(side_effect=ConnectionRefusedError(111, "Connection refused"))
    context = SimpleNamespace(master="local[2]", setJobGroup=gone, cancelJobGroup=gone)
    session = module._Session(context, tmp_path / "spark.log", tmp_path / "token")
    with pytest.raises(
        PreemptedError, match=r"Spark at local\[2\] has stopped; see .*spark\.log for the reason"
    ):
        module._collect(session, 2, lambda _: iter([]), "a")
