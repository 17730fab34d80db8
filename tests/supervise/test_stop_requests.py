"""One start of a supervised job, whose launcher is a script that notes its signals."""

from collections.abc import Sequence
from pathlib import Path
from threading import Thread

import pytest
from helpers.waiting import wait_until

from lsgd.supervise.logbook import open_logbook
from lsgd.supervise.start import run_job

LAUNCHER = """\
#!/bin/sh
for name in USR1 TERM; do trap "echo $name >> told; exit 75" $name; done
touch ready
while :; do sleep 0.05; done
"""


class Asked(list[int]):
    """The signals of a supervisor, which gets one as soon as the launcher is ready."""

    def __init__(self, ready: Path) -> None:
        self.ready = ready
        Thread(target=self.wait, daemon=True).start()

    def wait(self) -> None:
        wait_until(self.ready.exists)
        self.append(15)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["./mpirun"], "USR1"),
        (["env", "A=1", "./mpirun.sh"], "USR1"),
        (["./horovodrun"], "TERM"),
        (["./torchrun", "a=b/mpirun"], "TERM"),
    ],
)
def test_processes_on_other_machines_get_the_signal_that_the_launcher_forwards(
    command: Sequence[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At SIGTERM mpirun would kill them a second later."""
    monkeypatch.chdir(tmp_path)
    for name in ("mpirun", "mpirun.sh", "horovodrun", "torchrun"):
        (tmp_path / name).write_text(LAUNCHER)
        (tmp_path / name).chmod(0o755)
    with open_logbook(tmp_path / "run") as logbook:
        run_job([*command, "run_dir=run"], logbook, Asked(tmp_path / "ready"))
    assert (tmp_path / "told").read_text().split() == [told]
