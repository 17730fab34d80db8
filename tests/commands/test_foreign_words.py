"""Words of other tools are answered with what is written here, in one sentence."""

import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.usage_errors import usage_error

import lsgd
from lsgd import config, early_replies
from lsgd.__main__ import command_names, dispatch
from lsgd.errors import UsageError
from lsgd.job.command import Parser, run_alone
from lsgd.suggestions import FOREIGN_EQUIVALENTS, suggest_equivalent

ROOT = Path(lsgd.__file__).parent.parent


def refused(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The sentence that `lsgd LINE` is refused with, in this process."""
    name, *words = line.split()
    if name not in command_names():
        words, run = [name, *words], lambda words: run_alone(lambda: dispatch(words))
    elif name in ("train", "check"):

        def run(words: list[str]) -> int:
            with pytest.raises(SystemExit) as end:
                early_replies.reply_early(name, words)
            return end.value.code

    else:
        package = f"lsgd.{name}"
        inside = importlib.util.find_spec(f"{package}.__main__") if name != "evaluate" else None
        run = importlib.import_module(f"{package}.__main__" if inside else package).main
    return usage_error(run, capsys, *words)


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("resume", "run_dir="),
        ("recipes", "lsgd.train --recipes"),
        ("list", "lsgd --help"),
        ("run", "lsgd.train recipe=NAME"),
        ("bs8k", "lsgd train recipe=bs8k"),
        ("+recipe=bs8k", "lsgd train +recipe=bs8k"),
        ("train bs8k", "write recipe=bs8k"),
        ("train resume", "run_dir="),
        ("train +recipe digits", "write recipe=NAME"),
        ("train +recipe=digits --dry-run", "rehearse=true"),
        ("train +recipe=digits --epochs 30", "write epochs=30"),
        ("train +recipe=digits --lr 0.1", "schedule.reference_lr="),
        ("train +recipe=digits --batch-size 128", "write workers=8"),
        ("train --config digits", "write recipe=digits"),
        ("train +recipe=digits --gpus 8", "--np N"),
        ("train +recipe=digits --output runs/a", "write run_dir=runs/a"),
        ("train -m +recipe=digits seed=1,2", "lsgd.study"),
        ("train +recipe=digits --weight_decay 1e-4", "write optim.weight_decay=1e-4"),
        ("launch bs8k", "lsgd launch local bs8k"),
        ("launch local +recipe=digits", "write digits"),
        ("launch torchrun digits --nproc-per-node 2", "write --np 2"),
        ("study +study=digits --dry-run", "write --print"),
        ("search +search=digits --n-trials 20", "write trials=20"),
        ("prepare cifar", "cifar10"),
        ("prepare imagenet x --chek", "--check"),
        ("doctor --list", "write --help"),
    ],
)
def test_a_word_is_answered(line: str, fix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fix in refused(line, capsys)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["-m", "lsgd.train", "--version"], 0, f"lsgd {lsgd.__version__}, commit "),
        (["-u", "-m", "lsgd", "evaluate", "--version"], 0, f"lsgd {lsgd.__version__}, commit "),
        (["-mlsgd.train", "+recipe=digits", "--epochs", "30"], 2, "epochs=30"),
    ],
)
def test_the_answer_does_not_wait_for_torch(words: list[str], code: int, says: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *words],
        cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == code
    assert says in (done.stderr if code else done.stdout)
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)


@pytest.mark.parametrize("name", ["train", "doctor", "launch"])
def test_a_current_folder_that_was_removed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As by a build that makes it anew; a shell stays in the old one."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(SystemExit, match="2"):
        early_replies.reply_early(name, [])
    assert capsys.readouterr().err == (
        "lsgd: the current folder was removed; change to another one\n"
    )


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ("lsgd.train recipe=digits", "torch and hydra"),
        ("lsgd demo", "torch and hydra"),
        ("lsgd.launch local digits", "yaml"),
        ("lsgd --help", None),
        ("lsgd.doctor --help", None),
    ],
)
def test_a_python_without_the_requirements(words: str, missing: str | None) -> None:
    """As the system's, which a shell uses until .venv is activated; -S hides installed packages."""
    command = [sys.executable, "-S", "-m", *words.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    says = rf"lsgd: .+ lacks {missing}; run '.+'.* first\n" if missing else ""
    assert re.fullmatch(says, done.stderr)
    assert done.returncode == (2 if missing else 0)


def test_processes_of_a_launcher_leave_the_answer_to_the_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    early_replies.reply_early("train", ["--epochs", "30"])
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("line", ["help bench inputs", "--help bench inputs", "-h bench inputs"])
def test_help_is_asked_for_in_either_order(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("lsgd.__main__.run_command_module", lambda *words: asked.append(words))
    dispatch(line.split())
    assert asked == [("bench", ["inputs", "--help"])]


def test_a_positional_word_is_asked_for_without_its_name() -> None:
    parser = Parser("lsgd.evaluate", "")
    parser.add_argument("checkpoint")
    with pytest.raises(UsageError, match="write runs/a alone, without --checkpoint"):
        parser.parse_args(["--checkpoint", "runs/a"])


def test_what_follows_a_command_to_supervise_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused("supervise --restarts x python --np 2", capsys)
    assert "--restarts" in said
    assert "--np" not in said


def test_the_table_names_what_there_is() -> None:
    """Each name once, and no field, module or option that is gone."""
    names = [name for key in FOREIGN_EQUIVALENTS for name in key.split()]
    assert len(names) == len(set(names))
    keys = {"recipe", "nodes", "gpus", "trials", *config.override_keys()}
    for name, forms in FOREIGN_EQUIVALENTS.items():
        for form in forms:
            first = form.split()[0]
            if "=" in first:
                assert first.lstrip("+").partition("=")[0] in keys, name
            for module in re.findall(r"lsgd\.(\w+)", form):
                assert module in command_names()


@pytest.mark.parametrize(
    ("words", "known", "says"),
    [
        (["--max-epochs", "30"], {"keys": ["epochs"]}, "write epochs=30"),
        (["--max-epochs"], {"keys": ["epochs"]}, "write epochs=…"),
        (["--dry-run", "x"], {"options": ["--print"]}, "write --print"),
        (["--seed", "1"], {"keys": ["seed", "cluster.seed"]}, "write seed=1"),
        (["--milestones"], {"keys": ["schedule.milestones", "batch_growth.milestones", "seed"]},
         "did you mean schedule.milestones= or batch_growth.milestones=?"),
        (["--jbos"], {"options": ["--jobs", "--help"]}, "did you mean --jobs?"),
        (["--tol"], {"options": ["--tolerance"]}, "did you mean --tolerance?"),
        (["--smoothing"], {"keys": ["label_smoothing"]}, "did you mean label_smoothing=?"),
        (["--status"], {"keys": ["model.start"]}, "lsgd launch --status RUN prints the state"),
    ],
)  # fmt: skip
def test_what_is_written_here_or_near_it(words: list[str], known: dict, says: str) -> None:
    """With its value, where a value is written."""
    assert suggest_equivalent(*words, **known).startswith(says)
    assert suggest_equivalent("--nonsense", **known) == ""
