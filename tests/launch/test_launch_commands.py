"""The launchers that become the job."""

from collections.abc import Callable
from pathlib import Path

Printed = Callable[..., str]


def test_every_start_has_logs_of_its_own(printed: Printed, tmp_path: Path) -> None:
    """A resumed run does not overwrite what its processes said before."""
    words = ["mpirun", "digits", f"run_dir={tmp_path}", "--np", "2"]
    assert f"--output-filename {tmp_path}/logs/start1 " in printed(*words)
    (tmp_path / "logs" / "start1").mkdir(parents=True)
    assert f"--output-filename {tmp_path}/logs/start2 " in printed(*words)


def test_a_single_process_of_horovodrun_has_no_file(printed: Printed) -> None:
    """Horovod 0.28.1 fails where it has to name one."""
    words = ["horovodrun", "digits", "run_dir=a", "--np"]
    assert "--output-filename" not in printed(*words, "1")
    assert "--output-filename" in printed(*words, "2")
