import json
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
