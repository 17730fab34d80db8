"""The command `lsgd audit`: what it starts, prints and returns, and that it changes nothing."""

import ast
import json
import re
import shlex
import signal
import sys
from pathlib import Path

import pytest
from helpers.audited import printed
from helpers.launching import FOR_JOBS

from lsgd.audit import launched
from lsgd.audit.__main__ import main

SCRIPT = Path(__file__).parent / "scripts" / "audited_imagenet.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in FOR_JOBS.items():
        monkeypatch.setenv(name, value)


def script(folder: Path, text: str) -> list[str]:
    """The command line that audits a script of this text."""
    path = folder / "train.py"
    path.write_text(text)
    return ["--", sys.executable, str(path)]


def losses(text: str) -> list[str]:
    # Lines of two processes may have no end between them.
    return sorted(re.findall(r"loss [\d.]+", text))


@pytest.mark.distributed
def test_torchrun_has_the_same_losses_to_the_bit(capfd: pytest.CaptureFixture[str]) -> None:
    """And each of its two processes is watched, though the launcher imports torch as well."""
    code = main(["--updates", "5", "--json", "--", *TORCHRUN, str(SCRIPT), "no_set_epoch"])
    printed_json, audited = capfd.readouterr()
    plain = "".join(printed(SCRIPT, ["no_set_epoch"], processes=2))
    found = json.loads(printed_json)
    assert (code, found["processes"], found["updates"], found["minibatch"]) == (1, 2, 5, 64)
    [fact] = [each for each in found["facts"] if not each["is_followed"]]
    line = int(fact["place"].rpartition(":")[2])
    assert (fact["rule"], fact["place"]) == ("shuffling", f"{SCRIPT}:{line}")
    assert SCRIPT.read_text().splitlines()[line - 1].strip().startswith("for i, (images")
    assert len(losses(audited)) >= 8  # the fifth loss is printed after its update, at which it ends
    assert set(losses(audited)) < set(losses(plain))


@pytest.mark.slow
def test_processes_of_multiprocessing(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A spawned one, and what it forks, which trains: the table says what it does, and where."""
    words = script(
        tmp_path,
        """
import multiprocessing

def train():
    import torch
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()

def spawned():
    import torch
    child = multiprocessing.get_context("fork").Process(target=train)
    child.start()
    child.join(600)

if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=spawned)
    child.start()
    child.join(600)
""",
    )
    assert main(words) == 1
    text = capfd.readouterr().out
    assert "3 updates seen, of 4 images = 1 process x 4 images" in text
    assert "rule: 1e-4 of conv and fc weights and of the fc bias" in text
    assert "train.py:7" in text  # the optimizer
    assert "no DataLoader of torch was seen" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("print('done')", "no Python process of '"),
        ("raise SystemExit(3)", "the script ended with exit code 3 after 0 updates"),
        ("import os; os.kill(os.getpid(), 9)", "the script ended with signal 9 after 0 updates"),
    ],
)
def test_nothing_to_watch(
    text: str, says: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(script(tmp_path, text)) == 2
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith(f"lsgd: {says}")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--rules", "goyal", "--", "true"],
            "--rules goyal does not exist; did you mean goyal2017?",
        ),
        (["--updates", "2"], "needs the command of a training; write it after --"),
        (
            ["--updates", "9", "python", "train.py"],
            "'python' has no meaning here; write the command after --",
        ),
        (["--", "train.py"], "write the command after --, as in lsgd audit -- python train.py"),
        (["--", "./no-such-program"], "./no-such-program cannot be started (No such file or dir"),
    ],
)
def test_refused(words: list[str], says: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert says in capfd.readouterr().err


def test_no_folder_for_the_records(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryDirectory", refuse)
    assert main(["--", "true"]) == 2
    assert "no temporary folder can be made (Permission denied); set TMPDIR" in (
        capfd.readouterr().err
    )


def test_ctrl_c(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The script gets it too, at a terminal, and has time to save something."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    words = script(
        tmp_path,
        """
import os, signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    os.kill(os.getppid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
except KeyboardInterrupt:
    print("saved")
""",
    )
    try:
        assert main(words) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    out, err = capfd.readouterr()
    assert (out, err.strip()) == ("saved\n", "lsgd: interrupted")


TRAIN = """
import sys
import torch
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
"""
"""A script of as many updates as its command line says."""


@pytest.mark.parametrize(
    ("command", "updates"),
    [
        # Another process of the command goes on, such as an evaluation.
        pytest.param("{train} 3; sleep 1", 3, marks=pytest.mark.slow),
        ("{train} 9; exec sleep 60", 5),  # what does not end gets SIGTERM after the grace
        # The first ends, and another one trains; a launcher may make anything of its end.
        pytest.param("{train} 3; {train} 9; exit 3", 5, marks=pytest.mark.slow),
    ],
)
def test_only_a_watched_process_ends_the_command(
    command: str,
    updates: int,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(launched, "GRACE", 0.3)
    _, *words = script(tmp_path, TRAIN)
    line = command.format(train=shlex.join(words))
    assert main(["--updates", "5", "--", "sh", "-c", line]) == 1
    out, err = capfd.readouterr()
    assert f"{updates} updates seen, of 4 images" in out
    assert not err


def test_the_hosts_sitecustomize_runs_too(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    host = tmp_path / "host"
    host.mkdir()
    (host / "sitecustomize.py").write_text("import sys; sys.of_host = 'of the host'\n")
    monkeypatch.setenv("PYTHONPATH", str(host))
    text = "import sys; print(sys.of_host, [p for p in sys.path if 'audit/site' in p])"
    main(script(tmp_path, text))
    assert capfd.readouterr().out == "of the host []\n"


def test_the_watch_needs_nothing_of_lsgd() -> None:
    """The script's environment may have torch alone; torch itself is imported by the script."""
    for file in [*(launched.SITE.parent / "watch").glob("*.py"), *launched.SITE.glob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            first = {each.partition(".")[0] for each in names}
            assert first <= {"torch"} | sys.stdlib_module_names
            assert file.parent.name == "watch" or "torch" not in first
