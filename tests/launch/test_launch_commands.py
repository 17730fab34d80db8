"""The launchers that become the job."""

import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lsgd.job.network import Hostname, NetworkInterface
from lsgd.launch import commands
from lsgd.launch.__main__ import main
from lsgd.launch.launch_command import LaunchCommand
from lsgd.launch.options import read_request
from lsgd.launch.processes import with_threads

Printed = Callable[..., str]

LO = NetworkInterface("lo", True, ("127.0.0.1", "::1"))
ETH = NetworkInterface("eth0", True, ("192.0.2.2",))


def test_every_start_has_logs_of_its_own(printed: Printed, tmp_path: Path) -> None:
    """A resumed run does not overwrite what its processes said before."""
    words = ["mpirun", "digits", f"run_dir={tmp_path}", "--np", "2"]
    assert f"--output-filename {tmp_path}/logs/start1 " in printed(*words)
    (tmp_path / "logs" / "start1").mkdir(parents=True)
    assert f"--output-filename {tmp_path}/logs/start2 " in printed(*words)


def test_no_launcher_takes_a_run_folder_for_an_option(printed: Printed) -> None:
    for launcher in ("torchrun", "horovodrun", "mpirun"):
        assert " ./-x/logs/start1 " in printed(launcher, "digits", "run_dir=-x", "--np", "2")
    for written in ("-x/", "./-x"):
        assert "\nrun_dir=./-x\n" in printed("slurm", "digits", f"run_dir={written}", "--np", "2")


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
    names += ["MASTER_ADDR", "MASTER_PORT"]  # where the processes of comm=torch connect
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


def test_mpirun_on_this_machine_may_start_more_processes_than_it_has_cores(
    printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As each launcher may; others' machines have the slots that they are said to have."""
    monkeypatch.setattr(commands, "usable_cores_here", lambda: 8)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert "--oversubscribe" not in printed("mpirun", "digits", "--np", "4")
    assert " -np 5 --oversubscribe " in printed("mpirun", "digits", "--np", "5")
    for words in (("--hosts", "a:9,b:4"), ("--nodes", "2", "--gpus", "8")):
        assert "--oversubscribe" not in printed("mpirun", "digits", *words)
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert "--oversubscribe" not in printed("mpirun", "digits", "--np", "5")


def test_mpirun_has_options_behind_a_colon(
    printed: Printed, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And would take the first half of a folder for the whole."""
    monkeypatch.setattr(LaunchCommand, "check", lambda start: None)
    assert main(["mpirun", "digits", "run_dir=runs/12:30", "--np", "2", "--print"]) == 0
    line, said = capsys.readouterr()
    assert "--output-filename" not in line
    assert "mpirun cuts runs/12:30/logs/start1 at its colon" in said
    assert "--output-filename" in printed("horovodrun", "digits", "run_dir=a:b", "--np", "2")


def test_torchrun_on_several_machines_needs_a_port(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kubernetes sets MASTER_PORT in the pods beside a Service that is called master."""
    monkeypatch.setenv("MASTER_ADDR", "a")
    monkeypatch.setenv("MASTER_PORT", "tcp://10.0.0.1:80")
    assert main(["torchrun", "digits", "--nodes", "2", "--gpus", "1", "--print"]) == 2
    assert "MASTER_PORT=tcp://10.0.0.1:80 is not a number; unset it" in capsys.readouterr().err


def test_a_program_below_a_folder_with_an_equals_sign(tmp_path: Path) -> None:
    """It is no variable, which env would take it for, and end with 0 having started nothing."""
    program = tmp_path / "lr=0.1" / "python"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$OMP_NUM_THREADS $@"\n')
    program.chmod(0o755)
    command = with_threads(read_request("mpirun", ["digits"]), 10**6, [str(program), "a b", "$c"])
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900).stdout
    assert said == "1 a b $c\n"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[LaunchCommand]:
    """The starts of this test, none of which starts anything, with a Horovod that is built."""
    starts: list[LaunchCommand] = []
    monkeypatch.setattr(LaunchCommand, "execute", lambda start: starts.append(start))
    monkeypatch.setattr(LaunchCommand, "check", lambda start: None)
    done = subprocess.CompletedProcess([], 0, stdout="", stderr="")
    monkeypatch.setattr(commands.subprocess, "run", lambda *words, **options: done)
    return starts


@pytest.mark.parametrize(
    ("addresses", "finding"),
    [
        ([], "the hostname node7 does not resolve"),
        (["10.9.9.9"], "node7 resolves to 10.9.9.9, which no interface here has"),
    ],
)
def test_one_machine_does_without_a_name(
    addresses: list[str],
    finding: str,
    started: list[LaunchCommand],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of which Horovod's Gloo would crash, whatever interface it is told."""
    monkeypatch.setattr(commands, "hostname", lambda: Hostname("node7", addresses))
    monkeypatch.setattr(commands, "list_interfaces", lambda: [LO, ETH])
    why = f"{finding}, which would crash Horovod; write `192.0.2.2 node7` into /etc/hosts"
    assert main(["horovodrun", "digits", "--np", "2"]) == 2
    assert f"{why}, or start the run with `python -m lsgd.launch torchrun`" in (
        capsys.readouterr().err
    )
    assert not started
    for launcher in ("local", "torchrun"):
        assert main([launcher, "digits", "--np", "2"]) == 0
        assert started[-1].command[1:].count("127.0.0.1") == 1
        assert started[-1].program.endswith("torchrun")
    assert f"2 processes under torchrun ({why})" in capsys.readouterr().err
    # What is shown may be for another machine, and --hosts are others.
    assert main(["horovodrun", "digits", "--np", "2", "--print"]) == 0
    assert main(["horovodrun", "digits", "--hosts", "a:1,b:1"]) == 0
    assert started[-1].program.endswith("horovodrun")


@pytest.mark.parametrize("launcher", ["local", "torchrun", "horovodrun", "singly"])
def test_where_processes_could_not_meet_at_all(
    launcher: str,
    started: list[LaunchCommand],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(commands, "hostname", lambda: Hostname("node7", ["192.0.2.2"]))
    monkeypatch.setattr(
        commands, "list_interfaces", lambda: [NetworkInterface("lo", False, ()), ETH]
    )
    assert main([launcher, "digits", "--np", "2"]) == 2
    assert (
        "no interface here has the address 127.0.0.1, which the processes need to connect; `ip link"
        in (capsys.readouterr().err)
    )
    assert not started


@pytest.mark.horovod
@pytest.mark.slow
def test_horovodrun_on_one_machine_needs_no_home(
    printed: Printed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its cache, which it keeps there, is of other hosts."""
    line = shlex.split(printed("horovodrun", "digits", "--np", "1"))
    (tmp_path / "file").touch()
    command = [*line[: line.index("-m") - 1], "true"]
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr


def test_horovodrun_on_several_machines_needs_no_home_either(
    printed: Printed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = ["horovodrun", "digits", "--hosts", "a:1,b:1"]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "--disable-cache" not in printed(*words)
    monkeypatch.setenv("HOME", str(tmp_path / "missing"))
    assert "--disable-cache" in printed(*words)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("torchrun digits run_dir=a --np 2", "-m lsgd.doctor.job_check +recipe=digits run_dir=a"),
        ("mpirun bs8k --hosts a:8,b:8", r"-m lsgd.doctor.job_check --hosts a:8\,b:8 +recipe=bs8k"),
        ("local digits --np 1", "-m lsgd.doctor.job_check +recipe=digits"),
        ("slurm bs8k --exclude n1", "-m lsgd.doctor.job_check --exclude n1 +recipe=bs8k"),
        ("slurm bs8k --container i", "python3 -m lsgd.doctor.job_check +recipe=bs8k"),
        ("k8s digits --kind jobset --image i --claim c", "name: digits-check\n"),
    ],
)
def test_a_check_is_the_same_job_with_another_program(
    words: str, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose logs are not those of the run."""
    monkeypatch.setattr(LaunchCommand, "check", lambda start: None)
    assert main([*words.split(), "--check", "--print"]) == 0
    text = capsys.readouterr().out
    assert shown in text
    assert "lsgd.train" not in text
    assert " a/logs" not in text
    run = text.partition("run_dir=")[2].split()
    assert "slurm" not in words or run[0] == "runs/bs8k/slurm-check-$SLURM_JOB_ID"
