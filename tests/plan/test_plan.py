"""The command, as a user types it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lsgd.installation import install
from lsgd.plan.__main__ import main, take_sizes

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
RUNS = Path(__file__).resolve().parents[2] / "results/2026-11-20-fashion-bs1k"


def test_the_cluster_of_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(PLAN) == 0
    text = capsys.readouterr().out
    assert "60.3 min for 90 epochs" in text
    assert "What bounds: compute" in text
    assert "in 161 sums" in text
    for gpus in (8, 256, 352, 65536):
        assert text.count(f"\n| {gpus:<5} ") == 2
    for constant in ("network bandwidth", "spread", "its backward pass"):
        assert f"\n| {constant} " in text


def test_what_if(capsys: pytest.CaptureFixture[str]) -> None:
    """The ring on 256 GPUs waits for its 2 x 255 messages, 1 Gbit/s for the bytes of any sum."""
    assert main([*PLAN, "--allreduce", "ring"]) == 0
    assert "What bounds: latency" in capsys.readouterr().out
    assert main([*PLAN, "--fused", "--network-gbits", "1"]) == 0
    text = capsys.readouterr().out
    assert "What bounds: bandwidth" in text
    assert "(1 Gbit/s are there)" in text
    assert "in 5 sums" in text


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
        {"machine": "1 process, CPU"},
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
    assert "What bounds: data" in text
    assert "How far the model is off" not in text


@pytest.mark.parametrize(
    "start",
    [
        {},
        {"machine": "11 processes by torchrun over torch.distributed (gloo), CPU"},
        {"machine": "1 process, CPU", "processes": 2},
    ],
)
def test_a_run_of_several_processes_says_nothing(
    start: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_folder(tmp_path / "run", **start)
    assert main([*RUN, str(run), "precision=float64"]) == 2
    assert "give the run of a single process" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "is_paper"),
    [
        (["+recipe=bs256", "nodes=1", "gpus=8"], True),
        ([*PLAN, "--allreduce", "hierarchical", "--no-fused"], True),
        ([*PLAN, "--network-gbits", "10"], False),
        ([*PLAN, "--allreduce", "ring"], False),
        ([*PLAN, "--fused"], False),
        ([*PLAN, "--concurrent", "4"], False),
        ([*PLAN, "gradient_compression=fp16"], False),
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
        (["+recipe=bs8k", "nodes=32"], "gpus missing"),
        ([*PLAN, "nodes=2"], "nodes= is given twice"),
        (["+recipe=bs8k", "nodes=0", "gpus=8"], "nodes=0 is not a whole number above 0"),
        (["+recipe=bs8k", "nodes=two", "gpus=8"], "nodes=two is not a whole number above 0"),
        (["+recipe=bs8k", "nodes=44", "gpus=8"], "352 processes cannot share workers=256"),
        ([*PLAN, "rehearse=true"], "leave it out to plan the real one"),
        ([*PLAN, "model=resnet101"], "add --images-per-second X"),
        ([*PLAN, "--preset", "h200"], "add --images-per-second X"),
        ([*PLAN, "--preset", "moon"], "--preset"),
        ([*PLAN, "--images-per-second", "-3"], "-3 is not a number above 0"),
        ([*PLAN, "--concurrent", "0"], "0 is not a whole number above 0"),
        ([*PLAN, "--out", str(RUNS)], "is there already"),
        ([*PLAN, "--out", str(RUNS / "README.md/plan")], "cannot be made (Not a directory)"),
        ([*PLAN, "--run", "nowhere"], "--run nowhere is no run folder"),
        ([*PLAN, "--run", str(RUNS / "float64-one")], "has model=small_resnet and bs8k has"),
        ([*RUN, str(RUNS / "float64-two"), "precision=float64"], "was made by 2 processes"),
        ([*RUN, str(RUNS / "float64-one")], "has precision=float64"),
        (
            [*RUN, str(RUNS / "float64-one"), "precision=float64", "compile=true"],
            "has compile=false and fashion_bs1k has true",
        ),
    ],
)
def test_refusals(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence, exit code 2, nothing printed as a result."""
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.startswith("lsgd: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_a_run_in_another_layout_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*RUN, str(RUNS / "float64-one"), "precision=float64", "channels_last=false"]
    assert main(words) == 2
    says = "a run with channels_last=false, or plan with channels_last=true"
    assert says in capsys.readouterr().err


def test_sizes_are_no_words_of_the_recipe() -> None:
    sizes, words = take_sizes(["+recipe=bs8k", "gpus=8", "--out", "nodes", "nodes=2", "seed=1"])
    assert sizes == {"gpus": 8, "nodes": 2}
    assert words == ["+recipe=bs8k", "--out", "nodes", "seed=1"]


def test_without_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only --out needs it."""
    monkeypatch.delitem(sys.modules, "lsgd.plan.plot", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(PLAN) == 0
    capsys.readouterr()
    assert main([*PLAN, "--out", str(tmp_path / "plan")]) == 2
    assert install("report") in capsys.readouterr().err
    assert not (tmp_path / "plan").exists()


def test_a_plan_that_fails_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a part of it either: the table is written, and the plot finds no place."""
    monkeypatch.setattr("lsgd.plan.__main__.plotter", lambda _: lambda *_, **__: {"no/p.png": b""})
    with pytest.raises(FileNotFoundError):
        main([*PLAN, "--out", str(tmp_path / "plan")])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_table_and_plot_are_kept(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "plan"
    command = [sys.executable, "-m", "lsgd.plan", *PLAN, "--out", str(folder)]
    first = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert first.returncode == 0, first.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["plan.md", "plan.png", "plan.svg"]
    table = (folder / "plan.md").read_text()
    assert table.startswith("    python -m lsgd.plan +recipe=bs8k nodes=32 gpus=8 --out ")
    assert table.partition("\n\n")[2].strip() in first.stdout
    assert (folder / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert "one worker on each GPU" in (folder / "plan.svg").read_text()
