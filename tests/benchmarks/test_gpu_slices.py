"""`benchmarks.gpu`: slices that may be killed, end in time, and say what is missing.

No GPU is needed: small_slices.py stands for what would be measured, and one test makes the commands
run in small.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.launching import TRAINING, fork_command, fork_server, write_program
from helpers.usage_errors import usage_error
from helpers.waiting import wait_until
from PIL import Image

import benchmarks.gpu.__main__ as gpu
from benchmarks.gpu import attempt, machine, report, slice_results, slices, whole_run
from benchmarks.gpu.outcome import DONE, FAILED, SliceOutcome, is_done, starts, write_outcome
from benchmarks.gpu.report import compose
from benchmarks.gpu.slices import FULL, TINY, Slice, all_slices
from lsgd import definitions
from lsgd.errors import UsageError
from lsgd.installation import install_command
from lsgd.job.system import tagged_pids
from lsgd.profile import traffic
from lsgd.profile.traffic import OperatorCall, StepTraffic
from lsgd.study.planned_runs import planned_runs

ROOT = Path(__file__).resolve().parents[2]
SMALL = ROOT / "tests/helpers/small_slices.py"
NAMES = [each.name for each in all_slices(TINY)]
FACTS = {"device": "cpu", "gpu": None, "torch": "2", "lines": ["a machine"]}


class Calls:
    """Calls of the command in small, all with one folder, of which nothing is left running."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "out"
        self.begun: list[subprocess.Popen[str]] = []

    def start(
        self,
        *words: str,
        patience: float = 30,
        python: Sequence[str] = (sys.executable,),
        **plan: str,
    ) -> "subprocess.Popen[str]":
        """Start a call, in a process group of its own; the plan has `_` for the `-` of a name."""
        planned = {name.replace("_", "-"): what for name, what in plan.items()}
        self.begun.append(
            subprocess.Popen(
                [*python, str(SMALL), "--tiny", "--out", str(self.out), *words],
                cwd=self.folder,
                env=os.environ
                | {"PYTHONPATH": str(ROOT), "SMALL_SLICES": json.dumps(planned)}
                | {"SMALL_PATIENCE": str(patience)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        )
        return self.begun[-1]

    def run(self, *words: str, patience: float = 30, **plan: str) -> tuple[int, str]:
        """Make a call to its end, by a fork: its exit code and what it said."""
        call = self.start(*words, patience=patience, python=fork_command(), **plan)
        said, _ = call.communicate(timeout=900)
        return call.returncode, said

    def starts(self) -> dict[str, int]:
        return {name: starts(self.out / name) for name in NAMES if (self.out / name).exists()}

    def is_in(self, name: str) -> bool:
        """Whether the newest start of the slice is in the midst of its work."""
        log = self.out / name / "log.txt"
        return log.exists() and log.read_text().endswith(f"begun {name}\n")

    def running(self) -> set[int]:
        """The processes of any slice."""
        tags = [(attempt.TAG, str(self.out.resolve() / name)) for name in NAMES]
        return set().union(*map(tagged_pids, tags))


@pytest.fixture
def calls(tmp_path: Path) -> Iterator[Calls]:
    calls = Calls(tmp_path)
    yield calls
    for call in calls.begun:
        call.kill()
        call.communicate(timeout=900)
    for pid in calls.running():
        os.kill(pid, signal.SIGKILL)


@pytest.mark.distributed
def test_a_kill_in_a_slice_costs_that_slice_alone(calls: Calls) -> None:
    """The whole process group, or the command alone: what it has started ends, and the same
    command goes on. What was done is not done again. In one that trains and in one that does not,
    as all others are started and ended alike."""
    killed = {"tests": os.kill, "ladder-seed0": os.killpg}
    for name, kill in killed.items():
        call = calls.start(**{name.replace("-", "_"): "waits"})
        wait_until(lambda name=name: calls.is_in(name))
        kill(call.pid, signal.SIGKILL)
        call.wait(timeout=900)
        if name == "tests":
            wait_until(lambda: not calls.running())  # sooner than they would end by themselves
    code, said = calls.run()
    assert code == 0, said
    assert calls.starts() == {name: 1 + (name in killed) for name in NAMES}
    assert all(is_done(calls.out / name) for name in NAMES)
    assert [(calls.out / name / "report/result").read_text() for name in NAMES] == NAMES
    assert calls.run()[0] == 0
    assert calls.starts() == {name: 1 + (name in killed) for name in NAMES}


@pytest.mark.distributed
def test_what_fails_or_is_late_is_named_and_tried_again(calls: Calls) -> None:
    plan = {"tests": "fails", "step_2": "waits", "inputs": "crashes"}
    code, said = calls.run("--limit", "0.02", **plan)
    assert code == 1
    last = {line.partition(": ")[2].partition(":")[0]: line for line in said.splitlines()[-4:-1]}
    assert last["tests"].startswith("failed: tests: exit code 3; ")
    assert last["tests"].endswith("tests/log.txt ends with: out of luck")
    assert last["step-2"].startswith("out of time: step-2: it did not end in 0.02 min; ")
    assert last["inputs"].startswith("failed: inputs: SIGSEGV; ")
    assert not calls.running()
    readme = (calls.out / "README.md").read_text()
    for line in last.values():
        outcome, name, why = line.split(": ", 2)
        assert f"- {name}: {outcome}: {why}" in readme
    others = set(NAMES) - set(last)
    assert all(is_done(calls.out / name) for name in others)
    code, said = calls.run()
    assert (code, calls.starts()) == (0, {name: 1 + (name in last) for name in NAMES})
    assert "## Not measured" not in (calls.out / "README.md").read_text()


@pytest.mark.distributed
def test_training_saves_at_its_limit_and_goes_on(calls: Calls) -> None:
    """Slice after slice while its minutes last, then with the next call."""
    # It looks at the clock, which is a second later each time, before each of two starts.
    code, said = calls.run("--limit", "0.02", "--minutes", "0.04", ladder_seed0="saves")
    assert code == 75
    assert f"not through: ladder-seed0; the same command goes on, with --out {calls.out}" in said
    assert calls.starts()["ladder-seed0"] == 2
    assert "| ladder-seed0 " in (readme := (calls.out / "README.md").read_text())
    assert "- ladder-seed0: goes on" in readme
    code, said = calls.run("ladder-seed0")
    assert (code, calls.starts()["ladder-seed0"]) == (0, 3), said


@pytest.mark.distributed
def test_a_second_call_is_refused_and_the_first_ends_when_it_is_told_to(calls: Calls) -> None:
    """The slice under way with it, and no other begins."""
    call = calls.start(tests="waits")
    wait_until(lambda: calls.is_in("tests"))
    code, said = calls.run("tests", patience=0)
    assert (code, calls.starts()) == (2, {"tests": 1})
    assert said == f"lsgd: --out {calls.out} has another call at work; wait for it, or end it\n"
    call.terminate()
    said, _ = call.communicate(timeout=900)
    assert call.returncode == 75, said
    assert f"not through: {', '.join(NAMES)};" in said
    assert calls.starts() == {"tests": 1}
    assert not calls.running()


def test_a_command_is_shown_without_the_place_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(slices.TEST_DATA, "/somewhere/data")
    each = Slice("x", ("-m", "y", f"data.root=/somewhere/data/a b={slices.RESULT_PLACEHOLDER}"))
    assert each.command(Path("o"))[-1] == "data.root=/somewhere/data/a b=o/report"
    shown = each.shell_command(Path("o"))
    assert (shown.startswith("python -m y "), "/somewhere" in shown) == (True, False)
    assert "$LSGD_TEST_DATA/a b" in shown


# --- What the slices are ----------------------------------------------------------------------


def recipe_words(each: Slice) -> list[str]:
    return [word for word in each.arguments if "=" in word and not word.startswith("-")]


@pytest.mark.slow
def test_the_ladder_trains_what_is_published(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All of its seeds, wherever the images are."""
    (tmp_path / "cifar10-jpeg").mkdir()
    monkeypatch.setenv(slices.TEST_DATA, str(tmp_path))
    monkeypatch.delenv("LSGD_DATA", raising=False)
    study, words = definitions.load_study(FULL.study), slices.ladder_overrides(FULL)
    assert study.seeds == [*FULL.seeds]
    assert words == ("device=cuda", "workers_per_pass=auto", f"data.root={tmp_path}/cifar10-jpeg")
    assert [*words] in [recipe_words(each)[2:] for each in all_slices(FULL) if each.is_resumable]
    published = json.loads((ROOT / "tests/golden/cifar10.json").read_text())
    recipes = {
        trial.recipe.name: replace(trial.recipe, seed=0) for trial in planned_runs(study, words)
    }
    assert len(recipes) == 7
    for name, recipe in recipes.items():
        assert recipe.fingerprint == published[name]["fingerprint"]


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LSGD_DATA", str(tmp_path / "nowhere"))
    monkeypatch.delenv(slices.TEST_DATA, raising=False)
    gone = {"nvidia.dali", "pytest"}
    monkeypatch.setattr(slices, "_is_installed", lambda name: name not in gone)
    everything = all_slices(FULL)
    lacks = {each.name: each.missing_requirement for each in everything}
    assert f"no CIFAR-10 at {tmp_path}/nowhere/cifar10" in lacks["ladder-seed0"]
    assert lacks["inputs"] == f"not installed: nvidia.dali; {install_command('dali')}"
    assert lacks["tests"] == f"not installed: pytest; {install_command('dev')}"
    assert not lacks["step-8"]

    machine.keep_machine(tmp_path, FACTS | {"gpu": "H200"})
    text = compose(tmp_path, everything)
    assert text.startswith("# What lsgd does on one H200\n")
    *_, missing = text.partition("## Not measured")
    assert f"- inputs: skipped: {lacks['inputs']}\n" in missing
    assert "- step-1: not run\n" in missing


def test_a_machine_without_a_gpu_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gpu, "keep_machine", None)  # which is not called any more
    answer = json.dumps(FACTS | {"device": "cuda"})
    monkeypatch.setattr(
        machine, "run_with_limit", lambda command, limit: (0, f"a warning\n{answer}\n")
    )
    said = usage_error(gpu.main, capsys)
    assert said.startswith("lsgd: torch 2 finds no GPU here, and this measures one; ")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(
        machine, "run_with_limit", lambda command, limit: (1, "ImportError: no torch")
    )
    assert "torch cannot be asked for the machine: ImportError: no torch" in usage_error(
        gpu.main, capsys
    )


def test_a_folder_has_the_figures_of_one_machine(tmp_path: Path) -> None:
    machine.keep_machine(tmp_path, FACTS)
    machine.keep_machine(tmp_path, FACTS | {"lines": ["another load"]})
    assert machine.read_machine(tmp_path) == FACTS
    for other, says in (
        ({"device": "cuda", "gpu": "H200"}, "device cpu, and here it is cuda"),
        ({"gpu": "H200"}, "gpu None, and here it is H200"),
        ({"torch": "3"}, "torch 2, and here it is 3"),
    ):
        with pytest.raises(UsageError, match=f"has figures of {says}; write another folder"):
            machine.keep_machine(tmp_path, FACTS | other)


# --- What is found ----------------------------------------------------------------------------


def step_at(folder: Path, speed: float, outcome: str = DONE) -> None:
    (folder / "report").mkdir(parents=True)
    speeds = {"lsgd's step": [speed] * 6, "a bare loop": [9000.0] * 6}
    (folder / "report/step.json").write_text(json.dumps({"images_per_second": speeds}))
    write_outcome(folder, SliceOutcome(outcome, "", "python", 1.0, "lsgd 0"))


def test_a_whole_run_is_planned_from_the_fastest_step(tmp_path: Path) -> None:
    """Of those that are done, once all have been tried."""
    names = ["step-1", "step-8", "step-32"]
    step_at(tmp_path / "step-1", 2000)
    step_at(tmp_path / "step-8", 3000)
    with pytest.raises(
        UsageError, match="step-32 might have the fastest step and has not been run"
    ):
        whole_run.fastest(tmp_path, names)
    step_at(tmp_path / "step-32", 4000, FAILED)
    assert whole_run.fastest(tmp_path, names) == ("step-8", 3000)
    with pytest.raises(UsageError, match="no step is measured: none of step-32 is done"):
        whole_run.fastest(tmp_path, ["step-32"])


def test_a_speed_stands_beside_the_most_that_the_gpu_could_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """32 images move 335 GB, at 3.35 TB/s."""
    step_at(tmp_path / "step-1", 80)
    file = tmp_path / "step-1/report/step.json"
    setting = {"recipe": "bs256", "image_size": 224, "workers": 1, "worker_batch": 32}
    setting |= {"workers_per_pass": 1, "precision": "bfloat16", "compile": False}
    file.write_text(json.dumps(json.loads(file.read_text()) | setting))
    call = OperatorCall("a", {1: int(335e9)}, {}, 0, is_bfloat16=True, fusible=False)
    step = StepTraffic(32, [call], [call])
    monkeypatch.setattr(traffic, "count_traffic", lambda *_: step)
    bounds = slice_results.bounds(tmp_path / "step-1", "NVIDIA H100 80GB HBM3")
    assert bounds == pytest.approx({"lsgd's step": 320, "a bare loop": 320})
    (table,) = report._speeds(tmp_path, ["step-1"], "NVIDIA H100 80GB HBM3")
    assert "25 % of 320" in table
    assert slice_results.bounds(tmp_path / "step-1", None) == {}
    assert slice_results.bounds(tmp_path / "step-1", "GeForce") == {}


# --- From end to end --------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> dict[str, str]:
    """An environment with one of the digits' trials alone, and made-up photographs."""
    copy = tmp_path / "copy"
    for name in ("lsgd", "conf", "recipes", "data/digits"):
        shutil.copytree(ROOT / name, copy / name)
    (copy / "recipes/study/digits.yaml").write_text(
        "# Hardware: any.\ntitle: small\nquestion: Does it work?\nsource: tests\n"
        "baseline: digits\nseeds: [0]\nentries:\n  - {recipe: digits, label: digits}\n"
    )
    for number in range(2):
        folder = tmp_path / f"data/imagenet-sample/n{number:02}"
        folder.mkdir(parents=True)
        for image in range(8):
            pixels = np.full((40, 60, 3), 20 * image + number, np.uint8)
            Image.fromarray(pixels).save(folder / f"{image}.JPEG")
    return {
        "PYTHONPATH": f"{copy}:{ROOT}",
        "LSGD_TEST_DATA": str(tmp_path / "data"),
        "PYTHONDONTWRITEBYTECODE": "",
    }


CHOSEN = ["tests", "runs", "step-2-compiled", "inputs", "profile", "ladder-seed0"]


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.dali
def test_in_small_from_end_to_end(place: dict[str, str], tmp_path: Path) -> None:
    """The commands themselves, on a CPU; of those that differ in a word, one."""
    environment = os.environ | place | TINY.environment
    with fork_server(*TRAINING, environment=environment, folder=tmp_path / "copy") as words:
        python = write_program(tmp_path / "python", *words)
        # The slices are forks too: half of what most take is to import torch and lsgd.
        program = (
            f"import sys; sys.executable = {python!r}; import benchmarks.gpu.__main__ as gpu; "
            "raise SystemExit(gpu.main(sys.argv[1:]))"
        )
        done = subprocess.run(
            [*words, "-c", program, "--tiny", *CHOSEN],
            cwd=tmp_path,
            # The server has imported plugins of pytest, which pytest then cannot rewrite.
            env=environment
            | {"PYTHON": python, "PYTEST_ADDOPTS": "-W ignore::pytest.PytestAssertRewriteWarning"},
            capture_output=True,
            text=True,
            timeout=1200,
        )
    out = tmp_path / "runs/gpu-tiny"
    logs = "".join(log.read_text()[-2000:] for log in out.glob("*/log.txt"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    assert done.stderr == ""
    text = (out / "README.md").read_text()
    assert text.startswith("**Nothing in this folder was measured on a GPU**")
    assert [starts(out / name) for name in CHOSEN] == [1] * len(CHOSEN)
    for said in (
        "0 passed, 0 failed, ",
        "1 of 1 runs are as on the CPU, 0 were refused",
        "| step-2-compiled | timm's training step",
        "| inputs          | training, together",
        "\n- [inputs](inputs/report/README.md): ours, DALI, at least 0.97 times DALI's reader: ",
        "| data wait     |",
        "[small](ladder/README.md), 1 of 1 runs:",
        "- batchnorm-2: not run\n",
    ):
        assert said in text
    kept = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert {"profile/report/config.yaml", "profile/report/metrics.jsonl"} <= kept
    assert {"ladder/README.md", "ladder/summary.json", "tests/report/junit.xml"} <= kept
    assert not [name for name in kept if name.endswith((".pt", ".part", ".gz"))]
    # What a plan starts from is there, and the plan is the command's own.
    plan = ["step-2-compiled", "+recipe=digits", "precision=bfloat16"]
    whole_run.whole_run([*plan, "--out", str(out / "imagenet/report")])
    (out / "imagenet/log.txt").write_text("from the step of step-2-compiled, 9 images/s\n")
    assert "**" in "".join(slice_results.whole_run(out / "imagenet"))
