"""The command, as a user types it."""

import json
import re
import sys
from pathlib import Path

import pytest
from helpers.composed import compose_recipe
from helpers.usage_errors import usage_error

from lsgd.errors import UsageError
from lsgd.installation import install_command
from lsgd.plan import measured_step
from lsgd.plan.__main__ import main
from lsgd.recipe import Recipe
from lsgd.report.run_archive import FILE, unpack
from lsgd.run.read import Run

PLAN = ["+recipe=bs8k", "nodes=32", "gpus=8"]
RUN = [
    "+recipe=fashion_bs1k",
    "nodes=2",
    "gpus=4",
    "--preset",
    "h200",
    "channels_last=true",
    "--run",
]
STEP = (
    r"Memory of each GPU: [23]\.\d\d GB for micro-batches of 1 worker in float32, which fits 16 GB;"
)
STUDY = Path(__file__).resolve().parents[2] / "results/2026-11-20-fashion-bs1k"
RUNS = unpack(STUDY / FILE)


@pytest.fixture(autouse=True)
def counted_once(
    composed_once: None, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One plan counts the memory of its step, which takes seconds."""
    if request.function is not test_a_step_on_a_p100_fits_its_memory:
        monkeypatch.setattr("lsgd.plan.memory.memory_line", lambda *_: "")


@pytest.mark.slow
def test_the_cluster_of_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(PLAN) == 0
    text = capsys.readouterr().out
    assert "60.3 min for 90 epochs" in text
    assert "Bottleneck: compute" in text
    assert "in 161 all-reduces" in text
    assert "Each process has 255 connections, and process 0 sends 145 MB of addresses" in text
    for gpus in (8, 256, 352, 65536):
        assert text.count(f"\n| {gpus:<5} ") == 2
    for constant in ("network bandwidth", "spread", "its backward pass"):
        assert f"\n| {constant} " in text


@pytest.mark.slow
def test_a_run_by_phases(capsys: pytest.CaptureFixture[str]) -> None:
    """A step of half the side takes a quarter of the time; the steps are those of each phase."""
    words = [*PLAN[:1], "nodes=1", "gpus=8", "--preset", "h200", "--images-per-second", "1000"]
    words += ["image_sizes.points=[[0,112],[30,112],[30,224]]", "batch_schedule=[[60,128,64]]"]
    assert main(words) == 0
    text = capsys.readouterr().out
    phases = re.findall(
        r"^\| (\d+ to \d+) +\| +(\d+) \| +(\d+) \| +([\d,]+) \| +([\d.]+) ", text, re.M
    )
    assert [row[:4] for row in phases] == [
        ("0 to 30", "112", "8192", "4,680"), ("30 to 60", "224", "8192", "4,680"),
        ("60 to 90", "224", "8192", "4,680"),
    ]  # fmt: skip
    small, large, last = (float(row[4]) for row in phases)
    assert small == pytest.approx(1000 * large / 4, rel=0.06)  # 3.5 pixels of a stage are 4
    assert large == last == pytest.approx(1.024 * 1.036, rel=0.02)
    assert "for 90 epochs of 14,040 steps" in text
    assert main([*words, "--out", "plan"]) == 2
    assert "--out draws the steps of one size" in capsys.readouterr().err


@pytest.mark.slow
def test_a_step_on_a_p100_fits_its_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(PLAN) == 0
    assert re.search(STEP, capsys.readouterr().out)


@pytest.mark.slow
def test_what_if(capsys: pytest.CaptureFixture[str]) -> None:
    """The ring on 256 GPUs waits for its 2 x 255 messages, 1 Gbit/s for the bytes of any sum."""
    assert main([*PLAN, "--allreduce", "ring"]) == 0
    assert "Bottleneck: latency" in capsys.readouterr().out
    assert main([*PLAN, "--fused", "--network-gbits", "1"]) == 0
    text = capsys.readouterr().out
    assert "Bottleneck: bandwidth" in text
    assert "(1 Gbit/s are available)" in text
    assert "in 5 all-reduces" in text


def run_folder(run: Path, **start: object) -> Path:
    """Of a run that trained 300 images/s, and more slowly in its first rows."""
    run.mkdir()
    (run / "config.yaml").write_bytes((RUNS / "float64-one/config.yaml").read_bytes())
    rows = [
        {"kind": "start", "step": 0, **start},
        *(
            {"kind": "train", "step": step, "images_per_second": speed, "data_wait": wait}
            for step, (speed, wait) in enumerate([(1, 0.9), (100, 0.7), (400, 0.7), (300, 0.6)], 1)
        ),
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


@pytest.mark.parametrize(
    "start",
    [
        {"machine": "1 process by torchrun over torch.distributed (gloo), CPU"},
        {"machine": "said otherwise", "processes": 1},
    ],
)
def test_a_run_says_how_fast_and_how_long_it_waited(
    start: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_folder(tmp_path / "run", **start)
    assert main([*RUN, str(run), "precision=float64"]) == 0
    text = capsys.readouterr().out
    assert f"worked out from 300.0 images/s ({run}: median of 3 rows" in text
    assert f"{32 / 300 * 1000:.1f} ms for 32 images" in text
    assert "Bottleneck: data" in text
    assert "How far the model is off" not in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "is_paper"),
    [
        (["+recipe=bs256", "nodes=1", "gpus=8"], True),
        ([*PLAN, "--allreduce", "hierarchical", "--no-fused"], True),
        ([*PLAN, "--network-gbits", "10"], False),
        ([*PLAN, "--fused"], False),
        ([*PLAN, "epochs=100"], False),
        (["+recipe=bs8k", "nodes=64", "gpus=4"], False),
    ],
)
def test_how_far_it_is_off_is_said_of_the_papers_own_machine_alone(
    words: list[str], is_paper: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    assert ("How far the model is off" in capsys.readouterr().out) is is_paper


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["+recipe=bs8k"], "nodes and gpus missing"),
        ([*PLAN, "nodes=2"], "nodes= is given twice"),
        (["+recipe=bs8k", "nodes=0", "gpus=8"], "nodes=0 is not a whole number above 0"),
        (["+recipe=bs8k", "nodes=44", "gpus=8"], "352 processes cannot share workers=256"),
        ([*PLAN, "rehearse=true"], "leave it out to plan the real run"),
        ([*PLAN, "model=resnet101"], "add --images-per-second X"),
        ([*PLAN, "model.blurpool=all"], "add --images-per-second X"),
        ([*PLAN, "--preset", "h200"], "add --images-per-second X"),
        ([*PLAN, "--images-per-second", "-3"], "-3 is not a number from 1e-9 to 1e12"),
        ([*PLAN, "--images-per-second", "1e-307"], "1e-307 is not a number from"),
        ([*PLAN, "--to", "75.9", "--price", "9" * 300], "is not a number from 1e-9 to 1e12"),
        ([*PLAN, "--out", str(STUDY)], "exists already"),
        ([*PLAN, "--out", str(STUDY / "README.md/plan")], "cannot be made (Not a directory)"),
        ([*PLAN, "--run", "nowhere"], "--run nowhere is not a run folder"),
        ([*PLAN, "--run", str(RUNS / "float64-one")], "has model=small_resnet and bs8k has"),
        ([*RUN, str(RUNS / "float64-two"), "precision=float64"], "was made by 2 processes"),
        ([*RUN, str(RUNS / "float64-one")], "has precision=float64"),
        (
            [*RUN, str(RUNS / "float64-one"), "precision=float64", "model.blurpool=all"],
            "plan with model.blurpool=none",
        ),
        (
            [*RUN, str(RUNS / "float64-one"), "precision=float64", "model.frozen=[conv1]"],
            "has model.frozen=[] and fashion_bs1k has [conv1], so its step time does not apply",
        ),
        (
            [*RUN, str(RUNS / "float64-one"), "precision=float64", "noise_scale=true"],
            "plan with noise_scale=false",
        ),
    ],
)
def test_refusals(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in usage_error(main, capsys, *argv)


@pytest.mark.parametrize("command", ["", "strategy", "memory", "bound"])
def test_a_network_that_training_refuses_is_refused(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is built for the plan, which ended in a traceback."""

    def refuse(recipe: Recipe) -> None:
        raise UsageError(f"model={recipe.model.name} gives no logits")

    monkeypatch.setattr("lsgd.models.library_networks.check_library_network", refuse)
    words = ["+recipe=bs256", "model=torchvision/googlenet"]
    words = [command, *words] if command else [*words, "nodes=1", "gpus=8"]
    assert "model=torchvision/googlenet gives no logits" in usage_error(main, capsys, *words)


def test_a_run_in_another_layout_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*RUN, str(RUNS / "float64-one"), "precision=float64", "channels_last=false"]
    says = "a run with channels_last=false, or plan with channels_last=true"
    assert says in usage_error(main, capsys, *words)


def test_a_run_of_images_of_another_size_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A median over epochs of several sizes is the time of no image."""
    run = run_folder(tmp_path / "run", processes=1)
    with (run / "config.yaml").open("a") as config:
        config.write("image_sizes: {points: [[0, 8.0]]}\n")
    said = usage_error(main, capsys, *RUN, str(run), "precision=float64")
    assert f"--run {run} trains on images of 8 pixels, and a plan needs the step time of" in said


def test_a_resumed_run_counts_by_its_latest_start_with_several_rows(tmp_path: Path) -> None:
    """Rows of a start on 8 processes are not those of the resume on one."""
    recipe = compose_recipe(*RUN[:1], "precision=float64", "channels_last=true")
    run = run_folder(tmp_path / "run", processes=8)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    resumed = [{**row, "images_per_second": 50.0} for row in rows[1:]]
    started = {"kind": "start", "step": 4, "processes": 1}
    not_trained = {"kind": "start", "step": 8, "processes": 2}

    def read(*rest: dict[str, object]) -> str:
        lines = [json.dumps(row) for row in [*rows, *rest]]
        (run / "metrics.jsonl").write_text("\n".join([*lines, ""]))
        return measured_step.from_run(run, recipe).source

    assert "worked out from 50.0 images/s" in read(started, *resumed, not_trained)
    with pytest.raises(UsageError, match=r"a plan needs the step time of one"):
        read(started, resumed[0])


@pytest.mark.parametrize("layout", ["true", "false"])
def test_a_run_with_auto_has_the_layout_of_its_log(tmp_path: Path, layout: str) -> None:
    made = compose_recipe("+recipe=fashion_bs1k", "channels_last=auto")
    machine = f"1 process, CPU; in memory; channels_last={layout}: 0.87 times the time of …"
    run = Run(tmp_path, made, [{"kind": "start", "step": 0, "machine": machine}])
    assert measured_step.run_layout(run) == layout


@pytest.mark.slow
def test_without_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only --out needs it."""
    monkeypatch.delitem(sys.modules, "lsgd.plan.plot", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(PLAN) == 0
    capsys.readouterr()
    assert install_command("report") in usage_error(
        main, capsys, *PLAN, "--out", str(tmp_path / "plan")
    )
    assert not (tmp_path / "plan").exists()


@pytest.mark.slow
def test_a_plan_that_fails_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a part of it either: the table is written, and the plot finds no place."""
    contents = {"plan.md/p.png": b""}
    monkeypatch.setattr("lsgd.plan.__main__.plotter", lambda _: lambda *_, **__: contents)
    with pytest.raises(FileExistsError):
        main([*PLAN, "--out", str(tmp_path / "plan")])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_table_and_plot_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "plan"
    assert main([*PLAN, "--out", str(folder)]) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["plan.md", "plan.png", "plan.svg"]
    table = (folder / "plan.md").read_text()
    assert table.startswith("    python -m lsgd.plan +recipe=bs8k nodes=32 gpus=8 --out ")
    assert table.partition("\n\n")[2].strip() in capsys.readouterr().out
    assert "one worker on each GPU" in (folder / "plan.svg").read_text()
