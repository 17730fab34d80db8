import json
import re
from pathlib import Path

import pytest

from benchmarks import startup
from benchmarks.startup import main


@pytest.mark.slow
def test_whole_processes_are_compared_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With smaller ones, of which the first takes half a second longer."""
    monkeypatch.setattr(
        startup,
        "COMMANDS",
        {startup.HELP: ["-c", "import time; time.sleep(0.5)"], startup.BARE: ["-c", ""]},
    )
    assert main(["--rounds", "6", "--out", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out" / "startup.json").read_text())
    assert all(len(speeds) == 6 for speeds in found["per_second"].values())
    assert "at most 1.2 times importing torch and hydra: no" in capsys.readouterr().out
    monkeypatch.setitem(startup.COMMANDS, startup.BARE, ["-c", "import time; time.sleep(1)"])
    assert main(["--rounds", "6"]) == 0
    assert "at most 1.2 times importing torch and hydra: yes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--rounds", "5"], "--rounds 5 is too few"),
        (["+recipe=digits"], r"'\+recipe=digits' has no meaning here; --help says"),
    ],
)
def test_what_makes_no_sense_is_refused(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert re.fullmatch(rf"lsgd: .*{message}.*\n", said)


def test_a_command_that_fails_is_no_measurement(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(startup.COMMANDS, startup.BARE, ["-c", "import a_module_that_is_not"])
    monkeypatch.setitem(startup.COMMANDS, startup.HELP, ["-c", ""])
    assert main([]) == 2
    assert "No module named 'a_module_that_is_not'); mend that first" in capsys.readouterr().err
