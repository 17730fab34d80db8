"""The launchers that become the job."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

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


def test_mpirun_carries_the_settings_of_libraries(
    printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are set; its ssh would leave them behind."""
    assert " -x " not in printed("mpirun", "bs8k", "--np", "2")
    names = ["NCCL_SOCKET_IFNAME", "HOROVOD_CYCLE_TIME", "UCX_TLS", "LSGD_DATA", "LD_LIBRARY_PATH"]
    for name in (*names, "MY_NCCL", "TOKEN"):
        monkeypatch.setenv(name, "value")
    monkeypatch.setenv("NCCL_DEBUG", "")
    line = shlex.split(printed("mpirun", "bs8k", "--np", "2"))
    assert [line[at + 1] for at, word in enumerate(line) if word == "-x"] == sorted(names)
    assert line.index("-x") < line.index("env")


@pytest.mark.parametrize("word", ["run_dir='/data/läuf 2'", "run_dir=/data/läuf\\ 2"])
def test_logs_lie_in_a_folder_that_needs_quotes(word: str, printed: Printed) -> None:
    """The word stays as it is, since Hydra reads it."""
    options = {"mpirun": "--output-filename", "horovodrun": "--output-filename"}
    for launcher, option in (options | {"torchrun": "--log-dir"}).items():
        line = shlex.split(printed(launcher, "digits", word, "--np", "2"))
        assert line[line.index(option) + 1] == "/data/läuf 2/logs/start1"
        assert line[-1] == word
