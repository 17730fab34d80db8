"""benchmarks.peers: which scripts it takes, what fails, and what its report says."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path

import pytest
from helpers.composed import compose_recipe
from helpers.folders import make_folder
from helpers.usage_errors import usage_error

from benchmarks import peer_scripts, peers, process_measurement
from benchmarks.peer_scripts import TIMM, TORCHVISION, lsgd_training
from benchmarks.peers import OURS, main, report
from benchmarks.process_measurement import TrainingCommand
from benchmarks.usage import Usage
from lsgd.errors import UsageError
from lsgd.inputs.index import open_indexes
from lsgd.recipe import Recipe
from lsgd.rules.metric import METRICS
from lsgd.run.console import Console

# As they print them.
OF_TORCHVISION = [
    "Epoch: [0]  [  0/313]  eta: 0:14:21  lr: 0.0125  img/s: 12.5381  loss: 3.2741 (3.2741)",
    "Epoch: [2]  [312/313]  eta: 0:00:00  lr: 0.0125  img/s: 20.0442  loss: 5.3976 (5.6351)",
]
OF_TIMM = [
    "Train: 0 [   0/312 (  0%)]  Loss: 3.09 (3.09)  Time: 2.790s,   11.47/s  LR: 1.250e-02",
    "Train: 10 [ 311/312 (100%)]  Loss: 3.09 (3.09)  Time: 2.790s,   11.47/s  LR: 1.250e-02",
]
OTHERS = [
    "Loading training data", "Test:   [ 0/32]  eta: 0:00:14  loss: 3.2741 (3.2741)",
    "Epoch: [0] Total time: 0:14:21", "Test: [   0/32]  Time: 0.790 (0.790)  Loss:   3.09 (3.09)",
    "Training with a single process on 1 device (cpu).", "epoch 1: 23.60 % top-1 error",
]  # fmt: skip


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 images, and an index of lsgd that the benchmark does not use."""
    return make_folder(tmp_path_factory.mktemp("images") / "of mine, (all)")


@pytest.fixture
def few(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """Its recipe, of an epoch of several steps."""
    monkeypatch.setattr(peers, "BATCH", 2)
    return compose_recipe(*peers.recipe_overrides(images, tmp_path / "index", 40, 3))


def test_a_line_of_each_step_is_known_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"epoch": 0.5, "lr": 0.1, "loss": 3.0, "images_per_second": 7.0}
    Console(0, 312, METRICS["top1_error"]).show("train", 1, row)
    ours = lsgd_training([])(Path("out")).step
    of_lsgd = capsys.readouterr().out.splitlines()
    for step, lines in (
        (ours, of_lsgd), (TORCHVISION.step, OF_TORCHVISION), (TIMM.step, OF_TIMM),
    ):  # fmt: skip
        assert lines
        for line in [*of_lsgd, *OF_TORCHVISION, *OF_TIMM, *OTHERS]:
            assert bool(re.match(step, line)) == (line in lines)


def test_the_images_are_indexed_elsewhere_and_counted(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "BATCH", 2)
    few = compose_recipe(*peers.recipe_overrides(images, tmp_path / "index", 40, 3))
    train, val = open_indexes(few.data, images)
    assert (len(train), len(val), len(train.classes())) == (12, 6, 3)
    assert train.file.parent != images
    assert (few.data.image_size, few.inputs.decoders, few.batch_size) == (40, 3, 2)
    assert (few.log_steps, few.inputs.loader, few.workers) == (1, "torchvision", 1)
    assert compose_recipe("+recipe=bs256").model.name == few.model.name == "resnet50"


def test_the_scripts_get_what_the_recipe_has(few: Recipe, images: Path) -> None:
    """The same images, network, batch, loaders, lr, momentum and weight decay; and their folder."""
    out = Path("/out")
    other = replace(few, optim=replace(few.optim, nesterov=False, weight_decay=0.25, momentum=0.5))
    for peer, checkout, nesterov, plain in (
        (TORCHVISION, Path("/vision"), "sgd_nesterov", "sgd"),
        (TIMM, Path("/timm"), "sgd", "momentum"),
    ):
        training = peer.training_factory(checkout, few)(out)
        words = list(training.command)
        assert words[1:3] == ["-m", "benchmarks.run_script"]
        assert words[3] == str(checkout / peer.script)
        assert training.step == peer.step
        assert str(images) in words
        assert str(out) in words
        given = dict(pairwise(words))
        assert given["--batch-size"] == "2"
        assert given["--workers"] == "3"
        assert float(given["--lr"]) == few.lr(0)
        assert float(given["--weight-decay"]) == few.optim.weight_decay
        assert given["--opt"] == nesterov
        assert given["--model"] == "resnet50"
        assert "40" in words
        fastest = peer.training_factory(checkout, few, fastest=True)(out)
        assert list(fastest.command) == [*words, *peer.fastest]
        words = list(peer.training_factory(checkout, other)(out).command)
        given = dict(pairwise(words))
        assert (given["--opt"], given["--weight-decay"]) == (plain, "0.25")
        assert given["--momentum"] == "0.5"
    assert lsgd_training(["a=b"])(out).command[1:] == [
        "-m",
        "lsgd.train",
        "a=b",
        "run_dir=/out/run",
    ]


def checkout(folder: Path, peer: peer_scripts.PeerScript, program: str) -> Path:
    for file, content in ((peer.script, program), (peer.version, "__version__ = '1.2.3a0'\n")):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(content)
    return folder


PRINTS = "import time\nfor step in range(99):\n    print({line})\ntime.sleep(60)"


@pytest.mark.slow
def test_the_whole_command(
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With a script that fails, and others that train nothing."""
    line = "f'Epoch: [0]  [ {step}/313]  eta'"
    vision = checkout(tmp_path / "vision", TORCHVISION, PRINTS.format(line=line))
    timm = checkout(tmp_path / "timm", TIMM, "import a_module_that_is_not")
    ours = PRINTS.format(line="f'step {step}/313'")
    overrides: list[str] = []
    looks = count(1)
    monkeypatch.setattr(
        process_measurement, "usage", lambda pid: Usage(next(looks), 0.0, next(looks))
    )
    monkeypatch.setattr(peer_scripts, "RUN_SCRIPT", [sys.executable])
    monkeypatch.setattr(peers, "BATCH", 2)
    monkeypatch.setattr(
        peers, "lsgd_trainings",
        lambda words, cache: overrides.extend(words) or {
            OURS: lambda folder: TrainingCommand([sys.executable, "-c", ours], r"step \d+/")
        },
    )  # fmt: skip
    words = ["--torchvision", str(vision), "--timm", str(timm), "--images", str(images)]
    out = tmp_path / "out"
    counted = ["--steps", "3", "--rounds", "6", "--fastest"]
    assert main([*words, *counted, "--out", str(out)]) == 0
    assert overrides[-2:] == ["precision=bfloat16", "channels_last=true"]
    found = json.loads((out / "peers.json").read_text())
    assert all({*each} == {OURS, "torchvision"} for each in found["samples"].values())
    assert all(len(v) == 6 for each in found["samples"].values() for v in each.values())
    assert (found["steps"], found["rounds"], found["image_size"]) == (3, 6, 64)
    said = capsys.readouterr().out
    assert "- timm is not measured: it ended after 0 steps: ModuleNotFoundError: No module" in said
    assert "pytorch/vision 1.2.3a0, references/classification/train.py, not a git" in said
    assert "the CPU seconds per step of torchvision" in said
    assert "threads: 1" in said
    assert "workers=1, each with its fastest settings" in said
    assert found["first_round"][OURS]["first_step_seconds"] > 0
    assert "- lsgd, in the first round, before its cache has a choice (hardware=auto): " in said


def test_what_fails_later_has_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others have one of each round but the first, in which one step is enough."""
    made: list[tuple[str, int]] = []

    def watch(training: TrainingCommand, steps: int, *, limit: float) -> dict[str, float]:
        (name,) = training.command
        made.append((name, steps))
        if name == "b" and len(made) > 4:
            raise UsageError("gone")
        return {"seconds": float(len(made))}

    monkeypatch.setattr(peers, "measure_training", watch)
    result = {"rounds": 6, "steps": 9}
    kept = []
    starts = {name: lambda _, name=name: TrainingCommand([name], "") for name in ("a", "b")}
    peers.bench(starts, result, limit=1, keep=lambda result: kept.append(json.dumps(result)))
    assert [len(values) for values in result["samples"]["seconds"].values()] == [6]
    assert result["missing"] == {"b": "gone"}
    assert sorted(made[:2]) == [("a", 1), ("b", 1)]
    assert {steps for _, steps in made[2:]} == {9}
    assert len(kept) == 7
    assert json.loads(kept[1])["samples"]["seconds"].keys() == {"a", "b"}


def test_nothing_of_a_process_stays_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its run nor what it makes where temporary files go; its own variables stay."""
    folders: list[Path] = []

    def watch(training: TrainingCommand, steps: int, *, limit: float) -> dict[str, float]:
        folder = Path(training.environment["TMPDIR"])
        assert folder == Path(training.command[0])
        assert training.environment["A_VARIABLE"] == "x"
        (folder / "left").write_text("")
        folders.append(folder)
        return {"seconds": 1.0}

    monkeypatch.setattr(peers, "measure_training", watch)
    starts = {"a": lambda folder: TrainingCommand([str(folder)], "", {"A_VARIABLE": "x"})}
    peers.bench(starts, {"rounds": 6, "steps": 9}, limit=1, keep=lambda result: None)
    assert len({*folders}) == 7
    assert not any(folder.exists() for folder in folders)


def result(**values: dict[str, list[float]]) -> dict[str, object]:
    """Made-up measurements, all 1 but those given."""
    names = (
        "seconds_per_step", "cpu_seconds_per_step", "system_seconds_per_step",
        "cpu_seconds_with_loaders", "page_faults_per_step", "first_step_seconds",
        "first_step_cpu_seconds", "peak_bytes", "bytes_with_loaders",
    )  # fmt: skip
    ones = {name: [1.0] * 6 for name in ("torchvision", "timm", OURS)}
    samples = {name: ones | values.get(name, {}) for name in names}
    machine = {"gpu": None, "cpu": "c", "cores": 1, "threads_of_torch": 1, "load_average": 0}
    return {
        "model": "m", "image_size": 64, "batch": 32, "loaders": 1, "rounds": 6, "steps": 9,
        "machine": machine, "versions": {"torch": "2"}, "date": "today", "scripts": {},
        "missing": {}, "samples": samples, "fastest": False, "first_round": {},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("cpu", "judged"),
    [
        ([1.0, 1.06] * 3, "not resolved, 1.030 (1.000 to 1.060)"),
        ([1.01, 1.01, 1.01, 1.01, 1.01, 1.06], "yes, 1.010 (1.010 to 1.060)"),
        ([1.01, 1.01, 1.01, 1.01, 1.01, 1.08], "not resolved, 1.010 (1.010 to 1.080)"),
        ([1.03] * 6, "no, 1.030 (1.030 to 1.030)"),
    ],
)
def test_cpu_seconds_are_judged_by_the_faster_script(cpu: list[float], judged: str) -> None:
    said = report(result(cpu_seconds_per_step={OURS: cpu, "torchvision": [2.0] * 6}))
    assert f"of timm, and 1.07 at the end of the interval: {judged}" in said


def test_what_makes_no_sense_is_refused(
    images: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timm = ["--timm", str(checkout(tmp_path / "timm", TIMM, ""))]
    folder = ["--images", str(images)]
    for words, message in (
        (folder, "there is no script to compare with; give --torchvision or --timm"),
        ([*folder, *timm, "--rounds", "5"], "--rounds 5 is too few"),
        ([*folder, *timm, "--image-size", "31"], "31 is not a whole number of 32 or more"),
        ([*folder, "--torchvision", str(tmp_path)], "has no references/classification/train.py"),
        ([*timm, "--images", str(tmp_path)], "has no train/CLASS/; give a folder with train/"),
        ([*folder, *timm], "12 training examples; write worker_batch=12"),
    ):
        assert message in usage_error(main, capsys, *words)
    monkeypatch.setattr(peers, "BATCH", 2)
    said = usage_error(main, capsys, *folder, *timm, "--steps", "4")
    assert "--steps 4 and the 3 before them are more than an epoch of" in said
    assert "has; write at most 3" in said
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    assert "write `env -u MALLOC_ARENA_MAX` before" in usage_error(main, capsys, *folder, *timm)


@pytest.mark.slow
def test_a_script_runs_as_it_is(tmp_path: Path) -> None:
    """With its own folder first, its words, and a torchvision that can be imported."""
    (tmp_path / "beside.py").write_text("VALUE = 'its own'")
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, beside, torchvision\n"
        "assert __name__ == '__main__'\n"
        "print(sys.argv, beside.VALUE, __file__, bool(torchvision.models.resnet50))\n"
    )
    done = subprocess.run(
        [*peer_scripts.RUN_SCRIPT, str(script), "--a", "b"],
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.stdout.strip() == f"['{script}', '--a', 'b'] its own {script} True", done.stderr
