"""What each launcher would start or submit, to the letter; the runs are in distributed/."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lsgd.launch.__main__ import LAUNCH_COMMANDS, main
from lsgd.launch.options import LAUNCHERS, read_request
from lsgd.launch.quoting import shell_line

GOLDEN = Path(__file__).parent.parent / "golden" / "launch"
WRITES = bool(os.environ.get("LSGD_WRITE_GOLDEN"))  # which no test sees any more
IMAGE = ["--image", "registry.example/lsgd:1", "--claim", "imagenet", "--nodes", "32"]

PRINTED = {
    "torchrun": ["torchrun", "digits", "seed=3", "schedule.milestones=[1,2]", "--np", "4"],
    "torchrun-nodes": ["torchrun", "bs8k", "--nodes", "4", "--gpus", "8", "run_dir=runs/a"],
    "horovodrun": ["horovodrun", "digits", "--np", "4", "run_dir=runs/a"],
    "horovodrun-hosts": ["horovodrun", "bs8k", "--hosts", "a:8,b:8"],
    "mpirun": ["mpirun", "digits", "--np=4", "run_dir=runs/a"],
    "mpirun-nodes": ["mpirun", "bs8k", "--nodes", "32", "--gpus", "8"],
    "singly": ["singly", "digits", "--np", "4", "run_dir=runs/a"],
    "ray": ["ray", "digits", "--np", "4", "run_dir=runs/a"],
    "slurm": ["slurm", "bs8k", "seed=1", "--nodes", "32", "--time", "2:00:00"],
    "slurm-cpu": ["slurm", "digits", "--nodes", "2", "--np", "3", "--cpus", "4", "run_dir=runs/a"],
    "slurm-container": [
        "slurm", "bs8k", "data.root=/data/imagenet", "--container", "registry.example/lsgd:1",
    ],
    "mpijob": ["k8s", "bs8k", "--kind", "mpijob", *IMAGE],
    "trainjob": ["k8s", "bs8k", "--kind", "trainjob", *IMAGE, "--rdma", "rdma/hca"],
    "jobset": ["k8s", "bs8k", "--kind", "jobset", *IMAGE, "--rdma", "rdma/hca"],
    "k8s-site": [
        "k8s", "digits", "--kind", "mpijob", *IMAGE, "--namespace", "ml", "--env", "A=1,B=$(A),c",
        "--secret", "wandb", "--pull-secret", "hub", "--node-selector", "pool=h100", "--tolerate",
        "nvidia.com/gpu,pool=h100:NoSchedule", "--requests", "cpu=64,memory=500Gi", "--limits",
        "memory=600Gi", "--ttl", "3600", "--queue", "team-a",
    ],
    "pytorchjob": ["k8s", "bs8k_b0", "deviations.a=\"it's $(A)\"", "--kind", "pytorchjob", *IMAGE],
}  # fmt: skip

Printed = Callable[..., str]


@pytest.mark.parametrize("name", PRINTED)
def test_it_prints_to_the_letter(
    name: str, printed: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`LSGD_WRITE_GOLDEN=1 pytest -k letter` writes what is printed now."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setattr("lsgd.launch.commands.usable_cores_here", lambda: 12)
    if name == "torchrun-nodes":
        monkeypatch.setenv("MASTER_ADDR", "node0")
    text = printed(*PRINTED[name])
    # Programs lie beside the Python where they are installed there.
    beside = shell_line([f"{Path(sys.executable).parent}/"])
    text = text.replace(beside, "").replace(shell_line([str(tmp_path)]), "/here")
    golden = GOLDEN / f"{name}.txt"
    if WRITES:
        golden.write_text(text)
        pytest.skip(f"{golden} is written anew")
    assert text == golden.read_text()
    assert not list(tmp_path.iterdir())


def test_no_golden_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(PRINTED)


@pytest.mark.slow
def test_local_says_what_it_launches_with(
    printed: Printed, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["local", "digits", "--print"]) == 0
    line, reason = capsys.readouterr()
    launcher = re.search(r"processes under (torchrun|horovodrun)", reason)
    assert launcher, reason
    assert line == printed(launcher[1], "digits")
    processes = torch.cuda.device_count() or 2
    assert re.search(rf"(-np|--nproc-per-node) {processes} ", line)


def test_local_needs_no_launcher_for_one_process(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert main(["local", "digits", "--np", "1", "seed=3", "--print"]) == 0
    line, reason = capsys.readouterr()
    assert reason == "lsgd: 1 process, without a launcher\n"
    words = ["env", "OMP_NUM_THREADS=3", sys.executable, "-m", "lsgd.train", "+recipe=digits"]
    assert line == f"{shell_line([*words, 'seed=3'])}\n"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (
            "sbatch digits",
            "launcher sbatch does not exist; write one of horovodrun, k8s, local, mpirun",
        ),
        ("torchrun", "no recipe is given"),
        ("torchrun digits bs8k", "bs8k"),
        ("torchrun digits --np two", "two"),
        ("torchrun digits --np=", "--np"),
        ("torchrun digits --dry-run", "--dry-run"),
        ("torchrun digits wokers=2", "wokers"),
        ("torchrun nothing", "recipe nothing does not exist; lsgd train --recipes lists"),
        ("mpirun bs9k --np 2 --print", "recipe bs9k does not exist; did you mean bs8k"),
        ("torchrun digits --np 999", "999"),
        ("torchrun digits --np 4 --gpus 4", "write one of them"),
        ("torchrun digits --nodes 2", "--nodes needs --gpus"),
        ("torchrun digits --nodes 2 --gpus 4", "MASTER_ADDR"),
        ("torchrun digits --time 1:00", "--time is an option of slurm, not torchrun"),
        ("horovodrun digits --hosts a,b", "host1:8,host2:8"),
        ("horovodrun digits --hosts a;id:2", "host1:8,host2:8"),
        ("mpirun digits --hosts=-oProxyCommand=id:2", "host1:8,host2:8"),
        ("slurm digits --hosts a:8", "--hosts is an option of horovodrun, mpirun, not slurm"),
        ("slurm digits --mem lots", "--mem is lots, but must be a number of MB, or such as 64G"),
        ("k8s digits --rdma hca --kind pod", "--rdma is hca, but must be like rdma/hca"),
        ("slurm digits -p gpu", "-p is not an option of lsgd; write --partition"),
        ("slurm digits --gres gpu:0", "--gres gpu:0 must have a number of GPUs, such as"),
        ("slurm digits --gres nvme:1,gpu:a100:x", "gpu:a100:x must have a number of GPUs"),
        ("slurm digits --gres gpu:", "--gres gpu: must have a number of GPUs"),
        ("k8s digits --node-selector a=-x", "--node-selector is a=-x, but must be labels"),
        (
            "k8s digits --kind jobset --image i --claim c --requests nvidia.com/gpu=4",
            "--requests nvidia.com/gpu=4 contradicts --gpus",
        ),
        ("k8s digits --claim C_D", "--claim is C_D, but must be a name of Kubernetes"),
        ("k8s digits --namespace=a:b", "--namespace is a:b, but must be a name of Kubernetes"),
        ("k8s digits --queue=-q", "--queue is -q, but must be a name of Kubernetes"),
        ("k8s digits --secret a,b-", "--secret is a,b-, but must be names of Kubernetes"),
        ("k8s digits --image a'b", "--image is a'b, but must be the name of an image"),
        ("k8s digits --requests memory=5GB", "--requests is memory=5GB, but must be resources in"),
        ("k8s digits --limits cpu=1.", "--limits is cpu=1., but must be resources in units"),
        ("k8s digits --kind pod --image i --claim c", "--kind is pod"),
        ("k8s digits --kind mpijob --image i", "--claim is missing"),
        ("k8s digits --kind mpijob --image i --claim c --name A_b", "A_b"),
        ("k8s digits --kind mpijob --image i --claim c run_dir=~/a", "run_dir=~/a begins with ~"),
        ("slurm digits run_dir=s3://bucket/a", "s3://bucket/a is a URL"),
    ],
)
def test_it_refuses_in_one_sentence(
    words: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(words.split())
    output = capsys.readouterr()
    assert (code, output.out) == (2, "")
    assert output.err.startswith("lsgd: ")
    assert named in output.err
    assert output.err.count("\n") == 1


def test_a_recipes_file_may_have_an_equals_sign_in_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=0.1.yaml").write_text("defaults: [digits]\n")
    request = read_request("local", ["./lr=0.1.yaml", "epochs=3", "run_dir=lr=0.2.yaml"])
    assert request.recipe == "lr=0.1.yaml"
    assert request.overrides == ["epochs=3", "run_dir=lr=0.2.yaml"]


@pytest.mark.parametrize("words", [[], ["--help"]])
def test_every_launcher_has_a_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert LAUNCH_COMMANDS.keys() == LAUNCHERS.keys()
    assert main(words) == 0
    _, _, listed = capsys.readouterr().out.partition("launchers:\n")
    assert re.findall("^  ([a-z0-9]+) ", listed, re.M) == sorted(LAUNCHERS)


@pytest.mark.slow
def test_showing_needs_no_torch() -> None:
    """A login node without torch answers too."""
    program = (
        "import sys; from lsgd.launch.__main__ import main; main(sys.argv[1:]); "
        "print('torch' in sys.modules)"
    )
    words = ["mpirun", "digits", "--np", "2", "--print"]
    line, modules = subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=900,
    ).stdout.splitlines()
    assert line.endswith("-m lsgd.train +recipe=digits")
    assert modules == "False"
