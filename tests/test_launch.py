"""What each launch script would start or submit, to the letter; the runs are in distributed/."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = Path(__file__).parent / "golden" / "launch"
IMAGE = ["--image", "registry.example/lsgd:1", "--claim", "imagenet", "--nodes", "32"]

PRINTED = {
    "torchrun": ["torchrun", "digits", "seed=3", "schedule.milestones=[1,2]", "--np", "4"],
    "torchrun-nodes": ["torchrun", "bs8k", "--nodes", "4", "--gpus", "8", "run_dir=runs/a"],
    "horovodrun": ["horovodrun", "digits", "--np", "4", "run_dir=runs/a"],
    "horovodrun-hosts": ["horovodrun", "bs8k", "--hosts", "a:8,b:8"],
    "mpirun": ["mpirun", "digits", "--np=4", "run_dir=runs/a"],
    "mpirun-nodes": ["mpirun", "bs8k", "--nodes", "32", "--gpus", "8"],
    "slurm": ["slurm", "bs8k", "seed=1", "--nodes", "32", "--time", "2:00:00"],
    "slurm-cpu": ["slurm", "digits", "--nodes", "2", "--np", "3", "--cpus", "4", "run_dir=runs/a"],
    "slurm-container": [
        "slurm", "bs8k", "data.root=/data/imagenet", "--container", "registry.example/lsgd:1",
    ],
    "mpijob": ["k8s", "bs8k", "--kind", "mpijob", *IMAGE],
    "pytorchjob": ["k8s", "bs8k_b0", "deviations.a=\"it's $(A)\"", "--kind", "pytorchjob", *IMAGE],
}  # fmt: skip


def launched(script: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "OMP_NUM_THREADS")}
    return subprocess.run(
        ["bash", ROOT / "launch" / f"{script}.sh", *arguments],
        env=kept | {"PYTHON": sys.executable} | env, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def printed(*arguments: str, **env: str) -> str:
    done = launched(*arguments, "--print", OMPI_ALLOW_RUN_AS_ROOT="1", **env)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("name", PRINTED)
def test_it_prints_to_the_letter(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`LSGD_WRITE_GOLDEN=1 pytest -k letter` writes what is printed now."""
    monkeypatch.chdir(tmp_path)
    found = printed(*PRINTED[name], OMP_NUM_THREADS="3", MASTER_ADDR="node0", LSGD_DATA="")
    # Programs lie beside the Python where they are installed there.
    found = found.replace(f"{Path(sys.executable).parent}/", "").replace(str(tmp_path), "/here")
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("LSGD_WRITE_GOLDEN"):
        golden.write_text(found)
        pytest.skip(f"{golden} is written anew")
    assert found == golden.read_text()
    assert not list(tmp_path.iterdir())


def test_no_golden_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(PRINTED)


@pytest.mark.kubeflow
@pytest.mark.parametrize("name", ["mpijob", "pytorchjob"])
def test_kubeflow_knows_every_field(name: str) -> None:
    """What its models do not know, they drop."""
    import yaml
    from kubeflow.training import models
    from kubeflow.training.api_client import ApiClient

    manifest = yaml.safe_load((GOLDEN / f"{name}.txt").read_text())
    answer = SimpleNamespace(data=json.dumps(manifest))
    client = ApiClient()
    known = client.deserialize(answer, getattr(models, f"KubeflowOrgV1{manifest['kind']}"))
    assert client.sanitize_for_serialization(known) == manifest


def test_every_start_has_logs_of_its_own(tmp_path: Path) -> None:
    """A resumed run does not overwrite what its processes said before."""
    words = ["mpirun", "digits", f"run_dir={tmp_path}", "--np", "2"]
    assert f"--output-filename {tmp_path}/logs/start1 " in printed(*words)
    (tmp_path / "logs" / "start1").mkdir(parents=True)
    assert f"--output-filename {tmp_path}/logs/start2 " in printed(*words)


@pytest.mark.slow
def test_local_says_what_it_launches_with() -> None:
    done = launched("local", "digits", "--print")
    launcher = re.search(r"processes under (torchrun|horovodrun)", done.stderr)
    assert launcher, done.stderr
    assert done.stdout == launched(launcher[1], "digits", "--print").stdout
    processes = torch.cuda.device_count() or 2
    assert re.search(rf"(-np|--nproc-per-node) {processes} ", done.stdout)


def test_threads_share_the_cores() -> None:
    cores = os.cpu_count() or 1
    for processes, threads in ((1, cores), (cores, 1), (3 * cores, 1)):
        assert f"OMP_NUM_THREADS={threads} " in printed("torchrun", "digits", f"--np={processes}")
    # Those of one machine, not of all.
    line = printed("mpirun", "digits", "--nodes", "16", "--gpus", "1")
    assert f"-np 16 --map-by ppr:1:node env OMP_NUM_THREADS={cores} " in line
    line = printed("horovodrun", "digits", "--hosts", "a:1,b:3")
    assert f"OMP_NUM_THREADS={cores} " in line
    assert "-np 4 -H a:1" in line


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("torchrun", "which recipe"),
        ("torchrun digits bs8k", "bs8k"),
        ("torchrun digits --np two", "two"),
        ("torchrun digits --np", "--np"),
        ("torchrun digits --np=", "--np"),
        ("torchrun digits --dry-run", "--dry-run"),
        ("torchrun digits wokers=2", "wokers"),
        ("torchrun nothing", "nothing"),
        ("torchrun digits --np 999", "999"),
        ("torchrun digits --np 4 --gpus 4", "write one of them"),
        ("torchrun digits --nodes 2 --gpus 4", "MASTER_ADDR"),
        ("torchrun digits --time 1:00", "--time is not known"),
        ("local digits --nodes 2", "--nodes is not known"),
        ("horovodrun digits --hosts a,b", "host1:8,host2:8"),
        ("mpirun digits --nodes 2", "--gpus"),
        ("slurm digits --hosts a:8", "--hosts is not known"),
        ("slurm digits --gpus 0", "--gpus is 0"),
        ("k8s digits --kind pod --image i --claim c", "--kind is pod"),
        ("k8s digits --kind mpijob --claim c", "--image is missing"),
        ("k8s digits --kind mpijob --image i", "--claim is missing"),
        ("k8s digits --kind mpijob --image i --claim c --name A_b", "A_b"),
    ],
)
def test_it_refuses_in_one_sentence(words: str, named: str, tmp_path: Path) -> None:
    script, *arguments = words.split()
    done = launched(script, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert named in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("script", ["local", "mpirun", "horovodrun", "torchrun", "slurm", "k8s"])
def test_help_names_every_option(script: str) -> None:
    done = launched(script, "--help")
    usage, *lines = done.stdout.splitlines()
    options = re.findall(r"\[(--\w+)", usage)
    assert [line.split()[0] for line in lines] == options
    assert options[-1] == "--print"
    assert all(len(line.split(maxsplit=2)) == 3 for line in lines)
