"""The launcher of the trials, and the options that it is given for each."""

import os
import re
import subprocess

import pytest
from helpers.base_recipe import BASE, changed
from helpers.studies import Place

from lsgd.launch.options import read_options
from lsgd.trials.launch import TrialLauncher, share_cores
from lsgd.trials.trial import Trial


def trial_launcher(name: str, options: list[str]) -> TrialLauncher:
    _, values, _ = read_options(name, options)
    return TrialLauncher(name, values)


def test_trials_side_by_side_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 2 jobs of 2 processes has a quarter of them; what the user has set stays."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    for options, given, expected in (
        (["--np", "2"], None, "4"),
        (["--np", "64"], None, "1"),
        (["--np", "2"], "3", "3"),
        (["--hosts", "a:2,b:2"], None, None),
    ):
        monkeypatch.setattr(os, "environ", {"OMP_NUM_THREADS": given} if given else {})
        share_cores(trial_launcher("mpirun", options), jobs=2)
        assert os.environ.get("OMP_NUM_THREADS") == expected


def test_each_has_a_name_of_its_own_on_kubernetes(place: Place) -> None:
    options = ["--kind", "mpijob", "--image", "a/b:1", "--claim", "c"]
    _, said = place.run("+study=small", "seeds=[0,1]", "--launch", "k8s", *options, "--print")
    commands = [line.split() for line in said.splitlines() if line[0] != "#"]
    assert len({command[-1] for command in commands}) == 4
    for command in commands:
        [folder] = [word for word in command if word.startswith("run_dir=")]
        assert folder.startswith("run_dir=/lsgd/runs/trials/digits")
        assert command[-2] == "--name"
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", command[-1])
        assert len(command[-1]) <= 63


@pytest.mark.parametrize(
    ("launcher", "options", "workers", "expected"),
    [
        ("slurm", "--nodes 32", 8, (8, "--nodes 1 --gpus 8")),
        ("slurm", "--nodes 32", 256, (256, "--nodes 32")),
        ("slurm", "--nodes=4", 16, (16, "--nodes 2 --gpus 8")),
        ("slurm", "", 2, (2, "--nodes 1 --gpus 2")),
        ("slurm", "--np 12 --nodes 3 --cpus 4", 2, (2, "--np 2 --nodes 2 --cpus 4")),
        ("k8s", "--nodes 2 --gpus 4", 6, (4, "--nodes 1 --gpus 4")),
        ("mpirun", "--gpus 8", 4, (4, "--gpus 4 --nodes 1")),
        ("mpirun", "--hosts a:8,b:8", 4, (4, "--hosts a:8,b:8 --np 4")),
        ("horovodrun", "--hosts a:8,b:8", 16, (16, "--hosts a:8,b:8")),
        ("local", "--np 3", 2, (2, "--np 2")),
        ("local", "", 1, (1, "--np 1")),
    ],
)
def test_no_trial_has_more_processes_than_workers(
    launcher: str, options: str, workers: int, expected: tuple[int, str]
) -> None:
    processes, fitted = trial_launcher(launcher, options.split()).fitted(workers)
    assert (processes, " ".join(f"{name} {value}" for name, value in fitted.items())) == expected


def test_processes_of_servers_come_on_top() -> None:
    recipe = changed(BASE, workers=4, strategy__name="sync", strategy__servers=3)
    command = trial_launcher("local", ["--np", "9"]).command(Trial(recipe, ["strategy=sync"]))
    assert command[command.index("--np") + 1] == "7"


def test_every_job_of_the_paper_has_work_for_its_processes(place: Place) -> None:
    """What slurm makes of the options, for each trial of table 1 on 32 nodes."""
    launch = ["--launch", "slurm", "--nodes", "32", "--print"]
    code, said = place.run("+study=table1_warmup", "seeds=[0]", *launch)
    assert code == 0, said
    commands = [line for line in said.splitlines() if line[0] != "#"]
    sizes = []
    for command in commands:
        batch = subprocess.run(
            f"{command} --print", shell=True, check=True,
            env=place.environment(), capture_output=True, text=True,
        ).stdout  # fmt: skip
        nodes, gpus = (re.search(rf"--{each}=(\d+)", batch) for each in ("nodes", "gpus-per-node"))
        sizes.append((int(nodes[1]), int(gpus[1])))
    assert sizes == [(1, 8), (32, 8), (32, 8), (32, 8)]
