"""Small processes in the actors of a real Ray, which the words of RAY_ADDRESS join."""

import os
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.waiting import wait_until

from lsgd.errors import UsageError
from lsgd.installation import install_command
from lsgd.supervise.ray import RayProcessSlot, _begin, main
from lsgd.supervise.singly import free_port

PROCESS = [sys.executable, str(Path(__file__).parent.parent / "helpers/small_lives.py")]
OVER_RAY = [sys.executable, "-m", "lsgd.supervise.ray", "2", "--"]


# Above those with the cluster: the time that its end takes counts for the last test of the file.
def test_without_ray(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    assert main(["2", "--", "true"]) == 2
    assert capsys.readouterr().err == f"lsgd: Ray is not installed; run {install_command('ray')}\n"


def test_what_it_prints_last_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it comes between the looks at the pipe and at the process, and the pipe stays open."""
    monkeypatch.chdir(tmp_path)
    wait = select.select

    def end_alone(descriptors: list[int], *others: list[int]) -> tuple[list[int], ...]:
        return wait(descriptors[1:], *others)

    monkeypatch.setattr(select, "select", end_alone)
    place = RayProcessSlot(["sh", "-c", "sleep 100 & echo saved"], uuid.uuid4().hex)
    assert [*place.run(str(tmp_path), {})] == [b"saved\n", 0]
    place.clear()


@pytest.mark.parametrize("error", [OSError, ConnectionError])
def test_a_folder_that_is_too_long_for_sockets_is_refused(
    error: type[OSError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's own error is none of a Ray that cannot be joined."""
    why = "validate_socket_filename failed: AF_UNIX path length cannot exceed 107 bytes: /x/ray"

    def init(**_: object) -> None:
        raise error(why)

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init))
    monkeypatch.setenv("RAY_ADDRESS", "a:1")
    remedy = "write TMPDIR=/tmp before the command" if error is OSError else "unset RAY_ADDRESS"
    with pytest.raises(UsageError, match=remedy):
        _begin(1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A Ray of two cores, and the variables that join it."""
    log = tmp_path_factory.mktemp("ray") / "log"
    port, token = free_port(), {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex}
    environment = os.environ | token | {"RAY_USAGE_STATS_ENABLED": "0"}
    with log.open("w") as output:
        ray = subprocess.Popen(
            [
                Path(sys.executable).with_name("ray"), "start", "--head", "--block",
                "--node-ip-address=127.0.0.1", f"--port={port}", "--num-cpus=2",
                "--include-dashboard=false", f"--object-store-memory={10**8}",
            ],
            env=environment, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        wait_until(lambda: "Ray runtime started" in log.read_text() or ray.poll())
        assert ray.poll() is None, log.read_text()
        yield environment | {"RAY_ADDRESS": f"127.0.0.1:{port}"}
    finally:
        ray.terminate()
        ray.wait(timeout=900)


@pytest.mark.ray
@pytest.mark.distributed
@pytest.mark.parametrize("victim", ["process", "actor"])
def test_who_is_killed_is_back(tmp_path: Path, victim: str, start, cluster: dict[str, str]) -> None:
    """As life 1, whether Ray has to restart the actor or not, and nothing is left of life 0; what
    they print arrives."""
    program = start(
        *OVER_RAY, *PROCESS, f"run_dir={tmp_path}", "1.0=child-stays", "1.1=75", "until=over",
        env=cluster,
    )  # fmt: skip
    wait_until(lambda: {"0.0", "1.0"} <= {path.name for path in tmp_path.iterdir()})
    process, actor = map(int, (tmp_path / "1.0").read_text().split())
    os.kill(process if victim == "process" else actor, signal.SIGKILL)
    wait_until(lambda: (tmp_path / "1.1").exists())  # once it has seen life 0's child dead
    said, _ = program.communicate(timeout=900)
    assert program.returncode == 75, said
    assert "lsgd: process 1 was killed by signal 9 after" in said
    assert "restarting it (restart 1)\n" in said


@pytest.mark.ray
@pytest.mark.distributed
def test_it_is_asked_to_end(tmp_path: Path, start, cluster: dict[str, str]) -> None:
    """The processes may save, and what they print in the end arrives."""
    words = "trap 'echo saved $RANK; exit 75' TERM; touch $RANK; while :; do sleep 0.1; done"
    program = start(*OVER_RAY, "sh", "-c", f"cd {tmp_path}; {words}", env=cluster)
    wait_until(lambda: len([*tmp_path.iterdir()]) == 2)
    program.terminate()
    said, _ = program.communicate(timeout=900)
    assert program.returncode == 75, said
    assert sorted(line for line in said.splitlines() if "saved" in line) == ["saved 0", "saved 1"]
