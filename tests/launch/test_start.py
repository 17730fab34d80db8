"""What is started or submitted in earnest, with programs that only say how they were called."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lsgd.launch.__main__ import main
from lsgd.launch.commands import exported_variables
from lsgd.launch.launch_command import LaunchCommand, _missing_interpreter
from lsgd.launch.options import read_request
from lsgd.launch.slurm import slurm


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/bash\n{text}\n")
    (folder / name).chmod(0o755)


def launched(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    path = f"{folder}:{os.environ['PATH']}"
    clean = {
        name: os.environ[name] for name in os.environ.keys() - set(exported_variables(os.environ))
    }
    return subprocess.run(
        [sys.executable, "-m", "lsgd.launch", *words],
        cwd=folder, env=clean | {"PATH": path} | env, capture_output=True, text=True, timeout=900,
    )  # fmt: skip


@pytest.mark.slow
def test_it_becomes_the_launcher(tmp_path: Path) -> None:
    """Under the words as they were, with an exit code of its own, and deaf to no signal."""
    program(tmp_path, "mpirun", "printf '<%s>' \"$@\"; grep SigIgn /proc/$$/status; exit 9")
    folder = tmp_path / "of the job"
    done = launched(
        tmp_path, "mpirun", "digits", "data.root=a b", "--np", "2", LSGD_SUPERVISED=str(folder)
    )
    words, _, ignored = done.stdout.partition("SigIgn:")
    words = words.replace("<--oversubscribe>", "")  # where there are fewer cores than processes
    assert (done.returncode, done.stderr) == (9, "")
    assert words.startswith("<--bind-to><none><-np><2><-x><LSGD_SUPERVISED><env><OMP_NUM_THREADS=")
    assert words.endswith("<-m><lsgd.train><+recipe=digits><data.root=a b>")
    assert int(ignored, 16) & (1 << 12) == 0  # SIGPIPE
    # A supervisor would take it for a process of the job, and ask it to save.
    assert not folder.exists()


def test_torchrun_waits_for_machines_that_it_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Since it prints nothing itself until all have started it, or ten minutes are over."""
    monkeypatch.setenv("MASTER_ADDR", "a")
    with pytest.raises(AssertionError, match="would become"):
        main(["torchrun", "digits", "--nodes", "2", "--gpus", "1"])
    assert "waiting at a:29500 for this command on 2 machines" in capsys.readouterr().err


@pytest.mark.slow
def test_it_hands_the_text_to_the_queue(tmp_path: Path) -> None:
    """After making the folder of the job's own log, and ends as the queue has answered."""
    program(tmp_path, "sbatch", "ls -d runs/a; cat; exit 3")
    done = launched(tmp_path, "slurm", "digits", "run_dir=runs/a/b", "--np", "1")
    shown = launched(tmp_path, "slurm", "digits", "run_dir=runs/a/b", "--np", "1", "--print")
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout == "runs/a\n" + shown.stdout


@pytest.mark.slow
def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    program(tmp_path, "sbatch", "echo never")
    (tmp_path / "file").touch()
    done = launched(tmp_path, "slurm", "digits", "run_dir=file/a/b", "--np", "1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("lsgd: run_dir=file/a/b cannot be written (Not a directory)")


@pytest.mark.parametrize("launcher", ["torchrun", "horovodrun", "mpirun"])
def test_a_run_folder_that_cannot_be_written_is_refused_before_the_launcher_starts(
    launcher: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(LaunchCommand, "check", lambda start: None)
    program(tmp_path, launcher, "true")
    (tmp_path / "file").touch()
    words = [launcher, "digits", "--np", "2"]
    assert main([*words, "run_dir=file/a"]) == 2
    assert "lsgd: run_dir=file/a cannot be written (Not a directory)" in capsys.readouterr().err
    with pytest.raises(AssertionError, match="would become"):
        main([*words, "run_dir=a"])
    assert (tmp_path / "a/logs/start1").is_dir()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("mpirun digits --np 2", "mpirun is not installed; Debian has it"),
        ("slurm digits --np 2", "sbatch is not installed; on a machine without Slurm"),
        (
            "k8s digits --kind mpijob --image i --claim c",
            "kubectl is not installed; or save the output of --print",
        ),
    ],
)
def test_what_is_not_installed(
    words: str, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setenv("PATH", "")
    assert main(words.split()) == 2
    assert capsys.readouterr().err.startswith(f"lsgd: {sentence}")


@pytest.mark.parametrize(
    "first", ["#!{python}", "#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"", "#! {python} -s"]
)
def test_a_program_of_an_environment_that_was_moved(
    first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """env and the shell say of it that it does not exist."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "mpirun").write_text(first.format(python="/old/.venv/bin/python"))
    (tmp_path / "mpirun").chmod(0o755)
    assert main(["mpirun", "digits", "--np", "2"]) == 2
    problem = f"{tmp_path}/mpirun cannot be started, as its interpreter /old/.venv/bin/python"
    assert f"lsgd: {problem} does not exist: the environment was" in capsys.readouterr().err


@pytest.mark.parametrize(
    "second",
    [
        """'''exec' '{python}' "$0" "$@"\n""",
        """'''exec' "$(dirname -- "$(realpath -- "$0")")"/'python' "$0" "$@"\n""",
    ],
)
def test_a_program_that_uv_has_written_is_started(second: str, tmp_path: Path) -> None:
    """Its path has a blank, or is relative to the program."""
    python, script = tmp_path / "with space/python", tmp_path / "torchrun"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    script.write_text("#!/bin/sh\n" + second.format(python=python))
    assert _missing_interpreter(str(script)) == ""


def test_an_image_may_have_recipes_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    program(tmp_path, "sbatch", "true")
    request = read_request("slurm", ["unknown", "--container", "image"])
    with pytest.raises(SystemExit) as end:
        slurm(request).execute()
    assert end.value.code == 0


@pytest.mark.slow
@pytest.mark.parametrize("shows", [["--print"], []])
def test_a_mistake_is_found_before_the_queue(shows: list[str], tmp_path: Path) -> None:
    """Also where the job is only shown: who submits that later would learn of it late."""
    program(tmp_path, "sbatch", "echo submitted")
    done = launched(tmp_path, "slurm", "digits", "dat.root=a", "--np", "2", *shows)
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean data.root?" in done.stderr
    many = launched(tmp_path, "slurm", "digits", "--nodes", "3", *shows)
    assert (many.returncode, many.stdout) == (2, "")
    assert "24 processes cannot share workers=16" in many.stderr


@pytest.mark.slow
def test_of_an_image_it_is_only_said(tmp_path: Path) -> None:
    """The lsgd in it may be another, which knows the word."""
    program(tmp_path, "kubectl", "cat; exit 3")
    words = ["k8s", "digits", "dat.root=a", "--kind", "pytorchjob", "--image", "i", "--claim", "c"]
    done = launched(tmp_path, *words, "--gpus", "2")
    assert done.returncode == 3
    assert "dat.root=a" in done.stdout
    assert done.stderr.startswith("lsgd: unless the image has another lsgd: there is no key")
